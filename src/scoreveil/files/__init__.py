"""Scores in files: .npy, .npz, .csv and .parquet, read and written some megabytes at a time.

    from scoreveil import Veil
    from scoreveil.files import protect

    protect("scores.parquet", "safe.parquet", Veil(epsilon=2.0), columns="score_*")

Each format is a `ScoreFile` (`score_file.py`): it yields batches of scores and writes them back with others in their
place, everything else as it was. The output appears only when it is complete (`atomic.py`), so that neither an error
nor a crash leaves half a file, or raw scores.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scoreveil import atomic
from scoreveil.files.arrays import NpyFile, NpzFile
from scoreveil.files.output import behind, checked_target, refuse_existing
from scoreveil.files.parquet import ParquetFile
from scoreveil.files.score_file import BadRows, Rows, ScoreFile, Write, checked, listed
from scoreveil.files.text import CsvFile
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.scores import check_layout
from scoreveil.veil import Veil

__all__ = ["FORMATS", "BadRows", "Protected", "open_scores", "protect", "read", "read_reference", "sample"]

AnyPath = str | os.PathLike[str]
Progress = Callable[[float], None]  # told the fraction that is done

FORMATS: dict[str, Callable[[Path, str | None], ScoreFile]] = {
    ".npy": NpyFile,
    ".npz": NpzFile,
    ".csv": CsvFile,
    ".parquet": ParquetFile,
}
TABLES = {".csv", ".parquet"}  # whose columns have names
LONG_JOB = 1 << 25  # bytes of input from which it pays to wait for the kernels


@dataclass(frozen=True)
class Protected:
    """What `protect` did."""

    rows: int
    classes: int | None
    columns: tuple[str, ...]
    untouched: tuple[str, ...]


def protect(
    source: AnyPath,
    target: AnyPath,
    veil: Veil,
    columns: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
    one_core: bool = False,
) -> Protected:
    """Write `source` to `target` with its scores veiled and all else as it was.

    Args:
        source: A file of scores: .npy, .npz, .csv or .parquet.
        target: Where to write, in the same format.
        veil: The veil to draw over them.
        columns: Names of the score columns, or patterns such as score_*, separated by commas; of an .npz, the array.
        force: Replace `target` if it exists, be it `source` itself.
        progress: Is told the fraction that is done.
        one_core: Read, veil and write in turn, for one of many workers on a machine.

    Raises:
        BadRows: Some rows are not score vectors; nothing is written.
        ValueError: Other bad input; nothing is written.
    """
    source = Path(source)
    rows = 0
    with open_scores(source, columns) as scores:
        target = checked_target(source, Path(target), force)
        if scores.classes is not None:
            veil(np.full((1, scores.classes), 1 / scores.classes))  # refuses what does not fit this many classes
        if source.stat().st_size >= LONG_JOB:
            loading.wait()
        mode, place = source.stat().st_mode & 0o666, target  # no more readable than the input
        with (
            atomic.replacing(place, mode, check=lambda: refuse_existing(place, force)) as file,
            scores.writer(file) as write,
            _put(write, one_core) as put,
        ):
            for batch in checked(scores, source.name, columns is None):
                put(batch.rest, veil(batch.scores))
                rows += len(batch.scores)
                if progress is not None:
                    progress(batch.done)
    return Protected(rows, scores.classes, tuple(scores.columns), tuple(scores.untouched))


def _put(write: Write, one_core: bool) -> AbstractContextManager[Write]:
    return nullcontext(write) if one_core else behind(write)


def open_scores(path: Path, columns: str | None = None) -> ScoreFile:
    """Open a file of scores, by its suffix."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"Expected a file ending in {', '.join(FORMATS)}, got {path.name}.")
    if not path.is_file():
        raise ValueError(
            f"Expected a file of scores, got {'a directory' if path.is_dir() else 'no such file'}: {path}."
        )
    scores = FORMATS[path.suffix.lower()](path, columns)
    try:
        if scores.classes is not None:
            check_layout(np.empty((0, scores.classes)))
    except ValueError:
        scores.close()
        raise
    return scores


def sample(
    path: AnyPath, columns: str | None = None, most: int | None = None, rng: np.random.Generator | None = None
) -> tuple[Rows, int]:
    """At most so many rows of a file, drawn at random; and how many it has. All of them are checked."""
    path, rng, total = Path(path), rng or np.random.default_rng(), 0
    kept: list[Rows] = []
    tickets: list[NDArray[np.float64]] = []
    with open_scores(path, columns) as scores:
        for batch in checked(scores, path.name, columns is None):
            total += len(batch.scores)
            kept.append(batch.scores)
            if most is not None:
                # every row draws a ticket, and the lowest stay
                tickets.append(rng.random(len(batch.scores)))
                lowest = np.sort(np.argsort(np.concatenate(tickets))[:most])
                kept, tickets = [np.concatenate(kept)[lowest]], [np.concatenate(tickets)[lowest]]
    if not total:
        raise ValueError(f"{path.name} has no rows; at least one row of scores is needed.")
    return np.concatenate(kept), total


def read(path: AnyPath, columns: str | None = None) -> tuple[Rows, list[str]]:
    """All rows of a file, checked, and the names of the columns that hold them, where they have some."""
    path = Path(path)
    with open_scores(path, columns) as scores:
        rows = [batch.scores for batch in checked(scores, path.name, columns is None)]
        names = list(scores.columns)
    if not rows:
        raise ValueError(f"{path.name} has no rows; at least one row of scores is needed.")
    return np.concatenate(rows), names


def read_reference(path: AnyPath, source: AnyPath, columns: str | None = None) -> Rows:
    """All scores of a reference for `source`, checked; ValueError where their columns differ in name or order."""
    path, source = Path(path), Path(source)
    if {path.suffix.lower(), source.suffix.lower()} - TABLES and path.suffix.lower() != source.suffix.lower():
        columns = None  # an array's name means nothing in a table, and the other way round
    with open_scores(path, columns) as scores:
        got = list(scores.columns)
    if path.suffix.lower() in TABLES and source.suffix.lower() in TABLES:
        with open_scores(source, columns) as scores:
            expected = list(scores.columns)
        if got != expected:
            raise ValueError(f"Expected columns {listed(expected)} in {path.name}, got {listed(got)}.")
    return sample(path, columns)[0]
