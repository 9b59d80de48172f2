"""Each attack has a world in which it must win: built so that what it looks at is what tells members from others."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp
from sklearn.metrics import roc_auc_score

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks import ATTACKS, COMPARISONS
from scoreveil.audit.attacks.likelihood import Ensemble
from scoreveil.audit.attacks.nonmembers import rest_of_vector
from scoreveil.audit.data.records import Bools, Membership, Records
from scoreveil.audit.study.shadows import halves

SHIFT = 1.5  # of a member's log-odds, where those of non-members have deviation 1
OPTIMUM = float(stats.norm.cdf(SHIFT / np.sqrt(2)))  # the AUC of who knows what a non-member's would be


def reached(name: str, shadow: Membership, target: Membership) -> float:
    scored = ATTACKS[name].fit(shadow, "scores", np.random.default_rng(0))(target.records)
    return float(roc_auc_score(target.truth, scored))


# --- one shadow: attacks that learn from non-members


def with_log_odds(odds: Floats, classes: Integers, others: Floats) -> Records:
    """Scores with these log-odds of the class, which is the true one; the others share what is left."""
    own = 1 / (1 + np.exp(-odds))
    scores = np.where(np.arange(others.shape[1]) == classes[:, None], 0.0, others)
    scores *= ((1 - own) / scores.sum(axis=1))[:, None]
    scores[np.arange(len(own)), classes] = own
    return Records(scores, classes)


def classes_apart(leak: float, seed: int, n: int = 3000) -> Membership:
    """Four classes, whose non-members have log-odds of deviation 1, 1, 8 and 8: one step means little in the latter."""
    rng = np.random.default_rng(seed)

    def records(shift: float) -> Records:
        classes = rng.integers(0, 4, n)
        scale = np.where(classes < 2, 1.0, 8.0)
        odds = scale * (rng.normal(0, 1, n) + shift) - 20 * (classes % 2)
        return with_log_odds(odds, classes, np.ones((n, 4)))

    return Membership(records(leak), records(0.0))


def test_the_population_attack_wins_where_classes_differ_in_scale() -> None:
    shadow, target = classes_apart(SHIFT, 0), classes_apart(SHIFT, 1)
    found = reached("population_known", shadow, target)
    assert found == pytest.approx(OPTIMUM, abs=0.015)
    for other in ("true_confidence", "modified_entropy", "max_confidence"):
        assert reached(other, shadow, target) < found - 0.015


def rest_tells(leak: float, seed: int, n: int = 4000) -> Membership:
    """How hard a record is can be seen from how the other classes share the rest; the true class is the top one."""
    rng = np.random.default_rng(seed)

    def records(shift: float) -> Records:
        classes, hard = rng.integers(0, 4, n), rng.uniform(0, 1, n)
        others = np.ones((n, 4)) + 50 * hard[:, None] * (np.arange(4) == (classes[:, None] + 1) % 4)
        return with_log_odds(30 - 20 * hard + rng.normal(0, 1, n) + shift, classes, others)

    return Membership(records(leak), records(0.0))


@pytest.mark.parametrize("name", ["quantile", "quantile_known"])
def test_quantiles_win_where_the_shadow_is_not_trained_as_the_target_is(name: str) -> None:
    shadow, target = rest_tells(0.0, 0), rest_tells(SHIFT, 1)  # a shadow that has learned nothing by heart
    found = reached(name, shadow, target)
    assert found == pytest.approx(OPTIMUM, abs=0.03)
    for other in ("random_forest_known", "gradient_boosting_known", "true_confidence", "population_known"):
        assert reached(other, shadow, target) < found - 0.1


def test_quantiles_are_told_nothing_of_the_score_itself() -> None:
    rng = np.random.default_rng(0)
    classes, others = rng.integers(0, 5, 300), rng.dirichlet(np.ones(5), 300)
    given = [rest_of_vector(with_log_odds(odds, classes, others), classes) for odds in rng.normal(0, 3, (2, 300))]
    np.testing.assert_allclose(*given, rtol=1e-4, atol=1e-4)
    assert not np.allclose(given[0], rest_of_vector(with_log_odds(rng.normal(0, 3, 300), classes, others**2), classes))


def test_classes_that_the_shadow_hardly_has_are_measured_against_all() -> None:
    shadow, target = classes_apart(SHIFT, 0), classes_apart(SHIFT, 1)
    few = Membership(shadow.members, shadow.nonmembers.take(shadow.nonmembers.labels > 0))  # no non-member of class 0
    scored = ATTACKS["population_known"].fit(few, "scores", np.random.default_rng(0))(target.records)
    assert np.isfinite(scored).all()
    assert roc_auc_score(target.truth, scored) > 0.65


# --- many shadows


def two_classes(odds: Floats, truth: Integers) -> Floats:
    own = 1 / (1 + np.exp(-odds))
    return np.asarray(np.where(np.arange(2) == truth[:, None], own[..., None], 1 - own[..., None]))


World = tuple[Records, Ensemble, Bools]


def world(confidence: Floats, truth: Integers, inside: Bools) -> World:
    """From the scores of the target (first) and its shadows, and who was inside."""
    return Records(confidence[0], truth), Ensemble(confidence[1:], inside[1:]), inside[0]


def models(shadows: int, n: int, rng: np.random.Generator) -> Bools:
    """Who is inside the target, then inside each shadow."""
    return np.vstack([rng.random(n) < 0.5, halves(shadows, n, seed=int(rng.integers(1000)))])


def compared(name: str, target: Records, ensemble: Ensemble, member: Bools) -> float:
    return float(roc_auc_score(member, COMPARISONS[name].compare(target, ensemble)))


def loss_world(factor: float, shift: float, noise: float, shadows: int = 16, n: int = 2000) -> World:
    """A member's loss is `factor` times what it would be, less `shift`; the noise grows as the loss does if there is a
    factor."""
    rng = np.random.default_rng(5)
    truth, hard, inside = rng.integers(0, 10, n), rng.uniform(8, 20, n), models(shadows, n, rng)
    expected = np.where(inside, factor * hard, hard)
    spread = noise * (expected if factor < 1 else 1.0)
    loss = np.maximum(expected - shift * inside + spread * rng.normal(0, 1, inside.shape), 0.0)
    own = np.exp(-loss)[..., None]
    return world(np.where(np.arange(10) == truth[:, None], own, (1 - own) / 9), truth, inside)


def test_calibrated_loss_wins_where_members_gain_the_same_however_hard_they_are() -> None:
    target, ensemble, member = loss_world(1.0, SHIFT, 1.0)
    found = compared("calibrated_loss", target, ensemble, member)
    assert found == pytest.approx(OPTIMUM, abs=0.03)
    plain = np.log(target.scores[np.arange(len(target)), target.true_labels])
    assert roc_auc_score(member, plain) < found - 0.15
    assert compared("base_offline", target, ensemble, member) < found - 0.15  # it expects more of hard members


def test_base_offline_wins_where_a_members_loss_is_a_third() -> None:
    target, ensemble, member = loss_world(1 / 3, 0.0, 0.3)
    found = compared("base_offline", target, ensemble, member)
    assert found > 0.97
    for other in ("calibrated_loss", "lira_offline"):  # the others without a shadow that saw the record
        assert compared(other, target, ensemble, member) < found - 0.015


def test_base_online_sorts_as_rmia_does_without_its_ties() -> None:
    target, ensemble, member = loss_world(0.7, 0.0, 0.1)
    few = target.take(slice(50)), Ensemble(ensemble.scores[:, :50], ensemble.inside[:, :50])
    base = COMPARISONS["base_online"].compare(target, ensemble)
    rmia = COMPARISONS["rmia_online"].compare(target, ensemble, *few)
    order = np.argsort(base)
    assert np.all(np.diff(rmia[order]) >= 0)
    assert len(np.unique(rmia)) <= 51 < len(np.unique(base))
    assert roc_auc_score(member, base) > 0.7


def test_losses_beside_those_of_shadows_equal_their_definitions() -> None:
    target, ensemble, _ = loss_world(0.7, 0.0, 0.1, n=20)
    found = {name: COMPARISONS[name].compare(target, ensemble) for name in COMPARISONS if not name.startswith("rmia")}
    for i, label in enumerate(target.true_labels):
        own, shadows = target.scores[i, label], ensemble.scores[:, i, label]
        inside, outside = (shadows[ensemble.inside[:, i] == side] for side in (True, False))
        base = np.log(own / ((inside.mean() + outside.mean()) / 2))
        assert found["base_online"][i] - 0.5 == pytest.approx(base)
        assert found["base_offline"][i] - 0.5 == pytest.approx(np.log(own) - np.log(outside.mean()) / 3)
        assert found["calibrated_loss"][i] - 0.5 == pytest.approx(np.log(own) - np.log(outside).mean())


def test_proxies_win_where_no_shadow_was_trained_on_the_records_under_attack() -> None:
    """Members of one class rise, those of the other sink: who tests against non-members alone does not see it."""
    rng = np.random.default_rng(1)
    n, shadows = 2000, 16
    truth, hard, inside = rng.integers(0, 2, n), rng.normal(0, 3, n), models(shadows, n, rng)
    attacked = np.arange(n) < n // 2
    inside[1:, attacked] = False  # the others are the attacker's own
    shift = np.where(truth == 0, 2.0, -SHIFT)
    odds = hard + shift * inside + rng.normal(0, 1, inside.shape)
    target, ensemble, member = world(two_classes(odds, truth), truth, inside)
    best = roc_auc_score(member[attacked], (shift * (odds[0] - hard - shift / 2))[attacked])
    found = roc_auc_score(member[attacked], COMPARISONS["pmia"].compare(target, ensemble)[attacked])
    assert found == pytest.approx(best, abs=0.04)
    for other in ("lira_offline", "calibrated_loss", "base_offline"):
        assert roc_auc_score(member[attacked], COMPARISONS[other].compare(target, ensemble)[attacked]) < found - 0.2
    with pytest.raises(ValueError, match="inside some shadow"):
        COMPARISONS["lira_online"].compare(target, ensemble)


def test_a_record_without_proxies_is_not_judged() -> None:
    target, ensemble, _ = loss_world(1.0, SHIFT, 1.0, n=30)
    labels = np.where(np.arange(30) == 7, 9, 3)
    scored = COMPARISONS["pmia"].compare(Records(target.scores, labels), ensemble)
    assert scored[7] == 0.5
    assert (np.delete(scored, 7) != 0.5).all()


def test_proxies_do_not_tell_where_a_record_stands_among_equals() -> None:
    """One answer for all, except that a shadow gives another one to a few that stand near each other."""
    n, row = 600, np.array([0.8, 0.2])
    ensemble = Ensemble(np.tile(row, (6, n, 1)), halves(6, n, seed=0))
    few = np.arange(40, 60)
    few = few[ensemble.inside[0, few]]
    ensemble.scores[0, few] = row[::-1]
    said = COMPARISONS["pmia"].compare(Records(np.tile(row, (n, 1)), np.zeros(n, dtype=np.int64)), ensemble)
    touched = np.flatnonzero(~np.isclose(said, np.median(said)))
    assert len(touched) > len(few)
    assert np.ptp(touched) > n / 2  # their proxies are anywhere, not beside them


def twins(shadows: int, of_twin: float, n: int = 2000) -> tuple[World, float]:
    """Each record has a near-duplicate, whose membership moves its score by so much; and the best AUC there is."""
    rng = np.random.default_rng(2)
    truth, hard, inside = rng.integers(0, 2, n), rng.normal(0, 3, n), models(shadows, n, rng)
    twin, of_own = np.arange(n) ^ 1, 2.0
    odds = hard + of_own * inside + of_twin * inside[:, twin] + rng.normal(0, 1, inside.shape)
    seen = odds[0] - hard
    both = [
        [stats.norm.logpdf(seen, of_own * x + of_twin * z) + stats.norm.logpdf(seen[twin], of_own * z + of_twin * x)
         for z in (0, 1)]
        for x in (0, 1)
    ]  # fmt: skip
    without, within = logsumexp(both, axis=1)
    found = world(two_classes(odds, truth), truth, inside)
    return found, float(roc_auc_score(found[2], within - without))


def test_the_cascade_wins_where_memberships_depend_on_each_other() -> None:
    (target, ensemble, member), best = twins(64, 4.0)
    found = compared("cmia", target, ensemble, member)
    assert found == pytest.approx(best, abs=0.01)
    for other in ("lira_online", "lira_offline", "pmia", "base_online", "calibrated_loss"):
        assert compared(other, target, ensemble, member) < found - 0.2


def test_without_companions_the_cascade_is_lira() -> None:
    (target, ensemble, _), _ = twins(32, 0.0, 1000)
    cascade, lira = (COMPARISONS[name].compare(target, ensemble) for name in ("cmia", "lira_online"))
    assert np.isclose(cascade, lira).mean() > 0.97  # one in a hundred has a companion by chance


# --- every attack from many shadows


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_do_not_depend_on_the_order_of_the_records(name: str) -> None:
    (target, ensemble, _), _ = twins(32, 4.0, 400)
    order = np.random.default_rng(0).permutation(400)
    moved = target.take(order), Ensemble(ensemble.scores[:, order], ensemble.inside[:, order])
    population = (target, ensemble) if COMPARISONS[name].population else ()
    compare = COMPARISONS[name].compare
    found = compare(target, ensemble, *population)
    np.testing.assert_allclose(compare(*moved, *population), found[order], rtol=1e-6, atol=1e-6)
    assert len(np.unique(found)) > 100


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_say_nothing_of_constant_scores_and_stay_finite_on_certain_ones(name: str) -> None:
    rng = np.random.default_rng(0)
    labels, inside = rng.integers(0, 3, 200), models(8, 200, rng)
    for scores in (np.full((9, 200, 3), 1 / 3), np.eye(3)[rng.integers(0, 3, (9, 200))]):
        target, ensemble, member = world(scores, labels, inside)
        population = (target, ensemble) if COMPARISONS[name].population else ()
        found = COMPARISONS[name].compare(target, ensemble, *population)
        assert np.isfinite(found).all()
        if scores.max() < 1:
            assert roc_auc_score(member, found) == 0.5
