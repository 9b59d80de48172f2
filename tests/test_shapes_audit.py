"""Audits of one column and of many labels: a verdict on each label, and on all together."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from scoreveil import Veil, audit
from scoreveil.audit.attacks.multi_label import ON_WHOLE_ANSWERS
from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.report import multi_label as report
from scoreveil.audit.study.metrics import auc
from scoreveil.audit.study.results import LABEL, UNDEFENDED, from_json
from scoreveil.audit.verdict import excess, leaks
from scoreveil.cli import main
from scoreveil.fitting.decision import LEAKS, NO_MORE, UNDECIDED, Bounded
from scoreveil.shapes import Binary, MultiLabel, PerPosition, TopK

pytestmark = pytest.mark.slow

NAMES = ("safe", "leaky")


def answers(rows, seed, sure):
    """Two labels: the first as sure of members as of others, the second surer of members."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (rows, 2))
    truth = (rng.random((rows, 2)) < 1 / (1 + np.exp(-logits))).astype(int)
    return 1 / (1 + np.exp(-logits * np.array([1.0, sure]))), truth


@pytest.fixture(scope="module")
def sides():
    return *answers(1500, 0, 2.0), *answers(1500, 1, 1.0)


@pytest.fixture(scope="module")
def found(sides):
    inside, y_in, outside, y_out = sides
    tables = (pd.DataFrame(each, columns=NAMES) for each in (inside, outside))
    return audit.run(*tables, y_in, y_out, shape=MultiLabel(), epsilon=(None, 4.0), jobs=1)


def judged(found, evidence):
    """The audit with other evidence."""
    return replace(found, study=replace(found.study, evidence=tuple(evidence)))


def test_the_label_that_leaks_comes_first_and_the_other_does_not_leak(found):
    whole, leaky, safe = report.by_label(found.studies)
    assert (leaky.name, leaky.excess.outcome) == ("leaky", LEAKS)
    assert safe.excess.outcome in (NO_MORE, UNDECIDED)
    assert (whole.name, whole.excess.outcome) == (report.WHOLE, LEAKS)
    assert found.outcome == LEAKS
    assert found.sentences[0] == "Take the fitted veil."
    assert any("Of 2 labels 1 leaks" in sentence for sentence in found.sentences)
    assert "The worst label is 'leaky'" in str(found)


def test_each_label_is_an_ordinary_audit(found, sides):
    assert {name: one.outcome for name, one in found.labels.items()}["leaky"] == LEAKS
    leaky = found.labels["leaky"]
    assert leaky.sentences[0] == "Take the fitted veil."
    assert leaky.risks is not None
    assert isinstance(leaky.veil.shape, Binary)
    assert ((leaky.veil(sides[0][:, 1]) >= 0.5) == (sides[0][:, 1] >= 0.5)).all()


def test_behind_the_veil_less_leaks_and_the_veil_to_take_is_that_of_all_labels(found, sides):
    assert found.recommended == ("regions", None)
    before, behind = (
        {row.name: row.excess.value for row in report.rows(found.studies, setting)}
        for setting in (UNDEFENDED, found.recommended)
    )
    assert behind["leaky"] < before["leaky"] / 2
    assert behind[report.WHOLE] < before[report.WHOLE] / 2
    assert isinstance(found.veil.shape, MultiLabel)
    assert ((found.veil(sides[0]) >= 0.5) == (sides[0] >= 0.5)).all()


def test_with_an_epsilon_its_sum_is_said(found):
    plain, with_epsilon = found.study.evidence
    said = judged(found, (replace(plain, confidences=1), with_epsilon))
    assert said.recommended == ("regions", 4.0)
    assert any("ε = 4 for each label, 8 for an answer" in sentence for sentence in said.sentences)
    constant = (replace(one, confidences=1) for one in found.study.evidence)
    assert judged(found, constant).recommended == LABEL


def test_where_the_veil_is_worth_no_more_than_yes_or_no_these_are_recommended(found):
    said = judged(found, (replace(one, worth=Bounded(0.0, -0.01, 0.01)) for one in found.study.evidence))
    assert said.recommended == LABEL
    assert said.sentences[0].startswith("Publish labels only: ")


