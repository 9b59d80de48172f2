"""The model behind, over HTTP. Of its answer only what was asked for is read; of its errors, only the status.

Nothing of a client's headers goes there. Redirects are not followed, answers are bounded in size and time, and
whatever is not a well-formed answer is 502.
"""

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path

import orjson

from scoreveil import secret_file, typed
from scoreveil.gateway.config import Limits, Upstream
from scoreveil.gateway.http_client import Headers, HttpClient, HttpFault, OtherStatus, TooLarge
from scoreveil.gateway.opened import OpenedModel
from scoreveil.gateway.probabilities import declared
from scoreveil.gateway.sources import TensorQuery, TensorSource
from scoreveil.inference_protocol import messages
from scoreveil.inference_protocol.errors import ApiError, model_too_slow, upstream_failed
from scoreveil.inference_protocol.tensors import Arrays, TensorSpec

READY_SECONDS = 2.0


class UpstreamPool:
    """Connections to one upstream, whose failures are refusals that say nothing of what came."""

    def __init__(self, upstream: Upstream, limits: Limits) -> None:
        headers = {"Accept-Encoding": "identity", "User-Agent": "scoreveil"}
        if upstream.token_file is not None:
            headers["Authorization"] = f"Bearer {_token(upstream.token_file)}"
        self._limit = limits.upstream_bytes
        self._client = HttpClient(upstream.url, upstream.connections, self._limit, headers)

    async def post(self, path: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[bytes, Headers]:
        """The body and headers of a 200."""
        with self._failures():
            answer = await self._client.ask("POST", path, seconds, headers, body)
            if answer.status != 200:
                raise OtherStatus(answer.status)
        return answer.body, answer.headers

    async def lines(
        self, path: str, body: bytes, headers: Mapping[str, str], seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a 200, as they come; all of them within the limits of one answer."""
        with self._failures():
            async with contextlib.aclosing(self._client.lines(path, seconds, headers, body)) as lines:
                async for line in lines:
                    yield line

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise model_too_slow(self._said("timed out")) from None
        except TooLarge:
            raise upstream_failed("too_large", self._said(f"answer of more than {self._limit} bytes")) from None
        except OtherStatus as fault:
            raise self._refused(fault.status) from None
        except OSError as error:
            raise upstream_failed(detail=self._said(f"cannot connect ({type(error).__name__})")) from None
        except (HttpFault, ValueError):
            raise upstream_failed(detail=self._said("malformed answer, or one that broke off")) from None

    async def get(self, path: str) -> bytes | None:
        """What only the gateway itself asks: the body of a 200, None where there is none."""
        try:
            answer = await self._client.ask("GET", path, READY_SECONDS, {})
        except (TimeoutError, HttpFault, OSError, ValueError):
            return None
        return answer.body if answer.status == 200 else None

    def malformed(self) -> ApiError:
        """The answer is not one of the upstream's protocol."""
        return upstream_failed("malformed", self._said("malformed answer"))

    def _refused(self, status: int) -> ApiError:
        """What an upstream's status means to the client. Its reasons may quote inputs, so they stay here."""
        detail = self._said(f"HTTP status {status}")
        if status in (400, 413, 415, 422):
            message = "The model refused the request; check the inputs against what the model declares."
            return ApiError(400, message, "upstream_refused", detail=detail)
        if status in (429, 503):
            message = "The model is busy or not ready; try again later."
            return ApiError(503, message, "upstream_busy", detail=detail)
        return upstream_failed(detail=detail)

    def _said(self, what: str) -> str:
        # of a user, a path or a query, which may hold a token, nothing is logged
        return f"upstream {self._client.place}: {what}"

    def close(self) -> None:
        self._client.close()


def _token(path: Path) -> str:
    token = secret_file.read(path).decode("ascii", "replace")
    if not token.isprintable() or not token.isascii() or not token:
        raise ValueError(f"The token file {path.name} does not hold one line of ASCII text.")
    return token


def versioned_path(prefix: str, name: str, upstream: Upstream) -> str:
    """Where a model is on its own server."""
    path = f"{prefix}/models/{upstream.model or name}"
    return path if upstream.version is None else f"{path}/versions/{upstream.version}"


class TensorUpstream(TensorSource):
    """An upstream that speaks the Open Inference Protocol: MLServer, Triton, KServe."""

    def __init__(self, model: OpenedModel, upstream: Upstream, limits: Limits) -> None:
        super().__init__(model, limits)
        self._path = versioned_path("/v2", model.name, upstream)
        self._infer = f"{self._path}/infer"
        self._binary = upstream.binary
        self._pool = UpstreamPool(upstream, limits)

    async def infer(self, query: TensorQuery, seconds: float) -> Arrays:
        body, length = messages.write_request(query.request, query.asked, self._binary)
        headers = {"Content-Type": "application/octet-stream" if length else "application/json"}
        if length:
            headers["Inference-Header-Content-Length"] = str(length)
        answer, given = await self._pool.post(self._infer, body, headers, seconds)
        try:
            return messages.read_response(answer, given.get(messages.HEADER_LENGTH), query.asked)
        except (ApiError, LookupError, TypeError, ValueError, AttributeError):
            raise self._pool.malformed() from None

    async def declared(self) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
        """Inputs and outputs, as the upstream names them; of all else that it says, nothing is passed on."""
        body = await self._pool.get(self._path)
        try:
            tree = {} if body is None else orjson.loads(body)
            inputs, outputs = ([_spec(table) for table in tree.get(kind) or []] for kind in ("inputs", "outputs"))
        except (ValueError, LookupError, TypeError, AttributeError):
            raise self._pool.malformed() from None
        served = [declared(spec, self._shape) if spec.name in self._scores else spec for spec in outputs]
        return self.inputs or inputs, served

    async def ready(self) -> bool:
        return await self._pool.get(f"{self._path}/ready") is not None

    def close(self) -> None:
        self._pool.close()


def _spec(table: dict[str, object]) -> TensorSpec:
    return typed.convert({name: table[name] for name in TensorSpec.__struct_fields__}, TensorSpec)
