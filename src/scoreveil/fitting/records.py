"""What a veil is fitted on and an audit attacks: scores and labels as arrays, tensors, DataFrames or files.

    sides, note = read_sides({"members": (inn, y_in), "nonmembers": ("out.csv", "out.csv")}, columns="p_*")

Labels are numbers of classes, or their names. Names are matched with those of the score columns, also without what all
of these begin with (`p_cat` is cat); where the columns have none, in sorted order, as scikit-learn has its classes.

Scores of another shape are read as the vectors that they stand for, those of a record after each other. Where a record
has several, its labels are a row of a matrix: 0 or 1 for each of many labels, the number of a class for each place. A
table may have them in columns of the scores' names, without what all of these begin with, beside the scores or alone.
"""

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Integers
from scoreveil.mechanisms.scores import to_numpy
from scoreveil.shapes import VECTORS, Shape

SURE = 3.0  # standard errors
DIFFERENT = 0.9  # share of score vectors that differ, from which on equal ones on the other side tell something


@dataclass(frozen=True, eq=False)
class Scored:
    """Score vectors, and the number of the right class of each where labels were given."""

    scores: Floats  # (n, k), summing to 1
    labels: Integers | None  # (n,)
    shape: Shape = VECTORS  # how they are served
    served: Floats | None = None  # and they as they are served, by record, where not as vectors
    names: tuple[str, ...] = ()  # of many labels, where their columns have some

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def records(self) -> int:
        """How many there are: fewer than vectors, where each has several."""
        return len(self) if self.served is None else len(self.served)

    @property
    def releases(self) -> int:
        """Vectors of a record."""
        return len(self) // self.records

    @property
    def given(self) -> tuple[Floats, Integers | None]:
        """Scores and labels as `fit` takes them."""
        if self.served is None:
            return self.scores, self.labels
        labels = self.labels if self.labels is None or self.releases == 1 else self.labels.reshape(-1, self.releases)
        return self.served, labels

    @property
    def said(self) -> Floats:
        """The vectors that the served scores say: of a probability p, 1 - p and p, whatever the threshold."""
        return self.scores if self.served is None else self.shape.said(self.served)

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
        """Some of the records."""
        rows = np.arange(len(self)).reshape(-1, self.releases)[index].ravel()
        labels = None if self.labels is None else self.labels[rows]
        served = None if self.served is None else self.served[index]
        return Scored(self.scores[rows], labels, self.shape, served, self.names)

    @property
    def threshold(self) -> float:
        """Of one yes or no: from where on it is yes."""
        return self.shape.thresholds(self.labels_each)[0]

    @property
    def labels_each(self) -> int:
        """How many labels a record has; several places have one each, which are alike."""
        return self.releases if self.shape.has_labels else 1

    def by_label(self) -> list["Scored"]:
        """Of many labels each by itself, as it is served; else the records as they are."""
        if self.served is None or not self.shape.has_labels:
            return [self]
        m = self.releases
        return [
            Scored(
                self.scores[i::m], None if self.labels is None else self.labels[i::m],
                shape, self.served[:, i],
            )
            for i, shape in enumerate(self.shape.by_label(m))
        ]  # fmt: skip


def read(scores: Any, labels: Any, who: str, columns: str | None = None, shape: Shape = VECTORS) -> Scored:
    """Checked scores and labels of one side.

    Raises:
        ValueError: They are not score vectors, or not labels; the message names side and row.
    """
    return read_sides({who: (scores, labels)}, columns, shape)[0][who]


