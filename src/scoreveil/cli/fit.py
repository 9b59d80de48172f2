"""`scoreveil fit` and `scoreveil verify`: the most useful veil for a model, and its promises recomputed."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from scoreveil import accounting
from scoreveil.cli import options
from scoreveil.cli.terminal import err, out
from scoreveil.extras import needs
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.veil import Veil

if TYPE_CHECKING:  # scipy takes a while to import; only those who fit wait for it
    from collections.abc import Sequence

    from scoreveil.fitting.cost import Cost, LabelCost
    from scoreveil.fitting.frontier import Trial


def fit(
    nonmembers: Annotated[Path, typer.Option(metavar="FILE", help="Scores of records that were not trained on.")],
    nonmember_labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Their true classes, numbers or names: calibrates answers."),
    ] = None,
    members: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Scores of training records: bounds the advantage too.")
    ] = None,
    member_labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Their true classes: also against attackers who know them.")
    ] = None,
    columns: options.ColumnsOption = None,
    shape: options.ShapeOption = None,
    threshold: options.ThresholdOption = None,
    logits: options.LogitsOption = False,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", "-e", metavar="E", help="How much shows through; without it, compare several."),
    ] = None,
    advantage: Annotated[
        float, typer.Option("--advantage", metavar="D", help="What an attack may gain over guessing, beyond the label.")
    ] = 0.02,
    keep: Annotated[int, typer.Option("--keep", metavar="J", help="How many top classes keep their place.")] = 1,
    target: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="Where to write the veil: a .npz file.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Write a page with figures there, and its numbers.")
    ] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="With --report: the page as report.pdf, too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Fit the most useful veil that keeps its promises.

    Prints what is promised, and what the confidence is worth beside raw scores and beside the label alone, measured
    on records that the veil was not fitted on. Without --epsilon it compares several and writes nothing. With --shape
    many_labels, true labels are a column of 0 and 1 for each.
    """
    served = options.shape(shape, threshold, logits)
    if epsilon is not None:
        _check_target(target, force)
        if report is not None:
            options.check_folder(report)
    elif target is not None:
        raise ValueError("Which ε shall the veil have? Name one with --epsilon; without, several are compared.")
    elif report is not None:
        raise ValueError("A report is about one veil: name its --epsilon, and where to write it with -o.")
    elif nonmember_labels is None:
        raise ValueError("Without labels there is nothing to compare ε by: give --nonmember-labels, or --epsilon.")
    if pdf and report is None:
        raise ValueError("--pdf prints the page that --report writes: name a folder with --report.")
    with needs("fit"):
        from scoreveil.fitting.frontier import EPSILONS, fit_and_measure, frontier
        from scoreveil.fitting.records import read_both

        if report is not None:
            from scoreveil.audit.report import fitted
            from scoreveil.audit.report import pdf as printing

            printer = printing.find() if pdf else None

    others, inside, note = read_both(nonmembers, nonmember_labels, members, member_labels, columns, served)
    if note:
        out.print(note, soft_wrap=True)
    given: dict[str, Any] = {
        "nonmembers": others,
        "nonmember_labels": others.given[1],
        "members": inside,
        "member_labels": None if inside is None else inside.given[1],
        "advantage": advantage,
        "keep": keep,
        "shape": served,
    }
    if epsilon is None or target is None:
        with err.status("Comparing …"):
            trials = frontier(**given)
        _compare(trials)
        return
    with err.status("Fitting …"):
        veil, own = fit_and_measure(epsilon, **given)
    veil.save(target)
    out.print(f"Wrote {target}.\n\n{veil.guarantee}\n", highlight=False, soft_wrap=True)
    stated = veil.guarantee.advantage
    if stated is not None and stated > advantage:
        out.print(
            f"Among the records of the fit the advantage is {advantage:g} at most, as was asked for; {stated:.3f} is "
            "what holds for others too. More records state less.\n",
            highlight=False,
            soft_wrap=True,
        )
    _repeats(veil.guarantee)
    if own.cost is not None:
        _show(own.cost)
    if report is not None:
        with err.status("Comparing with other ε …"):
            trials = (own, *frontier((other for other in EPSILONS if other != epsilon), **given))
        page = fitted.write(veil, sorted(trials, key=lambda trial: trial.epsilon), str(target), report, printer)
        out.print(f"Report: {page}", soft_wrap=True)
    out.print(f"Next:\n  scoreveil verify {target}\n  scoreveil protect scores.csv -o safe.csv --veil {target}")


