"""The model behind, over HTTP. Of its answer only what was asked for is read; of its errors, only the status.

Nothing of a client's headers goes there. Redirects are not followed, answers are bounded in size and time, and
whatever is not a well-formed answer is 502.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray
from yarl import URL

from scoreveil.gateway import protocol
from scoreveil.gateway.config import Limits, TensorSpec, Upstream
from scoreveil.gateway.errors import Refusal, upstream_failed
from scoreveil.gateway.protocol import Request

PLATFORM = "scoreveil"
READY_SECONDS = 2.0


class Connection:
    """A pool of connections to one upstream."""

    def __init__(self, upstream: Upstream, limits: Limits) -> None:
        self._base = upstream.url.rstrip("/")
        self._urls: dict[str, URL] = {}  # a handful: paths come from the configuration
        self._most = limits.upstream_bytes
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "scoreveil"}
        if upstream.token_file is not None:
            self._headers["Authorization"] = f"Bearer {_token(upstream.token_file)}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=upstream.connections, keepalive_timeout=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # each call has its own limit
            auto_decompress=False,
            trust_env=False,
        )

    async def post(self, path: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[bytes, Any]:
        """The body and headers of a 200; anything else is a refusal that says nothing of what came."""
        try:
            async with asyncio.timeout(seconds):
                async with self._session.post(
                    self._url(path), data=body, headers={**self._headers, **headers}, allow_redirects=False
                ) as answer:
                    if answer.status != 200:
                        raise _refused(answer.status)
                    return await self._read(answer), answer.headers
        except TimeoutError:
            raise Refusal(504, "Expected an answer from the model in time, got none.", "timeout") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise upstream_failed() from None

    async def get(self, path: str, seconds: float = READY_SECONDS) -> tuple[int, bytes]:
        """The status and body of what only the gateway itself asks; status 0 where there is no answer."""
        try:
            async with asyncio.timeout(seconds):
                async with self._session.get(self._url(path), headers=self._headers, allow_redirects=False) as answer:
                    return answer.status, await self._read(answer)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, Refusal):
            return 0, b""

    def _url(self, path: str) -> URL:
        if path not in self._urls:
            self._urls[path] = URL(self._base + path)
        return self._urls[path]

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        if (answer.content_length or 0) > self._most:
            raise upstream_failed("too_large")
        body = await answer.content.read(self._most + 1) if answer.content_length is None else await answer.read()
        while answer.content_length is None and len(body) <= self._most and not answer.content.at_eof():
            body += await answer.content.read(self._most + 1 - len(body))
        if len(body) > self._most:
            raise upstream_failed("too_large")
        return body

    async def close(self) -> None:
        await self._session.close()


def _token(path: Path) -> str:
    token = path.read_text(encoding="ascii").strip()
    if not token.isprintable() or not token:
        raise ValueError(f"Expected one line of text in {path.name}, got another.")
    return token


def _refused(status: int) -> Refusal:
    """What an upstream's status means to the client. Its reasons may quote inputs, so they stay here."""
    if status in (400, 413, 415, 422):
        return Refusal(400, "Expected a request that the model accepts, got another.", "upstream_refused")
    if status in (429, 503):
        return Refusal(503, "Expected a model that is ready, got one that is busy or not.", "upstream_busy")
    return upstream_failed()


class V2Upstream:
    """An upstream that speaks the Open Inference Protocol: MLServer, Triton, KServe."""

    platform = PLATFORM

    def __init__(
        self, name: str, version: str, upstream: Upstream, limits: Limits, inputs: tuple[TensorSpec, ...]
    ) -> None:
        path = f"/v2/models/{upstream.model or name}"
        self._path = f"{path}/versions/{upstream.version}" if upstream.version is not None else path
        self._infer = f"{self._path}/infer"
        self._binary = upstream.binary
        self.inputs = inputs
        self._connection = Connection(upstream, limits)

    async def infer(self, request: Request, outputs: list[str], seconds: float) -> Mapping[str, NDArray[Any]]:
        if self.inputs:
            protocol.check_inputs(request.inputs, self.inputs)
        body, length = protocol.write_request(request, outputs, self._binary)
        headers = {"Content-Type": "application/octet-stream" if length else "application/json"}
        if length:
            headers["Inference-Header-Content-Length"] = str(length)
        answer, given = await self._connection.post(self._infer, body, headers, seconds)
        header = given.get("Inference-Header-Content-Length")
        try:
            return protocol.read_response(answer, None if header is None else header.encode(), outputs)
        except (Refusal, LookupError, TypeError, ValueError, AttributeError):
            raise upstream_failed("malformed") from None

    async def declared(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Inputs and outputs, as the upstream names them; of all else that it says, nothing is passed on."""
        status, body = await self._connection.get(self._path)
        try:
            said = orjson.loads(body) if status == 200 else {}
            inputs, outputs = ([_spec(each) for each in said.get(kind) or []] for kind in ("inputs", "outputs"))
        except (ValueError, LookupError, TypeError, AttributeError):
            raise upstream_failed("malformed") from None
        return list(self.inputs) or inputs, outputs

    async def ready(self) -> bool:
        status, _ = await self._connection.get(f"{self._path}/ready")
        return status == 200

    async def close(self) -> None:
        await self._connection.close()


def _spec(said: dict[str, Any]) -> TensorSpec:
    return TensorSpec(str(said["name"]), said["datatype"], tuple(int(size) for size in said["shape"]))


def matrix(rows: Any) -> NDArray[np.float64]:
    """A list of score vectors as an array, or ValueError."""
    if not isinstance(rows, list) or not rows:
        raise ValueError("Expected rows, got none.")
    array = np.array(rows)
    if array.dtype.kind not in "fiu" or array.ndim != 2:
        raise ValueError("Expected rows of numbers, got others.")
    return array.astype(np.float64)


def canonical(record: Any) -> bytes:
    """A record as bytes that do not depend on how it was written: sorted keys, 1 as 1.0, -0.0 as 0.0."""
    return orjson.dumps(_numbers(record), option=orjson.OPT_SORT_KEYS)


def _numbers(value: Any) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return float(value) + 0.0
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return {key: _numbers(each) for key, each in value.items()}
