"""`scoreveil tune` and `scoreveil guarantee`: choose ε, and show what it guarantees."""

import math
import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.table import Table
from rich.text import Text

from scoreveil import accounting
from scoreveil.cli import options
from scoreveil.cli.terminal import err, out, program
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import DEFAULT_MECHANISM, make
from scoreveil.veil import Veil

if TYPE_CHECKING:
    from scoreveil.tuning import Calibration

MAX_SAMPLE = 20_000  # rows that `tune` looks at
MAX_ODDS = 1_000  # a factor on an attacker's odds that promises nothing
WORTHLESS = 0.6  # of two records, how seldom the surer one stays the surer one for the confidence to be worth nothing
FIT = "If you have held-out scores, `scoreveil fit` makes a more useful veil."


def tune(
    scores: Annotated[Path, typer.Argument(metavar="SCORES", help="Scores: .npy, .npz, .csv or .parquet.")],
    distortion: Annotated[
        float, typer.Option("--distortion", "-d", metavar="D", help="The target: how far scores may move on average.")
    ],
    norm: Annotated[str, typer.Option("--norm", metavar="l1|l2", help="The norm that measures it.")] = "l2",
    mechanism: options.MechanismOption = DEFAULT_MECHANISM,
    keep: options.KeepOption = None,
    reference: options.ReferenceOption = None,
    columns: options.ColumnsOption = None,
) -> None:
    """Find the ε that gives a target distortion.

    This is the smallest ε that moves the scores no further than the target, on average. It is measured on at most
    20,000 rows, drawn at random.
    """
    from scoreveil import files, tuning

    typical = options.read_reference(reference, scores, columns)
    start = make(1.0, mechanism, keep=options.kept(keep), reference=typical)  # counts a reference once for every ε
    rows, total = files.sample(scores, columns, MAX_SAMPLE)

    def defense(epsilon: float) -> Veil:
        return Veil(replace(start, epsilon=epsilon))

    with err.status("Searching for ε …"):
        tuned = tuning.calibrate(rows, distortion, cast("tuning.Norm", norm), defense)
    _print_tuned(tuned, len(rows), total)
    _warn_of(tuned.epsilon, defense(tuned.epsilon).mechanism.guarantee(rows.shape[1]))
    kept = tuning.order_kept(rows, defense(tuned.epsilon)(rows))
    if kept < WORTHLESS:
        order = f"It keeps the order of two records in {kept:.0%} of cases; chance gives 50%."
        typer.echo(f"Warning: at this ε the confidence is worthless. {order} {FIT}", err=True)
    typer.echo("Next:")
    typer.echo(f"  {_next_command(scores, tuned.epsilon, mechanism, keep, reference, columns)}")


def _print_tuned(tuned: "Calibration", rows: int, total: int) -> None:
    drawn = f"{rows:,} of {total:,} rows, drawn at random" if total > rows else f"all {total:,} rows"
    typer.echo(f"ε = {tuned.epsilon:.4g}   ({tuned.confidence:.0%} interval {tuned.low:.4g} to {tuned.high:.4g})")
    typer.echo(
        f"Mean {tuned.norm} distortion there: {tuned.distortion:.4f} "
        f"(between {tuned.distortion_low:.4f} and {tuned.distortion_high:.4f}), measured on {drawn}."
    )
    if tuned.is_least:
        typer.echo("Every ε meets this target. Choose as small a one as you like.")


def _warn_of(epsilon: float, promise: Guarantee) -> None:
    """Say so where an ε promises nothing; a mechanism that never promises anything says so itself."""
    if promise.epsilon <= math.log(MAX_ODDS) or _has_no_bound(promise):
        return
    if math.isinf(promise.epsilon):
        risk = "one answer may give a record away."
    else:
        times = f"{math.exp(promise.epsilon):,.0f}" if promise.epsilon < 20 else f"e^{promise.epsilon:.3g}"
        risk = f"one answer may change an attacker's odds {times}-fold."
    typer.echo(f"Warning: ε = {epsilon:.4g} promises nothing: {risk} {FIT}", err=True)


