"""Where to write names so that they cover no line, no point and no other name: greedily, the least crowded place first.

Widths are estimated: the reader's font is not known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scoreveil.audit.report.charts.marks import Point

Boxes = NDArray[np.float64]  # (n, 4): left, top, right, bottom

CHARACTER = 0.56  # mean width of a character, in font sizes; bold a little more
# beside, above, below, then between those
DIRECTIONS = ((1.0, 0.0), (1.0, -1.0), (1.0, 1.0), (0.0, -1.0), (0.0, 1.0), (-1.0, 0.0), (-1.0, -1.0), (-1.0, 1.0),
              (0.5, -1.0), (0.5, 1.0), (-0.5, -1.0), (-0.5, 1.0))  # fmt: skip
DISTANCES = (7.0, 12.0, 20.0, 32.0, 48.0, 70.0, 96.0)
NEAR = 16.0  # farther names get a line to what they name


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.bottom - self.top


@dataclass(frozen=True)
class Label:
    """A name with its place, and the line to what it names where that is not next to it."""

    text: str
    at: Point  # the start of its baseline
    tone: str
    size: float
    bold: bool
    leader: tuple[Point, Point] | None


@dataclass(frozen=True)
class Wish:
    text: str
    anchors: Sequence[Point]
    tone: str
    size: float
    bold: bool
    optional: bool  # left out where there is no room


class Placer:
    """Collects what is drawn and what is to be named, then places the names in the order of asking."""

    def __init__(self, inside: Box) -> None:
        self.inside = inside
        self.wishes: list[Wish] = []
        self.drawn: list[tuple[float, float, float, float]] = []

    def avoid_line(self, points: Sequence[Point]) -> None:
        for (x0, y0), (x1, y1) in pairwise(points):
            steps = max(1, int(max(abs(x1 - x0), abs(y1 - y0)) // 5))
            for i in range(steps + 1):
                x, y = x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps
                self.drawn.append((x - 1.5, y - 1.5, x + 1.5, y + 1.5))

    def avoid_dots(self, points: Sequence[Point]) -> None:
        # three times: to cover a point is worse than to cover a line
        self.drawn += [(x - 5.5, y - 5.5, x + 5.5, y + 5.5) for x, y in points] * 3

    def want(
        self,
        text: str,
        anchors: Sequence[Point],
        tone: str,
        size: float,
        bold: bool = False,
        optional: bool = False,
    ) -> None:
        if text and anchors:
            self.wishes.append(Wish(text, anchors, tone, size, bold, optional))

    def placed(self) -> list[Label]:
        texts: list[Boxes] = []
        labels = []
        for wish in self.wishes:
            found = self._place(wish, np.array(self.drawn).reshape(-1, 4), np.array(texts).reshape(-1, 4))
            if found is None:
                continue
            box, anchor, distance = found
            texts.append(box)
            leader = None
            if distance > NEAR:
                end = float(np.clip(anchor[0], box[0], box[2])), float(np.clip(anchor[1], box[1], box[3]))
                leader = anchor, end
                self.avoid_line(leader)
            at = float(box[0]), float(box[3]) - 0.25 * wish.size
            labels.append(Label(wish.text, at, wish.tone, wish.size, wish.bold, leader))
        return labels

    def _place(self, wish: Wish, drawn: Boxes, texts: Boxes) -> tuple[Boxes, Point, float] | None:
        width = len(wish.text) * wish.size * CHARACTER * (1.06 if wish.bold else 1.0)
        height = 1.15 * wish.size
        tried, cost, whose, how_far = [], [], [], []
        for i, (x, y) in enumerate(wish.anchors):
            for distance in DISTANCES[:2] if wish.optional else DISTANCES:
                for turn, (dx, dy) in enumerate(DIRECTIONS):
                    reach = distance * (0.75 if abs(dx * dy) == 1 else 1.0)
                    left = x + dx * reach - (width / 2) * (1 - dx)
                    top = y + dy * reach - (height / 2) * (1 - dy)
                    tried.append((left, top, left + width, top + height))
                    cost.append(0.35 * distance + 0.15 * min(i, 20) + 0.2 * turn)
                    whose.append((x, y))
                    how_far.append(distance)
        boxes = np.array(tried)
        total: NDArray[np.float64] = np.array(cost, dtype=np.float64)
        total += 6 * _overlaps(boxes, drawn) + 300 * _overlaps(boxes, texts)
        total += 3000 * self._outside(boxes)
        around = np.array(whose)
        if len(wish.anchors) > 1:  # of a line, name the stretch where it is alone
            total += 0.5 * _overlaps(np.concatenate([around - 18, around + 18], axis=1), drawn)
        leaders = _leaders(around, boxes)
        total += 2 * _overlaps(leaders, drawn).reshape(len(boxes), -1).sum(axis=1)
        total += 20 * _overlaps(leaders, texts).reshape(len(boxes), -1).sum(axis=1)
        best = int(total.argmin())
        if wish.optional and total[best] - cost[best] > 6:
            return None
        return boxes[best], whose[best], how_far[best]

    def _outside(self, boxes: Boxes) -> NDArray[np.bool_]:
        room = self.inside
        beyond = (boxes[:, 0] < room.left + 2) | (boxes[:, 2] > room.right - 1)
        return np.asarray(beyond | (boxes[:, 1] < room.top) | (boxes[:, 3] > room.bottom - 1))


def _leaders(anchors: NDArray[np.float64], boxes: Boxes) -> Boxes:
    """Points along the line from each anchor to its box, but for the first pixels, as small boxes."""
    ends = np.stack([anchors.clip(boxes[:, :2], boxes[:, 2:])], axis=1)
    starts = anchors[:, None, :]
    length = np.maximum(np.linalg.norm(ends - starts, axis=2, keepdims=True), 1e-9)
    steps = np.minimum(1.0, 8 / length) + np.linspace(0, 1, 6)[None, :, None] * np.maximum(0.0, 1 - 8 / length)
    points = (starts + steps * (ends - starts)).reshape(-1, 2)
    return np.concatenate([points - 1, points + 1], axis=1)


def _overlaps(boxes: Boxes, others: Boxes) -> NDArray[np.int64]:
    """How many of the others each box touches."""
    if not len(others):
        return np.zeros(len(boxes), dtype=np.int64)
    across = (boxes[:, None, 0] < others[None, :, 2]) & (boxes[:, None, 2] > others[None, :, 0])
    down = (boxes[:, None, 1] < others[None, :, 3]) & (boxes[:, None, 3] > others[None, :, 1])
    return np.asarray((across & down).sum(axis=1))
