"""What follows from a study: what leaks, what no defense that keeps the label can stop, and which ε to take.

    found = verdict(study)
    found.recommended                                              # ("isotonic_reference", 2.0), or None
    exceeds(study, "isotonic_reference", 2.0, "tpr@1%=0.05")       # a gate for CI

An attacker who knows the true label may also ignore it: "with the label" is the best of all attacks, "without" the best
of those that are not told it. Every form counts, the paper's too: a defense is as good as the best attack tried on it.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from scoreveil.audit.report.wording import UNDEFENDED, attack, interval, number, percent, setting
from scoreveil.audit.study.results import SLACK, AttackResult, DefenseResult, Study, Verdict

KEEP_ONE = ("isotonic_reference", "isotonic")  # the isotonic defenses that keep the label and nothing else, best first
CHANCE = 0.5

Measure = Literal["auc", "tpr_at_1pct", "tpr_at_01pct"]
WRITTEN: dict[str, Measure] = {"auc": "auc", "tpr@1%": "tpr_at_1pct", "tpr@0.1%": "tpr_at_01pct"}


# What an attacker gets


def strongest(
    study: Study,
    defense: str,
    epsilon: float | None,
    knows_label: bool,
    reads: str | None = None,
    measure: Measure = "auc",
) -> AttackResult | None:
    """The best attack on a setting that such an attacker can run; with `reads`, among those that read only that."""
    open_to = [
        r
        for r in study.results
        if (r.defense, r.epsilon) == (defense, epsilon)
        and (knows_label or not r.knows_label)
        and (reads is None or r.reads == reads)
    ]
    return max(open_to, key=lambda r: float(getattr(r, measure)), default=None)


def knowledge(study: Study) -> tuple[bool, ...]:
    """The attackers that were studied: without the true label (False), with it (True)."""
    told = {r.knows_label for r in study.results}
    return tuple(sorted(told))


def floor(study: Study, defense: str, epsilon: float | None, knows_label: bool) -> AttackResult | None:
    """What the label alone gives on this setting; it is the same label without a defense, so that stands in."""
    own = strongest(study, defense, epsilon, knows_label, reads="label")
    return own or strongest(study, UNDEFENDED, None, knows_label, reads="label")


@dataclass(frozen=True)
class Gap:
    """How far the best attack on a setting comes above its floor, for one kind of attacker."""

    knows_label: bool
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


def gaps(study: Study, defense: str, epsilon: float | None) -> tuple[Gap, ...]:
    found = ((knows, strongest(study, defense, epsilon, knows)) for knows in knowledge(study))
    return tuple(Gap(knows, best, floor(study, defense, epsilon, knows)) for knows, best in found if best)


def excess(study: Study, defense: str, epsilon: float | None) -> float:
    """The worse of the two attackers' excess over the floor."""
    return max((gap.excess for gap in gaps(study, defense, epsilon)), default=math.inf)


def holds(study: Study, defense: str, epsilon: float | None) -> bool:
    return excess(study, defense, epsilon) <= SLACK + 1e-12


def epsilons(study: Study, defense: str) -> list[float]:
    """The ε at which a defense was attacked, ascending."""
    return sorted({r.epsilon for r in study.results if r.defense == defense and r.epsilon is not None})


# The verdict


def verdict(study: Study) -> Verdict:
    """The study in a few sentences. ValueError where nothing was attacked undefended: there is nothing to compare."""
    undefended = strongest(study, UNDEFENDED, None, knows_label=True)
    if undefended is None:
        raise ValueError(f"Expected attacks on the undefended scores (defense {UNDEFENDED!r}), got none.")
    floors = [floor(study, UNDEFENDED, None, knows) for knows in knowledge(study)]
    recommended = _recommended(study)
    remaining = strongest(study, *recommended, knows_label=True) if recommended else None
    sentences = [_undefended(study), _floors(study), _recommendation(study, recommended)]
    if recommended:
        sentences += [_cost(study, recommended), _promise(recommended)]
    sentences += [_inversion(study, recommended), _noise(study, recommended)]
    return Verdict(undefended, tuple(f for f in floors if f), recommended, remaining, tuple(s for s in sentences if s))


