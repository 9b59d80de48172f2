"""What a confidence is worth: whether it tells right from wrong, is calibrated, and its losses.

    auroc(sure[right], sure[~right]), calibration_error(sure, right), log_loss(scores, labels).mean()

`fit` and the audit measure with these.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from scoreveil.extras import needs

with needs("fit"):
    from scipy.stats import rankdata

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]

CONFIDENCE = 0.95
ECE_BINS = 15
GROUPS, MIN_GROUP = 10, 40  # of like confidence, and the records of each: no figure is about a few of them
COVERAGES = 21  # points of a risk-coverage curve
SMALLEST = 1e-12  # raw scores of 0 count as this in a logarithm


@dataclass(frozen=True)
class Measure:
    """A figure with its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Group:
    """Records of like confidence: what was announced on average, and how often it was right."""

    announced: float
    right: Measure
    records: int


def auroc(positive: Floats, negative: Floats) -> float:
    """How often a positive scores above a negative, ties counting half; ½ where one side is empty."""
    if not len(positive) or not len(negative):
        return 0.5
    ranks = rankdata(np.concatenate([positive, negative]))
    p, n = len(positive), len(negative)
    return float((ranks[:p].sum() - p * (p + 1) / 2) / (p * n))


def placements(positive: Floats, negative: Floats) -> tuple[Floats, Floats]:
    """Of each positive the share of negatives below it, of each negative that of positives above it; ties count half.

    The mean of either is the AUC, and their variances give DeLong's error of it (Sun & Xu 2014).
    """
    ranks, p = rankdata(np.concatenate([positive, negative])), len(positive)
    below = (ranks[:p] - rankdata(positive)) / len(negative)
    above = 1 - (ranks[p:] - rankdata(negative)) / p
    return np.asarray(below), np.asarray(above)


def aurc(confidence: Floats, right: Bools) -> float:
    """The error rate among the surest t records, averaged over t."""
    return float(risks(confidence, right).mean())


def risks(confidence: Floats, right: Bools) -> Floats:
    """The error rate among the surest t records, for each t; ties in the order of chance."""
    order = np.argsort(-confidence, kind="stable")
    # records that tie get the mean error of their group
    _, group = np.unique(-confidence[order], return_inverse=True)
    wrong = (~right[order]).astype(np.float64)
    wrong = (np.bincount(group, weights=wrong) / np.bincount(group))[group]
    return np.asarray(np.cumsum(wrong) / np.arange(1, len(wrong) + 1))


def risk_coverage(confidence: Floats, right: Bools) -> tuple[tuple[float, float], ...]:
    """Points (the share of records that is acted on, the surest first; the error rate among them), none on a few."""
    errors, n = risks(confidence, right), len(right)
    counts = np.unique(np.linspace(min(n, MIN_GROUP), n, COVERAGES).round().astype(np.int64))
    return tuple((float(f"{count / n:.6g}"), float(f"{errors[count - 1]:.6g}")) for count in counts)


def calibration_error(confidence: Floats, right: Bools) -> float:
    """ECE, Σ_b (n_b/n)·|accuracy in b - mean confidence in b|, over bins of equal width (Guo et al. 2017)."""
    bin_of = np.clip(np.ceil(confidence * ECE_BINS).astype(np.int64) - 1, 0, ECE_BINS - 1)
    gap = np.bincount(bin_of, weights=confidence - right, minlength=ECE_BINS)
    return float(np.abs(gap).sum() / len(confidence))


def reliability(confidence: Floats, right: Bools) -> tuple[Group, ...]:
    """Groups of like size, from the least to the most confident, with Wilson's interval of how often each is right.

    Records with the same confidence are in the same group: a veil announces only a few.
    """
    order = np.argsort(confidence, kind="stable")
    groups, z = [], NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    for group in np.split(order, _cuts(confidence[order])):
        size, rate = len(group), float(right[group].mean())
        middle = (rate + z**2 / (2 * size)) / (1 + z**2 / size)
        half = z * math.sqrt(rate * (1 - rate) / size + z**2 / (4 * size**2)) / (1 + z**2 / size)
        measure = Measure(rate, min(rate, max(0.0, middle - half)), max(rate, min(1.0, middle + half)))
        groups.append(Group(float(confidence[group].mean()), measure, size))
    return tuple(groups)


def _cuts(ascending: Floats) -> list[int]:
    """Where to cut sorted values into like parts, none of few records, without parting equal ones."""
    n, cuts = len(ascending), [0]
    for even in (n * i // GROUPS for i in range(1, GROUPS)):
        ends = [int(np.searchsorted(ascending, ascending[even], side)) for side in ("left", "right")]
        cut = min(ends, key=lambda end: abs(end - even))
        if min(cut - cuts[-1], n - cut) >= MIN_GROUP:
            cuts.append(cut)
    return cuts[1:]


def log_loss(answers: Floats, labels: Integers) -> Floats:
    """Of each record."""
    return np.asarray(-np.log(np.maximum(np.take_along_axis(answers, labels[:, None], axis=1)[:, 0], SMALLEST)))


def brier(answers: Floats, labels: Integers) -> Floats:
    """Of each record."""
    right = np.take_along_axis(answers, labels[:, None], axis=1)[:, 0]
    return np.asarray((answers**2).sum(axis=1) - 2 * right + 1)
