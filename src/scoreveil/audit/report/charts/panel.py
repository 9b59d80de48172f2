"""Panels: axes, series and floors, laid out as marks on a canvas, with names where they cover nothing.

Text is as large on a narrow canvas as on a wide one, so that a telephone shows it legibly: there titles take several
lines, and a key stands below the axes.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from scoreveil.audit.report.charts.marks import Dot, Line, Mark, Point, Sheet, Text, shifted
from scoreveil.audit.report.charts.placing import CHARACTER, Placer, Wish

LEFT, TOP, BELOW = 54, 34, 48  # from the edges of a canvas to the axes
TITLE, LABEL, SMALL = 14, 12.5, 11.5  # sizes of text; the smallest is legible where a chart is drawn a little smaller
LINE, NOTE = 17, 20  # the height of a line of a title, a label or a key, and of a note below the panels
TONES = ("c2", "c3", "c4", "c5", "c0", "c1")
SHAPES = ("circle", "square", "diamond", "triangle", "down", "cross")


@dataclass(frozen=True)
class Axis:
    label: str
    limits: tuple[float, float]
    log: bool = False

    @staticmethod
    def around(label: str, values: Iterable[float], margin: float = 0.07) -> "Axis":
        """An axis that shows all the values, with a margin."""
        low, high = min(every := list(values)), max(every)
        pad = margin * (high - low) or 0.05
        return Axis(label, (low - pad, high + pad))

    def place(self, value: float) -> float:
        """0 at the lower limit, 1 at the upper one."""
        low, high = self.limits
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, 1e-300))
        return (value - low) / (high - low)

    def ticks(self) -> list[float]:
        low, high = self.limits
        if not self.log:
            step = _round_step((high - low) / 5)
            first = math.ceil(low / step - 1e-9)
            return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for leads in ((1,), (1, 3), (1, 2, 5)):
            ticks = [lead * 10.0**d for d in decades for lead in leads if low * 0.999 <= lead * 10.0**d <= high * 1.001]
            if len(ticks) >= 4:
                break
        return ticks


@dataclass(frozen=True)
class Series:
    """One line, or with a single point one marker. `tips` are told on hover, `tags` written small beside the points."""

    name: str
    points: tuple[Point, ...]
    tone: str = "ink"
    shape: str = "circle"  # "" for a line without markers
    dash: str = ""
    tips: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    whiskers: tuple[tuple[float, float], ...] = ()  # y from, y to


@dataclass(frozen=True)
class Panel:
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    floors: tuple[tuple[str, float], ...] = ()  # dashed across, by name
    diagonal: bool = False
    key: str = ""  # a heading: the names go below it into the lower right corner, instead of beside the lines


@dataclass(frozen=True)
class Canvas:
    """What a panel is drawn on. Lines of text beyond the first, and a key below the axes, add to the height."""

    width: float
    height: float
    margin: float  # right of the axes
    key_below: bool = False


WIDE = Canvas(540, 360, 14)
NARROW = Canvas(350, 440, 8, key_below=True)  # a telephone


@dataclass(frozen=True)
class Frame:
    """A panel on a canvas: its texts in lines, and where its axes are."""

    panel: Panel
    canvas: Canvas

    @cached_property
    def title(self) -> list[str]:
        return textwrap.wrap(self.panel.title, int((self.right - LEFT) / (CHARACTER * TITLE)))

    @cached_property
    def label(self) -> list[str]:
        return textwrap.wrap(self.panel.x.label, int((self.right - LEFT) / (CHARACTER * LABEL)))

    @property
    def right(self) -> float:
        return self.canvas.width - self.canvas.margin

    @property
    def top(self) -> float:
        return TOP + LINE * (len(self.title) - 1)

    @property
    def bottom(self) -> float:
        return self.top + self.canvas.height - TOP - BELOW

    @property
    def height(self) -> float:
        key = LINE * (len(self.panel.series) + 1) + 8 if self.panel.key and self.canvas.key_below else 0
        return self.bottom + BELOW + LINE * (len(self.label) - 1) + key

    def at(self, x: float, y: float) -> Point:
        """Where a point of the panel lies, in pixels."""
        across, up = self.panel.x.place(x), self.panel.y.place(y)
        return LEFT + across * (self.right - LEFT), self.bottom - up * (self.bottom - self.top)


def sheet(panels: Sequence[Panel], notes: Sequence[str] = (), canvas: Canvas = WIDE) -> Sheet:
    """The panels two by two, and below them the notes."""
    columns, rows = min(2, len(panels)), math.ceil(len(panels) / 2)
    width, height = canvas.width, max(Frame(panel, canvas).height for panel in panels)
    marks: list[Mark] = []
    for i, panel in enumerate(panels):
        marks += shifted(lay_out(panel, canvas), width * (i % columns), height * (i // columns))
    lines = [line for note in notes for line in textwrap.wrap(note, 75 * columns)]
    marks += [Text((LEFT, height * rows + NOTE * (i + 0.6)), line, size=11) for i, line in enumerate(lines)]
    title = "; ".join(panel.title for panel in panels)
    return Sheet(title, width * columns, height * rows + NOTE * len(lines), tuple(marks))


@lru_cache(maxsize=64)  # the page and the files show the same panels
def lay_out(panel: Panel, canvas: Canvas = WIDE) -> tuple[Mark, ...]:
    """Grid, axes, floors, lines, points, then names where they cover nothing."""
    frame = Frame(panel, canvas)
    marks: list[Mark] = [
        Text((LEFT, 18 + LINE * i), line, "ink", size=TITLE, bold=True) for i, line in enumerate(frame.title)
    ]
    marks += _axes(frame)
    placer = Placer((LEFT, frame.top, frame.right, frame.bottom))
    if panel.diagonal:
        low = max(panel.x.limits[0], panel.y.limits[0])
        chance = (frame.at(low, low), frame.at(panel.x.limits[1], panel.x.limits[1]))
        marks.append(Line(chance, "muted", 1.2, "2 4"))
        placer.avoid_line(chance)
        placer.want(Wish("chance", [_along(chance, t / 20) for t in range(4, 17, 2)], "muted", SMALL))
    for name, level in panel.floors:
        ends = (frame.at(panel.x.limits[0], level), frame.at(panel.x.limits[1], level))
        marks.append(Line(ends, "ink", 1.3, "7 4"))
        placer.avoid_line(ends)
        placer.want(Wish(name, [_along(ends, t / 20) for t in range(1, 20, 2)], "ink", SMALL))
    for series in panel.series:
        points = tuple(frame.at(*p) for p in series.points)
        if len(points) > 1:
            marks.append(Line(points, series.tone, 2.2, series.dash))
            placer.avoid_line(points)
        for point, (low, high) in zip(series.points, series.whiskers, strict=False):
            whisker = frame.at(point[0], low), frame.at(point[0], high)
            marks.append(Line(whisker, series.tone, 1.1))
            placer.avoid_line(whisker)
        if series.shape:
            tips = series.tips or ("",) * len(points)
            marks += [Dot(p, series.tone, series.shape, tip) for p, tip in zip(points, tips, strict=True)]
            placer.avoid_dots(points)
        if not panel.key:
            placer.want(Wish(series.name, _anchors(points), series.tone, 12, bold=len(points) > 1))
    for series in panel.series:
        for point, tag in zip(series.points, series.tags, strict=False):
            placer.want(Wish(tag, [frame.at(*point)], series.tone, SMALL, optional=True))
    return *marks, *(_key(frame) if panel.key else ()), *placer.placed()


def _key(frame: Frame) -> Iterable[Mark]:
    """A sample of each line with its name, in the order of the lines at their left end.

    It stands below the diagonal, where there is room, or on a narrow canvas below the axes.
    """
    panel = frame.panel
    ordered = sorted(panel.series, key=lambda s: -s.points[0][1])
    if frame.canvas.key_below:
        left, top = float(LEFT), frame.height - LINE * len(ordered) - 8
    else:
        longest = max(len(panel.key), *(len(s.name) + 6 for s in ordered))
        left, top = frame.right - 6.9 * longest - 4, frame.bottom - LINE * len(ordered) - 12
    yield Text((left, top), panel.key, size=SMALL)
    for i, series in enumerate(ordered):
        y = top + LINE * (i + 1)
        yield Line(((left, y - 4), (left + 28, y - 4)), series.tone, 2.2, series.dash)
        yield Text((left + 35, y), series.name, series.tone, size=12, bold=True)


def _axes(frame: Frame) -> Iterable[Mark]:
    panel, right, bottom = frame.panel, frame.right, frame.bottom
    for tick in panel.x.ticks():
        x, _ = frame.at(tick, panel.y.limits[0])
        yield Line(((x, frame.top), (x, bottom)), "faint")
        yield Text((x, bottom + 17), tick_label(tick, panel.x), anchor="middle", size=SMALL)
    for tick in panel.y.ticks():
        _, y = frame.at(panel.x.limits[0], tick)
        yield Line(((LEFT, y), (right, y)), "faint")
        yield Text((LEFT - 8, y + 4), tick_label(tick, panel.y), anchor="end", size=SMALL)
    yield Line(((LEFT, bottom), (right, bottom)), "muted")
    for i, line in enumerate(frame.label):
        yield Text(((LEFT + right) / 2, bottom + 38 + LINE * i), line, "ink", "middle", LABEL)
    yield Text((14, (frame.top + bottom) / 2), panel.y.label, "ink", "middle", LABEL, turned=True)


def tick_label(tick: float, axis: Axis) -> str:
    text = f"{tick:.6g}"
    return text.removeprefix("0") if text.startswith("0.") and not axis.log else text


def _round_step(step: float) -> float:
    size = 10.0 ** math.floor(math.log10(step))
    return next(m for m in (1, 2, 2.5, 5, 10) if m >= step / size - 1e-9) * size


def _along(ends: tuple[Point, Point], t: float) -> Point:
    (x0, y0), (x1, y1) = ends
    return x0 + t * (x1 - x0), y0 + t * (y1 - y0)


def _anchors(points: Sequence[Point]) -> list[Point]:
    """Where a name may attach: at the ends first, then anywhere along the line."""
    if len(points) == 1:
        return [points[0]]
    between = [_along(pair, t / 4) for pair in pairwise(points) for t in range(4)]
    return [points[-1], points[0], *between[:: max(1, len(between) // 12)]]
