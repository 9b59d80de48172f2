"""Text files that are compressed, by gzip or zstd: read and written as they come."""

import gzip
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from scoreveil.extras import needs
from scoreveil.files.score_file import unreadable

CODECS = (".gz", ".zst")
MAX_LINE = 1 << 24  # a few megabytes of zeros that are compressed can expand to one of gigabytes


def suffixes(path: Path) -> tuple[str, str]:
    """The suffix of the format and that of the compression, which may be none: (".csv", ".gz")."""
    codec = path.suffix.lower()
    return (Path(path.stem).suffix.lower(), codec) if codec in CODECS else (codec, "")


@dataclass(frozen=True)
class Text:
    """An open file, compressed or not, and how many of its bytes on the disk were read."""

    lines: IO[bytes]
    position: Callable[[], int]
    size: int
    name: str

    def readlines(self, size: int) -> list[bytes]:
        """Lines of about so many bytes together; ValueError where the file is damaged, or a line is very long."""
        try:
            block = self.lines.read(size)
            block += self.lines.readline(MAX_LINE)
        except (OSError, EOFError, zlib.error):  # whose words may quote the file
            raise unreadable(self.name, "it is damaged, or not compressed as its name says") from None
        lines = io.BytesIO(block).readlines()
        if max(map(len, lines), default=0) >= MAX_LINE:
            raise ValueError(f"{self.name} has a line of more than {MAX_LINE >> 20} MiB; a line is one row.")
        return lines

    @property
    def done(self) -> float:
        """The fraction that was read."""
        return min(1.0, self.position() / self.size)


@contextmanager
def opened(path: Path) -> Iterator[Text]:
    """A file for reading, by its suffix."""
    codec = suffixes(path)[1]
    with path.open("rb") as raw:
        size = max(os.fstat(raw.fileno()).st_size, 1)
        if not codec:
            yield Text(raw, raw.tell, size, path.name)
        elif codec == ".gz":
            with gzip.GzipFile(fileobj=raw) as file:
                yield Text(cast(IO[bytes], file), raw.tell, size, path.name)
        else:
            with _pyarrow().CompressedInputStream(raw, "zstd") as stream:
                yield Text(cast(IO[bytes], io.BufferedReader(stream, 1 << 20)), raw.tell, size, path.name)


@contextmanager
def compressed(file: IO[bytes], codec: str) -> Iterator[IO[bytes]]:
    """The same file to write to, by the compression that a suffix names; the same content gives the same bytes."""
    if not codec:
        yield file
    elif codec == ".gz":
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as out:
            yield cast(IO[bytes], out)
    else:
        with _pyarrow().CompressedOutputStream(_Unclosed(file), "zstd") as stream:
            yield stream


class _Unclosed(io.RawIOBase):
    """A file that stays open when pyarrow closes what writes to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)


def _pyarrow() -> Any:
    with needs("files"):
        import pyarrow
    return pyarrow
