"""Fitted veils: the promises hold exactly, no table is better, and what is stated holds for new records."""

import itertools
import math
import time
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from channel_tools import WHOLE, Population, check_epsilon, shown_advantage
from scoreveil import Veil, fit
from scoreveil.fitting import attackers, best_table, histograms, program, rounding
from scoreveil.mechanisms import promises
from scoreveil.mechanisms.channel import Channel
from scoreveil.mechanisms.promises import Evidence

POPULATION = Population(classes=3)


def fitted(epsilon: float = 4.0, count: int = 1000, seed: int = 0, population: Population = POPULATION, **more) -> Veil:
    rng = np.random.default_rng(seed)
    (others, other_labels), (members, member_labels) = (population.draw(side, count, rng) for side in (0, 1))
    given = {"nonmember_labels": other_labels, "members": members, "member_labels": member_labels, **more}
    return fit(epsilon, others, **given, rng=rng)


@pytest.fixture(scope="module")
def channel() -> Channel:
    """A fit with records enough to tell labels apart."""
    return fitted(count=6000).mechanism


# The promises


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.0, 8.0, 16.0, 100.0])
@pytest.mark.parametrize("more", [{}, {"members": None, "member_labels": None}, {"member_labels": None}, {"keep": 2}])
def test_promises_hold_by_enumeration(epsilon, more):
    found = fitted(epsilon, **more).mechanism
    check_epsilon(found.table, epsilon)
    found.verify()
    evidence = found.evidence
    if evidence is None:
        assert found.guarantee().advantage is None
        return
    others, members = evidence.counts.sum(axis=(1, 2))
    assert shown_advantage(others, members, found.table) <= Fraction(0.02)


def test_all_three_attackers_are_held_and_stated(channel):
    evidence = channel.evidence
    assert evidence.counts.shape[:3] == (2, 3, 2)
    table = channel.table
    labels = [
        min(
            Fraction(int(x.sum()), int(evidence.smoothed[0].sum())),
            Fraction(int(y.sum()), int(evidence.smoothed[1].sum())),
        )
        * shown_advantage(x, y, table)
        for x, y in zip(*evidence.smoothed, strict=True)
    ]
    assert sum(labels) <= Fraction(0.02)
    # who is told the true label sees (right or wrong, answer): one long histogram over a table of blocks
    others, members = evidence.counts.sum(axis=1)
    blocks = np.zeros((2 * len(table), 2 * table.shape[1]), dtype=object)
    blocks[: len(table), : table.shape[1]] = blocks[len(table) :, table.shape[1] :] = table
    own = shown_advantage(others.ravel(), members.ravel(), np.repeat(np.eye(2, dtype=object), len(table), 0) * WHOLE)
    assert shown_advantage(others.ravel(), members.ravel(), blocks) - own <= Fraction(0.02)
    promise = channel.guarantee()
    assert promise.advantage == evidence.stated[:2].max() > 0.02
    assert promise.advantage_told == evidence.stated[2]
    assert promise.confidence == 0.95


def test_more_records_state_less():
    stated = [fitted(count=count).guarantee.advantage for count in (300, 2000, 20_000)]
    assert stated[0] > stated[1] > stated[2] < 0.08


def test_a_larger_epsilon_or_advantage_is_more_useful():
    def brier(veil: Veil) -> float:
        scores, labels = POPULATION.sides[0]
        right, _ = scores.argmax(axis=1) == labels, None
        chances = veil.mechanism.table[veil.mechanism.read(scores)[1]] / WHOLE
        announced = veil.mechanism.announced[:, 0]
        return float((chances * (announced - right[:, None]) ** 2).sum(axis=1).mean())

    by_epsilon = [brier(fitted(epsilon, count=5000)) for epsilon in (0.1, 2.0, 8.0)]
    assert by_epsilon[0] > by_epsilon[1] > by_epsilon[2]
    by_advantage = [brier(fitted(8.0, count=5000, advantage=advantage)) for advantage in (0.005, 0.05, 0.5)]
    assert by_advantage[0] > by_advantage[1] > by_advantage[2]


