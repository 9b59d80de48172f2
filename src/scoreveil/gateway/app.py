"""One request, from bytes to bytes: a plain ASGI application.

Every path that is served is known from the configuration, so routing is one lookup and anything else is 404. Each
worker has one `App`; what it serves is a `Gateway`, which SIGHUP replaces while requests under way keep theirs.
"""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from scoreveil import __version__
from scoreveil.gateway import logs, protocol, secrets
from scoreveil.gateway.auth import ANONYMOUS, Authenticate, authenticator
from scoreveil.gateway.config import Config
from scoreveil.gateway.embedded import Embedded
from scoreveil.gateway.errors import Refusal, bad_request, not_found, upstream_failed
from scoreveil.gateway.ledger_link import LedgerLink
from scoreveil.gateway.limits import Buckets
from scoreveil.gateway.metrics import Metrics
from scoreveil.gateway.mlflow import record_bytes
from scoreveil.gateway.served import Served, request_digest, source_of, tensor_records
from scoreveil.gateway.traces import Tracer, tracer
from scoreveil.gateway.upstream import V2Upstream

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = dict[bytes, bytes]

JSON = (b"content-type", b"application/json")
BINARY = (b"content-type", b"application/octet-stream")
SERVER = orjson.dumps({"name": "scoreveil", "version": __version__, "extensions": ["binary_tensor_data"]})
READY_FOR = 0.5  # seconds that an answer about readiness is kept
LONGEST_KEY = 255


class Answer(NamedTuple):
    body: bytes
    rows: int = 0
    header_length: int = 0
    status: int = 200


@dataclass(frozen=True)
class Route:
    method: str
    handle: Callable[["Call"], Awaitable[Answer]]
    served: Served | None = None
    open: bool = False  # to everyone: health alone


@dataclass(slots=True)
class Call:
    """One request under way."""

    scope: Scope
    receive: Receive
    headers: Headers
    client: str
    gateway: "Gateway"
    served: Served | None


class Gateway:
    """All that one configuration serves."""

    def __init__(
        self, config: Config, models: Mapping[str, Served], ledger: LedgerLink | None, buckets: Buckets
    ) -> None:
        self.config, self.models, self.ledger, self.buckets = config, models, ledger, buckets
        self.authenticate: Authenticate = authenticator(config.auth)
        limits = config.limits
        self._rates = {
            client.name: (
                limits.requests_per_second if client.requests_per_second is None else client.requests_per_second,
                limits.rows_per_second if client.rows_per_second is None else client.rows_per_second,
            )
            for client in config.auth.clients
        }
        self._default_rates = limits.requests_per_second, limits.rows_per_second
        self.routes = _routes(models)
        self._ready = (0.0, False)

    def rates(self, client: str) -> tuple[float, float]:
        return self._rates.get(client, self._default_rates)

    def limit(self, client: str, what: str, rate: float, count: float) -> None:
        """Take tokens, or refuse with 429 and the time to wait."""
        if rate:
            wait = self.buckets.take(f"{what}\0{client}", rate, count)
            if wait:
                message = f"Expected at most {rate:g} {what} a second, got more."
                raise Refusal(429, message, "rate", {"retry-after": str(int(wait) + 1)})

    async def ready(self) -> bool:
        """Whether every model and the ledger answer, asked at most twice a second."""
        now = time.monotonic()
        if now - self._ready[0] > READY_FOR:
            checks = [served.ready() for served in self.models.values()]
            if self.ledger is not None:
                checks.append(self.ledger.ready())
            self._ready = (now, all(await asyncio.gather(*checks)))
        return self._ready[1]

    async def close(self) -> None:
        for served in self.models.values():
            await served.source.close()


# What is served


def _routes(models: Mapping[str, Served]) -> dict[str, Route]:
    routes = {
        "/v2": Route("GET", _server),
        "/v2/": Route("GET", _server),
        "/v2/health/live": Route("GET", _live, open=True),
        "/v2/health/ready": Route("GET", _server_ready, open=True),
    }
    for name, served in models.items():
        if served.model.is_v2:
            for base in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{served.model.version}"):
                routes[base] = Route("GET", _metadata, served)
                routes[f"{base}/ready"] = Route("GET", _model_ready, served)
                routes[f"{base}/infer"] = Route("POST", _infer, served)
        elif served.source.platform == "mlflow":
            routes["/invocations"] = Route("POST", _adapted, served)
            routes["/ping"] = routes["/health"] = Route("GET", _server_ready, served, open=True)
        else:
            for base in (f"/v1/models/{name}", f"/v1/models/{name}/versions/{served.model.version}"):
                routes[base] = Route("GET", _tf_status, served)
                routes[f"{base}:predict"] = Route("POST", _adapted, served)
    return routes


async def _server(call: Call) -> Answer:
    return Answer(SERVER)


async def _live(call: Call) -> Answer:
    return Answer(b'{"live":true}')


async def _server_ready(call: Call) -> Answer:
    ready = await call.gateway.ready()
    return Answer(b'{"ready":true}' if ready else b'{"ready":false}', status=200 if ready else 503)


