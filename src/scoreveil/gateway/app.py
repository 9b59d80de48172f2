"""One request, from bytes to bytes: a plain ASGI application.

Every path that is served is known from the configuration, so routing is one lookup and anything else is 404. Each
process has one `App`; what it serves is a `Gateway`, which its `Worker` replaces on SIGHUP while requests under way
keep theirs.
"""

import asyncio
import contextlib
import math
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import orjson

from scoreveil.gateway import logs
from scoreveil.gateway.auth import ANONYMOUS, authenticator
from scoreveil.gateway.handlers import Answer, Exchange, Receive, Scope
from scoreveil.gateway.ledger_link import LedgerLink
from scoreveil.gateway.limits import Buckets, Held, network
from scoreveil.gateway.metrics import ModelMetrics
from scoreveil.gateway.opened import OpenedConfig
from scoreveil.gateway.routes import ServedRoute, route_table
from scoreveil.gateway.served import ServedModel
from scoreveil.gateway.traces import Tracer
from scoreveil.inference_protocol.errors import ApiError, bad_request, not_found
from scoreveil.inference_protocol.messages import HEADER_LENGTH

if TYPE_CHECKING:
    from scoreveil.gateway.worker import Worker

Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream")
BINARY = (b"content-type", b"application/octet-stream")
ONCE = (
    *(b"authorization", b"x-api-key", b"content-length", b"content-encoding", b"idempotency-key", HEADER_LENGTH),
    *(b"transfer-encoding", b"host"),
)
CLOSED = {"connection": "close"}  # what follows such a request may be no request
COMPLETIONS = "/v1/completions"  # which is there where a language model is
MODEL_PATH = re.compile("(/v2/models/[^/]+)/.")
ROWS_OF_AN_ADDRESS = 1000.0  # a second, where anyone may ask a model with memory and no rate is set
READY_FOR = 0.5  # seconds that an answer about readiness is kept
READY_WITHIN = 3.0  # seconds; what answers later is not ready


class Gateway:
    """All that one configuration serves."""

    def __init__(
        self,
        opened: OpenedConfig,
        models: Mapping[str, ServedModel],
        ledger: LedgerLink | None,
        buckets: Buckets,
        tracer: Tracer | None,
        unnamed: ModelMetrics,
    ) -> None:
        config = opened.config
        self.config, self.models, self.ledger, self.tracer = config, models, ledger, tracer
        self.unnamed = unnamed  # counts what is refused before its model is known, as a gRPC call without a key is
        self.authenticate = authenticator(config.auth)
        self.routes = route_table(config.models)
        self._buckets = buckets
        self._clients = {client.name: client for client in config.auth.clients}
        self.warnings = opened.warnings
        self.held = Held(config.limits.bytes_in_flight)
        self._ready = (-math.inf, False)
        self._asking = asyncio.Lock()

    def epsilon_limit(self, client: str) -> float:
        """What all fresh answers to the client may add up to; 0: no limit."""
        return self._of_client(client, "epsilon") or 0.0

    def _of_client(self, client: str, key: str) -> float | None:
        """A client's own limit, or that of all."""
        own: float | None = getattr(self._clients.get(client), key, None)
        return getattr(self.config.limits, key) if own is None else own

    def limit(self, exchange: Exchange, what: Literal["requests", "rows"], count: int) -> None:
        """Take tokens, or refuse with 429 and the time to wait. Without keys, each address is a client."""
        rate = self._of_client(exchange.client, f"{what}_per_second")
        if rate is None:
            rate = ROWS_OF_AN_ADDRESS if self.warnings else 0.0
        if rate:
            name = exchange.client if self.config.has_keys else network(exchange.address)
            wait = self._buckets.take(f"{what}\0{name}", rate, count)
            if wait:
                message = f"You may send {rate:g} {what} a second; wait {wait:.1f} seconds."
                raise ApiError(429, message, "rate", {"retry-after": str(int(wait) + 1)})

    async def ready(self) -> bool:
        """Whether every model and the ledger answer: asked once at a time, at most twice a second, for all who ask."""
        async with self._asking:
            if time.monotonic() - self._ready[0] > READY_FOR:
                checks = [served.source.ready() for served in self.models.values()]
                if self.ledger is not None:
                    checks.append(self.ledger.ready())
                is_ready = False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(READY_WITHIN):
                        is_ready = all(await asyncio.gather(*checks))
                self._ready = (time.monotonic(), is_ready)
            return self._ready[1]

    def close(self) -> None:
        for served in self.models.values():
            served.source.close()


