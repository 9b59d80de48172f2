"""What is promised, in one object, and what is left of it after many releases.

    from scoreveil.accounting import guarantee, query_bound
    from scoreveil.mechanisms.isotonic import IsotonicSettings

    promise = guarantee(IsotonicSettings(epsilon=0.5), classes=10)
    query_bound(promise, total=5.0)                            # 10: releases of one record within ε = 5
    query_bound(promise, total=5.0, rule="zcdp", delta=1e-6)   # the same in (ε, δ)

Losses are exact, not sampled: a max-plus pass over the isotonic chain, a product over the published sub-ranges.
"""

import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Literal

import numpy as np

from scoreveil.mechanisms import isotonic, published
from scoreveil.mechanisms.isotonic import IsotonicSettings, Plan
from scoreveil.mechanisms.published import PublishedSettings
from scoreveil.mechanisms.reference import Floats, Reference

Rule = Literal["pure", "zcdp"]


@dataclass(frozen=True)
class Guarantee:
    """What one release promises. `str()` says it in words."""

    epsilon: float  # of one release, for the relation; inf: none is promised
    relation: str  # for which pairs of score vectors it holds
    words: str
    limits: tuple[str, ...]
    rho: float  # one release is ρ-zCDP for the same relation
    worst_loss: float | None = None  # the exact supremum of the privacy loss, where it is known

    def __str__(self) -> str:
        return "\n".join([self.words, "Limits:", *(f"- {limit}" for limit in self.limits)])


KEPT_CLASSES = (
    "The kept classes are released as they are: label-only attacks are not stopped.",
    "It is a promise about score vectors, given the model; it is not training with differential privacy.",
    "It counts one release. Fresh answers for the same record add up (query_bound); a secret or a ledger prevents it.",
)


def guarantee(
    settings: IsotonicSettings | PublishedSettings,
    classes: int | None = None,
    reference: Reference | None = None,
    snapped: bool = False,
) -> Guarantee:
    """What one release under these settings promises; with `classes`, its exact worst loss too."""
    if isinstance(settings, PublishedSettings):
        return _published_guarantee(settings)
    if classes is None and reference is not None:
        classes = reference.classes
    kept = {1: "top class", "all": "ranking of all classes"}.get(settings.keep, f"{settings.keep} top classes in order")
    relation = f"any two score vectors with the same {kept}"
    words = (
        f"Whatever is released, {relation} give it with probabilities within a factor e^{settings.epsilon:g} of each "
        f"other: ε = {settings.epsilon:g} for the scores, given what is kept. An attack on the scores gains at most "
        "that factor over the best attack that sees only what is kept."
    )
    limits = list(KEPT_CLASSES)
    if settings.keep == "all":
        limits.insert(1, "The full ranking alone leaves a model inversion attack nearly all it wants; keep=1 does not.")
    if snapped:
        limits.append(
            "Keyed answers: the same scores, and near-duplicates in the same grid cell, always get the same answer; "
            "inputs that cross into other cells get fresh draws. Records of one cell share an answer: who knows the "
            "membership of many records can learn what an answer means for the others."
        )
    if reference is not None:
        limits.append("The reference must not be counted from the records to be protected.")
    # ρ follows from the range of the loss, 2aΔ; ε-DP alone bounds the range by 2ε
    worst, loss_range = None, 2 * settings.epsilon
    if classes is not None:
        plan = isotonic.plan(settings, classes, reference, snapped)
        loss_range = min(loss_range, plan.range)
        worst = exact_worst_loss(plan) if plan.kept == 1 else None
    elif settings.keep != 1:
        loss_range = settings.epsilon
    return Guarantee(settings.epsilon, relation, words, tuple(limits), loss_range**2 / 8, worst)


