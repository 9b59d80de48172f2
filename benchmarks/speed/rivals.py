"""What people would use instead, on the same batch: k = 10, float64, one thread, run in turns with ours.

Rivals run in processes of their own (`rival_worker.py`): numpy and torch in our environment, the others in
.venv-rivals, whose pinned versions (rivals.txt) would clash with ours.
"""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ENVIRONMENT
from benchmarks.speed.batches import CLASSES, scores
from benchmarks.speed.rival_worker import RIVALS
from benchmarks.speed.table import veil
from benchmarks.speed.timing import Contestant, Effort, figures, interleave, significant, timed

HERE = Path(__file__).resolve().parent
PINS = HERE / "rivals.txt"
VENV = HERE.parents[1] / ".venv-rivals"
OURS = ("isotonic keep=1", "published")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Worker:
    """A process with rivals in it, which runs one of them when asked."""

    def __init__(self, python: Path, group: str, rows: int, few: int) -> None:
        self._process = subprocess.Popen(
            [str(python), str(HERE / "rival_worker.py"), group, str(rows), str(few)],
            env={**ENVIRONMENT, **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.offer: list[dict[str, Any]] = json.loads(self._answer())

    def contestant(self, name: str) -> Contestant:
        def run() -> float:
            assert self._process.stdin is not None
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()
            return float(self._answer())

        return run

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Expected an answer from the rivals' process, got exit code {self._process.wait()}.")
        return line


def measure(rows: int, few: int, effort: Effort, install: bool) -> list[dict[str, Any]]:
    """Every rival with its time for a row and the ratios to ours; or the reason why it did not run."""
    workers, absent = [Worker(Path(sys.executable), "here", rows, few)], []
    python, reason = environment(install)
    if python is not None:
        workers.append(Worker(python, "apart", rows, few))
    else:
        absent = [{"name": r.name, "covers": r.covers, "package": r.package, "reason": reason} for r in RIVALS["apart"]]
    batch = scores(rows, CLASSES, "float64")
    contestants = {name: timed(partial(veil(name, CLASSES), batch)) for name in OURS}
    for worker in workers:
        for rival in worker.offer:
            if "reason" not in rival:
                contestants[rival["name"]] = worker.contestant(rival["name"])
    seconds = interleave(contestants, effort)
    for worker in workers:
        worker.close()

    ours = [{"name": name, "covers": "the whole call", **figures(seconds[name], rows)} for name in OURS]
    results = [dict(rival) for worker in workers for rival in worker.offer]
    for rival in results:
        if "reason" not in rival:
            rival |= figures(seconds[rival["name"]], rival["rows"])
            for mine in ours:
                rival[f"ratio_to_{mine['name']}"] = significant(rival["ns_per_row"] / mine["ns_per_row"])
    return [*ours, *results, *absent]


def environment(install: bool) -> tuple[Path | None, str]:
    """The interpreter of .venv-rivals, made when it is missing or its pins have changed; or None and the reason."""
    python, stamp = VENV / "bin" / "python", VENV / "installed.txt"
    wanted = PINS.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return python, ""
    if not install:
        return None, "not installed in this run (--no-install)"
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(PINS)],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
            return None, f"installation failed: {said[-1]}"
    stamp.write_text(wanted)
    return python, ""
