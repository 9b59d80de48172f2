"""What is left of a promise after many releases.

    from scoreveil.accounting import query_bound
    from scoreveil.mechanisms.isotonic import Isotonic

    promise = Isotonic(epsilon=0.5).guarantee(classes=10)
    query_bound(promise, total=5.0)                            # 10: releases of one record within ε = 5
    query_bound(promise, total=5.0, rule="zcdp", delta=1e-6)   # the same in (ε, δ)

What one release promises is the mechanism's own to say: `Mechanism.guarantee`, and `Mechanism.loss` for the exact
loss between two score vectors.
"""

import math
import warnings
from fractions import Fraction
from itertools import permutations
from typing import Literal

import numpy as np

from scoreveil.extras import needs
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Floats, Mechanism

Rule = Literal["pure", "zcdp"]


def worst_loss(family: Floats, mechanism: Mechanism) -> float:
    """The largest privacy loss between any two rows of `family`, either way round."""
    return max(mechanism.loss(a, b) for a, b in permutations(np.asarray(family), 2))


# Many releases


def query_bound(per_release: Guarantee | float, total: float, rule: Rule = "pure", delta: float | None = None) -> int:
    """How many releases of one record stay within a total ε.

    Args:
        per_release: What one release promises. Given as a number ε, it counts as a draw of the exponential
            mechanism, whose loss has range ε: ρ = ε²/8.
        total: The ε that all releases together may reach.
        rule: "pure": ε adds up. "zcdp": ρ adds up, and (ε, δ) follows from it, ε = nρ + 2·√(nρ·ln(1/δ)).
        delta: δ of the rule "zcdp".

    Raises:
        ValueError: The release promises nothing, or an argument is out of range.
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
    with needs("accounting"):
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
            raise ValueError("Releases can be counted for a mechanism with a bounded loss; this one promises none.")
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
