"""What a veil costs: four ways to answer on records that were not fitted on, and what follows in words."""

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from scoreveil.files.records import Scored
from scoreveil.fitting import cost as measures
from scoreveil.fitting import metrics
from scoreveil.fitting.cost import WAYS, cost


def draw(lead: float, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of a model that is the surer the larger the lead."""
    labels = rng.integers(0, 3, count)
    logits = 1.5 * rng.normal(size=(count, 3))
    logits[np.arange(count), labels] += 2 + lead + rng.normal(size=count)
    scores = np.exp(logits)
    return scores / scores.sum(axis=1, keepdims=True), labels


def report(count: int, epsilon: float | None = 8.0, same: bool = False) -> measures.Cost:
    rng = np.random.default_rng(1)
    others, members = draw(0.0, count, rng), draw(0.0 if same else 1.5, count, rng)
    return cost(*others, *members, epsilon=epsilon, advantage=0.1, rng=rng)


def test_the_report_measures_four_ways_with_intervals():
    found = report(3000)
    for name in ("useful", "aurc", "nll", "brier", "ece", "leak"):
        for way, each in getattr(found, name).items():
            assert way in WAYS
            assert each.low <= each.value <= each.high
    assert found.useful["raw"].value > found.useful["veiled"].value > found.useful["label"].value
    assert found.useful["label"].value == 0.5
    assert found.nll["tempered"].value <= found.nll["raw"].value + 1e-3
    assert found.nll["veiled"].value < found.nll["label"].value
    assert found.leak["raw"].value > 0.6 > found.leak["veiled"].value
    assert found.ece["veiled"].value < 0.05
    assert "useful" in str(found)


def test_measures_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, labels = rng.dirichlet(np.ones(4), 300), rng.integers(0, 4, 300)
    right = rng.random(300) < 0.6
    top = np.round(scores.max(axis=1), 1)
    assert metrics.auroc(top[right], top[~right]) == pytest.approx(roc_auc_score(right, top))
    assert metrics.log_loss(scores, labels).mean() == pytest.approx(log_loss(labels, scores))
    assert metrics.brier(scores, labels) == pytest.approx(((scores - np.eye(4)[labels]) ** 2).sum(axis=1))


def test_records_of_the_same_confidence_stand_in_one_group():
    confidence = np.repeat([0.5, 0.9], [180, 400])
    right = np.arange(580) % 2 == 0
    groups = metrics.reliability(confidence, right)
    assert [group.records for group in groups] == [180, 400]
    assert groups[1].announced == pytest.approx(0.9)
    assert groups[1].right.value == 0.5
    assert len(metrics.reliability(np.ones(500), right[:500])) == 1


def test_aurc_does_not_depend_on_the_order_of_ties():
    rng = np.random.default_rng(0)
    confidence, right = rng.integers(0, 5, 200) / 5, rng.random(200) < 0.7
    shuffled = rng.permutation(200)
    assert metrics.aurc(confidence, right) == pytest.approx(metrics.aurc(confidence[shuffled], right[shuffled]))
    assert metrics.aurc(np.ones(200), right) == pytest.approx(1 - right.mean())


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="without nonmember_labels"):
        cost(np.full((50, 2), 0.5), None)
    with pytest.raises(ValueError, match="at least 10 records"):
        cost(np.full((5, 2), 0.5), np.zeros(5, dtype=int))


def test_a_constant_veil_tells_nothing_though_each_fold_has_a_constant_of_its_own():
    found = report(40, epsilon=0.01)
    assert found.useful["veiled"].value == 0.5
    assert found.leak["veiled"].value == 0.5


def test_temperature_scaling_is_no_worse_for_scores_of_0():
    """As forests have them: a floor is found, so that the baseline is what it can be."""
    rng = np.random.default_rng(0)
    votes = rng.multinomial(10, rng.dirichlet(np.full(5, 0.6), 2000).mean(axis=0), 2000) / 10
    labels = np.array([rng.choice(5, p=0.7 * row + 0.06) for row in votes])
    scaled = measures.tempered(measures.Scored(votes, labels))(votes)
    assert metrics.log_loss(scaled, labels).mean() < metrics.log_loss(np.maximum(votes, 0.01), labels).mean()
    assert metrics.log_loss(scaled, labels).mean() < 1.6


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_label_stays_where_it_is_seldom_right(classes):
    scores = np.random.default_rng(0).dirichlet(np.ones(classes), 50)
    wrong = (scores.argmax(axis=1) + 1) % classes
    answer = measures.label_with_constant_confidence(Scored(scores, wrong))
    assert (answer(scores).argmax(axis=1) == scores.argmax(axis=1)).all()
    assert np.ptp(answer(scores).max(axis=1)) == 0
