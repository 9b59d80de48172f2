"""Shapes of scores: what is served is turned into vectors that sum to 1, each is veiled, and turned back.

    OneColumn     two classes in one column: the probability of the positive one
    ManyLabels    a yes or no for each of several labels, independent of each other
    TopK          the largest scores of many classes, with or without the rest
    MoreAxes      a vector for each token, pixel or place: (n, t, k)

Vectors (n, k) need no shape. A shape is a frozen value that travels with its veil: in files, in configurations.

Every vector is a release of its own. An answer that holds m of them spends m · ε, and `Shape.releases` says how many.
An answer is made of the veiled vectors, the labels and the dtype alone: nothing else of the scores that were served
reaches it, to the last bit.
"""

import dataclasses
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms.ordering import rank, restore, unrank
from scoreveil.mechanisms.scores import SUM_TOLERANCE, BadRow
from scoreveil.raw_columns import RANKED, is_descending

Rows = NDArray[Any]
Floats = NDArray[np.float64]

READOUT = "readout"  # the field that a fit fills in
PIECE = 1 << 16  # scores of vectors that are made at a time: what stays in a processor's cache
LEAST_PIECE = 2048  # records at a time, however wide they are

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
    def check_layout(self, layout: Sequence[int]) -> None:
        """Raise ValueError where arrays of this layout (`scores.shape`) are not of this shape, whatever they hold."""

    def check(self, scores: Rows, first_row: int = 0) -> None:
        """Raise ValueError naming the first row, and column, that is not of this shape; no score is quoted."""
        self.check_layout(scores.shape)

    @abstractmethod
    def vectors(self, scores: Rows) -> Rows:
        """The score vectors of every record: (records, releases of a record, classes)."""

    @abstractmethod
    def restored(self, veiled: Rows, like: Rows) -> Rows:
        """Veiled vectors as `like` has its scores: of its shape and dtype, with its labels."""

    def records(self, scores: Rows) -> Rows:
        """The same scores with an axis of records first: one record may come without."""
        return np.atleast_2d(scores)

    def releases(self, layout: Sequence[int]) -> int:
        """How many vectors each record has in an array of this layout (`scores.shape`)."""
        return 1

    def piece(self, layout: Sequence[int]) -> int:
        """How many records of an array of this layout are turned into vectors at a time."""
        return max(1, PIECE // (2 * self.releases(layout)))

    def place(self, vector: int, layout: Sequence[int]) -> tuple[int, str]:
        """The record that the vector of this number belongs to, and where in it, for messages."""
        return vector // self.releases(layout), ""

    def check_columns(self, scores: Rows) -> None:  # noqa: B027  (most shapes have nothing to hide there)
        """Raise ValueError where the places of scores (n, k) in a table tell what is to be veiled."""

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

BELOW_HALF = float(np.nextafter(0.5, 0))


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
        top = np.maximum(vectors[..., 0], vectors[..., 1])
        at = yes + 2 * np.arange(self.labels)
        at *= len(self.announced)
        for between in (self.announced[1:] + self.announced[:-1]) / 2:  # there are a few
            at += top > between
        return np.asarray(self.yes.ravel().take(at))


@dataclass(frozen=True)
class OneColumn(Shape, name="one_column"):
    """Two classes in one column, (n,) or (n, 1): the probability p of the positive one.

    The label is "yes" where p >= threshold, in the column's own dtype. It is kept by stretching both sides of the
    threshold to halves: a probability at the threshold becomes the vector (1/2, 1/2), and 0 and 1 stay where they are.

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

    def check_layout(self, layout: Sequence[int]) -> None:
        if len(layout) not in (1, 2) or (len(layout) == 2 and layout[1] != 1):
            raise ValueError(f"Expected one column, (n,) or (n, 1), got shape {tuple(layout)}.")

    def check(self, scores: Rows, first_row: int = 0) -> None:
        super().check(scores)
        _check_sigmoids(scores.reshape(-1, 1), self.logits, first_row)

    def vectors(self, scores: Rows) -> Floats:
        return _stretched(scores.reshape(-1, 1), _Border.of((self.threshold,), scores.dtype, self.logits))

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        border = _Border.of((self.threshold,), like.dtype, self.logits)
        return _unstretched(veiled, like.reshape(-1, 1), border, self.readout).reshape(like.shape)

    def records(self, scores: Rows) -> Rows:
        return scores


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
        if isinstance(self.threshold, (list, tuple, np.ndarray)):  # as files and configurations have them
            numbers = self.threshold.tolist() if isinstance(self.threshold, np.ndarray) else self.threshold
            object.__setattr__(self, "threshold", tuple(numbers))
            if not numbers:
                raise ValueError("Expected a threshold for all labels, or one for each, got none.")
        for each in self._thresholds:
            _check_threshold(each)

    @property
    def _thresholds(self) -> tuple[float, ...]:
        return self.threshold if isinstance(self.threshold, tuple) else (self.threshold,)

    def check_layout(self, layout: Sequence[int]) -> None:
        if len(layout) not in (1, 2) or not layout[-1]:
            raise ValueError(f"Expected a column for each label, (n, labels), got shape {tuple(layout)}.")
        if isinstance(self.threshold, tuple) and len(self.threshold) != layout[-1]:
            raise ValueError(f"Expected a threshold for each of {layout[-1]} labels, got {len(self.threshold)}.")
        if self.readout is not None and self.readout.labels != layout[-1]:
            raise ValueError(f"This veil was fitted for {self.readout.labels} labels, got {layout[-1]}.")

    def check(self, scores: Rows, first_row: int = 0) -> None:
        super().check(scores)
        _check_sigmoids(np.atleast_2d(scores), self.logits, first_row)

    def vectors(self, scores: Rows) -> Floats:
        return _stretched(np.atleast_2d(scores), _Border.of(self._thresholds, scores.dtype, self.logits))

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        border = _Border.of(self._thresholds, like.dtype, self.logits)
        return _unstretched(veiled, np.atleast_2d(like), border, self.readout).reshape(like.shape)

    def releases(self, layout: Sequence[int]) -> int:
        return layout[-1]


def _check_threshold(threshold: float) -> None:
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold < 1:
        raise ValueError(f"Expected a threshold between 0 and 1, got {threshold!r}.")


def _check_sigmoids(columns: Rows, logits: bool, first_row: int) -> None:
    low, high = (np.finfo(columns.dtype).min, np.finfo(columns.dtype).max) if logits else (0, 1)
    # written so that NaN fails
    if columns.min(initial=0) >= low and columns.max(initial=0) <= high:
        return
    good = (columns >= low) & (columns <= high)
    row, column = np.argwhere(~good)[0]
    found = columns[row, column]
    if np.isnan(found):
        fault = "is NaN"
    elif logits:
        fault = "is infinite; give logits that are numbers"
    else:
        side = "less than 0" if found < 0 else "more than 1"
        fault = f"is {side}; give probabilities from 0 to 1, or say that they are logits"
    raise BadRow(first_row + int(row), f"the score {fault}", int(column) if columns.shape[1] > 1 else "")


@dataclass(frozen=True, eq=False)
class _Border:
    """Thresholds as a dtype has them, one for each column or one for all."""

    threshold: Floats  # of probabilities
    logits: bool
    yes: Rows  # from here on the answer is yes
    is_half: bool  # yes where the vector of both classes says so
    least_yes: Rows  # the smallest answer that says yes, whether it is read in this dtype or in a wider one
    most_no: Rows

    @classmethod
    def of(cls, thresholds: tuple[float, ...], dtype: np.dtype[Any], logits: bool) -> "_Border":
        threshold = np.array(thresholds)
        exact = np.log(threshold) - np.log1p(-threshold) if logits else threshold
        yes = exact.astype(dtype)
        up, down = np.nextafter(yes, dtype.type(np.inf)), np.nextafter(yes, dtype.type(-np.inf))
        is_half = bool((threshold == 0.5).all())
        return cls(threshold, logits, yes, is_half, np.where(yes.astype(np.float64) < exact, up, yes), down)


def _stretched(columns: Rows, border: _Border) -> Floats:
    """Score vectors (n, m, 2) of columns (n, m): no, yes. What is no probability becomes no vector.

    Below the threshold t a probability p becomes p / 2t, above it 1 - (1 - p) / 2(1 - t): two lines that meet there.
    """
    made, t, p = np.empty((*columns.shape, 2)), border.threshold, columns
    if border.logits:
        with np.errstate(over="ignore"):
            p = 1 / (1 + np.exp(-columns.astype(np.float64)))
    if not border.is_half:
        below, above = p * (0.5 / t), np.subtract(1, p, dtype=np.float64)
        above *= 0.5 / (1 - t)
        np.subtract(1, above, out=above)
        p = _joined(below, above, t < 0.5)
    made[..., 1] = p
    np.subtract(1, made[..., 1], out=made[..., 0])
    # at the threshold itself it is yes that wins, and rounding decides nothing
    yes = columns >= border.yes
    crossed = (made[..., 1] > 0.5) != yes
    if crossed.any():
        crossed &= ~np.isnan(columns)
        made[crossed] = np.where(yes[crossed, None], [BELOW_HALF, 1 - BELOW_HALF], [0.5, 0.5])
    return made


def _unstretched(vectors: Floats, like: Rows, border: _Border, readout: ReadOut | None) -> Rows:
    """Columns (n, m) of veiled vectors (n, m, 2), of the dtype of `like`, on the same side of each threshold."""
    yes, t, p = like >= border.yes, border.threshold, vectors[..., 1]
    if readout is not None:
        p = readout(vectors, yes)
    elif not border.is_half:
        below, above = p * (2 * t), vectors[..., 0] * (2 * (1 - t))
        np.subtract(1, above, out=above)
        p = _joined(below, above, t > 0.5)
    if border.logits:
        least = np.finfo(like.dtype).epsneg  # certain is as far as 1 - p can be told from 1
        p = np.clip(p, least, 1 - least)
        p = np.log(p / (1 - p))
    p = p.astype(like.dtype)
    crossed = np.where(yes, p < border.least_yes, p > border.most_no)
    if crossed.any():
        p = np.where(crossed, np.where(yes, border.least_yes, border.most_no), p)
    return p


def _joined(below: Floats, above: Floats, is_lower: NDArray[np.bool_]) -> Floats:
    """Two lines that meet, each on its side: the lower of both where the first is the steeper one, else the higher."""
    if is_lower.all():
        return np.minimum(below, above, out=below)
    if not is_lower.any():
        return np.maximum(below, above, out=below)
    return np.where(is_lower, np.minimum(below, above), np.maximum(below, above))


# Some of many


@dataclass(frozen=True)
class TopK(Shape, name="top_k"):
    """The scores of the classes that a model lists, (n, k) or (k,): its largest ones.

    Which classes are listed is released as it is; how they are ordered is not, beyond those that the mechanism keeps.
    So columns must not stand in the order of their scores: `Veil.pairs` takes lists as models give them.

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
        whole = isinstance(self.classes, int) and not isinstance(self.classes, bool)
        if self.classes is not None and not (whole and self.classes >= 2):
            raise ValueError(f"Expected classes to be a whole number >= 2, got {self.classes!r}.")

    def check_layout(self, layout: Sequence[int]) -> None:
        listed = layout[-1] if len(layout) in (1, 2) else 0
        if not listed:
            raise ValueError(f"Expected the scores of the classes that are listed, (n, k), got shape {tuple(layout)}.")
        if listed == 1 and self.classes is None:
            raise ValueError("One class alone leaves nothing to veil; say how many there are in all: TopK(classes=…).")
        if self.classes is not None and listed > self.classes:
            raise ValueError(f"{listed} classes are listed, and there are {self.classes} in all.")

    def check(self, scores: Rows, first_row: int = 0) -> None:
        super().check(scores)
        rows, listed = np.atleast_2d(scores), scores.shape[-1]
        # written so that NaN fails; the largest comes before the sum, which might overflow
        if not (rows.min(initial=0) >= 0 and rows.max(initial=0) <= 1 + SUM_TOLERANCE):
            good = ((rows >= 0) & (rows <= 1 + SUM_TOLERANCE)).all(axis=1)
            _refuse(np.asarray(good), first_row, "expected scores from 0 to 1; give probabilities")
        total = _sums(rows)
        _refuse(total <= 1 + SUM_TOLERANCE, first_row, "the scores sum to more than 1; give probabilities")
        if self.classes is None:
            _refuse(total > 0, first_row, "all scores are 0")
        else:
            reached = total + (self.classes - listed) * self._each(rows, total)
            told = (
                "the scores sum to less than 1"
                if listed == self.classes
                else "the classes that are not listed have more than the least of those listed; list the largest"
            )
            _refuse(reached >= 1 - SUM_TOLERANCE, first_row, told)

    def _each(self, rows: Rows, total: Floats) -> Floats:
        """What each class has that is not listed: (n,). None of them has more than one that is listed."""
        assert self.classes is not None
        each = np.maximum(1 - total, 0) / max(self.classes - rows.shape[1], 1)
        for column in rows.T:
            np.minimum(each, column, out=each)
        return np.asarray(each)

    def vectors(self, scores: Rows) -> Rows:
        rows = np.atleast_2d(scores)
        if self.classes is None:
            return scaled(rows.astype(_work(rows.dtype), copy=False))[:, None, :]
        made = np.empty((len(rows), 1, self.classes), dtype=_work(rows.dtype))
        made[:, 0, : rows.shape[1]] = rows
        made[:, 0, rows.shape[1] :] = self._each(rows, _sums(rows))[:, None]
        return made

    def check_columns(self, scores: Rows) -> None:
        in_order = is_descending(scores) or is_descending(scores[:, ::-1])
        if len(scores) >= RANKED and scores.shape[1] > 1 and in_order:
            raise ValueError(
                "The columns stand in the order of their scores, and would tell it whatever is in them. Give lists of "
                "labels and scores: Veil.pairs, or a .jsonl file."
            )

    def piece(self, layout: Sequence[int]) -> int:
        return max(LEAST_PIECE, PIECE // (self.classes or layout[-1]))

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        rows = veiled[:, 0]
        if like.dtype != veiled.dtype:
            order = rank(rows)
            ascending = np.take_along_axis(rows, order, axis=1).astype(np.float64)
            rows = restore(ascending, ascending[:, 1:] > ascending[:, :-1], order, like.dtype)
        return np.ascontiguousarray(rows[:, : like.shape[-1]]).reshape(like.shape)


def _refuse(good: NDArray[np.bool_], first_row: int, fault: str) -> None:
    if not good.all():
        raise BadRow(first_row + int(np.argmin(good)), fault)


def _work(dtype: np.dtype[Any]) -> Any:
    """The dtype that lists are veiled in: float16 has no room to divide two scores and tell them apart."""
    return np.float32 if dtype == np.float16 else dtype


def _sums(rows: Rows) -> Floats:
    """What each row sums to, from the first column to the last."""
    total = rows[:, 0].astype(np.float64)
    for column in rows.T[1:]:
        total += column
    return total


def scaled(rows: Rows) -> Rows:
    """Rows divided by their sums. Scores that differ stay so, and in order: rounding could make them equal."""
    total, columns = _sums(rows), np.empty((rows.shape[1], len(rows)), dtype=rows.dtype)
    for column, given in zip(columns, rows.T, strict=True):
        np.divide(given, total, out=column, casting="same_kind")
    made = np.ascontiguousarray(columns.T)
    merged = np.zeros(len(rows), dtype=bool)
    for i, j in itertools.combinations(range(len(columns)), 2):
        equal = columns[i] == columns[j]
        if equal.any():
            merged |= equal & (rows[:, i] != rows[:, j])
    if merged.any():
        order = rank(rows[merged])
        before, after = (np.take_along_axis(each[merged], order, axis=1) for each in (rows, made))
        for i in range(1, rows.shape[1]):
            least = np.nextafter(after[:, i - 1], np.inf, dtype=rows.dtype)
            rises = before[:, i] > before[:, i - 1]
            np.maximum(after[:, i], np.where(rises, least, after[:, i - 1]), out=after[:, i])
        made[merged] = unrank(after, order)
    return made


@dataclass(frozen=True)
class MoreAxes(Shape, name="more_axes"):
    """A score vector for each token, pixel or place of a record: (n, t, k), or with more axes before the last."""

    words = "Each place is a release of its own: ε is that of one place, and an answer with m places spends m · ε."
    crowd = (
        "The advantage is that of the answer about one place, which is drawn at random: who reads several places "
        "together, or each in another way, is bounded by ε alone."
    )

    def check_layout(self, layout: Sequence[int]) -> None:
        if len(layout) < 3 or layout[-1] < 2:
            raise ValueError(f"Expected vectors for the places of each record, (n, t, k), got shape {tuple(layout)}.")

    def vectors(self, scores: Rows) -> Rows:
        return scores.reshape(len(scores), self.releases(scores.shape), scores.shape[-1])

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        return veiled.reshape(like.shape)

    def records(self, scores: Rows) -> Rows:
        return scores

    def releases(self, layout: Sequence[int]) -> int:
        return math.prod(layout[1:-1])

    def piece(self, layout: Sequence[int]) -> int:
        return layout[0]

    def place(self, vector: int, layout: Sequence[int]) -> tuple[int, str]:
        record, *places = (int(i) for i in np.unravel_index(vector, tuple(layout[:-1])))
        return record, f"place {', '.join(map(str, places))}"


# Lists of pairs

Pair = tuple[Any, float]


def read_pairs(rows: Sequence[Any]) -> tuple[list[list[Pair]], bool]:
    """Lists of (label, score), or of {"label": …, "score": …}, as lists of pairs; and whether they are the latter.

    Raises:
        ValueError: Something else is listed; the message names the row.
    """
    is_object = any(isinstance(entry, Mapping) for row in rows if isinstance(row, list | tuple) for entry in row)
    return [_read_row(row, i, is_object) for i, row in enumerate(rows)], is_object


def _read_row(row: Any, i: int, is_object: bool) -> list[Pair]:
    if not isinstance(row, list | tuple):
        raise BadRow(i, f"expected a list of labels and scores, got {type(row).__name__}")
    read = []
    for entry in row:
        if is_object:
            if not isinstance(entry, Mapping) or entry.keys() != {"label", "score"}:
                raise BadRow(i, 'expected {"label": …, "score": …} and nothing else in it')
            label, score = entry["label"], entry["score"]
        elif isinstance(entry, list | tuple) and len(entry) == 2:
            label, score = entry
        else:
            raise BadRow(i, "expected pairs of a label and a score")
        if isinstance(score, bool | np.bool_) or not isinstance(score, int | float | np.integer | np.floating):
            raise BadRow(i, f"expected a number for each score, got {type(score).__name__}")
        read.append((label, float(score)))
    return read


def as_columns(rows: Sequence[Sequence[Pair]]) -> tuple[list[list[Any]], Rows]:
    """Lists of (label, score), equally long, as labels and scores (n, k), in the order of the labels' names.

    Models list the largest first; that order tells more than is released, and goes here.
    """
    if len({len(row) for row in rows}) > 1:
        raise ValueError("Expected lists of one length; give those of another length in a batch of their own.")
    ordered = [sorted(row, key=lambda pair: str(pair[0])) for row in rows]
    labels = [[label for label, _ in row] for row in ordered]
    for i, row in enumerate(labels):
        if len(set(map(str, row))) < len(row):
            raise BadRow(i, "a label is listed twice")
    return labels, np.array([[score for _, score in row] for row in ordered], dtype=np.float64)


def as_pairs(labels: list[list[Any]], scores: Rows) -> list[list[Pair]]:
    """The way back: the largest answer first, equals in the order of their names."""
    return [
        sorted(zip(row, map(float, found), strict=True), key=lambda pair: (-pair[1], str(pair[0])))
        for row, found in zip(labels, scores, strict=True)
    ]