def _has_no_bound(promise: Guarantee) -> bool:
    """Whether no ε of the mechanism promises anything, as opposed to one that is too large to."""
    return math.isinf(promise.epsilon) and promise.worst_loss is None


def _next_command(
    scores: Path, epsilon: float, mechanism: str, keep: str | None, reference: Path | None, columns: str | None
) -> str:
    words = ["protect", str(scores), "-o", str(scores.with_stem(scores.stem + "-veiled"))]
    words += ["--epsilon", f"{epsilon:.4g}"]
    options_given = {
        "--mechanism": None if mechanism == DEFAULT_MECHANISM else mechanism,
        "--keep": keep,
        "--reference": reference,
        "--columns": columns,
    }
    for option, value in options_given.items():
        words += [] if value is None else [option, str(value)]
    return f"{program()} {shlex.join(words)}"


def guarantee(
    epsilon: options.EpsilonOption,
    classes: Annotated[int, typer.Option("--classes", "-k", metavar="K", help="How many classes a score vector has.")],
    mechanism: options.MechanismOption = DEFAULT_MECHANISM,
    keep: options.KeepOption = None,
    total: Annotated[
        float, typer.Option("--total", metavar="T", help="The budget: the ε that releases of one record may add up to.")
    ] = 10.0,
    delta: Annotated[float, typer.Option("--delta", metavar="D", help="The δ of the zcdp rule.")] = 1e-6,
) -> None:
    """Show the guarantee for a given ε.

    Covers one release and its limits, and how many releases of one record a budget allows. For a fitted veil, see
    `scoreveil verify`.
    """
    if classes < 2:
        raise ValueError(f"Expected --classes >= 2, got {classes}.")
    promise = make(epsilon, mechanism, keep=options.kept(keep)).guarantee(classes)
    numbers: tuple[Table | Text, ...]
    if math.isfinite(promise.epsilon):
        numbers = (_promise_table(promise), _repeats_table(promise, total, delta))
    elif _has_no_bound(promise):
        numbers = _theorem_3(epsilon, classes, total)
    else:
        numbers = (_promise_table(promise),)
    _warn_of(epsilon, promise)
    limits = [Text(f"- {limit}") for limit in promise.limits]
    out.print(Text(promise.words), "", *numbers, "Limits:", *limits, sep="\n")


def _promise_table(promise: Guarantee) -> Table:
    table = _table("promised for one release")
    table.add_row("ε, for " + promise.relation_words, f"{promise.epsilon:g}")
    if promise.worst_loss is not None:
        table.add_row("the worst loss, never more than ε", f"{promise.worst_loss:.4g}")
    table.add_row("ρ, of zero-concentrated differential privacy", f"{promise.rho:.4g}")
    return table


def _repeats_table(promise: Guarantee, total: float, delta: float) -> Table:
    table = _table(f"how many fresh releases of one record stay within ε = {total:g}")
    table.add_row("pure: ε adds up", f"{accounting.query_bound(promise, total, rule='pure'):,}")
    concentrated = accounting.query_bound(promise, total, rule="zcdp", delta=delta)
    table.add_row(f"zcdp: ρ adds up, with δ = {delta:g}", f"{concentrated:,}")
    return table


def _theorem_3(epsilon: float, classes: int, total: float) -> tuple[Table, Text]:
    """The paper's number, never without its warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bound = accounting.paper_query_bound(epsilon, classes, total)
    table = _table("promised for one release, and for repeats")
    table.add_row("a bound on what scores reveal, for any number of releases", "none")
    table.add_row(
        f"the paper's Theorem 3, releases within ε = {total:g}", f"{bound:,.0f}" if bound < 1e9 else f"{bound:.3g}"
    )
    return table, Text(f"Do not rely on that number. {' '.join(str(warning.message) for warning in caught)}\n")


def _table(title: str) -> Table:
    table = Table(show_header=False, title=title, title_justify="left", title_style="bold", min_width=72)
    table.add_column(ratio=1)
    table.add_column(justify="right")
    return table
