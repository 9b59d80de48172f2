"""What both kernels stand on: how they are compiled, an exponential for SIMD loops, and the sorting of rows."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms.loading import Kernel
from scoreveil.mechanisms.scores import SUM_TOLERANCE

Generate = Callable[[object, ir.IRBuilder, object, Sequence[ir.Value]], ir.Value]  # code of an intrinsic
ScoreType = np.dtype[np.floating]
# (rows, uniforms, out, the dtype whose spacing to keep) -> the first row that is not a score vector, or -1
Run = Callable[[Rows, Floats, Rows, ScoreType], int]

NETWORK_CLASSES = 64  # up to here a sorting network beats numpy's sort; its keys have room for this many indices
NO_ORDER = np.empty((0, 0), dtype=np.int64)
NO_PAIRS = np.empty((0, 2), dtype=np.int64)


def loop_rows(rows: Rows) -> Rows:
    """Rows as loops take them: numba has no float16, and would compile anew for read-only or strided memory."""
    if rows.dtype == np.float16:
        return rows.astype(np.float64)
    return rows if rows.flags.carray else rows.copy()


def any_dtype(run: Run) -> Kernel:
    """A kernel for rows of any dtype, from one for float32 and float64."""

    def kernel(rows: Rows, uniforms: Floats, out: Rows) -> int:
        if rows.dtype != np.float16:
            return run(loop_rows(rows), uniforms, out, out.dtype)
        # computed in float64 with the spacing of float16
        wide = np.empty(rows.shape)
        bad = run(loop_rows(rows), uniforms, wide, out.dtype)
        if bad < 0:
            out[...] = wide
        return bad

    return kernel


def _can_cache() -> bool:
    """Whether numba finds a place for its cache; where it does not, it compiles anew in each process."""
    try:
        numba.njit(lambda: None, cache=True)
    except RuntimeError:
        return False
    return True


options = {"nogil": True, "error_model": "numpy", "cache": _can_cache()}


@intrinsic
def _float_from_bits(_context: object, _bits: object) -> tuple[object, Generate]:
    def generate(_target: object, builder: ir.IRBuilder, _signature: object, arguments: Sequence[ir.Value]) -> ir.Value:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def bits_of_float(_context: object, _value: object) -> tuple[object, Generate]:
    def generate(_target: object, builder: ir.IRBuilder, _signature: object, arguments: Sequence[ir.Value]) -> ir.Value:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@numba.njit(fastmath={"contract"}, **options)
def exp(x: float) -> float:
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


@numba.njit(**options)
def is_score_vector(smallest: float, total: float) -> bool:
    # written so that NaN fails
    return smallest >= 0 and abs(total - 1) <= SUM_TOLERANCE


@numba.njit(**options)
def scan(row: Rows) -> tuple[int, float, float]:
    """The first class with the largest score, that score, and what the row sums to; -1 where it is no score vector."""
    smallest, total, top, index = 0.0, 0.0, -1.0, 0
    for i in range(len(row)):
        value = np.float64(row[i])
        smallest = min(smallest, value)
        total += value
        if value > top:
            top, index = value, i
    return (index if is_score_vector(smallest, total) else -1), top, total


# Sorting


@lru_cache(maxsize=NETWORK_CLASSES)
def network(classes: int) -> Integers:
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


def sorting(rows: Rows, lanes: int) -> tuple[Integers, Integers, int]:
    """How rows get sorted: by a network of pairs with rows side by side, or by numpy, one row at a time."""
    n, k = rows.shape
    if k <= NETWORK_CLASSES:
        return network(k), NO_ORDER, lanes if n >= 8 else 1
    return NO_PAIRS, np.argsort(rows, axis=1), 1


@numba.njit(**options)
def sorted_group(
    rows: Rows, first: int, height: int, pairs: Integers, order: Integers, lanes: int, keys: Integers, s: Floats,
    ix: Integers, total: Floats,
) -> int:  # fmt: skip
    """Rows first… side by side in s, sorted ascending by (score, -index), their classes in ix, their sums in total.

    Returns the first row that is no score vector, or -1.
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
                keys[i * lanes + l] = (bits_of_float(value + 0.0) & ~63) | (63 - i)
        if not is_score_vector(smallest, t):
            return at
        total[l] = t
    if len(pairs):
        _sort_by_network(rows, first, height, pairs, lanes, keys, s, ix)
    else:
        _sort_by_order(rows[first], order[first], s, ix)
    return -1


@numba.njit(forceinline=True, **options)
def _sort_by_network(
    rows: Rows, first: int, height: int, pairs: Integers, lanes: int, keys: Integers, s: Floats, ix: Integers
) -> None:
    """Sort integer keys: the bits of a score >= 0 ascend with it, and its last six make room for the index.

    Scores that differ in those alone are put right after (docs/derivations/sorting-keys.md).
    """
    k = rows.shape[1]
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
        for l in range(lanes):
            _insertion(s[l::lanes], ix[l::lanes])


@numba.njit(**options)
def _insertion(s: Floats, ix: Integers) -> None:
    """Finish a nearly sorted row: ascending by (score, -index)."""
    for i in range(1, len(s)):
        value, index, x = s[i], ix[i], i
        while x > 0 and (s[x - 1] > value or (s[x - 1] == value and ix[x - 1] < index)):
            s[x], ix[x] = s[x - 1], ix[x - 1]
            x -= 1
        s[x], ix[x] = value, index


@numba.njit(forceinline=True, **options)
def _sort_by_order(row: Rows, order: Integers, s: Floats, ix: Integers) -> None:
    """By the order that numpy found, and among equal scores the larger index first."""
    for x in range(len(row)):
        ix[x] = order[x]
        s[x] = row[order[x]]
    ties = 0
    for x in range(1, len(row)):
        ties += s[x] == s[x - 1]
    if ties:
        _order_ties(s, ix)


@numba.njit(**options)
def _order_ties(s: Floats, ix: Integers) -> None:
    """Among equal scores of one ascending row, the larger index first."""
    k, i = len(s), 0
    while i < k - 1:
        end = i + 1
        while end < k and s[end] == s[i]:
            end += 1
        if end > i + 1:
            ix[i:end] = np.sort(ix[i:end])[::-1]
        i = end
