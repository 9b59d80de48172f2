"""The tables and figures of docs/rivals.md, from the committed results.

python benchmarks/frontier_page.py
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from scoreveil.audit.paper import frontier
from scoreveil.audit.paper.tables import NAMES
from scoreveil.audit.paper.training import Row

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "defenses"
PAGE = ROOT / "docs" / "rivals.md"
START = "<!-- frontier: made from results/defenses by `python benchmarks/frontier_page.py` -->"
END = "<!-- end of frontier -->"


def section(rows: Sequence[Row]) -> str:
    """Claims, then for each dataset a figure and its tables."""
    parts = [frontier.claims(rows), frontier.ABOUT]
    for dataset in dict.fromkeys(row.dataset for row in rows):
        name = NAMES[dataset]
        parts += [
            f"### {name}",
            f"![What each defense leaks on {name}, against what it leaves]({picture(dataset)})",
            "**Ways to train**, alone → behind the optimal veil at ε = 4:",
            frontier.table_training(rows, dataset),
            "**Defenses of the scores** of the plain classifier:",
            frontier.table_afterwards(rows, dataset),
        ]
    return "\n\n".join(parts)


def picture(dataset: str) -> str:
    return f"frontier-{dataset}.svg"


def main() -> None:
    rows = frontier.read(RESULTS)
    before, _, after = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(f"{before}{START}\n\n{section(rows)}\n\n{END}{after.partition(END)[2]}", encoding="utf-8")
    for dataset in dict.fromkeys(row.dataset for row in rows):
        shutil.copyfile(RESULTS / f"{dataset}.svg", PAGE.parent / picture(dataset))


if __name__ == "__main__":
    main()
