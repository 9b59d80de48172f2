"""A fitted veil as one HTML file that opens anywhere, offline: its regions, what is promised, and what it costs.

path = write(veil, trials, "veil.json", Path("report"))     # report/report.html and results.json

`trials` are those of `scoreveil.fitting.frontier`; one of them is the veil's own. All figures are about many records:
no score and no answer of a single one is in the page.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from scoreveil import __version__, atomic
from scoreveil.audit.report import tables
from scoreveil.audit.report.charts import regions as chart
from scoreveil.audit.report.charts.panel import Axis, Panel, Series
from scoreveil.audit.report.charts.regions import MOST_LABELS, RegionMap
from scoreveil.audit.report.figures import reliability
from scoreveil.audit.report.page import drawn, rendered
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.tables import Table, TableCell
from scoreveil.audit.report.wording import NOTHING, number, percent
from scoreveil.fitting.cost import MEASURES, OF_LABEL, WAYS, Cost, LabelCost
from scoreveil.fitting.decision import decide, sentences
from scoreveil.fitting.frontier import Trial
from scoreveil.fitting.metrics import Group, Measure
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.shapes import Shape
from scoreveil.veil import Veil

_SHORT = {"raw": "raw", "tempered": "scaled", "label": "label"}  # over narrow columns
TONES = {"raw": "c1", "veiled": "c0"}
OVER_EPSILON = ("useful", "nll", "leak")  # drawn over ε
BETTER = {"useful": "higher is better", "nll": "lower is better", "leak": "lower is better; .5 is nothing"}
KINDS = {"estimate": "an estimate", "finite-sample": "a theorem"}


def write(
    veil: Veil,
    trials: Sequence[Trial],
    target: str,
    folder: Path,
    printer: Printer | None = None,
    names: Sequence[str] = (),
) -> Path:
    """Write report.html, with the same numbers results.json, and with a printer report.pdf.

    Args:
        veil: The fitted veil.
        trials: What several ε promise and cost, that of the veil among them.
        target: The file that the veil was written to, for the commands that come next.
        folder: Where to write; other files in it are left alone.
        printer: What prints the page.
        names: Those of many labels, where they are known.

    Returns:
        The path of the page.
    """
    found = results(veil, trials)
    page = html(veil, trials, target, names)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write(folder / "results.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if printer is not None:
        atomic.write(folder / "report.pdf", printer(page))
    atomic.write(folder / "report.html", page)
    return folder / "report.html"


def results(veil: Veil, trials: Sequence[Trial]) -> dict[str, Any]:
    """The numbers of the page, for programs; what is infinite or missing is null."""
    return {
        "scoreveil": __version__,
        "promise": {**_promise(veil.guarantee), "words": veil.guarantee.words, "limits": veil.guarantee.limits},
        "regions": [
            {"label": each.name, "rows": [_finite(asdict(row)) for row in each.rows], "answers": each.answers}
            for each in chart.read(veil)
        ],
        "cost": [
            {
                **_promise(trial.guarantee),
                "cost": None if trial.cost is None else asdict(trial.cost),
                "evidence": asdict(trial.evidence),
                "advice": decide(trial.evidence).value,
            }
            for trial in trials
        ],
        **({} if veil.shape.is_plain else {"shape": veil.shape.settings()}),
    }


def html(veil: Veil, trials: Sequence[Trial], target: str, names: Sequence[str] = ()) -> str:
    """The whole page; without trials, of the regions and the promise alone."""
    maps, promise = chart.read(veil, names), veil.guarantee
    epsilon = None if math.isinf(veil.epsilon) else veil.epsilon
    trial = next((trial for trial in trials if trial.epsilon == epsilon), None)
    own = None if trial is None else trial.cost
    measured = [(trial.epsilon, trial.cost) for trial in trials if trial.cost is not None]
    what = f"{len(maps[0].rows)} regions" if len(maps) == 1 else f"{len(maps)} labels"
    return rendered(
        "fitted.html.j2",
        title=f"A veil of {what}"
        + ("" if epsilon is None else f" and ε = {epsilon:g}")
        + (f" for {veil.model}" if veil.model else ""),
        cards=cards(promise, own, veil.shape),
        maps=[(each.name, tables.regions(each), _drawn(each)) for each in maps[:MOST_LABELS]],
        more_labels=max(len(maps) - MOST_LABELS, 0),
        has_strips=any(len(each.mechanism.cuts) > 1 for each in maps),
        answers=None if epsilon is None else answers(maps[0]),
        epsilon=epsilon,
        is_constant=veil.is_constant,
        promise=promise,
        verdict=() if trial is None else sentences(trial.evidence),
        trials=trials,
        costs=None if own is None else costs(own),
        labels=None if own is None or not own.labels else labels(own.labels),
        frontier=frontier(trials, epsilon) if measured else None,
        over_epsilon=drawn(over_epsilon(measured)) if len(measured) > 1 else [],
        reliability=[] if own is None else drawn([reliability(_shown(own))]),
        target=target,
        version=__version__,
    )


def _drawn(it: RegionMap) -> Markup:
    """A wide drawing and a narrow one, of which a screen shows one."""
    both = (chart.drawn(chart.sheet(it), "wide"), chart.drawn(chart.sheet(it, narrow=True), "narrow"))
    return Markup("".join(both))  # every text is escaped there


def _promise(promise: Guarantee) -> dict[str, Any]:
    names = (
        *("epsilon", "advantage", "advantage_alone", "advantage_given_truth", "confidence", "evidence_kind"),
        *("fit_epsilon", "worst_loss", "rho"),
    )
    return _finite({name: getattr(promise, name) for name in names})


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity, and no NaN."""
    return {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in values.items()}


