"""The cache is whole or made anew; training is the same for a seed, also after kill -9; the classifier overfits."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import classifier as models
from experiments.data import benchmarks
from experiments.data.parts import five_way_split
from scoreveil.audit import cache
from scoreveil.audit.data.images import Images
from scoreveil.audit.networks.training import TrainSettings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent

TINY = TrainSettings(width=8, epochs=5, bf16=False)


@pytest.fixture(scope="module")
def parts():
    return five_way_split(benchmarks.load("digits"), size=400, reference=100, seed=0)


@pytest.fixture(scope="module")
def model(parts):
    return models.train(parts.target_train, TrainSettings(epochs=60, bf16=False))


def started(code):
    return subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)


# The cache


def numbers(n=1000):
    return {"a": np.arange(n), "b/c": np.ones((2, 3), np.float32), "file": np.array("text")}


def kept(directory, make, key="k"):
    return cache.load_or_make(
        "things", key, make, save=lambda made: made, load=lambda arrays: arrays, directory=directory
    )


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_a_key_is_made_of_all_that_matters_and_of_nothing_else():
    @dataclass(frozen=True)
    class Settings:
        lr: float
        steps: tuple[int, ...] = (1, 2)

    images = Images(np.zeros((2, 1, 4, 4), np.float32), np.array([0, 1]), "a", 2)
    key = cache.key("kind", Settings(0.1), images, np.arange(3), {"b": 1, "a": None})
    assert key == cache.key("kind", Settings(0.1), images.take(slice(None)), np.arange(3), {"a": None, "b": 1})
    assert len(key) == 64
    others = [
        cache.key("other", Settings(0.1), images, np.arange(3), {"b": 1, "a": None}),
        cache.key("kind", Settings(0.2), images, np.arange(3), {"b": 1, "a": None}),
        cache.key("kind", Settings(0.1, (1,)), images, np.arange(3), {"b": 1, "a": None}),
        cache.key("kind", Settings(0.1), images.take(slice(1)), np.arange(3), {"b": 1, "a": None}),
        cache.key("kind", Settings(0.1), images, np.arange(3.0), {"b": 1, "a": None}),
        cache.key("kind", Settings(0.1), images, np.arange(3), {"b": 2, "a": None}),
    ]
    assert len({key, *others}) == 7
    with pytest.raises(TypeError, match="got object"):
        cache.key(object())


def test_the_code_version_is_part_of_a_key(monkeypatch):
    before = cache.key("same")
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    assert cache.key("same") != before


def test_an_entry_is_made_once(tmp_path, monkeypatch):
    made = []
    monkeypatch.setenv("SCOREVEIL_CACHE", str(tmp_path / "by environment"))
    for directory in (tmp_path / "given", None):
        for _ in range(2):
            assert same(kept(directory, lambda: made.append(1) or numbers()), numbers())
    assert len(made) == 2
    assert cache.path("things", "k").parents[1] == tmp_path / "by environment"


DAMAGE = {
    "empty": lambda whole: b"",
    "truncated": lambda whole: whole[: len(whole) // 2],
    "its end is gone": lambda whole: whole[:-1],
    "a byte of an array": lambda whole: whole[:4000] + bytes([whole[4000] ^ 1]) + whole[4001:],
    "zeros": lambda whole: bytes(len(whole)),
    "text": lambda whole: b"no archive at all",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_anew(tmp_path, damage):
    kept(tmp_path, numbers)
    file = cache.path("things", "k", tmp_path)
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    with pytest.raises(cache.Damaged, match=r"k\.npz"):
        cache.read(file)
    made = []
    assert same(kept(tmp_path, lambda: made.append(1) or numbers()), numbers())
    assert made == [1]
    assert same(cache.read(file), numbers())


def test_an_entry_with_other_arrays_than_its_checksum_says_is_damaged(tmp_path):
    cache.write(tmp_path / "x.npz", numbers())
    with np.load(tmp_path / "x.npz") as saved:
        arrays = dict(saved)
    np.savez(tmp_path / "x.npz", **{cache.CHECKSUM: arrays[cache.CHECKSUM], "a": arrays["a"] + 1})
    with pytest.raises(cache.Damaged, match="checksum"):
        cache.read(tmp_path / "x.npz")


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        cache.write(tmp_path / "x.npz", numbers())
    assert list(tmp_path.iterdir()) == []


def test_readers_see_whole_entries_while_one_is_written_and_killed(tmp_path):
    file = tmp_path / "x.npz"
    code = f"""
