"""Our own defenses: the `Veil`, with draws that follow from the seed, so that a study gives the same table twice.

Asking again still gives a fresh answer, as in production: the generator moves on.
"""

import hashlib
from collections.abc import Callable

import numpy as np

from scoreveil.audit.data.records import Defense, Membership
from scoreveil.audit.defenses.interface import Given
from scoreveil.fitting import fit
from scoreveil.mechanisms.isotonic import Keep
from scoreveil.mechanisms.published import normalize
from scoreveil.veil import Veil

FITTING = 0  # the seed of the noise in a fit


def published(given: Given) -> Defense:
    """The paper's Algorithm 1 and Equation 2."""
    return Veil(_epsilon(given), "published", rng=_rng(given))


def phase_2_alone(given: Given) -> Defense:
    """softmax(ε·y/2), with no draw at all: how much of the paper's effect is a moved threshold."""
    epsilon = _epsilon(given)
    return lambda scores: normalize(scores, epsilon)


def isotonic(keep: Keep = 1, reference: bool = False) -> Callable[[Given], Defense]:
    """The label kept, or the full order; leaning on the public reference, or not."""

    def make(given: Given) -> Defense:
        public = given.reference.scores if reference else None
        return Veil(_epsilon(given), keep=keep, reference=public, rng=_rng(given))

    return make


def optimal(sticky: bool = False) -> Callable[[Given], Defense]:
    """The fitted veil, on known members and the reference. Without labels it has ε and fidelity alone.

    Sticky answers are keyed by record, whose score vector stands for it here: asking again gives the same one.
    """

    def make(given: Given) -> Defense:
        # one table for all views of a study
        fitted = fitted_veil(given.known, _epsilon(given), np.random.default_rng(FITTING))
        if not sticky:
            return Veil(fitted.mechanism, rng=_rng(given))
        keyed = fitted.with_secret(hashlib.sha256(f"a study's secret {given.seed}".encode()).digest())
        return lambda scores: keyed(scores, [row.tobytes() for row in scores])

    return make


def fitted_veil(known: Membership, epsilon: float, rng: np.random.Generator | None = None) -> Veil:
    """The most useful veil for these records, with labels where there are some."""
    inside, others = known.members, known.nonmembers
    labels = None if others.labels is None else inside.labels
    return fit(epsilon, others.scores, others.labels, inside.scores, labels, rng=rng)


def _epsilon(given: Given) -> float:
    if given.epsilon is None:
        raise ValueError("This defense needs an epsilon: give a number above 0.")
    return given.epsilon


def _rng(given: Given) -> np.random.Generator:
    return np.random.default_rng(given.seed)