def read_sides(
    given: Mapping[str, tuple[Any, Any]], columns: str | None = None, shape: Shape = VECTORS
) -> tuple[dict[str, Scored], str]:
    """Checked scores and labels of several sides, which have the same classes.

    Args:
        given: Scores, and labels or None, of each side by its name.
        columns: Of tables: names of the score columns, or patterns such as p_*, with commas between.
        shape: How the scores are served.

    Returns:
        The records of each side; and how names of classes were understood, or nothing where labels are numbers.

    Raises:
        ValueError: They are not score vectors, or not labels; the message names side and row.
    """
    if shape.why_not_fitted:
        raise ValueError(shape.why_not_fitted)
    served, names = dict[str, Floats](), list[str]()
    for who, (scores, _) in given.items():
        hint = ""
        try:
            found, own = _scores(scores, columns, shape)
            if own and columns is None and not shape.is_plain:
                hint = f" Taken as scores: {_listed(own)}; --columns names others."
            rows = shape.checked(found)
        except ValueError as error:
            raise ValueError(f"{who}: {error}{hint}") from None
        if not len(rows):
            raise ValueError(f"{who}: there are no records; at least one is needed.")
        if shape.is_plain and len(own) != rows.shape[1]:
            own = []  # one column of lists, or an array of an .npz
        if names and own and own != names:
            raise ValueError(f"{who}: expected the columns {_listed(names)}, got {_listed(own)}.")
        served[who], names = rows, own or names
    vectors = {who: shape.vectors(rows) for who, rows in served.items()}
    labels, note = dict[str, NDArray[Any]](), ""
    for who, (_, each) in given.items():
        if each is not None:
            size, about = vectors[who].shape[:2], f"labels of {who}"
            labels[who] = _labels(each, size[0], about) if size[1] == 1 else _label_matrix(each, size, names, about)
    if not shape.has_labels:
        k = next(iter(vectors.values())).shape[2]
        labels, note = _numbered(labels, names if len(names) == k else [], k)
    sides = {}
    for who, rows in served.items():
        k = vectors[who].shape[2]
        truth = _classes(labels[who], k, f"labels of {who}").ravel() if who in labels else None
        apart = () if not shape.has_labels else tuple(names)
        sides[who] = Scored(vectors[who].reshape(-1, k), truth, shape, None if shape.is_plain else rows, apart)
    return sides, note


def check_doubts(others: Scored, members: Scored | None) -> None:
    """Refuse sides that seem to be mixed up.

    Raises:
        ValueError: The sides seem to be swapped or the same, or labels to be those of other records.
    """
    sides = {"nonmembers": others} | ({} if members is None else {"members": members})
    for doubt in doubts(sides):
        raise ValueError(f"{doubt} If it is meant so, say force=True (--force).")


def doubts(sides: Mapping[str, Scored]) -> Iterator[str]:
    """What looks mixed up: labels that fit no better than chance, sides that are swapped or the same."""
    right = dict[str, NDArray[np.bool_]]()
    for who, side in sides.items():
        if side.labels is None or not len(side):
            continue
        right[who] = side.is_right
        agreements, by_chance = list[NDArray[np.bool_]](), list[float]()
        for part in side.by_label():
            labels = (part.predicted, part.labels)
            shares = [np.bincount(each, minlength=side.classes) / len(part) for each in labels if each is not None]
            if max(map(max, shares)) < 1:
                agreements.append(part.is_right)
                by_chance.append(float(shares[0] @ shares[1]))  # if neither knew of the other
        if not agreements:
            continue
        correct, chance = np.concatenate(agreements), sum(by_chance) / len(by_chance)
        error = math.sqrt(chance * (1 - chance) / len(correct))
        if correct.mean() - chance < SURE * error:
            yield (
                f"The labels of {who} agree with the top scores in {correct.mean():.0%} of the records, no more than "
                "by chance. Are they the labels of these records, in the same order?"
            )
    if {"members", "nonmembers"} <= set(right):
        inside, outside = right["members"], right["nonmembers"]
        error = math.sqrt(sum(each.mean() * (1 - each.mean()) / len(each) for each in (inside, outside)))
        if outside.mean() - inside.mean() > SURE * error:
            yield (
                f"The model is right about {inside.mean():.0%} of the members and about {outside.mean():.0%} of the "
                "nonmembers, which it was not trained on. Are the two sides swapped?"
            )
    if {"members", "nonmembers"} <= set(sides) and _are_same(sides["members"], sides["nonmembers"]):
        yield "Most score vectors of the members are among the nonmembers too. Are the two sides the same records?"


