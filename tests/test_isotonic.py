"""The isotonic mechanism is ε-DP given the kept classes, and its sampler draws from what it claims."""

import itertools
import math
from decimal import Decimal

import numpy as np
import pytest

from privacy_checks import (
    Claim,
    check_loss,
    check_sampler,
    chi_square,
    claim,
    make_mechanism,
    make_plan,
    naive_probabilities,
    same_kept_classes,
    sequences,
)
from scoreveil import Veil, accounting
from scoreveil.mechanisms import isotonic, loading
from scoreveil.mechanisms.isotonic import Isotonic
from scoreveil.randomness import KeyedDraws, secure_uniforms

CASES = [(k, keep) for k in range(2, 6) for keep in range(1, k + 1)]
DRAWS = 1_000_000
WHOLE = 2**52  # how many different draws there are


@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize(("classes", "keep"), CASES)
def test_same_kept_classes_lose_at_most_epsilon(classes, keep, with_reference):
    rng = np.random.default_rng(classes * 10 + keep)
    for epsilon, levels in itertools.product((0.1, 0.7, 2.0, 8.0, 64.0), (4, 6)):
        check_loss(claim(epsilon, make_plan(epsilon, classes, keep, levels, with_reference)), rng)


@pytest.mark.parametrize("classes", [2, 3, 5, 10, 1000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 64.0])
def test_keep_1_meets_epsilon_with_equality_on_the_full_grid(classes, epsilon):
    plan = Isotonic(epsilon).plan(classes)
    low = isotonic.lowest_top(classes, False, plan.step)
    assert isotonic.worst_loss(plan.measure[0, 0], plan.scale, low, grain=0.0) == pytest.approx(epsilon, abs=1e-6)
    low, grid = 1 / classes, np.linspace(0, 1, 32)
    tops = np.unique(np.r_[np.clip(grid, low, 1), low, 1.0])
    rows = np.concatenate([tops[:, None], np.repeat((1 - tops[:, None]) / (classes - 1), classes - 1, axis=1)], axis=1)
    log_p = np.array([isotonic.log_probability(np.repeat(r[None], 32, 0), np.arange(32)[:, None], plan) for r in rows])
    possible = np.isfinite(log_p[0])
    worst = np.ptp(log_p[:, possible], axis=0).max()
    assert worst == pytest.approx(epsilon, abs=1e-6)


@pytest.mark.parametrize(("classes", "keep"), [(2, 1), (3, 2), (4, 3), (5, 5)])
@pytest.mark.parametrize("with_reference", [False, True])
def test_snapped_scores_lose_at_most_epsilon(classes, keep, with_reference):
    rng = np.random.default_rng(1)
    for epsilon in (0.1, 2.0, 16.0):
        check_loss(claim(epsilon, make_plan(epsilon, classes, keep, 6, with_reference, snapped=True)), rng)


@pytest.mark.parametrize("keep", [1, 2, 3, 5])
def test_snapping_never_moves_scores_further_apart_than_counted(keep):
    rng = np.random.default_rng(keep)
    plan = make_plan(1.0, 5, keep, 9, with_reference=False, snapped=True)
    rows = [np.sort(rng.dirichlet(np.full(5, a)))[::-1] for a in (0.1, 0.5, 2.0, 20.0) for _ in range(60)]
    rows += [np.r_[np.full(t, 1 / t), np.zeros(5 - t)] for t in range(1, 6)]
    _, tops = isotonic.top_scores(np.array(rows), plan)
    apart = np.abs(tops[:, None] - tops[None]).sum(axis=-1).max()
    assert apart <= plan.sensitivity + 1e-12


@pytest.mark.parametrize("classes", range(2, 9))
def test_the_sensitivity_is_the_diameter_of_the_top_entries(classes):
    extreme = np.array([np.r_[np.full(t, 1 / t), np.zeros(classes - t)] for t in range(1, classes + 1)])
    for keep in range(1, classes + 1):
        tops = extreme[:, :keep]
        diameter = np.abs(tops[:, None] - tops[None]).sum(axis=-1).max()
        assert isotonic.sensitivity(keep, classes, False, 1 / 31) == pytest.approx(diameter)


