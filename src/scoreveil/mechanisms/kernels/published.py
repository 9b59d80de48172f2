"""The published mechanism as a fused kernel: `published.perturb` for groups of rows side by side."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.mechanisms.kernels.common import any_dtype, exp, options, sorted_group, sorting
from scoreveil.mechanisms.loading import Kernel
from scoreveil.mechanisms.ordering import spacing
from scoreveil.mechanisms.published import NEAREST, Published

LANES = 64  # rows side by side
DOUBT = 255  # a cell of the table of choices that leaves more than one


# Sums and products over the ranks of each row of a group


@numba.njit(fastmath={"reassoc", "contract"}, **options)
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


@numba.njit(**options)
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


@numba.njit(**options)
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


@numba.njit(**options)
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


@numba.njit(**options)
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
        total += exp(weights[j] - highest)
        weights[j] = total
    choice = 0
    for j in range(m - 1):
        choice += weights[j] <= uniform * total
    return choice


@numba.njit(**options)
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
        bad = sorted_group(rows, first, height, pairs, order, lanes, keys, s, ix, total)
        if bad >= 0:
            return bad
        for x in range(lanes, size):
            lifts[x] = factor - 1.0 if s[x] > s[x - lanes] else 0.0
        for l in range(lanes):
            # the last strict step, below the top rank and those that tie with it, is always a full one
            x = last + l
            while x >= lanes and lifts[x] == 0:
                x -= lanes
            if x >= lanes:
                lifts[x] = top_factor - 1.0
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
            z[x] = exp(epsilon / 2 * z[x])
        _finish(z, ix, lifts, shift, lanes, first, height, total, out)
    return -1


def _choices(settings: Published) -> NDArray[np.uint8]:
    """The candidate that the bounded reading selects, by cells of the position in the sub-range and of the draw.

    The choice depends on the position p and the draw u alone: it is the number of j with P(choice <= j | p) <= u. Where
    that number is not the same all over a cell, the table says DOUBT. Over a cell the probability moves by at most a
    quarter of the spread of the exponents' slopes; cells are cut so that no slope jumps inside one.
    The argument in full: docs/derivations/published-choices.md.
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


def bind(settings: Published, classes: int) -> Kernel:
    """The kernel of a mechanism, for rows of any number of classes."""
    scale = settings.epsilon / (2 * settings.sensitivity)
    choices = _choices(settings)

    def run(rows: NDArray[Any], uniforms: Floats, out: NDArray[Any], dtype: np.dtype[Any]) -> int:
        g = spacing(np.finfo(dtype), rows.shape[1])
        pairs, order, lanes = sorting(rows, LANES)
        return int(
            _published(
                rows, uniforms, out, settings.epsilon, scale, settings.m, settings.reading == "bounded",
                NEAREST[settings.reading], choices, g.factor, g.top_factor, g.shift, pairs, order, lanes,
            )
        )  # fmt: skip

    return any_dtype(run)


def bind_keyed(settings: Published, classes: int) -> None:
    """Keyed answers come from plain numpy, whose bytes are the same on every machine."""


def examples() -> tuple[Published, ...]:
    return (Published(1.0),)
