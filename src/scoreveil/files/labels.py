"""Labels in files: one for each record, as numbers of classes or as their names.

A file has one column, or several of which one is called `label`; so labels may stand in the file of the scores. A line
with its name may come first, or not: the number of records tells.
"""

import csv
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
        raise ValueError(f"Expected one column, or one called {COLUMN!r}, in {file}, got {listed(names)}.")
    return COLUMN
