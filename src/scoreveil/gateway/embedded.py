"""The model inside: ONNX, scikit-learn saved by skops, or a Python factory. No other server is needed.

A model is a function from input arrays by name to output arrays by name, with what it declares. Short calls run
where they are; long ones in a thread, so that the others are not kept waiting.
"""

import asyncio
import importlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.gateway.config import Model, TensorSpec
from scoreveil.gateway.errors import Refusal, upstream_failed
from scoreveil.gateway.protocol import NAMES, Request, check_inputs

Array = NDArray[Any]
Arrays = Mapping[str, Array]

SHORT = 0.002  # seconds that a call may hold up the others
ONNX_TYPES = {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(float16)": "FP16",
    "tensor(bool)": "BOOL",
    **{f"tensor({sign}int{bits})": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True)
class Loaded:
    """A model in memory."""

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: dict[str, TensorSpec]
    run: Callable[[Arrays, list[str]], Arrays]


class Embedded:
    """Answers requests with a loaded model."""

    def __init__(self, name: str, model: Model) -> None:
        self.loaded = load(name, model)
        self.inputs = self.loaded.inputs
        self.platform = self.loaded.platform
        self._per_row = SHORT  # seconds, as last measured; the first call is not trusted to be short
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="model")

    async def infer(self, request: Request, outputs: list[str], seconds: float) -> Arrays:
        check_inputs(request.inputs, self.inputs)
        arrays = {tensor.name: tensor.array for tensor in request.inputs}
        rows = request.inputs[0].array.shape[0]
        if self._per_row * rows < SHORT:
            return self._timed(arrays, outputs, rows)
        work = asyncio.get_running_loop().run_in_executor(self._pool, self._timed, arrays, outputs, rows)
        try:
            return await asyncio.wait_for(work, seconds)
        except TimeoutError:
            raise Refusal(504, "Expected an answer from the model in time, got none.", "timeout") from None

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

    async def ready(self) -> bool:
        return True

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def load(name: str, model: Model) -> Loaded:
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
        offered = ", ".join(loaded.outputs)
        raise ValueError(f"Expected outputs of model {name} among {offered}, got {', '.join(sorted(missing))}.")
    return loaded


def _onnx(path: Path, scores: tuple[str, ...]) -> Loaded:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise ValueError("Expected onnxruntime for an .onnx model, got none: pip install 'scoreveil[onnx]'.") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # workers are processes: threads of theirs would only contend
    options.log_severity_level = 4  # its messages may quote values
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for given in session.get_inputs():
        if given.type not in ONNX_TYPES:
            raise ValueError(f"Expected tensors of numbers as inputs of {path.name}, got {given.type}.")
    specs = tuple(TensorSpec(i.name, ONNX_TYPES[i.type], _sizes(i.shape)) for i in session.get_inputs())
    outputs = {
        output.name: TensorSpec(output.name, ONNX_TYPES[output.type], _sizes(output.shape))
        for output in session.get_outputs()
        if output.type in ONNX_TYPES
    }
    # the default name stands for the one floating output of two dimensions, where no output has that name
    named = {}
    if scores == ("scores",) and "scores" not in outputs:
        floating = [name for name, spec in outputs.items() if spec.datatype.startswith("FP")]
        if len(floating) != 1:
            raise ValueError(f"Expected scores to name one of the outputs {', '.join(outputs)}, got none of them.")
        named = {"scores": floating[0]}
        outputs["scores"] = replace(outputs.pop(floating[0]), name="scores")

    def run(arrays: Arrays, wanted: list[str]) -> Arrays:
        return dict(zip(wanted, session.run([named.get(w, w) for w in wanted], dict(arrays)), strict=True))

    return Loaded("onnxruntime", specs, outputs, run)


def _sizes(shape: list[Any]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in shape)


def _skops(path: Path, model: Model) -> Loaded:
    try:
        from skops.io import get_untrusted_types
        from skops.io import load as load_skops
    except ModuleNotFoundError:
        raise ValueError("Expected skops for a .skops model, got none: pip install 'scoreveil[serve]'.") from None
    untrusted = get_untrusted_types(file=path)
    if untrusted:
        raise ValueError(f"Expected a .skops model of scikit-learn's own types, got {', '.join(untrusted)}.")
    classifier = load_skops(path)
    if not hasattr(classifier, "predict_proba"):
        raise ValueError(f"Expected a classifier with predict_proba in {path.name}, got none.")
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
    return Loaded("sklearn", specs, outputs, run)


def _labels(classes: Array, scores: Array) -> Array:
    """The label that is released anyway: the class of the top score."""
    labels = classes[scores.argmax(axis=1)]
    if labels.dtype in NAMES and labels.dtype != object:
        return np.asarray(labels)
    texts = np.empty(len(labels), dtype=object)
    texts[:] = [str(label).encode() for label in labels]
    return texts


def _python(target: str) -> Loaded:
    """`package.module:factory`: called without arguments, it returns a function of (n, features), and that number."""
    module, _, attribute = target.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(
            f"Expected python = 'package.module:factory', got none there ({type(error).__name__})."
        ) from None
    predict, features = made
    spec = TensorSpec("x", "FP32", (-1, int(features)))
    scores = predict(np.zeros((1, int(features)), dtype=np.float32))
    output = TensorSpec("scores", NAMES[scores.dtype], (-1, scores.shape[1]))
    return Loaded("python", (spec,), {"scores": output}, lambda arrays, wanted: {"scores": predict(arrays["x"])})