import numpy as np
from pathlib import Path
from scoreveil.audit import cache
for n in range(10**9):
    cache.write(Path({str(file)!r}), {{"n": np.full(200_000, n)}})
"""
    writer = started(code)
    deadline = time.monotonic() + 60
    seen = set()
    while len(seen) < 5 and time.monotonic() < deadline:
        try:
            values = set(cache.read(file)["n"].tolist())
        except FileNotFoundError:
            continue
        assert len(values) == 1
        seen |= values
    writer.kill()
    writer.wait()
    writer.stdout.close()
    assert len(seen) >= 5
    assert cache.read(file)["n"].shape == (200_000,)


def test_processes_and_threads_that_want_one_entry_make_it_once(tmp_path):
    code = f"""
import time, numpy as np
from scoreveil.audit import cache
def make():
    with open({str(tmp_path / "log")!r}, "a") as log:
        log.write("made\\n")
    time.sleep(1)
    return {{"n": np.arange(5)}}
found = cache.load_or_make("things", "k", make, lambda made: made, lambda arrays: arrays, {str(tmp_path)!r})
print(found["n"].tolist())
"""
    processes = [started(code) for _ in range(3)]
    told = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert told == [[0, 1, 2, 3, 4]] * 3
    assert (tmp_path / "log").read_text() == "made\n"
    made = []

    def slow():
        made.append(1)
        time.sleep(0.1)
        return numbers()

    with ThreadPoolExecutor(4) as pool:
        assert all(same(found, numbers()) for found in pool.map(lambda _: kept(tmp_path, slow, "t"), range(4)))
    assert made == [1]


# The classifier


def test_the_network_is_the_papers():
    def widths(shape, width):
        layers = list(models.classifier_network(shape, 10, width))
        return [layer.out_channels for layer in layers if isinstance(layer, torch.nn.Conv2d)]

    assert widths((1, 32, 32), models.STANDARD) == [32, 64, 128]
    assert widths((3, 32, 32), models.QUICK) == [16, 32, 64]
    assert widths((3, 32, 32), models.PAPER) == [128, 256, 512]
    assert widths((3, 64, 64), models.PAPER) == [128, 256, 512, 1024]
    assert widths((1, 8, 8), models.STANDARD) == [32]
    layers = list(models.classifier_network((3, 32, 32), 10, 32))
    assert [type(layer).__name__ for layer in layers[:4]] == ["Conv2d", "BatchNorm2d", "MaxPool2d", "ReLU"]
    assert [getattr(layer, "out_features", None) for layer in layers[-3:]] == [50, None, 10]
    with pytest.raises(ValueError, match="4×4 or more, got 3×9"):
        models.classifier_network((1, 3, 9), 10, 8)


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32), (3, 20, 28)])
def test_it_trains_on_images_of_other_shapes(shape):
    rng = np.random.default_rng(0)
    images = Images(rng.random((40, *shape), dtype=np.float32), np.arange(40) % 3, "noise", 3)
    model = models.train(images, TrainSettings(width=4, epochs=1))  # in bfloat16, where that works
    assert model.scores(images).shape == (40, 3)
    assert model.labels_of_variants(images).shape == (40, 5)


def test_it_knows_its_training_images_by_heart(model, parts):
    train, test = (
        float(np.mean(model.scores(part).argmax(axis=1) == part.labels))
        for part in (parts.target_train, parts.target_test)
    )
    assert train > 0.99
    assert 0.85 < test < train - 0.01
    confidence = [model.scores(part).max(axis=1).mean() for part in (parts.target_train, parts.target_test)]
    assert confidence[0] > confidence[1] + 0.01


def test_scores_are_float64_sum_to_one_and_are_not_quantised(model, parts):
    scores = model.scores(parts.target_test)
    assert scores.dtype == np.float64
    assert scores.shape == (400, 10)
    assert np.allclose(scores.sum(axis=1), 1, rtol=0, atol=1e-12)
    assert scores.min() > 0
    assert len(np.unique(scores)) > 0.99 * scores.size
    assert model.scores(parts.target_test.take(slice(0))).shape == (0, 10)
    with pytest.raises(ValueError, match=r"\(1, 8, 8\), as trained on, got \(1, 4, 16\)"):
        model.scores(Images(np.zeros((2, 1, 4, 16), np.float32), np.array([0, 1]), "other", 10))


def test_variants_are_shifts_by_one_pixel_and_the_mirror_image(model, parts):
    images = parts.target_test
    labels = model.labels_of_variants(images)
    assert labels.dtype == np.int64
    assert labels.shape == (400, 5)
    x = images.pixels
    moved = [
        np.concatenate([x[..., :1], x[..., :-1]], axis=3),
        np.concatenate([x[..., 1:], x[..., -1:]], axis=3),
        np.concatenate([x[..., :1, :], x[..., :-1, :]], axis=2),
        np.concatenate([x[..., 1:, :], x[..., -1:, :]], axis=2),
        np.flip(x, axis=3),
    ]
    for column, pixels in zip(labels.T, moved, strict=True):
        variant = Images(np.ascontiguousarray(pixels), images.labels, "moved", 10)
        assert np.array_equal(column, model.scores(variant).argmax(axis=1))


def test_training_is_the_same_for_a_seed_and_leaves_the_process_as_it_was(parts):
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    first = models.train(parts.target_train, TINY).scores(parts.target_test)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    torch.manual_seed(6)
    assert np.array_equal(models.train(parts.target_train, TINY).scores(parts.target_test), first)
    other = TrainSettings(width=8, epochs=5, bf16=False, seed=1)
    assert not np.allclose(models.train(parts.target_train, other).scores(parts.target_test), first, atol=1e-3)


def test_a_training_that_is_killed_goes_on_and_gives_the_same_numbers(parts, tmp_path):
    code = f"""