def test_bounds_are_wider_where_more_verdicts_are_given(found):
    one = excess(leaks(found.studies.labels["leaky"], UNDEFENDED))
    shared = report.by_label(found.studies)[1].excess
    assert shared.value == one.value
    assert shared.low < one.low < one.high < shared.high


def test_it_writes_one_page_and_the_veil(found, tmp_path):
    page = found.write(tmp_path / "seen").read_text(encoding="utf-8")
    assert "1 of 2 labels leak." in page
    assert page.index("all labels together</td>") < page.index(">leaky</td>") < page.index(">safe</td>")
    assert Veil.load(tmp_path / "seen" / "veil.json").guarantee == found.veil.guarantee
    results = json.loads((tmp_path / "seen" / "results.json").read_text(encoding="utf-8"))
    assert list(results["labels"]) == list(NAMES)
    assert from_json(json.dumps(results["labels"]["leaky"])) == found.studies.labels["leaky"]
    assert results["whole"]["meta"]["records"]["labels"] == 2
    assert "leaky" in found._repr_html_()


def test_what_labels_have_in_common_is_found_by_the_attack_on_all_of_them():
    """Each label by itself is as sure of members as of others; members are sure of both, or of none."""
    rng = np.random.default_rng(0)

    def side(rows, alike):
        sure = rng.choice([0.6, 0.99], (rows, 2))
        sure[:, 1] = np.where(rng.random(rows) < alike, sure[:, 0], sure[:, 1])
        yes = np.where(rng.random((rows, 2)) < 0.5, sure, 1 - sure)
        return Records(np.stack([1 - yes, yes], axis=2))

    shadow, target = (Membership(side(800, 1.0), side(800, 0.0)) for _ in range(2))
    forest = next(attack for attack in ON_WHOLE_ANSWERS if attack.name == "random_forest")
    said = forest.fit(shadow, "scores", rng)(target.records)
    assert auc(target.truth, said)[0] > 0.7
    for label in range(2):
        members, others = (each.scores[:, label].max(axis=1) for each in (target.members, target.nonmembers))
        assert abs(auc(target.truth, np.concatenate([members, others]))[0] - 0.5) < 0.06


def test_one_column_is_audited_as_two_classes_and_its_veil_takes_one_column(sides):
    inside, y_in, outside, y_out = (each[:, 1] for each in sides)
    quick = {"defenses": ("regions",), "epsilon": (None,), "attacks": ("max_confidence", "label_floor"), "jobs": 1}
    found = audit.run(inside, outside, y_in, y_out, shape=Binary(0.3), **quick)
    assert found.outcome == LEAKS
    assert any("threshold 0.3" in note for note in found.study.notes)
    assert ((found.veil(outside) >= 0.3) == (outside >= 0.3)).all()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"shape": TopK()}, "whole score vectors"),
        ({"shape": PerPosition()}, "one place at a time"),
        ({"shape": Binary()}, "one column"),
    ],
)
def test_what_is_not_audited_is_refused_and_the_way_is_said(sides, more, told):
    with pytest.raises(ValueError, match=told):
        audit.run(sides[0], sides[2], **more)


def test_the_command_says_the_same_and_shuts_its_gate(sides, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    inside, y_in, outside, y_out = sides
    for name, scores, truth in (("in", inside, y_in), ("out", outside, y_out)):
        frame = pd.DataFrame(scores[:600], columns=[f"p_{each}" for each in NAMES])
        pd.concat([frame, pd.DataFrame(truth[:600], columns=NAMES)], axis=1).to_csv(f"{name}.csv", index=False)
    files = "--members in.csv --nonmembers out.csv --member-labels in.csv --nonmember-labels out.csv --columns p_*"
    options = "--shape multi_label --epsilon 1 --jobs 1 -o seen --setting none --fail-over auc=0.55"
    with pytest.raises(SystemExit) as ended:
        main(f"audit scores {files} {options}".split())
    shown = capsys.readouterr().out
    assert ended.value.code == 3
    assert "The worst label is 'p_leaky'" in shown
    assert "Gate shut" in shown
    assert (tmp_path / "seen" / "report.html").exists()
