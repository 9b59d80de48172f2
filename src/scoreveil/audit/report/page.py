"""A study as one HTML file that opens anywhere, offline: the verdict first, then figures, tables and how it was made.

text = html(study, verdict(study))
write(study, Path("audit"))          # audit/report.html, results.json, figures/*.svg, figures/*.png
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from scoreveil import atomic
from scoreveil.audit.report import asked, evidence, figures, tables
from scoreveil.audit.report.charts.panel import Panel, sheet
from scoreveil.audit.report.charts.png import png
from scoreveil.audit.report.charts.svg import svg
from scoreveil.audit.report.verdict import LABEL, LEAKS, NO_MORE, AuditVerdict, leaks
from scoreveil.audit.report.verdict import verdict as judge
from scoreveil.audit.report.wording import NOTHING, number, setting_in_words
from scoreveil.audit.study.results import UNDEFENDED, AttackResult, Study, to_json
from scoreveil.audit.study.risk import RecordRisks

FIGURES = ("frontier", "roc", "sweeps", "reconstructions")


def html(study: Study, verdict: AuditVerdict, risks: RecordRisks | None = None) -> str:
    """The whole report, with the records at risk where they are known."""
    return rendered(
        "report.html.j2",
        title=str(study.meta.get("title") or study.meta.get("name") or "What the scores give away"),
        date=str(study.meta.get("date") or ""),
        verdict=verdict,
        cards=cards(study, verdict),
        notes=study.notes,
        compared=figures.compared_by(study),
        frontier=drawn(figures.frontier(study)),
        roc=drawn(figures.roc(study, verdict)),
        sweeps=drawn(figures.sweeps(study)),
        reconstructions=figures.reconstructions(study),
        inversions=tables.inversions(study) if study.inversions else None,
        best=tables.best_attacks(study, verdict),
        needs_nonmembers=tables.too_few_for(study),
        costs=tables.costs(study, verdict),
        every=tables.every_attack(study),
        asked=asked.parts(study),
        command=str(study.meta.get("command") or ""),
        made=made({k: v for k, v in study.meta.items() if k not in ("title", "command")}),
        **evidence.content(study, verdict, risks),
    )


def rendered(template: str, **content: Any) -> str:
    """A page of `templates`. Names come from users: everything but our own SVG is escaped."""
    loader = jinja2.PackageLoader("scoreveil.audit.report", "templates")
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["unbroken"] = unbroken
    return templates.get_template(template).render(**content)


def unbroken(text: str) -> str:
    """No line break inside `ε = 2` or `5 %`."""
    return text.replace("ε = ", "ε\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}").replace(" %", "\N{NO-BREAK SPACE}%")


def drawn(panels: Iterable[Panel]) -> list[Markup]:
    """One SVG for each panel, so that they stand side by side or below each other as the screen is wide."""
    return [Markup(svg(sheet([panel]))) for panel in panels]  # svg() escapes every text


def cards(study: Study, verdict: AuditVerdict) -> list[dict[str, Any]]:
    """The large numbers at the top: undefended, what remains, the floor."""

    def card(kind: str, title: str, tone: str, found: Iterable[tuple[AttackResult, bool]]) -> dict[str, Any]:
        levels = [
            (
                number(r.auc),
                f"{number(r.auc_low)}–{number(r.auc_high)}",
                "with the true label" if told else "scores alone",
            )
            for r, told in found
        ]
        return {"kind": kind, "title": title, "tone": tone, "levels": levels}

    outcome = verdict.excess.outcome
    undefended = leaks(study, UNDEFENDED, verdict.compared)
    tone = "bad" if outcome == LEAKS else "good" if outcome == NO_MORE else "open"
    said = outcome[0].upper() + outcome[1:]
    shown = [card(said, "Undefended", tone, ((leak.best, leak.told) for leak in undefended))]
    if verdict.recommended not in (None, LABEL):
        remaining = ((leak.best, leak.told) for leak in leaks(study, verdict.recommended, verdict.compared))
        shown.append(card("Recommended", setting_in_words(verdict.recommended), "good", remaining))
    floors = [(leak.floor, leak.told) for leak in undefended if leak.floor]
    return [*shown, card("The floor", "Label alone", "floor", floors)] if floors else shown


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


def write(study: Study, folder: Path, risks: RecordRisks | None = None) -> Path:
    """Write report.html, results.json, vulnerability.json and the figures; with risks, records.csv and .parquet, too.

    All are rendered and written beside their places before the first is put there; report.html comes last. Other
    files in the folder are left alone.

    Returns:
        The path of the report.
    """
    verdict, files = judge(study), dict[str, bytes]()
    for name, drawing in figures.sheets(study, verdict).items():
        files |= {f"figures/{name}.svg": svg(drawing, alone=True).encode(), f"figures/{name}.png": png(drawing)}
    files["results.json"] = to_json(study).encode()
    files |= evidence.files(study, verdict, risks)
    files["report.html"] = html(study, verdict, risks).encode()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".report.") as waiting:
        for name, content in files.items():
            place = Path(waiting, name)
            place.parent.mkdir(exist_ok=True)
            atomic.write(place, content, 0o600 if name in evidence.PRIVATE else 0o666)
        (folder / "figures").mkdir(exist_ok=True)
        for stale in (*(f"figures/{name}.{kind}" for name in FIGURES for kind in ("svg", "png")), *evidence.PRIVATE):
            if stale not in files:
                (folder / stale).unlink(missing_ok=True)
        for name in files:
            os.replace(Path(waiting, name), folder / name)
    return folder / "report.html"
