"""Inferring a column: found where a model memorises, not found where it knows nothing of it."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.defenses import Given
from scoreveil.audit.study.attributes import Column, infer_column
from scoreveil.audit.study.results import from_json, to_json
from scoreveil.audit.study.run import grid
from synthetic_study import make_study

N = 400
SENSITIVE = Column(2, "income")


def world(classes, seed=0):
    """Members, non-members and public records: six columns, the third with three values."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3 * N, 6))
    x[:, 2] = rng.integers(0, 3, 3 * N)
    y = classes(x, rng)
    return [(x[i * N : (i + 1) * N], y[i * N : (i + 1) * N]) for i in range(3)]


def by_chance(x, rng):
    return rng.integers(0, 4, len(x))


def infer(predict, data, defenses, column=SENSITIVE, epsilons=(1.0,)):
    records = [Records(np.asarray(predict(x)), y) for x, y in (data[0], data[2])]
    settings = grid(defenses, epsilons)
    found = infer_column(
        predict, *data, column, settings, lambda epsilon: Given(Membership(*records), records[1], 0, epsilon)
    )
    assert len(found) == 4 * len(settings)
    return {(r.defense, r.side, r.sees_answer): r for r in found}


@pytest.fixture(scope="module")
def memorised():
    """A forest that knows its training set by heart; classes are random, so there is nothing else to know."""
    data = world(by_chance)
    model = RandomForestClassifier(30, random_state=0).fit(*data[0])
    return model.predict_proba, data


def test_what_a_model_memorised_is_found_of_members_alone(memorised):
    found = infer(*memorised, ["regions", "label_only"])
    members, others = (found["none", side, False] for side in ("members", "nonmembers"))
    assert members.success_low > 0.8
    assert others.gain_low < 0 < others.gain_high
    assert members.imputation < 0.45
    # who has the answer about the true record looks which value gives the same one: no training is needed for that
    assert found["none", "nonmembers", True].success_low > 0.9
    # a veil and the label alone leave nothing of what was memorised
    for defense in ("regions", "label_only"):
        assert found[defense, "members", False].gain_high < 0.1


def test_a_column_that_the_model_never_saw_is_not_found():
    data = world(lambda x, rng: (x[:, 0] + 0.5 * rng.normal(size=len(x)) > 0).astype(np.int64))
    blind = np.array([0, 1, 3, 4, 5])
    model = RandomForestClassifier(30, random_state=0).fit(data[0][0][:, blind], data[0][1])
    found = infer(lambda x: model.predict_proba(x[:, blind]), data, ["regions"], epsilons=(None,))
    for result in found.values():
        assert result.gain_low < 0.02
        assert result.success_low < 0.36


def test_what_other_columns_tell_is_no_gain():
    """The column follows from another one, and the classes from neither."""
    data = world(by_chance)
    for x, _ in data:
        x[:, 2] = np.digitize(x[:, 0], [-0.5, 0.5])
    found = infer(lambda x: np.full((len(x), 4), 0.25), data, [])
    for result in found.values():
        assert result.imputation > 0.95
        assert result.marginal < 0.5
        assert abs(result.gain) < 0.01
        assert result.gain_low < 0 < result.gain_high


def test_a_column_of_many_values_is_binned(memorised):
    predict, data = memorised
    found = infer(predict, data, [], Column(0, "age"))
    assert {r.values for r in found.values()} == {5}
    assert found["none", "members", False].gain_low > 0


@pytest.mark.parametrize(
    ("change", "column", "message"),
    [
        (lambda x: x.reshape(-1, 1, 2, 3), SENSITIVE, "Expected a table of numbers"),
        (lambda x: x.astype(str), SENSITIVE, "Expected a table of numbers"),
        (lambda x: x, Column(6, "6"), "column from 0 to 5"),
        (lambda x: np.zeros_like(x), SENSITIVE, "income has 1"),
    ],
)
def test_wrong_input_is_refused(memorised, change, column, message):
    predict, data = memorised
    given = Given(Membership(*[Records(np.full((5, 4), 0.25))] * 2), Records(np.full((5, 4), 0.25)), 0)
    changed = [(change(x), y) for x, y in data]
    with pytest.raises(ValueError, match=message):
        infer_column(predict, *changed, column, grid([], ()), lambda epsilon: given)


def test_few_public_records_are_refused(memorised):
    predict, (members, others, (x, y)) = memorised
    with pytest.raises(ValueError, match="at least 50 public records"):
        infer_column(predict, members, others, (x[:20], y[:20]), SENSITIVE, (), lambda epsilon: None)


def test_it_is_kept_with_the_results_and_older_files_are_read(memorised):
    bare = make_study(epsilons=(2.0,), rivals={}, inversions=())
    study = replace(bare, attributes=tuple(infer(*memorised, []).values()))
    assert from_json(to_json(study)) == study
    assert from_json(to_json(bare).replace('"attributes": [\n\n],\n', "")) == bare
