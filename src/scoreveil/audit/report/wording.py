"""Names and numbers of a study as people read them. `.80 (.79–.81)`, `fitted veil, ε = 2`."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numbers are worded where no study is read, and nothing of the audit is installed
    from scoreveil.audit.study.results import AttackResult, Setting

IN_WORDS = {
    "none": "no defense",
    "phase_2_alone": "Phase 2 alone",
    "regions": "fitted veil",
    "optimal_sticky": "optimal, sticky",  # a row of results that were made before regions
    "temperature_scaled": "no defense, temperature scaled",
    "label_constant": "label, constant confidence",
    "isotonic_all": "isotonic all",
    "isotonic_all_reference": "isotonic all + reference",
    "rounding_1": "rounding, 1 digit",
    "rounding_2": "rounding, 2 digits",
    "gaussian": "sorted noise",
    "label_floor": "label alone",
    "label_boundary": "distance to the label's boundary",
    "ranking_floor": "ranking alone",
    "log_ratios": "log-ratios",
    "nsh": "NSH",
    "ml_leaks": "ML-Leaks",
    "lira_online": "LiRA",
    "lira_offline": "LiRA, offline",
    "rmia_online": "RMIA",
    "rmia_offline": "RMIA, offline",
    "base_online": "BASE",
    "base_offline": "BASE, offline",
    "pmia": "PMIA",
    "cmia": "CMIA",
    "log_odds": "log-odds",
    "memguard": "MemGuard",
}
NOTHING = "–"


def words(name: str) -> str:
    """`random_forest` → `random forest`; names with a spelling of their own keep it."""
    return IN_WORDS.get(name) or re.sub(r"_+", " ", name).strip() or name


def setting_in_words(setting: "Setting") -> str:
    """`fitted veil, ε = 2`."""
    defense, epsilon = setting
    return words(defense) if epsilon is None else f"{words(defense)}, ε = {epsilon:g}"


def attack_name(name: str) -> str:
    """`random forest + label`."""
    return words(name.removesuffix("_known")) + (" + label" if name.endswith("_known") else "")


def attack(result: "AttackResult") -> str:
    """`random forest on log-ratios, over repeated queries`."""
    name = attack_name(result.attack)
    if result.reads == "scores":
        name += f" on {words(result.features)}" if result.features else ""
    elif result.reads not in result.attack:
        name += f" on the {result.reads} alone"
    return name + (", over repeated queries" if result.form == "averaging" else "")


def attack_list(results: "Iterable[AttackResult]") -> str:
    """The attacks, each named once, whether or not it is told the label, online or offline."""
    return ", ".join(dict.fromkeys(words(r.attack.removesuffix("_known")).partition(",")[0] for r in results))


def number(value: float | None, digits: int = 2) -> str:
    """A fraction without its leading zero: .80, 1.00, −.03."""
    if value is None:
        return NOTHING
    text = f"{value:.{digits}f}"
    return re.sub(r"^(-?)0\.", r"\1.", text).replace("-", "−")


def percent(value: float | None) -> str:
    if value is None:
        return NOTHING
    hundredfold = 100 * value
    return f"{hundredfold:.0f} %" if hundredfold >= 9.95 else f"{number(hundredfold, 1)} %"


def interval(value: float, low: float, high: float, show: Callable[[float], str] = number) -> str:
    """`.80 (.79–.81)`, or `12 % (11–13 %)`."""
    return f"{show(value)} ({show(low).removesuffix(' %')}–{show(high)})"


def seconds(value: float) -> str:
    """In the unit that keeps it short: 3.1 s, 250 ms, 12 µs, 90 ns."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"