def test_the_stated_advantage_covers_the_population():
    missed = np.zeros(3)
    for seed in range(200):
        found = fitted(count=1000, seed=seed).mechanism
        missed += np.array(POPULATION.advantages(found)) > found.evidence.stated
    assert np.all(missed <= 0.05 * 200), missed


def test_announced_confidences_mean_what_they_say():
    veil = Veil(fitted(count=20_000).mechanism, rng=np.random.default_rng(0))
    scores, labels = POPULATION.sides[0]
    answers = veil(np.repeat(scores, 5, axis=0))
    right = np.repeat(scores.argmax(axis=1) == labels, 5)
    for value in veil.mechanism.announced[:, 0]:
        these = np.isclose(answers.max(axis=1), value, atol=1e-6)
        assert right[these].mean() == pytest.approx(value, abs=0.03)


# The solver


def test_the_dual_value_is_the_value_of_the_table(channel):
    outcome, evidence = outcomes(), channel.evidence
    for held in (None, evidence):
        rows = outcome if held is None else outcome[: channel.table.shape[0]]
        solution = best_table(rows, 2.0, held)
        shares, rates = rows.sum(axis=1) / rows.sum(), rates_of(rows)
        value = float((solution.table * program.cost(shares, rates, solution.confidences)).sum())
        assert solution.dual == pytest.approx(solution.value, abs=1e-7)
        assert value == pytest.approx(solution.value, abs=1e-6)


def outcomes() -> np.ndarray:
    rng = np.random.default_rng(3)
    records, rate = rng.integers(40, 200, 24), np.linspace(0.3, 0.99, 24)
    return np.stack([records * rate, records * (1 - rate)], axis=1)


def rates_of(outcome: np.ndarray) -> np.ndarray:
    records = outcome.sum(axis=1)
    return histograms.monotone((outcome[:, 0] + 0.5) / (records + 1), records + 1)


@given(
    seed=st.integers(0, 10**6), epsilon=st.sampled_from([0.3, 1.0, 4.0]), advantage=st.sampled_from([0.01, 0.1, 1.0])
)
@settings(max_examples=40, deadline=None)
def test_no_random_table_that_keeps_the_promises_is_better(seed, epsilon, advantage):
    rng = np.random.default_rng(seed)
    outcome = outcomes()[:6]
    members = rng.integers(1, 400, (1, 1, 1, 6))
    counts = np.concatenate([np.rint(outcome.sum(axis=1)).astype(np.int64)[None, None, None], members])
    zero = np.zeros((3, 3))
    held = Evidence(np.zeros(2, np.int64), counts, counts.sum(axis=2), zero, np.ones(3), advantage, 0.95)
    solution = best_table(outcome, epsilon, held)
    shares, p = outcome.sum(axis=1) / outcome.sum(), solution.confidences
    cost = program.cost(shares, rates_of(outcome), p)
    weights = attackers(held)[0].weights
    for _ in range(30):
        # near the best table, or anywhere; drawn towards equal rows until it keeps both promises
        table = rng.dirichlet(np.full(len(p), rng.choice([0.05, 1.0])), 6)
        if rng.random() < 0.5:
            table = solution.table + rng.uniform(0, 0.3) * (table - solution.table)
        same = np.repeat(rng.dirichlet(np.full(len(p), 0.3))[None], 6, axis=0)
        if rng.random() < 0.5:
            same = np.repeat((shares @ solution.table)[None], 6, axis=0)
        for blend in np.linspace(0, 1, 60):
            mixed = (1 - blend) * table + blend * same
            ratio = mixed.max(axis=0) <= math.exp(epsilon * (1 - 1e-6)) * mixed.min(axis=0)
            if ratio.all() and np.abs(weights @ mixed).sum() / 2 <= advantage * (1 - 1e-5):
                assert (mixed * cost).sum() >= solution.value - 1e-6
                break


