"""Which records are near-duplicates? Marks of a record that survive small changes.

Two records that share a *mark*, a number of 64 bits, are taken for near-duplicates. The numbers x of a record, d of
them, become

    t = (x - mean) / (spread · √d)               with typical inputs, feature by feature (`typical.py`)
    t = a / ‖a - mean of a‖,  a = asinh(x / s)   without

and each mark is a keyed hash of the cells that t falls into along a few random directions, ⌊g·t / width + offset⌋, of
the cell of the record's size, ⌊log ‖x‖ / (SIZE · width) + offset⌋, of the number and shape of its inputs, of the places
where a number is missing, and of its texts in their normal form. Directions, offsets and hash are functions of the
secret: who does not have it cannot aim, and marks reveal nothing about a record but which others it is near to.

With typical inputs the width is taken from them. Without, it is judged by the record itself. Features of one unit, as
pixels or standardised ones are, get WIDE cells, and s is the record's size Σx² / Σ|x|. Where a few numbers outweigh the
others, units are mixed, or most numbers are flags: each feature's own spread is not known, cells are a tenth of that,
and s is at most 1. Between the two each mark takes a step at a place of its own, so that a small change leaves most
widths as they are. A record whose numbers are all below 10⁻¹² is as one of zeros.

Records of one or two numbers hold too little to be told apart without typical inputs. How often near-duplicates part
and strangers meet: benchmarks/walk.py, docs/decisions/neighbourhoods.md.
"""

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.randomness import KeyedDraws, Words
from scoreveil.same_record.exact import with_lengths
from scoreveil.same_record.texts import normal_form
from scoreveil.same_record.typical import MAX_NUMBER, Typical

TABLES, DIRECTIONS = 8, 8  # marks of a record, and directions that make one
WIDTH, WIDE = 0.022, 0.21  # of a cell, where no typical inputs are given: features of their own units, and of one
STEPS = 3  # of the width from the one to the other
FEW = 4.0  # so many numbers that matter are few, twice as many are not
SPARSE = 3.0  # where a smaller part than one in so many matters, the others are flags
SIZE, MAX_SIZE = 5.0, 0.5  # the cell of a record's size, in widths; log 2 is more, so 2x is never in the cell of x
MIN_APART = 0.01  # of the norm, or of one number of usual size: where all numbers are the same, or nothing
MIN_SIZE = 1e-6  # that a record's numbers may be taken to be in size
BLOCK = 1 << 15  # numbers at a time, which fit the processor's cache
TINY = 1e-30

Marks = NDArray[np.int64]
Numbers = NDArray[Any]  # of any real dtype, a row for each record


