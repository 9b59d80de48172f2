"""Every recipe does what its equation says, learns, promises what its accountant says, and can be killed."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.stats import entropy
from torch import nn

from experiments import classifier
from experiments.data.benchmarks import load
from experiments.data.parts import split
from experiments.recipes import RECIPES, Lesson, cached
from experiments.recipes.ensembles import kept_out
from experiments.recipes.interface import DELTA
from experiments.recipes.linear import STEEPEST, OnFeatures, minimiser
from experiments.recipes.losses import Reordered, surest
from experiments.recipes.private_elsewhere import gaussian
from experiments.recipes.private_gradients import _PrivateRun
from experiments.recipes.regularised import Kept
from scoreveil.audit import cache
from scoreveil.audit.networks.training import TrainSettings, evaluate, tensor

pytestmark = pytest.mark.slow

SETTINGS = TrainSettings(width=8, epochs=12, lr=4e-3, batch=32)
# of few records little can be learnt in private: an ε that promises nothing shows that something is learnt
LOOSE = {
    "dp_inputs": {"epsilon": 200.0, "of_label": 20.0},
    "dp_sgd": {"epsilon": 25.0, "epochs": 8, "copies": 1, "lr": 0.2},
    "pate": {"epsilon": 300.0, "each": 100, "questions": 100},
    "selena": {"models": 3, "out_of": 1},
}
PRIVATE = ("dp_inputs", "dp_loss", "dp_sgd", "dp_weights", "pate")


@pytest.fixture(scope="module")
def parts():
    """Training, test and public digits."""
    return split(load("digits"), (400, 400, 200), 0)


def logits_of(rows=64, classes=10, sure=1.0):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (rows,), generator=generator)
    logits = torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), labels] += sure
    return logits.requires_grad_(), labels


def gradient(loss, logits):
    return torch.autograd.grad(loss, logits)[0]


# What each of them is


def test_every_recipe_has_a_name_of_its_own_and_most_promise_nothing():
    assert len(RECIPES) == 16
    assert all(RECIPES[name].promise(2_500, SETTINGS) is None for name in RECIPES if name not in PRIVATE)


@pytest.mark.parametrize("name", RECIPES)
def test_it_learns_to_tell_digits(parts, name):
    train, test, public = parts
    recipe = replace(RECIPES[name], **LOOSE.get(name, {}))
    network = recipe.train(Lesson(train, SETTINGS, public))
    right = evaluate(network.eval(), test.pixels).argmax(axis=1) == test.labels
    assert right.mean() > 0.25  # by chance 0.1 ± 0.015


@pytest.mark.parametrize("name", RECIPES)
def test_killed_it_goes_on_and_ends_with_the_same_numbers(parts, name, tmp_path):
    train, test, public = (part.take(slice(80)) for part in parts)
    recipe = replace(RECIPES[name], **LOOSE.get(name, {}))
    settings = replace(SETTINGS, width=2, epochs=2)
    epochs = 0

    def kill(_: float) -> None:
        nonlocal epochs
        epochs += 1
        if epochs in (1, 3):
            raise KeyboardInterrupt

    for _ in range(2):
        try:
            cached(recipe, train, settings, public, tmp_path, kill)
        except KeyboardInterrupt:
            continue
    went_on = cached(recipe, train, settings, public, tmp_path)
    at_once = recipe.train(Lesson(train, settings, public)).eval()
    again = cached(recipe, train, settings, public, tmp_path)
    for made in (went_on, again):
        assert np.array_equal(evaluate(made.network, test.pixels), evaluate(at_once, test.pixels))
    assert [path.suffix for path in (tmp_path / "recipes").iterdir() if path.suffix != ".lock"] == [".npz"]


def test_a_cache_knows_recipes_by_their_fields():
    known = {cache.key(recipe) for recipe in RECIPES.values()}
    assert len(known) == len(RECIPES)
    assert cache.key(replace(RECIPES["l2"], decay=0.1)) not in known


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.needs_public])
def test_without_public_records_a_recipe_that_needs_them_says_so(parts, name):
    with pytest.raises(ValueError, match="Expected public records"):
        RECIPES[name].train(Lesson(parts[0], replace(SETTINGS, epochs=1)))


def test_plain_is_the_papers_classifier(parts):
    train, test, _ = parts
    settings = replace(SETTINGS, epochs=1)
    plain = RECIPES["plain"].train(Lesson(train, settings))
    papers = classifier.train(train, settings).network
    assert np.array_equal(evaluate(plain, test.pixels), evaluate(papers, test.pixels))


def test_early_stopping_keeps_the_epoch_with_the_lowest_loss(parts):
    train, _, public = parts
    recipe, settings = RECIPES["early_stopping"], replace(SETTINGS, width=2, epochs=4, lr=0.3)
    losses = []

    class Watching(type(recipe)):
        def run(self, lesson, kind, around, **more):
            class Told(kind):
                def after_epoch(self, network):
                    super().after_epoch(network)
                    losses.append(loss_on(network.trained, public))

            return super().run(lesson, Told, around, **more)

    kept = Watching("early_stopping").train(Lesson(train, settings, public))
    assert len(losses) == 4
    assert loss_on(kept.eval(), public) == pytest.approx(min(losses), rel=1e-5)


def loss_on(network, images):
    logits = torch.from_numpy(evaluate(network, images.pixels))
    return float(nn.functional.cross_entropy(logits, tensor(images.labels)))


def test_label_smoothing_has_targets_between_the_class_and_all_classes():
    logits, labels = logits_of()
    recipe = RECIPES["label_smoothing"]
    targets = (1 - recipe.smoothing) * nn.functional.one_hot(labels, 10) + recipe.smoothing / 10
    assert torch.allclose(recipe.loss(logits, labels, 0), nn.functional.cross_entropy(logits, targets))


def test_dropout_ends_with_the_statistics_of_whole_inputs(parts):
    train = parts[0]
    network = RECIPES["dropout"].train(Lesson(train, replace(SETTINGS, epochs=1)))
    (_, first, norm, *_) = network.children()
    assert isinstance(norm, nn.BatchNorm2d)
    assert not network.training
    with torch.no_grad():
        seen = first(tensor(train.pixels))
    assert torch.allclose(norm.running_mean, seen.mean(dim=(0, 2, 3)), atol=1e-4)
    assert torch.allclose(norm.running_var, seen.var(dim=(0, 2, 3)), rtol=1e-2)


def test_relaxloss_has_its_authors_target_for_ten_classes_and_the_same_share_for_others():
    recipe = RECIPES["relaxloss"]
    for classes in (2, 10):
        target = recipe.target * math.log(classes) / math.log(10)
        logits = torch.zeros(8, classes)
        said = recipe.loss(logits, torch.zeros(8, dtype=torch.long), 0)
        assert float(said) == pytest.approx(math.log(classes) - target, abs=1e-6)
    assert recipe.target == 1.0


def test_relaxloss_descends_above_its_target_and_ascends_below_it():
    recipe = RECIPES["relaxloss"]
    for sure, sign in ((0.0, 1), (12.0, -1)):
        logits, labels = logits_of(sure=sure)
        plain = nn.functional.cross_entropy(logits, labels)
        assert (plain > recipe.target) == (sign == 1)
        assert (logits.argmax(dim=1) == labels).all() == (sign == -1)
        wanted = sign * gradient(plain, logits)
        for epoch in (0, 1):  # all are classified rightly below the target, so nothing is flattened
            assert torch.allclose(gradient(recipe.loss(logits, labels, epoch), logits), wanted, atol=1e-7)


def test_relaxloss_flattens_what_is_wrong_below_its_target_in_odd_epochs():
    logits, labels = logits_of(sure=12.0)
    with torch.no_grad():
        logits[0] = torch.tensor([2.0, 1.0] + [-9.0] * 8)
    labels[0] = 1
    recipe, scores = RECIPES["relaxloss"], logits.softmax(dim=1)
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    flat = torch.full((10,), float(1 - scores[0, 1].detach()) / 9)
    flat[1] = scores[0, 1].detach()
    wanted = (-(flat * logits[0].log_softmax(dim=0)).sum() - each.sum()) / len(labels)
    assert torch.allclose(recipe.loss(logits, labels, 1), wanted)
    assert torch.allclose(recipe.loss(logits, labels, 0), (each.mean() - recipe.target).abs())


def test_the_convex_concave_loss_is_steeper_where_the_score_is_higher_than_cross_entropy_is():
    alpha = RECIPES["convex_concave"].alpha
    for p in (0.1, 0.5, 0.9, 0.99):
        logits = torch.tensor([[math.log(p), math.log(1 - p)]], dtype=torch.float64, requires_grad=True)
        slope = gradient(RECIPES["convex_concave"].loss(logits, torch.tensor([0]), 0), logits)[0, 0]
        # d/dp of -α ln p - (1 - α) exp p, times dp/dlogit = p(1 - p)
        assert slope == pytest.approx((-alpha / p - (1 - alpha) * math.exp(p)) * p * (1 - p))


def test_hamps_targets_have_the_entropy_that_is_asked_for():
    for classes in (2, 10, 100):
        top = surest(0.95, classes)
        probabilities = [top] + [(1 - top) / (classes - 1)] * (classes - 1)
        assert top > 1 / classes
        assert entropy(probabilities) == pytest.approx(0.95 * math.log(classes))
    recipe = replace(RECIPES["hamp"], reward=0.0)
    top = surest(0.95, 10)
    best = torch.full((1, 10), math.log((1 - top) / 9))
    best[0, 3] = math.log(top)
    best.requires_grad_()
    loss = recipe.loss(best, torch.tensor([3]), 0)
    assert abs(loss) < 1e-6
    assert gradient(loss, best).abs().max() < 1e-6
    rewarded = gradient(RECIPES["hamp"].loss(best, torch.tensor([3]), 0), best)
    assert rewarded[0, 3] > 0  # less sure still


def test_hamp_answers_with_scores_of_random_inputs_in_the_same_order():
    generator = torch.Generator().manual_seed(0)
    ascending = torch.randn(50, 10, generator=generator).sort(dim=1).values
    own = torch.randn(200, 10, generator=generator)
    answer = Reordered(nn.Identity(), ascending).eval()(own)
    assert torch.equal(answer.argsort(dim=1), own.argsort(dim=1))
    rows = {tuple(row.tolist()) for row in ascending}
    used = [tuple(row.tolist()) for row in answer.sort(dim=1).values]
    assert set(used) <= rows
    assert len(set(used)) > 25
    assert torch.equal(answer, Reordered(nn.Identity(), ascending).eval()(own))


def test_no_distilled_label_comes_from_a_model_that_saw_the_record(parts):
    train = parts[0].take(slice(60))
    recipe = replace(RECIPES["selena"], models=3, out_of=2)
    lesson = Lesson(train, replace(SETTINGS, width=2, epochs=1))
    outside = kept_out(60, 3, 2, seed=0)
    assert (outside.sum(axis=0) == 2).all()
    models = []
    for number, without in enumerate(outside):
        run = recipe.model(lesson, without, number)
        assert run.examples == (~without).sum()
        models.append(torch.from_numpy(evaluate(lesson.trained(run), train.pixels)).double().softmax(dim=1).numpy())
    soft = recipe.distilled(lesson, outside)
    for i in range(60):
        unseen = [models[number][i] for number in range(3) if outside[number, i]]
        assert np.allclose(soft[i], np.mean(unseen, axis=0))


def test_records_must_be_kept_out_of_some_models_and_not_of_all():
    for out_of in (0, 3):
        with pytest.raises(ValueError, match="Expected records to be kept out of 1 to 2 models"):
            kept_out(10, 3, out_of, seed=0)


def test_the_attack_within_min_max_learns_and_the_classifier_is_what_is_left(parts):
    train, test, public = parts
    network = RECIPES["min_max"].train(Lesson(train, replace(SETTINGS, epochs=1), public))
    assert type(network) is type(classifier.classifier_network(train.shape, 10, 8))
    plain = RECIPES["plain"].train(Lesson(train, replace(SETTINGS, epochs=1)))
    assert not np.array_equal(evaluate(network, test.pixels), evaluate(plain, test.pixels))


# What the private ones promise


def test_gaussian_noise_is_that_of_the_analytic_mechanism():
    assert gaussian(1.0, 1e-5) == pytest.approx(3.7306, abs=1e-4)  # Balle and Wang 2018


@pytest.mark.parametrize("name", PRIVATE)
def test_it_promises_what_was_asked_for(name):
    promise = RECIPES[name].promise(2_500, SETTINGS)
    assert promise.delta == DELTA
    assert 7.9 < promise.epsilon <= 8


def test_two_accountants_agree_on_dp_sgd():
    recipe = RECIPES["dp_sgd"]
    rate, steps = recipe.drawing(2_500)
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(recipe.noise(2_500)))
    other = PLDAccountant(value_discretization_interval=1e-3).compose(SelfComposedDpEvent(event, steps))
    assert recipe.promise(2_500, SETTINGS).epsilon == pytest.approx(other.get_epsilon(DELTA), rel=0.01)


def test_dp_sgd_clips_the_mean_gradient_of_a_records_copies(parts):
    train = parts[0].take(slice(8))
    recipe = replace(RECIPES["dp_sgd"], **LOOSE["dp_sgd"] | {"copies": 3})
    lesson = Lesson(train, replace(SETTINGS, batch=1))
    network = Kept(recipe.network(lesson)).train()
    run = recipe.run(lesson, _PrivateRun, Kept, recipe=recipe, images=train)
    optimizer = run.optimizer(network)
    torch.manual_seed(0)
    run._note_gradients(network.trained, torch.arange(8))
    optimizer.clip_and_accumulate()
    norms = sum(weight.grad_sample.flatten(1).square().sum(dim=1) for weight in network.trained.parameters()).sqrt()
    factors = (1 / norms).clamp(max=1)
    assert (norms > 1).any()
    for weight in network.trained.parameters():
        assert weight.grad_sample.shape == (8, *weight.shape)
        summed = torch.einsum("i,i...", factors, weight.grad_sample)
        assert torch.allclose(weight.summed_grad, summed, atol=1e-5)


def test_dp_sgd_takes_a_step_of_noise_where_nobody_was_drawn(parts):
    train = parts[0].take(slice(8))
    recipe = replace(RECIPES["dp_sgd"], **LOOSE["dp_sgd"])
    lesson = Lesson(train, replace(SETTINGS, batch=1))
    network = Kept(recipe.network(lesson)).train()
    run = recipe.run(lesson, _PrivateRun, Kept, recipe=recipe, images=train)
    before = [weight.detach().clone() for weight in network.trained.parameters()]
    run.step(network, run.optimizer(network), torch.arange(0), 0)
    assert all(not torch.equal(old, new) for old, new in zip(before, network.trained.parameters(), strict=True))


def test_one_record_moves_the_convex_minimum_by_no_more_than_the_noise_allows_for():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 8))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels, ridge, none = rng.integers(0, 4, 60), 0.5, np.zeros((4, 8))
    whole = minimiser(features, labels, ridge, none)
    moved = []
    for i in range(20):
        rest = np.arange(60) != i
        moved.append(np.linalg.norm(whole - minimiser(features[rest], labels[rest], ridge, none)))
    assert max(moved) <= STEEPEST / ridge
    assert max(moved) > 0.1 * STEEPEST / ridge


def test_a_records_loss_is_no_steeper_and_no_more_curved_than_the_proof_says():
    rng = np.random.default_rng(0)
    for classes in (2, 10):
        scores = rng.dirichlet(np.full(classes, 0.3), 500)
        steep = np.linalg.norm(scores - np.eye(classes)[rng.integers(0, classes, 500)], axis=1)
        assert steep.max() <= STEEPEST
        assert (1 - (scores**2).sum(axis=1)).max() <= 1 - 1 / classes  # the trace of diag(p) - pp'
    network = OnFeatures((1, 8, 8), 10, seed=0)
    lengths = network.features(torch.rand(50, 1, 8, 8)).norm(dim=1)
    assert torch.allclose(lengths, torch.ones(50), atol=1e-5)


def test_the_privacy_loss_of_a_perturbed_objective_stays_below_epsilon():
    """In one dimension of features and two classes both densities can be written down."""
    recipe = replace(RECIPES["dp_loss"], epsilon=2.0)
    sigma, ridge, rng = recipe.noise(2), recipe.ridge, np.random.default_rng(0)
    labels = np.array([0, 1, 1, 0, 1])
    features = np.ones((5, 1))

    def density(theta, used):
        """ln of the density at θ: b = -(slope of the objective without b), and the change of variables."""
        p = np.exp(theta[:, 0]) / np.exp(theta[:, 0]).sum()
        slope = sum(p - np.eye(2)[label] for label in used) + ridge * theta[:, 0]
        curved = len(used) * (np.diag(p) - np.outer(p, p)) + ridge * np.eye(2)
        return -(slope**2).sum() / (2 * sigma**2) + np.linalg.slogdet(curved)[1]

    losses = []
    for with_it in (True, False):
        used, other = (labels, labels[:-1]) if with_it else (labels[:-1], labels)
        for _ in range(300):
            theta = minimiser(features[: len(used)], used, ridge, rng.normal(0, sigma, (2, 1)))
            losses.append(density(theta, used) - density(theta, other))
    assert max(losses) < recipe.epsilon
    assert max(losses) > 0.1 * recipe.epsilon


def test_too_small_a_ridge_for_epsilon_is_refused():
    with pytest.raises(ValueError, match=r"Expected a ridge above 0\.9, got 0\.5"):
        replace(RECIPES["dp_loss"], epsilon=1.0, ridge=0.5).noise(10)


def test_released_inputs_are_cut_and_labels_kept_as_often_as_promised():
    recipe, rng = RECIPES["dp_inputs"], np.random.default_rng(0)
    labels = rng.integers(0, 10, 20_000)
    _, told = recipe.noisy(np.zeros((20_000, 1)), labels, 10, rng)
    kept = math.exp(recipe.of_label) / (math.exp(recipe.of_label) + 9)
    assert (told == labels).mean() == pytest.approx(kept, abs=0.015)  # four deviations
    far, _ = recipe.noisy(np.full((20_000, 4), 100.0), labels, 10, rng)
    longest = 0.5  # of 4 columns
    assert np.linalg.norm(far.mean(axis=0)) == pytest.approx(longest, abs=0.05)
    wanted = 2 * longest * gaussian(recipe.epsilon - recipe.of_label)
    assert far.std(axis=0) == pytest.approx(np.full(4, wanted), rel=0.03)


def test_every_teacher_votes_once_and_has_records_of_its_own(parts):
    train, _, public = (part.take(slice(90)) for part in parts)
    recipe, seen = replace(RECIPES["pate"], each=30), []

    class Watched(type(recipe)):
        def teacher(self, lesson, images, number):
            seen.append(images)
            return super().teacher(lesson, images, number)

    watched = Watched("pate", each=30)
    votes = watched.votes(Lesson(train, replace(SETTINGS, width=2, epochs=1)), public)
    assert votes.shape == (90, 10)
    assert (votes.sum(axis=1) == 3).all()
    rows = sorted(row.tobytes() for images in seen for row in images.pixels)
    assert rows == sorted(row.tobytes() for row in train.pixels)
    assert recipe.noise(8) == pytest.approx(4 * gaussian(8.0))  # √(2 · 8)
    winners = watched.winners(1_000_000 * votes, np.random.default_rng(0))  # the noise decides between equals alone
    assert (votes[np.arange(90), winners] == votes.max(axis=1)).all()
