"""A few bars from guessing to certainty, AUCs from .5 to 1, each with its value: for those who read one picture."""

from collections.abc import Sequence
from dataclasses import dataclass

from scoreveil.audit.report.charts.marks import Line, Mark, Sheet, Text

WIDTH, LEFT, RIGHT = 350, 4, 296  # what is right of the axis holds the last value
TOP, ROW, THICK = 46, 46, 14


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    written: str
    span: tuple[float, float] | None  # its interval
    tone: str


def bars(title: str, rows: Sequence[Bar], ends: tuple[str, str]) -> Sheet:
    """The bars below each other. `ends` say what .5 and 1 mean."""

    def at(value: float) -> float:
        return LEFT + (min(max(value, 0.5), 1.0) - 0.5) / 0.5 * (RIGHT - LEFT)

    bottom = TOP + ROW * len(rows)
    marks: list[Mark] = [Text((LEFT, 18), title, "ink", size=14, bold=True)]
    marks += [Line(((at(tick), TOP - 12), (at(tick), bottom)), "faint") for tick in (0.6, 0.7, 0.8, 0.9, 1.0)]
    for i, bar in enumerate(rows):
        y = TOP + ROW * i + 22
        marks.append(Text((LEFT + 4, y - 12), bar.name, "ink", size=12.5))
        marks.append(Line(((LEFT, y), (max(at(bar.value), LEFT + 2), y)), bar.tone, THICK))
        end = at(bar.value)
        if bar.span is not None:
            marks.append(Line(((at(bar.span[0]), y), (at(bar.span[1]), y)), "ink", 1.5))
            end = max(end, at(bar.span[1]))
        marks.append(Text((end + 7, y + 5), bar.written, bar.tone, size=15, bold=True))
    marks.append(Line(((LEFT, TOP - 12), (LEFT, bottom)), "muted", 1.5))
    marks.append(Text((LEFT, bottom + 16), f".5 {ends[0]}", size=11.5))
    marks.append(Text((RIGHT + 40, bottom + 16), f"{ends[1]} 1", anchor="end", size=11.5))
    return Sheet(title, WIDTH, bottom + 26, tuple(marks))
