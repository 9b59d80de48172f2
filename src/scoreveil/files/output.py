"""An output that appears only when it is complete."""

import os
import secrets
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from scoreveil.files.score_file import Rows, Write

MOST_BEHIND = 4  # batches that wait to be written


def checked_target(source: Path, target: Path, force: bool) -> Path:
    """The target with its links followed; ValueError where writing there would be wrong."""
    if source.suffix.lower() != target.suffix.lower():
        raise ValueError(f"Expected an output ending in {source.suffix}, like the input, got {target.name}.")
    resolved = Path(os.path.realpath(target))
    if resolved.is_dir():
        raise ValueError(f"Expected a file to write to, got a directory: {target}.")
    if not resolved.parent.is_dir():
        raise ValueError(f"Expected an existing directory to write to, got {resolved.parent}.")
    if not force and resolved.exists() and os.path.samefile(source, resolved):
        raise ValueError(f"Expected an output other than the input, got {target}; --force replaces it.")
    refuse_existing(resolved, force)
    return resolved


def refuse_existing(target: Path, force: bool) -> None:
    if not force and os.path.lexists(target):
        raise ValueError(f"Expected a new output file, got one that exists: {target}; --force replaces it.")


@contextmanager
def appearing(target: Path, like: Path, force: bool) -> Iterator[IO[bytes]]:
    """A file that becomes `target` when the block ends well, no more readable than `like`; else it is removed."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, like.stat().st_mode & 0o666)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        refuse_existing(target, force)
        os.replace(temporary, target)
    except BaseException:  # an interrupt too
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Make the new name survive a power cut, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def behind(write: Write) -> Iterator[Write]:
    """The same in a thread of its own, some batches behind, so that the next ones are read and veiled meanwhile."""
    pending: deque[Future[None]] = deque()

    def wait(most: int) -> None:
        while len(pending) > most:
            pending.popleft().result()

    def put(rest: Any, scores: Rows) -> None:
        wait(MOST_BEHIND - 1)
        pending.append(pool.submit(write, rest, scores))

    with ThreadPoolExecutor(1) as pool:
        yield put
        wait(0)
