"""The isotonic mechanism as two fused kernels: one for keep=1, one for any number of kept classes."""

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.mechanisms.isotonic import Isotonic, ramp
from scoreveil.mechanisms.kernels.common import (
    NETWORK_CLASSES,
    NO_ORDER,
    NO_PAIRS,
    any_dtype,
    exp,
    network,
    options,
    order_ties,
    scan,
    sorted_group,
)
from scoreveil.mechanisms.kernels.isotonic_keyed import bind_keyed
from scoreveil.mechanisms.loading import Kernel
from scoreveil.mechanisms.ordering import spacing

__all__ = ["bind", "bind_keyed", "examples"]

LANES = 16  # rows side by side in the chain, whose tables must fit the cache


@numba.njit(**options)
def _top(
    rows: Any, uniforms: Any, out: Any, step: float, table: Any, decay: Any, below: Any, above: Any, scale: Any,
    profile: Any, ramp: Any, top_factor: float, shift: float,
) -> int:  # fmt: skip
    """keep=1. The weights of the levels are two geometric runs away from v, so their sums are looked up.

    below[t, g] = Σ_{g' <= g} q(g')·e^{-a(g-g')step} and above[t, g] = Σ_{g' >= g} q(g')·e^{-a(g'-g)step}; decay[t, d] =
    e^{-a·d·step}. With v between levels c and c+1, the levels up to g <= c weigh e^{-a(v-c·step)}·decay[c-g]·below[g].
    Step by step, with numbers: docs/derivations/isotonic-top.md.
    """
    n, k = rows.shape
    levels = below.shape[1]
    chosen, classes = np.empty(1, np.int64), np.empty(1, np.int64)
    none, rest = np.empty(0), np.empty(k if len(profile) else 0)
    for r in range(n):
        index, top, total = scan(rows[r])
        if index < 0:
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


@numba.njit(**options)
def _top_classes(row: Any, order: Any, tops: Any, classes: Any) -> float:
    """The largest scores of a row, largest first, and their classes; by insertion, or from an ascending order.

    Returns what the row sums to, or -1 where it is no score vector.
    """
    k, j = len(row), len(tops)
    index, _, total = scan(row)
    if index < 0:
        return -1.0
    if len(order):
        ascending = np.empty(k)
        for i in range(k):
            ascending[i] = row[order[i]]
        order_ties(ascending, order)
        for i in range(j):
            classes[i], tops[i] = order[k - 1 - i], ascending[k - 1 - i]
        return total
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
    return total


@numba.njit(**options)
def _chain(
    rows: Any, uniforms: Any, out: Any, step: float, table: Any, measure: Any, scale: Any, profile: Any, ramp: Any,
    factor: float, top_factor: float, shift: float, pairs: Any, order: Any, lanes: int,
) -> int:  # fmt: skip
    """Any number of kept classes: forward over the ranks, lowest first, then backward, `lanes` rows side by side.

    The weight e^{-a|g·step - v|} is the smaller of e^{a·g·step}·e^{-a·v}, which rises with g, and its inverse.
    Why the draw is exact, with an example: docs/derivations/isotonic-chain.md.
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
    tops, no_order, total = np.empty(kept), np.empty(0, np.int64), np.empty(lanes)
    size = k * lanes if len(pairs) else 0
    keys, s, ix = np.empty(size, np.int64), np.empty(size), np.empty(size, np.int64)
    none, rest = np.empty(0), np.empty(k if len(profile) else 0)
    for first in range(0, n, lanes):
        height = min(lanes, n - first)
        if len(pairs):
            bad = sorted_group(rows, first, height, pairs, order, lanes, keys, s, ix, total)
            if bad >= 0:
                return bad
        for l in range(lanes):
            at = first + min(l, height - 1)
            if len(pairs):
                for i in range(kept):
                    x = (k - 1 - i) * lanes + l
                    tops[i], classes[l, i] = s[x], ix[x]
            else:
                total[l] = _top_classes(rows[at], order[at] if len(order) else no_order, tops, classes[l])
                if total[l] < 0:
                    return at
            t[l] = table[classes[l, 0]]
            weight = -scale[t[l]] / total[l]
            for i in range(kept):
                v[i, l] = max(weight * tops[i], -scale[t[l]])
                u[i, l] = uniforms[at, i]
        for i in range(kept - 1, -1, -1):
            for l in range(lanes):
                near[l] = exp(v[i, l])
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


@numba.njit(**options)
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
    per_total = 1 / total
    under, norm = highest * per_total, 1.0
    for i in range(kept - 1, -1, -1):
        lift = (top_factor if i == 0 else factor) - 1.0 if others or i < kept - 1 else 0.0
        value = (chosen[i] * step + ramp[i]) * per_total
        under = max(value, (1.0 + lift) * under + lift * shift)
        norm += under - value
    if others and len(profile):
        for i in range(k):
            out[i] = rest[i] * (per_total / norm)
    elif others:
        out[:] = highest * (per_total / norm)
    under, per_norm = highest * per_total, 1 / norm
    for i in range(kept - 1, -1, -1):
        lift = (top_factor if i == 0 else factor) - 1.0 if others or i < kept - 1 else 0.0
        under = max((chosen[i] * step + ramp[i]) * per_total, (1.0 + lift) * under + lift * shift)
        out[classes[i]] = under * per_norm


def _lanes(rows: int, cells: int) -> int:
    """How many rows side by side: as many as the cache has room for, but enough for SIMD."""
    if rows < 4:
        return 1
    return LANES if cells <= 1 << 15 else LANES // 2 if cells <= 1 << 20 else LANES // 4


def bind(mechanism: Isotonic, classes: int) -> Kernel:
    """The kernel of a mechanism for rows of so many classes."""
    plan = mechanism.plan(classes)
    step, levels = plan.step, plan.levels
    profile = np.empty((0, 0)) if plan.profile is None else np.ascontiguousarray(plan.profile)
    table, scale, ramps = np.ascontiguousarray(plan.table_of_class), np.ascontiguousarray(plan.scale), ramp(plan)
    measure = np.ascontiguousarray(plan.measure)
    chain_length = plan.kept + (plan.kept < plan.classes)
    if plan.kept == 1:
        decay = np.exp(-scale[:, None] * np.arange(levels) * step)
        below, above = measure[:, 0].copy(), measure[:, 0].copy()
        for g in range(1, levels):
            below[:, g] += below[:, g - 1] * decay[:, 1]
            above[:, levels - 1 - g] += above[:, levels - g] * decay[:, 1]

    def run(rows: NDArray[Any], uniforms: Floats, out: NDArray[Any], dtype: np.dtype[Any]) -> int:
        g = spacing(np.finfo(dtype), chain_length)
        if plan.kept == 1:
            return int(
                _top(
                    rows, uniforms, out, step, table, decay, below, above, scale, profile, ramps, g.top_factor, g.shift
                )
            )  # fmt: skip
        lanes = _lanes(len(rows), plan.kept * levels)
        # few of many classes are found fastest in one pass
        pairs = network(plan.classes) if plan.classes <= NETWORK_CLASSES else NO_PAIRS
        order = np.argsort(rows, axis=1) if plan.kept > NETWORK_CLASSES else NO_ORDER
        return int(
            _chain(
                rows, uniforms, out, step, table, measure, scale, profile, ramps, g.factor, g.top_factor, g.shift,
                pairs, order, lanes,
            )
        )  # fmt: skip

    return any_dtype(run)


def examples() -> tuple[Isotonic, ...]:
    return Isotonic(1.0), Isotonic(1.0, "all")
