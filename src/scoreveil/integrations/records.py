"""Sticky answers by record: the draw is a function of the secret, the scores and the record that was asked.

`Veil(secret=…)` alone keys a draw by the cell and the magnitudes of the scores, which records of few classes may share.
An integration sees the records, so it tells the veil their fingerprints: a record and its near-duplicates always get
the same answer, and the answers of others tell nothing about it.
"""

from collections.abc import Callable, Iterable
from typing import Any, Unpack

import numpy as np

from scoreveil.arrays import Rows
from scoreveil.keyed import KeyedVeil
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.mechanisms.scores import ROUNDED, SUM_TOLERANCE
from scoreveil.shapes import Shape
from scoreveil.smoothing import averaged
from scoreveil.veil import Veil, VeilOptions

# different ones, before they are taken for probabilities and not for logits that look so by chance
MIN_ROWS = 4  # that sum to 1 about as nearly as half precision can
MIN_VALUES = 32  # from 0 to 1


class RecordVeil:
    """A veil that is told the records beside their scores.

    Args:
        epsilon: How much shows through; or a mechanism, or a veil, whole.
        options: As in `Veil`.
    """

    def __init__(self, epsilon: float | Mechanism | Veil, **options: Unpack[VeilOptions]) -> None:
        self.veil = Veil.from_given(epsilon, **options)
        self._keyed = KeyedVeil(self.veil) if self.veil.is_keyed else None

    @property
    def guarantee(self) -> Guarantee:
        return self.veil.guarantee

    def smoothed(self, scores: Rows, ask: Callable[[Any], Rows], given: Any) -> Rows:
        """Scores of what the model was given; where the veil is for smoothed ones, read around each record."""
        smoothing = self.veil.smoothing
        return scores if smoothing is None else averaged(scores, ask(smoothing.around(given)), self.veil.shape)

    def __call__(self, scores: Rows, inputs: Iterable[Any]) -> Rows:
        """Veiled scores of n records, which lie along the first axis of each input: (n, k), or (k,) of one.

        Raises:
            ValueError: These are not scores of the veil's shape.
        """
        check_axes(scores, self.veil.shape)
        if self._keyed is None:
            return self.veil(scores)
        rows = self.veil.shape.records(scores)
        return self._keyed(rows, self._keyed.fingerprints(len(rows), inputs)).reshape(scores.shape)


class LogitsCheck:
    """Refuses probabilities where logits are expected: a second softmax would make every confidence look low.

    The first answer that holds logits settles it, and later ones are not looked at: among a million records one may
    have logits that look like probabilities.

    Args:
        shape: That of the veil.
        who: What gave the answer, as the error calls it.
        way_out: What to do about it, a sentence.
    """

    def __init__(self, shape: Shape, who: str, way_out: str) -> None:
        self._sums_to_one = shape.sums_to_one
        self._message = f"{who} gives probabilities already, and not logits. {way_out}"
        self.is_settled = False

    def __call__(self, answer: Rows) -> None:
        """Look at an answer that is said to hold logits.

        Raises:
            ValueError: All of its rows are probabilities.
        """
        if self.is_settled:
            return
        rows = answer.reshape(-1, answer.shape[-1]) if self._sums_to_one and answer.ndim else answer.reshape(-1, 1)
        rows = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)  # far from all data a model may know nothing
        if not rows.size or (self._sums_to_one and rows.shape[1] < 2):
            return
        off, needed = 0.0, MIN_VALUES
        if self._sums_to_one:
            off = float(np.abs(rows.sum(axis=1) - 1).max())
            needed = 1 if off <= SUM_TOLERANCE else MIN_ROWS
        looks_so = rows.min() >= 0 and rows.max() <= 1 + SUM_TOLERANCE and off <= ROUNDED
        # copies of one record tell no more than it does
        if looks_so and len(np.unique(rows, axis=0)) >= needed:
            raise ValueError(self._message)
        self.is_settled = not looks_so


def check_axes(scores: Any, shape: Shape) -> None:
    """Refuse scores with more than two axes where nobody said that classes are on the last: pictures have them first.

    Raises:
        ValueError: There are more axes, and the shape is not `PerPosition`.
    """
    if scores.ndim > 2 and not shape.has_places:
        raise ValueError(
            f"The scores have {scores.ndim} axes; where the last one holds the classes, say shape=PerPosition()."
        )


def check_no_logits(shape: Shape) -> None:
    """Refuse a shape of logits, where these are turned into probabilities before."""
    if shape.takes_logits:
        raise ValueError("Scores are probabilities when they are veiled; give a shape without logits=True.")
