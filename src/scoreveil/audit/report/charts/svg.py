"""A sheet as SVG: in the page's colours by CSS classes, or a file of its own in the light ones."""

from collections.abc import Iterable
from html import escape

from scoreveil.audit.report.charts.marks import LIGHT, Dot, Line, Mark, PictureMark, Point, Sheet, Text, outline

STYLE = (
    "text{font-family:system-ui,'Segoe UI',Roboto,Arial,sans-serif;fill:currentColor}.rim{stroke:#fff}"
    "polyline{fill:none;stroke:currentColor;stroke-linejoin:round}.dot{fill:currentColor}.reach{opacity:0}"
)
LOOK = f"<style>{STYLE}{''.join(f'.t-{tone}{{color:{colour}}}' for tone, colour in LIGHT.items())}</style>"


def svg(sheet: Sheet, kind: str = "", alone: bool = False) -> str:
    """`alone`: a file of its own, instead of a part of the page, where `kind` is a CSS class."""
    body = "".join(as_svg(mark) for mark in sheet.marks)
    box = f'viewBox="0 0 {sheet.width:g} {sheet.height:g}" role="img" aria-label="{escape(sheet.title)}"'
    if not alone:
        return f'<svg {box} class="chart {kind}">{body}</svg>'
    names = f'xmlns="http://www.w3.org/2000/svg" width="{sheet.width:g}" height="{sheet.height:g}"'
    return f'<svg {names} {box}>{LOOK}<rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n'


def as_svg(mark: Mark) -> str:
    match mark:
        case Line(points, tone, width, dash):
            stroke = (f' stroke-width="{width:g}"' if width != 1 else "") + (
                f' stroke-dasharray="{dash}"' if dash else ""
            )
            return f'<polyline class="t-{tone}"{stroke} points="{_path(points)}"/>'
        case Dot((x, y), tone, shape, tip):
            title = f"<title>{escape(tip)}</title>" if tip else ""
            drawn = f'<polygon points="{_path(outline((x, y), shape))}" class="rim"/>'
            if shape == "circle":
                drawn = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="rim"/>'
            return f'<g class="dot t-{tone}">{title}<circle cx="{x:.1f}" cy="{y:.1f}" r="10" class="reach"/>{drawn}</g>'
        case Text((x, y), text, tone, anchor, size, bold, turned):
            look = f' text-anchor="{anchor}"' if anchor != "start" else ""
            look += ' font-weight="600"' if bold else ""
            look += f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
            return f'<text class="t-{tone}" x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{look}>{escape(text)}</text>'
        case PictureMark((x, y), side, uri):
            place = f'x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}"'
            return f'<image {place} href="{escape(uri)}" style="image-rendering:pixelated"/>'


def _path(points: Iterable[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
