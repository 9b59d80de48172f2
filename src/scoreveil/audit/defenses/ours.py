"""Our own defenses: the `Veil`, with draws that follow from the seed, so that a study gives the same table twice.

Asking again still gives a fresh answer, as in production: the generator moves on.
"""

import hashlib

import numpy as np

from scoreveil.audit.data.records import Defense
from scoreveil.audit.defenses.interface import Given
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.published import normalize
from scoreveil.veil import Veil


def published(given: Given) -> Defense:
    """The paper's Algorithm 1 and Equation 2."""
    return Veil(_epsilon(given), "published", rng=_rng(given))


def phase_2_alone(given: Given) -> Defense:
    """softmax(ε·y/2), with no draw at all: how much of the paper's effect is a moved threshold."""
    epsilon = _epsilon(given)
    return lambda scores: normalize(scores, epsilon)


def isotonic(given: Given) -> Defense:
    """The label kept, no reference."""
    return Veil(_epsilon(given), keep=1, rng=_rng(given))


def isotonic_reference(given: Given) -> Defense:
    """The label kept, with the public reference."""
    return Veil(_epsilon(given), keep=1, reference=given.reference.scores, rng=_rng(given))


def isotonic_sticky(given: Given) -> Defense:
    """As `isotonic_reference`, with keyed answers: asking again gives the same one."""
    secret = hashlib.sha256(f"a study's secret {given.seed}".encode()).digest()
    return Veil(_epsilon(given), keep=1, reference=given.reference.scores, secret=secret)


def isotonic_all(given: Given) -> Defense:
    """The full order kept, no reference."""
    return Veil(_epsilon(given), keep="all", rng=_rng(given))


def isotonic_all_reference(given: Given) -> Defense:
    """The full order kept, with the public reference."""
    return Veil(_epsilon(given), keep="all", reference=given.reference.scores, rng=_rng(given))


def _epsilon(given: Given) -> float:
    if given.epsilon is None:
        raise ValueError("Expected an epsilon for this defense, got none.")
    return given.epsilon


def _rng(given: Given) -> np.random.Generator:
    loading.wait()  # numpy and the kernels differ in the last digits: one of them is to answer from first to last
    return np.random.default_rng(given.seed)
