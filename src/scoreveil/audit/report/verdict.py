"""What follows from a study: what leaks, what no defense that keeps the label can stop, and which ε to take.

    found = verdict(study)
    found.recommended                                   # ("optimal", 2.0), or None
    exceeds(study, ("optimal", 2.0), "tpr@1%=0.05")     # a gate for CI

An attacker who knows the true label may also ignore it: "with the label" is the best of all attacks, "without" the best
of those that are not told it. Every form counts, the paper's too: a defense is as good as the best attack tried on it.
Settings are compared by the attacks that were run on all of them; the gate looks at one setting, and at every attack.
"""

import math
import re
from dataclasses import dataclass, replace

from scoreveil.audit.report.wording import attack, attack_list, interval, number, percent, setting_in_words
from scoreveil.audit.study.results import UNDEFENDED, AttackResult, Measure, Setting, Study, best, left_out, shared

KEEP_ONE = ("optimal", "isotonic")  # our defenses that keep the label and nothing else, best first
CHANCE = 0.5
SLACK = 0.02  # how far above its floor the best attack may come for a setting to count as holding
WRITTEN: dict[str, Measure] = {"auc": "auc", "tpr@1%": "tpr_at_1pct", "tpr@0.1%": "tpr_at_01pct"}


@dataclass(frozen=True)
class AuditVerdict:
    """The study in a few sentences, with the setting it recommends."""

    undefended: AttackResult
    floors: tuple[AttackResult, ...]  # what the label alone gives, without and with the true label
    recommended: Setting | None  # None where nothing holds
    remaining: AttackResult | None  # the best attack on the recommended setting
    compared: Study  # with the attacks that it was found by
    sentences: tuple[str, ...]


# What an attacker gets


def knowledge(study: Study) -> tuple[bool, ...]:
    """The attackers that were studied: without the true label (False), with it (True)."""
    return tuple(sorted({r.knows_label for r in study.results}))


def floor(study: Study, setting: Setting, told: bool) -> AttackResult | None:
    """What the label alone gives on this setting; it is the same label without a defense, so that stands in."""
    return best(study, setting, told=told, reads="label") or best(study, UNDEFENDED, told=told, reads="label")


@dataclass(frozen=True)
class Leak:
    """How far the best attack on a setting comes above its floor, for one kind of attacker."""

    told: bool
    best: AttackResult
    floor: AttackResult | None

    @property
    def floor_auc(self) -> float:
        return max(CHANCE, self.floor.auc if self.floor else CHANCE)

    @property
    def excess(self) -> float:
        return self.best.auc - self.floor_auc

    @property
    def noise(self) -> float:
        """Half the width of the wider 95 % interval."""
        return max((r.auc_high - r.auc_low) / 2 for r in (self.best, self.floor or self.best))


def leaks(study: Study, setting: Setting) -> tuple[Leak, ...]:
    """One for each kind of attacker that was studied."""
    found = ((told, best(study, setting, told=told)) for told in knowledge(study))
    return tuple(Leak(told, strongest, floor(study, setting, told)) for told, strongest in found if strongest)


def excess(study: Study, setting: Setting) -> float:
    """The worse of the two attackers' excess over the floor."""
    return max((leak.excess for leak in leaks(study, setting)), default=math.inf)


def holds(study: Study, setting: Setting) -> bool:
    return excess(study, setting) <= SLACK + 1e-12


def epsilons(study: Study, defense: str) -> list[float]:
    """The ε at which a defense was attacked, ascending."""
    return sorted({r.epsilon for r in study.results if r.defense == defense and r.epsilon is not None})


def candidates(study: Study) -> list[Setting]:
    """The settings that could be recommended."""
    return [(defense, epsilon) for defense in KEEP_ONE for epsilon in epsilons(study, defense)]


# The verdict


