"""What each ε leaves of a fitted veil's confidence: a veil fitted for each of several, and what it costs.

from scoreveil.fitting.frontier import frontier

trials = frontier(nonmembers=out, nonmember_labels=y_out, members=inn)    # without ε first, then smaller and smaller
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scoreveil.files.records import Source
from scoreveil.fitting import fit
from scoreveil.fitting.cost import Cost, cost_of, cross_fitted
from scoreveil.fitting.decision import Evidence
from scoreveil.fitting.evidence import evidence_of
from scoreveil.fitting.records import read_both
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.shapes import VECTORS
from scoreveil.veil import Veil

RATE = 0.01  # false positives at which true ones are told
EPSILONS: tuple[float | None, ...] = (None, 8.0, 4.0, 2.0, 1.0, 0.5)


@dataclass(frozen=True)
class Trial:
    """One ε, or none: what its veil promises, what it costs where there are labels to tell, and whether to take it."""

    epsilon: float | None
    guarantee: Guarantee
    cost: Cost | None
    evidence: Evidence


def fit_and_measure(
    epsilon: float | None,
    nonmembers: Source,
    nonmember_labels: Source = None,
    members: Source = None,
    member_labels: Source = None,
    **options: Any,
) -> tuple[Veil, Trial]:
    """The veil of all records, and what such a veil is worth; takes what `fit` takes."""
    options |= {"epsilon": epsilon}
    shape = options.get("shape", VECTORS)
    others, inside, _ = read_both(nonmembers, nonmember_labels, members, member_labels, shape=shape)
    veil = fit(others, members=inside, **options)
    rng = np.random.default_rng(0)  # measured twice, the same comes out: nothing here is released
    answers = cross_fitted(others, inside, rng, **options)
    evidence = evidence_of(answers, veil, options.get("beyond", "label"))
    return veil, Trial(epsilon, veil.guarantee, None if others.labels is None else cost_of(answers, rng), evidence)


def frontier(epsilons: Iterable[float | None] = EPSILONS, **given: Any) -> tuple[Trial, ...]:
    """A trial of each ε, in this order; takes what `fit` takes."""
    return tuple(fit_and_measure(epsilon, **given)[1] for epsilon in epsilons)


def most_found(epsilon: float | None, rate: float = RATE) -> float:
    """The largest true positive rate that ε allows at a false positive rate: min(e^ε·f, 1 - (1 - f)·e^-ε)."""
    if epsilon is None or epsilon > 50:
        return 1.0
    return min(math.exp(epsilon) * rate, 1 - (1 - rate) * math.exp(-epsilon))
