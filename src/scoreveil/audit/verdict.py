"""What follows from a study: whether the scores leak more than the label, and what to do about it.

    judged = verdict(study)
    judged.excess.outcome                               # LEAKS, NO_MORE or UNDECIDED
    judged.advice                                       # Advice.TAKE_VEIL, …: as `scoreveil fit` decides
    judged.recommended                                  # ("regions", None), or None

The *excess* of a setting is how far the AUC of the best attack on the scores lies above what the label alone gives to
the same attacker, max_i min_j (a_i - f_j), over attacks i and floors j: guessing, the attack on the label, and of
shadow-model attacks their own form that is given labels alone. Its 95 % bounds are

    low  = max_i min_j (a_i - f_j - z(5 % / attacks) s_ij)     since the best of many attacks is lucky, too
    high = max_i min_j (a_i - f_j + z(5 % / floors) s_ij)      since the highest of several floors is, too

where s_ij² = Var a_i + Var f_j, by DeLong: no less than the error of the difference, since both are judged on the same
records, or, of an attack that knows half of them, on others. Two one-sided tests follow, with the margin .02. `high`
within the margin: no more than the label. Else `low` above 0: it leaks. Else it cannot be told from this many records;
where high - low is below the margin, it always can.

An attacker who knows the true label may also ignore it: "with the label" is the best of all attacks, "without" the best
of those that are not told it. Every form counts, the paper's too: a defense is as good as the best attack tried on it.
Settings are compared by the attacks that were run on all of them.

What to do is decided by `fitting/decision.py`, from the evidence that `scoreveil fit` measures too, joined by these
attacks where they surely find more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from scoreveil.audit.study.results import (
    CHANCE,
    LABEL,
    TEMPERED,
    UNDEFENDED,
    VEIL,
    AttackResult,
    DefenseResult,
    Measure,
    Setting,
    Study,
    floor,
    floors,
    or_guessing,
    shared,
)
from scoreveil.fitting.decision import MARGIN, Advice, Evidence, Excess, decide, preferred

ERROR = 0.05  # how often a bound may be wrong
RATES: dict[Measure, float] = {"tpr_at_1pct": 0.01, "tpr_at_01pct": 0.001}
MIN_ALARMS = 10  # false alarms that a share of members found rests on


@dataclass(frozen=True)
class AuditVerdict:
    """What follows from a study. `report/sentences.py` says it in words."""

    study: Study
    compared: Study  # with the attacks alone that were run on both no defense and the fitted veils
    leaks: tuple["Leak", ...]  # what each kind of attacker gets undefended
    excess: Excess  # of the undefended scores
    evidence: Evidence | None  # what the advice rests on; None where no fitted veil was studied

    @property
    def advice(self) -> Advice | None:
        """What to do."""
        return None if self.evidence is None else decide(self.evidence)

    @property
    def recommended(self) -> Setting | None:
        """The veil or the label; None where nothing leaks, or nothing can be told."""
        return recommended(self.evidence)

    @property
    def undefended(self) -> AttackResult:
        """The best attack."""
        return max((leak.best for leak in self.leaks), key=lambda r: r.auc)

    @property
    def floors(self) -> tuple[AttackResult, ...]:
        """What the label alone gives, without and with the true label."""
        return tuple(leak.floor for leak in self.leaks if leak.floor)


# What an attacker gets


def knowledge(study: Study) -> tuple[bool, ...]:
    """The attackers that were studied: without the true label (False), with it (True)."""
    return tuple(sorted({r.knows_label for r in study.results}))


def needed(measure: Measure) -> int:
    """How many non-members it takes to tell how many members are found at so few false alarms; 1 for other measures."""
    return round(MIN_ALARMS / RATES[measure]) if measure in RATES else 1


def readable(result: AttackResult, measure: Measure) -> bool:
    """Whether there were as many."""
    return result.nonmembers >= needed(measure)


@dataclass(frozen=True)
class Leak:
    """What one kind of attacker gets from a setting, beside what the label alone gives it."""

    told: bool
    attacks: tuple[tuple[AttackResult, tuple[AttackResult, ...]], ...]  # on the scores, each with its floors
    floor: AttackResult | None

    @property
    def best(self) -> AttackResult:
        return max((one for one, _ in self.attacks), key=lambda r: r.auc)

    @property
    def floor_auc(self) -> float:
        return self.floor.auc if self.floor else CHANCE

    @property
    def excess(self) -> float:
        return max(min(one.auc - f for f in (CHANCE, *(r.auc for r in floors))) for one, floors in self.attacks)

    def bound(self, side: Literal[-1, 1], attacks: int, verdicts: int = 1) -> float:
        """The lower (-1) or upper (1) bound of the excess, where the best of so many attacks is taken."""

        def least(one: AttackResult, floors: tuple[AttackResult, ...]) -> float:
            z = side * quantile(verdicts * (attacks if side < 0 else 1 + len(floors)))
            own = deviation(one)
            pairs = ((CHANCE, 0.0), *((r.auc, deviation(r)) for r in floors))
            return min(one.auc - level + z * math.hypot(own, error) for level, error in pairs)

        return max(least(*pair) for pair in self.attacks)


def either_way(result: AttackResult) -> AttackResult:
    """An attack that is surely wrong is right the other way round: whoever sees that takes it so."""
    if not result.auc_high < CHANCE - MARGIN:
        return result
    return replace(result, auc=1 - result.auc, auc_low=1 - result.auc_high, auc_high=1 - result.auc_low)


def leaks(study: Study, setting: Setting, among: Study | None = None) -> tuple[Leak, ...]:
    """One for each kind of attacker that was studied.

    Args:
        study: All of the study: the floors come from it.
        setting: What is attacked.
        among: The study with those attacks alone that count; by default all of them.
    """
    counting = [either_way(r) for r in (among or study).results if r.setting == setting and r.reads != "label"]
    own = {r.attack: or_guessing(r) for r in study.results if r.setting == UNDEFENDED and r.reads == "label"}
    attackers = []
    for told in knowledge(study):
        shared_floors = floors(study, told)
        attacks = [r for r in counting if told or not r.knows_label]
        pairs = tuple((r, (*shared_floors, *([own[r.attack]] if r.attack in own else []))) for r in attacks)
        if pairs:
            attackers.append(Leak(told, pairs, floor(study, told)))
    return tuple(attackers)


def excess(attackers: Sequence[Leak], verdicts: int = 1) -> Excess:
    """The worst of the attackers' excess over their floors, where so many verdicts are given at once."""
    attacks = sum(len(leak.attacks) for leak in attackers)
    return Excess(
        max(leak.excess for leak in attackers),
        max(leak.bound(-1, attacks, verdicts) for leak in attackers),
        max(leak.bound(1, attacks, verdicts) for leak in attackers),
    )


