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

from markupsafe import Markup

from scoreveil import __version__
from scoreveil.audit.report import cost_tables, region_tables
from scoreveil.audit.report.charts import regions as chart
from scoreveil.audit.report.charts.panel import Axis, Panel, Series
from scoreveil.audit.report.charts.regions import MAX_LABELS
from scoreveil.audit.report.figures import reliability
from scoreveil.audit.report.page import drawn, put, rendered
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.wording import number
from scoreveil.fitting.cost import MEASURES, WAYS, Cost
from scoreveil.fitting.decision import decide, sentences
from scoreveil.fitting.frontier import Trial
from scoreveil.fitting.metrics import Measure
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.shapes import Shape
from scoreveil.veil import Veil

TONES = {"raw": "c1", "veiled": "c0"}
BETTER = {"useful": "higher is better", "nll": "lower is better", "leak": "lower is better; .5 is nothing"}
KINDS = {"estimate": "an estimate", "finite-sample": "a theorem"}
PROMISED = (
    *("epsilon", "advantage", "advantage_alone", "advantage_given_truth", "confidence", "evidence_kind"),
    *("fit_epsilon", "worst_loss", "rho"),
)


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
    files = {"results.json": json.dumps(results(veil, trials), indent=1, ensure_ascii=False) + "\n"}
    return put(folder, html(veil, trials, target, names), files, printer)


