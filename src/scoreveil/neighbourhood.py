"""Which earlier question is this one a near-duplicate of? Marks of a record that survive small changes.

Every record has a few *marks*, numbers of 64 bits. Two records that share one are taken for neighbours. The numbers x
of a record become

    t = (x - mean) / (spread · √d)               with typical inputs, feature by feature
    t = a / ‖a - mean of a‖,  a = asinh(x / s)   without, with s = Σx² / Σ|x|, from 10⁻⁶ to 1

and each of the TABLES marks is a keyed hash of the cells that t falls into along a few random directions,
⌊g·t / width + offset⌋. Directions, offsets and hash are functions of the secret: who does not have it cannot aim, and
marks tell nothing about a record but which others it is near to.

With typical inputs the width is taken from them: the distance that one in a hundred of them has to its nearest
neighbour. Without, it is judged by the record itself. Features of one unit, as pixels or standardised ones are, get
WIDE cells; where a few large numbers stand beside many small ones, units are mixed, each feature's own spread is not
known, and cells are a tenth of that. A record whose numbers are all below 10⁻¹² is as one of zeros, and below 10⁻⁹
strangers begin to meet. Texts must be the same, and what is missing counts as 0. How often neighbours part and
strangers meet: benchmarks/walk.py, docs/decisions/neighbourhoods.md.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.fingerprint import read_records
from scoreveil.randomness import Floats, KeyedDraws

TABLES, DIRECTIONS = 8, 8  # marks of a record, and directions that make one
WIDTH, WIDE = 0.0185, 0.21  # of a cell, where no typical inputs are given: features of their own units, and of one
MIXED, FEW = (2.0, 4.0), (-8.0, -4.0)  # between which a record passes from the one to the other
LEAST_APART = 0.01  # of the norm, or of one number of usual size: where all numbers are the same, or nothing
SMALLEST = 1e-6  # that a record's numbers may be taken to be in size
NEAREST = 0.01  # the share of typical inputs that may be as near to another as the radius is
NEAR = 0.85  # of a width: the distance that so many typical inputs are allowed to have
MOST_TYPICAL = 2000  # inputs that distances are measured between
FAR = 4.0  # spreads from the mean: one feature alone leads no further
LARGEST = 1e30
FURTHEST = 2**31 - 1  # cell
TINY = 1e-30

PLACES = np.arange(TABLES, dtype="<i4")

Marks = NDArray[np.int64]


class Neighbourhoods:
    """The marks of records under one secret; those of another secret or context are independent."""

    def __init__(self, secret: bytes, context: bytes, typical: Floats | None = None) -> None:
        draws = KeyedDraws(secret, b"neighbourhoods\0" + context)
        self._draws, self._hash = draws, KeyedDraws(secret, b"neighbourhood marks\0" + context)
        self._offsets = self._uniforms(b"offsets", TABLES * DIRECTIONS)
        self._directions = np.empty((0, TABLES * DIRECTIONS))
        self._typical: tuple[Floats, Floats] | None = None
        if typical is not None:
            self._typical = _spread(typical)
            nearest = _nearest(self._placed(_Numbers(typical)))
            self.width = float(np.quantile(nearest, NEAREST)) / NEAR
            if not self.width > 0:
                raise ValueError("One in a hundred of the typical inputs occurs twice; give each input once.")

    def __call__(self, rows: int, inputs: Iterable[Any]) -> Marks:
        """(rows, TABLES) marks; `inputs` is what the model was asked, as for `Fingerprints`."""
        made = [self._marks(self._cells(numbers), texts) for numbers, texts in read_records(rows, inputs)]
        return np.concatenate(made) if made else np.empty((0, TABLES), dtype=np.int64)

    def _cells(self, numbers: Floats) -> NDArray[np.int32]:
        """(n, TABLES · DIRECTIONS) cells of (n, d) numbers."""
        given = _Numbers(numbers)
        t = self._placed(given)
        width = self.width if self._typical is not None else given.width()
        along = t @ self._first_directions(t.shape[1])
        cells = np.floor(along / width + self._offsets)
        return np.minimum(np.maximum(cells, -FURTHEST), FURTHEST).astype(np.int32)

    def _placed(self, given: "_Numbers") -> Floats:
        """t, for each row."""
        if self._typical is None:
            return given.placed()
        mean, spread = self._typical
        if given.values.shape[1] != len(mean):
            raise ValueError(f"Typical inputs have {len(mean)} numbers; a record has {given.values.shape[1]}.")
        return np.asarray(np.clip((given.values - mean) / spread, -FAR, FAR) / np.sqrt(len(mean)))

    def _marks(self, cells: NDArray[np.int32], texts: list[bytes]) -> Marks:
        """One hash for each table, over its number, its cells, and the texts."""
        n = len(cells)
        message = np.empty((n, TABLES, DIRECTIONS + 3), dtype="<i4")
        message[:, :, 0] = PLACES
        message[:, :, 1 : DIRECTIONS + 1] = cells.reshape(n, TABLES, DIRECTIONS)
        message[:, :, DIRECTIONS + 1 :] = _digests(texts)[:, None]
        words = self._hash.words(message.reshape(n * TABLES, -1).view(np.uint8), 1)
        return np.ascontiguousarray(words[:, 0]).view(np.int64).reshape(n, TABLES)

    def _first_directions(self, count: int) -> Floats:
        """A row for each number, the same however many there are; of variance 1."""
        if len(self._directions) < count:
            uniforms = self._uniforms(b"directions", count * TABLES * DIRECTIONS)
            self._directions = (uniforms.reshape(count, -1) - 0.5) * np.sqrt(12)
        return self._directions[:count]

    def _uniforms(self, purpose: bytes, count: int) -> Floats:
        return self._draws.uniforms(np.frombuffer(purpose, dtype=np.uint8)[None], count).ravel()


class _Numbers:
    """Records by the row, and what they tell of their own scale."""

    def __init__(self, given: Floats) -> None:
        self.values = np.asarray(given, dtype=np.float64)
        self._sizes = np.abs(self.values)
        if not np.maximum.reduce(self._sizes, axis=None, initial=0.0) <= LARGEST:  # NaN is no number either
            self.values = _clean(self.values)
            self._sizes = np.abs(self.values)
        self._squares = np.einsum("ij,ij->i", self._sizes, self._sizes)
        self._sum = np.add.reduce(self._sizes, axis=1)

    def placed(self) -> Floats:
        """t, where no typical inputs are given."""
        size = self._squares / np.maximum(self._sum, TINY)
        t = np.arcsinh(self.values / np.minimum(np.maximum(size, SMALLEST), 1.0)[:, None])
        squares = np.einsum("ij,ij->i", t, t)
        apart = squares - np.add.reduce(t, axis=1) ** 2 / max(1, t.shape[1])  # ‖t - mean of t‖²
        least = np.maximum(squares, 0.5) * LEAST_APART**2
        return np.asarray(t / np.sqrt(np.maximum(apart, least))[:, None])

    def width(self) -> Floats:
        """The width of cells for each row, (n, 1)."""
        half = np.sqrt(self._sizes)
        matter = _count(self._sum, self._squares)
        fourths, halves = np.add.reduce(np.sqrt(half), axis=1), np.add.reduce(half, axis=1)
        mixed = _count(fourths, halves) / np.maximum(matter, 1.0)
        alike = _ramp(mixed, MIXED) * _ramp(-matter, FEW)
        return np.asarray(WIDTH * (WIDE / WIDTH) ** alike)[:, None]


def _clean(numbers: Floats) -> Floats:
    """Finite numbers: what is missing is 0."""
    cleaned = np.minimum(np.maximum(numbers, -LARGEST), LARGEST)
    cleaned[np.isnan(cleaned)] = 0.0
    return np.asarray(cleaned, dtype=np.float64)


def _count(total: Floats, squares: Floats) -> Floats:
    """(Σv)² / Σv²: how many values matter."""
    return np.asarray(total**2 / np.maximum(squares, TINY))


def _ramp(value: Floats, between: tuple[float, float]) -> Floats:
    """1 up to the first of two values, 0 from the second on."""
    first, second = between
    return np.minimum(np.maximum((second - value) / (second - first), 0.0), 1.0)


def _spread(typical: Floats) -> tuple[Floats, Floats]:
    """The mean and the spread of each feature."""
    numbers = _clean(typical)
    if numbers.ndim != 2 or len(numbers) < 100:
        raise ValueError(f"Expected at least 100 typical inputs as rows of numbers, got shape {numbers.shape}.")
    spread = numbers.std(axis=0)
    if not spread.max() > 0:
        raise ValueError("The typical inputs are all the same; give inputs as clients send them.")
    return numbers.mean(axis=0), np.where(spread > 0, spread, np.median(spread[spread > 0]))


def _nearest(t: Floats) -> Floats:
    """The distance of each row to its nearest neighbour, among the first rows."""
    t = t[:MOST_TYPICAL]
    squares = np.einsum("ij,ij->i", t, t)
    distances = squares[:, None] + squares - 2 * (t @ t.T)
    np.fill_diagonal(distances, np.inf)
    return np.asarray(np.sqrt(np.maximum(distances.min(axis=1), 0.0)))


def _digests(texts: list[bytes]) -> NDArray[np.int32]:
    """(n, 2): a hash of each record's texts; 0 for none."""
    made = np.zeros((len(texts), 2), dtype="<i4")
    for i, text in enumerate(texts if any(texts) else ()):
        if text:
            made[i] = np.frombuffer(hashlib.sha256(text).digest()[:8], dtype="<i4")
    return made
