"""Inversion draws more from scores than from the label, and more from the label than from nothing."""

import numpy as np
import pytest

from experiments import classifier as models
from experiments.data import benchmarks
from experiments.data.parts import split
from scoreveil import Veil
from scoreveil.audit.data.images import Images
from scoreveil.audit.networks import inverter as inversion
from scoreveil.audit.networks.inverter import InversionSettings
from scoreveil.audit.networks.training import TrainSettings

pytestmark = pytest.mark.slow

# small batches: the form of the authors' code, offset by 50, needs many steps
SETTINGS = InversionSettings(epochs=40, batch=16, bf16=False)
TINY = InversionSettings(width=8, epochs=4, bf16=False)
SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0]])


@pytest.fixture(scope="module")
def attacked():
    """The attacker's images and their scores, the attacked images and theirs."""
    train, test, auxiliary = split(benchmarks.load("digits"), [400, 400, 900], seed=0)
    model = models.train(train, TrainSettings(epochs=30, bf16=False))
    return auxiliary, model.scores(auxiliary), test, model.scores(test)


def error(reconstructed, images):
    return float(np.mean((reconstructed - images.pixels) ** 2))


def test_scores_tell_more_than_the_label_and_the_label_more_than_nothing(attacked):
    auxiliary, scores, test, seen = attacked
    found = {}
    for form in ("label", "log_scores"):
        inverter = inversion.fit(auxiliary, scores, form, SETTINGS)
        found[form] = error(inverter.reconstruct(seen), test)
    nothing = error(auxiliary.pixels.mean(axis=0), test)
    assert found["log_scores"] < 0.95 * found["label"]
    assert found["label"] < 0.7 * nothing


def test_a_veil_that_keeps_the_label_only_leaves_the_attacker_near_the_label(attacked):
    auxiliary, scores, test, seen = attacked
    veil = Veil(0.5, rng=np.random.default_rng(0))
    settings = InversionSettings(epochs=15, batch=32, lr=1e-3, bf16=False)
    found = {
        name: error(inversion.fit(auxiliary, defense(scores), form, settings).reconstruct(defense(seen)), test)
        for name, defense, form in (("none", np.asarray, "all"), ("veil", veil, "all"), ("label", np.asarray, "label"))
    }
    assert found["none"] < 0.75 * found["label"]
    assert found["veil"] > 0.95 * found["label"]


def test_images_are_in_range_and_the_same_for_a_seed(attacked):
    auxiliary, scores, test, seen = attacked
    first, again, other = (
        inversion.fit(
            auxiliary, scores, "all", InversionSettings(width=8, epochs=4, bf16=False, seed=seed)
        ).reconstruct(seen)
        for seed in (0, 0, 1)
    )
    assert first.shape == test.pixels.shape
    assert first.dtype == np.float32
    assert 0 <= first.min() < first.max() <= 1
    assert np.array_equal(first, again)
    assert not np.allclose(first, other, atol=1e-3)


def test_an_inverter_is_kept_and_one_that_was_stopped_goes_on(attacked, tmp_path):
    auxiliary, scores, _, seen = attacked
    whole = inversion.fit(auxiliary, scores, "ranks", TINY).reconstruct(seen)

    class Stopped(Exception):
        pass

    def stop(done):
        if done >= 0.5:
            raise Stopped

    with pytest.raises(Stopped):
        inversion.cached_inverter(auxiliary, scores, "ranks", TINY, tmp_path, stop)
    for expected in ([0.75, 1, 1], [1]):
        told = []
        inverter = inversion.cached_inverter(auxiliary, scores, "ranks", TINY, tmp_path, told.append)
        assert told == expected
        assert np.array_equal(inverter.reconstruct(seen), whole)
    assert not list(tmp_path.rglob("*.checkpoint"))
    other = inversion.cached_inverter(auxiliary, scores[::-1].copy(), "ranks", TINY, tmp_path).reconstruct(seen)
    assert not np.array_equal(other, whole)


def test_the_network_is_the_papers():
    def widths(shape, width):
        return [
            layer.out_channels for layer in inversion.inversion_network(10, shape, width) if hasattr(layer, "stride")
        ]

    assert widths((3, 32, 32), inversion.PAPER) == [512, 256, 128, 3]
    assert widths((1, 32, 32), inversion.LIGHT) == [256, 128, 64, 1]
    assert widths((1, 8, 8), inversion.LIGHT) == [64, 1]
    for shape in ((1, 4, 4), (1, 28, 28), (1, 32, 16)):
        with pytest.raises(ValueError, match="square images of side 8, 16, 32"):
            inversion.inversion_network(10, shape, 8)


def test_it_works_for_images_of_32_by_32():
    rng = np.random.default_rng(0)
    images = Images(rng.random((20, 3, 32, 32), dtype=np.float32), np.arange(20) % 3, "noise", 3)
    scores = rng.dirichlet(np.ones(3), 20)
    inverter = inversion.fit(images, scores, "scores", InversionSettings(width=4, epochs=1))
    assert inverter.reconstruct(scores).shape == (20, 3, 32, 32)


def test_forms_of_the_scores():
    def form(name):
        return inversion.features(SCORES, name)

    assert np.array_equal(form("scores"), SCORES)
    assert np.allclose(form("log_scores")[0], np.log(SCORES[0]) + 50)
    # the authors' shift: -1000 + 50 becomes 0
    assert np.allclose(form("log_scores")[1], [1000 + np.log(0.5), 1000 + np.log(0.5), 0])
    assert np.allclose(form("log_ratios")[0, 1] - form("log_ratios")[0, 2], np.log(3.5))
    assert np.allclose(form("log_ratios").sum(axis=1), 0)
    assert np.array_equal(form("ranks"), [[0, 1, 0.5], [1, 0.5, 0]])
    assert np.array_equal(form("label"), [[0, 1, 0], [1, 0, 0]])
    assert form("all").shape == (2, 15)
    with pytest.raises(ValueError, match="got 'other'"):
        form("other")


def test_adaptive_forms_are_standardised_and_constant_features_do_not_matter(attacked):
    auxiliary, scores, _, _ = attacked
    inverter = inversion.fit(auxiliary, scores, "log_ratios", TINY)
    inputs = (inversion.features(scores, "log_ratios") - inverter.mean) / inverter.scale
    assert np.allclose(inputs.mean(axis=0), 0, atol=1e-9)
    assert np.allclose(inputs.std(axis=0), 1)
    same = np.full_like(scores, 0.1)
    assert np.isfinite(inversion.fit(auxiliary, same, "all", TINY).reconstruct(same[:3])).all()


def test_scores_that_do_not_fit_are_refused(attacked):
    auxiliary, scores, _, _ = attacked
    with pytest.raises(ValueError, match=r"each of 900 images, got \(899, 10\)"):
        inversion.fit(auxiliary, scores[1:], "scores", TINY)
    with pytest.raises(ValueError, match=r"\(n, 10\), got \(900, 9\)"):
        inversion.fit(auxiliary, scores, "label", TINY).reconstruct(scores[:, 1:])
    with pytest.raises(ValueError, match="epochs"):
        InversionSettings(epochs=0)
