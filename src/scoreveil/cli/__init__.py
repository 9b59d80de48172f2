"""The command line: `protect`, `tune`, `guarantee`, `audit`, `reproduce`, `serve`, `config`, `ledger` and `demo`.

Commands pass on what the user gave and nothing else, so that defaults are declared where they are used; what they
compute is rendered here. Errors are one line on stderr, and exit code 2.
"""

import io
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

from scoreveil import __version__, accounting
from scoreveil.accounting import Guarantee
from scoreveil.mechanisms.isotonic import IsotonicSettings, Keep
from scoreveil.mechanisms.published import PublishedSettings
from scoreveil.mechanisms.reference import Reference
from scoreveil.veil import Mechanism, Veil

try:
    import typer
    from rich.table import Table
    from rich.text import Text

    from scoreveil.cli.audit import attack_digits, audit
    from scoreveil.cli.ledger import ledger
    from scoreveil.cli.reproduce import reproduce
    from scoreveil.cli.serve import config_app, serve
    from scoreveil.cli.terminal import err, out, progress_bar
except ModuleNotFoundError:
    raise SystemExit("Error: the command line needs typer and rich: pip install 'scoreveil[cli]'.") from None

SAMPLE = 20_000  # rows that `tune` looks at, at most
BAR = 12  # characters of a full bar in the demo
# typer brings a click of its own or uses the installed one, by version; both have this
UsageError = cast(type[Exception], typer.BadParameter.__base__)

app = typer.Typer(
    help="A veil over a classifier's confidence scores, with one parameter, ε: the label stays, "
    "and what the scores leak beyond it is bounded.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EpsilonOption = Annotated[
    float, typer.Option("--epsilon", "-e", metavar="E", help="How much shows through; smaller hides more.")
]
MechanismOption = Annotated[
    str | None,
    typer.Option(
        "--mechanism",
        metavar="isotonic|published",
        help="isotonic (default): with a guarantee. published: the paper's, with none.",
    ),
]
KeepOption = Annotated[
    str | None,
    typer.Option("--keep", metavar="J|all", help="How many top classes keep their place; by default 1, the label."),
]
ReferenceOption = Annotated[
    Path | None,
    typer.Option("--reference", metavar="FILE", help="Public scores (never the protected ones): far less distortion."),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="Score columns: names or patterns such as 'p*', with commas between; of an .npz, the array.",
    ),
]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"scoreveil {__version__}")
        raise typer.Exit


# protect


@app.command(epilog="Example: scoreveil protect scores.csv -o safe.csv --epsilon 2 --columns 'p*'")
def protect(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="Scores: .npy, .npz, .csv or .parquet; or a folder or URL of .parquet.")
    ],
    target: Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="Where to write, in the same format.")],
    epsilon: EpsilonOption,
    mechanism: MechanismOption = None,
    keep: KeepOption = None,
    reference: ReferenceOption = None,
    columns: ColumnsOption = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            metavar="FILE",
            help="16 random bytes or more: the same scores then get the same answer.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="With a secret: other models get independent answers.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="local|ray", help="Who veils the files of a folder: this process, or Ray."),
    ] = "local",
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="With --engine ray and no RAY_ADDRESS: so many here.")
    ] = None,
) -> None:
    """Veil the scores in a file.

    Everything else in it stays as it was. Works in pieces, so that files may be larger than memory; OUT appears only
    when it is complete. Of a folder, or a URL that fsspec knows, each .parquet file is veiled on its own; a run that
    was stopped goes on with those that are missing.
    """
    from scoreveil import files
    from scoreveil.files import dataset

    started = time.perf_counter()
    many, secret = dataset.is_dataset(source), _secret(secret_file)
    if engine not in ("local", "ray") or (engine == "ray" and not many):
        raise ValueError(f"Expected --engine local, or ray for a folder or URL, got {engine}.")
    if reference is not None and many:
        typical = files.sample(reference, columns)[0]
    else:
        typical = _reference(reference, Path(source), columns)
    veil = _maker(mechanism)(
        epsilon,
        keep=_kept(keep),
        reference=typical,
        secret=secret,
        model=model or "",
        threads=os.cpu_count() or 1,
    )
    with progress_bar("Protecting") as progress:
        if many:
            recipe = dataset.Recipe.of(veil, secret)
            done, kept = _protect_dataset(source, target, recipe, columns, force, engine, workers, progress)
        else:
            done, kept = files.protect(source, target, veil, columns, force, progress), 0
    if kept:
        typer.echo(f"{kept} file{'s' * (kept != 1)} of {target} were there already, complete.")
    if done is not None:
        _say_protected(done, veil, target, sticky=secret is not None, seconds=time.perf_counter() - started)


