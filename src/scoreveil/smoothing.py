"""Smoothing: the confidence is read around a record, not at it.

    from scoreveil import Smoothing, smoothed_scores

    smoothing = Smoothing(copies=16, scale=0.3, typical=X_public)
    scores = smoothed_scores(model.predict_proba, X, smoothing)

A model that has memorised a record is sure at it and less sure beside it. The label stays the model's own at the
record; its confidence becomes the mean of what the label scores at a few noisy copies. That takes the spike away,
without retraining or memory, and the same question has the same answer: the noise is drawn once.

Numbers move by a part of their spread among typical inputs, and whole numbers stay whole. Categories, booleans, one-hot
groups and columns that hardly vary are replaced now and then by a typical value. Pictures get noise, and move by a
pixel. Missing values stay missing. Texts cannot be smoothed. What this is worth, and for whom: docs/smoothing.md.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.randomness import KeyedDraws
from scoreveil.shapes import VECTORS, Shape

Rows = NDArray[Any]

MOST_COPIES, MOST_SCALE = 256, 2.0
FEW_VALUES = 10  # up to so many whole numbers are categories
HARDLY_VARIES = 0.5  # of the typical records: where more share one number, the spread is that of the few others
TEXT = 100  # different strings from which on a column holds texts, where they are most of its rows
QUANTILES = 32  # of a column that hardly varies
COMMON = 0.01  # share of typical records from which on a category is known: a rarer one could name somebody
REPLACED = 1.0  # probability that a category is replaced, for each unit of scale
CHANNELS = 4  # that a picture has at most
HAIR = 2.0**-20  # that single precision still tells
AT_A_TIME = 1 << 20  # numbers of copies that are made at a time


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


@dataclass(frozen=True)
class Input:
    """An input of a model: its name, "" where it has no other beside it; the sizes of a record; and what it holds."""

    name: str
    sizes: tuple[int, ...]
    parts: tuple[Numbers | Values, ...]

    def __post_init__(self) -> None:
        width = 1 if len(self.sizes) > 1 else math.prod(self.sizes)
        if sum(part.width for part in self.parts) != width or len(self.sizes) > 4:
            raise ValueError("The parts of a smoothing do not fit its inputs.")

    @property
    def axes(self) -> tuple[int, ...]:
        """Of pictures: the axes of a record that a copy moves along."""
        if len(self.sizes) == 2 or (len(self.sizes) == 3 and self.sizes[-1] <= CHANNELS):
            return 0, 1
        return (1, 2) if len(self.sizes) == 3 and self.sizes[0] <= CHANNELS else ()


class Smoothing:
    """Noisy copies of records, by the same noise for every record.

    Args:
        copies: How many the confidence is read at.
        scale: How far they lie from the record, in standard deviations of each column.
        typical: Inputs as clients send them: an array, a pandas DataFrame, or arrays by the names of inputs. Of these
            only rounded spreads, ranges and common categories are kept. Better public records than members.
        seed: Of the noise; by default it is drawn, as secrets are. It is saved with the veil, whose promise is about
            scores with this noise: who reads that file knows it.

    Raises:
        ValueError: An argument is out of range, or such inputs cannot be smoothed.
    """

    def __init__(self, copies: int = 16, scale: float = 0.3, typical: Any = None, *, seed: int | None = None) -> None:
        if typical is None:
            raise ValueError("Give typical inputs, typical=X: noise is scaled by how they spread.")
        inputs = tuple(_described(name, array) for name, array in _arrays(typical).items())
        self._set(copies, scale, secrets.randbits(127) if seed is None else seed, inputs)

    def _set(self, copies: int, scale: float, seed: int, inputs: tuple[Input, ...]) -> None:
        for name, value, least, most in (("copies", copies, 1, MOST_COPIES), ("seed", seed, 0, 2**127 - 1)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
                raise ValueError(f"Expected {name} to be a whole number from {least} to {most}.")
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale <= MOST_SCALE:
            raise ValueError(f"Expected a scale above 0, up to {MOST_SCALE:g}.")
        self.copies, self.scale, self.seed, self.inputs = int(copies), float(scale), int(seed), inputs
        secret = self.seed.to_bytes(16, "little")
        self._noise = {
            each.name: _noise(each, self.copies, self.scale, KeyedDraws(secret, b"smoothing %d" % number))
            for number, each in enumerate(inputs)
        }
        if not any(noise.added.any() or noise.replaced for noise in self._noise.values()):
            raise ValueError("Expected typical inputs that differ, got columns of one value each.")

    @classmethod
    def restored(cls, settings: Mapping[str, Any]) -> "Smoothing":
        """The smoothing of these settings, as a file has them."""
        inputs = tuple(
            Input(str(each["name"]), tuple(map(int, each["sizes"])), tuple(map(_part_of, each["parts"])))
            for each in settings["inputs"]
        )
        made = cls.__new__(cls)
        made._set(settings["copies"], settings["scale"], settings["seed"], inputs)
        return made

    def settings(self) -> dict[str, Any]:
        """The plain values that it is made of."""
        inputs = [
            {"name": each.name, "sizes": list(each.sizes), "parts": [_plain(part) for part in each.parts]}
            for each in self.inputs
        ]
        return {"copies": self.copies, "scale": self.scale, "seed": self.seed, "inputs": inputs}

    def around(self, given: Any) -> Any:
        """Copies of records in the form in which these are given, (copies × rows): all first copies come first.

        Raises:
            ValueError: These are other inputs than the typical ones.
        """
        arrays, wanted = _arrays(given), [each.name for each in self.inputs]
        first = next(iter(arrays.values()))
        is_matrix = len(arrays) == 1 and len(wanted) > 1 and first.shape[1:] == (len(wanted),)
        if is_matrix:  # a frame was typical, and these are its columns
            arrays = dict(zip(wanted, first.T, strict=True))
        elif len(arrays) == len(wanted) == 1:
            arrays = {wanted[0]: first}
        sizes = {name: math.prod(array.shape[1:]) for name, array in arrays.items()}
        if sizes != {each.name: math.prod(each.sizes) for each in self.inputs}:
            raise ValueError("These inputs have other names or sizes than the typical ones that smoothing was made of.")
        made = {}
        for each in self.inputs:
            array = arrays[each.name]
            around = self._noise[each.name].around(array.reshape(len(array), *each.sizes))
            made[each.name] = around.reshape(len(around), *array.shape[1:])
        return _like(given, {"": np.stack(list(made.values()), axis=1)} if is_matrix else made, self.copies)

    @property
    def rows_at_a_time(self) -> int:
        """Of how many records copies are made at a time, so that they fit into memory."""
        return max(1, AT_A_TIME // (self.copies * sum(math.prod(each.sizes) for each in self.inputs)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Smoothing) and self.settings() == other.settings()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Smoothing: {self.copies} copies at scale {self.scale:g}>"


def smoothed_scores(predict_proba: Callable[[Any], Any], X: Any, smoothing: Smoothing, shape: Shape = VECTORS) -> Rows:
    """Scores read around each record: the label is the model's own at the record, its score the mean over copies.

    Args:
        predict_proba: The model: scores (n, k) of inputs like X, or what the shape says.
        X: Inputs like the typical ones.
        smoothing: The copies.
        shape: How scores are served, where they are not vectors.
    """
    rows = len(next(iter(X.values()))) if isinstance(X, Mapping) else len(X)
    parts = []
    for first in range(0, max(rows, 1), smoothing.rows_at_a_time):
        part = _taken(X, first, first + smoothing.rows_at_a_time)
        own, around = np.asarray(predict_proba(part)), np.asarray(predict_proba(smoothing.around(part)))
        parts.append(averaged(own, around, shape))
    return np.concatenate(parts)


def averaged(own: Rows, around: Rows, shape: Shape = VECTORS) -> Rows:
    """The scores of `smoothed_scores`, of what a model answers at records and at their copies.

    Where the mean puts another class first, as much certainty of the label is mixed in as makes it first by a hair.

    Raises:
        ValueError: Such scores cannot be averaged.
    """
    if not shape.can_smooth:
        raise ValueError("Lists of the largest scores, and scores of places, cannot be smoothed: copies have others.")
    mean = around.reshape(-1, *own.shape).mean(axis=0, dtype=np.float64)
    scores, own_scores = shape.vectors(mean), shape.vectors(own)
    label = own_scores.argmax(axis=-1)[..., None]
    behind = scores.max(axis=-1, keepdims=True) - np.take_along_axis(scores, label, axis=-1)
    is_first = scores.argmax(axis=-1)[..., None] == label
    mixed = np.where(is_first, 0.0, behind / (1 + behind) + HAIR)
    made = (1 - mixed) * scores
    np.put_along_axis(made, label, np.take_along_axis(made, label, axis=-1) + mixed, axis=-1)
    return np.asarray(shape.restored(made, own))


# Typical inputs, described


def _described(name: str, array: Rows) -> Input:
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
        told = [value for value in column.tolist() if value is not None and value == value]
        if len(set(told)) > max(TEXT, len(told) / 2):
            raise ValueError("Texts cannot be smoothed: no noise makes of a text another that a client would send.")
        return _values(column[:, None])
    if column.dtype.kind not in "fiu":
        raise ValueError(f"Columns of {column.dtype} cannot be smoothed; give numbers or categories.")
    known = column[np.isfinite(column)].astype(np.float64)
    found, counts = np.unique(known, return_counts=True)
    if len(found) < 2:
        return Numbers(0.0, 0.0, 0.0)
    is_whole = bool((found == np.rint(found)).all())
    if is_whole and len(found) <= FEW_VALUES:
        return _values(known[:, None])
    if counts.max() > HARDLY_VARIES * len(known):
        places = np.quantile(known, (np.arange(QUANTILES) + 0.5) / QUANTILES, method="nearest")
        return _values(np.array([[_rounded(value)] for value in places]))
    return _numbers(known, is_whole)


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
    counts: dict[tuple[Any, ...], int] = {}
    for row in map(tuple, rows.tolist()):
        if all(value is not None and value == value for value in row):
            text = tuple(value.decode() if isinstance(value, bytes) else value for value in row)
            counts[text] = counts.get(text, 0) + 1
    common = {row: count for row, count in counts.items() if count >= COMMON * sum(counts.values())}
    if not common:
        raise ValueError("Expected categories that typical records share, got ones that hardly two have.")
    ordered = sorted(common.items(), key=lambda item: (-item[1], str(item[0])))
    total = sum(common.values())
    return Values(tuple(row for row, _ in ordered), tuple(round(count / total, 3) for _, count in ordered))


def _plain(part: Numbers | Values) -> dict[str, Any]:
    if isinstance(part, Values):
        return {"values": [list(row) for row in part.values], "shares": list(part.shares)}
    return {"spread": part.spread, "low": part.low, "high": part.high} | ({"whole": True} if part.whole else {})


def _part_of(plain: Mapping[str, Any]) -> Numbers | Values:
    if "values" in plain:
        return Values(tuple(map(tuple, plain["values"])), tuple(map(float, plain["shares"])))
    return Numbers(float(plain["spread"]), float(plain["low"]), float(plain["high"]), plain.get("whole", False))


# Noise


@dataclass(frozen=True, eq=False)
class _Noise:
    """What is added to numbers, what takes the place of values, and by how much pictures move."""

    added: Floats  # (copies, *sizes)
    low: Floats
    high: Floats
    whole: NDArray[np.bool_]
    replaced: list[tuple[int, int, Any]]  # copy, column, value
    axes: tuple[int, ...]
    steps: NDArray[np.int64]  # (copies, axes)

    def around(self, records: Rows) -> Rows:
        """The copies of records, (copies × rows, *sizes)."""
        made = np.repeat(records[None], len(self.added), axis=0)
        for copy, steps in enumerate(self.steps.tolist()):
            for axis, step in zip(self.axes, steps, strict=True):
                places = (np.arange(made.shape[axis + 2]) - step).clip(0, made.shape[axis + 2] - 1)
                made[copy] = np.take(made[copy], places, axis=axis + 1)
        if self.added.any():
            own = made.astype(np.float64)
            noisy = own + self.added[:, None]
            noisy = np.where(self.whole, np.rint(noisy), noisy)
            # a record outside the range of typical ones stays there
            noisy = np.clip(noisy, np.minimum(self.low, own), np.maximum(self.high, own))
            made = np.where(self.added[:, None] == 0, made, noisy.astype(made.dtype))
        columns = made.reshape(len(self.added), len(records), math.prod(records.shape[1:]))
        for copy, column, value in self.replaced:
            given = columns[copy, :, column]
            if given.dtype == object:
                text = str(value).encode() if len(given) and isinstance(given[0], bytes) else value
                columns[copy, :, column] = [each if each is None or each != each else text for each in given]
            else:
                columns[copy, :, column] = np.where(given == given, given.dtype.type(value), given)
        return columns.reshape(len(self.added) * len(records), *records.shape[1:])


def _noise(described: Input, copies: int, scale: float, draws: KeyedDraws) -> _Noise:
    def uniforms(use: int, columns: int) -> Floats:
        messages = (np.arange(copies, dtype="<u4") | np.uint32(use << 16)).view(np.uint8).reshape(copies, 4)
        return draws.uniforms(messages, columns + 1)[:, :columns]

    size, at = math.prod(described.sizes), 0
    half = -(-size // 2)
    drawn = uniforms(0, 2 * half)
    radius, angle = np.sqrt(-2 * np.log1p(-drawn[:, :half])), 2 * np.pi * drawn[:, half:]
    # rounded, so that every machine has the same
    normals = np.round(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :size], 6)
    spread, low, high, whole = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size, dtype=bool)
    whether, which = (uniforms(use, len(described.parts)) for use in (1, 2))
    replaced: list[tuple[int, int, Any]] = []
    for number, part in enumerate(described.parts):
        if isinstance(part, Numbers):
            to = size if len(described.sizes) > 1 else at + 1
            spread[at:to], low[at:to], high[at:to], whole[at:to] = part.spread, part.low, part.high, part.whole
        else:
            reached = np.cumsum(part.shares) / sum(part.shares)
            for copy in np.flatnonzero(whether[:, number] < REPLACED * scale).tolist():
                row = part.values[min(int(np.searchsorted(reached, which[copy, number], "right")), len(reached) - 1)]
                replaced += [(copy, at + place, value) for place, value in enumerate(row)]
        at += part.width
    steps = np.floor(3 * uniforms(3, len(described.axes))).astype(np.int64) - 1
    added, sizes = (scale * spread * normals).reshape(copies, *described.sizes), described.sizes
    ranges = low.reshape(sizes), high.reshape(sizes), whole.reshape(sizes)
    return _Noise(added, *ranges, replaced, described.axes, steps)


# Forms that inputs come in


def _is_frame(given: Any) -> bool:
    return hasattr(given, "columns") and hasattr(given, "iloc")


def _arrays(given: Any) -> dict[str, Rows]:
    """Inputs by name, each with a row for each record."""
    if _is_frame(given):
        return {str(name): _column(given[name]) for name in given.columns}
    if isinstance(given, Mapping):
        return {str(name): np.asarray(array) for name, array in given.items()}
    array = np.asarray(given)
    if array.ndim < 2:
        raise ValueError("Smoothing takes dense arrays (n, …), pandas DataFrames, or arrays by name.")
    return {"": array}


def _column(column: Any) -> Rows:
    """A column of a frame; categories as plain values, None where they are missing."""
    if column.dtype.kind in "fiub" and isinstance(column.dtype, np.dtype):
        return np.asarray(column)
    if column.dtype.kind in "fiu":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(column.astype(object).where(column.notna(), None), dtype=object)


def _like(given: Any, made: dict[str, Rows], copies: int) -> Any:
    """Copies in the form of what was given."""
    if not _is_frame(given):
        (first, *more) = made.values()
        return first if not isinstance(given, Mapping) else made if more else dict.fromkeys(given, first)
    frame = given.iloc[np.tile(np.arange(len(given)), copies)].reset_index(drop=True)
    for name in given.columns:
        column = frame[name].astype(object)
        column[:] = made[str(name)]
        known = getattr(frame[name].dtype, "categories", None)
        if known is not None:  # a category that these records do not have is not put there
            column = column.where(column.isin(known), frame[name].astype(object))
        frame[name] = column.astype(frame[name].dtype)
    return frame


def _taken(given: Any, first: int, last: int) -> Any:
    if isinstance(given, Mapping):
        return {name: array[first:last] for name, array in given.items()}
    return given.iloc[first:last] if _is_frame(given) else given[first:last]
