"""What each ε leaves of a fitted veil's confidence: a veil fitted for each of several, and what it costs.

from scoreveil.fitting.frontier import frontier

trials = frontier(nonmembers=out, nonmember_labels=y_out, members=inn)    # without ε first, then smaller and smaller
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scoreveil.fitting import fit
from scoreveil.fitting.cost import Cost, cost
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.veil import Veil

EPSILONS: tuple[float | None, ...] = (None, 8.0, 4.0, 2.0, 1.0, 0.5)


@dataclass(frozen=True)
class Trial:
    """One ε, or none: what a veil that was fitted for it promises, and what it costs where there are labels to tell."""

    epsilon: float | None
    guarantee: Guarantee
    cost: Cost | None


def fit_and_measure(epsilon: float | None = None, **given: Any) -> tuple[Veil, Trial]:
    """The veil of all records, and what such a veil costs; takes what `fit` takes."""
    veil = fit(epsilon=epsilon, **given)
    measured = None if given.get("nonmember_labels") is None else cost(epsilon=epsilon, **given)
    return veil, Trial(epsilon, veil.guarantee, measured)


def frontier(epsilons: Iterable[float | None] = EPSILONS, **given: Any) -> tuple[Trial, ...]:
    """A trial of each ε, in this order; takes what `fit` takes."""
    return tuple(fit_and_measure(epsilon, **given)[1] for epsilon in epsilons)
