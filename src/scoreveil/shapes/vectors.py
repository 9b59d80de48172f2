"""The default: a score vector for each record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scoreveil.mechanisms import scores as vector
from scoreveil.mechanisms.scores import Array, BadRow
from scoreveil.shapes.more_axes import MoreAxes
from scoreveil.shapes.shape import Floats, Rows, Shape


@dataclass(frozen=True)
class Vectors(Shape, name="vectors"):
    """Scores of all classes that sum to 1, (n, k) or (k,). Nothing is turned, and files need not say so."""

    words = ""
    expected = "probabilities that add up to 1 in each row"
    is_plain = True
    sums_to_one = True

    def check_layout(self, layout: Sequence[int]) -> None:
        vector.check_axes(layout)

    def check_array(self, scores: Array) -> None:
        vector.check_layout(scores)

    def vectors(self, scores: Rows) -> Rows:
        return np.atleast_2d(scores)[:, None, :]

    def read(self, scores: Rows, first_row: int = 0) -> Rows:
        """The vectors, which the mechanism checks."""
        self.check_layout(scores.shape)
        return self.vectors(scores)

    def checked(self, given: Array) -> Floats:
        return vector.checked_rows(given)

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        return veiled.astype(like.dtype, copy=False).reshape(like.shape)

    def of(self, axes: int) -> Shape:
        return MoreAxes() if axes > 2 else self

    def placed(self, bad: BadRow, layout: Sequence[int], first: int = 0) -> BadRow:
        return bad

    def faults(self, scores: Rows) -> list[BadRow]:
        return vector.faults(scores)

    def settings(self) -> dict[str, Any]:
        return {}

    @property
    def title(self) -> str:
        return ""


VECTORS = Vectors()
