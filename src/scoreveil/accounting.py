"""What is left of a promise after many releases.

    from scoreveil.accounting import query_bound
    from scoreveil.mechanisms.isotonic import Isotonic

    promise = Isotonic(epsilon=0.5).guarantee(classes=10)
    query_bound(promise, total=5.0)                # 10: releases of one record within ε = 5
    query_bound(promise, total=5.0, delta=1e-6)    # the same in (ε, δ), which never allows fewer

A veil fitted with ε has few answers, whose chances are known. So what many of them add up to can be computed, by the
rule "exact".

What one release promises is the mechanism's own to say: `Mechanism.guarantee`, and `Mechanism.loss` for the exact
loss between two score vectors.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import permutations
from typing import TYPE_CHECKING, Literal

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.extras import needs
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.mechanisms.promises import WHOLE

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

ClosedForm = Literal["pure", "zcdp"]
Rule = ClosedForm | Literal["exact"]

REPEATS = (1, 2, 5, 10)  # fresh answers about one record that are spoken of where a promise is shown
MAX_RELEASES = 10**9  # as many as you like: more are not counted one by one


def worst_loss(family: Floats, mechanism: Mechanism) -> float:
    """The largest privacy loss between any two rows of `family`, either way round."""
    return max(mechanism.loss(a, b) for a, b in permutations(np.asarray(family), 2))


# Many releases


def query_bound(
    per_release: Guarantee | float, total: float, rule: Rule | None = None, delta: float | None = None
) -> int:
    """How many releases of one record stay within a total ε. A total that is exactly reached counts as within.

    Args:
        per_release: What one release promises. A number counts as ε of pure differential privacy, which bounds ρ by
            ε²/2; a `Guarantee` may state less.
        total: The ε that all releases together may reach.
        rule: None: whichever of "pure" and, where `delta` is given, "zcdp" allows more. "pure": ε adds up. "zcdp": ρ
            adds up, and (ε, δ) follows from it, ε = nρ + 2·√(nρ·ln(1/δ)). "exact": the loss distribution of a fitted
            table, composed by Google's dp-accounting; never fewer than the other two allow. Needs
            `pip install 'scoreveil[accounting]'`.
        delta: δ of the rules "zcdp" and "exact".

    Returns:
        The number of releases; `MAX_RELEASES` where the answers do not depend on the scores at all.

    Raises:
        ValueError: The release promises nothing, an argument is out of range, or there is no table for "exact".
    """
    epsilon, rho = _per_release(per_release)
    if not 0 < total < math.inf:
        raise ValueError(f"Expected a finite total > 0, got {total}.")
    if rule == "pure" or (rule is None and delta is None):
        return _pure_bound(epsilon, total)
    delta = _checked_delta("zcdp" if rule is None else rule, delta)
    concentrated = _zcdp_bound(rho, total, delta)
    if rule == "zcdp":
        return concentrated
    best = max(concentrated, _pure_bound(epsilon, total))
    return best if rule is None else _exact_bound(_table(per_release), total, delta, best)


def epsilon_after(
    per_release: Guarantee | float, releases: int, rule: Rule | None = None, delta: float | None = None
) -> float:
    """What `releases` of one record add up to: the inverse of `query_bound`. Without a rule, the less of the two."""
    epsilon, rho = _per_release(per_release)
    _check_releases(releases)
    pure = _added_up(epsilon, releases)
    if rule == "pure" or (rule is None and delta is None):
        return pure
    delta = _checked_delta("zcdp" if rule is None else rule, delta)
    concentrated = _concentrated(rho, releases, delta)
    if rule == "zcdp":
        return concentrated
    best = min(pure, concentrated)
    if rule is None:
        return best
    table = _table(per_release)
    if releases == 0:
        return 0.0
    composed = (losses.self_compose(releases).get_epsilon_for_delta(delta) for losses in _losses(table))
    return float(min(best, max(composed, default=0.0)))


def epsilon_of(promises: Iterable[Guarantee]) -> float:
    """What one release of each of these promises, all about the same record, adds up to. Infinite if one of them is.

    Raises:
        ValueError: The promises hold for different pairs, so their ε cannot be added.
    """
    promises = list(promises)
    pairs = {(promise.relation, promise.kept): promise.relation_words for promise in promises}
    if len(pairs) > 1:
        raise ValueError(f"Expected promises that hold for the same pairs, got {'; '.join(pairs.values())}.")
    if any(math.isinf(promise.epsilon) for promise in promises):
        return math.inf
    return float(sum((_decimal(promise.epsilon) for promise in promises), Fraction(0)))


def tight_epsilon_after(per_release: Guarantee | float, releases: int, delta: float) -> float:
    """(ε, δ) after `releases`, by Google's dp-accounting: the least of what Rényi and privacy-loss accounting prove.

    Never more than `epsilon_after` by either closed form. Needs `pip install 'scoreveil[accounting]'`.
    """
    with needs("accounting"):
        from dp_accounting import ZCDpEvent
        from dp_accounting.pld import privacy_loss_distribution
        from dp_accounting.rdp import RdpAccountant
    _checked_delta("zcdp", delta)
    epsilon, rho = _per_release(per_release)
    _check_releases(releases)
    if releases == 0:
        return 0.0
    renyi = RdpAccountant(orders=[1 + 2.0**i for i in np.arange(-8, 12, 0.25)])
    renyi.compose(ZCDpEvent(rho), releases)
    best = min(_added_up(epsilon, releases), renyi.get_epsilon(delta))
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
            raise ValueError(
                "Expected a guarantee with a finite ε, whose releases can be counted; this one promises none: the veil "
                "was fitted without ε, its mechanism has no bound, or its ε is too large for the draws to prove."
            )
        return per_release.epsilon, per_release.rho
    if not 0 < per_release < math.inf:
        raise ValueError(f"Expected a finite epsilon per release > 0, got {per_release}.")
    return per_release, per_release**2 / 2


def _check_releases(releases: int) -> None:
    if not 0 <= releases < math.inf:
        raise ValueError(f"Expected a number of releases >= 0, got {releases}.")


def _checked_delta(rule: Rule, delta: float | None) -> float:
    if rule not in ("zcdp", "exact"):
        raise ValueError(f"Expected rule 'pure', 'zcdp' or 'exact', got {rule!r}.")
    if delta is None or not 0 < delta < 1:
        raise ValueError(f"Expected 0 < delta < 1 for rule {rule!r}, got {delta}.")
    return delta


# The closed forms


def _decimal(value: float) -> Fraction:
    """A number as it is written, so that 0.3 holds three times 0.1."""
    return Fraction(repr(float(value)))


def _added_up(epsilon: float, releases: int) -> float:
    return float(_decimal(epsilon) * Fraction(releases))


def _pure_bound(epsilon: float, total: float) -> int:
    if epsilon == 0:
        return MAX_RELEASES
    releases = int(_decimal(total) // _decimal(epsilon))
    # a total that was rounded down when it was added up is reached too
    return releases + 1 if _added_up(epsilon, releases + 1) <= total else releases


def _concentrated(rho: float, releases: int, delta: float) -> float:
    spent = releases * rho
    return spent + 2 * math.sqrt(spent * -math.log(delta))


def _zcdp_bound(rho: float, total: float, delta: float) -> int:
    log = -math.log(delta)
    # written without the difference of two near square roots
    most_rho = (total / (math.sqrt(log + total) + math.sqrt(log))) ** 2
    if rho == 0 or math.isinf(most_rho / rho):
        return MAX_RELEASES
    releases = math.floor(most_rho / rho)
    # rounding may have put the border on the wrong side
    if _concentrated(rho, releases + 1, delta) <= total:
        return releases + 1
    return releases if _concentrated(rho, releases, delta) <= total else releases - 1


# The exact rule


def _table(per_release: Guarantee | float) -> Integers:
    table = per_release.table if isinstance(per_release, Guarantee) else None
    if table is None:
        raise ValueError(
            "The rule 'exact' needs the guarantee of a fitted veil with ε, and with one table of answers: of many "
            "labels take that of one, veil.mechanism.maps[0].guarantee()."
        )
    return table


def _exact_bound(table: Integers, total: float, delta: float, least: int) -> int:
    """The most releases, from `least` on, for which no two inputs differ by more than (total, δ)."""
    best = MAX_RELEASES
    for losses in _losses(table, total):

        def within(releases: int, losses: "PrivacyLossDistribution" = losses) -> bool:
            return bool(losses.self_compose(releases).get_delta_for_epsilon(total) <= delta)

        if best == MAX_RELEASES or not within(best):
            best = _largest(within, least, best)
        if best == least:
            break
    return best


def _largest(within: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low`, which counts as within, to `high` that is within."""
    step = 1
    while low + step < high and within(low + step):
        low, step = low + step, 2 * step
    high = min(high, low + step)  # is beyond, or was asked for
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _losses(table: Integers, total: float = 0.0) -> list["PrivacyLossDistribution"]:
    """The loss distribution of each ordered pair of inputs, on a grid; the widest first.

    A loss between two points of the grid is shared between them so that both its chances are kept, which can only
    add to δ (Doroshenko et al., "Connect the Dots", 2022), and little: its error is of second order. The grid is
    coarser where `total` is large.
    """
    with needs("accounting"):
        from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    chances = np.unique(table, axis=0) / WHOLE
    pairs = sorted(permutations(chances, 2), key=lambda pair: -float(np.max(np.log(pair[0] / pair[1]))))
    if not pairs:
        return []
    worst = float(np.max(np.log(pairs[0][0] / pairs[0][1])))
    step = max(worst / 1000, total / 30_000)
    distributions = []
    for upper, lower in pairs:
        loss = np.log(upper / lower)
        below = np.floor(loss / step).astype(int)
        above = upper * np.clip(np.expm1(below * step - loss) / math.expm1(-step), 0.0, 1.0)
        mass: dict[int, float] = {}
        for at, share in zip([*below, *(below + 1)], [*(upper - above), *above], strict=True):
            mass[int(at)] = mass.get(int(at), 0.0) + float(share)
        distributions.append(PrivacyLossDistribution.create_from_rounded_probability(mass, 0.0, step))
    return distributions


def _log_expm1(x: float) -> float:
    return x + math.log(-math.expm1(-x))
