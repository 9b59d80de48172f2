"""What counts as a batch of confidence scores, whichever array library holds it.

A row is finite, non-negative, sums to 1 within `SUM_TOLERANCE`, and has at least two classes. Error messages name the
first bad row, what is wrong with it, how many more there are and what to do about it; they never quote a score.
"""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from scoreveil.arrays import Floats, Rows

Array = Any  # numpy.ndarray, torch.Tensor, or any array that follows the array-API standard

SUM_TOLERANCE = 1e-3
ROUNDED = 0.02  # by which a row that was rounded may miss its sum
FEW = 64  # scores
NEGATIVE = "some of the scores are negative (logits? apply softmax first)"
NO_SUM = tuple(f"the scores sum to {than} than 1, by over {SUM_TOLERANCE:g}" for than in ("less", "more"))


def namespace(array: Array) -> ModuleType:
    """The array-API namespace that `array` belongs to; numpy's is numpy itself."""
    if isinstance(array, np.ndarray):
        return np
    try:
        from array_api_compat import array_namespace
    except ModuleNotFoundError:
        if hasattr(array, "__array_namespace__"):
            return array.__array_namespace__()
        raise ModuleNotFoundError(
            f"Scores of type {type(array).__module__}.{type(array).__qualname__} need the package "
            "array-api-compat: pip install 'scoreveil[torch]'."
        ) from None
    try:
        return array_namespace(array)
    except TypeError:
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        raise ValueError(f"Expected an array of scores, got {kind}, which no array library here knows.") from None


def check_layout(scores: Array) -> None:
    """Raise ValueError unless `scores` is a floating (k,) or (n, k) array with k >= 2."""
    if not hasattr(scores, "dtype") or not hasattr(scores, "ndim") or hasattr(scores, "to_numpy"):
        hint = "; take its score columns as an array: frame[columns].to_numpy()" if hasattr(scores, "to_numpy") else ""
        raise ValueError(f"Expected an array of scores, got {type(scores).__name__}{hint}.")
    if not is_floating(scores):
        hint = "; divide percentages by 100" if "int" in str(scores.dtype) else ""
        raise ValueError(f"Expected floating-point scores, got dtype {scores.dtype}{hint}.")
    check_axes(scores.shape)


def check_axes(layout: Sequence[int]) -> None:
    """Raise ValueError unless arrays of this layout (`scores.shape`) are (k,) or (n, k) with k >= 2."""
    if len(layout) not in (1, 2):
        raise ValueError(f"Expected scores of shape (k,) or (n, k), got {len(layout)} dimensions.")
    if layout[-1] < 2:
        hint = "; one column, the probability of yes of each record, needs shape=Binary()"
        raise ValueError(f"Expected at least 2 classes, got {layout[-1]}{hint * (layout[-1] == 1)}.")


def check_epsilon(epsilon: float) -> None:
    """Raise ValueError unless ε is a finite number > 0."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)):
        raise ValueError(f"Expected epsilon to be a number, got {type(epsilon).__name__}.")
    # written so that NaN fails the comparison
    if not 0 < epsilon <= sys.float_info.max:
        got = epsilon if abs(epsilon) < 1e6 or isinstance(epsilon, float) else "a whole number out of range"
        raise ValueError(f"Expected a finite epsilon > 0, got {got}.")


def totals(wide: Array) -> Array:
    """The sum of each row, (n, 1), from the first class to the last, so that every path gets the same bits."""
    return namespace(wide).cumulative_sum(wide, axis=-1)[..., -1:]


def is_floating(scores: Array) -> bool:
    if isinstance(scores, np.ndarray):
        return scores.dtype in (np.float64, np.float32, np.float16)
    return bool(namespace(scores).isdtype(scores.dtype, "real floating"))


def checked_rows(scores: Array) -> Floats:
    """Score vectors of any library, or lists of them, as a checked (n, k) array of float64."""
    if isinstance(scores, (list, tuple)):
        scores = np.asarray(scores)
    check_layout(scores)
    rows = np.atleast_2d(to_numpy(scores)).astype(np.float64)
    check_rows(rows)
    return rows


def to_numpy(scores: Array) -> Rows:
    """Scores of any library as a numpy array, shared where they are in host memory."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu()
    return np.asarray(scores)


class BadRow(ValueError):
    """A row that is not of scores: its number, what is wrong with it, and its column or place; never its scores.

    Attributes:
        advice: How many more such rows there are and what to do, in whole sentences.
    """

    def __init__(self, row: int, fault: str, where: str | int = "", advice: str = "") -> None:
        super().__init__(row, fault, where, advice)  # as it travels between processes
        self.row, self.fault, self.where, self.advice = row, fault, where, advice

    def __str__(self) -> str:
        where = f"column {self.where}" if isinstance(self.where, int) else self.where
        return f"Row {self.row}{where and ', '}{where}: {self.fault}.{self.advice and ' '}{self.advice}"


