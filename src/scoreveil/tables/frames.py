"""Tables in memory: DataFrames of pandas and polars, and Arrow tables. The same comes back, with other scores.

Index, order, dtypes and all other columns stay as they were. A column that looks like a raw score and is not veiled
refuses the table, as it does in files (`raw_columns.py`). Metadata, which may hold anything, are left behind.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms.scores import BadRow
from scoreveil.tables.raw_columns import (
    LOOKED_AT,
    Floats,
    columns_within,
    looking_raw,
    looking_raw_anywhere,
    warn_of_order,
    would_stay,
)

Rows = NDArray[Any]
Column = tuple[Any, str, Floats]  # what to call it, the name of its numbers, and they, NaN where there is none
Veiled = Callable[[Rows], Rows]


def veiled(veil: Veiled, frame: Any, columns: Sequence[Any] | str | None = None, is_vector: bool = False) -> Any:
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
    if table is None:
        told = "; collect() it first" if type(frame).__name__ == "LazyFrame" else ""
        raise ValueError(f"Expected a DataFrame, a Series or an Arrow table, got {type(frame).__name__}{told}.")
    if table.is_column:
        if columns is not None:
            raise ValueError(f"Expected no columns for a {type(frame).__name__}, which is one.")
        where = [0]
    else:
        where = table.floating() if columns is None else table.named(columns)
    scores = _scores(table, where)
    raw = _looking_raw(scores, partial(table.others, where))
    if raw:
        stay, them = would_stay(raw)
        raise ValueError(
            f"{', '.join(map(repr, raw))} {stay}. Drop {them}, or veil the columns of the "
            "scores alone: veil(frame[columns])."
        )
    if index := _looking_raw(scores, table.index):
        raise ValueError(
            f"The index {', '.join(map(repr, index))} would stay as it is, and looks like raw scores. Leave it out: "
            "frame.reset_index(drop=True)."
        )
    try:
        answer = veil(scores[:, 0] if table.is_column else scores)
    except BadRow as bad:
        column = f"column {table.names[where[bad.where]]!r}" if isinstance(bad.where, int) else bad.where
        taken = _listed([table.names[i] for i in where])
        if table.is_column and is_vector:
            told = ". A column with a probability of yes for each row needs Veil(…, shape=OneColumn())"
            raise BadRow(bad.row, bad.fault + told) from None
        hint = "" if columns or table.is_column else f". Taken as scores: {taken}; columns=[…] names others"
        raise BadRow(bad.row, bad.fault + hint, column, bad.advice) from None
    if not (table.is_column and is_vector):
        warn_of_order(scores, [table.names[i] for i in where], len(where) < len(table.names))
    return table.replaced(where, answer.reshape(scores.shape))


def _looking_raw(scores: Rows, others: Callable[[slice], list[Column]]) -> list[Any]:
    """What looks like raw scores, in the first rows or anywhere; `others` gives the other numbers of some rows."""
    part = slice(LOOKED_AT)
    beside = others(part)
    found = looking_raw(scores[part], beside)
    for start in range(0, 0 if found else len(scores), LOOKED_AT):
        if start:
            part = slice(start, start + LOOKED_AT)
            beside = others(part)
        found += looking_raw_anywhere(scores[part], beside)
    return list(dict.fromkeys(found))


def _scores(table: "_Table", where: list[int]) -> Rows:
    """The columns at these places, as (n, k)."""
    kinds = {}
    for i in where:
        kinds[table.dtype(i)] = i
        if table.dtype(i) not in ("float16", "float32", "float64"):
            raise ValueError(
                f"Expected floating-point scores, got {table.kind(i)} in column {table.names[i]!r}; convert it."
            )
    if len(kinds) > 1:
        # the order of two scores must not depend on the precision of their columns
        found = ", ".join(f"{kind} in {table.names[i]!r}" for kind, i in kinds.items())
        raise ValueError(f"Expected score columns of one dtype, got {found}; cast them to one.")
    for i in where:
        missing = table.missing(i)
        if missing.any():
            raise BadRow(int(missing.argmax()), "there is no score", f"column {table.names[i]!r}")
    return np.stack([table.values(i) for i in where], axis=1)


class _Table:
    """What the libraries have in common: columns with names, found by their place."""

    names: list[Any]
    is_column = False

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self._read: dict[int, Rows] = {}

    def column(self, i: int) -> Any:
        raise NotImplementedError

    def kind(self, i: int) -> str:
        """What the library calls its type."""
        raise NotImplementedError

    def dtype(self, i: int) -> str:
        """The numpy name of a floating-point or integer type; another name otherwise."""
        return self.kind(i).lower()

    def missing(self, i: int) -> Rows:
        """Where there is no value, as opposed to NaN."""
        raise NotImplementedError

    def values(self, i: int) -> Rows:
        """A column without missing values, or with NaN in their place, as numpy has it."""
        raise NotImplementedError

    def replaced(self, where: list[int], answer: Rows) -> Any:
        """The table with the columns of an array in these places."""
        raise NotImplementedError

    def objects(self, i: int, rows: slice) -> list[Any]:
        """Some values of a column, whatever they are."""
        raise NotImplementedError

    def others(self, where: list[int], rows: slice) -> list[Column]:
        """The numbers in some rows of all columns but these."""
        return [
            (name, *found) for i, name in enumerate(self.names) if i not in where for found in self._numbers(i, rows)
        ]

    def _numbers(self, i: int, rows: slice) -> list[tuple[str, Floats]]:
        """The numbers in a column, be they within lists or texts: their name, and they, NaN where there is none."""
        name = str(self.names[i])
        if self.dtype(i).startswith(("float", "int", "uint")):
            if i not in self._read:
                self._read[i] = self.values(i)  # once, of which rows are taken often
            return [(name, np.asarray(self._read[i][rows], dtype=np.float64))]
        return columns_within(name, self.objects(i, rows))

    def index(self, rows: slice) -> list[Column]:
        """The numbers that some rows are known by, where they are."""
        return []

    def floating(self) -> list[int]:
        found = [i for i in range(len(self.names)) if self.dtype(i).startswith("float")]
        if not found:
            kinds = ", ".join(f"{name!r} ({self.kind(i)})" for i, name in enumerate(self.names[:12]))
            raise ValueError(
                f"Expected columns of floating-point scores, got {kinds or 'none'}. Name and convert them: "
                "veil(frame[columns].astype(float)); of a column of lists, make an array: numpy.stack."
            )
        return found

    def named(self, columns: Sequence[Any] | str) -> list[int]:
        wanted = [columns] if isinstance(columns, str) else list(columns)
        if not wanted or len(set(wanted)) < len(wanted):
            raise ValueError("Expected the names of the score columns, each once.")
        for name in wanted:
            if self.names.count(name) != 1:
                count = self.names.count(name) or "none"
                raise ValueError(f"Expected one column {name!r}, got {count}; there are {_listed(self.names)}.")
        return [self.names.index(name) for name in wanted]


def _listed(names: list[Any], most: int = 12) -> str:
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def _read(frame: Any) -> _Table | None:
    """The table that a library knows; None where it is none."""
    for kind in type(frame).__mro__:
        reader = _READERS.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        if reader is not None:
            return reader(frame)
    return None


class _Pandas(_Table):
    def __init__(self, frame: Any) -> None:
        super().__init__(frame)
        self.names = list(frame.columns)

    def column(self, i: int) -> Any:
        return self.frame.iloc[:, i]

    def kind(self, i: int) -> str:
        return str(self.column(i).dtype)

    def dtype(self, i: int) -> str:
        kind = self.column(i).dtype
        return str(getattr(kind, "numpy_dtype", kind))  # nullable and Arrow-backed ones have theirs

    def missing(self, i: int) -> Rows:
        column = self.column(i)
        is_numpy = isinstance(column.dtype, np.dtype)  # where NaN is all that there is
        return np.zeros(len(column), dtype=bool) if is_numpy else np.asarray(column.isna(), dtype=bool)

    def values(self, i: int) -> Rows:
        column = self.column(i)
        if isinstance(column.dtype, np.dtype):
            return np.asarray(column.to_numpy())
        dtype = self.dtype(i) if self.dtype(i).startswith("float") else "float64"
        return np.asarray(column.to_numpy(dtype=dtype, na_value=np.nan))

    def objects(self, i: int, rows: slice) -> list[Any]:
        return list(self.column(i).iloc[rows])

    def index(self, rows: slice) -> list[Column]:
        index = self.frame.index[rows]
        if type(index).__name__ == "RangeIndex":
            return []
        levels = [(index.names[i], index.get_level_values(i)) for i in range(index.nlevels)]
        return [(name, *found) for name, level in levels for found in columns_within(str(name or ""), list(level))]

    def replaced(self, where: list[int], answer: Rows) -> Any:
        import pandas

        made = self.frame.copy()
        made.attrs = {}
        for i, column in zip(where, answer.T, strict=True):
            kind = self.column(i).dtype
            made.isetitem(i, np.array(column) if isinstance(kind, np.dtype) else pandas.array(column, dtype=kind))
        return made


class _PandasColumn(_Pandas):
    is_column = True

    def __init__(self, frame: Any) -> None:
        super().__init__(frame.to_frame())
        self._name = frame.name

    def replaced(self, where: list[int], answer: Rows) -> Any:
        return super().replaced(where, answer).iloc[:, 0].rename(self._name)


class _Polars(_Table):
    def __init__(self, frame: Any) -> None:
        super().__init__(frame)
        self.names = list(frame.columns)

    def column(self, i: int) -> Any:
        return self.frame.to_series(i)

    def kind(self, i: int) -> str:
        return str(self.column(i).dtype)

    def missing(self, i: int) -> Rows:
        return np.asarray(self.column(i).is_null().to_numpy())

    def values(self, i: int) -> Rows:
        return np.asarray(self.column(i).to_numpy())

    def objects(self, i: int, rows: slice) -> list[Any]:
        return list(self.column(i)[rows].to_list())

    def replaced(self, where: list[int], answer: Rows) -> Any:
        import polars

        made = [polars.Series(self.names[i], column.copy()) for i, column in zip(where, answer.T, strict=True)]
        return self.frame.with_columns(made)


class _PolarsColumn(_Polars):
    is_column = True

    def __init__(self, frame: Any) -> None:
        super().__init__(frame.to_frame())

    def replaced(self, where: list[int], answer: Rows) -> Any:
        return super().replaced(where, answer).to_series(0)


class _Arrow(_Table):
    def __init__(self, frame: Any) -> None:
        super().__init__(frame)
        self.names = list(frame.schema.names)

    def column(self, i: int) -> Any:
        return self.frame.column(i)

    def kind(self, i: int) -> str:
        return str(self.column(i).type)

    def dtype(self, i: int) -> str:
        return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(self.kind(i), self.kind(i))

    def missing(self, i: int) -> Rows:
        return np.asarray(self.column(i).is_null().to_numpy(**self._copied))

    def values(self, i: int) -> Rows:
        return np.asarray(self.column(i).to_numpy(**self._copied))

    def objects(self, i: int, rows: slice) -> list[Any]:
        return list(self.column(i)[rows].to_pylist())

    @property
    def _copied(self) -> dict[str, bool]:
        return {} if hasattr(self.frame, "combine_chunks") else {"zero_copy_only": False}  # of a record batch

    def replaced(self, where: list[int], answer: Rows) -> Any:
        import pyarrow

        made = self.frame
        for i, column in zip(where, answer.T, strict=True):
            made = made.set_column(i, self.frame.schema.field(i), pyarrow.array(np.array(column)))
        return made.cast(without_metadata(made.schema)[0])


_READERS: dict[str, Callable[[Any], _Table]] = {
    "pandas.DataFrame": _Pandas,
    "pandas.Series": _PandasColumn,
    "polars.DataFrame": _Polars,
    "polars.Series": _PolarsColumn,
    "pyarrow.Table": _Arrow,
    "pyarrow.RecordBatch": _Arrow,
}


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
            about[part] = [_of_column(each) for each in about[part]]
    except (ValueError, TypeError, KeyError):
        return None
    left += [f"pandas.{key}" for key, found in about.items() if found and key not in DESCRIBED]
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
