"""The risk of each record: it means what it says, no record has a say in its own, and the files hold no score."""

import csv
import io
import json
import stat
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from pyarrow import parquet

from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.attacks.interface import Attack
from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.report import evidence, page, records, vulnerability
from scoreveil.audit.report.sentences import sentences
from scoreveil.audit.study.models import Model, from_model
from scoreveil.audit.study.risk import POOL, RecordRisks, best_quick, calibrated, record_risks, risk
from scoreveil.audit.verdict import verdict
from synthetic_study import make_study

SMALL = replace(make_study(n=2000, epsilons=(2.0,), rivals={}), inversions=(), originals=())
SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "schemas" / "vulnerability-1.json").read_text())


def side(rng, rows, top, classes=3):
    """Records whose label is drawn, and whose top score is drawn by `top`; the label is right as often as it says."""
    label, confidence = rng.integers(classes, size=rows), top(rng, rows)
    scores = np.repeat(((1 - confidence) / (classes - 1))[:, None], classes, axis=1)
    scores[np.arange(rows), label] = confidence
    return Records(scores, np.where(rng.random(rows) < confidence, label, (label + 1) % classes))


def sure(rng, rows):
    return 0.5 + 0.5 * rng.beta(3, 1, rows)  # density 3u² of u = 2c - 1


def unsure(rng, rows):
    return 0.5 + 0.5 * rng.beta(1, 1, rows)  # density 1


def posterior(given):
    """P(member | the top score), by Bayes at even odds."""
    u = 2 * given.records.scores.max(axis=1) - 1
    return 3 * u**2 / (3 * u**2 + 1)


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(0)
    return Membership(side(rng, 3000, sure), side(rng, 3000, unsure))


@pytest.fixture(scope="module")
def bare(given):
    return risk(given, ("none", None), ATTACKS["max_confidence"])


@pytest.fixture(scope="module")
def risks(given, bare):
    veiled = risk(given, ("regions", 2.0), ATTACKS["max_confidence"])
    by_label = risk(given, ("none", None), ATTACKS["label_floor_known"])
    return RecordRisks(given, "max_confidence", bare, by_label, ("regions", 2.0), "max_confidence", veiled)


def assert_calibrated(stated, truth):
    for low in (0.0, 0.2, 0.4, 0.6, 0.7):
        there = (stated >= low) & (stated < low + 0.2)
        if there.sum() >= 200:
            error = 3.5 * 0.5 / np.sqrt(there.sum())
            assert truth[there].mean() == pytest.approx(stated[there].mean(), abs=error + 0.01)


# What a risk means


def test_of_records_with_a_risk_of_about_80_percent_about_80_percent_are_members(given, bare):
    there = (bare.value > 0.7) & (bare.value < 0.9)
    assert there.sum() > 500
    assert given.truth[there].mean() == pytest.approx(bare.value[there].mean(), abs=0.05)
    assert_calibrated(bare.value, given.truth)


def test_the_risk_is_the_posterior_and_its_interval_covers_it(given, bare):
    exact = posterior(given)
    assert np.abs(bare.value - exact).mean() < 0.04
    assert ((bare.low <= exact) & (exact <= bare.high)).mean() > 0.85
    assert ((bare.low <= bare.value) & (bare.value <= bare.high)).all()


def test_it_is_at_even_odds_however_many_there_are_of_each_side():
    rng = np.random.default_rng(1)
    uneven = Membership(side(rng, 4000, sure), side(rng, 1000, unsure))
    assert np.abs(risk(uneven, ("none", None), ATTACKS["max_confidence"]).value - posterior(uneven)).mean() < 0.06


@pytest.mark.parametrize("setting", [("regions", 4.0), ("isotonic", 8.0)])
def test_behind_a_veil_what_is_stated_after_one_answer_is_calibrated_too(given, bare, setting):
    veiled = risk(given, setting, ATTACKS["max_confidence"])
    assert_calibrated(veiled.after_one, given.truth)
    assert ((veiled.low <= veiled.value) & (veiled.value <= veiled.high)).all()
    # less is stated about members behind it
    assert veiled.value[given.truth].mean() < bare.value[given.truth].mean() - 0.03


def test_where_nothing_leaks_every_risk_is_about_a_half():
    rng = np.random.default_rng(2)
    same = Membership(side(rng, 1000, sure), side(rng, 1000, sure))
    found = risk(same, ("none", None), ATTACKS["gradient_boosting"])
    assert np.abs(found.value - 0.5).mean() < 0.08
    assert ((found.low <= 0.5) & (found.high >= 0.5)).mean() > 0.7


