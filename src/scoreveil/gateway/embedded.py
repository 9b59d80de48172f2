"""The model inside: ONNX, scikit-learn saved by skops, or a Python factory. No other server is needed.

A model is a function from input arrays by name to output arrays by name, with what it declares. Short calls run
where they are; long ones in a thread, so that the others are not kept waiting.
"""

import asyncio
import contextlib
import importlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from msgspec import structs

from scoreveil.gateway import onnx_model, probabilities, skops_model
from scoreveil.gateway.config import Limits, Model
from scoreveil.gateway.loaded import LoadedModel, as_column
from scoreveil.gateway.sources import Arrays, TensorQuery, TensorSource, check_smoothing
from scoreveil.inference_protocol.refusals import model_too_slow, upstream_failed
from scoreveil.inference_protocol.tensors import NAMES, Datatype, TensorSpec
from scoreveil.veil import Veil

SHORT = 0.002  # seconds that a call may hold up the others


class Embedded(TensorSource):
    """Answers requests with a loaded model."""

    def __init__(self, name: str, model: Model, limits: Limits) -> None:
        self.loaded = load(name, model)
        self.model = counted(model, self.loaded)
        super().__init__(name, self.model, limits, self.loaded.inputs)
        self.platform, self.classes = self.loaded.platform, self.loaded.classes
        # seconds for each row of the last two calls; the first call is not trusted to be short
        self._last = SHORT, SHORT
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="model")

    async def infer(self, query: TensorQuery, seconds: float) -> Arrays:
        arrays = query.arrays()
        # the shorter one counts: a call that only waited for the processor makes none after it wait for a thread
        if min(self._last) * query.rows < SHORT:
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
        except Exception as error:  # whatever a model raises may quote its input
            raise upstream_failed("model", f"the model raised {type(error).__name__}") from None
        finally:
            self._last = self._last[1], (time.perf_counter() - start) / rows

    async def declared(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        return list(self.inputs), list(self.loaded.outputs.values())

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def load(name: str, model: Model) -> LoadedModel:
    """The model that the configuration names, with every output it wants there."""
    if model.onnx is not None:
        loaded = onnx_model.load(model.onnx, model.scores)
    elif model.skops is not None:
        loaded = skops_model.load(model.skops, model)
    else:
        assert model.python is not None  # Config checked that there is one source
        loaded = _python(model.python, model.scores)
    missing = {*loaded.scores, *model.passes} - set(loaded.outputs)
    if missing:
        has = ", ".join(loaded.outputs)
        raise ValueError(f"Model {name} has the outputs {has}; scores and passes name {', '.join(sorted(missing))}.")
    veil = model.make_veil()
    check_smoothing(veil, loaded.inputs)
    served = {score: probabilities.declared(loaded.outputs[score], veil.shape) for score in loaded.scores}
    for spec in served.values():
        if spec.shape[-1] > 0 and (spec.shape[-1] > 1 or not veil.shape.is_plain):
            _check_classes(veil, spec)
    return replace(loaded, outputs={**loaded.outputs, **served})


def _check_classes(veil: Veil, spec: TensorSpec) -> None:
    """Refuse now, not later, a shape that the model does not have, and a veil for other classes."""
    sizes = (1, *(max(1, size) for size in spec.shape[1:]))
    (vectors,) = veil.vectors(veil.shape.of(len(sizes)).even(sizes))
    Veil(veil.mechanism)(vectors[: veil.mechanism.together])


def counted(model: Model, loaded: LoadedModel) -> Model:
    """The model with the names of its scores, and the releases that an answer holds, where its outputs tell them.

    Raises:
        ValueError: Neither the file nor the outputs tell how many releases an answer holds.
    """
    model = structs.replace(model, scores=loaded.scores)
    shape, specs = model.bare_veil.shape, [loaded.outputs[score] for score in model.scores]
    shape = shape.of(max(len(spec.shape) for spec in specs))
    if model.releases is not None or not shape.holds_several:
        return model
    what, sizes = "labels" if shape.has_labels else "places", {shape.counted(spec.shape) for spec in specs}
    if len(sizes) > 1:
        raise ValueError(f"{', '.join(model.scores)} hold different numbers of {what}; serve each by itself.")
    (found,) = sizes
    if min(found, default=0) < 1:
        raise ValueError(f"the model does not say how many {what} an answer holds; say so, releases = ….")
    return structs.replace(model, releases=math.prod(found))


def _python(target: str, names: tuple[str, ...]) -> LoadedModel:
    """`package.module:factory`: called without arguments, it returns a function of (n, features), and that number."""
    module, _, attribute = target.partition(":")
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"python = {target!r} is not a factory that can be imported: {error}.") from None
    predict, features = made
    zeros = np.zeros((1, int(features)), dtype=np.float32)
    datatype: Datatype = "FP32"
    scores = predict(zeros)
    if scores.dtype == np.float64:
        with contextlib.suppress(Exception):  # a model that takes float32 alone may raise anything
            predict(zeros.astype(np.float64))
            datatype = "FP64"
    spec = TensorSpec("x", datatype, (-1, int(features)))
    output = TensorSpec("scores", NAMES[scores.dtype], (-1, *(scores.shape[1:] or (1,))))

    def run(arrays: Arrays, wanted: list[str]) -> Arrays:
        return {"scores": as_column(predict(arrays["x"]))}

    return LoadedModel("python", (spec,), {"scores": output}, run, names)
