"""LiRA and RMIA: how a record's score compares with what many shadow models, with and without it, say of it.

    ensemble = Ensemble(scores, inside)          # the same records under every shadow, the same defense applied
    lira_online(target, ensemble)                # one number for each record: the higher, the more likely a member

LiRA (Carlini et al. 2022) compares by Gaussians on the log-odds of the true label, one for each record. RMIA
(Zarifzadeh et al. 2024) compares the record's likelihood ratio with those of a population of non-members. As with
every attack a result of 0.5 or more says "member"; results are not squeezed into [0, 1], which would tie the very
records that a low false positive rate is about.
"""

from dataclasses import dataclass

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.features import SMALLEST_FLOAT, at, log_odds
from scoreveil.audit.data.records import Bools, Records

ENOUGH_SHADOWS = 64  # with fewer on a side, one variance for all records is better than one for each (Carlini et al.)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Records under many shadow models, each trained on some of them."""

    scores: Floats  # (shadows, n, k), defended as the target's are
    inside: Bools  # (shadows, n): whether the shadow was trained on the record

    def __post_init__(self) -> None:
        if self.scores.ndim != 3 or self.inside.shape != self.scores.shape[:2]:
            raise ValueError(
                "Expected scores (shadows, n, k) and inside (shadows, n), "
                f"got {self.scores.shape} and {self.inside.shape}."
            )

    def log_odds(self, labels: Integers) -> Floats:
        return np.stack([log_odds(scores, labels) for scores in self.scores])

    def confidence(self, labels: Integers) -> Floats:
        return np.stack([at(scores, labels) for scores in self.scores])


def lira_online(target: Records, ensemble: Ensemble) -> Floats:
    """ln N(φ; μ_in, σ_in²) − ln N(φ; μ_out, σ_out²), φ = ln p_y/(1 − p_y); 0.5 is even odds."""
    labels = target.true_labels
    own, shadows = log_odds(target.scores, labels), ensemble.log_odds(labels)
    within = log_density(own, *gaussians(shadows, ensemble.inside, "inside"))
    without = log_density(own, *gaussians(shadows, ~ensemble.inside, "outside"))
    return np.asarray(0.5 + within - without)


def lira_offline(target: Records, ensemble: Ensemble) -> Floats:
    """(φ − μ_out)/σ_out, in the order of LiRA's one-sided test P[N(μ_out, σ_out²) ≤ φ].

    Shadows without the record tell nothing about members, so there is no threshold of its own: half of the
    non-members lie above 0.5.
    """
    labels = target.true_labels
    mean, deviation = gaussians(ensemble.log_odds(labels), ~ensemble.inside, "outside")
    return np.asarray(0.5 + (log_odds(target.scores, labels) - mean) / deviation)


def rmia_online(
    target: Records, ensemble: Ensemble, population: Records, of_population: Ensemble, gamma: float = 1.0
) -> Floats:
    """The share of population records z that x dominates: (p(x|θ)/p(x)) / (p(z|θ)/p(z)) ≥ γ.

    p(x) is the mean over shadows with and without x. The result is monotone in p(x|θ)/p(x) for every γ; γ = 1 has
    the finest steps.
    """
    ratios = _ratio(target, mean_of_either(ensemble, target.true_labels))
    return _dominated(ratios, _ratio(population, mean_of_either(of_population, population.true_labels)), gamma)


def rmia_offline(
    target: Records,
    ensemble: Ensemble,
    population: Records,
    of_population: Ensemble,
    gamma: float = 1.0,
    a: float = 1 / 3,
) -> Floats:
    """The same with shadows that never saw x: p(x) = ½((1 + a)·p_out(x) + 1 − a).

    `a` says how far a member's score rises above p_out: 1, not at all; 0, half-way to 1. Scores that a defense has
    flattened never come near 1, and a = 1 suits them.
    """

    def expected(records: Records, shadows: Ensemble) -> Floats:
        outside = mean_over(shadows.confidence(records.true_labels), ~shadows.inside, "outside")
        return np.asarray(((1 + a) * outside + 1 - a) / 2)

    ratios = _ratio(target, expected(target, ensemble))
    return _dominated(ratios, _ratio(population, expected(population, of_population)), gamma)


def gaussians(values: Floats, chosen: Bools, side: str) -> tuple[Floats, Floats]:
    """Mean and deviation of each record over the chosen shadows, (n,) each."""
    mean = mean_over(values, chosen, side)
    squares = np.where(chosen, (values - mean) ** 2, 0.0).sum(axis=0)
    degrees = chosen.sum(axis=0) - 1
    if degrees.sum() == 0:
        raise ValueError(
            f"Expected two shadows or more with a record {side}, got 1 for each record: train more shadows."
        )
    if degrees.min() < ENOUGH_SHADOWS - 1:
        variance = np.full(len(mean), squares.sum() / degrees.sum())
    else:
        variance = squares / degrees
    return mean, np.sqrt(np.maximum(variance, 1e-30))


def mean_over(values: Floats, chosen: Bools, side: str) -> Floats:
    counts = chosen.sum(axis=0)
    if not counts.min() > 0:
        raise ValueError(f"Expected every record {side} some shadow, got {int((counts == 0).sum())} that never are.")
    return np.asarray(np.where(chosen, values, 0.0).sum(axis=0) / counts)


def log_density(values: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Without the constant, which cancels."""
    return np.asarray(-0.5 * ((values - mean) / deviation) ** 2 - np.log(deviation))


def mean_of_either(ensemble: Ensemble, labels: Integers) -> Floats:
    """The mean confidence, half of it from shadows with the record; population records may have no such shadow."""
    values, inside = ensemble.confidence(labels), ensemble.inside
    outside = mean_over(values, ~inside, "outside")
    counts = inside.sum(axis=0)
    within = np.where(inside, values, 0.0).sum(axis=0) / np.maximum(counts, 1)
    return np.asarray(np.where(counts > 0, (within + outside) / 2, outside))


def _ratio(records: Records, expected: Floats) -> Floats:
    return np.asarray((at(records.scores, records.true_labels) + SMALLEST_FLOAT) / (expected + SMALLEST_FLOAT))


def _dominated(ratios: Floats, of_population: Floats, gamma: float) -> Floats:
    ascending = np.sort(of_population)
    return np.asarray(np.searchsorted(ascending, ratios / gamma, side="right") / len(ascending))
