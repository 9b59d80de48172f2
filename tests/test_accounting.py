"""What is promised for one release, how releases add up, and what the paper's own bound gets wrong."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from channel_tools import WHOLE, Population, make_channel
from scoreveil import Guarantee, Veil, fit
from scoreveil.accounting import (
    MOST_RELEASES,
    advantage_after,
    epsilon_after,
    paper_query_bound,
    query_bound,
    tight_epsilon_after,
    worst_loss,
)
from scoreveil.mechanisms.channel import Channel
from scoreveil.mechanisms.isotonic import Isotonic
from scoreveil.mechanisms.promises import Evidence
from scoreveil.mechanisms.published import Published

often = settings(max_examples=200, deadline=None, derandomize=True, database=None)
per_releases = st.floats(-4, 2).map(lambda e: 10.0**e)
totals = st.floats(-2, 4).map(lambda e: 10.0**e)
deltas = st.floats(-15, -1).map(lambda e: 10.0**e)
NAN, INF = float("nan"), float("inf")


# --- how releases add up


@often
@given(per_release=per_releases, total=totals)
def test_pure_counts_the_floor_of_total_over_epsilon(per_release: float, total: float) -> None:
    exact = total / per_release
    # only a quotient within rounding of a whole number may go either way
    assert math.floor(exact * (1 - 1e-9)) <= query_bound(per_release, total) <= math.floor(exact * (1 + 1e-9))


def test_pure_counts_whole_quotients_whole() -> None:
    for per_release, total, expected in ((1.0, 5.0, 5), (0.5, 5.0, 10), (0.1, 0.3, 3), (0.1, 5.0, 50), (0.7, 2.1, 3)):
        assert query_bound(per_release, total) == expected
    assert query_bound(1.0, 4.999) == 4
    assert query_bound(2.0, 1.0) == 0


@often
@given(per_release=per_releases, total=totals, delta=deltas)
def test_zcdp_inverts_its_closed_form(per_release: float, total: float, delta: float) -> None:
    rho, log_inverse = per_release**2 / 8, math.log(1 / delta)
    exact = (math.sqrt(log_inverse + total) - math.sqrt(log_inverse)) ** 2 / rho
    bound = query_bound(per_release, total, rule="zcdp", delta=delta)
    assert math.floor(exact * (1 - 1e-7)) <= bound <= math.floor(exact * (1 + 1e-7))


@often
@given(per_release=per_releases, releases=st.integers(1, 10**6), delta=deltas)
def test_what_adds_up_follows_the_closed_forms(per_release: float, releases: int, delta: float) -> None:
    rho, log_inverse = per_release**2 / 8, math.log(1 / delta)
    assert epsilon_after(per_release, releases) == pytest.approx(releases * per_release, rel=1e-12)
    assert epsilon_after(per_release, releases, "zcdp", delta) == pytest.approx(
        releases * rho + 2 * math.sqrt(releases * rho * log_inverse), rel=1e-12
    )


@often
@given(per_release=per_releases, total=totals, delta=deltas, rule=st.sampled_from(["pure", "zcdp"]))
def test_as_many_releases_as_counted_stay_within_total_and_one_more_does_not(
    per_release: float, total: float, delta: float, rule: str
) -> None:
    bound = query_bound(per_release, total, rule=rule, delta=delta)
    assert epsilon_after(per_release, bound + 1, rule, delta) > total * (1 - 1e-9)
    if bound:
        assert epsilon_after(per_release, bound, rule, delta) <= total * (1 + 1e-9)


@often
@given(
    per_release=per_releases, total=totals, delta=deltas, more=st.floats(1, 10), rule=st.sampled_from(["pure", "zcdp"])
)
def test_bounds_are_monotone(per_release: float, total: float, delta: float, more: float, rule: str) -> None:
    def bound(e: float, t: float, d: float) -> int:
        return query_bound(e, t, rule=rule, delta=d)

    assert bound(per_release, total * more, delta) >= bound(per_release, total, delta)
    assert bound(per_release * more, total, delta) <= bound(per_release, total, delta)
    assert bound(per_release, total, min(delta * more, 0.5)) >= bound(per_release, total, delta)
    for n in (1, 10, 1000):
        assert epsilon_after(per_release, n + 1, rule, delta) > epsilon_after(per_release, n, rule, delta)


def test_many_small_releases_are_cheaper_by_zcdp_and_few_by_pure() -> None:
    assert query_bound(0.01, 5.0, rule="zcdp", delta=1e-6) > query_bound(0.01, 5.0)
    assert query_bound(2.0, 5.0, rule="zcdp", delta=1e-6) < query_bound(2.0, 5.0)


def test_a_guarantee_counts_by_its_own_epsilon_and_rho() -> None:
    promise = Guarantee(epsilon=0.5, relation="r", words="w", limits=(), rho=0.02)
    assert query_bound(promise, 5.0) == 10
    expected = math.floor((math.sqrt(math.log(1e6) + 5) - math.sqrt(math.log(1e6))) ** 2 / 0.02)
    assert query_bound(promise, 5.0, rule="zcdp", delta=1e-6) == expected
    assert epsilon_after(promise, 7) == pytest.approx(3.5)
    assert epsilon_after(promise, 7, "zcdp", 1e-6) == pytest.approx(0.14 + 2 * math.sqrt(0.14 * math.log(1e6)))


@pytest.mark.parametrize("per_release", [0, -1, NAN, INF])
@pytest.mark.parametrize("rule", ["pure", "zcdp"])
def test_an_epsilon_per_release_that_is_not_positive_and_finite_is_refused(per_release: float, rule: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*epsilon.*got"):
        query_bound(per_release, 5.0, rule=rule, delta=1e-6)
    with pytest.raises(ValueError, match=r"(?i)expected .*epsilon.*got"):
        epsilon_after(per_release, 5, rule, 1e-6)


@pytest.mark.parametrize("total", [0, -1, NAN, INF])
def test_a_total_that_is_not_positive_and_finite_is_refused(total: float) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*total.*got"):
        query_bound(0.5, total)


@pytest.mark.parametrize("delta", [None, 0, 1, -1e-6, 2, NAN])
def test_zcdp_without_a_delta_between_0_and_1_is_refused(delta: float | None) -> None:
    for ask in (
        lambda: query_bound(0.5, 5.0, rule="zcdp", delta=delta),
        lambda: epsilon_after(0.5, 3, "zcdp", delta),
        lambda: tight_epsilon_after(0.5, 3, delta),
    ):
        with pytest.raises(ValueError, match=r"(?i)expected .*delta.*got"):
            ask()


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"(?i)expected rule .*pure.*zcdp.*got"):
        query_bound(0.5, 5.0, rule="rdp")
    with pytest.raises(ValueError, match=r"(?i)expected rule .*pure.*zcdp.*got"):
        epsilon_after(0.5, 5, "rdp")


@pytest.mark.parametrize("releases", [-1, -100])
def test_a_negative_number_of_releases_is_refused(releases: int) -> None:
    for ask in (
        lambda: epsilon_after(0.5, releases),
        lambda: epsilon_after(0.5, releases, "zcdp", 1e-6),
        lambda: tight_epsilon_after(0.5, releases, 1e-6),
    ):
        with pytest.raises(ValueError, match=r"(?i)expected .*releases.*got"):
            ask()


def test_what_promises_nothing_cannot_be_counted() -> None:
    promise = Veil(0.7, "published").guarantee
    for ask in (
        lambda: query_bound(promise, 5.0),
        lambda: query_bound(promise, 5.0, rule="zcdp", delta=1e-6),
        lambda: epsilon_after(promise, 3),
        lambda: tight_epsilon_after(promise, 3, 1e-6),
    ):
        with pytest.raises(ValueError, match=r"mechanism with a bounded loss; this one promises none"):
            ask()


# --- tight accounting


TIGHT = [(e, n, d) for e in (0.05, 0.5, 2.0, 8.0) for n in (1, 10, 200) for d in (1e-3, 1e-9)]


def composed_randomized_response(half_range: float, releases: int, delta: float) -> float:
    """The exact ε at δ of n-fold randomized response with loss ±half_range: a draw of loss range 2·half_range."""
    heads = np.arange(releases + 1)
    likely = stats.binom.pmf(heads, releases, 1 / (1 + math.exp(-half_range)))
    losses = (2 * heads - releases) * half_range

    def excess(epsilon: float) -> float:
        return float((likely * -np.expm1(np.minimum(0, epsilon - losses))).sum()) - delta

    if excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0, releases * half_range))


@pytest.mark.parametrize(("per_release", "releases", "delta"), TIGHT)
@pytest.mark.slow
def test_tight_accounting_is_never_above_the_closed_forms_nor_below_the_truth(
    per_release: float, releases: int, delta: float
) -> None:
    tight = tight_epsilon_after(per_release, releases, delta)
    closed = min(epsilon_after(per_release, releases), epsilon_after(per_release, releases, "zcdp", delta))
    assert tight <= closed * (1 + 1e-9)
    # a draw whose loss has range ε is allowed to be randomized response with loss ±ε/2
    assert tight >= composed_randomized_response(per_release / 2, releases, delta) * (1 - 1e-6)
    if releases > 1 or delta < 1e-6:
        assert tight >= closed / 4


def test_tight_accounting_grows_with_releases_and_falls_with_delta() -> None:
    grown = [tight_epsilon_after(0.3, n, 1e-6) for n in (1, 3, 10, 30, 100)]
    assert all(a < b for a, b in itertools.pairwise(grown))
    fallen = [tight_epsilon_after(0.3, 30, d) for d in (1e-12, 1e-9, 1e-6, 1e-3)]
    assert all(a > b for a, b in itertools.pairwise(fallen))


def test_tight_accounting_takes_a_guarantee() -> None:
    promise = Isotonic(0.5, keep=3).guarantee(classes=10)
    tight = tight_epsilon_after(promise, 50, 1e-6)
    assert 0 < tight <= min(epsilon_after(promise, 50), epsilon_after(promise, 50, "zcdp", 1e-6)) * (1 + 1e-9)


# --- the paper's Theorem 3


def test_the_papers_bound_allows_429_where_5_add_up() -> None:
    with pytest.warns(UserWarning, match=r"(?i)theorem 3"):
        allowed = paper_query_bound(0.1, 10, 5.0)
    k_epsilon = 1.0
    assert allowed == pytest.approx(5 * math.expm1(5) / (k_epsilon * math.expm1(k_epsilon)), rel=1e-12)
    assert round(allowed) == 429
    assert query_bound(k_epsilon, 5.0) == 5


def test_the_papers_bound_always_warns() -> None:
    for arguments in ((0.1, 2, 0.01), (1.0, 10, 1.0), (2.0, 3, 50.0)):
        with pytest.warns(UserWarning, match=r"query_bound"):
            paper_query_bound(*arguments)


@often
@given(epsilon=st.floats(0.01, 1), k=st.integers(2, 50), ratio=st.floats(1.1, 20))
def test_the_papers_bound_exceeds_what_adds_up_whenever_total_exceeds_k_epsilon(
    epsilon: float, k: int, ratio: float
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert paper_query_bound(epsilon, k, ratio * k * epsilon) > ratio


@pytest.mark.parametrize(
    "arguments", [(0, 10, 5), (-1, 10, 5), (NAN, 10, 5), (0.1, 1, 5), (0.1, 10, 0), (0.1, 10, NAN)]
)
def test_the_papers_bound_refuses_what_it_is_not_for(arguments: tuple[float, int, float]) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*got"):
        paper_query_bound(*arguments)


# --- what one release promises


@pytest.mark.parametrize("reading", ["bounded", "printed"])
@pytest.mark.parametrize("epsilon", [0.1, 0.7, 3.0])
def test_the_published_mechanism_promises_nothing_and_never_k_epsilon(reading: str, epsilon: float) -> None:
    for k in (None, 3, 10, 17):
        promise = Published(epsilon, reading=reading).guarantee(classes=k)
        assert promise.epsilon == INF
        assert promise.rho == INF
        assert promise.worst_loss is None or promise.worst_loss == INF
        shown = f"{promise} {promise!r}"
        assert not re.search(r"k\s*[·*×]?\s*(ε|epsilon)", shown)
        if k is not None:
            assert f"{k * epsilon:g}" not in shown.replace("Theorem 1", "").replace("sum to 1", "")
        assert promise.limits
        assert "Theorem 1" in shown


def test_the_published_promise_says_what_breaks_it() -> None:
    shown = str(Veil(0.7, "published").guarantee)
    assert re.search(r"borders", shown)
    assert re.search(r"invert", shown)
    assert re.search(r"odd number of classes", shown)


@pytest.mark.parametrize("keep", [1, 3, "all"])
def test_an_isotonic_promise_names_its_epsilon_relation_and_limits(keep: int | str) -> None:
    promise = Veil(2.0, keep=keep).guarantee
    shown = str(promise)
    assert promise.epsilon == 2.0
    assert promise.relation in shown
    for limit in promise.limits:
        assert limit in shown
    assert re.search(r"label-only attacks are not stopped", shown)
    assert re.search(r"one release", shown)
    assert re.search(r"not training with differential privacy", shown)
    assert bool(re.search(r"inversion", shown)) == (keep == "all")


def test_a_promise_with_a_reference_says_where_it_must_not_come_from() -> None:
    reference = np.random.default_rng(0).dirichlet(np.full(4, 0.5), size=50)
    assert re.search(r"reference must not", str(Veil(2.0, keep=2, reference=reference).guarantee))
    assert not re.search(r"reference must not", str(Veil(2.0).guarantee))


def test_a_promise_cannot_be_changed() -> None:
    promise = Veil(2.0).guarantee
    with pytest.raises(AttributeError):
        promise.epsilon = 0.1


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 8.0, 32.0])
@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("snapped", [False, True])
def test_the_exact_worst_loss_of_keep_1_is_part_of_the_promise_and_tight(
    epsilon: float, classes: int, snapped: bool
) -> None:
    mechanism = Isotonic(epsilon).keyed() if snapped else Isotonic(epsilon)
    promise = mechanism.guarantee(classes=classes)
    assert promise.worst_loss is not None
    assert promise.worst_loss <= epsilon * (1 + 1e-9)
    assert promise.worst_loss >= epsilon * 0.999
    assert mechanism.plan(classes).worst_loss == pytest.approx(promise.worst_loss, rel=1e-9)


@pytest.mark.parametrize(("keep", "classes"), [(2, 2), (2, 10), (3, 10), (5, 10), ("all", 10)])
def test_rho_is_an_eighth_of_the_range_squared(keep: int | str, classes: int) -> None:
    for epsilon in (0.1, 2.0):
        promise = Isotonic(epsilon, keep=keep).guarantee(classes=classes)
        assert promise.rho == pytest.approx(epsilon**2 / 8)


# --- exact losses, against enumeration


def diameter(kept: int, classes: int) -> float:
    return 1 - 1 / classes if kept == 1 else 2 * (1 - 1 / kept)


def enumerated_log_probabilities(tops: np.ndarray, scale: float, levels: int, classes: int) -> np.ndarray:
    """ln P(c|v) of every c ∈ C, by listing them."""
    grid = np.arange(levels) / (levels - 1)
    chains = [
        chain
        for chain in itertools.product(grid, repeat=len(tops))
        if chain[0] >= 1 / classes
        and all(a >= b for a, b in itertools.pairwise(chain))
        and (len(chain) == 1 or chain[0] > chain[1])
    ]
    exponents = -scale * np.abs(np.array(chains) - tops).sum(axis=1)
    return exponents - np.logaddexp.reduce(exponents)


def descending_family(classes: int, n: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).dirichlet(np.full(classes, 0.5), size=n)
    corners = [np.r_[np.full(t, 1 / t), np.zeros(classes - t)] for t in range(1, classes + 1)]
    return -np.sort(-np.vstack([rows, corners]), axis=1)


@pytest.mark.parametrize(("keep", "classes"), [(2, 2), (2, 3), (3, 3), (2, 4), (4, 4)])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_privacy_loss_equals_enumeration(keep: int, classes: int, epsilon: float) -> None:
    levels = 7
    drawn = Isotonic(epsilon, keep=keep, levels=levels)
    scale = epsilon / (2 * diameter(keep, classes))
    family = descending_family(classes, 5, seed=classes)
    listed = [enumerated_log_probabilities(row[:keep], scale, levels, classes) for row in family]
    for a, b in itertools.permutations(range(len(family)), 2):
        assert drawn.loss(family[a], family[b]) == pytest.approx((listed[a] - listed[b]).max(), abs=1e-9)
    worst = max((x - y).max() for x, y in itertools.permutations(listed, 2))
    assert worst_loss(family, drawn) == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize("keep", [1, 2, 5, "all"])
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 32.0])
@pytest.mark.parametrize("classes", [5, 12])
@pytest.mark.slow
def test_the_same_kept_classes_lose_at_most_epsilon(keep: int | str, epsilon: float, classes: int) -> None:
    drawn = Isotonic(epsilon, keep=keep)
    assert worst_loss(descending_family(classes, 20, seed=1), drawn) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("keep", [2, 5, "all"])
def test_near_scores_lose_in_proportion_to_their_distance(keep: int | str) -> None:
    epsilon, classes = 3.0, 8
    kept = classes if keep == "all" else int(keep)
    drawn = Isotonic(epsilon, keep=keep)
    family = descending_family(classes, 15, seed=2)
    for v, w in itertools.permutations(family, 2):
        distance = np.abs(v[:kept] - w[:kept]).sum()
        assert drawn.loss(v, w) <= epsilon * distance / diameter(kept, classes) + 1e-9
        assert drawn.loss(v, v) == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_the_worst_loss_of_keep_1_is_found_by_brute_force() -> None:
    for classes in (2, 5, 50):
        drawn = Isotonic(2.0)
        tops = np.linspace(1 / classes, 1, 63)
        family = np.column_stack([tops, *[(1 - tops) / (classes - 1)] * (classes - 1)])
        found = worst_loss(family, drawn)
        assert found <= drawn.plan(classes).worst_loss + 1e-9
        assert found >= drawn.plan(classes).worst_loss * 0.98


@pytest.mark.parametrize("reading", ["bounded", "printed"])
def test_the_published_loss_is_infinite_between_vectors_of_one_ranking(reading: str) -> None:
    one, other = np.array([0.1, 0.2, 0.7]), np.array([0.12, 0.2, 0.68])
    assert Published(0.1, reading=reading).loss(one, other) == INF
    assert Published(0.1, reading=reading).loss(one, one) == pytest.approx(0, abs=1e-12)


# --- the releases of a fitted table, computed from its integers


def hockey_stick(pair: tuple[np.ndarray, np.ndarray], releases: int, total: float) -> Fraction:
    """δ between n answers of two bins, by every count of answers, in fractions."""
    factor, found = Fraction(Context(prec=60).exp(Decimal(total))), Fraction(0)
    for answers in itertools.combinations_with_replacement(range(len(pair[0])), releases):
        orders = math.factorial(releases)
        for answer in set(answers):
            orders //= math.factorial(answers.count(answer))
        p, q = (math.prod((Fraction(int(row[c]), WHOLE) for c in answers), start=Fraction(1)) for row in pair)
        found += orders * max(p - factor * q, Fraction(0))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("total", "delta"), [(1.5, 1e-2), (2.0, 1e-3), (4.0, 1e-4)])
def test_exact_counts_what_enumeration_in_fractions_counts(seed: int, total: float, delta: float) -> None:
    channel = make_channel(epsilon=5.0, bins=3, answers=2 + seed % 2, seed=seed)

    def within(releases: int) -> bool:
        pairs = itertools.permutations(channel.table, 2)
        return max(hockey_stick(pair, releases, total) for pair in pairs) <= Fraction(delta)

    by_hand = next(n for n in itertools.count() if not within(n + 1))
    assert by_hand > query_bound(channel.guarantee(), total)
    assert query_bound(channel.guarantee(), total, "exact", delta) == by_hand


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("total", [0.5, 10.0])
def test_exact_is_never_fewer_than_the_closed_forms_allow(epsilon: float, total: float) -> None:
    promise = make_channel(epsilon=epsilon, bins=4, answers=4, seed=3).guarantee()
    exact = query_bound(promise, total, "exact", 1e-6)
    assert exact >= query_bound(promise, total)
    assert exact >= query_bound(promise, total, "zcdp", 1e-6)
    for rule in ("pure", "zcdp"):
        assert epsilon_after(promise, 5, "exact", 1e-6) <= epsilon_after(promise, 5, rule, 1e-6)


def test_exact_allows_more_than_the_closed_forms_and_inverts_itself() -> None:
    promise = make_channel(epsilon=1.0, bins=6, answers=4).guarantee()
    exact = query_bound(promise, 10.0, "exact", 1e-6)
    assert exact > 1.05 * query_bound(promise, 10.0, "zcdp", 1e-6)
    assert epsilon_after(promise, exact, "exact", 1e-6) <= 10.0 * (1 + 1e-3)
    assert epsilon_after(promise, exact + 1, "exact", 1e-6) > 10.0 * (1 - 1e-3)
    assert epsilon_after(promise, 0, "exact", 1e-6) == 0.0


def test_answers_that_do_not_depend_on_the_scores_can_be_asked_for_without_end() -> None:
    channel = make_channel()
    constant = replace(channel, table=np.repeat(channel.table[:1], len(channel.table), axis=0))
    for rule in ("zcdp", "exact"):
        assert query_bound(constant.guarantee(), 1.0, rule, 1e-6) == MOST_RELEASES
    assert epsilon_after(constant.guarantee(), 100, "exact", 1e-6) == 0.0


@pytest.mark.parametrize("promise", [1.0, Isotonic(1.0).guarantee(10)])
def test_exact_needs_a_table(promise: Any) -> None:
    with pytest.raises(ValueError, match="needs the guarantee of a fitted veil"):
        query_bound(promise, 5.0, "exact", 1e-6)
    with pytest.raises(ValueError, match="needs the guarantee of a fitted veil"):
        epsilon_after(promise, 5, "exact", 1e-6)


def observed_variation(sides: np.ndarray, table: np.ndarray, releases: int) -> Fraction:
    """½ Σ |…| over every sequence of answers, in fractions; sides (2, bins)."""
    shares = [[Fraction(int(x), int(side.sum())) for x in side] for side in sides]
    found = Fraction(0)
    for answers in itertools.product(range(table.shape[1]), repeat=releases):
        chances = [math.prod((Fraction(int(row[c]), WHOLE) for c in answers), start=Fraction(1)) for row in table]
        found += abs(sum((m - o) * t for o, m, t in zip(*shares, chances, strict=True)))
    return found / 2


def evidence_of(channel: Channel, seed: int, groups: int = 1) -> Evidence:
    """Histograms that are taken as the truth: nothing hidden in sampling."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 1000, (2, groups, 1, len(channel.table)))
    group = np.arange(channel.classes) % groups
    return Evidence(group, counts, counts.sum(axis=2), np.zeros((3, 3)), np.ones(3), 1.0, 0.95)


