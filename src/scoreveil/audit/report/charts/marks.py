"""What a drawing is made of: lines, dots, texts and pictures in pixels, y downwards, each in a named tone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

Point = tuple[float, float]

LIGHT = {  # Okabe and Ito's colours, which colour-blind people can tell apart, a little darker on white
    "ink": "#1c2128", "muted": "#5f6873", "faint": "#d9dee4", "paper": "#ffffff",
    "c0": "#0067a8", "c1": "#c24e00", "c2": "#00805c", "c3": "#a8487f", "c4": "#9a6b00", "c5": "#2f8fc4",
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    points: tuple[Point, ...]
    tone: str
    width: float = 1.0
    dash: str = ""


@dataclass(frozen=True)
class Dot:
    at: Point
    tone: str
    shape: str
    tip: str = ""


@dataclass(frozen=True)
class Text:
    at: Point  # the baseline
    text: str
    tone: str = "muted"
    anchor: str = "start"
    size: float = 12
    bold: bool = False
    turned: bool = False


@dataclass(frozen=True)
class PictureMark:
    at: Point
    size: float
    uri: str  # a data URI


Mark = Line | Dot | Text | PictureMark


@dataclass(frozen=True)
class Sheet:
    """Marks on a sheet of some size, with what it shows in words."""

    title: str
    width: float
    height: float
    marks: tuple[Mark, ...]


def shifted(marks: Iterable[Mark], across: float, down: float) -> list[Mark]:
    def moved(at: Point) -> Point:
        return at[0] + across, at[1] + down

    return [
        replace(m, points=tuple(map(moved, m.points))) if isinstance(m, Line) else replace(m, at=moved(m.at))
        for m in marks
    ]


def outline(at: Point, shape: str, reach: float = 5.0) -> list[Point]:
    """The corners of a marker."""
    corners, start = {"square": (4, 45), "diamond": (4, 0), "triangle": (3, -90), "down": (3, 90)}.get(shape, (20, 0))
    if shape == "cross":
        arm, w = reach, reach / 3
        turns = [(-w, -arm), (w, -arm), (w, -w), (arm, -w), (arm, w), (w, w)]
        turns += [(-x, -y) for x, y in turns]
        return [(at[0] + x, at[1] + y) for x, y in turns]
    size = reach * (1.2 if corners <= 4 else 0.9)
    angles = [math.radians(start + 360 * i / corners) for i in range(corners)]
    return [(at[0] + size * math.cos(a), at[1] + size * math.sin(a)) for a in angles]
