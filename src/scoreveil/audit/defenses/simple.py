"""The simple rivals (Shokri et al. 2017): fewer classes, fewer digits, a higher temperature; and Gaussian noise.

Each releases rows that sum to 1, so that every metric applies to it; what that needs beyond the published words is
said where it is done.
"""

from collections.abc import Callable

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.records import Defense
from scoreveil.audit.defenses.interface import Given
from scoreveil.files.records import Scored
from scoreveil.fitting import cost
from scoreveil.mechanisms.ordering import rank, restore, unrank


def none(given: Given) -> Defense:
    """No defense: the scores as they are."""
    return lambda scores: scores


def one_hot(labels: Integers, classes: int) -> Floats:
    return np.eye(classes)[labels]


def label_only(given: Given) -> Defense:
    """The label alone, as a one-hot vector: the floor of everything that keeps the label."""
    return lambda scores: one_hot(scores.argmax(axis=1), scores.shape[1])


def label_constant(given: Given) -> Defense:
    """The label with one confidence for all records, how often labels are right: what a veil has to beat."""
    return cost.label_with_constant_confidence(_reference(given))


def temperature_scaled(given: Given) -> Defense:
    """softmax(ln y / T) with the T of the least log-loss on the reference: the raw scores, calibrated."""
    return cost.tempered(_reference(given))


def _reference(given: Given) -> Scored:
    if given.reference.labels is None:
        raise ValueError("This way to answer is fitted to true labels, which the records lack: give labels.")
    return Scored(given.reference.scores, given.reference.labels)


def top_k(kept: int) -> Callable[[Given], Defense]:
    """The scores of the top classes only.

    The others become 0 and the kept ones are renormalised: one number less for an attacker than the published form,
    which leaves the kept scores as they are. With one class kept it is the label alone, as Shokri et al. define it.
    """
    if not kept >= 1:
        raise ValueError(f"Expected at least 1 class kept, got {kept}.")

    def defense(scores: Floats) -> Floats:
        order = rank(scores)
        ascending = np.take_along_axis(scores, order, axis=1)
        ascending[:, : max(0, scores.shape[1] - kept)] = 0.0
        released: Floats = unrank(ascending / ascending.sum(axis=1, keepdims=True), order)
        return released

    return lambda given: defense


def rounding(digits: int) -> Callable[[Given], Defense]:
    """Scores rounded to some digits, then renormalised.

    Rounding can leave the label tied with another class, or every score at 0. Then the label gets one unit of the last
    digit more: a service that rounds its scores would still say which class came first.
    """
    if not digits >= 1:
        raise ValueError(f"Expected at least 1 digit, got {digits}.")

    def defense(scores: Floats) -> Floats:
        rounded = np.round(scores, digits)
        rows, label = np.arange(len(scores)), scores.argmax(axis=1)
        alone = (rounded >= rounded[rows, label, None]).sum(axis=1) == 1
        rounded[rows, label] += np.where(alone & (rounded[rows, label] > 0), 0.0, 10.0**-digits)
        return np.asarray(rounded / rounded.sum(axis=1, keepdims=True))

    return lambda given: defense


def temperature(t: float) -> Callable[[Given], Defense]:
    """softmax(ln y / t): flatter scores for t > 1.

    Invertible: y ∝ z^t gives back every score, so only an attacker who does not think of it is held off.
    """
    if not t > 0:
        raise ValueError(f"Expected t > 0, got {t}.")

    def defense(scores: Floats) -> Floats:
        order = rank(scores)
        ascending = np.take_along_axis(scores, order, axis=1)
        flattened = (ascending / ascending[:, -1:]) ** (1 / t)
        return in_order(flattened, np.diff(ascending, axis=1) > 0, order)

    return lambda given: defense


def gaussian(sigma: float) -> Callable[[Given], Defense]:
    """Gaussian noise on each score, clipped at 0, sorted so that the order of the classes is kept, renormalised.

    Fresh noise at every call: averaging repeated queries removes it.
    """
    if not sigma > 0:
        raise ValueError(f"Expected sigma > 0, got {sigma}.")

    def make(given: Given) -> Defense:
        rng = np.random.default_rng(given.seed)

        def defense(scores: Floats) -> Floats:
            order = rank(scores)
            noisy = np.clip(scores + sigma * rng.standard_normal(scores.shape), 0.0, None)
            # a strict step everywhere: scores that were clipped to 0 together keep their order too
            return in_order(np.sort(noisy, axis=1), None, order)

        return defense

    return make


def in_order(ascending: Floats, strict: np.ndarray | None, order: Integers) -> Floats:
    """Ascending rows, normalised, strict where wanted, and back in their classes."""
    ascending = ascending / ascending.sum(axis=1, keepdims=True)
    return np.asarray(restore(ascending, strict, order, np.float64))
