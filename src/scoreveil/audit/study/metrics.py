"""What a defense leaves of the scores' use, and what an attack makes of what is left.

Every interval is a 95 % one. Ties count as an attacker who guesses among them would fare: an attack that gives every
record the same score has AUC 0.5, and finds 1 % of the members at 1 % false alarms.
"""

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest, rankdata
from sklearn.metrics import roc_curve

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.records import Bools, Records
from scoreveil.audit.study.results import InversionMetrics, MembershipMetrics
from scoreveil.fitting import cost
from scoreveil.tuning import Norm, distances

Pixels = NDArray[np.float32] | NDArray[np.float64]
Interval = tuple[float, float, float]  # a measured number, and from where to where it may well lie

CONFIDENCE = 0.95
ENDS = ("", "_low", "_high")
CURVE_POINTS = 64
COVERAGES = 21  # points of a risk-coverage curve
CHUNK = 1024  # reconstructions compared with every original at a time

# Utility: what the scores are still good for


def accuracy(records: Records) -> float:
    """How often the top class is the true one."""
    return float(np.mean(_right(records)))


def ece(records: Records, bins: int = 15) -> float:
    """Expected calibration error: Σ_b (n_b/n)·|accuracy in b - mean top score in b|, over bins of equal width."""
    right, top = _right(records), records.scores.max(axis=1)
    bin_of = np.clip(np.ceil(top * bins).astype(np.int64) - 1, 0, bins - 1)
    gap = np.bincount(bin_of, weights=right - top, minlength=bins)
    return float(np.abs(gap).sum() / len(records))


def brier(records: Records) -> float:
    """The mean of Σ_c (y_c - 1{c is true})², from 0 to 2."""
    return float(cost.brier(records.scores, _labels(records)).mean())


def nll(records: Records) -> float:
    """The mean log-loss; a score of 0 for the true class counts as 1e-12."""
    return float(cost.log_loss(records.scores, _labels(records)).mean())


def aurc(records: Records) -> float:
    """The area under the risk-coverage curve: the error rate while acting on the surest records, averaged."""
    return cost.aurc(records.scores.max(axis=1), _right(records))


def reliability(records: Records) -> tuple[cost.Group, ...]:
    """Groups of like confidence: what was announced, and how often it was right."""
    return cost.reliability(records.scores.max(axis=1), _right(records))


def risk_coverage(records: Records) -> tuple[tuple[float, float], ...]:
    """Points (the share of records that is acted on, the surest first; the error rate among them), none on a few."""
    risks = cost.risks(records.scores.max(axis=1), _right(records))
    n = len(risks)
    counts = np.unique(np.linspace(min(n, cost.LEAST_OF_GROUP), n, COVERAGES).round().astype(np.int64))
    return tuple((float(f"{count / n:.6g}"), float(f"{risks[count - 1]:.6g}")) for count in counts)


def auroc_of_confidence(records: Records) -> float:
    """What confidence is for: the AUROC of the top score for being right; 0.5 where all are right, or all wrong."""
    right, top = _right(records), records.scores.max(axis=1)
    return cost.auroc(top[right], top[~right])


def distortion(released: Floats, scores: Floats, norm: Norm = "l2") -> float:
    """Mean ‖z - y‖."""
    if released.shape != scores.shape or len(scores) == 0:
        raise ValueError(f"Expected two equal batches of scores, got shapes {released.shape} and {scores.shape}.")
    return float(distances(released, scores, norm).mean())


def _labels(records: Records) -> Integers:
    if len(records) == 0:
        raise ValueError("Expected at least 1 record, got 0.")
    return records.true_labels


def _right(records: Records) -> Bools:
    return np.asarray(_labels(records) == records.predicted)


# Membership


def membership_metrics(truth: ArrayLike, attack_scores: ArrayLike) -> MembershipMetrics:
    """`truth` says who is a member; the higher an attack score, the more likely a member, 0.5 where it says so."""
    is_member, scores = np.asarray(truth, dtype=bool), np.asarray(attack_scores, dtype=np.float64)
    members, nonmembers = int(is_member.sum()), int((~is_member).sum())
    if is_member.ndim != 1 or is_member.shape != scores.shape:
        raise ValueError(f"Expected one attack score per record, got shapes {is_member.shape} and {scores.shape}.")
    if members == 0 or nonmembers == 0:
        raise ValueError(f"Expected members and non-members, got {members} and {nonmembers}.")
    if np.isnan(scores).any():
        raise ValueError(f"Expected attack scores that are numbers, got {int(np.isnan(scores).sum())} NaN.")
    said = scores > 0.5
    # ranks, since an attack may well be infinitely sure
    fpr, tpr, _ = roc_curve(is_member, rankdata(scores, method="dense"), drop_intermediate=False)
    intervals = {
        "auc": auc(is_member, scores),
        "tpr_at_1pct": _found(fpr, tpr, 0.01, members),
        "tpr_at_01pct": _found(fpr, tpr, 0.001, members),
    }
    ends = {f"{name}{end}": v for name, three in intervals.items() for end, v in zip(ENDS, three, strict=True)}
    accuracy = float((said[is_member].mean() + (~said[~is_member]).mean()) / 2)
    curve = _thinned(fpr, tpr, nonmembers)
    return MembershipMetrics(accuracy=accuracy, members=members, nonmembers=nonmembers, roc=curve, **ends)