def quantile(tests: int) -> float:
    """The normal quantile of a one-sided bound that is one of so many (Bonferroni)."""
    return NormalDist().inv_cdf(1 - ERROR / tests)


def deviation(result: AttackResult) -> float:
    """The standard error of the AUC, from its interval, one end of which may be cut off."""
    return max(result.auc - result.auc_low, result.auc_high - result.auc) / NormalDist().inv_cdf(0.975)


def veils_tried(study: Study) -> list[Setting]:
    """The settings of the fitted veil that were attacked, the most revealing first."""
    tried = {r.epsilon for r in study.results if r.defense == VEIL}
    return [(VEIL, epsilon) for epsilon in sorted(tried, key=lambda e: -(e or math.inf))]


# The verdict


def verdict(study: Study, labels: Sequence[Study] = ()) -> AuditVerdict:
    """What follows from a study.

    Args:
        study: The attacks, and the evidence of the veils that were tried.
        labels: Where the study is of whole answers with many labels, those of each: the worst of them counts, and the
            bounds of all hold together (Bonferroni).

    Raises:
        ValueError: Nothing was attacked undefended, so there is nothing to compare with.
    """
    tried = veils_tried(study)
    compared = shared(study, [UNDEFENDED, *tried])
    undefended = leaks(study, UNDEFENDED, compared)
    if not undefended:
        there = ", ".join(sorted({r.defense for r in study.results})) or "no results"
        raise ValueError(f"Expected attacks on the undefended scores (defense 'none'), got {there}.")

    def worst(setting: Setting, verdicts: int) -> Excess:
        of_labels = (leaks(one, setting) for one in labels)
        every = [leaks(study, setting, compared), *of_labels]
        return max((excess(one, verdicts * len(every)) for one in every), key=lambda one: one.low)

    attacks = worst(UNDEFENDED, 1 + bool(study.evidence))
    # half of the error is left for the attacks, half for the evidence
    evidence = preferred(
        tuple(
            one.joined(attacks, worst((VEIL, one.epsilon), 2)) for one in study.evidence if (VEIL, one.epsilon) in tried
        )
    )
    decisive = attacks if evidence is None or evidence.leak is None else evidence.leak
    return AuditVerdict(study, compared, undefended, decisive, evidence)


def recommended(evidence: Evidence | None) -> Setting | None:
    """The setting that an advice comes to: the veil, or the label; None for others."""
    if evidence is None:
        return None
    return {Advice.TAKE_VEIL: (VEIL, evidence.epsilon), Advice.LABELS_ONLY: LABEL}.get(decide(evidence))


def ways_to_answer(study: Study, recommended: Setting | None) -> list[DefenseResult]:
    """Raw scores; the same after temperature scaling, since calibration is no veil's merit; the recommended veil; the
    label with a constant confidence: what each is worth, as far as it was measured."""
    ways = dict.fromkeys((UNDEFENDED, TEMPERED, recommended or UNDEFENDED, LABEL))
    return [study.costs[way] for way in ways if way in study.costs]
