""".csv and .tsv: the cells that hold scores are written anew, every other byte as it was.

Cells are cut out of the text and not parsed, so leading zeros, dates, quotes and line ends pass through. Reading is
strict (RFC 4180): a lenient reader could take two records for one, and carry raw scores along inside a cell. Cells are
separated by what the header uses: commas, semicolons, tabs or bars. A score may be written as a percentage.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from scoreveil.arrays import Rows
from scoreveil.files import compression
from scoreveil.files.compression import Text
from scoreveil.files.score_file import Batch, ScoreFile, Write, selected
from scoreveil.tables import listed

READ_BYTES = 1 << 22  # a cell takes many times its bytes as a Python object
MAX_RECORD = 1 << 20  # beyond it, a quote was never closed
MARK = b"\xef\xbb\xbf"  # that some programs put before UTF-8
QUOTED = re.compile(rb'"(?:[^"]|"")*"')
MAYBE = re.compile(rb"[^A-Za-z0-9\x80-\xff]*[0-9\x80-\xff]")  # a cell that might begin with a number
SEPARATORS = (b",", b";", b"\t", b"|")


class CsvFile(ScoreFile):
    """A header line, then one record a row."""

    def __init__(self, path: Path, columns: str | None) -> None:
        self._path, (kind, self._codec) = path, compression.suffixes(path)
        with compression.opened(path) as text:
            records = (record for records in _records(text, 1) for record in records)
            self._head, first = next(records, b""), next(records, None)
        self._separator = b"\t" if kind == ".tsv" else _separator(self._head, path.name)
        self._names = _column_names(self._head, self._separator, path.name)
        if columns is None and first is not None:
            self._refuse_text(self._cells(first))
        self._where = list(range(len(self._names))) if columns is None else selected(self._names, columns)
        self.columns = [self._names[i] for i in self._where]
        self.untouched = [name for name in self._names if name not in self.columns]
        self.classes = len(self._where)

    def _refuse_text(self, first: list[bytes]) -> None:
        """All columns are taken for scores unless some are named: say which ones are none."""
        text = [name for name, cell in zip(self._names, first, strict=False) if _number(cell) is None]
        if text:
            wish = "Expected a number in every column, or --columns to name those that hold scores"
            raise ValueError(f"{wish}, got text in {listed(text)} of {self._path.name}.")

    def _cells(self, record: bytes) -> list[bytes]:
        return _cells(record, self._separator)

    def batches(self) -> Iterator[Batch]:
        with compression.opened(self._path) as text:
            head = True
            for records in _records(text, READ_BYTES):
                rows = [self._cells(record) for record in records[head:]]
                if rows:
                    yield self._batch(rows, records[head:], text.done)
                head = False

    def _batch(self, rows: list[list[bytes]], records: list[bytes], done: float) -> Batch:
        numbers: list[list[float]] = []
        unread: dict[int, str] = {}
        for row, record in zip(rows, records, strict=True):
            try:
                numbers.append(self._numbers(row, record))
            except ValueError as fault:
                unread[len(numbers)] = str(fault)
                numbers.append([math.nan] * len(self._where))
        # a cell more or less might put a raw score into another column
        broken = {i for i in unread if b'"' in records[i] or len(rows[i]) != len(self._names)}
        return Batch(np.array(numbers), list(zip(rows, records, strict=True)), done, unread, broken)

    def _numbers(self, row: list[bytes], record: bytes) -> list[float]:
        """The scores of a row; ValueError says why there are none."""
        if b'"' in record and any(b'"' in cell and not QUOTED.fullmatch(cell) for cell in row):
            raise ValueError("a quote stands within a cell; quotes go around a whole cell")
        if len(row) != len(self._names):
            raise ValueError(f"expected {len(self._names)} cells, got {len(row)}")
        try:
            return [float(row[i]) for i in self._where]
        except ValueError:
            return [self._number(row[i], name) for i, name in zip(self._where, self.columns, strict=True)]

    def _number(self, cell: bytes, name: str) -> float:
        """A number that may be quoted."""
        number = _number(cell)
        if number is None:
            got = "text" if cell.strip(b'" ') else "an empty cell"
            if re.fullmatch(rb'"?\s*\d*,\d+\s*"?', cell):
                got = "a decimal comma; write a point"
            raise ValueError(f"expected a number in column {name!r}, got {got}")
        return number

    def values(self, batch: Batch, name: str) -> Sequence[object]:
        """The cells that might begin with a number, as text."""
        i = self._names.index(name)
        cells = [row[i] if i < len(row) else b"" for row, _ in batch.rest]
        return [_unquoted(cell).decode(errors="replace") if MAYBE.match(cell) else None for cell in cells]

    @contextmanager
    def writer(self, file: IO[bytes], dropped: Sequence[str] = ()) -> Iterator[Write]:
        left = [i for i, name in enumerate(self._names) if name not in dropped]
        with compression.compressed(file, self._codec) as out:
            out.write(self._record([self._cells(self._head)[i] for i in left], self._head) if dropped else self._head)

            def append(rest: list[tuple[list[bytes], bytes]], scores: Rows) -> None:
                lines = []
                for (row, record), values in zip(rest, scores.tolist(), strict=True):
                    for i, value in zip(self._where, values, strict=True):
                        row[i] = _written(value, row[i])
                    lines.append(self._record([row[i] for i in left] if dropped else row, record))
                out.write(b"".join(lines))

            yield append

    def _record(self, cells: list[bytes], like: bytes) -> bytes:
        return self._separator.join(cells) + like[len(like.rstrip(b"\r\n")) :]


def _written(value: float, before: bytes) -> bytes:
    """A score in the place of another: in percent where that was, nothing where there is none."""
    if math.isnan(value):
        return b""
    return b"%r%%" % (value * 100) if _is_percent(before) else b"%r" % value


def _records(file: Text, size: int) -> Iterator[list[bytes]]:
    """Lists of records of about this many bytes together, without blank ones. A quoted cell may span lines."""
    open_lines: list[bytes] = []
    open_bytes = 0
    while (lines := file.readlines(size)) and open_bytes <= MAX_RECORD:
        records = []
        for line in lines:
            closes = line.count(b'"') % 2 == bool(open_lines)
            open_lines.append(line)
            open_bytes += len(line)
            if closes:
                records.append(b"".join(open_lines))
                open_lines, open_bytes = [], 0
        records = [record for record in records if record.strip()]
        if records:
            yield records
    if open_lines:
        raise ValueError("A quote is opened and never closed.")


def _cells(record: bytes, separator: bytes) -> list[bytes]:
    """The cells of a record, quotes and all."""
    parts = record.rstrip(b"\r\n").split(separator)
    if b'"' not in record:
        return parts
    cells: list[bytes] = []
    open_parts: list[bytes] = []
    for part in parts:
        odd = part.count(b'"') % 2 == 1
        if open_parts or odd:
            open_parts.append(part)
            if not odd or len(open_parts) == 1:
                continue
            part, open_parts = separator.join(open_parts), []
        cells.append(part)
    return cells + [separator.join(open_parts)] * bool(open_parts)


def _unquoted(cell: bytes) -> bytes:
    return cell[1:-1].replace(b'""', b'"') if QUOTED.fullmatch(cell) else cell


def _is_percent(cell: bytes) -> bool:
    return _unquoted(cell).rstrip().endswith(b"%")


def _number(cell: bytes) -> float | None:
    try:
        return float(_unquoted(cell).rstrip().removesuffix(b"%")) / 100 if _is_percent(cell) else float(_unquoted(cell))
    except ValueError:
        return None


def _separator(head: bytes, name: str) -> bytes:
    """What separates the cells of the header, which must be one of the usual ones."""
    unquoted = QUOTED.sub(b"", head)
    used = [separator for separator in SEPARATORS if separator in unquoted]
    if len(used) > 1:
        raise ValueError(
            f"Expected one kind of separator in the header of {name}, got {len(used)} among comma, semicolon, tab "
            "and bar; put names in quotes."
        )
    return used[0] if used else SEPARATORS[0]


def _column_names(head: bytes, separator: bytes, name: str) -> list[str]:
    """The names in the header line; ValueError where it looks like none, since a row taken for one would leak."""
    if not head.strip():
        raise ValueError(f"Expected a header line in {name}, got an empty file.")
    if b"\0" in head:
        raise ValueError(f"{name} is not text in UTF-8; convert it first.")
    cells = [_unquoted(cell) for cell in _cells(head.removeprefix(MARK), separator)]
    names = [cell.decode(errors="replace") for cell in cells]
    # whole numbers are what pandas calls unnamed columns
    if any(_number(cell) is not None and not cell.strip().isdigit() for cell in cells):
        raise ValueError(f"Expected a header line with column names in {name}, got numbers.")
    twice = sorted(column for column, times in Counter(names).items() if times > 1)
    if twice:
        raise ValueError(f"Expected distinct column names in {name}, got {listed(twice)} more than once.")
    return names