def cards(promise: Guarantee, measured: Cost | None, shape: Shape) -> list[dict[str, Any]]:
    """The large numbers at the top: the advantage, ε, what the confidence is worth."""
    found = []
    stated = promise.advantage if promise.advantage is not None else promise.advantage_alone
    if stated is not None:
        beyond = "beyond the label" if promise.advantage is not None else "by the confidence alone"
        words = (
            f"what an attack gains {beyond}, TPR − FPR, however often it asks; {promise.confidence:.0%} confidence, "
            f"{KINDS.get(str(promise.evidence_kind), '')}"
        )
        found.append(_card("Records drawn at random", "Advantage", number(stated, 3), words))
    if math.isfinite(promise.epsilon):
        answer = "the answer about one label" if shape.has_labels else "an answer"
        odds = f"{answer} changes an attacker's odds by a factor of at most {math.exp(promise.epsilon):,.3g}"
        found.append(_card("A single known record", "ε", f"{promise.epsilon:g}", odds))
    if measured is not None:
        useful = measured.useful
        words = (
            f"how often a right answer is surer than a wrong one; raw {number(useful['raw'].value)}, label alone "
            f"{number(useful['label'].value)}"
        )
        found.append(_card("What is left", "Usefulness", number(useful["veiled"].value), words, "floor"))
    return found


def _card(kind: str, title: str, value: str, words: str, tone: str = "good") -> dict[str, str]:
    return {"kind": kind, "title": title, "tone": tone, "value": value, "words": words}


# Tables


def answers(it: RegionMap) -> Table:
    """How often each region gives each answer of the ε table."""
    columns = (("region", ""), *((" / ".join(number(each, 3) for each in answer), "") for answer in it.answers))
    rows = (
        (TableCell(str(row.number), row.number), *(TableCell(percent(chance), chance) for chance in row.answers))
        for row in it.rows
    )
    return Table("How often a region announces each confidence", columns, tuple(rows))


def costs(measured: Cost) -> Table:
    """Every measure of every way to answer, with its interval."""
    columns = (("", ""), *((words, "") for words in WAYS.values()))
    rows = []
    for name, words in MEASURES.items():
        found: dict[str, Measure] = getattr(measured, name)
        if found:
            rows.append((TableCell(words, words), *(_measure(found[way]) for way in WAYS)))
    return Table("What the confidence is worth", columns, tuple(rows))


