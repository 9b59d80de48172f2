"""Every path that a gateway serves, in one table: who handles it, and what it takes and gives.

Requests are routed by one lookup in it, and the OpenAPI document is written from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from scoreveil.gateway import handlers
from scoreveil.gateway.completions import ChatRequest, CompletionRequest
from scoreveil.gateway.config import Model
from scoreveil.gateway.handlers import Handler
from scoreveil.gateway.rows import InvocationMessage, PredictMessage
from scoreveil.inference_protocol.messages import RequestMessage

OBJECT = {"type": "object"}
ROWS = {"type": "array", "items": {}, "minItems": 1}
CHOICES = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices"],
    "properties": {"choices": {"type": "array", "items": OBJECT}},
}
PREDICTIONS = {"type": "object", "required": ["predictions"], "properties": {"predictions": ROWS}}
RESPONSE = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/InputTensor"}},
    },
}


@dataclass(frozen=True)
class ServedRoute:
    """What is done at one path, and what the document says of it."""

    method: str
    handle: Handler
    summary: str
    answer: Mapping[str, object]  # the JSON schema of a 200
    body: type | None = None  # what a request holds
    model: str = ""
    open: bool = False  # to everyone: health alone
    tells_readiness: bool = False  # a 503 has the form of a 200
    openai_errors: bool = False  # an error is an object, as OpenAI's clients read it


SERVER = ServedRoute("GET", handlers.server, "The server", OBJECT)
LIVE = ServedRoute("GET", handlers.live, "Whether the server lives", OBJECT, open=True)
READY = ServedRoute("GET", handlers.server_ready, "Whether it is ready", OBJECT, open=True, tells_readiness=True)
METADATA = ServedRoute("GET", handlers.metadata, "What the model is", OBJECT)
CONFIG = ServedRoute("GET", handlers.model_config, "The model's tensors, as Triton's clients ask for them", OBJECT)
INDEX = ServedRoute("POST", handlers.repository_index, "The models", {"type": "array", "items": OBJECT})
MODEL_READY = ServedRoute("GET", handlers.model_ready, "Whether the model is ready", OBJECT, tells_readiness=True)
INFER = ServedRoute("POST", handlers.infer, "Veiled scores", RESPONSE, RequestMessage)
INVOKE = ServedRoute("POST", handlers.infer, "Veiled scores, as MLflow gives them", PREDICTIONS, InvocationMessage)
STATUS = ServedRoute("GET", handlers.version_status, "The model's state", OBJECT)
PREDICT = ServedRoute("POST", handlers.infer, "Veiled scores, as TF Serving gives them", PREDICTIONS, PredictMessage)
_openai = partial(ServedRoute, openai_errors=True)
LANGUAGE = {  # one of these for all language models: the request names its model
    "/v1/models": _openai("GET", handlers.language_models, "The language models", OBJECT),
    "/v1/chat/completions": _openai("POST", handlers.chat, "A label and its confidence", CHOICES, ChatRequest),
    "/v1/completions": _openai("POST", handlers.complete, "The older form of it", CHOICES, CompletionRequest),
}
LANGUAGE_MODEL = _openai("GET", handlers.language_model, "The language model", OBJECT)


def route_table(models: Mapping[str, Model]) -> dict[str, ServedRoute]:
    """All routes of a gateway, by path."""
    table = {"/v2": SERVER, "/v2/": SERVER, "/v2/health/live": LIVE, "/v2/health/ready": READY}
    table["/v2/repository/index"] = INDEX
    for name, model in models.items():
        if model.is_language:
            table |= LANGUAGE
        table |= {path: replace(route, model=name) for path, route in _routes(name, model).items()}
    return table


def _routes(name: str, model: Model) -> dict[str, ServedRoute]:
    """The routes of one model; where its version is part of the path, with it and without."""
    protocol = "v2" if model.upstream is None else model.upstream.protocol
    if protocol == "mlflow":
        return {"/invocations": INVOKE, "/ping": READY, "/health": READY}
    if protocol == "openai":
        return {f"/v1/models/{name}": LANGUAGE_MODEL}
    base, ends = f"/v2/models/{name}", {"": METADATA, "/ready": MODEL_READY, "/config": CONFIG, "/infer": INFER}
    if protocol == "tfserving":
        base, ends = f"/v1/models/{name}", {"": STATUS, ":predict": PREDICT}
    return {f"{path}{end}": route for path in (base, f"{base}/versions/{model.version}") for end, route in ends.items()}
