"""What is promised for one release, how releases add up, and what the paper's own bound gets wrong."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from scoreveil import Guarantee, Veil
from scoreveil.accounting import (
    MAX_RELEASES,
    epsilon_after,
    epsilon_of,
    paper_query_bound,
    query_bound,
    tight_epsilon_after,
    worst_loss,
)
from scoreveil.mechanisms.guarantee import Relation
from scoreveil.mechanisms.isotonic import Isotonic
from scoreveil.mechanisms.promises import WHOLE, check_table, zcdp_rho
from scoreveil.mechanisms.published import Published

often = settings(max_examples=200, deadline=None, derandomize=True, database=None)
per_releases = st.floats(-4, 2).map(lambda e: 10.0**e)
totals = st.floats(-2, 4).map(lambda e: 10.0**e)
deltas = st.floats(-15, -1).map(lambda e: 10.0**e)
NAN, INF = float("nan"), float("inf")


def make_promise(epsilon: float = 0.5, rho: float = 0.02, **more: Any) -> Guarantee:
    return Guarantee(epsilon, **{"relation": Relation.SAME_TOP_CLASSES, "words": "w", "limits": (), "rho": rho, **more})


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
        assert epsilon_after(per_release, expected) == total
    assert query_bound(1.0, 4.999) == 4
    assert query_bound(2.0, 1.0) == 0


@often
@given(per_release=per_releases, total=totals, delta=deltas)
def test_zcdp_inverts_its_closed_form(per_release: float, total: float, delta: float) -> None:
    rho, log_inverse = per_release**2 / 2, math.log(1 / delta)
    exact = (math.sqrt(log_inverse + total) - math.sqrt(log_inverse)) ** 2 / rho
    bound = query_bound(per_release, total, rule="zcdp", delta=delta)
    assert math.floor(exact * (1 - 1e-7)) <= bound <= math.floor(exact * (1 + 1e-7))


@often
@given(per_release=per_releases, releases=st.integers(1, 10**6), delta=deltas)
def test_what_adds_up_follows_the_closed_forms(per_release: float, releases: int, delta: float) -> None:
    rho, log_inverse = per_release**2 / 2, math.log(1 / delta)
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
    per_release=per_releases,
    releases=st.integers(1, 10**5),
    delta=deltas,
    rule=st.sampled_from(["pure", "zcdp", None]),
    is_number=st.booleans(),
)
def test_a_total_that_is_exactly_reached_counts_and_one_a_bit_smaller_does_not(
    per_release: float, releases: int, delta: float, rule: str | None, is_number: bool
) -> None:
    promise = per_release if is_number else make_promise(per_release, per_release**2 / 8)
    total = epsilon_after(promise, releases, rule, delta)
    assert query_bound(promise, total, rule, delta) == releases
    assert query_bound(promise, math.nextafter(total, 0), rule, delta) == releases - 1


@often
@given(per_release=per_releases, total=totals, delta=deltas, releases=st.integers(0, 10**6))
def test_without_a_rule_the_better_of_both_counts(
    per_release: float, total: float, delta: float, releases: int
) -> None:
    assert query_bound(per_release, total) == query_bound(per_release, total, "pure")
    assert epsilon_after(per_release, releases) == epsilon_after(per_release, releases, "pure")
    both = [query_bound(per_release, total, rule, delta) for rule in ("pure", "zcdp")]
    assert query_bound(per_release, total, delta=delta) == max(both)
    spent = [epsilon_after(per_release, releases, rule, delta) for rule in ("pure", "zcdp")]
    assert epsilon_after(per_release, releases, delta=delta) == min(spent)


@pytest.mark.parametrize("delta", [0, 1, -1e-6, 2, NAN])
def test_without_a_rule_a_delta_must_still_be_between_0_and_1(delta: float) -> None:
    for ask in (lambda: query_bound(0.5, 5.0, delta=delta), lambda: epsilon_after(0.5, 3, delta=delta)):
        with pytest.raises(ValueError, match=r"Expected 0 < delta < 1.*got"):
            ask()


def test_a_number_counts_as_pure_epsilon_whose_rho_is_half_its_square() -> None:
    for epsilon in (0.1, 1.0, 3.0):
        promise = make_promise(epsilon, epsilon**2 / 2)
        for n in (1, 7, 100):
            assert epsilon_after(epsilon, n, "zcdp", 1e-6) == epsilon_after(promise, n, "zcdp", 1e-6)
            assert tight_epsilon_after(epsilon, n, 1e-6) == tight_epsilon_after(promise, n, 1e-6)
        assert query_bound(epsilon, 50.0, "zcdp", 1e-6) == query_bound(promise, 50.0, "zcdp", 1e-6)


def test_the_rho_of_a_number_holds_for_randomised_response_and_an_eighth_would_not() -> None:
    epsilon = 0.5
    p, q = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
    divergence = p * math.log(p / q) + q * math.log(q / p)  # Rényi's of order 1, at most 1·ρ
    root = math.sqrt(math.log(1e6))
    rho = (math.sqrt(root**2 + epsilon_after(epsilon, 1, "zcdp", 1e-6)) - root) ** 2  # undoes ε = ρ + 2·√(ρ·ln(1/δ))
    assert epsilon**2 / 8 < divergence <= rho == pytest.approx(epsilon**2 / 2)


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


def test_the_most_releases_are_not_counted_where_answers_tell_nothing() -> None:
    nothing = make_promise(0.0, 0.0)
    for rule in ("pure", "zcdp", None):
        assert query_bound(nothing, 1.0, rule, 1e-6) == MAX_RELEASES
        assert epsilon_after(nothing, 100, rule, 1e-6) == 0.0
    assert query_bound(1e-160, 5.0, "zcdp", 1e-6) == MAX_RELEASES


def test_many_small_releases_are_cheaper_by_zcdp_and_few_by_pure() -> None:
    assert query_bound(0.01, 5.0, rule="zcdp", delta=1e-6) > query_bound(0.01, 5.0)
    assert query_bound(2.0, 5.0, rule="zcdp", delta=1e-6) < query_bound(2.0, 5.0)


def test_a_guarantee_counts_by_its_own_epsilon_and_rho() -> None:
    promise = make_promise(epsilon=0.5, rho=0.02)
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


@pytest.mark.parametrize("rule", ["rdp", ""])
def test_a_rule_of_another_name_is_refused_with_a_delta_too(rule: str) -> None:
    for ask in (lambda: query_bound(0.5, 5.0, rule, 1e-6), lambda: epsilon_after(0.5, 5, rule, 1e-6)):
        with pytest.raises(ValueError, match=r"Expected rule .*pure.*zcdp.*got"):
            ask()


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"(?i)expected rule .*pure.*zcdp.*got"):
        query_bound(0.5, 5.0, rule="rdp")
    with pytest.raises(ValueError, match=r"(?i)expected rule .*pure.*zcdp.*got"):
        epsilon_after(0.5, 5, "rdp")


@pytest.mark.parametrize("releases", [-1, -100, NAN, INF])
def test_a_negative_number_of_releases_is_refused(releases: int) -> None:
    for ask in (
        lambda: epsilon_after(0.5, releases),
        lambda: epsilon_after(0.5, releases, "zcdp", 1e-6),
        lambda: tight_epsilon_after(0.5, releases, 1e-6),
    ):
        with pytest.raises(ValueError, match=r"(?i)expected .*releases.*got"):
            ask()


def test_what_promises_nothing_cannot_be_counted() -> None:
    for promise in (Veil(0.7, "published").guarantee, Veil(40.0).guarantee, make_promise(INF, INF, advantage=0.1)):
        for ask in (
            lambda promise=promise: query_bound(promise, 5.0),
            lambda promise=promise: query_bound(promise, 5.0, rule="zcdp", delta=1e-6),
            lambda promise=promise: epsilon_after(promise, 3),
            lambda promise=promise: tight_epsilon_after(promise, 3, 1e-6),
        ):
            with pytest.raises(ValueError, match=r"Expected a guarantee with a finite ε.* this one promises none"):
                ask()


# --- promises of different kinds


def test_releases_of_several_promises_about_one_record_add_up() -> None:
    promises = [make_promise(epsilon) for epsilon in (0.1, 0.2, 1.5)]
    assert epsilon_of(promises) == 1.8
    assert epsilon_of(iter(promises[:2])) == 0.3
    assert epsilon_of([Isotonic(0.7).guarantee(10)] * 3) == 2.1
    assert epsilon_of([]) == 0.0
    assert epsilon_of([*promises, make_promise(INF)]) == INF


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kept": 3}, "same 3 top classes in order"),
        ({"relation": Relation.SAME_RANKING}, "same ranking of all classes"),
        ({"relation": Relation.ZERO_OUT}, "replaced by one that counts nowhere"),
        ({"relation": Relation.SUBSTITUTION}, "replaced by another"),
    ],
)
def test_promises_about_different_pairs_cannot_be_added_up(change: dict[str, Any], words: str) -> None:
    for promises in ([make_promise(), make_promise(**change)], [make_promise(**change), make_promise()]):
        with pytest.raises(ValueError, match=r"Expected promises that hold for the same pairs, got ") as caught:
            epsilon_of(promises)
        assert words in str(caught.value)
        assert "with the same top class" in str(caught.value)
    assert epsilon_of([make_promise(**change)] * 2) == 1.0


def test_each_relation_has_words_of_its_own() -> None:
    assert len({relation.words for relation in Relation}) == len(Relation) == 4
    for relation in Relation:
        assert relation.words.startswith("any two ")
    for kept, words in ((1, "the same top class"), (2, "the same 2 top classes in order")):
        assert make_promise(kept=kept).relation_words == f"any two score vectors with {words}"
    ranking = Isotonic(1.0, keep="all").guarantee()
    assert ranking.relation_words == "any two score vectors with the same ranking of all classes"
    assert make_promise(relation=Relation.ZERO_OUT).relation_words == Relation.ZERO_OUT.words


@pytest.mark.parametrize("classes", [None, 5])
def test_a_mechanism_names_the_pairs_that_its_promise_holds_for(classes: int | None) -> None:
    for keep in (1, 2, 5):
        promise = Isotonic(1.0, keep=keep).guarantee(classes)
        assert (promise.relation, promise.kept) == (Relation.SAME_TOP_CLASSES, keep)
    assert Isotonic(1.0, keep="all").guarantee(classes).relation is Relation.SAME_RANKING
    assert Published(1.0).guarantee(classes).relation is Relation.SAME_RANKING


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
    # pure ε allows a draw to be randomized response with loss ±ε
    assert tight >= composed_randomized_response(per_release, releases, delta) * (1 - 1e-6)
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
            assert f"{k * epsilon:g}" not in shown.replace("Theorem 1", "").replace("sum to 1", "").replace(
                "kept=1", ""
            )
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
    assert promise.relation_words in shown
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


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 8.0, 20.0])
@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("snapped", [False, True])
def test_the_exact_worst_loss_of_keep_1_is_part_of_the_promise_and_tight(
    epsilon: float, classes: int, snapped: bool
) -> None:
    mechanism = Isotonic(epsilon).keyed() if snapped else Isotonic(epsilon)
    promise = mechanism.guarantee(classes=classes)
    assert promise.worst_loss is not None
    assert promise.epsilon == epsilon
    assert promise.worst_loss <= epsilon
    assert promise.worst_loss >= epsilon * 0.999
    assert mechanism.plan(classes).worst_loss == pytest.approx(promise.worst_loss, rel=1e-9)


@pytest.mark.parametrize(("keep", "classes"), [(2, 2), (2, 10), (3, 10), (5, 10), ("all", 10)])
def test_rho_is_an_eighth_of_the_range_squared(keep: int | str, classes: int) -> None:
    for epsilon in (0.1, 2.0):
        for promise in (Isotonic(epsilon, keep=keep).guarantee(classes), Isotonic(epsilon, keep=keep).guarantee()):
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


def make_table(epsilon: float, inputs: int, answers: int, seed: int = 0) -> np.ndarray:
    """Chances in units of 2^-32, a row for each input, that lose ε at most."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(answers, 2.0)) * np.exp(rng.uniform(-epsilon / 4, epsilon / 4, (inputs, answers)))
    table = np.floor(weights / weights.sum(axis=1, keepdims=True) * WHOLE).astype(np.int64)
    table[np.arange(inputs), table.argmax(axis=1)] += WHOLE - table.sum(axis=1)
    check_table(table, epsilon)
    return table


