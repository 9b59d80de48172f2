"""Labels in files: one for each record, as numbers of classes or as their names.

A file has one column, or several of which one is called `label`; so labels may stand in the file of the scores. A line
with its name may come first, or not: the number of records tells.
"""

import csv
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.extras import needs
from scoreveil.files.score_file import listed, unreadable

COLUMN = "label"
SUFFIXES = (".npy", ".npz", ".csv", ".txt", ".parquet")

Labels = NDArray[Any]


def read_labels(path: Path, count: int) -> Labels:
    """The labels of so many records; ValueError where the file has none, or another number of them."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"Expected labels in a file ending in {', '.join(SUFFIXES)}, got {path.name}.")
    if not path.is_file():
        raise ValueError(f"Expected labels in a file, got no such file: {path}.")
    if suffix in (".npy", ".npz"):
        return _from_numpy(path)
    if suffix == ".parquet":
        return _from_parquet(path)
    return _from_text(path, count)


def read_label_columns(path: Path, count: int, names: list[str]) -> Labels:
    """The labels of records that have so many each: an array, or columns of a table (`label_columns`)."""
    from scoreveil import files

    suffix = path.suffix.lower()
    if not path.is_file():
        raise ValueError(f"Expected labels in a file, got no such file: {path}.")
    if suffix == ".npy":
        return files.read_columns(path)[0]
    if suffix == ".parquet":
        with needs("files"):
            import pyarrow.parquet
        with pyarrow.parquet.ParquetFile(path) as file:
            chosen = label_columns(file.schema_arrow.names, count, names)
            table = file.read(chosen)
        return np.stack([table.column(name).to_numpy() for name in chosen], axis=1)
    if suffix != ".csv":
        raise ValueError(f"Expected labels in a file ending in .npy, .csv or .parquet, got {path.name}.")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    head = [cell.strip() for cell in rows[0]] if rows else []
    places = [head.index(name) for name in label_columns(head, count, names)]
    try:
        return np.array([[float(row[place]) for place in places] for row in rows[1:]])
    except (ValueError, IndexError):
        raise ValueError(f"Expected 0 for no and 1 for yes in {path.name}, in every column of labels.") from None


def label_columns(found: list[str], count: int, names: list[str]) -> list[str]:
    """Which columns of a table hold the labels of scores of these names, in their order.

    Those of the same names, without what all of these begin with: the labels of p_cat and p_dog are cat and dog. Or all
    columns there are, where they are as many.
    """
    for cut in range(shared_start(names), -1, -1):
        short = [name[cut:] for name in names]
        if names and set(short) <= set(found):
            return short
    if len(found) != count:
        raise ValueError(f"Expected a column for each of {count} labels, named as the scores are, got {listed(found)}.")
    return found


def shared_start(names: list[str]) -> int:
    """How many letters all names begin with."""
    return len(list(takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))))


def _from_numpy(path: Path) -> Labels:
    try:
        with path.open("rb") as opened:
            found = np.load(opened, allow_pickle=False)
            if not hasattr(found, "files"):
                return np.asarray(found)
            return np.asarray(found[_chosen(found.files, path.name)])
    except (EOFError, OSError) as error:
        raise unreadable(path.name, error) from None
    except ValueError as error:
        if "pickle" in str(error):  # numpy would read them by running what the file says
            told = "arrays of Python objects are not read; save names as text: labels.astype(str)"
            raise ValueError(f"{path.name}: {told}.") from None
        raise


def _from_parquet(path: Path) -> Labels:
    with needs("files"):
        import pyarrow
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            column = file.read([_chosen(names, path.name)]).column(0)
    except (pyarrow.ArrowException, OSError) as error:
        raise unreadable(path.name, error) from None
    return np.asarray(column.to_numpy() if not column.null_count else np.array(column.to_pylist(), dtype=object))


def _from_text(path: Path, count: int) -> Labels:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not text in UTF-8; convert it first.") from None
    if path.suffix.lower() == ".txt":
        rows = [[line.strip()] for line in text.splitlines() if line.strip()]
    else:
        rows = [row for row in csv.reader(text.splitlines()) if row]
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise ValueError(f"Expected rows of the same number of cells in {path.name}, got {sorted(widths)}.")
    index = 0
    if widths and widths != {1}:
        head = [cell.strip() for cell in rows[0]]
        index = head.index(_chosen(head, path.name))
    if widths != {1} or len(rows) == count + 1:
        rows = rows[1:]
    return np.array([row[index].strip() for row in rows], dtype=str)


def _chosen(names: list[str], file: str) -> str:
    """The only column, or the one that is called `label`."""
    if len(names) == 1:
        return names[0]
    if COLUMN not in names:
        raise ValueError(
            f"Expected one column, or one called {COLUMN!r}, in {file}, got {listed(names)}. Call that of the "
            f"true labels {COLUMN!r}, or put it into a file of its own."
        )
    return COLUMN
