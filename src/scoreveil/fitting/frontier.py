"""What each ε promises and leaves: a veil fitted for each of several, and what it costs.

from scoreveil.fitting.frontier import frontier, smallest_better

trials = frontier(nonmembers=out, nonmember_labels=y_out, members=inn)
smallest_better(trials)       # the smallest ε that is clearly better than the label alone
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scoreveil.fitting import fit
from scoreveil.fitting.cost import Cost, cost
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.veil import Veil

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Trial:
    """One ε: what a veil that was fitted for it promises, and what it costs, where there were labels to measure by."""

    epsilon: float
    guarantee: Guarantee
    cost: Cost | None


def fit_and_measure(epsilon: float, **given: Any) -> tuple[Veil, Trial]:
    """The veil of all records, and what such a veil costs; takes what `fit` takes."""
    veil = fit(epsilon, **given)
    measured = None if given.get("nonmember_labels") is None else cost(epsilon, **given)
    return veil, Trial(float(epsilon), veil.guarantee, measured)


def frontier(epsilons: Iterable[float] = EPSILONS, **given: Any) -> tuple[Trial, ...]:
    """A trial of each ε, ascending; takes what `fit` takes."""
    return tuple(fit_and_measure(epsilon, **given)[1] for epsilon in sorted(set(epsilons)))


def smallest_better(trials: Iterable[Trial]) -> float | None:
    """The smallest ε whose veil is clearly better than the label with a constant confidence; None where none is."""
    better = (trial.epsilon for trial in trials if trial.cost is not None and trial.cost.beats_label)
    return min(better, default=None)
