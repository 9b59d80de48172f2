"""What every format is: a file that yields batches of scores, and can be written again with other scores."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats as Floats
from scoreveil.arrays import Rows
from scoreveil.mechanisms.scores import NEGATIVE, NO_SUM
from scoreveil.tables import listed
from scoreveil.tables.raw_columns import LOOKED_AT, OtherColumn, columns_within

Faults = list[tuple[int, str]]  # (row number, what was expected and what came)

BATCH_BYTES = 1 << 24  # read at a time
BATCH_ROWS = 1 << 16  # and at most so many rows
SHOWN, COUNTED = 10, 10_000  # faults that are listed, and after how many bad rows reading stops
PLACED = re.compile(r"(?:((?:column|place) [^:]*): )?(.*)", re.DOTALL)  # a fault, and where in its row it is


@dataclass
class Batch:
    """Some rows of a file."""

    scores: Rows  # (n, k), or with the places of each record in between
    rest: Any  # what the format needs to write them back: one for each row, or a table, or nothing
    done: float  # the fraction of the file read so far
    unread: dict[int, str] = field(default_factory=dict)  # rows of the batch that hold no k numbers, and why
    broken: Set[int] = frozenset()  # those of them that cannot be written back without risk, whatever their scores


Write = Callable[[Any, Rows], None]  # what `Batch.rest` holds, and the scores to write with it


class ScoreFile(ABC):
    """An open file of scores."""

    columns: Sequence[str] = ()  # the names of those that hold the scores, where there are names
    untouched: Sequence[str] = ()  # of those that do not
    left_behind: Sequence[str] = ()  # the keys of metadata that are not written again
    classes: int | None  # None: unknown, since there are no rows
    places: Sequence[int] = ()  # the axes of an array between its records and its classes
    is_pairs = False  # scores stand beside their labels, in lists
    is_flat = False  # an array (n,), which is read as one vector

    @abstractmethod
    def batches(self) -> Iterator[Batch]: ...

    @abstractmethod
    def writer(self, file: IO[bytes], dropped: Sequence[str] = ()) -> AbstractContextManager[Write]:
        """A function that appends the rest of a batch, with other scores in its place, to a file like this one.

        Scores that are NaN become cells without a value; the columns that are `dropped` are left out.
        """

    def other_numbers(self, batch: Batch, names: Collection[str]) -> list[OtherColumn]:
        """The numbers in these columns. Batches are asked about in their order, or from the first one again."""
        return [numbers for name in names for numbers in columns_within(name, name, self.values(batch, name))]

    def beside(self, batch: Batch) -> list[str]:
        """Untouched columns that hold a list as long as the scores in every row, and not always the same one."""
        return [name for name in self.untouched if self._varies(self.values(batch, name)[:LOOKED_AT])]

    def _varies(self, values: Sequence[object]) -> bool:
        are_lists = all(isinstance(value, list) and len(value) == self.classes for value in values)
        return are_lists and (len(values) == 1 or any(value != values[0] for value in values))

    def values(self, batch: Batch, name: str) -> Sequence[object]:
        """What an untouched column holds, whatever that is; None where it holds nothing."""
        return []

    def as_column(self) -> None:  # noqa: B027  (tables know what a column is)
        """Take an array (n,), which may be one vector, for a column of n numbers."""

    def taken(self, batch: Batch, rows: NDArray[np.int64]) -> Any:
        """What `writer` needs of some rows of a batch; ValueError where rows are known by their place alone."""
        return [batch.rest[row] for row in rows]

    def close(self) -> None:  # noqa: B027  (most formats have nothing open between batches)
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class BadRows(ValueError):
    """Rows that are not score vectors: their numbers and faults, never their scores.

    Attributes:
        rows: All of them, each with what is wrong.
        rescale_helps: Whether --rescale mends some.
        are_labels: Whether each score may be a yes or no of its own: all are from 0 to 1, and most rows are bad.
    """

    def __init__(
        self,
        name: str,
        bad: Faults,
        complete: bool,
        hint: str,
        rescale_helps: bool = False,
        are_labels: bool = False,
    ) -> None:
        self.rows, self.rescale_helps, self.are_labels = bad, rescale_helps, are_labels
        least = "" if complete else "at least "
        rows = (
            "1 row that is not a score vector"
            if len(bad) == 1
            else f"{least}{len(bad)} rows that are not score vectors"
        )
        super().__init__("\n".join([f"{name} has {rows}.{hint}", *_said_once(bad, least)]))


def _said_once(bad: Faults, least: str) -> list[str]:
    """A line for each fault, with the first row that has it and how many more do, in whatever column."""
    kinds = Counter(fault for _, fault in bad)
    are_logits = kinds[NEGATIVE] > sum(kinds[fault] for fault in NO_SUM)  # of which some rows have none below 0
    one = NEGATIVE if are_logits else "the scores do not sum to 1" if all(kinds[fault] for fault in NO_SUM) else ""
    rows_with = dict[str, list[tuple[int, str]]]()
    for row, fault in bad:
        place, what = PLACED.findall(fault)[0]
        rows_with.setdefault(one if one and what in NO_SUM else what, []).append((row, place))
    lines = []
    for fault, rows in list(rows_with.items())[:SHOWN]:
        first, place = rows[0]
        more = f" and {least}{len(rows) - 1:,} more" if len(rows) > 1 else ""
        where = f" ({place} of row {first})" if place and more else f", {place}" * bool(place)
        lines.append(f"  row {first}{more}: {fault}{where}" if more else f"  row {first}{where}: {fault}")
    if len(rows_with) > SHOWN:
        others = sum(map(len, list(rows_with.values())[SHOWN:]))
        lines.append(f"  and {least}{others:,} more row{'s' * (others > 1)} with other faults")
    return lines


def selected(names: Sequence[str], columns: str) -> list[int]:
    """The columns that are named or match a pattern: in the order given, within a pattern in that of the file."""
    chosen: dict[int, None] = {}
    for pattern in (part.strip() for part in columns.split(",")):
        exact = [i for i, name in enumerate(names) if name == pattern]
        if len(exact) > 1:
            raise ValueError(f"Expected one column named {pattern!r}, got {len(exact)}.")
        matching = exact or [i for i, name in enumerate(names) if fnmatchcase(name, pattern)]
        if not matching:
            raise ValueError(f"Expected a column that matches {pattern!r}, got {listed(names)}.")
        chosen.update(dict.fromkeys(matching))
    return list(chosen)


def unreadable(name: str, error: BaseException | str) -> ValueError:
    """One line on a file that a library cannot read: its words, or better ones."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return ValueError(f"Expected a file that can be read, got {name}: {lines[0][:200].rstrip('.')}.")


def batch_rows(bytes_per_row: float) -> int:
    """How many rows of this size to read at a time."""
    return int(np.clip(BATCH_BYTES // max(bytes_per_row, 1), 1, BATCH_ROWS))
