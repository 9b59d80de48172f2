"""Columns that give scores away beside the veiled ones: by their name, or because they hold one.

A column holds a score where it equals one, or rises or falls with one all the way: rounded, in percent, as a logarithm
or a rank. The order of the rows, and that of the scores within a row, may tell the same.
"""

import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RAW = re.compile(
    r"score|logit|margin|confiden|(?<![a-z])conf(?![a-z])|certain|prob(?![a-z])|proba|probs|likelihood|logp|softmax|"
    r"sigmoid|entropy|loss(?![a-z])|(?<![a-z])odds|posterior|perplexity|(?<![a-z])nll(?![a-z])",
    re.IGNORECASE,
)
# the number that a text begins with, be it a percentage, with a decimal comma, or the first of a list
NUMBER = re.compile(r"[\s\[({]*([-+]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d+)?)\s*%?\s*(?:$|[\])},;\s])")

LOOKED_AT = 4096  # rows that are compared
COMPARED = 512  # of these, where values are put in order
DISTINCT = 10  # values of a score from which on two columns are not in one order by accident
LEVELS = 5  # values of a column from which on it tells more than a class
RANKED = 5  # rows in descending order from which on it is no accident


def looking_raw(scores: NDArray[Any], others: Iterable[tuple[Any, str, Floats]]) -> list[Any]:
    """Columns of numbers that have the name of a score, or are one.

    Args:
        scores: The raw scores, (n, k), or with places in between.
        others: The other columns of numbers: what to call each, its name, and its first numbers, NaN where there is
            none.
    """
    rows = scores[:LOOKED_AT].reshape(len(scores[:LOOKED_AT]), math.prod(scores.shape[1:])).astype(np.float64)
    top = np.max(rows, axis=1, initial=-np.inf)
    equal, ordered = [*rows.T, top, 1 - top], _told(rows[:COMPARED])
    found = []
    for column, name, numbers in others:
        part = numbers[:LOOKED_AT]
        same = len(part) > 0 and any(np.isclose(part, each, rtol=0, atol=1e-6).mean() > 0.9 for each in equal)
        if RAW.search(name) or (same and len(np.unique(part)) > 2) or _follows(part[:COMPARED], ordered):
            found.append(column)
    return list(dict.fromkeys(found))


def _told(rows: Floats) -> list[Floats]:
    """What is computed from scores: they themselves, the largest, its distance to the second, and the entropy."""
    if rows.shape[1] < 2:
        return list(rows.T)
    second, top = np.partition(rows, -2, axis=1)[:, -2:].T
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(rows > 0, rows * np.log(rows), 0).sum(axis=1)
    return [*rows.T, top, top - second, entropy]


def _follows(numbers: Floats, known: Sequence[Floats]) -> bool:
    """Whether these rise, or fall, with one of those all the way."""
    there = np.isfinite(numbers)
    there[there] &= len(np.unique(numbers[there])) >= LEVELS
    mine = numbers[there]
    if not mine.size or (is_in_order(mine) and (mine == np.round(mine)).all()):
        return False  # a number of the row tells what the order of the rows does
    for each in known:
        other = each[there]
        if len(np.unique(other)) >= DISTINCT and (
            (np.diff(mine[np.lexsort((mine, other))]) >= 0).all()
            or (np.diff(mine[np.lexsort((-mine, other))]) <= 0).all()
        ):
            return True
    return False


def is_in_order(numbers: Floats) -> bool:
    """Whether they rise, or fall, from the first to the last."""
    steps = np.diff(numbers)
    return bool((steps >= 0).all() or (steps <= 0).all())


def is_descending(scores: NDArray[Any]) -> bool:
    """Whether the scores of every row fall from the first to the last."""
    return scores.ndim == 2 and bool((np.diff(scores, axis=1) <= 0).all())


def warn_of_order(scores: NDArray[Any], names: Sequence[Any], has_others: bool) -> None:
    """Say so where the order of the rows, or that of the scores in them, tells what is veiled.

    Args:
        scores: The raw scores, (n, k), as they stand in a table.
        names: Of their columns, where they have some.
        has_others: Whether other columns stand beside them.
    """
    if scores.ndim != 2 or not len(scores):
        return
    rows = scores[:LOOKED_AT].astype(np.float64)
    known = (
        [repr(name) for name in names] if len(names) == rows.shape[1] else [f"score {i}" for i in range(rows.shape[1])]
    )
    told = dict(zip(known, rows.T, strict=True))
    told["the largest score"] = rows.max(axis=1)
    for name, column in told.items():
        if len(np.unique(column)) >= DISTINCT and is_in_order(column):
            warnings.warn(
                f"The rows stand in the order of {name}, which tells how they rank, whatever is written there. "
                "Bring them into another order, such as that of an id, before you publish them.",
                stacklevel=3,
            )
            break
    if has_others and rows.shape[1] > 2 and len(rows) >= RANKED and is_descending(rows):
        warnings.warn(
            "In every row the scores fall from the first column to the last. If other columns name their classes, "
            "they tell the ranks, which the veil hides: give lists of labels with scores (--shape top_k, Veil.pairs).",
            stacklevel=3,
        )


def numbers_within(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every number within a value, with the names on the way to it; a list counts by its first entry."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from numbers_within(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple | np.ndarray):
        yield from numbers_within(name, value[0]) if len(value) else ()
    elif isinstance(value, str):
        number = NUMBER.match(value)
        if number:
            yield name, float(number[1].replace(",", "."))
    elif isinstance(value, int | float | Decimal | np.number) and not isinstance(value, bool):
        yield name, _float(value)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # of a whole number that no float has
        return math.inf


def columns_within(name: str, values: Sequence[Any]) -> list[tuple[str, Floats]]:
    """The numbers within the values of a column, by the names on the way to them; NaN where there is none."""
    found: dict[str, Floats] = {}
    for row, value in enumerate(values):
        for full, number in numbers_within(name, value):
            found.setdefault(full, np.full(len(values), math.nan))[row] = number
    return list(found.items())
