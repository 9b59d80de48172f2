"""A vector for each place of a record."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scoreveil.mechanisms import scores as vector
from scoreveil.mechanisms.scores import BadRow
from scoreveil.shapes.shape import Rows, Shape


@dataclass(frozen=True)
class MoreAxes(Shape, name="more_axes"):
    """A score vector for each token, pixel or place of a record: (n, t, k), or with more axes before the last."""

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
        found = (self.placed(bad, scores.shape) for bad in vector.faults(scores.reshape(-1, scores.shape[-1])))
        return list({bad.row: bad for bad in reversed(list(found))}.values())[::-1]
