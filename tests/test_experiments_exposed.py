"""Records that are told with certainty are found among many that are not, and a constant answer hides them."""

import numpy as np
import pytest

from experiments.frontier.exposed import ATTACKS, Crowd, leave_one_out, most_exposed
from scoreveil.audit.study.shadows import halves

RECORDS, EXPOSED = 400, 20


@pytest.fixture(scope="module")
def crowd():
    """A target and eight shadows; the first records alone get a higher score where they were trained on."""
    rng = np.random.default_rng(0)
    inside = np.concatenate([rng.random((1, RECORDS)) < 0.5, halves(8, RECORDS, seed=0)])
    odds = rng.normal(0, 0.5, inside.shape) + rng.normal(0, 1, RECORDS)
    odds[:, :EXPOSED] += 4 * inside[:, :EXPOSED]
    own = 1 / (1 + np.exp(-odds))
    return Crowd(np.stack([own, 1 - own], axis=2), inside, np.zeros(RECORDS, dtype=np.int64))


def test_a_models_shadows_are_neither_itself_nor_its_opposite(crowd):
    assert crowd.others(0).tolist() == [False, *[True] * 8]
    assert crowd.others(3).tolist() == [True, True, True, False, False, True, True, True, True]
    assert (crowd.inside[3] != crowd.inside[4]).all()


def test_the_most_exposed_records_are_found_without_the_model_under_attack(crowd):
    for model in range(9):
        assert set(most_exposed(crowd, model, EXPOSED)) == set(range(EXPOSED))


def test_exposed_records_are_told_and_the_average_hides_it(crowd):
    exposed = leave_one_out(crowd, lambda model: np.arange(EXPOSED))
    others = leave_one_out(crowd, lambda model: np.arange(EXPOSED, RECORDS))
    assert set(exposed) == set(ATTACKS)
    assert exposed["lira_online"].members + exposed["lira_online"].nonmembers == 9 * EXPOSED
    assert exposed["lira_online"].auc > 0.99
    assert all(found.auc_low < 0.5 < found.auc_high for found in others.values())


def test_a_constant_answer_tells_nothing_of_them(crowd):
    told = leave_one_out(crowd.defended(lambda scores: np.full_like(scores, 0.5)), lambda model: np.arange(EXPOSED))
    assert {found.auc for found in told.values()} == {0.5}


def test_a_crowd_of_unequal_sizes_is_refused(crowd):
    with pytest.raises(ValueError, match=r"Expected answers \(models, n, k\)"):
        Crowd(crowd.answers, crowd.inside[:, :-1], crowd.labels)
    assert len(crowd.take(slice(EXPOSED)).labels) == EXPOSED
