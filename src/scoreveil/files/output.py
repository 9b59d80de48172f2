"""Where an output may be written, and writing it some batches behind."""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scoreveil.arrays import Rows
from scoreveil.files.compression import suffixes
from scoreveil.files.score_file import Write

MAX_BEHIND = 4  # batches that wait to be written


def checked_target(source: Path, target: Path, force: bool) -> Path:
    """The target with its links followed; ValueError where writing there would be wrong."""
    if suffixes(source) != suffixes(target):
        raise ValueError(
            f"Expected an output ending in {''.join(suffixes(source))}, like the input, got {target.name}."
        )
    resolved = Path(os.path.realpath(target))
    if resolved.is_dir():
        raise ValueError(f"{target} is a directory; name a file to write to.")
    if not resolved.parent.is_dir():
        raise ValueError(f"There is no directory {resolved.parent} to write to.")
    if not force and resolved.exists() and os.path.samefile(source, resolved):
        raise ValueError(f"{target} is the input itself; --force replaces it.")
    refuse_existing(resolved, force)
    return resolved


def refuse_existing(target: Path, force: bool) -> None:
    if not force and os.path.lexists(target):
        raise ValueError(f"{target} exists already; --force replaces it.")


@contextmanager
def behind(write: Write) -> Iterator[Write]:
    """The same in a thread of its own, some batches behind, so that the next ones are read and veiled meanwhile."""
    pending: deque[Future[None]] = deque()

    def wait(most: int) -> None:
        while len(pending) > most:
            pending.popleft().result()

    def put(rest: Any, scores: Rows) -> None:
        wait(MAX_BEHIND - 1)
        pending.append(pool.submit(write, rest, scores))

    with ThreadPoolExecutor(1) as pool:
        yield put
        wait(0)
