"""The demo: measured, quick, and what it shows holds."""

import numpy as np
import pytest

from scoreveil import demo


@pytest.fixture(scope="module")
def shown():
    told = []
    result = demo.run(told.append)
    assert told == sorted(told)
    assert told[-1] == 1
    return result


def test_the_classifier_knows_its_training_records_by_heart(shown):
    assert shown.training_accuracy == 1
    assert 0.7 < shown.test_accuracy < 0.95
    assert shown.training_records + shown.test_records + demo.REFERENCE == 1797
    assert shown.outcomes[0].attack_auc > 0.65


def test_accuracy_is_the_same_under_every_veil(shown):
    assert len(shown.outcomes) == 1 + 4 * len(demo.EPSILONS)
    assert {outcome.accuracy for outcome in shown.outcomes} == {shown.test_accuracy}
    assert {outcome.same_label for outcome in shown.outcomes} == {1.0}


def test_scores_move_less_with_more_epsilon_and_with_a_reference(shown):
    moved = {(outcome.defense, outcome.epsilon): (outcome.l1, outcome.l2) for outcome in shown.outcomes}
    assert moved[("", float("inf"))] == (0, 0)
    for defense in {name for name, _ in moved} - {""}:
        small, large = moved[defense, demo.EPSILONS[0]], moved[defense, demo.EPSILONS[-1]]
        assert small[0] > large[0] > 0
        assert small[1] > large[1] > 0
    for epsilon in demo.EPSILONS:
        assert moved["isotonic + reference", epsilon] < moved["isotonic", epsilon]
        assert moved["isotonic", epsilon] < moved["published", epsilon]


def test_isotonic_veils_of_small_epsilon_bring_the_attack_near_chance(shown):
    undefended = shown.outcomes[0].attack_auc
    for outcome in shown.outcomes[1:]:
        if outcome.defense.startswith("isotonic") and outcome.epsilon <= 0.5:
            assert outcome.attack_auc < 0.5 + (undefended - 0.5) / 3


def test_the_picture_is_of_scores_before_and_after(shown):
    picture = shown.picture
    assert picture.before.argmax() == picture.truth
    assert set(picture.after) == {outcome.defense for outcome in shown.outcomes[1:]}
    for after in picture.after.values():
        assert after.argmax() == picture.truth
        assert after.sum() == pytest.approx(1)
        assert not np.array_equal(after, picture.before)


def test_auc_counts_ties_as_half():
    assert demo._auc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1
    assert demo._auc(np.array([1.0]), np.array([1.0, 1.0])) == 0.5
    assert demo._auc(np.array([1.0, 2.0]), np.array([2.0, 3.0])) == 0.125
