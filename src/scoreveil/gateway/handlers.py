"""What each route does with a request: handlers from an `Exchange` to an `Answer`."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from scoreveil import __version__
from scoreveil.gateway import completions
from scoreveil.gateway.completions import CompletionForm
from scoreveil.gateway.language import TextUpstream
from scoreveil.gateway.memory import Asker
from scoreveil.gateway.served import ServedModel, request_digest
from scoreveil.inference_protocol.errors import ApiError, bad_request
from scoreveil.inference_protocol.messages import HEADER_LENGTH, LARGE

if TYPE_CHECKING:
    from scoreveil.gateway.app import Gateway

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Headers = dict[bytes, bytes]

EXTENSIONS = ["binary_tensor_data", "classification", "model_configuration"]
SERVER = orjson.dumps({"name": "scoreveil", "version": __version__, "extensions": EXTENSIONS})
READERS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="reading")  # of long requests, so many at a time
MAX_KEY = 255  # bytes of an Idempotency-Key
MAX_DIGITS = 20  # digits of a Content-Length


class Answer(NamedTuple):
    """What goes back: its body, how many rows of scores it holds, and the length of its JSON part, if that is one."""

    body: bytes
    rows: int | None = None  # None: no model was asked
    header_length: int = 0
    status: int = 200
    parts: AsyncGenerator[bytes, None] | None = None  # in place of the body: server-sent events, as they come


@dataclass(slots=True)
class Exchange:
    receive: Receive
    headers: Headers
    client: str
    address: str  # where it comes from
    gateway: "Gateway"
    model: str  # its name, on the routes of models; on those for several, once the request was read

    @property
    def served(self) -> ServedModel:
        return self.gateway.models[self.model]


Handler = Callable[[Exchange], Awaitable[Answer]]


async def server(exchange: Exchange) -> Answer:
    return Answer(SERVER)


async def live(exchange: Exchange) -> Answer:
    return Answer(b'{"live":true}')


async def server_ready(exchange: Exchange) -> Answer:
    ready, warnings = await exchange.gateway.ready(), exchange.gateway.warnings
    return Answer(
        orjson.dumps({"ready": ready, **({"warnings": warnings} if warnings else {})}), status=200 if ready else 503
    )


async def metadata(exchange: Exchange) -> Answer:
    return Answer(orjson.dumps(await exchange.served.metadata()))


async def model_ready(exchange: Exchange) -> Answer:
    ready = await _is_ready(exchange.gateway, exchange.served)
    return Answer(orjson.dumps({"name": exchange.served.name, "ready": ready}), status=200 if ready else 503)


async def _is_ready(gateway: "Gateway", served: ServedModel) -> bool:
    ready = await served.source.ready()
    if ready and served.memory is not None and gateway.ledger is not None:
        ready = await gateway.ledger.ready()
    return ready


async def model_config(exchange: Exchange) -> Answer:
    """What Triton's clients ask of a model's configuration: its tensors, and how many rows a request may have."""
    about = await exchange.served.metadata()
    inputs, outputs = about["inputs"], about["outputs"]
    batched = all(tuple(spec["shape"][:1]) == (-1,) for spec in (*inputs, *outputs))

    def listed(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        kinds = {"BYTES": "STRING"}
        return [
            {
                "name": spec["name"],
                "data_type": f"TYPE_{kinds.get(spec['datatype'], spec['datatype'])}",
                "dims": spec["shape"][1:] if batched else spec["shape"],
            }
            for spec in specs
        ]

    rows = exchange.served.limits.rows if batched else 0
    tree = {"name": about["name"], "platform": about["platform"], "max_batch_size": rows}
    return Answer(orjson.dumps({**tree, "input": listed(inputs), "output": listed(outputs)}))


async def repository_index(exchange: Exchange) -> Answer:
    """The models that are served by this protocol, and whether they are ready."""
    gateway = exchange.gateway
    models = [served for served in gateway.models.values() if served.settings.is_v2]
    ready = await asyncio.gather(*(_is_ready(gateway, served) for served in models))
    index = []
    for served, up in zip(models, ready, strict=True):
        state = "READY" if up else "UNAVAILABLE"
        index.append({"name": served.name, "version": served.settings.version, "state": state, "reason": ""})
    return Answer(orjson.dumps(index))


async def version_status(exchange: Exchange) -> Answer:
    """A model's state, as TF Serving tells it."""
    state = "AVAILABLE" if await exchange.served.source.ready() else "UNLOADING"
    about = {"version": exchange.served.settings.version, "state": state}
    status = {"error_code": "OK", "error_message": ""}
    return Answer(orjson.dumps({"model_version_status": [{**about, "status": status}]}))


