"""How near is near? Typical inputs say so: the spread of each feature, and how close two of them come.

The width of cells (`marks.py`) is the distance that one in a hundred typical inputs has to its nearest neighbour. Give
typical inputs wherever features have units of their own, and for records of one or two numbers (`few_numbers`).
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from scoreveil.arrays import Floats

MAX_NUMBER = 1e30
MAX_SPREADS = 4.0  # from the mean: one feature alone leads no further
NEAREST = 0.01  # the share of typical inputs that may be as near to another as the radius is
NEAR = 0.85  # of a width: the distance that so many typical inputs are allowed to have
MIN_TYPICAL, MAX_TYPICAL = 100, 2000  # inputs that distances are measured between
MAX_TYPICAL_NUMBERS = 1 << 26


class Typical:
    """The mean and spread of each feature, and the width of cells, by typical inputs."""

    def __init__(self, inputs: Floats) -> None:
        values = np.asarray(inputs, dtype=np.float64)
        if values.ndim != 2 or len(values) < MIN_TYPICAL or not values.shape[1]:
            shape = f"shape {values.shape}"
            raise ValueError(f"Typical inputs are at least {MIN_TYPICAL} rows of numbers; these have {shape}.")
        values = np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf)
        if not np.abs(values).max() <= MAX_NUMBER:
            raise ValueError(f"Typical inputs have to be finite; some of these are infinite or beyond {MAX_NUMBER:g}.")
        spread = values.std(axis=0)
        if not spread.max() > 0:
            raise ValueError("The typical inputs are all the same; give inputs as clients send them.")
        self.mean, self.spread = values.mean(axis=0), np.where(spread > 0, spread, np.median(spread[spread > 0]))
        self.width = float(np.quantile(_nearest(self.placed(values[:MAX_TYPICAL])[0]), NEAREST)) / NEAR
        if not self.width > 0:
            raise ValueError("One in a hundred of the typical inputs occurs twice; give each input once.")

    def placed(self, values: Floats) -> tuple[Floats, Floats]:
        """t of each record, and the logarithm of how far it is from the mean."""
        count = len(self.mean)
        if values.shape[1] != count:
            raise ValueError(f"Typical inputs have {count} numbers; a record has {values.shape[1]}.")
        t = values - self.mean
        t *= 1.0 / self.spread
        squares = np.vecdot(t, t)
        np.minimum(np.maximum(t, -MAX_SPREADS, out=t), MAX_SPREADS, out=t)
        t *= 1.0 / np.sqrt(count)
        return t, 0.5 * np.log(1.0 + squares / count)


def typical_inputs(path: Path) -> Floats:
    """The typical inputs in an .npy file, as `Neighbourhoods` takes them.

    A row for each of at least 100 inputs as clients send them, and not of training records. Where a model has several
    inputs, or inputs of more dimensions, a row holds the numbers of all of them one after the other, inputs in the
    order of their names; texts are left out.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It holds no such inputs.
    """
    if not path.is_file():  # a pipe would be waited for
        raise FileNotFoundError(2, "No such file", str(path))
    try:
        # mapped, so that nothing is read before its size is known
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, TypeError, SyntaxError, OverflowError, EOFError):
        raise ValueError(f"{path.name} is not an array as numpy.save writes it (.npy).") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{path.name} holds no numbers but values of type {array.dtype}; typical inputs are numbers.")
    if array.size > MAX_TYPICAL_NUMBERS:
        words = f"{path.name} holds {array.size:,} numbers; a few hundred rows are enough"
        raise ValueError(f"{words}, and {MAX_TYPICAL_NUMBERS:,} numbers the most.")
    values = np.array(array, dtype=np.float64)
    Typical(values)
    return values


def few_numbers(shapes: Iterable[Sequence[int]]) -> bool:
    """Whether records hold one or two numbers, so that they need typical inputs to be told apart.

    Args:
        shapes: Of each input of numbers, rows first; -1 for any size.
    """
    counts = [math.prod(shape[1:]) for shape in shapes]
    return min(counts, default=0) > 0 and sum(counts) < 3


def _nearest(t: Floats) -> Floats:
    """The distance of each row to its nearest neighbour."""
    squares = np.vecdot(t, t)
    distances = squares[:, None] + squares - 2 * (t @ t.T)
    np.fill_diagonal(distances, np.inf)
    return np.asarray(np.sqrt(np.maximum(distances.min(axis=1), 0.0)))