def auc(is_member: Bools, scores: Floats) -> Interval:
    """AUC = P(member's score > other's) + P(equal)/2, and DeLong's interval by midranks (Sun & Xu 2014).

    At an AUC of 0 or 1 the variance is nil; there the interval is that of as many trials as the smaller side has.
    """
    m, n = int(is_member.sum()), int((~is_member).sum())
    every = rankdata(scores)
    above_others = (every[is_member] - rankdata(scores[is_member])) / n  # per member: share of the others below it
    below_members = 1 - (every[~is_member] - rankdata(scores[~is_member])) / m
    value = float(above_others.mean())
    if value in (0.0, 1.0):
        return value, *_clopper_pearson(round(value * min(m, n)), min(m, n))
    variance = sum(float(v.var(ddof=1)) / len(v) for v in (above_others, below_members) if len(v) > 1)
    reach = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * variance**0.5
    return value, max(0.0, value - reach), min(1.0, value + reach)


def _found(fpr: Floats, tpr: Floats, rate: float, members: int) -> Interval:
    """The ROC at a rate of false alarms, linear between its points: ties are broken by a coin."""
    value = float(np.interp(rate, fpr, tpr))
    low, high = _clopper_pearson(round(value * members), members)
    return value, min(low, value), max(high, value)


def _clopper_pearson(successes: int, trials: int) -> tuple[float, float]:
    interval = binomtest(successes, trials).proportion_ci(CONFIDENCE, method="exact")
    return float(interval.low), float(interval.high)


def _thinned(fpr: Floats, tpr: Floats, nonmembers: int) -> tuple[tuple[float, float], ...]:
    rates = np.geomspace(1 / (2 * nonmembers), 1.0, CURVE_POINTS)
    rates[-1] = 1.0
    # six digits: a study keeps hundreds of curves
    return tuple((float(f"{x:.6g}"), float(f"{y:.6g}")) for x, y in zip(rates, np.interp(rates, fpr, tpr), strict=True))


# Inversion


def inversion_metrics(originals: Pixels, reconstructions: Pixels) -> InversionMetrics:
    """Images in [0, 1]: grey (n, h, w), or (n, channels, h, w)."""
    if originals.shape != reconstructions.shape or originals.ndim not in (3, 4) or len(originals) == 0:
        raise ValueError(
            "Expected two equal batches of images (n, h, w) or (n, channels, h, w), "
            f"got shapes {originals.shape} and {reconstructions.shape}."
        )
    return InversionMetrics(
        mse(originals, reconstructions), ssim(originals, reconstructions), nearest_original(originals, reconstructions)
    )


def mse(originals: Pixels, reconstructions: Pixels) -> float:
    """Mean squared error per pixel."""
    return float(np.mean((np.asarray(originals, np.float64) - reconstructions) ** 2))


def ssim(originals: Pixels, reconstructions: Pixels) -> float:
    """Mean structural similarity, scikit-image's."""
    from skimage.metrics import structural_similarity

    channel = 0 if originals.ndim == 4 else None
    pairs = zip(np.asarray(originals, np.float64), np.asarray(reconstructions, np.float64), strict=True)
    return float(np.mean([structural_similarity(a, b, data_range=1.0, channel_axis=channel) for a, b in pairs]))


def nearest_original(originals: Pixels, reconstructions: Pixels) -> float:
    """How often a reconstruction's nearest original is its own; equally near ones share the point."""
    there = np.asarray(originals, np.float64).reshape(len(originals), -1)
    guesses = np.asarray(reconstructions, np.float64).reshape(len(there), -1)
    norms = (there**2).sum(axis=1)
    points = 0.0
    for start in range(0, len(there), CHUNK):
        guess = guesses[start : start + CHUNK]
        distance = norms - 2 * guess @ there.T  # without ‖guess‖², the same for every original
        own = distance[np.arange(len(guess)), start + np.arange(len(guess))]
        nearest = distance.min(axis=1)
        slack = 1e-9 * (1 + np.abs(nearest))
        ties = (distance <= (nearest + slack)[:, None]).sum(axis=1)
        points += float(((own <= nearest + slack) / ties).sum())
    return points / len(there)
