"""Scores in files: .npy, .npz, .csv, .tsv, .jsonl and .parquet, read and written some megabytes at a time.

    from scoreveil import Veil
    from scoreveil.files import protect

    protect("scores.parquet", "safe.parquet", Veil(epsilon=2.0), columns="score_*")

Each format is a `ScoreFile` (`score_file.py`): it yields batches of scores and writes them back with others in their
place, everything else as it was. What is not as it should be is refused, or mended as told (`cleaning.py`). The
output appears only when it is complete (`atomic.py`), so that neither an error nor a crash leaves half a file, or raw
scores.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scoreveil import atomic
from scoreveil.arrays import Rows
from scoreveil.files.arrays import NpyFile, NpzFile
from scoreveil.files.cleaning import Cleaning, OnBadRow, cleaned, refuse_leaks, shape_of
from scoreveil.files.compression import CODECS, suffixes
from scoreveil.files.json_lines import JsonLinesFile
from scoreveil.files.output import behind, checked_target, refuse_existing
from scoreveil.files.parquet import ParquetFile
from scoreveil.files.score_file import BadRows, Faults, ScoreFile, Write, unreadable
from scoreveil.files.text import CsvFile
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.scores import NEGATIVE, NO_SUM
from scoreveil.tables import listed
from scoreveil.veil import Veil

__all__ = [
    "FORMATS",
    "BadRows",
    "Cleaning",
    "OnBadRow",
    "Progress",
    "Protected",
    "open_scores",
    "protect",
    "read",
    "read_columns",
    "read_reference",
    "sample",
]

AnyPath = str | os.PathLike[str]
Progress = Callable[[float], None]  # told the fraction that is done

FORMATS: dict[str, Callable[[Path, str | None], ScoreFile]] = {
    ".npy": NpyFile,
    ".npz": NpzFile,
    ".csv": CsvFile,
    ".tsv": CsvFile,
    ".jsonl": JsonLinesFile,
    ".parquet": ParquetFile,
}
TEXT = {".csv", ".tsv", ".jsonl"}  # which may be compressed
TABLES = {*TEXT, ".parquet"}  # whose columns have names
AS_IT_IS = Cleaning()
LONG_JOB = 1 << 25  # bytes of input from which it pays to wait for the kernels


@dataclass(frozen=True)
class Protected:
    """What `protect` did."""

    rows: int
    classes: int | None
    columns: tuple[str, ...]
    untouched: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    bad: Faults = field(default_factory=list)  # rows that were no score vectors, and why
    releases: int = 1  # that each row of the output holds
    left_behind: tuple[str, ...] = ()  # keys of metadata that the output does not have
    left_out: frozenset[int] = frozenset()  # bad rows that it does not have either


def protect(
    source: AnyPath,
    target: AnyPath,
    veil: Veil,
    columns: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
    one_core: bool = False,
    cleaning: Cleaning = AS_IT_IS,
) -> Protected:
    """Write `source` to `target` with its scores veiled and all else as it was.

    Args:
        source: A file of scores: .npy, .npz, .csv, .tsv, .jsonl or .parquet; text may end in .gz or .zst.
        target: Where to write, in the same format.
        veil: The veil to draw over them. Its shape says how they are served; a single column, and arrays of more than
            two axes, speak for themselves.
        columns: Names of the score columns, or patterns such as score_*, separated by commas; of an .npz, the array.
        force: Replace `target` if it exists, be it `source` itself.
        progress: Is told the fraction that is done.
        one_core: Read, veil and write in turn, for one of many workers on a machine.
        cleaning: What to do about rows that are no score vectors, and about columns that look like scores.

    Raises:
        BadRows: Some rows are not score vectors, and the file is refused for it; nothing is written.
        ValueError: Other bad input; nothing is written.
    """
    source, veil = Path(source), veil.for_scores()
    rows, bad, left_out = 0, list[tuple[int, str]](), set[int]()
    with open_scores(source, columns) as scores:
        target = checked_target(source, Path(target), force)
        veil = _fitting_veil(veil, scores, source.name, columns is None)
        dropped, passing = cleaning.dropped(scores), cleaning.passing(scores)
        with _output(scores, source, target, force, dropped, one_core) as put:
            for part in cleaned(scores, source.name, cleaning, columns is None, bad, veil.shape):
                refuse_leaks(scores, source.name, part, passing)
                put(part.batch.rest, part.answers(veil(part.scores)))
                rows += len(part.batch.scores)
                left_out |= part.left_out
                if progress is not None:
                    progress(part.batch.done)
        return Protected(
            rows=rows,
            classes=scores.classes,
            columns=tuple(scores.columns),
            untouched=tuple(name for name in scores.untouched if name not in dropped),
            dropped=tuple(dropped),
            bad=bad,
            releases=shape_of(scores, veil.shape).releases((1, *scores.places, scores.classes))
            if scores.classes
            else 1,
            left_behind=tuple(scores.left_behind),
            left_out=frozenset(left_out),
        )


def _fitting_veil(veil: Veil, scores: ScoreFile, name: str, guessed: bool) -> Veil:
    """The veil with the shape that the file has; ValueError where it does not take so many columns."""
    shape = shape_of(scores, veil.shape)
    if shape.is_column:
        veil = veil.with_shape(shape)
        scores.as_column()
    if scores.classes is None:
        return veil
    layout = 1, *scores.places, scores.classes
    try:
        veil(veil.shape.of(len(layout)).even(layout))
    except ValueError as error:
        hint = f" Taken as scores in {name}: {listed(scores.columns)}; --columns names others."
        raise ValueError(f"{error}{hint if guessed and scores.columns else ''}") from None
    return veil


def _releases(scores: ScoreFile, veil: Veil) -> int:
    """How many each row holds."""
    layout = 1, *scores.places, scores.classes or 1
    return veil.shape.of(len(layout)).releases(layout) if scores.classes else 1


@contextmanager
def _output(
    scores: ScoreFile, source: Path, target: Path, force: bool, dropped: list[str], one_core: bool
) -> Iterator[Write]:
    """Where the veiled scores go: complete at the end of the block, and no more readable than the input."""
    size, mode = source.stat().st_size, source.stat().st_mode & 0o666
    if size >= LONG_JOB:
        loading.wait()
    with (
        atomic.replacing(target, mode, check=lambda: refuse_existing(target, force)) as file,
        scores.writer(file, dropped) as write,
        nullcontext(write) if one_core else behind(write) as put,
    ):
        yield put


def open_scores(path: Path, columns: str | None = None) -> ScoreFile:
    """Open a file of scores, by its suffix."""
    kind, codec = suffixes(path)
    if kind not in FORMATS or (codec and kind not in TEXT):
        raise ValueError(
            f"Expected a file ending in {', '.join(FORMATS)}, or text that is compressed ({', '.join(CODECS)}), "
            f"got {path.name}."
        )
    if not path.is_file():
        raise ValueError(
            f"Expected a file of scores, got {'a directory' if path.is_dir() else 'no such file'}: {path}."
        )
    return FORMATS[kind](path, columns)


def sample(
    path: AnyPath, columns: str | None = None, most: int | None = None, rng: np.random.Generator | None = None
) -> tuple[Rows, int]:
    """At most so many rows of a file, drawn at random; and how many it has. All of them are checked."""
    path, rng, total = Path(path), rng or np.random.default_rng(), 0
    kept: list[Rows] = []
    tickets: list[NDArray[np.float64]] = []
    with open_scores(path, columns) as scores:
        for part in cleaned(scores, path.name, AS_IT_IS, columns is None, []):
            total += len(part.vectors)
            kept.append(part.vectors)
            if most is not None:
                # every row draws a ticket, and the lowest stay
                tickets.append(rng.random(len(part.vectors)))
                lowest = np.sort(np.argsort(np.concatenate(tickets))[:most])
                kept, tickets = [np.concatenate(kept)[lowest]], [np.concatenate(tickets)[lowest]]
    return _together(kept, path), total


def read(path: AnyPath, columns: str | None = None) -> tuple[Rows, list[str]]:
    """All rows of a file, checked, and the names of the columns that hold them, where they have some.

    Raises:
        ValueError: The file cannot be read, or some rows are not score vectors; the message says what else they may be.
    """
    path = Path(path)
    with open_scores(path, columns) as scores:
        try:
            rows = [part.vectors for part in cleaned(scores, path.name, AS_IT_IS, columns is None, [])]
        except BadRows as error:
            raise ValueError("\n".join([str(error), *_ways_out(error, scores)])) from None
        names = list(scores.columns) if scores.classes != 1 else []  # one column names no class
    return _together(rows, path), names


def _together(parts: list[Rows], path: Path) -> Rows:
    if not sum(map(len, parts)):
        raise ValueError(f"{path.name} has no rows; at least one row of scores is needed.")
    return np.concatenate(parts)


def _ways_out(error: BadRows, scores: ScoreFile) -> Iterator[str]:
    """What to do about a file that is to be fitted or attacked, where the faults do not say it."""
    faults = {fault for _, fault in error.rows}
    if error.are_labels:
        yield "If each column is a yes or no of its own, add --shape multi_label, in Python shape=MultiLabel()."
    elif error.rescale_helps and scores.classes == 1:
        yield "If these are percentages, divide them by 100."
    elif error.rescale_helps and not scores.is_flat and faults.intersection(NO_SUM):
        yield "If rows are rounded, divide each by its sum."
    elif not faults & {NEGATIVE, *NO_SUM} and not error.rescale_helps:
        yield "Remove these rows, and their labels if there are some."


def read_columns(path: AnyPath, columns: str | None = None) -> tuple[Rows, list[str]]:
    """All rows of a file as they are, whatever their shape, and the names of their columns, where they have some.

    Raises:
        ValueError: The file cannot be read, or has rows that hold no numbers; the message names the first.
    """
    path, parts, first_row = Path(path), list[Rows](), 0
    if path.suffix == ".npy" and columns is None:  # an array of any number of axes
        try:
            return np.asarray(np.load(path, allow_pickle=False)), []
        except (OSError, EOFError, ValueError) as error:
            raise unreadable(path.name, error) from None
    with open_scores(path, columns) as scores:
        for batch in scores.batches():
            for row, fault in sorted(batch.unread.items()):
                raise ValueError(f"{path.name}, row {first_row + row}: {fault}")
            parts.append(batch.scores)
            first_row += len(batch.scores)
        names = list(scores.columns) if suffixes(path)[0] in TABLES else []
    rows = _together(parts, path)
    return rows[0] if scores.is_flat else rows, names


def read_reference(path: AnyPath, source: AnyPath, columns: str | None = None) -> Rows:
    """All scores of a reference for `source`, checked; ValueError where their columns differ in name or order."""
    path, source = Path(path), Path(source)
    kind, other = suffixes(path)[0], suffixes(source)[0]
    if {kind, other} - TABLES and kind != other:
        columns = None  # an array's name means nothing in a table, and the other way round
    with open_scores(path, columns) as scores:
        got = list(scores.columns)
    if kind in TABLES and other in TABLES:
        with open_scores(source, columns) as scores:
            expected = list(scores.columns)
        if got != expected:
            raise ValueError(f"Expected columns {listed(expected)} in {path.name}, got {listed(got)}.")
    return sample(path, columns)[0]
