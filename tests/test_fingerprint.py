"""What keyed answers know of a record: near-duplicates are one, other records are others, and neither attack gains."""

import functools
import json
import pickle
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import roc_auc_score

from experiments.keying import __main__ as keying
from scoreveil import Veil
from scoreveil.integrations.records import RecordVeil
from scoreveil.keyed import KeyedVeil
from scoreveil.same_record.exact import record_tags
from scoreveil.same_record.fingerprints import Fingerprints
from scoreveil.same_record.marks import BLOCK

SECRET = b"a secret of the tests"
NUMBERS = np.array([[1.0, 0.0, 2.0], [3.0, 4.0, 0.0]])
fingerprints = Fingerprints(SECRET, b"")


# --- one number, however it is written


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint8", "object", "U8", "S8"])
def test_a_number_is_the_same_in_every_dtype(dtype):
    whole = NUMBERS.astype(int) if dtype[0] in "iuUS" else NUMBERS
    assert fingerprints(2, [whole.astype(dtype)]) == fingerprints(2, [NUMBERS])


def test_the_same_record_is_the_same_whatever_holds_it():
    expected = fingerprints(2, [NUMBERS])
    explicit = scipy.sparse.csr_array(np.ones((2, 3)))
    explicit.data[:] = NUMBERS.ravel()  # its zeros are stored
    names = ["a", "b", "c"]
    for form in (
        NUMBERS.tolist(),
        [[1, 0, 2], [3, 4, False]],
        [["1.0", "-0", "2.00"], [b"3", "4e0", False]],
        np.asfortranarray(NUMBERS),
        NUMBERS.reshape(2, 3, 1),
        NUMBERS.astype(">f4"),
        pd.DataFrame(NUMBERS, columns=names),
        pd.DataFrame(NUMBERS, columns=names).astype({"a": int, "b": object, "c": "Float64"}),
        scipy.sparse.csr_matrix(NUMBERS),
        scipy.sparse.coo_array(NUMBERS),
        explicit,
        {name: NUMBERS[:, i] for i, name in enumerate(names)},
    ):
        assert fingerprints(2, [form]) == expected
    assert fingerprints(1, [NUMBERS[1:]]) == expected[1:], "alone or in a batch"
    assert fingerprints(1, [NUMBERS[1]]) == expected[1:], "without an axis of records"
    assert fingerprints(2, [NUMBERS[:, :2], NUMBERS[:, 2]]) == expected


def test_what_is_missing_is_one_thing_and_what_vanishes_another():
    payload = np.array([0x7FF8_0000_0000_0123, 0xFFF8_0000_0000_0000], dtype=np.uint64).view(np.float64)
    alone = []
    for values in ([*payload, None, "nan", pd.NA], [0.0, -0.0, 5e-324, -1e-310]):
        rows = [[7.0, value] for value in values]
        alone.append({fingerprints(1, [[row]])[0] for row in rows})
        assert set(fingerprints(len(rows), [rows])) == alone[-1]
    assert [len(found) for found in alone] == [1, 1]
    assert alone[0] != alone[1]


def test_values_without_bounds_have_a_cell_too():
    rows = np.array([[np.inf, 1.0], [1e308, 1.0], [1e31, 1.0], [-np.inf, 1.0]])
    found = fingerprints(4, [rows])
    assert found[0] == found[1] == found[2] != found[3]
    assert fingerprints(1, [np.zeros((1, 0))]) == fingerprints(1, [])
    assert fingerprints(0, [np.empty((0, 4))]) == []


def test_texts_are_the_same_by_their_words():
    rows = [{"colour": "red", "size": 5}, {"size": 5.0, "colour": " Red"}, {"colour": "blue", "size": 5}]
    red, again, other = fingerprints(3, [rows])
    assert red == again != other
    assert fingerprints(1, [json.loads('[{"size": 5, "colour": "red"}]')]) == [red]
    assert len(set(fingerprints(3, [["ab", "a", "b"]]))) == 3
    pairs = fingerprints(2, [["ab", "a"], ["c", "bc"]])
    assert pairs[0] != pairs[1], "texts do not run together"


def test_rows_of_several_lengths_are_read_one_by_one():
    rows = [{"ids": [3, 1, 4]}, {"ids": [1, 5]}, {"ids": [9, 2, 6]}, {"ids": []}]
    assert fingerprints(4, [rows]) == [fingerprints(1, [[row]])[0] for row in rows]


def test_a_fingerprint_does_not_depend_on_the_batch():
    x = load_digits().data
    assert len(x) * x.shape[1] > 3 * BLOCK
    whole = fingerprints(len(x), [x])
    order = np.random.default_rng(0).permutation(len(x))
    assert fingerprints(len(x), [x[order]]) == [whole[i] for i in order]
    assert [fingerprints(1, [x[i : i + 1]])[0] for i in range(50)] == whole[:50]


