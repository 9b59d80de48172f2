"""The isotonic mechanism as two fused kernels: one for keep=1, one for any number of kept classes."""

import math

import numba
import numpy as np

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms import isotonic
from scoreveil.mechanisms.isotonic import Isotonic, IsotonicPlan, ramp
from scoreveil.mechanisms.kernels import labelled
from scoreveil.mechanisms.kernels.common import (
    NETWORK_CLASSES,
    NO_ORDER,
    NO_PAIRS,
    Run,
    ScoreType,
    any_dtype,
    exp,
    network,
    options,
    scan,
    sorted_group,
)
from scoreveil.mechanisms.kernels.labelled import Numbers, answer, for_loops
from scoreveil.mechanisms.loading import Kernel, KeyedKernel
from scoreveil.mechanisms.ordering import spacing

LANES = 16  # rows side by side in the chain, whose tables must fit the cache


# One kept class


@numba.njit(**options)
def _top(
    rows: Rows, uniforms: Floats, out: Rows, step: float, scale: float, decay: Floats, below: Floats, above: Floats,
    tops: Rows, others: Rows,
) -> int:  # fmt: skip
    """Fresh answers; returns the first row that is not a score vector, or -1."""
    labels, chosen = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for r in range(len(rows)):
        index, top, total = scan(rows[r])
        if index < 0:
            return r
        labels[r], chosen[r] = index, _level(min(top / total, 1.0), uniforms[r, 0], step, scale, decay, below, above)
    answer(labels, chosen, np.empty(0), np.empty((0, 0)), tops, others, out)
    return -1


@numba.njit(**options)
def _level(v: float, uniform: float, step: float, scale: float, decay: Floats, below: Floats, above: Floats) -> int:
    """The level that is drawn. The weights are two geometric runs away from v, so their sums are looked up.

    below[g] = Σ_{g' <= g} q(g')·e^{-a(g-g')step} and above[g] = Σ_{g' >= g} q(g')·e^{-a(g'-g)step}; decay[d] =
    e^{-a·d·step}. With v between levels c and c+1, the levels up to g <= c weigh e^{-a(v-c·step)}·decay[c-g]·below[g].
    Step by step, with numbers: docs/derivations/isotonic-top.md.
    """
    levels = len(below)
    c = min(int(v / step), levels - 2)
    left = math.exp(-scale * (v - c * step))
    right = math.exp(-scale * ((c + 1) * step - v))
    mass = left * below[c] + right * above[c + 1]
    drawn = uniform * mass
    is_left = drawn < left * below[c]
    low, high = (0, c) if is_left else (c + 1, levels - 1)  # the first level whose mass up to it exceeds the draw
    while low < high:
        g = (low + high) // 2
        if is_left:
            exceeds = left * decay[c - g] * below[g] > drawn
        else:
            exceeds = mass - right * decay[g - c] * above[g + 1] > drawn
        low, high = (low, g) if exceeds else (g + 1, high)
    return int(low)


@numba.njit(**options)
def _nearest_levels(rows: Rows, step: float, labels: Integers, levels: Integers) -> int:
    """The top class of each row and the level nearest to its score; returns the first bad row, or -1."""
    for r in range(len(rows)):
        index, top, total = scan(rows[r])
        if index < 0:
            return r
        labels[r], levels[r] = index, np.int64(np.rint(min(top / total, 1.0) / step))
    return -1


def _numbers(plan: IsotonicPlan) -> Numbers:
    """What each level announces for the label and for the others, as `isotonic.release` has it."""

    def numbers(dtype: ScoreType) -> tuple[Rows, Rows]:
        order = np.tile(np.arange(plan.classes), (plan.levels, 1))  # the last class is the label
        answers = isotonic.release(np.arange(plan.levels)[:, None], order, plan, dtype)
        return answers[:, -1][None], answers[:, 0][None]

    return for_loops(numbers)


def _bound_top(plan: IsotonicPlan) -> Run:
    step, scale, measure, numbers = plan.step, plan.scale, plan.measure[0, 0], _numbers(plan)
    decay = np.exp(-scale * np.arange(plan.levels) * step)
    below, above = measure.copy(), measure.copy()
    for g in range(1, plan.levels):
        below[g] += below[g - 1] * decay[1]
        above[-1 - g] += above[-g] * decay[1]

    def run(rows: Rows, uniforms: Floats, out: Rows, dtype: ScoreType) -> int:
        return int(_top(rows, uniforms, out, step, scale, decay, below, above, *numbers(dtype)))

    return run


