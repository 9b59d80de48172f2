"""How long the attacks take: each in every form, on 10,000 members and 10,000 others, for one setting.

    python benchmarks/attacks.py [--records N] [--defense isotonic:2]

Prints a table of processor seconds, which other work on the machine hardly changes, in one thread; attacks from many
shadows are given those. The goal is 120 s for one setting on two cores, training of shadows left out.
"""

import argparse
import sys
import time

import numpy as np

from scoreveil.audit.attacks import ATTACKS, COMPARISONS
from scoreveil.audit.data.records import Floats, Membership, Records
from scoreveil.audit.study.membership import Bench
from scoreveil.audit.study.results import Setting
from scoreveil.audit.study.shadows import ManyShadows, halves
from scoreveil.audit.study.subjects import Subject

CLASSES, SHADOWS = 10, 16


def records(count: int, seed: int, sure: float) -> Records:
    """Scores as of a model that is right, and sure of it, about this share of the records."""
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(CLASSES, 0.1 / sure), count)
    labels = np.where(rng.random(count) < sure, scores.argmax(axis=1), rng.integers(0, CLASSES, count))
    return Records(scores, labels, np.repeat(scores.argmax(axis=1)[:, None], 5, axis=1))


def shadows(count: int, population: Records) -> ManyShadows:
    rng = np.random.default_rng(5)

    def scores(rows: int) -> Floats:
        return rng.dirichlet(np.full(CLASSES, 0.1), (SHADOWS, rows))

    return ManyShadows(scores(2 * count), halves(SHADOWS, 2 * count, 0), population, scores(len(population)))


def measure(count: int, setting: Setting) -> dict[str, float]:
    """Processor seconds by attack, the slowest first."""
    sides = [records(count, seed, sure) for seed, sure in enumerate((1.0, 0.7, 1.0, 0.7))]
    population = records(count // 4, 4, 0.7)
    target, shadow = Membership(*sides[:2]), Membership(*sides[2:])
    subject = Subject(target, shadow, population, many=shadows(count, population))
    found: dict[str, float] = {}
    for name in (*ATTACKS, *COMPARISONS):
        one, compared = ((name,), ()) if name in ATTACKS else ((), (name,))
        began = time.process_time()
        Bench(subject, one, compared, repeats=5, seed=0, cache=None).study_setting(setting, False, True)
        found[name] = time.process_time() - began
        print(f"{name} {found[name]:.1f}", file=sys.stderr, flush=True)
    return dict(sorted(found.items(), key=lambda row: -row[1]))


def table(found: dict[str, float]) -> str:
    rows = [f"| {name} | {seconds:.1f} |" for name, seconds in found.items()]
    return "\n".join(["| attack | processor seconds |", "|---|---:|", *rows, f"| in all | {sum(found.values()):.0f} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--defense", default="none", help="a defense, with :ε where it takes one")
    given = parser.parse_args()
    name, _, epsilon = given.defense.partition(":")
    print(table(measure(given.records, (name, float(epsilon) if epsilon else None))))


if __name__ == "__main__":
    main()