def check_rows(scores: Array, first_row: int = 0) -> None:
    """Raise `BadRow`, a ValueError, for the first row of the (n, k) batch that is not a score vector."""
    wide, bad = _bad_rows(scores)
    if not bad:
        return
    first, rows = to_numpy(wide[bad[0], ...]), wide.shape[0]
    # a few bad rows among good ones were spoiled one by one: nothing is to be said of all
    is_alone, is_usual = rows == 1 and not first_row, 2 * len(bad) >= rows
    advice = [_others(len(bad) - 1, rows - 1 - bad[0]), _way_out(first, is_alone) if is_usual else ""]
    raise BadRow(first_row + bad[0], *_fault(first), " ".join(filter(None, advice)))


def faults(scores: Array, first_row: int = 0) -> list[BadRow]:
    """The faulty rows of an (n, k) batch, each with what is wrong with it."""
    wide, bad = _bad_rows(scores)
    return [BadRow(first_row + i, *_fault(to_numpy(wide[i, ...]))) for i in bad]


def _bad_rows(scores: Array) -> tuple[Array, list[int]]:
    """The batch in float64, and the numbers of its rows that are not score vectors."""
    xp = namespace(scores)
    wide = scores.astype(np.float64, copy=False) if xp is np else xp.astype(scores, xp.float64, copy=False)
    if scores.shape[0] == 0 or _is_good(wide, xp):
        return wide, []
    with np.errstate(over="ignore"):
        good = (xp.abs(_off(wide)) <= SUM_TOLERANCE) & (xp.min(wide, axis=-1) >= 0)
    return wide, [int(i) for i in xp.nonzero(~good)[0]]


def _is_good(wide: Array, xp: ModuleType) -> bool:
    """Whether every row is a score vector; written so that NaN fails the comparisons."""
    # the largest comes before the sum, which might overflow
    if xp is np and wide.shape[0] == 1 and wide.size <= FEW:  # the same, without numpy, which takes longer to begin
        (row,) = wide.tolist()
        return min(row) >= 0 and max(row) <= 1 + SUM_TOLERANCE and abs(sum(row) - 1) <= SUM_TOLERANCE
    if xp is np:  # the same, without what numpy's functions do for other kinds of arrays: most of one row's time
        low, high = np.minimum.reduce(wide, axis=None), np.maximum.reduce(wide, axis=None)
        return bool(
            low >= 0
            and high <= 1 + SUM_TOLERANCE
            and np.maximum.reduce(np.abs(np.add.reduce(wide, axis=-1) - 1)) <= SUM_TOLERANCE
        )
    return bool(xp.min(wide) >= 0 and xp.max(wide) <= 1 + SUM_TOLERANCE and xp.max(xp.abs(_off(wide))) <= SUM_TOLERANCE)


def _off(wide: Array) -> Array:
    """How far each row's sum is from 1."""
    return namespace(wide).sum(wide, axis=-1) - 1


def _fault(row: Floats) -> tuple[str, str | int]:
    """What is wrong with a row, and in which column, where it is a single one."""
    for is_bad, fault in ((np.isnan(row), "is NaN"), (np.isinf(row), "is infinite")):
        if is_bad.any():
            return f"a score {fault}", int(is_bad.argmax())
    if (row < 0).any():
        return NEGATIVE, ""
    if _is_percent(row):
        return "the scores look like percentages; divide them by 100", ""
    # the sum itself would be the score of a row with one
    return NO_SUM[_total(row) > 1], ""


def _total(row: Floats) -> float:
    with np.errstate(over="ignore"):
        return float(row.sum())


def _is_percent(row: Floats) -> bool:
    # some are over 1: two hundred probabilities may sum to 100 as well
    return row.max() > 1 and abs(_total(row) / 100 - 1) <= ROUNDED


def _others(bad: int, after: int) -> str:
    """How many of the rows that were looked at after the first bad one are bad."""
    if not bad:
        return ""
    if bad == after:
        return "The next row is bad too." if bad == 1 else f"The next {bad:,} rows are bad too."
    return f"{bad:,} of the next {after:,} rows {'is' if bad == 1 else 'are'} bad too."


def _way_out(row: Floats, is_alone: bool) -> str:
    """What to do where rows like this one, whose sum is not 1, are the rule; other faults carry their own way out."""
    if not np.isfinite(row).all() or (row < 0).any() or _is_percent(row):
        return ""
    if row.max() > 1:
        column = "; if they are one column, a number for each record, say shape=Binary()" if is_alone else ""
        return f"If these are logits, apply softmax first{column}."
    if is_alone:
        return (
            f"If these are not {len(row)} classes of one record but one column, the probability of yes of each "
            "record, say shape=Binary(); if each is a label of its own, shape=MultiLabel()."
        )
    if abs(_total(row) - 1) <= ROUNDED:
        return "If they were rounded, divide each row by its sum."
    return "If each column is a yes or no of its own, say shape=MultiLabel()."