@pytest.mark.parametrize("seed", range(5))
def test_the_advantage_after_some_answers_is_what_enumeration_finds(seed: int) -> None:
    channel = make_channel(bins=3, answers=2 + seed % 2, seed=seed, epsilon=4.0)
    evidence = evidence_of(channel, seed)
    promise = replace(channel, evidence=evidence).guarantee()
    sides = evidence.counts[:, 0, 0]
    bins = observed_variation(sides, WHOLE * np.eye(3, dtype=np.int64), 1)
    before = Fraction(0)
    for releases in (1, 2, 3, 5):
        by_hand = observed_variation(sides, channel.table, releases)
        assert advantage_after(promise, releases) == pytest.approx(float(by_hand), abs=1e-12)
        assert before <= by_hand <= bins
        before = by_hand
    # more counts of answers than are enumerated: what the bins tell, which is more
    assert advantage_after(promise, 10**6) == pytest.approx(float(bins), abs=1e-12)
    assert float(before) < advantage_after(promise, 10**6)


def test_the_advantage_after_one_answer_is_the_promised_one_and_it_grows() -> None:
    population, rng = Population(classes=3), np.random.default_rng(0)
    veil = fit(4.0, *population.draw(0, 2000, rng), *population.draw(1, 2000, rng), rng=rng)
    promise = veil.guarantee
    after = [advantage_after(promise, releases) for releases in (1, 2, 5, 10, 10**6)]
    assert after[0] == promise.advantage
    assert after == sorted(after)
    assert after[0] < after[3] <= 1
    # the truth on the population, whose bins tell a little less than the bound says
    _, bins = veil.mechanism.read(population.sides[0][0])
    _, members = veil.mechanism.read(population.sides[1][0])
    count = len(veil.mechanism.table)
    sides = np.stack([np.bincount(each, minlength=count) for each in (bins, members)])
    table = veil.mechanism.table
    assert observed_variation(sides, table, 5) <= after[2]


def test_within_labels_the_advantage_after_some_answers_is_weighted() -> None:
    channel = make_channel(bins=3, answers=2, seed=1, epsilon=4.0)
    evidence = evidence_of(channel, 1, groups=2)
    counts = evidence.counts[:, :, 0]
    by_hand = Fraction(0)
    for group in range(2):
        weight = min(Fraction(int(counts[side, group].sum()), int(counts[side].sum())) for side in (0, 1))
        by_hand += weight * observed_variation(counts[:, group], channel.table, 3)
    alone = observed_variation(counts.sum(axis=1), channel.table, 3)
    found = advantage_after(replace(channel, evidence=evidence).guarantee(), 3)
    assert found == pytest.approx(float(max(by_hand, alone)), abs=1e-12)


def test_without_members_there_is_no_advantage_after_any_answers() -> None:
    assert advantage_after(make_channel().guarantee(), 3) is None
    assert advantage_after(Isotonic(1.0).guarantee(10), 3) is None
    with pytest.raises(ValueError, match="releases >= 1"):
        advantage_after(make_channel().guarantee(), 0)
