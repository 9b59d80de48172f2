"""The audit in Python: arrays and tables in, a verdict and a veil out."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from scoreveil import Veil, audit
from scoreveil.audit.report import summary
from scoreveil.audit.study.results import UNDEFENDED, from_json
from scoreveil.audit.verdict import verdict
from synthetic_study import make_study

pytestmark = pytest.mark.slow

NAMES = ("wolf", "bear", "lynx")
QUICK = {
    "defenses": ("regions",),
    "epsilon": (None, 2.0),
    "attacks": ("max_confidence", "true_confidence", "label_floor", "label_floor_known"),
    "jobs": 1,
}


def side(rows, seed, sure):
    """Scores that are the more peaked the surer the model is, and labels that it gets right as often as it says."""
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(len(NAMES), 0.25 / sure), rows)
    return scores, (rng.random((rows, 1)) < scores.cumsum(axis=1)).argmax(axis=1)


@pytest.fixture(scope="module")
def sides():
    return side(1500, 0, 1.0), side(1500, 1, 0.5)


@pytest.fixture(scope="module")
def found(sides):
    (inside, y_in), (outside, y_out) = sides
    return audit.run(inside, outside, y_in, y_out, **QUICK)


def test_it_says_what_leaks_and_has_the_veil_to_take(found, sides):
    assert found.outcome == "leaks"
    assert found.recommended == ("regions", None)
    assert found.sentences[0] in str(found)
    assert "No shadow was given" in str(found)
    assert isinstance(found.veil, Veil)
    assert not found.veil.is_constant
    assert found.veil.guarantee.advantage < 0.2
    given = sides[1][0]
    assert (found.veil(given).argmax(axis=1) == given.argmax(axis=1)).all()


def test_it_writes_the_report_and_the_veil(found, tmp_path):
    page = found.write(tmp_path / "seen")
    assert "Take the fitted veil." in page.read_text(encoding="utf-8")
    assert from_json((tmp_path / "seen" / "results.json").read_text(encoding="utf-8")) == found.study
    assert Veil.load(tmp_path / "seen" / "veil.json").guarantee == found.veil.guarantee


def test_a_notebook_shows_the_verdict_and_a_small_table(found):
    shown = found._repr_html_()
    assert "<b>The scores: leaks.</b>" in shown
    for cell in ("no defense", "fitted veil", "the label alone", "AUC, with the true label"):
        assert f">{cell}</t" in shown
    assert shown.count("<tr>") == 4


def test_what_a_notebook_shows_is_escaped():
    study = make_study()
    top = verdict(study).undefended
    named = replace(
        study,
        results=tuple(
            replace(r, attack="<script>") if (r.attack, r.setting) == (top.attack, UNDEFENDED) else r
            for r in study.results
        ),
    )
    shown = summary.html(named, verdict(named))
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_where_nothing_leaks_there_is_no_veil():
    (inside, _), (outside, _) = side(400, 5, 1.0), side(400, 6, 1.0)
    found = audit.run(inside, outside, **QUICK)
    assert found.outcome != "leaks"
    assert found.recommended is None
    assert found.veil is None


def test_tables_tensors_and_names_give_the_same_numbers(found, sides):
    """Each side in another form: a DataFrame with other columns, and a tensor; labels by name."""
    (inside, y_in), (outside, y_out) = sides
    frame = pd.DataFrame(inside, columns=[f"p_{name}" for name in NAMES]).assign(id="x")
    labels = pd.Series(NAMES)[y_in], np.array(NAMES)[y_out]
    other = pd.DataFrame(outside, columns=[f"p_{name}" for name in NAMES])
    tables = audit.run(frame, other, *labels, columns="p_*", **QUICK)
    tensors = audit.run(torch.tensor(inside), torch.tensor(outside), y_in.tolist(), torch.tensor(y_out), **QUICK)
    expected = [(r.setting, r.attack, r.form, r.auc) for r in found.study.results]
    for each in (tables, tensors):
        assert [(r.setting, r.attack, r.form, r.auc) for r in each.study.results] == expected
    assert any("'wolf', 'bear', 'lynx', by the names of the columns" in note for note in tables.study.notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nonmember_labels": None}, "got none for nonmembers"),
        ({"members": None}, "Expected scores of members"),
        ({"shadow": (np.full((200, 3), 1 / 3), None)}, "both sides of a shadow"),
        ({"shadow": (None, None, np.zeros(200), None)}, "shadow members, got their labels alone"),
        ({"defenses": ("region",)}, "did you mean regions"),
        ({"members": pd.DataFrame({"a": [0.5] * 200, "b": [0.5] * 200, "c": ["x"] * 200})}, "columns= .*got 'c'"),
        ({"columns": "p_*"}, "these are an array"),
        ({"member_labels": ["wolf"] * 1500}, "numbers of classes on every side"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_words(sides, change, message):
    (inside, y_in), (outside, y_out) = sides
    given = {"members": inside, "nonmembers": outside, "member_labels": y_in, "nonmember_labels": y_out, **QUICK}
    with pytest.raises(ValueError, match=message):
        audit.run(**{**given, **change})
