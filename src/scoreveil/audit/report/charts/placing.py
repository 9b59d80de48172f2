"""Where to write names so that they cover no line, no point and no other name: greedily, the least crowded place first.

The cost that a place has, and why one name after another is placed, is derived in docs/derivations/label-placing.md.
Widths are estimated: the reader's font is not known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from scoreveil.audit.report.charts.marks import Line, Mark, Point, Text

Boxes = NDArray[np.float64]  # (n, 4): left, top, right, bottom
Box = tuple[float, float, float, float]

CHARACTER = 0.56  # mean width of a character, in font sizes; bold a little more
# beside, above, below, then between those
DIRECTIONS = np.array([
    (1, 0), (1, -1), (1, 1), (0, -1), (0, 1), (-1, 0), (-1, -1), (-1, 1), (0.5, -1), (0.5, 1), (-0.5, -1), (-0.5, 1),
])  # fmt: skip
DISTANCES = np.array([7.0, 12.0, 20.0, 32.0, 48.0, 70.0, 96.0])
NEAR = 16.0  # farther names get a line to what they name

# what a place costs: for each pixel away, each anchor and each direction further down its list, ...
PER_PIXEL, PER_ANCHOR, PER_DIRECTION = 0.35, 0.15, 0.2
# ... for each drawn thing and each name that it covers, that its leader crosses, and for lying outside
COVERS_DRAWN, COVERS_TEXT, CROSSES_DRAWN, CROSSES_TEXT, OUTSIDE = 6, 300, 2, 20, 3000
CROWDED = 0.5  # for each drawn thing within 18 pixels of the anchor: of a line, name the stretch where it is alone
MAX_FOR_OPTIONAL = 6  # a name that is optional is left out where all it covers and crosses costs more


@dataclass(frozen=True)
class Wish:
    """A name that is to be written near one of its anchors."""

    text: str
    anchors: Sequence[Point]
    tone: str
    size: float
    bold: bool = False
    optional: bool = False  # left out where there is no room


class Placer:
    """Collects what is drawn and what is to be named, then places the names in the order of asking."""

    def __init__(self, inside: Box) -> None:
        self.inside = inside
        self.wishes: list[Wish] = []
        self.drawn: list[Box] = []

    def avoid_line(self, points: Sequence[Point]) -> None:
        for (x0, y0), (x1, y1) in pairwise(points):
            steps = max(1, int(max(abs(x1 - x0), abs(y1 - y0)) // 5))
            along = ((x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(steps + 1))
            self.drawn += [(x - 1.5, y - 1.5, x + 1.5, y + 1.5) for x, y in along]

    def avoid_dots(self, points: Sequence[Point]) -> None:
        # three times: to cover a point is worse than to cover a line
        self.drawn += [(x - 5.5, y - 5.5, x + 5.5, y + 5.5) for x, y in points] * 3

    def want(self, wish: Wish) -> None:
        if wish.text and wish.anchors:
            self.wishes.append(wish)

    def placed(self) -> list[Mark]:
        """The names, and a line to what it names for each that is not next to it."""
        texts: list[Boxes] = []
        marks: list[Mark] = []
        for wish in self.wishes:
            place = self._place(wish, np.array(self.drawn).reshape(-1, 4), np.array(texts).reshape(-1, 4))
            if place is None:
                continue
            box, anchor, distance = place
            texts.append(box)
            if distance > NEAR:
                end = float(np.clip(anchor[0], box[0], box[2])), float(np.clip(anchor[1], box[1], box[3]))
                marks.append(Line((anchor, end), "muted", 0.8))
                self.avoid_line((anchor, end))
            at = float(box[0]), float(box[3]) - 0.25 * wish.size
            marks.append(Text(at, wish.text, wish.tone, size=wish.size, bold=wish.bold))
        return marks

    def _place(self, wish: Wish, drawn: Boxes, texts: Boxes) -> tuple[Boxes, Point, float] | None:
        """The cheapest of all places around all anchors: its box, its anchor, and how far apart they are."""
        width = len(wish.text) * wish.size * CHARACTER * (1.06 if wish.bold else 1.0)
        size = np.array([width, 1.15 * wish.size])
        distances = DISTANCES[:2] if wish.optional else DISTANCES
        anchors = np.array(wish.anchors, dtype=np.float64)
        shape = len(anchors), len(distances), len(DIRECTIONS)
        reach = distances[:, None] * np.where(np.abs(DIRECTIONS).sum(axis=1) == 2, 0.75, 1.0)
        corner = anchors[:, None, None] + DIRECTIONS * reach[..., None] - size / 2 * (1 - DIRECTIONS)
        boxes = np.concatenate([corner, corner + size], axis=-1).reshape(-1, 4)
        around = np.broadcast_to(anchors[:, None, None], (*shape, 2)).reshape(-1, 2)
        cost = (
            PER_ANCHOR * np.minimum(np.arange(shape[0]), 20)[:, None, None]
            + PER_PIXEL * distances[:, None]
            + PER_DIRECTION * np.arange(shape[2])
        ).ravel()
        total = cost.astype(np.float64) + COVERS_DRAWN * _overlaps(boxes, drawn) + COVERS_TEXT * _overlaps(boxes, texts)
        total += OUTSIDE * self._outside(boxes)
        if len(anchors) > 1:
            total += CROWDED * _overlaps(np.concatenate([around - 18, around + 18], axis=1), drawn)
        leaders = _leaders(around, boxes)
        for weight, others in ((CROSSES_DRAWN, drawn), (CROSSES_TEXT, texts)):
            total += weight * _overlaps(leaders, others).reshape(len(boxes), -1).sum(axis=1)
        best = int(total.argmin())
        if wish.optional and total[best] - cost[best] > MAX_FOR_OPTIONAL:
            return None
        which, distance, _ = np.unravel_index(best, shape)
        return boxes[best], wish.anchors[int(which)], float(distances[distance])

    def _outside(self, boxes: Boxes) -> NDArray[np.bool_]:
        left, top, right, bottom = self.inside
        beyond = (boxes[:, 0] < left + 2) | (boxes[:, 2] > right - 1)
        return np.asarray(beyond | (boxes[:, 1] < top) | (boxes[:, 3] > bottom - 1))


def _leaders(anchors: NDArray[np.float64], boxes: Boxes) -> Boxes:
    """Points along the line from each anchor to its box, but for the first pixels, as small boxes."""
    starts, ends = anchors[:, None], anchors.clip(boxes[:, :2], boxes[:, 2:])[:, None]
    length = np.maximum(np.linalg.norm(ends - starts, axis=2, keepdims=True), 1e-9)
    steps = np.minimum(1.0, 8 / length) + np.linspace(0, 1, 6)[None, :, None] * np.maximum(0.0, 1 - 8 / length)
    points = (starts + steps * (ends - starts)).reshape(-1, 2)
    return np.concatenate([points - 1, points + 1], axis=1)


def _overlaps(boxes: Boxes, others: Boxes) -> NDArray[np.int64]:
    """How many of the others each box touches."""
    across = (boxes[:, None, 0] < others[None, :, 2]) & (boxes[:, None, 2] > others[None, :, 0])
    down = (boxes[:, None, 1] < others[None, :, 3]) & (boxes[:, None, 3] > others[None, :, 1])
    return np.asarray((across & down).sum(axis=1))
