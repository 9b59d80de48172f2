"""What the gateway serves, as an OpenAPI document: made from the configuration, so that it names what is there."""

from typing import Any

from scoreveil import __version__
from scoreveil.gateway.config import DATATYPES, Config, Model

ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
STATUSES = {
    "400": "malformed, or not allowed",
    "401": "no valid key",
    "404": "not served",
    "405": "another method",
    "408": "a slow client",
    "409": "an Idempotency-Key with another request",
    "413": "too large",
    "415": "an encoded body",
    "429": "a limit or a budget",
    "502": "no answer from the model that can be passed on",
    "503": "the model or the ledger is not ready",
    "504": "the model was too slow",
}
PARAMETERS = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
NAME = {"type": "string", "minLength": 1, "maxLength": 256}
SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": 8}
TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "additionalProperties": False,
    "properties": {
        "name": NAME,
        "shape": SHAPE,
        "datatype": {"enum": list(DATATYPES)},
        "parameters": PARAMETERS,
        "data": {"type": "array", "items": {}},
    },
}
OUTPUT = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {"name": NAME, "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean"}}}},
}
REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "maxLength": 256},
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "parameters": PARAMETERS,
        "inputs": {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}, "minItems": 1},
        "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/Output"}},
    },
}
RESPONSE = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "id": {"type": "string"},
        "outputs": {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}},
    },
}
ROWS = {"type": "array", "items": {}, "minItems": 1}
MLFLOW = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {"dataframe_split": {"type": "object"}, "dataframe_records": ROWS, "instances": ROWS, "inputs": {}},
}
TF = {
    "type": "object",
    "required": ["instances"],
    "additionalProperties": False,
    "properties": {"instances": ROWS, "signature_name": {"type": "string"}},
}
PREDICTIONS = {"type": "object", "required": ["predictions"], "properties": {"predictions": ROWS}}


def document(config: Config) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, Any] = {
        "/v2": {"get": _operation("The server", {"type": "object"})},
        "/v2/health/live": {"get": _operation("Whether it lives", {"type": "object"}, open_to_all=True)},
        "/v2/health/ready": {"get": _operation("Whether it is ready", {"type": "object"}, open_to_all=True)},
    }
    for name, model in config.models.items():
        paths |= _paths(name, model)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Scoreveil gateway", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR, "Tensor": TENSOR, "Output": OUTPUT, "Request": REQUEST, "Response": RESPONSE},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        "security": [] if config.auth.mode in (None, "none") else [{"bearer": []}, {"key": []}],
    }


def _paths(name: str, model: Model) -> dict[str, Any]:
    if model.upstream is not None and model.upstream.protocol == "mlflow":
        return {
            "/invocations": {"post": _operation("Predict", PREDICTIONS, MLFLOW)},
            "/ping": {"get": _operation("Whether it is ready", {"type": "object"}, open_to_all=True)},
        }
    found: dict[str, Any] = {}
    if model.upstream is not None and model.upstream.protocol == "tfserving":
        for base in (f"/v1/models/{name}", f"/v1/models/{name}/versions/{model.version}"):
            found[base] = {"get": _operation("The model's state", {"type": "object"})}
            found[f"{base}:predict"] = {"post": _operation("Predict", PREDICTIONS, TF)}
        return found
    request, response = ({"$ref": f"#/components/schemas/{kind}"} for kind in ("Request", "Response"))
    for base in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{model.version}"):
        found[base] = {"get": _operation("What the model is", {"type": "object"})}
        found[f"{base}/ready"] = {"get": _operation("Whether the model is ready", {"type": "object"})}
        found[f"{base}/infer"] = {"post": _operation("Veiled scores", response, request)}
    return found


def _operation(summary: str, answer: Any, body: Any = None, open_to_all: bool = False) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses: dict[str, Any] = {
        "200": {"description": "OK", "content": {"application/json": {"schema": answer}}},
        **{status: {"description": words, "content": error} for status, words in STATUSES.items()},
    }
    made: dict[str, Any] = {"summary": summary, "responses": responses}
    if open_to_all:
        made["security"] = []
        responses["503"] = {"description": "not ready", "content": {"application/json": {"schema": answer}}}
    if summary == "Whether the model is ready":
        responses["503"] = {"description": "not ready", "content": {"application/json": {"schema": answer}}}
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
        if summary == "Veiled scores":
            header = {
                "name": "Idempotency-Key",
                "in": "header",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
            made["parameters"] = [header]
    return made
