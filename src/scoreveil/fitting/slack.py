"""How much larger the advantage can be on new records: errors of histograms that do not depend on the table.

The errors are simulated by drawing records and noise anew from the histograms (a parametric bootstrap; labels that are
told apart have at least 100 records). What comes out bounds every table on these bins at once, not the fitted one
alone, and so has room for what a simulation misses. For the answer alone there are bounds that hold for every
distribution and number of records, n of others and m of members, and count where a side has fewer than `FEW` records:
of cumulative sums P(sup |F̂ - F| > s) <= 2·exp(-2ns²) (Dvoretzky, Kiefer, Wolfowitz; Massart) for each side; of all bins
together ½ Σ_b |W(b)| <= ½ √(B(1/n + 1/m)) on average (Cauchy, Schwarz), and more by s with chance exp(-2s²/(1/n + 1/m))
(McDiarmid).

The level is divided between the attackers, and between the bounds of each. Which bins were joined, a decision made on
noisy counts, is taken as given.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.fitting.histograms import NOISE, Places, clipped

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
SIMULATIONS = 1000
FEW = 200


def slack(places: Places) -> Floats:
    """(3, 3): for each attacker upper quantiles of the errors of totals, of cumulative sums, and half of all errors."""
    rng = np.random.default_rng(0)  # simulations: nothing private in them
    share = (1 - CONFIDENCE) / (3 if places.histogram.shape[2] == 2 else 2)
    drawn = [_redrawn(places, side, rng) for side in (0, 1)]  # (simulations, groups, 1 or 2, bins) each
    found = np.zeros((3, 3))
    found[0, 1:] = found[1, 1:] = _alone(places, drawn, share)
    if min(places.sizes) < FEW:
        found[0, 1:] = found[1, 1:] = _alone_with_few(places, share, rng)
    if places.histogram.shape[1] > 1:
        found[1] = _given_label(places, drawn, share)
    if places.histogram.shape[2] == 2:
        found[2] = _told(places, drawn, share)
    return found


def _alone(places: Places, drawn: list[Floats], share: float) -> tuple[float, float]:
    error = np.zeros((SIMULATIONS, places.histogram.shape[3]))
    for side, sign in ((0, -1), (1, 1)):
        error += sign * (drawn[side].sum(axis=(1, 2)) - _population(places, side).sum(axis=(0, 1)))
    sums, half = np.abs(np.cumsum(error, axis=1)).max(axis=1), np.abs(error).sum(axis=1) / 2
    return _quantile(sums, share / 2), _quantile(half, share / 2)


def _alone_with_few(places: Places, share: float, rng: np.random.Generator) -> tuple[float, float]:
    """By bounds that hold for every distribution; quantiles of their sums with the noise are simulated."""
    inverse = sum(1 / size for size in places.sizes)
    sums, half = np.zeros(SIMULATIONS), np.full(SIMULATIONS, math.sqrt(places.histogram.shape[3] * inverse) / 2)
    half += np.sqrt(np.log(1 / rng.random(SIMULATIONS)) * inverse / 2)
    for side in (0, 1):
        sums += np.sqrt(np.log(2 / rng.random(SIMULATIONS)) / (2 * places.sizes[side]))
        counts = places.histogram[side]
        noisy = _noised(np.broadcast_to(counts, (SIMULATIONS, *counts.shape)), places, rng).sum(axis=(1, 2))
        before = counts.sum(axis=(0, 1)) / counts.sum()
        error = noisy / noisy.sum(axis=1, keepdims=True) - before
        sums += np.abs(np.cumsum(error, axis=1)).max(axis=1)
        half += np.abs(error).sum(axis=1) / 2
    return _quantile(sums, share / 2), _quantile(half, share / 2)


def _population(places: Places, side: int) -> Floats:
    """What is drawn from: the histogram, with something in every cell."""
    counts = places.histogram[side] + 0.5
    return np.asarray(counts / counts.sum())


def _redrawn(places: Places, side: int, rng: np.random.Generator) -> Floats:
    """Histograms as the same fit would find them, as shares."""
    population, size = _population(places, side), places.sizes[side]
    counts = rng.multinomial(size, population.ravel(), SIMULATIONS).reshape(SIMULATIONS, *population.shape)
    noisy = _noised(counts, places, rng)
    return np.asarray(noisy / noisy.sum(axis=(1, 2, 3), keepdims=True))


def _noised(counts: NDArray[Any], places: Places, rng: np.random.Generator) -> Floats:
    """Histograms with the noise of a release; that of labels which were taken together adds up."""
    cells = np.bincount(places.group_of_class) if places.as_released[0] > 1 else np.ones(1)
    noise = rng.laplace(0, 1 / NOISE, counts.shape) * np.sqrt(cells)[:, None, None]
    return clipped(counts + noise, batch=1)


def _given_label(places: Places, drawn: list[Floats], share: float) -> tuple[float, float, float]:
    """Errors of the labels' weights, and of the histograms within labels, weighted."""
    population = [_population(places, side).sum(axis=1) for side in (0, 1)]  # (groups, bins)
    found = [each.sum(axis=2) for each in drawn]
    weight = np.minimum(*(each.sum(axis=1) for each in population))
    found_weight = np.minimum(*(each.sum(axis=2) for each in found))
    totals = _quantile(np.maximum(weight - found_weight, 0).sum(axis=1), share / 5)
    error = np.zeros_like(found[0])
    for sign, new, old in zip((-1, 1), found, population, strict=True):
        error += sign * (new / np.maximum(new.sum(axis=2, keepdims=True), 1e-12) - old / old.sum(axis=1, keepdims=True))
    bounds = []
    for within in (
        np.abs(np.cumsum(error, axis=2)).max(axis=2),
        np.abs(error).sum(axis=2) / 2,
    ):  # (simulations, groups)
        weighted = _quantile((within * found_weight).sum(axis=1), share / 5)
        bounds.append(weighted + totals * _quantile(within.max(axis=1), share / 5))
    return totals, bounds[0], bounds[1]


def _told(places: Places, drawn: list[Floats], share: float) -> tuple[float, float, float]:
    """Errors of how often each side is right, and of the histograms around it."""
    population = [_population(places, side).sum(axis=0) for side in (0, 1)]  # (2, bins)
    error = (drawn[1].sum(axis=1) - population[1]) - (drawn[0].sum(axis=1) - population[0])
    totals = error.sum(axis=2, keepdims=True)
    shape = population[0] + population[1]
    around = error - totals * (shape / shape.sum(axis=1, keepdims=True))
    return (
        _quantile(np.abs(totals).sum(axis=(1, 2)), share / 3),
        _quantile(np.abs(np.cumsum(around, axis=2)).max(axis=2).sum(axis=1), share / 3),
        _quantile(np.abs(around).sum(axis=(1, 2)) / 2, share / 3),
    )


def _quantile(values: Floats, beyond: float) -> float:
    """What at most this part of the simulated values exceeds."""
    return float(np.quantile(values, 1 - beyond, method="higher"))