async def _metadata(call: Call) -> Answer:
    return Answer(orjson.dumps(await _served(call).metadata()))


async def _model_ready(call: Call) -> Answer:
    served = _served(call)
    ledger = call.gateway.ledger if served.budgeted else None
    ready = await served.ready() and (ledger is None or await ledger.ready())
    return Answer(orjson.dumps({"name": served.name, "ready": ready}), status=200 if ready else 503)


async def _tf_status(call: Call) -> Answer:
    served = _served(call)
    state = "AVAILABLE" if await served.ready() else "UNLOADING"
    status = {"error_code": "OK", "error_message": ""}
    return Answer(
        orjson.dumps({"model_version_status": [{"version": served.model.version, "state": state, "status": status}]})
    )


async def _infer(call: Call) -> Answer:
    """The Open Inference Protocol: read, ask the model, release, write."""
    served = _served(call)
    assert isinstance(served.source, (Embedded, V2Upstream))
    body = await _body(call)
    header = call.headers.get(protocol.HEADER_LENGTH)
    request = protocol.read_request(body, header, served.passed, served.limits.rows, served.reads_numbers)
    wanted = request.wanted(served.offered)
    rows = request.inputs[0].shape[0]
    _limit_rows(call, rows)
    # a release counts for all score outputs, so all are asked for, whatever the client wants to see
    asked = list(wanted) if not served.budgeted else list(served.offered)
    found = await served.source.infer(request, asked, served.limits.seconds)
    scores = {name: found[name] for name in asked if name in served.model.scores}
    if any(tensor.shape[0] != rows for tensor in request.inputs) or any(len(array) != rows for array in found.values()):
        raise upstream_failed("rows")
    records = tensor_records(request.inputs) if served.budgeted else None
    veiled = await served.release(scores, records, call.gateway.ledger, call.client, _idempotency(call))
    about = served.about if request.id is None else {**served.about, "id": request.id}
    passed = {name: found[name] for name in wanted if name in served.model.passes}
    written, length = protocol.write_response(about, {**passed, **veiled}, wanted)
    return Answer(written, rows, length)


async def _adapted(call: Call) -> Answer:
    """MLflow and TF Serving: rows in, rows of scores out."""
    served = _served(call)
    source = served.source
    assert not isinstance(source, (Embedded, V2Upstream))
    records, asked = source.read(await _body(call))
    _limit_rows(call, len(records))
    scores = await source.infer(asked, served.limits.seconds)
    if len(scores) != len(records):
        raise upstream_failed("rows")
    keyed = record_bytes(records) if served.budgeted else None
    (name,) = served.model.scores
    veiled = await served.release({name: scores}, keyed, call.gateway.ledger, call.client, _idempotency(call))
    return Answer(source.write(veiled[name]), len(records))


def _served(call: Call) -> Served:
    assert call.served is not None  # routes of models have one
    return call.served


def _limit_rows(call: Call, rows: int) -> None:
    call.gateway.limit(call.client, "rows", call.gateway.rates(call.client)[1], rows)


