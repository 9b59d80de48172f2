"""What a fitted map promises: worked by hand, by brute force, and held against populations whose truth is known."""

import itertools
import math
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from scoreveil import Veil
from scoreveil.mechanisms import promises
from scoreveil.mechanisms.guarantee import BrokenPromise, Relation
from scoreveil.mechanisms.per_label import PerLabel
from scoreveil.mechanisms.promises import WHOLE, Attacker, RegionCounts, total_variation, within
from scoreveil.mechanisms.regions import Regions
from scoreveil.shapes import MultiLabel

ALONE, CORRECTNESS = Attacker.ALONE, Attacker.CORRECTNESS
LABEL, BOTH = Attacker.LABEL, Attacker.LABEL_AND_CORRECTNESS
NO_NOISE = (1e9, 1e9)


def counted(records, sizes, noise=NO_NOISE, certified=False):
    """RegionCounts of records (2, labels, truths, regions), others first, that may be fractions."""
    counts = np.array(records) * 16
    assert np.array_equal(counts, np.rint(counts))
    return RegionCounts(counts.astype(np.int64), sizes, noise, 0.02, "label", certified)


def integers(records):
    return (np.array(records) * 16).astype(np.int64)


# By hand


def test_the_advantage_of_two_regions_is_that_of_the_region_with_more_members():
    # members 1/5 and 4/5, others 3/4 and 1/4
    assert total_variation(integers([[3, 1], [1, 4]]), (4, 5)) == Fraction(4, 5) - Fraction(1, 4)
    # the same by saying "member" in the other region: the attack may be turned round
    assert total_variation(integers([[1, 3], [4, 1]]), (4, 5)) == Fraction(11, 20)
    assert total_variation(integers([[2, 2], [5, 5]]), (4, 10)) == 0


def test_noisy_counts_are_taken_as_they_are_and_the_larger_side_counts():
    # what is above: 90/16/5 - 30/16/4; what is below: 40/16/4 - 10/16/5
    above, below = Fraction(90, 80) - Fraction(30, 64), Fraction(40, 64) - Fraction(10, 80)
    assert total_variation(np.array([[40, 30], [10, 90]]), (4, 5)) == max(above, below) == above
    assert total_variation(np.array([[90, 10], [30, 40]]), (5, 4)) == above
    assert total_variation(np.array([[0, 0], [-16, 8]]), (1, 1)) == 1


def test_within_a_group_the_smaller_share_weighs():
    # a group of 8 of 16 others and 4 of 10 members; within it 6/8 and 2/8, 1/4 and 3/4
    assert within(integers([[6, 2], [1, 3]]), (16, 10)) == Fraction(4, 10) * Fraction(1, 2)
    # of 8 of 32 others, who are fewer then
    assert within(integers([[6, 2], [1, 3]]), (32, 10)) == Fraction(8, 32) * Fraction(1, 2)
    # three regions: |1/2 - 1/4| + |1/4 - 1/4| + |1/4 - 1/2|, halved
    assert within(integers([[1, 1, 2], [2, 1, 1]]), (4, 4)) == Fraction(1, 4)
    assert within(integers([[1, 2], [3, 6]]), (3, 9)) == 0


def test_for_new_records_the_smaller_share_weighs_a_standard_error_more_up_to_the_mean():
    # .4 + √(.4/10) is above the mean of .5 and .4
    assert within(integers([[6, 2], [1, 3]]), (16, 10), for_new=True) == Fraction(9, 20) * Fraction(1, 2)
    # 900 of 1,000 others and 100 of 1,000 members: .1 + √(.1/1000) = .11
    rare = within(integers([[600, 300], [50, 50]]), (1000, 1000), for_new=True)
    assert float(rare) == pytest.approx(0.11 * (2 / 3 - 1 / 2), rel=1e-12)


def test_a_group_that_noise_has_emptied_adds_nothing_and_none_adds_more_than_it_weighs():
    assert within(np.array([[5, -6], [30, 2]]), (10, 10)) == 0
    assert within(np.array([[5, 6], [-30, 30]]), (10, 10)) == 0
    # gaps of 250 and 250 over 2 · 20 · 5 would be 2.5: the group weighs 5/16 of 10 members
    assert within(np.array([[30, -10], [-5, 10]]), (10, 10)) == Fraction(5, 160)


def test_opposite_labels_are_told_by_who_sees_the_label():
    """Members of label 0 are in region 1 three times of four, those of label 1 in region 0; others the reverse."""
    seen = counted([[[[3, 1]], [[1, 3]]], [[[1, 3]], [[3, 1]]]], (8, 8))
    assert seen.attackers == (ALONE, LABEL)
    assert seen.shown(ALONE) == 0
    assert seen.shown(LABEL) == Fraction(1, 2) * Fraction(1, 2) + Fraction(1, 2) * Fraction(1, 2)


