"""Draws docs/veil.svg, the README's picture: what scores give away behind several veils, and what they are still worth.

Run it as `.venv/bin/python docs/picture.py`. The classifier, its training records and the others are the demo's.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil import Veil, demo, fit
from scoreveil.fitting.cost import auroc, label_with_constant_confidence
from scoreveil.fitting.records import Scored

EPSILONS = (4.0, 2.0)
ANSWERS = 50  # for each record

WIDTH, ROW, TOP, BAR = 580, 36, 84, 22
LEAK, WORTH, ROOM = 110, 370, 150  # where the two charts begin, and how wide they are
TITLE = "Behind the fitted veil an attacker can tell next to nothing, and the confidence is still worth something"
LEAKS, WORTHS, INK = "#d9622b", "#5b7fb0", "#757d87"


@dataclass(frozen=True)
class Row:
    """What one veil makes of the scores."""

    name: str
    told: float  # how often the confidence tells a training record from another one; a coin: .5
    useful: float  # how often it tells a right answer from a wrong one; a coin: .5
    relabelled: int  # answers whose label changed


def measured() -> list[Row]:
    scores = demo.forest()
    known = Scored(scores.reference, scores.reference_labels)
    trained, others = (np.repeat(rows, ANSWERS, axis=0) for rows in (scores.members, scores.others))
    right = others.argmax(axis=1) == np.repeat(scores.labels, ANSWERS)

    def row(name: str, answer: Any) -> Row:
        members, answers = answer(trained).max(axis=1), answer(others)
        sure = answers.max(axis=1)
        changed = int(np.count_nonzero(answers.argmax(axis=1) != others.argmax(axis=1)))
        return Row(name, auroc(members, sure), auroc(sure[right], sure[~right]), changed)

    def veil(epsilon: float | None = None) -> Veil:
        rng = np.random.default_rng(0)
        given = known.scores, known.labels, scores.members, scores.member_labels
        return Veil(fit(*given, epsilon=epsilon, rng=rng).mechanism, rng=rng)

    veiled = [row("fitted veil", veil()), *(row(f"with ε = {epsilon:g}", veil(epsilon)) for epsilon in EPSILONS)]
    return [row("raw scores", lambda rows: rows), *veiled, row("label alone", label_with_constant_confidence(known))]


def svg(rows: list[Row]) -> str:
    height = TOP + len(rows) * ROW + 14
    body = "\n".join([
        _text(LEAK, 20, "What leaks", 16, 600),
        _text(LEAK, 40, "How often an attacker tells a training"),
        _text(LEAK, 58, "record from another; a coin: 50 %."),
        _text(WORTH, 20, "What is left", 16, 600),
        _text(WORTH, 40, "How often a right answer is surer than"),
        _text(WORTH, 58, "a wrong one. No label changes."),
        *(_row(at, row) for at, row in enumerate(rows)),
    ])  # fmt: skip
    figures = "; ".join(f"{row.name}: told apart {row.told:.3f}, useful {row.useful:.3f}" for row in rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" role="img">\n'
        f"<title>{TITLE}</title>\n"
        f"<desc>{figures}</desc>\n{body}\n</svg>\n"
    )


def _row(at: int, row: Row) -> str:
    y = TOP + at * ROW
    return "\n".join([
        _text(4, y + 16, row.name, 15, 600),
        _bar(LEAK, y, (row.told - 0.5) / 0.5, LEAKS, f"{100 * row.told:.0f} %"),
        _bar(WORTH, y, (row.useful - 0.5) / 0.5, WORTHS, f"{100 * row.useful:.0f} %"),
    ])  # fmt: skip


def _bar(x: int, y: int, part: float, color: str, label: str) -> str:
    room = f'<rect x="{x}" y="{y}" width="{ROOM}" height="{BAR}" rx="3" fill="{INK}" fill-opacity=".15"/>'
    filled = f'<rect x="{x}" y="{y}" width="{ROOM * max(part, 0):.1f}" height="{BAR}" rx="3" fill="{color}"/>'
    return "\n".join([room, filled, _text(x + ROOM + 8, y + 16, label, 15, 600)])


def _text(x: int, y: int, words: str, size: int = 13, weight: int = 400) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{INK}">{words}</text>'


def main() -> None:
    Path(__file__).with_name("veil.svg").write_text(svg(measured()), encoding="utf-8")


if __name__ == "__main__":
    main()
