"""The options that several commands share, and what becomes of them. Defaults are the mechanism's own."""

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from scoreveil import secret_file, shapes
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import settable_names
from scoreveil.secret_file import Secret
from scoreveil.shapes import VECTORS, Shape

FITTED = ("binary", "multi_label")  # shapes that files may have for `fit` and `audit`

EpsilonOption = Annotated[
    float, typer.Option("--epsilon", "-e", metavar="E", help="How much shows through. Smaller hides more.")
]
MechanismOption = Annotated[
    str,
    typer.Option(
        "--mechanism",
        metavar="|".join(settable_names()),
        help="isotonic has a guarantee; published is the paper's, and has none.",
    ),
]
KeepOption = Annotated[
    str | None,
    typer.Option("--keep", metavar="J|all", help="How many top classes keep their rank (default: 1, the label)."),
]
ReferenceOption = Annotated[
    Path | None,
    typer.Option(
        "--reference", metavar="FILE", help="With --keep 2 or more: public scores, which reduce the distortion."
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="The columns of scores: names or patterns such as 'p*', separated by commas. In an .npz, the array.",
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        "--shape",
        metavar="|".join(FITTED),
        help="If scores are not vectors that sum to 1: one probability, or one for each label.",
    ),
]
ThresholdOption = Annotated[
    str | None,
    typer.Option(
        "--threshold",
        metavar="T[,T…]",
        help="With --shape: the score from which the answer is yes (default: 0.5). One, or one a label.",
    ),
]
LogitsOption = Annotated[bool, typer.Option("--logits", help="With --shape: scores are logits, ln(p / (1 - p)).")]


def advantage_words(promise: Guarantee) -> str:
    """What a fitted veil states about records drawn at random, in a few words."""
    beyond = "beyond the label" if promise.advantage is not None else "by the confidence alone"
    stated = promise.advantage_alone if promise.advantage is None else promise.advantage
    return f"an advantage of at most {stated:.3f} {beyond}, however often asked"


def shape(name: str | None, threshold: str | None, logits: bool) -> Shape:
    """--shape, --threshold and --logits as `fit` and the audit take them."""
    if name is None:
        if threshold is not None or logits:
            raise ValueError(f"--threshold and --logits go with --shape: {' or '.join(FITTED)}.")
        return VECTORS
    if name not in FITTED:
        raise ValueError(f"Expected --shape {' or '.join(FITTED)}, got {name!r}.")
    try:
        thresholds = None if threshold is None else [float(part) for part in threshold.split(",")]
    except ValueError:
        raise ValueError(f"Expected --threshold to be numbers with commas between, got {threshold!r}.") from None
    many = thresholds if thresholds is None or len(thresholds) > 1 else thresholds[0]
    return shapes.make(name, threshold=many, logits=logits)


def kept(keep: str | None) -> int | str | None:
    """--keep as `Veil` takes it."""
    if keep is None or keep == "all":
        return keep
    try:
        return int(keep)
    except ValueError:
        raise ValueError(f"Expected --keep to be a whole number or 'all', got {keep!r}.") from None


def read_reference(reference: Path | None, source: Path, columns: str | None) -> Any:
    """The scores of a reference, whose columns have the names of the source's where both have names."""
    from scoreveil import files

    if reference is None:
        return None
    if reference.exists() and source.exists() and os.path.samefile(reference, source):
        raise ValueError("The reference is the file to be protected; it must be counted from other records.")
    return files.read_reference(reference, source, columns)


def read_secret(path: Path | None) -> Secret | None:
    """The secret in a file, with a warning where others can read it."""
    if path is None:
        return None
    secret = Secret.from_given(path)
    if secret_file.readable_by(path, 0o077):
        typer.echo(f"Warning: other users may read the secret in {path}; chmod 600 {path} prevents it.", err=True)
    return secret


def check_folder(folder: Path) -> None:
    """A ValueError where a report cannot be written there, before hours of work; nothing is left there."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ValueError(f"Expected a folder for the report, got {folder}: {there.name} is a file.")
    try:
        with tempfile.TemporaryFile(dir=there):  # root may write anywhere, but on some file systems nobody may
            pass
    except OSError:
        raise ValueError(f"Expected a folder that can be written to, got {folder}: check its permissions.") from None
