"""Smooth before you solve: what noisy histograms say about the population, so that chance does not count as leak.

Members are the others tilted by a small regression on a bin's place, drawn towards the counts as these become many; how
often a bin is right is a regression whose slope is expected to be positive. All of it is post-processing of what
`releases` made: it costs no privacy. What is *stated* does not come from here.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.extras import needs
from scoreveil.fitting.grid import STEPS, Grid

with needs("fit"):
    from scipy.optimize import minimize


RATE_WEIGHT = 20.0  # records' worth of the regression in a bin's rate of right answers
RIDGE = 1.0  # of the regressions' linear terms; four times as much of the quadratic ones
MIN_SHARE = 0.2  # records' worth in every bin
MIN_UNSEEN = 0.2  # τ², of what the regression does not see


@dataclass(frozen=True, eq=False)
class Estimates:
    """What the program is solved for: shares of the bins, (bins,) each, and for sides others first."""

    share: Floats  # of the others in each bin
    rate: Floats  # how often such answers are right
    members: Floats  # shares of the members
    right: Floats  # (2, bins): joint shares of right answers, of others and members
    wrong: Floats


def estimate(others: Floats, members: Floats | None, grid: Grid, noise: float) -> Estimates:
    """What to solve for.

    Args:
        others: Noisy counts (2, bins), wrong answers first.
        members: The same; (1, bins) where they have no labels, None where there are none.
        grid: The bins.
        noise: ε₀ of the members' counts.
    """
    places, prior = _places(grid), _rising(grid)
    wrong, right = others
    every = right + wrong
    accuracy = (right.sum() + 1) / (every.sum() + 2)
    share = (every + MIN_SHARE) / (every + MIN_SHARE).sum()
    rate = _expit(_regression(places, right + accuracy, wrong + 1 - accuracy, prior))
    rate = np.clip((right + RATE_WEIGHT * rate) / (every + RATE_WEIGHT), 0.02, 0.999)
    joint_right, joint_wrong = share * rate, share * (1 - rate)

    def tilted(counts: Floats, reference: Floats, base: Floats) -> Floats:
        """Members: `base` tilted towards the counts, then drawn towards them as far as they tell more."""
        scaled = reference * counts.sum() / max(float(reference.sum()), 1e-9)
        logit = _regression(places, counts + 1e-3, scaled + 1e-3, np.zeros(places.shape[1]))
        shape = base * np.exp(logit - logit.max())
        return _drawn(counts, counts.sum() * shape / shape.sum(), noise)

    if members is None:
        inside_right, inside_wrong = joint_right, joint_wrong
    elif len(members) == 1:
        inside_right, inside_wrong = tilted(members[0], every, share), np.zeros(grid.bins)
    else:
        inside_wrong, inside_right = (
            tilted(counts, reference, base / base.sum())
            for counts, reference, base in zip(members, others, (joint_wrong, joint_right), strict=True)
        )
    total = inside_right.sum() + inside_wrong.sum()
    return Estimates(
        share, rate, (inside_right + inside_wrong) / total,
        np.stack([joint_right, inside_right / total]), np.stack([joint_wrong, inside_wrong / total]),
    )  # fmt: skip


def beyond_chance(estimates: Estimates, whole: NDArray[np.bool_], sizes: tuple[int, int], noise: float) -> Estimates:
    """The same with less of a gap where bins stay whole: what chance and noise alone would show there is no leak.

    Args:
        estimates: What to solve for.
        whole: Bins that cannot be cut, and so cannot be balanced either.
        sizes: How many others and members there are.
        noise: ε₀ of the members' counts.
    """
    share, members = estimates.share, estimates.members
    variance = share * (1 - share) * sum(1 / size for size in sizes) + 4 / (noise * sizes[1]) ** 2
    gap = members - share
    left = share + np.sign(gap) * np.maximum(np.abs(gap) - np.sqrt(variance), 0.0)
    moved = np.where(whole, left, members)
    rest = float(members[~whole].sum())
    if rest > 0:
        moved[~whole] *= max(1 - float(moved[whole].sum()), 0.0) / rest
    moved /= moved.sum()
    ratio = moved / np.maximum(members, 1e-12)
    right, wrong = (np.stack([sides[0], sides[1] * ratio]) for sides in (estimates.right, estimates.wrong))
    return Estimates(share, estimates.rate, moved, right, wrong)


def label_tilts(counts: Floats, noise: tuple[float, float]) -> Floats:
    """How much surer or less sure the records of each label are than all: logits (2, labels, steps), others first.

    Args:
        counts: Noisy counts (2, labels, steps) of both sides, without negative cells.
        noise: ε₀ of each side.

    A small regression for each label, multiplied by how much more the labels differ than chance and noise would make
    them: where they differ by chance alone, nothing is left.
    """
    places = _places(Grid(2, pairs=False))
    total = np.maximum(counts.sum(axis=2, keepdims=True), 1.0)
    pooled = counts.sum(axis=1, keepdims=True) / np.maximum(counts.sum(axis=(1, 2), keepdims=True), 1.0)
    variance = pooled * (1 - pooled) / total + 2 / (np.array(noise)[:, None, None] * total) ** 2
    gaps = counts / total - pooled
    excess = float(((gaps[1] - gaps[0]) ** 2).sum() / variance.sum())
    trust = max(0.0, 1 - 1 / max(excess, 1e-9))
    tilts = np.zeros_like(counts)
    for side, label in np.ndindex(*counts.shape[:2]) if trust else ():
        expected = pooled[side, 0] * total[side, label]
        tilts[side, label] = _regression(places, counts[side, label] + 1e-3, expected + 1e-3, np.zeros(3))
    return np.asarray(trust * tilts)


def _drawn(counts: Floats, smooth: Floats, noise: float) -> Floats:
    """Smooth counts, drawn towards the noisy ones as far as these tell more than chance and noise (empirical Bayes).

    Beside `smooth` records a bin may hold some that the regression does not see, a part of them with variance τ². The
    counts vary by chance, as Poisson's do, and by the noise, 2/ε₀². τ² is estimated over all bins.
    """
    chance = smooth + 2 / noise**2
    unseen = float(((counts - smooth) ** 2 - chance).sum() / np.maximum(smooth**2, 1e-9).sum())
    prior = max(unseen, MIN_UNSEEN) * smooth**2
    return np.asarray(np.maximum(smooth + prior / (prior + chance) * (counts - smooth), 0.0))


def _places(grid: Grid) -> Floats:
    """What the regressions see of each bin: 1, a, a² - 1, and with pairs b, ab, b² - 1."""
    strip, step = np.divmod(np.arange(grid.bins), STEPS)
    a = (step - step.mean()) / step.std()
    columns = [np.ones(grid.bins), a, a**2 - 1]
    if grid.pairs:
        b = (strip - strip.mean()) / strip.std()
        columns += [b, a * b, b**2 - 1]
    return np.stack(columns, axis=1)


def _rising(grid: Grid) -> Floats:
    """The coefficients that are expected of how often answers are right: it rises with the top score."""
    return np.asarray(np.eye(6 if grid.pairs else 3)[1])


def _regression(places: Floats, yes: Floats, no: Floats, prior: Floats) -> Floats:
    """The logits, by bin, of a ridge regression of yes against no, drawn towards the prior coefficients."""
    ridge = np.array([0.0, RIDGE, *[4 * RIDGE] * (places.shape[1] - 2)])

    def loss(theta: Floats) -> tuple[float, Floats]:
        logit, apart = places @ theta, theta - prior
        slope = places.T @ (no * _expit(logit) - yes * _expit(-logit)) + ridge * apart
        value = (np.logaddexp(0, -logit) * yes + np.logaddexp(0, logit) * no).sum() + (ridge * apart**2).sum() / 2
        return float(value), slope

    return np.asarray(places @ minimize(loss, prior, jac=True, method="L-BFGS-B").x)


def _expit(logit: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -500, 500))))
