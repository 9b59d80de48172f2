"""Tables of records: columns of numbers, and a class for each row."""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.arrays import Floats, Integers

CLASS = "y"  # the column of the classes


def read_csv(path: Path) -> tuple[Floats, Integers, tuple[str, ...]]:
    """Columns, classes and names of the columns: a header, then numbers; the classes stand in the column y."""
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
    return np.delete(values, where, axis=1), classes.astype(np.int64), names


def column_number(text: str, names: Any, width: int) -> int:
    """Which column is meant, by its name or by its number, from 0."""
    known = [str(name) for name in names]
    if text in known:
        return known.index(text)
    if text.isdecimal() and int(text) < width:
        return int(text)
    told = f"among {', '.join(known)}, or its number" if known else "by its number"
    raise ValueError(f"Expected a column {told} from 0 to {width - 1}, got {text!r}.")