from experiments.data import benchmarks
from scoreveil.audit.data.images import Images
from experiments.data.parts import five_way_split
from experiments import classifier as models
from scoreveil.audit.networks.training import TrainSettings
parts = five_way_split(benchmarks.load("digits"), size=400, reference=100, seed=0)
settings = TrainSettings(width=8, epochs=5, bf16=False)
import time
def progress(done):
    print(done)
    time.sleep(0.3)
models.cached_classifier(parts.target_train, settings, {str(tmp_path)!r}, progress)
"""
    process = started(code)
    assert [float(process.stdout.readline()) for _ in range(2)] == [0.2, 0.4]
    process.kill()
    process.wait()
    process.stdout.close()
    (checkpoint,) = tmp_path.rglob("*.checkpoint")
    told = []
    resumed = models.cached_classifier(parts.target_train, TINY, tmp_path, told.append)
    assert 0.2 not in told
    assert told[-1] == 1
    assert not checkpoint.exists()
    whole = models.train(parts.target_train, TINY).scores(parts.target_test)
    assert np.array_equal(resumed.scores(parts.target_test), whole)
    told.clear()
    again = models.cached_classifier(parts.target_train, TINY, tmp_path, told.append)
    assert told == [1]
    assert np.array_equal(again.scores(parts.target_test), whole)


def test_a_checkpoint_of_another_training_is_refused_and_a_damaged_one_is_not_used(parts, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    whole = models.train(parts.target_train, TINY, checkpoint).scores(parts.target_test)
    with pytest.raises(ValueError, match="belongs to a training on other data or settings"):
        models.train(parts.shadow_train, TINY, checkpoint)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    told = []
    again = models.train(parts.target_train, TINY, checkpoint, told.append)
    assert told == [0.2, 0.4, 0.6, 0.8, 1]
    assert np.array_equal(again.scores(parts.target_test), whole)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"epochs": 0}, {"batch": 0}, {"lr": float("nan")}, {"seed": -1}])
def test_settings_that_make_no_sense_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        TrainSettings(**wrong)


def test_no_images_are_refused(parts):
    with pytest.raises(ValueError, match="images to train on, got an empty set"):
        models.train(parts.target_train.take(slice(0)), TINY)


def test_the_library_itself_needs_neither_torch_nor_sklearn_nor_pillow():
    code = "import sys, scoreveil; print([m for m in ('torch', 'sklearn', 'PIL') if m in sys.modules])"
    process = started(code)
    assert process.communicate(timeout=60)[0] == "[]\n"
