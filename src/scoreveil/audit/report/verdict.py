"""What follows from a study: whether the scores leak more than the label, and which veil to take if they do.

    found = verdict(study)
    found.excess.outcome                                # LEAKS, NO_MORE or UNDECIDED
    found.recommended                                   # ("regions", None), or None

The *excess* of a setting is how far the AUC of the best attack on the scores lies above what the label alone gives to
the same attacker, max_i min_j (a_i - f_j), over attacks i and floors j: guessing, the attack on the label, and of LiRA
and RMIA their own form that is given labels alone. Its 95 % bounds are

    low  = max_i min_j (a_i - f_j - z(5 % / attacks) s_ij)     since the best of many attacks is lucky, too
    high = max_i min_j (a_i - f_j + z(5 % / floors) s_ij)      since the highest of several floors is, too

where s_ij² = Var a_i + Var f_j, by DeLong: no less than the error of the difference, since both are judged on the same
records, or, of an attack that knows half of them, on others. Two one-sided tests follow, with the margin .02. `high`
within the margin: no more than the label. Else `low` above 0: it leaks. Else it cannot be told from this many records;
where high - low is below the margin, it always can.

An attacker who knows the true label may also ignore it: "with the label" is the best of all attacks, "without" the best
of those that are not told it. Every form counts, the paper's too: a defense is as good as the best attack tried on it.
Settings are compared by the attacks that were run on all of them.
"""

import math
from collections.abc import Iterable, Sequence
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

Outcome = Literal["leaks", "leaks no more than the label", "cannot be told from this many records"]

MARGIN = 0.02  # of AUC above the floor: less is no more than the label
ERROR = 0.05  # how often a bound may be wrong
LEAKS: Outcome = "leaks"
NO_MORE: Outcome = "leaks no more than the label"
UNDECIDED: Outcome = "cannot be told from this many records"
HEADLINES: dict[Outcome, str] = {
    LEAKS: "The scores leak.",
    NO_MORE: "The scores leak no more than the label.",
    UNDECIDED: "Whether the scores leak cannot be told from this many records.",
}
RATES: dict[Measure, float] = {"tpr_at_1pct": 0.01, "tpr_at_01pct": 0.001}
FEWEST_ALARMS = 10  # false alarms that a share of members found rests on


@dataclass(frozen=True)
class Excess:
    """How far the best attack comes above the floor, with its bounds."""

    value: float
    low: float
    high: float

    @property
    def outcome(self) -> Outcome:
        if self.high <= MARGIN:
            return NO_MORE
        return LEAKS if self.low > 0 else UNDECIDED

    @property
    def times_as_many(self) -> int:
        """How many times as many records narrow the bounds to the margin."""
        return math.ceil(((self.high - self.low) / MARGIN) ** 2)


@dataclass(frozen=True)
class AuditVerdict:
    """The study in a few sentences, with the setting it recommends."""

    undefended: AttackResult
    excess: Excess  # of the undefended scores
    floors: tuple[AttackResult, ...]  # what the label alone gives, without and with the true label
    recommended: Setting | None  # None where nothing leaks, or nothing can be told
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
    found = excess(undefended)
    veils = {one: leaks(study, one, among) for one in tried}
    recommended = _recommended(study, veils) if found.outcome == LEAKS else None
    sentences = [_outcome(study, found), _undefended(study, undefended, among), _floors(undefended), _boundary(study)]
    if found.outcome == LEAKS:
        sentences += [_recommendation(study, veils, recommended), _worth(study, recommended), _promise(recommended)]
    sentences += [_proved(study, recommended), _inversion(study, recommended), _left_out(study, among, tried)]
    sentences += broken_promises(study)
    return AuditVerdict(
        max((leak.best for leak in undefended), key=lambda r: r.auc),
        found,
        tuple(leak.floor for leak in undefended if leak.floor),
        recommended,
        among,
        tuple(s for s in sentences if s),
    )


