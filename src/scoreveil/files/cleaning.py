"""Files as they come: rows that were rounded or are in percent, rows that are no scores, columns that give them away.

Nothing is guessed in silence. A row that is no score vector refuses the file unless `on_bad_row` says otherwise, and
what became of it is reported by its number. A column that looks like a raw score and is not veiled refuses the file
until somebody says what is to become of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Rows
from scoreveil.files.score_file import COUNTED, BadRows, Batch, Faults, ScoreFile, selected
from scoreveil.mechanisms.ordering import rank
from scoreveil.mechanisms.scores import BadRow
from scoreveil.shapes import VECTORS, Binary, Shape, is_descending, scaled
from scoreveil.tables import listed
from scoreveil.tables.raw_columns import looking_raw, warn_of_order, would_stay

OnBadRow = Literal["refuse", "skip", "label-only"]

CHECKED = 256  # rows of another shape that are looked through at a time, once some are bad
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
    """

    rescale: bool = False
    on_bad_row: OnBadRow = "refuse"
    drop: str | None = None
    allow: str | None = None

    def __post_init__(self) -> None:
        if self.on_bad_row not in get_args(OnBadRow):
            raise ValueError(f"Expected --on-bad-row {', '.join(get_args(OnBadRow))}, got {self.on_bad_row!r}.")

    def dropped(self, file: ScoreFile) -> list[str]:
        """The columns that are left out."""
        return _named(file, self.drop, "--drop")

    def passing(self, file: ScoreFile) -> list[str]:
        """The columns besides the scores of which nobody said what is to become."""
        decided = {*self.dropped(file), *_named(file, self.allow, "--pass")}
        return [column for column in file.untouched if column not in decided]


@dataclass(frozen=True, eq=False)
class Cleaned:
    """Rows of a file as scores, and the way back."""

    batch: Batch
    scores: Rows  # the good ones, as a veil of this shape takes them
    good: NDArray[np.int64]  # their places in the batch
    unit: float  # what a row sums to in the file: 1, or 100
    shape: Shape
    first_row: int  # of the batch, in the file
    left_out: frozenset[int] = frozenset()  # rows of the file that are bad, and not in the batch any more

    def row(self, place: int) -> int:
        """The row of the file that stands at a place of the batch."""
        if not self.left_out:
            return self.first_row + place
        whole = np.arange(self.first_row, self.first_row + len(self.batch.scores) + len(self.left_out))
        return int(np.setdiff1d(whole, [*self.left_out])[place])

    @property
    def vectors(self) -> Rows:
        """The good ones as score vectors (n, k), every place of a record one."""
        vectors = self.shape.vectors(self.scores)
        return vectors.reshape(-1, vectors.shape[2])

    def answers(self, veiled: Rows) -> Rows:
        """What to write in place of all scores of the batch, bad rows included."""
        if len(self.good) < len(self.batch.scores):
            kept, veiled = veiled, _labels_alone(self.batch.scores, self.shape)
            veiled[self.good] = kept
        return veiled if self.unit == 1 else veiled * veiled.dtype.type(self.unit)


def refuse_leaks(file: ScoreFile, name: str, part: Cleaned, passing: list[str]) -> None:
    """Raise ValueError where columns that pass look like raw scores, or where the order of scores tells their ranks."""
    scores = part.batch.scores
    if not part.first_row and len(scores):
        if not file.is_pairs:
            part.shape.check_columns(scores)
        is_ranked = (file.classes or 0) > 2 and is_descending(scores)  # as models list them
        ranked = [column for column in file.beside(part.batch) if column in passing] if is_ranked else []
        if ranked:
            names = ",".join(ranked)
            raise ValueError(
                f"{listed(ranked)} in {name}: these lists stand in the order of the scores, and tell their ranks. "
                f'Write [{{"label": …, "score": …}}, …] for --shape top_k, or leave them out: --drop {names!r}.'
            )
    raw = looking_raw(scores, file.other_numbers(part.batch, passing)) if passing else {}
    if raw:
        names, first_row = ",".join(raw), part.row(min(raw.values()))
        stay, them = would_stay(list(raw))
        raise ValueError(
            f"{listed(raw)} in {name} {stay}{f' from row {first_row} on' if first_row else ''}. "
            f"--drop '{names}' leaves {them} out, --pass '{names}' lets {them} through."
        )
    if not (part.first_row or file.is_pairs):
        warn_of_order(scores, file.columns, bool(passing))


def shape_of(file: ScoreFile, shape: Shape) -> Shape:
    """How the scores of a file are served: as they are said to be, or as can be seen."""
    if shape.is_plain and file.classes == 1:
        return Binary()
    return shape.of(2 + len(file.places))


