"""The same two mechanisms as fused loops for the CPU, compiled by numba.

Given the same uniforms they agree with `published.perturb` and `isotonic.perturb` to 1e-12, draw by draw; read those
first. What is different here is only the layout. A group of `lanes` rows is worked on side by side: value (i, l),
rank i of row l, stands at i·lanes + l, so that neighbours in rank are `lanes` apart and every loop over values is a
loop over contiguous memory, one row to a SIMD lane. For many classes, or one row, lanes = 1 and the ranks themselves
fill the lanes.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from scoreveil.mechanisms.isotonic import IsotonicSettings, Plan, plan, ramp
from scoreveil.mechanisms.loading import Kernel
from scoreveil.mechanisms.ordering import gap, rank
from scoreveil.mechanisms.published import NEAREST, PublishedSettings
from scoreveil.mechanisms.scores import SUM_TOLERANCE

Floats = NDArray[np.float64]
# as a Kernel, with the dtype whose gaps to keep
Run = Callable[[NDArray[Any], Floats, NDArray[Any], np.dtype[Any]], int]

LANES = 64  # rows side by side in the published kernel
CHAIN_LANES = 16  # and in the isotonic chain, whose tables must fit the cache
NETWORK_CLASSES = 64  # up to here a sorting network beats numpy's sort; its keys have room for this many indices
DOUBT = 255  # a cell of the table of choices that leaves more than one


def _can_cache() -> bool:
    """Whether numba finds a place for its cache; where it does not, it compiles anew in each process."""
    try:
        numba.njit(lambda: None, cache=True)
    except RuntimeError:
        return False
    return True


NO_ORDER = np.empty((0, 0), dtype=np.int64)
NO_PAIRS = np.empty((0, 2), dtype=np.int64)

_options = {"nogil": True, "error_model": "numpy", "cache": _can_cache()}


@intrinsic
def _float_from_bits(_context: Any, _bits: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def _bits_of_float(_context: Any, _value: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@numba.njit(fastmath={"contract"}, **_options)
def _exp(x: float) -> float:
    """e^x for x <= 709, to 1e-14: a polynomial on [-ln 2/2, ln 2/2], so that loops over it become SIMD code."""
    x = max(x, -708.0)
    n = np.floor(x * 1.4426950408889634 + 0.5)
    f = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10
    p = f / 39916800.0 + 1 / 3628800.0
    p = p * f + 1 / 362880.0
    p = p * f + 1 / 40320.0
    p = p * f + 1 / 5040.0
    p = p * f + 1 / 720.0
    p = p * f + 1 / 120.0
    p = p * f + 1 / 24.0
    p = p * f + 1 / 6.0
    p = p * f + 0.5
    p = p * f + 1.0
    p = p * f + 1.0
    return p * _float_from_bits((np.int64(n) + 1023) << 52)


# Sorting


@lru_cache(maxsize=NETWORK_CLASSES)
def network(classes: int) -> NDArray[np.int64]:
    """Batcher's odd-even merge sort for any number of classes: pairs (a, b) with a < b to be put in order."""
    pairs = []
    size = 1 << (classes - 1).bit_length()
    p = 1
    while p < size:
        q = p
        while q >= 1:
            for j in range(q % p, size - q, 2 * q):
                for a in range(j, j + q):
                    if a + q < classes and a // (2 * p) == (a + q) // (2 * p):
                        pairs.append((a, a + q))
            q //= 2
        p *= 2
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _sorting(rows: NDArray[Any], lanes: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """How rows get sorted: by a network of pairs with rows side by side, or by numpy, one row at a time."""
    n, k = rows.shape
    if k <= NETWORK_CLASSES:
        return network(k), NO_ORDER, lanes if n >= 8 else 1
    return NO_PAIRS, np.argsort(rows, axis=1), 1


@numba.njit(**_options)
def _order_ties(s: Any, ix: Any) -> None:
    """Among equal scores of one ascending row, the larger index first."""
    k, i = len(s), 0
    while i < k - 1:
        if s[i] != s[i + 1]:
            i += 1
            continue
        end = i + 2
        while end < k and s[end] == s[i]:
            end += 1
        ix[i:end] = np.sort(ix[i:end])[::-1]
        i = end


@numba.njit(**_options)
def _insertion(s: Any, ix: Any, lanes: int, k: int) -> None:
    """Finish a nearly sorted group: ascending by (score, -index)."""
    for l in range(lanes):
        for i in range(1, k):
            value, index, x = s[i * lanes + l], ix[i * lanes + l], i
            while x > 0 and (
                s[(x - 1) * lanes + l] > value or (s[(x - 1) * lanes + l] == value and ix[(x - 1) * lanes + l] < index)
            ):
                s[x * lanes + l], ix[x * lanes + l] = s[(x - 1) * lanes + l], ix[(x - 1) * lanes + l]
                x -= 1
            s[x * lanes + l], ix[x * lanes + l] = value, index


@numba.njit(**_options)
def _sorted_group(
    rows: Any, first: int, height: int, pairs: Any, order: Any, lanes: int, keys: Any, s: Any, ix: Any, total: Any
) -> int:
    """Rows first… side by side in s, sorted ascending by (score, -index), their classes in ix, their sums in total.

    Returns the first row that is no score vector, or -1. The network sorts integer keys: the bits of a score >= 0
    ascend with it, and its last six make room for the index; scores that differ in those alone are put right after.
    """
    k = rows.shape[1]
    for l in range(lanes):
        at = first + min(l, height - 1)
        smallest, t = 0.0, 0.0
        for i in range(k):
            value = np.float64(rows[at, i])
            smallest = min(smallest, value)
            t += value
            if len(pairs):
                keys[i * lanes + l] = (_bits_of_float(value + 0.0) & ~63) | (63 - i)
        if not (smallest >= 0 and abs(t - 1) <= SUM_TOLERANCE):
            return at
        total[l] = t
    if not len(pairs):
        for x in range(k):
            ix[x] = order[first, x]
            s[x] = rows[first, order[first, x]]
        ties = 0
        for x in range(1, k):
            ties += s[x] == s[x - 1]
        if ties:
            _order_ties(s, ix)
        return -1
    for c in range(len(pairs)):
        low, high = keys[pairs[c, 0] * lanes :][:lanes], keys[pairs[c, 1] * lanes :][:lanes]
        for l in range(lanes):
            u, v = low[l], high[l]
            low[l], high[l] = min(u, v), max(u, v)
    for i in range(k):
        for l in range(lanes):
            c = 63 - (keys[i * lanes + l] & 63)
            ix[i * lanes + l] = c
            s[i * lanes + l] = rows[first + min(l, height - 1), c]
    inverted = 0
    for x in range(lanes, k * lanes):
        inverted += s[x] < s[x - lanes]
    if inverted:
        _insertion(s, ix, lanes, k)
    return -1


# Sums and products over the ranks of each row of a group


@numba.njit(fastmath={"reassoc", "contract"}, **_options)
def _sum(z: Any, lanes: int, total: Any) -> None:
    if lanes == 1:
        t = 0.0
        for x in range(len(z)):
            t += z[x]
        total[0] = t
        return
    for l in range(lanes):
        total[l] = 0.0
    for first in range(0, len(z), lanes):
        part = z[first : first + lanes]
        for l in range(lanes):
            total[l] += part[l]


@numba.njit(**_options)
def _multiply(z: Any, lanes: int, by: Any) -> None:
    if lanes == 1:
        d = by[0]
        for x in range(len(z)):
            z[x] *= d
        return
    for first in range(0, len(z), lanes):
        part = z[first : first + lanes]
        for l in range(lanes):
            part[l] *= by[l]


@numba.njit(**_options)
def _subtract(z: Any, lanes: int, by: Any) -> None:
    if lanes == 1:
        d = by[0]
        for x in range(len(z)):
            z[x] -= d
        return
    for first in range(0, len(z), lanes):
        part = z[first : first + lanes]
        for l in range(lanes):
            part[l] -= by[l]


@numba.njit(**_options)
def _finish(
    z: Any, ix: Any, lifts: Any, shift: float, lanes: int, first: int, height: int, total: Any, out: Any
) -> None:
    """Lift every strict step so that the output's dtype shows it, normalise, and put the scores in their classes.

    The shift is meant for rows that sum to 1; z is not normalised yet, so it grows with the sum.
    """
    _sum(z, lanes, total)
    # along the ranks of one row each lift waits for the last, so look first where there is anything to lift
    stride = lanes if lanes > 1 else 64
    for start in range(lanes, len(z), stride):
        end = min(start + stride, len(z))
        here, under, lift = z[start:end], z[start - lanes : end - lanes], lifts[start:end]
        if lanes == 1:
            low, least_shift = 0, shift * total[0]
            for x in range(end - start):
                low += here[x] < (1.0 + lift[x]) * under[x] + lift[x] * least_shift
            if low:
                for x in range(end - start):
                    here[x] = max(here[x], (1.0 + lift[x]) * under[x] + lift[x] * least_shift)
            continue
        for l in range(lanes):
            least = (1.0 + lift[l]) * under[l] + lift[l] * (shift * total[l])
            here[l] = here[l] if here[l] > least else least
    _sum(z, lanes, total)
    for l in range(height):
        scale = 1 / total[l]
        for i in range(len(z) // lanes):
            out[first + l, ix[i * lanes + l]] = z[i * lanes + l] * scale


# The published mechanism


@numba.njit(**_options)
def _choice(
    y: float, lower: float, rho: float, uniform: float, scale: float, nearest: float, bounded: bool, weights: Any
) -> int:
    """Phase 1 for one score, exactly: the exponential mechanism over its candidates."""
    if rho <= 0:
        return 0  # an empty sub-range has one point
    m, position, highest = len(weights), (y - lower) / rho, -np.inf
    for j in range(m):
        distance = abs(position - j) if bounded else abs(y - (lower + j * rho))
        weights[j] = scale * (1 / max(distance, nearest))
        highest = max(highest, weights[j])
    total = 0.0
    for j in range(m):
        total += _exp(weights[j] - highest)
        weights[j] = total
    choice = 0
    for j in range(m - 1):
        choice += weights[j] <= uniform * total
    return choice


@numba.njit(**_options)
def _published(
    rows: Any, uniforms: Any, out: Any, epsilon: float, scale: float, m: int, bounded: bool, nearest: float,
    choices: Any, factor: float, top_factor: float, shift: float, pairs: Any, order: Any, lanes: int,
) -> int:  # fmt: skip
    n, k = rows.shape
    size, last = k * lanes, (k - 1) * lanes
    keys, s, ix, total = np.empty(size, np.int64), np.empty(size), np.empty(size, np.int64), np.empty(lanes)
    lower, rho, z, lifts, weights = np.empty(size), np.empty(size), np.empty(size), np.empty(size), np.empty(m)
    per_step, columns = (len(choices) - 1) / m, choices.shape[1]
    for first in range(0, n, lanes):
        height = min(lanes, n - first)
        bad = _sorted_group(rows, first, height, pairs, order, lanes, keys, s, ix, total)
        if bad >= 0:
            return bad
        for x in range(lanes, last):
            lifts[x] = factor - 1.0 if s[x] > s[x - lanes] else 0.0
        for x in range(last, size):
            lifts[x] = top_factor - 1.0 if s[x] > s[x - lanes] else 0.0
        for l in range(lanes):
            total[l] = 1 / total[l]
        _multiply(s, lanes, total)
        # sub-ranges and their steps
        for l in range(lanes):
            lower[l] = 0.0
        for x in range(lanes, size):
            lower[x] = (s[x - lanes] + s[x]) / 2
        for x in range(last):
            rho[x] = (lower[x + lanes] - lower[x]) * (1 / m)
        for x in range(last, size):
            rho[x] = (1.0 - lower[x]) * (1 / m)
        for x in range(size):
            z[x] = min((s[x] - lower[x]) / rho[x], m) * per_step if rho[x] > 0 else 0.0
        # the choice: from the table of position and draw, exactly where that leaves doubt
        for l in range(height):
            for i in range(k):
                x, u = i * lanes + l, uniforms[first + l, i]
                choice = np.int64(choices[np.int64(z[x]), np.int64(u * columns)])
                if choice == DOUBT:
                    choice = _choice(s[x], lower[x], rho[x], u, scale, nearest, bounded, weights)
                z[x] = choice
        for x in range(size):
            z[x] = lower[x] + z[x] * rho[x]
        # Phase 2
        total[:] = z[last:]
        _subtract(z, lanes, total)
        for x in range(size):
            z[x] = _exp(epsilon / 2 * z[x])
        _finish(z, ix, lifts, shift, lanes, first, height, total, out)
    return -1


def _choices(settings: PublishedSettings) -> NDArray[np.uint8]:
    """The candidate that the bounded reading selects, by cells of the position in the sub-range and of the draw.

    The choice depends on the position p and the draw u alone: it is the number of j with P(choice <= j | p) <= u. Where
    that number is not the same all over a cell, the table says DOUBT. Over a cell the probability moves by at most a
    quarter of the spread of the exponents' slopes; cells are cut so that no slope jumps inside one.
    """
    m, scale = settings.m, settings.epsilon / (2 * settings.sensitivity)
    per_half, columns = max(1, 512 // (2 * m)), 512
    if settings.reading != "bounded" or m >= DOUBT or scale > 100:
        return np.full((1, 1), DOUBT, dtype=np.uint8)
    edges = np.arange(2 * m * per_half + 1) / (2 * per_half)
    width = edges[1] - edges[0]
    middle = (edges[:-1] + edges[1:]) / 2
    away = middle[:, None] - np.arange(m)
    nearest_away = np.maximum(np.abs(away) - width / 2, 0.5)
    slope = np.where(np.abs(away) < 0.5, 0.0, -np.sign(away) * scale / nearest_away**2)
    flat = np.abs(away) > 0.5  # a slope reaches from 0 to its steepest value within a cell, at most
    steepest = np.maximum(slope, 0).max(axis=1) - np.minimum(np.where(flat, slope, 0.0), 0).min(axis=1)
    unsure = steepest / 4 * width / 2 + 1e-9
    exponent = scale / np.maximum(np.abs(away), NEAREST["bounded"])
    cumulative = np.cumsum(np.exp(exponent - exponent.max(axis=1, keepdims=True)), axis=1)
    threshold = cumulative[:, :-1] / cumulative[:, -1:]
    draw = np.arange(columns + 1) / columns
    fewest = (threshold[:, None, :] + unsure[:, None, None] <= draw[:-1, None]).sum(axis=-1)
    most = (threshold[:, None, :] - unsure[:, None, None] <= draw[1:, None]).sum(axis=-1)
    table = np.where(fewest == most, fewest, DOUBT).astype(np.uint8)
    return np.concatenate([table, table[-1:]])  # the position m itself


def _bind_published(settings: PublishedSettings) -> Run:
    scale = settings.epsilon / (2 * settings.sensitivity)
    choices = _choices(settings)

    def run(rows: NDArray[Any], uniforms: Floats, out: NDArray[Any], dtype: np.dtype[Any]) -> int:
        g = gap(np.finfo(dtype), rows.shape[1])
        pairs, order, lanes = _sorting(rows, LANES)
        return int(
            _published(
                rows, uniforms, out, settings.epsilon, scale, settings.m, settings.reading == "bounded",
                NEAREST[settings.reading], choices, g.factor, g.top_factor, g.shift, pairs, order, lanes,
            )
        )  # fmt: skip

    return run


# The isotonic mechanism


@numba.njit(**_options)
def _top(
    rows: Any, uniforms: Any, out: Any, step: float, table: Any, decay: Any, below: Any, above: Any, scale: Any,
    profile: Any, ramp: Any, top_factor: float, shift: float,
) -> int:  # fmt: skip
    """keep=1. The weights of the levels are two geometric runs away from v, so their sums are looked up.

    below[t, g] = Σ_{g' <= g} q(g')·e^{-a(g-g')step} and above[t, g] = Σ_{g' >= g} q(g')·e^{-a(g'-g)step}; decay[t, d] =
    e^{-a·d·step}. With v between levels c and c+1, the levels up to g <= c weigh e^{-a(v-c·step)}·decay[c-g]·below[g].
    """
    n, k = rows.shape
    levels = below.shape[1]
    chosen, classes = np.empty(1, np.int64), np.empty(1, np.int64)
    none, rest = np.empty(0), np.empty(k if len(profile) else 0)
    for r in range(n):
        smallest, total, top, index = 0.0, 0.0, -1.0, 0
        for i in range(k):
            value = np.float64(rows[r, i])
            smallest = min(smallest, value)
            total += value
            if value > top:
                top, index = value, i
        if not (smallest >= 0 and abs(total - 1) <= SUM_TOLERANCE):
            return r
        t, v = table[index], min(top / total, 1.0)
        c = min(np.int64(v / step), levels - 2)
        left = math.exp(-scale[t] * (v - c * step))
        right = math.exp(-scale[t] * ((c + 1) * step - v))
        mass = left * below[t, c] + right * above[t, c + 1]
        drawn = uniforms[r, 0] * mass
        if drawn < left * below[t, c]:
            low, high = 0, c  # the first level whose mass up to it exceeds the draw
            while low < high:
                g = (low + high) // 2
                if left * decay[t, c - g] * below[t, g] > drawn:
                    high = g
                else:
                    low = g + 1
        else:
            low, high = c + 1, levels - 1  # … in terms of the mass above it
            while low < high:
                g = (low + high) // 2
                if mass - right * decay[t, g - c] * above[t, g + 1] > drawn:
                    high = g
                else:
                    low = g + 1
        chosen[0], classes[0] = low, index
        _release(
            chosen, classes, step, profile[t] if len(profile) else none, ramp, 1.0, top_factor, shift, rest, out[r]
        )
    return -1


@numba.njit(**_options)
def _tops(row: Any, order: Any, tops: Any, classes: Any) -> None:
    """The largest scores of a row, largest first, and their classes; by insertion, or from an ascending order."""
    k, j = len(row), len(tops)
    if len(order):
        for i in range(j):
            classes[i] = order[k - 1 - i]
            tops[i] = row[order[k - 1 - i]]
        return
    found = 0
    for i in range(k):
        value = np.float64(row[i])
        if found == j and value <= tops[j - 1]:
            continue
        x = found if found < j else j - 1
        while x > 0 and tops[x - 1] < value:
            tops[x], classes[x] = tops[x - 1], classes[x - 1]
            x -= 1
        tops[x], classes[x] = value, i
        found = min(found + 1, j)


@numba.njit(**_options)
def _chain(
    rows: Any, uniforms: Any, out: Any, step: float, table: Any, measure: Any, scale: Any, profile: Any, ramp: Any,
    factor: float, top_factor: float, shift: float, order: Any, lanes: int,
) -> int:  # fmt: skip
    """Any number of kept classes: forward over the ranks, lowest first, then backward, `lanes` rows side by side.

    The weight e^{-a|g·step - v|} is the smaller of e^{a·g·step}·e^{-a·v}, which rises with g, and its inverse.
    """
    n, k = rows.shape
    tables, kept, levels = measure.shape
    rising, falling = np.empty(measure.shape), np.empty(measure.shape)  # q_i(g)·e^{±a·g·step}
    for x in range(tables):
        for g in range(levels):
            e = math.exp(scale[x] * g * step)
            for i in range(kept):
                rising[x, i, g], falling[x, i, g] = measure[x, i, g] * e, measure[x, i, g] / e
    v, u, forward = np.empty((kept, lanes)), np.empty((kept, lanes)), np.empty((kept, levels, lanes))
    near, far, mass, t = np.empty(lanes), np.empty(lanes), np.empty(lanes), np.empty(lanes, np.int64)
    count, limit = np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    classes, chosen = np.empty((lanes, kept), np.int64), np.empty((lanes, kept), np.int64)
    tops, no_order = np.empty(kept), np.empty(0, np.int64)
    none, rest = np.empty(0), np.empty(k if len(profile) else 0)
    for first in range(0, n, lanes):
        height = min(lanes, n - first)
        for l in range(lanes):
            at = first + min(l, height - 1)
            smallest, total = 0.0, 0.0
            for i in range(k):
                value = np.float64(rows[at, i])
                smallest = min(smallest, value)
                total += value
            if not (smallest >= 0 and abs(total - 1) <= SUM_TOLERANCE):
                return at
            _tops(rows[at], order[at] if len(order) else no_order, tops, classes[l])
            t[l] = table[classes[l, 0]]
            for i in range(kept):
                v[i, l] = -scale[t[l]] * min(tops[i] / total, 1.0)
                u[i, l] = uniforms[at, i]
        for i in range(kept - 1, -1, -1):
            for l in range(lanes):
                near[l] = _exp(v[i, l])
            for l in range(lanes):
                norm = 1.0 if i == kept - 1 else 1 / mass[l]
                far[l] = norm / near[l]
                near[l] *= norm
                mass[l] = 0.0
            for g in range(levels):
                here = forward[i, g]
                if tables == 1:
                    up, down = rising[0, i, g], falling[0, i, g]
                    for l in range(lanes):
                        here[l] = min(up * near[l], down * far[l])
                else:
                    for l in range(lanes):
                        here[l] = min(rising[t[l], i, g] * near[l], falling[t[l], i, g] * far[l])
                if i == 0 and kept > 1 and g == 0:
                    here[:] = 0.0
                elif i < kept - 1:
                    under = forward[i + 1, g - 1 if i == 0 else g]
                    for l in range(lanes):
                        here[l] *= under[l]
                for l in range(lanes):
                    mass[l] += here[l]
                    here[l] = mass[l]
        # one inversion for each rank, top first, cut at the level above
        for l in range(lanes):
            limit[l] = levels - 1
        for i in range(kept):
            for l in range(lanes):
                mass[l] = u[i, l] * forward[i, limit[l], l]
                count[l] = 0
            for g in range(levels):
                here = forward[i, g]
                for l in range(lanes):
                    count[l] += here[l] <= mass[l]
            for l in range(lanes):
                chosen[l, i] = min(count[l], limit[l])
                limit[l] = chosen[l, i] - 1 if i == 0 else chosen[l, i]
        for l in range(height):
            share = profile[t[l]] if len(profile) else none
            _release(chosen[l], classes[l], step, share, ramp, factor, top_factor, shift, rest, out[first + l])
    return -1


@numba.njit(**_options)
def _release(
    chosen: Any, classes: Any, step: float, profile: Any, ramp: Any, factor: float, top_factor: float, shift: float,
    rest: Any, out: Any,
) -> None:  # fmt: skip
    """Phase 2 for one row, as `isotonic.release` has it; `rest` is room for the others where a profile shares them."""
    k, kept = len(out), len(chosen)
    others, lowest = k - kept, chosen[kept - 1] * step
    left, total = 1.0, 0.0
    for i in range(kept):
        left -= chosen[i] * step
        total += chosen[i] * step + ramp[i]
    left, highest = max(left, 0.0), 0.0
    if others and len(profile):
        rest[:] = profile
        for i in range(kept):
            rest[classes[i]] = 0.0
        free = rest.sum()
        for i in range(k):
            rest[i] = min(left * (rest[i] / free), lowest)
            highest = max(highest, rest[i])
        total += rest.sum()
    elif others:
        highest = min(left / others, lowest)
        total += others * highest
    # lift the ranks, from the largest of the others up; `norm` is what the row sums to after it
    under, norm = highest / total, 1.0
    for i in range(kept - 1, -1, -1):
        lift = (top_factor if i == 0 else factor) - 1.0 if others or i < kept - 1 else 0.0
        value = (chosen[i] * step + ramp[i]) / total
        under = max(value, (1.0 + lift) * under + lift * shift)
        norm += under - value
    if others and len(profile):
        for i in range(k):
            out[i] = rest[i] / total / norm
    elif others:
        out[:] = highest / total / norm
    under = highest / total
    for i in range(kept - 1, -1, -1):
        lift = (top_factor if i == 0 else factor) - 1.0 if others or i < kept - 1 else 0.0
        under = max((chosen[i] * step + ramp[i]) / total, (1.0 + lift) * under + lift * shift)
        out[classes[i]] = under / norm


def _bind_isotonic(plan: Plan) -> Run:
    step, levels = plan.settings.step, plan.settings.levels
    profile = np.empty((0, 0)) if plan.profile is None else np.ascontiguousarray(plan.profile)
    table, scale, ramps = np.ascontiguousarray(plan.table), np.ascontiguousarray(plan.scale), ramp(plan)
    measure = np.ascontiguousarray(plan.measure)
    chain_length = plan.kept + (plan.kept < plan.classes)
    if plan.kept == 1:
        decay = np.exp(-scale[:, None] * np.arange(levels) * step)
        below, above = measure[:, 0].copy(), measure[:, 0].copy()
        for g in range(1, levels):
            below[:, g] += below[:, g - 1] * decay[:, 1]
            above[:, levels - 1 - g] += above[:, levels - g] * decay[:, 1]

    def run(rows: NDArray[Any], uniforms: Floats, out: NDArray[Any], dtype: np.dtype[Any]) -> int:
        g = gap(np.finfo(dtype), chain_length)
        if plan.kept == 1:
            return int(
                _top(
                    rows, uniforms, out, step, table, decay, below, above, scale, profile, ramps, g.top_factor, g.shift
                )
            )  # fmt: skip
        order, lanes = NO_ORDER, CHAIN_LANES if len(rows) >= 4 else 1
        if plan.kept > NETWORK_CLASSES:
            order = np.ascontiguousarray(rank(rows))
        return int(
            _chain(
                rows, uniforms, out, step, table, measure, scale, profile, ramps, g.factor, g.top_factor, g.shift,
                order, lanes,
            )
        )  # fmt: skip

    return run


# What the rest of the package calls


def bind(mechanism: Plan | PublishedSettings) -> Kernel:
    """The kernel of a mechanism, for rows of any dtype."""
    run = _bind_isotonic(mechanism) if isinstance(mechanism, Plan) else _bind_published(mechanism)

    def any_dtype(rows: NDArray[Any], uniforms: Floats, out: NDArray[Any]) -> int:
        if not rows.flags.writeable:
            rows = rows.copy()  # numba would compile anew for read-only memory
        if rows.dtype != np.float16:
            return run(rows, uniforms, out, out.dtype)
        # numba has no float16: compute in float64 with the gaps of float16
        wide = np.empty(rows.shape)
        bad = run(rows.astype(np.float64), uniforms, wide, out.dtype)
        out[...] = wide
        return bad

    return any_dtype


def compile_all() -> None:
    """Compile, or load from numba's cache, every kernel for float32 and float64."""
    for dtype in (np.float32, np.float64):
        rows = np.full((8, 2), 0.5, dtype=dtype)
        for mechanism in (
            PublishedSettings(1.0),
            plan(IsotonicSettings(1.0), 2),
            plan(IsotonicSettings(1.0, "all"), 2),
        ):
            bind(mechanism)(rows, np.full((8, 2), 0.5), np.empty_like(rows))