def first_answer(study: Study) -> str:
    """Whether the scores leak, and what a veil would leave: all that can be said of a study that is not done yet."""
    said = verdict(study)
    if said.excess.outcome != LEAKS:
        return said.sentences[0]
    veils = {one: leaks(study, one, said.compared) for one in veils_tried(study)}
    return f"{said.sentences[0]} {_recommendation(study, veils, said.recommended)}"


def _recommended(study: Study, veils: dict[Setting, tuple[Leak, ...]]) -> Setting | None:
    """The most useful that is shown to hold; else of those that may; the label where none is worth more."""
    if not veils:
        return None

    def worth_it(one: Setting) -> bool:
        cost = study.costs.get(one)
        # one confidence for each label says no more than the label
        return cost is None or (cost.confidences != 1 and cost.beats_label is not False)

    def log_loss(one: Setting) -> float:
        cost = study.costs.get(one)
        return 0.0 if cost is None or cost.nll is None else cost.nll  # where it is not measured, the most revealing

    outcomes = {one: excess(found).outcome for one, found in veils.items() if worth_it(one)}
    holding, open_ones = ([one for one, o in outcomes.items() if o == wanted] for wanted in (NO_MORE, UNDECIDED))
    return min(holding or open_ones, key=log_loss, default=LABEL)


def _auc(result: AttackResult) -> str:
    return f"AUC {interval(result.auc, result.auc_low, result.auc_high)}"


def _above(found: Excess) -> str:
    return f"{number(found.value)} above what the label alone gives, with 95 % confidence "


def _outcome(study: Study, found: Excess) -> str:
    lies = f"{HEADLINES[found.outcome]} The AUC of the best attack lies {_above(found)}"
    if found.outcome == LEAKS:
        return f"{lies}at least {number(max(found.low, 0.0), 3)}."
    if found.outcome == NO_MORE:
        return (
            f"{lies}at most {number(found.high, 3)}: within the margin of {number(MARGIN)}. Nothing is recommended, "
            "since there is nothing to hide from these attacks."
        )
    return (
        f"{lies}between {number(found.low, 3)} and {number(found.high, 3)}: neither surely above 0 nor surely within "
        f"the margin of {number(MARGIN)}. {enough(study, found)} would do. Nothing is recommended."
    )


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
        who = "Told the true label, the best" if leak.told else "Undefended, the best attack"
        if leak.told and not said:
            who = "Undefended, the best attack, told the true label,"
        verb = "reaches" if said else "tells members from non-members with"
        said.append(f"{who} ({attack(top)}) {verb} {_auc(top)}{_early(among, leak)}.")
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
    return f", and {found} of the members are found at 1 % false alarms{by}"


def _floors(found: tuple[Leak, ...]) -> str:
    parts = [f"{_auc(leak.floor)} {'with' if leak.told else 'without'} the true label" for leak in found if leak.floor]
    if not parts:
        return f"No attack that reads only the label was run, so chance (AUC {number(CHANCE)}) stands in for the floor."
    return f"The predicted label alone gives {' and '.join(parts)}: no defense that keeps the label can go below that."


def _boundary(study: Study) -> str:
    """What asking for labels alone gives, on a sample, and what that means."""
    if not study.boundary:
        return ""
    size, kinds = f"{study.boundary[0].members:,}", {False: "without", True: "with"}
    reached = (f"{_auc(r)} {kinds[r.knows_label]} the true label" for r in study.boundary)
    raised = [kinds[told] for told in kinds if any(r in floors(study, told) for r in study.boundary)]
    means = f"this is the floor {' and '.join(raised)} the true label" if raised else "the floor stays"
    return (
        f"By asking for nothing but labels around {size} members and {size} non-members, up to {QUESTIONS:,} times "
        f"each, an attacker reaches {' and '.join(reached)}. A veil that keeps the label changes none of these answers "
        f"and cannot go below that. It is {'surely' if raised else 'not surely'} above what one label gives: {means}."
    )


def _levels(found: tuple[Leak, ...]) -> str:
    return "; ".join(
        f"{_auc(leak.best)} {'with' if leak.told else 'without'} the true label, where the floor is "
        f"{number(leak.floor_auc)}"
        for leak in found
    )


