"""Sticky answers by record: the draw is a function of the secret, the scores and the record that was asked.

`Veil(secret=…)` alone keys a draw by the cell and the magnitudes of the scores, which records of few classes may share.
An integration sees the records, so it names them: the same record always gets the same answer, and the answers of
others tell nothing about it.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.veil import Veil, VeilOptions

Rows = NDArray[Any]


class RecordVeil:
    """A veil that is told the records beside their scores.

    Args:
        epsilon: How much shows through; or a mechanism, or a veil, whole.
        options: As in `Veil`.
    """

    def __init__(self, epsilon: float | Mechanism | Veil, **options: Unpack[VeilOptions]) -> None:
        self.veil = Veil.from_given(epsilon, **options)

    @property
    def guarantee(self) -> Guarantee:
        return self.veil.guarantee

    def __call__(self, scores: Rows, inputs: Iterable[Any]) -> Rows:
        """Veiled scores (n, k) of n records, which lie along the first axis of each input; or (k,) of one."""
        if not self.veil.is_keyed:
            return self.veil(scores)
        rows = np.atleast_2d(scores)
        return self.veil(rows, record_tags(len(rows), inputs)).reshape(scores.shape)


def record_tags(rows: int, inputs: Iterable[Any]) -> list[bytes]:
    """A tag for each record, SHA-256 of its part of every input."""
    states = [hashlib.sha256() for _ in range(rows)]
    for given in inputs:
        parts = _row_bytes(given)
        if len(parts) != rows:  # no rows of its own, as with one record or a setting for all
            parts = [b"".join(parts)] * rows
        for state, part in zip(states, parts, strict=True):
            state.update(len(part).to_bytes(8, "little") + part)
    return [state.digest() for state in states]


def _row_bytes(given: Any) -> list[bytes]:
    """Bytes of each row, the same for the same numbers whatever their type, order or container."""
    if hasattr(given, "tocsr"):  # scipy's sparse matrices, zeros left out
        given = given.tocsr().sorted_indices()
        slices = [slice(*ends) for ends in zip(given.indptr, given.indptr[1:], strict=False)]
        return [given.indices[s].astype("<i8").tobytes() + given.data[s].astype("<f8").tobytes() for s in slices]
    values = given.to_numpy() if hasattr(given, "to_numpy") else np.asarray(given)
    values = np.atleast_1d(values)
    if values.dtype.kind not in "biuf":
        return [repr(row.tolist() if isinstance(row, np.ndarray) else row).encode() for row in values]
    numbers = np.ascontiguousarray(values, dtype="<f8") + 0.0  # -0.0 is 0.0
    return [row.tobytes() for row in numbers]
