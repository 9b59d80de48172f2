"""The tables of a study: the best attack on each setting, what it costs, and every attack and inversion."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from scoreveil.audit.report.figures import settings
from scoreveil.audit.report.table import Column, Table, TableCell, epsilon, figure, table, word, yes
from scoreveil.audit.report.wording import NOTHING, attack, interval, number, percent, seconds, setting_in_words, words
from scoreveil.audit.study.results import Measure, Setting, Study, best, shared
from scoreveil.audit.verdict import AuditVerdict, Leak, knowledge, leaks, needed, readable, ways_to_answer

short = partial(number, digits=3)


def setting_cells(setting: Setting) -> tuple[TableCell, TableCell]:
    return word(words(setting[0])), epsilon(setting[1])


SETTING: tuple[Column[Any], ...] = (
    ("defense", "", lambda row: setting_cells(row.setting)[0]),
    ("ε", "the one parameter; the smaller, the less shows", lambda row: setting_cells(row.setting)[1]),
)


def of_settings(name: str, rows: Sequence[Any], columns: Sequence[Column[Any]], marked: Setting | None = None) -> Table:
    """A row for each result, which begins with its setting."""
    return table(name, rows, (*SETTING, *columns), _where(marked, [row.setting for row in rows]))


def _where(marked: Setting | None, there: list[Setting]) -> int | None:
    return there.index(marked) if marked in there else None


def _field(field: str, show: Callable[[Any], str]) -> Callable[[Any], TableCell]:
    return lambda row: TableCell(show(getattr(row, field)), getattr(row, field))


def _word(field: str) -> Callable[[Any], TableCell]:
    return lambda row: word(words(getattr(row, field)))


def _yes(field: str) -> Callable[[Any], TableCell]:
    return lambda row: yes(getattr(row, field))


def _span(field: str, show: Callable[[float], str]) -> Callable[[Any], TableCell]:
    """A number with its interval below."""

    def cell(row: Any) -> TableCell:
        value, low, high = (getattr(row, f"{field}{end}") for end in ("", "_low", "_high"))
        return TableCell(show(value), value, f"{show(low).removesuffix(' %')}–{show(high)}")

    return cell


def _found(measure: Measure) -> Callable[[Any], TableCell]:
    """The share of members found, where there were non-members enough to tell."""
    show = _span(measure, percent)
    return lambda row: show(row) if readable(row, measure) else TableCell(NOTHING)


EARLY: tuple[Column[Any], ...] = (
    (
        "TPR at 1 %",
        "members found while 1 % of non-members are called members, by the attack that is best there; with its 95 % "
        f"interval; takes {needed('tpr_at_1pct'):,} non-members to tell",
        _found("tpr_at_1pct"),
    ),
    (
        "TPR at .1 %",
        "members found while .1 % of non-members are called members; takes "
        f"{needed('tpr_at_01pct'):,} non-members to tell",
        _found("tpr_at_01pct"),
    ),
)
MEASURES = (  # of what a confidence is worth: name, meaning, field
    ("AUROC", "how often a right answer is surer than a wrong one; half the time by chance", "auroc_of_confidence"),
    ("AURC", "error rate while acting on the surest records, averaged; lower is better", "aurc"),
    ("log-loss", "mean −ln of the score of the true class; lower is better", "nll"),
    ("Brier", "mean squared error of the scores as probabilities; lower is better", "brier"),
    ("ECE", "expected calibration error: how far the confidence is from how often it is right", "ece"),
)


def best_attacks(study: Study, verdict: AuditVerdict) -> Table:
    """One row for each setting: how far the best attack gets, and how far above what the label alone gives."""
    among = shared(study)
    attackers, there = knowledge(among), settings(among)
    headings = (
        ("AUC", "area under the ROC curve, with its 95 % interval, and the attack; .5 is guessing"),
        ("above floor", "how far the AUC of an attack lies above what the label alone gives to the same attacker"),
        *((heading, meaning) for heading, meaning, _ in EARLY),
    )
    groups = [("attacker knows the true label" if a else "attacker has the scores alone", 4) for a in attackers]
    useful = [measure for measure in MEASURES if measure[0] in ("AUROC", "log-loss")]  # the others stand with the costs
    rows = []
    for one in there:
        of_attacker = {leak.told: leak for leak in leaks(study, one, among)}
        cells = (_best(among, of_attacker[a]) if a in of_attacker else [TableCell(NOTHING)] * 4 for a in attackers)
        worths = (_worth(study, one, field) for _, _, field in useful)
        rows.append((*setting_cells(one), *(cell for group in cells for cell in group), *worths))
    columns = (
        *((heading, meaning) for heading, meaning, _ in SETTING),
        *headings * len(attackers),
        *((name, meaning) for name, meaning, _ in useful),
    )
    over = (("", len(SETTING)), *groups, ("worth of the confidence", len(useful)))
    return Table("Best attack on each setting", columns, tuple(rows), _where(verdict.recommended, there), over)


def _best(study: Study, leak: Leak) -> list[TableCell]:
    top, one = leak.best, leak.best.setting
    early = best(study, one, "tpr_at_1pct", leak.told) or top
    earlier = best(study, one, "tpr_at_01pct", leak.told) or top
    return [
        TableCell(interval(top.auc, top.auc_low, top.auc_high, show=short), top.auc, attack(top)),
        TableCell(f"{'+' if leak.excess >= 0 else ''}{short(leak.excess)}", leak.excess),
        EARLY[0][2](early),
        EARLY[1][2](earlier),
    ]


def _worth(study: Study, one: Setting, field: str) -> TableCell:
    return figure(getattr(study.costs[one], field) if one in study.costs else None)


def worth(study: Study, verdict: AuditVerdict) -> Table | None:
    """What the confidence is worth in each way to answer."""
    ways = [cost for cost in ways_to_answer(study, verdict.recommended) if cost.auroc_of_confidence is not None]
    if not ways:
        return None
    rows = [
        (word(name, meaning), *(_worth(study, cost.setting, field) for cost in ways))
        for name, meaning, field in MEASURES
    ]
    headings = (("", ""), *((setting_in_words(cost.setting), "") for cost in ways))
    return Table("What the confidence is worth", headings, tuple(rows))


def too_few_for(study: Study) -> str:
    """Which shares of members found are left out, and how many non-members they take."""
    most = max(r.nonmembers for r in study.results)
    named: tuple[tuple[str, Measure], ...] = (("TPR at 1 %", "tpr_at_1pct"), ("TPR at .1 %", "tpr_at_01pct"))
    missing = [f"{name} takes {needed(m):,}" for name, m in named if not any(readable(r, m) for r in study.results)]
    return f"{' and '.join(missing)} non-members under attack to tell; there were {most:,}." if missing else ""


def costs(study: Study, verdict: AuditVerdict) -> Table:
    columns: tuple[Column[Any], ...] = (
        *((name, meaning, _field(field, short)) for name, meaning, field in MEASURES),
        ("distortion ℓ2", "mean ‖z − y‖₂ on records that were not trained on", _field("distortion_l2", short)),
        ("distortion ℓ1", "mean ‖z − y‖₁", _field("distortion_l1", short)),
        ("test accuracy", "", _field("test_accuracy", percent)),
        ("train accuracy", "", _field("train_accuracy", percent)),
        ("keeps label", "", _yes("keeps_label")),
        ("keeps ranking", "", _yes("keeps_ranking")),
        ("to fit", "seconds once", _field("fit_seconds", seconds)),
        ("per vector", "seconds for each score vector", _field("seconds_per_vector", seconds)),
    )
    return of_settings("What each setting costs", study.defenses, columns, verdict.recommended)


def inversions(study: Study) -> Table:
    forms = "paper: trained on undefended scores; adaptive: on defended ones; floor: from the label or ranking"
    nearest = "how often the original nearest to the reconstruction is the right one"
    columns: tuple[Column[Any], ...] = (
        ("form", forms, _word("form")),
        ("from", "what the attacker is given", _word("features")),
        ("MSE", "mean squared error of the pixels; the lower, the more leaks", _field("mse", short)),
        ("SSIM", "structural similarity; it favours blurry class means", _field("ssim", short)),
        ("nearest original", nearest, _field("nearest_original", percent)),
    )
    return of_settings("Reconstruction from the scores", study.inversions, columns)


def every_attack(study: Study) -> Table:
    forms = "paper: fitted on undefended scores; adaptive: on defended ones; averaging: over repeated queries"
    columns: tuple[Column[Any], ...] = (
        ("attack", "", _word("attack")),
        ("form", forms, _word("form")),
        ("features", "", _word("features")),
        ("reads", "what of a score vector it looks at", _word("reads")),
        ("knows the label", "whether the attacker is given the true labels", _yes("knows_label")),
        ("AUC", "area under the ROC curve; .5 is guessing", _span("auc", short)),
        *EARLY,
        ("accuracy", "on as many members as non-members", _field("accuracy", percent)),
        ("took", "", _field("seconds", seconds)),
    )
    return of_settings("All attacks", study.results, columns)
