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
AT_A_TIME = 64  # rows
MOST_KEPT = 32  # classes found by insertion; numpy sorts where more are kept


@numba.njit(**options)
def _two_tops(first: Any, second: Any) -> tuple[int, float, int, float]:
    """The top classes of two rows and their shares of the rows' sums; a share of -1 where a row is no score vector.

    Two at a time: a sum waits for each of its additions, and the processor adds up the other row meanwhile.
    """
    low, total, top, index = 0.0, 0.0, -1.0, 0
    other_low, other_total, other_top, other_index = 0.0, 0.0, -1.0, 0
    for i in range(len(first)):
        value, other = np.float64(first[i]), np.float64(second[i])
        low = value if value < low else low
        other_low = other if other < other_low else other_low
        total += value
        other_total += other
        if value > top:
            top, index = value, i
        if other > other_top:
            other_top, other_index = other, i
    share = top / total if is_score_vector(low, total) else -1.0
    other_share = other_top / other_total if is_score_vector(other_low, other_total) else -1.0
    return index, share, other_index, other_share


@numba.njit(**options)
def _top_classes(row: Any, tops: Any, kept: Any) -> float:
    """The top classes of a row, best first, by insertion; and the share of the first, or -1."""
    smallest, total, j, found = 0.0, 0.0, len(kept), 0
    for i in range(len(row)):
        value = np.float64(row[i])
        smallest = value if value < smallest else smallest
        total += value
        if found == j and value <= tops[j - 1]:
            continue
        x = found if found < j else j - 1
        while x > 0 and tops[x - 1] < value:
            tops[x], kept[x] = tops[x - 1], kept[x - 1]
            x -= 1
        tops[x], kept[x] = value, i
        found = min(found + 1, j)
    return tops[0] / total if is_score_vector(smallest, total) else -1.0


@numba.njit(**options)
def _count(ascending: Any, last: int, value: Any) -> int:
    """How many of the first ones are <= the value. All are looked at: a search would guess its way, and guess wrong."""
    found = 0
    for i in range(last):
        found += ascending[i] <= value
    return found


@numba.njit(**options)
def _read(rows: Any, edges: Any, kept: Any, bins: Any) -> int:
    """The kept classes and the bin of each row; returns the first row that is not a score vector, or -1."""
    n, j = kept.shape
    if j == 1:
        for r in range(0, n, 2):
            last = min(r + 1, n - 1)
            index, share, other_index, other_share = _two_tops(rows[r], rows[last])
            if share < 0:
                return r
            if other_share < 0:
                return last
            kept[r, 0], bins[r] = index, _count(edges, len(edges), share)
            kept[last, 0], bins[last] = other_index, _count(edges, len(edges), other_share)
        return -1
    tops = np.empty(j)
    for r in range(n):
        share = _top_classes(rows[r], tops, kept[r])
        if share < 0:
            return r
        bins[r] = _count(edges, len(edges), share)
    return -1


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
        value = a * shares[i] + b
        value = value if value < most else most  # so, and not by min and max, it becomes SIMD code
        out[i] = value if value > least else least
    for i in range(j):
        out[kept[i]] = max(values[answer, i], least)


@numba.njit(**options)
def _look_up(rows: Any, uniforms: Any, out: Any, edges: Any, cumulative: Any, answers: Any, whole: float) -> int:
    """Fresh answers with one kept class, some rows at a time; returns the first that is not a score vector, or -1."""
    n, most = len(rows), cumulative.shape[1] - 1
    kept, bins = np.empty((min(n, AT_A_TIME), 1), np.int64), np.empty(min(n, AT_A_TIME), np.int64)
    for first in range(0, n, AT_A_TIME):
        height = min(AT_A_TIME, n - first)
        bad = _read(rows[first : first + height], edges, kept[:height], bins[:height])
        if bad >= 0:
            return first + bad
        for l in range(height):
            answer = _count(cumulative[bins[l]], most, np.int64(uniforms[first + l, 0] * whole))
            for i in range(out.shape[1]):
                out[first + l, i] = answers[kept[l, 0], answer, i]
    return -1


@numba.njit(**options)
def _run(
    rows: Any, uniforms: Any, out: Any, edges: Any, cumulative: Any, values: Any, rest: Any, cap: Any, table: Any,
    profile: Any, slope: Any, base: Any, least: float, whole: float,
) -> int:  # fmt: skip
    """Fresh answers, some rows at a time; returns the first row that is not a score vector, or -1."""
    n, most = len(rows), cumulative.shape[1] - 1
    kept, bins = np.empty((min(n, AT_A_TIME), values.shape[1]), np.int64), np.empty(min(n, AT_A_TIME), np.int64)
    for first in range(0, n, AT_A_TIME):
        height = min(AT_A_TIME, n - first)
        bad = _read(rows[first : first + height], edges, kept[:height], bins[:height])
        if bad >= 0:
            return first + bad
        for l in range(height):
            answer = _count(cumulative[bins[l]], most, np.int64(uniforms[first + l, 0] * whole))
            _write(kept[l], answer, values, rest, cap, table, profile, slope, base, least, out[first + l])
    return -1


@numba.njit(**options)
def _magnitudes(rows: Any, smallest: float, exponent: int, magnitude: Any) -> None:
    """The order of magnitude of every score, as `messages` has it."""
    for r in range(len(rows)):
        for i in range(rows.shape[1]):
            value = np.float64(rows[r, i])
            magnitude[r, i] = bits_of_float(value if value > smallest else smallest) >> exponent


@numba.njit(**options)
def _answer_keyed(
    words: Any, kept: Any, bins: Any, out: Any, cumulative: Any, values: Any, rest: Any, cap: Any, table: Any,
    profile: Any, slope: Any, base: Any, least: float, answers: Any,
) -> None:  # fmt: skip
    """The answer that the first 32 bits of each row's first word draw."""
    most = cumulative.shape[1] - 1
    for r in range(len(words)):
        answer = _count(cumulative[bins[r]], most, np.int64(words[r, 0] >> np.uint64(32)))
        if len(answers):
            for i in range(out.shape[1]):
                out[r, i] = answers[kept[r, 0], answer, i]
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
        if len(answers):
            bad = int(_look_up(loop_rows(rows), uniforms, target, tables.edges, given[0], answers, float(WHOLE)))
        else:
            bad = int(_run(loop_rows(rows), uniforms, target, tables.edges, *given, float(WHOLE)))
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
        if _read(given, tables.edges, kept, bins) >= 0:
            return None
        if tags is None:
            _magnitudes(given, messages.SMALLEST, int(messages.EXPONENT), told["magnitude"])
        told["kept"], told["cell"] = kept, bins[:, None]
        words, out = keyed.words(messages.as_bytes(told), 1), np.empty(rows.shape, dtype=given.dtype)
        _answer_keyed(words, kept, bins, out, *tables.arguments(dtype))
        return out.astype(dtype, copy=False)

    return run


def examples() -> tuple[Channel, ...]:
    half = np.full((1, 2), 0.5)
    table = np.full((1, 1), WHOLE, dtype=np.int64)
    zeros = np.zeros(2, dtype=np.int64)
    # answers to look up, and ones to write
    kept = (np.array([[0.75]]), np.array([[0.75, 0.25]]))
    return tuple(Channel(1.0, each.shape[1], np.empty(0), table, each, zeros, half) for each in kept)
