"""What a veil is fitted on and an audit attacks: scores and labels as arrays, tensors, DataFrames or files.

    sides, note = read_sides({"members": (inn, y_in), "nonmembers": ("out.csv", "out.csv")}, columns="p_*")

Labels are numbers of classes, or their names. Names are matched with those of the score columns, also without what all
of these begin with (`p_cat` is cat); where the columns have none, in sorted order, as scikit-learn has its classes.

Scores of another shape are read as the vectors that they stand for, those of a record after each other. Where a record
has several, its labels are a row of a matrix: 0 or 1 for each of many labels, the number of a class for each place. A
table may have them in columns of the scores' names, without what all of these begin with, beside the scores or alone.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil import files
from scoreveil.arrays import Floats, Integers
from scoreveil.files.labels import label_columns, read_label_columns, read_labels, shared_start
from scoreveil.files.score_file import selected
from scoreveil.mechanisms.scores import to_numpy
from scoreveil.shapes import VECTORS, Shape
from scoreveil.tables import listed

Labels = NDArray[Any]  # numbers, or text
Source = Any  # an array of any library, nested lists, a DataFrame, or the path of a file
Given = tuple[Source, Source]  # scores and labels


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
    def true_labels(self) -> Integers:
        if self.labels is None:
            raise ValueError("These records have no labels.")
        return self.labels

    @property
    def is_right(self) -> NDArray[np.bool_]:
        return np.asarray(self.predicted == self.true_labels)

    def take(self, index: NDArray[np.bool_] | Integers) -> "Scored":
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
        parts = []
        for i, shape in enumerate(self.shape.by_label(m)):
            labels = None if self.labels is None else self.labels[i::m]
            parts.append(Scored(self.scores[i::m], labels, shape, self.served[:, i]))
        return parts


def read(scores: Source, labels: Source, who: str, columns: str | None = None, shape: Shape = VECTORS) -> Scored:
    """Checked scores and labels of one side, as `read_sides` reads them."""
    return read_sides({who: (scores, labels)}, columns, shape)[0][who]


def read_sides(
    given: Mapping[str, Given], columns: str | None = None, shape: Shape = VECTORS
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
    served, names = _read_scores(given, columns, shape)
    vectors = {who: shape.vectors(rows) for who, rows in served.items()}
    labels, note = dict[str, Labels](), ""
    for who, (_, known) in given.items():
        if known is not None:
            size, about = vectors[who].shape[:2], f"labels of {who}"
            labels[who] = _labels(known, size[0], about) if size[1] == 1 else _label_matrix(known, size, names, about)
    if not shape.has_labels:
        k = next(iter(vectors.values())).shape[2]
        labels, note = _numbered(labels, names if len(names) == k else [], k)
    sides = {}
    for who, rows in served.items():
        k = vectors[who].shape[2]
        truth = _classes(labels[who], k, f"labels of {who}").ravel() if who in labels else None
        label_names = tuple(names) if shape.has_labels else ()
        sides[who] = Scored(vectors[who].reshape(-1, k), truth, shape, None if shape.is_plain else rows, label_names)
    return sides, note


# Scores


def _read_scores(given: Mapping[str, Given], columns: str | None, shape: Shape) -> tuple[dict[str, Floats], list[str]]:
    """The checked scores of each side as they are served, and the names of their columns, the same on every side."""
    served, names = dict[str, Floats](), list[str]()
    for who, (scores, _) in given.items():
        hint = ""
        try:
            array, own = _scores(scores, columns, shape)
            if own and columns is None and not shape.is_plain:
                hint = f" Taken as scores: {listed(own)}; --columns names others."
            rows = shape.checked(array)
        except ValueError as error:
            raise ValueError(f"{who}: {error}{hint}") from None
        if not len(rows):
            raise ValueError(f"{who}: there are no records; at least one is needed.")
        if shape.is_plain and len(own) != rows.shape[1]:
            own = []  # one column of lists, or an array of an .npz
        if names and own and own != names:
            raise ValueError(f"{who}: expected the columns {listed(names)}, got {listed(own)}.")
        served[who], names = rows, own or names
    return served, names


def _scores(given: Source, columns: str | None, shape: Shape) -> tuple[Source, list[str]]:
    """An array of scores, and the names of its columns where they have some."""
    if isinstance(given, (str, os.PathLike)):
        return files.read(given, columns) if shape.is_plain else files.read_columns(given, columns)
    if hasattr(given, "to_numpy"):
        return _from_frame(given, columns)
    if columns is not None:
        raise ValueError("columns name those of a table, and these are an array.")
    return given, []


def _from_frame(frame: Source, columns: str | None) -> tuple[Labels, list[str]]:
    """The score columns of a DataFrame."""
    names = list(getattr(frame, "columns", ()))
    if not names:  # a Series: one column
        return frame.to_numpy(), []
    if columns is not None:
        names = [names[i] for i in selected([str(name) for name in names], columns)]
        frame = frame[names]
    array = frame.to_numpy()
    if array.dtype.kind == "O":
        text = [str(name) for name in names if frame[name].to_numpy().dtype.kind not in "fiu"]
        raise ValueError(f"expected numbers in every column, or columns= to name those of scores, got {listed(text)}.")
    return array, [name for name in names if isinstance(name, str)]


# Labels


def _labels(given: Source, n: int, who: str) -> Labels:
    """Labels as they are: numbers, or text."""
    if isinstance(given, (str, os.PathLike)):
        given = read_labels(Path(given), n)
    labels = np.asarray(to_numpy(given.to_numpy() if hasattr(given, "to_numpy") else given))
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n,):
        raise ValueError(f"{who}: expected {n} of them, one for each record, got shape {labels.shape}.")
    if labels.dtype.kind in "biuf":
        return labels
    values = labels.tolist()
    strange = [row for row, label in enumerate(values) if not isinstance(label, (str, int)) or label == ""]
    if strange:
        raise ValueError(f"{who}: row {strange[0]} is neither the number nor the name of a class.")
    try:
        return np.array([float(label) for label in values])
    except ValueError:
        return np.array([str(label) for label in values])


def _label_matrix(given: Source, shape: tuple[int, int], names: list[str], who: str) -> Floats:
    """Labels of records that have several: a row for each, of numbers."""
    if isinstance(given, (str, os.PathLike)):
        try:
            given = read_label_columns(Path(given), shape[1], names)
        except ValueError as error:
            raise ValueError(f"{who}: {error}") from None
    elif hasattr(given, "columns"):
        given = given[label_columns([str(name) for name in given.columns], shape[1], names)].to_numpy()
    labels = np.asarray(to_numpy(given))
    if labels.shape != shape:
        raise ValueError(f"{who}: expected {shape[0]} rows of {shape[1]}, one for each label, got {labels.shape}.")
    try:
        return labels.astype(np.float64)
    except ValueError:
        raise ValueError(f"{who}: expected numbers, 0 for no and 1 for yes.") from None


def _numbered(labels: dict[str, Labels], names: list[str], k: int) -> tuple[dict[str, Labels], str]:
    """Names of classes as their numbers, and how they were understood; numbers as they are."""
    are_names = {side.dtype.kind == "U" for side in labels.values()}
    if True not in are_names:
        return labels, ""
    about = f"labels of {' and '.join(labels)}:"
    if len(are_names) > 1:
        raise ValueError(f"{about} expected numbers of classes on every side, or names.")
    different = sorted({str(label) for side in labels.values() for label in side.tolist()})
    ways = [[name[cut:] for name in names] for cut in range(shared_start(names) + 1)]
    classes, how = next((way for way in ways if set(different) <= set(way)), different), "by the names of the columns"
    if classes is different:
        how = "in sorted order"
        strange = len(set(different).difference(*ways))
        if strange < len(different):
            raise ValueError(
                f"{about} {len(different) - strange} are names of columns of scores, and {strange} "
                f"other{'s are' if strange > 1 else ' is'} not. Write all as the columns are named: {listed(names)}."
            )
        if len(different) != k:
            raise ValueError(
                f"{about} expected numbers of classes, 0 to {k - 1}, or their names: those of the columns of scores, "
                f"or {k} of them in all. Got {len(different)} other{'s' * (len(different) > 1)}."
            )
    number = {name: i for i, name in enumerate(classes)}
    numbered = {who: np.array([number[str(label)] for label in side.tolist()]) for who, side in labels.items()}
    return numbered, f"Labels are names. The columns of scores are taken for {listed(classes)}, {how}."


def _classes(labels: Labels, k: int, who: str) -> Integers:
    wrong = np.argwhere(~((labels >= 0) & (labels < k) & (labels == np.floor(labels))))
    if len(wrong):
        column = f", column {wrong[0][1]}," if labels.ndim > 1 else ""
        raise ValueError(f"{who}: row {wrong[0][0]}{column} is not the number of a class, 0 to {k - 1}.")
    return labels.astype(np.int64)