class App:
    """What granian calls, once for each request, and once for the life of the worker."""

    def __init__(self, worker: "Worker") -> None:
        self._worker = worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._worker.live(receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.perf_counter()
        gateway = self._worker.gateway
        route = gateway.routes.get(scope["path"])
        address = scope["client"][0] if scope["client"] else ""
        exchange = Exchange(receive, {}, ANONYMOUS, address, gateway, "" if route is None else route.model)
        try:
            exchange.headers = _headers(scope["headers"])
            if route is None or not route.open:
                exchange.client = _authenticated(gateway, exchange.headers)
            if route is None:
                raise _not_served(scope["path"], gateway)
            if scope["method"] != route.method:
                message = f"This path takes {route.method} alone."
                raise ApiError(405, message, "method", {"allow": route.method})
            if not route.open:
                gateway.limit(exchange, "requests", 1)
            answer = await _handled(route, exchange)
            if answer.parts is not None:
                await _stream(send, receive, answer.parts)
        except ApiError as refusal:
            await _refuse(send, _has_openai_errors(route, scope["path"], gateway), exchange, refusal, start)
        except Exception as error:  # nothing of it may reach the client, or granian's log
            request = secrets.token_hex(4)
            logs.failure("error", error, model=exchange.model, request=request)
            internal = ApiError(500, f"Internal error; see the server log, request id {request}.", "internal")
            await _refuse(send, _has_openai_errors(route, scope["path"], gateway), exchange, internal, start)
        else:
            if answer.parts is None:
                await _send(send, answer)
            if answer.rows is not None:
                seconds = time.perf_counter() - start
                exchange.served.metrics.answered(answer.rows, seconds)
                if gateway.config.logs.requests:
                    numbers = {"status": answer.status, "rows": answer.rows, "milliseconds": round(seconds * 1000, 3)}
                    logs.event("request", model=exchange.model, client=exchange.client, **numbers)


def _headers(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name. One that decides something comes once: of two, another server might have read the other."""
    headers = dict(pairs)
    if len(headers) != len(pairs):
        names = [name for name, _ in pairs]
        for name in ONCE:
            if names.count(name) > 1:
                raise ApiError(400, f"The header {name.decode()} came twice; send it once.", "malformed", CLOSED)
    if headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
        words = "The only Transfer-Encoding is chunked, and a Content-Length is better."
        raise ApiError(400, words, "malformed", CLOSED)
    if b"authorization" in headers and b"x-api-key" in headers:
        raise bad_request("The request has both Authorization and X-API-Key; send one of them.")
    return headers


def _not_served(path: str, gateway: Gateway) -> ApiError:
    """404: no model has this name, or the path is none of a model's."""
    if path.rstrip("/") == "/v2/models":
        return ApiError(404, "This path is not served; POST /v2/repository/index lists the models.", "not_found")
    model = MODEL_PATH.match(path)
    if model is None or model[1] in gateway.routes:
        return not_found()
    message = "There is no model of this name for this protocol; POST /v2/repository/index lists those that there are."
    return ApiError(404, message, "not_found")


def _has_openai_errors(route: ServedRoute | None, path: str, gateway: Gateway) -> bool:
    """Whether an error is an object there; TF Serving's paths with a verb, /v1/models/NAME:predict, have a text."""
    if route is not None:
        return route.openai_errors
    return COMPLETIONS in gateway.routes and path.startswith("/v1/") and ":" not in path


def _authenticated(gateway: Gateway, headers: dict[bytes, bytes]) -> str:
    client = gateway.authenticate(headers)
    if client is None:
        message = "No valid key or token; send it as Authorization: Bearer …, or a key as X-API-Key."
        raise ApiError(401, message, "auth", {"www-authenticate": "Bearer"})
    return client


async def _handled(route: ServedRoute, exchange: Exchange) -> Answer:
    tracer = exchange.gateway.tracer
    if tracer is None:
        return await route.handle(exchange)
    with tracer.span(route.handle.__name__, route.model) as finish:
        try:
            answer = await route.handle(exchange)
        except ApiError as refusal:
            finish(refusal.status, 0)
            raise
        finish(answer.status, answer.rows or 0)
        return answer


async def _refuse(send: Send, openai: bool, exchange: Exchange, refusal: ApiError, start: float) -> None:
    about = {"message": refusal.message, "type": refusal.reason, "param": None, "code": refusal.reason}
    body = orjson.dumps({"error": about if openai else refusal.message})
    if isinstance(refusal, StreamBroken):  # the answer has begun
        await send({"type": "http.response.body", "body": b"data: " + body + b"\n\n"})
    else:
        extra = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
        await _send(send, Answer(body, status=refusal.status), extra)
    counters = exchange.served.metrics if exchange.model else exchange.gateway.unnamed
    counters.refused(refusal.status, refusal.reason, time.perf_counter() - start)
    who = {"model": exchange.model, "client": exchange.client}
    more = {"message": refusal.detail} if refusal.detail else {}
    logs.event("refusal", **who, status=refusal.status, reason=refusal.reason, **more)


class StreamBroken(ApiError):
    """An answer cannot be completed of which parts were sent already."""


async def _stream(send: Send, receive: Receive, parts: AsyncGenerator[bytes, None]) -> None:
    """Server-sent events, one after the other, while there is somebody to read them."""
    async with contextlib.aclosing(parts):
        part: bytes | None = await anext(parts)  # what is refused is refused before anything is sent
        left = asyncio.ensure_future(receive())  # the request was read whole: what comes next is that the client leaves
        await send({"type": "http.response.start", "status": 200, "headers": [EVENTS, (b"cache-control", b"no-cache")]})
        try:
            while part is not None and not left.done():
                await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await anext(parts, None)
        except ApiError as refusal:
            raise StreamBroken(refusal.status, refusal.message, refusal.reason, detail=refusal.detail) from None
        finally:
            left.cancel()
    if part is None:
        await send({"type": "http.response.body", "body": b""})


async def _send(send: Send, answer: Answer, extra: list[tuple[bytes, bytes]] | None = None) -> None:
    headers = [JSON, (b"content-length", str(len(answer.body)).encode())]
    if answer.header_length:
        headers[0] = BINARY
        headers.append((HEADER_LENGTH, str(answer.header_length).encode()))
    if extra:
        headers += extra
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
