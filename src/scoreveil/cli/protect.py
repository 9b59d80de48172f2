"""`scoreveil protect`: veil the scores in a file, or in all files of a folder."""

import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from scoreveil import files
from scoreveil.accounting import epsilon_after
from scoreveil.cli import options
from scoreveil.cli.terminal import progress_bar
from scoreveil.files import dataset
from scoreveil.files.score_file import SHOWN
from scoreveil.mechanisms.mechanism import DEFAULT_MECHANISM, make
from scoreveil.mechanisms.scores import NEGATIVE, NO_SUM
from scoreveil.shapes import Shape, TopK, said_beside
from scoreveil.veil import Veil

SHAPES = ("binary", "multi_label", "top_k")

FITTED_HELP = "A fitted veil (.json), instead of --epsilon."
SECRET_HELP = "At least 16 random bytes. The same scores then always get the same answer."
MODEL_HELP = "With a secret: answers are independent of those of other models."
SHAPE_HELP = "If scores are not vectors that sum to 1: one probability, one for each label, or the largest few."
THRESHOLD_HELP = "The score from which a column or label is a yes (default: 0.5). One for all labels, or one each."
CLASSES_HELP = "With --shape top_k: the number of all classes. The unlisted ones are veiled too."
BAD_ROW_HELP = "What to do with a row that is not a score vector."
WORKERS_HELP = "With --engine ray and without RAY_ADDRESS: how many workers to start."

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="IN",
        help="Scores: .npy, .npz, .csv, .tsv, .jsonl (also .gz, .zst) or .parquet; or a folder or URL of .parquet.",
    ),
]
TargetOption = Annotated[
    str, typer.Option("--output", "-o", metavar="OUT", help="Where to write. The format is that of IN.")
]
EpsilonOption = Annotated[
    float | None, typer.Option("--epsilon", "-e", metavar="E", help="How much shows through. Smaller hides more.")
]
VeilOption = Annotated[Path | None, typer.Option("--veil", metavar="FILE", help=FITTED_HELP)]
SecretOption = Annotated[Path | None, typer.Option("--secret-file", metavar="FILE", help=SECRET_HELP)]
ModelOption = Annotated[str | None, typer.Option("--model", metavar="NAME", help=MODEL_HELP)]
ShapeOption = Annotated[str | None, typer.Option("--shape", metavar="|".join(SHAPES), help=SHAPE_HELP)]
ThresholdOption = Annotated[str | None, typer.Option("--threshold", metavar="T[,T…]", help=THRESHOLD_HELP)]
ClassesOption = Annotated[int | None, typer.Option("--classes", "-k", metavar="K", help=CLASSES_HELP)]
RescaleOption = Annotated[
    bool, typer.Option("--rescale", help="Divide each row by its sum, if rows are rounded or in percent.")
]
BadRowOption = Annotated[str, typer.Option("--on-bad-row", metavar="refuse|skip|label-only", help=BAD_ROW_HELP)]
DropOption = Annotated[
    str | None, typer.Option("--drop", metavar="NAMES", help="Columns to leave out, separated by commas.")
]
PassOption = Annotated[
    str | None, typer.Option("--pass", metavar="NAMES", help="Columns to keep although they look like raw scores.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")]
EngineOption = Annotated[
    str,
    typer.Option("--engine", metavar="local|ray", help="For a folder: veil its files in this process, or with Ray."),
]
WorkersOption = Annotated[int | None, typer.Option("--workers", metavar="N", help=WORKERS_HELP)]


