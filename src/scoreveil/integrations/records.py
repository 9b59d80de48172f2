"""Sticky answers by record: the draw is a function of the secret, the scores and the record that was asked.

`Veil(secret=…)` alone keys a draw by the cell and the magnitudes of the scores, which records of few classes may share.
An integration sees the records, so it tells the veil their fingerprints: a record and its near-duplicates always get
the same answer, and the answers of others tell nothing about it.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from scoreveil import record_bytes
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
        return self.veil(rows, self.veil.fingerprints(len(rows), inputs)).reshape(scores.shape)


def record_tags(rows: int, inputs: Iterable[Any]) -> list[bytes]:
    """A tag for each record, SHA-256 of what names it: for names, where one more is another record."""
    states = [hashlib.sha256() for _ in range(rows)]
    for given in inputs:
        parts = record_bytes.of_rows(given)
        for state, part in zip(states, parts, strict=True):
            state.update(record_bytes.with_length(part))
    return [state.digest() for state in states]
