"""Smoothing: copies that look like records, labels that stay, spikes that go, and veils that say what they are for."""

import json
import warnings

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skl2onnx import to_onnx
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from scoreveil import Smoothing, Veil, fit, smoothed_scores
from scoreveil.audit.report import asked
from scoreveil.audit.study.asking import ask
from scoreveil.audit.study.models import Model, from_model
from scoreveil.audit.study.results import Study, from_json, to_json
from scoreveil.cli import main
from scoreveil.files import protect
from scoreveil.fitting.neighbours import Trial, least, neighbour_attack, words
from scoreveil.integrations.columns import ColumnVeil
from scoreveil.integrations.onnx import VeiledSession
from scoreveil.integrations.sklearn import VeiledClassifier
from scoreveil.integrations.torch import VeiledModule
from scoreveil.shapes import Binary, MultiLabel, PerPosition, TopK
from scoreveil.smoothing import averaged

RNG = np.random.default_rng(0)
N = 600
# a number, a whole number, a boolean, a one-hot group, and a number that is 0 in nine of ten records
X = np.column_stack(
    [
        RNG.normal(5, 2, N),
        RNG.integers(0, 100, N),
        RNG.integers(0, 2, N),
        np.eye(3)[RNG.integers(0, 3, N)],
        np.where(RNG.random(N) < 0.9, 0, RNG.exponential(1000, N)),
    ]
)
TRAINED, TRUTH = make_classification(1200, 10, n_informative=5, flip_y=0.2, random_state=0)
FOREST = RandomForestClassifier(30, random_state=0).fit(TRAINED[:600], TRUTH[:600])
SMOOTH = Smoothing(typical=TRAINED[600:], seed=1)


# Copies


def test_copies_look_like_records():
    copies = Smoothing(32, 0.5, X, seed=0).around(X)
    assert copies.shape == (32 * N, 7)
    assert (copies[:, 1] == np.rint(copies[:, 1])).all()
    assert set(np.unique(copies[:, 2])) == {0, 1}
    assert (copies[:, 3:6].sum(axis=1) == 1).all()
    assert set(np.unique(copies[:, 3:6])) == {0, 1}
    low, high = np.quantile(X[:, 0], (0.01, 0.99))
    beyond = (copies[:, 0] < low - 0.1) | (copies[:, 0] > high + 0.1)
    assert beyond.mean() < 0.04, "only copies of records that are beyond themselves"


def test_numbers_move_by_scale_times_spread_and_categories_as_often_as_the_scale_says():
    moved = Smoothing(256, 0.3, X, seed=0).around(X[:1]).reshape(256, 7)
    assert np.std(moved[:, 0]) == pytest.approx(0.3 * X[:, 0].std(), rel=0.15)
    many = np.stack([Smoothing(256, 0.3, X, seed=seed).around(np.full((1, 7), 7.0)) for seed in range(8)])
    for column in (2, 3, 6):  # of no typical record, so that a replaced value shows
        assert np.mean(many[..., column] != 7) == pytest.approx(0.3, abs=0.05)
    assert ((many[..., 3] != 7) == (many[..., 5] != 7)).all(), "a one-hot group is replaced together"


def test_the_noise_is_the_same_for_every_record_and_wherever_it_is_drawn():
    smoothing = Smoothing(16, 0.3, X, seed=5)
    again = Smoothing.restored(json.loads(json.dumps(smoothing.settings())))
    assert again == smoothing
    np.testing.assert_array_equal(again.around(X[3:9]), smoothing.around(X[3:9]))
    both = smoothing.around(X[[3, 8]]).reshape(16, 2, 7)
    np.testing.assert_array_equal(both[:, 1], smoothing.around(X[[8]]))
    assert Smoothing(typical=X) != Smoothing(typical=X)
    # drawn by AES and rounded: these numbers are those of every machine
    first = Smoothing(2, 0.3, TRAINED, seed=1).around(np.zeros((1, 10)))
    np.testing.assert_allclose(first[:, 0], [0.330334809, -0.641756787], atol=1e-9)


