"""Keyed answers of a plan that keeps one class, from tables: microseconds for a row, and the same bytes.

Keyed draws see scores on the grid alone, so that Phase 1 has no more than G distributions for each class, and Phase 2
no more than k·G outcomes: both are computed once, by the mechanism itself.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms import isotonic
from scoreveil.mechanisms.isotonic import Plan
from scoreveil.mechanisms.reference import Floats, Integers
from scoreveil.mechanisms.scores import totals
from scoreveil.randomness import KeyedDraws

LARGEST = 32 * 2**20  # bytes
SMALLEST = 2.0**-39  # magnitude told apart by keyed draws
EXPONENT = np.uint64(52 + 2)  # where a float64 has its exponent, without the last two bits: powers of 16


class Tables:
    """Both phases for one kept class and snapped scores."""

    def __init__(self, plan: Plan, dtype: np.dtype[Any]) -> None:
        levels, k = plan.settings.levels, plan.classes
        tops, label = np.arange(levels) * plan.settings.step, np.arange(k)
        _, one_of_each = np.unique(plan.table, return_index=True)
        weights = isotonic.rank_weights(
            np.tile(tops, len(one_of_each))[:, None], np.repeat(one_of_each, levels), plan, 0
        )
        cumulative = np.cumulative_sum(weights, axis=-1)
        self._below = (cumulative / cumulative[:, -1:]).reshape(-1, levels, levels)
        self._table = np.searchsorted(plan.table[one_of_each], plan.table)
        others = np.array([np.delete(label, top) for top in label])
        order = np.concatenate([others, label[:, None]], axis=1)
        every = np.tile(np.arange(levels), k)[:, None]
        self._answers = isotonic.release(every, np.repeat(order, levels, axis=0), plan, dtype).reshape(k, levels, k)
        self._step = plan.settings.step

    @staticmethod
    def fit(plan: Plan, dtype: np.dtype[Any]) -> bool:
        """Whether there are tables for these answers: one class kept, and not too many in all."""
        return plan.kept == 1 and plan.snapped and plan.classes**2 * plan.settings.levels * dtype.itemsize <= LARGEST

    def read(self, rows: NDArray[Any]) -> tuple[Integers, Integers]:
        """The top class and its level on the grid, as `isotonic.top_scores` reads them."""
        wide = rows.astype(np.float64, copy=False)
        highest = np.minimum(wide.max(axis=1) / totals(wide)[:, 0], 1.0)
        return wide.argmax(axis=1), np.rint(highest / self._step).astype(np.int64)

    def answer(self, top: Integers, level: Integers, uniforms: Floats) -> NDArray[Any]:
        """`isotonic.perturb` of scores that were read so."""
        below = self._below[self._table[top], level] <= uniforms
        chosen = np.minimum(below.sum(axis=1), below.shape[1] - 1)
        return np.asarray(self._answers[top, chosen])

    def fused(self, rows: NDArray[Any], keyed: KeyedDraws, kernels: Any) -> NDArray[Any] | None:
        """Read, drawn and answered by kernels; None where a row is no score vector."""
        n, k = rows.shape
        message, places = np.empty((n, 4 + 1 + k + 1), dtype=np.uint8), np.empty((2, n), dtype=np.int64)
        if kernels.read(rows, self._step, SMALLEST, message, *places) >= 0:
            return None
        out = np.empty_like(rows)
        kernels.answer(keyed.words(message, 1), *places, self._table, self._below, self._answers, out)
        return out


def messages(
    rows: NDArray[Any], kept: NDArray[Any], cell: NDArray[Any], tags: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """What keyed draws are a function of: (n, bytes).

    The cell alone would be shared by too many records: who knows some of them could learn what its answer means. The
    order of magnitude of every score, in powers of 16 from 1/8 down to 2^-39, tells records apart and near-duplicates
    not.
    """
    magnitude = np.maximum(rows, SMALLEST, dtype=np.float64).view(np.uint64) >> EXPONENT
    # levels are below 256; the published mechanism's scores stay as they are
    cell = cell.astype("<f8" if cell.dtype.kind == "f" else np.uint8)
    parts = [kept.astype("<u4").view(np.uint8), cell.view(np.uint8), magnitude.astype(np.uint8)]
    # the last byte says what it is, so that a tag cannot be taken for scores
    end = np.full((len(rows), 1), tags is not None, dtype=np.uint8)
    return np.concatenate([*parts, *([] if tags is None else [tags]), end], axis=1)
