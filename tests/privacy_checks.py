"""Checks that a mechanism is what it claims to be, by enumerating every output. They raise AssertionError.

They know the isotonic mechanism only as two functions, so that planted bugs can be put in its place.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from scoreveil.mechanisms import isotonic, reference
from scoreveil.mechanisms.isotonic import Isotonic, IsotonicPlan

ALPHA = 1e-6


@dataclass(frozen=True)
class Claim:
    """A mechanism, and the ε that it claims."""

    epsilon: float
    plan: IsotonicPlan
    log_probability: Callable[[np.ndarray, np.ndarray], np.ndarray]
    choose: Callable[[np.ndarray, np.ndarray], np.ndarray]


def claim(epsilon: float, plan: IsotonicPlan) -> Claim:
    def choose(scores: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        order, tops = isotonic.top_scores(scores, plan)
        return isotonic.choose(tops, order[:, -1], plan, uniforms)

    return Claim(epsilon, plan, lambda scores, levels: isotonic.log_probability(scores, levels, plan), choose)


def make_mechanism(
    epsilon: float, classes: int, keep: int, levels: int, with_reference: bool, snapped: bool = False
) -> Isotonic:
    counted = None
    if with_reference and keep > 1:  # a reference is for two kept classes or more
        rng = np.random.default_rng(classes * 100 + keep)
        counted = reference.count(rng.dirichlet(np.linspace(0.2, 1.5, classes), 300), keep, levels)
    mechanism = Isotonic(epsilon, keep, levels, reference=counted)
    return mechanism.keyed() if snapped else mechanism


def make_plan(
    epsilon: float, classes: int, keep: int, levels: int, with_reference: bool, snapped: bool = False
) -> IsotonicPlan:
    return make_mechanism(epsilon, classes, keep, levels, with_reference, snapped).plan(classes)


def sequences(plan: IsotonicPlan) -> np.ndarray:
    """Every c_1 > c_2 >= … >= c_j, by the definition."""
    every = itertools.product(range(plan.levels), repeat=plan.kept)
    low = max(1 / plan.classes, plan.step) - 1e-12
    inside = [
        c
        for c in every
        if c[0] * plan.step >= low
        and (plan.kept == 1 or c[0] > c[1])
        and all(a >= b for a, b in itertools.pairwise(c[1:]))
    ]
    return np.array(inside)


def naive_probabilities(scores: np.ndarray, plan: IsotonicPlan) -> np.ndarray:
    """P(c | v) for every c, straight from the formula of DESIGN: the oracle of the tests."""
    order = sorted(range(plan.classes), key=lambda i: (-scores[i], i))
    table, v = plan.table_of_class[order[0]], [scores[i] for i in order[: plan.kept]]
    weights = []
    for c in sequences(plan):
        q = np.prod([plan.measure[table, i, g] for i, g in enumerate(c)])
        weights.append(q * np.exp(-plan.scale * sum(abs(g * plan.step - x) for g, x in zip(c, v, strict=True))))
    return np.array(weights) / sum(weights)


def same_kept_classes(plan: IsotonicPlan, rng: np.random.Generator) -> np.ndarray:
    """Score vectors with the same kept classes in the same order: the extreme ones, and random ones.

    Classes 0, 1, … are kept in this order; ties are broken by index, so equal scores keep it too.
    """
    k, j = plan.classes, plan.kept
    rows = [np.r_[np.full(t, 1 / t), np.zeros(k - t)] for t in range(1, k + 1)]
    for _ in range(6):
        ordered = np.sort(rng.dirichlet(np.full(k, rng.choice([0.2, 1.0, 5.0]))))[::-1]
        rows.append(np.r_[ordered[:j], rng.permutation(ordered[j:])])
    if j == 1:
        low = isotonic.lowest_top(k, plan.snapped, plan.step)
        for v in np.clip(np.linspace(0, 1, plan.levels), max(low, 1 / k), 1):
            rows.append(np.r_[v, np.full(k - 1, (1 - v) / (k - 1))])
            # the same top score, with all the rest on one other class
            second = min(1 - v, v)
            rows.append(np.r_[v, second, np.full(k - 2, (1 - v - second) / max(k - 2, 1))])
    return np.array([row for row in rows if np.argmax(row) == 0 and row.max() - row[1:].max() >= -1e-15])


def check_loss(claimed: Claim, rng: np.random.Generator) -> float:
    """The largest log-ratio over every output and pair; fails where it exceeds ε, or for keep=1 falls short of it.

    With more kept classes the loss of the enumerated pairs stays well below ε, since the proof adds up two bounds
    that are not met together; there the proof's own terms are checked too, 2a·‖v - v̂‖₁ <= ε.
    """
    family, outputs = same_kept_classes(claimed.plan, rng), sequences(claimed.plan)
    log_p = np.array([claimed.log_probability(np.repeat(row[None], len(outputs), 0), outputs) for row in family])
    assert np.allclose(np.exp(log_p).sum(axis=1), 1, atol=1e-9), "the probabilities of all outputs sum to 1"
    worst = float((log_p.max(axis=0) - log_p.min(axis=0)).max())
    assert worst <= claimed.epsilon + 1e-9, f"loss {worst} exceeds ε = {claimed.epsilon}"
    if claimed.plan.kept > 1:
        tops = family[:, : claimed.plan.kept]
        farthest = np.abs(tops[:, None] - tops[None]).sum(axis=-1).max()
        bound = 2 * claimed.plan.scale * farthest
        assert bound <= claimed.epsilon + 1e-9, f"the bound {bound} exceeds ε = {claimed.epsilon}"
    elif claimed.plan.scale < isotonic.MAX_SCALE and len(claimed.plan.measure) == 1:
        assert worst >= claimed.epsilon - 1e-6, f"loss {worst} falls short of ε = {claimed.epsilon}"
    return worst


def check_sampler(claimed: Claim, scores: np.ndarray, uniforms: np.ndarray) -> None:
    """χ² of many draws for one score vector against the exact probabilities, at α = 1e-6."""
    outputs = sequences(claimed.plan)
    exact = np.exp(claimed.log_probability(np.repeat(scores[None], len(outputs), 0), outputs))
    levels = claimed.choose(np.repeat(scores[None], len(uniforms), 0), uniforms)
    base = claimed.plan.levels ** np.arange(claimed.plan.kept)
    counted = dict(zip(*np.unique(levels @ base, return_counts=True), strict=True))
    observed = np.array([counted.pop(code, 0) for code in outputs @ base])
    assert not counted, "every draw is one of the outputs"
    assert chi_square(observed, exact) > ALPHA


def chi_square(observed: np.ndarray, probabilities: np.ndarray) -> float:
    """The p-value. The least likely cells are taken together until they expect 10, where χ² begins to hold."""
    assert not np.any(observed[probabilities == 0]), "what cannot happen did"
    order = np.argsort(probabilities)
    observed, expected = observed[order], probabilities[order] * observed.sum() / probabilities.sum()
    together = int(np.searchsorted(np.cumsum(expected), 10)) + 1
    observed = np.r_[observed[:together].sum(), observed[together:]]
    expected = np.r_[expected[:together].sum(), expected[together:]]
    if len(expected) == 1:
        return 1.0
    return float(stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)