# Rounding


@given(seed=st.integers(0, 10**6), epsilon=st.floats(0.01, 18))
@settings(max_examples=100, deadline=None)
def test_rounded_tables_keep_epsilon_exactly(seed, epsilon):
    table = staircase(seed, epsilon)
    whole = rounding.to_integers(table, epsilon)
    if whole is not None:
        check_epsilon(whole, epsilon)
        assert np.abs(whole / WHOLE - table).max() < 1e-4


def staircase(seed: int, epsilon: float) -> np.ndarray:
    """A table whose columns use all of ε, but for a hair."""
    rng = np.random.default_rng(seed)
    low = rng.dirichlet(np.ones(6))
    table = low * np.exp(epsilon * (1 - 1e-6) * rng.integers(0, 2, (8, 6)))
    table[:, 0] = 0
    table /= 2 * table.sum(axis=1).max()
    table[:, 0] = 1 - table.sum(axis=1)
    return table


def test_rounding_in_the_wrong_direction_is_caught():
    for seed in range(50):
        low = np.random.default_rng(seed).integers(100, 10_000, 5) / WHOLE
        table = np.stack([np.r_[low, 0], np.r_[math.e * low, 0]])
        table[:, -1] = 1 - table.sum(axis=1)
        promises.check_table(rounding.to_integers(table, 1.0), 1.0)
        outwards = np.stack([np.floor(table[0] * WHOLE), np.ceil(table[1] * WHOLE)]).astype(np.int64)
        outwards[:, -1] += WHOLE - outwards.sum(axis=1)
        with pytest.raises(ValueError, match="breaks ε"):
            promises.check_table(outwards, 1.0)


def test_joining_answers_breaks_nothing(channel):
    chances = channel.table / WHOLE
    joined = rounding.join_answers(chances, outcomes()[: len(chances)])
    assert joined.shape[1] <= chances.shape[1]
    assert joined.sum(axis=1) == pytest.approx(1)
    assert joined.max(axis=0).max() <= 1 + 1e-12
    assert np.all(joined.max(axis=0) <= math.exp(4.0) * joined.min(axis=0) * (1 + 1e-12))


def test_monotone_rates_are_the_nearest_that_do_not_fall():
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(0)
    for _ in range(50):
        rates, weights = rng.random(20), rng.uniform(0.5, 5, 20)
        expected = IsotonicRegression().fit_transform(np.arange(20), rates, sample_weight=weights)
        assert histograms.monotone(rates, weights) == pytest.approx(expected, abs=1e-12)


# Privacy of the fit itself


def test_the_noise_of_histograms_is_discrete_laplace():
    rng = np.random.default_rng(0)
    counts = np.full((400, 50), 1000 * histograms.UNIT)
    noise = histograms.release(counts, rng.random) - 1000
    assert noise.mean() == pytest.approx(0, abs=0.1)
    assert np.abs(noise).mean() == pytest.approx(1 / histograms.NOISE, rel=0.02)


def test_clipping_keeps_the_total_and_no_cell_is_negative():
    rng = np.random.default_rng(0)
    noisy = rng.laplace(0, 2, (30, 40)) + rng.integers(0, 3, (30, 40)) * rng.integers(0, 2, (30, 1)) * 10
    for each, whole in zip(histograms.clipped(noisy, batch=1), noisy, strict=True):
        assert each.min() >= 0
        assert each.sum() == pytest.approx(max(whole.sum(), 1))
        assert histograms.clipped(whole) == pytest.approx(each)


