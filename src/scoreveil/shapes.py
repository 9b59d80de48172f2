"""Shapes of scores: what is served is turned into vectors that sum to 1, each is veiled, and turned back.

    OneColumn     two classes in one column: the probability of the positive one
    ManyLabels    a yes or no for each of several labels, independent of each other
    TopK          the largest scores of many classes, with or without the rest
    MoreAxes      a vector for each token, pixel or place: (n, t, k)

Vectors (n, k) need no shape. A shape is a frozen value that travels with its veil: in files, in configurations.

Every vector is a release of its own. An answer that holds m of them spends m · ε, and `Shape.vectors` says how many:
its result is (records, releases of a record, classes).
"""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]
Floats = NDArray[np.float64]

READOUT = "readout"  # the field that a fit fills in

_named: dict[str, type["Shape"]] = {}


@dataclass(frozen=True)
class Shape(ABC):
    """A way to serve scores. Subclasses are frozen dataclasses, and register under their name."""

    name: ClassVar[str]
    words: ClassVar[str]  # what ε means for an answer of this shape, a sentence
    crowd: ClassVar[str] = ""  # and what an advantage against the crowd means, where that needs one

    def __init_subclass__(cls, name: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.name = name
        _named[name] = cls

    @abstractmethod
    def check(self, scores: Rows) -> None:
        """Raise ValueError naming the first row, and column, that is not of this shape; no score is quoted."""

    @abstractmethod
    def vectors(self, scores: Rows) -> Rows:
        """The score vectors of every record: (records, releases of a record, classes)."""

    @abstractmethod
    def restored(self, veiled: Rows, like: Rows) -> Rows:
        """Veiled vectors as `like` has its scores: of its shape and dtype, with its labels."""

    def settings(self) -> dict[str, Any]:
        """The plain values that it is made of, its name among them."""
        return {"shape": self.name, **{option: getattr(self, option) for option in _options(type(self))}}

    def arrays(self) -> dict[str, Floats]:
        """What a fit added to them."""
        readout = getattr(self, READOUT, None)
        return {} if readout is None else {f"{READOUT}_announced": readout.announced, f"{READOUT}_yes": readout.yes}


def make(name: str, **options: Any) -> Shape:
    """The shape of a name; an option that is None counts as not given.

    Raises:
        ValueError: There is no such shape, or it has no such option, or does not take this value.
    """
    if name not in _named:
        raise ValueError(f"There is no shape {name!r}; there are {', '.join(_named)}.")
    kind = _named[name]
    given = {option: value for option, value in options.items() if value is not None}
    known = _options(kind)
    for option in given:
        if option not in known:
            raise ValueError(f"The shape {name!r} has no {option}; it has {', '.join(known) or 'no options'}.")
    return kind(**given)


def restored(settings: dict[str, Any], arrays: dict[str, Floats]) -> Shape:
    """The shape of these settings and arrays, as a file has them; takes its arrays out of `arrays`."""
    shape = make(settings["shape"], **{option: value for option, value in settings.items() if option != "shape"})
    own = [arrays.pop(name) for name in (f"{READOUT}_announced", f"{READOUT}_yes") if name in arrays]
    return dataclasses.replace(shape, **{READOUT: ReadOut(*own)}) if own else shape


def _options(kind: type[Shape]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.name != READOUT]


# Yes or no


@dataclass(frozen=True, eq=False)
class ReadOut:
    """What a fitted veil says of each answer of its table: how often it is yes, for each label and side.

    It is a function of what is released anyway, the label's yes or no and the answer, so it tells nothing more.

    Attributes:
        announced: The top of a veiled vector, which tells the answers apart, ascending: (answers,).
        yes: How often a label is yes where the model says no, and where it says yes: (labels, 2, answers).
    """

    announced: Floats
    yes: Floats

    def __post_init__(self) -> None:
        for name in ("announced", "yes"):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != np.float64:
                raise ValueError(f"Expected {name} of a read-out to be an array of float64.")
            copy = np.array(array, order="C")
            copy.flags.writeable = False
            object.__setattr__(self, name, copy)
        answers = self.announced.size
        if self.announced.ndim != 1 or self.yes.ndim != 3 or self.yes.shape[1:] != (2, answers) or not answers:
            raise ValueError(f"Expected a read-out (labels, 2, answers), got {self.yes.shape} for {answers} answers.")
        if not (np.all(np.diff(self.announced) > 0) and np.all((self.yes >= 0) & (self.yes <= 1))):
            raise ValueError("Expected announced values of a read-out that ascend, and probabilities.")

    @property
    def labels(self) -> int:
        return int(self.yes.shape[0])

    def __call__(self, vectors: Floats, yes: NDArray[np.bool_]) -> Floats:
        """The probabilities (n, labels) of veiled vectors (n, labels, 2), for these sides."""
        between = (self.announced[1:] + self.announced[:-1]) / 2
        answer = np.searchsorted(between, vectors.max(axis=-1))
        return np.asarray(self.yes[np.arange(self.labels), yes.astype(np.int64), answer])


@dataclass(frozen=True)
class OneColumn(Shape, name="one_column"):
    """Two classes in one column, (n,) or (n, 1): the probability p of the positive one.

    The label is "positive" where p >= threshold. It is kept by stretching both sides of the threshold to halves: a
    probability at the threshold becomes the vector (1/2, 1/2), and 0 and 1 stay where they are.

    Attributes:
        threshold: From where on the answer is yes.
        logits: The column holds ln(p / (1 - p)), and so does the answer.
        readout: What a fitted veil announces, as a probability.
    """

    threshold: float = 0.5
    logits: bool = False
    readout: ReadOut | None = None

    words = "An answer is one release."

    def __post_init__(self) -> None:
        _check_threshold(self.threshold)

    def check(self, scores: Rows) -> None:
        if scores.ndim not in (1, 2) or (scores.ndim == 2 and scores.shape[1] != 1):
            raise ValueError(f"Expected one column, (n,) or (n, 1), got shape {scores.shape}.")
        _check_sigmoids(scores.reshape(-1, 1), self.logits)

    def vectors(self, scores: Rows) -> Floats:
        return _stretched(scores.reshape(-1, 1), np.array([self.threshold]), self.logits)

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        given = like.reshape(-1, 1)
        return _unstretched(veiled, given, np.array([self.threshold]), self.logits, self.readout).reshape(like.shape)


@dataclass(frozen=True)
class ManyLabels(Shape, name="many_labels"):
    """A probability for each of several labels that do not exclude each other: (n, labels), or (labels,) for one.

    Attributes:
        threshold: From where on a label's answer is yes: one number, or one for each label.
        logits: The columns hold ln(p / (1 - p)), and so does the answer.
        readout: What a fitted veil announces of each label, as a probability.
    """

    threshold: float | tuple[float, ...] = 0.5
    logits: bool = False
    readout: ReadOut | None = None

    words = "Each label is a release of its own: ε is that of one label, and an answer with m labels spends m · ε."
    crowd = (
        "The advantage is that of the answer about one label, which is drawn at random and whose confidence is read as "
        "that of all others: who reads several labels together, or each in another way, is bounded by ε alone."
    )

    def __post_init__(self) -> None:
        if isinstance(self.threshold, (list, np.ndarray)):  # as files and configurations have them
            object.__setattr__(self, "threshold", tuple(float(each) for each in self.threshold))
        for each in self._thresholds:
            _check_threshold(each)

    @property
    def _thresholds(self) -> tuple[float, ...]:
        return self.threshold if isinstance(self.threshold, tuple) else (self.threshold,)

    def of_label(self, label: int) -> OneColumn:
        """How one of the labels is served by itself."""
        thresholds, readout = self._thresholds, self.readout
        alone = None if readout is None else ReadOut(readout.announced, readout.yes[label : label + 1])
        return OneColumn(thresholds[label if len(thresholds) > 1 else 0], self.logits, alone)

    def check(self, scores: Rows) -> None:
        if scores.ndim not in (1, 2) or not scores.shape[-1]:
            raise ValueError(f"Expected a column for each label, (n, labels), got shape {scores.shape}.")
        if len(self._thresholds) not in (1, scores.shape[-1]):
            raise ValueError(f"There are {len(self._thresholds)} thresholds for {scores.shape[-1]} labels.")
        if self.readout is not None and self.readout.labels != scores.shape[-1]:
            raise ValueError(f"This veil was fitted for {self.readout.labels} labels, got {scores.shape[-1]}.")
        _check_sigmoids(np.atleast_2d(scores), self.logits)

    def vectors(self, scores: Rows) -> Floats:
        return _stretched(np.atleast_2d(scores), np.array(self._thresholds), self.logits)

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        given = np.atleast_2d(like)
        return _unstretched(veiled, given, np.array(self._thresholds), self.logits, self.readout).reshape(like.shape)


def _check_threshold(threshold: float) -> None:
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold < 1:
        raise ValueError(f"Expected a threshold between 0 and 1, got {threshold!r}.")


def _check_sigmoids(columns: Rows, logits: bool) -> None:
    good = np.isfinite(columns) if logits else (columns >= 0) & (columns <= 1)
    if good.all():
        return
    row, column = np.argwhere(~good)[0]
    found = columns[row, column]
    if np.isnan(found):
        fault = "is NaN"
    elif logits:
        fault = "is infinite; give logits that are numbers"
    else:
        side = "less than 0" if found < 0 else "more than 1"
        fault = f"is {side}; give probabilities from 0 to 1, or say logits=True"
    raise ValueError(f"Row {row}, column {column}: the score {fault}.")


def _stretched(columns: Rows, threshold: Floats, logits: bool) -> Floats:
    """Score vectors (n, m, 2) of columns (n, m): no, yes. What is no probability becomes no vector."""
    wide = columns.astype(np.float64)
    p = _sigmoid(wide) if logits else wide
    yes = _yes(columns, threshold, logits)
    q = np.where(yes, 0.5 + (p - threshold) / (1 - threshold) / 2, p / threshold / 2)
    # at the threshold itself it is yes that wins
    q = np.where(yes, np.maximum(q, np.nextafter(0.5, 1)), np.minimum(q, 0.5))
    return np.stack([1 - q, q], axis=-1)


def _unstretched(vectors: Floats, like: Rows, threshold: Floats, logits: bool, readout: ReadOut | None) -> Rows:
    """Columns (n, m) of veiled vectors (n, m, 2), of the dtype of `like`, on the same side of each threshold."""
    q, kind = vectors[..., 1], like.dtype.type
    yes = _yes(like, threshold, logits)
    if readout is None:
        p = np.where(yes, threshold + (q - 0.5) * 2 * (1 - threshold), q * 2 * threshold)
    else:
        p = readout(vectors, yes)
    if logits:
        info = np.finfo(like.dtype)
        p = np.clip(p, info.tiny, 1 - info.epsneg)
        p, threshold = np.log(p) - np.log1p(-p), np.log(threshold) - np.log1p(-threshold)
    p, border = p.astype(like.dtype), threshold.astype(like.dtype)
    below = np.minimum(p, np.nextafter(border, kind(-math.inf)))
    return np.asarray(np.where(yes, np.maximum(p, border), below))


def _yes(columns: Rows, threshold: Floats, logits: bool) -> NDArray[np.bool_]:
    border = np.log(threshold) - np.log1p(-threshold) if logits else threshold
    return np.asarray(columns >= border.astype(columns.dtype))


def _sigmoid(logits: Floats) -> Floats:
    small = np.exp(-np.abs(logits))  # written so that nothing overflows
    return np.where(logits >= 0, 1 / (1 + small), small / (1 + small))


# Some of many


@dataclass(frozen=True)
class TopK(Shape, name="top_k"):
    """The scores of the classes that a model lists, (n, k) or (k,): its largest ones.

    Which classes are listed is released as it is; how they are ordered is not, beyond those that the mechanism keeps.

    Attributes:
        classes: How many there are in all. The rest, 1 minus the sum, is then veiled with the others, as if the
            classes that are not listed had it in equal parts; answers sum to less than 1 as well. Without it there is
            no rest: scores are divided by their sum, and answers sum to 1.
    """

    classes: int | None = None

    words = (
        "An answer is one release, and holds for two score vectors that list the same classes: which ones these are is "
        "told as it is."
    )

    def __post_init__(self) -> None:
        if self.classes is not None and (not isinstance(self.classes, int) or self.classes < 2):
            raise ValueError(f"Expected classes to be a whole number >= 2, got {self.classes!r}.")

    def check(self, scores: Rows) -> None:
        if scores.ndim not in (1, 2) or scores.shape[-1] < (2 if self.classes is None else 1):
            raise ValueError(f"Expected the scores of the classes that are listed, (n, k), got shape {scores.shape}.")
        listed = scores.shape[-1]
        if self.classes is not None and listed > self.classes:
            raise ValueError(f"{listed} classes are listed, and there are {self.classes} in all.")
        rows = np.atleast_2d(scores).astype(np.float64)
        good = (rows >= 0).all(axis=1) & (rows <= 1 + TOLERANCE).all(axis=1)
        total = np.where(good, rows.sum(axis=1), 0)
        good &= (total > 0) & (total <= 1 + TOLERANCE)
        if self.classes == listed:
            good &= total >= 1 - TOLERANCE
        if not good.all():
            row = int(np.argmin(good))
            raise ValueError(f"Row {row}: expected scores of 0 or more that sum to 1 at most; give probabilities.")
        if self.classes is not None and listed < self.classes:
            each = (1 - total) / (self.classes - listed)
            small = each > rows.max(axis=1) + TOLERANCE
            if small.any():
                row = int(np.argmax(small))
                raise ValueError(
                    f"Row {row}: the classes that are not listed have more each than any listed; give the largest."
                )

    def vectors(self, scores: Rows) -> Rows:
        rows = np.atleast_2d(scores).astype(np.float64)
        total = rows.sum(axis=1, keepdims=True)
        if self.classes is None or rows.shape[1] == self.classes:
            return np.asarray(rows / total)[:, None, :]
        missing = self.classes - rows.shape[1]
        # what is not listed never wins
        each = np.minimum(np.maximum(1 - total, 0) / missing, rows.max(axis=1, keepdims=True))
        whole = np.concatenate([rows, np.broadcast_to(each, (len(rows), missing))], axis=1)
        return np.asarray(whole / whole.sum(axis=1, keepdims=True))[:, None, :]

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        return veiled[:, 0, : like.shape[-1]].astype(like.dtype).reshape(like.shape)


TOLERANCE = 1e-3  # as that of score vectors


@dataclass(frozen=True)
class MoreAxes(Shape, name="more_axes"):
    """A score vector for each token, pixel or place of a record: (n, t, k), or with more axes before the last."""

    words = "Each place is a release of its own: ε is that of one place, and an answer with m places spends m · ε."
    crowd = (
        "The advantage is that of the answer about one place, which is drawn at random: who reads several places "
        "together, or each in another way, is bounded by ε alone."
    )

    def check(self, scores: Rows) -> None:
        if scores.ndim < 3 or scores.shape[-1] < 2:
            raise ValueError(f"Expected vectors for the places of each record, (n, t, k), got shape {scores.shape}.")

    def vectors(self, scores: Rows) -> Rows:
        return scores.reshape(len(scores), math.prod(scores.shape[1:-1]), scores.shape[-1])

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        return veiled.reshape(like.shape)


# Lists of pairs


def as_columns(rows: Sequence[Sequence[tuple[Any, float]]]) -> tuple[list[list[Any]], Rows]:
    """Lists of (label, score), equally long, as labels and scores (n, k), in the order of the labels' names.

    Models list the largest first; that order tells more than is released, and goes here.
    """
    if len({len(row) for row in rows}) > 1:
        raise ValueError("Expected lists of one length; give those of another length in a batch of their own.")
    ordered = [sorted(row, key=lambda pair: str(pair[0])) for row in rows]
    labels = [[label for label, _ in row] for row in ordered]
    for i, row in enumerate(labels):
        if len(set(map(str, row))) < len(row):
            raise ValueError(f"Row {i}: a label is listed twice.")
    return labels, np.array([[score for _, score in row] for row in ordered], dtype=np.float64)


def as_pairs(labels: list[list[Any]], scores: Rows) -> list[list[tuple[Any, float]]]:
    """The way back: the largest answer first, equals in the order of their names."""
    return [
        sorted(zip(row, map(float, found), strict=True), key=lambda pair: (-pair[1], str(pair[0])))
        for row, found in zip(labels, scores, strict=True)
    ]