def bind_keyed(mechanism: Isotonic, classes: int) -> KeyedKernel | None:
    """Keyed answers where one class is kept: the score is on the grid, so each level has its chances."""
    plan = mechanism.plan(classes)
    if plan.kept != 1:
        return None
    tops, one_class = np.arange(plan.levels)[:, None] * plan.step, np.zeros(plan.levels, dtype=np.int64)
    cumulative = np.cumulative_sum(isotonic.rank_weights(tops, one_class, plan, 0), axis=-1)
    return labelled.bind_keyed(
        classes,
        lambda rows, labels, levels: int(_nearest_levels(rows, plan.step, labels, levels)),
        cumulative / cumulative[:, -1:],
        _numbers(plan),
    )


# Any number of kept classes


@numba.njit(**options)
def _top_classes(row: Rows, tops: Floats, classes: Integers) -> float:
    """The largest scores of a row, largest first, and their classes, by insertion.

    Returns what the row sums to, or -1 where it is no score vector.
    """
    index, _, total = scan(row)
    if index < 0:
        return -1.0
    j, filled = len(tops), 0
    for i in range(len(row)):
        value = np.float64(row[i])
        if filled == j and value <= tops[j - 1]:
            continue
        x = filled if filled < j else j - 1
        while x > 0 and tops[x - 1] < value:
            tops[x], classes[x] = tops[x - 1], classes[x - 1]
            x -= 1
        tops[x], classes[x] = value, i
        filled = min(filled + 1, j)
    return total


@numba.njit(**options)
def _last(s: Floats, ix: Integers, lanes: int, l: int, tops: Floats, classes: Integers) -> None:
    """The top scores of one row of a sorted group, largest first, and their classes."""
    k = len(s) // lanes
    for i in range(len(tops)):
        x = (k - 1 - i) * lanes + l
        tops[i], classes[i] = s[x], ix[x]


@numba.njit(forceinline=True, **options)
def _top_group(
    rows: Rows, first: int, height: int, pairs: Integers, order: Integers, lanes: int, keys: Integers, s: Floats,
    ix: Integers, tops: Floats, classes: Integers, total: Floats,
) -> int:  # fmt: skip
    """The top scores and classes of rows first…, and what they sum to; returns the first bad row, or -1."""
    if len(pairs):
        bad = sorted_group(rows, first, height, pairs, order, lanes, keys, s, ix, total)
        if bad >= 0:
            return int(bad)
    for l in range(lanes):
        at = first + min(l, height - 1)
        if len(pairs):
            _last(s, ix, lanes, l, tops[l], classes[l])
        elif len(order):
            if sorted_group(rows, at, 1, pairs, order, 1, keys, s, ix, total[l:]) >= 0:
                return at
            _last(s, ix, 1, 0, tops[l], classes[l])
        else:
            total[l] = _top_classes(rows[at], tops[l], classes[l])
            if total[l] < 0:
                return at
    return -1


@numba.njit(**options)
def _chain(
    rows: Rows, uniforms: Floats, out: Rows, step: float, table: Integers, rising: Floats, falling: Floats,
    scale: float, profile: Floats, ramp: Floats, factor: float, top_factor: float, shift: float, pairs: Integers,
    order: Integers, lanes: int,
) -> int:  # fmt: skip
    """Any number of kept classes, `lanes` rows side by side: returns the first row that is not a score vector, or -1.

    Why the draw is exact, with an example: docs/derivations/isotonic-chain.md.
    """
    n, k = rows.shape
    kept, levels = rising.shape[1:]
    v, forward, t = np.empty((kept, lanes)), np.empty((kept, levels, lanes)), np.empty(lanes, np.int64)
    count, limit = np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    classes, chosen = np.empty((lanes, kept), np.int64), np.empty((lanes, kept), np.int64)
    near, far, mass, total = np.empty(lanes), np.empty(lanes), np.empty(lanes), np.empty(lanes)
    size = k * (lanes if len(pairs) else 1)
    keys, s, ix = np.empty(size, np.int64), np.empty(size), np.empty(size, np.int64)
    tops, none, rest = np.empty((lanes, kept)), np.empty(0), np.empty(k if len(profile) else 0)
    for first in range(0, n, lanes):
        height = min(lanes, n - first)
        bad = _top_group(rows, first, height, pairs, order, lanes, keys, s, ix, tops, classes, total)
        if bad >= 0:
            return bad
        for l in range(lanes):
            t[l] = table[classes[l, 0]]
            weight = -scale / total[l]
            for i in range(kept):
                v[i, l] = max(weight * tops[l, i], -scale)
        _forward(v, t, rising, falling, near, far, mass, forward)
        _backward(uniforms[first : first + height], forward, mass, count, limit, chosen)
        for l in range(height):
            share = profile[t[l]] if len(profile) else none
            _release(chosen[l], classes[l], step, share, ramp, factor, top_factor, shift, rest, out[first + l])
    return -1


