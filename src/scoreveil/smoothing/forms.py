"""The forms that inputs come in: arrays, pandas DataFrames, and arrays by the names of inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from scoreveil.arrays import Rows

Inputs = Any  # an array, a pandas DataFrame, or arrays by the names of inputs


def _is_frame(given: Inputs) -> bool:
    return hasattr(given, "columns") and hasattr(given, "iloc")


def arrays_of(given: Inputs) -> dict[str, Rows]:
    """Inputs by name, each with a row for each record."""
    if _is_frame(given):
        return {str(name): _column(given[name]) for name in given.columns}
    if isinstance(given, Mapping):
        return {str(name): np.asarray(array) for name, array in given.items()}
    array = np.asarray(given)
    if array.ndim < 2:
        raise ValueError("Smoothing takes dense arrays (n, …), pandas DataFrames, or arrays by name.")
    return {"": array}


def _column(column: Inputs) -> Rows:
    """A column of a frame; categories as plain values, None where they are missing."""
    if column.dtype.kind in "fiub" and isinstance(column.dtype, np.dtype):
        return np.asarray(column)
    if column.dtype.kind in "fiu":
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return np.asarray(column.astype(object).where(column.notna(), None), dtype=object)


def like(given: Inputs, arrays: dict[str, Rows], copies: int) -> Inputs:
    """Copies in the form of what was given."""
    if not _is_frame(given):
        (first, *more) = arrays.values()
        return first if not isinstance(given, Mapping) else arrays if more else dict.fromkeys(given, first)
    frame = given.iloc[np.tile(np.arange(len(given)), copies)].reset_index(drop=True)
    for name in given.columns:
        column = frame[name].astype(object)
        column[:] = arrays[str(name)]
        known = getattr(frame[name].dtype, "categories", None)
        if known is not None:  # a category that these records do not have is not put there
            column = column.where(column.isin(known), frame[name].astype(object))
        frame[name] = column.astype(frame[name].dtype)
    return frame


def taken(given: Inputs, first: int, last: int) -> Inputs:
    if isinstance(given, Mapping):
        return {name: array[first:last] for name, array in given.items()}
    return given.iloc[first:last] if _is_frame(given) else given[first:last]
