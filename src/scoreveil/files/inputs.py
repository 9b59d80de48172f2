"""Inputs of a model, with their classes: what an audit asks it about."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.files.pictures import read_pictures

CLASS = "y"  # the column of the classes


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs, the class of each, and of a table the names of its columns."""

    x: Any
    y: NDArray[np.int64]
    columns: tuple[str, ...] = ()


def read_inputs(path: Path) -> Inputs:
    """x and y of an .npz, which may have names of columns; a .csv table; or pictures in a directory for each class.

    Raises:
        ValueError: There is no such file, or it is none of these.
    """
    if not path.exists():
        raise ValueError(f"Expected a .csv, an .npz, or a folder or .zip of pictures, got no such file: {path}.")
    if path.suffix == ".csv":
        return _table(path)
    if path.suffix == ".npz":
        return _arrays(path)
    return Inputs(*read_pictures(path)[:2])


def _arrays(path: Path) -> Inputs:
    try:
        with np.load(path, allow_pickle=False) as opened:
            arrays = dict(opened)
    except (ValueError, EOFError, OSError):
        raise ValueError(
            f"Expected arrays x and y in an .npz file, got {path.name}, which numpy cannot read."
        ) from None
    if not {"x", "y"} <= set(arrays):
        raise ValueError(f"Expected arrays x and y in {path.name}, got {', '.join(arrays)}.")
    return Inputs(arrays["x"], arrays["y"], tuple(map(str, arrays.get("columns", ()))))


def _table(path: Path) -> Inputs:
    """A header, then numbers; the classes stand in the column y."""
    with path.open(newline="", encoding="utf-8-sig") as opened:
        rows = csv.reader(opened)
        header = [name.strip() for name in next(rows, [])]
        if header.count(CLASS) != 1 or len(header) < 2:
            raise ValueError(f"Expected a header with a column {CLASS} for the classes and others in {path.name}.")
        table = []
        for number, row in enumerate((row for row in rows if row), 2):
            if len(row) != len(header):
                raise ValueError(f"{path.name}, row {number}: expected {len(header)} columns, got {len(row)}.")
            try:
                table.append([float(cell) for cell in row])
            except ValueError:
                raise ValueError(f"{path.name}, row {number}: expected numbers in all columns.") from None
    values = np.array(table, dtype=np.float64).reshape(-1, len(header))
    where = header.index(CLASS)
    classes = values[:, where]
    if not np.array_equal(classes, np.rint(classes)):
        raise ValueError(f"{path.name}: expected whole numbers from 0 as classes in the column {CLASS}.")
    names = tuple(name for name in header if name != CLASS)
    return Inputs(np.delete(values, where, axis=1), classes.astype(np.int64), names)


def column_number(text: str, names: Iterable[str], width: int) -> int:
    """Which column is meant, by its name or by its number, from 0."""
    known = list(names)
    if text in known:
        return known.index(text)
    if text.isdecimal() and int(text) < width:
        return int(text)
    among = f"among {', '.join(known)}, or its number" if known else "by its number"
    raise ValueError(f"Expected a column {among} from 0 to {width - 1}, got {text!r}.")
