"""A yes or no, or several: one column for two classes, and independent labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Rows
from scoreveil.mechanisms.scores import SUM_TOLERANCE, BadRow
from scoreveil.shapes.shape import Shape

BELOW_HALF = float(np.nextafter(0.5, 0))


@dataclass(frozen=True)
class BinaryScores(Shape):
    """What both have: columns of yes or no, each with a threshold."""

    threshold: Any = 0.5
    logits: bool = False

    expected = "probabilities from 0 to 1"
    is_binary = True

    def _columns(self, scores: Rows) -> Rows:
        """The scores as (n, m)."""
        return np.atleast_2d(scores)

    def _border(self, dtype: np.dtype[Any]) -> "_Border":
        return _Border.of(self.threshold, dtype, self.logits)

    def check(self, scores: Rows, first_row: int = 0) -> None:
        self.check_layout(scores.shape)
        _check_sigmoids(self._columns(scores), self.logits, first_row)

    def vectors(self, scores: Rows) -> Floats:
        return _stretched(self._columns(scores), self._border(scores.dtype))

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        return _unstretched(veiled, self._columns(like), self._border(like.dtype)).reshape(like.shape)

    def said(self, served: Rows) -> Floats:
        plain = replace(self, threshold=0.5)  # which leaves probabilities as they are
        return np.asarray(plain.vectors(served).reshape(-1, 2))

    def of_logits(self, logits: Rows) -> Rows:
        """Of each the sigmoid."""
        with np.errstate(over="ignore"):
            return np.asarray(1 / (1 + np.exp(-logits)))

    @property
    def takes_logits(self) -> bool:
        return self.logits

    def thresholds(self, labels: int = 1) -> tuple[float, ...]:
        return tuple(np.broadcast_to(np.array(self.threshold), labels).tolist())


@dataclass(frozen=True)
class Binary(BinaryScores, name="binary"):
    """Two classes in one column, (n,) or (n, 1): the probability p of the positive one.

    The label is "yes" where p >= threshold, in the column's own dtype. It is kept by stretching both sides of the
    threshold to halves: a probability at the threshold becomes the vector (1/2, 1/2), and 0 and 1 stay where they are.

    Attributes:
        threshold: From where on the answer is yes.
        logits: The column holds ln(p / (1 - p)), and so does the answer.
    """

    threshold: float = 0.5

    title = "one column"
    is_column = True
    words = "An answer is one release; the top class is the side of the threshold that the score is on."

    def __post_init__(self) -> None:
        _check_threshold(self.threshold)

    def check_layout(self, layout: Sequence[int]) -> None:
        if len(layout) not in (1, 2) or (len(layout) == 2 and layout[1] != 1):
            raise ValueError(f"Expected one column, (n,) or (n, 1), got shape {tuple(layout)}.")

    def _columns(self, scores: Rows) -> Rows:
        return scores.reshape(-1, 1)

    def records(self, scores: Rows) -> Rows:
        return scores

    def of_classes(self, scores: Rows) -> Rows:
        return scores[:, 1:]

    def predicted(self, scores: Rows) -> NDArray[np.int64]:
        return np.asarray(scores[:, 1] >= scores.dtype.type(self.threshold), dtype=np.int64)


@dataclass(frozen=True)
class MultiLabel(BinaryScores, name="multi_label"):
    """A probability for each of several labels that do not exclude each other: (n, labels), or (labels,) for one.

    Attributes:
        threshold: From where on a label's answer is yes: one number, or one for each label.
        logits: The columns hold ln(p / (1 - p)), and so does the answer.
    """

    threshold: float | tuple[float, ...] = 0.5

    title = "many labels"
    noun = "labels"
    has_labels = True
    words = (
        "Each label is a release of its own: ε is that of one label, whose top class is its side of the threshold, and "
        "an answer with m labels spends m · ε."
    )
    crowd = (
        "The advantage is that of the answer about one label: about the labels of a record together nothing is "
        "promised, since what holds for each of several answers bounds nothing about how they go together."
    )

    def __post_init__(self) -> None:
        if isinstance(self.threshold, (list, tuple, np.ndarray)):  # as files and configurations have them
            numbers = self.threshold.tolist() if isinstance(self.threshold, np.ndarray) else self.threshold
            object.__setattr__(self, "threshold", tuple(numbers))
            if not numbers:
                raise ValueError("Expected a threshold for all labels, or one for each, got none.")
        for threshold in self.threshold if isinstance(self.threshold, tuple) else (self.threshold,):
            _check_threshold(threshold)

    def check_layout(self, layout: Sequence[int]) -> None:
        if len(layout) not in (1, 2) or not layout[-1]:
            raise ValueError(f"Expected a column for each label, (n, labels), got shape {tuple(layout)}.")
        if isinstance(self.threshold, tuple) and len(self.threshold) != layout[-1]:
            raise ValueError(f"Expected a threshold for each of {layout[-1]} labels, got {len(self.threshold)}.")

    @property
    def labels(self) -> int | None:
        return len(self.threshold) if isinstance(self.threshold, tuple) else None

    def counted(self, layout: Sequence[int]) -> tuple[int, ...]:
        return tuple(layout[-1:])

    def by_label(self, labels: int) -> tuple[Shape, ...]:
        return tuple(Binary(threshold, self.logits) for threshold in self.thresholds(labels))

    def check_pairs(self) -> None:
        if isinstance(self.threshold, tuple):
            raise ValueError("Labels of a list have no order that thresholds could follow; give one threshold for all.")


def _check_threshold(threshold: float) -> None:
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold < 1:
        raise ValueError(f"Expected a threshold between 0 and 1, got {threshold!r}.")


def _check_sigmoids(columns: Rows, logits: bool, first_row: int) -> None:
    # sums of float32 end a little above 1
    low, high = (np.finfo(columns.dtype).min, np.finfo(columns.dtype).max) if logits else (0, 1 + SUM_TOLERANCE)
    # written so that NaN fails
    if columns.min(initial=0) >= low and columns.max(initial=0) <= high:
        return
    good = (columns >= low) & (columns <= high)
    row, column = np.argwhere(~good)[0]
    score = columns[row, column]
    if np.isnan(score):
        fault = "is NaN"
    elif logits:
        fault = "is infinite; give logits that are numbers"
    else:
        side = "less than 0" if score < 0 else "more than 1"
        fault = f"is {side}; give probabilities from 0 to 1 (divide percentages by 100), or say that they are logits"
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
    def of(cls, thresholds: float | tuple[float, ...], dtype: np.dtype[Any], logits: bool) -> "_Border":
        threshold = np.atleast_1d(thresholds)
        exact = np.log(threshold) - np.log1p(-threshold) if logits else threshold
        yes = exact.astype(dtype)
        up, down = np.nextafter(yes, dtype.type(np.inf)), np.nextafter(yes, dtype.type(-np.inf))
        is_half = bool((threshold == 0.5).all())
        return cls(threshold, logits, yes, is_half, np.where(yes.astype(np.float64) < exact, up, yes), down)


def _stretched(columns: Rows, border: _Border) -> Floats:
    """Score vectors (n, m, 2) of columns (n, m): no, yes. What is no probability becomes no vector.

    Below the threshold t a probability p becomes p / 2t, above it 1 - (1 - p) / 2(1 - t): two lines that meet there.
    """
    vectors, t, p = np.empty((*columns.shape, 2)), border.threshold, columns
    if border.logits:
        with np.errstate(over="ignore"):
            p = 1 / (1 + np.exp(-columns.astype(np.float64)))
    elif columns.max(initial=0) > 1:
        p = np.where(columns <= 1 + SUM_TOLERANCE, np.minimum(columns, 1), columns)
    if not border.is_half:
        below, above = p * (0.5 / t), np.subtract(1, p, dtype=np.float64)
        above *= 0.5 / (1 - t)
        np.subtract(1, above, out=above)
        p = _joined(below, above, t < 0.5)
    vectors[..., 1] = p
    np.subtract(1, vectors[..., 1], out=vectors[..., 0])
    # at the threshold itself it is yes that wins, and rounding decides nothing
    yes = columns >= border.yes
    crossed = (vectors[..., 1] > 0.5) != yes
    if crossed.any():
        crossed &= ~np.isnan(columns)
        vectors[crossed] = np.where(yes[crossed, None], [BELOW_HALF, 1 - BELOW_HALF], [0.5, 0.5])
    return vectors


def _unstretched(vectors: Floats, like: Rows, border: _Border) -> Rows:
    """Columns (n, m) of veiled vectors (n, m, 2), of the dtype of `like`, on the same side of each threshold."""
    yes, t, p = like >= border.yes, border.threshold, vectors[..., 1]
    if not border.is_half:
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
