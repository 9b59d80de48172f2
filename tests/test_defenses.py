"""Defenses: all of one shape, each keeping what it claims to keep; rivals as strong as published."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from scoreveil.arrays import Floats
from scoreveil.audit.data.records import Defense, Membership, Records
from scoreveil.audit.defenses import DEFENSES, Given, labels, memguard, purification, simple, timed
from scoreveil.mechanisms.ordering import rank

pytestmark = pytest.mark.slow

EVERY = tuple(DEFENSES)
SIZES = (2, 10, 100)


def records(seed: int, n: int, k: int, confidence: float, right: float) -> Records:
    """Scores like a classifier's: the true class ahead by `confidence`, right about this often."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n)
    favoured = np.where(rng.random(n) < right, truth, rng.integers(0, k, n))
    logits = 1.5 * rng.standard_normal((n, k))
    logits[np.arange(n), favoured] += confidence * rng.gamma(4.0, 0.25, n)
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    return Records(scores / scores.sum(axis=1, keepdims=True), truth)


@cache
def given(k: int = 10, known: int = 30) -> Given:
    members, others = records(1, known, k, 9.0, 1.0), records(2, known, k, 6.0, 0.8)
    return Given(Membership(members, others), records(3, 600, k, 6.0, 0.8), seed=5, epsilon=2.0)


@cache
def made_and_asked(name: str, k: int) -> tuple[Defense, Floats]:
    """A defense, and the first answer that it gave."""
    # a veil that is fitted on few records has one answer for all
    made = DEFENSES[name].make(given(k, 600) if DEFENSES[name].fits else given(k))
    return made, made(asked(k))


@cache
def asked(k: int) -> Floats:
    """Members, others, and the hard cases: certain, undecided, tied at the top."""
    hard = np.array([np.eye(k)[k - 1], np.full(k, 1 / k), np.eye(k)[0] / 2 + np.eye(k)[k - 1] / 2])
    return np.concatenate([records(6, 20, k, 9.0, 1.0).scores, records(7, 20, k, 6.0, 0.8).scores, hard])


# Every defense


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("name", EVERY)
def test_releases_scores_and_keeps_what_it_claims(name: str, k: int) -> None:
    scores, method = asked(k), DEFENSES[name]
    assert method.name == name
    released = made_and_asked(name, k)[1]
    assert released.shape == scores.shape
    assert released.dtype == np.float64
    assert np.isfinite(released).all()
    assert released.min() >= 0
    assert np.allclose(released.sum(axis=1), 1, atol=1e-9)
    if method.keeps_label:
        assert np.array_equal(released.argmax(axis=1), scores.argmax(axis=1))
    if method.keeps_ranking:
        assert np.array_equal(rank(released), rank(scores))


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("name", EVERY)
def test_one_vector_is_enough(name: str, k: int) -> None:
    one = asked(k)[:1].copy()
    released = made_and_asked(name, k)[0](one)
    assert released.shape == (1, k)
    assert released.sum() == pytest.approx(1)
    assert np.array_equal(one, asked(k)[:1]), "the input was written to"


@pytest.mark.parametrize("name", EVERY)
def test_scores_in_memory_that_must_not_be_written_to_are_no_matter(name: str) -> None:
    """Large arrays reach other processes like that; torch would warn, and warnings are errors here."""
    defense, scores = DEFENSES[name].make(given()), records(4, 20, 10, 6.0, 0.8).scores
    scores.flags.writeable = False
    assert defense(scores).shape == scores.shape


@pytest.mark.parametrize("name", EVERY)
def test_the_seed_decides(name: str) -> None:
    made_and_asked.cache_clear()
    first = made_and_asked(name, 10)[1]
    made_and_asked.cache_clear()
    assert np.array_equal(made_and_asked(name, 10)[1], first)


@pytest.mark.parametrize("name", EVERY)
def test_asking_again_gives_another_answer_only_where_random(name: str) -> None:
    made, first = made_and_asked(name, 10)
    assert np.array_equal(made(asked(10)), first) != DEFENSES[name].is_random
    if DEFENSES[name].is_random and DEFENSES[name].goes_with(None) and DEFENSES[name].takes_epsilon:
        without = DEFENSES[name].make(replace(given(10, 600), epsilon=None))
        assert np.array_equal(without(asked(10)), without(asked(10)))


@pytest.mark.parametrize("name", [name for name in EVERY if not DEFENSES[name].goes_with(None)])
def test_an_epsilon_is_asked_for(name: str) -> None:
    with pytest.raises(ValueError, match="This defense needs an epsilon: give a number above 0"):
        DEFENSES[name].make(replace(given(), epsilon=None))


@pytest.mark.parametrize("name", ["none", "published", "memguard", "purification"])
def test_timings_are_positive(name: str) -> None:
    made, timing = timed(DEFENSES[name], given(), asked(10))
    assert timing.fit_seconds > 0
    assert timing.seconds_per_vector > 0
    assert made(asked(10)).shape == asked(10).shape
    with pytest.raises(ValueError, match="Expected at least 1 score vector"):
        timed(DEFENSES[name], given(), np.empty((0, 10)))


