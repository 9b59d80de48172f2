"""The table mechanism as fused loops: read a row, find its bin, draw an answer, write it.

The same bits as `Channel.perturb`: there is no exponential and no sum in another order here. Where all answers to one
kept class fit into memory that is near, they are looked up; else the others' values are written from the profile.
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms import messages
from scoreveil.mechanisms.channel import Channel, ChannelPlan, release
from scoreveil.mechanisms.kernels.common import Floats, bits_of_float, is_score_vector, options
from scoreveil.mechanisms.loading import Kernel, KeyedKernel
from scoreveil.mechanisms.promises import WHOLE
from scoreveil.randomness import KeyedDraws

MOST_ANSWER_BYTES = 1 << 20  # of all answers together, so that they stay in a cache
MOST_KEPT = 32  # classes found by insertion; numpy sorts where more are kept


@numba.njit(**options)
def _read(row: Any, edges: Any, tops: Any, kept: Any) -> int:
    """The kept classes of a row, top first, and the bin of its top score: how many edges are <= it; or -1."""
    smallest, total, j, found = 0.0, 0.0, len(kept), 0
    if j == 1:
        top, index = -1.0, 0
        for i in range(len(row)):
            value = np.float64(row[i])
            smallest = min(smallest, value)
            total += value
            if value > top:
                top, index = value, i
        tops[0], kept[0] = top, index
    else:
        for i in range(len(row)):
            value = np.float64(row[i])
            smallest = min(smallest, value)
            total += value
            if found == j and value <= tops[j - 1]:
                continue
            x = found if found < j else j - 1
            while x > 0 and tops[x - 1] < value:
                tops[x], kept[x] = tops[x - 1], kept[x - 1]
                x -= 1
            tops[x], kept[x] = value, i
            found = min(found + 1, j)
    if not is_score_vector(smallest, total):
        return -1
    value = tops[0] / total
    low, high = 0, len(edges)
    while low < high:
        middle = (low + high) // 2
        if edges[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(**options)
def _write(
    kept: Any, answer: int, values: Any, rest: Any, cap: Any, table: Any, profile: Any, slope: Any, base: Any,
    least: float, out: Any,
) -> None:  # fmt: skip
    """An answer, as `channel.release` has it."""
    k, j = len(table), len(kept)
    shares, most = profile[table[kept[0]]], cap[answer]
    if j == 1:
        a, b = slope[kept[0], answer], base[kept[0], answer]
    elif j < k:
        remaining = 0.0
        for i in range(j):
            remaining += shares[kept[i]]
        remaining = 1 - remaining
        largest = 0.0
        for i in range(k):
            if shares[i] > largest:
                is_kept = False
                for x in range(j):
                    is_kept |= kept[x] == i
                if not is_kept:
                    largest = shares[i]
        equal, peak, drawn = rest[answer] / (k - j), rest[answer] * largest / remaining, 1.0
        if peak > most:
            drawn = (most - equal) / (peak - equal)
        a, b = rest[answer] * drawn / remaining, equal * (1 - drawn)
    else:
        a, b = 0.0, 0.0
    for i in range(k):
        out[i] = max(min(a * shares[i] + b, most), least)
    for i in range(j):
        out[kept[i]] = max(values[answer, i], least)


@numba.njit(**options)
def _run(
    rows: Any, uniforms: Any, out: Any, edges: Any, cumulative: Any, values: Any, rest: Any, cap: Any, table: Any,
    profile: Any, slope: Any, base: Any, least: float, answers: Any, whole: float,
) -> int:  # fmt: skip
    """Fresh answers; returns the first row that is not a score vector, or -1."""
    j = values.shape[1]
    tops, kept, last = np.empty(j), np.empty(j, np.int64), cumulative.shape[1] - 1
    for r in range(len(rows)):
        b = _read(rows[r], edges, tops, kept)
        if b < 0:
            return r
        drawn, answer = np.int64(uniforms[r, 0] * whole), 0
        while answer < last and cumulative[b, answer] <= drawn:
            answer += 1
        if len(answers):
            out[r] = answers[kept[0], answer]
        else:
            _write(kept, answer, values, rest, cap, table, profile, slope, base, least, out[r])
    return -1


@numba.njit(**options)
def _read_keyed(rows: Any, edges: Any, smallest: float, exponent: int, magnitude: Any, kept: Any, bins: Any) -> int:
    """What keyed answers depend on; returns the first row that is not a score vector, or -1."""
    tops = np.empty(kept.shape[1])
    for r in range(len(rows)):
        bins[r] = _read(rows[r], edges, tops, kept[r])
        if bins[r] < 0:
            return r
        for i in range(rows.shape[1]):
            magnitude[r, i] = bits_of_float(max(np.float64(rows[r, i]), smallest)) >> exponent
    return -1


@numba.njit(**options)
def _answer_keyed(
    words: Any, kept: Any, bins: Any, out: Any, cumulative: Any, values: Any, rest: Any, cap: Any, table: Any,
    profile: Any, slope: Any, base: Any, least: float, answers: Any,
) -> None:  # fmt: skip
    """The answer that the first 32 bits of each row's first word draw."""
    last = cumulative.shape[1] - 1
    for r in range(len(words)):
        drawn, answer = np.int64(words[r, 0] >> np.uint64(32)), 0
        while answer < last and cumulative[bins[r], answer] <= drawn:
            answer += 1
        if len(answers):
            out[r] = answers[kept[r, 0], answer]
        else:
            _write(kept[r], answer, values, rest, cap, table, profile, slope, base, least, out[r])


