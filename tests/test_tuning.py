"""Choosing ε: the paper's ε* and its properties where they hold and where they do not, the τ policy, calibration."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from scoreveil import Veil
from scoreveil.mechanisms.published import Published
from scoreveil.tuning import TauPolicy, calibrate, distances, epsilon_star, order_kept, tau_epsilons, tau_release

often = settings(max_examples=100, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**32 - 1)
FORMS = ("kl", "ratio", "top")


def phase_two(modified: np.ndarray, epsilon: Any) -> np.ndarray:
    """Equation 4, written here once more."""
    exponents = np.asarray(epsilon)[..., None] * modified / 2
    weights = np.exp(exponents - exponents.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def ascending(n: int, k: int, seed: int, concentration: float = 1.0) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).dirichlet(np.full(k, concentration), size=n), axis=1)


# --- ε*


@often
@given(seed=seeds, epsilon=st.floats(-2, 1.5).map(lambda e: 10.0**e), k=st.integers(2, 10))
def test_all_forms_find_an_exact_epsilon_star(seed: int, epsilon: float, k: int) -> None:
    modified = ascending(4, k, seed)
    modified += np.linspace(0, 0.2, k)  # apart, so that the root is well determined
    scores = phase_two(modified, np.full(4, epsilon))
    for form in FORMS:
        np.testing.assert_allclose(epsilon_star(scores, modified, form=form), epsilon, rtol=1e-6)


@often
@given(y=st.floats(0.501, 0.9999), low=st.floats(0, 0.5), gap=st.floats(0.01, 0.5))
def test_the_three_forms_agree_for_two_classes(y: float, low: float, gap: float) -> None:
    scores, modified = np.array([[1 - y, y]]), np.array([[low, low + gap]])
    expected = 2 * np.log(y / (1 - y)) / (modified[0, 1] - modified[0, 0])
    for form in FORMS:
        np.testing.assert_allclose(epsilon_star(scores, modified, form=form), expected, rtol=1e-6)


def divergence(scores: np.ndarray, modified: np.ndarray, epsilon: float) -> float:
    return float((scores * np.log(scores / phase_two(modified, epsilon))).sum())


@often
@given(seed=seeds, k=st.integers(3, 10))
def test_the_kl_form_minimises_the_divergence(seed: int, k: int) -> None:
    scores, modified = ascending(1, k, seed)[0], ascending(1, k, seed + 1)[0]
    found = float(epsilon_star(scores[None], modified[None])[0])
    best = optimize.minimize_scalar(
        lambda e: divergence(scores, modified, e), bounds=(0, max(100.0, 3 * found)), method="bounded"
    )
    assert divergence(scores, modified, found) <= best.fun + 1e-10
    for epsilon in np.linspace(0, 3 * found + 1, 200):
        assert divergence(scores, modified, found) <= divergence(scores, modified, float(epsilon)) + 1e-10


@often
@given(seed=seeds, k=st.integers(3, 10))
def test_each_form_solves_its_own_equation(seed: int, k: int) -> None:
    scores, modified = ascending(5, k, seed), ascending(5, k, seed + 1)
    closest = phase_two(modified, epsilon_star(scores, modified, form="kl"))
    np.testing.assert_allclose((closest * modified).sum(axis=1), (scores * modified).sum(axis=1), atol=1e-8)
    top = phase_two(modified, epsilon_star(scores, modified, form="top"))
    np.testing.assert_allclose(top.max(axis=1), scores.max(axis=1), atol=1e-8)
    ratio = 2 * np.log(scores[:, -1] / scores[:, 0]) / (modified[:, -1] - modified[:, 0])
    np.testing.assert_allclose(epsilon_star(scores, modified, form="ratio"), ratio, rtol=1e-9)


def test_the_default_form_is_kl() -> None:
    scores, modified = ascending(5, 6, 0), ascending(5, 6, 1)
    np.testing.assert_array_equal(epsilon_star(scores, modified), epsilon_star(scores, modified, form="kl"))
    assert not np.allclose(epsilon_star(scores, modified), epsilon_star(scores, modified, form="ratio"), rtol=1e-3)


def test_rows_without_a_positive_root_get_the_limit() -> None:
    uniform, apart = np.array([[0.5, 0.5]]), np.array([[0.2, 0.8]])
    for form in FORMS:
        assert epsilon_star(uniform, apart, form=form)[0] == pytest.approx(0, abs=1e-5)
        assert epsilon_star(np.array([[0.0, 1.0]]), apart, form=form)[0] == np.inf


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match=r"(?i)expected form .*kl.*ratio.*top.*got"):
        epsilon_star(np.array([[0.2, 0.8]]), np.array([[0.2, 0.8]]), form="other")


# --- the paper's properties


@often
@given(
    seed=seeds,
    k=st.integers(2, 8),
    star=st.floats(0.5, 10),
    epsilons=st.tuples(st.floats(0.05, 30), st.floats(0.05, 30)).filter(lambda e: abs(e[0] - e[1]) > 1e-3),
)
def test_properties_1_to_4_hold_where_an_exact_epsilon_star_exists(
    seed: int, k: int, star: float, epsilons: tuple[float, float]
) -> None:
    modified = ascending(1, k, seed)[0] + np.linspace(0, 0.3, k)
    scores = phase_two(modified, star)
    assert float(epsilon_star(scores[None], modified[None])[0]) == pytest.approx(star, rel=1e-6)
    for epsilon in epsilons:
        z = phase_two(modified, epsilon)
        assert (np.diff(z) > 0).all()  # Property 1
        if abs(epsilon - star) > 1e-6:
            grown = epsilon > star
            assert ((z[1:] / z[:-1] > scores[1:] / scores[:-1]) == grown).all()  # Property 2
            assert (z[-1] > scores[-1]) == grown  # Property 3
            assert (z[0] < scores[0]) == grown
    near, far = sorted(epsilons, key=lambda e: abs(e - star))
    if (near - star) * (far - star) > 0:  # Property 4: on one side of ε*
        away = [float(np.abs(phase_two(modified, e) - scores).sum()) for e in (near, far)]
        assert away[0] <= away[1] + 1e-12


def test_property_4_fails_where_no_exact_epsilon_star_exists() -> None:
    scores, modified = np.array([0.157, 0.268, 0.574]), np.array([0.043, 0.380, 0.421])
    scores = scores / scores.sum()

    def away(epsilon: float) -> float:
        return float(np.abs(phase_two(modified, epsilon) - scores).sum())

    for form in FORMS:
        star = float(epsilon_star(scores[None], modified[None], form=form)[0])
        steps = np.linspace(0, star, 2000)[1:-1]
        below, above = [away(star - s) for s in steps], [away(star + s) for s in steps]
        # moving away from ε* brings z nearer to y somewhere, on one side or the other
        assert min(np.diff(below).min(), np.diff(above).min()) < -1e-6, form


def test_the_three_forms_disagree_on_the_counterexample() -> None:
    scores, modified = np.array([[0.157, 0.268, 0.574]]), np.array([[0.043, 0.380, 0.421]])
    scores = scores / scores.sum()
    found = [float(epsilon_star(scores, modified, form=form)[0]) for form in FORMS]
    assert max(found) - min(found) > 0.5


# --- τ


POLICIES = [(0.6, 0.3, "l1"), (0.5, 0.05, "l1"), (0.7, 1.2, "l1"), (0.6, 0.6, "top"), (0.45, 0.9, "top")]


def closeness(scores: np.ndarray, modified: np.ndarray, epsilons: np.ndarray, policy: TauPolicy) -> np.ndarray:
    z = phase_two(modified, epsilons)
    reached = np.abs(z - scores).sum(axis=-1) if policy.measure == "l1" else z.max(axis=-1)
    return np.abs(reached - policy.target)


@pytest.mark.parametrize(("tau", "target", "measure"), POLICIES)
@pytest.mark.parametrize("k", [2, 3, 8])
def test_confident_rows_are_released_less_confident_and_the_others_more(
    tau: float, target: float, measure: Any, k: int
) -> None:
    scores = np.vstack([ascending(100, k, 3), ascending(100, k, 4, concentration=0.3)])
    modified = scores * 0.9 + np.linspace(0, 0.05, k)
    confident = scores.max(axis=1) > tau
    found = tau_epsilons(scores, modified, TauPolicy(tau, target, measure))
    star = epsilon_star(scores, modified, form="top")
    assert found.shape == (200,)
    assert (found > 0).all()
    assert np.isfinite(found).all()
    assert confident.any()
    assert k == 2 or not confident.all()  # of two classes one is always above 0.5
    # on their side of ε*, which is itself only known up to rounding
    assert (found[confident] <= star[confident] * (1 + 1e-9)).all()
    assert (found[~confident] >= star[~confident] * (1 - 1e-9)).all()
    top = phase_two(modified, found).max(axis=1)
    assert (top[confident] <= scores.max(axis=1)[confident] + 1e-9).all()
    assert (top[~confident] >= scores.max(axis=1)[~confident] - 1e-9).all()


@pytest.mark.parametrize(("tau", "target", "measure"), POLICIES)
@pytest.mark.parametrize("k", [2, 3, 8])
def test_the_target_is_met_where_it_can_be_and_approached_where_not(
    tau: float, target: float, measure: Any, k: int
) -> None:
    scores, modified = ascending(60, k, 5), ascending(60, k, 5) * 0.9 + np.linspace(0, 0.05, k)
    policy = TauPolicy(tau, target, measure)
    found = tau_epsilons(scores, modified, policy)
    star = epsilon_star(scores, modified, form="top")
    reached = closeness(scores, modified, found, policy)
    for i in range(60):
        if scores[i].max() > tau:
            side = star[i] * np.linspace(0, 1, 4001)[1:-1]
        else:
            side = star[i] + np.concatenate([np.linspace(0, 60, 4001)[1:], np.geomspace(60, 1e5, 200)])
        others = closeness(np.broadcast_to(scores[i], (len(side), k)), modified[i], side, policy)
        # no ε on that side does better; a grid that brackets a root shows that it can be met exactly
        assert reached[i] <= others.min() + 1e-6


def test_the_order_is_kept_under_the_policy() -> None:
    scores = np.random.default_rng(0).dirichlet(np.full(5, 0.8), size=300)
    for policy in (TauPolicy(0.6, 0.3), TauPolicy(0.5, 0.6, "top")):
        released = tau_release(scores, Published(1.0), policy, rng=np.random.default_rng(1))
        assert released.shape == scores.shape
        np.testing.assert_allclose(released.sum(axis=1), 1, atol=1e-9)
        order = np.argsort(scores, axis=1)
        assert (np.diff(np.take_along_axis(released, order, 1), axis=1) > 0).all()
        again = tau_release(scores, Published(1.0), policy, rng=np.random.default_rng(1))
        np.testing.assert_array_equal(released, again)
        assert not np.array_equal(released, tau_release(scores, Published(1.0), policy))


def test_a_released_row_meets_the_target_where_it_can() -> None:
    scores = np.random.default_rng(0).dirichlet(np.full(5, 0.8), size=500)
    released = tau_release(scores, Published(1.0), TauPolicy(0.6, 0.5, "top"), rng=np.random.default_rng(2))
    top, before = released.max(axis=1), scores.max(axis=1)
    # from above 0.6 down to 0.5, from below 0.5 up to it: reachable for all but those between 0.5 and 0.6
    reachable = (before > 0.6) | (before < 0.5)
    assert reachable.sum() > 300
    np.testing.assert_allclose(top[reachable], 0.5, atol=1e-6)
    np.testing.assert_allclose(top[~reachable], before[~reachable], atol=1e-6)


@pytest.mark.parametrize(
    "arguments",
    [
        {"tau": 0, "target": 0.1},
        {"tau": 1, "target": 0.1},
        {"tau": -1, "target": 0.1},
        {"tau": float("nan"), "target": 0.1},
        {"tau": 0.5, "target": 0},
        {"tau": 0.5, "target": -1},
        {"tau": 0.5, "target": 2.5},
        {"tau": 0.5, "target": float("nan")},
        {"tau": 0.5, "target": 1.5, "measure": "top"},
        {"tau": 0.5, "target": 0.1, "measure": "other"},
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*got"):
        TauPolicy(**arguments)


# --- distances and calibration


def test_distances_are_the_norms_of_the_differences() -> None:
    z, y = np.array([[0.2, 0.8], [1.0, 0.0]]), np.array([[0.5, 0.5], [0.0, 1.0]])
    np.testing.assert_allclose(distances(z, y, norm="l1"), [0.6, 2.0])
    np.testing.assert_allclose(distances(z, y, norm="l2"), [np.sqrt(0.18), np.sqrt(2)])
    np.testing.assert_array_equal(distances(z, y), distances(z, y, norm="l2"))


def veils(seed: int) -> Any:
    """A defense per ε, reproducible and with fresh draws at every ε."""
    generator = np.random.default_rng(seed)
    return lambda epsilon: Veil(epsilon, rng=generator)


def fresh_distortion(scores: np.ndarray, epsilon: float, norm: Any, seed: int) -> float:
    defense = veils(seed)
    return float(np.mean([distances(defense(epsilon)(scores), scores, norm=norm).mean() for _ in range(8)]))


@pytest.fixture(scope="module")
def public() -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.full(5, 0.3), size=6000)


@pytest.mark.parametrize(("wish", "norm"), [(0.2, "l2"), (0.26, "l2"), (0.4, "l1")])
def test_the_epsilon_found_meets_the_wish_on_fresh_draws_and_a_smaller_one_does_not(
    public: np.ndarray, wish: float, norm: Any
) -> None:
    found = calibrate(public, distortion=wish, norm=norm, defense=veils(1))
    assert found.low <= found.epsilon <= found.high
    assert found.distortion_low <= found.distortion <= found.distortion_high
    assert found.norm == norm
    assert found.rows == len(public)
    noise = found.distortion_high - found.distortion_low
    assert abs(fresh_distortion(public, found.epsilon, norm, seed=2) - wish) < noise
    assert fresh_distortion(public, found.high, norm, seed=3) <= wish + noise / 10
    assert fresh_distortion(public, 0.9 * found.low, norm, seed=4) > wish


def test_a_wish_that_every_epsilon_meets_takes_the_smallest(public: np.ndarray) -> None:
    found = calibrate(public, distortion=1.9, norm="l1", defense=veils(1))
    assert found.epsilon < 1e-3
    assert found.low <= found.epsilon <= found.high


def test_a_larger_wish_needs_a_smaller_epsilon(public: np.ndarray) -> None:
    found = [calibrate(public, distortion=wish, defense=veils(1)).epsilon for wish in (0.2, 0.24, 0.3)]
    assert found[0] > found[1] > found[2]


def test_more_confidence_widens_the_interval(public: np.ndarray) -> None:
    narrow, wide = (calibrate(public, distortion=0.2, defense=veils(1), confidence=c) for c in (0.5, 0.999))
    assert wide.high / wide.low > narrow.high / narrow.low


def test_an_impossible_wish_is_refused_saying_how_near_one_can_get(public: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*got") as caught:
        calibrate(public, distortion=0.01, defense=veils(1))
    nearest = fresh_distortion(public, 2.0**20, "l2", seed=5)
    said = [float(number) for number in re.findall(r"\d+\.\d+", str(caught.value))]
    assert any(abs(number - nearest) < 0.01 for number in said)


def test_calibration_takes_any_defense(public: np.ndarray) -> None:
    found = calibrate(
        public, distortion=0.5, defense=lambda e: Veil(e, "published", rng=np.random.default_rng(round(e * 1e6)))
    )
    released = Veil(found.epsilon, "published")(public)
    assert abs(distances(released, public).mean() - 0.5) < 0.01


@pytest.mark.parametrize("wish", [0, -1, float("nan")])
def test_a_wish_that_is_not_positive_is_refused(public: np.ndarray, wish: float) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*distortion.*got"):
        calibrate(public, distortion=wish)


def test_scores_that_cannot_be_calibrated_on_are_refused(public: np.ndarray) -> None:
    for bad in (public[:0], public[:1], public[0, :1]):
        with pytest.raises(ValueError, match=r"(?i)expected .*got"):
            calibrate(bad, distortion=0.2)
    with pytest.raises(ValueError, match="Row 0: the scores sum to more than 1"):
        calibrate(public * 2, distortion=0.2)
    with pytest.raises(ValueError, match="Row 0, column 0: a score is NaN"):
        calibrate(np.full((3, 3), np.nan), distortion=0.2)
    with pytest.raises(ValueError, match=r"(?i)expected norm .*l1.*l2.*got"):
        calibrate(public, distortion=0.2, norm="l3")
    for confidence in (0, 1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"(?i)expected .*confidence.*got"):
            calibrate(public, distortion=0.2, confidence=confidence)


# --- what is left of the confidence


def test_the_order_of_confidences_is_kept_wholly_not_at_all_or_turned_around() -> None:
    rng = np.random.default_rng(0)
    top = np.sort(rng.uniform(0.5, 1, 500))
    scores = np.stack([top, 1 - top], axis=1)
    assert order_kept(scores, scores, rng) == 1
    assert order_kept(scores, np.full_like(scores, 0.5), rng) == 0.5
    assert order_kept(scores, scores[::-1], rng) == 0
    assert order_kept(scores, scores[rng.permutation(500)], rng) == pytest.approx(0.5, abs=0.05)
    assert order_kept(np.full_like(scores, 0.5), scores, rng) == 0.5
    # two levels, in order: pairs within a level tie
    levels = np.repeat([[0.6, 0.4], [0.9, 0.1]], 250, axis=0)
    assert order_kept(scores, levels, rng) == pytest.approx(0.75, abs=0.01)
