""".csv: the cells that hold scores are written anew, every other byte as it was.

Cells are cut out of the text and not parsed, so leading zeros, dates, quotes and line ends pass through. Reading is
strict (RFC 4180): a lenient reader could take two records for one, and carry raw scores along inside a cell.
"""

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from scoreveil.files.score_file import Batch, Rows, ScoreFile, Write, listed, selected

READ_BYTES = 1 << 22  # a cell takes many times its bytes as a Python object
LONGEST_RECORD = 1 << 20  # beyond it, a quote was never closed
MARK = b"\xef\xbb\xbf"  # that some programs put before UTF-8
QUOTED = re.compile(rb'"(?:[^"]|"")*"')


class CsvFile(ScoreFile):
    """A header line, then one record a row, separated by commas."""

    def __init__(self, path: Path, columns: str | None) -> None:
        self._name, self._size = path.name, max(path.stat().st_size, 1)
        with ExitStack() as stack:
            self._file = stack.enter_context(path.open("rb"))
            self._head = next((record for records in _records(self._file, 1) for record in records), b"")
            names = _column_names(self._head, path.name)
            self._body = self._file.tell()
            self._width = len(names)
            self._where = list(range(len(names))) if columns is None else selected(names, columns)
            self.columns = [names[i] for i in self._where]
            self.untouched = [name for name in names if name not in self.columns]
            if columns is None:
                self._refuse_text()
            self._opened = stack.pop_all()
        self.classes = len(self._where)

    def _refuse_text(self) -> None:
        """All columns are taken for scores unless some are named: say which ones are none."""
        first = next((record for records in _records(self._file, 1) for record in records), b"")
        cells = _cells(first)
        if first and len(cells) == self._width:
            text = [name for name, cell in zip(self.columns, cells, strict=True) if _number(cell) is None]
            if text:
                wish = "Expected a number in every column, or --columns to name those that hold scores"
                raise ValueError(f"{wish}, got text in {listed(text)} of {self._name}.")

    def batches(self) -> Iterator[Batch]:
        self._file.seek(self._body)
        for records in _records(self._file, READ_BYTES):
            rows = [_cells(record) for record in records]
            numbers: list[list[float]] = []
            unread: dict[int, str] = {}
            for row, record in zip(rows, records, strict=True):
                try:
                    numbers.append(self._numbers(row, record))
                except ValueError as fault:
                    unread[len(numbers)] = str(fault)
                    numbers.append([math.nan] * len(self._where))
            yield Batch(np.array(numbers), (rows, records), self._file.tell() / self._size, unread)

    def _numbers(self, row: list[bytes], record: bytes) -> list[float]:
        """The scores of a row; ValueError says why there are none."""
        if b'"' in record and any(b'"' in cell and not QUOTED.fullmatch(cell) for cell in row):
            raise ValueError("a quote stands within a cell; quotes go around a whole cell")
        if len(row) != self._width:
            raise ValueError(f"expected {self._width} cells, got {len(row)}")
        try:
            return [float(row[i]) for i in self._where]
        except ValueError:
            return [self._number(row[i], name) for i, name in zip(self._where, self.columns, strict=True)]

    def _number(self, cell: bytes, name: str) -> float:
        """A number that may be quoted."""
        number = _number(cell)
        if number is None:
            got = "text" if cell.strip(b'" ') else "an empty cell"
            raise ValueError(f"expected a number in column {name!r}, got {got}")
        return number

    @contextmanager
    def writer(self, file: IO[bytes]) -> Iterator[Write]:
        file.write(self._head)

        def append(rest: tuple[list[list[bytes]], list[bytes]], scores: Rows) -> None:
            rows, records = rest
            for row, record, values in zip(rows, records, scores.tolist(), strict=True):
                for i, value in zip(self._where, values, strict=True):
                    row[i] = b"%r" % value
                row[-1] += _line_end(record)
            file.write(b"".join([b",".join(row) for row in rows]))

        yield append

    def close(self) -> None:
        self._opened.close()


def _records(file: IO[bytes], size: int) -> Iterator[list[bytes]]:
    """Lists of records of about this many bytes together, without blank ones. A quoted cell may span lines."""
    open_lines: list[bytes] = []
    open_bytes = 0
    while (lines := file.readlines(size)) and open_bytes <= LONGEST_RECORD:
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


def _line_end(record: bytes) -> bytes:
    return record[len(record.rstrip(b"\r\n")) :]


def _cells(record: bytes) -> list[bytes]:
    """The cells of a record, quotes and all."""
    parts = record.rstrip(b"\r\n").split(b",")
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
            part, open_parts = b",".join(open_parts), []
        cells.append(part)
    return cells + [b",".join(open_parts)] * bool(open_parts)


def _unquoted(cell: bytes) -> bytes:
    return cell[1:-1].replace(b'""', b'"') if QUOTED.fullmatch(cell) else cell


def _number(cell: bytes) -> float | None:
    try:
        return float(_unquoted(cell))
    except ValueError:
        return None


def _column_names(head: bytes, name: str) -> list[str]:
    """The names in the header line; ValueError where it looks like none, since a row taken for one would leak."""
    if not head.strip():
        raise ValueError(f"Expected a header line in {name}, got an empty file.")
    if b"\0" in head:
        raise ValueError(f"{name} is not text in UTF-8; convert it first.")
    cells = [_unquoted(cell) for cell in _cells(head.removeprefix(MARK))]
    names = [cell.decode(errors="replace") for cell in cells]
    if len(names) == 1 and re.search(r"[;\t|]", names[0]):
        raise ValueError(f"The header of {name} has one column; cells are separated by commas, not by ; tab or |.")
    # whole numbers are what pandas calls unnamed columns
    if any(_number(cell) is not None and not cell.strip().isdigit() for cell in cells):
        raise ValueError(f"Expected a header line with column names in {name}, got numbers.")
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise ValueError(f"Expected distinct column names in {name}, got {listed(twice)} more than once.")
    return names