class _Tables:
    """What the loops take, made once for each dtype; float16 is computed in float32, and then rounded."""

    def __init__(self, channel: Channel, classes: int) -> None:
        self.channel, self.classes = channel, classes
        self.edges = np.array(channel.edges)  # writable: numba would compile anew for read-only memory
        self._made: dict[str, tuple[Any, ...]] = {}
        self.arguments(np.dtype(np.float64))

    def arguments(self, dtype: np.dtype[Any]) -> tuple[Any, ...]:
        if dtype.str not in self._made:
            info = np.finfo(dtype)
            plan = self.channel.plan(self.classes, float(info.eps), float(info.smallest_normal))
            arrays = (plan.cumulative, plan.tops, plan.rest, plan.cap, plan.table_of_class, plan.profile)
            made = (*map(np.array, (*arrays, plan.slope, plan.base)), plan.least, _answers(plan, wide(dtype)))
            self._made[dtype.str] = made
        return self._made[dtype.str]


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that the loops compute it in."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def loop_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows as the loops take them: of float32 or float64, in writable memory."""
    if rows.dtype == np.float16:
        return rows.astype(np.float32)
    return rows if rows.flags.writeable else rows.copy()


def _answers(plan: ChannelPlan, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Every answer there is, (k, answers, k), where one class is kept and they are few; else none."""
    k, count = plan.classes, len(plan.tops)
    if plan.keep > 1 or k * k * count * dtype.itemsize > MOST_ANSWER_BYTES:
        return np.empty((0, 0, 0), dtype=dtype)
    label = np.repeat(np.arange(k), count)[:, None]
    return np.array(release(label, np.tile(np.arange(count), k), plan, dtype).reshape(k, count, k))


def bind(mechanism: Channel, classes: int) -> Kernel | None:
    """Fresh answers; None where so many classes are kept that numpy's sort is faster."""
    if mechanism.keep > MOST_KEPT:
        return None
    tables = _Tables(mechanism, classes)

    def kernel(rows: NDArray[Any], uniforms: Floats, out: NDArray[Any]) -> int:
        target = out if out.dtype != np.float16 else np.empty(out.shape, dtype=np.float32)
        *given, answers = tables.arguments(out.dtype)
        bad = int(_run(loop_rows(rows), uniforms, target, tables.edges, *given, answers, float(WHOLE)))
        if target is not out and bad < 0:
            out[...] = target
        return bad

    return kernel


def bind_keyed(mechanism: Channel, classes: int) -> KeyedKernel | None:
    """Keyed answers, the same bytes as without it."""
    if mechanism.keep > MOST_KEPT:
        return None
    tables = _Tables(mechanism, classes)

    def run(rows: NDArray[Any], keyed: KeyedDraws, tags: NDArray[Any] | None) -> NDArray[Any] | None:
        dtype = rows.dtype
        told = messages.empty(len(rows), classes, mechanism.keep, tags=tags)
        kept, bins = np.empty((len(rows), mechanism.keep), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
        given = loop_rows(rows)
        bad = _read_keyed(given, tables.edges, messages.SMALLEST, int(messages.EXPONENT), told["magnitude"], kept, bins)
        if bad >= 0:
            return None
        told["kept"], told["cell"] = kept, bins[:, None]
        words, out = keyed.words(messages.as_bytes(told), 1), np.empty(rows.shape, dtype=given.dtype)
        _answer_keyed(words, kept, bins, out, *tables.arguments(dtype))
        return out.astype(dtype, copy=False)

    return run


def examples() -> tuple[Channel, ...]:
    half = np.full((1, 2), 0.5)
    table = np.full((1, 1), WHOLE, dtype=np.int64)
    zeros = np.zeros(2, dtype=np.int64)
    return (Channel(1.0, 1, np.empty(0), table, np.array([[0.75]]), zeros, half),)