def cleaned(
    file: ScoreFile, name: str, cleaning: Cleaning, guessed: bool, bad: Faults, shape: Shape = VECTORS
) -> Iterator[Cleaned]:
    """The batches of a file. Rows that are no scores of its shape are put into `bad`, with their faults.

    Raises:
        BadRows: There are such rows, and they refuse the file. All are counted first.
    """
    shape = shape_of(file, shape)
    if shape.has_places and cleaning.on_bad_row != "refuse":
        raise ValueError(f"--on-bad-row {cleaning.on_bad_row} is for rows of one vector; these have many places.")
    first_row, unit, helps, are_labels = 0, 1.0, False, False
    for batch in file.batches():
        if not first_row:
            unit = _unit(batch.scores, shape)
        scores = _rescaled(batch.scores, unit, shape) if cleaning.rescale else batch.scores
        fault_of = dict(_faults(shape, scores, file.columns)) | batch.unread
        if fault_of and not bad and not cleaning.rescale:
            helps, are_labels = _likely_causes(file, batch, list(fault_of), unit, shape)
        bad += [(first_row + row, fault) for row, fault in sorted(fault_of.items())]
        if not bad or cleaning.on_bad_row != "refuse":
            yield _part(file, batch, scores, fault_of, cleaning, unit, shape, first_row)
        elif len(bad) > COUNTED:
            break
        first_row += len(scores)
    if bad and cleaning.on_bad_row == "refuse":
        hint = _flat(file) if file.is_flat and shape.is_plain else ""
        if guessed and file.columns:
            hint = f" Taken as scores: {listed(file.columns)}; --columns names others."
        raise BadRows(name, bad, len(bad) <= COUNTED, hint, helps, are_labels)


def _part(
    file: ScoreFile, batch: Batch, scores: Rows, fault_of: dict[int, str], cleaning: Cleaning, unit: float,
    shape: Shape, first_row: int,
) -> Cleaned:  # fmt: skip
    """The rows of a batch that are scores, and what becomes of the others."""
    good = np.setdiff1d(np.arange(len(scores)), [*fault_of])
    out = fault_of.keys() if cleaning.on_bad_row == "skip" else batch.broken
    if out:
        stay = np.setdiff1d(np.arange(len(scores)), [*out])
        batch = Batch(batch.scores[stay], file.taken(batch, stay), batch.done)
        scores, good = scores[stay], np.searchsorted(stay, good)
    kept = scores[good] if len(good) < len(scores) else scores
    left_out = frozenset(first_row + row for row in out)
    return Cleaned(batch, kept, good, unit if cleaning.rescale else 1.0, shape, first_row, left_out)


def _likely_causes(file: ScoreFile, batch: Batch, bad: list[int], unit: float, shape: Shape) -> tuple[bool, bool]:
    """Whether rows are bad since they were rounded or are in percent, and whether since each score is a yes or no."""
    some = batch.scores[bad[:CHECKED]]
    mended = len(some) - len(_faults(shape, _rescaled(some, unit, shape), file.columns))
    is_within = bool(((batch.scores >= 0) & (batch.scores <= 1)).all())
    most_are_bad = 2 * len(bad) >= len(batch.scores) and 2 * mended < len(some)
    return mended > 0, shape.is_plain and not file.is_flat and is_within and most_are_bad


def _faults(shape: Shape, scores: Rows, columns: Sequence[str]) -> Faults:
    """The rows that are not of a shape, each with what is wrong; a column is called by its name, where it has one."""
    return [(bad.row, _fault(bad, columns)) for bad in shape.faults(scores)]


def _fault(bad: BadRow, columns: Sequence[str]) -> str:
    if not isinstance(bad.where, int):
        return f"{bad.where}: {bad.fault}" if bad.where else bad.fault
    column = columns[bad.where] if bad.where < len(columns) > 1 else bad.where
    return f"column {column!r}: {bad.fault}"


def _named(file: ScoreFile, columns: str | None, option: str) -> list[str]:
    """The columns besides the scores that an option names."""
    if columns is None:
        return []
    names = [*file.columns, *file.untouched]
    chosen = [names[i] for i in selected(names, columns)]
    scores = [name for name in chosen if name in file.columns]
    if scores:
        raise ValueError(f"Expected {option} to name other columns than the scores, got {listed(scores)}.")
    return chosen


@np.errstate(all="ignore")  # rows that hold no scores are told of in words
def _unit(scores: Rows, shape: Shape) -> float:
    """What is written for 1 in a file, about: 1, or 100."""
    if not scores.size:
        return 1.0
    finite = np.where(np.isfinite(scores), scores, 0)
    whole = np.median(finite.sum(axis=-1)) if shape.sums_to_one else finite.max(initial=0)
    return 100.0 if whole > 2 else 1.0


@np.errstate(all="ignore")
def _rescaled(rows: Rows, unit: float, shape: Shape) -> Rows:
    """Rows divided by their sum, where that is about the unit; lists only where they sum to more. Order stays."""
    scores = rows if unit == 1 else rows / rows.dtype.type(unit)
    if shape.is_binary:
        return scores
    sums = scores.sum(axis=-1, keepdims=True)
    near = (np.abs(sums - 1) <= NEAR) & ((sums > 1) | (not shape.is_list))
    rescaled = np.where(near, scores / np.where(sums > 0, sums, 1), scores)
    # two scores that differ in their last digit may have become equal, and the label another one
    changed = near[..., 0] & (rank(rescaled) != rank(rows)).any(axis=-1)
    if changed.any():
        rescaled[changed] = scaled(rows[changed])
    return rescaled


def _labels_alone(scores: Rows, shape: Shape) -> Rows:
    """1 for the top class of each row, NaN for rows that have none; others have no room for a label alone."""
    rows = np.zeros_like(scores)
    readable = np.isfinite(scores).all(axis=1) & (shape.sums_to_one or shape.is_list)
    rows[readable, scores[readable].argmax(axis=1)] = 1
    rows[~readable] = np.nan
    return rows


def _flat(file: ScoreFile) -> str:
    """How an array of one axis was read, and how else it may be meant."""
    return (
        f" It has one dimension, and was read as one vector of {file.classes} classes. If it is one column, the "
        "probability of yes of each record, say --shape binary, in Python shape=Binary(); where there is no "
        f"such option, save it as ({file.classes}, 1)."
    )