def test_missing_values_stay_missing():
    holes = X.copy()
    holes[::3, 0], holes[1::3, 2] = np.nan, np.nan
    copies = Smoothing(16, 1.0, holes, seed=0).around(holes).reshape(16, N, 7)
    np.testing.assert_array_equal(np.isnan(copies), np.broadcast_to(np.isnan(holes), copies.shape))


def test_frames_keep_their_columns_and_dtypes():
    frame = pd.DataFrame(
        {
            "age": pd.array([*RNG.integers(18, 90, N - 1), None], dtype="Int64"),
            "income": X[:, 6].astype(np.float32),
            "job": pd.Categorical(RNG.choice(["clerk", "nurse", "cook"], N)),
            "town": [None, *RNG.choice(["Delft", "Ghent"], N - 1)],
            "owns": RNG.random(N) < 0.5,
        }
    )
    smoothing = Smoothing(32, 0.5, frame, seed=0)
    copies = smoothing.around(frame)
    assert (copies.dtypes == frame.dtypes).all()
    assert len(copies) == 32 * N
    assert copies["age"].isna().sum() == copies["town"].isna().sum() == 32
    assert (copies["job"].to_numpy() != np.tile(frame["job"].to_numpy(), 32)).mean() > 0.2
    few = frame[frame["job"] == "cook"].assign(job=lambda rows: rows["job"].cat.remove_unused_categories())
    assert (smoothing.around(few)["job"] == "cook").all(), "no category that the records do not have"
    columns = {name: np.asarray(frame[name]) for name in ("income", "owns")}
    named = Smoothing(4, 0.5, columns, seed=0).around(columns)
    assert {name: array.dtype for name, array in named.items()} == {"income": np.float32, "owns": bool}


def test_a_matrix_is_taken_for_the_columns_of_a_frame():
    frame = pd.DataFrame(TRAINED, columns=[f"f{i}" for i in range(10)])
    smoothing = Smoothing(4, 0.3, frame, seed=0)
    np.testing.assert_allclose(smoothing.around(TRAINED[:5]), smoothing.around(frame[:5]).to_numpy())
    apart = {f"f{i}": TRAINED[:5, [i]] for i in range(10)}
    np.testing.assert_allclose(np.hstack(list(smoothing.around(apart).values())), smoothing.around(TRAINED[:5]))


@pytest.mark.parametrize("sizes", [(9, 9), (9, 9, 3), (1, 9, 9)])
def test_pictures_get_noise_and_move_by_a_pixel_at_most(sizes):
    picture = np.zeros((1, *sizes), dtype=np.float32)
    at = (..., 4, 4, slice(None)) if sizes[-1] == 3 else (..., 4, 4)
    picture[at] = 1
    copies = Smoothing(64, 0.01, np.concatenate([picture, picture * 0]), seed=0).around(picture)
    flat = copies.reshape(64, *sizes).mean(axis=3 if sizes[-1] == 3 else 1) if len(sizes) == 3 else copies
    places = {tuple(int(place) for place in np.argwhere(each == each.max())[0]) for each in flat}
    assert len(places) == 9
    assert all(abs(row - 4) <= 1 and abs(column - 4) <= 1 for row, column in places)
    assert copies.dtype == np.float32


@pytest.mark.parametrize(
    ("typical", "message"),
    [
        (None, "Give typical inputs"),
        (np.array([[f"text {i}"] for i in range(300)]), "Texts cannot be smoothed"),
        (np.ones((50, 3)), "inputs that differ"),
        (np.ones((1, 3)), "some hundred"),
        (np.ones(30), "dense arrays"),
        (np.array([["2020-01-01"]] * 9, dtype="datetime64[D]"), "cannot be smoothed"),
    ],
)
def test_what_cannot_be_smoothed_is_refused(typical, message):
    with pytest.raises(ValueError, match=message):
        Smoothing(typical=typical)


