"""`scoreveil protect`: veil the scores in a file, or in all files of a folder."""

import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from scoreveil.accounting import epsilon_after
from scoreveil.cli import options
from scoreveil.cli.terminal import progress_bar
from scoreveil.mechanisms.mechanism import DEFAULT_MECHANISM, make
from scoreveil.mechanisms.scores import NEGATIVE, NO_SUM
from scoreveil.shapes import Shape, TopK, said_beside
from scoreveil.veil import Veil

SHAPES = ("one_column", "many_labels", "top_k")


def protect(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="Scores: .npy, .npz, .csv, .tsv, .jsonl (also .gz, .zst) or .parquet; or a folder or URL of .parquet.",
        ),
    ],
    target: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="Where to write. The format is that of IN.")
    ],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", "-e", metavar="E", help="How much shows through. Smaller hides more.")
    ] = None,
    fitted: Annotated[
        Path | None, typer.Option("--veil", metavar="FILE", help="A fitted veil (.json), instead of --epsilon.")
    ] = None,
    mechanism: options.MechanismOption = DEFAULT_MECHANISM,
    keep: options.KeepOption = None,
    reference: options.ReferenceOption = None,
    columns: options.ColumnsOption = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            metavar="FILE",
            help="At least 16 random bytes. The same scores then always get the same answer.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="NAME", help="With a secret: answers are independent of those of other models."
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            metavar="|".join(SHAPES),
            help="If scores are not vectors that sum to 1: one probability, one for each label, or the largest few.",
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            "--threshold",
            metavar="T[,T…]",
            help="The score from which a column or label is a yes (default: 0.5). One for all labels, or one each.",
        ),
    ] = None,
    logits: options.LogitsOption = False,
    classes: Annotated[
        int | None,
        typer.Option(
            "--classes",
            "-k",
            metavar="K",
            help="With --shape top_k: the number of all classes. The unlisted ones are veiled too.",
        ),
    ] = None,
    rescale: Annotated[
        bool, typer.Option("--rescale", help="Divide each row by its sum, if rows are rounded or in percent.")
    ] = False,
    on_bad_row: Annotated[
        str,
        typer.Option(
            "--on-bad-row", metavar="refuse|skip|label-only", help="What to do with a row that is not a score vector."
        ),
    ] = "refuse",
    drop: Annotated[
        str | None, typer.Option("--drop", metavar="NAMES", help="Columns to leave out, separated by commas.")
    ] = None,
    allow: Annotated[
        str | None,
        typer.Option("--pass", metavar="NAMES", help="Columns to keep although they look like raw scores."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", metavar="local|ray", help="For a folder: veil its files in this process, or with Ray."
        ),
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", metavar="N", help="With --engine ray and without RAY_ADDRESS: how many workers to start."
        ),
    ] = None,
) -> None:
    """Veil the scores in a file.

    Everything else in the file stays as it is. Files may be larger than memory. OUT appears only when it is complete.
    In a folder, or at a URL that fsspec can open, each .parquet file is veiled on its own; run the command again after
    a stop, and it veils the files that are missing.
    """
    from scoreveil import files
    from scoreveil.files import dataset

    started = time.perf_counter()
    many, secret = dataset.is_dataset(source), options.read_secret(secret_file)
    if engine not in ("local", "ray") or (engine == "ray" and not many):
        raise ValueError(f"Expected --engine local, or ray for a folder or URL; got {engine} for {source}.")
    if reference is not None and many:
        typical = files.sample(reference, columns)[0]
    else:
        typical = options.read_reference(reference, Path(source), columns)
    served = _shape(shape, threshold, logits, classes)
    if fitted is not None:
        if (epsilon, keep, reference, mechanism) != (None, None, None, DEFAULT_MECHANISM):
            raise ValueError("--veil has its epsilon and options already; give it alone, or leave it out.")
        loaded = Veil.load(fitted).for_scores()
        refusal = "--veil has its shape already; leave --shape and its options out."
        found, served = loaded.mechanism, said_beside(loaded.shape, served, refusal)
    elif epsilon is None:
        raise ValueError("Say how much may show through: --epsilon, such as 2, or a fitted --veil.")
    else:
        found = make(epsilon, mechanism, keep=options.kept(keep), reference=typical)
    cleaning = files.Cleaning(rescale, cast(Any, on_bad_row), drop, allow)
    veil = Veil(found, shape=served, secret=secret, model=model or "", threads=os.cpu_count() or 1)
    with progress_bar("Protecting", is_short=True) as progress, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if many:
            done, kept = _protect_dataset(source, target, veil, columns, cleaning, force, engine, workers, progress)
        else:
            try:
                done, kept = files.protect(source, target, veil, columns, force, progress, cleaning=cleaning), 0
            except files.BadRows as error:
                raise ValueError(f"{error}\n{_ways_out(error, served)}") from None
    for message in dict.fromkeys(str(each.message) for each in told):
        typer.echo(f"Warning: {message}", err=True)
    if kept:
        typer.echo(f"{kept} file{'s' * (kept != 1)} of {target} {'was' if kept == 1 else 'were'} complete already.")
    if done is not None:
        _say_protected(done, veil, target, seconds=time.perf_counter() - started)


