"""Bars in columns, one row for each way to answer: for those who read one picture. Every axis starts at guessing, .5.

columns = (Column("What leaks", "AUC of the best attack", ("guessing", "certainty")),)
bars("At a glance", columns, [Row("raw scores", "c1", (Bar(0.86, (0.83, 0.88)),))])
"""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scoreveil.audit.report.charts.marks import Line, Mark, Sheet, Text
from scoreveil.audit.report.wording import number

GUESSING, CERTAIN, TICKS = 0.5, 1.0, 5
TITLE, BODY, SMALL = 14, 13, 12  # sizes of text
WIDEST = 0.67  # of a character of the widest common font, DejaVu Sans, in font sizes: nothing is cut there either
LINE, ROW, THICK, EDGE = 17, 34, 16, 6
GAP, AXIS, NARROW, VALUE = 46, 210, 350, 56  # between columns, of an axis, of a telephone, and for the figure of a bar


@dataclass(frozen=True)
class Bar:
    value: float
    span: tuple[float, float] | None = None  # its interval, or its spread


@dataclass(frozen=True)
class Row:
    name: str
    tone: str
    bars: tuple[Bar | None, ...]  # one for each column; None where it was not measured


@dataclass(frozen=True)
class Column:
    title: str
    words: str
    ends: tuple[str, str]  # what the two ends of the axis mean
    show: Callable[[float], str] = number


def bars(title: str, columns: Sequence[Column], rows: Sequence[Row], narrow: bool = False) -> Sheet:
    """Columns beside each other with the names of the rows at the left; on a narrow sheet below each other."""
    marks: list[Mark] = []
    if narrow:
        top, axis = 0.0, float(NARROW - EDGE - VALUE)
        for i, column in enumerate(columns):
            text = textwrap.wrap(column.words, int(NARROW / (WIDEST * SMALL)))
            shown = [(row.name, row.tone, bar) for row in rows if (bar := row.bars[i]) is not None]
            first = top + LINE * (len(text) + 1) + 12
            marks += _heading(column, text, EDGE, top)
            marks += _axis(column, EDGE, axis, first, len(shown) * (ROW + LINE))
            for j, (name, tone, bar) in enumerate(shown):
                y = first + j * (ROW + LINE)
                marks.append(Text((EDGE + 4, y + 14), name, "ink", size=BODY))
                marks += _bar(column, bar, tone, EDGE, axis, y + LINE + ROW / 2)
            top = first + len(shown) * (ROW + LINE) + 2 * LINE + 26
        return Sheet(title, NARROW, top - 20, tuple(marks))
    names = max(len(row.name) for row in rows) * WIDEST * BODY
    texts = [textwrap.wrap(column.words, int((AXIS + VALUE) / (WIDEST * SMALL))) for column in columns]
    first = LINE * (max(map(len, texts)) + 1) + 14.0
    for j, row in enumerate(rows):
        marks.append(Text((EDGE, first + ROW * (j + 0.5) + 4.5), row.name, "ink", size=BODY, bold=True))
    left = EDGE + names + 14
    for i, column in enumerate(columns):
        marks += _heading(column, texts[i], left, 0)
        marks += _axis(column, left, AXIS, first, ROW * len(rows))
        for j, row in enumerate(rows):
            if (bar := row.bars[i]) is not None:
                marks += _bar(column, bar, row.tone, left, AXIS, first + ROW * (j + 0.5))
        left += AXIS + VALUE + GAP
    return Sheet(title, left - GAP + EDGE, first + ROW * len(rows) + 2 * LINE + 8, tuple(marks))


def _at(value: float, left: float, axis: float) -> float:
    return left + (min(max(value, GUESSING), CERTAIN) - GUESSING) / (CERTAIN - GUESSING) * axis


def _heading(column: Column, text: Sequence[str], left: float, top: float) -> Iterable[Mark]:
    yield Text((left, top + 16), column.title, "ink", size=TITLE, bold=True)
    for i, line in enumerate(text):
        yield Text((left, top + 16 + LINE * (i + 1)), line, "ink", size=SMALL)


def _axis(column: Column, left: float, axis: float, top: float, height: float) -> Iterable[Mark]:
    """Where it starts is written below it, with what that means."""
    bottom = top + height
    for i in range(TICKS + 1):
        tick = GUESSING + (CERTAIN - GUESSING) * i / TICKS
        x = _at(tick, left, axis)
        yield Line(((x, top), (x, bottom)), "faint" if i else "ink", 1.0 if i else 1.5)
    for tick, anchor, meaning in ((GUESSING, "start", column.ends[0]), (CERTAIN, "end", column.ends[1])):
        x = _at(tick, left, axis)
        yield Text((x, bottom + LINE - 1), column.show(tick), "ink", anchor, SMALL)
        yield Text((x, bottom + 2 * LINE - 2), meaning, "muted", anchor, SMALL)


def _bar(column: Column, bar: Bar, tone: str, left: float, axis: float, y: float) -> Iterable[Mark]:
    yield Line(((left, y), (max(_at(bar.value, left, axis), left + 2), y)), tone, THICK)
    if bar.span is not None:
        low, high = (_at(end, left, axis) for end in bar.span)
        yield Line(((low, y), (high, y)), "ink", 1.5)
        yield from (Line(((end, y - 4), (end, y + 4)), "ink", 1.5) for end in (low, high))
    yield Text((left + axis + 9, y + 5), column.show(bar.value), "ink", size=BODY + 1, bold=True)