@pytest.mark.parametrize("wrong", [{"copies": 0}, {"copies": 257}, {"scale": 0.0}, {"scale": 2.1}, {"seed": -1}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="Expected"):
        Smoothing(typical=X, **wrong)


def test_other_inputs_are_refused():
    for other in (X[:, :6], {"a": X, "b": X}):
        with pytest.raises(ValueError, match="other names or sizes"):
            Smoothing(typical=X, seed=0).around(other)


def test_of_typical_inputs_the_file_tells_no_rare_category_and_no_extreme():
    values = np.array(["common"] * 596 + ["other"] * 200 + ["the mayor"] * 4, dtype=object)
    numbers = np.append(RNG.normal(size=799), 123456.0)
    told = json.dumps(Smoothing(typical={"who": values, "much": numbers}).settings())
    assert "other" in told
    assert "mayor" not in told
    assert "12345" not in told


# Scores


def test_the_confidence_is_the_mean_over_copies_and_the_label_that_at_the_record():
    raw = FOREST.predict_proba(TRAINED)
    smoothed = smoothed_scores(FOREST.predict_proba, TRAINED, SMOOTH)
    np.testing.assert_array_equal(smoothed.argmax(axis=1), raw.argmax(axis=1))
    mean = FOREST.predict_proba(SMOOTH.around(TRAINED)).reshape(16, 1200, 2).mean(axis=0)
    same = mean.argmax(axis=1) == raw.argmax(axis=1)
    assert 0.05 < 1 - same.mean() < 0.5
    np.testing.assert_allclose(smoothed[same], mean[same])
    np.testing.assert_allclose(smoothed[~same], 0.5, atol=1e-5)
    np.testing.assert_allclose(smoothed[[5]], smoothed_scores(FOREST.predict_proba, TRAINED[[5]], SMOOTH))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.sampled_from(["f4", "f8"]), st.integers(0, 10**6))
def test_whatever_the_copies_say_the_label_stays_and_rows_are_score_vectors(classes, dtype, seed):
    rng = np.random.default_rng(seed)
    own, around = (rng.dirichlet(np.full(classes, 0.2), n).astype(dtype) for n in (20, 60))
    made = averaged(own, around)
    assert made.dtype == own.dtype
    np.testing.assert_array_equal(made.argmax(axis=1), own.argmax(axis=1))
    np.testing.assert_allclose(made.sum(axis=1), 1, atol=1e-5)
    assert made.min() >= 0
    for shape in (Binary(threshold=0.3), MultiLabel(threshold=0.7)):
        columns, others = (each[:, :1] if isinstance(shape, Binary) else each for each in (own, around))
        answer = averaged(columns, others, shape)
        np.testing.assert_array_equal(answer >= shape.threshold, columns >= np.dtype(dtype).type(shape.threshold))


def test_lists_and_places_cannot_be_smoothed():
    for shape in (TopK(5), PerPosition()):
        with pytest.raises(ValueError, match="cannot be smoothed"):
            averaged(np.ones((2, 3)) / 3, np.ones((4, 3)) / 3, shape)


def test_most_of_the_spike_at_a_record_is_gone():
    truth, is_member = TRUTH, np.arange(1200) < 600
    around = Smoothing(16, 0.3, TRAINED[600:], seed=9).around(TRAINED)

    def attack(scores_of):
        return neighbour_attack([scores_of(TRAINED), *np.split(scores_of(around), 16)], truth, is_member)

    labels = attack(lambda x: np.eye(2)[FOREST.predict(x)])
    raw, smoothed = attack(FOREST.predict_proba), attack(lambda x: smoothed_scores(FOREST.predict_proba, x, SMOOTH))
    assert labels < 0.8
    assert raw > labels + 0.15
    assert smoothed - labels < (raw - labels) / 3


# Veils


@pytest.fixture(scope="module")
def veil():
    scores = smoothed_scores(FOREST.predict_proba, TRAINED, SMOOTH)
    given = scores[600:], TRUTH[600:], scores[:600], TRUTH[:600]
    return fit(*given, smoothing=SMOOTH, force=True, rng=np.random.default_rng(0))