def _idempotency(call: Call) -> bytes | None:
    key = call.headers.get(b"idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= LONGEST_KEY:
        raise bad_request(f"Expected an Idempotency-Key of 1 to {LONGEST_KEY} bytes, got another.")
    return request_digest(call.client, key)


async def _body(call: Call) -> bytes:
    """The body, whole, within its limits."""
    limits = call.gateway.config.limits
    if call.headers.get(b"content-encoding", b"identity") != b"identity":
        raise Refusal(415, "Expected a body without Content-Encoding, got one with.", "encoding")
    declared = call.headers.get(b"content-length", b"0")
    if not declared.isdigit() or int(declared) > limits.body_bytes:
        raise _too_large(limits.body_bytes)
    try:
        async with asyncio.timeout(limits.seconds):
            message = await call.receive()
            body: bytes = message.get("body", b"")
            if message.get("more_body"):
                parts, size = [body], len(body)
                while message.get("more_body"):
                    message = await call.receive()
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limits.body_bytes:
                        raise _too_large(limits.body_bytes)
                body = b"".join(parts)
    except TimeoutError:
        raise Refusal(408, "Expected the whole request in time, got a part.", "slow_client") from None
    if len(body) > limits.body_bytes:
        raise _too_large(limits.body_bytes)
    if message["type"] != "http.request":
        raise Refusal(499, "Expected a client that waits, got one that left.", "client_left")
    return body


def _too_large(most: int) -> Refusal:
    return Refusal(413, f"Expected a body of at most {most} bytes, got more.", "body")


# The application


class App:
    """What granian calls, once for each request."""

    def __init__(self, load: Callable[[], Config], folder: Path) -> None:
        self._load, self._folder = load, folder
        self._gateway: Gateway | None = None
        self._ledgers: dict[str, LedgerLink] = {}
        self._metrics: Metrics | None = None
        self._buckets = Buckets(folder / "rates")
        self._tracer: Tracer | None = None
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_requests = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.perf_counter()
        gateway = self._gateway
        assert gateway is not None  # granian asks after the lifespan has begun
        route = gateway.routes.get(scope["path"])
        client = ANONYMOUS
        try:
            headers: Headers = dict(scope["headers"])
            if route is None or not route.open:
                known = gateway.authenticate(headers)
                if known is None:
                    raise Refusal(
                        401, "Expected a valid key or token, got none.", "auth", {"www-authenticate": "Bearer"}
                    )
                client = known
            if route is None:
                raise not_found()
            if scope["method"] != route.method:
                raise Refusal(405, f"Expected {route.method}, got another method.", "method", {"allow": route.method})
            if not route.open:
                gateway.limit(client, "requests", gateway.rates(client)[0], 1.0)
            call = Call(scope, receive, headers, client, gateway, route.served)
            if self._tracer is None:
                answer = await route.handle(call)
            else:
                answer = await self._traced(route, call)
        except Refusal as refusal:
            await self._refuse(send, route, refusal, client, start)
        except Exception as error:  # nothing of it may reach the client, or granian's log
            logs.failure("error", error, model=_name(route))
            internal = Refusal(500, "Expected no internal error, got one.", "internal")
            await self._refuse(send, route, internal, client, start)
        else:
            await _send(send, answer)
            if answer.rows and route.served is not None:
                seconds = time.perf_counter() - start
                route.served.metrics.answered(answer.rows, seconds)
                if self._log_requests:
                    numbers = {"status": answer.status, "rows": answer.rows, "milliseconds": round(seconds * 1000, 3)}
                    logs.event("request", model=route.served.name, client=client, **numbers)

    async def _traced(self, route: Route, call: Call) -> Answer:
        assert self._tracer is not None
        with self._tracer.span(route.handle.__name__.strip("_"), _name(route)) as span:
            try:
                answer = await route.handle(call)
            except Refusal as refusal:
                span.finish(refusal.status, 0)
                raise
            span.finish(answer.status, answer.rows)
            return answer

    async def _refuse(self, send: Send, route: Route | None, refusal: Refusal, client: str, start: float) -> None:
        body = orjson.dumps({"error": refusal.message})
        extra = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
        await _send(send, Answer(body, status=refusal.status), extra)
        seconds = time.perf_counter() - start
        if route is not None and route.served is not None:
            route.served.metrics.refused(refusal.status, refusal.reason, seconds)
        logs.event("refusal", model=_name(route), client=client, status=refusal.status, reason=refusal.reason)

    # The life of a worker

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._open()
        except Exception as error:
            message = str(error) if isinstance(error, (ValueError, OSError)) else ""
            logs.failure("start_failed", error, message=message)
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        (self._folder / f"worker-{os.getpid()}").touch()  # from now on SIGHUP may come
        self._begin(self._watch_parent(os.getppid()))
        # what was loaded stays: the garbage collector need not look at it again and again
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _watch_parent(self, parent: int) -> None:
        """Leave when the main process is gone: nobody else would stop this one."""
        while os.getppid() == parent:
            await asyncio.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _hang_up(self) -> None:
        self._begin(self.reload())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self) -> None:
        config = await asyncio.to_thread(self._load)
        keys = await asyncio.to_thread(secrets.load, config.secrets.file)
        if self._metrics is None:
            self._metrics = Metrics(config.models)
        ledger = None
        if config.budgeted:  # one that is open stays open, with all that was charged
            ledger = self._ledgers.setdefault(config.ledger.url, LedgerLink(config.ledger.url))
        models = {}
        for name, model in config.models.items():
            of = self._metrics.add(name)
            if model.upstream is None:
                source = await asyncio.to_thread(source_of, name, model, config.limits)
            else:
                source = source_of(name, model, config.limits)
            models[name] = await asyncio.to_thread(Served, name, model, source, keys, config.limits, of)
        self._tracer = tracer(config.traces)
        self._log_requests = config.logs.requests
        self._gateway = Gateway(config, models, ledger, self._buckets)
        logs.event("serving", model=",".join(models), rotations=keys.rotations)

    async def reload(self) -> None:
        """Read the configuration and the secrets again; where they do not hold, everything stays as it was."""
        async with self._reloading:
            before = self._gateway
            try:
                await self._open()
            except Exception as error:
                logs.failure("reload_failed", error)
                return
            logs.event("reloaded")
        if before is not None:
            try:
                await asyncio.sleep(before.config.limits.seconds + 1)  # requests under way keep what they began with
            finally:
                await before.close()

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._gateway is not None:
            await self._gateway.close()
        for ledger in self._ledgers.values():
            await ledger.close()
        self._buckets.close()


def _name(route: Route | None) -> str:
    return "" if route is None or route.served is None else route.served.name


async def _send(send: Send, answer: Answer, extra: list[tuple[bytes, bytes]] | None = None) -> None:
    headers = [JSON, (b"content-length", str(len(answer.body)).encode())]
    if answer.header_length:
        headers[0] = BINARY
        headers.append((protocol.HEADER_LENGTH, str(answer.header_length).encode()))
    if extra:
        headers += extra
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
