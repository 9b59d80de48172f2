"""One number per record and one threshold per class (Yeom et al. 2018; Song and Mittal 2021).

Members are those above the threshold of their class: the predicted class, or the true one where it is known. The
thresholds are those with the best balanced accuracy on the shadow, so a defense that only moves or stretches the
scores gains nothing against them. A class gets its own threshold only where the shadow shows clearly that it is better
there than the common one: following noise costs more than it brings. Every signal is on a logarithmic scale, which
changes no decision but lets one list of records be sorted across classes.
"""

from collections.abc import Callable

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.features import SMALLEST_FLOAT, at, balancing_weights, log_odds
from scoreveil.audit.attacks.interface import Features, Fit, Scorer
from scoreveil.audit.data.records import Bools, Membership, Records

Signal = Callable[[Records], Floats]  # the higher, the more likely a member
CLEARLY = 3.0  # standard errors


def max_confidence(records: Records) -> Floats:
    return log_odds(records.scores, records.predicted)


def true_confidence(records: Records) -> Floats:
    return log_odds(records.scores, records.true_labels)


def entropy(records: Records) -> Floats:
    """−ln H, H = −Σ p_i ln p_i."""
    p = records.scores
    return _minus_log(-(p * np.log(p + SMALLEST_FLOAT)).sum(axis=1))


def modified_entropy(records: Records) -> Floats:
    """−ln M, M = −(1 − p_y) ln p_y − Σ_{i≠y} p_i ln(1 − p_i): small only if the model is sure and right."""
    p, labels = records.scores, records.true_labels
    own = at(p, labels)
    of_others = -(p * np.log(np.maximum(1 - p, SMALLEST_FLOAT)))
    of_others[np.arange(len(p)), labels] = 0.0
    return _minus_log(of_others.sum(axis=1) - (1 - own) * np.log(own + SMALLEST_FLOAT))


def _minus_log(values: Floats) -> Floats:
    return np.asarray(-np.log(np.maximum(values, SMALLEST_FLOAT)))


def fit_by(signal: Signal, classes_of: Callable[[Records], Integers]) -> Fit:
    """An attack's `fit` from a signal and the class that chooses the threshold."""

    def fit(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
        cuts = thresholds(signal(shadow.records), classes_of(shadow.records), shadow)
        return lambda records: 0.5 + signal(records) - cuts[classes_of(records)]

    return fit


def thresholds(values: Floats, classes: Integers, shadow: Membership) -> Floats:
    """The threshold of each class: its own where that is clearly better, else the common one."""
    truth, weights = shadow.truth, balancing_weights(shadow)
    common = threshold(values, truth, weights)
    cuts = np.full(shadow.classes, common)
    for c in np.unique(classes):
        here = classes == c
        own = threshold(values[here], truth[here], weights[here])
        # only the records between the two thresholds are decided differently
        between = here & ((values >= own) != (values >= common))
        gain = np.where(truth == (values >= own), weights, -weights)[between].sum()
        if gain > CLEARLY * np.sqrt((weights[between] ** 2).sum()):
            cuts[c] = own
    return cuts


def threshold(values: Floats, truth: Bools, weights: Floats) -> float:
    """The value from which on "member" is right most often, half-way to the next value below."""
    order = np.argsort(-values, kind="stable")
    ordered = values[order]
    gain = np.cumsum(np.where(truth, weights, -weights)[order])
    gain[:-1][ordered[:-1] == ordered[1:]] = -np.inf  # equal values stay together
    best = int(np.argmax(gain))
    if gain[best] <= 0:
        return float(np.nextafter(ordered[0], np.inf))
    return float(ordered[best] if best == len(ordered) - 1 else (ordered[best] + ordered[best + 1]) / 2)
