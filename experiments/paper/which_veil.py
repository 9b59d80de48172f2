"""The table of docs/which-veil.md, from the committed results.

python -m experiments.paper.which_veil
"""

from pathlib import Path

from experiments.paper import tables
from experiments.paper.reproduction import DATASETS
from scoreveil.audit.study.results import from_json

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "which-veil.md"
START = "<!-- which veil: made from results/standard by `python -m experiments.paper.which_veil` -->"
END = "<!-- end of which veil -->"


def main() -> None:
    results = ROOT / "results" / "standard"
    studies = {name: from_json((results / name / "results.json").read_text(encoding="utf-8")) for name in DATASETS}
    before, _, after = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(f"{before}{START}\n\n{tables.worth(studies)}\n\n{END}{after.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
