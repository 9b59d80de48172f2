"""Veiled answers for records: sticky, or counted against a budget.

Sticky: an answer is a function of the secret and the grid cell of the scores, so with one kept class there are no
more than k·G answers. They are drawn once, at start, into a table; a lookup then costs microseconds, and takes
the same time whatever was asked before.

Budgeted: a release is charged first. Its draw is keyed by the record and the number of the release, so a retry or a
replay is drawn again, the same, and nothing is stored.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms.isotonic import IsotonicSettings
from scoreveil.mechanisms.scores import SUM_TOLERANCE, check_layout
from scoreveil.veil import Veil

Rows = NDArray[Any]
Table = tuple[NDArray[Any], int]

LARGEST_TABLE = 32 * 2**20  # bytes


class Sticky:
    """`veil(rows)`, from a table where that is small: the same bytes."""

    def __init__(self, veil: Veil) -> None:
        self.veil = veil
        settings = veil.settings
        self._levels = settings.levels if isinstance(settings, IsotonicSettings) and settings.keep == 1 else 0
        self._tables: dict[tuple[int, str], Table] = {}

    def __call__(self, rows: Rows) -> Rows:
        check_matrix(rows)
        if not self._levels or rows.shape[1] ** 2 * self._levels * rows.itemsize > LARGEST_TABLE:
            return self.veil(rows)
        wide = rows.astype(np.float64, copy=False)
        total = np.add.reduce(wide, axis=1)
        off = total - 1
        # written so that NaN fails the comparisons; the veil says what is wrong
        if not (off.min() >= -SUM_TOLERANCE and off.max() <= SUM_TOLERANCE and wide.min() >= 0):
            return self.veil(rows)
        top, level = self._cells(wide, total)
        table, lowest = self._table(rows.shape[1], rows.dtype)
        return table[top, level] if level.min() >= lowest else self.veil(rows)

    def _cells(
        self, wide: NDArray[np.float64], total: NDArray[np.float64]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The top class and its level on the grid, as the mechanism reads them."""
        top = wide.argmax(axis=1)
        step = 1 / (self._levels - 1)
        highest = np.minimum(np.maximum.reduce(wide, axis=1) / total, 1.0)
        return top, np.rint(highest / step).astype(np.intp)

    def _table(self, classes: int, dtype: np.dtype[Any]) -> Table:
        key = classes, dtype.str
        if key not in self._tables:
            self._tables[key] = self._draw(classes, dtype)
        return self._tables[key]

    def _draw(self, classes: int, dtype: np.dtype[Any]) -> Table:
        """(k, G, k): the answer for each top class and level, from one score vector in each cell; and the lowest level.

        A top score is 1/k at least. Where that lies on the border of two cells, the lower one has no score vector
        that rounding leaves in it, and is not drawn.
        """
        tops = np.clip(np.arange(self._levels) / (self._levels - 1), 1 / classes * (1 + 1e-6), 1.0)
        cells = np.empty((classes, self._levels, classes))
        cells[...] = ((1 - tops) / (classes - 1))[:, None]
        label = np.arange(classes)
        cells[label, :, label] = tops
        rows = cells.reshape(-1, classes).astype(dtype)
        wide = rows.astype(np.float64)
        top, level = self._cells(wide, wide.sum(axis=1))
        right = (top == np.repeat(label, self._levels)) & (level == np.tile(np.arange(self._levels), classes))
        wrong = np.nonzero(~right.reshape(classes, self._levels).all(axis=0))[0]
        return self.veil(rows).reshape(cells.shape), int(wrong.max(initial=-1)) + 1


def check_matrix(rows: Rows) -> None:
    """Raise ValueError unless these are rows of scores: one vector might be many rows of something else."""
    check_layout(rows)
    if rows.ndim != 2:
        raise ValueError("Expected rows of scores, got one dimension.")


def release_tags(keys: Sequence[bytes], numbers: Sequence[int]) -> list[bytes]:
    """What names a release: the record and how many came before it."""
    return [key + number.to_bytes(8, "little") for key, number in zip(keys, numbers, strict=True)]
