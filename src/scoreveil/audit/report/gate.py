"""A gate for releases: whether the attacks on one setting pass a limit.

    (answer,) = gate(study, ("regions", None), fail_over="auc=0.55")
    answer.passes, answer.sentence

Unlike the verdict it looks at one setting alone, and there every attack counts.
"""

import re
from dataclasses import dataclass

from scipy.stats import beta

from scoreveil.audit.report.wording import number, percent, setting_in_words
from scoreveil.audit.study.results import AttackResult, Measure, Setting, Study, floors, setting_name
from scoreveil.audit.verdict import ERROR, RATES, deviation, either_way, needed, quantile, readable

WRITTEN: dict[str, Measure] = {"auc": "auc", "tpr@1%": "tpr_at_1pct", "tpr@0.1%": "tpr_at_01pct"}


@dataclass(frozen=True)
class Limit:
    """The most that any attack may reach on a setting."""

    measure: Measure
    most: float
    written: str


@dataclass(frozen=True)
class Gate:
    """Whether a release may go on, and why."""

    passes: bool
    sentence: str


def parse_limit(text: str) -> Limit:
    """`auc=0.55`, `tpr@1%=0.05` or `tpr@0.1%=0.01`; ValueError for anything else."""
    parts = re.fullmatch(r"\s*([^=\s]+)\s*=\s*(\d*\.?\d+)\s*", text, flags=re.ASCII)
    if parts is None or parts[1].lower() not in WRITTEN or not float(parts[2]) <= 1:
        expected = "auc=0.55, tpr@1%=0.05 or tpr@0.1%=0.01, with a number from 0 to 1"
        raise ValueError(f"Expected {expected}, got {text!r}.")
    return Limit(WRITTEN[parts[1].lower()], float(parts[2]), text.strip())


def check_enough(measure: Measure, nonmembers: int) -> None:
    """A ValueError where a limit on this measure could not be judged."""
    if nonmembers < needed(measure):
        least = f"at least {needed(measure)} non-members under attack"
        raise ValueError(f"Expected {least} for this limit, got {nonmembers}.")


def gate(study: Study, setting: Setting, *, fail_over: str = "", fail_unless_under: str = "") -> tuple[Gate, ...]:
    """Whether the attacks on a setting pass the limits, one answer for each limit that is given.

    Args:
        study: Where to look.
        setting: The defense and its ε. Every attack on it counts.
        fail_over: A limit that is not passed as long as the lower bound of the best attack lies below, "auc=0.55".
        fail_unless_under: A limit that is passed unless the upper bound of every attack lies below.

    Raises:
        ValueError: A limit cannot be read, the setting was not studied, or there are too few non-members for the limit.
    """
    answers = []
    for text, surely in ((fail_over, False), (fail_unless_under, True)):
        if not text:
            continue
        limit = parse_limit(text)
        value, low, high = bounds(study, setting, limit.measure)
        where, reaches = setting_in_words(setting), percent(value) if limit.measure in RATES else number(value, 3)
        ends = [number(end, 3) for end in (low, high)]
        if surely:
            passes, end = high <= limit.most, f"upper bound {ends[1]}"
            what = "every attack stays within" if passes else "it cannot be ruled out that an attack passes"
        else:
            passes, end = low <= limit.most, f"lower bound {ends[0]}"
            what = "it is not shown that an attack passes" if passes else "an attack surely passes"
        says = f"Gate {'open' if passes else 'shut'}: on {where} {what} {limit.written} (best attack {reaches}, 95 % "
        answers.append(Gate(passes, f"{says}{end}).{'' if passes else _out_of_reach(study, limit)}"))
    return tuple(answers)


def _out_of_reach(study: Study, limit: Limit) -> str:
    """Said where the label alone passes the limit: then no veil can keep it."""
    alone = max((level.auc for told in (False, True) for level in floors(study, told)), default=0.0)
    if limit.measure != "auc" or alone <= limit.most:
        return ""
    return f" The label alone gives {number(alone, 3)}: no defense that keeps the label opens this gate."


def bounds(study: Study, setting: Setting, measure: Measure) -> tuple[float, float, float]:
    """What the best attack on a setting reaches, and its 95 % bounds, with the luck of the best of many counted."""
    there = [either_way(r) for r in study.results if r.setting == setting]
    if any(d.keeps_label for d in study.defenses if d.setting == setting):
        there += study.boundary
    if not there:
        known = "; ".join(sorted({setting_name(r.setting) for r in study.results}))
        raise ValueError(f"Expected a setting of the study ({known}), got {setting_name(setting)}.")
    enough = [r for r in there if readable(r, measure)]
    check_enough(measure, max(r.nonmembers for r in there))
    ends = [(float(getattr(r, measure)), *_ends(r, measure, len(enough))) for r in enough]
    return max(v for v, _, _ in ends), max(low for _, low, _ in ends), max(high for _, _, high in ends)


def _ends(result: AttackResult, measure: Measure, attacks: int) -> tuple[float, float]:
    """One-sided bounds: the lower one for the best of so many attacks. Of a share of members, Clopper and Pearson's."""
    value, members = float(getattr(result, measure)), result.members
    if measure == "auc":
        error = deviation(result)
        return max(0.0, value - quantile(attacks) * error), min(1.0, value + quantile(1) * error)
    hits = round(value * members)
    low = float(beta.ppf(ERROR / attacks, hits, members - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - ERROR, hits + 1, members - hits)) if hits < members else 1.0
    return min(low, value), max(high, value)
