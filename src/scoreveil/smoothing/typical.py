"""Typical inputs of a model, as far as noise needs to know them: spreads, ranges and common categories."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from scoreveil.arrays import Rows

FEW_VALUES = 10  # up to so many whole numbers are categories
HARDLY_VARIES = 0.5  # of the typical records: where more share one number, the spread is that of the few others
TEXT = 100  # different strings from which on a column holds texts, where they are most of its rows
QUANTILES = 32  # of a column that hardly varies
COMMON = 0.01  # share of typical records from which on a category is known: a rarer one could name somebody
CHANNELS = 4  # that a picture has at most


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, or the pixels of a picture: the spread, and the range that copies stay in."""

    spread: float
    low: float
    high: float
    whole: bool = False
    width = 1

    def __post_init__(self) -> None:
        is_sound = all(map(math.isfinite, (self.spread, self.low, self.high))) and isinstance(self.whole, bool)
        if not is_sound or self.spread < 0 or self.low > self.high:
            raise ValueError("The numbers of a smoothing are not a spread and a range.")

    def settings(self) -> dict[str, object]:
        settings: dict[str, object] = {"spread": self.spread, "low": self.low, "high": self.high}
        return settings | ({"whole": True} if self.whole else {})


@dataclass(frozen=True)
class Values:
    """Columns that are replaced together, a category or a one-hot group: rows of values, and the share of each."""

    values: tuple[tuple[Any, ...], ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        kinds = {type(value) for row in self.values for value in row}
        is_sound = len(self.values) == len(self.shares) and kinds <= {str, int, float, bool}
        if not is_sound or {len(row) for row in self.values} != {self.width} or not min(self.shares) > 0:
            raise ValueError("The values of a smoothing are not categories with their shares.")

    @property
    def width(self) -> int:
        return max(len(self.values[0]), 1)

    def settings(self) -> dict[str, object]:
        return {"values": [list(row) for row in self.values], "shares": list(self.shares)}


def restored_part(plain: Mapping[str, Any]) -> Numbers | Values:
    """The numbers or values of these settings."""
    if "values" in plain:
        return Values(tuple(map(tuple, plain["values"])), tuple(map(float, plain["shares"])))
    return Numbers(float(plain["spread"]), float(plain["low"]), float(plain["high"]), plain.get("whole", False))


@dataclass(frozen=True)
class Input:
    """An input of a model: its name, "" where it has no other beside it; the sizes of a record; and what it holds."""

    name: str
    sizes: tuple[int, ...]
    parts: tuple[Numbers | Values, ...]

    def __post_init__(self) -> None:
        width = 1 if len(self.sizes) > 1 else self.size
        if sum(part.width for part in self.parts) != width or len(self.sizes) > 4:
            raise ValueError("The parts of a smoothing do not fit its inputs.")

    @property
    def size(self) -> int:
        return math.prod(self.sizes)

    @property
    def axes(self) -> tuple[int, ...]:
        """Of pictures: the axes of a record that a copy moves along."""
        if len(self.sizes) == 2 or (len(self.sizes) == 3 and self.sizes[-1] <= CHANNELS):
            return 0, 1
        return (1, 2) if len(self.sizes) == 3 and self.sizes[0] <= CHANNELS else ()


def described(name: str, array: Rows) -> Input:
    if len(array) < 2:
        raise ValueError(f"Expected typical inputs, some hundred of them, got {len(array)}.")
    sizes = array.shape[1:]
    if len(sizes) > 1:
        if array.dtype.kind not in "fiu":
            raise ValueError(f"Expected pictures of numbers, got {array.dtype}.")
        return Input(name, sizes, (_numbers(array.ravel(), array.dtype.kind in "iu"),))
    columns, parts, at = array.reshape(len(array), -1), list[Numbers | Values](), 0
    while at < columns.shape[1]:
        width = _one_hot(columns, at)
        parts.append(_values(columns[:, at : at + width]) if width else _part(columns[:, at]))
        at += parts[-1].width
    return Input(name, sizes, tuple(parts))


def _part(column: Rows) -> Numbers | Values:
    if column.dtype.kind in "OSUb":
        known = [value for value in column.tolist() if not is_missing(value)]
        if len(set(known)) > max(TEXT, len(known) / 2):
            raise ValueError("Texts cannot be smoothed: no noise makes of a text another that a client would send.")
        return _values(column[:, None])
    if column.dtype.kind not in "fiu":
        raise ValueError(f"Columns of {column.dtype} cannot be smoothed; give numbers or categories.")
    numbers = column[np.isfinite(column)].astype(np.float64)
    different, counts = np.unique(numbers, return_counts=True)
    if len(different) < 2:
        return Numbers(0.0, 0.0, 0.0)
    is_whole = bool((different == np.rint(different)).all())
    if is_whole and len(different) <= FEW_VALUES:
        return _values(numbers[:, None])
    if counts.max() > HARDLY_VARIES * len(numbers):
        places = np.quantile(numbers, (np.arange(QUANTILES) + 0.5) / QUANTILES, method="nearest")
        return _values(np.array([[_rounded(value)] for value in places]))
    return _numbers(numbers, is_whole)


def _numbers(column: Rows, is_whole: bool) -> Numbers:
    """The spread, and where all but one in a hundred lie: the extremes would be somebody's."""
    known = column[np.isfinite(column)].astype(np.float64)
    low, high = np.quantile(known, (0.01, 0.99))
    return Numbers(_rounded(known.std()), _rounded(low), _rounded(high), is_whole)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _one_hot(columns: Rows, at: int) -> int:
    """How many columns from here on are a one-hot group, each record having a single 1 there; 0 where none begins."""
    total = np.zeros(len(columns))
    for width, column in enumerate(columns[:, at:].T if columns.dtype.kind in "fiub" else (), 1):
        if not np.isin(column, (0, 1)).all() or (total := total + column).max() > 1:
            return 0
        if total.min() == 1:
            return width if width > 1 else 0
    return 0


def _values(rows: Rows) -> Values:
    """The common rows of values, those with missing ones left out."""
    counts = Counter(
        tuple(value.decode() if isinstance(value, bytes) else value for value in row)
        for row in rows.tolist()
        if not any(map(is_missing, row))
    )
    common = [(row, count) for row, count in counts.items() if count >= COMMON * counts.total()]
    if not common:
        raise ValueError("Expected categories that typical records share, got ones that hardly two have.")
    common.sort(key=lambda item: (-item[1], str(item[0])))
    total = sum(count for _, count in common)
    return Values(tuple(row for row, _ in common), tuple(round(count / total, 3) for _, count in common))


def is_missing(value: object) -> bool:
    return value is None or value != value