async def infer(exchange: Exchange) -> Answer:
    """Read, ask the model, release, write: the same for every protocol."""
    with exchange.gateway.held.bodies() as take:
        return await _infer(exchange, await _body(exchange, take))


async def chat(exchange: Exchange) -> Answer:
    return await _complete(exchange, completions.CHAT)


async def complete(exchange: Exchange) -> Answer:
    return await _complete(exchange, completions.TEXT)


async def _complete(exchange: Exchange, form: CompletionForm) -> Answer:
    """As `infer`, for the model that the request names; texts may also come in parts."""
    with exchange.gateway.held.bodies() as take:
        body = await _body(exchange, take)
        name = completions.addressed(body, form)
        if name not in exchange.gateway.config.language_models:
            raise ApiError(404, "There is no language model of this name; GET /v1/models lists them.", "not_found")
        exchange.model = name
        served = exchange.served
        if isinstance(served.source, TextUpstream):
            query = await _read(exchange, body)
            if query.request.stream:
                return Answer(b"", 0, parts=served.source.stream(query, served.limits.seconds))
            return await _answer(exchange, query)
        return await _infer(exchange, body)


async def language_models(exchange: Exchange) -> Answer:
    """The language models, as OpenAI's clients ask for them."""
    listed = [_language_model(name) for name in exchange.gateway.config.language_models]
    return Answer(orjson.dumps({"object": "list", "data": listed}))


async def language_model(exchange: Exchange) -> Answer:
    return Answer(orjson.dumps(_language_model(exchange.model)))


def _language_model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "scoreveil"}


async def _infer(exchange: Exchange, body: bytes) -> Answer:
    return await _answer(exchange, await _read(exchange, body))


async def _read(exchange: Exchange, body: bytes) -> Any:
    """The query that a body holds, within its client's limits."""
    source, header = exchange.served.source, exchange.headers.get(HEADER_LENGTH)
    if len(body) <= LARGE:
        query = source.read(body, header)
    else:  # beside the loop, so that the others are not kept waiting
        query = await asyncio.get_running_loop().run_in_executor(READERS, source.read, body, header)
    exchange.gateway.limit(exchange, "rows", query.rows)
    return query


async def _answer(exchange: Exchange, query: Any) -> Answer:
    served, gateway = exchange.served, exchange.gateway
    source = served.source
    scores, passed = await served.ask(query)
    asker = Asker(exchange.client, gateway.epsilon_limit(exchange.client), _idempotency(exchange))
    # a client that wants labels alone is told no scores, and charged for none
    veiled = await served.release(scores, query, gateway.ledger, asker) if scores else {}
    written, length = source.write(query, served.shown(veiled, passed))
    return Answer(written, query.rows if scores else 0, length)


def _idempotency(exchange: Exchange) -> bytes | None:
    key = exchange.headers.get(b"idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY:
        raise bad_request(f"The Idempotency-Key has {len(key)} bytes; 1 to {MAX_KEY} are allowed.")
    return request_digest(exchange.client, key)


async def _body(exchange: Exchange, take: Callable[[int], bool]) -> bytes:
    """The body, whole, within its limits and while there is room for it."""
    limits = exchange.gateway.config.limits
    most = limits.body_bytes
    if exchange.headers.get(b"content-encoding", b"identity") != b"identity":
        raise ApiError(415, "The body has a Content-Encoding; send it plain.", "encoding")
    declared = exchange.headers.get(b"content-length", b"0")
    if not declared.isdigit() or len(declared) > MAX_DIGITS:
        raise bad_request("The Content-Length is not a number of bytes.")
    if int(declared) > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size, room, more = 0, True, True
    try:
        async with asyncio.timeout(limits.seconds):
            while more:
                message = await exchange.receive()
                if message["type"] != "http.request":
                    raise ApiError(499, "The client left before its request was complete.", "client_left")
                part = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise _too_large(most)
                if room and not take(len(part)):
                    # the rest is read all the same, and dropped: a client that still sends would not see the answer
                    room = False
                    take(-sum(map(len, parts)))
                    parts.clear()
                if room:
                    parts.append(part)
                more = message.get("more_body", False)
    except TimeoutError:
        words = f"The request was not complete after {limits.seconds:g} seconds; send fewer rows at a time."
        raise ApiError(408, words, "slow_client") from None
    if not room:
        words = "The gateway holds as many requests as it can; try again in a second."
        raise ApiError(503, words, "busy", {"retry-after": "1"})
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"The body is larger than {most} bytes; send fewer rows at a time.", "body")
