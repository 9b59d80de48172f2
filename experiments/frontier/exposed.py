"""The most exposed records, and canaries: what a defense does for those who need it most.

    told = leave_one_out(crowd.defended(defense), lambda model: most_exposed(plain, model, 100))
    told["lira_online"].tpr_at_1pct

An average hides the few records that an attacker is sure of (Aerni et al. 2024). Each of several models is the target
in turn and the others are its shadows, so that a few records make many trials. Canaries are records with a wrong label,
which a model must learn by heart. The most exposed records are those whose score rises most when they are trained on,
as other models tell. A model that was trained on just those records that the target was not trained on is never among
its shadows: what it has not seen would give the target's records away.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks import COMPARISONS, likelihood
from scoreveil.audit.data.records import Bools, Defense, Records
from scoreveil.audit.study.metrics import membership_metrics
from scoreveil.audit.study.results import MembershipMetrics

ATTACKS = ("lira_online", "lira_offline", "base_online", "calibrated_loss")  # those that need no population


@dataclass(frozen=True, eq=False)
class Crowd:
    """Records under several models that were trained alike, each on some of them."""

    answers: Floats  # (models, n, k)
    inside: Bools  # (models, n): whether the model was trained on the record
    labels: Integers  # (n,), as they were trained on

    def __post_init__(self) -> None:
        if self.answers.shape[:2] != self.inside.shape or self.inside.shape[1:] != self.labels.shape:
            raise ValueError(
                "Expected answers (models, n, k), inside (models, n) and n labels, "
                f"got {self.answers.shape}, {self.inside.shape} and {self.labels.shape}."
            )

    def take(self, index: Integers | slice) -> "Crowd":
        """Some of the records."""
        return Crowd(self.answers[:, index], self.inside[:, index], self.labels[index])

    def defended(self, defense: Defense) -> "Crowd":
        """With a defense before each of the models."""
        return replace(self, answers=np.stack([defense(rows) for rows in self.answers]))

    def others(self, model: int) -> Bools:
        """The shadows of a model: neither itself, nor the one that was trained on all other records."""
        opposite = (self.inside != self.inside[model]).all(axis=1)
        return np.asarray((np.arange(len(self.inside)) != model) & ~opposite)


def most_exposed(crowd: Crowd, model: int, count: int) -> Integers:
    """The records whose log-odds rise most when they are trained on, as the shadows of a model tell."""
    others = crowd.others(model)
    inside = crowd.inside[others]
    odds = likelihood.Ensemble(crowd.answers[others], inside).log_odds(crowd.labels)
    odds -= np.median(odds, axis=1, keepdims=True)  # one shadow may be surer of everything than another
    rise = likelihood.mean_over(odds, inside, "inside") - likelihood.mean_over(odds, ~inside, "outside")
    return np.argsort(-rise, kind="stable")[:count]


def leave_one_out(crowd: Crowd, chosen: Callable[[int], Integers]) -> dict[str, MembershipMetrics]:
    """How well each attack tells members among the chosen records, over all models.

    Args:
        crowd: Models and their answers.
        chosen: The records that are attacked where a model is the target.
    """
    said: dict[str, list[Floats]] = {name: [] for name in ATTACKS}
    truth: list[Bools] = []
    for model in range(len(crowd.answers)):
        rows, others = chosen(model), crowd.others(model)
        target = Records(crowd.answers[model, rows], crowd.labels[rows])
        ensemble = likelihood.Ensemble(crowd.answers[others][:, rows], crowd.inside[others][:, rows])
        truth.append(crowd.inside[model, rows])
        for name, of_all in said.items():
            of_all.append(COMPARISONS[name].compare(target, ensemble))
    return {name: membership_metrics(np.concatenate(truth), np.concatenate(of_all)) for name, of_all in said.items()}