def _protect_dataset(
    source: str, target: str, recipe: Any, columns: str | None, force: bool, engine: str, workers: int | None,
    progress: Callable[[float], None],
) -> tuple[Any, int]:  # fmt: skip
    """What was done, and how many files were there already."""
    from scoreveil.files import dataset

    todo = dataset.begin(source, target, recipe, columns, force)
    one = partial(dataset.protect_partition, recipe=recipe, columns=columns, one_core=engine == "ray")
    if engine == "ray":
        try:
            from scoreveil.integrations import ray
        except ModuleNotFoundError as error:
            message = f"Expected {error.name} for --engine ray, got none: pip install 'scoreveil[ray]'."
            raise ModuleNotFoundError(message) from None
        results = ray.each(one, todo, workers)
    else:
        results = map(one, todo)
    done = []
    for result in results:
        done.append(result)
        progress(len(done) / len(todo))
    return dataset.total(done) if done else None, dataset.count(source) - len(todo)


def _say_protected(done: Any, veil: Veil, target: str, sticky: bool, seconds: float) -> None:
    classes = "" if done.classes is None else f" × {done.classes} classes"
    typer.echo(f"Wrote {target}: {done.rows:,} row{'s' * (done.rows != 1)}{classes} veiled in {seconds:.1f} s.")
    if done.columns:
        typer.echo(f"  veiled     {_names(done.columns)}")
    if done.untouched:
        typer.echo(f"  untouched  {_names(done.untouched)}")
    promise = veil.guarantee
    if math.isinf(promise.epsilon):
        typer.echo("  promised   nothing: the published mechanism has no guarantee (scoreveil guarantee --help)")
    else:
        typer.echo(f"  promised   ε = {promise.epsilon:g} for {promise.relation}, per release")
        if not sticky:
            typer.echo("  mind       fresh answers for the same records add up; --secret-file makes them the same")


def _names(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[: most - 2])}, … {names[-1]} ({len(names)})"


# tune


@app.command(epilog="Example: scoreveil tune scores.csv --distortion 0.2 --columns 'p*'")
def tune(
    scores: Annotated[Path, typer.Argument(metavar="SCORES", help="Scores: .npy, .npz, .csv or .parquet.")],
    distortion: Annotated[
        float, typer.Option("--distortion", "-d", metavar="D", help="How far scores may move on average.")
    ],
    norm: Annotated[
        str | None, typer.Option("--norm", metavar="l1|l2", help="How that is measured; by default l2.")
    ] = None,
    mechanism: MechanismOption = None,
    keep: KeepOption = None,
    reference: ReferenceOption = None,
    columns: ColumnsOption = None,
) -> None:
    """Find the ε for a wished distortion.

    It is the smallest ε that moves the scores no further than that, on average. Looks at 20,000 rows at most, drawn
    at random.
    """
    from scoreveil import files, tuning

    kept, make = _kept(keep), _maker(mechanism)
    tables: Reference | Any | None = _reference(reference, scores, columns)
    if tables is not None:
        tables = make(1.0, keep=kept, reference=tables).reference  # counted once for every ε
    rows, total = files.sample(scores, columns, SAMPLE)
    defense = partial(make, keep=kept, reference=tables)
    with err.status("Looking for ε …"):
        if norm is None:
            found = tuning.calibrate(rows, distortion, defense=defense)
        else:
            found = tuning.calibrate(rows, distortion, norm=cast(tuning.Norm, norm), defense=defense)
    drawn = f"{len(rows):,} of {total:,} rows, drawn at random" if total > len(rows) else f"all {total:,} rows"
    typer.echo(f"ε = {found.epsilon:.4g}   ({found.confidence:.0%} interval {found.low:.4g} to {found.high:.4g})")
    typer.echo(
        f"Mean {found.norm} distortion there: {found.distortion:.4f} "
        f"(between {found.distortion_low:.4f} and {found.distortion_high:.4f}), measured on {drawn}."
    )
    if found.epsilon <= tuning.SMALLEST:
        typer.echo("Every ε meets this wish: take the smallest you like.")
    typer.echo("Next:")
    typer.echo(f"  {_next_command(scores, found.epsilon, mechanism, keep, reference, columns)}")


def _next_command(
    scores: Path, epsilon: float, mechanism: str | None, keep: str | None, reference: Path | None, columns: str | None
) -> str:
    import shlex

    words = ["scoreveil", "protect", str(scores), "-o", str(scores.with_stem(scores.stem + "-veiled"))]
    words += ["--epsilon", f"{epsilon:.4g}"]
    given = {"--mechanism": mechanism, "--keep": keep, "--reference": reference, "--columns": columns}
    for option, value in given.items():
        words += [] if value is None else [option, str(value)]
    return shlex.join(words)


# guarantee


