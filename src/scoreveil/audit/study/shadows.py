"""Many shadow models, for LiRA and its kin: each is trained on a half of the records under attack.

    many = shadow_models(train, len(records), population, count=16, seed=0, jobs=2)

Halves come in pairs, one the complement of the other, so that every record is inside exactly half of the shadows. They
are trained through joblib, in its current backend: `joblib.parallel_config("ray")` trains them on a cluster.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import joblib
import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.records import Bools, Records, digest

Progress = Callable[[str, int, int], None]  # what was done, how many steps are, of how many
Train = Callable[[Integers, int], tuple[Floats, Floats]]
"""Train on these of the records, with this seed; scores of all the records, and of the population."""


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody is told."""


def part(progress: Progress, first: float, last: float) -> Progress:
    """Progress of a part of the work, from one fraction of the whole to another."""

    def told(what: str, done: int, total: int) -> None:
        progress(what, round(1000 * (first + (last - first) * done / total)), 1000)

    return told


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """Undefended scores of the target's records, members first, and of a population that nobody was trained on."""

    of_records: Floats  # (shadows, n, k)
    inside: Bools  # (shadows, n): whether the shadow was trained on the record
    population: Records  # under the target
    of_population: Floats  # (shadows, population, k)

    def take(self, index: Integers) -> "ShadowModels":
        """Some of the target's records."""
        return replace(self, of_records=self.of_records[:, index], inside=self.inside[:, index])

    @cached_property
    def digest(self) -> str:
        return digest(self.of_records, self.inside, self.population.scores, self.of_population)


def halves(count: int, records: int, seed: int) -> Bools:
    """Who is inside which of `count` shadows, (count, records)."""
    if count < 4 or count % 2:
        raise ValueError(f"Expected an even number of shadows, 4 or more, got {count}.")
    inside = np.zeros((count, records), dtype=bool)
    for pair in range(0, count, 2):
        inside[pair, np.random.default_rng([seed, pair]).permutation(records)[: records // 2]] = True
        inside[pair + 1] = ~inside[pair]
    return inside


def shadow_models(
    train: Train, records: int, population: Records, count: int, seed: int, jobs: int, progress: Progress = silent
) -> ShadowModels:
    """Train them all. `train` goes to other processes, so it is a function or object that can be pickled."""
    inside = halves(count, records, seed)
    # a shadow's seed is none of the target's
    jobs_to_do = (joblib.delayed(train)(np.flatnonzero(row), seed + 100 + i) for i, row in enumerate(inside))
    of_records, of_population = [], []
    for own, others in joblib.Parallel(n_jobs=min(jobs, count), return_as="generator")(jobs_to_do):
        of_records.append(own)
        of_population.append(others)
        progress("a shadow model", len(of_records), count)
    return ShadowModels(np.stack(of_records), inside, population, np.stack(of_population))
