"""`scoreveil demo`: what the scores of a classifier of handwritten digits reveal, and what a veil leaves of that."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.table import Table

from scoreveil import atomic
from scoreveil.audit.report import region_tables
from scoreveil.audit.report.charts import regions as chart
from scoreveil.cli.audit import attack_digits
from scoreveil.cli.tables import shown as shown_table
from scoreveil.cli.terminal import err, out, program

if TYPE_CHECKING:
    from scoreveil.demo import Demo, Outcome


def demo(
    attack: Annotated[
        bool, typer.Option("--attack", help="Then attack such classifiers, and write a report (a minute or two).")
    ] = False,
    folder: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="OUT", help="A folder for scores, labels and the picture."),
    ] = Path("scoreveil-demo"),
) -> None:
    """Show what a veil does, on handwritten digits.

    Trains a classifier. Measures what its scores reveal about its training digits, what a veil leaves of that, and
    what the confidence is still worth. Writes the scores, their labels and a picture of the veil, and prints the
    commands that go on from there.
    """
    from scoreveil import demo as demonstration

    started = time.perf_counter()
    shown = demonstration.run(lambda name: err.print(f"{name} …"))
    seconds = time.perf_counter() - started
    picture = _write(shown, folder)
    _print_leaks(shown, demonstration.LEARNED)
    for region_map in chart.read(shown.veil):
        out.print(shown_table(region_tables.regions(region_map)))
    _print_promise(shown, picture, demonstration.EPSILON)
    out.print(*_decision(shown), sep="\n")
    out.print(f"\nMeasured just now, in {seconds:.1f} s. Next, with these scores or your own:\n")
    out.print(NEXT.format(folder=shlex.quote(str(folder)), scoreveil=program(folder)), soft_wrap=True, markup=False)
    if attack:
        attack_digits(folder)


COLUMNS = """leak: how often a training digit has a higher confidence than a new one; .50 is no leak.
useful: how often a right answer has a higher confidence than a wrong one; .50 is worthless.
log-loss: how bad the scores are as forecasts; smaller is better.
off: how far the confidence is from how often answers are right; smaller is better.
Temperature scaling calibrates the confidence and protects nothing.
"""

NEXT = """  cd {folder}
  {scoreveil} audit scores --members members.npy --member-labels member_labels.npy \\
    --nonmembers nonmembers.npy --nonmember-labels nonmember_labels.npy \\
    -o report
  {scoreveil} fit --members members.npy --member-labels member_labels.npy \\
    --nonmembers nonmembers.npy --nonmember-labels nonmember_labels.npy \\
    -o veil.json
  {scoreveil} show veil.json -o veil.svg
  {scoreveil} verify veil.json
  {scoreveil} protect nonmembers.npy -o veiled.npy --veil veil.json
  {scoreveil} serve your_model.onnx --veil your_veil.json"""


def _print_leaks(shown: "Demo", learned: int) -> None:
    leak = {outcome.name: outcome.leak for outcome in shown.outcomes}
    out.print(
        f"\nThe forest is right on {shown.training_accuracy:.1%} of its {learned} training digits, and "
        f"on {shown.test_accuracy:.1%} of {shown.test_records} new ones.\n\n"
        f"Raw scores give training digits away: of a training digit and a new one, the training digit has the higher "
        f"confidence {leak['raw scores']:.0%} of the time. Behind the fitted veil it is {leak['fitted veil']:.0%}; "
        "guessing gives 50%. No label changes.\n"
    )
    out.print(_table(shown.outcomes))
    out.print(COLUMNS)


def _print_promise(shown: "Demo", picture: Path, epsilon: float) -> None:
    out.print(
        "The fitted veil divides scores into these regions. About as many training digits as new ones fall into each. "
        "The veil announces how often answers in the region are right, in place of the score.\n"
        f"Picture: {picture}\n"
    )
    promise = shown.veil.guarantee
    stated = promise.advantage_alone if promise.advantage is None else promise.advantage
    beyond = "guessing" if promise.advantage is None else "seeing the label alone"
    out.print(
        f"The veil promises: on records drawn at random, an attack exceeds {beyond} by at most {stated:.2f}, however "
        "often it asks (true less false positive rate; a 95 % estimate, smaller with more records to fit on). With "
        f"ε = {epsilon:g}, one answer also changes the odds of an attacker who already knows the record by a factor "
        f"of at most e^{epsilon:g}.\n"
    )


def _decision(shown: "Demo") -> tuple[str, ...]:
    """What `audit` and `fit` say to do with these scores."""
    from scoreveil.fitting.decision import sentences
    from scoreveil.fitting.evidence import evidence

    scores = shown.scores
    return sentences(
        evidence(shown.veil, scores.reference, scores.reference_labels, scores.members, scores.member_labels)
    )


def _write(shown: "Demo", folder: Path) -> Path:
    """What `audit` and `fit` read, and a picture of the veil, whose path is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "members.npy", shown.scores.members)
    np.save(folder / "member_labels.npy", shown.scores.member_labels)
    np.save(folder / "nonmembers.npy", shown.scores.reference)
    np.save(folder / "nonmember_labels.npy", shown.scores.reference_labels)
    picture = folder / "regions.svg"
    atomic.write(picture, chart.drawn(chart.sheet(chart.read(shown.veil)[0]), alone=True))
    return picture


def _table(outcomes: Sequence["Outcome"]) -> Table:
    table = Table()
    for name in ("answers", "leak", "useful", "log-loss", "off"):
        table.add_column(name, justify="left" if name == "answers" else "right", no_wrap=True)
    for outcome in outcomes:
        figures = (outcome.leak, outcome.useful, outcome.log_loss, outcome.calibration_error)
        table.add_row(outcome.name, *(f"{figure:.2f}" for figure in figures[:2]), *(f"{f:.3f}" for f in figures[2:]))
    return table
