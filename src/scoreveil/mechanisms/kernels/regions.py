"""Regions as fused loops: read a row, find its region, draw an answer, write it. The same bits as `Regions.perturb`."""

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.mechanisms import messages
from scoreveil.mechanisms.kernels.common import bits_of_float, is_score_vector, options
from scoreveil.mechanisms.loading import Kernel, KeyedKernel
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.mechanisms.per_label import PerLabel
from scoreveil.mechanisms.promises import WHOLE
from scoreveil.mechanisms.regions import Regions
from scoreveil.randomness import KeyedDraws


@numba.njit(**options)
def _region(top: float, second: float, total: float, strips: Any, cuts: Any, regions: Any) -> int:
    """All borders are looked at: a search would guess its way, and guess wrong."""
    strip, at, rest = 0, 0, total - top
    for i in range(len(strips)):
        strip += second >= strips[i] * rest
    share = top / total
    for i in range(cuts.shape[1]):
        at += cuts[strip, i] <= share
    return int(regions[strip, at])


@numba.njit(**options)
def _two(first: Any, second: Any, found: Any) -> None:
    """Label, top, second score and sum of two rows, and whether they are score vectors, into `found` (2, 5).

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
    found[0, 0], found[0, 1], found[0, 2], found[0, 3] = index, top, next_, total
    found[1, 0], found[1, 1], found[1, 2], found[1, 3] = index_, top_, next__, total_
    found[0, 4], found[1, 4] = is_score_vector(low, total), is_score_vector(low_, total_)


@numba.njit(**options)
def _read(rows: Any, strips: Any, cuts: Any, regions: Any, labels: Any, places: Any) -> int:
    """The label and the region of each row; returns the first row that is not a score vector, or -1."""
    n, found = len(rows), np.empty((2, 5))
    for r in range(0, n, 2):
        last = min(r + 1, n - 1)
        _two(rows[r], rows[last], found)
        if found[0, 4] == 0:
            return r
        if found[1, 4] == 0:
            return last
        labels[r], labels[last] = np.int64(found[0, 0]), np.int64(found[1, 0])
        places[r] = _region(found[0, 1], found[0, 2], found[0, 3], strips, cuts, regions)
        places[last] = _region(found[1, 1], found[1, 2], found[1, 3], strips, cuts, regions)
    return -1


@numba.njit(**options)
def _write(labels: Any, places: Any, drawn: Any, cumulative: Any, tops: Any, others: Any, out: Any) -> None:
    """The answers of regions: drawn from their rows of the table, or with no draws the regions themselves."""
    several = len(tops) > 1
    for r in range(len(out)):
        answer = places[r]
        if len(drawn):
            row, answer = cumulative[places[r]], 0
            for i in range(len(row) - 1):
                answer += row[i] <= drawn[r]
        label = labels[r]
        of = label if several else 0
        other = others[of, answer]
        for i in range(out.shape[1]):
            out[r, i] = other
        out[r, label] = tops[of, answer]


@numba.njit(**options)
def _run(
    rows: Any, uniforms: Any, out: Any, strips: Any, cuts: Any, regions: Any, cumulative: Any, tops: Any, others: Any,
    whole: float,
) -> int:  # fmt: skip
    """Fresh answers; returns the first row that is not a score vector, or -1."""
    n = len(rows)
    labels, places = np.empty(n, np.int64), np.empty(n, np.int64)
    bad = _read(rows, strips, cuts, regions, labels, places)
    if bad >= 0:
        return bad
    drawn = np.empty(n if uniforms.shape[1] else 0, np.int64)
    for r in range(len(drawn)):
        drawn[r] = np.int64(uniforms[r, 0] * whole)
    _write(labels, places, drawn, cumulative, tops, others, out)
    return -1


@numba.njit(**options)
def _magnitudes(rows: Any, smallest: float, exponent: int, magnitude: Any) -> None:
    """The order of magnitude of every score, as `messages` has it."""
    for r in range(len(rows)):
        for i in range(rows.shape[1]):
            value = np.float64(rows[r, i])
            magnitude[r, i] = bits_of_float(value if value > smallest else smallest) >> exponent


class _Tables:
    """What the loops take, made once for each dtype; float16 is computed in float32, and then rounded."""

    def __init__(self, mechanism: Regions, classes: int) -> None:
        # writable copies: numba would compile anew for read-only memory
        self.map = tuple(np.array(each) for each in (mechanism.strips, mechanism.cuts, mechanism.regions))
        self._mechanism, self._classes = mechanism, classes
        self._made: dict[str, tuple[Any, ...]] = {}
        self.answers(np.dtype(np.float64))

    def answers(self, dtype: np.dtype[Any]) -> tuple[Any, ...]:
        if dtype.str not in self._made:
            plan = self._mechanism.plan(self._classes, float(np.finfo(dtype).eps))
            cumulative = np.zeros((1, 1), dtype=np.int64) if plan.cumulative is None else np.array(plan.cumulative)
            wide = np.float32 if dtype == np.float16 else dtype
            self._made[dtype.str] = cumulative, plan.tops.astype(wide), plan.others.astype(wide)
        return self._made[dtype.str]


def loop_rows(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows as the loops take them: of float32 or float64, contiguous and in writable memory."""
    if rows.dtype == np.float16:
        return rows.astype(np.float32)
    return rows if rows.flags.writeable and rows.flags.c_contiguous else rows.copy()