def test_a_veil_file_holds_its_smoothing(veil, tmp_path):
    veil.save(tmp_path / "veil.json")
    loaded = Veil.load(tmp_path / "veil.json")
    assert loaded.smoothing == SMOOTH
    assert "smoothed" in repr(loaded)
    assert loaded.with_secret(b"a secret of the tests").smoothing == SMOOTH
    about = json.loads((tmp_path / "veil.json").read_text())
    for change in ({"scale": 0.2}, {"copies": 10**6}, {"inputs": []}, {"seed": "7"}, {"more": 1}):
        damaged = {**about, "smoothing": {**about["smoothing"], **change}}
        (tmp_path / "other.json").write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match="damaged"):
            Veil.load(tmp_path / "other.json")
    (tmp_path / "none.json").write_text(json.dumps({k: v for k, v in about.items() if k != "smoothing"}))
    with pytest.raises(ValueError, match="damaged"):
        Veil.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="Expected a Smoothing"):
        Veil(2.0, smoothing=0.3)


def test_where_there_are_scores_alone_a_veil_for_smoothed_ones_is_refused(veil, tmp_path, capsys):
    veil.save(tmp_path / "veil.json")
    np.save(tmp_path / "scores.npy", FOREST.predict_proba(TRAINED))
    for use in (
        lambda: protect(tmp_path / "scores.npy", tmp_path / "safe.npy", veil),
        lambda: ColumnVeil(veil, "scores"),
    ):
        with pytest.raises(ValueError, match="where the model can be asked"):
            use()
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "protect",
                str(tmp_path / "scores.npy"),
                "-o",
                str(tmp_path / "safe.npy"),
                "--veil",
                str(tmp_path / "veil.json"),
            ]
        )
    assert ended.value.code == 2
    assert "fitted on smoothed scores" in capsys.readouterr().err
    assert not (tmp_path / "safe.npy").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:mlflow")
def test_integrations_that_ask_a_model_smooth_by_themselves(veil):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what MLflow imports
        from scoreveil.integrations.mlflow import VeiledModel
    expected = veil(smoothed_scores(FOREST.predict_proba, TRAINED, SMOOTH))
    np.testing.assert_array_equal(VeiledModel(FOREST, veil).predict(None, TRAINED), expected)
    x = TRAINED.astype(np.float32)
    model = LogisticRegression().fit(x, TRUTH)
    bare = onnxruntime.InferenceSession(to_onnx(model, x[:1], options={"zipmap": False}).SerializeToString())
    label, found = VeiledSession(bare, veil, labels="label").run(None, {"X": x})
    expected = veil(smoothed_scores(lambda rows: bare.run(None, {"X": rows})[1], x, SMOOTH))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(label, model.predict(x))
    layer = torch.nn.Linear(10, 2)
    with torch.no_grad():
        layer.weight[:] = torch.tensor(np.vstack([-model.coef_, model.coef_]) / 2)
        layer.bias[:] = torch.tensor(np.concatenate([-model.intercept_, model.intercept_]) / 2)
    tensor = VeiledModule(layer, veil)(torch.tensor(x))
    np.testing.assert_allclose(tensor.numpy(), expected, atol=1e-6)
    with pytest.raises(ValueError, match="takes one tensor"):
        VeiledModule(layer, veil)(input=torch.tensor(x))


# Classifiers


def test_a_classifier_smooths_members_others_and_questions():
    veiled = VeiledClassifier(RandomForestClassifier(20, random_state=0), smoothing=0.3, cv=3, secret=b"secret" * 4)
    veiled.fit(TRAINED[:600], TRUTH[:600])
    assert veiled.veil_.smoothing.scale == 0.3
    answers = veiled.predict_proba(TRAINED[600:])
    np.testing.assert_array_equal(answers.argmax(axis=1), veiled.predict(TRAINED[600:]))
    again = VeiledClassifier(RandomForestClassifier(20, random_state=0), smoothing=0.3, cv=3, secret=b"secret" * 4)
    np.testing.assert_array_equal(again.fit(TRAINED[:600], TRUTH[:600]).predict_proba(TRAINED[600:]), answers)
    frozen = VeiledClassifier(FrozenEstimator(FOREST), smoothing=SMOOTH, secret=b"secret" * 4)
    frozen.fit(TRAINED[600:], TRUTH[600:], members=(TRAINED[:600], TRUTH[:600]))
    expected = frozen.veil_(smoothed_scores(FOREST.predict_proba, TRAINED, SMOOTH))
    np.testing.assert_array_equal(frozen.predict_proba(TRAINED), expected)
    with pytest.raises(ValueError, match="'auto' or None"):
        VeiledClassifier(FOREST, smoothing="often").fit(TRAINED, TRUTH)
    with pytest.raises(ValueError, match="give a scale instead"):
        VeiledClassifier(FrozenEstimator(FOREST), smoothing="auto").fit(TRAINED, TRUTH)


