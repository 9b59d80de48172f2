"""Keyed answers of the isotonic mechanism with one kept class, from tables.

There is no exponential in these loops, nor a sum in another order, so that a machine without numba answers with the
same bytes.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.mechanisms import isotonic, messages
from scoreveil.mechanisms.isotonic import Isotonic, IsotonicPlan
from scoreveil.mechanisms.kernels.common import bits_of_float, options, scan
from scoreveil.mechanisms.loading import KeyedKernel
from scoreveil.randomness import KeyedDraws

MOST_TABLE_BYTES = 32 * 2**20
FEW = 16  # rows: to let other threads in meanwhile would take longer than to answer them
HELD = {**options, "nogil": False}


@numba.njit(**options)
def _read(rows: Any, step: float, smallest: float, exponent: int, magnitude: Any, top: Any, level: Any) -> int:
    """The top class, its level and the magnitudes of each row; returns the first that is not a score vector, or -1."""
    for r in range(len(rows)):
        index, highest, total = scan(rows[r])
        if index < 0:
            return r
        for i in range(rows.shape[1]):
            magnitude[r, i] = bits_of_float(max(np.float64(rows[r, i]), smallest)) >> exponent
        top[r], level[r] = index, np.int64(np.rint(min(highest / total, 1.0) / step))
    return -1


@numba.njit(**options)
def _answer(words: Any, top: Any, level: Any, table: Any, below: Any, answers: Any, out: Any) -> None:
    """The answer that each row's first word draws."""
    for r in range(len(words)):
        uniform = np.float64(words[r, 0] >> np.uint64(12)) * 2.0**-52
        chances = below[table[top[r]], level[r]]
        chosen = 0
        while chosen < len(chances) - 1 and chances[chosen] <= uniform:
            chosen += 1
        out[r] = answers[top[r], chosen]


@numba.njit(**HELD)
def _read_few(rows: Any, step: float, smallest: float, exponent: int, magnitude: Any, top: Any, level: Any) -> int:
    return _read(rows, step, smallest, exponent, magnitude, top, level)


@numba.njit(**HELD)
def _answer_few(words: Any, top: Any, level: Any, table: Any, below: Any, answers: Any, out: Any) -> None:
    _answer(words, top, level, table, below, answers, out)


def chances(plan: IsotonicPlan) -> tuple[Floats, NDArray[np.int64]]:
    """P(level <= g | table, level of the top score) (tables, G, G), as `isotonic.choose` has it; and class to table."""
    levels = plan.levels
    _, one_of_each = np.unique(plan.table_of_class, return_index=True)
    tops = np.tile(np.arange(levels) * plan.step, len(one_of_each))[:, None]
    weights = isotonic.rank_weights(tops, np.repeat(one_of_each, levels), plan, 0)
    cumulative = np.cumulative_sum(weights, axis=-1)
    below = (cumulative / cumulative[:, -1:]).reshape(-1, levels, levels)
    return below, np.searchsorted(plan.table_of_class[one_of_each], plan.table_of_class)


def answers(plan: IsotonicPlan, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Every answer that there is, (k, G, k): by its label and the level that was drawn."""
    k, label = plan.classes, np.arange(plan.classes)
    order = np.concatenate([np.array([np.delete(label, top) for top in label]), label[:, None]], axis=1)
    every = np.tile(np.arange(plan.levels), k)[:, None]
    made = isotonic.release(every, np.repeat(order, plan.levels, axis=0), plan, dtype)
    return np.asarray(made.reshape(k, plan.levels, k))


def bind_keyed(mechanism: Isotonic, classes: int) -> KeyedKernel | None:
    """Keyed answers from tables, where one class is kept and they are not too large.

    Keyed draws see scores on the grid alone, so that Phase 1 has no more than G distributions for each class, and
    Phase 2 no more than k·G outcomes: both are computed once, by the mechanism itself.
    """
    plan = mechanism.plan(classes)
    if plan.kept != 1 or classes**2 * plan.levels * 8 > MOST_TABLE_BYTES:
        return None
    below, table = chances(plan)
    released: dict[str, NDArray[Any]] = {}

    def run(rows: NDArray[Any], keyed: KeyedDraws, tags: NDArray[Any] | None) -> NDArray[Any] | None:
        dtype = rows.dtype
        if dtype == np.float16:  # which numba does not have
            return None
        if dtype.str not in released:
            released[dtype.str] = answers(plan, dtype)
        if not rows.flags.writeable:
            rows = rows.copy()  # numba would compile anew for read-only memory
        told, (top, level) = messages.empty(len(rows), classes, 1, tags=tags), np.empty((2, len(rows)), dtype=np.int64)
        # with tags they are not told; strided all the same, since numba would compile anew for another layout
        magnitude = told["magnitude"] if tags is None else np.empty((len(rows), classes + 1), dtype=np.uint8)[:, 1:]
        read, answer = (_read_few, _answer_few) if len(rows) <= FEW else (_read, _answer)
        if read(rows, plan.step, messages.SMALLEST, int(messages.EXPONENT), magnitude, top, level) >= 0:
            return None
        told["kept"][:, 0], told["cell"][:, 0] = top, level
        words, out = keyed.words(messages.as_bytes(told), 1), np.empty(rows.shape, dtype=dtype)
        answer(words, top, level, table, below, released[dtype.str], out)
        return out

    return run
