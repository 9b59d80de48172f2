"""What a veil is fitted on: scores and labels as arrays, tensors, DataFrames or files."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms.ordering import rank
from scoreveil.mechanisms.scores import checked_rows, to_numpy

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Scored:
    """Score vectors, and the number of the right class of each where labels were given."""

    scores: Floats  # (n, k), summing to 1
    labels: Integers | None  # (n,)

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def classes(self) -> int:
        return int(self.scores.shape[1])

    @property
    def predicted(self) -> Integers:
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def is_right(self) -> NDArray[np.bool_]:
        if self.labels is None:
            raise ValueError("These records have no labels.")
        return np.asarray(self.predicted == self.labels)

    def take(self, index: Any) -> "Scored":
        return Scored(self.scores[index], None if self.labels is None else self.labels[index])

    def kept(self, keep: int) -> Integers:
        """The top classes of each record, best first."""
        if keep == 1:
            return self.predicted[:, None]
        return np.asarray(np.flip(rank(self.scores)[:, self.classes - keep :], axis=1))


def read(scores: Any, labels: Any, who: str) -> Scored:
    """Checked scores and labels of one side.

    Raises:
        ValueError: They are not score vectors, or not the numbers of classes; the message names side and row.
    """
    try:
        rows = checked_rows(_scores(scores))
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from None
    if not len(rows):
        raise ValueError(f"{who}: there are no records; at least one is needed.")
    rows /= rows.sum(axis=1, keepdims=True)
    return Scored(rows, None if labels is None else _labels(labels, len(rows), rows.shape[1], f"labels of {who}"))


def read_both(
    nonmembers: Any, nonmember_labels: Any = None, members: Any = None, member_labels: Any = None
) -> tuple[Scored, Scored | None]:
    """Both sides, as `fit` takes them, checked against each other.

    Raises:
        ValueError: As `read`; or the sides do not go together.
    """
    if nonmembers is None:
        raise ValueError(
            "Expected scores of nonmembers: what is useful is measured on records that were not trained on."
        )
    if member_labels is not None and members is None:
        raise ValueError("member_labels were given without members; give their scores too.")
    if member_labels is not None and nonmember_labels is None:
        raise ValueError("member_labels were given without nonmember_labels; both sides are needed to compare them.")
    others = read(nonmembers, nonmember_labels, "nonmembers")
    if members is None:
        return others, None
    inside = read(members, member_labels, "members")
    if inside.classes != others.classes:
        raise ValueError(f"members have {inside.classes} classes, nonmembers {others.classes}; they must be the same.")
    return others, inside


def _scores(given: Any) -> Any:
    if isinstance(given, (str, os.PathLike)):
        from scoreveil import files

        return files.sample(given)[0]
    return given.to_numpy() if hasattr(given, "to_numpy") else given


def _column(path: Path, who: str) -> Floats:
    """The numbers of a file with one on each line, below a header or without one."""
    lines = path.read_text(encoding="utf-8").split()
    try:
        float(lines[0] if lines else "")
    except ValueError:
        lines = lines[1:]
    try:
        return np.array([float(line) for line in lines])
    except ValueError:
        raise ValueError(f"{who}: {path.name} has lines that are not the number of a class.") from None


def _labels(given: Any, n: int, k: int, who: str) -> Integers:
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        if path.suffix == ".npy":
            given = np.load(path, allow_pickle=False)
        elif path.suffix in (".csv", ".txt"):
            given = _column(path, who)
        else:
            raise ValueError(f"{who}: expected a .npy file, or a .csv file of one column, got {path.name}.")
    found = np.asarray(to_numpy(given.to_numpy() if hasattr(given, "to_numpy") else given))
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.shape != (n,):
        raise ValueError(f"{who}: expected {n} of them, one for each record, got shape {found.shape}.")
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{who}: expected numbers of classes, 0 to {k - 1}, got {found.dtype}.")
    wrong = np.nonzero(~((found >= 0) & (found < k) & (found == np.floor(found))))[0]
    if len(wrong):
        raise ValueError(f"{who}: row {wrong[0]} is not the number of a class, 0 to {k - 1}.")
    return found.astype(np.int64)
