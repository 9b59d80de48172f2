"""What a fit learns about its records: a few histograms, each with Laplace noise, and nothing else.

A record adds at most 1 to a histogram in all, so discrete Laplace noise of scale 1/ε₀ makes it ε₀-differentially
private (zero-out: a record is replaced by one that counts nowhere; for a record replaced by another one it is twice as
much). How many records there are is not hidden. Counts are whole numbers of `UNIT` to a record, and so is the noise.

Every release goes through `Releases`, which writes down what it spent: `spent` is what the guarantee states.

    bins       (right or wrong, bin) of each record
    labels     (label, step of the top score), where each label has records enough
    ties       how many records of each bin share its commonest top score: are there atoms?
    regions    (label, right or wrong, region), once the map is chosen: what is stated comes from these counts
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.randomness import secure_uniforms

Uniforms = Callable[[int], Floats]
Side = Literal["member", "other"]

UNIT = 1 << 20  # what one record counts
# ε₀ of each release; with labels told apart, and without
BUDGET: dict[Side, dict[str, float]] = {
    "member": {"bins": 0.20, "labels": 0.05, "regions": 0.25},
    "other": {"bins": 1.50, "labels": 0.25, "ties": 0.25, "regions": 0.50},
}


class Draws(Protocol):
    """What draws uniforms in [0, 1): a numpy Generator, or keyed draws."""

    def random(self, size: int, /) -> Floats: ...


@dataclass(frozen=True)
class Release:
    """One noisy histogram: what it counted, of whom, and what that cost each of them."""

    name: str
    side: Side
    part: str  # records of different parts are different records
    epsilon: float


@dataclass
class Releases:
    """Makes noisy histograms, and keeps the list of them."""

    draw: Uniforms
    made: list[Release] = field(default_factory=list)

    @classmethod
    def drawn(cls, rng: Draws | None) -> "Releases":
        """With noise from the cryptographic stream, or from what was given."""
        return cls((lambda count: secure_uniforms(count, 1)[:, 0]) if rng is None else rng.random)

    def histogram(
        self, name: str, side: Side, cells: Integers, shape: tuple[int, ...], epsilon: float,
        weights: Floats | None = None, part: str = "",
    ) -> Floats:  # fmt: skip
        """A noisy histogram of this shape, in records; cells may be negative, and are right on average.

        Args:
            name: What is counted.
            side: Whose records these are.
            cells: The cell of each record (n,); or (n, c) cells that it is shared over, by `weights` that sum to at
                most 1 for each record.
            shape: Of the histogram.
            epsilon: What the release costs each record.
            weights: See `cells`.
            part: Which part of the records, where they were divided.
        """
        self.made.append(Release(name, side, part, epsilon))
        counts = counted(cells, shape, weights)
        ratio = -epsilon / UNIT  # ln of the geometric distribution's ratio; the difference of two is discrete Laplace
        geometric = np.floor(np.log1p(-self.draw(2 * counts.size)) / ratio).reshape(2, *counts.shape)
        return np.asarray((counts + geometric[0] - geometric[1]) / UNIT)

    def spent(self, side: Side) -> float:
        """What all releases together cost a record of this side: of parts, the dearest."""
        parts = {release.part for release in self.made if release.side == side}
        sums = (math.fsum(r.epsilon for r in self.made if r.side == side and r.part == part) for part in sorted(parts))
        return max(sums, default=0.0)


def counted(cells: Integers, shape: tuple[int, ...], weights: Floats | None = None) -> Integers:
    """How many units lie in each cell of a histogram of this shape; a record may be shared over some cells."""
    size = math.prod(shape)
    if weights is None:
        return np.asarray(np.bincount(cells.ravel(), minlength=size) * UNIT).reshape(shape)
    whole = np.floor(weights * UNIT)
    return np.bincount(cells.ravel(), weights=whole.ravel(), minlength=size).astype(np.int64).reshape(shape)


def clipped(noisy: Floats) -> Floats:
    """The nearest histogram without negative cells that has the same total, or 1 where that is below 1."""
    descending = np.sort(noisy, axis=None)[::-1]
    excess = (np.cumsum(descending) - max(float(noisy.sum()), 1.0)) / np.arange(1, noisy.size + 1)
    last = (descending > excess).sum() - 1  # they are the first ones
    return np.asarray(np.maximum(noisy - excess[last], 0.0))
