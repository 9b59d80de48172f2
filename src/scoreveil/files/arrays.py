""".npy and .npz: an array of scores, alone or among others."""

import math
import shutil
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Rows
from scoreveil.files.score_file import BATCH_BYTES, Batch, ScoreFile, Write, batch_rows, selected, unreadable
from scoreveil.mechanisms.scores import check_layout
from scoreveil.tables import listed
from scoreveil.tables.raw_columns import ENTRIES, OtherColumn, entry_name

# what zipfile and numpy raise for a file that is damaged, or none of theirs
DAMAGED = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, ValueError)
SHORT = "Expected a whole array in {name}, got a file that ends before it does."
LARGEST_RECORD = 1 << 28  # bytes, which are in memory at once; a header can claim any number


@dataclass(frozen=True)
class Header:
    """How an array lies in an .npy stream."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def native(self) -> np.dtype[Any]:
        return self.dtype.newbyteorder("=")

    def check(self) -> None:
        """Raise ValueError unless these are scores (k,), (n, k) or (n, …, k), or one column of them (n, 1)."""
        shape = (1, 2) if len(self.shape) == 2 and self.shape[1] == 1 else [min(length, 2) for length in self.shape]
        check_layout(np.empty(shape[:1] + shape[-1:] if len(shape) > 2 else shape, dtype=self.native))
        if math.prod(self.shape[1:] or self.shape) * self.dtype.itemsize > LARGEST_RECORD:
            raise ValueError(f"A record of the array has more than {LARGEST_RECORD >> 20} MiB; that is too large.")

    def check_size(self, available: int, name: str) -> None:
        """Raise ValueError where there are fewer bytes than the array has, before there is room made for it."""
        if math.prod(self.shape) * self.dtype.itemsize > available:
            raise ValueError(SHORT.format(name=name))


@contextmanager
def _damage_told(name: str) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise unreadable(name, error) from None


def read_header(stream: IO[bytes], name: str) -> Header:
    with _damage_told(name):
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        return Header(*read(stream))


def read_blocks(stream: IO[bytes], header: Header, name: str, is_column: bool = False) -> Iterator[Batch]:
    """The rows after the header, each batch with the number of its first row; (n,) is a column, or one row."""
    n, *record = header.shape if len(header.shape) > 1 else (*header.shape, 1) if is_column else (1, *header.shape)
    bytes_per_row = math.prod(record) * header.dtype.itemsize
    # in Fortran order columns lie together, so that there are no rows before the end
    size = max(n, 1) if header.fortran else batch_rows(bytes_per_row)
    for start in range(0, n, size):
        rows = min(size, n - start)
        data = _read(stream, rows * bytes_per_row, name)
        block = np.frombuffer(data, header.dtype).reshape((rows, *record), order="F" if header.fortran else "C")
        yield Batch(np.ascontiguousarray(block, dtype=header.native), start, (start + rows) / n)
    if stream.read(1):
        raise ValueError(f"There is data after the array in {name}; a .npy file holds one array.")


def _read(stream: IO[bytes], count: int, name: str) -> bytes:
    with _damage_told(name):
        data = stream.read(count)
    if len(data) < count:
        raise ValueError(SHORT.format(name=name))
    return data


def start_array(stream: IO[bytes], header: Header) -> Write:
    """Write the header of an array like this one, by rows; what is returned appends the rows."""
    about = {"descr": npy.dtype_to_descr(header.dtype), "fortran_order": False, "shape": header.shape}
    npy.write_array_header_1_0(stream, about)

    def append(rest: int, scores: Rows) -> None:
        stream.write(np.ascontiguousarray(scores, dtype=header.dtype).data)

    return append


class ArrayFile(ScoreFile):
    """What both are: rows that are known by their place alone."""

    _name: str
    _header: Header
    _is_column = False

    def _open(self, header: Header, size: int, stack: ExitStack) -> None:
        """Take an array of so many bytes for the scores; the stack holds what is open."""
        header.check()
        header.check_size(size, self._name)
        self._header, self._opened = header, stack.pop_all()
        self.classes, self.places = header.shape[-1], header.shape[1:-1]
        self.is_flat = len(header.shape) == 1

    def close(self) -> None:
        self._opened.close()

    def as_column(self) -> None:
        if len(self._header.shape) == 1:
            self._is_column, self.classes, self.is_flat = True, 1, False

    def taken(self, batch: Batch, rows: NDArray[np.int64]) -> Any:
        raise ValueError("Rows of an array are known by their place; --on-bad-row label-only leaves them there.")


class NpyFile(ArrayFile):
    """One array."""

    def __init__(self, path: Path, columns: str | None) -> None:
        if columns is not None:
            raise ValueError(f"Expected no --columns for {path.name}: the columns of an array have no names.")
        self._name = path.name
        with ExitStack() as stack:
            self._file = stack.enter_context(path.open("rb"))
            header = read_header(self._file, path.name)
            self._body = self._file.tell()
            self._open(header, path.stat().st_size - self._body, stack)

    def batches(self) -> Iterator[Batch]:
        self._file.seek(self._body)
        return read_blocks(self._file, self._header, self._name, self._is_column)

    @contextmanager
    def writer(self, file: IO[bytes], dropped: Sequence[str] = ()) -> Iterator[Write]:
        yield start_array(file, self._header)


class NpzFile(ArrayFile):
    """One array among others, which are copied as they are."""

    def __init__(self, path: Path, columns: str | None) -> None:
        self._name = path.name
        with ExitStack() as stack:
            with _damage_told(path.name):
                self._zip = stack.enter_context(zipfile.ZipFile(path))
            members = self._zip.infolist()
            names = [member.filename.removesuffix(".npy") for member in members]
            headers = [self._member_header(member) for member in members]
            index = _chosen_array(names, headers, columns)
            self._open(headers[index], members[index].file_size, stack)
        self._member = members[index]
        self._others = {name: header for i, (name, header) in enumerate(zip(names, headers, strict=True)) if i != index}
        self._before, self._after = members[:index], members[index + 1 :]
        self._beside: dict[str, IO[bytes]] = {}  # other arrays, read as far as the scores are
        self.columns = [names[index]]
        self.untouched = names[:index] + names[index + 1 :]

    def _open_member(self, member: zipfile.ZipInfo) -> IO[bytes]:
        with _damage_told(self._name):
            return self._zip.open(member)

    def _member_header(self, member: zipfile.ZipInfo) -> Header:
        with self._open_member(member) as stream:
            return read_header(stream, f"{member.filename} in {self._name}")

    def batches(self) -> Iterator[Batch]:
        with self._open_member(self._member) as stream:
            yield from read_blocks(stream, read_header(stream, self._name), self._name, self._is_column)

    def other_numbers(self, batch: Batch, names: Collection[str]) -> list[OtherColumn]:
        """Arrays of numbers with a row for each of these; of wider ones the first columns stand for all."""
        numbers: list[OtherColumn] = []
        for member in (*self._before, *self._after):
            name = member.filename.removesuffix(".npy")
            header = self._others[name]
            is_beside = header.shape[:1] == self._header.shape[:1] and 0 not in header.shape
            if name in names and header.dtype.kind in "fiu" and is_beside:
                if batch.rest == 0:
                    self._restart(name, member)
                columns = self._first_columns(name, header, len(batch.scores))
                numbers += [(name, entry_name(name, i), column) for i, column in enumerate(columns)]
        return numbers

    def _restart(self, name: str, member: zipfile.ZipInfo) -> None:
        if name in self._beside:
            self._beside.pop(name).close()
        self._beside[name] = self._open_member(member)
        read_header(self._beside[name], self._name)

    def _first_columns(self, name: str, header: Header, count: int) -> Floats:
        """The first columns of the next rows of another array, each as a row; only one of an array in Fortran order."""
        width = 1 if header.fortran else math.prod(header.shape[1:])
        bytes_per_row, parts = width * header.dtype.itemsize, []
        step = batch_rows(bytes_per_row)
        for start in range(0, count, step):
            data = _read(self._beside[name], min(step, count - start) * bytes_per_row, self._name)
            parts.append(np.frombuffer(data, header.dtype).reshape(-1, width)[:, :ENTRIES].astype(np.float64))
        return np.concatenate(parts).T

    @contextmanager
    def writer(self, file: IO[bytes], dropped: Sequence[str] = ()) -> Iterator[Write]:
        with zipfile.ZipFile(file, "w") as out:
            self._copy(self._before, out, dropped)
            with _new_member(out, self._member) as stream:
                yield start_array(stream, self._header)
            self._copy(self._after, out, dropped)

    def _copy(self, members: list[zipfile.ZipInfo], out: zipfile.ZipFile, dropped: Sequence[str]) -> None:
        for member in members:
            if member.filename.removesuffix(".npy") in dropped:
                continue
            with self._open_member(member) as stream, _new_member(out, member) as copy, _damage_told(self._name):
                shutil.copyfileobj(stream, copy, BATCH_BYTES)

    def close(self) -> None:
        for stream in self._beside.values():
            stream.close()
        super().close()


def _chosen_array(names: list[str], headers: list[Header], columns: str | None) -> int:
    if columns is None:
        chosen = [i for i, header in enumerate(headers) if len(header.shape) == 2 and header.dtype.kind == "f"]
        wish = "one 2-D floating-point array (--columns names it)"
    else:
        chosen, wish = selected(names, columns), f"one array for --columns {columns}"
    if len(chosen) != 1:
        raise ValueError(f"Expected {wish}, got {len(chosen)} among {listed(names)}.")
    return chosen[0]


def _new_member(out: zipfile.ZipFile, like: zipfile.ZipInfo) -> IO[bytes]:
    info = zipfile.ZipInfo(like.filename, like.date_time)
    info.compress_type, info.external_attr = like.compress_type, like.external_attr
    return out.open(info, "w", force_zip64=True)
