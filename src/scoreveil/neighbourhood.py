"""Which earlier question is this one a near-duplicate of? Marks of a record that survive small changes.

Every record has a few *marks*, numbers of 64 bits. Two records that share one are taken for near-duplicates. The
numbers x of a record, d of them, become

    t = (x - mean) / (spread · √d)               with typical inputs, feature by feature
    t = a / ‖a - mean of a‖,  a = asinh(x / s)   without

and each of the TABLES marks is a keyed hash of the cells that t falls into along a few random directions,
⌊g·t / width + offset⌋, of the cell of the record's size, ⌊log ‖x‖ / (SIZE · width) + offset⌋, of the number and shape
of its inputs, of the places where a number is missing, and of its texts in their normal form. Directions, offsets and
hash are functions of the secret: who does not have it cannot aim, and marks reveal nothing about a record but which
others it is near to.

With typical inputs the width is taken from them: the distance that one in a hundred of them has to its nearest
neighbour. Without, it is judged by the record itself. Features of one unit, as pixels or standardised ones are, get
WIDE cells, and s is the record's size Σx² / Σ|x|. Where a few numbers outweigh the others, units are mixed, or most
numbers are flags: each feature's own spread is not known, cells are a tenth of that, and s is at most 1. Between the
two each table takes a step at a place of its own, so that a small change leaves most widths as they are. A record whose
numbers are all below 10⁻¹² is as one of zeros.

Give typical inputs wherever features have units of their own, and for records of one or two numbers (`few_numbers`):
these hold too little to be told apart without. How often near-duplicates part and strangers meet:
experiments/walk/__main__.py, docs/decisions/neighbourhoods.md.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.randomness import KeyedDraws, Words
from scoreveil.record_bytes import with_length
from scoreveil.texts import normal_form

TABLES, DIRECTIONS = 8, 8  # marks of a record, and directions that make one
WIDTH, WIDE = 0.022, 0.21  # of a cell, where no typical inputs are given: features of their own units, and of one
STEPS = 3  # of the width from the one to the other
FEW = 4.0  # so many numbers that matter are few, twice as many are not
SPARSE = 3.0  # where a smaller part than one in so many matters, the others are flags
SIZE, MAX_SIZE = 5.0, 0.5  # the cell of a record's size, in widths; log 2 is more, so 2x is never in the cell of x
MIN_APART = 0.01  # of the norm, or of one number of usual size: where all numbers are the same, or nothing
MIN_SIZE = 1e-6  # that a record's numbers may be taken to be in size
MAX_NUMBER = 1e30
MAX_SPREADS = 4.0  # from the mean: one feature alone leads no further
NEAREST = 0.01  # the share of typical inputs that may be as near to another as the radius is
NEAR = 0.85  # of a width: the distance that so many typical inputs are allowed to have
MIN_TYPICAL, MAX_TYPICAL = 100, 2000  # inputs that distances are measured between
MAX_TYPICAL_NUMBERS = 1 << 26
BLOCK = 1 << 15  # numbers at a time, which fit the processor's cache
TINY = 1e-30

PLACES = np.arange(TABLES)

Marks = NDArray[np.int64]


class Neighbourhoods:
    """The marks of records under one secret; those of another secret or context are independent.

    Args:
        secret: What directions, offsets and hash are functions of.
        context: Names what the records are asked of.
        typical: Inputs as clients send them, as `typical_inputs` reads them.
    """

    def __init__(self, secret: bytes, context: bytes, typical: Floats | None = None) -> None:
        draws = KeyedDraws(secret, b"neighbourhoods\0" + context)
        self._draws, self._hash = draws, KeyedDraws(secret, b"neighbourhood marks\0" + context)
        self._offsets = self._uniforms(b"offsets", TABLES * DIRECTIONS)
        self._size_offsets = self._uniforms(b"size offsets", TABLES)
        self._step_offsets = self._uniforms(b"step offsets", TABLES)
        self._directions = np.empty((0, TABLES * DIRECTIONS))
        self._typical = None if typical is None else _Typical(typical)

    def __call__(self, rows: int, inputs: Iterable[Any]) -> Marks:
        """(rows, TABLES) marks.

        Args:
            rows: How many records there are.
            inputs: What the model is asked, always in the same order: arrays of numbers or of texts (str or bytes) with
                a row for each record. NaN is a missing number.

        Raises:
            ValueError: The records have another number of numbers than the typical inputs.
        """
        numbers, digests = _read(rows, inputs)
        step = max(1, BLOCK // max(1, numbers.shape[1]))
        if rows <= step:
            return self._marks(numbers, digests)
        starts = range(0, rows, step)
        return np.concatenate([self._marks(numbers[at : at + step], digests[at : at + step]) for at in starts])

    def _marks(self, numbers: NDArray[Any], digests: Words) -> Marks:
        """Marks of (n, d) numbers, and the digests of what else is known."""
        n = len(numbers)
        values = np.asarray(numbers, dtype=np.float64)
        sizes = np.abs(values)
        if not np.maximum.reduce(sizes, axis=None, initial=0.0) <= MAX_NUMBER:  # NaN is not, either
            digests = digests ^ self._missing(np.isnan(values))
            values = np.clip(np.nan_to_num(values), -MAX_NUMBER, MAX_NUMBER)
            sizes = np.abs(values)
        along, sizes = self._by_itself(values, sizes) if self._typical is None else self._by_typical(values)
        along += self._offsets
        sizes += self._size_offsets
        message = np.empty((n, TABLES, 4), dtype="<u8")
        # of the number of a cell its last 16 bits: others with the same are far away, in every direction at once
        cells = np.floor(along, out=along).astype(np.int64).astype("<i2")
        message[:, :, :2] = cells.view("<u8").reshape(n, TABLES, 2)
        message[:, :, 2] = np.floor(sizes, out=sizes).astype(np.int64) * TABLES + PLACES
        message[:, :, 3] = digests[:, None]
        words = self._hash.words(message.reshape(n * TABLES, 4).view(np.uint8), 1)
        return words[:, 0].copy().view(np.int64).reshape(n, TABLES)

    def _by_itself(self, values: Floats, sizes: Floats) -> tuple[Floats, Floats]:
        """Where each record is along the directions, and its size in each table, in cells; by the record alone."""
        count = max(1, values.shape[1])
        total = np.add.reduce(sizes, axis=1)
        squares = np.vecdot(values, values)
        matter = total * total / np.maximum(squares, TINY)  # how many numbers do
        alike = np.minimum(np.maximum(matter * np.minimum(1.0, SPARSE / count * matter) / FEW - 1.0, 0.0), 1.0)
        size = np.maximum(squares / np.maximum(total, TINY), MIN_SIZE)
        scale = np.where(size < 1.0, size, size**alike)
        t = values * (1.0 / scale)[:, None]
        np.arcsinh(t, out=t)
        norms = np.vecdot(t, t)
        apart = norms - np.add.reduce(t, axis=1) ** 2 / count  # ‖t - mean of t‖²
        apart = np.maximum(apart, np.maximum(norms, 0.5) * MIN_APART**2)
        steps = np.floor(alike[:, None] * STEPS + self._step_offsets)
        widths = WIDTH * (WIDE / WIDTH) ** (steps / STEPS)
        along = t @ self._first_directions(values.shape[1])
        parts = along.reshape(-1, TABLES, DIRECTIONS)
        parts *= (1.0 / (np.sqrt(apart)[:, None] * widths))[:, :, None]
        return along, np.log(1.0 + np.sqrt(squares) / MIN_SIZE)[:, None] / np.minimum(SIZE * widths, MAX_SIZE)

    def _by_typical(self, values: Floats) -> tuple[Floats, Floats]:
        assert self._typical is not None
        t, sizes = self._typical.placed(values)
        along = t @ self._first_directions(t.shape[1])
        along *= 1.0 / self._typical.width
        return along, np.repeat(sizes[:, None] / min(SIZE * self._typical.width, MAX_SIZE), TABLES, axis=1)

    def _missing(self, places: NDArray[np.bool_]) -> Words:
        """What to change in the digests of records, by the places where a number is missing; 0 where none is."""
        return np.where(places.any(axis=1), self._draws.words(np.packbits(places, axis=1), 1)[:, 0], np.uint64(0))

    def _first_directions(self, count: int) -> Floats:
        """A row for each number, the same however many there are; of variance 1."""
        if len(self._directions) < count:
            uniforms = self._uniforms(b"directions", count * TABLES * DIRECTIONS)
            self._directions = (uniforms.reshape(count, -1) - 0.5) * np.sqrt(12)
        return self._directions[:count]

    def _uniforms(self, purpose: bytes, count: int) -> Floats:
        return self._draws.uniforms(np.frombuffer(purpose, dtype=np.uint8)[None], count).ravel()


class _Typical:
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
        found = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, TypeError, SyntaxError, OverflowError, EOFError):
        raise ValueError(f"{path.name} is not an array as numpy.save writes it (.npy).") from None
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{path.name} holds no numbers but values of type {found.dtype}; typical inputs are numbers.")
    if found.size > MAX_TYPICAL_NUMBERS:
        words = f"{path.name} holds {found.size:,} numbers; a few hundred rows are enough"
        raise ValueError(f"{words}, and {MAX_TYPICAL_NUMBERS:,} numbers the most.")
    values = np.array(found, dtype=np.float64)
    _Typical(values)
    return values


def few_numbers(shapes: Iterable[Sequence[int]]) -> bool:
    """Whether records hold one or two numbers, so that they need typical inputs to be told apart.

    Args:
        shapes: Of each input of numbers, rows first; -1 for any size.
    """
    counts = [math.prod(shape[1:]) for shape in shapes]
    return min(counts, default=0) > 0 and sum(counts) < 3


def _read(rows: int, inputs: Iterable[Any]) -> tuple[NDArray[Any], Words]:
    """The numbers of each record, (rows, d), and a digest of its inputs' shapes and its texts."""
    numbers: list[NDArray[Any]] = []
    texts: list[NDArray[Any]] = []
    head = b""
    for given in inputs:
        array = np.asarray(given)
        is_text = array.dtype.kind in "OSU"
        (texts if is_text else numbers).append(array.reshape(rows, math.prod(array.shape[1:])))
        head += f"{'text' if is_text else 'numbers'} {array.shape[1:]}\0".encode()
    together = numbers[0] if len(numbers) == 1 else np.hstack([np.empty((rows, 0)), *numbers])
    if not texts:
        return together, np.frombuffer(_digest(head), dtype="<u8").repeat(rows)
    said = b"".join(_digest(head, *map(_text, row)) for row in np.hstack(texts).tolist())
    return together, np.frombuffer(said, dtype="<u8")


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(map(with_length, parts))).digest()[:8]


def _text(value: str | bytes) -> bytes:
    """The normal form of a text; bytes that are none, such as a picture's, are taken as they are."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        return b"\xff" + error.object
    return normal_form(text).encode(errors="surrogatepass")


def _nearest(t: Floats) -> Floats:
    """The distance of each row to its nearest neighbour."""
    squares = np.vecdot(t, t)
    distances = squares[:, None] + squares - 2 * (t @ t.T)
    np.fill_diagonal(distances, np.inf)
    return np.asarray(np.sqrt(np.maximum(distances.min(axis=1), 0.0)))