def verdict(study: Study) -> AuditVerdict:
    """The study in a few sentences.

    Raises:
        ValueError: Nothing was attacked undefended, so there is nothing to compare with.
    """
    everything, study = study, shared(study, [UNDEFENDED, *candidates(study)])
    undefended = best(study, UNDEFENDED)
    if undefended is None:
        there = ", ".join(sorted({r.defense for r in everything.results})) or "no results"
        raise ValueError(f"Expected attacks on the undefended scores (defense 'none'), got {there}.")
    floors = [floor(study, UNDEFENDED, told) for told in knowledge(study)]
    recommended = _recommended(study)
    sentences = [_undefended(study), _floors(study), _recommendation(study, recommended)]
    if recommended:
        sentences += [_cost(study, recommended), _promise(recommended)]
    sentences += [_inversion(study, recommended), _noise(study, recommended), _left_out(everything, study)]
    return AuditVerdict(
        undefended,
        tuple(f for f in floors if f),
        recommended,
        best(study, recommended) if recommended else None,
        study,
        tuple(s for s in sentences if s),
    )


def _recommended(study: Study) -> Setting | None:
    """The largest ε that holds, of the first defense of which one holds: the most useful scores that leak no more."""
    for defense in KEEP_ONE:
        holding = [e for e in epsilons(study, defense) if holds(study, (defense, e))]
        if holding:
            return defense, max(holding)
    return None


def _closest(study: Study) -> Setting | None:
    """Of the settings that could be recommended, the one nearest to its floor."""
    return min(candidates(study), key=lambda one: excess(study, one), default=None)


def _auc(result: AttackResult) -> str:
    return f"AUC {interval(result.auc, result.auc_low, result.auc_high)}"


def _undefended(study: Study) -> str:
    said: list[str] = []
    for leak in leaks(study, UNDEFENDED):
        top = leak.best
        found = interval(top.tpr_at_1pct, top.tpr_at_1pct_low, top.tpr_at_1pct_high, percent)
        who = "Told the true label, the best" if leak.told else "Undefended, the best attack"
        if leak.told and not said:
            who = "Undefended, the best attack, told the true label,"
        verb = "reaches" if said else "tells members from non-members with"
        said.append(f"{who} ({attack(top)}) {verb} {_auc(top)} and finds {found} of the members at 1 % false alarms.")
    return " ".join(said)


def _floors(study: Study) -> str:
    found = [(leak.told, leak.floor) for leak in leaks(study, UNDEFENDED) if leak.floor]
    if not found:
        return f"No attack that reads only the label was run, so chance (AUC {number(CHANCE)}) stands in for the floor."
    parts = [f"{_auc(result)} {'with' if told else 'without'} the true label" for told, result in found]
    return f"The predicted label alone gives {' and '.join(parts)}: no defense that keeps the label can go below that."


def _levels(study: Study, setting: Setting) -> str:
    return "; ".join(
        f"{_auc(leak.best)} {'with' if leak.told else 'without'} the true label, where the floor is "
        f"{number(leak.floor_auc)}"
        for leak in leaks(study, setting)
    )


def _recommendation(study: Study, recommended: Setting | None) -> str:
    if recommended is None:
        closest = _closest(study)
        if closest is None:
            return f"No veil that keeps the label alone ({', '.join(KEEP_ONE)}) was studied: no advice on ε."
        return (
            f"None of the tested settings met the limit: even with the closest, {setting_in_words(closest)}, the best "
            f"attack comes more than {number(SLACK)} above its floor ({_levels(study, closest)}). Try a smaller ε."
        )
    defense, epsilon = recommended
    tried = epsilons(study, defense)
    said = (
        f"Take {setting_in_words(recommended)}: of the ε tried ({', '.join(f'{e:g}' for e in tried)}) the largest at "
        f"which the best attack stays within {number(SLACK)} of what the label alone gives: "
        f"{_levels(study, recommended)}."
    )
    larger = [e for e in tried if epsilon is not None and e > epsilon]
    if larger:
        said += f" At ε = {larger[0]:g}, the next one, it comes {number(excess(study, (defense, larger[0])))} above."
    odd = [f"{e:g}" for e in tried if epsilon is not None and e < epsilon and not holds(study, (defense, e))]
    if odd:
        said += f" A smaller ε ({', '.join(odd)}) came out worse, though it shows less: that is sampling noise."
    return said