def test_a_record_counts_once_in_each_histogram():
    rng = np.random.default_rng(0)
    scores, labels = POPULATION.draw(0, 50, rng)
    from scoreveil.fitting.records import Scored

    for by_label in (False, True):
        weights = histograms.outcome_weights(Scored(scores, labels), 2, by_label)
        assert weights.sum(axis=1) == pytest.approx(1)
        cells = np.broadcast_to(np.arange(3), weights.shape)
        assert histograms.counted(cells, (3,), weights).sum() <= 50 * histograms.UNIT


# What it takes


def test_arrays_tensors_frames_and_files_are_taken_alike(tmp_path):
    rng = np.random.default_rng(0)
    (others, other_labels), (members, member_labels) = (POPULATION.draw(side, 200, rng) for side in (0, 1))
    np.save(tmp_path / "in.npy", members)
    np.save(tmp_path / "in_labels.npy", member_labels)
    np.savetxt(tmp_path / "labels.csv", other_labels, fmt="%d")
    ways = [
        (others, other_labels, members, member_labels),
        (torch.asarray(others), torch.asarray(other_labels), torch.asarray(members), torch.asarray(member_labels)),
        (pd.DataFrame(others), pd.Series(other_labels), pd.DataFrame(members), pd.Series(member_labels)),
        (others.tolist(), other_labels.tolist(), tmp_path / "in.npy", str(tmp_path / "in_labels.npy")),
        (others, tmp_path / "labels.csv", members, member_labels),
    ]
    tables = [fit(2.0, *way, rng=np.random.default_rng(1)).mechanism.table for way in ways]
    assert all(np.array_equal(table, tables[0]) for table in tables)


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("objective", ["calibration", "fidelity"])
def test_both_objectives_with_any_number_of_kept_classes(keep, objective):
    veil = fitted(keep=keep, objective=objective)
    scores = POPULATION.sides[0][0][:500]
    answers = veil(scores)
    assert np.array_equal(answers.argmax(axis=1), scores.argmax(axis=1))
    if keep > 1:
        assert np.array_equal(np.argsort(-answers)[:, :keep], np.argsort(-scores)[:, :keep])


def test_without_labels_announced_values_are_near_the_scores():
    veil = fitted(16.0, count=5000, nonmember_labels=None, members=None, member_labels=None)
    scores = POPULATION.sides[0][0]
    assert np.abs(veil(scores).max(axis=1) - scores.max(axis=1)).mean() < 0.05
    assert "ε alone is promised" in str(veil.guarantee)


