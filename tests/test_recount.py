"""The regions counted again on given records."""

import math
from dataclasses import replace

import numpy as np
import pytest

from populations import Population
from scoreveil import Veil, fit
from scoreveil.fitting.recount import Recount, Verdict, advantage, recount
from scoreveil.fitting.statement import leading
from scoreveil.mechanisms.promises import SIXTEENTHS, Attacker
from scoreveil.shapes import MultiLabel

CLASSES = 3


def draw(lead: float, count: int, seed: int, classes: int = CLASSES) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of a model that is the surer the larger the lead."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    logits = 1.5 * rng.normal(size=(count, classes))
    logits[np.arange(count), labels] += 2 + lead
    scores = np.exp(logits)
    return scores / scores.sum(axis=1, keepdims=True), labels


def sides(count: int, seed: int) -> tuple[np.ndarray, ...]:
    return *draw(0, count, seed), *draw(1, count, seed + 1)


@pytest.fixture(scope="module", params=[None, 0.4], ids=["estimate", "certified"])
def veil(request) -> Veil:
    return fit(*sides(2500, 0), certify=request.param, rng=np.random.default_rng(0))


@pytest.mark.parametrize("tells_label", [False, True])
def test_the_advantage_of_many_counts_is_the_one_that_is_stated_about(veil, tells_label):
    evidence = replace(veil.mechanism.evidence, tells_label=tells_label)
    counts = np.maximum(evidence.counts, 1)
    sizes = tuple(int(side.sum()) // SIXTEENTHS for side in counts)
    for side, size in zip(counts, sizes, strict=True):
        side[0, 0, 0] -= side.sum() - SIXTEENTHS * size  # whole records
    exact = replace(evidence, counts=counts, sizes=sizes, certified=False)
    for attacker in exact.attackers:
        found = advantage(np.stack([counts, counts]).astype(float), attacker, False, tells_label)
        assert found == pytest.approx([float(exact.shown(attacker))] * 2, abs=1e-12)
        without_bound = advantage(counts.astype(float), attacker, True, tells_label)
        assert without_bound <= found[0] + 1e-12, "what the confidence adds is at most the sum within groups"


def test_new_records_of_the_same_population_keep_the_promise(veil):
    found = recount(veil, *sides(2000, 10))
    assert {each.attacker for each in found} == set(veil.mechanism.evidence.attackers)
    for each in found:
        assert each.stated == veil.mechanism.evidence.stated(each.attacker)
        assert 0 <= each.low <= each.found <= each.high
        assert each.verdict in (Verdict.HELD, Verdict.OPEN)


def test_members_that_all_lie_in_one_region_exceed_it(veil):
    others, labels, _, _ = sides(2000, 10)
    _, region = veil.mechanism.read(others)
    chosen = np.flatnonzero(region == np.bincount(region).argmin())
    members = np.resize(chosen, 1000)
    found = recount(veil, others, labels, others[members], labels[members])
    alone = next(each for each in found if each.attacker is Attacker.ALONE)
    assert alone.verdict is Verdict.EXCEEDED
    assert alone.found == pytest.approx(1 - len(chosen) / len(others))


def test_the_interval_is_that_of_95_percent(veil):
    """Of a fixed attack it is 1.96 standard errors on either side."""
    others, labels, _, _ = sides(3000, 10)
    _, region = veil.mechanism.read(others)
    largest = np.bincount(region).argmax()
    mixed = np.concatenate([others[region == largest][:600], others[region != largest][:200]])
    truth = np.concatenate([labels[region == largest][:600], labels[region != largest][:200]])
    alone = next(each for each in recount(veil, others, labels, mixed, truth) if each.attacker is Attacker.ALONE)
    shares = (veil.mechanism.read(mixed)[1] == largest).mean(), (region == largest).mean()
    # the others' regions keep their order, so the attack may look at the region alone
    error = math.sqrt(sum(p * (1 - p) / n for p, n in zip(shares, (800, 3000), strict=True)))
    assert alone.found == pytest.approx(shares[0] - shares[1], abs=0.3 * error)
    assert (alone.found - alone.low) / error == pytest.approx(1.96, abs=0.2)
    assert (alone.high - alone.found) / error == pytest.approx(1.96, abs=0.2)


def test_members_whose_answers_have_other_labels_exceed_what_the_number_of_two_classes_may_tell():
    """Each label of two announces numbers of its own: who sees the number sees the label."""
    population, rng = Population("smooth", 2), np.random.default_rng(0)
    veil = fit(**population.records(1000, rng), rng=rng)
    found = recount(veil, **Population("rates", 2, 0.85).records(2000, rng))
    alone = next(each for each in found if each.attacker is Attacker.ALONE)
    assert alone.verdict is Verdict.EXCEEDED
    assert alone.found == pytest.approx(0.5, abs=0.05)


def test_few_records_of_two_sides_that_are_alike_exceed_nothing(veil):
    """By chance the best attack on them gains more than is stated; chosen on one half and tried on the other it does
    not."""
    found = [each for seed in range(20, 40, 2) for each in recount(veil, *draw(0, 60, seed), *draw(0, 60, seed + 1))]
    assert np.mean([each.found for each in found]) > 0.1
    assert np.mean([each.low for each in found]) < 0.01
    assert sum(each.verdict is Verdict.EXCEEDED for each in found) <= 1


@pytest.mark.parametrize(
    ("found", "low", "stated", "verdict"),
    [
        (0.05, 0.02, 0.05, Verdict.HELD),
        (0.06, 0.02, 0.05, Verdict.OPEN),
        (0.09, 0.06, 0.05, Verdict.EXCEEDED),
        (0.09, 0.06, None, Verdict.UNSTATED),
    ],
)
def test_a_verdict_is_held_exceeded_or_open(found, low, stated, verdict):
    assert Recount(Attacker.ALONE, found, low, 0.1, stated).verdict is verdict


def test_without_labels_only_what_needs_none_is_counted(veil):
    others, _, members, _ = sides(500, 10)
    found = recount(veil, others, members=members)
    assert {each.attacker for each in found} <= {Attacker.ALONE, Attacker.LABEL}


def test_of_many_labels_each_is_counted_by_itself():
    rng = np.random.default_rng(0)
    columns = [
        np.stack([draw(lead, 700, 2 * seed + bool(lead), 2)[0][:, 1] for seed in range(3)], 1) for lead in (0, 1)
    ]
    truths = [(rng.random(each.shape) < each).astype(int) for each in columns]
    veil = fit(columns[0], truths[0], columns[1], truths[1], shape=MultiLabel(), rng=rng)
    found = recount(veil, columns[0], truths[0], columns[1], truths[1])
    assert [each.label for each in found if each.attacker is Attacker.ALONE] == [0, 1, 2]
    with pytest.raises(ValueError, match="fitted for 3 labels; these scores have 2"):
        recount(veil, columns[0][:, :2], truths[0][:, :2], columns[1][:, :2], truths[1][:, :2])


def test_a_veil_without_members_states_nothing():
    others, labels, members, member_labels = sides(600, 0)
    with pytest.warns(UserWarning, match="No members"):
        veil = fit(others, labels, rng=np.random.default_rng(0))
    found = recount(veil, others, labels, members, member_labels)
    assert {each.verdict for each in found} == {Verdict.UNSTATED}


def test_what_cannot_be_counted_is_refused(veil):
    others, labels, members, member_labels = sides(100, 0)
    with pytest.raises(ValueError, match="Expected a fitted veil, got one of the isotonic"):
        recount(Veil(2.0), others, labels, members, member_labels)
    with pytest.raises(ValueError, match="Expected scores of members too"):
        recount(veil, others, labels)
    with pytest.raises(ValueError, match="fitted for 3 classes; these scores have 4"):
        recount(veil, draw(0, 50, 0, 4)[0], members=draw(1, 50, 1, 4)[0])


def test_the_leading_attacker_is_the_one_that_was_asked_about(veil):
    evidence = veil.mechanism.evidence
    assert leading(evidence) in (Attacker.LABEL, Attacker.ALONE)
    assert leading(replace(evidence, beyond="correctness")) in (Attacker.LABEL_AND_CORRECTNESS, Attacker.CORRECTNESS)