def _are_same(members: Scored, others: Scored) -> bool:
    """Whether most different score vectors of the smaller side are also on the other one."""
    inside, outside = ({row.tobytes() for row in np.ascontiguousarray(side.scores)} for side in (members, others))
    small = min(inside, outside, key=len)
    # a tree, a small forest, or a model of few features has few different vectors: then equal ones say nothing
    return len(small) >= DIFFERENT * min(len(members), len(others)) and len(inside & outside) > len(small) / 2


def read_both(
    nonmembers: Any,
    nonmember_labels: Any = None,
    members: Any = None,
    member_labels: Any = None,
    columns: str | None = None,
    shape: Shape = VECTORS,
) -> tuple[Scored, Scored | None, str]:
    """Both sides, as `fit` takes them, checked against each other; and how names of classes were understood.

    Raises:
        ValueError: As `read_sides`; or the sides do not go together.
    """
    if nonmembers is None:
        raise ValueError(
            "Expected scores of nonmembers: what is useful is measured on records that were not trained on."
        )
    if member_labels is not None and members is None:
        raise ValueError("member_labels were given without members; give their scores too.")
    if member_labels is not None and nonmember_labels is None:
        raise ValueError("member_labels were given without nonmember_labels; both sides are needed to compare them.")
    given = {"nonmembers": (nonmembers, nonmember_labels)}
    if members is not None:
        given["members"] = members, member_labels
    sides, note = read_sides(given, columns, shape)
    others, inside = (
        None if (each := sides.get(who)) is None else _normalised(each) for who in ("nonmembers", "members")
    )
    assert others is not None, "it was given"
    if inside is not None and inside.releases != others.releases:
        raise ValueError(
            f"members have {inside.releases} vectors a record, nonmembers {others.releases}; they must be the same."
        )
    if inside is not None and inside.classes != others.classes:
        raise ValueError(f"members have {inside.classes} classes, nonmembers {others.classes}; they must be the same.")
    return others, inside, note


def _normalised(side: Scored) -> Scored:
    """Rows that sum to 1 as nearly as can be."""
    return dataclasses.replace(side, scores=side.scores / side.scores.sum(axis=1, keepdims=True))


# Scores


def _scores(given: Any, columns: str | None, shape: Shape) -> tuple[Any, list[str]]:
    """An array of scores, and the names of its columns where they have some."""
    if isinstance(given, Scored):  # read already
        return given.given[0], list(given.names)
    if isinstance(given, (str, os.PathLike)):
        from scoreveil import files

        return files.read(given, columns) if shape.is_plain else files.read_columns(given, columns)
    if hasattr(given, "to_numpy"):
        return _from_frame(given, columns)
    if columns is not None:
        raise ValueError("columns name those of a table, and these are an array.")
    return given, []


def _from_frame(frame: Any, columns: str | None) -> tuple[Any, list[str]]:
    """The score columns of a DataFrame."""
    from scoreveil.files.score_file import selected

    every = list(getattr(frame, "columns", ()))
    if not every:  # a Series: one column
        return frame.to_numpy(), []
    if columns is not None:
        every = [every[i] for i in selected([str(name) for name in every], columns)]
        frame = frame[every]
    found = frame.to_numpy()
    if found.dtype.kind == "O":
        text = [str(name) for name in every if frame[name].to_numpy().dtype.kind not in "fiu"]
        raise ValueError(f"expected numbers in every column, or columns= to name those of scores, got {_listed(text)}.")
    return found, [name for name in every if isinstance(name, str)]


def _listed(names: list[str]) -> str:
    from scoreveil.tables import listed

    return listed(names)


# Labels


