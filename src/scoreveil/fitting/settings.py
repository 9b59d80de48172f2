"""The arguments of `fit` that are not records."""

from dataclasses import dataclass
from numbers import Real
from typing import Literal, get_args

import numpy as np

from scoreveil.mechanisms.regions import MAX_REGIONS
from scoreveil.mechanisms.scores import check_epsilon

Beyond = Literal["label", "correctness"]

MIN_ADVANTAGE = 1e-4
MIN_CERTIFIED, MAX_CERTIFIED = 0.05, 0.95


@dataclass(frozen=True)
class Settings:
    """As `fit` explains them; checked by `check_settings`."""

    advantage: float = 0.02
    epsilon: float | None = None
    beyond: Beyond = "label"
    regions: int = MAX_REGIONS
    certify: float | None = None


def check_settings(
    advantage: float = 0.02,
    epsilon: float | None = None,
    beyond: Beyond = "label",
    regions: int = MAX_REGIONS,
    certify: float | None = None,
) -> Settings:
    """Refuse what `fit` would refuse, for those who have to train first."""
    if epsilon is not None:
        check_epsilon(epsilon)
    if not _is_within(advantage, MIN_ADVANTAGE, 1):
        raise ValueError(f"Expected an advantage from {MIN_ADVANTAGE:g} to 1, got {advantage!r}.")
    if beyond not in get_args(Beyond):
        raise ValueError(f"Expected beyond to be 'label' or 'correctness', got {beyond!r}.")
    if isinstance(regions, bool) or not isinstance(regions, (int, np.integer)) or not 1 <= regions <= MAX_REGIONS:
        raise ValueError(f"Expected regions to be a whole number from 1 to {MAX_REGIONS}, got {regions!r}.")
    if certify is not None and not _is_within(certify, MIN_CERTIFIED, MAX_CERTIFIED):
        raise ValueError(f"Expected certify to be a part from {MIN_CERTIFIED:g} to {MAX_CERTIFIED:g}, got {certify!r}.")
    return Settings(float(advantage), None if epsilon is None else float(epsilon), beyond, int(regions), certify)


def _is_within(value: object, low: float, high: float) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and low <= float(value) <= high