def test_other_secrets_and_models_cut_other_cells():
    x = load_digits().data[:200]
    veil = Veil(2.0, secret=SECRET)
    here = KeyedVeil(veil).fingerprints(200, [x])
    assert KeyedVeil(Veil(2.0, secret=SECRET)).fingerprints(200, [x]) == here
    assert pickle.loads(pickle.dumps(KeyedVeil(veil))).fingerprints(200, [x]) == here
    for other in (Veil(2.0, secret=SECRET[::-1]), Veil(2.0, secret=SECRET, model="m"), Veil(1.0, secret=SECRET)):
        assert not set(KeyedVeil(other).fingerprints(200, [x])) & set(here)
    with pytest.raises(ValueError, match="need a secret"):
        KeyedVeil(Veil(2.0))


# --- near-duplicates and other records


@pytest.mark.parametrize(
    ("load", "unit"), [(load_breast_cancer, 1), (load_breast_cancer, 16), *((load_digits, u) for u in (1e-3, 1, 16))]
)
def test_near_duplicates_are_one_record_and_others_are_not(load, unit):
    x = load().data * unit
    noise = np.random.default_rng(0).normal(size=x.shape) * x.std(axis=0)
    found = fingerprints(len(x), [x])
    assert fingerprints(len(x), [x + 1e-9 * noise]) == found
    parted = np.mean([a != b for a, b in zip(found, fingerprints(len(x), [x + 1e-3 * noise]), strict=True)])
    assert parted < 0.2
    shared = Counter(found)
    assert np.mean([shared[each] - 1 for each in found]) < 5


# --- the two attacks, in short; at length: experiments/keying


@functools.cache
def world():
    """A forest that knows its records by heart, on two classes: records, raw scores, which are members."""
    x, y = keying.dataset("digits mod 2")
    order = np.random.default_rng(0).permutation(len(y))
    x, y, member = x[order], y[order], np.arange(len(y)) < len(y) // 2
    model = ExtraTreesClassifier(20, random_state=0).fit(x[member], y[member])
    return x, model, model.predict_proba(x), member


def of_known_members(answers):
    """The AUC of one who knows every other record, and counts how often each answer was a member's."""
    scores, member = world()[2:]
    seen = [(label, round(sure, 9)) for label, sure in zip(scores.argmax(1).tolist(), answers.tolist(), strict=True)]
    known, of_members = (
        Counter(seen[::2]),
        Counter(each for each, is_in in zip(seen[::2], member[::2], strict=True) if is_in),
    )
    guess = [(of_members[each] + 1) / (known[each] + 2) for each in seen[1::2]]
    return roc_auc_score(member[1::2], guess)


def test_who_knows_many_members_learns_nothing_from_the_others_answers():
    x, _, scores, _ = world()
    rng = np.random.default_rng(0)
    fresh = np.mean([of_known_members(Veil(2.0, rng=rng)(scores).max(axis=1)) for _ in range(5)])
    by_record, by_scores = RecordVeil(2.0, secret=SECRET), Veil(2.0, secret=SECRET)
    assert of_known_members(by_record(scores, [x]).max(axis=1)) < fresh + 0.05
    assert of_known_members(by_scores(scores).max(axis=1)) > fresh + 0.1, "records of a few classes share answers"


@pytest.mark.parametrize("jitter", [1e-9, 1e-3])
def test_near_duplicates_gain_nothing_over_one_answer(jitter):
    x, model, _, member = world()
    chosen = np.r_[:100, len(x) - 100 : len(x)]
    copies = np.repeat(x[chosen], 100, axis=0)
    copies += jitter * x.std(axis=0) * np.random.default_rng(1).normal(size=copies.shape)
    scores = model.predict_proba(copies)
    veil = Veil(2.0, secret=SECRET)

    def gain(tags):
        sure = KeyedVeil(veil)(scores, tags).max(axis=1).reshape(len(chosen), -1)
        one, many = (roc_auc_score(member[chosen], each) for each in (sure[:, 0], sure.mean(axis=1)))
        return many - one

    assert abs(gain(KeyedVeil(veil).fingerprints(len(copies), [copies]))) < 0.03
    assert gain(record_tags(len(copies), [copies])) > 0.15, "each exact record has an answer of its own"


# --- the study


def test_the_tables_in_the_docs_are_made_from_the_results():
    shown = keying.PAGE.read_text(encoding="utf-8").partition(keying.START)[2].partition(keying.END)[0].strip()
    assert shown == keying.tables(json.loads(keying.RESULTS.read_text(encoding="utf-8")))