def promise_of(table: np.ndarray, epsilon: float) -> Guarantee:
    return make_promise(epsilon, zcdp_rho(table, epsilon), table=table)


def hockey_stick(pair: tuple[np.ndarray, np.ndarray], releases: int, total: float) -> Fraction:
    """δ between n answers to two inputs, by every count of answers, in fractions."""
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
    table = make_table(epsilon=2.5, inputs=3, answers=2 + seed % 2, seed=seed)

    def within(releases: int) -> bool:
        pairs = itertools.permutations(table, 2)
        return max(hockey_stick(pair, releases, total) for pair in pairs) <= Fraction(delta)

    by_hand = next(n for n in itertools.count() if not within(n + 1))
    assert by_hand > query_bound(promise_of(table, 5.0), total)
    assert query_bound(promise_of(table, 5.0), total, "exact", delta) == by_hand


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("total", [0.5, 10.0])
def test_exact_is_never_fewer_than_the_closed_forms_allow(epsilon: float, total: float) -> None:
    promise = promise_of(make_table(epsilon, inputs=4, answers=4, seed=3), epsilon)
    exact = query_bound(promise, total, "exact", 1e-6)
    assert exact >= query_bound(promise, total)
    assert exact >= query_bound(promise, total, "zcdp", 1e-6)
    for rule in ("pure", "zcdp"):
        assert epsilon_after(promise, 5, "exact", 1e-6) <= epsilon_after(promise, 5, rule, 1e-6)


