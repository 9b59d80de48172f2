"""A sheet as PNG, in the light colours, two pixels for one. Needs matplotlib."""

import base64
import io
import warnings
from typing import Any

import numpy as np

from scoreveil.audit.report.charts.marks import LIGHT, Dot, Line, Mark, PictureMark, Sheet, Text, outline

NARROWER = 0.62  # matplotlib counts in points of 1/72 inch, here 100 pixels to the inch, and its own font is wide
COLOURS = 128  # of the palette: a third of the bytes, and charts need no more


def png(sheet: Sheet) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(sheet.width / 100, sheet.height / 100), dpi=200, facecolor=LIGHT["paper"])
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    for z, mark in enumerate(sheet.marks):
        paint(axes, mark, z)
    axes.set(xlim=(0, sheet.width), ylim=(sheet.height, 0), aspect="auto")
    axes.axis("off")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in a script that the font lacks
        canvas.draw()
    file = io.BytesIO()
    Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(COLOURS).save(file, "PNG", optimize=True)
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
        case PictureMark((x, y), side, uri):
            from PIL import Image

            pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB"))
            axes.imshow(pixels, extent=(x, x + side, y + side, y), interpolation="nearest", zorder=z)
