"""A study as one HTML file that opens anywhere, offline: the verdict first, then figures, tables and how it was made.

text = html(study, verdict(study))
write(study, Path("audit"))          # audit/report.html, results.json, figures/*.svg, figures/*.png
"""

import os
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from scoreveil.audit.report import figures
from scoreveil.audit.report.charts.panel import Panel, sheet
from scoreveil.audit.report.charts.png import png
from scoreveil.audit.report.charts.svg import svg
from scoreveil.audit.report.verdict import Gap, gaps, knowledge, strongest
from scoreveil.audit.report.verdict import verdict as judge
from scoreveil.audit.report.wording import (
    NOTHING,
    UNDEFENDED,
    attack,
    interval,
    number,
    percent,
    seconds,
    setting,
    words,
)
from scoreveil.audit.study.results import AttackResult, DefenseResult, InversionResult, Study, Verdict, to_json

FIGURES = ("frontier", "roc", "sweeps", "reconstructions")


@dataclass(frozen=True)
class Cell:
    """What is written, and what it sorts by."""

    text: str
    value: float | str | None = None
    small: str = ""  # an interval or a name, in smaller type below

    @property
    def is_number(self) -> bool:
        return not isinstance(self.value, str)


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[tuple[str, str], ...]  # heading, and what it means
    rows: tuple[tuple[Cell, ...], ...]
    marked: int | None = None  # the row of the recommended setting
    groups: tuple[tuple[str, int], ...] = ()  # headings over several columns


@dataclass(frozen=True)
class Card:
    """One of the large numbers at the top."""

    kind: str
    title: str
    levels: tuple[tuple[str, str, str], ...]  # AUC, its interval, for which attacker
    tone: str


def html(study: Study, verdict: Verdict) -> str:
    """The whole report. Names come from users: everything but our own SVG is escaped."""
    loader = jinja2.PackageLoader("scoreveil.audit.report", "templates")
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["unbroken"] = unbroken
    return templates.get_template("report.html.j2").render(
        title=str(study.meta.get("title") or study.meta.get("name") or "What the scores give away"),
        date=str(study.meta.get("date") or ""),
        verdict=verdict,
        cards=cards(study, verdict),
        notes=study.notes,
        frontier=drawn(figures.frontier(study)),
        roc=drawn(figures.roc(study, verdict)),
        sweeps=drawn(figures.sweeps(study)),
        reconstructions=figures.reconstructions(study),
        inversions=inversions(study.inversions) if study.inversions else None,
        best=best_attacks(study, verdict),
        costs=costs(study.defenses, verdict),
        every=every_attack(study.results),
        command=str(study.meta.get("command") or ""),
        made=made({k: v for k, v in study.meta.items() if k not in ("title", "command")}),
    )


def unbroken(text: str) -> str:
    """No line break inside `ε = 2` or `5 %`."""
    return text.replace("ε = ", "ε\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}").replace(" %", "\N{NO-BREAK SPACE}%")


def drawn(panels: Iterable[Panel]) -> list[Markup]:
    """One SVG for each panel, so that they stand side by side or below each other as the screen is wide."""
    return [Markup(svg(sheet([panel]))) for panel in panels]  # svg() escapes every text


def cards(study: Study, verdict: Verdict) -> list[Card]:
    """Undefended, the floor, what remains."""

    def level(result: AttackResult, knows_label: bool) -> tuple[str, str, str]:
        who = "with the true label" if knows_label else "scores alone"
        return number(result.auc), f"{number(result.auc_low)}–{number(result.auc_high)}", who

    def levels(found: Iterable[Gap]) -> tuple[tuple[str, str, str], ...]:
        return tuple(level(gap.best, gap.knows_label) for gap in found)

    shown = [Card("No defense", "Undefended", levels(gaps(study, UNDEFENDED, None)), "bad")]
    if verdict.recommended:
        shown.append(
            Card("Recommended", setting(*verdict.recommended), levels(gaps(study, *verdict.recommended)), "good")
        )
    floors = [(gap.floor, gap.knows_label) for gap in gaps(study, UNDEFENDED, None) if gap.floor]
    if floors:
        shown.append(Card("The floor", "Label alone", tuple(level(*found) for found in floors), "floor"))
    return shown


