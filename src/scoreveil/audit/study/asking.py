"""Attacks that ask the model itself, beyond scores of records: each once, and only where it is wanted.

extra = ask(questions, asked, subject, settings, seed)
study = replace(study, **extra)
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.audit import cache
from scoreveil.audit.study.attributes import Column, infer_column
from scoreveil.audit.study.boundary import boundary_floor
from scoreveil.audit.study.canaries import release_canaries
from scoreveil.audit.study.results import AttackResult, Setting, kept_result
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import Data, Factory, Predict, Subject, held_out
from scoreveil.fitting import neighbours
from scoreveil.smoothing import Smoothing

VERSION = 1  # of what is kept on disk
TOO_SLOW = ("memguard",)  # milliseconds a vector


@dataclass(frozen=True)
class Questions:
    """What to ask.

    boundary   how many members, and how many non-members, the label's boundary is looked for around; 0 for none
    sensitive  a column of the table to be inferred
    canaries   how many records are put into a training set by the toss of a coin; 0 for none
    neighbours how many members, and how many non-members, are asked around, with smoothing and without; 0 for none
    """

    boundary: int = 0
    sensitive: Column | None = None
    canaries: int = 0
    neighbours: int = 0

    def __post_init__(self) -> None:
        if self.boundary < 0 or 0 < self.boundary < 10:
            raise ValueError(
                f"Expected 10 or more records for the boundary attack, or 0 for none, got {self.boundary}."
            )
        if self.neighbours < 0 or 0 < self.neighbours < 50:
            raise ValueError(f"Expected 50 or more records to ask around, or 0 for none, got {self.neighbours}.")
        if self.canaries < 0:
            raise ValueError(f"Expected 0 or more canaries, got {self.canaries}.")

    def __bool__(self) -> bool:
        return bool(self.boundary or self.sensitive or self.canaries or self.neighbours)


@dataclass(frozen=True, eq=False)
class Asked:
    """A model, what it was trained on and what not, the attacker's own data, and how such a model is made."""

    predict: Predict
    members: Data
    nonmembers: Data
    auxiliary: Data | None = None
    architecture: Factory | None = None


def ask(
    questions: Questions,
    asked: Asked,
    subject: Subject,
    settings: Iterable[Setting],
    seed: int = 0,
    directory: Path | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The fields of a `Study` that hold what was found.

    Args:
        questions: What to ask.
        asked: Whom.
        subject: The same model's scores, as `subjects.from_model` made them with the same seed.
        settings: Defenses, each with its ε or None.
        seed: Of samples, walks and coins.
        directory: Where the boundary attack's results are kept, since they take long.
        progress: Told about each step.
    """
    public, others, _ = held_out(asked.nonmembers, np.random.default_rng(seed))
    quick = [one for one in settings if one[0] not in TOO_SLOW]
    found: dict[str, Any] = {}
    if questions.canaries:
        if asked.architecture is None:
            raise ValueError(
                f"{questions.canaries} canaries need a model to be trained with them: give an architecture."
            )
        found["canaries"] = release_canaries(
            asked.architecture, asked.members, others, public, quick, questions.canaries, seed, progress
        )
    if questions.sensitive is not None:
        own = public if asked.auxiliary is None else _joined(public, asked.auxiliary)
        known = subject.for_fitting()
        found["attributes"] = infer_column(
            asked.predict, asked.members, others, own, questions.sensitive, quick,
            lambda epsilon: known.given(seed, epsilon), seed, progress,
        )  # fmt: skip
    if questions.neighbours:
        found["smoothing"] = neighbours.tried(
            asked.predict, asked.members, others, Smoothing(typical=public[0], seed=seed), questions.neighbours
        )
    if questions.boundary:

        def make() -> tuple[AttackResult, ...]:
            return boundary_floor(asked.predict, asked.members, others, public, questions.boundary, seed, progress)

        name = cache.key("boundary", VERSION, subject.digest, questions.boundary, seed)
        found["boundary"] = make() if directory is None else _kept(name, make, directory)
    return found


def _kept(name: str, make: Any, directory: Path) -> tuple[AttackResult, ...]:
    kept = cache.kept_json("cells", name, lambda: {"rows": [asdict(row) for row in make()]}, directory)
    return tuple(kept_result(row) for row in kept["rows"])


def _joined(one: Data, other: Data) -> Data:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])
