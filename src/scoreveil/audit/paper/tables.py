"""The tables of a reproduction, in Markdown: the paper's Table 2 row by row with ours beside it, and what follows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from scoreveil.audit.paper.printed import TABLE_2, Row
from scoreveil.audit.report.wording import NOTHING, attack, number, seconds, setting, words
from scoreveil.audit.study.membership import LIKELIHOOD
from scoreveil.audit.study.results import AttackResult, DefenseResult, InversionResult, Study, best
from scoreveil.audit.study.subjects import Setting

NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
OURS = ("isotonic_reference", "isotonic_all_reference")


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
        made = study.meta
        parts += [
            f"## {NAMES.get(name, name)}",
            f"{made.get('title', name)}. [Report]({name}/report.html), [results]({name}/results.json), "
            f"[figures]({name}/figures). {made.get('machine', '')}, {made.get('date', '')}.",
            "### Table 2, and our rows below it",
            table_2(study, TABLE_2.get(name, {})),
            "### What an attacker who adapts makes of the same scores",
            adaptive(study),
            "### Reconstruction",
            inversion(study),
            "### Time",
            overhead(study, TABLE_2.get(name, {})),
        ]
        if any(r.attack in LIKELIHOOD for r in study.results):
            parts += ["### LiRA and RMIA", likelihood(study)]
    return "\n\n".join(parts) + "\n"


def _grid(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: bool = True) -> str:
    lines = [columns, ["---"] + ["---:" if numbers else "---"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _settings(study: Study) -> list[tuple[Setting, DefenseResult]]:
    return [((d.defense, d.epsilon), d) for d in study.defenses]


# Table 2


def table_2(study: Study, printed: Mapping[Setting, Row]) -> str:
    rows = []
    for one, cost in _settings(study):
        theirs = printed.get(one)
        ml_leaks, nsh = (best(study.results, *one, attack=name, form="paper") for name in ("ml_leaks", "nsh"))
        drawn = _inverted(study, one, "paper")
        rows.append(
            [
                setting(*one),
                _beside(_percent(cost.train_accuracy), theirs, lambda row: f"{row.train:.2f}"),
                _beside(_percent(cost.test_accuracy), theirs, lambda row: f"{row.test:.2f}"),
                _beside(number(cost.distortion_l2, 3), theirs, lambda row: number(row.distortion, 3)),
                _beside(number(drawn.mse, 4) if drawn else NOTHING, theirs, lambda row: number(row.inversion, 3)),
                _beside(_percent(ml_leaks.accuracy if ml_leaks else None), theirs, lambda row: f"{row.ml_leaks:.1f}"),
                _beside(_percent(nsh.accuracy if nsh else None), theirs, lambda row: f"{row.nsh:.1f}"),
            ]
        )
    columns = ("", "train acc. %", "test acc. %", "distortion ℓ2", "inversion error", "ML-Leaks %", "NSH %")
    return _grid(columns, rows)


def _beside(ours: str, theirs: Row | None, show: Callable[[Row], str]) -> str:
    return ours if theirs is None else f"{ours} ({show(theirs)})"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}"


def _inverted(study: Study, one: Setting, form: str, features: str | None = None) -> InversionResult | None:
    there = (i for i in study.inversions if (i.defense, i.epsilon) == one and i.form == form)
    return next((i for i in there if features is None or i.features == features), None)


# The adaptive attacker


def on_scores(study: Study, one: Setting, knows_label: bool, measure: str = "auc") -> AttackResult | None:
    """The best attack on scores that was fitted under the defense, with one shadow and one query for each record."""
    there = [
        r
        for r in study.results
        if (r.defense, r.epsilon) == one
        and r.form == "adaptive"
        and r.reads == "scores"
        and r.attack not in LIKELIHOOD
        and (knows_label or not r.knows_label)
    ]
    return max(there, key=lambda r: float(getattr(r, measure)), default=None)


def floor(study: Study, reads: str, knows_label: bool) -> AttackResult | None:
    """What the label, or the ranking, gives without any score: an attack of its own, on what is undefended."""
    return best(study.results, "none", None, attack=f"{reads}_floor" + ("_known" if knows_label else ""))


def adaptive(study: Study) -> str:
    columns = (
        *("", "best accuracy %", "best AUC", "by", "AUC, told the label", "by", "TPR at 1 % FPR", "AUC, averaged ×5"),
        *("ℓ1", "AUROC of confidence"),
    )
    rows = []
    for one, cost in _settings(study):
        alone, told = (on_scores(study, one, knows) for knows in (False, True))
        early, right = on_scores(study, one, True, "tpr_at_1pct"), on_scores(study, one, True, "accuracy")
        averaged = best(study.results, *one, form="averaging", knows_label=False)
        rows.append(
            [
                setting(*one),
                _percent(right.accuracy if right else None),
                _auc(alone),
                attack(alone) if alone else NOTHING,
                _auc(told),
                attack(told) if told else NOTHING,
                f"{_percent(early.tpr_at_1pct)} %" if early else NOTHING,
                _auc(averaged),
                number(cost.distortion_l1, 3),
                number(cost.auroc_of_confidence, 3),
            ]
        )
    for reads in ("label", "ranking"):
        alone, told = (floor(study, reads, knows) for knows in (False, True))
        accuracy = _percent(told.accuracy if told else None)
        rows.append([f"**the {reads} alone**", accuracy, _auc(alone), "", _auc(told), "", "", "", "", ""])
    variants = best(study.results, "none", None, attack="augmentation")
    if variants:
        percent = _percent(variants.accuracy)
        rows.append(["**labels of moved copies**", percent, NOTHING, "", _auc(variants), "", "", "", "", ""])
    return _grid(columns, rows)


def _auc(result: AttackResult | None) -> str:
    return (
        NOTHING if result is None else f"{number(result.auc, 3)} ± {number((result.auc_high - result.auc_low) / 2, 3)}"
    )


def inversion(study: Study) -> str:
    columns = ("", "the paper's attacker, MSE", "adaptive, MSE", "SSIM", "nearest original right %")
    rows = []
    for one, _ in _settings(study):
        paper, fitted = _inverted(study, one, "paper"), _inverted(study, one, "adaptive")
        if fitted is not None:
            mse = number(paper.mse, 4) if paper else NOTHING
            rows.append([setting(*one), mse, *_drawn(fitted)])
    for reads in ("label", "ranking"):
        alone = _inverted(study, ("none", None), "floor", reads)
        if alone is not None:
            rows.append([f"**the {reads} alone**", "", *_drawn(alone)])
    return _grid(columns, rows)


def _drawn(found: InversionResult) -> list[str]:
    return [number(found.mse, 4), number(found.ssim, 3), f"{100 * found.nearest_original:.2f}"]


def overhead(study: Study, printed: Mapping[Setting, Row]) -> str:
    """Each defense's time beside the model's own for one image, and ours beside plain numpy, in one run."""
    columns = ("", "to fit", "a vector", "÷ the model's time for an image", "÷ plain numpy", "paper: to fit, a vector")
    model = study.meta.get("model, seconds per image")
    rows = []
    for one, cost in _settings(study):
        theirs = printed.get(one)
        rows.append(
            [
                setting(*one),
                seconds(round(cost.fit_seconds, 4)),
                seconds(cost.seconds_per_vector),
                f"{cost.seconds_per_vector / model:.2g}" if model else NOTHING,
                f"{cost.ratio_to_numpy:.2g}" if cost.ratio_to_numpy else NOTHING,
                f"{theirs.hours:g} h, {seconds(theirs.seconds)}" if theirs else NOTHING,
            ]
        )
    return _grid(columns, rows)


def likelihood(study: Study) -> str:
    """For each setting the four attacks: AUC and members found at 1 % false positives."""
    columns = ("", *(f"{words(name)}: AUC, TPR at 1 %" for name in LIKELIHOOD))
    attacked = [one for one, _ in _settings(study) if best(study.results, *one, attack=LIKELIHOOD[0])]
    rows = [[setting(*one), *(_early(study, one, name, "scores") for name in LIKELIHOOD)] for one in attacked]
    rows.append(["**the label alone**", *(_early(study, ("none", None), name, "label") for name in LIKELIHOOD)])
    return _grid(columns, rows)


def _early(study: Study, one: Setting, name: str, reads: str) -> str:
    found = best(study.results, *one, attack=name, reads=reads)
    return f"{_auc(found)}, {_percent(found.tpr_at_1pct)} %" if found else NOTHING


# What was to be shown


@dataclass(frozen=True)
class Claim:
    """One goal on one dataset."""

    what: str
    goal: str
    measured: str
    met: bool


def claims(studies: Mapping[str, Study]) -> str:
    rows = [
        [NAMES.get(name, name), claim.what, claim.goal, claim.measured, "yes" if claim.met else "**no**"]
        for name, study in studies.items()
        for claim in claims_of(study)
    ]
    return _grid(("", "what", "goal", "measured", "met"), rows, numbers=False)


def claims_of(study: Study) -> list[Claim]:
    there = [one for one, _ in _settings(study)]
    found = [_accuracy_kept(study)]
    found += [_paper_attacker(study, one) for one in there if one == ("published", 0.1)]
    found += [_still_leaks(study, one) for one in there if one == ("published", 0.1)]
    strict = [one for one in there if one[0] in OURS and one[1] is not None and one[1] <= 2]
    found += [_at_the_floor(study, one, knows) for one in strict for knows in (False, True)]
    found += [_not_redrawn(study, one) for one in strict if _inverted(study, one, "adaptive")]
    found += [_less_distorted(study, one) for one in there if one == (OURS[0], 2.0)]
    return found


def _accuracy_kept(study: Study) -> Claim:
    before = study.defenses[0]
    lost = [(before.test_accuracy or 0) - (d.test_accuracy or 0) for d in study.defenses if d.keeps_label]
    return Claim("accuracy lost by a defense that keeps the label", "0", number(max(lost), 4), max(map(abs, lost)) == 0)


def _paper_attacker(study: Study, one: Setting) -> Claim:
    rows = [best(study.results, *one, attack=name, form="paper") for name in ("ml_leaks", "nsh")]
    values = [r.accuracy for r in rows if r]
    shown = " and ".join(f"{100 * v:.1f} %" for v in values)
    return Claim(
        f"{setting(*one)}: the paper's ML-Leaks and NSH", "50 %", shown, all(abs(v - 0.5) <= 0.02 for v in values)
    )


def _still_leaks(study: Study, one: Setting) -> Claim:
    before, after = (on_scores(study, s, False) for s in (("none", None), one))
    if before is None or after is None:
        return Claim(f"{setting(*one)}: adaptive AUC", "", NOTHING, False)
    shown = f"{number(after.auc, 3)} against {number(before.auc, 3)}"
    return Claim(
        f"{setting(*one)}: adaptive AUC beside undefended", "within .03", shown, before.auc - after.auc <= 0.03
    )


def _at_the_floor(study: Study, one: Setting, knows_label: bool) -> Claim:
    reads = "ranking" if "_all" in one[0] else "label"
    attacked, alone = on_scores(study, one, knows_label), floor(study, reads, knows_label)
    told = ", told the true label" if knows_label else ""
    what = f"{setting(*one)}: best adaptive AUC{told}, beside the {reads}'s floor"
    if attacked is None or alone is None:
        return Claim(what, "", NOTHING, False)
    above = attacked.auc - max(0.5, alone.auc)
    return Claim(what, "within .02", f"{number(attacked.auc, 3)} against {number(alone.auc, 3)}", above <= 0.02)


def _not_redrawn(study: Study, one: Setting) -> Claim:
    reads = "ranking" if "_all" in one[0] else "label"
    drawn, alone = _inverted(study, one, "adaptive"), _inverted(study, ("none", None), "floor", reads)
    what = f"{setting(*one)}: adaptive inversion error beside the {reads}-only network's"
    if drawn is None or alone is None:
        return Claim(what, "", NOTHING, False)
    below = 1 - drawn.mse / alone.mse
    shown = f"{number(drawn.mse, 4)} against {number(alone.mse, 4)} ({100 * -below:+.1f} %)".replace("-", "−")
    return Claim(what, "no more than 2 % below", shown, below <= 0.02)


def _less_distorted(study: Study, one: Setting) -> Claim:
    costs = {s: d.distortion_l2 for s, d in _settings(study)}
    rivals = {
        words(name): min(v for s, v in costs.items() if s[0] == name)
        for name in ("memguard", "purification", "published")
        if any(s[0] == name for s in costs)
    }
    shown = f"{number(costs[one], 3)}; " + ", ".join(f"{name} {number(v, 3)}" for name, v in rivals.items())
    lowest = min(rivals.values(), default=1.0)
    return Claim(f"{setting(*one)}: distortion", "below its rivals'", shown, costs[one] < lowest)
