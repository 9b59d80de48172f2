"""The tables of the report: the best attack on each setting, what it costs, and every attack and inversion."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scoreveil.audit.report.charts.regions import RegionMap
from scoreveil.audit.report.figures import settings
from scoreveil.audit.report.wording import (
    NOTHING,
    attack,
    interval,
    number,
    percent,
    seconds,
    setting_in_words,
    words,
)
from scoreveil.audit.study.results import AttackResult, Measure, Setting, Study, best, shared
from scoreveil.audit.verdict import AuditVerdict, Leak, knowledge, leaks, needed, readable, ways_to_answer

short = partial(number, digits=3)


@dataclass(frozen=True)
class TableCell:
    """What is written, and what it sorts by."""

    text: str
    value: float | str | None = None
    small: str = ""  # an interval or a name, in smaller type below

    @property
    def is_number(self) -> bool:
        return not isinstance(self.value, str)

    @property
    def sorts_by(self) -> str:
        """Empty where it is missing."""
        return "" if self.value is None else f"{self.value:.6g}" if isinstance(self.value, float) else str(self.value)


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[tuple[str, str], ...]  # heading, and what it means
    rows: tuple[tuple[TableCell, ...], ...]
    marked: int | None = None  # the row of the recommended setting
    groups: tuple[tuple[str, int], ...] = ()  # headings over several columns
    same: tuple[tuple[str, str], ...] = ()  # headings of columns that were left out, and what stood in every row


FEWEST_ALIKE = 3  # rows that make a column of one value worth leaving out


def compact(table: Table) -> Table:
    """Without the columns in which nothing stands, and without those in which every row says the same."""
    kept, same = list[int](), list[tuple[str, str]]()
    for i, (heading, _) in enumerate(table.columns):
        texts = {(row[i].text, row[i].small) for row in table.rows}
        text, small = texts.pop() if len(texts) == 1 else ("", "")
        if i == 0 or not text or (text != NOTHING and (small or len(table.rows) < FEWEST_ALIKE)):
            kept.append(i)
        elif text != NOTHING:
            same.append((heading, text))
    groups, start = list[tuple[str, int]](), 0
    for name, count in table.groups:
        groups.append((name, sum(start <= i < start + count for i in kept)))
        start += count
    return replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
        groups=tuple((name, count) for name, count in groups if count),
        same=tuple(same),
    )


Column = tuple[str, str, Callable[[Any], TableCell]]  # heading, what it means, what stands in it


def _table(name: str, rows: Sequence[Any], columns: Sequence[Column], marked: Setting | None = None) -> Table:
    """A row for each result, which begins with its setting."""
    headings = (*SETTING, *((heading, meaning) for heading, meaning, _ in columns))
    cells = tuple((*_setting(row.setting), *(show(row) for _, _, show in columns)) for row in rows)
    return Table(name, headings, cells, _where(marked, [row.setting for row in rows]))


def _where(marked: Setting | None, there: list[Setting]) -> int | None:
    return there.index(marked) if marked in there else None


def _setting(setting: Setting) -> tuple[TableCell, TableCell]:
    defense, epsilon = setting
    return TableCell(words(defense), words(defense)), TableCell(NOTHING if epsilon is None else f"{epsilon:g}", epsilon)


def _field(field: str, show: Callable[[Any], str]) -> Callable[[Any], TableCell]:
    return lambda row: TableCell(show(getattr(row, field)), getattr(row, field))


def _word(field: str) -> Callable[[Any], TableCell]:
    return lambda row: TableCell(words(getattr(row, field)), words(getattr(row, field)))


def _yes(field: str) -> Callable[[Any], TableCell]:
    return lambda row: TableCell(*["yes" if getattr(row, field) else "no"] * 2)


def _span(field: str, show: Callable[[float], str]) -> Callable[[Any], TableCell]:
    """A number with its interval below."""

    def cell(row: AttackResult) -> TableCell:
        value, low, high = (getattr(row, f"{field}{end}") for end in ("", "_low", "_high"))
        return TableCell(show(value), value, f"{show(low).removesuffix(' %')}–{show(high)}")

    return cell


def _found(measure: Measure) -> Callable[[Any], TableCell]:
    """The share of members found, where there were non-members enough to tell."""
    show = _span(measure, percent)
    return lambda row: show(row) if readable(row, measure) else TableCell(NOTHING)


SETTING = (("defense", ""), ("ε", "the one parameter; the smaller, the less shows"))
EARLY: tuple[Column, ...] = (
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
    each = (
        ("AUC", "area under the ROC curve, with its 95 % interval, and the attack; .5 is guessing"),
        ("above floor", "how far the AUC of an attack lies above what the label alone gives to the same attacker"),
        *((heading, meaning) for heading, meaning, _ in EARLY),
    )
    groups = [("attacker knows the true label" if a else "attacker has the scores alone", len(each)) for a in attackers]
    useful = [measure for measure in MEASURES if measure[0] in ("AUROC", "log-loss")]  # the others stand with the costs
    rows = []
    for one in there:
        found = {leak.told: leak for leak in leaks(study, one, among)}
        cells = (_best(among, found[a]) if a in found else [TableCell(NOTHING)] * len(each) for a in attackers)
        worths = (_worth(study, one, field) for _, _, field in useful)
        rows.append((*_setting(one), *(cell for group in cells for cell in group), *worths))
    columns = (*SETTING, *each * len(attackers), *((name, meaning) for name, meaning, _ in useful))
    marked = _where(verdict.recommended, there)
    over = (("", len(SETTING)), *groups, ("worth of the confidence", len(useful)))
    return Table("Best attack on each setting", columns, tuple(rows), marked, over)


def _worth(study: Study, one: Setting, field: str) -> TableCell:
    value = getattr(study.costs[one], field) if one in study.costs else None
    return TableCell(short(value), value)


def worth(study: Study, verdict: AuditVerdict) -> Table | None:
    """What the confidence is worth in each way to answer."""
    ways = [cost for cost in ways_to_answer(study, verdict.recommended) if cost.auroc_of_confidence is not None]
    if not ways:
        return None
    rows = [
        (TableCell(name, name, meaning), *(_worth(study, cost.setting, field) for cost in ways))
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


def costs(study: Study, verdict: AuditVerdict) -> Table:
    columns: tuple[Column, ...] = (
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
    return _table("What each setting costs", study.defenses, columns, verdict.recommended)


def inversions(study: Study) -> Table:
    forms = "paper: trained on undefended scores; adaptive: on defended ones; floor: from the label or ranking"
    nearest = "how often the original nearest to the reconstruction is the right one"
    columns: tuple[Column, ...] = (
        ("form", forms, _word("form")),
        ("from", "what the attacker is given", _word("features")),
        ("MSE", "mean squared error of the pixels; the lower, the more leaks", _field("mse", short)),
        ("SSIM", "structural similarity; it favours blurry class means", _field("ssim", short)),
        ("nearest original", nearest, _field("nearest_original", percent)),
    )
    return _table("Reconstruction from the scores", study.inversions, columns)


def every_attack(study: Study) -> Table:
    forms = "paper: fitted on undefended scores; adaptive: on defended ones; averaging: over repeated queries"
    columns: tuple[Column, ...] = (
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
    return _table("All attacks", study.results, columns)


def regions(it: RegionMap) -> Table:
    """A row for each region, the least sure first."""
    has_strips, often = len(it.mechanism.cuts) > 1, "" if it.mechanism.table is None else "mostly "
    columns = (
        ("region", ""),
        ("top score", "from where to where, over all strips"),
        *([("strips", "of how the rest is spread, in which it lies")] if has_strips else []),
        ("members", "the share of them that falls into it"),
        ("others", "the share of records that were not trained on"),
        ("right", "how often their labels are"),
        *((f"{often}announced" + (f": {side}" if side else ""), "") for side in it.sides or ("",)),
    )
    rows = []
    for row in it.rows:
        place, _, strips = row.words.partition(", ")
        where = [TableCell(place, place)] + [TableCell(strips.removesuffix(" strips"), strips)] * has_strips
        shares = (TableCell(NOTHING if math.isnan(s) else percent(s), s) for s in (row.members, row.others))
        right = _figure(None if math.isnan(row.right) else row.right)
        rows.append((TableCell(str(row.number), row.number), *where, *shares, right, *map(_figure, row.announced)))
    return Table("The regions", columns, tuple(rows))


def _figure(value: float | None) -> TableCell:
    return TableCell(short(value), value)
