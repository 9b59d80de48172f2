"""The admin port, for operators: a page, /metrics, /openapi.json and health. No score of a model comes here.

The playground veils what is typed into it, with fresh draws and no model's secret or reference.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scoreveil.gateway import metrics, openapi
from scoreveil.gateway.config import Config
from scoreveil.mechanisms.mechanism import DEFAULT_MECHANISM, make
from scoreveil.veil import Veil

MOST_CLASSES = 64
MOST_BYTES = 16384
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


def application(load: Callable[[], Config]) -> Starlette:
    routes = [Route(path, partial(_file, name=name, kind=kind)) for path, (name, kind) in PAGE.items()]
    routes += [
        Route("/api/state", partial(_state, load=load)),
        Route("/api/veil", _playground, methods=["POST"]),
        Route("/metrics", _metrics),
        Route("/openapi.json", partial(_openapi, load=load)),
        Route("/healthz", _health),
    ]
    return Starlette(routes=routes)


async def _file(request: Request, name: str, kind: str) -> Response:
    content = files("scoreveil.gateway").joinpath("page", name).read_bytes()
    return Response(content, media_type=kind, headers=HEADERS)


async def _health(request: Request) -> Response:
    return _json({"live": True})


async def _metrics(request: Request) -> Response:
    body, kind = metrics.exposition()
    return Response(body, headers={"Content-Type": kind})


async def _openapi(request: Request, load: Callable[[], Config]) -> Response:
    return _json(openapi.document(load()))


async def _state(request: Request, load: Callable[[], Config]) -> Response:
    """What each model is set to, and what was counted."""
    config = load()
    counted = {state.model: asdict(state) for state in metrics.states(config.models)}
    shown = []
    for name, model in config.models.items():
        veil = model.bare_veil
        settings = {
            "epsilon": veil.epsilon,
            "mechanism": veil.mechanism.name,
            "repeats": model.repeats,
            "releases": model.allowed_releases if model.budgeted else None,
        }
        shown.append({**counted[name], **settings})
    return _json({"models": shown, "chunk": metrics.CHUNK})


async def _playground(request: Request) -> Response:
    """Veil one typed score vector, and say what is promised."""
    try:
        declared = request.headers.get("content-length", "")
        if not declared.isdigit() or int(declared) > MOST_BYTES:
            raise ValueError(f"The request is larger than {MOST_BYTES} bytes.")
        return _json(_veiled(orjson.loads(await request.body())))
    except orjson.JSONDecodeError:
        return _json({"error": "The request is not JSON."}, 400)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        known = isinstance(error, ValueError)
        return _json({"error": str(error) if known else "Send scores, epsilon, mechanism and its options."}, 400)


def _veiled(asked: dict[str, Any]) -> dict[str, Any]:
    scores = np.asarray(asked.pop("scores"), dtype=np.float64)
    if scores.ndim != 1 or not 2 <= len(scores) <= MOST_CLASSES:
        raise ValueError(f"Send one list of 2 to {MOST_CLASSES} scores.")
    if not (np.isfinite(scores).all() and (scores >= 0).all() and scores.sum() > 0):
        raise ValueError("Scores are numbers >= 0 with a positive sum.")
    scores /= scores.sum()
    # options of the mechanism alone: nothing that reads a file here, or starts threads
    mechanism = make(float(asked.pop("epsilon")), asked.pop("mechanism", None) or DEFAULT_MECHANISM, **asked)
    promise = mechanism.guarantee(len(scores))
    return {
        "before": scores.tolist(),
        "after": Veil(mechanism)(scores).tolist(),
        "guarantee": {
            "words": promise.words,
            "limits": promise.limits,
            "epsilon": promise.epsilon if math.isfinite(promise.epsilon) else None,
            "worst_loss": promise.worst_loss,
        },
    }


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json", headers=HEADERS)
