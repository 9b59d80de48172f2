"""Ranking with ties, its inverse, and the last repair in the dtype that is released.

Classes are ranked ascending by (score, -index): the class that `numpy.argmax` picks, the first of the largest,
is ranked last, i.e. on top. The order of the scores is the one thing both mechanisms promise to keep, and floating
point can lose it at the very end (a tiny ε, a float16 output, a subnormal score); `lift` puts it back. How far apart
scores must be, and why: docs/derivations/order-repair.md.
"""

from dataclasses import dataclass
from typing import Protocol, SupportsFloat

from scoreveil.mechanisms.scores import Array, namespace


def rank(scores: Array) -> Array:
    """The classes of each row in ascending order of (score, -index)."""
    xp = namespace(scores)
    # a stable sort of the reversed row puts, among equals, the larger index first
    return scores.shape[-1] - 1 - xp.argsort(xp.flip(scores, axis=-1), axis=-1, stable=True)


def unrank(ranked: Array, order: Array) -> Array:
    """Put values listed in the order of `rank` back in their classes."""
    xp = namespace(ranked)
    return xp.take_along_axis(ranked, xp.argsort(order, axis=-1, stable=True), axis=-1)


class FloatInfo(Protocol):
    """What array libraries say of a floating-point dtype."""

    @property
    def eps(self) -> SupportsFloat: ...
    @property
    def smallest_normal(self) -> SupportsFloat: ...


@dataclass(frozen=True)
class Spacing:
    """How far apart two scores must be for a dtype to tell them apart: z_{i+1} >= factor·z_i + (factor-1)·shift.

    The relative part covers normal numbers, the shift keeps zeros and subnormals distinct too.
    """

    factor: float
    top_factor: float
    shift: float


def spacing(finfo: FloatInfo, classes: int) -> Spacing:
    """The spacing for an output dtype and this many ranked classes.

    A full order of k classes can be expressed where 4·eps·k <= 1: always in float64 and float32, up to 256 classes
    in float16. Beyond that they move closer, so that low ranks may tie; the top stays strictly above the rest.
    """
    eps, tiny = float(finfo.eps), float(finfo.smallest_normal)
    relative = 16 * eps if eps < 1e-15 else 4 * eps  # float64 is also what we compute in: leave room for rounding
    # float16's normal numbers end at 6e-5, so its subnormals are needed; the other dtypes have room above theirs
    absolute = 8 * (tiny if tiny < 1e-30 else tiny * eps)
    return Spacing(1 + min(relative, 1 / classes), 1 + relative, absolute / relative)


def lift(ascending: Array, strict: Array | None, dtype: object) -> Array:
    """The smallest lift of `ascending` rows, which sum to about 1, that shows every strict step in `dtype`.

    `strict[..., i]` says that rank i+1 must stay above rank i; None: all of them. In ranks: z_i <- max(z_i,
    factor·z_{i-1} + (factor-1)·shift), which adding the shift turns into a running maximum.
    """
    xp = namespace(ascending)
    g = spacing(xp.finfo(dtype), ascending.shape[-1])
    if strict is None:
        strict = xp.ones(ascending[..., 1:].shape, dtype=xp.bool, device=ascending.device)
    # the last strict step, below the top rank and those that tie with it, is always a full one
    taken = xp.cumulative_sum(xp.astype(strict, xp.float64), axis=-1)
    full = xp.where(taken == taken[..., -1:], xp.full_like(taken, g.top_factor), xp.full_like(taken, g.factor))
    step = xp.where(strict, full, xp.ones_like(taken))
    logs = xp.concat([xp.zeros_like(ascending[..., :1]), xp.log(step)], axis=-1)
    growth = xp.exp(xp.cumulative_sum(logs, axis=-1))
    lifted = running_max((ascending + g.shift) / growth) * growth - g.shift
    return xp.maximum(lifted, xp.zeros_like(lifted))


def restore(ascending: Array, strict: Array | None, order: Array, dtype: object) -> Array:
    """Ranked rows as they are released: every strict step shown in `dtype`, summing to 1, back in their classes."""
    lifted = unrank(normalized(lift(ascending, strict, dtype)), order)
    return namespace(lifted).astype(lifted, dtype, copy=False)


def normalized(rows: Array) -> Array:
    """Rows divided by their sums."""
    return rows / namespace(rows).sum(rows, axis=-1, keepdims=True)


def running_max(values: Array) -> Array:
    """The running maximum along the last axis, in log2(k) steps of plain array operations."""
    xp = namespace(values)
    reach = 1
    while reach < values.shape[-1]:
        raised = xp.maximum(values[..., reach:], values[..., :-reach])
        values = xp.concat([values[..., :reach], raised], axis=-1)
        reach *= 2
    return values