def test_an_attack_that_learns_its_records_by_heart_gains_nothing():
    """In-sample it would be right about all; cross-fitted it knows none of those that it is asked about."""

    def by_heart(shadow, features, rng):
        known = {row.tobytes(): float(member) for row, member in zip(shadow.records.scores, shadow.truth, strict=True)}
        return lambda asked: np.array([known.get(row.tobytes(), 0.5) for row in asked.scores])

    rng = np.random.default_rng(3)
    same = Membership(side(rng, 600, sure), side(rng, 600, sure))
    assert by_heart(same, "scores", rng)(same.members).mean() == 1.0
    found = risk(same, ("none", None), Attack("by_heart", by_heart))
    np.testing.assert_allclose(found.value, 0.5, atol=0.01)


def test_no_record_is_asked_about_behind_a_veil_or_by_an_attack_that_was_fitted_on_it(monkeypatch):
    fitted, practised, asked = [], [], []

    def rows(scores):
        return {row.tobytes() for row in scores}

    def make(given):
        fitted.append(rows(given.known.records.scores))
        return lambda scores: scores

    def fit(shadow, features, rng):
        practised.append(rows(shadow.records.scores))

        def score(records):
            asked.append(rows(records.scores))
            return records.scores[:, 0]

        return score

    monkeypatch.setitem(DEFENSES, "regions", replace(DEFENSES["regions"], make=make, is_random=False))
    rng = np.random.default_rng(6)
    few = Membership(*(Records(rng.dirichlet(np.ones(3), 120)) for _ in range(2)))
    risk(few, ("regions", 1.0), Attack("spy", fit))
    assert len(fitted) == len(practised) == len(asked) == 3
    for veil, attack, part in zip(fitted, practised, asked, strict=True):
        assert len(part) == 80
        assert not veil & part
        assert not attack & part
        assert not attack & veil
    assert set.union(*asked) == rows(few.records.scores)


def test_a_risk_rests_on_enough_records_and_equal_scores_share_one():
    scores, truth = np.zeros((1, 4 * POOL)), np.arange(4 * POOL) % 4 > 0
    state = calibrated(scores, truth)
    value, low, high = state(np.array([[-1.0, 0.0, 1.0]]))
    assert np.ptp(value) == 0
    assert value[0, 0] == pytest.approx(0.5, abs=0.01)  # three of four, among three times as many
    assert low[0, 0] < 0.5 < high[0, 0]


def test_few_records_are_enough_to_say_little():
    rng = np.random.default_rng(4)
    few = Membership(side(rng, 100, sure), side(rng, 100, unsure))
    found = risk(few, ("regions", 1.0), ATTACKS["gradient_boosting_known"])
    assert (found.high - found.low).mean() > 0.1
    assert not np.isnan(found.value).any()


# Of a study


def test_the_attack_is_the_best_of_the_study_that_trains_no_network():
    study = make_study(n=1000)
    assert best_quick(study, ("none", None), True) == "random_forest_known"
    networks = replace(study, results=tuple(r for r in study.results if r.attack in ("ml_leaks", "nsh", "gap")))
    assert best_quick(networks, ("none", None), True) == "gradient_boosting_known"
    assert best_quick(networks, ("none", None), False) == "gradient_boosting"


def test_nothing_recommended_leaves_the_veiled_columns_empty(given):
    alone = Membership(Records(given.members.scores[:300]), Records(given.nonmembers.scores[:200]))
    study = make_study(n=300)
    study = replace(study, results=tuple(r for r in study.results if not r.knows_label and r.attack != "random_forest"))
    found = record_risks(alone, study, None)
    written = records.columns(found)
    assert set(written["veiled_risk"]) == set(written["right"]) == {None}
    assert None not in written["risk"]
    assert written["row"] == [*range(300), *range(200)]
    header, first, *_ = records.files(found)["records.csv"].decode().splitlines()
    assert header.split(",") == list(written)
    assert first.startswith("member,0,")
    assert ",,,," in first
    study = replace(SMALL, defenses=SMALL.defenses[:1])
    text = page.html(study, verdict(study), found)
    assert "The members most at risk" in text
    assert "risk behind" not in text


def test_rows_are_those_of_the_given_files_also_from_a_model():
    rng = np.random.default_rng(5)
    inside, outside = (rng.dirichlet(np.ones(3), 150) for _ in range(2))
    subject = from_model(Model(lambda x: x), (inside, inside.argmax(axis=1)), (outside, outside.argmin(axis=1)))
    np.testing.assert_array_equal(subject.given_records.members.scores, inside)
    np.testing.assert_array_equal(subject.given_records.nonmembers.scores, outside)
    np.testing.assert_array_equal(subject.given_records.nonmembers.labels, outside.argmin(axis=1))


# Files and tables