def labels(measured: Sequence[LabelCost]) -> Table:
    """A row for each of many labels: how much its log-loss is below that of the label alone, the least first."""
    names = [name for name in OF_LABEL if getattr(measured[0], name)]
    columns = (
        ("label", ""),
        ("yes", "how often it is"),
        *((_SHORT.get(way, WAYS[way]), MEASURES[name]) for name in names for way in WAYS),
    )
    groups = (("", 2), *((MEASURES[name], len(WAYS)) for name in names))
    rows = [
        (
            TableCell(each.label, each.label),
            TableCell(f"{100 * each.share:.0f} %", each.share),
            *(_cell(getattr(each, name)[way]) for name in names for way in WAYS),
        )
        for each in sorted(measured, key=lambda each: each.nll["label"] - each.nll["veiled"])
    ]
    return Table("Label by label", columns, tuple(rows), groups=groups)


def frontier(trials: Sequence[Trial], own: float | None) -> Table:
    """A row for each ε: what the veiled confidence is worth."""
    names = [name for name in MEASURES if any(trial.cost and getattr(trial.cost, name) for trial in trials)]
    columns = (("ε", ""), *((MEASURES[name], "veiled") for name in names))
    rows = []
    for trial in trials:
        figures = (getattr(trial.cost, name)["veiled"] for name in names)
        mine = "this veil" if trial.epsilon == own else ""
        epsilon = "none" if trial.epsilon is None else f"{trial.epsilon:g}"
        rows.append((TableCell(epsilon, trial.epsilon, mine), *map(_measure, figures)))
    return Table("What each ε leaves", columns, tuple(rows))


def _cell(value: float | None) -> TableCell:
    return TableCell(NOTHING if value is None else number(value, 3), value)


def _measure(found: Measure) -> TableCell:
    return TableCell(number(found.value, 3), found.value, f"{number(found.low, 3)}–{number(found.high, 3)}")


# Figures


def over_epsilon(measured: Sequence[tuple[float | None, Cost]]) -> list[Panel]:
    """The veiled figures over ε, with those without ε and of the other ways as dashed lines."""
    with_epsilon = sorted((epsilon, cost) for epsilon, cost in measured if epsilon is not None)
    without = next((cost for epsilon, cost in measured if epsilon is None), None)
    epsilons = [epsilon for epsilon, _ in with_epsilon]
    if not epsilons:
        return []
    across = Axis("ε", (min(epsilons) / 1.3, max(epsilons) * 1.3), log=True)
    panels = []
    for name in OVER_EPSILON:
        found: list[dict[str, Measure]] = [getattr(cost, name) for _, cost in with_epsilon]
        if not found[0]:
            continue
        veiled = [each["veiled"] for each in found]
        # the others do not depend on ε: those of one trial
        levels = {WAYS[way]: found[-1][way].value for way in ("raw", "tempered", "label")}
        if without is not None:
            levels = {"veiled, without ε": getattr(without, name)["veiled"].value, **levels}
        floors = tuple((f"{way}: {number(value)}", value) for way, value in _apart(levels))
        values = [v for each in veiled for v in (each.low, each.high)] + [value for _, value in floors]
        series = Series(
            "veiled",
            tuple((epsilon, each.value) for epsilon, each in zip(epsilons, veiled, strict=True)),
            TONES["veiled"],
            tips=tuple(
                f"ε = {epsilon:g}: {number(each.value, 3)} ({number(each.low, 3)}–{number(each.high, 3)})"
                for epsilon, each in zip(epsilons, veiled, strict=True)
            ),
            whiskers=tuple((each.low, each.high) for each in veiled),
        )
        title = MEASURES[name][0].upper() + MEASURES[name][1:]
        panels.append(Panel(title, across, Axis.around(BETTER[name], values), (series,), floors))
    return panels


def _apart(levels: dict[str, float]) -> list[tuple[str, float]]:
    """The lines to draw, but for those that lie on one that is drawn already."""
    kept: list[tuple[str, float]] = []
    for way, value in levels.items():
        if all(abs(value - other) > 0.004 for _, other in kept):
            kept.append((way, value))
    return kept


def _shown(measured: Cost) -> list[tuple[str, str, tuple[Group, ...]]]:
    return [(WAYS[way], TONES[way], measured.reliability[way]) for way in ("raw", "veiled")]
