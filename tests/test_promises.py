"""The ε that attacks prove never passes an honest promise, and passes one that is broken."""

import json
from dataclasses import replace

import numpy as np
import pytest

from scoreveil import Veil, cli
from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.report import evidence, page
from scoreveil.audit.report.sentences import broken_promises, sentences
from scoreveil.audit.study import run
from scoreveil.audit.study.promises import cells, proof
from scoreveil.audit.study.results import from_json, to_json
from scoreveil.audit.study.subjects import from_scores
from scoreveil.audit.verdict import verdict
from synthetic_study import make_study

K = 4


def side(rng, rows, gain):
    labels = rng.integers(K, size=rows)
    logits = rng.normal(size=(rows, K))
    logits[np.arange(rows), labels] += rng.gamma(2, gain, size=rows)
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Records(scores / scores.sum(axis=1, keepdims=True), labels)


def world(seed, rows):
    """A target and a shadow that are far surer of their members."""
    rng = np.random.default_rng(seed)
    return [Membership(side(rng, rows, 3.0), side(rng, rows, 0.3)) for _ in range(2)]


def test_a_mechanism_that_says_a_half_and_draws_with_four_is_found_out():
    target, shadow = world(0, 600)
    honest, broken = (
        proof(0.5, "label", target, shadow, Veil(drawn, rng=np.random.default_rng(1)), 0) for drawn in (0.5, 4.0)
    )
    assert honest.proved_epsilon <= 0.5
    assert 0.5 < broken.proved_epsilon <= 4.0


def randomized_response(epsilon, rng):
    """The tightest answer that ε allows: whether the top score is above .7, and the truth e^ε times as likely."""

    def defense(scores):
        truth = rng.random(len(scores)) < 1 / (1 + np.exp(-epsilon))
        confidence = np.where((scores.max(axis=1) > 0.7) == truth, 0.9, 0.5)
        answers = np.repeat((1 - confidence)[:, None], 2, axis=1)
        answers[np.arange(len(scores)), scores.argmax(axis=1)] = confidence
        return answers

    return defense


def sharp(rows):
    """Members and others that the response tells apart as well as can be."""
    labels = np.arange(rows) % 2
    sides = [np.where(labels[:, None] == np.arange(2), top, 1 - top) for top in (0.8, 0.6)]
    return Membership(*(Records(scores) for scores in sides))


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_the_tightest_honest_mechanism_is_not_accused_and_nearly_reached(epsilon):
    given = sharp(120)
    found = [
        proof(epsilon, "label", given, given, randomized_response(epsilon, np.random.default_rng(seed)), seed)
        for seed in range(12)
    ]
    assert sum(one.proved_epsilon > epsilon for one in found) <= 1
    assert np.median([one.proved_epsilon for one in found]) > (0.6 * epsilon if epsilon >= 1 else -1)


def test_what_the_label_tells_is_not_held_against_a_veil():
    """Members have other labels than others, and are more often right: the answer adds nothing."""
    rng = np.random.default_rng(2)
    flat = np.full(K, 0.1)

    def one(classes, right):
        label = rng.choice(K, size=800, p=classes)
        scores = np.tile(flat, (800, 1))
        scores[np.arange(800), label] = 0.7
        return Records(scores, np.where(rng.random(800) < right, label, (label + 1) % K))

    target = Membership(one([0.7, 0.1, 0.1, 0.1], 1.0), one([0.1, 0.1, 0.1, 0.7], 0.5))
    found = proof(0.1, "label", target, target, Veil(0.1, rng=rng), 0)
    assert found.proved_epsilon <= 0.1


def test_cells_share_what_is_kept_and_told():
    scores = np.array([[0.6, 0.3, 0.1], [0.6, 0.1, 0.3], [0.1, 0.6, 0.3]])
    given = Membership(Records(scores, np.array([0, 0, 1])), Records(scores, np.array([0, 1, 1])))
    for kept, told, same in (("label", False, 2), ("label", True, 3), ("ranking", False, 3), ("ranking", True, 4)):
        inside, outside = cells(given, kept, told)
        assert len({*inside.tolist(), *outside.tolist()}) == same, (kept, told)
        assert inside[0] == outside[0]
        assert (inside[1] == outside[1]) == (not told)