def _recommended(study: Study) -> tuple[str, float | None] | None:
    """The largest ε that holds, of the first defense of which one holds: the most useful scores that leak no more."""
    for defense in KEEP_ONE:
        holding = [e for e in epsilons(study, defense) if holds(study, defense, e)]
        if holding:
            return defense, max(holding)
    return None


def _closest(study: Study) -> tuple[str, float] | None:
    """Of the settings that could be recommended, the one nearest to its floor."""
    tried = [(defense, e) for defense in KEEP_ONE for e in epsilons(study, defense)]
    return min(tried, key=lambda s: excess(study, *s), default=None)


def _auc(result: AttackResult) -> str:
    return f"AUC {interval(result.auc, result.auc_low, result.auc_high)}"


def _undefended(study: Study) -> str:
    said: list[str] = []
    for gap in gaps(study, UNDEFENDED, None):
        best = gap.best
        found = interval(best.tpr_at_1pct, best.tpr_at_1pct_low, best.tpr_at_1pct_high, percent)
        who = "Told the true label, the best" if gap.knows_label else "Undefended, the best attack"
        if gap.knows_label and not said:
            who = "Undefended, the best attack, told the true label,"
        verb = "reaches" if said else "tells members from non-members with"
        said.append(f"{who} ({attack(best)}) {verb} {_auc(best)} and finds {found} of the members at 1 % false alarms.")
    return " ".join(said)


def _floors(study: Study) -> str:
    found = [(gap.knows_label, gap.floor) for gap in gaps(study, UNDEFENDED, None) if gap.floor]
    if not found:
        return f"No attack that reads only the label was run, so chance (AUC {number(CHANCE)}) stands in for the floor."
    parts = [f"{_auc(result)} {'with' if knows else 'without'} the true label" for knows, result in found]
    return f"The predicted label alone gives {' and '.join(parts)}: no defense that keeps the label can go below that."


def _levels(study: Study, defense: str, epsilon: float | None) -> str:
    return "; ".join(
        f"{_auc(gap.best)} {'with' if gap.knows_label else 'without'} the true label, where the floor is "
        f"{number(gap.floor_auc)}"
        for gap in gaps(study, defense, epsilon)
    )


def _recommendation(study: Study, recommended: tuple[str, float | None] | None) -> str:
    if recommended is None:
        closest = _closest(study)
        if closest is None:
            return (
                f"No isotonic defense that keeps the label alone ({', '.join(KEEP_ONE)}) was studied: no advice on ε."
            )
        return (
            f"No setting holds: even the closest, {setting(*closest)}, lets the best attack come more than "
            f"{number(SLACK)} above its floor ({_levels(study, *closest)}). Try a smaller ε."
        )
    defense, epsilon = recommended
    tried = epsilons(study, defense)
    listed = ", ".join(f"{e:g}" for e in tried)
    said = (
        f"Take {setting(defense, epsilon)}: of the ε tried ({listed}) the largest at which the best attack stays "
        f"within {number(SLACK)} of what the label alone gives: {_levels(study, defense, epsilon)}."
    )
    larger = [e for e in tried if epsilon is not None and e > epsilon]
    if larger:
        said += f" At ε = {larger[0]:g}, the next one, it comes {number(excess(study, defense, larger[0]))} above."
    odd = [f"{e:g}" for e in tried if epsilon is not None and e < epsilon and not holds(study, defense, e)]
    if odd:
        said += f" A smaller ε ({', '.join(odd)}) came out worse, though it shows less: that is sampling noise."
    return said


def _cost_of(study: Study, defense: str, epsilon: float | None) -> DefenseResult | None:
    return next((d for d in study.defenses if (d.defense, d.epsilon) == (defense, epsilon)), None)


