"""One decision: what follows from the evidence, and that the evidence finds what there is."""

import itertools
import re

import numpy as np
import pytest

from scoreveil import Smoothing, fit
from scoreveil.files.records import Scored
from scoreveil.fitting.cost import ScoredAnswers
from scoreveil.fitting.decision import (
    LEAKS,
    MARGIN,
    NO_MORE,
    Advice,
    Bounded,
    Evidence,
    Excess,
    decide,
    preferred,
    sentences,
)
from scoreveil.fitting.evidence import evidence, leak, may_be_fitted_on, options_of

LEAK, NONE, OPEN = Excess(0.3, 0.25, 0.35), Excess(0.0, -0.01, 0.01), Excess(0.01, -0.03, 0.05)
BETTER, NO_BETTER = Bounded(0.05, 0.02, 0.08), Bounded(0.01, -0.02, 0.04)


def measured(**changes):
    settled = {"leak": LEAK, "veiled": NONE, "worth": BETTER, "confidences": 6, "epsilon": None, "records": (400, 500)}
    return Evidence(**{**settled, **changes})


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, Advice.TAKE_VEIL),
        ({"epsilon": 4.0, "veiled": OPEN}, Advice.TAKE_VEIL),
        ({"worth": NO_BETTER}, Advice.LABELS_ONLY),
        ({"veiled": LEAK}, Advice.LABELS_ONLY),
        ({"leak": NONE}, Advice.RAW_SCORES),
        ({"leak": NONE, "confidences": 1}, Advice.RAW_SCORES),
        ({"leak": OPEN}, Advice.MORE_RECORDS),
        ({"worth": None}, Advice.GIVE_LABELS),
        ({"leak": None, "veiled": None}, Advice.GIVE_MEMBERS),
    ],
)
def test_what_follows_from_the_evidence(changes, advice):
    assert decide(measured(**changes)) is advice


@pytest.mark.parametrize("worth", [None, BETTER, NO_BETTER])
def test_a_constant_veil_is_never_recommended(worth):
    assert decide(measured(confidences=1, worth=worth)) is Advice.LABELS_ONLY


def test_no_epsilon_comes_before_any_and_the_first_that_is_worth_more_is_preferred():
    tried = tuple(measured(epsilon=epsilon) for epsilon in (1.0, None, 4.0))
    assert preferred(tried).epsilon is None
    assert preferred((tried[0], tried[2])).epsilon == 4
    assert preferred((measured(worth=NO_BETTER), tried[0])).epsilon == 1
    assert preferred((measured(worth=NO_BETTER), measured(epsilon=1.0, worth=NO_BETTER))).epsilon is None


def test_attacks_of_an_audit_count_where_they_surely_find_more():
    assert OPEN.joined(LEAK) == NONE.joined(LEAK) == LEAK
    assert LEAK.joined(Excess(0.4, 0.1, 0.7)) == LEAK
    assert NONE.joined(OPEN) == NONE
    assert OPEN.joined(NONE) == OPEN.joined(None) == OPEN


def test_a_sentence_has_25_words_at_most_and_none_of_worth_without_labels():
    kinds = itertools.product((LEAK, NONE, OPEN, None), (LEAK, NONE), (None, BETTER, NO_BETTER), (1, 6), (None, 0.5))
    for raw, veiled, worth, confidences, epsilon in kinds:
        said = sentences(measured(leak=raw, veiled=veiled, worth=worth, confidences=confidences, epsilon=epsilon))
        for sentence in itertools.chain(*(re.split(r"(?<=[.:]) ", each) for each in said)):
            assert len(sentence.split()) <= 25, sentence
        assert worth is not None or "log-loss" not in " ".join(said)


@pytest.mark.parametrize("raw", [LEAK, NONE, OPEN])
def test_where_scores_are_smoothed_nothing_is_said_about_raw_ones(raw):
    said = " ".join(sentences(measured(leak=raw, smoothed=True)))
    assert "smoothed scores" in said
    assert "raw" not in said


# The evidence


def side(rows, seed, sure):
    """Scores of three classes, right as often as they say; then sharper, as those of members are."""
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(3, 0.6), rows)
    labels = (rng.random((rows, 1)) < scores.cumsum(axis=1)).argmax(axis=1)
    sharper = scores**sure
    return sharper / sharper.sum(axis=1, keepdims=True), labels