def extreme(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    scores, labels = POPULATION.draw(0, 400, rng)
    if name == "one record":
        return scores[:1], labels[:1]
    if name == "one class":
        first = scores.argmax(axis=1) == 0
        return scores[first], np.zeros(first.sum(), dtype=int)
    if name == "all right":
        return scores, scores.argmax(axis=1)
    if name == "all wrong":
        return scores, (scores.argmax(axis=1) + 1) % 3
    if name == "two classes":
        top = rng.uniform(0.5, 1, 400)
        return np.stack([top, 1 - top], axis=1), (rng.random(400) > top).astype(int)
    if name == "certain":
        return np.eye(3)[labels], labels
    return rng.dirichlet(np.full(10_000, 0.001), 60), rng.integers(0, 10_000, 60)


@pytest.mark.parametrize(
    "name", ["one record", "one class", "all right", "all wrong", "two classes", "certain", "ten thousand classes"]
)
@pytest.mark.parametrize("with_members", [False, True])
def test_extreme_records_give_a_veil_with_finite_log_loss(name, with_members):
    scores, labels = extreme(name)
    more = {"members": scores, "member_labels": labels} if with_members else {}
    veil = fit(4.0, scores, labels, **more, rng=np.random.default_rng(0))
    answers = veil(scores)
    assert np.array_equal(answers.argmax(axis=1), scores.argmax(axis=1))
    assert np.isfinite(np.log(answers)).all()
    veil.mechanism.verify()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nonmembers": None}, "nonmembers"),
        ({"nonmembers": np.empty((0, 3))}, "no records"),
        ({"nonmembers": np.full((1000, 3), np.nan)}, "nonmembers: Row 0, column 0: a score is NaN"),
        ({"nonmembers": np.ones((1000, 3), dtype=int)}, "floating"),
        ({"members": np.full((1000, 4), 0.25)}, "4 classes"),
        ({"members": None}, "without members"),
        ({"nonmember_labels": None}, "without nonmember_labels"),
        ({"nonmember_labels": np.full(1000, 3)}, "row 0 is not the number of a class, 0 to 2"),
        ({"nonmember_labels": np.full(1000, -1)}, "labels of nonmembers"),
        ({"nonmember_labels": np.full(1000, 0.5)}, "labels of nonmembers"),
        ({"member_labels": np.zeros(999)}, "expected 1000 of them"),
        ({"member_labels": np.full(1000, "a")}, "numbers of classes"),
        ({"member_labels": "labels.parquet"}, "labels.parquet"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"advantage": 0.0}, "advantage"),
        ({"advantage": math.nan}, "advantage"),
        ({"keep": 4}, "keep"),
        ({"keep": 0}, "keep"),
        ({"objective": "beauty"}, "objective"),
        ({"nonmember_labels": None, "member_labels": None, "objective": "calibration"}, "needs nonmember_labels"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_words(change, words):
    rng = np.random.default_rng(0)
    (others, other_labels), (members, member_labels) = (POPULATION.draw(side, 1000, rng) for side in (0, 1))
    arguments = {
        "epsilon": 2.0,
        "nonmembers": others,
        "nonmember_labels": other_labels,
        "members": members,
        "member_labels": member_labels,
        **change,
    }
    with pytest.raises(ValueError, match=words):
        fit(**arguments)


def test_a_fitted_veil_is_a_small_file_that_loads_quickly(tmp_path):
    veil = fitted(count=20_000, population=Population(classes=10))
    veil.save(tmp_path / "veil.npz")
    assert (tmp_path / "veil.npz").stat().st_size <= 100_000
    start = time.perf_counter()
    again = Veil.load(tmp_path / "veil.npz")
    assert time.perf_counter() - start < 0.5  # 5 ms where nothing else runs
    assert again.guarantee == veil.guarantee


# Planted bugs are caught


def test_the_advantage_of_another_histogram_is_caught(channel):
    counts = channel.evidence.counts.copy()
    counts[1] = counts[1][..., ::-1]  # members in the wrong bins
    with pytest.raises(ValueError, match=r"breaks the advantage of 0\.02"):
        with_evidence(channel, counts=counts).verify()
    sides = channel.evidence.smoothed.copy()
    sides[1] = sides[1][:, ::-1]
    with pytest.raises(ValueError, match="the label and the answer"):
        with_evidence(channel, smoothed=sides).verify()


def test_an_advantage_stated_too_small_is_caught(channel):
    for attacker in range(3):
        stated = channel.evidence.stated.copy()
        stated[attacker] = np.nextafter(stated[attacker], 0)
        with pytest.raises(ValueError, match="too small"):
            with_evidence(channel, stated=stated).verify()


def test_swapped_rows_break_the_advantage(channel):
    rows, caught = len(channel.table), 0
    pairs = list(itertools.combinations(range(rows), 2))
    for a, b in pairs:
        table = channel.table.copy()
        table[[a, b]] = table[[b, a]]
        try:
            with_evidence(channel, table=table).verify()
        except ValueError as error:
            caught += "advantage" in str(error)
    assert caught > len(pairs) / 2


def with_evidence(channel: Channel, table: np.ndarray | None = None, **change: np.ndarray) -> Channel:
    evidence = Evidence(**{**vars(channel.evidence), **change})
    table = channel.table if table is None else table
    parts = (channel.edges, table, channel.announced, channel.table_of_class, channel.profile)
    return Channel(channel.epsilon, channel.keep, *parts, evidence)
