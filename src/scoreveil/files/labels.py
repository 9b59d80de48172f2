"""Labels in files: one for each record, as numbers of classes or as their names.

A file has one column, or several of which one is called `label`; so labels may stand in the file of the scores. A line
with its name may come first, or not: the number of records tells.
"""

import csv
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.extras import needs
from scoreveil.files.score_file import unreadable
from scoreveil.tables import listed

COLUMN = "label"

Labels = NDArray[Any]


def read_labels(path: Path, count: int) -> Labels:
    """The labels of so many records; ValueError where the file has none, or another number of them."""
    match _suffix(path, (".npy", ".npz", ".csv", ".txt", ".parquet")):
        case ".npy" | ".npz":
            return _from_numpy(path)
        case ".parquet":
            (labels,) = _from_parquet(path, lambda names: [_chosen(names, path.name)])
            return labels
    return _from_text(path, count)


def read_label_columns(path: Path, count: int, names: list[str]) -> Labels:
    """The labels of records that have so many each: an array, or columns of a table (`label_columns`)."""
    from scoreveil import files

    suffix = _suffix(path, (".npy", ".csv", ".parquet"))
    if suffix == ".npy":
        return files.read_columns(path)[0]
    if suffix == ".parquet":
        return np.stack(_from_parquet(path, lambda table: label_columns(table, count, names)), axis=1)
    rows = _csv_rows(path)
    head = [cell.strip() for cell in rows[0]] if rows else []
    places = [head.index(name) for name in label_columns(head, count, names)]
    try:
        return np.array([[float(row[place]) for place in places] for row in rows[1:]])
    except (ValueError, IndexError):
        raise ValueError(f"Expected 0 for no and 1 for yes in {path.name}, in every column of labels.") from None


def label_columns(columns: list[str], count: int, names: list[str]) -> list[str]:
    """Which columns of a table hold the labels of scores of these names, in their order.

    Those of the same names, without what all of these begin with: the labels of p_cat and p_dog are cat and dog. Or all
    columns there are, where they are as many.
    """
    for cut in range(shared_start(names), -1, -1):
        short = [name[cut:] for name in names]
        if names and set(short) <= set(columns):
            return short
    if len(columns) != count:
        raise ValueError(
            f"Expected a column for each of {count} labels, named as the scores are, got {listed(columns)}."
        )
    return columns


def shared_start(names: list[str]) -> int:
    """How many letters all names begin with."""
    return len(list(takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))))


def _suffix(path: Path, suffixes: tuple[str, ...]) -> str:
    """The suffix of a file that is there, which must be one of these."""
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise ValueError(f"Expected labels in a file ending in {', '.join(suffixes)}, got {path.name}.")
    if not path.is_file():
        raise ValueError(f"Expected labels in a file, got no such file: {path}.")
    return suffix


def _from_numpy(path: Path) -> Labels:
    try:
        with path.open("rb") as opened:
            loaded = np.load(opened, allow_pickle=False)
            if not hasattr(loaded, "files"):
                return np.asarray(loaded)
            return np.asarray(loaded[_chosen(loaded.files, path.name)])
    except (EOFError, OSError) as error:
        raise unreadable(path.name, error) from None
    except ValueError as error:
        if "pickle" in str(error):  # numpy would read them by running what the file says
            advice = "arrays of Python objects are not read; save names as text: labels.astype(str)"
            raise ValueError(f"{path.name}: {advice}.") from None
        raise


def _from_parquet(path: Path, choose: Callable[[list[str]], list[str]]) -> list[Labels]:
    """The columns that are chosen among the names of all."""
    with needs("files"):
        import pyarrow
        import pyarrow.parquet
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = choose(file.schema_arrow.names)
            table = file.read(names)
    except (pyarrow.ArrowException, OSError) as error:
        raise unreadable(path.name, error) from None
    columns = [table.column(name) for name in names]
    return [
        np.array(column.to_pylist(), dtype=object) if column.null_count else column.to_numpy() for column in columns
    ]


def _csv_rows(path: Path) -> list[list[str]]:
    return [row for row in csv.reader(_text(path).splitlines()) if row]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not text in UTF-8; convert it first.") from None


def _from_text(path: Path, count: int) -> Labels:
    if path.suffix.lower() == ".txt":
        rows = [[line.strip()] for line in _text(path).splitlines() if line.strip()]
    else:
        rows = _csv_rows(path)
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
