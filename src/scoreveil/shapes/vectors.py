"""The default, a score vector for each record; and one for each of its places."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scoreveil.arrays import Floats, Rows
from scoreveil.mechanisms import scores as vector
from scoreveil.mechanisms.scores import Array, BadRow
from scoreveil.shapes.shape import Shape


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
        return PerPosition() if axes > 2 else self

    def placed(self, bad: BadRow, layout: Sequence[int], first: int = 0) -> BadRow:
        return bad

    def faults(self, scores: Rows) -> list[BadRow]:
        return vector.faults(scores)

    def settings(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class PerPosition(Shape, name="per_position"):
    """A score vector for each token, pixel or place of a record: (n, t, k), or with more axes before the last."""

    title = "a vector for each place"
    words = "Each place is a release of its own: ε is that of one place, and an answer with m places spends m · ε."
    crowd = (
        "The advantage is that of the answer about one place, which is drawn at random: who reads several places "
        "together, or each in another way, is bounded by ε alone."
    )
    expected = "probabilities that add up to 1 at each place"
    sums_to_one = True
    has_places = True
    can_smooth = False
    why_not_audited = "Answers about many places are not attacked: audit the scores (n, k) of one place at a time."

    def check_layout(self, layout: Sequence[int]) -> None:
        if len(layout) < 3 or layout[-1] < 2:
            raise ValueError(f"Expected vectors for the places of each record, (n, t, k), got shape {tuple(layout)}.")

    def vectors(self, scores: Rows) -> Rows:
        return scores.reshape(len(scores), self.releases(scores.shape), scores.shape[-1])

    def read(self, scores: Rows, first_row: int = 0) -> Rows:
        """The vectors, which the mechanism checks."""
        self.check_layout(scores.shape)
        return self.vectors(scores)

    def restored(self, veiled: Rows, like: Rows) -> Rows:
        return veiled.reshape(like.shape)

    def records(self, scores: Rows) -> Rows:
        return scores

    def counted(self, layout: Sequence[int]) -> tuple[int, ...]:
        return tuple(layout[1:-1])

    def piece(self, layout: Sequence[int]) -> int:
        return layout[0]

    def placed(self, bad: BadRow, layout: Sequence[int], first: int = 0) -> BadRow:
        record, *places = (int(i) for i in np.unravel_index(bad.row, tuple(layout[:-1])))
        return BadRow(first + record, bad.fault, f"place {', '.join(map(str, places))}", bad.advice)

    def faults(self, scores: Rows) -> list[BadRow]:
        self.check_layout(scores.shape)
        first_of: dict[int, BadRow] = {}
        for bad in vector.faults(scores.reshape(-1, scores.shape[-1])):
            placed = self.placed(bad, scores.shape)
            first_of.setdefault(placed.row, placed)
        return list(first_of.values())


VECTORS = Vectors()
