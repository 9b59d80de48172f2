"""How long the attacks take: every one in the table, in every form, on 10,000 members and 10,000 others.

    python benchmarks/attacks.py [--records N] [--defense published:2]

Prints a table; the goal is 90 seconds on two cores for one setting.
"""

import argparse
import time

import numpy as np

from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.study import run as study
from scoreveil.audit.study.run import StudyPlan
from scoreveil.audit.study.subjects import Subject

CLASSES = 10


def records(count: int, seed: int, sure: float) -> Records:
    """Scores as of a model that is right, and sure of it, about this share of the records."""
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(CLASSES, 0.1 / sure), count)
    labels = np.where(rng.random(count) < sure, scores.argmax(axis=1), rng.integers(0, CLASSES, count))
    return Records(scores, labels, np.repeat(scores.argmax(axis=1)[:, None], 5, axis=1))


def measure(count: int, settings: tuple[tuple[str, float | None], ...]) -> tuple[float, dict[str, float]]:
    """Seconds in all, and by attack."""
    sides = [records(count, seed, sure) for seed, sure in enumerate((1.0, 0.7, 1.0, 0.7))]
    subject = Subject(Membership(*sides[:2]), Membership(*sides[2:]), records(count // 2, 4, 0.7))
    began = time.perf_counter()
    found = study.run(subject, StudyPlan(settings=settings, jobs=2))
    total = time.perf_counter() - began
    by_attack: dict[str, float] = {}
    for result in found.results:
        by_attack[result.attack] = by_attack.get(result.attack, 0.0) + result.seconds
    return total, by_attack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--defense", default="none", help="a defense, with :ε where it takes one")
    given = parser.parse_args()
    name, _, epsilon = given.defense.partition(":")
    settings: tuple[tuple[str, float | None], ...] = (("none", None),)
    if name != "none":
        settings = (*settings, (name, float(epsilon) if epsilon else None))
    total, by_attack = measure(given.records, settings)
    for attack, seconds in sorted(by_attack.items(), key=lambda row: -row[1]):
        print(f"{attack:24} {seconds:7.1f} s")
    print(f"{'in all, wall time':24} {total:7.1f} s")


if __name__ == "__main__":
    main()
