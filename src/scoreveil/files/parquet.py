""".parquet: scores in floating-point columns, one a class, or in one column of lists. Needs pyarrow.

Other columns, the schema and the compression are kept as they are. Metadata may hold anything, scores too, and are
left behind; what pandas needs to give the same index and columns back stays.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Rows
from scoreveil.extras import needs
from scoreveil.files.score_file import Batch, ScoreFile, Write, batch_rows, selected, unreadable
from scoreveil.tables import listed
from scoreveil.tables.frames import without_metadata
from scoreveil.tables.raw_columns import ENTRIES, LOOKED_AT, OtherColumn, columns_within

READ_BUFFER = 1 << 20  # of each column: else whole row groups are read at once, however large
GROUP_BYTES = 1 << 26  # of a row group of the output, about
TRANSPOSED = 4096  # rows that stay in the cache while they change from columns to rows
MAYBE = r"^[^\pL\pN]*\pN"  # a text that might begin with a number
LARGEST_CHUNK, MAX_EXPANDED = 1 << 28, 200  # bytes of a column in a row group, and what they were compressed to
NULL = "expected a score in every column, got null"


class ParquetFile(ScoreFile):
    """A table, some of whose columns hold scores."""

    def __init__(self, path: Path, columns: str | None) -> None:
        self._name = path.name
        pyarrow = _pyarrow()
        with ExitStack() as stack:
            try:
                file = pyarrow.parquet.ParquetFile(path, buffer_size=READ_BUFFER, pre_buffer=False)
                self._file = stack.enter_context(file)
                schema = self._file.schema_arrow
            except (pyarrow.ArrowException, OSError) as error:
                raise unreadable(path.name, error) from None
            self._check_groups()
            self._schema, self.left_behind = without_metadata(schema)
            names = self._schema.names
            self._where = self._guess() if columns is None else selected(names, columns)
            self._check_types()
            self.columns = [names[i] for i in self._where]
            self.untouched = [name for i, name in enumerate(names) if i not in self._where]
            self.classes = self._count_classes()
            self._opened = stack.pop_all()

    def _check_groups(self) -> None:
        """Refuse a file of a few kilobytes that says that it expands to gigabytes: pages are expanded whole."""
        about = self._file.metadata
        for group in map(about.row_group, range(about.num_row_groups)):
            for i, chunk in enumerate(map(group.column, range(about.num_columns))):
                listed_bytes = 8 * chunk.num_values if about.schema.column(i).max_repetition_level else 0
                size, most = (
                    max(chunk.total_uncompressed_size, listed_bytes),
                    MAX_EXPANDED * chunk.total_compressed_size,
                )
                if size > max(LARGEST_CHUNK, most):
                    raise ValueError(
                        f"{self._name} expands to {size >> 20:,} MiB in one row group; write smaller row groups."
                    )

    def _guess(self) -> list[int]:
        """Every floating-point column, or the only one of lists. Both at once could leave raw scores in the other."""
        types, names = self._schema.types, self._schema.names
        scalars = [i for i, kind in enumerate(types) if _pyarrow().types.is_floating(kind)]
        lists = [i for i, kind in enumerate(types) if _holds_scores(kind)]
        if bool(scalars) == bool(lists) or len(lists) > 1:
            candidates = listed(names[i] for i in scalars + lists) if scalars or lists else "none"
            wish = "Expected floating-point columns or one column of lists, or --columns to name them"
            raise ValueError(f"{wish}, got {candidates} in {self._name}.")
        return scalars or lists

    def _check_types(self) -> None:
        is_floating = _pyarrow().types.is_floating
        kinds = [self._schema.field(i).type for i in self._where]
        self._list = kinds[0] if len(kinds) == 1 and _holds_scores(kinds[0]) else None
        if self._list is not None:
            return
        for i, kind in zip(self._where, kinds, strict=True):
            if not is_floating(kind):
                raise ValueError(f"Expected floating-point scores, got {kind} in column {self._schema.names[i]!r}.")
        if len(set(kinds)) > 1:
            # the order of two scores must not depend on the precision of their columns
            raise ValueError(f"Expected score columns of one type, got {', '.join(sorted(map(str, set(kinds))))}.")

    def _count_classes(self) -> int | None:
        """k: the number of columns, or the length of the first list that is one."""
        if self._list is None:
            return len(self._where)
        if _pyarrow().types.is_fixed_size_list(self._list):
            return int(self._list.list_size)
        name = self._schema.names[self._where[0]]
        for batch in self._batches(1024, [name]):
            lengths = batch.column(0).value_lengths().drop_null()
            if len(lengths):
                return int(lengths[0].as_py())
        return None

    def _batches(self, size: int, columns: list[str] | None = None) -> Iterator[Any]:
        pyarrow = _pyarrow()
        try:
            yield from self._file.iter_batches(size, columns=columns)
        except (pyarrow.ArrowException, OSError) as error:
            raise unreadable(self._name, error) from None

    def batches(self) -> Iterator[Batch]:
        done, total = 0, self._file.metadata.num_rows
        size = min(self._group_rows(), batch_rows(8 * (self.classes or 1)))
        for batch in self._batches(size):
            done += len(batch)
            if self._list is not None:
                scores, unread = _from_lists(batch.column(self._where[0]), self.classes or 2)
            else:
                scores, unread = _from_columns([batch.column(i) for i in self._where])
            yield Batch(scores, batch, done / total, unread)

    def _group_rows(self) -> int:
        """The rows of a row group: as in the input, where that many fit."""
        groups = [self._file.metadata.row_group(i) for i in range(self._file.metadata.num_row_groups)]
        rows = max((group.num_rows for group in groups), default=1)
        row_bytes = sum(group.total_byte_size for group in groups) // max(self._file.metadata.num_rows, 1)
        return int(max(1, min(rows, GROUP_BYTES // max(row_bytes, 8 * (self.classes or 1)))))

    def other_numbers(self, batch: Batch, names: Collection[str]) -> list[OtherColumn]:
        return [one for name in names for one in _numbers_within(name, name, batch.rest.column(name))]

    def values(self, batch: Batch, name: str) -> Sequence[object]:
        """Some lists, of a column that holds lists."""
        column = batch.rest.column(name)
        return list(column.slice(0, LOOKED_AT).to_pylist()) if _is_list(column.type) else []

    def taken(self, batch: Batch, rows: NDArray[np.int64]) -> Any:
        return batch.rest.take(_pyarrow().array(rows))

    @contextmanager
    def writer(self, file: IO[bytes], dropped: Sequence[str] = ()) -> Iterator[Write]:
        pyarrow = _pyarrow()
        group: list[Any] = []
        group_rows = self._group_rows()

        def flush() -> None:
            if group:
                table = pyarrow.Table.from_batches(group)
                out.write_table(table.drop_columns(list(dropped)) if dropped else table, row_group_size=GROUP_BYTES)
                group.clear()

        def append(rest: Any, scores: Rows) -> None:
            group.append(self._replaced(rest, scores))
            if sum(map(len, group)) >= group_rows:
                flush()

        try:
            with self._open_writer(file, dropped) as out:
                yield append
                flush()
        except pyarrow.ArrowException as error:  # its message might quote what it could not write
            raise ValueError(f"Expected columns that pyarrow can write, got {type(error).__name__}.") from None

    def _open_writer(self, file: IO[bytes], dropped: Sequence[str]) -> Any:
        """A writer with the schema of the input, and the compression and dictionaries of its columns."""
        about, schema = self._file.metadata, self._schema
        for name in dropped:
            schema = schema.remove(schema.get_field_index(name))
        columns = [about.row_group(0).column(i) for i in range(about.num_columns)] if about.num_row_groups else []
        codecs = {c.path_in_schema: c.compression.replace("UNCOMPRESSED", "NONE") for c in columns}
        dictionaries = [c.path_in_schema for c in columns if any("DICTIONARY" in name for name in c.encodings)]
        return _pyarrow().parquet.ParquetWriter(
            file,
            schema,
            compression=codecs or "snappy",
            use_dictionary=dictionaries or not columns,
            # older writers call the values of a list otherwise, and columns go by their full names here
            use_compliant_nested_type=all(".list.element" in path for path in codecs if ".list." in path),
        )

    def _replaced(self, batch: Any, scores: Rows) -> Any:
        """A batch with other scores."""
        pyarrow, arrays = _pyarrow(), batch.columns
        if self._list is not None:
            arrays[self._where[0]] = _to_lists(scores, self._list)
        else:
            for i, column in zip(self._where, _transposed(scores), strict=True):
                arrays[i] = pyarrow.array(column)
        return pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    def close(self) -> None:
        self._opened.close()


def _pyarrow() -> Any:
    with needs("files"):
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    return pyarrow


def _is_list(kind: Any) -> bool:
    types = _pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _holds_scores(kind: Any) -> bool:
    return _is_list(kind) and bool(_pyarrow().types.is_floating(kind.value_type))


def _values(array: Any) -> Rows:
    """An array as numpy sees it, NaN for null."""
    # without nulls nothing is copied, and pandas is not imported, as it is by to_numpy
    return array.to_numpy(zero_copy_only=False) if array.null_count else np.from_dlpack(array)


def _numbers_within(column: str, name: str, array: Any) -> list[OtherColumn]:
    """What `columns_within` finds in a column, without a Python object for each value where that can be helped."""
    pyarrow = _pyarrow()
    types, compute = pyarrow.types, pyarrow.compute
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if array.null_count == len(array) or types.is_temporal(kind) or types.is_boolean(kind) or _is_binary(kind):
        return []
    if types.is_floating(kind) or types.is_integer(kind):
        return [(column, name, _values(array).astype(np.float64))]
    if types.is_struct(kind):
        parts = zip(kind, array.flatten(), strict=True)
        return [one for field, part in parts for one in _numbers_within(column, f"{name}.{field.name}", part)]
    if types.is_string(kind) or types.is_large_string(kind):
        maybe = compute.match_substring_regex(array, MAYBE)
        if not compute.any(maybe).as_py():
            return []
        array = compute.if_else(maybe, array, pyarrow.scalar(None, kind))
    elif _is_list(kind):
        array = compute.list_slice(array, 0, ENTRIES)
    return columns_within(column, name, array.to_pylist())


def _is_binary(kind: Any) -> bool:
    types = _pyarrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _from_columns(arrays: list[Any]) -> tuple[Rows, dict[int, str]]:
    """k columns as (n, k), and the rows with nulls."""
    columns = [_values(array) for array in arrays]
    n = len(columns[0])
    scores = np.empty((n, len(columns)), dtype=columns[0].dtype)
    for start in range(0, n, TRANSPOSED):
        for i, column in enumerate(columns):
            scores[start : start + TRANSPOSED, i] = column[start : start + TRANSPOSED]
    null = np.zeros(n, dtype=bool)
    for array in arrays:
        if array.null_count:
            null |= array.is_null().to_numpy(zero_copy_only=False)
    return scores, dict.fromkeys(np.flatnonzero(null).tolist(), NULL)


def _transposed(scores: Rows) -> Rows:
    """(n, k) as k contiguous columns."""
    n, k = scores.shape
    columns = np.empty((k, n), dtype=scores.dtype)
    for start in range(0, n, TRANSPOSED):
        columns[:, start : start + TRANSPOSED] = scores[start : start + TRANSPOSED].T
    return columns


def _from_lists(array: Any, k: int) -> tuple[Rows, dict[int, str]]:
    """A column of lists as (n, k), and the rows that are no list of k scores."""
    flat = array.flatten()
    values, lengths = _values(flat), _values(array.value_lengths().fill_null(0))
    if not (array.null_count or flat.null_count) and np.all(lengths == k):
        return values.reshape(len(array), k), {}
    scores = np.full((len(array), k), np.nan, dtype=values.dtype)
    missing = flat.is_null().to_numpy(zero_copy_only=False)
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    unread, start = {}, 0
    for row, length in enumerate(lengths.tolist()):
        if is_null[row] or missing[start : start + length].any():
            unread[row] = NULL
        elif length != k:
            unread[row] = f"expected {k} scores, like the first list, got {length}"
        else:
            scores[row] = values[start : start + length]
        start += length
    return scores, unread


def _to_lists(scores: Rows, kind: Any) -> Any:
    """(n, k) as a column of lists of this type."""
    pyarrow = _pyarrow()
    n, k = scores.shape
    values = pyarrow.array(scores.reshape(-1)).cast(kind.value_type)
    buffers = [None]
    if not pyarrow.types.is_fixed_size_list(kind):
        size = np.int64 if pyarrow.types.is_large_list(kind) else np.int32
        buffers.append(pyarrow.py_buffer(np.arange(n + 1, dtype=size) * size(k)))
    return pyarrow.Array.from_buffers(kind, n, buffers, children=[values])
