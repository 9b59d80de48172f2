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

LARGEST = 32 * 2**20  # bytes


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
        top = wide.argmax(axis=1)
        highest = np.minimum(wide[np.arange(len(wide)), top] / wide.sum(axis=1), 1.0)
        return top, np.rint(highest / self._step).astype(np.int64)

    def answer(self, top: Integers, level: Integers, uniforms: Floats) -> NDArray[Any]:
        """`isotonic.perturb` of scores that were read so."""
        below = self._below[self._table[top], level] <= uniforms
        chosen = np.minimum(below.sum(axis=1), below.shape[1] - 1)
        return np.asarray(self._answers[top, chosen])