def protect(
    source: SourceArgument,
    target: TargetOption,
    epsilon: EpsilonOption = None,
    fitted: VeilOption = None,
    mechanism: options.MechanismOption = DEFAULT_MECHANISM,
    keep: options.KeepOption = None,
    reference: options.ReferenceOption = None,
    columns: options.ColumnsOption = None,
    secret_file: SecretOption = None,
    model: ModelOption = None,
    shape: ShapeOption = None,
    threshold: ThresholdOption = None,
    logits: options.LogitsOption = False,
    classes: ClassesOption = None,
    rescale: RescaleOption = False,
    on_bad_row: BadRowOption = "refuse",
    drop: DropOption = None,
    allow: PassOption = None,
    force: ForceOption = False,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
) -> None:
    """Veil the scores in a file.

    Everything else in the file stays as it is. Files may be larger than memory. OUT appears only when it is complete.
    In a folder, or at a URL that fsspec can open, each .parquet file is veiled on its own; run the command again after
    a stop, and it veils the files that are missing.
    """
    started, many, secret = time.perf_counter(), dataset.is_dataset(source), options.read_secret(secret_file)
    if engine not in ("local", "ray") or (engine == "ray" and not many):
        raise ValueError(f"Expected --engine local, or ray for a folder or URL; got {engine} for {source}.")
    served = _shape(shape, threshold, logits, classes)
    if fitted is None:
        if epsilon is None:
            raise ValueError("Missing --epsilon or --veil.")
        typical = _typical(reference, source, columns, many)
        drawn_by = make(epsilon, mechanism, keep=options.kept(keep), reference=typical)
    elif (epsilon, keep, reference, mechanism) == (None, None, None, DEFAULT_MECHANISM):
        loaded = Veil.load(fitted).for_scores()
        refusal = "--veil has its shape already; leave --shape and its options out."
        drawn_by, served = loaded.mechanism, said_beside(loaded.shape, served, refusal)
    else:
        raise ValueError("--veil has its epsilon and options already; give it alone, or leave it out.")
    cleaning = files.Cleaning(rescale, cast(files.OnBadRow, on_bad_row), drop, allow)
    veil = Veil(drawn_by, shape=served, secret=secret, model=model or "", threads=os.cpu_count() or 1)
    with progress_bar("Protecting", is_short=True) as progress, _warnings_last():
        if many:
            done = _protect_dataset(source, target, veil, columns, cleaning, force, engine, workers, progress)
        else:
            done = _protect_file(source, target, veil, columns, cleaning, force, progress)
    if done is not None:
        _say_protected(done, veil, target, seconds=time.perf_counter() - started)


def _typical(reference: Path | None, source: str, columns: str | None, many: bool) -> Any:
    if reference is not None and many:
        return files.sample(reference, columns)[0]
    return options.read_reference(reference, Path(source), columns)