@pytest.mark.parametrize("levels", [3, 7, 32])
@pytest.mark.parametrize(("classes", "keep"), [(2, 2), (5, 2), (5, 3), (5, 5)])
def test_the_sensitivity_of_snapped_scores_counts_a_step_more(classes, keep, levels):
    step = 1 / (levels - 1)
    counted = isotonic.sensitivity(keep, classes, True, step)
    assert counted == pytest.approx(isotonic.sensitivity(keep, classes, False, step) + step, rel=1e-12)
    plan = Isotonic(1.5, keep, levels).keyed().plan(classes)
    assert plan.sensitivity == counted
    assert plan.scale == pytest.approx(1.5 / (2 * counted), rel=1e-12)


@pytest.mark.parametrize(("classes", "levels", "low"), [(2, 4, 2 / 3), (5, 6, 0.2), (3, 32, 10 / 31), (1000, 32, 0.0)])
def test_the_sensitivity_of_one_snapped_score_reaches_down_to_the_level_of_1_over_k(classes, levels, low):
    assert isotonic.sensitivity(1, classes, True, 1 / (levels - 1)) == pytest.approx(1 - low, rel=1e-12)


def test_from_3_to_256_levels_are_taken():
    for levels in (3, 256):
        mechanism = Isotonic(1.0, levels=levels)
        assert mechanism.plan(10).measure.shape == (1, 1, levels)
        assert Veil(mechanism)(np.array([0.6, 0.3, 0.1])).sum() == pytest.approx(1)
    for levels in (2, 257, 0, -3, 32.0, True, "32"):
        with pytest.raises(ValueError, match="Expected levels to be a whole number from 3 to 256, got"):
            Isotonic(1.0, levels=levels)


@pytest.mark.parametrize(("classes", "keep"), CASES)
def test_stated_probabilities_are_those_of_the_formula(classes, keep):
    rng = np.random.default_rng(5)
    for with_reference in (False, True):
        plan = make_plan(1.5, classes, keep, 5, with_reference)
        outputs = sequences(plan)
        for row in rng.dirichlet(np.full(classes, 0.7), 4):
            stated = np.exp(isotonic.log_probability(np.repeat(row[None], len(outputs), 0), outputs, plan))
            assert stated == pytest.approx(naive_probabilities(row, plan), abs=1e-12)


def test_outputs_outside_the_order_have_probability_0():
    plan = make_plan(1.0, 4, 3, 5, with_reference=False)
    row = np.array([[0.5, 0.3, 0.15, 0.05]])
    for outside in ([2, 2, 1], [3, 1, 2], [0, 0, 0], [1, 2, 0]):
        assert isotonic.log_probability(row, np.array([outside]), plan) == -np.inf


@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize(("classes", "keep"), [(2, 1), (5, 1), (3, 2), (3, 3), (5, 4)])
@pytest.mark.slow
def test_the_sampler_draws_from_the_stated_probabilities(classes, keep, with_reference):
    plan = make_plan(2.0, classes, keep, 5, with_reference)
    scores = np.random.default_rng(classes).dirichlet(np.full(classes, 0.8))
    check_sampler(claim(2.0, plan), scores, secure_uniforms(DRAWS, keep))


@pytest.mark.parametrize("with_reference", [False, True])
@pytest.mark.parametrize(("classes", "keep"), [(5, 1), (4, 2), (4, 4)])
@pytest.mark.slow
def test_the_kernel_releases_with_the_stated_probabilities(classes, keep, with_reference):
    mechanism = make_mechanism(3.0, classes, keep, 6, with_reference)
    plan = mechanism.plan(classes)
    scores = np.random.default_rng(7).dirichlet(np.full(classes, 0.8))
    outputs = sequences(plan)
    exact = naive_probabilities(scores, plan)
    order, _ = isotonic.top_scores(np.repeat(scores[None], len(outputs), 0), plan)
    released = np.round(isotonic.release(outputs, order, plan, np.dtype(np.float64)), 10)
    kinds, kind = np.unique(released, axis=0, return_inverse=True)
    probability = np.bincount(kind.ravel(), weights=exact)

    rows = np.repeat(scores[None], DRAWS, 0)
    out = np.empty_like(rows)
    assert loading.wait()
    kernel = loading.kernel(mechanism, classes)
    assert kernel is not None
    assert kernel(rows, secure_uniforms(DRAWS, keep), out) == -1
    seen, counts = np.unique(np.round(out, 10), axis=0, return_counts=True)
    where = [int(np.abs(kinds - row).sum(axis=1).argmin()) for row in seen]
    assert max(np.abs(kinds[w] - row).sum() for w, row in zip(where, seen, strict=True)) < 1e-8
    observed = np.bincount(where, weights=counts, minlength=len(kinds))
    assert chi_square(observed, probability) > 1e-6