def _published_guarantee(settings: PublishedSettings) -> Guarantee:
    part = "" if settings.reading == "bounded" else " (and not under the printed reading, whose Δu is wrong)"
    return Guarantee(
        epsilon=math.inf,
        relation="any two score vectors with the same ranking of all classes",
        words=(
            "The published mechanism bounds nothing between two score vectors that merely share their ranking. "
            f"The paper's Theorem 1 covers vectors whose adjacent sorted scores have equal sums{part}: they differ by "
            "(t, -t, t, …), and since scores sum to 1, for an odd number of classes no two such vectors exist."
        ),
        limits=(
            "The borders of the sub-ranges are functions of the scores, so an outcome possible for one vector is "
            "impossible for its neighbour: the exact loss is infinite.",
            "Phase 2 can be inverted: y'_i - y'_j = (2/ε)·ln(z_i/z_j). An attacker who retrains sees through it.",
            *KEPT_CLASSES[:1],
        ),
        rho=math.inf,
    )


def exact_worst_loss(plan: Plan) -> float:
    """The supremum of the privacy loss over all pairs with the same top class, for keep=1 (closed form)."""
    if plan.kept != 1:
        raise ValueError(f"Expected a plan that keeps 1 class, got {plan.kept}.")
    low = isotonic.lowest_top(plan.classes, plan.snapped, plan.settings.step)
    return float(isotonic.worst_loss(plan.measure[:, 0], plan.scale, low).max())


def privacy_loss(scores: Floats, other: Floats, mechanism: Plan | PublishedSettings) -> float:
    """The exact sup over outcomes of ln P(outcome | scores) - ln P(outcome | other); inf where `other` cannot give one.

    Isotonic: over all c ∈ C. Published: over all y' of Phase 1.
    """
    pair = np.stack([scores, other]).astype(np.float64)
    if isinstance(mechanism, PublishedSettings):
        return _published_loss(pair, mechanism)
    order, tops = isotonic.top_scores(pair, mechanism)
    kept = order[:, mechanism.classes - mechanism.kept :]
    if not np.array_equal(kept[0], kept[1]):
        return math.inf
    weights = isotonic.log_weights(tops, order[:, -1], mechanism)
    normaliser = isotonic.log_normaliser(weights)
    with np.errstate(invalid="ignore"):
        gain = np.where(np.isfinite(weights[0]), weights[0] - weights[1], -np.inf)
    best = np.zeros(gain.shape[-1])
    for i in reversed(range(1, mechanism.kept)):
        best = np.maximum.accumulate(gain[i] + best)
        if i == 1:
            best = np.concatenate([[-np.inf], best[:-1]])
    return float((gain[0] + best).max() - normaliser[0] + normaliser[1])


def _published_loss(pair: Floats, settings: PublishedSettings) -> float:
    order, ascending, _ = published.ascending_scores(pair)
    lower, upper = published.sub_ranges(ascending)
    if not (np.array_equal(order[0], order[1]) and np.allclose(lower[0], lower[1], rtol=0, atol=1e-12)):
        return math.inf
    log_p = published.selection_log_probabilities(ascending, settings)
    different = upper[0] > lower[0]  # an empty sub-range has one outcome
    return float((log_p[0] - log_p[1]).max(axis=-1)[different].sum())


def worst_loss(family: Floats, mechanism: Plan | PublishedSettings) -> float:
    """The largest privacy loss between any two rows of `family`, either way round."""
    return max(privacy_loss(a, b, mechanism) for a, b in permutations(np.asarray(family), 2))


# Many releases


