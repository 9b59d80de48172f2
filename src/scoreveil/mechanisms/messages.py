"""What keyed draws are a function of: the layout of a message, written here and nowhere else.

The cell alone would be shared by too many records: who knows some of them could learn what its answer means. A tag
tells them apart: a fingerprint of the record, or the name of a release. Where scores are all that is known, the order
of magnitude of every score, in powers of 16 from 1/8 down to 2^-39, takes its place.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Rows

SMALLEST = 2.0**-39  # magnitude told apart by keyed draws
EXPONENT = np.uint64(52 + 2)  # where a float64 has its exponent, without the last two bits: powers of 16
TAG_BYTES = 32  # of a tag's SHA-256


@lru_cache(maxsize=256)
def layout(classes: int, kept: int, cell: str, is_tagged: bool) -> np.dtype[Any]:
    """The kept classes, the cell, and a hashed tag or else the magnitude of every score.

    The last byte says whether there is a tag, so that a tag cannot be taken for scores.
    """
    name, width = ("tag", TAG_BYTES) if is_tagged else ("magnitude", classes)
    return np.dtype([("kept", "<u4", (kept,)), ("cell", cell, (kept,)), (name, "u1", (width,)), ("is_tagged", "u1")])


def empty(rows: int, classes: int, kept: int, cell: str = "u1", tags: Rows | None = None) -> Rows:
    """Messages (rows,) whose kept classes, cells and, without tags, magnitudes are to be filled in."""
    blank = np.empty(rows, dtype=layout(classes, kept, cell, tags is not None))
    blank["is_tagged"] = tags is not None
    if tags is not None:
        blank["tag"] = tags
    return blank


def as_bytes(messages: Rows) -> NDArray[np.uint8]:
    """Messages as `KeyedDraws` takes them: (rows, bytes)."""
    return messages.view(np.uint8).reshape(len(messages), messages.dtype.itemsize)


def messages(rows: Rows, kept: Rows, cell: Rows, tags: Rows | None = None) -> NDArray[np.uint8]:
    """The messages of score vectors (n, k), given their kept classes and cells (n, j)."""
    # levels are below 256; scores that are their own cell stay as they are
    filled = empty(len(rows), rows.shape[1], kept.shape[1], "<f8" if cell.dtype.kind == "f" else "u1", tags)
    filled["kept"], filled["cell"] = kept, cell
    if tags is None:
        filled["magnitude"] = magnitudes(rows)
    return as_bytes(filled)


def magnitudes(rows: Rows) -> NDArray[np.uint8]:
    """The order of magnitude of every score (n, k)."""
    return np.asarray(np.maximum(rows, SMALLEST, dtype=np.float64).view(np.uint64) >> EXPONENT, dtype=np.uint8)
