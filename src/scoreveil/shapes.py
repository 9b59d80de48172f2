"""Shapes of scores besides vectors that sum to 1: each is turned into such vectors, veiled, and turned back."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OneColumn:
    """Two classes in one column: the probability p of the positive one.

    The label is "positive" where p >= threshold. It is kept by stretching both sides of the threshold to halves: a
    probability at the threshold becomes the vector (1/2, 1/2), and 0 and 1 stay where they are.
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"Expected a threshold between 0 and 1, got {self.threshold}.")

    def vectors(self, column: Rows) -> Floats:
        """Score vectors (n, 2) of probabilities (n,): negative, positive. What is no probability becomes no vector."""
        p, t = column.astype(np.float64), self.threshold
        positive = self._positive(column)
        q = np.where(positive, 0.5 + (p - t) / (1 - t) / 2, p / t / 2)
        # at the threshold itself it is the positive class that wins
        q = np.where(positive, np.maximum(q, np.nextafter(0.5, 1)), np.minimum(q, 0.5))
        return np.stack([1 - q, q], axis=1)

    def column(self, vectors: Floats, like: Rows) -> Rows:
        """Probabilities (n,) of veiled vectors, as `like` has them: of its dtype, on the same side of the threshold."""
        q, t = vectors[:, 1], self.threshold
        positive = self._positive(like)
        p = np.where(positive, t + (q - 0.5) * 2 * (1 - t), q * 2 * t).astype(like.dtype)
        border = like.dtype.type(t)
        below = np.minimum(p, np.nextafter(border, like.dtype.type(0)))
        return np.asarray(np.where(positive, np.maximum(p, border), below))

    def _positive(self, column: Rows) -> NDArray[np.bool_]:
        return np.asarray(column >= column.dtype.type(self.threshold))
