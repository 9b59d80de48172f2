"""What attacks read off score vectors: sorted scores, log-ratios, ranks, and how sure the model is of one class."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.interface import Features
from scoreveil.audit.data.records import Membership, Records

Read = Callable[[Records], Floats]
Number = TypeVar("Number", np.float64, np.int64)

SMALLEST_SCORE = 1e-12  # logarithms in features start here: below it a network would only see outliers
SMALLEST_FLOAT = 1e-45  # of float32; where only the order or a likelihood matters, logarithms start here


def descending(scores: Floats) -> Floats:
    return np.asarray(np.sort(scores, axis=1)[:, ::-1])


def ranks(scores: Floats) -> Integers:
    """The rank of each class, 0 on top; among equal scores the smaller index comes first, as for `numpy.argmax`."""
    return np.asarray(np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1))


def logarithms(scores: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(scores, SMALLEST_SCORE)))


def log_ratios(scores: Floats) -> Floats:
    """ln z_i − ln z_max of the sorted scores, (n, k − 1): inverts Equation 4, as 2/ε times this is y'_i − y'_max."""
    logs = logarithms(descending(scores))
    return logs[:, 1:] - logs[:, :1]


def log_odds(scores: Floats, classes: Integers) -> Floats:
    """ln p_c − ln Σ_{i≠c} p_i for one class c per record: what ln(p/(1 − p)) is, without the rounding of 1 − p."""
    chosen = np.arange(scores.shape[1]) == classes[:, None]
    own, others = scores[chosen], np.where(chosen, 0.0, scores).sum(axis=1)
    return np.asarray(np.log(own + SMALLEST_FLOAT) - np.log(others + SMALLEST_FLOAT))


def at(values: NDArray[Number], classes: Integers) -> NDArray[Number]:
    """The entry of each row at its class."""
    return np.asarray(np.take_along_axis(values, classes[:, None], axis=1)[:, 0])


def standardiser(values: Floats) -> Callable[[Floats], Floats]:
    """Columns to mean 0 and deviation 1, as measured on the shadow; a constant column is left at 0."""
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    return lambda others: np.asarray((others - mean) / scale)


def reader(features: Features, raw: Read, ratios: Read, shadow: Records) -> Read:
    """How a network is shown records: raw, standardised, or as log-ratios, which are standardised too."""
    if features == "scores":
        return raw
    form = raw if features == "standardised" else ratios
    scale = standardiser(form(shadow))
    return lambda records: scale(form(records))


def balancing_weights(shadow: Membership) -> Floats:
    """Weights with mean 1 that give members and non-members the same say, so that 0.5 is even odds."""
    truth = shadow.truth
    return np.asarray(np.where(truth, 0.5 / truth.mean(), 0.5 / (1 - truth.mean())))
