"""The verdict of an audit, in sentences.

sentences(verdict(study))
"""

import math
from dataclasses import replace

from scoreveil.audit.attacks.boundary import QUESTIONS
from scoreveil.audit.report.wording import attack, attack_list, interval, number, percent, setting_in_words
from scoreveil.audit.study.results import (
    CHANCE,
    LABEL,
    TEMPERED,
    UNDEFENDED,
    AttackResult,
    DefenseResult,
    Setting,
    Study,
    best,
    floors,
    left_out,
)
from scoreveil.audit.verdict import AuditVerdict, Leak, leaks, needed, readable, veils_tried, ways_to_answer
from scoreveil.fitting import decision
from scoreveil.fitting.decision import LEAKS, NO_MORE, UNDECIDED, Excess, Outcome, veil_name

HEADLINES: dict[Outcome, str] = {
    LEAKS: "The scores leak.",
    NO_MORE: "The scores leak no more than the label.",
    UNDECIDED: "Whether the scores leak cannot be told from this many records.",
}


def sentences(verdict: AuditVerdict) -> tuple[str, ...]:
    """What leaks and what to do, then what that rests on."""
    study, compared, taken = verdict.study, verdict.compared, verdict.recommended
    said = [*_advice(verdict), _undefended(verdict), _floors(verdict.leaks), _behind(verdict), _boundary(study)]
    if verdict.excess.outcome == LEAKS:
        said += [*_worth(study, taken), _promise(taken)]
    said += [_proved(study, taken), _inversion(study, taken), _left_out(study, compared), *broken_promises(study)]
    return tuple(sentence for sentence in said if sentence)


def first_answer(verdict: AuditVerdict) -> str:
    """What to do, as far as it can be said of a study that is not done yet."""
    return " ".join(_advice(verdict))


def _auc(result: AttackResult) -> str:
    return f"AUC {interval(result.auc, result.auc_low, result.auc_high)}"


def _advice(verdict: AuditVerdict) -> tuple[str, ...]:
    """What to do, and why; without a fitted veil what leaks."""
    excess = verdict.excess
    if verdict.evidence is not None:
        return decision.sentences(verdict.evidence)
    said = f"{HEADLINES[excess.outcome]} The best attack lies {number(excess.value)} AUC above what the label alone "
    said += f"gives, with 95 % confidence {number(excess.low, 3)} to {number(excess.high, 3)}."
    more = f"{enough(verdict.study, excess)} would tell." if excess.outcome == UNDECIDED else ""
    return said, more, "No fitted veil was studied, so there is no advice on what to do."


def enough(study: Study, excess: Excess) -> str:
    """How many records settle it."""
    times, records = excess.times_as_many, study.meta.get("records", {})
    given = [records.get(f"given {side}", records.get(side)) for side in ("members", "nonmembers")]
    if None in given:
        return f"About {times} times as many"
    inside, outside = (f"{times * count:,}" for count in given)
    return f"About {times} times as many ({inside} members and {outside} non-members)"


def _undefended(verdict: AuditVerdict) -> str:
    said: list[str] = []
    for leak in verdict.leaks:
        top = leak.best
        who = "Given the true label, the best" if leak.told else "Undefended, the best attack"
        if leak.told and not said:
            who = "Undefended, the best attack given the true label"
        verb = "reaches" if said else "tells members from non-members with"
        said.append(f"{who} ({attack(top)}) {verb} {_auc(top)}.")
        said += [_early(verdict.compared, leak)] if _early(verdict.compared, leak) else []
    if not any(readable(leak.best, "tpr_at_1pct") for leak in verdict.leaks):
        count = f"{needed('tpr_at_1pct'):,}"
        said.append(f"How many members are found at 1 % false alarms takes {count} non-members under attack to tell.")
    return " ".join(said)


def _early(compared: Study, leak: Leak) -> str:
    """The members that are found at 1 % false alarms, by the attack that is best there."""
    top = best(compared, leak.best.setting, "tpr_at_1pct", leak.told)
    if top is None or not readable(top, "tpr_at_1pct"):
        return ""
    share = interval(top.tpr_at_1pct, top.tpr_at_1pct_low, top.tpr_at_1pct_high, percent)
    by = "" if attack(top) == attack(leak.best) else f" (by {attack(top)})"
    return f"At 1 % false alarms {share} of the members are found{by}."


def _floors(leaks: tuple[Leak, ...]) -> str:
    parts = [f"{_auc(leak.floor)} {'with' if leak.told else 'without'} the true label" for leak in leaks if leak.floor]
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


def _behind(verdict: AuditVerdict) -> str:
    """What the same attacks find behind the recommended veil."""
    taken = verdict.recommended
    if taken is None or taken == LABEL:
        return ""
    levels = "; ".join(
        f"{_auc(leak.best)} {'with' if leak.told else 'without'} the true label, where the floor is "
        f"{number(leak.floor_auc)}"
        for leak in leaks(verdict.study, taken, verdict.compared)
    )
    return levels and f"Behind {veil_name(taken[1])} the best attack reaches {levels}."


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


def _left_out(everything: Study, compared: Study) -> str:
    """The attacks that were run on some of the compared settings only, and how far they got."""
    others = left_out(everything, compared)
    names = {r.attack for r in others}
    alone = replace(everything, results=tuple(r for r in everything.results if r.attack in names))
    reached = [r for one in (UNDEFENDED, *veils_tried(everything)) if (r := best(alone, one, reads="scores"))]
    if not reached:
        return ""
    levels = "; ".join(f"{_auc(r)} on {setting_in_words(r.setting)}" for r in reached)
    label = best(alone, UNDEFENDED, reads="label")
    return (
        f"Not compared, since not every setting was attacked with them: {attack_list(others)}. "
        f"The best of them reaches {levels}" + (f"; given the label alone, {_auc(label)}." if label else ".")
    )
