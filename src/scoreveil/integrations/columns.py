"""Veiled columns of a batch: what Ray and Spark do with each part of a table."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from scoreveil.keyed import KeyedVeil
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.same_record.exact import record_tags
from scoreveil.veil import Veil, VeilOptions

Batch = dict[str, NDArray[Any]]


class ColumnVeil:
    """Veils some columns of a batch, and leaves the others as they are.

    Args:
        epsilon: How much shows through; or a mechanism, or a veil, whole.
        columns: One column of vectors, or two or more columns, one for each class; with a shape one of numbers
            (`Binary`), one for each label (`MultiLabel`), or the largest (`TopK`).
        records: With a secret, the columns that tell one record from another. The same record then gets the same
            answer wherever it is processed, and others independent ones; without, records of the same cell and
            magnitudes share one.
        options: As in `Veil`.
    """

    def __init__(
        self,
        epsilon: float | Mechanism | Veil,
        columns: str | Sequence[str],
        records: str | Sequence[str] = (),
        **options: Unpack[VeilOptions],
    ) -> None:
        self._columns = [columns] if isinstance(columns, str) else list(columns)
        self._records = [records] if isinstance(records, str) else list(records)
        if set(self._columns) & set(self._records):
            both = ", ".join(sorted(set(self._columns) & set(self._records)))
            raise ValueError(f"Records are told apart by other columns than their scores; {both} are named as both.")
        self._veil = Veil.from_given(epsilon, **options).for_scores()
        self._keyed = KeyedVeil(self._veil) if self._veil.is_keyed and self._records else None

    def __call__(self, batch: Batch) -> Batch:
        missing = [name for name in (*self._columns, *self._records) if name not in batch]
        if missing:
            raise ValueError(
                f"The batch has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, batch))}."
            )
        scores = _vectors([batch[name] for name in self._columns])
        if self._keyed is None:
            veiled = self._veil(scores)
        else:
            veiled = self._keyed(scores, record_tags(len(scores), [batch[name] for name in self._records]))
        if len(self._columns) == 1:
            return {**batch, self._columns[0]: veiled}
        return {**batch, **{name: veiled[:, i] for i, name in enumerate(self._columns)}}


def _vectors(columns: list[NDArray[Any]]) -> NDArray[Any]:
    """(n, k) from one column of vectors, or from k columns of numbers."""
    if len(columns) > 1:
        return np.stack(columns, axis=1)
    (column,) = columns
    if column.dtype != object:
        return column
    lengths = {len(row) for row in column}
    if len(lengths) > 1:
        raise ValueError(f"Expected vectors of one length, got {min(lengths)} to {max(lengths)}.")
    return np.stack([np.asarray(row) for row in column]) if lengths else np.empty((0, 2))