def _cost(study: Study, recommended: Setting) -> str:
    costs = {d.setting: d for d in study.defenses}
    cost, before = costs.get(recommended), costs.get(UNDEFENDED)
    if cost is None:
        return ""
    said = [f"It moves a score vector by {number(cost.distortion_l2)} on average (ℓ2)"]
    if cost.test_accuracy is not None:
        kept = before is not None and before.test_accuracy == cost.test_accuracy
        said.append(f"test accuracy {'stays' if kept else 'is'} {percent(cost.test_accuracy)}")
    if cost.auroc_of_confidence is not None:
        was = before.auroc_of_confidence if before else None
        against = f", against {number(was)} undefended" if was is not None else ""
        said.append(
            f"the confidence tells right from wrong answers with AUROC {number(cost.auroc_of_confidence)}{against}"
        )
    return "; ".join(said) + "."


def _promise(recommended: Setting) -> str:
    epsilon = recommended[1] or 0.0
    factor = f"e^ε = {math.exp(epsilon):.3g}" if epsilon <= 5 else "e^ε, which at this ε is no real limit"
    return (
        "These attacks were tried; there may be better ones. Whatever the attack, one answer changes the odds of "
        f"membership by at most a factor of {factor}, beyond what the label tells."
    )


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


def _noise(study: Study, recommended: Setting | None) -> str:
    judged = recommended or _closest(study) or UNDEFENDED
    noise = max((leak.noise for leak in leaks(study, judged)), default=0.0)
    if noise <= SLACK:
        return ""
    return (
        f"Mind the noise: the 95 % intervals are ±{number(noise)}, larger than the slack of {number(SLACK)}, so this "
        "sample cannot tell a setting that holds from one that leaks a little. "
        f"About {math.ceil((noise / SLACK) ** 2)} times as many records could."
    )


def _left_out(everything: Study, compared: Study) -> str:
    """The attacks that were run on some of the compared settings only, and how far they got."""
    others = left_out(everything, compared)
    names = {r.attack for r in others}
    alone = replace(everything, results=tuple(r for r in everything.results if r.attack in names))
    reached = [r for one in [UNDEFENDED, *candidates(everything)] if (r := best(alone, one, reads="scores"))]
    if not reached:
        return ""
    levels = "; ".join(f"{_auc(r)} on {setting_in_words(r.setting)}" for r in reached)
    label = best(alone, UNDEFENDED, reads="label")
    return (
        f"Not compared, since not every setting was attacked with them: {attack_list(others)}. "
        f"The best of them reaches {levels}" + (f"; given the label alone, {_auc(label)}." if label else ".")
    )


# A gate for CI


@dataclass(frozen=True)
class Limit:
    """The most that any attack may reach on a setting."""

    measure: Measure
    most: float


def parse_limit(text: str) -> Limit:
    """`auc=0.55`, `tpr@1%=0.05` or `tpr@0.1%=0.01`; ValueError for anything else."""
    parts = re.fullmatch(r"\s*([^=\s]+)\s*=\s*(\d*\.?\d+)\s*", text, flags=re.ASCII)
    if parts is None or parts[1].lower() not in WRITTEN or not float(parts[2]) <= 1:
        expected = "auc=0.55, tpr@1%=0.05 or tpr@0.1%=0.01, with a number from 0 to 1"
        raise ValueError(f"Expected {expected}, got {text!r}.")
    return Limit(WRITTEN[parts[1].lower()], float(parts[2]))


def exceeds(study: Study, setting: Setting, limit: str) -> bool:
    """Whether any attack on this setting passes the limit, e.g. "auc=0.55".

    Raises:
        ValueError: The limit cannot be read, or the setting was not studied.
    """
    wanted = parse_limit(limit)
    found = best(study, setting, wanted.measure)
    if found is None:
        there = "; ".join(sorted({setting_in_words(r.setting) for r in study.results}))
        raise ValueError(f"Expected a setting of the study ({there}), got {setting_in_words(setting)}.")
    return float(getattr(found, wanted.measure)) > wanted.most
