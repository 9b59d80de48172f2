"""A record as bytes: the same bytes for the same values, however they were written or held.

What names a record must not depend on who sent it: -0.0 is 0.0, there is one NaN, and the order of keys does not count.
Ledgers and keyed answers are made from these bytes, so they never change.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]


def of_tensors(tensors: Iterable[tuple[str, str, Array]]) -> list[bytes]:
    """Bytes of each row of named tensors, given as (name, datatype, array), in any order."""
    parts: list[list[bytes]] = []
    for name, datatype, array in sorted(tensors, key=lambda tensor: tensor[0]):
        head = f"{name}\0{datatype}\0{array.shape[1:]}\0".encode()
        if array.dtype == object:
            rows = array.reshape(len(array), -1)
            parts.append([with_lengths(head + with_lengths(*row)) for row in rows])
        else:
            parts.append(_of_numbers(head, array))
    return parts[0] if len(parts) == 1 else [b"".join(row) for row in zip(*parts, strict=True)]


def _of_numbers(head: bytes, array: Array) -> list[bytes]:
    if array.dtype.kind == "f":
        array = array + array.dtype.type(0)  # -0.0 is 0.0
        missing = np.isnan(array)
        if missing.any():
            array[missing] = array.dtype.type("nan")
    size = array[:1].nbytes  # of a row
    start = (len(head) + size).to_bytes(8, "little") + head
    if not size:
        return [start] * len(array)
    data = array.tobytes()
    return [start + data[i : i + size] for i in range(0, len(data), size)]


def record_tags(rows: int, inputs: Iterable[ArrayLike]) -> list[bytes]:
    """A tag for each record, SHA-256 of the columns that name it; numbers are the same in every dtype."""
    states = [hashlib.sha256() for _ in range(rows)]
    for column in inputs:
        values = np.atleast_1d(np.asarray(column))
        if values.dtype.kind in "biuf":
            numbers = np.ascontiguousarray(values, dtype="<f8") + 0.0  # -0.0 is 0.0
            parts = [row.tobytes() for row in numbers]
        else:
            parts = [repr(row.tolist() if isinstance(row, np.ndarray) else row).encode() for row in values]
        for state, part in zip(states, parts, strict=True):
            state.update(with_lengths(part))
    return [state.digest() for state in states]


def with_lengths(*parts: bytes) -> bytes:
    """The parts, each with its length before it, so that no two lists of parts run together."""
    return b"".join([len(part).to_bytes(8, "little") + part for part in parts])