def _constant(study: Study, tried: Iterable[Setting]) -> str:
    """Said where these veils announce one confidence for each label: why, and what would help."""
    costs = [study.costs.get(one) for one in tried]
    if not costs or any(cost is None or cost.confidences != 1 for cost in costs):
        return ""
    return (
        " Fitted on the records that are not under attack, it announces one confidence for all answers with the same "
        "label. With more records, or with --reference, others that the model was not trained on, it could say more."
    )


def _recommendation(study: Study, veils: dict[Setting, tuple[Leak, ...]], recommended: Setting | None) -> str:
    if recommended is None:
        return "No fitted veil was studied: no advice on what to do."
    outcomes = {one: excess(found) for one, found in veils.items()}
    tried = "; ".join(map(setting_in_words, veils))
    if recommended == LABEL:
        if all(found.outcome == LEAKS for found in outcomes.values()):
            why = f"every fitted veil tried ({tried}) leaks more than the label"
        else:
            why = f"no fitted veil tried ({tried}) both holds and has a confidence that is clearly worth more"
        return f"Return the label, with a constant confidence or none: {why}.{_constant(study, veils)}"
    found, levels = outcomes[recommended], _levels(veils[recommended])
    said = f"Take {setting_in_words(recommended)}: of the veils tried ({tried}) "
    if found.outcome == NO_MORE:
        said += (
            "the most useful of which it is shown that the best attack stays within "
            f"{number(MARGIN)} of what the label alone gives (at most {number(found.high, 3)} above): {levels}."
        )
    else:
        said += (
            "the most useful that may hold. Whether it leaks more than the label cannot be told "
            f"from this many records ({number(found.low, 3)} to {number(found.high, 3)} above): {levels}. "
            f"About {found.times_as_many} times as many would do."
        )
    worse = [setting_in_words(one) for one, other in outcomes.items() if other.outcome == LEAKS]
    return said + (f" What leaks: {'; '.join(worse)}." if worse else "")


def _worth(study: Study, recommended: Setting | None) -> str:
    """What the confidence is worth in each way to answer."""
    if recommended is None:
        return ""
    before = study.costs.get(UNDEFENDED)
    if before is None or before.auroc_of_confidence is None:
        return "What the confidence is worth was not measured: that takes true labels."
    label = "the label with a constant confidence"
    names = {UNDEFENDED: "undefended", TEMPERED: "after temperature scaling", LABEL: label}
    ways = [
        (names.get(cost.setting) or setting_in_words(cost.setting), _worths(cost))
        for cost in ways_to_answer(study, recommended)
    ]
    if before.label_nll is not None and LABEL not in study.costs:  # an older study
        ways.append((label, (CHANCE, before.label_nll, before.label_ece)))
    parts = (
        f"{name} " + ", ".join(f"{number(values[i], 3)} ({way})" for way, values in ways)
        for i, name in enumerate(("AUROC", "log-loss", "ECE"))
        if all(values[i] is not None for _, values in ways)
    )
    return f"What the confidence is worth on records that were not trained on: {'; '.join(parts)}."


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
            f"{tried} The veil's guarantee is about records drawn at random. About a single record that an attacker "
            "already knows nothing is promised: that takes an ε."
        )
    factor = f"e^ε = {math.exp(epsilon):.3g}" if epsilon <= 5 else "e^ε, which at this ε is no real limit"
    return (
        f"{tried} Whatever the attack, one answer changes the odds of membership by at most a factor of {factor}, "
        "beyond what the label tells. Fresh answers add up, until they show what the veil without ε shows."
    )


def _proved(study: Study, recommended: Setting | None) -> str:
    """The ε that attacks prove of the recommended veil."""
    proved = next((d.proved_epsilon for d in study.defenses if d.setting == recommended), None)
    if recommended is None or proved is None:
        return ""
    return (
        f"Of the ε = {recommended[1]:g} that {setting_in_words(recommended)} promises, attacks prove {number(proved)}: "
        "a lower bound on how far one answer tells members from others that have the same label."
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