@pytest.fixture(scope="module")
def leaking():
    return *side(1000, 0, 1.0), *side(1000, 1, 3.0)


def test_a_leak_is_found_and_the_veil_is_taken(leaking):
    found = evidence(fit(*leaking, rng=np.random.default_rng(0)), *leaking)
    assert found.leak.low > 0.1
    assert found.veiled.value < found.leak.value / 4
    assert decide(found) is Advice.TAKE_VEIL
    assert evidence(fit(*leaking, rng=np.random.default_rng(0)), *leaking) == found, "nothing in it is left to chance"


def test_without_labels_the_leak_is_found_and_nothing_is_said_about_worth(leaking):
    others, _, members, _ = leaking
    found = evidence(fit(others, members=members, rng=np.random.default_rng(0)), others, members=members)
    assert found.leak.outcome == LEAKS
    assert found.worth is None
    assert decide(found) is Advice.GIVE_LABELS


def test_without_members_there_is_no_advice(leaking):
    others, labels, _, _ = leaking
    with pytest.warns(UserWarning, match="No members"):
        veil = fit(others, labels, rng=np.random.default_rng(0))
    assert decide(evidence(veil, others, labels)) is Advice.GIVE_MEMBERS


def answers(rng, rows, right=(0.7, 0.7), sure=(1.0, 1.0)):
    """Raw answers about others and members, who are right so often and so sure."""
    sides = []
    for chance, scale in zip(right, sure, strict=True):
        scores = rng.dirichlet(np.full(4, 0.5 / scale), rows)
        labels = np.where(rng.random(rows) < chance, scores.argmax(axis=1), scores.argmin(axis=1))
        sides.append(Scored(scores, labels))
    folds = np.arange(rows) % 5
    return ScoredAnswers(*sides, {"raw": sides[0].said}, {"raw": sides[1].said}, folds, folds)


def test_what_the_label_tells_is_no_leak_of_the_confidence():
    """Members are right more often, and no surer: the bounds are wrong in 2.5 % of cases at most."""
    rng = np.random.default_rng(0)
    outcomes = [leak(answers(rng, 200, right=(0.7, 0.95)), "raw").outcome for _ in range(100)]
    assert outcomes.count(LEAKS) <= 5
    assert leak(answers(rng, 20_000), "raw").outcome == NO_MORE


def test_a_leak_at_the_margin_is_seldom_called_none():
    rng = np.random.default_rng(1)
    surer = [leak(answers(rng, 2000, sure=(1.0, 1.2)), "raw") for _ in range(30)]
    assert np.mean([each.value for each in surer]) > MARGIN
    assert [each.outcome for each in surer].count(NO_MORE) <= 3


def test_beyond_correctness_only_who_knows_the_truth_counts():
    """The confidence tells whether the label is right, and nothing more; members are right more often."""
    rng = np.random.default_rng(2)
    sides = []
    for chance in (0.6, 0.95):
        right = rng.random(3000) < chance
        top = np.where(right, 0.9, 0.5)
        scores = np.column_stack([top, 1 - top - 0.01, np.full(3000, 0.01)])
        sides.append(Scored(scores, np.where(right, 0, 1)))
    folds = np.arange(3000) % 5
    given = ScoredAnswers(*sides, {"raw": sides[0].said}, {"raw": sides[1].said}, folds, folds)
    assert leak(given, "raw", "label").outcome == LEAKS
    assert leak(given, "raw", "correctness").outcome == NO_MORE


def test_the_evidence_of_a_veil_for_smoothed_scores_says_so(leaking):
    veil = fit(*leaking, rng=np.random.default_rng(0), smoothing=Smoothing(2, typical=leaking[0]))
    assert evidence(veil, *leaking).smoothed


def test_a_veil_knows_how_many_records_it_was_fitted_on(leaking):
    veil = fit(*leaking, rng=np.random.default_rng(0))
    assert may_be_fitted_on(veil, members=1000, nonmembers=1000)
    assert not may_be_fitted_on(veil, members=1000, nonmembers=999)
    new = (*side(900, 5, 1.0), *side(900, 6, 3.0))
    held_out = evidence(veil, *new, held_out=True, **options_of(veil))
    assert held_out.records == (900, 900)
    assert held_out.veiled.value < held_out.leak.value / 4
