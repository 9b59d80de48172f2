"""Ray Serve: an application in front of your deployment that speaks the Open Inference Protocol v2, veiled.

    from ray import serve
    from scoreveil.integrations.ray_serve import veiled_application

    @serve.deployment
    class Classifier:
        def predict_proba(self, x): ...          # (n, features) -> (n, classes)

    serve.run(veiled_application(Classifier.bind(), name="digits", epsilon=2.0))

Your deployment is reached by its handle alone, never by a route. Requests and answers are JSON or binary tensors, as
tritonclient sends them; one input tensor, one output tensor, `scores`. For keys, limits, budgets and metrics put the
gateway (`scoreveil serve`) in front instead.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from scoreveil import __version__
from scoreveil.integrations.options import VeilOptions
from scoreveil.integrations.records import RecordVeil
from scoreveil.veil import Settings

SCORES = "scores"
HEADER = "Inference-Header-Content-Length"
DTYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
NAMES = {"float16": "FP16", "float32": "FP32", "float64": "FP64"}


class Refused(Exception):
    """What is answered with an error: a status, and what was expected and came."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@serve.deployment
class VeiledEndpoint:
    """The routes of one model under /v2."""

    def __init__(self, classifier: Any, name: str, epsilon: float | Settings, options: VeilOptions) -> None:
        self._classifier, self._name = classifier, name
        self._veil = RecordVeil(epsilon, **options)

    async def __call__(self, request: Request) -> Response:
        try:
            return await self._route(request)
        except Refused as refused:
            return JSONResponse({"error": str(refused)}, refused.status)

    async def _route(self, request: Request) -> Response:
        below = request.scope["path"].removeprefix(request.scope.get("root_path", ""))  # the application's route_prefix
        parts = below.strip("/").split("/")
        match request.method, parts:
            case "GET", ["v2"]:
                return JSONResponse({"name": "scoreveil", "version": __version__, "extensions": ["binary_tensor_data"]})
            case "GET", ["v2", "health", "live" | "ready"]:
                return Response()
            case "GET", ["v2", "models", self._name, "ready"]:
                return Response()
            case "GET", ["v2", "models", self._name]:
                outputs = [{"name": SCORES, "datatype": "FP64", "shape": [-1, -1]}]
                return JSONResponse({"name": self._name, "platform": "scoreveil", "inputs": [], "outputs": outputs})
            case "POST", ["v2", "models", self._name, "infer"]:
                return await self._infer(await request.body(), request.headers.get(HEADER))
        raise Refused(404, "Expected a route of this model, got another.")

    async def _infer(self, body: bytes, header: str | None) -> Response:
        asked, x = read_request(body, header)
        try:
            scores = np.asarray(await self._classifier.predict_proba.remote(x))
            veiled = self._veil(np.atleast_2d(scores), [x])
        except Exception:  # whatever the model said, it might quote a score
            raise Refused(502, "Expected score vectors from the model, got none.") from None
        return write_answer(self._name, asked, veiled)


def veiled_application(
    classifier: Any,
    *,
    name: str,
    epsilon: float | Settings,
    endpoint: Mapping[str, Any] | None = None,
    **options: Unpack[VeilOptions],
) -> Any:
    """An application for `serve.run`.

    classifier  a bound deployment with `predict_proba`
    name        of the model, in its routes
    epsilon     how much shows through; further options as in `Veil`
    endpoint    Ray Serve's options of the endpoint itself: `num_replicas`, `ray_actor_options`, …
    """
    RecordVeil(epsilon, **options)  # refuses here what it would refuse in every replica
    deployment = VeiledEndpoint.options(**(endpoint or {}))  # type: ignore[attr-defined]
    return deployment.bind(classifier, name, epsilon, options)


def read_request(body: bytes, header: str | None) -> tuple[dict[str, Any], NDArray[Any]]:
    """The JSON of a request, and its one input tensor."""
    try:
        length = len(body) if header is None else int(header)
        asked = json.loads(body[:length])
        (given,) = asked["inputs"]
        dtype, shape = np.dtype(DTYPES[given["datatype"]]), tuple(map(int, given["shape"]))
        if "data" in given:
            x = np.array(given["data"], dtype=dtype).reshape(shape)
        else:
            size = int(given["parameters"]["binary_data_size"])
            if size != math.prod(shape) * dtype.itemsize or len(body) != length + size:
                raise ValueError("another size")
            x = np.frombuffer(body, dtype, offset=length).reshape(shape)
    except (ValueError, TypeError, LookupError, OverflowError):
        raise Refused(400, "Expected one input tensor of numbers, in JSON or binary, got another request.") from None
    if not isinstance(asked.get("outputs", []), list) or x.ndim < 1 or not len(x):
        raise Refused(400, "Expected a batch of one record or more, got another.")
    for output in asked.get("outputs", []):
        if not isinstance(output, dict) or output.get("name") != SCORES:
            raise Refused(400, f"Expected output {SCORES!r} alone, got another.")
    return asked, x


def write_answer(name: str, asked: dict[str, Any], veiled: NDArray[Any]) -> Response:
    """One output tensor, binary where that was asked for."""
    settings = [asked.get("parameters"), *(output.get("parameters") for output in asked.get("outputs", []))]
    wishes = [s.get(wish) for s in settings if isinstance(s, dict) for wish in ("binary_data_output", "binary_data")]
    output = {"name": SCORES, "datatype": NAMES[veiled.dtype.name], "shape": list(veiled.shape)}
    answer = {"model_name": name, "outputs": [output], **({"id": asked["id"]} if "id" in asked else {})}
    if True not in wishes:
        return JSONResponse({**answer, "outputs": [{**output, "data": veiled.ravel().tolist()}]})
    raw = np.ascontiguousarray(veiled, dtype=veiled.dtype.newbyteorder("<")).tobytes()
    head = json.dumps({**answer, "outputs": [{**output, "parameters": {"binary_data_size": len(raw)}}]}).encode()
    return Response(head + raw, media_type="application/octet-stream", headers={HEADER: str(len(head))})