# Tables


def _setting(defense: str, epsilon: float | None) -> tuple[Cell, Cell]:
    return Cell(words(defense), words(defense)), Cell(NOTHING if epsilon is None else f"{epsilon:g}", epsilon)


def _rate(value: float, low: float, high: float) -> Cell:
    return Cell(percent(value), value, f"{percent(low).removesuffix(' %')}–{percent(high)}")


def _span(result: AttackResult) -> tuple[float, float, float]:
    return result.auc, result.auc_low, result.auc_high


def _auc(result: AttackResult) -> Cell:
    return Cell(number(result.auc, 3), result.auc, f"{number(result.auc_low, 3)}–{number(result.auc_high, 3)}")


def _number(value: float | None) -> Cell:
    return Cell(number(value, 3), value)


def _yes(value: bool) -> Cell:
    return Cell("yes" if value else "no", "yes" if value else "no")


SETTING = (("defense", ""), ("ε", "the one parameter; the smaller, the less shows"))
RATES = (
    ("TPR at 1 %", "members found while 1 % of non-members are called members; with its 95 % interval"),
    ("TPR at .1 %", "members found while .1 % of non-members are called members"),
)


def best_attacks(study: Study, verdict: Verdict) -> Table:
    """One row for each setting: how far the best attack gets, and how far above what the label alone gives."""
    attackers, there = knowledge(study), figures.settings(study)
    each = (
        ("AUC", "area under the ROC curve, with its 95 % interval, and the attack; .5 is guessing"),
        ("above floor", "AUC above what the label alone gives to the same attacker"),
        *RATES,
    )
    groups = [("attacker knows the true label" if a else "attacker has the scores alone", len(each)) for a in attackers]
    rows = []
    for one in there:
        found = {gap.knows_label: gap for gap in gaps(study, *one)}
        cells = (_best(study, found[a]) if a in found else [Cell(NOTHING)] * len(each) for a in attackers)
        rows.append((*_setting(*one), *(cell for group in cells for cell in group)))
    marked = there.index(verdict.recommended) if verdict.recommended in there else None
    columns = (*SETTING, *each * len(attackers))
    return Table("Best attack on each setting", columns, tuple(rows), marked, (("", len(SETTING)), *groups))


def _best(study: Study, gap: Gap) -> list[Cell]:
    one = gap.best.defense, gap.best.epsilon
    early = strongest(study, *one, gap.knows_label, measure="tpr_at_1pct") or gap.best
    earlier = strongest(study, *one, gap.knows_label, measure="tpr_at_01pct") or gap.best
    return [
        Cell(interval(*_span(gap.best), show=partial(number, digits=3)), gap.best.auc, attack(gap.best)),
        Cell(f"{'+' if gap.excess >= 0 else ''}{number(gap.excess, 3)}", gap.excess),
        _rate(early.tpr_at_1pct, early.tpr_at_1pct_low, early.tpr_at_1pct_high),
        _rate(earlier.tpr_at_01pct, earlier.tpr_at_01pct_low, earlier.tpr_at_01pct_high),
    ]


def costs(defenses: tuple[DefenseResult, ...], verdict: Verdict) -> Table:
    columns = (
        *SETTING,
        ("distortion ℓ2", "mean ‖z − y‖₂ on records that were not trained on"),
        ("distortion ℓ1", "mean ‖z − y‖₁"),
        ("confidence AUROC", "how well the top score tells right from wrong answers; .5 is not at all"),
        ("ECE", "expected calibration error"),
        ("Brier", "mean squared error of the scores as probabilities"),
        ("test accuracy", ""),
        ("train accuracy", ""),
        ("keeps label", ""),
        ("keeps ranking", ""),
        ("to fit", "seconds once"),
        ("per vector", "seconds for each score vector"),
    )
    rows = tuple(
        (
            *_setting(d.defense, d.epsilon),
            *map(_number, (d.distortion_l2, d.distortion_l1, d.auroc_of_confidence, d.ece, d.brier)),
            *(Cell(percent(a), a) for a in (d.test_accuracy, d.train_accuracy)),
            *map(_yes, (d.keeps_label, d.keeps_ranking)),
            *(Cell(seconds(s), s) for s in (d.fit_seconds, d.seconds_per_vector)),
        )
        for d in defenses
    )
    there = [(d.defense, d.epsilon) for d in defenses]
    marked = there.index(verdict.recommended) if verdict.recommended in there else None
    return Table("What each setting costs", columns, rows, marked)