def test_keyed_draws_follow_the_stated_probabilities():
    plan = make_plan(2.0, 3, 2, 5, with_reference=False)
    keyed = KeyedDraws(b"sixteen byte key", b"test")
    uniforms = keyed.uniforms(np.arange(DRAWS)[:, None].view(np.uint8), 2)
    check_sampler(claim(2.0, plan), np.array([0.6, 0.3, 0.1]), uniforms)


# The checks above catch planted bugs


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_an_epsilon_half_again_too_large_is_caught(keep):
    plan = make_plan(1.5 * 2.0, 4, keep, 6, with_reference=False)
    with pytest.raises(AssertionError, match="exceeds"):
        check_loss(claim(2.0, plan), np.random.default_rng(0))


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_a_lost_factor_2_is_caught(keep, monkeypatch):
    true = isotonic.sensitivity
    monkeypatch.setattr(isotonic, "sensitivity", lambda *given: true(*given) / 2)
    monkeypatch.setattr(isotonic, "calibrated_scale", lambda *given: 2 * given[3])  # 3: what is safe
    plan = make_plan(2.0, 4, keep, 6, with_reference=False)
    with pytest.raises(AssertionError, match="exceeds"):
        check_loss(claim(2.0, plan), np.random.default_rng(0))


@pytest.mark.parametrize("keep", [2, 3])
def test_a_reference_that_peeks_at_unkept_scores_is_caught(keep):
    plan = make_plan(0.1, 4, keep, 6, with_reference=True)
    skewed = make_plan(0.1, 4, keep, 6, with_reference=True)
    skewed.measure[:, 0] **= 4
    skewed.measure[:, 0] /= skewed.measure[:, 0].sum(axis=-1, keepdims=True)

    def peeking(scores, levels):
        unkept_is_large = scores[:, keep] > 0.2
        honest, other = (isotonic.log_probability(scores, levels, p) for p in (plan, skewed))
        return np.where(unkept_is_large, other, honest)

    honest = claim(0.1, plan)
    check_loss(honest, np.random.default_rng(0))
    with pytest.raises(AssertionError, match="exceeds"):
        check_loss(Claim(0.1, plan, peeking, honest.choose), np.random.default_rng(0))


@pytest.mark.parametrize("reuse", ["between rows", "between ranks"])
def test_a_reused_seed_is_caught(reuse):
    plan = make_plan(2.0, 3, 2, 5, with_reference=False)
    uniforms = secure_uniforms(DRAWS, 2)
    if reuse == "between rows":
        uniforms = np.tile(uniforms[:1000], (DRAWS // 1000, 1))
    else:
        uniforms = np.repeat(uniforms[:, :1], 2, axis=1)
    with pytest.raises(AssertionError):
        check_sampler(claim(2.0, plan), np.array([0.5, 0.3, 0.2]), uniforms)


# The exact loss between two vectors


@pytest.mark.parametrize(("classes", "keep"), CASES)
def test_exact_loss_equals_the_enumerated_one(classes, keep):
    rng = np.random.default_rng(3)
    for with_reference in (False, True):
        mechanism = make_mechanism(2.0, classes, keep, 5, with_reference)
        plan = mechanism.plan(classes)
        family = same_kept_classes(plan, rng)[:6]
        for a, b in itertools.permutations(family, 2):
            p, q = naive_probabilities(a, plan), naive_probabilities(b, plan)
            assert mechanism.loss(a, b) == pytest.approx(np.log(p / q).max(), abs=1e-9)
        losses = [mechanism.loss(a, b) for a, b in itertools.permutations(family, 2)]
        assert accounting.worst_loss(family, mechanism) == max(losses) <= 2.0 + 1e-9


def test_other_kept_classes_are_told_apart_at_once():
    mechanism = make_mechanism(1.0, 3, 1, 5, with_reference=False)
    assert mechanism.loss(np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.5, 0.2])) == np.inf
    # what is not kept does not matter
    assert mechanism.loss(np.array([0.5, 0.3, 0.2]), np.array([0.5, 0.2, 0.3])) == 0