def test_the_global_generator_of_torch_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    DEFENSES["purification"].make(given())
    memguard.train(given().known, 5, quick())
    assert torch.equal(torch.random.get_rng_state(), before)


# Simple rivals


def test_rounding_renormalises_and_lets_the_label_stand_out() -> None:
    one_digit = simple.rounding(1)(given())
    assert one_digit(np.array([[0.72, 0.16, 0.12]])) == pytest.approx(np.array([[0.7, 0.2, 0.1]]))
    assert one_digit(np.array([[0.33, 0.34, 0.33]])) == pytest.approx(np.array([[0.3, 0.4, 0.3]]))
    assert np.array_equal(one_digit(np.full((1, 100), 0.01)), np.eye(100)[:1])


def test_top_k_keeps_the_top_and_with_one_class_is_the_label() -> None:
    scores = np.array([[0.1, 0.4, 0.2, 0.3]])
    assert simple.top_k(3)(given())(scores) == pytest.approx(np.array([[0.0, 4 / 9, 2 / 9, 3 / 9]]))
    assert np.array_equal(simple.top_k(1)(given())(scores), np.eye(4)[[1]])


def test_temperature_is_invertible() -> None:
    scores = asked(10)[:100]
    back = simple.temperature(5.0)(given())(scores) ** 5
    assert np.allclose(back / back.sum(axis=1, keepdims=True), scores)


def test_averaging_removes_gaussian_noise() -> None:
    scores = np.array([[0.6, 0.25, 0.15]])
    made = simple.gaussian(0.05)(given())
    once, mean = made(scores), np.mean([made(scores) for _ in range(400)], axis=0)
    assert np.abs(mean - scores).sum() < min(0.02, np.abs(once - scores).sum())


@pytest.mark.parametrize("factory", [simple.top_k, simple.rounding, simple.temperature, simple.gaussian])
def test_bad_parameters_are_refused(factory: object) -> None:
    assert callable(factory)
    with pytest.raises(ValueError, match="Expected"):
        factory(0)


# MemGuard


@cache
def quick() -> memguard.MemGuardSettings:
    """A larger learning rate stands in for many more known records: g is to be well trained in a second."""
    return memguard.MemGuardSettings(learning_rate=0.1, epochs=60)


@cache
def attacked() -> tuple[memguard.Network, Floats, np.ndarray]:
    """The defender's classifier, and members and others that it was not trained on."""
    members, others = records(8, 250, 10, 9.0, 1.0), records(9, 250, 10, 6.0, 0.8)
    h = memguard.train(given(known=500).known, 5, quick())
    return h, np.concatenate([members.scores, others.scores]), np.arange(500) < 250


@cache
def noise() -> Floats:
    h, scores, _ = attacked()
    return memguard.search(h, scores, quick())


def test_memguard_turns_the_classifiers_answer_into_a_coin_toss() -> None:
    h, scores, truth = attacked()
    released = memguard.protect(h, 5, quick())(scores)
    before, after = memguard.decision(h, scores), memguard.decision(h, released)
    assert np.mean((before > 0.5) == truth) > 0.6
    assert np.mean((after > 0.5) == truth) < 0.52
    assert np.mean(np.abs(after - 0.5)) < 0.03
    assert np.median(np.abs(after - 0.5)) < 0.1 * np.median(np.abs(before - 0.5))
    assert np.array_equal(released.argmax(axis=1), scores.argmax(axis=1))


