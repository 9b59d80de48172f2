"""Files as they come: rows that were rounded or are in percent, rows that are no scores, columns that give them away.

Nothing is guessed in silence. A row that is no score vector refuses the file unless `on_bad_row` says otherwise, and
what became of it is reported by its number. A column that looks like a raw score and is not veiled refuses the file
until somebody says what is to become of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scoreveil.files.score_file import COUNTED, BadRows, Batch, Faults, Rows, ScoreFile, listed, selected, suggested
from scoreveil.mechanisms.scores import faults
from scoreveil.raw_columns import looking_raw
from scoreveil.shapes import OneColumn

OnBadRow = Literal["refuse", "skip", "label-only"]

NEAR = 0.1  # how nearly rows must sum to 1, or to 100, to be rescaled


@dataclass(frozen=True)
class Cleaning:
    """What is done about a file that is not as it should be.

    rescale     rows that sum to about 1, or to about 100, are divided by their sum; percent stays percent
    on_bad_row  what becomes of a row that is no score vector: "refuse" the file, "skip" the row, or "label-only": 1
                for its top class where it has one, no scores where it has none. A row of text whose cells are not
                those of the header is left out even then
    drop        columns to leave out, named as those of the scores are
    allow       columns that look like raw scores and may stay as they are
    threshold   of a single column of probabilities: from where on the answer is yes
    """

    rescale: bool = False
    on_bad_row: OnBadRow = "refuse"
    drop: str | None = None
    allow: str | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.on_bad_row not in get_args(OnBadRow):
            raise ValueError(f"Expected --on-bad-row {', '.join(get_args(OnBadRow))}, got {self.on_bad_row!r}.")
        _ = self.one_column  # refuses a threshold that is none

    @property
    def one_column(self) -> OneColumn:
        """How a single column of probabilities is read."""
        return OneColumn() if self.threshold is None else OneColumn(self.threshold)

    def dropped(self, file: ScoreFile) -> list[str]:
        """The columns that are left out."""
        return _named(file, self.drop, "--drop")

    def check(self, file: ScoreFile, name: str) -> None:
        """Raise ValueError where a column looks like a raw score, and nobody said what is to become of it."""
        decided = {*self.dropped(file), *_named(file, self.allow, "--pass")}
        raw = [column for column in _looks_raw(file) if column not in decided]
        if raw:
            names = ",".join(raw)
            raise ValueError(
                f"{listed(raw)} in {name} would stay as they are, and look like raw scores. --drop '{names}' leaves "
                f"them out, --pass '{names}' lets them through."
            )


@dataclass(frozen=True, eq=False)
class Cleaned:
    """Rows of a file as score vectors, and the way back."""

    batch: Batch
    vectors: Rows  # the good ones
    good: NDArray[np.int64]  # their places in the batch
    unit: float  # what a row sums to in the file: 1, or 100
    one_column: OneColumn | None

    def answers(self, veiled: Rows) -> Rows:
        """What to write in place of all scores of the batch, bad rows included."""
        scores = self.batch.scores
        if self.one_column is not None:
            veiled = self.one_column.restored(veiled[:, None, :], scores[self.good] / scores.dtype.type(self.unit))
        if len(self.good) < len(scores):
            kept, veiled = veiled, _labels_alone(scores)
            veiled[self.good] = kept
        return veiled if self.unit == 1 else veiled * veiled.dtype.type(self.unit)


def cleaned(file: ScoreFile, name: str, cleaning: Cleaning, guessed: bool, bad: Faults) -> Iterator[Cleaned]:
    """The batches of a file. Rows that are no score vectors are put into `bad`, with their faults.

    Raises:
        BadRows: There are such rows, and they refuse the file. All are counted first.
    """
    shape = cleaning.one_column if file.classes == 1 else None
    refuses, first_row, unit, hint, complete = cleaning.on_bad_row == "refuse", 0, 1.0, "", True
    for batch in file.batches():
        if not first_row:
            unit = _unit(batch.scores) if cleaning.rescale else 1.0
            hint = _hint(file, batch) if guessed else ""
        vectors = batch.scores if unit == 1 else batch.scores / batch.scores.dtype.type(unit)
        if shape is not None:
            vectors = shape.vectors(vectors)[:, 0, :]
        elif cleaning.rescale:
            vectors = _rescaled(vectors)
        found = dict(faults(vectors, first_row))
        if shape is not None:  # the vectors are ours, and what is said of them would puzzle
            found = {
                row: fault if "NaN" in fault else "expected a probability from 0 to 1" for row, fault in found.items()
            }
        found.update({first_row + row: fault for row, fault in batch.unread.items()})
        bad += sorted(found.items())
        good = np.setdiff1d(np.arange(len(vectors)), np.array([*found], dtype=np.int64) - first_row)
        start, first_row = first_row, first_row + len(vectors)
        if not (bad and refuses):
            left_out = set(found) if cleaning.on_bad_row == "skip" else {start + row for row in batch.broken}
            if left_out:
                stay = np.setdiff1d(np.arange(len(vectors)), np.array([*left_out], dtype=np.int64) - start)
                batch = Batch(batch.scores[stay], file.taken(batch, stay), batch.done)
                vectors, good = vectors[stay], np.searchsorted(stay, good)
            yield Cleaned(batch, vectors[good] if len(good) < len(vectors) else vectors, good, unit, shape)
        elif len(bad) > COUNTED:
            complete = False
            break
    if bad and refuses:
        raise BadRows(name, bad, complete, hint)


def _named(file: ScoreFile, columns: str | None, option: str) -> list[str]:
    """The columns besides the scores that an option names."""
    if columns is None:
        return []
    names = [*file.columns, *file.untouched]
    found = [names[i] for i in selected(names, columns)]
    scores = [name for name in found if name in file.columns]
    if scores:
        raise ValueError(f"Expected {option} to name other columns than the scores, got {listed(scores)}.")
    return found


def _looks_raw(file: ScoreFile) -> list[str]:
    batch = next(iter(file.batches()), None) if file.untouched else None
    return [] if batch is None else looking_raw(batch.scores, file.other_numbers(batch))


def _unit(scores: Rows) -> float:
    """What the rows of a file sum to, about: 1, or 100."""
    finite = np.where(np.isfinite(scores), scores, 0)
    whole = np.median(finite.sum(axis=1)) if scores.shape[1] > 1 else finite.max(initial=0)
    return 100.0 if whole > 2 else 1.0


def _rescaled(rows: Rows) -> Rows:
    """Rows divided by their sum, where that is about 1."""
    sums = rows.sum(axis=1, keepdims=True)
    return np.where(np.abs(sums - 1) <= NEAR, rows / np.where(sums > 0, sums, 1), rows)


def _labels_alone(scores: Rows) -> Rows:
    """1 for the top class of each row, NaN for rows that have none; a single column has no room for a label alone."""
    rows = np.zeros_like(scores)
    readable = np.isfinite(scores).all(axis=1) & (scores.shape[1] > 1)
    rows[readable, scores[readable].argmax(axis=1)] = 1
    rows[~readable] = np.nan
    return rows


def _hint(file: ScoreFile, batch: Batch) -> str:
    """Which columns were taken for scores, and which ones might be meant."""
    better = ""
    if len(file.columns) == batch.scores.shape[1] > 2 and len(batch.scores):
        better = suggested(dict(zip(file.columns, batch.scores[0].tolist(), strict=True)))
        better = "" if f"'{','.join(file.columns)}'" in better else better
    return f" Taken as scores: {listed(file.columns)}; --columns names others.{better}" if file.columns else ""
