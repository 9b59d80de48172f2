"""Sticky by record: the same record, the same answer; another record, an independent one. Names are taken exactly."""

import numpy as np
import pandas as pd
import pytest

from scoreveil.integrations.columns import ColumnVeil
from scoreveil.integrations.records import RecordVeil
from scoreveil.same_record.exact import record_tags
from scoreveil.shapes import VECTORS, Binary, MultiLabel, PerPosition
from scoreveil.tables.label_columns import asked_scores

SECRET = b"a secret of the tests"
NUMBERS = np.array([[1.0, 0.0, 2.0], [3.0, 4.0, 0.0]])


def test_the_same_record_is_the_same_whatever_holds_it():
    expected = record_tags(2, [NUMBERS])
    for form in (NUMBERS.tolist(), pd.DataFrame(NUMBERS), NUMBERS.astype(np.float32), np.asfortranarray(NUMBERS)):
        assert record_tags(2, [form]) == expected
    assert record_tags(2, [NUMBERS * np.where(NUMBERS == 0, -1, 1)]) == expected
    assert record_tags(1, [NUMBERS[1:]]) == expected[1:], "alone or in a batch"


def test_other_records_are_others():
    several = [NUMBERS, ["a", "b"]], [NUMBERS, ["a", "c"]], [NUMBERS[::-1], ["a", "b"]], [NUMBERS, [5, 5], ["a", "b"]]
    tags = [tag for inputs in several for tag in record_tags(2, inputs)]
    assert len(set(tags)) == 7, "only the first record of the first two is the same"


def test_answers_of_one_cell_are_independent_and_each_stays():
    scores = np.tile([0.9, 0.06, 0.04], (400, 1))
    records = np.random.default_rng(0).normal(size=(400, 5))
    veil = RecordVeil(2.0, secret=SECRET)
    z = veil(scores, [records])
    assert len(np.unique(z[:, 0])) > 10
    order = np.random.default_rng(0).permutation(400)
    assert np.array_equal(veil(scores[order], [records[order]]), z[order])
    assert np.array_equal(veil(scores[0], [records[:1]]), z[0])
    assert len(np.unique(veil.veil(scores)[:, 0])) == 1, "by scores, equal ones are alike"


def test_without_a_secret_draws_are_fresh():
    veil = RecordVeil(2.0)
    scores = np.tile([0.6, 0.4], (50, 1))
    assert not np.array_equal(veil(scores, [scores]), veil(scores, [scores]))
    assert veil.guarantee.epsilon == 2.0
    with pytest.raises(ValueError, match="secret"):
        RecordVeil(2.0, secret=b"short")


@pytest.mark.parametrize("shape", [Binary(), MultiLabel(), PerPosition()], ids=lambda shape: shape.name)
def test_answers_of_every_shape_stay_with_their_record(shape):
    rng = np.random.default_rng(0)
    records = rng.normal(size=(60, 5))
    scores = {"binary": rng.random(60), "multi_label": rng.random((60, 3))}.get(shape.name)
    scores = rng.dirichlet(np.ones(3), (60, 2)) if scores is None else scores
    veil = RecordVeil(0.5, shape=shape, secret=SECRET)
    z = veil(scores, [records])
    assert z.shape == scores.shape
    order = rng.permutation(60)
    assert np.array_equal(veil(scores[order], [records[order]]), z[order])
    assert np.array_equal(veil(scores[:1], [records[:1]]), z[:1]), "alone or in a batch"


def test_more_axes_must_be_said():
    with pytest.raises(ValueError, match=r"say shape=PerPosition\(\)"):
        RecordVeil(0.5)(np.full((2, 3, 2), 0.5), [NUMBERS])


def test_columns_of_a_table_have_shapes():
    rng = np.random.default_rng(0)
    batch = {"id": np.arange(50), "a": rng.random(50), "b": rng.random(50)}
    one = ColumnVeil(0.5, "a", "id", shape=Binary(threshold=0.3), secret=SECRET)(batch)
    assert np.array_equal(one["a"] >= 0.3, batch["a"] >= 0.3)
    assert np.array_equal(one["b"], batch["b"])
    both = ColumnVeil(0.5, ["a", "b"], "id", shape=MultiLabel(), secret=SECRET)(batch)
    for name in "ab":
        assert np.array_equal(both[name] >= 0.5, batch[name] >= 0.5)
        assert np.abs(both[name] - batch[name]).max() > 0.01


def test_what_a_classifier_answers_becomes_scores_of_the_shape():
    listed = [np.array([[0.9, 0.1]]), np.array([[0.3, 0.7]]), np.array([[1.0]])]
    assert asked_scores(listed, MultiLabel(), [[0, 1], [0, 1], [0]]).tolist() == [[0.1, 0.7, 0.0]]
    assert asked_scores(listed[:2], MultiLabel()).tolist() == [[0.1, 0.7]]
    assert asked_scores([[0.9, 0.1]], VECTORS).tolist() == [[0.9, 0.1]], "a list of numbers is an array"
    assert asked_scores(listed[0], Binary()).tolist() == [[0.1]]
    with pytest.raises(ValueError, match="several labels a record"):
        asked_scores(listed, VECTORS)
    with pytest.raises(ValueError, match="Label 0 has 3 values"):
        asked_scores([np.full((1, 3), 1 / 3)], MultiLabel())
    with pytest.raises(ValueError, match="Label 0 had one value in training"):
        asked_scores(listed[2:], MultiLabel(), [["never"]])
    with pytest.raises(ValueError, match="whether that is its yes is not known"):
        asked_scores(listed, MultiLabel())