def _cost(study: Study, recommended: tuple[str, float | None]) -> str:
    cost, before = _cost_of(study, *recommended), _cost_of(study, UNDEFENDED, None)
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


def _promise(recommended: tuple[str, float | None]) -> str:
    epsilon = recommended[1]
    if epsilon is None:
        return ""
    factor = f"e^ε = {math.exp(epsilon):.3g}" if epsilon <= 5 else "e^ε, which at this ε is no real limit"
    return (
        "These attacks were tried; there may be better ones. Whatever the attack, one answer changes the odds of "
        f"membership by at most a factor of {factor}, beyond what the label tells."
    )


def _inversion(study: Study, recommended: tuple[str, float | None] | None) -> str:
    """Smallest reconstruction error undefended, on the recommended setting, and from the label alone."""

    def least(defense: str, epsilon: float | None) -> float | None:
        rows = [i for i in study.inversions if (i.defense, i.epsilon) == (defense, epsilon) and i.form != "floor"]
        return min((i.mse for i in rows), default=None)

    before = least(UNDEFENDED, None)
    after = least(*recommended) if recommended else None
    label = min((i.mse for i in study.inversions if i.form == "floor" and i.features == "label"), default=None)
    if before is None:
        return ""
    said = f"Pictures rebuilt from the undefended scores miss by a mean squared error of {number(before, 3)}"
    said += f", from {setting(*recommended)} by {number(after, 3)}" if recommended and after is not None else ""
    return said + (f", from the label alone by {number(label, 3)}." if label is not None else ".")


def _noise(study: Study, recommended: tuple[str, float | None] | None) -> str:
    judged = recommended or _closest(study) or (UNDEFENDED, None)
    noise = max((gap.noise for gap in gaps(study, *judged)), default=0.0)
    if noise <= SLACK:
        return ""
    return (
        f"Mind the noise: the 95 % intervals are ±{number(noise)}, larger than the slack of {number(SLACK)}, so this "
        "sample cannot tell a setting that holds from one that leaks a little. "
        f"About {math.ceil((noise / SLACK) ** 2)} times as many records could."
    )


# A gate for CI


@dataclass(frozen=True)
class Limit:
    """The most that any attack may reach on a setting."""

    measure: Measure
    most: float

    def __post_init__(self) -> None:
        if self.measure not in get_args(Measure) or not 0 <= self.most <= 1:
            raise ValueError(f"Expected a measure of {get_args(Measure)} and 0 ≤ limit ≤ 1, got {self}.")


def parse_limit(text: str) -> Limit:
    """`auc=0.55`, `tpr@1%=0.05` or `tpr@0.1%=0.01`; ValueError for anything else."""
    parts = re.fullmatch(r"\s*([^=\s]+)\s*=\s*(\d*\.?\d+)\s*", text, flags=re.ASCII)
    if parts is None or parts[1].lower() not in WRITTEN or not float(parts[2]) <= 1:
        expected = "auc=0.55, tpr@1%=0.05 or tpr@0.1%=0.01, with a number from 0 to 1"
        raise ValueError(f"Expected {expected}, got {text!r}.")
    return Limit(WRITTEN[parts[1].lower()], float(parts[2]))


def reached(study: Study, defense: str, epsilon: float | None, measure: Measure) -> AttackResult:
    """The attack that gets furthest on a setting, by this measure."""
    found = strongest(study, defense, epsilon, knows_label=True, measure=measure)
    if found is None:
        there = sorted({setting(r.defense, r.epsilon) for r in study.results})
        raise ValueError(f"Expected a setting of the study ({'; '.join(there)}), got {setting(defense, epsilon)}.")
    return found


def exceeds(study: Study, defense: str, epsilon: float | None, limit: str) -> bool:
    """Whether any attack on this setting passes the limit, e.g. "auc=0.55"."""
    wanted = parse_limit(limit)
    return float(getattr(reached(study, defense, epsilon, wanted.measure), wanted.measure)) > wanted.most