@numba.njit(forceinline=True, **options)
def _forward(
    v: Floats, t: Integers, rising: Floats, falling: Floats, near: Floats, far: Floats, mass: Floats, forward: Floats
) -> None:
    """Cumulative weights of the ranks, lowest first.

    The weight e^{-a|g·step - v|} is the smaller of e^{a·g·step}·e^{-a·v}, which rises with g, and its inverse.
    """
    tables, kept, levels = rising.shape
    lanes = v.shape[1]
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
            if i == 0 and g == 0:
                here[:] = 0.0
            elif i < kept - 1:
                under = forward[i + 1, g - 1 if i == 0 else g]
                for l in range(lanes):
                    here[l] *= under[l]
            for l in range(lanes):
                mass[l] += here[l]
                here[l] = mass[l]


@numba.njit(forceinline=True, **options)
def _backward(
    uniforms: Floats, forward: Floats, drawn: Floats, count: Integers, limit: Integers, chosen: Integers
) -> None:
    """One inversion for each rank, top first, cut at the level above."""
    kept, levels, lanes = forward.shape
    height = len(uniforms)
    limit[:] = levels - 1
    for i in range(kept):
        for l in range(lanes):
            drawn[l] = uniforms[min(l, height - 1), i] * forward[i, limit[l], l]
            count[l] = 0
        for g in range(levels):
            here = forward[i, g]
            for l in range(lanes):
                count[l] += here[l] <= drawn[l]
        for l in range(lanes):
            chosen[l, i] = min(count[l], limit[l])
            limit[l] = chosen[l, i] - 1 if i == 0 else chosen[l, i]


@numba.njit(**options)
def _release(
    chosen: Integers, classes: Integers, step: float, profile: Floats, ramp: Floats, factor: float, top_factor: float,
    shift: float, rest: Floats, out: Rows,
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
        highest = _shared(left, lowest, profile, classes, rest)
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


@numba.njit(**options)
def _shared(left: float, lowest: float, profile: Floats, classes: Integers, rest: Floats) -> float:
    """Share what is left among the other classes, in `rest`, none above the lowest kept; returns the largest part."""
    rest[:] = profile
    for i in range(len(classes)):
        rest[classes[i]] = 0.0
    free, highest = rest.sum(), 0.0
    for i in range(len(rest)):
        rest[i] = min(left * (rest[i] / free), lowest)
        highest = max(highest, rest[i])
    return highest


def _lanes(rows: int, cells: int) -> int:
    """How many rows side by side: as many as the cache has room for, but enough for SIMD."""
    if rows < 4:
        return 1
    return LANES if cells <= 1 << 15 else LANES // 2 if cells <= 1 << 20 else LANES // 4


def _bound_chain(plan: IsotonicPlan) -> Run:
    step, ramps, table, scale = plan.step, ramp(plan), plan.table_of_class.copy(), plan.scale
    profile = np.empty((0, 0)) if plan.profile is None else plan.profile.copy()
    grown = np.exp(scale * (np.arange(plan.levels) * step))
    rising, falling = plan.measure * grown, plan.measure / grown  # q_i(g)·e^{±a·g·step}
    # few of many classes are found fastest in one pass
    pairs = network(plan.classes) if plan.classes <= NETWORK_CLASSES else NO_PAIRS

    def run(rows: Rows, uniforms: Floats, out: Rows, dtype: ScoreType) -> int:
        g = spacing(np.finfo(dtype), plan.kept + (plan.kept < plan.classes))
        order = np.argsort(rows, axis=1) if plan.kept > NETWORK_CLASSES else NO_ORDER
        return int(
            _chain(
                rows, uniforms, out, step, table, rising, falling, scale, profile, ramps, g.factor, g.top_factor,
                g.shift, pairs, order, _lanes(len(rows), plan.kept * plan.levels),
            )
        )  # fmt: skip

    return run


def bind(mechanism: Isotonic, classes: int) -> Kernel:
    """The kernel of a mechanism for rows of so many classes."""
    plan = mechanism.plan(classes)
    return any_dtype(_bound_top(plan) if plan.kept == 1 else _bound_chain(plan))


def examples() -> tuple[Isotonic, ...]:
    return Isotonic(1.0), Isotonic(1.0, "all")