def test_exact_allows_more_than_the_closed_forms_and_inverts_itself() -> None:
    promise = promise_of(make_table(1.0, inputs=6, answers=4), 1.0)
    exact = query_bound(promise, 10.0, "exact", 1e-6)
    assert exact > 1.05 * query_bound(promise, 10.0, "zcdp", 1e-6)
    assert epsilon_after(promise, exact, "exact", 1e-6) <= 10.0 * (1 + 1e-3)
    assert epsilon_after(promise, exact + 1, "exact", 1e-6) > 10.0 * (1 - 1e-3)
    assert epsilon_after(promise, 0, "exact", 1e-6) == 0.0


def test_answers_that_do_not_depend_on_the_scores_can_be_asked_for_without_end() -> None:
    constant = promise_of(np.repeat(make_table(1.0, inputs=1, answers=4), 5, axis=0), 1.0)
    for rule in ("zcdp", "exact", None):
        assert query_bound(constant, 1.0, rule, 1e-6) == MAX_RELEASES
    assert epsilon_after(constant, 100, "exact", 1e-6) == 0.0


@pytest.mark.parametrize("promise", [1.0, Isotonic(1.0).guarantee(10)])
def test_exact_needs_a_table(promise: Any) -> None:
    with pytest.raises(ValueError, match=r"guarantee of a fitted veil .* of many labels take that of one"):
        query_bound(promise, 5.0, "exact", 1e-6)
    with pytest.raises(ValueError, match=r"guarantee of a fitted veil .* of many labels take that of one"):
        epsilon_after(promise, 5, "exact", 1e-6)
