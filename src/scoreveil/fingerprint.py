"""A keyed answer's view of its record: a fingerprint that near-duplicates share, and other records do not.

Numbers: the values x of a record, with R = Σx² / Σ|x| for their size and s = min(R, √R), are compressed to
t = x / √(s (s + |x|)), so that neither the unit nor one large value decides. A few random directions g cut them into
cells of equal width, ⌊g·t / (√n w) + offset⌋, where n = (Σ|t|)² / Σt² counts the values that matter. Directions and
offsets are functions of the secret. A small change of x rarely crosses a border; another record lies elsewhere.

Texts are taken as they are. A number is the same in every dtype and way of writing it; what is missing counts as 0.
How often near-duplicates part and records meet: experiments/keying, docs/decisions/sticky-answers.md.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.randomness import KeyedDraws
from scoreveil.record_bytes import with_length

DIRECTIONS = 8
WIDTH = 0.2  # of a cell
SMALLEST, LARGEST = 1e-6, 1e30  # sizes told apart
BLOCK = 1 << 15  # numbers processed at a time
MISSING = ("None", "<NA>", "NaT")


class Fingerprints:
    """Fingerprints under one secret; those of another secret or context are independent."""

    def __init__(self, secret: bytes, context: bytes) -> None:
        self._draws = KeyedDraws(secret, b"fingerprints\0" + context)
        self._offsets = self._uniforms(b"offsets", DIRECTIONS)
        self._directions = np.empty((0, DIRECTIONS))

    def __call__(self, rows: int, inputs: Iterable[Any]) -> list[bytes]:
        """The fingerprint of each of so many records, which lie along the first axis of each input.

        An input with another number of rows, as for one record or a setting for all, belongs to each of them whole.
        """
        made: list[bytes] = []
        for numbers, texts in read_records(rows, inputs):
            made += [cell.tobytes() + text for cell, text in zip(self._cells(numbers), texts, strict=True)]
        return made

    def _cells(self, numbers: Floats) -> NDArray[np.int64]:
        """(n, DIRECTIONS) cells of (n, d) numbers."""
        sizes = np.minimum(np.abs(numbers), LARGEST)
        sizes[np.isnan(sizes)] = 0.0
        squares = np.einsum("ij,ij->i", sizes, sizes)
        size = squares / np.maximum(sizes.sum(axis=1), SMALLEST)
        s = np.maximum(np.minimum(size, np.sqrt(size)), SMALLEST)[:, None]
        t = sizes + s
        t *= s
        np.sqrt(t, out=t)
        np.divide(sizes, t, out=t)
        matter = t.sum(axis=1) / np.maximum(np.sqrt(np.einsum("ij,ij->i", t, t)), SMALLEST)  # √n
        np.copysign(t, numbers, out=t)
        along = t @ self._first_directions(t.shape[1]) / np.maximum(matter, 1.0)[:, None]
        cells: NDArray[np.int64] = np.floor(along / WIDTH + self._offsets).astype("<i8")
        return cells

    def _first_directions(self, count: int) -> Floats:
        """A row for each number, the same however many there are; of variance 1."""
        directions = self._directions
        if len(directions) < count:
            uniforms = self._uniforms(b"directions", count * DIRECTIONS)
            self._directions = directions = (uniforms.reshape(count, DIRECTIONS) - 0.5) * np.sqrt(12)
        return directions[:count]

    def _uniforms(self, purpose: bytes, count: int) -> Floats:
        return self._draws.uniforms(np.frombuffer(purpose, dtype=np.uint8)[None], count).ravel()


def read_records(rows: int, inputs: Iterable[Any]) -> Iterator[tuple[Floats, list[bytes]]]:
    """The numbers (n, d) of some records at a time, and the texts of each as bytes."""
    parts = [_readable(given, rows) for each in inputs for given in _columns(each)]
    step = max(1, BLOCK // max(1, sum(part[:1].size for part in parts)))
    for start in range(0, rows, step):
        read = [_read(part[start : start + step]) for part in parts]
        if len(read) == 1:
            yield read[0]
            continue
        numbers = np.hstack([np.empty((min(step, rows - start), 0)), *(numbers for numbers, _ in read)])
        texts = zip(*(texts for _, texts in read), strict=True) if read else [()] * len(numbers)
        yield numbers, [b"".join(text) for text in texts]


def _columns(given: Any) -> list[Any]:
    """The inputs that an object of them holds."""
    if isinstance(given, dict) and not hasattr(given, "tocsr"):  # one kind of scipy's sparse matrices is a dict
        return [given[name] for name in sorted(given, key=str)]
    return [given]


def _readable(given: Any, rows: int) -> Any:
    """An array or a sparse matrix with so many rows."""
    if hasattr(given, "tocsr"):  # scipy's
        given = given.tocsr()
    else:
        values = given.to_numpy() if hasattr(given, "to_numpy") else given
        try:
            given = np.asarray(values, dtype=np.float64)  # reads numbers that are written as text too
        except (TypeError, ValueError, OverflowError):
            given = np.empty(len(values), dtype=object)
            for i, row in enumerate(values):
                given[i] = row
    if given.ndim == 0 or given.shape[0] != rows:
        whole = given.toarray() if hasattr(given, "toarray") else given
        given = np.broadcast_to(whole.reshape(1, -1), (rows, whole.size))
    return given


def _read(part: Any) -> tuple[Floats, list[bytes]]:
    """The numbers of each row, (n, d), and its texts as bytes."""
    dense = part.toarray() if hasattr(part, "toarray") else part
    if dense.dtype != object:
        return np.asarray(dense, dtype=np.float64).reshape(len(dense), -1), [b""] * len(dense)
    read = [_row(row) for row in dense]
    numbers = np.zeros((len(read), max((len(found) for found, _ in read), default=0)))
    for into, (found, _) in zip(numbers, read, strict=True):
        into[: len(found)] = found
    return numbers, [texts for _, texts in read]


def _row(row: Any) -> tuple[list[float], bytes]:
    """A number for each value in the row, 0 for a text; and the texts with their places."""
    numbers, texts = [], b""
    for place, leaf in enumerate(_leaves(row)):
        try:
            numbers.append(float(leaf))
        except (TypeError, ValueError, OverflowError):
            numbers.append(0.0)
            if str(leaf) not in MISSING:
                texts += with_length(f"{place} {leaf!r}".encode())
    return numbers, texts


def _leaves(value: Any) -> Iterator[Any]:
    """The plain values in nested lists and objects; the keys of an object are values too, in their order."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from (str(key), *_leaves(value[key]))
    elif isinstance(value, (list, tuple, np.ndarray)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value