def test_what_two_classes_announce_tells_the_label_too():
    """Members say label 1 three times of four, others label 0; regions differ within label 0 alone."""
    pooled = counted([[[[3, 3]], [[1, 1]]], [[[2, 0]], [[3, 3]]]], (8, 8))
    seen = replace(pooled, tells_label=True)
    assert pooled.shown(ALONE) == Fraction(1, 8)
    assert seen.shown(ALONE) == Fraction(4, 8)  # 3, 3, 1, 1 and 2, 0, 3, 3 of 8
    assert seen.shown(LABEL) == pooled.shown(LABEL) == Fraction(2, 8) * Fraction(1, 2)
    # two of eight are wrong: others say label 0 there, members label 1
    wrong = replace(counted([[[[2], [3]], [[0], [3]]], [[[0], [3]], [[2], [3]]]], (8, 8)), tells_label=True)
    assert wrong.shown(CORRECTNESS) == wrong.shown(ALONE) == Fraction(2, 8)
    assert wrong.shown(LABEL) == wrong.shown(BOTH) == 0
    assert replace(wrong, tells_label=False).shown(CORRECTNESS) == 0


def test_an_exclusive_or_is_told_by_who_sees_the_label_and_whether_it_is_right():
    """Members are in region 1 where label and right differ, others where they are the same; each once beside."""
    same, other = [3, 1], [1, 3]
    seen = counted([[[other, same], [same, other]], [[same, other], [other, same]]], (16, 16))
    assert seen.attackers == (ALONE, CORRECTNESS, LABEL, BOTH)
    assert [seen.shown(each) for each in (ALONE, CORRECTNESS, LABEL)] == [0, 0, 0]
    assert seen.shown(BOTH) == 4 * Fraction(4, 16) * Fraction(1, 2)


def test_being_right_counts_beside_the_region_and_not_in_it():
    """Members are right more often; given that, their regions are those of others."""
    seen = counted([[[[2, 2], [6, 2]]], [[[1, 1], [6, 2]]]], (12, 10))
    assert seen.attackers == (ALONE, CORRECTNESS)
    assert seen.shown(CORRECTNESS) == 0
    assert seen.shown(ALONE) == abs(Fraction(7, 10) - Fraction(8, 12))
    leaky = counted([[[[3, 1], [6, 2]]], [[[1, 1], [6, 2]]]], (12, 10))  # the wrong: 3/4, 1/4 and 1/2, 1/2
    assert leaky.shown(CORRECTNESS) == min(Fraction(4, 12), Fraction(2, 10)) * Fraction(1, 4)


def test_pooled_labels_say_nothing_about_who_sees_the_label():
    pooled = counted([[[[3, 1], [1, 3]]], [[[1, 3], [3, 1]]]], (8, 8))
    assert pooled.attackers == (ALONE, CORRECTNESS)
    assert counted([[[[3, 1]]], [[[1, 3]]]], (4, 4)).attackers == (ALONE,)
    assert pooled.shown(ALONE) == 0
    assert pooled.shown(CORRECTNESS) == Fraction(1, 2)


# By brute force


def random_counts(rng, layout, noise=0.0):
    counts = rng.multinomial(60, rng.dirichlet(np.ones(math.prod(layout))), 2) * 16.0
    return (counts + np.rint(16 * noise * rng.normal(size=counts.shape))).astype(np.int64).reshape(2, *layout)


@pytest.mark.parametrize("noise", [0.0, 2.0])
@pytest.mark.parametrize("regions", [2, 3, 6, 8])
def test_no_set_of_regions_is_a_better_attack(regions, noise):
    rng = np.random.default_rng(regions)
    for _ in range(10):
        counts = random_counts(rng, (1, 1, regions), noise)
        sizes = (60, 45)
        others, members = counts.reshape(2, regions).tolist()
        best = max(
            sign * sum(Fraction(members[r], 16 * 45) - Fraction(others[r], 16 * 60) for r in chosen)
            for count in range(regions + 1)
            for chosen in itertools.combinations(range(regions), count)
            for sign in (1, -1)  # says "member" there, or everywhere else
        )
        assert RegionCounts(counts, sizes, NO_NOISE, 0.02, "label", False).shown(ALONE) == best