@pytest.mark.parametrize("budget", [0.0, 0.05, 0.3])
def test_memguard_respects_its_budget(budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    h, scores, _ = attacked()
    size = np.abs(noise() - scores).sum(axis=1)
    chance = memguard.use_probability(h, scores, noise(), budget)
    assert np.all(chance * size <= budget + 1e-12)
    helps = np.abs(memguard.decision(h, scores) - 0.5) > np.abs(memguard.decision(h, noise()) - 0.5)
    assert np.all(chance[~helps] == 0), "noise that does not help is not used"
    monkeypatch.setattr(memguard, "search", lambda *_: noise())
    released = memguard.protect(h, 5, replace(quick(), budget=budget))(scores)
    used = np.abs(released - scores).sum(axis=1)
    assert used.mean() <= budget + 4 * used.std() / len(used) ** 0.5
    assert np.all((used == 0) | np.isclose(used, size))


def test_memguards_gradient_is_that_of_its_loss() -> None:
    """One step of the search against automatic differentiation of the loss as it is written."""
    h, scores, _ = attacked()
    s = torch.as_tensor(scores[:50])
    z = torch.log(s).requires_grad_()
    p = torch.softmax(z, dim=1)
    label = s.argmax(dim=1, keepdim=True)
    rival = torch.scatter(z, 1, label, -torch.inf).amax(dim=1)
    behind = torch.relu(rival - z.gather(1, label)[:, 0])
    loss = h(p.float()).double().abs() + 10 * behind + 0.1 * (p - s).abs().sum(dim=1)
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    expected = torch.softmax(z - 0.1 * gradient / gradient.norm(dim=1, keepdim=True), dim=1).detach()
    side = torch.sign(h(s.float()))
    found, released = memguard.descend(h, s, 0.1, replace(quick(), steps=1))
    assert np.array_equal(found, (torch.sign(h(expected.float())) != side).numpy())
    assert found.any()
    assert np.allclose(released[found], expected[found], atol=1e-3)


def test_memguard_refuses_a_negative_budget() -> None:
    with pytest.raises(ValueError, match="Expected budget >= 0, got -1"):
        memguard.MemGuardSettings(budget=-1)


# Purification


# a model as sure as the paper's; and one with many near-ties, where the narrow middle costs more labels
@pytest.mark.parametrize(("confidence", "right", "lost"), [(12.0, 0.93, 0.005), (6.0, 0.8, 0.015)])
def test_purification_keeps_the_accuracy_and_lowers_the_dispersion(
    confidence: float, right: float, lost: float
) -> None:
    reference, fresh = (records(seed, 4000, 10, confidence, right) for seed in (10, 11))
    purified = fresh.defended(purification.purification(replace(given(), reference=reference)))
    assert np.mean(purified.predicted == purified.labels) >= np.mean(fresh.predicted == fresh.labels) - lost

    def dispersion(r: Records) -> float:
        """How far vectors lie from the mean of their label."""
        return float(np.mean([r.scores[fresh.predicted == c].var(axis=0).sum() for c in range(10)]))

    assert dispersion(purified) < dispersion(fresh)


@pytest.mark.parametrize(
    ("k", "widths"), [(2, (2, 2, 2, 2, 2)), (10, (10, 7, 4, 7, 10)), (100, (100, 50, 20, 10, 20, 50, 100))]
)
def test_the_autoencoder_has_the_published_widths(k: int, widths: tuple[int, ...]) -> None:
    linear = [layer for layer in purification.autoencoder(k) if isinstance(layer, torch.nn.Linear)]
    assert (linear[0].in_features, *(layer.out_features for layer in linear)) == widths
    with pytest.raises(ValueError, match="Expected at least 2 reference records, got 1"):
        purification.train(np.full((1, k), 1 / k), 0)


# Label noise


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_added_error_stays_within_its_share(share: float) -> None:
    held_out, fresh = records(12, 20_000, 10, 6.0, 0.8), records(13, 20_000, 10, 6.0, 0.8)
    known = Membership(given().known.members, held_out)
    noisy = fresh.defended(labels.label_noise(share)(replace(given(), known=known)))
    own = np.mean(fresh.predicted != fresh.labels)
    made_wrong = np.mean((noisy.predicted != fresh.labels) & (fresh.predicted == fresh.labels))
    assert 0.7 * share * own < made_wrong < 1.3 * share * own, "close to the share: the budget is used"
    assert np.mean(noisy.predicted != fresh.labels) - own <= 1.1 * share * own


def test_a_majority_over_100_queries_gets_nothing_back() -> None:
    made = labels.label_noise(1.0)(given())
    scores = records(14, 500, 10, 6.0, 0.8).scores
    once = made(scores)
    assert np.mean(once.argmax(axis=1) != scores.argmax(axis=1)) > 0.01
    votes = np.sum([made(scores) for _ in range(100)], axis=0)
    assert np.array_equal(votes.argmax(axis=1), once.argmax(axis=1))
    assert np.array_equal(made(scores[::-1])[::-1], once), "the place in the batch does not matter"


def test_labels_are_drawn_as_the_exponential_mechanism_says() -> None:
    scores = np.tile([0.5, 0.3, 0.2], (100_000, 1))
    drawn = labels.draw(scores, 4.0, np.random.default_rng(0).random(100_000))
    expected = np.exp(2.0 * scores[0]) / np.exp(2.0 * scores[0]).sum()
    assert np.bincount(drawn, minlength=3) / 100_000 == pytest.approx(expected, abs=0.006)


def test_a_model_without_error_keeps_its_labels() -> None:
    perfect = Records(given().reference.scores, given().reference.predicted)
    assert labels.tune(perfect, 0.1) == np.inf
    made = labels.label_noise(0.1)(replace(given(), known=Membership(perfect, perfect)))
    assert np.array_equal(made(asked(10)).argmax(axis=1), asked(10).argmax(axis=1))


def test_without_labels_every_change_counts() -> None:
    scores = given().reference.scores
    epsilon = labels.tune(Records(scores), 0.1)
    changed = float(np.mean(1 - labels.probabilities(scores, epsilon).max(axis=1)))
    assert changed == pytest.approx(0.1 * float(np.mean(1 - scores.max(axis=1))))


def test_label_noise_refuses_a_share_of_nothing() -> None:
    with pytest.raises(ValueError, match="Expected 0 < share <= 1, got 0"):
        labels.label_noise(0)
