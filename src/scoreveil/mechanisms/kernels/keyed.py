"""Keyed answers of one kept class, fused: `Tables.read` with `messages`, and `Tables.answer`. The same bytes.

There is no exponential here, nor a sum in another order, so that a machine without numba answers alike.
"""

from typing import Any

import numba
import numpy as np

from scoreveil.mechanisms.kernels.common import bits_of_float, is_score_vector, options
from scoreveil.mechanisms.tables import EXPONENT

MAGNITUDE = int(EXPONENT)


@numba.njit(**options)
def read(rows: Any, step: float, smallest_told: float, message: Any, top: Any, level: Any) -> int:
    """The top class, its level and the message of each row; the first row that is no score vector, or -1."""
    n, k = rows.shape
    for r in range(n):
        smallest, total, highest, index = 0.0, 0.0, -1.0, 0
        for i in range(k):
            value = np.float64(rows[r, i])
            smallest = min(smallest, value)
            total += value
            if value > highest:
                highest, index = value, i
            message[r, 5 + i] = bits_of_float(max(value, smallest_told)) >> MAGNITUDE
        if not is_score_vector(smallest, total):
            return r
        top[r], level[r] = index, np.int64(np.rint(min(highest / total, 1.0) / step))
        for i in range(4):
            message[r, i] = (index >> (8 * i)) & 255
        message[r, 4] = level[r]
        message[r, 5 + k] = 0
    return -1


@numba.njit(**options)
def answer(words: Any, top: Any, level: Any, table: Any, below: Any, answers: Any, out: Any) -> None:
    """The answer that each row's first word draws."""
    for r in range(len(words)):
        uniform = np.float64(words[r, 0] >> np.uint64(12)) * 2.0**-52
        chances = below[table[top[r]], level[r]]
        chosen = 0
        while chosen < len(chances) - 1 and chances[chosen] <= uniform:
            chosen += 1
        out[r] = answers[top[r], chosen]
