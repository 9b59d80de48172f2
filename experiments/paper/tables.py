"""The tables of a reproduction, in Markdown: the paper's Table 2 row by row with ours beside it, and what follows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.paper.printed import TABLE_2, PrintedRow
from scoreveil.audit.attacks import COMPARISONS
from scoreveil.audit.report.wording import NOTHING, attack, attack_list, number, seconds, setting_in_words, words
from scoreveil.audit.study.results import (
    UNDEFENDED,
    VEIL,
    AttackResult,
    DefenseResult,
    InversionResult,
    Measure,
    Setting,
    Study,
    best,
    shared,
)

LIKELIHOOD = ("lira_online", "lira_offline", "rmia_online", "rmia_offline")
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "adult": "Adult"}


def markdown(studies: Mapping[str, Study], command: str) -> str:
    """All tables of all datasets."""
    parts = [
        "# The paper's experiments, run again",
        f"Made by `{command}` from the `results.json` beside each report; each cell is ours, then the paper's in "
        "brackets where it has one. Intervals of every figure are in the reports.",
        "## What was to be shown",
        claims(studies),
    ]
    for name, study in studies.items():
        made, printed = study.meta, TABLE_2.get(name, {})
        parts += [
            f"## {NAMES.get(name, name)}",
            f"{made.get('title', name)}. Every number is in [results.json]({name}/results.json), every figure in the "
            f"report.html that the command puts beside it. {made.get('machine', '')}, {made.get('date', '')}.",
            "### Table 2, and our rows below it",
            table_2(study, printed),
            "### What an attacker who adapts makes of the same scores",
            f"The best of the attacks that were run on every setting: {attack_list(shared(study).results)}.",
            adaptive(study),
            "### Reconstruction",
            inversion(study),
            "### Time",
            overhead(study, printed),
        ]
        if any(r.attack in LIKELIHOOD for r in study.results):
            parts += ["### LiRA, RMIA and their kin", likelihood(study)]
    return "\n\n".join(parts) + "\n"


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    """A table; in the columns after the first, numbers stand to the right."""
    lines = [columns, ["---"] + ["---:" if numbers else "---"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}"


def _accuracy(result: AttackResult | None) -> str:
    return _percent(result.accuracy if result else None)


def _auc(result: AttackResult | None) -> str:
    return f"{number(result.auc, 3)} ± {number((result.auc_high - result.auc_low) / 2, 3)}" if result else NOTHING


def table_2(study: Study, printed: Mapping[Setting, PrintedRow]) -> str:
    def cells(cost: DefenseResult) -> Iterable[str]:
        ml_leaks, nsh = (best(study, cost.setting, attack=name, form="paper") for name in ("ml_leaks", "nsh"))
        drawn, theirs = inverted(study, cost.setting, "paper"), printed.get(cost.setting)
        pairs: tuple[tuple[str, Callable[[PrintedRow], str]], ...] = (
            (_percent(cost.train_accuracy), lambda row: f"{row.train:.2f}"),
            (_percent(cost.test_accuracy), lambda row: f"{row.test:.2f}"),
            (number(cost.distortion_l2, 3), lambda row: number(row.distortion, 3)),
            (number(drawn.mse, 4) if drawn else NOTHING, lambda row: number(row.inversion, 3)),
            (_accuracy(ml_leaks), lambda row: f"{row.ml_leaks:.1f}"),
            (_accuracy(nsh), lambda row: f"{row.nsh:.1f}"),
        )
        return (f"{ours} ({show(theirs)})" if theirs else ours for ours, show in pairs)

    columns = ("", "train acc. %", "test acc. %", "distortion ℓ2", "inversion error", "ML-Leaks %", "NSH %")
    return grid(columns, ([setting_in_words(cost.setting), *cells(cost)] for cost in study.defenses))


def inverted(study: Study, one: Setting, form: str, features: str | None = None) -> InversionResult | None:
    """The reconstructions by one attacker."""
    there = (i for i in study.inversions if i.setting == one and i.form == form)
    return next((i for i in there if features is None or i.features == features), None)


# The adaptive attacker


def on_scores(study: Study, one: Setting, told: bool, measure: Measure = "auc") -> AttackResult | None:
    """The best attack on scores that was fitted under the defense, of those that were run on every setting."""
    return best(shared(study), one, measure, told, form="adaptive", reads="scores")


def floor(study: Study, reads: str, told: bool) -> AttackResult | None:
    """What the label, or the ranking, gives without any score: an attack of its own, on what is undefended."""
    return best(study, UNDEFENDED, attack=f"{reads}_floor" + ("_known" if told else ""))


def adaptive(study: Study) -> str:
    columns = (
        *("", "best accuracy %", "best AUC", "by", "AUC, told the label", "by", "TPR at 1 % FPR", "AUC, averaged ×5"),
        *("AUROC of confidence", "log-loss", "ECE"),
    )
    rows = []
    for cost in study.defenses:
        alone, told = (on_scores(study, cost.setting, told) for told in (False, True))
        early = on_scores(study, cost.setting, True, "tpr_at_1pct")
        row = [setting_in_words(cost.setting), _accuracy(on_scores(study, cost.setting, True, "accuracy"))]
        for result in (alone, told):
            row += [_auc(result), attack(result) if result else NOTHING]
        row += [f"{_percent(early.tpr_at_1pct)} %" if early else NOTHING]
        row += [_auc(best(study, cost.setting, told=False, form="averaging"))]
        rows.append([*row, *(number(value, 3) for value in (cost.auroc_of_confidence, cost.nll, cost.ece))])
    for reads in ("label", "ranking"):
        alone, told = (floor(study, reads, told) for told in (False, True))
        rows.append([f"**the {reads} alone**", _accuracy(told), _auc(alone), "", _auc(told), *[""] * 6])
    copies = best(study, UNDEFENDED, attack="augmentation")
    if copies:
        rows.append(["**labels of moved copies**", _accuracy(copies), NOTHING, "", _auc(copies), *[""] * 6])
    return grid(columns, rows)


COMPARED: tuple[Setting, ...] = (
    UNDEFENDED,
    ("temperature_scaled", None),
    ("isotonic", 2.0),
    ("label_constant", None),
)


def _excess(attacked: AttackResult | None, alone: AttackResult | None) -> float | None:
    """How far an attack comes above its floor, which is guessing at least."""
    return None if attacked is None or alone is None else attacked.auc - max(0.5, alone.auc)


def worth(studies: Mapping[str, Study]) -> str:
    """What ways to answer without a fitted veil leak beyond the label, and what their confidence is worth."""
    rows = []
    for name, study in studies.items():
        costs = {d.setting: d for d in study.defenses}
        for one in COMPARED:
            row = [NAMES[name], setting_in_words(one)]
            for told in (False, True):
                above = _excess(on_scores(study, one, told), floor(study, "label", told))
                row.append(NOTHING if above is None else ("+" if above > 0 else "") + number(above, 3))
            rows.append([*row, *(number(value, 3) for value in (costs[one].auroc_of_confidence, costs[one].nll))])
    return grid(("", "answers", "leak", "leak given the true label", "AUROC", "log-loss"), rows)


def inversion(study: Study) -> str:
    def drawn(found: InversionResult) -> list[str]:
        return [number(found.mse, 4), number(found.ssim, 3), f"{100 * found.nearest_original:.2f}"]

    rows = []
    for one in (cost.setting for cost in study.defenses):
        paper, fitted = inverted(study, one, "paper"), inverted(study, one, "adaptive")
        if fitted is not None:
            rows.append([setting_in_words(one), number(paper.mse, 4) if paper else NOTHING, *drawn(fitted)])
    for reads in ("label", "ranking"):
        alone = inverted(study, UNDEFENDED, "floor", reads)
        rows += [[f"**the {reads} alone**", "", *drawn(alone)]] if alone else []
    return grid(("", "the paper's attacker, MSE", "adaptive, MSE", "SSIM", "nearest original right %"), rows)


def overhead(study: Study, printed: Mapping[Setting, PrintedRow]) -> str:
    """Each defense's time beside the model's own for one image, and ours beside plain numpy, in one run."""
    columns = ("", "to fit", "a vector", "÷ the model's time for an image", "÷ plain numpy", "paper: to fit, a vector")
    model = study.meta.get("model, seconds per image")
    rows = []
    for cost in study.defenses:
        theirs = printed.get(cost.setting)
        rows.append(
            [
                setting_in_words(cost.setting),
                seconds(round(cost.fit_seconds, 4)),
                seconds(cost.seconds_per_vector),
                f"{cost.seconds_per_vector / model:.2g}" if model else NOTHING,
                f"{cost.ratio_to_numpy:.2g}" if cost.ratio_to_numpy else NOTHING,
                f"{theirs.hours:g} h, {seconds(theirs.seconds)}" if theirs else NOTHING,
            ]
        )
    return grid(columns, rows)


def likelihood(study: Study) -> str:
    """For each setting the attacks from many shadows: AUC and members found at 1 % false positives."""
    kin = [name for name in COMPARISONS if name not in LIKELIHOOD]

    def cells(one: Setting, reads: str) -> list[str]:
        found = [best(study, one, attack=name, reads=reads) for name in LIKELIHOOD]
        shown = [f"{_auc(r)}, {_percent(r.tpr_at_1pct)} %" if r else NOTHING for r in found]
        other = _best_of(study, one, kin, reads)
        return [*shown, f"{_auc(other)}, {_percent(other.tpr_at_1pct)} % ({words(other.attack)})" if other else NOTHING]

    attacked = [d.setting for d in study.defenses if best(study, d.setting, attack=LIKELIHOOD[0])]
    rows = [[setting_in_words(one), *cells(one, "scores")] for one in attacked]
    rows.append(["**the label alone**", *cells(UNDEFENDED, "label")])
    return grid(("", *(f"{words(name)}: AUC, TPR at 1 %" for name in LIKELIHOOD), "the best of their kin"), rows)


def _best_of(study: Study, one: Setting, names: Iterable[str], reads: str) -> AttackResult | None:
    """The best of these attacks on a setting."""
    found = (r for name in names if (r := best(study, one, attack=name, reads=reads)))
    return max(found, key=lambda r: r.auc, default=None)


# What was to be shown


@dataclass(frozen=True)
class Goals:
    """Of the fitted veil on one dataset."""

    useful: float  # AUROC of confidence
    ece: float


FITTED: tuple[Setting, ...] = ((VEIL, None), ("optimal", 4.0))  # the latter of results that were made before regions
GOALS = {"mnist": Goals(0.80, 0.01), "fashion-mnist": Goals(0.80, 0.02), "cifar10": Goals(0.65, 0.03)}


@dataclass(frozen=True)
class Claim:
    """One goal on one dataset; or figures without a goal, where `met` is None."""

    what: str
    goal: str
    measured: str
    met: bool | None


def claims(studies: Mapping[str, Study]) -> str:
    return claim_table({name: claims_of(study, GOALS.get(name, GOALS["cifar10"])) for name, study in studies.items()})


def claim_table(found: Mapping[str, Iterable[Claim]]) -> str:
    """The claims of each dataset."""
    met = {True: "yes", False: "**no**", None: ""}
    rows = [
        [NAMES.get(name, name), claim.what, claim.goal, claim.measured, met[claim.met]]
        for name, its in found.items()
        for claim in its
    ]
    return grid(("", "what", "goal", "measured", "met"), rows, numbers=False)


def claims_of(study: Study, goals: Goals) -> list[Claim]:
    there = [cost.setting for cost in study.defenses]
    found = [_accuracy_kept(study)]
    if ("published", 0.1) in there:
        found += [_paper_attacker(study, ("published", 0.1)), _still_leaks(study, ("published", 0.1))]
    for one in (*FITTED, ("isotonic_all_reference", 2.0)):
        if one in there:
            found += [_at_the_floor(study, one, told) for told in (False, True)]
            if best(study, one, attack=LIKELIHOOD[0]):
                found.append(_likelihood_at_the_floor(study, one))
            if inverted(study, one, "adaptive"):
                found.append(_not_redrawn(study, one))
    return found + [claim for one in FITTED if one in there for claim in _worth(study, one, goals)]


def _accuracy_kept(study: Study) -> Claim:
    before = study.defenses[0]
    lost = [(before.test_accuracy or 0) - (d.test_accuracy or 0) for d in study.defenses if d.keeps_label]
    return Claim("accuracy lost by a defense that keeps the label", "0", number(max(lost), 4), max(map(abs, lost)) == 0)


def _paper_attacker(study: Study, one: Setting) -> Claim:
    rows = [best(study, one, attack=name, form="paper") for name in ("ml_leaks", "nsh")]
    values = [r.accuracy for r in rows if r]
    what, shown = (
        f"{setting_in_words(one)}: the paper's ML-Leaks and NSH",
        " and ".join(f"{_percent(v)} %" for v in values),
    )
    return Claim(what, "50 %", shown, all(abs(v - 0.5) <= 0.02 for v in values))


def _still_leaks(study: Study, one: Setting) -> Claim:
    before, after = (on_scores(study, setting, False) for setting in (UNDEFENDED, one))
    if before is None or after is None:
        return Claim(f"{setting_in_words(one)}: adaptive AUC", "", NOTHING, False)
    shown, met = f"{number(after.auc, 3)} against {number(before.auc, 3)}", before.auc - after.auc <= 0.03
    return Claim(f"{setting_in_words(one)}: adaptive AUC beside undefended", "within .03", shown, met)


def _at_the_floor(study: Study, one: Setting, told: bool) -> Claim:
    reads = "ranking" if "_all" in one[0] else "label"
    attacked, alone = on_scores(study, one, told), floor(study, reads, told)
    knowing = ", told the true label" if told else ""
    what = f"{setting_in_words(one)}: best adaptive AUC{knowing}, beside the {reads}'s floor"
    return _above(what, attacked, alone)


def _likelihood_at_the_floor(study: Study, one: Setting) -> Claim:
    """The best of the attacks from many shadows, beside the best of them that is given labels alone."""
    attacked = _best_of(study, one, COMPARISONS, "scores")
    alone = _best_of(study, UNDEFENDED, COMPARISONS, "label")
    what = f"{setting_in_words(one)}: best AUC of LiRA, RMIA and their kin, beside theirs on labels"
    return _above(what, attacked, alone)


def _above(what: str, attacked: AttackResult | None, alone: AttackResult | None) -> Claim:
    above = _excess(attacked, alone)
    if attacked is None or alone is None or above is None:
        return Claim(what, "", NOTHING, False)
    return Claim(what, "within .03", f"{number(attacked.auc, 3)} against {number(alone.auc, 3)}", above <= 0.03)


def _not_redrawn(study: Study, one: Setting) -> Claim:
    reads = "ranking" if "_all" in one[0] else "label"
    drawn, alone = inverted(study, one, "adaptive"), inverted(study, UNDEFENDED, "floor", reads)
    what = f"{setting_in_words(one)}: adaptive inversion error beside the {reads}-only network's"
    if drawn is None or alone is None:
        return Claim(what, "", NOTHING, False)
    below = 1 - drawn.mse / alone.mse
    shown = f"{number(drawn.mse, 4)} against {number(alone.mse, 4)} ({100 * -below:+.1f} %)".replace("-", "−")
    return Claim(what, "no more than 2 % below", shown, below <= 0.02)


def _worth(study: Study, one: Setting, goals: Goals) -> list[Claim]:
    """What the confidence is still worth."""
    costs = {d.setting: d for d in study.defenses}
    cost, raw, name = costs[one], costs[UNDEFENDED], setting_in_words(one)
    if cost.nll is None or raw.nll is None or cost.ece is None or cost.auroc_of_confidence is None:
        return []
    useful, ece = cost.auroc_of_confidence, cost.ece
    beside = ", ".join(
        f"{words(other)} {number(costs[other, None].nll, 3)}"
        for other in ("temperature_scaled", "label_constant")
        if (other, None) in costs
    )
    return [
        Claim(
            f"{name}: AUROC of confidence", f"at least {number(goals.useful)}",
            f"{number(useful, 3)}; undefended {number(raw.auroc_of_confidence, 3)}", useful >= goals.useful,
        ),
        Claim(
            f"{name}: log-loss", "below the undefended scores'",
            f"{number(cost.nll, 3)} against {number(raw.nll, 3)}; {beside}", cost.nll < raw.nll,
        ),
        Claim(
            f"{name}: calibration error", f"at most {number(goals.ece)}",
            f"{number(ece, 3)}; undefended {number(raw.ece, 3)}", ece <= goals.ece,
        ),
    ]  # fmt: skip
