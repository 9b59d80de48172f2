"""What every membership attack is: it is fitted on a shadow whose members are known, then scores any records."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scoreveil.arrays import Floats
from scoreveil.audit.data.records import Membership, Records

Scorer = Callable[[Records], Floats]  # one number for each record: the higher, the more likely a member
Features = Literal["scores", "standardised", "log_ratios"]
Fit = Callable[[Membership, Features, np.random.Generator], Scorer]

EVERY_FEATURE: tuple[Features, ...] = ("scores", "standardised", "log_ratios")


@dataclass(frozen=True)
class Attack:
    """An attack by name.

    fit(shadow, features, rng)  learns from known members and non-members, and returns how to score records. A scorer
                                crosses 0.5 where it says "member": what the shadow taught it to say
    reads        what of a score vector it looks at; "label" and "ranking" are floors that no defense that keeps them
                 can pass
    knows_label  whether it is told the true label of each record
    features     the forms of the scores that the adaptive attacker tries; the first is the paper's
    knows_half   whether it is told half of the target's own members and non-members, and fitted on these instead of on
                 the shadow
    needs        what beyond scores it needs: "variants" (labels of augmented copies)
    package      the optional package that it runs on
    cost         how long it takes, beside one that compares with a threshold: about 50 ms for 10,000 records
    """

    name: str
    fit: Fit
    reads: Literal["scores", "ranking", "label"] = "scores"
    knows_label: bool = False
    features: tuple[Features, ...] = ("scores",)
    knows_half: bool = False
    needs: Literal["", "variants"] = ""
    package: str = ""
    cost: int = 1


@dataclass(frozen=True)
class Comparison:
    """An attack by name that compares a record under the target with the same record under many shadows.

    compare     from the target's records and their `likelihood.Ensemble` to one number for each: ≥ 0.5 for "member"
    features    the form of the scores that it reads
    population  whether it is given the same two of a population of non-members, too
    """

    name: str
    compare: Callable[..., Floats]
    features: Literal["scores", "log_odds"]
    population: bool = False
