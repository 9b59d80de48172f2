"""Draws docs/veil.svg, the README's picture: what scores give away for several ε, and what hiding it costs.

Run it as `.venv/bin/python docs/picture.py`. The classifier, its training records and the others are the demo's.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from scoreveil import Veil, demo

EPSILONS = (8.0, 2.0, 0.5)
ANSWERS = 200  # for each training record, of which there are few; a tenth of that for each other record

WIDTH, ROW, TOP, BAR = 580, 36, 84, 22
LEAK, COST, ROOM = 110, 370, 150  # where the two charts begin, and how wide they are
MOST_MOVED = 0.25  # where the right chart ends
LEAKS, COSTS, INK = "#d9622b", "#5b7fb0", "#757d87"


@dataclass(frozen=True)
class Row:
    """What one ε makes of the scores."""

    name: str
    told: float  # how often the top score tells a training record from another one; a coin: .5
    moved: float  # mean ‖z - y‖₂ over the other records
    relabelled: int  # answers whose label changed


def measured() -> list[Row]:
    scores = demo.classify()
    trained, others = np.repeat(scores.members, ANSWERS, axis=0), np.repeat(scores.others, ANSWERS // 10, axis=0)

    def row(name: str, defense: Any) -> Row:
        from_trained, from_others = defense(trained), defense(others)
        tops = np.concatenate([from_trained.max(axis=1), from_others.max(axis=1)])
        return Row(
            name,
            told=float(roc_auc_score(np.repeat([1, 0], [len(trained), len(others)]), tops)),
            moved=float(np.linalg.norm(from_others - others, axis=1).mean()),
            relabelled=int(np.count_nonzero(from_others.argmax(axis=1) != others.argmax(axis=1))),
        )

    veils = {f"ε = {e:g}": Veil(e, reference=scores.reference, rng=np.random.default_rng(0)) for e in EPSILONS}
    return [row("bare scores", lambda rows: rows), *(row(name, veil) for name, veil in veils.items())]


def svg(rows: list[Row]) -> str:
    height = TOP + len(rows) * ROW + 14
    body = "\n".join([
        _text(LEAK, 20, "What leaks", 16, 600),
        _text(LEAK, 40, "How often an attacker tells a training"),
        _text(LEAK, 58, "record from another; a coin: 50 %."),
        _text(COST, 20, "What it costs", 16, 600),
        _text(COST, 40, "How far the scores move."),
        _text(COST, 58, "No label changes."),
        *(_row(at, row) for at, row in enumerate(rows)),
    ])  # fmt: skip
    figures = "; ".join(f"{row.name}: told apart {row.told:.3f}, moved {row.moved:.3f}" for row in rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" role="img">\n'
        "<title>The smaller ε, the less an attacker can tell from the scores, and the further they move</title>\n"
        f"<desc>{figures}</desc>\n{body}\n</svg>\n"
    )


def _row(at: int, row: Row) -> str:
    y = TOP + at * ROW
    return "\n".join([
        _text(4, y + 16, row.name, 15, 600),
        _bar(LEAK, y, (row.told - 0.5) / 0.5, LEAKS, f"{100 * row.told:.0f} %"),
        _bar(COST, y, row.moved / MOST_MOVED, COSTS, f"{row.moved:.2f}"),
    ])  # fmt: skip


def _bar(x: int, y: int, part: float, color: str, label: str) -> str:
    room = f'<rect x="{x}" y="{y}" width="{ROOM}" height="{BAR}" rx="3" fill="{INK}" fill-opacity=".15"/>'
    filled = f'<rect x="{x}" y="{y}" width="{ROOM * part:.1f}" height="{BAR}" rx="3" fill="{color}"/>'
    return "\n".join([room, filled, _text(x + ROOM + 8, y + 16, label, 15, 600)])


def _text(x: int, y: int, words: str, size: int = 13, weight: int = 400) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{INK}">{words}</text>'


def main() -> None:
    Path(__file__).with_name("veil.svg").write_text(svg(measured()), encoding="utf-8")


if __name__ == "__main__":
    main()