def _check_target(target: Path | None, force: bool) -> None:
    from scoreveil.files.output import refuse_existing

    if target is None:
        raise ValueError("Where shall the veil be written? Name a .npz file with -o.")
    if target.suffix != ".npz":
        raise ValueError(f"A fitted veil is written as .npz; {target.name} does not end in it.")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"Nothing can be written into {target.parent}.")
    refuse_existing(target, force)


def _repeats(promise: Guarantee) -> None:
    """What fresh answers about the same record add up to, where an advantage is promised."""
    if promise.advantage is None:
        return
    out.print("Fresh answers about the same record add up:")
    table = Table()
    for name in ("answers", "ε", "advantage"):
        table.add_column(name, justify="right")
    for n in accounting.REPEATS:
        table.add_row(str(n), f"{n * promise.epsilon:g}", f"{accounting.advantage_after(promise, n):.3f}")
    out.print(table, "", sep="\n")


def _show(measured: "Cost") -> None:
    from scoreveil.fitting.cost import MEASURES, WAYS

    table = Table(title="On records that the veil was not fitted on, with 95 % intervals", title_justify="left")
    table.add_column("")
    for way in WAYS.values():
        table.add_column(way, justify="right")
    for name, words in MEASURES.items():
        found = getattr(measured, name)
        if found:
            cells = [f"{found[way].value:.3f}\n{found[way].low:.3f}–{found[way].high:.3f}" for way in WAYS]
            table.add_row(words, *cells)
    out.print(table)
    if measured.labels:
        _show_labels(measured.labels)
    for sentence in measured.verdict:
        out.print(sentence, soft_wrap=True)
    out.print()


def _show_labels(measured: "Sequence[LabelCost]") -> None:
    """A line for each label: those first to which the veil adds least."""
    from scoreveil.fitting.cost import MEASURES

    shown = ("useful", "nll", "ece")
    table = Table(title="Label by label: raw, veiled, label alone", title_justify="left")
    for name in ("label", "yes", *(MEASURES[name] for name in shown)):
        table.add_column(name, justify="left" if name == "label" else "right")
    for each in sorted(measured, key=lambda each: each.nll["label"] - each.nll["veiled"]):
        figures = (
            " ".join(f"{getattr(each, name)[way]:.3f}".removeprefix("0") for way in ("raw", "veiled", "label"))
            for name in shown
        )
        table.add_row(each.label, f"{each.share:.0%}", *figures)
    out.print(table)


def _compare(trials: "Sequence[Trial]") -> None:
    """A line for each ε: what it leaves of the confidence, and what it promises."""
    from scoreveil.fitting.cost import MEASURES, WAYS
    from scoreveil.fitting.frontier import smallest_better

    names = ("useful", "nll", "ece", "leak")

    def figures(measured: "Cost | None", way: str) -> list[str]:
        found = (getattr(measured, name) for name in names)
        return [f"{each[way].value:.3f}" if each else "" for each in found]

    table = Table(title="What each ε leaves of the confidence", title_justify="left")
    for name in ("ε", "advantage", *(MEASURES[name] for name in names)):
        table.add_column(name, justify="right")
    for trial in trials:
        stated = trial.guarantee.advantage
        shown = "none" if stated is None else f"{stated:.3f}"
        table.add_row(f"{trial.epsilon:g}", shown, *figures(trial.cost, "veiled"))
    for way in ("label", "tempered", "raw"):
        table.add_row(WAYS[way], "", *figures(trials[-1].cost, way))
    out.print(table)
    best = smallest_better(trials)
    if best is None:
        out.print("At none of these is the veil clearly better than the label with a constant confidence: return that.")
    else:
        out.print(f"The smallest ε that is clearly better than the label alone: --epsilon {best:g} -o veil.npz")


def verify(
    path: Annotated[Path, typer.Argument(metavar="VEIL", help="A file that `fit` or `Veil.save` wrote.")],
) -> None:
    """Recompute every promise of a saved veil, in exact arithmetic.

    Exits with 2 where the file breaks one.
    """
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    veil = Veil.load(path)  # which verifies it
    out.print(f"{path} keeps its promises.\n\n{veil.guarantee}\n", soft_wrap=True)
    _repeats(veil.guarantee)
