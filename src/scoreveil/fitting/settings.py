"""The arguments of `fit` that are not records."""

from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

import numpy as np

from scoreveil.mechanisms.region_data import MAX_REGIONS
from scoreveil.mechanisms.scores import check_epsilon

Beyond = Literal["label", "correctness"]

MIN_ADVANTAGE = 1e-4
MIN_CERTIFIED, MAX_CERTIFIED = 0.05, 0.95


@dataclass(frozen=True)
class Settings:
    """As `fit` explains them; what it would refuse is refused here, for those who have to train first."""

    advantage: float = 0.02
    epsilon: float | None = None
    beyond: Beyond = "label"
    regions: int = MAX_REGIONS
    certify: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
            object.__setattr__(self, "epsilon", float(self.epsilon))
        if not _is_within(self.advantage, MIN_ADVANTAGE, 1):
            raise ValueError(f"Expected an advantage from {MIN_ADVANTAGE:g} to 1, got {self.advantage!r}.")
        object.__setattr__(self, "advantage", float(self.advantage))
        if self.beyond not in get_args(Beyond):
            raise ValueError(f"Expected beyond to be 'label' or 'correctness', got {self.beyond!r}.")
        if not _is_within(self.regions, 1, MAX_REGIONS) or not isinstance(self.regions, (int, np.integer)):
            raise ValueError(f"Expected regions to be a whole number from 1 to {MAX_REGIONS}, got {self.regions!r}.")
        if self.certify is not None and not _is_within(self.certify, MIN_CERTIFIED, MAX_CERTIFIED):
            expected = f"certify to be a part from {MIN_CERTIFIED:g} to {MAX_CERTIFIED:g}"
            raise ValueError(f"Expected {expected}, got {self.certify!r}.")


def _is_within(value: object, low: float, high: float) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high
