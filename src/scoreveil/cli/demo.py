"""`scoreveil demo`: what leaks from a classifier of handwritten digits, and what a veil leaves."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from scoreveil.audit.report.charts import regions as chart
from scoreveil.cli.audit import attack_digits
from scoreveil.cli.fit import regions_table
from scoreveil.cli.terminal import out, progress_bar

if TYPE_CHECKING:
    from scoreveil.demo import Classified, Demo, Outcome


def demo(
    attack: Annotated[
        bool, typer.Option("--attack", help="Then attack such classifiers, and write a report (a minute or two).")
    ] = False,
    folder: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="OUT", help="A folder for scores, labels, the veil and the report."),
    ] = Path("scoreveil-demo"),
) -> None:
    """Show it at work on handwritten digits.

    Trains a classifier, and shows what its scores leak, what a veil leaves of that, and what the confidence is still
    worth. Writes scores, labels and the veil, and says how to go on with them.
    """
    from scoreveil import demo as demonstration

    started = time.perf_counter()
    with progress_bar("Training and veiling") as progress:
        shown = demonstration.run(progress)
    raw, veiled = (next(each for each in shown.outcomes if each.name == name) for name in ("raw scores", "fitted veil"))
    out.print(
        f"A forest learned {demonstration.LEARNED} handwritten digits by heart: right on "
        f"{shown.training_accuracy:.1%} of them, and on {shown.test_accuracy:.1%} of {shown.test_records} new ones.\n\n"
        f"What leaks: by its confidence alone, a training digit is told from a new one {raw.leak:.0%} of the time. "
        f"Behind the fitted veil it is {veiled.leak:.0%}, and a coin would do as well with 50%. "
        "No label changes.\n"
    )
    out.print(_table(shown.outcomes))
    out.print(
        "leak: how often the confidence of a training digit exceeds that of a new one; .50 is nothing.\n"
        "useful: how often that of a right answer exceeds that of a wrong one; .50 is worthless.\n"
        "log-loss, off: how bad the scores are as forecasts, and how far the confidence is from how often answers are "
        "right; smaller is better. Temperature scaling is calibration without any protection.\n"
    )
    for each in chart.read(shown.veil):
        out.print(regions_table(each))
    out.print(
        "The fitted veil announces a region in place of a score: training digits and new ones fall into each about "
        "equally often, and what it announces is how often its answers are right.\n"
    )
    promise = shown.veil.guarantee
    stated = promise.advantage_alone if promise.advantage is None else promise.advantage
    beyond = "guesses" if promise.advantage is None else "sees the label alone"
    epsilon = demonstration.EPSILON
    out.print(
        "What is promised: on records drawn at random, however often they are asked about, an attack exceeds one that "
        f"{beyond} by at most {stated:.2f} (true less false positive rate, 95 % confidence, an estimate; less with "
        f"more records to fit on). With ε = {epsilon:g}, an answer also changes the odds of an attacker who already "
        f"knows a record by a factor of at most e^{epsilon:g}.\n"
    )
    _write(shown.scores, folder)
    out.print(*_decision(shown), sep="\n")
    out.print()
    out.print(f"Measured just now, in {time.perf_counter() - started:.1f} s. Next, with these scores or your own:\n")
    out.print(NEXT.format(folder=folder), soft_wrap=True, markup=False)
    if attack:
        attack_digits(folder)


NEXT = """  cd {folder}
  scoreveil audit --members members.npy --member-labels member_labels.npy \\
    --nonmembers nonmembers.npy --nonmember-labels nonmember_labels.npy \\
    -o report
  scoreveil fit --members members.npy --member-labels member_labels.npy \\
    --nonmembers nonmembers.npy --nonmember-labels nonmember_labels.npy \\
    -o veil.json
  scoreveil show veil.json -o veil.svg
  scoreveil verify veil.json
  scoreveil protect nonmembers.npy -o veiled.npy --veil veil.json
  scoreveil serve your_model.onnx --veil your_veil.json"""


def _decision(shown: "Demo") -> tuple[str, ...]:
    """What `audit` and `fit` say to do with these scores."""
    from scoreveil.fitting.decision import sentences
    from scoreveil.fitting.evidence import evidence

    scores = shown.scores
    given = scores.reference, scores.reference_labels, scores.members, scores.member_labels
    return sentences(evidence(shown.veil, *given))


def _write(scores: "Classified", folder: Path) -> None:
    """What `audit` and `fit` read."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "members.npy", scores.members)
    np.save(folder / "member_labels.npy", scores.member_labels)
    np.save(folder / "nonmembers.npy", scores.reference)
    np.save(folder / "nonmember_labels.npy", scores.reference_labels)


def _table(outcomes: Sequence["Outcome"]) -> Table:
    table = Table()
    for name in ("answers", "leak", "useful", "log-loss", "off"):
        table.add_column(name, justify="left" if name == "answers" else "right", no_wrap=True)
    for outcome in outcomes:
        figures = (outcome.leak, outcome.useful, outcome.log_loss, outcome.calibration_error)
        table.add_row(outcome.name, *(f"{figure:.2f}" for figure in figures[:2]), *(f"{f:.3f}" for f in figures[2:]))
    return table
