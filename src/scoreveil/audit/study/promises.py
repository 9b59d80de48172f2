"""Whether a setting keeps its ε: what attacks on one answer prove, beside what is promised.

    proof(promised, "label", target, shadow, defense, seed).proved_epsilon

ε promises that for any two score vectors with the same label (the same ranking, where that is kept) an answer is at
most e^ε times as likely for one as for the other. What is kept is outside the promise, and so is the true label, where
the attacker is told it. So members are compared with as many non-members that share all this, a *cell*: for any set S

    P(answer in S | such a member) ≤ e^ε P(answer in S | such a non-member), and the other way round,

whoever the records are, since only the draws are random. S is where an attack, fitted on the shadow's answers, says
"member". A proved ε above the promised one contradicts the promise.
"""

from dataclasses import dataclass

import numpy as np

from scoreveil.arrays import Integers
from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.attacks.features import ranks
from scoreveil.audit.attacks.interface import Attack
from scoreveil.audit.data.records import Defense, Membership
from scoreveil.audit.defenses.interface import Kept
from scoreveil.audit.study.proved import pairs, proved_epsilon

CONFIDENCE = 0.999  # of one setting: fifty settings hold together with 95 %
FEWEST = 100  # members, and as many non-members that share what is kept: fewer prove nothing
ANSWERS = 8  # about each record: draws are all that is random, so each counts


@dataclass(frozen=True)
class Proof:
    """What the answers of one setting prove."""

    promised_epsilon: float
    proved_epsilon: float | None  # a lower bound; None where too few records share what is kept


def proof(promised: float, kept: Kept, target: Membership, shadow: Membership, defense: Defense, seed: int) -> Proof:
    """The largest ε that an attack proves, with and without the true label.

    Args:
        promised: ε of the setting.
        kept: What of a score vector is outside the promise.
        target: Members and non-members, undefended.
        shadow: The same to fit attacks on.
        defense: Answers with fresh draws whenever it is asked.
        seed: Of matching and fitting.
    """
    told = target.is_labelled and shadow.is_labelled
    attacks = [ATTACKS["gradient_boosting"], *([ATTACKS["gradient_boosting_known"]] if told else [])]
    confidence = 1 - (1 - CONFIDENCE) / len(attacks)
    each = [_proved(attack, kept, target, shadow, defense, seed, confidence) for attack in attacks]
    return Proof(promised, max((bound for bound in each if bound is not None), default=None))


def _proved(
    attack: Attack, kept: Kept, target: Membership, shadow: Membership, defense: Defense, seed: int, confidence: float
) -> float | None:
    rng = np.random.default_rng(seed)
    practice = _matched(shadow, *cells(shadow, kept, attack.knows_label), rng)
    inside, outside = cells(target, kept, attack.knows_label)
    if min(len(practice.members), len(pairs(inside, outside, rng)[0])) < FEWEST:
        return None
    says = attack.fit(practice.defended(defense), attack.features[0], rng)
    members, others = (
        np.concatenate([says(side.defended(defense)) for _ in range(ANSWERS)])
        for side in (target.members, target.nonmembers)
    )
    return proved_epsilon(
        members,
        others,
        confidence=confidence,
        in_cells=np.tile(inside, ANSWERS),
        out_cells=np.tile(outside, ANSWERS),
        seed=seed,
    )


def _matched(given: Membership, inside: Integers, outside: Integers, rng: np.random.Generator) -> Membership:
    first, second = pairs(inside, outside, rng)
    return Membership(given.members.take(first), given.nonmembers.take(second))


def cells(given: Membership, kept: Kept, told: bool) -> tuple[Integers, Integers]:
    """A number for each member and for each non-member: the same where what is kept, and told, is the same."""
    records = given.records
    parts = [records.predicted[:, None] if kept == "label" else ranks(records.scores)]
    parts += [records.true_labels[:, None]] if told else []
    _, numbers = np.unique(np.column_stack(parts), axis=0, return_inverse=True)
    inside, outside = np.split(numbers.ravel(), [len(given.members)])
    return inside, outside
