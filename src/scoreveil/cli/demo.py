"""`scoreveil demo`: the veil on handwritten digits."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from scoreveil.cli.audit import attack_digits
from scoreveil.cli.terminal import out, progress_bar

BAR = 12  # characters of a full bar


def demo(
    attack: Annotated[
        bool, typer.Option("--attack", help="Then attack such classifiers, and write a report (a minute or two).")
    ] = False,
    folder: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The folder of that report.")] = Path(
        "scoreveil-demo"
    ),
) -> None:
    """Show it at work on handwritten digits.

    Trains a small classifier, veils its scores in several ways, and shows what changes and what does not.
    """
    from scoreveil import demo as demonstration

    started = time.perf_counter()
    with progress_bar("Training and veiling") as progress:
        shown = demonstration.run(progress)
    out.print(
        f"A small network learned {shown.training_records} handwritten digits by heart: right on "
        f"{shown.training_accuracy:.1%} of them, and on {shown.test_accuracy:.1%} of {shown.test_records:,} new ones. "
        "Its scores tell which digits it was trained on. With a veil over them:\n"
    )
    out.print(_outcomes_table(shown.outcomes))
    out.print(
        f"Labels that stayed: {min(outcome.same_label for outcome in shown.outcomes):.1%}. "
        "l1, l2: how far the scores of new digits moved, on average. attack: AUC of telling the training digits from "
        "new ones, by the better of two simple guesses; 0.5 is chance. It shows what leaks, not all that could.\n"
    )
    out.print(_picture_table(shown.picture, demonstration.PICTURED))
    out.print(f"▶ the true class. Measured just now, in {time.perf_counter() - started:.1f} s.")
    if attack:
        attack_digits(folder)


def _outcomes_table(outcomes: Sequence[Any]) -> Table:
    table = Table()
    for name in ("veil", "ε", "accuracy", "l1", "l2", "attack"):
        table.add_column(name, justify="left" if name == "veil" else "right", no_wrap=True)
    for before, outcome in zip([None, *outcomes], outcomes, strict=False):
        if before is not None and before.defense != outcome.defense:
            table.add_section()
        epsilon = "" if math.isinf(outcome.epsilon) else f"{outcome.epsilon:g}"
        numbers = (f"{outcome.l1:.3f}", f"{outcome.l2:.3f}", f"{outcome.attack_auc:.2f}")
        table.add_row(outcome.defense or "none", epsilon, f"{outcome.accuracy:.1%}", *numbers)
    return table


def _picture_table(picture: Any, epsilon: float) -> Table:
    table = Table(title=f"One digit's scores, before and after at ε = {epsilon:g}", title_justify="left", box=None)
    table.add_column("")
    drawn = {"none": picture.before, **picture.after}
    for name in drawn:
        table.add_column(name.replace(" + ", "\n+ ").replace(", ", ",\n"), vertical="bottom")
    for label in range(len(picture.before)):
        mark = "▶" if label == picture.truth else " "
        table.add_row(f"{mark} {label}", *(_bar(float(scores[label])) for scores in drawn.values()))
    return table


def _bar(score: float) -> str:
    """A score as a bar of eighths, and its value."""
    eighths = round(score * BAR * 8)
    part = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return f"{'█' * (eighths // 8)}{part} {score:.2f}"
