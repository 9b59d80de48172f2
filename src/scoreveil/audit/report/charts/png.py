"""A sheet as PNG, in the light colours, two pixels for one. Needs matplotlib."""

import base64
import io
import warnings
from typing import Any

from scoreveil.audit.report.charts.marks import LIGHT, Dot, Line, Mark, Picture, Sheet, Text, outline

NARROWER = 0.62  # matplotlib counts in points of 1/72 inch, here 100 pixels to the inch, and its own font is wide


def png(sheet: Sheet) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sheet.width / 100, sheet.height / 100), dpi=200, facecolor=LIGHT["paper"])
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    for z, mark in enumerate(sheet.marks):
        paint(axes, mark, z)
    axes.set(xlim=(0, sheet.width), ylim=(sheet.height, 0), aspect="auto")
    axes.axis("off")
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script that the font lacks
        figure.savefig(file, format="png")
    return file.getvalue()


def paint(axes: Any, mark: Mark, z: int) -> None:
    match mark:
        case Line(points, tone, width, dash):
            style = (0, [float(d) / width for d in dash.split()]) if dash else "-"
            across, down = zip(*points, strict=True)
            axes.plot(across, down, color=LIGHT[tone], lw=0.72 * width, ls=style, zorder=z)
        case Dot(at, tone, shape, _):
            axes.fill(*zip(*outline(at, shape), strict=True), color=LIGHT[tone], ec=LIGHT["paper"], lw=0.7, zorder=z)
        case Text(at, text, tone, anchor, size, bold, turned):
            side = {"start": "left", "middle": "center", "end": "right"}[anchor]
            look = {"color": LIGHT[tone], "fontsize": NARROWER * size, "fontweight": "bold" if bold else "normal"}
            turn = {"rotation": 90, "rotation_mode": "anchor"} if turned else {}
            axes.text(*at, text, ha=side, va="baseline", parse_math=False, zorder=z, **look, **turn)
        case Picture((x, y), side, uri):
            from matplotlib.image import imread

            pixels = imread(io.BytesIO(base64.b64decode(uri.partition(",")[2])), format="png")
            grey = {"cmap": "gray", "vmin": 0, "vmax": 1} if pixels.ndim == 2 else {}
            axes.imshow(pixels, extent=(x, x + side, y + side, y), interpolation="nearest", zorder=z, **grey)
