"""A record's fingerprint: the one mark by which keyed draws without memory know it, whatever holds its values.

A ledger looks for any of eight marks (`marks.py`). Nothing is looked up here: the draw is a function of a single mark,
whose cells are twice as wide instead. A number is the same in every dtype and way of writing it, stored in a sparse
matrix or left out. How often near-duplicates part: experiments/keying, docs/decisions/sticky-answers.md.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.same_record.marks import BLOCK, Marks, Neighbourhoods, digest, text_bytes

WIDENING = 2.0  # of the cells
MISSING = ("None", "<NA>", "NaT")


class Fingerprints:
    """Fingerprints under one secret; those of another secret or context are independent."""

    def __init__(self, secret: bytes, context: bytes) -> None:
        self._near = Neighbourhoods(secret, b"fingerprints\0" + context, tables=1, widening=WIDENING)

    def __call__(self, rows: int, inputs: Iterable[Any]) -> list[bytes]:
        """The fingerprint of each of so many records, which lie along the first axis of each input.

        An input with another number of rows, as for one record or a setting for all, belongs to each of them whole.
        """
        parts = [_readable(part, rows) for container in inputs for part in _columns(container)]
        step = max(1, BLOCK // max(1, sum(part[:1].size for part in parts)))
        marks = [np.empty((0, 1), np.int64)]
        for start in range(0, rows, step):
            dense = [_dense(part[start : start + step]) for part in parts]
            marks.append(self._marks(min(step, rows - start), dense))
        return [mark.tobytes() for mark in np.concatenate(marks)]

    def _marks(self, rows: int, parts: list[NDArray[Any]]) -> Marks:
        if all(part.dtype != object for part in parts):
            return self._of(np.hstack([np.empty((rows, 0)), *(part.reshape(rows, -1) for part in parts)]), [b""] * rows)
        records = [_numbers_and_texts(part[row] for part in parts) for row in range(rows)]
        lengths = np.array([len(numbers) for numbers, _ in records])
        marks = np.empty((rows, 1), np.int64)
        for length in np.unique(lengths):
            where = np.flatnonzero(lengths == length)
            numbers, texts = zip(*(records[row] for row in where), strict=True)
            marks[where] = self._of(np.array(numbers, dtype=np.float64), list(texts))
        return marks

    def _of(self, numbers: Floats, texts: list[bytes]) -> Marks:
        size = str(numbers.shape[1]).encode()
        without_text = digest(size, b"")
        digests = b"".join(digest(size, text) if text else without_text for text in texts)
        return self._near.of(numbers, np.frombuffer(digests, dtype="<u8"))


def _columns(container: Any) -> list[Any]:
    """The inputs that an object of them holds."""
    if isinstance(container, dict) and not hasattr(container, "tocsr"):  # one kind of scipy's sparse matrices is a dict
        return [container[name] for name in sorted(container, key=str)]
    return [container]


def _readable(part: Any, rows: int) -> Any:
    """An array or a sparse matrix with so many rows."""
    if hasattr(part, "tocsr"):  # scipy's
        array = part.tocsr()
    else:
        values = part.to_numpy() if hasattr(part, "to_numpy") else part
        try:
            array = np.asarray(values, dtype=np.float64)  # reads numbers that are written as text too
        except (TypeError, ValueError, OverflowError):
            array = np.fromiter(values, dtype=object, count=len(values))
    if array.ndim == 0 or array.shape[0] != rows:
        whole = _dense(array)
        array = np.broadcast_to(whole.reshape(1, -1), (rows, whole.size))
    return array


def _dense(part: Any) -> NDArray[Any]:
    return np.asarray(part.toarray() if hasattr(part, "toarray") else part)


def _numbers_and_texts(row: Iterable[Any]) -> tuple[list[float], bytes]:
    """A number for each value of a record, 0 for a text; and the texts with their places."""
    numbers, texts = [], []
    for place, leaf in enumerate(leaf for part in row for leaf in _leaves(part)):
        try:
            numbers.append(float(leaf))
        except (TypeError, ValueError, OverflowError):
            is_missing = str(leaf) in MISSING
            numbers.append(np.nan if is_missing else 0.0)
            if not is_missing:
                text = text_bytes(leaf) if isinstance(leaf, (str, bytes)) else repr(leaf).encode()
                texts += [str(place).encode(), text]
    return numbers, digest(*texts) if texts else b""


def _leaves(value: Any) -> Iterator[Any]:
    """The plain values in nested lists and objects; the keys of an object are values too, in their order."""
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from (str(key), *_leaves(value[key]))
    elif isinstance(value, (list, tuple, np.ndarray)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
