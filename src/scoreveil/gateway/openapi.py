"""What the gateway serves, as an OpenAPI document: written from its table of routes."""

import msgspec

from scoreveil import __version__
from scoreveil.gateway.config import Config
from scoreveil.gateway.handlers import MAX_KEY
from scoreveil.gateway.routes import ServedRoute, route_table
from scoreveil.inference_protocol.messages import RequestMessage

REFERENCE = "#/components/schemas/{name}"
ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "object", "properties": {"message": {"type": "string"}}}},
}
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
    "503": "the model or the ledger is not ready, or too much is under way",
    "504": "the model was too slow",
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
}


def document(config: Config) -> dict[str, object]:
    """The whole document, for the models of this configuration."""
    table = route_table(config.models)
    bodies = {route.body for route in table.values() if route.body is not None} | {RequestMessage}
    _, schemas = msgspec.json.schema_components(bodies, ref_template=REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Scoreveil gateway", "version": __version__},
        "paths": {path: {route.method.lower(): _operation(route)} for path, route in table.items()},
        "components": {
            "schemas": {"Error": ERROR, "OpenAIError": OPENAI_ERROR, **schemas},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
        "security": [] if config.auth.mode in (None, "none") else [{"bearer": []}, {"key": []}],
    }


def _operation(route: ServedRoute) -> dict[str, object]:
    named = "OpenAIError" if route.openai_errors else "Error"
    answer, error = _content(route.answer), _content({"$ref": REFERENCE.format(name=named)})
    responses = {"200": {"description": "OK", "content": answer}}
    responses |= {status: {"description": words, "content": error} for status, words in STATUSES.items()}
    if route.tells_readiness:
        responses["503"] = {"description": "not ready", "content": answer}
    operation: dict[str, object] = {"summary": route.summary, "responses": responses}
    if route.open:
        operation["security"] = []
    if route.body is not None:
        body = _content({"$ref": REFERENCE.format(name=route.body.__name__)})
        operation |= {"requestBody": {"required": True, "content": body}, "parameters": [IDEMPOTENCY_KEY]}
    return operation


def _content(schema: object) -> dict[str, object]:
    return {"application/json": {"schema": schema}}
