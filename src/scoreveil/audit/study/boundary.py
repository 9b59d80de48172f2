"""The floor, raised: what an attacker gets who asks for labels around each record, and sees nothing else.

    results = boundary_floor(predict, members, nonmembers, public, count=100, seed=0)

Each of a sample of records is asked about some 2,500 times (`attacks.boundary`), so this is done once, on the bare
model. A veil that keeps the label changes none of these answers: what is found here holds behind every such veil.
"""

import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.boundary import distances
from scoreveil.audit.data.records import Bools
from scoreveil.audit.study import metrics
from scoreveil.audit.study.models import Data, Predict, part
from scoreveil.audit.study.results import AttackResult
from scoreveil.audit.study.shadows import Progress, silent

GROUP = 50  # records between two reports of progress


def boundary_floor(
    predict: Predict,
    members: Data,
    nonmembers: Data,
    public: Data,
    count: int,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[AttackResult, ...]:
    """The attack without the true label, and with it, on so many members and non-members, or as many as there are.

    Inputs are (n, features) or pictures (n, channels, h, w); walks start at the nearest input with another label.

    Raises:
        ValueError: The inputs are not numbers, or all get the same label.
    """
    rng, began = np.random.default_rng(seed), time.perf_counter()
    size = min(count, len(members[1]), len(nonmembers[1]))
    sides = [part(side, rng.permutation(len(side[1]))[:size]) for side in (members, nonmembers)]
    x, pool = np.concatenate([side[0] for side in sides]), np.concatenate([public[0], *(side[0] for side in sides)])
    own, depth = _depths(predict, x, pool, rng, progress)
    truth = np.arange(len(x)) < size
    right = own == np.concatenate([side[1] for side in sides])
    took = round(time.perf_counter() - began, 3)
    return (
        _judged("label_boundary", False, truth, depth, took, rng),
        _judged("label_boundary_known", True, truth, np.where(right, depth, -depth), took, rng),
    )


def _depths(
    predict: Predict, x: Floats, pool: Floats, rng: np.random.Generator, progress: Progress
) -> tuple[Integers, Floats]:
    """The label of each record, and how far from it the label changes."""
    if not np.issubdtype(pool.dtype, np.number):
        raise ValueError(f"Expected inputs that are numbers for the boundary attack, got dtype {pool.dtype}.")
    asked_as = pool.dtype if np.issubdtype(pool.dtype, np.floating) else np.dtype(np.float64)
    # columns of a table are measured in their own units, pixels all in the same
    spread = pool.std(axis=0, dtype=np.float64) if pool.ndim == 2 else np.float64(1.0)
    unit = np.where(spread > 0, spread, 1.0)

    def label_of(points: Floats) -> Integers:
        return np.asarray(np.argmax(predict((points * unit).astype(asked_as)), axis=1))

    x, pool = x / unit, pool / unit
    low, high = (pool.min(axis=0), pool.max(axis=0)) if pool.ndim == 2 else (pool.min(), pool.max())
    own, depth = label_of(x), np.empty(len(x))
    starts = _starts(x, own, pool, label_of(pool))
    for start in range(0, len(x), GROUP):
        here = slice(start, start + GROUP)
        depth[here] = distances(label_of, x[here], starts[here], low, high, rng)
        progress("records near the boundary", min(start + GROUP, len(x)), len(x))
    return own, depth


def _starts(x: Floats, own: Integers, pool: Floats, labels: Integers) -> Floats:
    """For each record the nearest of the pool with another label."""
    if len(np.unique(labels)) < 2:
        raise ValueError(
            "Expected a model with at least two labels on these records for the boundary attack, got one: give records "
            "of other classes, or leave --boundary out."
        )
    flat, there = x.reshape(len(x), -1), pool.reshape(len(pool), -1)
    squared = (there**2).sum(axis=1) - 2 * flat @ there.T  # less what is the same for every point of the pool
    return np.asarray(pool[np.where(labels == own[:, None], np.inf, squared).argmin(axis=1)])


def _judged(name: str, told: bool, truth: Bools, said: Floats, took: float, rng: np.random.Generator) -> AttackResult:
    """The attack's figures. Where it says "member" is learnt on one half for the other."""
    measured = metrics.membership_metrics(truth, said)
    right = np.zeros(len(truth))
    sides = _halves(truth, rng), _halves(~truth, rng)
    halves = [np.concatenate(both) for both in zip(*sides, strict=True)]
    for learnt, judged in (halves, halves[::-1]):
        tried = np.unique(said[learnt])
        correct = [np.mean((said[learnt] > level) == truth[learnt]) for level in tried]
        right[judged] = (said[judged] > tried[int(np.argmax(correct))]) == truth[judged]
    measured = replace(measured, accuracy=float((right[truth].mean() + right[~truth].mean()) / 2))
    about: dict[str, Any] = {"attack": name, "form": "adaptive", "features": "", "reads": "label"}
    return AttackResult(defense="none", epsilon=None, knows_label=told, seconds=took, **about, **asdict(measured))


def _halves(which: Bools, rng: np.random.Generator) -> tuple[Integers, Integers]:
    order = rng.permutation(np.flatnonzero(which))
    return order[: len(order) // 2], order[len(order) // 2 :]