@app.command(epilog="Example: scoreveil guarantee --epsilon 0.5 --classes 10 --total 5")
def guarantee(
    epsilon: EpsilonOption,
    classes: Annotated[int, typer.Option("--classes", "-k", metavar="K", help="How many classes a score vector has.")],
    mechanism: MechanismOption = None,
    keep: KeepOption = None,
    total: Annotated[
        float, typer.Option("--total", metavar="T", help="The ε that repeated releases of one record may reach.")
    ] = 10.0,
    delta: Annotated[float, typer.Option("--delta", metavar="D", help="δ of the zcdp rule.")] = 1e-6,
) -> None:
    """Say what an ε promises.

    For one release, with its limits, and how many repeats of a record it allows.
    """
    if classes < 2:
        raise ValueError(f"Expected --classes >= 2, got {classes}.")
    settings = _maker(mechanism)(epsilon, keep=_kept(keep)).settings
    promise = accounting.guarantee(settings, classes=classes)
    if isinstance(settings, IsotonicSettings):
        numbers: tuple[Table | Text, ...] = (_promise_table(promise), _repeats_table(promise, total, delta))
    else:
        numbers = _theorem_3(settings, classes, total)
    limits = [Text(f"- {limit}") for limit in promise.limits]
    out.print(Text(promise.words), "", *numbers, "Limits:", *limits, sep="\n")


def _promise_table(promise: Guarantee) -> Table:
    table = _table("promised for one release")
    table.add_row("ε, for " + promise.relation, f"{promise.epsilon:g}")
    if promise.worst_loss is not None:
        table.add_row("the exact worst loss, never more than ε", f"{promise.worst_loss:.4g}")
    table.add_row("ρ, of zero-concentrated differential privacy", f"{promise.rho:.4g}")
    return table


def _repeats_table(promise: Guarantee, total: float, delta: float) -> Table:
    table = _table(f"fresh releases of one record that stay within ε = {total:g}, by either rule")
    table.add_row("pure: ε adds up", f"{accounting.query_bound(promise, total):,}")
    concentrated = accounting.query_bound(promise, total, rule="zcdp", delta=delta)
    table.add_row(f"zcdp: ρ adds up, with δ = {delta:g}", f"{concentrated:,}")
    return table


def _theorem_3(settings: PublishedSettings, classes: int, total: float) -> tuple[Table, Text]:
    """The paper's number, never without its warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bound = accounting.paper_query_bound(settings.epsilon, classes, total)
    table = _table("promised for one release, and for repeats")
    table.add_row("a bound on what scores reveal, for any number of releases", "none")
    table.add_row(
        f"the paper's Theorem 3, releases within ε = {total:g}", f"{bound:,.0f}" if bound < 1e9 else f"{bound:.3g}"
    )
    return table, Text(f"Do not rely on that number. {' '.join(str(each.message) for each in caught)}\n")


def _table(title: str) -> Table:
    table = Table(show_header=False, title=title, title_justify="left", title_style="bold", min_width=72)
    table.add_column(ratio=1)
    table.add_column(justify="right")
    return table


app.command(epilog="Example: scoreveil audit --members in.npy --nonmembers out.npy -o report")(audit)
app.command(epilog="Example: scoreveil reproduce --profile quick --data-dir data")(reproduce)
app.command(epilog="Example: scoreveil serve model.onnx --epsilon 2")(serve)
app.add_typer(config_app, name="config")
app.add_typer(ledger, name="ledger")


# demo


@app.command(epilog="Example: scoreveil demo")
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
    drawn = {"none": picture.before, **{name: z for name, z in picture.after.items() if name != "isotonic"}}
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


# What the commands share


def _maker(mechanism: str | None) -> Callable[..., Veil]:
    return Veil if mechanism is None else partial(Veil, mechanism=cast(Mechanism, mechanism))


def _kept(keep: str | None) -> Keep | None:
    if keep is None or keep == "all":
        return cast(Keep | None, keep)
    try:
        return int(keep)
    except ValueError:
        raise ValueError(f"Expected --keep to be a whole number or 'all', got {keep!r}.") from None


def _reference(reference: Path | None, source: Path, columns: str | None) -> Any:
    """The scores of a reference, whose columns have the names of the source's where both have names."""
    from scoreveil import files

    if reference is None:
        return None
    if reference.exists() and source.exists() and os.path.samefile(reference, source):
        raise ValueError("Expected a reference other than the protected scores, got the same file.")
    return files.read_reference(reference, source, columns)


def _secret(path: Path | None) -> bytes | None:
    from scoreveil import files

    if path is None:
        return None
    secret = files.read_secret(path)
    if files.readable_by_others(path):
        typer.echo(f"Warning: other users may read the secret in {path}; chmod 600 {path} prevents it.", err=True)
    return secret


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise SystemExit(code)


def _message(error: Exception) -> str:
    return str(cast(Any, error).format_message())


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε is no reason to fail
    earlier = signal.signal(signal.SIGTERM, _terminated)  # so that what is half done is cleared away
    try:
        code = app(arguments, standalone_mode=False)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(_message(error))  # which is the help
            raise SystemExit(0) from None
        _fail(_message(error))
    except (ValueError, ModuleNotFoundError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    finally:
        signal.signal(signal.SIGTERM, earlier)
    if code == 130:
        _fail("interrupted.", 130)
    raise SystemExit(code if isinstance(code, int) else 0)
