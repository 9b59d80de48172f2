"""A model in memory, whatever it was loaded from; and what can be learnt of it by trying it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scoreveil.gateway.sources import Arrays
from scoreveil.inference_protocol.tensors import DTYPES, Array, TensorSpec

TRIED_ROWS = 16
MOST_TRIED = 1 << 24  # numbers of an input; a model can declare any size
TRIED_SIZES = (1, 32, 224)  # for sizes that a model leaves open, beside its rows: one word or pixel, or a picture


@dataclass(frozen=True)
class LoadedModel:
    """A function from input arrays by name to output arrays by name, with what the model declares."""

    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: dict[str, TensorSpec]  # those that can be served
    run: Callable[[Arrays, list[str]], Arrays]
    scores: tuple[str, ...]  # the outputs that are veiled, by the model's own names
    classes: tuple[str, ...] = ()  # their names, where the model knows them


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
    shape = (rows, *(size if each == -1 else each for each in spec.shape[1:]))
    if math.prod(shape) > MOST_TRIED:
        raise ValueError("The model declares inputs that are too large to be tried.")
    dtype = DTYPES[spec.datatype]
    if dtype.kind == "f":
        return np.asarray(rng.normal(scale=3.0, size=shape)).astype(dtype)
    return np.full(shape, b"", dtype=object) if spec.datatype == "BYTES" else np.zeros(shape, dtype=dtype)


def as_column(array: Array) -> Array:
    """A floating-point number for each row as a column."""
    return np.asarray(array[:, None] if array.ndim == 1 and array.dtype.kind == "f" else array)


def texts(array: Array) -> Array:
    """BYTES as Python's texts."""
    return _objects([value.decode("utf-8", "replace") for value in array.ravel()], array.shape)


def as_bytes(array: Array) -> Array:
    """Anything as BYTES, by its text."""
    return _objects([str(value).encode() for value in array.ravel()], array.shape)


def _objects(values: list[str] | list[bytes], shape: tuple[int, ...]) -> Array:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made.reshape(shape)
