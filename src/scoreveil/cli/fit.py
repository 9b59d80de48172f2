"""`scoreveil fit` and `scoreveil verify`: the most useful veil for a model, and its promises recomputed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from scoreveil.cli.terminal import err, out
from scoreveil.veil import Veil

if TYPE_CHECKING:  # scipy takes a while to import; only those who fit wait for it
    from scoreveil.fitting.cost import Cost

FRONTIER = (0.5, 1.0, 2.0, 4.0, 8.0)
WAYS = {"raw": "raw scores", "tempered": "raw, temperature scaled", "veiled": "veiled", "label": "label, constant"}
MEASURES = {
    "useful": "tells right from wrong (AUROC)",
    "aurc": "errors while acting on the surest",
    "nll": "log-loss",
    "brier": "Brier score",
    "ece": "calibration error",
    "leak": "tells members from others (AUC)",
}


def fit(
    nonmembers: Annotated[Path, typer.Option(metavar="FILE", help="Scores of records that were not trained on.")],
    nonmember_labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Their true classes (.npy, .csv): calibrates answers."),
    ] = None,
    members: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Scores of training records: bounds the advantage too.")
    ] = None,
    member_labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Their true classes: also against attackers who know them.")
    ] = None,
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
) -> None:
    """Fit the most useful veil that keeps its promises.

    Prints what is promised, and what the confidence is worth beside raw scores and beside the label alone, measured
    on records that the veil was not fitted on. Without --epsilon it compares several and writes nothing.
    """
    from scoreveil.fitting import fit as fitted
    from scoreveil.fitting.cost import cost

    records: dict[str, Any] = {
        "nonmembers": nonmembers,
        "nonmember_labels": nonmember_labels,
        "members": members,
        "member_labels": member_labels,
    }
    options: dict[str, Any] = {"advantage": advantage, "keep": keep}
    if epsilon is None:
        _compare(records, options)
        return
    if target is None:
        raise ValueError("Where shall the veil be written? Name a .npz file with -o.")
    if target.suffix != ".npz":
        raise ValueError(f"A fitted veil is written as .npz; {target.name} does not end in it.")
    with err.status("Fitting …"):
        veil = fitted(epsilon, **records, **options)
        measured = None if nonmember_labels is None else cost(epsilon, **records, **options)
    veil.save(target)
    out.print(f"Wrote {target}.\n\n{veil.guarantee}\n", highlight=False, soft_wrap=True)
    if measured is not None:
        _show(measured)
    out.print(f"Next:\n  scoreveil verify {target}\n  scoreveil protect scores.csv -o safe.csv --veil {target}")


def _show(measured: "Cost") -> None:
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
    for sentence in measured.verdict:
        out.print(sentence, soft_wrap=True)
    out.print()


def _compare(records: dict[str, Any], options: dict[str, Any]) -> None:
    """A line for each ε: what it leaves of the confidence, and what it promises."""
    from scoreveil.fitting import fit as fitted
    from scoreveil.fitting.cost import cost

    if records["nonmember_labels"] is None:
        raise ValueError("Without labels there is nothing to compare ε by: give --nonmember-labels, or --epsilon.")
    table = Table(title="What each ε leaves of the confidence", title_justify="left")
    for name in ("ε", "advantage", *(MEASURES[name] for name in ("useful", "nll", "ece", "leak"))):
        table.add_column(name, justify="right")
    best = None
    with err.status("Comparing …"):
        for epsilon in FRONTIER:
            promise = fitted(epsilon, **records, **options).guarantee
            measured = cost(epsilon, **records, **options)
            stated = "none" if promise.advantage is None else f"{promise.advantage:.3f}"
            figures = [getattr(measured, name) for name in ("useful", "nll", "ece", "leak")]
            table.add_row(f"{epsilon:g}", stated, *(f"{each['veiled'].value:.3f}" if each else "" for each in figures))
            if best is None and measured.beats_label:
                best = epsilon
        for way in ("label", "tempered", "raw"):
            figures = [getattr(measured, name) for name in ("useful", "nll", "ece", "leak")]
            table.add_row(WAYS[way], "", *(f"{each[way].value:.3f}" if each else "" for each in figures))
    out.print(table)
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
    out.print(f"{path} keeps its promises.\n\n{veil.guarantee}", soft_wrap=True)