class Neighbourhoods:
    """The marks of records under one secret; those of another secret or context are independent.

    Args:
        secret: What directions, offsets and hash are functions of.
        context: Names what the records are asked of.
        typical: Inputs as clients send them, as `typical_inputs` reads them.
        tables: How many marks a record has.
        widening: How many times as wide as usual the cells are.
    """

    def __init__(
        self, secret: bytes, context: bytes, typical: Floats | None = None, tables: int = TABLES, widening: float = 1.0
    ) -> None:
        draws = KeyedDraws(secret, b"neighbourhoods\0" + context)
        self._draws, self._hash = draws, KeyedDraws(secret, b"neighbourhood marks\0" + context)
        self._tables, self._width, self._wide = tables, widening * WIDTH, widening * WIDE
        self._offsets = self._uniforms(b"offsets", tables * DIRECTIONS)
        self._size_offsets = self._uniforms(b"size offsets", tables)
        self._step_offsets = self._uniforms(b"step offsets", tables)
        self._directions = np.empty((0, tables * DIRECTIONS))
        self._typical = None if typical is None else Typical(typical)

    def __call__(self, rows: int, inputs: Iterable[Any]) -> Marks:
        """(rows, tables) marks.

        Args:
            rows: How many records there are.
            inputs: What the model is asked, always in the same order: arrays of numbers or of texts (str or bytes) with
                a row for each record. NaN is a missing number.

        Raises:
            ValueError: The records have another number of numbers than the typical inputs.
        """
        return self.of(*_numbers_and_digests(rows, inputs))

    def of(self, numbers: Numbers, digests: Words) -> Marks:
        """Marks of (n, d) numbers, and of the digests of what else is known of each record."""
        step = max(1, BLOCK // max(1, numbers.shape[1]))
        if len(numbers) <= step:
            return self._block(numbers, digests)
        starts = range(0, len(numbers), step)
        return np.concatenate([self._block(numbers[at : at + step], digests[at : at + step]) for at in starts])

    def _block(self, numbers: Numbers, digests: Words) -> Marks:
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
        message = np.empty((n, self._tables, 4), dtype="<u8")
        # of the number of a cell its last 16 bits: others with the same are far away, in every direction at once
        cells = np.floor(along, out=along).astype(np.int64).astype("<i2")
        message[:, :, :2] = cells.view("<u8").reshape(n, self._tables, 2)
        message[:, :, 2] = np.floor(sizes, out=sizes).astype(np.int64) * self._tables + np.arange(self._tables)
        message[:, :, 3] = digests[:, None]
        words = self._hash.words(message.reshape(n * self._tables, 4).view(np.uint8), 1)
        return words[:, 0].copy().view(np.int64).reshape(n, self._tables)

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
        widths = self._width * (self._wide / self._width) ** (steps / STEPS)
        along = t @ self._first_directions(values.shape[1])
        parts = along.reshape(-1, self._tables, DIRECTIONS)
        parts *= (1.0 / (np.sqrt(apart)[:, None] * widths))[:, :, None]
        return along, np.log(1.0 + np.sqrt(squares) / MIN_SIZE)[:, None] / np.minimum(SIZE * widths, MAX_SIZE)

    def _by_typical(self, values: Floats) -> tuple[Floats, Floats]:
        assert self._typical is not None
        t, sizes = self._typical.placed(values)
        along = t @ self._first_directions(t.shape[1])
        along *= 1.0 / self._typical.width
        return along, np.repeat(sizes[:, None] / min(SIZE * self._typical.width, MAX_SIZE), self._tables, axis=1)

    def _missing(self, places: NDArray[np.bool_]) -> Words:
        """What to change in the digests of records, by the places where a number is missing; 0 where none is."""
        return np.where(places.any(axis=1), self._draws.words(np.packbits(places, axis=1), 1)[:, 0], np.uint64(0))

    def _first_directions(self, count: int) -> Floats:
        """A row for each number, the same however many there are; of variance 1."""
        if len(self._directions) < count:
            uniforms = self._uniforms(b"directions", count * self._tables * DIRECTIONS)
            self._directions = (uniforms.reshape(count, -1) - 0.5) * np.sqrt(12)
        return self._directions[:count]

    def _uniforms(self, purpose: bytes, count: int) -> Floats:
        return self._draws.uniforms(np.frombuffer(purpose, dtype=np.uint8)[None], count).ravel()


def _numbers_and_digests(rows: int, inputs: Iterable[Any]) -> tuple[Numbers, Words]:
    """The numbers of each record, (rows, d), and a digest of its inputs' shapes and its texts."""
    numbers: list[Numbers] = []
    texts: list[NDArray[Any]] = []
    head = b""
    for tensor in inputs:
        array = np.asarray(tensor)
        is_text = array.dtype.kind in "OSU"
        (texts if is_text else numbers).append(array.reshape(rows, math.prod(array.shape[1:])))
        head += f"{'text' if is_text else 'numbers'} {array.shape[1:]}\0".encode()
    together = numbers[0] if len(numbers) == 1 else np.hstack([np.empty((rows, 0)), *numbers])
    if not texts:
        return together, np.frombuffer(digest(head), dtype="<u8").repeat(rows)
    digests = b"".join(digest(head, *map(text_bytes, row)) for row in np.hstack(texts).tolist())
    return together, np.frombuffer(digests, dtype="<u8")


def digest(*parts: bytes) -> bytes:
    return hashlib.sha256(with_lengths(*parts)).digest()[:8]


def text_bytes(value: str | bytes) -> bytes:
    """The normal form of a text; bytes that are none, such as a picture's, are taken as they are."""
    try:
        text = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        return b"\xff" + error.object
    return normal_form(text).encode(errors="surrogatepass")
