"""A study as one HTML file that opens anywhere, offline: the verdict first, then figures, tables and how it was made.

text = html(study, verdict(study))
write(study, Path("audit"))          # audit/report.html, results.json, figures/*.svg, figures/*.png; report.pdf
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
from scoreveil.audit.report.charts.panel import NARROW, Panel, sheet
from scoreveil.audit.report.charts.png import png
from scoreveil.audit.report.charts.svg import svg
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.verdict import HEADLINES, AuditVerdict, enough, leaks
from scoreveil.audit.report.verdict import verdict as judge
from scoreveil.audit.report.wording import NOTHING, number, setting_in_words
from scoreveil.audit.study.results import CHANCE, LABEL, UNDEFENDED, Study, to_json
from scoreveil.audit.study.risk import RecordRisks
from scoreveil.fitting.decision import LEAKS, NO_MORE, UNDECIDED, Outcome, sentences

NAMING_MEMBERS = ("report.html", "report.pdf", "vulnerability.json")  # the most exposed, by row, where risks are known
FIGURES = ("frontier", "roc", "sweeps", "worth", "reconstructions")
TONES: dict[Outcome, str] = {LEAKS: "bad", UNDECIDED: "open", NO_MORE: "good"}  # red, amber, green


def html(study: Study, verdict: AuditVerdict, risks: RecordRisks | None = None) -> str:
    """The whole report, with the records at risk where they are known."""
    return rendered(
        "report.html.j2",
        title=str(study.meta.get("title") or study.meta.get("name") or "What the scores give away"),
        date=str(study.meta.get("date") or ""),
        verdict=verdict,
        tone=TONES[verdict.excess.outcome],
        headline=HEADLINES[verdict.excess.outcome],
        advice=advice(study, verdict),
        numbers=numbers(study, verdict),
        glance=[Markup(svg(one)) for one in figures.glance(study, verdict)],
        notes=study.notes,
        compared=figures.compared_by(study),
        frontier=drawn(figures.frontier(study)),
        roc=drawn(figures.roc(study, verdict)),
        sweeps=drawn(figures.sweeps(study)),
        reconstructions=figures.reconstructions(study),
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
    """Two SVGs for each panel, of which a screen shows one: a wide drawing, and a narrow one for telephones."""
    both = ((svg(sheet([panel]), "wide"), svg(sheet([panel], canvas=NARROW), "narrow")) for panel in panels)
    return [Markup("".join(drawings)) for drawings in both]  # svg() escapes every text


def advice(study: Study, verdict: AuditVerdict) -> str:
    """What to do, in one sentence."""
    if verdict.evidence is not None:
        return sentences(verdict.evidence)[0]
    if verdict.excess.outcome == UNDECIDED:
        return f"Ask again with more records. {enough(study, verdict.excess)} would tell."
    return "No fitted veil was studied, so there is no advice on what to do."


def numbers(study: Study, verdict: AuditVerdict) -> list[dict[str, str]]:
    """The three large numbers: what the worst attacker finds, what remains of that, what the confidence is worth."""
    undefended = leaks(study, UNDEFENDED, verdict.compared)
    worst = max(undefended, key=lambda leak: leak.excess)
    who = "given the true label" if worst.told else "scores alone"
    span = f"95 % interval {number(worst.best.auc_low)}–{number(worst.best.auc_high)}"
    shown = [{
        "title": "Found without a defense", "tone": TONES[verdict.excess.outcome], "value": number(worst.best.auc),
        "words": f"AUC of the best attack, {who}; {span}. {number(CHANCE)} is guessing, 1 is certainty.",
    }]  # fmt: skip
    veiled = verdict.recommended not in (None, LABEL)
    if veiled and verdict.recommended:
        left = next(x for x in leaks(study, verdict.recommended, verdict.compared) if x.told == worst.told).best
        shown.append({
            "title": f"Found behind {setting_in_words(verdict.recommended)}", "tone": "good", "value": number(left.auc),
            "words": f"by the same attacker; 95 % interval {number(left.auc_low)}–{number(left.auc_high)}. "
            f"The label alone gives {number(worst.floor_auc)}.",
        })  # fmt: skip
    else:
        shown.append({
            "title": "Found from the label alone", "tone": "floor", "value": number(worst.floor_auc),
            "words": "by the same attacker. No defense that keeps the label can go below that.",
        })  # fmt: skip
    raw, left_of_it = (study.costs.get(one or UNDEFENDED) for one in (UNDEFENDED, verdict.recommended))
    useful = left_of_it or raw
    if raw and useful and useful.auroc_of_confidence is not None:
        beside = f"undefended {number(raw.auroc_of_confidence)}, " if useful != raw else ""
        shown.append({
            "title": "Worth of the confidence", "tone": "floor", "value": number(useful.auroc_of_confidence),
            "words": f"AUROC: how often a right answer is surer than a wrong one; {beside}label alone "
            f"{number(CHANCE)}.",
        })  # fmt: skip
    return shown


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


def write(study: Study, folder: Path, risks: RecordRisks | None = None, printer: Printer | None = None) -> Path:
    """Write the report and its numbers.

    These are report.html, results.json, vulnerability.json and the figures; with risks also records.csv and .parquet,
    with a printer also report.pdf.

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
    page = html(study, verdict, risks)
    if printer is not None:
        files["report.pdf"] = printer(page)
    files["report.html"] = page.encode()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".report.") as waiting:
        for name, content in files.items():
            place = Path(waiting, name)
            place.parent.mkdir(exist_ok=True)
            names_members = name in evidence.PRIVATE or (risks is not None and name in NAMING_MEMBERS)
            atomic.write(place, content, 0o600 if names_members else 0o666)
        (folder / "figures").mkdir(exist_ok=True)
        figure_files = (f"figures/{name}.{kind}" for name in FIGURES for kind in ("svg", "png"))
        for stale in ("report.pdf", *figure_files, *evidence.PRIVATE):
            if stale not in files:
                (folder / stale).unlink(missing_ok=True)
        for name in files:
            os.replace(Path(waiting, name), folder / name)
    return folder / "report.html"
