"""How long the audit takes.

    python -m benchmarks audit attacks [--records N] [--defense isotonic:2]  each attack, in every form, on one setting
    python -m benchmarks audit risk [--records N]                            the risk of each record
    python -m benchmarks audit whole --data-dir DIR [--records N]            `scoreveil audit` with its defaults

The first two print processor seconds, which other work on the machine hardly changes, in one thread; attacks from many
shadows are given those. The goal is 120 s for one setting on two cores, training of shadows left out. The risk is that
of the slowest attack it may use.

The last says when the first answer came and when all was done, by the clock and of the processors. Its scores are those
of the paper's classifier, trained on 10,000 images of CIFAR-10 (as `experiments/` trains it, from its cache where it is
there), of these images and of 10,000 others, with labels. It needs Linux.
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
from scoreveil.arrays import Floats
from scoreveil.audit import cache
from scoreveil.audit.attacks import ATTACKS, COMPARISONS
from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.study.membership import Bench
from scoreveil.audit.study.results import Setting, setting_name
from scoreveil.audit.study.risk import risk
from scoreveil.audit.study.shadows import ShadowModels, halves
from scoreveil.audit.study.subjects import Subject

CLASSES, SHADOWS = 10, 16
SETTINGS: tuple[Setting, ...] = (("none", None), ("regions", 4.0))


def records(count: int, seed: int, sure: float) -> Records:
    """Scores as of a model that is right, and sure of it, about this share of the records."""
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(CLASSES, 0.1 / sure), count)
    labels = np.where(rng.random(count) < sure, scores.argmax(axis=1), rng.integers(0, CLASSES, count))
    return Records(scores, labels, np.repeat(scores.argmax(axis=1)[:, None], 5, axis=1))


def shadows(count: int, population: Records) -> ShadowModels:
    rng = np.random.default_rng(5)

    def scores(rows: int) -> Floats:
        return rng.dirichlet(np.full(CLASSES, 0.1), (SHADOWS, rows))

    return ShadowModels(scores(2 * count), halves(SHADOWS, 2 * count, 0), population, scores(len(population)))


def measure_attacks(count: int, setting: Setting) -> dict[str, float]:
    """Processor seconds by attack, the slowest first."""
    sides = [records(count, seed, sure) for seed, sure in enumerate((1.0, 0.7, 1.0, 0.7))]
    population = records(count // 4, 4, 0.7)
    target, shadow = Membership(*sides[:2]), Membership(*sides[2:])
    subject = Subject(target, shadow, population, many=shadows(count, population))
    seconds: dict[str, float] = {}
    for name in (*ATTACKS, *COMPARISONS):
        one, compared = ((name,), ()) if name in ATTACKS else ((), (name,))
        began = time.process_time()
        Bench(subject, one, compared, repeats=5, seed=0, cache=None).study_setting(setting, False, True)
        seconds[name] = time.process_time() - began
        print(f"{name} {seconds[name]:.1f}", file=sys.stderr, flush=True)
    return dict(sorted(seconds.items(), key=lambda row: -row[1]))


def table(seconds: dict[str, float]) -> str:
    rows = [f"| {name} | {taken:.1f} |" for name, taken in seconds.items()]
    return "\n".join(
        ["| attack | processor seconds |", "|---|---:|", *rows, f"| in all | {sum(seconds.values()):.0f} |"]
    )


def measure_risk(count: int) -> None:
    membership = Membership(records(count, 0, 1.0), records(count, 1, 0.7))
    for setting in SETTINGS:
        began = time.process_time()
        risk(membership, setting, ATTACKS["random_forest_known"])
        print(f"{setting_name(setting):16} {time.process_time() - began:7.1f} s")


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


def measure_whole(options: list[str], folder: Path) -> None:
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["attacks", "risk", "whole"])
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--defense", default="none", help="of `attacks`: a defense, with :ε where it takes one")
    parser.add_argument("--data-dir", type=Path, help="of `whole`: where CIFAR-10 is; else $SCOREVEIL_DATA")
    options = parser.parse_args()
    if options.what == "attacks":
        name, _, epsilon = options.defense.partition(":")
        print(table(measure_attacks(options.records, (name, float(epsilon) if epsilon else None))))
    elif options.what == "risk":
        measure_risk(options.records)
    else:
        with tempfile.TemporaryDirectory() as folder:
            measure_whole(write_scores(Path(folder), options.data_dir, options.records), Path(folder))


if __name__ == "__main__":
    main()
