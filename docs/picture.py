"""Draws docs/veil.svg, the README's picture: one score vector of the demo's classifier, before and after.

Run it as `.venv/bin/python docs/picture.py`.
"""

from pathlib import Path

from scoreveil import demo
from scoreveil.veil import Veil

BAR, GAP, HEIGHT, TOP = 18, 6, 150, 46
TRUTH, OTHER, INK = "#c2410c", "#64748b", "#6b7280"


def panel(x: int, title: str, subtitle: str, scores: list[float]) -> str:
    top = max(range(len(scores)), key=scores.__getitem__)
    parts = [
        f'<text x="{x}" y="16" font-size="14" font-weight="600" fill="{INK}">{title}</text>',
        f'<text x="{x}" y="34" font-size="12" fill="{INK}">{subtitle}</text>',
    ]
    for i, score in enumerate(scores):
        left, high = x + i * (BAR + GAP), max(1.0, score * HEIGHT)
        color = TRUTH if i == top else OTHER
        y = TOP + HEIGHT - high
        parts.append(f'<rect x="{left}" y="{y:.1f}" width="{BAR}" height="{high:.1f}" rx="2" fill="{color}"/>')
        middle, base = left + BAR / 2, TOP + HEIGHT + 15
        parts.append(f'<text x="{middle}" y="{base}" font-size="11" text-anchor="middle" fill="{INK}">{i}</text>')
    return "\n".join(parts)


def main() -> None:
    scored = demo.classify()
    before = demo.run().picture.before
    held_out = scored.reference
    panels = [
        ("The model's scores", "as it gives them", before),
        ("ε = 8", "isotonic, with a reference", Veil(8.0, reference=held_out)(before)),
        ("ε = 0.5", "what is typical for the label", Veil(0.5, reference=held_out)(before)),
    ]
    width = 10 * (BAR + GAP) + 30
    body = "\n".join(panel(10 + i * width, *shown[:2], list(shown[2])) for i, shown in enumerate(panels))
    size = f'width="{3 * width}" height="{TOP + HEIGHT + 24}"'
    Path(__file__).with_name("veil.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" role="img">\n'
        f"<title>One score vector of a digit classifier, before and after the veil</title>\n{body}\n</svg>\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