def test_what_is_shown_bounds_what_the_region_adds_to_what_is_seen_in_any_case():
    rng = np.random.default_rng(0)
    for labels, truths, regions in [(2, 2, 2), (3, 2, 4), (5, 1, 3), (2, 1, 8)] * 25:
        seen = RegionCounts(random_counts(rng, (labels, truths, regions)), (60, 60), NO_NOISE, 0.02, "label", False)
        for attacker in set(seen.attackers) - {ALONE}:
            groups = seen.groups(attacker)
            joint = total_variation(groups.reshape(2, -1), (60, 60))
            adds = joint - total_variation(groups.sum(axis=2), (60, 60))
            assert 0 <= adds <= seen.shown(attacker)


@pytest.mark.parametrize("certified", [False, True])
def test_one_region_tells_nothing_whatever_the_noise_says(certified):
    counts = random_counts(np.random.default_rng(0), (3, 2, 1), 2.0)
    one = RegionCounts(counts, (60, 45), NO_NOISE, 0.02, "l", certified)
    assert {one.shown(each) for each in Attacker} == {one.stated(each) for each in Attacker} == {0}
    two = replace(one, counts=one.counts[:, :2], tells_label=True)  # whose number tells the label
    assert two.stated(LABEL) == two.stated(BOTH) == 0 < two.stated(ALONE)


def test_groups_are_what_each_attacker_sees():
    counts = np.arange(2 * 3 * 2 * 4).reshape(2, 3, 2, 4)
    seen = RegionCounts(counts, (5, 5), NO_NOISE, 0.02, "label", False)
    assert np.array_equal(seen.groups(ALONE), counts.sum(axis=(1, 2))[:, None])
    assert np.array_equal(seen.groups(CORRECTNESS), counts.sum(axis=1))
    assert np.array_equal(seen.groups(LABEL), counts.sum(axis=2))
    assert np.array_equal(seen.groups(BOTH), counts.reshape(2, 6, 4))


# What is stated for new records


