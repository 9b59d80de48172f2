"""Images are read from every form they come in, damage is refused by name, parts are disjoint."""

import gzip
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from experiments.data import benchmarks
from experiments.data.benchmarks import resize
from experiments.data.parts import five_way_split
from scoreveil.audit.data.images import Images
from test_audit_data import picture

RNG = np.random.default_rng(0)
REAL = Path(os.environ.get("SCOREVEIL_DATA") or Path(__file__).parents[2] / "shared" / "data")
PARTS = {"train": 12, "t10k": 5}


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    """MNIST in small: pixels and labels as written, and where."""
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    pixels = {part: RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8) for part, n in PARTS.items()}
    labels = {part: RNG.integers(0, 10, n, dtype=np.uint8) for part, n in PARTS.items()}
    for part in PARTS:
        for kind, array in (("images-idx3", pixels[part]), ("labels-idx1", labels[part])):
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    return tmp_path, pixels, labels


def test_digits_come_without_files():
    images = benchmarks.load("digits")
    assert images.pixels.shape == (1797, 1, 8, 8)
    assert (images.pixels.min(), images.pixels.max()) == (0, 1)
    assert (images.classes, images.class_names) == (10, tuple("0123456789"))
    with pytest.raises(ValueError, match="Expected one of digits, mnist"):
        benchmarks.load("letters")


def test_idx_files_are_pooled_and_resized_gzipped_or_not(mnist):
    directory, pixels, labels = mnist
    gzipped = benchmarks.load("mnist", directory)
    assert gzipped.pixels.shape == (17, 1, 32, 32)
    assert gzipped.labels.tolist() == [*labels["train"].tolist(), *labels["t10k"].tolist()]
    assert np.allclose(gzipped.pixels[:, 0, 0, 0], np.concatenate([*pixels.values()])[:, 0, 0] / 255)
    for file in (directory / "MNIST" / "raw").iterdir():
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    assert benchmarks.load("mnist", directory).digest == gzipped.digest
    if (REAL / "MNIST" / "raw").is_dir():
        real = benchmarks.load("mnist", REAL)
        assert real.pixels.shape == (70_000, 1, 32, 32)
        assert np.bincount(real.labels).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]


def test_the_environment_says_where_data_is(mnist, monkeypatch):
    monkeypatch.setenv("SCOREVEIL_DATA", str(mnist[0]))
    assert len(benchmarks.load("mnist")) == 17


