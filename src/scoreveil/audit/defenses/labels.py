"""Noise on the label itself: what the paper announces against attacks that use nothing but labels.

    P(c | y) ∝ exp(ε · y_c / 2)      the exponential mechanism, the score as utility (sensitivity 1)

The paper's wish: an introduced error smaller than the model's own. ε is the smallest one for which the share of
records that the noise turns from right to wrong, measured on known non-members, stays within `share` of the error
that the model makes on them. What the noise puts right by luck is not counted in its favour. Without true labels the
error is what the model itself admits, 1 - its mean top score, and every changed label counts as added error.

Sticky: the draw is a function of the score vector, so that a majority over repeated queries gets nothing back.

What to expect: confident records keep their label more often, and a model is most confident on its members. The noise
blurs labels near the border between classes; it does not close the gap between training and test accuracy.
"""

from collections.abc import Callable

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.records import Defense, Records
from scoreveil.audit.defenses.interface import Given
from scoreveil.audit.defenses.simple import one_hot
from scoreveil.audit.defenses.sticky import sticky_uniforms

LARGEST = 2.0**20  # beyond it the label is released as it is


def label_noise(share: float = 0.1) -> Callable[[Given], Defense]:
    """Labels drawn by the exponential mechanism, with an added error of at most `share` of the model's own."""
    if not 0 < share <= 1:
        raise ValueError(f"Expected 0 < share <= 1, got {share}.")

    def make(given: Given) -> Defense:
        epsilon = tune(given.known.nonmembers, share)

        def defense(scores: Floats) -> Floats:
            uniforms = sticky_uniforms(scores, given.seed, "label_noise")
            return one_hot(draw(scores, epsilon, uniforms), scores.shape[1])

        return defense

    return make


def tune(held_out: Records, share: float) -> float:
    """The smallest ε whose added error is at most `share` of the model's own error; inf where the model makes none."""
    if len(held_out) == 0:
        raise ValueError("Expected at least 1 known non-member to measure the added error on, got 0.")
    scores = held_out.scores
    if held_out.labels is None:
        right, error = np.ones(len(scores), dtype=bool), float(np.mean(1 - scores.max(axis=1)))
    else:
        right = held_out.predicted == held_out.labels
        error = float(np.mean(~right))

    def fits(epsilon: float) -> bool:
        changed = 1 - probabilities(scores[right], epsilon).max(axis=1)
        return float(changed.sum()) / len(scores) <= share * error

    low, high = 2.0**-20, LARGEST
    if error == 0 or not fits(high):
        return float("inf")
    for _ in range(60):  # the added error falls with ε: the label has the highest score
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def probabilities(scores: Floats, epsilon: float) -> Floats:
    """P(c | y) ∝ exp(ε · y_c / 2)."""
    exponent = epsilon / 2 * (scores - scores.max(axis=1, keepdims=True))
    weights = np.exp(exponent)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def draw(scores: Floats, epsilon: float, uniforms: Floats) -> Integers:
    """One class for each row, by inversion of one uniform."""
    if epsilon == float("inf"):
        return np.asarray(scores.argmax(axis=1))
    cumulative = np.cumsum(probabilities(scores, epsilon), axis=1)
    below = cumulative <= uniforms[:, None] * cumulative[:, -1:]
    return np.asarray(np.minimum(below.sum(axis=1), scores.shape[1] - 1))
