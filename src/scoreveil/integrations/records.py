"""Sticky answers by record: the draw is a function of the secret, the scores and the record that was asked.

`Veil(secret=…)` alone keys a draw by the cell and the magnitudes of the scores, which records of few classes may share.
An integration sees the records, so it tells the veil their fingerprints: a record and its near-duplicates always get
the same answer, and the answers of others tell nothing about it.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Unpack

from numpy.typing import NDArray

from scoreveil import record_bytes
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.shapes import ManyLabels, MoreAxes, OneColumn, Shape
from scoreveil.veil import Veil, VeilOptions

Rows = NDArray[Any]


class RecordVeil:
    """A veil that is told the records beside their scores.

    Args:
        epsilon: How much shows through; or a mechanism, or a veil, whole.
        options: As in `Veil`.
    """

    def __init__(self, epsilon: float | Mechanism | Veil, **options: Unpack[VeilOptions]) -> None:
        self.veil = Veil.from_given(epsilon, **options)

    @property
    def guarantee(self) -> Guarantee:
        return self.veil.guarantee

    def __call__(self, scores: Rows, inputs: Iterable[Any]) -> Rows:
        """Veiled scores of n records, which lie along the first axis of each input: (n, k), or (k,) of one.

        Raises:
            ValueError: These are not scores of the veil's shape.
        """
        check_axes(scores, self.veil.shape)
        if not self.veil.is_keyed:
            return self.veil(scores)
        is_one_record = scores.ndim == 1 and not isinstance(self.veil.shape, OneColumn)
        rows = scores[None] if is_one_record else scores
        return self.veil(rows, self.veil.fingerprints(len(rows), inputs)).reshape(scores.shape)


def check_axes(scores: Any, shape: Shape | None) -> None:
    """Refuse scores with more than two axes where nobody said that classes are on the last: pictures have them first.

    Raises:
        ValueError: There are more axes, and the shape is not `MoreAxes`.
    """
    if scores.ndim > 2 and not isinstance(shape, MoreAxes):
        raise ValueError(
            f"The scores have {scores.ndim} axes; where the last one holds the classes, say shape=MoreAxes()."
        )


def is_yes_or_no(shape: Shape | None) -> bool:
    """Whether each score is a yes or no of its own: of logits, the sigmoid is taken and not the softmax.

    Raises:
        ValueError: The shape is one of logits, which are turned into probabilities before.
    """
    if getattr(shape, "logits", False):
        raise ValueError("Scores are probabilities when they are veiled; give a shape without logits=True.")
    return isinstance(shape, (OneColumn, ManyLabels))


def record_tags(rows: int, inputs: Iterable[Any]) -> list[bytes]:
    """A tag for each record, SHA-256 of what names it: for names, where one more is another record."""
    states = [hashlib.sha256() for _ in range(rows)]
    for given in inputs:
        parts = record_bytes.of_rows(given)
        for state, part in zip(states, parts, strict=True):
            state.update(record_bytes.with_length(part))
    return [state.digest() for state in states]
