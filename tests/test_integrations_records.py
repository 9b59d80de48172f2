"""Sticky by record: the same record, the same answer; another record, an independent one. Names are taken exactly."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from scoreveil.integrations.records import RecordVeil, record_tags

SECRET = b"a secret of the tests"
NUMBERS = np.array([[1.0, 0.0, 2.0], [3.0, 4.0, 0.0]])


def test_the_same_record_is_the_same_whatever_holds_it():
    expected = record_tags(2, [NUMBERS])
    for form in (NUMBERS.tolist(), pd.DataFrame(NUMBERS), NUMBERS.astype(np.float32), np.asfortranarray(NUMBERS)):
        assert record_tags(2, [form]) == expected
    assert record_tags(2, [NUMBERS * np.where(NUMBERS == 0, -1, 1)]) == expected
    assert record_tags(1, [NUMBERS[1:]]) == expected[1:], "alone or in a batch"
    sparse = [scipy.sparse.csr_matrix(NUMBERS), scipy.sparse.coo_array(NUMBERS)]
    assert record_tags(2, sparse[:1]) == record_tags(2, sparse[1:])


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
