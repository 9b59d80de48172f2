"""The published mechanism as a fused kernel: `published.perturb` for groups of rows side by side."""

import numba
import numpy as np

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms.kernels.common import ScoreType, any_dtype, exp, options, sorted_group, sorting
from scoreveil.mechanisms.loading import Kernel
from scoreveil.mechanisms.ordering import spacing
from scoreveil.mechanisms.published import Published

LANES = 64  # rows side by side
DOUBT = 255  # a cell of the table of choices that leaves more than one


# Sums and products over the ranks of each row of a group


@numba.njit(fastmath={"reassoc", "contract"}, **options)
def _sum(z: Floats, lanes: int, total: Floats) -> None:
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
def _multiply(z: Floats, lanes: int, by: Floats) -> None:
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
def _subtract(z: Floats, lanes: int, by: Floats) -> None:
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
    z: Floats, ix: Integers, lifts: Floats, shift: float, lanes: int, first: int, height: int, total: Floats, out: Rows
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
def _choice(position: float, uniform: float, scale: float, weights: Floats) -> int:
    """Phase 1 for one score, exactly: the exponential mechanism over its candidates."""
    m, highest = len(weights), -np.inf
    for j in range(m):
        weights[j] = scale * (1 / max(abs(position - j), 0.5))
        highest = max(highest, weights[j])
    total = 0.0
    for j in range(m):
        total += exp(weights[j] - highest)
        weights[j] = total
    choice = 0
    for j in range(m - 1):
        choice += weights[j] <= uniform * total
    return choice


@numba.njit(forceinline=True, **options)
def _steps(s: Floats, lanes: int, factor: float, top_factor: float, lifts: Floats) -> None:
    """By how much each rank must stay above the one below, in `lifts`."""
    for x in range(lanes, len(s)):
        lifts[x] = factor - 1.0 if s[x] > s[x - lanes] else 0.0
    for l in range(lanes):
        # the last strict step, below the top rank and those that tie with it, is always a full one
        x = len(s) - lanes + l
        while x >= lanes and lifts[x] == 0:
            x -= lanes
        if x >= lanes:
            lifts[x] = top_factor - 1.0


@numba.njit(forceinline=True, **options)
def _sub_ranges(s: Floats, lanes: int, m: int, lower: Floats, rho: Floats) -> None:
    """The sub-ranges' lower borders and their steps."""
    last = len(s) - lanes
    for l in range(lanes):
        lower[l] = 0.0
    for x in range(lanes, len(s)):
        lower[x] = (s[x - lanes] + s[x]) / 2
    for x in range(last):
        rho[x] = (lower[x + lanes] - lower[x]) * (1 / m)
    for x in range(last, len(s)):
        rho[x] = (1.0 - lower[x]) * (1 / m)


@numba.njit(**options)
def _published(
    rows: Rows, uniforms: Floats, out: Rows, epsilon: float, scale: float, m: int, choices: Rows, factor: float,
    top_factor: float, shift: float, pairs: Integers, order: Integers, lanes: int,
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
        _steps(s, lanes, factor, top_factor, lifts)
        for l in range(lanes):
            total[l] = 1 / total[l]
        _multiply(s, lanes, total)
        _sub_ranges(s, lanes, m, lower, rho)
        for x in range(size):
            z[x] = min((s[x] - lower[x]) / rho[x], m) * per_step if rho[x] > 0 else 0.0
        # the choice: from the table of position and draw, exactly where that leaves doubt
        for l in range(height):
            for i in range(k):
                x, u = i * lanes + l, uniforms[first + l, i]
                choice = int(choices[np.int64(z[x]), np.int64(u * columns)])
                if choice == DOUBT:  # an empty sub-range has one point
                    choice = _choice((s[x] - lower[x]) / rho[x], u, scale, weights) if rho[x] > 0 else 0
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


def _choices(settings: Published) -> Rows:
    """The candidate that Phase 1 selects, by cells of the position in the sub-range and of the draw.

    The choice depends on the position p and the draw u alone: it is the number of j with P(choice <= j | p) <= u. Where
    that number is not the same all over a cell, the table says DOUBT. Over a cell the probability moves by at most a
    quarter of the spread of the exponents' slopes; cells are cut so that no slope jumps inside one.
    The argument in full: docs/derivations/published-choices.md.
    """
    m, scale = settings.m, settings.epsilon / (2 * settings.sensitivity)
    per_half, columns = max(1, 512 // (2 * m)), 512
    if m >= DOUBT or scale > 100:
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
    exponent = scale / np.maximum(np.abs(away), 0.5)
    cumulative = np.cumsum(np.exp(exponent - exponent.max(axis=1, keepdims=True)), axis=1)
    threshold = cumulative[:, :-1] / cumulative[:, -1:]
    draw = np.arange(columns + 1) / columns
    fewest = (threshold[:, None, :] + unsure[:, None, None] <= draw[:-1, None]).sum(axis=-1)
    most = (threshold[:, None, :] - unsure[:, None, None] <= draw[1:, None]).sum(axis=-1)
    table = np.where(fewest == most, fewest, DOUBT).astype(np.uint8)
    return np.concatenate([table, table[-1:]])  # the position m itself


def bind(settings: Published, classes: int) -> Kernel | None:
    """The kernel of a mechanism, for rows of any number of classes; of the printed reading numpy answers."""
    if settings.reading != "bounded":
        return None
    scale = settings.epsilon / (2 * settings.sensitivity)
    choices = _choices(settings)

    def run(rows: Rows, uniforms: Floats, out: Rows, dtype: ScoreType) -> int:
        g = spacing(np.finfo(dtype), rows.shape[1])
        return int(
            _published(
                rows, uniforms, out, settings.epsilon, scale, settings.m, choices, g.factor, g.top_factor, g.shift,
                *sorting(rows, LANES),
            )
        )  # fmt: skip

    return any_dtype(run)


def bind_keyed(settings: Published, classes: int) -> None:
    """Keyed answers come from plain numpy, whose bytes are the same on every machine."""


def examples() -> tuple[Published, ...]:
    return (Published(1.0),)
