"""The map of a fitted veil as a picture: which scores share a region, and how many members and others fall into each.

    maps = read(veil)                            # one; of many labels, one for each
    svg = drawn(sheet(maps[0]), alone=True)      # a file of its own

The plane has the two numbers that a region is a function of: the top score, on a scale of logits, so that .99 and .999
are as far apart as .9 and .99; and the second score over all but the top one, in its strips. Darker regions are surer.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from scoreveil.audit.report.charts.marks import Line, Mark, Sheet, Text, shifted
from scoreveil.audit.report.charts.placing import CHARACTER
from scoreveil.audit.report.charts.svg import svg
from scoreveil.mechanisms.region_words import RegionRow
from scoreveil.mechanisms.regions import Regions
from scoreveil.veil import Veil

MAX_LABELS = 10  # of which tables and pictures are shown
# from the least sure region to the surest; neighbours differ in hue too
COLOURS = ("#f4e7a1", "#cfe3a0", "#98d1ac", "#5fbcbb", "#3a9bc1", "#3174b1", "#2e4f97", "#252c6b")
STYLE = "".join(f".t-r{i}{{color:{colour}}}" for i, colour in enumerate(COLOURS))
RIM = "text{paint-order:stroke;stroke:#fff;stroke-width:3px;stroke-linejoin:round}"  # as texts of a page have it

TITLE, LABEL, SMALL = 14, 12.5, 11.5
HEAD, ROW, BELOW, LEFT = 52, 34, 48, 60
PLANE, GAP, BARS = 560, 40, 400  # widths, of a wide sheet
NARROW = 350
MIN_HEIGHT, MAX_HEIGHT = 130, 240  # of the plane


@dataclass(frozen=True)
class RegionMap:
    """A map, and its regions as an answer shows them."""

    name: str  # of the label, where there are many
    mechanism: Regions
    rows: tuple[RegionRow, ...]  # its regions, the least confident first
    answers: tuple[tuple[float, ...], ...]  # with ε, the confidences of each answer it draws from; else of each region
    sides: tuple[str, ...]  # whose each of these confidences is, where the two labels have their own


def read(veil: Veil, names: Sequence[str] = ()) -> list[RegionMap]:
    """The maps of a fitted veil; of many labels with these names. ValueError where it is not a fitted one."""
    maps, shape = veil.mechanism.maps, veil.shape
    if not maps:
        raise ValueError(f"Expected a fitted veil, got one of the {veil.mechanism.name} mechanism.")
    if not (shape.is_binary or shape.has_labels):
        return [_readable("", maps[0], ("label 0", "label 1") if maps[0].classes == 2 else ())]
    titles = names or ([f"Label {i}" for i in range(len(maps))] if shape.has_labels else [""])
    every = zip(titles, maps, shape.thresholds(len(maps)), strict=True)
    return [_readable(name, one, ("no", "yes"), threshold) for name, one, threshold in every]


def _readable(name: str, mechanism: Regions, sides: tuple[str, ...], threshold: float = 0.5) -> RegionMap:
    """With confidences as they are served: of a yes or no with the threshold where it is, and not at one half."""
    scales = (2 * threshold, 2 * (1 - threshold)) if sides else (1.0,)

    def served(announced: Iterable[float]) -> tuple[float, ...]:
        return tuple(1 - scale * (1 - p) for scale, p in zip(scales, announced, strict=True))

    rows = tuple(dataclasses.replace(row, announced=served(row.announced)) for row in mechanism.rows())
    return RegionMap(name, mechanism, rows, tuple(map(served, mechanism.announced.T.tolist())), sides)


def drawn(it: Sheet, kind: str = "", alone: bool = False) -> str:
    """A sheet of regions as SVG, with its colours."""
    return svg(it, kind, alone).replace(">", f"><style>{STYLE}{RIM if alone else ''}</style>", 1)


def sheet(it: RegionMap, narrow: bool = False) -> Sheet:
    """The plane, and beside it, or on a narrow sheet below it, the bars."""
    height = min(max(ROW * len(it.rows), MIN_HEIGHT), MAX_HEIGHT)
    plane_width, bars_width = (NARROW, NARROW) if narrow else (PLANE, BARS)
    across, down = (0.0, HEAD + height + BELOW) if narrow else (plane_width + GAP, 0.0)
    marks = [*_plane(it, plane_width, height), *shifted(_bars(it, bars_width), across, down)]
    bottom = max(HEAD + height + BELOW, down + HEAD + ROW * len(it.rows) + 8)
    title = f"{it.name}: which scores share a region" if it.name else "Which scores share a region"
    return Sheet(title, across + bars_width, bottom, tuple(marks))


def stacked(sheets: Sequence[Sheet]) -> Sheet:
    """Sheets below each other."""
    marks, down = list[Mark](), 0.0
    for one in sheets:
        marks += shifted(one.marks, 0.0, down)
        down += one.height + 12
    return Sheet("; ".join(one.title for one in sheets), max(one.width for one in sheets), down, tuple(marks))


def tone(it: RegionMap, region: int) -> str:
    """Of few regions the colours are as far apart as they can be."""
    last = max(len(it.rows) - 1, 1)
    return f"r{round(region * (len(COLOURS) - 1) / last)}"


# The plane


def left_of(it: RegionMap) -> float:
    """Where the plane begins: beside an axis of strips, where it has several."""
    return LEFT if len(it.mechanism.cuts) > 1 else 14


def _plane(it: RegionMap, width: float, height: float) -> Iterable[Mark]:
    mechanism = it.mechanism
    k, last = mechanism.classes, width - 14
    left_edge = left_of(it)
    cuts = [cut for row in mechanism.cuts.tolist() for cut in row if cut < 1]
    least, most = _logit(1 / k), max(_logit(0.999), *(_logit(cut) + 0.7 for cut in cuts)) if cuts else _logit(0.999)

    def at(score: float) -> float:
        place = (_logit(score) - least) / (most - least) if 0 < score < 1 else float(score >= 1)
        return left_edge + min(max(place, 0.0), 1.0) * (last - left_edge)

    borders = [1 / (k - 1), *(b for b in mechanism.strips.tolist() if b > 1 / (k - 1)), 1.0]
    strips = len(borders) - 1
    thick = height / strips
    yield Text((left_edge, 18), it.name or "Which scores share a region", "ink", size=TITLE, bold=True)
    for strip in range(strips):
        number = len(mechanism.cuts) - strips + strip  # below the first border there are no scores
        y = HEAD + height - (strip + 0.5) * thick
        ends = [1 / k, *(min(cut, 1.0) for cut in mechanism.cuts[number].tolist()), 1.0]
        for (low, high), region in zip(pairwise(ends), mechanism.regions[number].tolist(), strict=True):
            left, right = at(low), at(high)
            if right - left < 0.05:
                continue
            yield Line(((left, y), (right, y)), tone(it, region), max(thick - (1 if strips > 1 else 0), 1))
            if right - left >= 13 and thick >= 15:
                yield Text(((left + right) / 2, y + 4), str(region), "ink", "middle", SMALL)
    yield from _ticks(at, 1 / k, HEAD + height)
    yield Text(((left_edge + last) / 2, HEAD + height + 38), "top score", "ink", "middle", LABEL)
    if strips > 1:
        for i, border in enumerate(borders):
            yield Text((LEFT - 8, HEAD + height - i * thick + 4), _short(border), anchor="end", size=SMALL)
        yield Text((14, HEAD + height / 2), "second score over the rest", "ink", "middle", LABEL, turned=True)


def _ticks(at: Callable[[float], float], lowest: float, bottom: float) -> Iterable[Mark]:
    """At round scores, those first that matter most, as long as there is room."""
    nines = [1 - 10.0**-i for i in range(1, 12)]
    taken = list[tuple[float, float]]()
    for score in (lowest, 1.0, 0.5, *nines, 0.1, 0.2, 0.7, 0.8, 0.95, 0.3, 0.05, 0.02, 0.01):
        x, text = at(score), _score(score)
        half = len(text) * SMALL * CHARACTER / 2 + 5
        is_inside = lowest <= score <= 1 and (score in (lowest, 1.0) or at(lowest) < x < at(1.0))
        if is_inside and all(abs(x - other) >= half + reach for other, reach in taken):
            taken.append((x, half))
            yield Line(((x, bottom + 1), (x, bottom + 5)), "muted")
            yield Text((x, bottom + 18), text, anchor="middle", size=SMALL)


def _logit(score: float) -> float:
    return math.log(score / (1 - score))


def _score(score: float) -> str:
    """.5, .999, and 1−10⁻⁶ where nobody would count the nines."""
    nines = round(-math.log10(1 - score), 6) if 0.9 < score < 1 else 0
    if nines > 4:
        return "1−10" + "⁻" + str(int(nines)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return _short(score)


def _short(value: float) -> str:
    return f"{value:.{4 if value > 0.99 else 2}g}".removeprefix("0")


# The bars


def _bars(it: RegionMap, width: float) -> Iterable[Mark]:
    rows = it.rows
    has_members = not any(math.isnan(row.members) for row in rows)
    columns = [width - 8 - 58 * i for i in range(max(len(it.sides), 1))][::-1]
    start, end = 34.0, columns[0] - 104
    most = max(max(row.others, row.members if has_members else 0.0) for row in rows)
    yield Text((0, 18), "Shares, and the announced confidence", "ink", size=TITLE, bold=True)
    keys = [("members", "c1"), ("others", "muted")] if has_members else [("others", "muted")]
    for i, (name, key_tone) in enumerate(keys):
        yield Line(((start + 84 * i, HEAD - 12), (start + 84 * i + 10, HEAD - 12)), key_tone, 10)
        yield Text((start + 84 * i + 15, HEAD - 8), name, key_tone, size=SMALL)
    for x, side in zip(columns, it.sides or ("announced",), strict=True):
        yield Text((x, HEAD - 8), side, anchor="end", size=SMALL)
    for row in rows:
        y = HEAD + ROW * row.number + ROW / 2
        yield Line(((0, y), (20, y)), tone(it, row.number), 20)
        yield Text((10, y + 4), str(row.number), "ink", "middle", SMALL)
        bars = [(row.members, "c1"), (row.others, "muted")] if has_members else [(row.others, "muted")]
        for i, (share, bar_tone) in enumerate(bars):
            middle = y + 12 * (i - (len(bars) - 1) / 2)
            length = max(share / max(most, 1e-9) * (end - start), 1.0)
            yield Line(((start, middle), (start + length, middle)), bar_tone, 10)
            yield Text((start + length + 5, middle + 4), f"{100 * share:.1f} %", bar_tone, size=SMALL)
        for x, announced in zip(columns, row.announced, strict=True):
            yield Text((x, y + 4), f"{announced:.3f}".removeprefix("0"), "ink", "end", LABEL, bold=True)
