"""How long `scoreveil audit` takes with its defaults: until its first answer, and until the end.

    python benchmarks/audit_time.py --data-dir DIR [--records N]

The scores are those of the paper's classifier, trained on 10,000 images of CIFAR-10 (as `experiments/` trains it, from
its cache where it is there), of these images and of 10,000 others, with labels. Seconds are those of the clock, and of
the processors, which other work on the machine does not change. Needs Linux.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.data import benchmarks
from experiments.paper.reproduction import PROFILES, ClassifierCache, parts_of
from scoreveil.audit import cache


def write_scores(folder: Path, data: Path | None, records: int) -> list[str]:
    """Scores and labels of members and non-members, as files; the options that name them."""
    profile = PROFILES["standard"]
    parts = parts_of(benchmarks.load("cifar10", data), profile)
    classifiers = ClassifierCache(profile, "cifar10", cache.root())
    options = []
    for name, images in (("member", parts.target_train), ("nonmember", parts.target_test)):
        scores, labels = folder / f"{name}s.npy", folder / f"{name}-labels.npy"
        np.save(scores, classifiers.scores(parts.target_train, profile.seed, images)[:records])
        np.save(labels, images.labels[:records])
        options += [f"--{name}s", str(scores), f"--{name}-labels", str(labels)]
    return options


def processor_seconds(session: int) -> float:
    """What the processes of a session have used so far, with their children that have ended."""
    ticks = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[3]) == session:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(options: list[str], folder: Path) -> None:
    """Run the audit, show what it prints and when."""
    command = [sys.executable, "-c", "from scoreveil.cli import main; main()", "audit", "scores", *options]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "-o", str(folder / "report")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdout is not None
        used = 0.0
        for line in job.stdout:
            now, used = time.perf_counter() - began, max(used, processor_seconds(job.pid))
            print(f"{now:5.0f} s, of processors {used:5.0f} s: {line.rstrip()[:150]}", flush=True)
    print(f"{time.perf_counter() - began:5.0f} s, of processors {used:5.0f} s: done")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--data-dir", type=Path, help="where CIFAR-10 is; else $SCOREVEIL_DATA")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure(write_scores(folder, given.data_dir, given.records), folder)


if __name__ == "__main__":
    main()
