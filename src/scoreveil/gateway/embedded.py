"""The model inside: ONNX, scikit-learn saved by skops, or a Python factory. No other server is needed.

A model is a function from input arrays by name to output arrays by name, with what it declares. Short calls run
where they are; long ones in a thread, so that the others are not kept waiting.
"""

import asyncio
import importlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from scoreveil.gateway.config import Limits, Model
from scoreveil.gateway.sources import Arrays, TensorQuery, TensorSource
from scoreveil.inference_protocol.refusals import model_too_slow, upstream_failed
from scoreveil.inference_protocol.tensors import DTYPES, NAMES, Array, Datatype, TensorSpec
from scoreveil.onnx_session import open_session, score_outputs

SHORT = 0.002  # seconds that a call may hold up the others
ONNX_TYPES: dict[str, Datatype] = {
    **{f"tensor({dtype.name})": name for name, dtype in DTYPES.items() if dtype.kind in "biuf"},
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
}


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory."""

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: dict[str, TensorSpec]
    run: Callable[[Arrays, list[str]], Arrays]


class Embedded(TensorSource):
    """Answers requests with a loaded model."""

    def __init__(self, name: str, model: Model, limits: Limits) -> None:
        self.loaded = load(name, model)
        super().__init__(name, model, limits, self.loaded.inputs)
        self.platform = self.loaded.platform
        self._per_row = SHORT  # seconds, as last measured; the first call is not trusted to be short
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="model")

    async def infer(self, query: TensorQuery, seconds: float) -> Arrays:
        arrays = {tensor.name: tensor.data for tensor in query.request.inputs}
        if self._per_row * query.rows < SHORT:
            return self._timed(arrays, query.asked, query.rows)
        work = asyncio.get_running_loop().run_in_executor(self._pool, self._timed, arrays, query.asked, query.rows)
        try:
            return await asyncio.wait_for(work, seconds)
        except TimeoutError:
            raise model_too_slow() from None

    def _timed(self, arrays: Arrays, outputs: list[str], rows: int) -> Arrays:
        start = time.perf_counter()
        try:
            return self.loaded.run(arrays, outputs)
        except Exception:  # whatever a model raises may quote its input
            raise upstream_failed("model") from None
        finally:
            self._per_row = (time.perf_counter() - start) / rows

    async def declared(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        return list(self.inputs), list(self.loaded.outputs.values())

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def load(name: str, model: Model) -> LoadedModel:
    """The model that the configuration names, with every output it wants there."""
    if model.onnx is not None:
        loaded = _onnx(model.onnx, model.scores)
    elif model.skops is not None:
        loaded = _skops(model.skops, model)
    else:
        assert model.python is not None  # Config checked that there is one source
        loaded = _python(model.python)
    missing = {*model.scores, *model.passes} - set(loaded.outputs)
    if missing:
        has = ", ".join(loaded.outputs)
        raise ValueError(f"Model {name} has the outputs {has}; scores and passes name {', '.join(sorted(missing))}.")
    for score in model.scores:
        classes = loaded.outputs[score].shape[-1]
        if classes > 1:
            model.make_veil()(np.full((1, classes), 1 / classes))  # a veil for other classes is refused now, not later
    return loaded


def _onnx(path: Path, scores: tuple[str, ...]) -> LoadedModel:
    session = open_session(path, threads=1)  # workers are processes: threads of theirs would only contend
    for given in session.get_inputs():
        if given.type not in ONNX_TYPES:
            raise ValueError(
                f"Input {given.name} of {path.name} is a {given.type}; the gateway sends tensors of numbers."
            )
    inputs = tuple(_onnx_spec(given) for given in session.get_inputs())
    outputs = {given.name: _onnx_spec(given) for given in session.get_outputs() if given.type in ONNX_TYPES}
    # the default name stands for the one floating output, where no output has that name
    named = {}
    if scores == ("scores",) and "scores" not in outputs:
        floating = score_outputs(session)
        if len(floating) != 1:
            raise ValueError(f"{path.name} has the outputs {', '.join(outputs)}; name those that are scores in scores.")
        named = {"scores": floating[0]}
        outputs["scores"] = structs.replace(outputs.pop(floating[0]), name="scores")

    def run(arrays: Arrays, wanted: list[str]) -> Arrays:
        return dict(zip(wanted, session.run([named.get(w, w) for w in wanted], dict(arrays)), strict=True))

    return LoadedModel("onnxruntime", inputs, outputs, run)


def _onnx_spec(given: Any) -> TensorSpec:
    sizes = tuple(size if isinstance(size, int) else -1 for size in given.shape)
    return TensorSpec(given.name, ONNX_TYPES[given.type], sizes)


def _skops(path: Path, model: Model) -> LoadedModel:
    try:
        from skops.io import get_untrusted_types
        from skops.io import load as load_skops
    except ModuleNotFoundError:
        raise ValueError("A .skops model needs skops: pip install 'scoreveil[skops]'") from None
    untrusted = get_untrusted_types(file=path)
    if untrusted:
        raise ValueError(f"{path.name} holds types that are not scikit-learn's own: {', '.join(untrusted)}.")
    classifier = load_skops(path)
    if not hasattr(classifier, "predict_proba"):
        raise ValueError(f"{path.name} holds a {type(classifier).__name__}, which has no predict_proba.")
    (score,) = model.scores
    specs = model.inputs or (TensorSpec("x", "FP32", (-1, int(classifier.n_features_in_))),)

    def run(arrays: Arrays, wanted: list[str]) -> Arrays:
        (x,) = arrays.values()
        found = {score: np.asarray(classifier.predict_proba(x), dtype=np.float32)}
        if "label" in wanted:
            found["label"] = _labels(classifier.classes_, found[score])
        return {name: found[name] for name in wanted}

    labels = _labels(classifier.classes_, np.zeros((1, len(classifier.classes_))))
    outputs = {
        score: TensorSpec(score, "FP32", (-1, len(classifier.classes_))),
        "label": TensorSpec("label", NAMES[labels.dtype], (-1,)),
    }
    return LoadedModel("sklearn", specs, outputs, run)


def _labels(classes: Array, scores: Array) -> Array:
    """The label that is released anyway: the class of the top score."""
    labels = classes[scores.argmax(axis=1)]
    if labels.dtype in NAMES and labels.dtype != object:
        return np.asarray(labels)
    texts = np.empty(len(labels), dtype=object)
    texts[:] = [str(label).encode() for label in labels]
    return texts


def _python(target: str) -> LoadedModel:
    """`package.module:factory`: called without arguments, it returns a function of (n, features), and that number."""
    module, _, attribute = target.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"python = {target!r} is not a factory that can be imported: {error}.") from None
    predict, features = made
    spec = TensorSpec("x", "FP32", (-1, int(features)))
    scores = predict(np.zeros((1, int(features)), dtype=np.float32))
    output = TensorSpec("scores", NAMES[scores.dtype], (-1, scores.shape[1]))
    return LoadedModel("python", (spec,), {"scores": output}, lambda arrays, wanted: {"scores": predict(arrays["x"])})
