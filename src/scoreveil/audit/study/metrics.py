"""What an attack makes of scores: members told from others, and pictures redrawn. (`fitting/metrics.py`: their use.)

Every interval is a 95 % one. Ties count as an attacker who guesses among them would fare: an attack that gives every
record the same score has AUC 0.5, and finds 1 % of the members at 1 % false alarms.
"""

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest, rankdata
from sklearn.metrics import roc_curve

from scoreveil.arrays import Floats
from scoreveil.audit.data.records import Bools
from scoreveil.audit.study.results import InversionMetrics, MembershipMetrics
from scoreveil.fitting.metrics import CONFIDENCE, placements

Pixels = NDArray[np.float32] | NDArray[np.float64]
Interval = tuple[float, float, float]  # a measured number, and from where to where it may well lie

ENDS = ("", "_low", "_high")
CURVE_POINTS = 64
CHUNK = 1024  # reconstructions compared with every original at a time


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
    above_others, below_members = placements(scores[is_member], scores[~is_member])
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