def test_the_range_of_the_loss_is_what_zcdp_counts():
    rng = np.random.default_rng(0)
    for keep in (1, 2, 4):
        mechanism = make_mechanism(2.0, 4, keep, 6, with_reference=False)
        plan = mechanism.plan(4)
        family, outputs = same_kept_classes(plan, rng), sequences(plan)
        log_p = [isotonic.log_probability(np.repeat(r[None], len(outputs), 0), outputs, plan) for r in family]
        widest = max(np.ptp(a - b) for a, b in itertools.permutations(log_p, 2))
        assert widest <= plan.range + 1e-9
        promise = mechanism.guarantee(classes=4)
        assert promise.rho == pytest.approx(min(plan.range, 4.0) ** 2 / 8)


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_rho_covers_every_renyi_divergence_and_a_quarter_of_it_would_not(epsilon):
    # of 3 levels, 2 can be drawn for 2 classes: randomised response, the worst that ε allows
    mechanism = Isotonic(epsilon, levels=3)
    p, q = (naive_probabilities(np.array([top, 1 - top]), mechanism.plan(2)) for top in (1.0, 0.5))
    orders = 1 + np.geomspace(1e-3, 1e2, 200)
    rho = max(np.log((q * (p / q) ** order).sum()) / (order - 1) / order for order in orders)
    for promise in (mechanism.guarantee(), mechanism.guarantee(2)):
        assert promise.rho / 4 < rho <= promise.rho


@pytest.mark.parametrize("keep", [2, 3, "all"])
def test_rho_of_more_kept_classes_is_an_eighth_of_epsilon_squared_and_of_no_number_of_classes_more(keep):
    mechanism = Isotonic(2.0, keep=keep)
    assert mechanism.guarantee().rho == pytest.approx(2.0**2 / 8)
    assert [mechanism.guarantee(classes).rho for classes in (3, 10)] == pytest.approx([2.0**2 / 8] * 2)


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 8.0, 20.0])
def test_rho_of_one_kept_class_is_half_of_epsilon_squared_for_any_number_of_classes(epsilon):
    for classes in (None, 2, 10, 1000):
        for mechanism in (Isotonic(epsilon), Isotonic(epsilon).keyed()):
            assert mechanism.guarantee(classes).rho == pytest.approx(epsilon**2 / 2, rel=1e-12)


# Draws have 52 bits


def count_draws(levels_of, inputs, levels):
    """How many of the 2^52 draws give each level to each input: (inputs, levels). Levels rise with the draw."""
    low, high = np.zeros((inputs, levels), np.int64), np.full((inputs, levels), WHOLE)
    while np.any(low < high):  # how many draws give less than this level
        middle = (low + high) // 2
        below = levels_of(np.minimum(middle, WHOLE - 1) / WHOLE) < np.arange(levels)
        low, high = np.where((low < high) & below, middle + 1, low), np.where((low < high) & ~below, middle, high)
    return np.diff(low, axis=1, append=WHOLE)


def actual_loss(mechanism, classes, is_kernel):
    """The worst loss of the draws themselves, over top scores on every level and between them."""
    plan, levels = mechanism.plan(classes), mechanism.levels
    tops = np.clip(np.r_[np.linspace(0, 1, levels), np.random.default_rng(0).uniform(0, 1, 9)], 1 / classes, 1)
    rows = np.column_stack([tops, *[(1 - tops) / (classes - 1) * (1 - 1e-15)] * (classes - 1)])
    many = np.repeat(rows, levels, axis=0)
    order, values = isotonic.top_scores(many, plan)
    assert np.all(order[:, -1] == 0)
    every = np.repeat(order[:1], levels, axis=0)
    released = isotonic.release(np.arange(levels)[:, None], every, plan, np.dtype(np.float64))[:, 0]
    possible = plan.measure[0, 0] > 0
    assert np.all(np.diff(released[possible]) > 1e-6)
    borders = (released[possible][1:] + released[possible][:-1]) / 2
    assert not is_kernel or loading.wait()
    kernel, out = loading.kernel(mechanism, classes), np.empty_like(many)

    def levels_of(uniforms):
        if not is_kernel:
            return isotonic.choose(values, order[:, -1], plan, uniforms.reshape(-1, 1)).reshape(uniforms.shape)
        assert kernel(many, uniforms.reshape(-1, 1), out) == -1
        return (np.searchsorted(borders, out[:, 0]) + possible.argmax()).reshape(uniforms.shape)

    counts = count_draws(levels_of, len(rows), levels)[:, possible]
    assert np.all(counts.sum(axis=1) == WHOLE)
    if counts.min() == 0:
        return Decimal("Infinity")
    return max(Decimal(int(c.max())).ln() - Decimal(int(c.min())).ln() for c in counts.T)