def test_too_few_of_one_kind_prove_nothing():
    rng = np.random.default_rng(3)
    given = Membership(*(Records(rng.dirichlet(np.ones(10), 200)) for _ in range(2)))
    assert proof(1.0, "ranking", given, given, Veil(1.0, keep="all", rng=rng), 0).proved_epsilon is None


def test_a_study_holds_each_promise_against_attacks(tmp_path, monkeypatch):
    target, _ = world(4, 700)
    subject = from_scores(target.members, target.nonmembers)
    settings = run.grid(("isotonic", "regions", "published"), (0.5,))
    plan = run.StudyPlan(settings, ("max_confidence", "label_floor"), jobs=1)
    found = run.run(subject, plan, cache=tmp_path)
    promised = {d.defense: d.promised_epsilon for d in found.defenses}
    assert promised == {"none": None, "isotonic": 0.5, "regions": 0.5, "published": None}
    assert not any(d.breaks_promise for d in found.defenses)
    assert run.run(subject, plan, cache=tmp_path).defenses == found.defenses
    assert from_json(to_json(found)).defenses == found.defenses

    # a mechanism that draws with another ε than it says
    lying = replace(DEFENSES["isotonic"], make=lambda given: Veil(8.0, rng=np.random.default_rng(given.seed)))
    monkeypatch.setitem(DEFENSES, "isotonic", lying)
    caught = {d.defense: d for d in run.run(subject, plan).defenses}
    assert caught["isotonic"].breaks_promise
    assert not caught["regions"].breaks_promise


def test_the_command_ends_with_a_broken_promise(tmp_path, monkeypatch, capsys):
    target, _ = world(5, 700)
    np.save(tmp_path / "in.npy", target.members.scores)
    np.save(tmp_path / "out.npy", target.nonmembers.scores)
    words = ["audit", "scores", "--members", tmp_path / "in.npy", "--nonmembers", tmp_path / "out.npy", "--jobs", "1"]
    words += ["--defenses", "isotonic", "--epsilon", "0.5", "--attacks", "max_confidence,label_floor"]
    lying = replace(DEFENSES["isotonic"], make=lambda given: Veil(8.0, rng=np.random.default_rng(given.seed)))
    for defense, code in ((DEFENSES["isotonic"], 0), (lying, 3)):
        monkeypatch.setitem(DEFENSES, "isotonic", defense)
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        said = capsys.readouterr().out
        assert ended.value.code == code
        assert ("PROMISE BROKEN: isotonic, ε = 0.5 promises" in said) == (code == 3)
        assert said.splitlines()[-1].startswith("Gate shut: 1 of the settings") == (code == 3)


def with_proofs(**proved):
    study = make_study(n=2000, rivals={})
    defenses = tuple(
        replace(d, promised_epsilon=d.epsilon, proved_epsilon=proved.get(d.defense, 0.01))
        if d.defense in ("isotonic", "regions")
        else d
        for d in study.defenses
    )
    return replace(study, defenses=defenses)


def test_a_kept_promise_is_a_line_of_evidence_and_a_row():
    study = with_proofs(regions=0.07)
    said = verdict(study)
    assert said.recommended is not None
    veil = f"the fitted veil with ε = {said.recommended[1]:g}"
    assert any(f"Of the ε that {veil} promises, attacks prove .07" in sentence for sentence in sentences(said))
    assert broken_promises(study) == []
    table = evidence.promises(study, said.recommended)
    assert {cells[3].text for cells in table.rows} == {"not contradicted"}
    assert table.rows[table.marked][0].text == "fitted veil"
    assert 'class="broken"' not in page.html(study, said)
    assert evidence.promises(make_study(n=2000), None) is None


def test_a_broken_promise_is_said_in_red_and_last():
    study = with_proofs(isotonic=0.9)
    said = verdict(study)
    assert "isotonic, ε = 0.5 promises ε = 0.5, and attacks prove .90" in sentences(said)[-1]
    text = page.html(study, said)
    assert text.count('<p class="broken">PROMISE BROKEN') == 1
    assert [c[3].text for c in evidence.promises(study, None).rows].count("BROKEN") == 1
    assert json.loads(to_json(study))["defenses"]