def query_bound(per_release: Guarantee | float, total: float, rule: Rule = "pure", delta: float | None = None) -> int:
    """How many releases of one record stay within `total`.

    "pure": ε adds up. "zcdp": ρ adds up, and (ε, δ) follows from it, ε = nρ + 2·√(nρ·ln(1/δ)). Given as a number ε,
    a release counts as a draw of the exponential mechanism, whose loss has range ε: ρ = ε²/8.
    """
    epsilon, rho = _per_release(per_release)
    if not 0 < total < math.inf:
        raise ValueError(f"Expected a finite total > 0, got {total}.")
    if rule == "pure":
        # as decimals, so that 0.3 holds three times 0.1
        return int(Fraction(repr(float(total))) // Fraction(repr(float(epsilon))))
    if rule != "zcdp":
        raise ValueError(f"Expected rule 'pure' or 'zcdp', got {rule!r}.")
    log = _log_inverse(delta)
    # written without the difference of two near square roots
    most_rho = (total / (math.sqrt(log + total) + math.sqrt(log))) ** 2
    releases = math.floor(most_rho / rho)
    return releases + 1 if epsilon_after(per_release, releases + 1, rule, delta) <= total else releases


def epsilon_after(
    per_release: Guarantee | float, releases: int, rule: Rule = "pure", delta: float | None = None
) -> float:
    """What `releases` of one record add up to: the closed forms behind `query_bound`."""
    epsilon, rho = _per_release(per_release)
    _check_releases(releases)
    if rule == "pure":
        return releases * epsilon
    if rule != "zcdp":
        raise ValueError(f"Expected rule 'pure' or 'zcdp', got {rule!r}.")
    spent = releases * rho
    return spent + 2 * math.sqrt(spent * _log_inverse(delta))


def tight_epsilon_after(per_release: Guarantee | float, releases: int, delta: float) -> float:
    """(ε, δ) after `releases`, by Google's dp-accounting: the least of what Rényi and privacy-loss accounting prove.

    Never more than `epsilon_after` by either rule. Needs `pip install 'scoreveil[accounting]'`.
    """
    from dp_accounting import ZCDpEvent
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.rdp import RdpAccountant

    _log_inverse(delta)
    epsilon, rho = _per_release(per_release)
    _check_releases(releases)
    if releases == 0:
        return 0.0
    renyi = RdpAccountant(orders=[1 + 2.0**i for i in np.arange(-8, 12, 0.25)])
    renyi.compose(ZCDpEvent(rho), releases)
    best = min(releases * epsilon, renyi.get_epsilon(delta))
    # randomised response on two values loses exactly ε, and dominates every ε-DP release
    if epsilon < 20:
        losses = privacy_loss_distribution.from_randomized_response(2 / (1 + math.exp(epsilon)), 2)
        best = min(best, losses.self_compose(releases).get_epsilon_for_delta(delta))
    return float(best)


def paper_query_bound(epsilon: float, k: int, total: float) -> float:
    """Theorem 3 as printed: ε'(e^ε' - 1) / (kε(e^{kε} - 1)). Not safe to rely on; warns.

    It compares two upper bounds on a KL divergence, which bounds nothing: for k = 10, ε = 0.1, ε' = 5 it allows 429
    releases where 5 add up to ε'.
    """
    for name, value in (("epsilon", epsilon), ("total", total)):
        if not 0 < value < math.inf:
            raise ValueError(f"Expected a finite {name} > 0, got {value}.")
    if k < 2:
        raise ValueError(f"Expected k >= 2, got {k}.")
    warnings.warn(
        "Theorem 3 compares two upper bounds and allows more releases than the privacy level bears; use query_bound.",
        stacklevel=2,
    )
    per_release = k * epsilon
    # both logs written so that large exponents do not overflow
    log_ratio = math.log(total / per_release) + _log_expm1(total) - _log_expm1(per_release)
    return math.exp(log_ratio) if log_ratio < 709 else math.inf


def _per_release(per_release: Guarantee | float) -> tuple[float, float]:
    """ε and ρ of one release."""
    if isinstance(per_release, Guarantee):
        if math.isinf(per_release.epsilon):
            raise ValueError("Expected a mechanism with a bounded loss, got one that promises none (published).")
        return per_release.epsilon, per_release.rho
    if not 0 < per_release < math.inf:
        raise ValueError(f"Expected a finite epsilon per release > 0, got {per_release}.")
    return per_release, per_release**2 / 8


def _check_releases(releases: int) -> None:
    if not releases >= 0:
        raise ValueError(f"Expected a number of releases >= 0, got {releases}.")


def _log_inverse(delta: float | None) -> float:
    if delta is None or not 0 < delta < 1:
        raise ValueError(f"Expected 0 < delta < 1 for rule 'zcdp', got {delta}.")
    return -math.log(delta)


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))
