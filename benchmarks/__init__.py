"""What is measured, as ratios taken in one run: `python -m benchmarks` names the benchmarks. Run them in the clone."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# for processes that run a file of ours: other packages, too, install something that is called `benchmarks`
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
