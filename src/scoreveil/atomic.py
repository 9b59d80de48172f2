"""Files that are complete or absent: written beside their place, then renamed.

with atomic.replacing(path) as file:
    file.write(content)
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(target: Path, mode: int = 0o666, check: Callable[[], None] | None = None) -> Iterator[IO[bytes]]:
    """A file that becomes `target` when the block ends without an error, and is removed otherwise.

    Args:
        target: The place of the finished file. Whatever is there is replaced.
        mode: Permission bits of the new file; the process's umask narrows them.
        check: Called just before the rename; what it raises keeps `target` as it was.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(_opened(temporary, flags, mode, target), "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check()
        os.replace(temporary, target)
    except BaseException:  # an interrupt too
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _opened(temporary: Path, flags: int, mode: int, target: Path) -> int:
    try:
        return os.open(temporary, flags, mode)
    except OSError as error:
        error.filename = str(target)  # the name that the user knows
        raise


def write(target: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Replace `target` by these bytes, or this text in UTF-8, in one step."""
    with replacing(target, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _sync_directory(directory: Path) -> None:
    """Make the new name survive a power cut, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
