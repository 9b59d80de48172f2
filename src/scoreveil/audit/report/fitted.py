"""A fitted veil as one HTML file that opens anywhere, offline: what is promised, what it costs, and its table.

path = write(veil, trials, "veil.npz", Path("report"))     # report/report.html and results.json

`trials` are those of `scoreveil.fitting.frontier`; one of them is the veil's own. All figures are about many records:
no score and no answer of a single one is in the page.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from scoreveil import __version__, atomic
from scoreveil.accounting import REPEATS, advantage_after
from scoreveil.audit.report.charts.panel import Axis, Panel, Series
from scoreveil.audit.report.figures import reliability
from scoreveil.audit.report.page import drawn, rendered
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.tables import Table, TableCell
from scoreveil.audit.report.wording import NOTHING, number
from scoreveil.fitting.cost import MEASURES, OF_LABEL, WAYS, Cost, Group, LabelCost, Measure
from scoreveil.fitting.frontier import Trial, smallest_better
from scoreveil.mechanisms.channel import Channel
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.promises import WHOLE
from scoreveil.shapes import READOUT, ManyLabels, Shape
from scoreveil.veil import Veil

_SHORT = {"raw": "raw", "tempered": "scaled", "label": "label"}  # over narrow columns
TONES = {"raw": "c1", "veiled": "c0"}
OVER_EPSILON = ("useful", "nll", "leak")  # drawn over ε
BETTER = {"useful": "higher is better", "nll": "lower is better", "leak": "lower is better; .5 is nothing"}


def write(veil: Veil, trials: Sequence[Trial], target: str, folder: Path, printer: Printer | None = None) -> Path:
    """Write report.html, with the same numbers results.json, and with a printer report.pdf.

    Args:
        veil: The fitted veil.
        trials: What several ε promise and cost, that of the veil among them.
        target: The file that the veil was written to, for the commands that come next.
        folder: Where to write; other files in it are left alone.
        printer: What prints the page.

    Returns:
        The path of the page.
    """
    found = results(veil, trials)
    page = html(veil, trials, target)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write(folder / "results.json", json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if printer is not None:
        atomic.write(folder / "report.pdf", printer(page))
    atomic.write(folder / "report.html", page)
    return folder / "report.html"


def results(veil: Veil, trials: Sequence[Trial]) -> dict[str, Any]:
    """The numbers of the page, for programs."""
    channel = _channel(veil)
    return {
        "scoreveil": __version__,
        "promise": {**_promise(veil.guarantee), "words": veil.guarantee.words, "limits": veil.guarantee.limits},
        "after": {str(n): advantage_after(veil.guarantee, n) for n in REPEATS},
        "cost": [
            {**_promise(trial.guarantee), "cost": None if trial.cost is None else asdict(trial.cost)}
            for trial in trials
        ],
        "table": {
            "edges": channel.edges.tolist(),
            "announced": channel.announced.tolist(),
            "chances": (channel.table / WHOLE).tolist(),
        },
        **({} if veil.shape is None else {"shape": veil.shape.settings()}),
    }


def html(veil: Veil, trials: Sequence[Trial], target: str) -> str:
    """The whole page."""
    promise, channel = veil.guarantee, _channel(veil)
    own = next(trial for trial in trials if trial.epsilon == veil.epsilon)
    measured = [(trial.epsilon, trial.cost) for trial in trials if trial.cost is not None]
    return rendered(
        "fitted.html.j2",
        title=f"A veil of ε = {veil.epsilon:g}" + (f" for {veil.model}" if veil.model else ""),
        cards=cards(promise, own.cost, veil.shape),
        promise=promise,
        verdict=() if own.cost is None else own.cost.verdict,
        repeats=None if promise.advantage is None else repeats(promise),
        costs=None if own.cost is None else costs(own.cost),
        labels=None if own.cost is None or not own.cost.labels else labels(own.cost.labels),
        released=_released(veil),
        frontier=frontier(trials, veil.epsilon) if measured or promise.advantage is not None else None,
        smallest=smallest_better(trials),
        over_epsilon=drawn(over_epsilon(measured)) if measured else [],
        reliability=[] if own.cost is None else drawn([reliability(_shown(own.cost))]),
        heat=heat(channel),
        kept=channel.keep,
        target=target,
        version=__version__,
    )


def _channel(veil: Veil) -> Channel:
    if not isinstance(veil.mechanism, Channel):
        raise ValueError(f"Expected a fitted veil, got one of the {veil.mechanism.name} mechanism.")
    return veil.mechanism


def _promise(promise: Guarantee) -> dict[str, Any]:
    names = ("epsilon", "advantage", "advantage_told", "confidence", "worst_loss", "rho")
    return {name: getattr(promise, name) for name in names}


def cards(promise: Guarantee, measured: Cost | None, shape: Shape | None) -> list[dict[str, Any]]:
    """The large numbers at the top: ε, the advantage, what the confidence is worth."""
    answer = "the answer about one label" if isinstance(shape, ManyLabels) else "an answer"
    odds = f"{answer} changes an attacker's odds by a factor of at most {math.exp(promise.epsilon):,.3g}"
    found = [{"kind": "Against everyone", "title": "ε", "tone": "good", "value": f"{promise.epsilon:g}", "words": odds}]
    if promise.advantage is not None:
        words = f"what an attack gains beyond the label, TPR − FPR, with {promise.confidence:.0%} confidence"
        found.append(
            {"kind": "Against the crowd", "title": "Advantage", "tone": "good",
             "value": number(promise.advantage, 3), "words": words}
        )  # fmt: skip
    if measured is not None:
        useful = measured.useful
        words = (
            f"how often a right answer is surer than a wrong one; raw {number(useful['raw'].value)}, label alone "
            f"{number(useful['label'].value)}"
        )
        found.append(
            {"kind": "What is left", "title": "Usefulness", "tone": "floor",
             "value": number(useful["veiled"].value), "words": words}
        )  # fmt: skip
    return found


# Tables


def repeats(promise: Guarantee) -> Table:
    """What fresh answers about one record add up to."""
    columns = (
        ("fresh answers about a record", ""),
        ("ε", "their sum: the worst case, against everyone"),
        ("advantage", "what an attack on the crowd gains beyond the label, at most"),
    )
    rows = []
    for n in REPEATS:
        after = advantage_after(promise, n)
        rows.append((TableCell(str(n), n), TableCell(f"{n * promise.epsilon:g}", n * promise.epsilon), _cell(after)))
    return Table("Asked again", columns, tuple(rows))


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


def frontier(trials: Sequence[Trial], own: float) -> Table:
    """A row for each ε: what it promises, and what the veiled confidence is worth."""
    names = [name for name in MEASURES if any(trial.cost and getattr(trial.cost, name) for trial in trials)]
    columns = (("ε", ""), ("advantage", "stated for new records"), *((MEASURES[name], "veiled") for name in names))
    rows = []
    for trial in trials:
        figures = (getattr(trial.cost, name)["veiled"] for name in names)
        mine = "this veil" if trial.epsilon == own else ""
        rows.append(
            (
                TableCell(f"{trial.epsilon:g}", trial.epsilon, mine),
                _cell(trial.guarantee.advantage),
                *map(_measure, figures),
            )
        )
    return Table("What each ε leaves", columns, tuple(rows))


def _cell(value: float | None) -> TableCell:
    return TableCell(NOTHING if value is None else number(value, 3), value)


def _measure(found: Measure) -> TableCell:
    return TableCell(number(found.value, 3), found.value, f"{number(found.low, 3)}–{number(found.high, 3)}")


# Figures


def over_epsilon(measured: Sequence[tuple[float, Cost]]) -> list[Panel]:
    """The veiled figures over ε, with those of the other ways as dashed lines."""
    epsilons = [epsilon for epsilon, _ in measured]
    across = Axis("ε", (min(epsilons) / 1.3, max(epsilons) * 1.3), log=True)
    panels = []
    for name in OVER_EPSILON:
        found: list[dict[str, Measure]] = [getattr(cost, name) for _, cost in measured]
        if not found[0]:
            continue
        veiled = [each["veiled"] for each in found]
        # the others do not depend on ε: those of the last trial
        floors = tuple(
            (f"{WAYS[way]}: {number(found[-1][way].value)}", found[-1][way].value) for way in _apart(found[-1])
        )
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


def _apart(found: dict[str, Measure]) -> list[str]:
    """The other ways, but for one that lies on a line that is drawn already."""
    kept: list[str] = []
    for way in ("raw", "tempered", "label"):
        if all(abs(found[way].value - found[other].value) > 0.004 for other in kept):
            kept.append(way)
    return kept


def _shown(measured: Cost) -> list[tuple[str, str, tuple[Group, ...]]]:
    return [(WAYS[way], TONES[way], measured.reliability[way]) for way in ("raw", "veiled")]


def _released(veil: Veil) -> str:
    """What is released of an answer where that is not the announced confidence itself."""
    if getattr(veil.shape, READOUT, None) is None:
        return ""
    return (
        "What is released is read off the answer, the label and its yes or no: how often the label is yes among such "
        "answers. The top score is that of a probability whose threshold was moved to one half."
    )


def heat(channel: Channel) -> dict[str, Any]:
    """The table as a picture: a row for each bin of the top score, a column for each announced confidence."""
    order = channel.announced[:, 0].argsort()
    chances = channel.table[:, order] / WHOLE
    edges = [_edge(edge) for edge in channel.edges.tolist()]
    names = ["any score"]
    if edges:
        names = [f"below {edges[0]}", *(f"{a} to {b}" for a, b in pairwise(edges))]
        names.append(f"{edges[-1]} and above")
    rows = [
        (name, [(_percent(chance), round(100 * chance)) for chance in row])
        for name, row in zip(names, chances.tolist(), strict=True)
    ]
    return {"announced": [number(value, 3) for value in channel.announced[order, 0].tolist()], "rows": rows[::-1]}


def _edge(edge: float) -> str:
    """With as many digits as it takes to tell it from 1."""
    return number(edge, max(2, 1 + math.ceil(-math.log10(1 - edge))))


def _percent(chance: float) -> str:
    return "< 1 %" if chance < 0.005 else f"{100 * chance:.0f} %"