def estimate_by_hand(sizes, noise, cells):
    chance = 1 / (4 * sizes[0]) + 1 / (4 * sizes[1])
    noisy = -(-cells // 2) * (2 / (noise[0] * sizes[0]) ** 2 + 2 / (noise[1] * sizes[1]) ** 2)
    return 1.6448536269514722 * math.sqrt(chance + noisy)


def bound_by_hand(sizes, noise, noisy_cells, chance):
    """Hoeffding's bound at half of the chance, and the best of Chernoff's at the other half."""
    hoeffding = math.sqrt(math.log(2 / chance) * (1 / sizes[0] + 1 / sizes[1]) / 2)
    rates = [sizes[0] * noise[0], sizes[1] * noise[1]]

    def chernoff(s):
        moments = sum(-math.log(1 - (s / rate) ** 2) for rate in rates)
        return (math.log(2 / chance) + noisy_cells * moments) / s

    return hoeffding, optimize.minimize_scalar(chernoff, bounds=(0, min(rates) * (1 - 1e-9)), method="bounded").fun


CASES = [((1000, 800), (0.5, 0.25)), ((200, 5000), (0.5, 0.25)), ((300, 300), (2.5, 0.5)), ((10**6, 10**6), (5, 5))]
each_case = pytest.mark.parametrize(("sizes", "noise"), CASES)


@each_case
@pytest.mark.parametrize("cells", [1, 2, 3, 8, 15, 160])
def test_the_estimated_shortfall_is_the_quantile_of_chance_and_noise(sizes, noise, cells):
    found = promises.estimated_shortfall(sizes, noise, cells)
    assert found == pytest.approx(estimate_by_hand(sizes, noise, cells), rel=1e-12)


@each_case
@pytest.mark.parametrize("cells", [1, 2, 3, 8, 160])
@pytest.mark.parametrize("chance", [0.05, 0.025, 1e-4])
def test_the_certain_shortfall_is_hoeffdings_and_chernoffs(sizes, noise, cells, chance):
    found = promises.certain_shortfall(sizes, noise, cells, math.log(1 / chance))
    hoeffding, chernoff = bound_by_hand(sizes, noise, -(-cells // 2), chance)
    assert hoeffding + 0.9999 * chernoff <= found <= hoeffding + 1.002 * chernoff


def test_discrete_noise_is_not_larger_than_the_laplace_noise_of_the_bound():
    for scale in (0.01, 0.3, 2.0):
        ratio = math.exp(-scale)
        for s in np.linspace(0.01, 0.99, 30) * scale:
            discrete = (1 - ratio) ** 2 / ((1 - ratio * math.exp(s)) * (1 - ratio * math.exp(-s)))
            assert discrete <= 1 / (1 - (s / scale) ** 2)


def some_evidence(certified, sizes=(4000, 3000), labels=2, truths=2, regions=3, noise=(0.5, 0.25)):
    rng = np.random.default_rng(labels)
    chances = rng.dirichlet(np.full(labels * truths * regions, 3.0), 2)
    counts = np.rint(chances * 16 * np.array(sizes)[:, None]).astype(np.int64)
    return RegionCounts(counts.reshape(2, labels, truths, regions), sizes, noise, 0.02, "label", certified)


def is_just_above(stated, exact):
    """Whether it is the least float that is not below."""
    return Fraction(math.nextafter(stated, 0)) < exact <= Fraction(stated)


@pytest.mark.parametrize("labels", [1, 2, 5])
@pytest.mark.parametrize("truths", [1, 2])
def test_an_estimate_states_what_is_shown_and_the_shortfall_of_all_cells(labels, truths):
    seen = some_evidence(False, labels=labels, truths=truths)
    short = estimate_by_hand(seen.sizes, seen.noise, labels * truths * 3)
    for attacker in seen.attackers:
        assert seen.stated(attacker) == pytest.approx(float(seen.shown(attacker, for_new=True)) + short, rel=1e-12)
        exact = promises.estimated_shortfall(seen.sizes, seen.noise, labels * truths * 3)
        assert is_just_above(seen.stated(attacker), seen.shown(attacker, for_new=True) + Fraction(exact))


@pytest.mark.parametrize("labels", [1, 2, 5])
@pytest.mark.parametrize("sizes", [(4000, 3000), (2_000_000, 3_000_000)])
def test_a_certified_bound_is_that_of_all_cells_less_that_of_what_is_seen_in_any_case(labels, sizes):
    seen, cells = some_evidence(True, sizes, labels), labels * 2 * 3
    hoeffding, chernoff = bound_by_hand(sizes, seen.noise, -(-cells // 2), 0.05)
    assert seen.stated(ALONE) == pytest.approx(float(seen.shown(ALONE)) + hoeffding + chernoff, rel=1e-3)
    assert seen.shown(ALONE) == total_variation(seen.groups(ALONE)[:, 0], sizes)
    for attacker in set(seen.attackers) - {ALONE}:
        groups = seen.groups(attacker)
        upper = float(total_variation(groups.reshape(2, -1), sizes))
        upper += sum(bound_by_hand(sizes, seen.noise, -(-cells // 2), 0.025))
        # for every set of groups, from above and from below, with the noise of all of its cells
        lower = float(total_variation(groups.sum(axis=2), sizes))
        lower -= sum(bound_by_hand(sizes, seen.noise, cells, 0.025 / 2 ** (groups.shape[1] + 1)))
        assert seen.stated(attacker) == pytest.approx(min(upper - max(lower, 0), 1), rel=2e-3)
        if sizes[0] > 10**6:
            assert lower > 0


def test_nothing_is_stated_above_1():
    assert counted([[[[5, 0]]], [[[0, 5]]]], (5, 5)).stated(ALONE) == 1
    assert counted([[[[5, 0]]], [[[0, 5]]]], (5, 5), certified=True).stated(ALONE) == 1


@given(value=st.fractions(0, 1))
@settings(max_examples=200, deadline=None)
def test_fractions_are_rounded_up_and_no_further(value):
    assert value == 0 or is_just_above(promises.rounded_up(value), value)
    assert promises.rounded_up(Fraction(1, 2)) == 0.5


# Held against a population


def noise_of(rng, epsilon, shape):
    """Discrete Laplace noise of scale 1/ε records, in sixteenths."""
    chance = 1 - math.exp(-epsilon / 16)
    return rng.geometric(chance, shape) - rng.geometric(chance, shape)


def population(leaning, kind):
    """Shares (labels, truths, regions) of members and others, which lie in two regions as `leaning` and its reverse."""
    high, low = np.array([leaning, 1 - leaning]), np.array([1 - leaning, leaning])
    layout = {"alone": (1, 1), "opposite": (2, 1), "xor": (2, 2)}[kind]
    members = np.empty((*layout, 2))
    for label, right in np.ndindex(*layout):
        members[label, right] = high if (label + right) % 2 else low
    members /= members.sum()
    return members, members[..., ::-1]


def simulated(kind, leaning, n, noise, certified=False, count=400):
    """RegionCounts from so many samples of the population, each of n records of each side."""
    rng, (members, others) = np.random.default_rng(n), population(leaning, kind)
    sides = [
        rng.multinomial(n, share.ravel(), count) * 16 + noise_of(rng, epsilon, (count, share.size))
        for share, epsilon in zip((others, members), noise, strict=True)
    ]
    for counts in zip(*sides, strict=True):
        shaped = np.stack(counts).reshape(2, *members.shape).astype(np.int64)
        yield RegionCounts(shaped, (n, n), noise, 0.02, "label", certified)


KINDS = [("alone", ALONE, 0.65), ("opposite", LABEL, 0.6), ("xor", BOTH, 0.55)]


@pytest.mark.parametrize("n", [200, 2000])
@pytest.mark.parametrize("noise", [(5.0, 5.0), (0.5, 0.25)])
@pytest.mark.parametrize(("kind", "attacker", "leaning"), KINDS)
def test_what_is_stated_is_exceeded_in_about_one_sample_of_twenty(kind, attacker, leaning, n, noise):
    truth = 2 * leaning - 1
    every = list(simulated(kind, leaning, n, noise))
    assert np.mean([truth > each.stated(attacker) for each in every]) <= 0.08
    if kind == "alone":  # half of the shortfall, or none of one of its parts, would be noticed
        shown = np.array([float(each.shown(attacker)) for each in every])
        short = promises.estimated_shortfall((n, n), noise, 2)
        assert np.mean(truth > shown + short / 2) > 0.08
        assert np.mean(truth > shown) > 0.3


def test_the_noise_of_many_cells_is_in_what_is_stated():
    """200 records in 64 cells, with the noise of a fit: chance alone would be exceeded too often."""
    rng, (n, noise, cells) = np.random.default_rng(0), (200, (0.5, 0.1), 64)
    others, members = (np.repeat(pair, cells // 2) / (cells // 2) for pair in ([0.2, 0.8], [0.8, 0.2]))
    shown = []
    for _ in range(400):
        sides = [
            rng.multinomial(n, share) * 16 + noise_of(rng, epsilon, cells)
            for share, epsilon in zip((others, members), noise, strict=True)
        ]
        # the attack on the population: half of the cells
        shown.append((sides[1][: cells // 2].sum() - sides[0][: cells // 2].sum()) / 16 / n)
    fixed, short = np.array(shown), promises.estimated_shortfall((n, n), noise, cells)
    assert 0.02 <= np.mean(fixed + short < 0.6) <= 0.08
    assert np.mean(fixed + promises.estimated_shortfall((n, n), noise, cells // 2) < 0.6) > 0.08


@pytest.mark.parametrize("n", [200, 2000])
@pytest.mark.parametrize(("kind", "attacker", "leaning"), KINDS)
def test_certified_bounds_hold(kind, attacker, leaning, n):
    every = simulated(kind, leaning, n, (5.0, 5.0), certified=True, count=60)
    assert np.mean([2 * leaning - 1 > each.stated(attacker) for each in every]) <= 0.05


# The table


def test_e_to_the_epsilon_is_rounded_down():
    for epsilon in (1e-9, 0.3, 1.0, 4.0, 22.0):
        below = promises.exponential_below(epsilon)
        exact = [Fraction(Context(prec=80, rounding=way).exp(Decimal(epsilon))) for way in (ROUND_FLOOR, ROUND_CEILING)]
        assert exact[1] * (1 - Fraction(2, 10**57)) < below < exact[0]
    assert promises.exponential_below(1e300) > WHOLE


@given(low=st.integers(1, 2**31), epsilon=st.floats(0.001, 20))
@settings(max_examples=200, deadline=None)
def test_the_largest_ratio_that_passes_is_e_to_the_epsilon(low, epsilon):
    most = math.floor(Fraction(Context(prec=80).exp(Decimal(epsilon))) * low)
    if not low < most < WHOLE - 1 or Fraction(WHOLE - low, WHOLE - most - 1) > Fraction(math.exp(epsilon)):
        return  # the other answer breaks it
    for high, passes in ((most, True), (most + 1, False)):
        table = np.array([[low, WHOLE - low], [high, WHOLE - high]], dtype=np.int64)
        for each in (table, table[::-1], table[:, ::-1]):
            if passes:
                promises.check_table(each, epsilon)
            else:
                with pytest.raises(BrokenPromise, match="breaks ε"):
                    promises.check_table(each, epsilon)


def test_the_worst_ratio_is_that_of_one_answer_in_any_two_rows():
    table = np.array([[6, 3, 7], [5, 9, 2], [8, 4, 4]])
    assert promises.worst_ratio(table) == Fraction(7, 2)
    assert promises.worst_ratio(table[:, :2]) == 3
    assert promises.worst_ratio(table[:1]) == 1
    by_hand = max(Fraction(int(a), int(b)) for column in table.T for a, b in itertools.permutations(column, 2))
    assert promises.worst_ratio(table) == by_hand


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([2**31, 2**31 + 1], "sum"),
        ([2**31, 2**31 - 1], "sum"),
        ([2**32, 0], "never"),
        ([2**32 + 1, -1], "never"),
        ([2**31, 2**63 - 1], "sum"),
    ],
)
def test_rows_that_are_no_chances_break_the_promise(row, words):
    with pytest.raises(BrokenPromise, match=words):
        promises.check_table(np.array([[2**31, 2**31], row], dtype=np.int64), 20.0)


def rho_by_brute_force(table):
    logs, alphas = np.log(table / WHOLE), np.geomspace(1.001, 1000, 2000)
    return max(
        (special.logsumexp(b + alphas[:, None] * (a - b), axis=1) / (alphas - 1) / alphas).max()
        for a, b in itertools.permutations(logs, 2)
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 10.0])
def test_rho_is_the_largest_divergence_by_its_order(epsilon):
    rng = np.random.default_rng(0)
    for _ in range(4):
        chances = rng.dirichlet(np.full(4, 2.0)) * np.exp(rng.uniform(-0.2, 0.2, (4, 4)) * epsilon)
        table = np.floor(chances / chances.sum(axis=1, keepdims=True) * WHOLE).astype(np.int64)
        table[:, 0] += WHOLE - table.sum(axis=1)
        reached, found = rho_by_brute_force(table), promises.zcdp_rho(table, epsilon)
        assert reached <= found * (1 + 1e-9)
        assert found <= min(epsilon**2 / 2, np.ptp(np.log(table), axis=0).max() ** 2 / 2)
        if epsilon >= 1:
            assert found <= reached * 1.003
            assert promises.zcdp_rho(table, 1e300) == pytest.approx(found, rel=0.003)


def test_rho_of_randomised_response_is_the_one_that_is_known():
    for epsilon in (0.5, 1.0, 3.0):
        high = int(WHOLE * math.exp(epsilon) / (1 + math.exp(epsilon)))
        table = np.array([[high, WHOLE - high], [WHOLE - high, high]], dtype=np.int64)
        # D_α / α is largest as α falls to 1, where it is the relative entropy; range² / 8 and ε²/2 bound it
        known = min(epsilon * math.tanh(epsilon / 2), epsilon**2 / 2)
        assert promises.zcdp_rho(table, epsilon) == pytest.approx(known, rel=0.003)
    assert promises.zcdp_rho(np.full((3, 2), 2**31), 1.0) == 0
    assert promises.zcdp_rho(np.array([[2**32]]), 1.0) == 0


# The guarantee


def made(evidence, classes=4, table=None, announced=None, atoms=0.0):
    evidence = None if evidence is None else replace(evidence, tells_label=classes == 2)
    answers = 3 if table is None else table.shape[1]
    confidences = np.linspace(0.6, 0.9, answers) if announced is None else announced
    return Regions(
        epsilon=math.inf if table is None else 1.0,
        number_of_classes=classes,
        strips=np.empty(0),
        cuts=np.array([[0.6, 0.8]]),
        regions=np.array([[0, 1, 2]]),
        announced=np.tile(confidences, (2 if classes == 2 else 1, 1)),
        table=table,
        counts=np.full((2, 3), 1600) if evidence is None else np.resize(evidence.counts[0].sum(axis=0), (2, 3)),
        evidence=evidence,
        spent=(0.5, 2.5),
        atoms=atoms,
    )


TABLE = np.array([[2, 1, 1], [1, 2, 1], [1, 1, 2]], dtype=np.int64) << 30


def test_told_apart_by_label_everyone_has_a_bound():
    seen = some_evidence(False, labels=4)
    promise = made(seen).guarantee()
    assert promise.advantage == seen.stated(LABEL)
    assert promise.advantage_alone == seen.stated(ALONE)
    assert promise.advantage_given_truth == seen.stated(BOTH)
    assert promise.confidence == 0.95
    assert promise.evidence_kind == "estimate"
    assert promise.fit_epsilon == (0.5, 2.5)
    assert promise.relation is Relation.SAME_TOP_CLASSES
    assert promise.kept == 1
    assert (promise.epsilon, promise.rho, promise.worst_loss, promise.table) == (math.inf, math.inf, math.inf, None)
    for attacker in (ALONE, LABEL, BOTH):
        assert f"at most {seen.stated(attacker):.3f}" in promise.words
    assert f"{seen.stated(CORRECTNESS):.3f}" not in promise.words
    assert "estimates at 95% confidence" in promise.words
    assert "3,000 members and 4,000 others" in promise.words
    assert "There is no ε" in promise.words
    assert "certify" in promise.words
    assert len({seen.stated(attacker) for attacker in Attacker}) == 4


def test_pooled_labels_are_said_to_be_pooled():
    seen = some_evidence(False, labels=1)
    promise = made(seen).guarantee()
    assert promise.advantage is None
    assert promise.advantage_given_truth is None
    assert promise.advantage_alone == seen.stated(ALONE)
    assert promise.confidence == 0.95
    assert "Nothing can be stated about an attack that reads each label" in promise.words
    for attacker in (ALONE, CORRECTNESS):
        assert f"at most {seen.stated(attacker):.3f}" in promise.words


@pytest.mark.parametrize("labels", [1, 4])
def test_without_labels_nothing_is_said_of_who_knows_them(labels):
    seen = some_evidence(False, labels=labels, truths=1)
    promise = made(seen).guarantee()
    assert promise.advantage_given_truth is None
    assert (promise.advantage is None) == (labels == 1)
    assert "whether" not in promise.words
    assert any("No labels of members were given" in limit for limit in promise.limits)


def test_without_members_nothing_is_promised_about_them():
    promise = made(None).guarantee()
    assert (promise.advantage, promise.advantage_alone, promise.advantage_given_truth) == (None, None, None)
    assert (promise.confidence, promise.evidence_kind) == (None, None)
    assert promise.words.startswith("No members were given")
    assert promise.fit_epsilon == (0.5, 2.5)


def test_certified_bounds_are_said_to_hold_for_every_population():
    seen = some_evidence(True, labels=4)
    promise = made(seen).guarantee()
    assert promise.evidence_kind == "finite-sample"
    assert promise.confidence == 0.95
    assert promise.advantage == seen.stated(LABEL)
    assert "for every population" in promise.words
    assert "not chosen on" in promise.words
    assert "estimate" not in promise.words


def test_a_constant_veil_says_so():
    words = "the same confidence"
    assert words in made(None, announced=np.full(3, 0.7)).guarantee().words
    assert words in made(None, table=TABLE, announced=np.full(3, 0.7)).guarantee().words
    assert words not in made(None).guarantee().words


def test_epsilon_is_promised_beside_the_population():
    seen = some_evidence(False, labels=4)
    promise = made(seen, table=TABLE).guarantee()
    assert promise.epsilon == 1.0
    assert promise.worst_loss == math.log(2)
    assert promise.rho == promises.zcdp_rho(TABLE, 1.0)
    assert np.array_equal(promise.table, TABLE)
    assert "e^1 beyond the label" in promise.words
    assert "There is no ε" not in promise.words
    assert promise.advantage == seen.stated(LABEL)
    limits = [made(seen, table=table).guarantee().limits for table in (None, TABLE)]
    shadow = [[limit for limit in each if "shadow" in limit] for each in limits]
    assert shadow[0][0].endswith("bounded by nothing.")
    assert shadow[1][0].endswith("bounded by ε alone.")


def test_limits_say_what_fitting_cost_and_what_is_not_told_apart():
    seen = some_evidence(False, labels=4)
    limits = "\n".join(made(seen).guarantee().limits)
    assert "each member ε = 0.5 and each other record ε = 2.5" in limits
    wrong = min(seen.counts[0, :, 0].sum() / 16 / 4000, seen.counts[1, :, 0].sum() / 16 / 3000)
    assert f"at most {wrong:.3f} more" in limits
    assert "label-only attacks are not stopped" in limits
    assert "slightly changed copies" in limits
    assert "Brier" not in limits
    assert "0.0200 of Brier" in "\n".join(made(seen, atoms=0.02).guarantee().limits)
    assert "which other class is right" not in "\n".join(made(some_evidence(False), 2).guarantee().limits)
    assert "slightly changed copies" not in "\n".join(made(None).guarantee().limits)


def test_many_labels_promise_what_the_weakest_label_does():
    sure, unsure = (some_evidence(False, sizes=(n, n)) for n in (20_000, 500))
    sure, unsure = (replace(evidence, tells_label=True) for evidence in (sure, unsure))
    each = [made(evidence, 2, TABLE) for evidence in (sure, unsure, sure)]
    promise = PerLabel.of(tuple(each)).guarantee()
    assert promise.advantage == unsure.stated(LABEL) > sure.stated(LABEL)
    assert promise.advantage_alone == unsure.stated(ALONE)
    assert promise.advantage_given_truth == unsure.stated(BOTH)
    assert (promise.epsilon, promise.worst_loss) == (1.0, math.log(2))
    assert promise.rho == each[0].guarantee().rho
    assert promise.fit_epsilon == (1.5, 7.5)
    assert "cost each member ε = 1.5 and each other record ε = 7.5" in "\n".join(promise.limits)
    assert promise.evidence_kind == "estimate"
    assert "Each of 3 labels" in promise.words
    assert "500 members and 500 others" in promise.words
    shown = Veil(PerLabel.of(tuple(each)), shape=MultiLabel()).guarantee
    assert shown.limits[-2:] == (MultiLabel.words, MultiLabel.crowd)
    without = PerLabel.of((made(None, 2, TABLE), each[0])).guarantee()
    assert (without.advantage, without.advantage_alone) == (None, None)


def test_of_many_labels_the_words_have_the_most_of_any_label_for_each_attacker():
    """One label tells most to who sees the number alone, another to who sees the label, a third to who knows truth."""
    alone = counted([[[[9, 3]] * 2] * 2, [[[3, 9]] * 2] * 2], (48, 48))
    label = counted([[[[9, 3]] * 2, [[3, 9]] * 2], [[[3, 9]] * 2, [[9, 3]] * 2]], (48, 48))
    truth = counted([[[[12, 0], [0, 12]]] * 2, [[[0, 12], [12, 0]]] * 2], (48, 48))
    wide = counted([[[[20, 4]] * 2, [[0, 0]] * 2], [[[0, 0]] * 2, [[4, 20]] * 2]], (48, 48))
    each = [
        Regions(
            epsilon=1.0, number_of_classes=2, strips=np.empty(0), cuts=np.array([[0.7]]), regions=np.array([[0, 1]]),
            announced=np.full((2, 2), 0.7), table=table, counts=np.ones((2, 2), dtype=np.int64),
            evidence=replace(evidence, tells_label=True), spent=(0.5, 2.5),
        )
        for evidence, table in zip(
            (alone, label, truth, wide), (EVEN, TILTED, EVEN, EVEN), strict=True
        )
    ]  # fmt: skip
    promise, own = PerLabel.of(tuple(each)).guarantee(), [one.guarantee() for one in each]
    weakest = max(range(4), key=lambda i: own[i].advantage_alone)
    for name in ("advantage", "advantage_alone", "advantage_given_truth"):
        figures = [getattr(one, name) for one in own]
        assert getattr(promise, name) == max(figures) > min(figures)
        assert f"{max(figures):.3f}" in promise.words
    assert max(one.advantage_given_truth for one in own) > own[weakest].advantage_given_truth
    assert promise.rho == own[1].rho > own[0].rho
    assert promise.worst_loss == own[1].worst_loss > own[0].worst_loss


EVEN = np.array([[9, 7], [7, 9]], dtype=np.int64) << 28
TILTED = np.array([[11, 5], [5, 11]], dtype=np.int64) << 28


# What the counts may be


@pytest.mark.parametrize(
    "change",
    [
        {"counts": np.zeros((2, 2, 2), dtype=np.int64)},
        {"counts": np.zeros((3, 2, 2, 3), dtype=np.int64)},
        {"counts": np.zeros((2, 2, 3, 3), dtype=np.int64)},
        {"counts": np.zeros((2, 0, 2, 3), dtype=np.int64)},
        {"counts": np.full((2, 2, 2, 3), 2**40)},
        {"counts": np.full((2, 2, 2, 3), -(2**40))},
        {"counts": np.full((2, 2, 2, 3), -(2**63))},
        {"sizes": (0, 5)},
        {"sizes": (5, 0)},
        {"sizes": (5, 2**40)},
        {"sizes": (5,)},
        {"sizes": (5, 5, 5)},
        {"noise": (0.0, 1.0)},
        {"noise": (1.0, -1.0)},
        {"noise": (1.0, math.inf)},
        {"noise": (1.0, math.nan)},
        {"noise": (math.nan, 1.0)},
        {"noise": (1.0,)},
        {"noise": (2.0**-21, 1.0)},
        {"noise": (1.0, 2.0**21)},
        {"sizes": (4000, 3000 + 500)},
        {"sizes": (4000 + 300, 3000)},
        {"asked": 0.0},
        {"asked": 1.01},
        {"asked": math.nan},
    ],
)
def test_evidence_that_no_fit_has_made_breaks_the_promise(change):
    sound = some_evidence(False)
    sound.holds()
    replace(sound, asked=1.0, noise=(promises.MIN_NOISE, promises.MAX_NOISE)).holds()
    with pytest.raises(BrokenPromise):
        replace(sound, **change).holds()


def test_verify_looks_at_the_table_and_at_the_evidence():
    made(some_evidence(False, labels=4), table=TABLE).verify()
    with pytest.raises(BrokenPromise, match="sum"):
        made(None, table=TABLE + np.array([0, 0, 1])).verify()
    with pytest.raises(BrokenPromise, match="noise"):
        made(replace(some_evidence(False, labels=4), noise=(0.5, 0.0))).verify()
    broken = made(None, 2, TABLE + np.array([0, 0, 1]))
    with pytest.raises(BrokenPromise, match="sum"):
        PerLabel.of((made(None, 2, TABLE), broken)).verify()


def test_the_quantile_is_that_of_95_percent():
    assert promises.CONFIDENCE == 0.95
    assert stats.norm.cdf(1.6448536269514722) == pytest.approx(0.95, abs=1e-15)
