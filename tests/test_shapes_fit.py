"""Veils that are fitted for one column, many labels and more axes."""

import json

import numpy as np
import pandas as pd
import pytest

from scoreveil import Veil, fit
from scoreveil.cli import main
from scoreveil.files.records import read_sides
from scoreveil.fitting import cost as costs
from scoreveil.fitting.cost import cost
from scoreveil.keyed import KeyedVeil
from scoreveil.mechanisms.per_label import PerLabel
from scoreveil.shapes import Binary, MultiLabel, PerPosition, TopK

pytestmark = pytest.mark.filterwarnings("ignore:No members were given")

SHARES = (0.5, 0.1, 0.35)  # how often each label is yes
NAMES = ("cat", "dog", "fox")


def labelled(rows, seed, sure=2.0):
    """Scores of three labels, of a model that is twice as sure as it should be, and the truth."""
    rng = np.random.default_rng(seed)
    at = np.log(np.array(SHARES) / (1 - np.array(SHARES)))
    logits = rng.normal(at, 2.0, (rows, 3))
    truth = (rng.random((rows, 3)) < 1 / (1 + np.exp(-logits))).astype(int)
    return 1 / (1 + np.exp(-sure * logits)), truth


def error(said, truth, bins=8):
    """The expected calibration error of probabilities of yes."""
    place = np.minimum((said * bins).astype(int), bins - 1)
    return np.abs(np.bincount(place, said - truth, bins)).sum() / len(said)


def loss(said, truth):
    return float(-np.log(np.where(truth == 1, said, 1 - said).clip(1e-12)).mean())


@pytest.fixture(scope="module")
def many():
    scores, truth = labelled(3000, 0)
    return fit(scores, truth, epsilon=4.0, shape=MultiLabel(), rng=np.random.default_rng(0)), scores, truth


def test_a_veil_of_many_labels_is_calibrated_label_by_label_and_worth_more_than_yes_or_no(many):
    veil, scores, truth = many
    new, right = labelled(20_000, 1)
    said = Veil(veil.mechanism, shape=veil.shape, rng=np.random.default_rng(2))(new)
    assert ((said >= 0.5) == (new >= 0.5)).all()
    for label in range(3):
        assert error(said[:, label], right[:, label]) < 0.03 < error(new[:, label], right[:, label])
        yes, seen = scores[:, label] >= 0.5, new[:, label] >= 0.5
        alone = np.where(seen, truth[yes, label].mean(), truth[~yes, label].mean())
        assert loss(said[:, label], right[:, label]) < loss(alone, right[:, label])


def test_each_label_has_a_map_of_its_own_and_answers_are_functions_of_side_and_answer(many):
    veil, scores, truth = many
    mechanism = veil.mechanism
    assert isinstance(mechanism, PerLabel)
    mechanism.verify()
    said = veil(scores)
    for label in range(3):
        for side in (False, True):
            assert len(np.unique(said[(scores[:, label] >= 0.5) == side, label])) <= 8
    # one label by itself is fitted alike: nothing of the others goes into its map
    alone = fit(scores[:, :1], truth[:, :1], epsilon=4.0, shape=MultiLabel(), rng=np.random.default_rng(0))
    assert alone.mechanism.maps[0].settings() == mechanism.maps[0].settings()


def test_a_loaded_veil_and_its_outcomes_give_the_same_answers_to_the_byte(many, tmp_path):
    veil, scores, _ = many
    veil.save(tmp_path / "veil.json")
    secret, tags = b"s" * 32, [bytes([i]) for i in range(50)]
    loaded, kept = Veil.load(tmp_path / "veil.json", secret=secret), veil.with_secret(secret)
    assert loaded(scores).tobytes() == kept(scores).tobytes()
    drawn = KeyedVeil(loaded).outcomes(scores[:50], tags)
    assert KeyedVeil(loaded).answers(scores[:50], drawn).tobytes() == KeyedVeil(kept)(scores[:50], tags).tobytes()
    assert loaded.guarantee == veil.guarantee