def inversions(found: tuple[InversionResult, ...]) -> Table:
    columns = (
        *SETTING,
        ("form", "paper: trained on undefended scores; adaptive: on defended ones; floor: from the label or ranking"),
        ("from", "what the attacker is given"),
        ("MSE", "mean squared error of the pixels; the lower, the more leaks"),
        ("SSIM", "structural similarity; it favours blurry class means"),
        ("nearest original", "how often the original nearest to the reconstruction is the right one"),
    )
    rows = tuple(
        (
            *_setting(i.defense, i.epsilon),
            Cell(i.form, i.form),
            Cell(words(i.features), i.features),
            *map(_number, (i.mse, i.ssim)),
            Cell(percent(i.nearest_original), i.nearest_original),
        )
        for i in found
    )
    return Table("Reconstruction from the scores", columns, rows)


def every_attack(results: tuple[AttackResult, ...]) -> Table:
    columns = (
        *SETTING,
        ("attack", ""),
        ("form", "paper: fitted on undefended scores; adaptive: on defended ones; averaging: over repeated queries"),
        ("features", ""),
        ("reads", "what of a score vector it looks at"),
        ("true label", "whether it is told"),
        ("AUC", "area under the ROC curve; .5 is guessing"),
        *RATES,
        ("accuracy", "on as many members as non-members"),
        ("took", ""),
    )
    rows = tuple(
        (
            *_setting(r.defense, r.epsilon),
            *(Cell(words(name), words(name)) for name in (r.attack, r.form, r.features, r.reads)),
            Cell("knows" if r.knows_label else NOTHING, "knows" if r.knows_label else ""),
            _auc(r),
            _rate(r.tpr_at_1pct, r.tpr_at_1pct_low, r.tpr_at_1pct_high),
            _rate(r.tpr_at_01pct, r.tpr_at_01pct_low, r.tpr_at_01pct_high),
            Cell(percent(r.accuracy), r.accuracy),
            Cell(seconds(r.seconds), r.seconds),
        )
        for r in results
    )
    return Table("All attacks", columns, rows)


def made(meta: dict[str, Any], above: str = "") -> list[tuple[str, str]]:
    """`meta` as lines: nested names joined by a dot."""
    lines = []
    for key, value in meta.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            lines += made(value, f"{name} · ")
        elif isinstance(value, list | tuple):
            lines.append((name, ", ".join(map(str, value))))
        else:
            lines.append((name, NOTHING if value is None else str(value)))
    return lines


# Files


def write(study: Study, folder: Path) -> Path:
    """report.html, results.json and the figures, all rendered before the first is written; returns the report's path.

    Every file appears complete or not at all, report.html last. Other files in the folder are left alone.
    """
    verdict = judge(study)
    files = {f"figures/{name}{kind}": data for name, kind, data in _figures(study, verdict)}
    files["results.json"] = to_json(study).encode()
    files["report.html"] = html(study, verdict).encode()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    waiting = folder / f".report.{secrets.token_hex(4)}.part"
    try:
        (waiting / "figures").mkdir(parents=True)
        for name, data in files.items():
            _put(waiting / name, data)
        (folder / "figures").mkdir(exist_ok=True)
        for stale in (f"figures/{name}{kind}" for name in FIGURES for kind in (".svg", ".png")):
            if stale not in files:
                (folder / stale).unlink(missing_ok=True)
        for name in files:
            os.replace(waiting / name, folder / name)
    finally:
        shutil.rmtree(waiting, ignore_errors=True)
    return folder / "report.html"


def _figures(study: Study, verdict: Verdict) -> Iterable[tuple[str, str, bytes]]:
    for name, drawing in figures.sheets(study, verdict).items():
        yield name, ".svg", svg(drawing, alone=True).encode()
        yield name, ".png", png(drawing)


def _put(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