def results(veil: Veil, trials: Sequence[Trial]) -> dict[str, object]:
    """The numbers of the page, for programs; what is infinite or missing is null."""
    promise = veil.guarantee
    return {
        "scoreveil": __version__,
        "promise": {**_promise(promise), "words": promise.words, "limits": promise.limits},
        "regions": [
            {"label": it.name, "rows": [_finite(asdict(row)) for row in it.rows], "answers": it.answers}
            for it in chart.read(veil)
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


def _promise(promise: Guarantee) -> dict[str, object]:
    return _finite({name: getattr(promise, name) for name in PROMISED})


def _finite(values: dict[str, object]) -> dict[str, object]:
    """JSON has no infinity, and no NaN."""
    return {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in values.items()}


def html(veil: Veil, trials: Sequence[Trial], target: str, names: Sequence[str] = ()) -> str:
    """The whole page; without trials, of the regions and the promise alone."""
    maps, promise = chart.read(veil, names), veil.guarantee
    epsilon = None if math.isinf(veil.epsilon) else veil.epsilon
    own = next((trial for trial in trials if trial.epsilon == epsilon), None)
    measured = None if own is None else own.cost
    with_cost = [(trial.epsilon, trial.cost) for trial in trials if trial.cost is not None]
    return rendered(
        "fitted.html.j2",
        title=_title(veil, len(maps[0].rows), epsilon),
        cards=cards(promise, measured, veil.shape),
        maps=[(it.name, region_tables.regions(it), _both_widths(it)) for it in maps[:MAX_LABELS]],
        more_labels=max(len(maps) - MAX_LABELS, 0),
        has_strips=any(len(it.mechanism.cuts) > 1 for it in maps),
        answers=None if epsilon is None else region_tables.answers(maps[0]),
        epsilon=epsilon,
        is_constant=veil.is_constant,
        promise=promise,
        verdict=() if own is None else sentences(own.evidence),
        trials=trials,
        costs=None if measured is None else cost_tables.costs(measured),
        labels=None if measured is None or not measured.labels else cost_tables.labels(measured.labels),
        frontier=cost_tables.frontier(trials, own) if with_cost else None,
        over_epsilon=drawn(over_epsilon(with_cost)) if len(with_cost) > 1 else [],
        reliability=[] if measured is None else drawn([_reliability(measured)]),
        target=target,
        version=__version__,
    )


def _title(veil: Veil, regions: int, epsilon: float | None) -> str:
    labels = len(veil.mechanism.maps)
    title = f"A veil of {regions} regions" if labels == 1 else f"A veil of {labels} labels"
    title += "" if epsilon is None else f" and ε = {epsilon:g}"
    return f"{title} for {veil.model}" if veil.model else title


def _both_widths(it: chart.RegionMap) -> Markup:
    """A wide drawing and a narrow one, of which a screen shows one."""
    return Markup(  # every text is escaped there
        chart.drawn(chart.sheet(it), "wide") + chart.drawn(chart.sheet(it, narrow=True), "narrow")
    )


def cards(promise: Guarantee, measured: Cost | None, shape: Shape) -> list[dict[str, str]]:
    """The large numbers at the top: the advantage, ε, what the confidence is worth."""
    shown = []
    stated = promise.advantage if promise.advantage is not None else promise.advantage_alone
    if stated is not None:
        beyond = "beyond the label" if promise.advantage is not None else "by the confidence alone"
        words = (
            f"what an attack gains {beyond}, TPR − FPR, however often it asks; {promise.confidence:.0%} confidence, "
            f"{KINDS.get(str(promise.evidence_kind), '')}"
        )
        shown.append(_card("Records drawn at random", "Advantage", number(stated, 3), words))
    if math.isfinite(promise.epsilon):
        answer = "the answer about one label" if shape.has_labels else "an answer"
        odds = f"{answer} changes an attacker's odds by a factor of at most {math.exp(promise.epsilon):,.3g}"
        shown.append(_card("A single known record", "ε", f"{promise.epsilon:g}", odds))
    if measured is not None:
        useful = {way: number(measured.useful[way].value) for way in ("raw", "veiled", "label")}
        words = (
            f"how often a right answer is surer than a wrong one; raw {useful['raw']}, label alone {useful['label']}"
        )
        shown.append(_card("What is left", "Usefulness", useful["veiled"], words, "floor"))
    return shown


def _card(kind: str, title: str, value: str, words: str, tone: str = "good") -> dict[str, str]:
    return {"kind": kind, "title": title, "tone": tone, "value": value, "words": words}


# Figures


def over_epsilon(measured: Sequence[tuple[float | None, Cost]]) -> list[Panel]:
    """The veiled figures over ε, with those without ε and of the other ways as dashed lines."""
    with_epsilon = sorted((epsilon, cost) for epsilon, cost in measured if epsilon is not None)
    without = next((cost for epsilon, cost in measured if epsilon is None), None)
    if not with_epsilon:
        return []
    across = Axis("ε", (with_epsilon[0][0] / 1.3, with_epsilon[-1][0] * 1.3), log=True)
    panels = []
    for name, better in BETTER.items():
        by_way: dict[str, Measure] = getattr(with_epsilon[-1][1], name)  # but for the veil, ε does not matter
        if not by_way:
            continue
        levels = {} if without is None else {"veiled, without ε": getattr(without, name)["veiled"].value}
        levels |= {WAYS[way]: by_way[way].value for way in ("raw", "tempered", "label")}
        floors = tuple((f"{way}: {number(value)}", value) for way, value in _apart(levels))
        veiled = [(epsilon, getattr(cost, name)["veiled"]) for epsilon, cost in with_epsilon]
        series = Series(
            "veiled",
            tuple((epsilon, found.value) for epsilon, found in veiled),
            TONES["veiled"],
            tips=tuple(
                f"ε = {epsilon:g}: {number(found.value, 3)} ({number(found.low, 3)}–{number(found.high, 3)})"
                for epsilon, found in veiled
            ),
            whiskers=tuple((found.low, found.high) for _, found in veiled),
        )
        values = [*(end for ends in series.whiskers for end in ends), *levels.values()]
        title = MEASURES[name][0].upper() + MEASURES[name][1:]
        panels.append(Panel(title, across, Axis.around(better, values), (series,), floors))
    return panels


def _apart(levels: dict[str, float]) -> list[tuple[str, float]]:
    """The lines to draw, but for those that lie on one that is drawn already."""
    kept: list[tuple[str, float]] = []
    for way, value in levels.items():
        if all(abs(value - other) > 0.004 for _, other in kept):
            kept.append((way, value))
    return kept


def _reliability(measured: Cost) -> Panel:
    return reliability([(WAYS[way], tone, measured.reliability[way]) for way, tone in TONES.items()])
