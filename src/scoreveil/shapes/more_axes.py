"""A vector for each place of a record."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scoreveil.shapes.shape import Rows, Shape


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
