"""Columns that give scores away beside the veiled ones: by their name, or because they hold one.

A column holds a score where it equals one, or rises or falls with one all the way: rounded, in percent, as a logarithm
or a rank. The order of the rows, and that of the scores within a row, may tell the same.
"""

import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.shapes import RANKED, is_descending

OtherColumn = tuple[Any, str, Floats]  # what to call it, the name of its numbers, and they, NaN where there is none

RAW = re.compile(
    r"score|logit|margin|confiden|(?<![a-z])conf(?![a-z])|certain|prob(?![a-z])|proba|probs|likelihood|logp|softmax|"
    r"sigmoid|entropy|loss(?![a-z])|(?<![a-z])odds|posterior|perplexity|(?<![a-z])nll(?![a-z])",
    re.IGNORECASE,
)
# the number that a text begins with, be it a percentage, with a decimal comma, or the first of a list
NUMBER = re.compile(r"[\s\[({]*([-+]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][-+]?\d+)?)\s*%?\s*(?:$|[\])},;\s])")

LOOKED_AT = 4096  # rows that are compared
COMPARED = 512  # of these, where values are put in order
FEW = 64  # and of these, to see at once that they are not
SAME = 1e-6  # by which equal numbers may differ
DISTINCT = 10  # values of a score from which on two columns are not in one order by accident
LEVELS = 5  # values of a column from which on it tells more than a class
ORDERS = 1e6  # in which a column could stand, from which on its order is no accident in any of many parts
ENTRIES = 4  # of a list that are looked at, the first ones
JUDGED = 3  # numbers from which on they are compared with the scores; fewer count by their name alone


def looking_raw(scores: NDArray[Any], others: Sequence[OtherColumn]) -> dict[Any, int]:
    """Columns of numbers that have the name of a score, or are one; each with the first row that has a number there.

    Rows are compared some thousand at a time, so that a score which begins late in a column is seen too.

    Args:
        scores: The raw scores, (n, k), or with places in between.
        others: The other columns of numbers.
    """
    raw: dict[Any, int] = {}
    for start in range(0, len(scores) if others else 0, LOOKED_AT):
        rows = _flat(scores[start : start + LOOKED_AT])
        known = _computed(rows[:COMPARED])
        for column, name, all_numbers in others:
            numbers = all_numbers[start : start + LOOKED_AT]
            there = np.isfinite(numbers)
            if column in raw or not there.any():
                continue
            is_raw = RAW.search(name) is not None
            if not is_raw and there.all():
                is_raw = _is_one(numbers, rows, known)
            elif not is_raw:
                is_raw = _is_one(numbers[there], rows[there], _computed(rows[there][:COMPARED]))
            if is_raw:
                raw[column] = start + int(there.argmax())
    return raw


def _is_one(numbers: Floats, rows: Floats, known: Floats) -> bool:
    return len(numbers) >= JUDGED and (_equals(numbers, rows) or _follows(numbers[:COMPARED], known))


def would_stay(raw: Sequence[Any]) -> tuple[str, str]:
    """What is said of columns that look raw, one or several, after their names; and the word that stands for them."""
    stays, them = ("as it is, and looks", "it") if len(raw) == 1 else ("as they are, and look", "them")
    return f"would stay {stays} like raw scores", them


def _flat(scores: NDArray[Any]) -> Floats:
    """Scores with places as (n, k) of all places."""
    return scores.reshape(len(scores), math.prod(scores.shape[1:])).astype(np.float64)


def _computed(rows: Floats) -> Floats:
    """What is computed from scores: they themselves, the largest, its distance to the second, and the entropy."""
    if rows.shape[1] < 2:
        return rows
    second, top = np.partition(rows, -2, axis=1)[:, -2:].T
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(rows > 0, rows * np.log(rows), 0).sum(axis=1)
        return np.column_stack([rows, top, top - second, entropy])


