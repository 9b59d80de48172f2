"""A table as people read it: on a page by templates/parts.html.j2, in a terminal by cli/tables.py.

table("Attacks", results, [("attack", "", lambda r: word(r.attack)), ("AUC", "", lambda r: figure(r.auc))])
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from scoreveil.audit.report.wording import NOTHING, number, percent

MIN_ALIKE = 3  # rows that make a column of one value worth leaving out

Row = TypeVar("Row")


@dataclass(frozen=True)
class TableCell:
    """What is written, and what it sorts by."""

    text: str
    value: float | str | None = None
    small: str = ""  # an interval or a name, in smaller type below

    @property
    def is_number(self) -> bool:
        return not isinstance(self.value, str)

    @property
    def sorts_by(self) -> str:
        """Empty where it is missing."""
        return "" if self.value is None else f"{self.value:.6g}" if isinstance(self.value, float) else str(self.value)


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[tuple[str, str], ...]  # heading, and what it means
    rows: tuple[tuple[TableCell, ...], ...]
    marked: int | None = None  # the row of the recommended setting
    groups: tuple[tuple[str, int], ...] = ()  # headings over several columns
    same: tuple[tuple[str, str], ...] = ()  # headings of columns that were left out, and what stood in every row


Column = tuple[str, str, Callable[[Row], TableCell]]  # heading, what it means, what stands in it


def table(
    name: str,
    rows: Iterable[Row],
    columns: Sequence[Column[Row]],
    marked: int | None = None,
    groups: Sequence[tuple[str, int]] = (),
) -> Table:
    """A table with a row for each of these, shown by each column."""
    cells = tuple(tuple(show(row) for _, _, show in columns) for row in rows)
    return Table(name, tuple((heading, meaning) for heading, meaning, _ in columns), cells, marked, tuple(groups))


def word(text: str, small: str = "") -> TableCell:
    return TableCell(text, text, small)


def yes(is_so: bool) -> TableCell:
    return word("yes" if is_so else "no")


def count(value: int) -> TableCell:
    return TableCell(f"{value:,}", float(value))


def epsilon(value: float | None, none: str = NOTHING, small: str = "") -> TableCell:
    return TableCell(none if value is None else f"{value:g}", value, small)


def figure(value: float | None, digits: int = 3) -> TableCell:
    return TableCell(number(value, digits), value)


def share(value: float | None) -> TableCell:
    return TableCell(percent(value), value)


def spanned(value: float, low: float, high: float, digits: int = 3, is_signed: bool = False) -> TableCell:
    """A figure with its interval below; signed, it may be above or below 0."""
    texts = [f"{'+' if is_signed and one > 0 else ''}{number(one, digits)}" for one in (value, low, high)]
    return TableCell(texts[0], value, (" to " if is_signed else "–").join(texts[1:]))


def compact(full: Table) -> Table:
    """Without the columns in which nothing stands, and without those in which every row says the same."""
    kept, same = list[int](), list[tuple[str, str]]()
    for i, (heading, _) in enumerate(full.columns):
        texts = {(row[i].text, row[i].small) for row in full.rows}
        text, small = texts.pop() if len(texts) == 1 else ("", "")
        if i == 0 or not text or (text != NOTHING and (small or len(full.rows) < MIN_ALIKE)):
            kept.append(i)
        elif text != NOTHING:
            same.append((heading, text))
    groups, start = list[tuple[str, int]](), 0
    for name, size in full.groups:
        groups.append((name, sum(start <= i < start + size for i in kept)))
        start += size
    return replace(
        full,
        columns=tuple(full.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in full.rows),
        groups=tuple((name, size) for name, size in groups if size),
        same=tuple(same),
    )