def _ways_out(error: Any, shape: Shape) -> str:
    """What else to try, where a file has these `BadRows`."""
    faults, ways = {fault for _, fault in error.rows}, []
    if error.rescale_helps:
        ways.append("If rows are rounded or in percent, --rescale divides each by its sum.")
    if faults.intersection(NO_SUM) and NEGATIVE not in faults and shape.is_plain:
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
            raise ValueError("--threshold and --logits are for --shape one_column or many_labels.")
        return TopK(classes)
    if classes is not None:
        raise ValueError("--classes goes with --shape top_k: how many classes there are in all.")
    if name is not None and name not in SHAPES:
        raise ValueError(f"Expected --shape {', '.join(SHAPES)}, got {name!r}.")
    return options.shape(name or (None if threshold is None and not logits else "one_column"), threshold, logits)


def _protect_dataset(
    source: str, target: str, veil: Veil, columns: str | None, cleaning: Any, force: bool, engine: str,
    workers: int | None, progress: Callable[[float], None],
) -> tuple[Any, int]:  # fmt: skip
    """What was done, and how many files were there already."""
    from scoreveil.files import dataset

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
    return dataset.total(done) if done else None, dataset.count(source) - len(todo)


def _say_protected(done: Any, veil: Veil, target: str, seconds: float) -> None:
    classes = (
        "" if done.classes is None else f" × {done.classes} {veil.shape.noun}" if done.classes > 1 else " of one column"
    )
    typer.echo(f"Wrote {target}: {done.rows:,} row{'s' * (done.rows != 1)}{classes} veiled in {seconds:.1f} s.")
    if done.columns:
        typer.echo(f"  veiled     {_names(done.columns)}")
    if done.untouched:
        typer.echo(f"  untouched  {_names(done.untouched)}")
    if done.dropped:
        typer.echo(f"  left out   {_names(done.dropped)}")
    if done.left_behind:
        typer.echo(f"  left out   metadata of the file: {_names(done.left_behind)}")
    _say_bad_rows(done)
    promise = veil.guarantee
    if promise.advantage_alone is not None:
        typer.echo(f"  guarantee  {options.advantage_words(promise)}")
    if math.isinf(promise.epsilon):
        if promise.advantage_alone is None:
            typer.echo(f"  guarantee  none: {_why_nothing(veil)}")
    else:
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


def _say_bad_rows(done: Any) -> None:
    """What became of each row that was no score vector."""
    from scoreveil.files.score_file import SHOWN

    became = ["skipped   " if row in done.left_out else "label only" for row, _ in done.bad]
    for what, (row, fault) in zip(became[:SHOWN], done.bad, strict=False):
        typer.echo(f"  {what}  row {row}: {fault}")
    for what, more in Counter(became[SHOWN:]).items():
        typer.echo(f"  {what}  and {more:,} more row{'s' * (more != 1)}")


def _names(names: Sequence[str], most: int = 8) -> str:
    names = [name or "index" for name in names]  # pandas writes its index without a name
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[: most - 2])}, … {names[-1]} ({len(names)})"
