"""Regions as fused loops: read a row, find its region, draw an answer, write it. The same bits as `Regions.perturb`."""

import math

import numba
import numpy as np

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms.kernels import labelled
from scoreveil.mechanisms.kernels.common import ScoreType, any_dtype, is_score_vector, options
from scoreveil.mechanisms.kernels.labelled import Numbers, answer, for_loops
from scoreveil.mechanisms.loading import Kernel, KeyedKernel
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.mechanisms.per_label import PerLabel
from scoreveil.mechanisms.promises import WHOLE
from scoreveil.mechanisms.regions import Regions


@numba.njit(**options)
def _region(top: float, second: float, total: float, strips: Floats, cuts: Floats, regions: Integers) -> int:
    """All borders are looked at: a search would guess its way, and guess wrong."""
    strip, at, rest = 0, 0, total - top
    for i in range(len(strips)):
        strip += second >= strips[i] * rest
    share = top / total
    for i in range(cuts.shape[1]):
        at += cuts[strip, i] <= share
    return int(regions[strip, at])


@numba.njit(**options)
def _two(first: Rows, second: Rows, seen: Floats) -> None:
    """Label, top, second score and sum of two rows, and whether they are score vectors, into `seen` (2, 5).

    Two at a time: a sum waits for each of its additions, and the processor adds up the other row meanwhile.
    """
    low, total, top, next_, index = 0.0, 0.0, -1.0, 0.0, 0
    low_, total_, top_, next__, index_ = 0.0, 0.0, -1.0, 0.0, 0
    for i in range(len(first)):
        value, other = np.float64(first[i]), np.float64(second[i])
        low = value if value < low else low
        low_ = other if other < low_ else low_
        total += value
        total_ += other
        smaller = value if value < top else top
        smaller_ = other if other < top_ else top_
        next_ = smaller if smaller > next_ else next_
        next__ = smaller_ if smaller_ > next__ else next__
        if value > top:
            top, index = value, i
        if other > top_:
            top_, index_ = other, i
    seen[0, 0], seen[0, 1], seen[0, 2], seen[0, 3] = index, top, next_, total
    seen[1, 0], seen[1, 1], seen[1, 2], seen[1, 3] = index_, top_, next__, total_
    seen[0, 4], seen[1, 4] = is_score_vector(low, total), is_score_vector(low_, total_)


@numba.njit(**options)
def _read(rows: Rows, strips: Floats, cuts: Floats, regions: Integers, labels: Integers, places: Integers) -> int:
    """The label and the region of each row; returns the first row that is not a score vector, or -1."""
    n, seen = len(rows), np.empty((2, 5))
    for r in range(0, n, 2):
        last = min(r + 1, n - 1)
        _two(rows[r], rows[last], seen)
        if seen[0, 4] == 0:
            return r
        if seen[1, 4] == 0:
            return last
        labels[r], labels[last] = np.int64(seen[0, 0]), np.int64(seen[1, 0])
        places[r] = _region(seen[0, 1], seen[0, 2], seen[0, 3], strips, cuts, regions)
        places[last] = _region(seen[1, 1], seen[1, 2], seen[1, 3], strips, cuts, regions)
    return -1


@numba.njit(**options)
def _run(
    rows: Rows, uniforms: Floats, out: Rows, strips: Floats, cuts: Floats, regions: Integers, below: Floats,
    tops: Rows, others: Rows,
) -> int:  # fmt: skip
    """Fresh answers; returns the first row that is not a score vector, or -1."""
    labels, places = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    bad = _read(rows, strips, cuts, regions, labels, places)
    if bad < 0:
        answer(labels, places, uniforms, below, tops, others, out)
    return int(bad)


def _tables(mechanism: Regions, classes: int) -> tuple[tuple[Floats, Floats, Integers], Floats, Numbers]:
    """What the loops take: the map, the cumulative chances of each region, and the numbers of the answers."""

    def numbers(dtype: ScoreType) -> tuple[Floats, Floats]:
        plan = mechanism.plan(classes, float(np.finfo(dtype).eps))
        return plan.tops, plan.others

    cumulative = mechanism.plan(classes, float(np.finfo(np.float64).eps)).cumulative
    # as fractions, which is exact: c <= floor(u·2^32) where c/2^32 <= u
    below = np.zeros((1, 1)) if cumulative is None else cumulative / WHOLE
    # writable copies: numba would compile anew for read-only memory
    region_map = mechanism.strips.copy(), mechanism.cuts.copy(), mechanism.regions.copy()
    return region_map, below, for_loops(numbers)


def bind(mechanism: Mechanism, classes: int) -> Kernel:
    """Fresh answers."""
    if isinstance(mechanism, PerLabel):
        return _interleaved(mechanism, classes)
    assert isinstance(mechanism, Regions)
    region_map, below, numbers = _tables(mechanism, classes)

    def run(rows: Rows, uniforms: Floats, out: Rows, dtype: ScoreType) -> int:
        return int(_run(rows, uniforms.reshape(-1), out, *region_map, below, *numbers(dtype)))

    return any_dtype(run)


def _interleaved(mechanism: PerLabel, classes: int) -> Kernel:
    kernels, together = [bind(label_map, classes) for label_map in mechanism.maps], mechanism.together

    def kernel(rows: Rows, uniforms: Floats, out: Rows) -> int:
        for i, label_kernel in enumerate(kernels):
            mine = np.ascontiguousarray(rows[i::together])
            answers = np.empty_like(mine)
            bad = label_kernel(mine, np.ascontiguousarray(uniforms[i::together]), answers)
            if bad >= 0:
                return bad * together + i
            out[i::together] = answers
        return -1

    return kernel


def bind_keyed(mechanism: Mechanism, classes: int) -> KeyedKernel | None:
    """Keyed answers, the same bytes as without it; of many labels numpy answers."""
    if not isinstance(mechanism, Regions):
        return None
    region_map, below, numbers = _tables(mechanism, classes)
    return labelled.bind_keyed(
        classes, lambda rows, labels, places: int(_read(rows, *region_map, labels, places)), below, numbers
    )


def examples() -> tuple[Regions, ...]:
    one, half = np.zeros((1, 1), dtype=np.int64), np.full((2, 1), 0.75)
    fields = 2, np.empty(0), np.empty((1, 0)), one, half, one
    return Regions(math.inf, *fields), Regions(1.0, *fields, table=one + WHOLE)
