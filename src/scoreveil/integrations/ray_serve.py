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

from collections.abc import Mapping
from typing import Any, Unpack

from scoreveil import __version__
from scoreveil.extras import needs
from scoreveil.inference_protocol import messages
from scoreveil.inference_protocol.errors import ApiError, bad_request, not_found, upstream_failed
from scoreveil.inference_protocol.messages import InferenceRequest
from scoreveil.integrations.records import RecordVeil
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.tables.label_columns import asked_scores
from scoreveil.veil import Veil, VeilOptions

with needs("ray"):
    from ray import serve
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response

SCORES = "scores"
HEADER = messages.HEADER_LENGTH.decode()


@serve.deployment
class VeiledEndpoint:
    """The routes of one model under /v2."""

    def __init__(self, classifier: Any, name: str, veil: Veil) -> None:
        self._classifier, self._name = classifier, name
        self._veil = RecordVeil(veil)

    async def __call__(self, request: Request) -> Response:
        try:
            return await self._route(request)
        except ApiError as refusal:
            return JSONResponse({"error": refusal.message}, refusal.status)

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
                return await self._infer(read(await request.body(), request.headers.get(HEADER)))
        raise not_found()

    async def _infer(self, asked: InferenceRequest) -> Response:
        wanted = asked.wanted([SCORES])
        x = asked.inputs[0].data
        try:
            shape = self._veil.veil.shape
            scores = asked_scores(await self._classifier.predict_proba.remote(x), shape)
            veiled = self._veil(shape.records(scores), [x])
        except Exception:  # whatever the model said, it might quote a score
            raise upstream_failed() from None
        about = {"model_name": self._name, **({} if asked.id is None else {"id": asked.id})}
        body, length = messages.write_response(about, asked.shaped({SCORES: veiled}), wanted)
        if not length:
            return Response(body, media_type="application/json")
        return Response(body, media_type="application/octet-stream", headers={HEADER: str(length)})


def read(body: bytes, header: str | None) -> InferenceRequest:
    """A request with one tensor of numbers."""
    asked = messages.read_request(body, None if header is None else header.encode())
    if len(asked.inputs) != 1 or asked.inputs[0].datatype == "BYTES":
        raise bad_request("Send one input tensor of numbers: a row for each record.")
    return asked


def veiled_application(
    classifier: Any,
    *,
    name: str,
    epsilon: float | Mechanism | Veil,
    endpoint: Mapping[str, Any] | None = None,
    **options: Unpack[VeilOptions],
) -> Any:
    """An application for `serve.run`.

    Args:
        classifier: A bound deployment with `predict_proba`.
        name: The model's name, in its routes.
        epsilon: How much shows through; or a mechanism, or a veil, whole. A veil travels without its secret: give the
            path of a secret file, or name it in SCOREVEIL_SECRET_FILE where the replicas run.
        endpoint: Ray Serve's options of the endpoint itself: `num_replicas`, `ray_actor_options`, ….
        **options: Further options of `Veil`.

    Raises:
        ValueError: `Veil` does not take these options.
    """
    veil = Veil.from_given(epsilon, **options).for_scores()  # the classifier answers from another process
    deployment = VeiledEndpoint.options(**(endpoint or {}))  # type: ignore[attr-defined]
    return deployment.bind(classifier, name, veil)
