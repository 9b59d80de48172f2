"""A study as one HTML file that opens anywhere, offline: the verdict first, then figures, tables and how it was made.

text = html(study, verdict(study))
write(study, Path("audit"))          # audit/report.html, results.json, figures/*.svg; report.pdf
"""

import os
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import jinja2
from markupsafe import Markup

from scoreveil import atomic
from scoreveil.audit.report import asked, evidence, figures, pictures, region_tables, tables
from scoreveil.audit.report.charts import regions
from scoreveil.audit.report.charts.marks import Sheet
from scoreveil.audit.report.charts.panel import NARROW, Panel, sheet
from scoreveil.audit.report.charts.regions import MAX_LABELS
from scoreveil.audit.report.charts.svg import svg
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.sentences import enough, sentences
from scoreveil.audit.report.table import compact
from scoreveil.audit.report.wording import NOTHING
from scoreveil.audit.study.results import Study, to_json
from scoreveil.audit.study.risk import RecordRisks
from scoreveil.audit.verdict import AuditVerdict
from scoreveil.audit.verdict import verdict as judge
from scoreveil.fitting import decision
from scoreveil.fitting.decision import LEAKS, NO_MORE, UNDECIDED, Outcome
from scoreveil.veil import Veil

NAMING_MEMBERS = ("report.html", "report.pdf", "vulnerability.json")  # the most exposed, by row, where risks are known
FIGURES = ("frontier", "roc", "sweeps", "worth", "reconstructions")
STATUS: dict[Outcome, tuple[str, str]] = {  # a word, and its colour: red, amber, green
    LEAKS: ("Leaks", "bad"),
    UNDECIDED: ("Undecided", "open"),
    NO_MORE: ("No leak found", "good"),
}
LEFT_OUT = "Left out"  # how notes begin that are about the study and not about the records


def html(study: Study, verdict: AuditVerdict, risks: RecordRisks | None = None, veil: Veil | None = None) -> str:
    """The whole report, with the records at risk where they are known, and the regions of the veil to take."""
    maps = () if veil is None else regions.read(veil)[:MAX_LABELS]
    return rendered(
        "report.html.j2",
        title=str(study.meta.get("title") or study.meta.get("name") or "What the scores give away"),
        date=str(study.meta.get("date") or ""),
        sentences=sentences(verdict),
        status=STATUS[verdict.excess.outcome],
        advice=advice(study, verdict),
        glance=both_widths(*figures.glance(study, verdict)),
        notes=[note for note in study.notes if not note.startswith(LEFT_OUT)],
        left_out=[note for note in study.notes if note.startswith(LEFT_OUT)],
        maps=[(it.name, region_tables.regions(it)) for it in maps],
        compared=figures.compared_by(study),
        leak_drawn=drawn(figures.of_worst(study, verdict)),
        reconstructions=pictures.reconstructions(study),
        inversions=tables.inversions(study) if study.inversions else None,
        worth=tables.worth(study, verdict),
        worth_drawn=drawn(figures.worth(study, verdict)),
        best=tables.best_attacks(study, verdict),
        needs_nonmembers=tables.too_few_for(study),
        costs=tables.costs(study, verdict),
        every=tables.every_attack(study),
        asked=asked.parts(study),
        command=str(study.meta.get("command") or ""),
        made=made({k: v for k, v in study.meta.items() if k not in ("title", "command")}),
        **evidence.content(study, verdict, risks),
    )


def rendered(template: str, **content: object) -> str:
    """A page of `templates`. Names come from users: everything but our own SVG is escaped."""
    loader = jinja2.PackageLoader("scoreveil.audit.report", "templates")
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["unbroken"] = unbroken
    templates.filters["compact"] = compact
    return templates.get_template(template).render(**content)


def unbroken(text: str) -> str:
    """No line break inside `ε = 2` or `5 %`."""
    return text.replace("ε = ", "ε\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}").replace(" %", "\N{NO-BREAK SPACE}%")


def drawn(panels: Iterable[Panel]) -> list[Markup]:
    """Two SVGs for each panel, of which a screen shows one: a wide drawing, and a narrow one for telephones."""
    return [both_widths(sheet([panel]), sheet([panel], canvas=NARROW)) for panel in panels]


def both_widths(wide: Sheet, narrow: Sheet) -> Markup:
    """Two SVGs, of which a screen shows one."""
    return Markup(svg(wide, "wide") + svg(narrow, "narrow"))  # svg() escapes every text


def advice(study: Study, verdict: AuditVerdict) -> str:
    """What to do, in one sentence."""
    if verdict.evidence is not None:
        return decision.sentences(verdict.evidence)[0]
    if verdict.excess.outcome == UNDECIDED:
        return f"Ask again with more records. {enough(study, verdict.excess)} would tell."
    return "No fitted veil was studied, so there is no advice on what to do."


def made(meta: Mapping[str, object], above: str = "") -> list[tuple[str, str]]:
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


def write(
    study: Study,
    folder: Path,
    risks: RecordRisks | None = None,
    printer: Printer | None = None,
    veil: Veil | None = None,
) -> Path:
    """Write the report and its numbers.

    These are report.html, results.json, vulnerability.json and the figures; with risks also records.csv and .parquet,
    with a printer also report.pdf. With the veil that is recommended, fitted, its regions stand in the report.

    Returns:
        The path of the report.
    """
    verdict, files = judge(study), dict[str, str | bytes]()
    for name, drawing in figures.sheets(study, verdict).items():
        files[f"figures/{name}.svg"] = svg(drawing, alone=True)
    files["results.json"] = to_json(study)
    files |= evidence.files(study, verdict, risks)
    private = {*evidence.PRIVATE, *(NAMING_MEMBERS if risks is not None else ())}
    stale = ["report.pdf", *(f"figures/{name}.svg" for name in FIGURES), *evidence.PRIVATE]
    return put(folder, html(study, verdict, risks, veil), files, printer, private, stale)


def put(
    folder: Path,
    page: str,
    files: Mapping[str, str | bytes],
    printer: Printer | None = None,
    private: Collection[str] = (),
    stale: Iterable[str] = (),
) -> Path:
    """Write a page as report.html, what stands beside it, and with a printer report.pdf.

    All is rendered and written beside its place before the first file is put there; report.html comes last.

    Args:
        folder: Where to; other files there are left alone.
        page: The page.
        files: What stands beside it, by name.
        printer: What prints the page.
        private: Names of those that are for their owner alone.
        stale: Names of those of an earlier report that do not stay, where they are not written anew.

    Returns:
        The path of the page.
    """
    every = {**files, **({} if printer is None else {"report.pdf": printer(page)}), "report.html": page}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".report.") as waiting:
        for name, content in every.items():
            Path(waiting, name).parent.mkdir(exist_ok=True)
            atomic.write(Path(waiting, name), content, 0o600 if name in private else 0o666)
        for name in stale:
            if name not in every:
                (folder / name).unlink(missing_ok=True)
        for name in every:
            (folder / name).parent.mkdir(exist_ok=True)
            os.replace(Path(waiting, name), folder / name)
    return folder / "report.html"
