"""What each route does with a request: handlers from an `Exchange` to an `Answer`."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from scoreveil import __version__
from scoreveil.gateway.served import Asker, ServedModel, request_digest
from scoreveil.inference_protocol.messages import HEADER_LENGTH
from scoreveil.inference_protocol.refusals import Refusal, bad_request, upstream_failed

if TYPE_CHECKING:
    from scoreveil.gateway.app import Gateway

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Headers = dict[bytes, bytes]

SERVER = orjson.dumps({"name": "scoreveil", "version": __version__, "extensions": ["binary_tensor_data"]})
LONGEST_KEY = 255  # bytes of an Idempotency-Key


class Answer(NamedTuple):
    """What goes back: its body, how many rows of scores it holds, and the length of its JSON part, if that is one."""

    body: bytes
    rows: int = 0
    header_length: int = 0
    status: int = 200


@dataclass(slots=True)
class Exchange:
    """One request under way."""

    receive: Receive
    headers: Headers
    client: str
    gateway: "Gateway"
    model: str  # its name, on the routes of models

    @property
    def served(self) -> ServedModel:
        return self.gateway.models[self.model]


Handler = Callable[[Exchange], Awaitable[Answer]]


async def server(exchange: Exchange) -> Answer:
    return Answer(SERVER)


async def live(exchange: Exchange) -> Answer:
    return Answer(b'{"live":true}')


async def server_ready(exchange: Exchange) -> Answer:
    ready = await exchange.gateway.ready()
    return Answer(orjson.dumps({"ready": ready}), status=200 if ready else 503)


async def metadata(exchange: Exchange) -> Answer:
    return Answer(orjson.dumps(await exchange.served.metadata()))


async def model_ready(exchange: Exchange) -> Answer:
    served, ledger = exchange.served, exchange.gateway.ledger
    ready = await served.source.ready()
    if ready and served.remembers and ledger is not None:
        ready = await ledger.ready()
    return Answer(orjson.dumps({"name": served.name, "ready": ready}), status=200 if ready else 503)


async def version_status(exchange: Exchange) -> Answer:
    """A model's state, as TF Serving tells it."""
    state = "AVAILABLE" if await exchange.served.source.ready() else "UNLOADING"
    about = {"version": exchange.served.model.version, "state": state}
    status = {"error_code": "OK", "error_message": ""}
    return Answer(orjson.dumps({"model_version_status": [{**about, "status": status}]}))


async def infer(exchange: Exchange) -> Answer:
    """Read, ask the model, release, write: the same for every protocol."""
    served, gateway = exchange.served, exchange.gateway
    model, source = served.model, served.source
    query = source.read(await _body(exchange), exchange.headers.get(HEADER_LENGTH))
    gateway.limit_rows(exchange.client, query.rows)
    found = await source.infer(query, served.limits.seconds)
    if any(len(array) != query.rows for array in found.values()):
        raise upstream_failed("rows")
    scores = {name: array for name, array in found.items() if name in model.scores}
    passed = {name: array for name, array in found.items() if name in model.passes}
    asker = Asker(exchange.client, gateway.epsilon_limit(exchange.client), _idempotency(exchange))
    veiled = await served.release(scores, query, gateway.ledger, asker)
    written, length = source.write(query, {**passed, **veiled})
    return Answer(written, query.rows, length)


def _idempotency(exchange: Exchange) -> bytes | None:
    key = exchange.headers.get(b"idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY:
        raise bad_request(f"The Idempotency-Key has {len(key)} bytes; 1 to {LONGEST_KEY} are allowed.")
    return request_digest(exchange.client, key)


async def _body(exchange: Exchange) -> bytes:
    """The body, whole, within its limits."""
    limits = exchange.gateway.config.limits
    most = limits.body_bytes
    if exchange.headers.get(b"content-encoding", b"identity") != b"identity":
        raise Refusal(415, "The body has a Content-Encoding; send it plain.", "encoding")
    declared = exchange.headers.get(b"content-length", b"0")
    if not declared.isdigit() or int(declared) > most:
        raise _too_large(most)
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(limits.seconds):
            while more:
                message = await exchange.receive()
                if message["type"] != "http.request":
                    raise Refusal(499, "The client left before its request was complete.", "client_left")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise _too_large(most)
                more = message.get("more_body", False)
    except TimeoutError:
        words = f"The request was not complete after {limits.seconds:g} seconds; send fewer rows at a time."
        raise Refusal(408, words, "slow_client") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"The body is larger than {most} bytes; send fewer rows at a time.", "body")