def _labels(given: Any, n: int, who: str) -> NDArray[Any]:
    """Labels as they are: numbers, or text."""
    if isinstance(given, (str, os.PathLike)):
        from scoreveil.files.labels import read_labels

        given = read_labels(Path(given), n)
    found = np.asarray(to_numpy(given.to_numpy() if hasattr(given, "to_numpy") else given))
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.shape != (n,):
        raise ValueError(f"{who}: expected {n} of them, one for each record, got shape {found.shape}.")
    if found.dtype.kind in "biuf":
        return found
    each = found.tolist()
    strange = [row for row, label in enumerate(each) if not isinstance(label, (str, int)) or label == ""]
    if strange:
        raise ValueError(f"{who}: row {strange[0]} is neither the number nor the name of a class.")
    try:
        return np.array([float(label) for label in each])
    except ValueError:
        return np.array([str(label) for label in each])


def _label_matrix(given: Any, shape: tuple[int, int], names: list[str], who: str) -> NDArray[Any]:
    """Labels of records that have several: a row for each, of numbers."""
    if isinstance(given, (str, os.PathLike)):
        from scoreveil.files.labels import read_label_columns

        try:
            given = read_label_columns(Path(given), shape[1], names)
        except ValueError as error:
            raise ValueError(f"{who}: {error}") from None
    elif hasattr(given, "columns"):
        from scoreveil.files.labels import label_columns

        given = given[label_columns([str(name) for name in given.columns], shape[1], names)].to_numpy()
    found = np.asarray(to_numpy(given))
    if found.shape != shape:
        raise ValueError(f"{who}: expected {shape[0]} rows of {shape[1]}, one for each label, got {found.shape}.")
    try:
        return found.astype(np.float64)
    except ValueError:
        raise ValueError(f"{who}: expected numbers, 0 for no and 1 for yes.") from None


def _numbered(labels: dict[str, NDArray[Any]], names: list[str], k: int) -> tuple[dict[str, NDArray[Any]], str]:
    """Names of classes as their numbers, and how they were understood; numbers as they are."""
    named = {each.dtype.kind == "U" for each in labels.values()}
    if True not in named:
        return labels, ""
    if len(named) > 1:
        raise ValueError(f"labels of {' and '.join(labels)}: expected numbers of classes on every side, or names.")
    from scoreveil.files.labels import shared_start

    found = sorted({str(label) for each in labels.values() for label in each.tolist()})
    for cut in range(shared_start(names) + 1):
        classes = [name[cut:] for name in names]
        if set(found) <= set(classes):
            how = "by the names of the columns"
            break
    else:
        known = {name[cut:] for name in names for cut in range(shared_start(names) + 1)}
        strange = [label for label in found if label not in known]
        if len(strange) < len(found):
            raise ValueError(
                f"labels of {' and '.join(labels)}: {len(found) - len(strange)} are names of columns of scores, and "
                f"{len(strange)} other{'s are' if len(strange) > 1 else ' is'} not. Write all as the columns are "
                f"named: {_listed(names)}."
            )
        classes, how = found, "in sorted order"
        if len(found) != k:
            raise ValueError(
                f"labels of {' and '.join(labels)}: expected numbers of classes, 0 to {k - 1}, or their names: those "
                f"of the columns of scores, or {k} of them in all. Got {len(found)} other{'s' * (len(found) > 1)}."
            )
    number = {name: i for i, name in enumerate(classes)}
    numbered = {who: np.array([number[str(label)] for label in each.tolist()]) for who, each in labels.items()}
    return numbered, f"Labels are names. The columns of scores are taken for {_listed(classes)}, {how}."


def _classes(found: NDArray[Any], k: int, who: str) -> Integers:
    wrong = np.argwhere(~((found >= 0) & (found < k) & (found == np.floor(found))))
    if len(wrong):
        column = f", column {wrong[0][1]}," if found.ndim > 1 else ""
        raise ValueError(f"{who}: row {wrong[0][0]}{column} is not the number of a class, 0 to {k - 1}.")
    return found.astype(np.int64)