@pytest.mark.parametrize("is_kernel", [False, True])
@pytest.mark.parametrize(("classes", "levels"), [(2, 32), (10, 32), (1000, 32), (10, 5)])
@pytest.mark.parametrize("epsilon", [0.01, 2.0, 8.0, 20.0, 25.0, 30.0, 33.0, 36.0, 64.0])
def test_the_actual_draws_lose_no_more_than_is_stated(epsilon, classes, levels, is_kernel):
    mechanism = Isotonic(epsilon, levels=levels)
    loss, promise = actual_loss(mechanism, classes, is_kernel), mechanism.guarantee(classes)
    assert loss <= Decimal(promise.worst_loss) <= Decimal(promise.epsilon)
    assert promise.epsilon <= mechanism.guarantee().epsilon
    assert float(loss) > 0.98 * epsilon


@pytest.mark.parametrize("epsilon", [2.0, 8.0, 20.0])
def test_a_scale_without_room_for_the_grain_is_caught(epsilon, monkeypatch):
    assert actual_loss(Isotonic(epsilon), 10, is_kernel=False) <= Decimal(epsilon)
    monkeypatch.setattr(isotonic, "GRAIN", 0.0)
    assert actual_loss(Isotonic(epsilon), 10, is_kernel=False) > Decimal(epsilon)


@pytest.mark.parametrize("epsilon", [8.0, 20.0, 25.0, 30.0, 33.0])
def test_the_worst_loss_counts_a_grain_of_2_to_the_minus_50_on_both_sides(epsilon):
    plan = Isotonic(epsilon).plan(10)
    tops = np.clip(np.linspace(0, 1, 32), 0.1, 1)
    chances = np.array([naive_probabilities(np.r_[top, np.full(9, (1 - top) / 9)], plan) for top in tops])
    by_hand = np.log((chances.max(axis=0) + 2.0**-50) / (chances.min(axis=0) - 2.0**-50)).max()
    assert plan.worst_loss == pytest.approx(by_hand, rel=1e-9, abs=0)  # the grain adds 4e-6 of it at 25, 1e-2 at 33


def test_a_chance_that_is_no_larger_than_the_grain_makes_the_loss_infinite():
    measure, flat = np.full(4, 0.25), 0.0
    assert isotonic.worst_loss(measure, flat, 0.0, grain=0.0) == 0
    assert isotonic.worst_loss(measure, flat, 0.0, grain=0.125) == pytest.approx(math.log(0.375 / 0.125))
    assert np.isfinite(isotonic.worst_loss(measure, flat, 0.0, grain=math.nextafter(0.25, 0)))
    assert isotonic.worst_loss(measure, flat, 0.0, grain=0.25) == np.inf


def test_up_to_20_epsilon_is_what_was_asked_for_and_above_it_is_larger():
    above = math.nextafter(20.0, math.inf)
    for classes in (None, 2, 10, 1000):
        for make in (Isotonic, lambda epsilon: Isotonic(epsilon).keyed()):
            assert make(20.0).guarantee(classes).epsilon == 20.0
            assert make(above).guarantee(classes).epsilon > above + 1e-7
        assert Isotonic(20.0, keep=2).guarantee(classes).epsilon == 20.0
        assert Isotonic(above, keep=2).guarantee(classes).epsilon == above
    for keep in (1, 2, "all"):
        assert "52 bits" not in str(Isotonic(20.0, keep).guarantee())
        assert "Above ε = 20 the 52 bits of a draw" in str(Isotonic(above, keep).guarantee())
    assert "too few to prove it" in str(Isotonic(above, 2).guarantee())
    assert "includes that" in str(Isotonic(above).guarantee())