def test_resize_is_bilinear():
    ramp = np.tile(np.arange(28, dtype=np.float32) / 27, (3, 1, 28, 1))
    centre = np.clip((np.arange(32) + 0.5) * 28 / 32 - 0.5, 0, 27)
    assert np.allclose(resize(ramp, 32), centre / 27, atol=1e-6)
    assert np.allclose(resize(ramp.swapaxes(2, 3), 32), centre[:, None] / 27, atol=1e-6)
    assert np.array_equal(resize(ramp, 28), ramp)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_missing_files_are_named_with_their_place(name, tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        benchmarks.load(name, tmp_path)
    wanted = {
        "mnist": ["MNIST/raw", "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
        "fashion-mnist": ["FashionMNIST/raw", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"],
        "cifar10": ["cifar-10-batches-py", "data_batch_3", "test_batch.bin", "cifar10-images.zip"],
    }
    for text in [str(tmp_path), "SCOREVEIL_DATA", *wanted[name]]:
        assert text in str(error.value)


def test_only_what_is_missing_is_named(mnist):
    (mnist[0] / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"got no t10k-labels-idx1-ubyte there"):
        benchmarks.load("mnist", mnist[0])


DAMAGE = {
    "truncated gzip": lambda raw: gzip.compress(raw)[:-20],
    "flipped byte": lambda raw: gzip.compress(raw)[:40] + b"\xff\x00\xff" + gzip.compress(raw)[43:],
    "no gzip": lambda raw: raw,
    "bad magic": lambda raw: gzip.compress(b"\0\0\x09" + raw[3:]),
    "labels for images": lambda raw: gzip.compress(b"\0\0\x08\x01" + raw[4:]),
    "too short": lambda raw: gzip.compress(raw[:-1]),
    "too long": lambda raw: gzip.compress(raw + b"\0"),
    "no header": lambda raw: gzip.compress(raw[:6]),
    "empty": lambda raw: b"",
    "no images": lambda raw: gzip.compress(idx(np.zeros((0, 28, 28), np.uint8))),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_idx_file_is_refused_by_name(mnist, damage):
    file = mnist[0] / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    file.write_bytes(DAMAGE[damage](gzip.decompress(file.read_bytes())))
    named = "train-labels" if damage == "no images" else "train-images"  # there are labels for images that are not
    with pytest.raises(ValueError, match=named):
        benchmarks.load("mnist", mnist[0])


@pytest.mark.parametrize("labels", [np.zeros(11, np.uint8), np.full(12, 10, np.uint8)])
def test_labels_that_do_not_fit_are_refused_by_name(mnist, labels):
    (mnist[0] / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    with pytest.raises(ValueError, match="train-labels-idx1"):
        benchmarks.load("mnist", mnist[0])


# CIFAR-10


def python2_batch(pixels, labels):
    """A batch as Python 2 pickled it, which is how CIFAR-10 comes: byte strings, and numpy by its old name."""

    def short(text):
        return b"U" + bytes([len(text)]) + text

    def number(value):
        return b"J" + struct.pack("<i", value)

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + short(b"b") + b"\x87R"
    dtype = (
        b"cnumpy\ndtype\n" + short(b"u1") + b"K\0K\x01\x87R(K\x03" + short(b"|") + b"NNN" + number(-1) * 2 + b"K\0tb"
    )
    content = b"T" + struct.pack("<I", pixels.size) + pixels.tobytes()
    shape = number(len(pixels)) + number(pixels.shape[1]) + b"\x86"
    data_ = array + b"(K\x01" + shape + dtype + b"\x89" + content + b"tb"
    labels_ = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + short(b"data") + data_ + short(b"labels") + labels_ + b"u."


@pytest.fixture
def cifar(monkeypatch):
    monkeypatch.setattr(benchmarks, "CIFAR10_BATCH", 4)
    return RNG.integers(0, 256, (6, 4, 3072), dtype=np.uint8), RNG.integers(0, 10, (6, 4))


def write_python(directory, cifar, dump=python2_batch):
    folder = directory / "cifar-10-batches-py"
    folder.mkdir()
    for name, pixels, labels in zip(benchmarks.CIFAR10_BATCHES, *cifar, strict=True):
        (folder / name).write_bytes(dump(pixels, labels.tolist()))
    return folder


def write_binary(directory, cifar):
    folder = directory / "cifar-10-batches-bin"
    folder.mkdir()
    for name, pixels, labels in zip(benchmarks.CIFAR10_BATCHES, *cifar, strict=True):
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels.astype(np.uint8), pixels]).tobytes())
    return folder


def test_cifar_is_the_same_from_python_and_binary_batches(tmp_path, cifar):
    dumps = [python2_batch, *(lambda x, y, p=p: pickle.dumps({b"data": x, b"labels": y}, p) for p in (2, 5))]
    read = []
    for place, dump in enumerate(dumps):
        (tmp_path / str(place)).mkdir()
        write_python(tmp_path / str(place), cifar, dump)
        read.append(benchmarks.load("cifar10", tmp_path / str(place)))
    write_binary(tmp_path, cifar)
    read.append(benchmarks.load("cifar10", tmp_path))
    assert len({images.digest for images in read}) == 1
    assert read[0].labels.tolist() == cifar[1].ravel().tolist()
    assert np.array_equal(np.rint(read[0].pixels * 255).reshape(24, 3072), cifar[0].reshape(24, 3072))


def test_a_damaged_batch_is_refused_by_name(tmp_path, cifar):
    binary = write_binary(tmp_path, cifar) / "data_batch_2.bin"
    whole = binary.read_bytes()
    for content in (whole[:-1], whole[:-3073], b"\x0a" + whole[1:], b""):
        binary.write_bytes(content)
        with pytest.raises(ValueError, match=r"data_batch_2\.bin"):
            benchmarks.load("cifar10", tmp_path)
    python = write_python(tmp_path, cifar) / "data_batch_3"
    whole = python.read_bytes()
    for content in (whole[:-9], whole[:3], b"", pickle.dumps([1]), pickle.dumps({b"data": 1, b"labels": [2]})):
        python.write_bytes(content)
        with pytest.raises(ValueError, match="data_batch_3"):
            benchmarks.load("cifar10", tmp_path)


def test_a_batch_cannot_run_code(tmp_path, cifar):
    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harmed"),)

    write_python(tmp_path, cifar, lambda pixels, labels: pickle.dumps({b"data": Harm(), b"labels": labels}))
    with pytest.raises(ValueError, match=r"mkdir has no place in a batch"):
        benchmarks.load("cifar10", tmp_path)
    assert not (tmp_path / "harmed").exists()


def test_cifar_is_read_from_the_image_zip_and_says_that_it_is_jpeg(tmp_path):
    colour = RNG.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    with zipfile.ZipFile(tmp_path / "cifar10-images.zip", "w") as archive:
        for name in reversed(benchmarks.CIFAR10):
            for part in ("train", "test"):
                archive.writestr(f"cifar10/{part}/{name}/0000.jpg", picture(colour, "JPEG"))
    images = benchmarks.load("cifar10", tmp_path)
    assert images.pixels.shape == (20, 3, 32, 32)
    assert np.bincount(images.labels).tolist() == [2] * 10
    assert "JPEG" in images.name
    with zipfile.ZipFile(tmp_path / "cifar10-images.zip", "w") as archive:
        for name in ("cat", "dog"):
            archive.writestr(f"{name}/0.png", picture(colour))
    with pytest.raises(ValueError, match=r"cifar10-images\.zip"):
        benchmarks.load("cifar10", tmp_path)


# Parts


def test_parts_are_disjoint_and_the_same_for_a_seed():
    pixels = np.arange(100, dtype=np.float32).reshape(100, 1, 1, 1) / 100
    images = Images(pixels, np.arange(100) % 3, "numbered", 3)
    parts = five_way_split(images, size=20, reference=15, seed=7)
    shown = [parts.target_train, parts.target_test, parts.shadow_train, parts.shadow_test, parts.reference]
    assert [len(part) for part in shown] == [20, 20, 20, 20, 15]
    numbers = [np.rint(part.pixels.ravel() * 100).astype(int) for part in shown]
    assert len(set(np.concatenate(numbers).tolist())) == 95
    assert all(np.array_equal(part.labels, n % 3) for part, n in zip(shown, numbers, strict=True))
    again, other = (five_way_split(images, 20, 15, seed) for seed in (7, 8))
    assert again.reference.digest == parts.reference.digest
    assert other.reference.digest != parts.reference.digest
    with pytest.raises(ValueError, match=r"at least 105 images in numbered .* got 100"):
        five_way_split(images, 20, 25, seed=7)