def test_auto_takes_the_least_scale_that_stops_the_attack():
    forest = VeiledClassifier(RandomForestClassifier(15, random_state=0), smoothing="auto", cv=2, secret=b"secret" * 4)
    forest.fit(TRAINED, TRUTH)
    trials = forest.smoothing_trials_
    assert [trial.scale for trial in trials] == [None, 0.2, 0.3, 0.5]
    assert trials[0].beyond_labels > 0.05
    assert forest.veil_.smoothing.scale == least(trials)
    straight = VeiledClassifier(LogisticRegression(), smoothing="auto", cv=2, secret=b"secret" * 4).fit(TRAINED, TRUTH)
    assert straight.veil_.smoothing is None


def test_the_least_scale_is_within_three_hundredths_of_labels_and_keeps_the_confidence():
    def of(*rows):
        return [Trial(scale, attack, 0.6, useful) for scale, attack, useful in rows]

    assert least(of((None, 0.9, 0.8), (0.2, 0.64, 0.8), (0.3, 0.62, 0.8), (0.5, 0.6, 0.8))) == 0.3
    assert least(of((None, 0.9, 0.8), (0.2, 0.62, 0.75), (0.3, 0.62, 0.77))) == 0.3
    assert least(of((None, 0.62, 0.8), (0.2, 0.6, 0.8))) is None
    assert "gain nothing" in words(of((None, 0.62, 0.8), (0.2, 0.6, 0.8)))
    assert "No smoothing tried" in words(of((None, 0.9, 0.8), (0.2, 0.7, 0.8)))


# Commands


def test_fit_asks_a_model_and_an_audit_shows_what_each_scale_leaves(tmp_path, monkeypatch, capsys):
    (tmp_path / "asked_model.py").write_text(
        "from test_smoothing import FOREST\npredict = FOREST.predict_proba\n", encoding="utf-8"
    )
    for name, rows in (("in", slice(0, 600)), ("out", slice(600, 1200))):
        np.savez(tmp_path / f"{name}.npz", x=TRAINED[rows], y=TRUTH[rows])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = ["--model", "asked_model:predict", "--member-data", "in.npz", "--nonmember-data", "out.npz"]
    with pytest.raises(SystemExit) as ended:
        main(["fit", *model, "--smoothing", "0.3", "-o", "veil.json"])
    assert ended.value.code == 0
    assert "Wrote veil.json" in capsys.readouterr().out
    assert Veil.load("veil.json").smoothing.scale == 0.3
    for wrong, message in (
        (["fit", *model[:4], "-o", "other.json"], "--nonmember-data is missing"),
        (["fit", *model, "--smoothing", "much", "-o", "other.json"], "none, auto or a scale"),
        (["fit", *model, "--members", "in.npz", "-o", "other.json"], "no files of scores"),
        (["fit", "--smoothing", "0.3", "--nonmembers", "out.npz", "-o", "other.json"], "which can be smoothed"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_an_audit_asks_around_records():
    data = (TRAINED[:600], TRUTH[:600]), (TRAINED[600:], TRUTH[600:])
    model = Model(FOREST, neighbours=100)
    found = ask(model, *data, from_model(model, *data), ())
    study = Study({}, (), (), **found)
    (part,) = asked.parts(study)
    assert [row[0].text for row in part.table.rows] == ["–", "0.2", "0.3", "0.5"]
    assert part.sentence in asked.sentences(study)
    assert from_json(to_json(study)).smoothing == study.smoothing
    with pytest.raises(ValueError, match="50 or more"):
        Model(FOREST, neighbours=10)
