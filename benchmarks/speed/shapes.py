"""What a shape costs: CPU time of a released vector, against plain score vectors of as many classes.

    python -m benchmarks shapes

Each shape and its plain counterpart are measured in turns, in one process, and the least of each is compared: other
work on the machine can only make a turn longer. Prints the table of docs/shapes.md.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scoreveil import Veil
from scoreveil.mechanisms import loading
from scoreveil.shapes import VECTORS, Binary, MultiLabel, Shape, TopK

EPSILON = 0.5


@dataclass(frozen=True)
class Case:
    """A shape with scores, and plain vectors to compare with."""

    name: str
    shape: Shape
    scores: Any
    plain_name: str
    plain: Any

    @property
    def vectors(self) -> int:
        return int(self.plain.size // self.plain.shape[-1])


def cases(vectors: int) -> list[Case]:
    """As many vectors of each shape."""
    rng = np.random.default_rng(0)
    p = rng.random(vectors)
    two = np.stack([1 - p, p], axis=1)
    many = rng.dirichlet(np.full(100, 0.1), vectors)
    top = rng.permuted(-np.sort(-many, axis=1)[:, :5], axis=1)
    labels = p.reshape(-1, 10)
    return [
        Case("one column", Binary(), p, "2 classes", two),
        Case("one column, threshold 0.3", Binary(0.3), p, "2 classes", two),
        Case("one column of logits", Binary(logits=True), rng.normal(size=vectors), "2 classes", two),
        Case("ten labels", MultiLabel(), labels, "2 classes", two),
        Case("ten labels, float32", MultiLabel(), labels.astype(np.float32), "2 classes", two),
        Case("the 5 largest", TopK(), top, "5 classes", top / top.sum(axis=1, keepdims=True)),
        Case("the 5 largest of 100", TopK(100), top, "100 classes", many),
        Case("ten places", VECTORS, many.reshape(-1, 10, 100), "100 classes", many),
    ]


def least(jobs: list[Callable[[], Any]], rounds: int) -> list[float]:
    """The least CPU seconds of each job, taken in turns."""
    best = [float("inf")] * len(jobs)
    for _ in range(rounds):
        for i, job in enumerate(jobs):
            started = time.process_time()
            job()
            best[i] = min(best[i], time.process_time() - started)
    return best


def measured(case: Case, rounds: int) -> tuple[float, float]:
    """Seconds of a released vector: of the shape, and of plain vectors."""
    shaped, plain = Veil(EPSILON, shape=case.shape), Veil(EPSILON)
    found = least([lambda: shaped(case.scores), lambda: plain(case.plain)], rounds)
    return found[0] / case.vectors, found[1] / case.vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    loading.wait()
    print("| shape | ns a vector | plain vectors | ns a vector | ratio |")
    print("|---|---:|---|---:|---:|")
    for case in cases(given.vectors):
        shaped, plain = measured(case, given.rounds)
        print(f"| {case.name} | {shaped * 1e9:.0f} | {case.plain_name} | {plain * 1e9:.0f} | {shaped / plain:.2f} |")


if __name__ == "__main__":
    main()
