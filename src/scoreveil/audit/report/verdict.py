"""What follows from a study: whether the scores leak more than the label, and what to do about it.

    found = verdict(study)
    found.excess.outcome                                # LEAKS, NO_MORE or UNDECIDED
    found.advice                                        # Advice.TAKE_VEIL, …: as `scoreveil fit` decides
    found.recommended                                   # ("regions", None), or None

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

from scoreveil.audit.attacks.boundary import QUESTIONS
from scoreveil.audit.report.wording import attack, attack_list, interval, number, percent, setting_in_words
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
    best,
    floor,
    floors,
    left_out,
    or_guessing,
    shared,
)
from scoreveil.fitting.decision import (
    LEAKS,
    MARGIN,
    NO_MORE,
    UNDECIDED,
    Advice,
    Evidence,
    Excess,
    Outcome,
    decide,
    preferred,
    sentences,
    veil_name,
)

ERROR = 0.05  # how often a bound may be wrong
HEADLINES: dict[Outcome, str] = {
    LEAKS: "The scores leak.",
    NO_MORE: "The scores leak no more than the label.",
    UNDECIDED: "Whether the scores leak cannot be told from this many records.",
}
RATES: dict[Measure, float] = {"tpr_at_1pct": 0.01, "tpr_at_01pct": 0.001}
FEWEST_ALARMS = 10  # false alarms that a share of members found rests on


@dataclass(frozen=True)
class AuditVerdict:
    """The study in a few sentences, with the setting it recommends."""

    undefended: AttackResult
    excess: Excess  # of the undefended scores
    floors: tuple[AttackResult, ...]  # what the label alone gives, without and with the true label
    evidence: Evidence | None  # what the advice rests on; None where no fitted veil was studied
    advice: Advice | None
    recommended: Setting | None  # the veil or the label; None where nothing leaks, or nothing can be told
    compared: Study  # with the attacks that it was found by
    sentences: tuple[str, ...]


# What an attacker gets


def knowledge(study: Study) -> tuple[bool, ...]:
    """The attackers that were studied: without the true label (False), with it (True)."""
    return tuple(sorted({r.knows_label for r in study.results}))


def needed(measure: Measure) -> int:
    """How many non-members it takes to tell how many members are found at so few false alarms; 1 for other measures."""
    return round(FEWEST_ALARMS / RATES[measure]) if measure in RATES else 1


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
    found = []
    for told in knowledge(study):
        shared_floors = floors(study, told)
        attacks = [r for r in counting if told or not r.knows_label]
        pairs = tuple((r, (*shared_floors, *([own[r.attack]] if r.attack in own else []))) for r in attacks)
        if pairs:
            found.append(Leak(told, pairs, floor(study, told)))
    return tuple(found)


def excess(found: Sequence[Leak], verdicts: int = 1) -> Excess:
    """The worst of the attackers' excess over their floors, where so many verdicts are given at once."""
    attacks = sum(len(leak.attacks) for leak in found)
    return Excess(
        max(leak.excess for leak in found),
        max(leak.bound(-1, attacks, verdicts) for leak in found),
        max(leak.bound(1, attacks, verdicts) for leak in found),
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


def verdict(study: Study) -> AuditVerdict:
    """The study in a few sentences.

    Raises:
        ValueError: Nothing was attacked undefended, so there is nothing to compare with.
    """
    tried = veils_tried(study)
    among = shared(study, [UNDEFENDED, *tried])
    undefended = leaks(study, UNDEFENDED, among)
    if not undefended:
        there = ", ".join(sorted({r.defense for r in study.results})) or "no results"
        raise ValueError(f"Expected attacks on the undefended scores (defense 'none'), got {there}.")
    attacks = excess(undefended, 1 + bool(study.evidence))
    attacked = (one for one in study.evidence if (VEIL, one.epsilon) in tried)
    evidence = preferred(tuple(_joined(one, attacks, study, among) for one in attacked))
    found = attacks if evidence is None or evidence.leak is None else evidence.leak
    taken = recommended(evidence)
    said = [*_advice(study, evidence, found), _undefended(study, undefended, among), _floors(undefended)]
    said += [_behind(study, taken, among), _boundary(study)]
    if found.outcome == LEAKS:
        said += [*_worth(study, taken), _promise(taken)]
    said += [_proved(study, taken), _inversion(study, taken), _left_out(study, among, tried)]
    said += broken_promises(study)
    return AuditVerdict(
        max((leak.best for leak in undefended), key=lambda r: r.auc),
        found,
        tuple(leak.floor for leak in undefended if leak.floor),
        evidence,
        None if evidence is None else decide(evidence),
        taken,
        among,
        tuple(s for s in said if s),
    )


def _joined(evidence: Evidence, attacks: Excess, study: Study, among: Study) -> Evidence:
    """The evidence about a veil, with what the attacks of the study found; half of the error is left for these."""
    behind = leaks(study, (VEIL, evidence.epsilon), among)
    return evidence.joined(attacks, excess(behind, 2))


def recommended(evidence: Evidence | None) -> Setting | None:
    """The setting that an advice comes to: the veil, or the label; None for others."""
    if evidence is None:
        return None
    return {Advice.TAKE_VEIL: (VEIL, evidence.epsilon), Advice.LABELS_ONLY: LABEL}.get(decide(evidence))


def first_answer(study: Study) -> str:
    """What to do, as far as it can be said of a study that is not done yet."""
    said = verdict(study)
    return " ".join(_advice(study, said.evidence, said.excess))


def _auc(result: AttackResult) -> str:
    return f"AUC {interval(result.auc, result.auc_low, result.auc_high)}"


def _advice(study: Study, evidence: Evidence | None, found: Excess) -> tuple[str, ...]:
    """What to do, and why; without a fitted veil what leaks."""
    if evidence is not None:
        return sentences(evidence)
    said = f"{HEADLINES[found.outcome]} The best attack lies {number(found.value)} AUC above what the label alone gives"
    said += f", with 95 % confidence {number(found.low, 3)} to {number(found.high, 3)}."
    more = f"{enough(study, found)} would tell." if found.outcome == UNDECIDED else ""
    return said, more, "No fitted veil was studied, so there is no advice on what to do."


def enough(study: Study, found: Excess) -> str:
    """How many records settle it."""
    times, records = found.times_as_many, study.meta.get("records", {})
    given = [records.get(f"given {side}", records.get(side)) for side in ("members", "nonmembers")]
    if None in given:
        return f"About {times} times as many"
    inside, outside = (f"{times * count:,}" for count in given)
    return f"About {times} times as many ({inside} members and {outside} non-members)"


def _undefended(study: Study, found: tuple[Leak, ...], among: Study) -> str:
    said: list[str] = []
    for leak in found:
        top = leak.best
        who = "Given the true label, the best" if leak.told else "Undefended, the best attack"
        if leak.told and not said:
            who = "Undefended, the best attack given the true label"
        verb = "reaches" if said else "tells members from non-members with"
        said.append(f"{who} ({attack(top)}) {verb} {_auc(top)}.")
        said += [_early(among, leak)] if _early(among, leak) else []
    if not any(readable(leak.best, "tpr_at_1pct") for leak in found):
        count = f"{needed('tpr_at_1pct'):,}"
        said.append(f"How many members are found at 1 % false alarms takes {count} non-members under attack to tell.")
    return " ".join(said)


def _early(among: Study, leak: Leak) -> str:
    """The members that are found at 1 % false alarms, by the attack that is best there."""
    top = best(among, leak.best.setting, "tpr_at_1pct", leak.told)
    if top is None or not readable(top, "tpr_at_1pct"):
        return ""
    found = interval(top.tpr_at_1pct, top.tpr_at_1pct_low, top.tpr_at_1pct_high, percent)
    by = "" if attack(top) == attack(leak.best) else f" (by {attack(top)})"
    return f"At 1 % false alarms {found} of the members are found{by}."


def _floors(found: tuple[Leak, ...]) -> str:
    parts = [f"{_auc(leak.floor)} {'with' if leak.told else 'without'} the true label" for leak in found if leak.floor]
    if not parts:
        return f"No attack that reads only the label was run, so chance (AUC {number(CHANCE)}) stands in for the floor."
    return f"The predicted label alone gives {' and '.join(parts)}. No defense that keeps the label can go below that."


def _boundary(study: Study) -> str:
    """What asking for labels alone gives, on a sample, and what that means."""
    if not study.boundary:
        return ""
    size, kinds = f"{study.boundary[0].members:,}", {False: "without", True: "with"}
    reached = (f"{_auc(r)} {kinds[r.knows_label]} the true label" for r in study.boundary)
    raised = [kinds[told] for told in kinds if any(r in floors(study, told) for r in study.boundary)]
    means = f"This is the floor {' and '.join(raised)} the true label" if raised else "The floor stays"
    return (
        f"By asking for nothing but labels around {size} members and {size} non-members, an attacker reaches "
        f"{' and '.join(reached)}. It asks up to {QUESTIONS:,} times about each. A veil that keeps the label cannot go "
        f"below that. It is {'surely' if raised else 'not surely'} above what one label gives. {means}."
    )


def _levels(found: tuple[Leak, ...]) -> str:
    return "; ".join(
        f"{_auc(leak.best)} {'with' if leak.told else 'without'} the true label, where the floor is "
        f"{number(leak.floor_auc)}"
        for leak in found
    )


def _behind(study: Study, recommended: Setting | None, among: Study) -> str:
    """What the same attacks find behind the recommended veil."""
    if recommended is None or recommended == LABEL:
        return ""
    found = leaks(study, recommended, among)
    return f"Behind {veil_name(recommended[1])} the best attack reaches {_levels(found)}." if found else ""


def _worth(study: Study, recommended: Setting | None) -> list[str]:
    """What the confidence is worth in each way to answer; nothing where there are no labels to tell by."""
    before = study.costs.get(UNDEFENDED)
    if recommended is None or before is None or before.auroc_of_confidence is None:
        return []
    names = {UNDEFENDED: "undefended", TEMPERED: "after temperature scaling", LABEL: "label alone"}
    ways = [
        (names.get(cost.setting) or setting_in_words(cost.setting), _worths(cost))
        for cost in ways_to_answer(study, recommended)
    ]
    return [
        f"{name} on new records: " + ", ".join(f"{number(values[i], 3)} ({way})" for way, values in ways) + "."
        for i, name in enumerate(("AUROC of the confidence", "Log-loss", "Calibration error (ECE)"))
        if all(values[i] is not None for _, values in ways)
    ]


def ways_to_answer(study: Study, recommended: Setting | None) -> list[DefenseResult]:
    """Raw scores; the same after temperature scaling, since calibration is no veil's merit; the recommended veil; the
    label with a constant confidence: what each is worth, as far as it was measured."""
    ways = dict.fromkeys((UNDEFENDED, TEMPERED, recommended or UNDEFENDED, LABEL))
    return [study.costs[way] for way in ways if way in study.costs]


def _worths(cost: DefenseResult) -> tuple[float | None, ...]:
    return cost.auroc_of_confidence, cost.nll, cost.ece


def _promise(recommended: Setting | None) -> str:
    if recommended is None or recommended == LABEL:
        return ""
    tried, epsilon = "These attacks were tried; there may be better ones.", recommended[1]
    if epsilon is None:
        return (
            f"{tried} The veil's guarantee is population-level: it is about records drawn at random. A promise about "
            "a single record that an attacker already knows takes an ε."
        )
    factor = f"e^ε = {math.exp(epsilon):.3g}" if epsilon <= 5 else "e^ε, which at this ε is no real limit"
    return (
        f"{tried} Whatever the attack, one answer changes the odds of membership by at most a factor of {factor}, "
        "beyond the label. Fresh answers add up, until they show what the veil without ε shows."
    )


def _proved(study: Study, recommended: Setting | None) -> str:
    """The ε that attacks prove of the recommended veil."""
    proved = next((d.proved_epsilon for d in study.defenses if d.setting == recommended), None)
    if recommended is None or proved is None:
        return ""
    return (
        f"Of the ε that {veil_name(recommended[1])} promises, attacks prove {number(proved)}. "
        "That is a lower bound on how far one answer tells members from others with the same label."
    )


def broken_promises(study: Study) -> list[str]:
    """A sentence for each setting of which attacks prove a larger ε than it promises."""
    return [
        f"PROMISE BROKEN: {setting_in_words(d.setting)} promises ε = {d.promised_epsilon:g}, and attacks prove "
        f"{number(d.proved_epsilon)} (lower bound, 99.9 % confidence). Do not use it, and please report it."
        for d in study.defenses
        if d.breaks_promise
    ]


def _inversion(study: Study, recommended: Setting | None) -> str:
    """Smallest reconstruction error undefended, on the recommended setting, and from the label alone."""

    def least(setting: Setting | None) -> float | None:
        return min((i.mse for i in study.inversions if i.setting == setting and i.form != "floor"), default=None)

    before, after = least(UNDEFENDED), least(recommended)
    label = min((i.mse for i in study.inversions if i.form == "floor" and i.features == "label"), default=None)
    if before is None:
        return ""
    said = f"Pictures rebuilt from the undefended scores miss by a mean squared error of {number(before, 3)}"
    if recommended and after is not None:
        said += f", from {setting_in_words(recommended)} by {number(after, 3)}"
    return said + (f", from the label alone by {number(label, 3)}." if label is not None else ".")


def _left_out(everything: Study, compared: Study, tried: list[Setting]) -> str:
    """The attacks that were run on some of the compared settings only, and how far they got."""
    others = left_out(everything, compared)
    names = {r.attack for r in others}
    alone = replace(everything, results=tuple(r for r in everything.results if r.attack in names))
    reached = [r for one in (UNDEFENDED, *tried) if (r := best(alone, one, reads="scores"))]
    if not reached:
        return ""
    levels = "; ".join(f"{_auc(r)} on {setting_in_words(r.setting)}" for r in reached)
    label = best(alone, UNDEFENDED, reads="label")
    return (
        f"Not compared, since not every setting was attacked with them: {attack_list(others)}. "
        f"The best of them reaches {levels}" + (f"; given the label alone, {_auc(label)}." if label else ".")
    )
