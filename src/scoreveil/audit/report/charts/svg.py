"""A sheet as SVG: in the page's colours by CSS classes, or a file of its own in the light ones."""

from html import escape

from scoreveil.audit.report.charts.marks import LIGHT, Dot, Line, Mark, Picture, Sheet, Text, outline


def svg(sheet: Sheet, alone: bool = False) -> str:
    """`alone`: a file of its own, instead of a part of the page."""
    body = "".join(as_svg(mark) for mark in sheet.marks)
    box = f'viewBox="0 0 {sheet.width:g} {sheet.height:g}" role="img" aria-label="{escape(sheet.title)}"'
    if not alone:
        return f'<svg {box} class="chart">{body}</svg>'
    colours = "".join(f".t-{tone}{{color:{colour}}}" for tone, colour in LIGHT.items())
    font = "text{font-family:system-ui,'Segoe UI',Roboto,Arial,sans-serif}"
    style = f"<style>{font}{colours}.rim{{stroke:#fff;stroke-width:1}}</style>"
    names = f'xmlns="http://www.w3.org/2000/svg" width="{sheet.width:g}" height="{sheet.height:g}"'
    return f'<svg {names} {box}>{style}<rect width="100%" height="100%" fill="#fff"/>{body}</svg>\n'


def as_svg(mark: Mark) -> str:
    match mark:
        case Line(points, tone, width, dash):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dashes = f' stroke-dasharray="{dash}"' if dash else ""
            joins = 'stroke-linejoin="round" stroke-linecap="round"' if not dash else ""
            stroke = f'stroke="currentColor" stroke-width="{width:g}"{dashes} {joins}'
            return f'<polyline class="t-{tone}" fill="none" {stroke} points="{path}"/>'
        case Dot(at, tone, shape, tip):
            told = f"<title>{escape(tip)}</title>" if tip else ""
            corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in outline(at, shape))
            reach = f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="10" fill="transparent"/>'
            drawn = f'<polygon points="{corners}" fill="currentColor" class="rim"/>'
            return f'<g class="dot t-{tone}">{told}{reach}{drawn}</g>'
        case Text((x, y), text, tone, anchor, size, bold, turned):
            turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
            weight = ' font-weight="600"' if bold else ""
            place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:g}"{weight}{turn}'
            return f'<text class="t-{tone}" fill="currentColor" {place}>{escape(text)}</text>'
        case Picture((x, y), side, uri):
            place = f'x="{x:.1f}" y="{y:.1f}" width="{side:g}" height="{side:g}"'
            return f'<image {place} href="{escape(uri)}" style="image-rendering:pixelated"/>'