def test_a_changed_file_is_refused(many, tmp_path):
    many[0].save(tmp_path / "veil.json")
    saved = json.loads((tmp_path / "veil.json").read_text())
    saved["labels"][1]["announced"][0][0] *= 0.99
    (tmp_path / "moved.json").write_text(json.dumps(saved))
    del saved["labels"][2]
    (tmp_path / "less.json").write_text(json.dumps(saved))
    for name in ("moved", "less"):
        with pytest.raises(ValueError, match="damaged"):
            Veil.load(tmp_path / f"{name}.json")


def test_other_labels_than_those_of_the_fit_are_refused(many):
    veil, scores, _ = many
    with pytest.raises(ValueError, match="fitted for 3 labels, got 2"):
        veil(scores[:, :2])
    with pytest.raises(ValueError, match="in columns"):
        veil.pairs([[("cat", 0.9), ("dog", 0.2), ("fox", 0.4)]])


@pytest.mark.parametrize("threshold", [0.5, 0.2, 0.8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_column_keeps_its_threshold_and_says_how_often_it_is_yes(threshold, dtype):
    scores, truth = (each[:, 0] for each in labelled(3000, 3))
    scores = scores.astype(dtype)
    veil = fit(scores, truth, shape=Binary(threshold), rng=np.random.default_rng(0))
    new, right = (each[:, 0] for each in labelled(20_000, 4))
    new = new.astype(dtype)
    said = Veil(veil.mechanism, shape=veil.shape, rng=np.random.default_rng(0))(new)
    border = dtype(threshold)
    assert said.dtype == dtype
    assert ((said >= border) == (new >= border)).all()
    sure_of_it = right[new >= border].mean() > threshold > right[new < border].mean()
    assert not sure_of_it or error(said.astype(float), right) < 0.04


def test_logits_are_fitted_as_the_probabilities_that_they_are():
    scores, truth = labelled(1500, 5)
    logits = np.log(scores) - np.log1p(-scores)
    fitted = [
        fit(each, truth, epsilon=2.0, shape=shape, rng=np.random.default_rng(0))
        for each, shape in ((scores, MultiLabel()), (logits, MultiLabel(logits=True)))
    ]
    for plain, logit in zip(fitted[0].mechanism.maps, fitted[1].mechanism.maps, strict=True):
        np.testing.assert_array_equal(plain.table, logit.table)
        np.testing.assert_allclose(plain.announced, logit.announced, atol=1e-9)
    said = fitted[1].with_secret(b"s" * 32)(logits)
    assert ((said >= 0) == (logits >= 0)).all()


def test_a_label_with_few_records_or_of_one_side_alone_is_fitted_too():
    rng = np.random.default_rng(0)
    scores, truth = labelled(400, 6)
    scores[:, 1], truth[:, 1] = rng.random(400) * 0.01, 0
    veil = fit(scores, truth, shape=MultiLabel((0.5, 0.5, 0.3)), rng=rng)
    said = veil(scores)
    assert np.isfinite(said).all()
    assert (said[:, 1] < 0.3).all()


def test_without_labels_what_is_announced_is_near_the_raw_score():
    scores, _ = labelled(3000, 7)
    veil = fit(scores, shape=MultiLabel(), rng=np.random.default_rng(0))
    said = Veil(veil.mechanism, shape=veil.shape, rng=np.random.default_rng(0))(scores)
    assert abs((said - scores).mean()) < 0.01
    assert np.abs(said - scores).mean() < 0.1


def test_members_bound_the_advantage_of_each_label_and_it_is_said_what_that_leaves_open():
    others, truth = labelled(1500, 8)
    inside, known = labelled(1500, 9, sure=4.0)
    veil = fit(others, truth, inside, known, shape=MultiLabel(), rng=np.random.default_rng(0))
    promise = veil.guarantee
    each = [mechanism.guarantee().advantage for mechanism in veil.mechanism.maps]
    assert promise.advantage == max(each)
    assert "nothing is promised about the labels of a record together" in promise.words
    assert any("labels of a record together nothing is promised" in limit for limit in promise.limits)
    veil.mechanism.verify()
    labels = len(veil.mechanism.maps)
    assert promise.fit_epsilon == pytest.approx((0.5 * labels, 2.5 * labels))


def test_labels_of_other_records_are_noticed_where_labels_have_shares_of_their_own():
    """A rare yes agrees with any record's, so all labels taken together seem to fit better than by chance."""
    rng, shares = np.random.default_rng(0), np.array([0.5, 0.02, 0.97])
    scores = 1 / (1 + np.exp(-rng.normal(np.log(shares / (1 - shares)), 2.0, (600, 3))))
    truth = (rng.random(scores.shape) < scores).astype(int)
    fit(scores, truth, shape=MultiLabel(), rng=rng)
    with pytest.raises(ValueError, match="no more than by chance"):
        fit(scores, rng.permutation(truth), shape=MultiLabel())


def test_each_place_of_a_record_is_a_vector():
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.full(4, 0.3), (300, 5))
    truth = np.where(rng.random((300, 5)) < scores.max(axis=2), scores.argmax(axis=2), 0)
    veil = fit(scores, truth, shape=PerPosition(), rng=rng)
    said = veil(scores)
    assert said.shape == scores.shape
    assert (said.argmax(axis=2) == scores.argmax(axis=2)).all()


@pytest.fixture
def few_resamples(monkeypatch):
    """Intervals that are found in no time."""
    monkeypatch.setattr(costs, "RESAMPLES", 20)


def test_what_a_veil_of_many_labels_costs_is_measured_together_and_by_label(few_resamples):
    scores, truth = labelled(1200, 10)
    inside, known = labelled(1200, 11, sure=4.0)
    table = pd.DataFrame(scores, columns=NAMES)
    found = cost(
        table, truth, pd.DataFrame(inside, columns=NAMES), known, shape=MultiLabel(), rng=np.random.default_rng(0)
    )
    assert [each.label for each in found.labels] == list(NAMES)
    for each, share in zip(found.labels, truth.mean(axis=0), strict=True):
        assert each.share == pytest.approx(share)
        assert each.ece["veiled"] < each.ece["raw"]
        assert each.leak["raw"] > 0.55
        assert abs(each.leak["veiled"] - 0.5) < abs(each.leak["raw"] - 0.5)
    together = np.mean([each.nll["veiled"] for each in found.labels])
    assert found.nll["veiled"].value == pytest.approx(together)
    assert found.nll["tempered"].value <= found.nll["raw"].value


# What is read


def test_labels_are_found_beside_the_scores_or_in_a_table_of_their_own(tmp_path):
    scores, truth = labelled(30, 12)
    frame = pd.DataFrame(scores, columns=[f"p_{name}" for name in NAMES])
    own = pd.DataFrame(truth, columns=NAMES)
    pd.concat([own[["fox"]], frame, own[["dog", "cat"]]], axis=1).to_csv(tmp_path / "both.csv", index=False)
    own.to_parquet(tmp_path / "own.parquet")
    np.save(tmp_path / "y.npy", truth)
    for labels in ("both.csv", "own.parquet", "y.npy"):
        given = {"nonmembers": (tmp_path / "both.csv", tmp_path / labels)}
        read = read_sides(given, "p_*", MultiLabel())[0]["nonmembers"]
        np.testing.assert_array_equal(read.given[1], truth)
        np.testing.assert_allclose(read.given[0], scores)
        assert read.names == ("p_cat", "p_dog", "p_fox")


@pytest.mark.parametrize(
    ("change", "shape", "told"),
    [
        ({}, TopK(), "whole score vectors"),
        ({"scores": [[0.5, 1.5, 0.1]]}, MultiLabel(), "more than 1"),
        ({"scores": [[0.5, np.nan, 0.1]]}, MultiLabel(), "NaN"),
        ({"scores": np.zeros((0, 3))}, MultiLabel(), "no records"),
        ({"scores": np.ones((2, 3), dtype=int)}, MultiLabel(), "floating-point"),
        ({"labels": np.zeros(40)}, MultiLabel(), "one for each label"),
        ({"labels": np.full((40, 3), 2)}, MultiLabel(), "row 0, column 0, is not the number of a class"),
        ({"labels": np.full((40, 3), "yes")}, MultiLabel(), "0 for no and 1 for yes"),
        ({}, MultiLabel((0.5, 0.5)), "threshold"),
        ({}, Binary(), "one column"),
    ],
)
def test_what_is_not_of_the_shape_is_refused_without_quoting_a_score(change, shape, told):
    scores, truth = labelled(40, 13)
    with pytest.raises(ValueError, match=told) as refused:
        fit(np.asarray(change.get("scores", scores)), change.get("labels", truth), shape=shape)
    assert "1.5" not in str(refused.value)


# On the command line


@pytest.fixture
def scoreveil(tmp_path, monkeypatch, capsys, few_resamples):
    monkeypatch.chdir(tmp_path)
    for name, seed, sure in (("out", 20, 2.0), ("in", 21, 4.0)):
        scores, truth = labelled(300, seed, sure)
        frame = pd.DataFrame(scores, columns=[f"p_{each}" for each in NAMES])
        pd.concat([frame, pd.DataFrame(truth, columns=NAMES)], axis=1).to_csv(f"{name}.csv", index=False)
    one, yes = labelled(500, 22)
    pd.DataFrame({"p": one[:, 0], "label": yes[:, 0]}).to_csv("one.csv", index=False)

    def run(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        shown = capsys.readouterr()
        return int(ended.value.code or 0), " ".join(shown.out.split()), shown.err

    return run


def test_fit_writes_a_veil_of_many_labels_and_a_page_with_a_table_by_label(scoreveil, tmp_path):
    files = "--nonmembers out.csv --nonmember-labels out.csv --members in.csv --columns p_*"
    code, out, err = scoreveil(
        f"fit {files} --shape multi_label --threshold 0.5,0.4,0.5 -e 2 -o veil.json --report seen"
    )
    assert (code, err) == (0, "")
    assert "Label by label" in out
    assert "p_dog" in out
    veil = Veil.load("veil.json")
    assert veil.shape.settings() == {"shape": "multi_label", "threshold": (0.5, 0.4, 0.5), "logits": False}
    page = (tmp_path / "seen" / "report.html").read_text(encoding="utf-8")
    assert "<h3>Label by label</h3>" in page
    assert "the answer about one label changes an attacker" in page
    results = json.loads((tmp_path / "seen" / "results.json").read_text(encoding="utf-8"))
    assert [each["label"] for each in results["cost"][0]["cost"]["labels"]] == ["p_cat", "p_dog", "p_fox"]
    assert scoreveil("verify veil.json")[0] == 0


def test_fit_writes_a_veil_of_one_column(scoreveil):
    line = "fit --nonmembers one.csv --nonmember-labels one.csv --columns p --shape binary -e 2 -o veil.json"
    code, _, err = scoreveil(f"{line} --threshold 0.3")
    assert code == 0
    assert "no members were given" in err
    assert Veil.load("veil.json").shape.threshold == 0.3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--columns p_* --shape top_k", "binary or multi_label"),
        ("--columns p_* --threshold 0.3", "--shape"),
        ("--columns p_* --shape multi_label --threshold high", "numbers with commas"),
        ("--columns p_* --shape binary", "one column"),
        ("--columns p_* --shape multi_label --nonmember-labels one.csv", "a column for each of 3 labels"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(scoreveil, options, told):
    code, _, err = scoreveil(f"fit --nonmembers out.csv {options} -e 2 -o veil.json")
    assert code == 2
    assert told in err
    assert len(err.strip().splitlines()) == 1
