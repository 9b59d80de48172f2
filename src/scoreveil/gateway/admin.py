"""The admin port, for operators: a page, /metrics, /openapi.json and health. No score of a model comes here.

It asks for no key, so a web page that an operator visits must not reach it under a name of its own (DNS rebinding):
requests are answered for addresses, for names without a dot, and for those that the configuration names.

The playground veils what is typed into it, with fresh draws and no model's secret or reference; by the regions of a
model's fitted veil, if it has one.
"""

import ipaddress
import math
import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scoreveil.gateway import metrics, openapi
from scoreveil.gateway.opened import OpenedConfig, OpenedModel
from scoreveil.mechanisms.mechanism import DEFAULT_MECHANISM, Mechanism, make
from scoreveil.veil import Veil

WARNING = (
    b"# HELP scoreveil_warning What whoever runs the gateway should know.\n# TYPE scoreveil_warning gauge\n"
    b'scoreveil_warning{reason="no_keys"} %d\n'
)
MAX_CLASSES = 64
MAX_BYTES = 16384
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def application(load: Callable[[], OpenedConfig]) -> Starlette:
    routes = [Route(path, partial(_file, name=name, kind=kind)) for path, (name, kind) in PAGE.items()]
    routes += [
        Route("/api/state", partial(_state, load=load)),
        Route("/api/veil", partial(_playground, load=load), methods=["POST"]),
        Route("/metrics", partial(_metrics, load=load)),
        Route("/openapi.json", partial(_openapi, load=load)),
        Route("/healthz", _health),
    ]
    middleware = [Middleware(_KnownHosts, load=load)]
    return Starlette(routes=routes, middleware=middleware)


class _KnownHosts:
    """Refuses requests for hosts that somebody else may have named."""

    def __init__(self, app: ASGIApp, load: Callable[[], OpenedConfig]) -> None:
        self._app, self._load = app, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        names = self._load().config.server.known_admin_names
        if scope["type"] == "http" and not known_host(Headers(scope=scope).getlist("host"), names):
            words = "The admin port does not answer for this host; add it to server.admin_names, or use the address."
            answer = _json({"error": words}, 421)
        await answer(scope, receive, send)


def known_host(given: list[str], names: frozenset[str]) -> bool:
    """Whether the one Host header is an address, a name without a dot, or one of the names."""
    if len(given) != 1:
        return False
    parts = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::\d+)?|([^:]+?)\.?(?::\d+)?", given[0])
    if parts is None:
        return False
    host = (parts[1] or parts[2]).lower()
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host in names
    return True


async def _file(request: Request, name: str, kind: str) -> Response:
    content = files("scoreveil.gateway").joinpath("page", name).read_bytes()
    return Response(content, media_type=kind, headers=HEADERS)


async def _health(request: Request) -> Response:
    return _json({"live": True})


async def _metrics(request: Request, load: Callable[[], OpenedConfig]) -> Response:
    body, kind = metrics.exposition()
    return Response(body + WARNING % bool(load().warnings), headers={"Content-Type": kind})


async def _openapi(request: Request, load: Callable[[], OpenedConfig]) -> Response:
    return _json(openapi.document(load().config))


async def _state(request: Request, load: Callable[[], OpenedConfig]) -> Response:
    """What each model is set to, and what was counted."""
    models = load().models
    states = metrics.states(models)
    return _json({"models": [states[name] | _settings(model) for name, model in models.items()]})


def _settings(model: OpenedModel) -> dict[str, object]:
    veil = model.veil
    if veil is None:
        return dict.fromkeys(("epsilon", "mechanism", "keep", "classes", "memory", "remembers"))
    return {
        "epsilon": _finite(veil.epsilon),
        "mechanism": "fitted" if veil.mechanism.is_fitted else veil.mechanism.name,
        "keep": getattr(veil.mechanism, "keep", None),
        # of a fitted veil that the playground can try
        "classes": veil.mechanism.classes if _can_be_tried(veil.mechanism) else None,
        "memory": model.memory_words(),
        "remembers": model.memory is not None,
    }


async def _playground(request: Request, load: Callable[[], OpenedConfig]) -> Response:
    """Veil one typed score vector, and say what is promised."""
    try:
        declared = request.headers.get("content-length", "")
        if not declared.isdecimal() or len(declared) > 9 or int(declared) > MAX_BYTES:
            raise ValueError(f"The request is larger than {MAX_BYTES} bytes.")
        return _json(_veiled(orjson.loads(await request.body()), load))
    except orjson.JSONDecodeError:
        return _json({"error": "The request is not JSON."}, 400)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        known = isinstance(error, ValueError)
        wanted = "Send scores, epsilon, mechanism and its options; or scores and the model of a fitted veil."
        return _json({"error": str(error) if known else wanted}, 400)


def _veiled(asked: dict[str, Any], load: Callable[[], OpenedConfig]) -> dict[str, Any]:
    scores = np.asarray(asked.pop("scores"), dtype=np.float64)
    if scores.ndim != 1 or not 2 <= len(scores) <= MAX_CLASSES:
        raise ValueError(f"Send one list of 2 to {MAX_CLASSES} scores.")
    if not (np.isfinite(scores).all() and (scores >= 0).all() and scores.sum() > 0):
        raise ValueError("Scores are numbers >= 0 with a positive sum.")
    scores /= scores.sum()
    if "model" in asked:
        mechanism: Mechanism = _fitted(load(), asked.pop("model"))
        if asked:
            raise ValueError("A fitted veil has its epsilon and options already; send scores and model alone.")
    else:
        # options of the mechanism alone: nothing that reads a file here, or starts threads
        mechanism = make(float(asked.pop("epsilon")), asked.pop("mechanism", None) or DEFAULT_MECHANISM, **asked)
    promise = mechanism.guarantee(len(scores))
    return {
        "before": scores.tolist(),
        "after": Veil(mechanism)(scores).tolist(),
        "guarantee": {
            "words": promise.words,
            "limits": promise.limits,
            "epsilon": _finite(promise.epsilon),
            "worst_loss": _finite(promise.worst_loss),
            "advantage": promise.advantage,
            "advantage_alone": promise.advantage_alone,
        },
        "table": mechanism.as_table(scores),
    }


def _fitted(opened: OpenedConfig, name: str) -> Mechanism:
    model = opened.models.get(name)
    mechanism = None if model is None or model.veil is None else model.veil.mechanism
    if mechanism is None or not _can_be_tried(mechanism):
        raise ValueError("There is no model of this name with a fitted veil that can be tried here.")
    return mechanism


def _can_be_tried(mechanism: Mechanism) -> bool:
    """Whether it was fitted, for one score vector of not too many classes."""
    return mechanism.classes is not None and mechanism.classes <= MAX_CLASSES and mechanism.together == 1


def _finite(number: float | None) -> float | None:
    """What JSON can say of a number; None where nothing is promised."""
    return number if number is not None and math.isfinite(number) else None


def _json(content: object, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json", headers=HEADERS)
