"""The tables and figures of docs/rivals.md, from the committed results.

python -m experiments.frontier.page
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from experiments.frontier import comparison
from experiments.frontier.training import Row
from experiments.paper.tables import NAMES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "defenses"
PAGE = ROOT / "docs" / "rivals.md"
START = "<!-- frontier: made from results/defenses by `python -m experiments.frontier.page` -->"
END = "<!-- end of frontier -->"


def section(rows: Sequence[Row]) -> str:
    """Claims, then for each dataset a figure and its tables."""
    parts = [comparison.claims(rows), comparison.ABOUT]
    for dataset in dict.fromkeys(row.dataset for row in rows):
        name = NAMES[dataset]
        parts += [
            f"### {name}",
            f"![What each defense leaks on {name}, against what it leaves]({picture(dataset)})",
            "**Ways to train**, alone → behind the optimal veil at ε = 4:",
            comparison.table_training(rows, dataset),
            "**Defenses of the scores** of the plain classifier:",
            comparison.table_afterwards(rows, dataset),
        ]
    return "\n\n".join(parts)


def picture(dataset: str) -> str:
    return f"frontier-{dataset}.svg"


def main() -> None:
    rows = comparison.read(RESULTS)
    before, _, after = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(f"{before}{START}\n\n{section(rows)}\n\n{END}{after.partition(END)[2]}", encoding="utf-8")
    for dataset in dict.fromkeys(row.dataset for row in rows):
        shutil.copyfile(RESULTS / f"{dataset}.svg", PAGE.parent / picture(dataset))


if __name__ == "__main__":
    main()