@contextmanager
def _warnings_last() -> Iterator[None]:
    """Warnings of the block are printed once each, at its end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"Warning: {message}", err=True)


def _protect_file(
    source: str, target: str, veil: Veil, columns: str | None, cleaning: files.Cleaning, force: bool,
    progress: files.Progress,
) -> files.Protected:  # fmt: skip
    try:
        return files.protect(source, target, veil, columns, force, progress, cleaning=cleaning)
    except files.BadRows as error:
        raise ValueError(f"{error}\n{_ways_out(error, veil.shape)}") from None


def _ways_out(error: files.BadRows, shape: Shape) -> str:
    """What else to try, where a file has these `BadRows`."""
    faults, ways = {fault for _, fault in error.rows}, []
    if error.rescale_helps:
        ways.append("If rows are rounded or in percent, --rescale divides each by its sum.")
    if faults.intersection(NO_SUM) and NEGATIVE not in faults and shape.sums_to_one:
        ways.append("If rows need not sum to 1, name a --shape, or one column with --columns.")
    if any("they are logits" in fault for fault in faults):
        ways.append("If these are logits of a yes or no, add --logits.")
    if any(fault.startswith("place") for fault in faults):
        ways.append("Give equal scores to places that hold nothing, such as padding; each is a release all the same.")
    else:
        ways.append("--on-bad-row skip leaves such rows out; --on-bad-row label-only keeps their labels alone.")
    return " ".join(ways)


def _shape(name: str | None, threshold: str | None, logits: bool, classes: int | None) -> Shape:
    """--shape and its options as `Veil` takes them; a threshold alone is that of one column."""
    if name == "top_k":
        if threshold is not None or logits:
            raise ValueError("--threshold and --logits are for --shape binary or multi_label.")
        return TopK(classes)
    if classes is not None:
        raise ValueError("--classes goes with --shape top_k: how many classes there are in all.")
    if name is not None and name not in SHAPES:
        raise ValueError(f"Expected --shape {', '.join(SHAPES)}, got {name!r}.")
    return options.shape(name or (None if threshold is None and not logits else "binary"), threshold, logits)


def _protect_dataset(
    source: str, target: str, veil: Veil, columns: str | None, cleaning: files.Cleaning, force: bool, engine: str,
    workers: int | None, progress: files.Progress,
) -> files.Protected | None:  # fmt: skip
    """What was done, None where nothing was missing; and it is said how many files were there already."""
    todo = dataset.begin(source, target, veil, columns, force, cleaning)
    one = partial(dataset.protect_partition, veil=veil, columns=columns, one_core=engine == "ray", cleaning=cleaning)
    if engine == "ray":
        from scoreveil.integrations import ray

        results = ray.each(one, todo, workers)
    else:
        results = map(one, todo)
    done = []
    for result in results:
        done.append(result)
        progress(len(done) / len(todo))
    if kept := dataset.count(source) - len(todo):
        typer.echo(f"{kept} file{'s' * (kept != 1)} of {target} {'was' if kept == 1 else 'were'} complete already.")
    return dataset.total(done) if done else None


def _say_protected(done: files.Protected, veil: Veil, target: str, seconds: float) -> None:
    noun = f" × {done.classes} {veil.shape.noun}" if done.classes != 1 else " of one column"
    rows = f"{done.rows:,} row{'s' * (done.rows != 1)}{'' if done.classes is None else noun}"
    typer.echo(f"Wrote {target}: {rows} veiled in {seconds:.1f} s.")
    for what, names in (
        ("veiled     ", done.columns),
        ("untouched  ", done.untouched),
        ("left out   ", done.dropped),
        ("left out   metadata of the file: ", done.left_behind),
    ):
        if names:
            typer.echo(f"  {what}{_names(names)}")
    _say_bad_rows(done)
    promise = veil.guarantee
    if promise.advantage_alone is not None:
        typer.echo(f"  guarantee  {options.advantage_words(promise)}")
    elif math.isinf(promise.epsilon):
        typer.echo(f"  guarantee  none: {_why_nothing(veil)}")
    if math.isinf(promise.epsilon):
        return
    typer.echo(f"  guarantee  ε = {promise.epsilon:g} for {promise.relation_words}, per release")
    if done.releases > 1:
        whole = f"{done.releases} releases, ε = {epsilon_after(promise, done.releases):g} in all"
        typer.echo(f"  an answer  has {whole}")
    if not veil.is_keyed:
        typer.echo("  note       repeated answers about a record add up; --secret-file makes them all the same")


def _why_nothing(veil: Veil) -> str:
    if veil.guarantee.fit_epsilon is not None:
        return "the veil was fitted without members and without ε"
    return f"the {veil.mechanism.name} mechanism has no guarantee (scoreveil guarantee --help)"


def _say_bad_rows(done: files.Protected) -> None:
    """What became of each row that was no score vector."""
    became = ["skipped   " if row in done.left_out else "label only" for row, _ in done.bad]
    for what, (row, fault) in zip(became[:SHOWN], done.bad, strict=False):
        typer.echo(f"  {what}  row {row}: {fault}")
    for what, more in Counter(became[SHOWN:]).items():
        typer.echo(f"  {what}  and {more:,} more row{'s' * (more != 1)}")


def _names(names: Sequence[str], most: int = 8) -> str:
    names = [name or "index" for name in names]  # pandas writes its index without a name
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[: most - 2])}, … {names[-1]} ({len(names)})"