def _equals(numbers: Floats, rows: Floats) -> bool:
    """Whether nine in ten of these are a score, the largest one, or what that leaves of 1."""
    top = np.max(rows, axis=1, initial=-np.inf)
    known = np.column_stack([rows, top, 1 - top])
    few = len(numbers) // 10 + 1  # one of them is equal, where nine in ten of all are
    with np.errstate(invalid="ignore"):
        likely = (np.abs(known[:few] - numbers[:few, None]) <= SAME).any(axis=0)
        same = any((np.abs(score - numbers) <= SAME).mean() > 0.9 for score in known.T[likely])
    return same and len(np.unique(numbers)) > 2


def _follows(numbers: Floats, known: Floats) -> bool:
    """Whether these rise, or fall, with a column of those all the way, and not by accident."""
    there = np.isfinite(known).all(axis=1)
    mine, known = numbers[there], known[there]
    levels, counts = np.unique(mine, return_counts=True)
    if len(levels) < LEVELS or (is_in_order(mine) and (mine == np.round(mine)).all()):
        return False  # a number of the row tells what the order of the rows does
    steps = np.sign(np.diff(mine[:FEW]))[:, None] * np.sign(np.diff(known[:FEW], axis=0))
    likely = (steps >= 0).all(axis=0) | (steps <= 0).all(axis=0)
    log_orders = math.lgamma(len(mine) + 1) - sum(math.lgamma(count + 1) for count in counts.tolist())
    if not likely.any() or log_orders < math.log(ORDERS):
        return False
    return any(len(np.unique(other)) >= DISTINCT and _is_in_order_of(mine, other) for other in known.T[likely])


def _is_in_order_of(mine: Floats, other: Floats) -> bool:
    rises = (np.diff(mine[np.lexsort((mine, other))]) >= 0).all()
    return bool(rises or (np.diff(mine[np.lexsort((-mine, other))]) <= 0).all())


def is_in_order(numbers: Floats) -> bool:
    """Whether they rise, or fall, from the first to the last."""
    steps = np.diff(numbers)
    return bool((steps >= 0).all() or (steps <= 0).all())


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
    are_named = len(names) == rows.shape[1]
    columns = {repr(names[i]) if are_named else f"score {i}": column for i, column in enumerate(rows.T)}
    columns["the largest score"] = rows.max(axis=1)
    for name, column in columns.items():
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


def numbers_within(name: str, value: object) -> Iterator[tuple[str, float]]:
    """Every number within a value, with the names on the way to it; a list counts by its first entries."""
    if isinstance(value, str):
        number = NUMBER.match(value)
        if number:
            yield name, float(number[1].replace(",", "."))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from numbers_within(f"{name}.{key}", inner)
    elif isinstance(value, list | tuple | np.ndarray):
        if len(value) and all(_is_named(entry) for entry in value):
            yield from numbers_within(name, dict(value))
            return
        for place, entry in enumerate(value[:ENTRIES]):
            yield from numbers_within(entry_name(name, place), entry)
    elif isinstance(value, int | float | Decimal | np.number) and not isinstance(value, bool):
        yield name, _float(value)


def _is_named(entry: object) -> bool:
    """Whether it is a name with a value: lists of such, and Arrow's maps, are mappings."""
    return isinstance(entry, list | tuple) and len(entry) == 2 and isinstance(entry[0], str | int)


def entry_name(name: str, place: int) -> str:
    """What an entry of a list is called; the first as the list is."""
    return f"{name}.{place}" if place else name


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # of a whole number that no float has
        return math.inf


def columns_within(column: Any, name: str, values: Sequence[object]) -> list[OtherColumn]:
    """The numbers within the values of a column, by the names on the way to them; NaN where there is none.

    A name that only a few rows have, as where keys are ids, is left out, unless it is that of a score.
    """
    rows_of: dict[str, list[int]] = {}
    numbers_of: dict[str, list[float]] = {}
    for row, value in enumerate(values):
        for full, number in numbers_within(name, value):
            rows_of.setdefault(full, []).append(row)
            numbers_of.setdefault(full, []).append(number)
    columns = list[OtherColumn]()
    has_raw = False
    for full, rows in rows_of.items():
        if len(rows) < JUDGED and (has_raw or not RAW.search(full)):
            continue
        has_raw = has_raw or len(rows) < JUDGED  # one of many such names is enough
        numbers = np.full(len(values), math.nan)
        numbers[rows] = numbers_of[full]
        columns.append((column, full, numbers))
    return columns
