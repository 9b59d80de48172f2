"""The model inside: ONNX, scikit-learn saved by skops, or a Python factory; and what a trial of it tells."""

import contextlib
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scoreveil.gateway.config import Model
from scoreveil.inference_protocol.tensors import DTYPES, NAMES, Array, Arrays, Datatype, TensorSpec, objects
from scoreveil.shapes import Shape

TRIED_ROWS = 16
MAX_TRIED = 1 << 24  # numbers of an input; a model can declare any size
TRIED_SIZES = (1, 32, 224)  # for sizes that a model leaves open, beside its rows: one word or pixel, or a picture


@dataclass(frozen=True)
class EmbeddedModel:
    """A function from input arrays by name to output arrays by name, with what the model declares."""

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: dict[str, TensorSpec]  # those that can be served
    run: Callable[[Arrays, list[str]], Arrays]
    scores: tuple[str, ...]  # the outputs that are veiled, by the model's own names
    classes: tuple[str, ...] = ()  # their names, where the model knows them


def load(settings: Model, shape: Shape) -> EmbeddedModel:
    """The model that a table names, with every output that the table wants."""
    from scoreveil.gateway import onnx_model, skops_model

    if settings.onnx is not None:
        model = onnx_model.load(settings.onnx, settings.scores)
    elif settings.skops is not None:
        model = skops_model.load(settings.skops, shape, settings)
    else:
        assert settings.python is not None  # the settings checked that there is one source
        model = _python(settings.python, settings.scores)
    missing = {*model.scores, *settings.passes} - set(model.outputs)
    if missing:
        has = ", ".join(model.outputs)
        raise ValueError(f"The model has the outputs {has}; scores and passes name {', '.join(sorted(missing))}.")
    return model


def _python(target: str, names: tuple[str, ...]) -> EmbeddedModel:
    """`package.module:factory`: called without arguments, it returns a function of (n, features), and that number."""
    module, _, attribute = target.partition(":")
    try:
        predict, features = getattr(importlib.import_module(module), attribute)()
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"python = {target!r} is not a factory that can be imported: {error}.") from None
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

    return EmbeddedModel("python", (spec,), {"scores": output}, run, names)


def tried(run: Callable[[Arrays], Arrays], inputs: Sequence[TensorSpec]) -> Arrays | None:
    """What a model says to inputs that mean nothing; None where it takes none of them."""
    for size in TRIED_SIZES:
        rng = np.random.default_rng(0)
        try:
            return run({spec.name: _meaningless(spec, size, rng) for spec in inputs})
        except Exception:  # a model may raise anything; that it refuses such inputs says nothing against it
            continue
    return None


def _meaningless(spec: TensorSpec, size: int, rng: np.random.Generator) -> Array:
    rows = TRIED_ROWS if spec.shape[0] == -1 else spec.shape[0]
    shape = (rows, *(size if length == -1 else length for length in spec.shape[1:]))
    if math.prod(shape) > MAX_TRIED:
        raise ValueError("The model declares inputs that are too large to be tried.")
    dtype = DTYPES[spec.datatype]
    if dtype.kind == "f":
        return np.asarray(rng.normal(scale=3.0, size=shape)).astype(dtype)
    return np.full(shape, b"", dtype=object) if spec.datatype == "BYTES" else np.zeros(shape, dtype=dtype)


def as_column(array: Array) -> Array:
    """A floating-point number for each row as a column."""
    return np.asarray(array[:, None] if array.ndim == 1 and array.dtype.kind == "f" else array)


def as_bytes(array: Array) -> Array:
    """Anything as BYTES, by its text."""
    return objects([str(value).encode() for value in array.ravel()], array.shape)