@pytest.fixture(scope="module")
def written(risks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    page.write(SMALL, folder, risks)
    return folder


def test_both_files_say_the_same_and_no_score(written, given, risks):
    rows = list(csv.DictReader(io.StringIO((written / "records.csv").read_text())))
    table = parquet.read_table(written / "records.parquet")
    assert table.num_rows == len(rows) == len(given.records)
    assert table.column_names == list(rows[0])
    assert [float(row["risk"]) for row in rows] == table["risk"].to_pylist()
    assert [row["right"] == "true" for row in rows] == table["right"].to_pylist() == given.records.is_right.tolist()
    assert table.schema.metadata[b"veiled by"] == "fitted veil, ε = 2".encode()
    assert table["side"].to_pylist() == ["member"] * 3000 + ["nonmember"] * 3000
    raw = {repr(float(v)) for v in given.records.scores[:200].ravel()}
    for file in written.glob("*.*"):
        content = file.read_bytes()
        assert not any(text.encode() in content for text in raw), file


@pytest.mark.posix
def test_the_files_that_tell_who_is_a_member_are_for_their_owner_alone(written):
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in written.glob("records.*")}
    assert modes == {"records.csv": 0o600, "records.parquet": 0o600}


def test_a_report_without_risks_takes_old_ones_away(tmp_path):
    for name in records.NAMES:
        (tmp_path / name).write_text("of another audit")
    page.write(SMALL, tmp_path)
    assert not list(tmp_path.glob("records.*"))
    assert json.loads((tmp_path / "vulnerability.json").read_text())["most_exposed"] is None


def test_the_page_shows_the_twenty_most_exposed_members_by_row_and_each_risk_once(written, risks):
    table = evidence.most_exposed(risks)
    named = [int(row) for cells in table.rows for row in cells[1].text.split(", ")]
    assert named == risks.rows[risks.most_exposed(20)].tolist()
    shown = [cells[0].value for cells in table.rows]
    assert shown == sorted(set(shown), reverse=True)
    assert shown[0] == risks.undefended.value[risks.given.truth].max()
    veiled = risks.veiled.value[risks.most_exposed(20)]
    assert max(cells[3].value for cells in table.rows) == veiled.max()
    # among equals the surer ones first: the risk alone would not tell
    tied = np.flatnonzero(risks.undefended.value[:3000] == shown[0])
    assert risks.undefended.place[risks.most_exposed(20)[0]] == risks.undefended.place[tied].max()
    text = (written / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "The members most at risk" in text
    assert "risk behind fitted veil, ε = 2" in text
    assert "Class by class" in text


def test_small_classes_are_too_few_and_large_ones_are_judged(given, risks):
    table = evidence.by_class(risks)
    assert [cells[0].text for cells in table.rows] == ["0", "1", "2"]
    bare, veiled = (float(table.rows[0][i].value) for i in (5, 6))
    assert bare > 0.65 > veiled
    ten = np.flatnonzero(given.members.predicted == 2)[10:]
    fewer = np.setdiff1d(np.arange(len(given.records)), ten)
    part = Membership(given.members.take(fewer[fewer < 3000]), given.nonmembers)
    cut = replace(risks.undefended, after_one=risks.undefended.after_one[fewer])
    assert evidence.by_class(RecordRisks(part, "", cut, cut)).rows[2][5].text == "too few"


# For programs


def test_the_summary_follows_its_schema(written, risks):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    found = json.loads((written / "vulnerability.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert found["schema"] == SCHEMA["$id"] == vulnerability.SCHEMA
    assert [r["row"] for r in found["most_exposed"]] == risks.most_exposed(20).tolist()
    assert found["verdict"]["outcome"] == "leaks"
    assert {s["defense"] for s in found["settings"]} >= {"none", "regions", "isotonic"}
    bad = {**found, "scores": [[0.1, 0.9]]}
    with pytest.raises(jsonschema.ValidationError, match="scores"):
        jsonschema.validate(bad, SCHEMA)


@pytest.mark.parametrize("n", [200, 40_000])
def test_the_summary_says_what_the_verdict_says(n):
    study = make_study(n=n)
    said = verdict(study)
    found = vulnerability.summary(study, said, None)
    jsonschema.validate(json.loads(json.dumps(found)), SCHEMA)
    assert found["verdict"]["sentences"] == list(sentences(said))
    where = {(s["defense"], s["epsilon"]): s for s in found["settings"]}
    told, untold = (
        next(a for a in where["none", None]["attackers"] if a["told_true_label"] is t) for t in (True, False)
    )
    assert told["auc"]["value"] == said.undefended.auc
    assert untold["floor_auc"] < told["floor_auc"] < told["auc"]["value"]
    assert (told["tpr_at_1_percent"] is None) == (n < 1000)
    if said.recommended is not None:
        assert (found["recommendation"]["defense"], found["recommendation"]["epsilon"]) == said.recommended
