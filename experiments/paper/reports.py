"""The reports of the committed results, with every figure: they are too large to be committed too.

    python -m experiments.paper.reports -o reports

ROC curves show the best attacks on each setting, whose curves the results keep.
"""

import argparse
from pathlib import Path

from scoreveil.audit.report import page
from scoreveil.audit.study.results import from_json

RESULTS = Path(__file__).resolve().parents[2] / "results" / "standard"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("reports"))
    parser.add_argument("--dataset", choices=sorted(path.parent.name for path in RESULTS.glob("*/results.json")))
    given = parser.parse_args()
    for path in sorted(RESULTS.glob(f"{given.dataset or '*'}/results.json")):
        print(page.write(from_json(path.read_text(encoding="utf-8")), given.output / path.parent.name))


if __name__ == "__main__":
    main()
