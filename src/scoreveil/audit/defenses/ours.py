"""Our own defenses: the `Veil`, with draws that follow from the seed, so that a study gives the same table twice.

Asking again still gives a fresh answer, as in production: the generator moves on.
"""

import warnings
from collections.abc import Callable

import numpy as np

from scoreveil.audit.data.records import FOLDS, CrossFitted, Defense, Membership
from scoreveil.audit.defenses.interface import Given
from scoreveil.fitting import fit
from scoreveil.fitting.cost import asked_quietly
from scoreveil.mechanisms.isotonic import Keep
from scoreveil.mechanisms.published import normalize
from scoreveil.shapes import VECTORS, Shape
from scoreveil.veil import Veil

FITTING = 0  # the seed of the noise in a fit


def published(given: Given) -> Defense:
    """The paper's Algorithm 1 and Equation 4."""
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


def regions(given: Given) -> Defense:
    """The veil that was given; else one fitted for each fold of the records, or on those that the defender knows."""
    if given.veil is not None:
        return Veil(given.veil.mechanism, rng=_rng(given))
    if given.everyone is not None:
        return cross_fitted(given.everyone, given.epsilon, given.seed, given.shape)
    return Veil(studied_veil(given.known, given.epsilon).mechanism, rng=_rng(given))


def cross_fitted(
    everyone: Membership, epsilon: float | None, seed: int, shape: Shape = VECTORS, asked: Shape = VECTORS
) -> CrossFitted:
    """A veil for each fold of the records, fitted on the others.

    Args:
        everyone: All records as they are served, with their folds.
        epsilon: As for `fit`.
        seed: Of the draws.
        shape: How they are served.
        asked: How the scores are served that it answers about; by default as vectors.
    """

    def of_fold(number: int) -> Defense:
        fitted = studied_veil(everyone.without_fold(number), epsilon, shape)
        return quietly(Veil(fitted.mechanism, shape=asked, rng=np.random.default_rng([seed, number])))

    return CrossFitted(tuple(map(of_fold, range(FOLDS))))


def quietly(veil: Veil) -> Defense:
    """A veil without the warning that a large ε adds up."""
    return lambda scores: asked_quietly(veil, scores)


def studied_veil(known: Membership, epsilon: float | None, shape: Shape = VECTORS) -> Veil:
    """The same veil for all views of a study. What a fit would warn of is measured there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fitted_veil(known, shape, epsilon, np.random.default_rng(FITTING))


def fitted_veil(known: Membership, shape: Shape, epsilon: float | None, rng: np.random.Generator | None = None) -> Veil:
    """The most useful veil for these records, with labels where there are some.

    Sides that seem to be mixed up are fitted too: the audit has a note about them.
    """
    inside, others = known.members, known.nonmembers
    labels = None if others.labels is None else inside.labels
    return fit(others.scores, others.labels, inside.scores, labels, epsilon=epsilon, shape=shape, force=True, rng=rng)


def _epsilon(given: Given) -> float:
    if given.epsilon is None:
        raise ValueError("This defense needs an epsilon: give a number above 0.")
    return given.epsilon


def _rng(given: Given) -> np.random.Generator:
    return np.random.default_rng(given.seed)
