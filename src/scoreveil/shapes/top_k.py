"""Some of many classes: the largest scores, with or without the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Rows
from scoreveil.mechanisms.ordering import rank, restore, unrank
from scoreveil.mechanisms.scores import SUM_TOLERANCE, BadRow
from scoreveil.shapes.shape import PIECE, Shape

RANKED = 5  # rows in descending order from which on it is no accident
MIN_PIECE = 2048  # records at a time, however wide they are


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

    title = "top k"
    words = (
        "An answer is one release, and holds for two score vectors that list the same classes: which ones these are is "
        "told as it is."
    )
    expected = "the largest probabilities of each row, whose sum is at most 1"
    is_list = True
    can_smooth = False
    why_not_fitted = "Lists of the top classes are not fitted or attacked: give whole score vectors, and no shape."

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
        self.check_layout(scores.shape)
        self._checked_sums(np.atleast_2d(scores), first_row)

    def _checked_sums(self, rows: Rows, first_row: int) -> Floats:
        """What each row sums to, where all are such scores."""
        listed = rows.shape[1]
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
            fault = (
                "the scores sum to less than 1"
                if listed == self.classes
                else "the classes that are not listed have more than the least of those listed; list the largest"
            )
            _refuse(reached >= 1 - SUM_TOLERANCE, first_row, fault)
        return total

    def _each(self, rows: Rows, total: Floats) -> Floats:
        """What each class has that is not listed: (n,). None of them has more than one that is listed."""
        assert self.classes is not None
        share = np.maximum(1 - total, 0) / max(self.classes - rows.shape[1], 1)
        for column in rows.T:
            np.minimum(share, column, out=share)
        return np.asarray(share)

    def read(self, scores: Rows, first_row: int = 0) -> Rows:
        if self.classes is not None:
            return super().read(scores, first_row)
        self.check_layout(scores.shape)
        rows = np.atleast_2d(scores)
        columns = np.array(rows.T, dtype=_work(rows.dtype), order="C")
        return _divided(rows, columns, self._checked_sums(columns.T, first_row))[:, None, :]

    def vectors(self, scores: Rows) -> Rows:
        rows = np.atleast_2d(scores)
        if self.classes is None:
            return scaled(rows.astype(_work(rows.dtype), copy=False))[:, None, :]
        vectors = np.empty((len(rows), 1, self.classes), dtype=_work(rows.dtype))
        vectors[:, 0, : rows.shape[1]] = rows
        vectors[:, 0, rows.shape[1] :] = self._each(rows, _sums(rows))[:, None]
        return vectors

    def check_columns(self, scores: Rows) -> None:
        in_order = is_descending(scores) or is_descending(scores[:, ::-1])
        if len(scores) >= RANKED and scores.shape[1] > 1 and in_order:
            raise ValueError(
                "The columns stand in the order of their scores, and would tell it whatever is in them. Give lists of "
                "labels and scores: Veil.pairs, or a .jsonl file."
            )

    def piece(self, layout: Sequence[int]) -> int:
        # a list that nothing is added to takes half the room
        return max(MIN_PIECE, PIECE // self.classes if self.classes else 2 * PIECE // layout[-1])

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        rows = veiled[:, 0]
        if like.dtype != veiled.dtype:
            order = rank(rows)
            ascending = np.take_along_axis(rows, order, axis=1).astype(np.float64)
            rows = restore(ascending, ascending[:, 1:] > ascending[:, :-1], order, like.dtype)
        return np.ascontiguousarray(rows[:, : like.shape[-1]]).reshape(like.shape)


def is_descending(scores: NDArray[Any]) -> bool:
    """Whether the scores of every row fall from the first to the last."""
    return scores.ndim == 2 and bool((np.diff(scores, axis=1) <= 0).all())


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
    columns = np.array(rows.T, order="C")
    return _divided(rows, columns, _sums(columns.T))


def _divided(rows: Rows, columns: Rows, total: Floats) -> Rows:
    """Rows divided by their sums. `columns` is a copy of them, (k, n), which is written to."""
    np.divide(columns, total, out=columns, casting="same_kind")
    quotients = np.empty(rows.shape, columns.dtype)
    for i, column in enumerate(columns):  # half the time of a transposed copy
        quotients[:, i] = column
    merged = np.zeros(len(rows), dtype=bool)
    for apart in range(1, len(columns)):  # each two columns once
        equal = columns[apart:] == columns[:-apart]
        if equal.any():
            merged |= (equal.T & (rows[:, apart:] != rows[:, :-apart])).any(axis=1)
    if merged.any():
        order = rank(rows[merged])
        before, after = (np.take_along_axis(side[merged], order, axis=1) for side in (rows, quotients))
        for i in range(1, rows.shape[1]):
            least = np.nextafter(after[:, i - 1], np.inf, dtype=quotients.dtype)
            rises = before[:, i] > before[:, i - 1]
            np.maximum(after[:, i], np.where(rises, least, after[:, i - 1]), out=after[:, i])
        quotients[merged] = unrank(after, order)
    return quotients
