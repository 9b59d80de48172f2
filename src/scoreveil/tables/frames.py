"""Tables in memory: DataFrames of pandas and polars, and Arrow tables. The same comes back, with other scores.

Index, order, dtypes and all other columns stay as they were. A column that looks like a raw score and is not veiled
refuses the table, as it does in files (`raw_columns.py`). Metadata, which may hold anything, are left behind.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scoreveil.arrays import Rows
from scoreveil.mechanisms.scores import BadRow
from scoreveil.tables import listed
from scoreveil.tables.raw_columns import (
    LOOKED_AT,
    OtherColumn,
    columns_within,
    looking_raw,
    warn_of_order,
    would_stay,
)


def veiled(
    veil: Callable[[Rows], Rows], frame: Any, columns: Sequence[object] | str | None = None, is_vector: bool = False
) -> Any:
    """A table like `frame`, with veiled scores.

    Args:
        veil: What is drawn over (n, k) scores, or over (n,) where `frame` is a single column.
        frame: A DataFrame, a Series, an Arrow table or record batch.
        columns: The names of the columns that hold scores; by default all of floating-point numbers.
        is_vector: Whether a single column is one score vector, not a score for each record.

    Raises:
        ValueError: These are not scores, or another column looks like raw ones.
    """
    table = _read(frame)
    if table.is_column and columns is not None:
        raise ValueError(f"Expected no columns for a {type(frame).__name__}, which is one.")
    where = [0] if table.is_column else table.floating() if columns is None else table.named(columns)
    names = [table.names[i] for i in where]
    scores = _scores(table, where)
    _refuse_raw(table, where, scores)
    try:
        answer = veil(scores[:, 0] if table.is_column else scores)
    except BadRow as bad:
        if table.is_column and is_vector:
            hint = ". A column with a probability of yes for each row needs Veil(…, shape=Binary())"
            raise BadRow(bad.row, bad.fault + hint) from None
        hint = "" if columns or table.is_column else f". Taken as scores: {listed(names)}; columns=[…] names others"
        place = f"column {names[bad.where]!r}" if isinstance(bad.where, int) else bad.where
        raise BadRow(bad.row, bad.fault + hint, place, bad.advice) from None
    if not (table.is_column and is_vector):
        warn_of_order(scores, names, len(where) < len(table.names))
    return table.replaced(where, answer.reshape(scores.shape))


def _refuse_raw(table: "_Table", where: list[int], scores: Rows) -> None:
    """Raise ValueError where another column, or the index, looks like raw scores."""
    raw: dict[object, int] = {}
    index: dict[object, int] = {}
    for start in range(0, len(scores), LOOKED_AT):
        rows = slice(start, start + LOOKED_AT)
        raw |= looking_raw(scores[rows], table.others(where, rows))
        index |= looking_raw(scores[rows], table.index(rows))
    if raw:
        stay, them = would_stay(list(raw))
        raise ValueError(
            f"{', '.join(map(repr, raw))} {stay}. Drop {them}, or veil the columns of the "
            "scores alone: veil(frame[columns])."
        )
    if index:
        raise ValueError(
            f"The index {', '.join(map(repr, index))} would stay as it is, and looks like raw scores. Leave it out: "
            "frame.reset_index(drop=True)."
        )


def _scores(table: "_Table", where: list[int]) -> Rows:
    """The columns at these places, as (n, k)."""
    column_of = {table.dtype(i): i for i in where}
    for i in where:
        if table.dtype(i) not in ("float16", "float32", "float64"):
            raise ValueError(
                f"Expected floating-point scores, got {table.kind(i)} in column {table.names[i]!r}; convert it."
            )
    if len(column_of) > 1:
        # the order of two scores must not depend on the precision of their columns
        kinds = ", ".join(f"{kind} in {table.names[i]!r}" for kind, i in column_of.items())
        raise ValueError(f"Expected score columns of one dtype, got {kinds}; cast them to one.")
    for i in where:
        missing = table.missing(i)
        if missing.any():
            raise BadRow(int(missing.argmax()), "there is no score", f"column {table.names[i]!r}")
    return np.stack([table.values(i) for i in where], axis=1)


class _Table(ABC):
    """What the libraries have in common: columns with names, found by their place."""

    def __init__(self, frame: Any, names: Sequence[object], series: Any = None) -> None:
        self.frame, self.names, self._series = frame, list(names), series
        self._values_of: dict[int, Rows] = {}

    @property
    def is_column(self) -> bool:
        return self._series is not None

    @abstractmethod
    def kind(self, i: int) -> str:
        """What the library calls the type of a column."""

    def dtype(self, i: int) -> str:
        """The numpy name of a floating-point or integer type; another name otherwise."""
        return self.kind(i).lower()

    @abstractmethod
    def missing(self, i: int) -> Rows:
        """Where there is no value, as opposed to NaN."""

    @abstractmethod
    def values(self, i: int) -> Rows:
        """A column without missing values, or with NaN in their place, as numpy has it."""

    @abstractmethod
    def objects(self, i: int, rows: slice) -> list[Any]:
        """Some values of a column, whatever they are."""

    @abstractmethod
    def replaced(self, where: list[int], answer: Rows) -> Any:
        """The table with the columns of an array in these places."""

    def others(self, where: list[int], rows: slice) -> list[OtherColumn]:
        """The numbers in some rows of all columns but these, be they within lists or texts."""
        columns: list[OtherColumn] = []
        for i, name in enumerate(self.names):
            if i in where:
                continue
            if self.dtype(i).startswith(("float", "int", "uint")):
                if i not in self._values_of:
                    self._values_of[i] = self.values(i)  # once, of which rows are taken often
                columns.append((name, str(name), np.asarray(self._values_of[i][rows], dtype=np.float64)))
            else:
                columns += columns_within(name, str(name), self.objects(i, rows))
        return columns

    def index(self, rows: slice) -> list[OtherColumn]:
        """The numbers that some rows are known by, where they are."""
        return []

    def floating(self) -> list[int]:
        where = [i for i in range(len(self.names)) if self.dtype(i).startswith("float")]
        if not where:
            kinds = ", ".join(f"{name!r} ({self.kind(i)})" for i, name in enumerate(self.names[:12]))
            raise ValueError(
                f"Expected columns of floating-point scores, got {kinds or 'none'}. Name and convert them: "
                "veil(frame[columns].astype(float)); of a column of lists, make an array: numpy.stack."
            )
        return where

    def named(self, columns: Sequence[object] | str) -> list[int]:
        wanted = [columns] if isinstance(columns, str) else list(columns)
        if not wanted or len(set(wanted)) < len(wanted):
            raise ValueError("Expected the names of the score columns, each once.")
        for name in wanted:
            if self.names.count(name) != 1:
                count = self.names.count(name) or "none"
                raise ValueError(f"Expected one column {name!r}, got {count}; there are {listed(self.names)}.")
        return [self.names.index(name) for name in wanted]


def _read(frame: Any) -> _Table:
    """The table that a library knows."""
    for kind in type(frame).__mro__:
        match f"{kind.__module__.partition('.')[0]}.{kind.__name__}":
            case "pandas.DataFrame":
                return _Pandas(frame, frame.columns)
            case "pandas.Series":
                return _Pandas(frame.to_frame(), [frame.name], frame)
            case "polars.DataFrame":
                return _Polars(frame, frame.columns)
            case "polars.Series":
                return _Polars(frame.to_frame(), [frame.name], frame)
            case "pyarrow.Table" | "pyarrow.RecordBatch":
                return _Arrow(frame, frame.schema.names)
    hint = "; collect() it first" if type(frame).__name__ == "LazyFrame" else ""
    raise ValueError(f"Expected a DataFrame, a Series or an Arrow table, got {type(frame).__name__}{hint}.")


class _Pandas(_Table):
    def _column(self, i: int) -> Any:
        return self.frame.iloc[:, i]

    def kind(self, i: int) -> str:
        return str(self._column(i).dtype)

    def dtype(self, i: int) -> str:
        kind = self._column(i).dtype
        return str(getattr(kind, "numpy_dtype", kind))  # nullable and Arrow-backed ones have theirs

    def missing(self, i: int) -> Rows:
        column = self._column(i)
        is_numpy = isinstance(column.dtype, np.dtype)  # where NaN is all that there is
        return np.zeros(len(column), dtype=bool) if is_numpy else np.asarray(column.isna(), dtype=bool)

    def values(self, i: int) -> Rows:
        column = self._column(i)
        if isinstance(column.dtype, np.dtype):
            return np.asarray(column.to_numpy())
        dtype = self.dtype(i) if self.dtype(i).startswith("float") else "float64"
        return np.asarray(column.to_numpy(dtype=dtype, na_value=np.nan))

    def objects(self, i: int, rows: slice) -> list[Any]:
        return list(self._column(i).iloc[rows])

    def index(self, rows: slice) -> list[OtherColumn]:
        index = self.frame.index[rows]
        if type(index).__name__ == "RangeIndex":
            return []
        levels = [(name, list(index.get_level_values(i))) for i, name in enumerate(index.names)]
        return [column for name, values in levels for column in columns_within(name, str(name or ""), values)]

    def replaced(self, where: list[int], answer: Rows) -> Any:
        import pandas

        frame = self.frame.copy()
        frame.attrs = {}
        for i, column in zip(where, answer.T, strict=True):
            kind = self._column(i).dtype
            frame.isetitem(i, np.array(column) if isinstance(kind, np.dtype) else pandas.array(column, dtype=kind))
        return frame.iloc[:, 0].rename(self._series.name) if self.is_column else frame


class _Polars(_Table):
    def kind(self, i: int) -> str:
        return str(self.frame.to_series(i).dtype)

    def missing(self, i: int) -> Rows:
        return np.asarray(self.frame.to_series(i).is_null().to_numpy())

    def values(self, i: int) -> Rows:
        return np.asarray(self.frame.to_series(i).to_numpy())

    def objects(self, i: int, rows: slice) -> list[Any]:
        return list(self.frame.to_series(i)[rows].to_list())

    def replaced(self, where: list[int], answer: Rows) -> Any:
        import polars

        columns = [polars.Series(self.names[i], column.copy()) for i, column in zip(where, answer.T, strict=True)]
        frame = self.frame.with_columns(columns)
        return frame.to_series(0) if self.is_column else frame


class _Arrow(_Table):
    def kind(self, i: int) -> str:
        return str(self.frame.column(i).type)

    def dtype(self, i: int) -> str:
        return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(self.kind(i), self.kind(i))

    def missing(self, i: int) -> Rows:
        return np.asarray(self.frame.column(i).is_null().to_numpy(zero_copy_only=False))

    def values(self, i: int) -> Rows:
        return np.asarray(self.frame.column(i).to_numpy(zero_copy_only=False))

    def objects(self, i: int, rows: slice) -> list[Any]:
        return list(self.frame.column(i)[rows].to_pylist())

    def replaced(self, where: list[int], answer: Rows) -> Any:
        import pyarrow

        frame = self.frame
        for i, column in zip(where, answer.T, strict=True):
            frame = frame.set_column(i, self.frame.schema.field(i), pyarrow.array(np.array(column)))
        return frame.cast(without_metadata(frame.schema)[0])


# what pandas needs to give the same index and columns back
DESCRIBED = ("index_columns", "column_indexes", "columns", "creator", "pandas_version")
OF_A_COLUMN = ("name", "field_name", "pandas_type", "numpy_type")
OF_A_TYPE = ("num_categories", "ordered", "timezone", "encoding")
FIELD_ID = b"PARQUET:field_id"  # by which tables such as Iceberg's know a column


def without_metadata(schema: Any) -> tuple[Any, list[str]]:
    """An Arrow schema without metadata, but for how pandas describes index and columns; and the keys left behind.

    Raises:
        ValueError: A column is of a type whose metadata cannot be taken off.
    """
    import pyarrow

    left: list[str] = []
    fields = [_bare(field, field.name, left) for field in schema]
    kept = {}
    for key, value in (schema.metadata or {}).items():
        about = _described(value, left) if key == b"pandas" else None
        if about is None:
            left.append(key.decode(errors="replace"))
        else:
            kept[key] = about
    return pyarrow.schema(fields, metadata=kept or None), list(dict.fromkeys(left))


def _described(value: bytes, left: list[str]) -> bytes | None:
    """What pandas says of index and columns, without what stands beside it; None where that cannot be read."""
    try:
        about = dict(json.loads(value))
        for part in ("column_indexes", "columns"):
            about[part] = [_of_column(column) for column in about[part]]
    except (ValueError, TypeError, KeyError):
        return None
    left += [f"pandas.{key}" for key, value in about.items() if value and key not in DESCRIBED]
    return json.dumps({key: about[key] for key in DESCRIBED if key in about}).encode()


def _of_column(about: dict[str, Any]) -> dict[str, Any]:
    """What pandas must know of a column; nothing else that somebody may have put there."""
    kept = {key: about[key] for key in OF_A_COLUMN}
    kind = about["metadata"]
    return kept | {"metadata": kind and {key: kind[key] for key in OF_A_TYPE if key in kind}}


def _bare(field: Any, name: str, left: list[str]) -> Any:
    """A field without metadata, its own and those of the fields within; `name` is the way to it."""
    import pyarrow

    types, kind = pyarrow.types, field.type
    kept = {key: value for key, value in (field.metadata or {}).items() if key == FIELD_ID and value.isdigit()}
    left += [f"{name}.{key.decode(errors='replace')}" for key in field.metadata or {} if key not in kept]

    def inner(within: Any) -> Any:
        return _bare(within, f"{name}.{within.name}", left)

    if types.is_struct(kind):
        kind = pyarrow.struct([inner(within) for within in kind])
    elif types.is_map(kind):
        kind = pyarrow.map_(inner(kind.key_field), inner(kind.item_field), keys_sorted=kind.keys_sorted)
    elif types.is_fixed_size_list(kind):
        kind = pyarrow.list_(inner(kind.value_field), kind.list_size)
    elif types.is_large_list(kind):
        kind = pyarrow.large_list(inner(kind.value_field))
    elif types.is_list(kind):
        kind = pyarrow.list_(inner(kind.value_field))
    elif any(_is_marked(kind.field(i)) for i in range(kind.num_fields)):
        raise ValueError(f"Column {name!r} is of a type whose metadata cannot be left behind; convert or drop it.")
    return pyarrow.field(field.name, kind, field.nullable, kept or None)


def _is_marked(field: Any) -> bool:
    """Whether it has metadata, or a field within it has."""
    return bool(field.metadata) or any(_is_marked(field.type.field(i)) for i in range(field.type.num_fields))
