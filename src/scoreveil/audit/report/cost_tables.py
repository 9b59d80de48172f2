"""What a fitted veil costs as tables: for its page, for an audit's, and for the terminal."""

from collections.abc import Sequence
from functools import partial

from scoreveil.audit.report.table import Column, Table, TableCell, epsilon, figure, share, spanned, table, word
from scoreveil.fitting.cost import MEASURES, OF_LABEL, WAYS, Cost, LabelCost
from scoreveil.fitting.frontier import RATE, Trial, most_found
from scoreveil.fitting.neighbours import Trial as Smoothed

SHORT = {"raw": "raw", "tempered": "scaled", "label": "label"}  # over narrow columns


def costs(measured: Cost) -> Table:
    """Every measure of every way to answer, with its interval."""
    names = [name for name in MEASURES if getattr(measured, name)]

    def cell(way: str, name: str) -> TableCell:
        return _cell(measured, name, way)

    columns: list[Column[str]] = [("", "", lambda name: word(MEASURES[name]))]
    columns += [(words, "", partial(cell, way)) for way, words in WAYS.items()]
    return table("What the confidence is worth", names, columns)


def labels(measured: Sequence[LabelCost], names: Sequence[str] = OF_LABEL, ways: Sequence[str] = tuple(WAYS)) -> Table:
    """A row for each of many labels: how much its log-loss is below that of the label alone, the least first."""
    names = [name for name in names if getattr(measured[0], name)]

    def cell(name: str, way: str, label: LabelCost) -> TableCell:
        return figure(getattr(label, name)[way])

    columns: list[Column[LabelCost]] = [
        ("label", "", lambda label: word(label.label)),
        ("yes", "how often it is", lambda label: TableCell(f"{100 * label.share:.0f} %", label.share)),
    ]
    for name in names:
        columns += [(SHORT.get(way, WAYS[way]), MEASURES[name], partial(cell, name, way)) for way in ways]
    ordered = sorted(measured, key=lambda label: label.nll["label"] - label.nll["veiled"])
    groups = [("", 2), *((MEASURES[name], len(ways)) for name in names)]
    return table("Label by label", ordered, columns, groups=groups)


def frontier(trials: Sequence[Trial], own: Trial | None = None, names: Sequence[str] = tuple(MEASURES)) -> Table:
    """A row for each ε: what it allows, and what the veiled confidence is worth; then the other ways to answer."""
    measured = [(trial, trial.cost) for trial in trials if trial.cost is not None]
    names = [name for name in names if getattr(measured[0][1], name)]
    rows = []
    for trial, cost in measured:
        first = epsilon(trial.epsilon, "none", "this veil" if trial is own else "")
        beats = word("yes" if trial.evidence.is_worth_more else "not shown")
        rows.append((first, share(most_found(trial.epsilon)), *(_cell(cost, name, "veiled") for name in names), beats))
    for way in ("label", "tempered", "raw"):
        figures = (_cell(measured[0][1], name, way) for name in names)
        rows.append((word(WAYS[way]), TableCell(""), *figures, word("")))
    columns = (
        ("ε", ""),
        (f"found at {RATE:.0%} FPR, at most", "members that one answer may give away to whoever knows their scores"),
        *((MEASURES[name], "veiled") for name in names),
        ("beats the label", "whether the confidence is surely worth more than the label alone"),
    )
    return Table("What each ε leaves of the confidence", columns, tuple(rows))


def smoothing(trials: Sequence[Smoothed]) -> Table:
    """A row for each scale: what it leaves of the attack around a record, and of the confidence."""
    return table(
        "Asked around a record",
        trials,
        [
            (
                "smoothing",
                "how far copies of a record lie from it, in standard deviations of each column",
                lambda trial: epsilon(trial.scale),
            ),
            (
                "attack",
                "AUC of who asks around a record and knows its label, behind the fitted veil; .5 is guessing",
                lambda trial: figure(trial.attack),
            ),
            ("labels alone", "AUC of the same attack on labels", lambda trial: figure(trial.labels)),
            (
                "AUROC",
                "of the announced confidence: how well it tells right answers from wrong ones",
                lambda trial: figure(trial.useful),
            ),
        ],
    )


def _cell(measured: Cost, name: str, way: str) -> TableCell:
    measure = getattr(measured, name)[way]
    return spanned(measure.value, measure.low, measure.high)