def test_an_epsilon_too_large_for_52_bits_promises_nothing_and_says_so():
    for promise in (Isotonic(1e9).guarantee(), Isotonic(1e9).guarantee(10), Isotonic(36.0).guarantee(10)):
        assert promise.epsilon == promise.rho == math.inf
        assert "promises nothing" in promise.words
    assert Isotonic(1e9).guarantee(10).worst_loss == math.inf
    # without the number of classes: where e^-ε of a chance of 1/32 is the grain, 2^-45 in all
    assert isotonic.largest_loss(45 * math.log(2), 32) == math.inf
    assert isotonic.largest_loss(44 * math.log(2), 32) == pytest.approx(45 * math.log(2))
    assert isotonic.largest_loss(43 * math.log(2), 32) == pytest.approx(43 * math.log(2) + math.log(4 / 3))


def test_an_epsilon_below_the_grain_is_not_promised():
    for classes in (None, 2, 10):
        promise = Isotonic(1e-20).guarantee(classes)
        assert 2.0**-50 < promise.epsilon <= 64 * 2.0**-50 * (1 + 1e-9)
    assert Isotonic(1e-20).plan(10).scale == 0
    assert Isotonic(1e-12).guarantee(10).epsilon == Isotonic(1e-12).guarantee().epsilon == 1e-12


@pytest.mark.parametrize("epsilon", [1e3, 1e9])
def test_a_very_large_epsilon_rounds_to_the_nearest_level(epsilon):
    rows = np.array([[0.49, 0.3, 0.21], [0.9, 0.06, 0.04], [0.34, 0.33, 0.33]])
    for _ in range(20):
        nearest = np.rint(rows[:, 0] * 31) / 31
        assert Veil(epsilon)(rows)[:, 0] == pytest.approx(nearest, abs=1e-3)


def test_the_release_depends_on_levels_and_kept_classes_alone():
    plan = make_plan(2.0, 5, 2, 6, with_reference=True)
    rows = np.array([[0.5, 0.3, 0.1, 0.06, 0.04], [0.6, 0.2, 0.02, 0.08, 0.1], [0.4, 0.4, 0.0, 0.0, 0.2]])
    order, _ = isotonic.top_scores(rows, plan)
    released = isotonic.release(np.array([[4, 2]] * 3), order, plan, np.dtype(np.float64))
    assert np.array_equal(released[0], released[1])
    assert np.array_equal(released[0], released[2])


def test_a_reference_brings_the_distortion_down():
    rng = np.random.default_rng(0)
    held_out, scores = (rng.dirichlet(np.r_[np.full(5, 0.3), np.full(5, 0.002)], 3000) for _ in range(2))
    plain = np.linalg.norm(Veil(2.0, keep=2, rng=rng)(scores) - scores, axis=1).mean()
    informed = np.linalg.norm(Veil(2.0, keep=2, reference=held_out, rng=rng)(scores) - scores, axis=1).mean()
    assert informed < 0.92 * plain


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("keep", "with_reference"), [(1, False), (3, False), (3, True)])
@pytest.mark.slow
def test_not_a_bit_of_an_answer_tells_how_the_others_were_ranked(path, dtype, keep, with_reference):
    """Same kept classes and scores, same draw: the same bytes, however the other classes share the rest."""
    rng = np.random.default_rng(0)
    reference = rng.dirichlet(np.full(8, 0.3), 500) if with_reference else None
    kept = np.array([0.55, 0.2, 0.1])[:keep]  # none on the border of two cells
    rows = []
    for _ in range(200):
        rest = rng.dirichlet(np.full(8 - keep, 2.0)) * (1 - kept.sum())
        rest = np.minimum(rest, 0.9 * kept[-1])
        rest += (1 - kept.sum() - rest.sum()) / len(rest)
        rows.append(np.concatenate([kept, rest]))
    # the kept scores are the same to the last bit, in this dtype too
    scores = np.array(rows).astype(dtype)
    scores[:, :keep] = kept.astype(dtype)
    mechanism = Isotonic(2.0, keep, reference=reference)
    keyed = Veil(mechanism, secret=b"a secret of 32 bytes for a test.")
    # draws differ, and there are no more answers than levels that can be drawn: to the last bit
    answers = np.concatenate([keyed(row[None]) for row in scores])
    assert len({row.tobytes() for row in answers}) == len(
        np.unique(np.round(answers[:, :keep].astype(float), 4), axis=0)
    )
    if dtype == "float64":
        exact = scores / scores.sum(axis=1, keepdims=True)
        same = exact[(exact[:, :keep] == exact[0, :keep]).all(axis=1)]
        assert len(same) > 5
        drawn = {Veil(mechanism, rng=np.random.default_rng(1))(row).tobytes() for row in same}
        assert len(drawn) == 1
