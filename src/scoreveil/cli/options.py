"""The options that several commands share, and what becomes of them. Defaults are the mechanism's own."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from scoreveil import secret_file
from scoreveil.mechanisms.mechanism import names
from scoreveil.secret_file import Secret

EpsilonOption = Annotated[
    float, typer.Option("--epsilon", "-e", metavar="E", help="How much shows through; smaller hides more.")
]
MechanismOption = Annotated[
    str,
    typer.Option(
        "--mechanism",
        metavar="|".join(names()),
        help="isotonic (default): with a guarantee. published: the paper's, with none.",
    ),
]
KeepOption = Annotated[
    str | None,
    typer.Option("--keep", metavar="J|all", help="How many top classes keep their place; by default 1, the label."),
]
ReferenceOption = Annotated[
    Path | None,
    typer.Option("--reference", metavar="FILE", help="With --keep 2 or more: public scores, for less distortion."),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAMES",
        help="Score columns: names or patterns such as 'p*', with commas between; of an .npz, the array.",
    ),
]


def kept(keep: str | None) -> Any:
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
