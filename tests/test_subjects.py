"""What is audited is checked before anything is fitted on it."""

import sys

import numpy as np
import pytest

from scoreveil.audit.data.records import Records
from scoreveil.audit.study.models import Model, from_model, load_object, load_predict
from scoreveil.audit.study.subjects import checked, from_given, from_scores

K = 4


def scores(rows, seed=0, concentration=0.5):
    return np.random.default_rng(seed).dirichlet(np.full(K, concentration), rows)


def records(rows, seed=0):
    return Records(scores(rows, seed), np.random.default_rng(seed).integers(0, K, rows))


def test_without_a_shadow_the_attacker_knows_one_half():
    subject = from_scores(records(400), records(500, 1))
    assert len(subject.target.members) == len(subject.shadow.members) == 200
    assert len(subject.target.nonmembers) == len(subject.shadow.nonmembers) == 200
    assert len(subject.reference) == 100
    assert any("No shadow" in note for note in subject.notes)
    parts = [subject.target.members, subject.shadow.members]
    rows = np.concatenate([part.scores for part in parts])
    assert len(np.unique(rows, axis=0)) == 400
    outside = [subject.target.nonmembers, subject.shadow.nonmembers, subject.reference]
    assert len(np.unique(np.concatenate([part.scores for part in outside]), axis=0)) == 500


def test_with_a_shadow_all_records_are_attacked():
    subject = from_scores(records(300), records(300, 1), (records(200, 2), records(250, 3)), records(150, 4))
    assert len(subject.target.members) == len(subject.target.nonmembers) == 300
    assert len(subject.shadow.nonmembers) == 250
    assert subject.notes == ()


def test_too_few_records_say_how_many_are_needed():
    with pytest.raises(ValueError, match=r"at least 100 members, got 99"):
        from_scores(records(99), records(300, 1))
    with pytest.raises(ValueError, match=r"at least 100 shadow nonmembers, got 5"):
        from_scores(records(300), records(300, 1), (records(300, 2), records(5, 3)))


def test_the_same_records_on_both_sides_are_doubted_and_some_are_noted():
    same = from_given({"members": (scores(300), None), "nonmembers": (scores(300), None)})
    assert any("same records" in doubt for doubt in same.doubts)
    partly = Records(np.concatenate([scores(300)[:100], scores(200, 1)]))
    assert any("overlap" in note for note in from_scores(Records(scores(300)), partly).notes)
    assert not any("overlap" in note for note in from_scores(records(300), records(300, 1)).notes)


@pytest.mark.parametrize(
    ("wrong", "labels", "message"),
    [
        (np.random.default_rng(0).normal(size=(200, K)), None, "logits"),
        (np.random.default_rng(0).uniform(1, 9, size=(200, K)), None, "logits"),
        (np.full((200, K), np.nan), None, "members: .*NaN"),
        (np.full((200, 1), 1.0), None, "at least 2 classes"),
        (np.full((2, 3, 4), 0.25), None, "dimensions"),
        (np.zeros((200, K), dtype=int), None, "floating"),
        (scores(200), np.zeros(199, dtype=int), "expected 200 of them"),
        (scores(200), np.full(200, K), "of a class, 0 to 3"),
        (scores(200), np.full(200, -1), "of a class, 0 to 3"),
        (scores(200), np.full(200, 0.5), "of a class, 0 to 3"),
    ],
)
def test_bad_input_is_refused_in_one_line(wrong, labels, message):
    with pytest.raises(ValueError, match=message) as caught:
        checked("members", wrong, labels)
    assert "\n" not in str(caught.value)


def test_classes_must_agree():
    other = Records(np.random.default_rng(0).dirichlet(np.full(K + 1, 1.0), 300))
    with pytest.raises(ValueError, match="same number of classes"):
        from_scores(records(300), other)


class Nearest:
    """A model that knows its training set by heart."""

    def fit(self, x, y):
        self.x, self.y = x, y

    def predict_proba(self, x):
        distance = np.abs(x[:, None, 0] - self.x[None, :, 0])
        sure = 1 / (1 + distance.min(axis=1))
        out = np.repeat((1 - sure[:, None]) / (K - 1), K, axis=1)
        out[np.arange(len(x)), self.y[distance.argmin(axis=1)]] = sure
        return out


def data(rows, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, 2)), rng.integers(0, K, rows)


def test_a_model_is_asked_and_a_shadow_trained():
    target = Nearest()
    members, nonmembers = data(300, 0), data(300, 1)
    target.fit(*members)
    subject = from_model(Model(target, Nearest, data(400, 2)), members, nonmembers)
    assert len(subject.shadow.members) == 200
    assert subject.target.members.scores.max(axis=1).mean() > subject.target.nonmembers.scores.max(axis=1).mean()
    with pytest.raises(ValueError, match="architecture"):
        Model(target, auxiliary=data(400, 2))
    with pytest.raises(ValueError, match="fit and predict_proba"):
        from_model(Model(target, dict, data(400, 2)), members, nonmembers)


def test_a_model_that_returns_logits_is_told_so():
    with pytest.raises(ValueError, match="logits"):
        from_model(Model(lambda x: np.tile([2.0, -1.0, 0.5, 0.1], (len(x), 1))), data(200, 0), data(200, 1))


def test_objects_are_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_audited_model.py").write_text("def predict_proba(x):\n    return x\nnumber = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_predict("my_audited_model:predict_proba")(5) == 5
    for wrong, message in (
        ("my_audited_model", "package.module:name"),
        ("no_such_module:f", "can be imported"),
        ("my_audited_model:missing", "has no 'missing'"),
        ("my_audited_model:number", "to call"),
        ("missing.onnx", "no .onnx file at missing.onnx"),
    ):
        with pytest.raises(ValueError, match=message):
            load_predict(wrong)
    assert load_object("my_audited_model:number") == 3


def test_an_onnx_model_gives_its_scores(tmp_path):
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    x, y = data(300, 0)
    model = LogisticRegression().fit(x, y)
    path = tmp_path / "model.onnx"
    path.write_bytes(to_onnx(model, x[:1].astype(np.float32), options={"zipmap": False}).SerializeToString())
    assert load_predict(str(path))(x) == pytest.approx(model.predict_proba(x), abs=1e-5)