def bind(mechanism: Mechanism, classes: int) -> Kernel | None:
    """Fresh answers."""
    if isinstance(mechanism, PerLabel):
        return _interleaved(mechanism, classes)
    assert isinstance(mechanism, Regions)
    tables = _Tables(mechanism, classes)

    def kernel(rows: NDArray[Any], uniforms: Floats, out: NDArray[Any]) -> int:
        given = loop_rows(rows)
        target = out if out.dtype != np.float16 else np.empty(out.shape, dtype=np.float32)
        bad = int(_run(given, uniforms, target, *tables.map, *tables.answers(out.dtype), float(WHOLE)))
        if target is not out and bad < 0:
            out[...] = target
        return bad

    return kernel


def _interleaved(mechanism: PerLabel, classes: int) -> Kernel:
    kernels, together = [bind(each, classes) for each in mechanism.maps], mechanism.together

    def kernel(rows: NDArray[Any], uniforms: Floats, out: NDArray[Any]) -> int:
        for i, each in enumerate(kernels):
            assert each is not None
            mine = np.ascontiguousarray(rows[i::together])
            made = np.empty_like(mine)
            bad = each(mine, np.ascontiguousarray(uniforms[i::together]), made)
            if bad >= 0:
                return bad * together + i
            out[i::together] = made
        return -1

    return kernel


def bind_keyed(mechanism: Mechanism, classes: int) -> KeyedKernel | None:
    """Keyed answers, the same bytes as without it; of many labels numpy answers."""
    if not isinstance(mechanism, Regions):
        return None
    tables = _Tables(mechanism, classes)

    def run(rows: NDArray[Any], keyed: KeyedDraws, tags: NDArray[Any] | None) -> NDArray[Any] | None:
        told = messages.empty(len(rows), classes, 1, tags=tags)
        labels, places = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
        given = loop_rows(rows)
        if _read(given, *tables.map, labels, places) >= 0:
            return None
        if tags is None:
            _magnitudes(given, messages.SMALLEST, int(messages.EXPONENT), told["magnitude"])
        told["kept"], told["cell"] = labels[:, None], places[:, None]
        words, out = keyed.words(messages.as_bytes(told), 1), np.empty(rows.shape, dtype=given.dtype)
        drawn = (words[:, 0] >> np.uint64(32)).astype(np.int64)
        _write(labels, places, drawn, *tables.answers(rows.dtype), out)
        return out.astype(rows.dtype, copy=False)

    return run


def examples() -> tuple[Regions, ...]:
    one, half = np.zeros((1, 1), dtype=np.int64), np.full((2, 1), 0.75)
    fields = 2, np.empty(0), np.empty((1, 0)), one, half
    return Regions(math.inf, *fields, counts=one), Regions(1.0, *fields, one + WHOLE, one)
