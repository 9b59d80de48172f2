"""Attacks that ask the model itself, beyond scores of records: each once, and only where it is wanted.

study = replace(study, **ask(model, members, nonmembers, subject, settings))
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.audit import cache
from scoreveil.audit.study.attributes import Column, infer_column
from scoreveil.audit.study.boundary import boundary_floor
from scoreveil.audit.study.canaries import release_canaries
from scoreveil.audit.study.models import Data, Model, held_out
from scoreveil.audit.study.results import AttackResult, Setting, restored
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import Subject
from scoreveil.files.inputs import column_number
from scoreveil.fitting import neighbours
from scoreveil.smoothing import Smoothing

VERSION = 1  # of what is kept on disk
TOO_SLOW = ("memguard",)  # milliseconds a vector
NEIGHBOURS, MIN_NEIGHBOURS = 300, 50  # records of each side that are asked around, where a model takes tables


def ask(
    model: Model,
    members: Data,
    nonmembers: Data,
    subject: Subject,
    settings: Iterable[Setting],
    seed: int = 0,
    directory: Path | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """What the questions that the model wants found, as fields of a `Study`.

    The subject has the same model's scores, as `from_model` made them with the same seed. The boundary attack's results
    are kept in the directory, since they take long.
    """
    public, others, _ = held_out(nonmembers, np.random.default_rng(seed))
    quick, fields = [one for one in settings if one[0] not in TOO_SLOW], dict[str, Any]()
    if model.canaries:
        fields["canaries"] = release_canaries(
            model.factory, members, others, public, quick, model.canaries, seed, progress
        )
    if model.sensitive is not None:
        own = public if model.auxiliary is None else _joined(public, model.auxiliary)
        known, column = subject.for_fitting(), _column(model, members)
        fields["attributes"] = infer_column(
            model.ask, members, others, own, column, quick, lambda epsilon: known.given(seed, epsilon), seed, progress
        )
    if around := _around(model, members, nonmembers):
        smoothing = Smoothing(typical=public[0], seed=seed)
        fields["smoothing"] = neighbours.tried(model.ask, members, others, smoothing, around)
    if model.boundary:

        def make() -> tuple[AttackResult, ...]:
            return boundary_floor(model.ask, members, others, public, model.boundary, seed, progress)

        name = cache.key("boundary", VERSION, subject.digest, model.boundary, seed)
        fields["boundary"] = make() if directory is None else _kept(name, make, directory)
    return fields


def _around(model: Model, members: Data, nonmembers: Data) -> int:
    """How many records of each side are asked around: of a table by default, since pictures are slow to ask about."""
    if model.neighbours is not None:
        return model.neighbours
    fewest = min(NEIGHBOURS, len(members[1]), len(nonmembers[1]) // 2)
    return fewest if np.ndim(members[0]) == 2 and fewest >= MIN_NEIGHBOURS else 0


def _column(model: Model, members: Data) -> Column:
    """The sensitive column, by the names that a file's columns have; else by number."""
    shape = np.shape(members[0])
    if len(shape) != 2:
        raise ValueError("A sensitive column is one of a table, and these inputs are none.")
    name = str(model.sensitive)
    return Column(column_number(name, model.columns, shape[1]), name)


def _kept(name: str, make: Callable[[], tuple[AttackResult, ...]], directory: Path) -> tuple[AttackResult, ...]:
    kept = cache.kept_json("cells", name, lambda: {"rows": [asdict(row) for row in make()]}, directory)
    return tuple(restored(AttackResult, row) for row in kept["rows"])


def _joined(one: Data, other: Data) -> Data:
    return np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])
