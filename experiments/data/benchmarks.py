"""The paper's datasets, by name, from files in every form that they are published in.

    images = benchmarks.load("fashion-mnist", data_dir)     # or "digits", "mnist", "cifar10", "adult"

A benchmark's training and test files are pooled: a study makes its own split. What is damaged is a ValueError that
names the file, what is missing a FileNotFoundError that says where it goes; neither is ever trained on.
"""

import gzip
import math
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data import adult
from scoreveil.arrays import Integers
from scoreveil.audit import cache
from scoreveil.audit.data.images import Images
from scoreveil.files.pictures import SIDE, Bytes, Pixels, unit

DIGITS = tuple("0123456789")
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
CIFAR10_BATCH = 10_000  # images in each
CIFAR10_ZIP = "cifar10-images.zip"
ANOTHER_PLACE = "Another place: --data-dir, or SCOREVEIL_DATA."


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Images:
    """A benchmark.

    Args:
        name: One of `BENCHMARKS`.
        data_dir: Where benchmarks are looked for; else in $SCOREVEIL_DATA, else in `data` of the cache.

    Raises:
        FileNotFoundError: A file is missing; the message says which, and where it goes.
        ValueError: A file is damaged.
    """
    if name not in BENCHMARKS:
        raise ValueError(f"Expected one of {', '.join(BENCHMARKS)}, got {name}.")
    return BENCHMARKS[name](place(data_dir))


def place(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where benchmarks are looked for, and downloaded to."""
    return Path(data_dir or os.environ.get("SCOREVEIL_DATA") or cache.root() / "data")


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """The files of a benchmark, or a FileNotFoundError that says which are missing and where they go."""
    where = place(data_dir)
    if name in IDX:
        return idx_files(where, IDX[name][0])
    return adult.files(where) if name == "adult" else cifar10_files(where)


def digits(_: Path) -> Images:
    """The 1797 handwritten digits of 8×8 that scikit-learn brings along."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    pixels = np.asarray(bundled.images / 16, dtype=np.float32)[:, None]
    return Images(pixels, np.asarray(bundled.target, dtype=np.int64), "digits", 10, DIGITS)


# MNIST and its kin


def idx_files(data_dir: Path, name: str) -> list[Path]:
    """The four idx files of MNIST and its kin, gzipped or not, where torchvision puts them."""
    folder = data_dir / name.replace("-", "") / "raw"
    stems = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    files = [next(filter(Path.is_file, (folder / stem, folder / f"{stem}.gz")), None) for stem in stems]
    missing = [stem for stem, file in zip(stems, files, strict=True) if file is None]
    if missing:
        raise FileNotFoundError(
            f"Expected {name} in {folder}, got no {', '.join(missing)} there, with or without .gz. {ANOTHER_PLACE}"
        )
    return [file for file in files if file is not None]


def idx(data_dir: Path, name: str, class_names: tuple[str, ...]) -> Images:
    """Training and test images, resized as in the paper."""
    found = idx_files(data_dir, name)
    pixels = [_idx_array(file, dimensions=3) for file in found[::2]]
    labels = [_idx_array(file, dimensions=1) for file in found[1::2]]
    for file, its_pixels, its_labels in zip(found[1::2], pixels, labels, strict=True):
        if len(its_pixels) != len(its_labels) or its_labels.max(initial=0) >= len(class_names):
            got = f"{len(its_labels)} up to {its_labels.max(initial=0)}"
            raise ValueError(f"Expected {len(its_pixels)} labels up to {len(class_names) - 1} in {file}, got {got}.")
    if pixels[0].shape[1:] != pixels[1].shape[1:] or 0 in pixels[0].shape + pixels[1].shape:
        raise ValueError(
            f"Expected images of one size in {found[0].parent}, got {pixels[0].shape} and {pixels[1].shape}."
        )
    resized = resize(unit(np.concatenate(pixels))[:, None], SIDE)
    return Images(resized, np.concatenate(labels).astype(np.int64), name, len(class_names), class_names)


def _idx_array(file: Path, dimensions: int) -> Bytes:
    """An idx file: magic 0, 0, 8 (bytes), dimensions; then each size as a big-endian uint32; then the bytes."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"Expected gzipped data in {file}, got a damaged file: {error}.") from error
    magic, start = bytes((0, 0, 8, dimensions)), 4 + 4 * dimensions
    if len(content) < start or content[:4] != magic:
        raise ValueError(
            f"Expected an idx file beginning {magic.hex()} in {file}, got {content[:4].hex() or 'nothing'}."
        )
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise ValueError(f"Expected {expected} bytes in {file} for shape {shape}, got {len(content)}.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# CIFAR-10


def cifar10(data_dir: Path) -> Images:
    """CIFAR-10 in the first of its three forms that is there whole: Python batches, binary batches, image zip."""
    files = cifar10_files(data_dir)
    if files[0].name == CIFAR10_ZIP:
        images = Images.from_pictures(files[0])
        if images.class_names != CIFAR10 or images.shape != (3, SIDE, SIDE):
            found = f"pictures of shape {images.shape} in {', '.join(images.class_names)}"
            raise ValueError(f"Expected colour images of {', '.join(CIFAR10)} in {files[0]}, got {found}.")
        return Images(images.pixels, images.labels, "CIFAR-10 (re-encoded as JPEG)", 10, CIFAR10)
    read = _binary_batch if files[0].suffix == ".bin" else _python_batch
    pixels, labels = (np.concatenate(parts) for parts in zip(*map(read, files), strict=True))
    return Images(unit(pixels.reshape(-1, 3, 32, 32)), labels, "CIFAR-10", 10, CIFAR10)


def cifar10_files(data_dir: Path) -> list[Path]:
    python = [data_dir / "cifar-10-batches-py" / name for name in CIFAR10_BATCHES]
    binary = [data_dir / "cifar-10-batches-bin" / f"{name}.bin" for name in CIFAR10_BATCHES]
    pictures = data_dir / CIFAR10_ZIP
    for files in (python, binary, [pictures]):
        if all(file.is_file() for file in files):
            return files
    missing = [", ".join(file.name for file in files if not file.is_file()) for files in (python, binary)]
    raise FileNotFoundError(
        f"Expected CIFAR-10 in {data_dir}: {missing[0]} in {python[0].parent}, or {missing[1]} in {binary[0].parent}, "
        f"or {pictures}. {ANOTHER_PLACE}"
    )


class _BatchUnpickler(pickle.Unpickler):
    """Reads what CIFAR-10's Python batches hold, numpy arrays in plain containers, and calls nothing else."""

    ALLOWED = frozenset({"_reconstruct", "_frombuffer", "ndarray", "dtype", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        if name not in self.ALLOWED or module.partition(".")[0] not in ("numpy", "_codecs"):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a batch of images")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _python_batch(file: Path) -> tuple[Bytes, Integers]:
    try:
        with file.open("rb") as opened:
            batch = _BatchUnpickler(opened, encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"], dtype=np.int64)
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(f"Expected a CIFAR-10 batch in {file}, got a damaged file: {error!r}.") from error
    return _checked(pixels, labels, file)


def _binary_batch(file: Path) -> tuple[Bytes, Integers]:
    content, record = np.fromfile(file, np.uint8), 1 + 3 * 32 * 32
    if len(content) != CIFAR10_BATCH * record:
        raise ValueError(f"Expected {CIFAR10_BATCH * record} bytes in {file}, got {len(content)}.")
    rows = content.reshape(-1, record)
    return _checked(rows[:, 1:], rows[:, 0].astype(np.int64), file)


def _checked(pixels: Bytes, labels: Integers, file: Path) -> tuple[Bytes, Integers]:
    if pixels.dtype != np.uint8 or pixels.shape != (CIFAR10_BATCH, 3 * 32 * 32):
        raise ValueError(f"Expected {CIFAR10_BATCH} images of 3072 bytes in {file}, got {pixels.dtype} {pixels.shape}.")
    if labels.shape != (CIFAR10_BATCH,) or not 0 <= labels.min() <= labels.max() < len(CIFAR10):
        found = f"{labels.shape} up to {labels.max(initial=0)}"
        raise ValueError(f"Expected {CIFAR10_BATCH} labels from 0 to 9 in {file}, got {found}.")
    return pixels, labels


def resize(pixels: Pixels, side: int) -> Pixels:
    """Bilinear, with half-pixel centres; for enlarging. Plain arithmetic, so that digests agree across machines."""
    resized = np.empty((*pixels.shape[:2], side, side), np.float32)
    for start in range(0, len(pixels), 1024):  # few enough to stay in the processor's cache
        block = pixels[start : start + 1024]
        for axis in (2, 3):
            block = _enlarged(block, axis, side)
        resized[start : start + 1024] = block
    return resized


def _enlarged(pixels: Pixels, axis: int, side: int) -> Pixels:
    last = pixels.shape[axis] - 1
    centre = np.clip((np.arange(side) + 0.5) * (last + 1) / side - 0.5, 0, last)
    low = centre.astype(np.int64)
    weight = (centre - low).astype(np.float32).reshape(-1, *[1] * (3 - axis))
    below, above = pixels.take(low, axis), pixels.take(np.minimum(low + 1, last), axis)
    return np.asarray(below + (above - below) * weight)


IDX = {"mnist": ("MNIST", DIGITS), "fashion-mnist": ("Fashion-MNIST", CLOTHES)}
BENCHMARKS: dict[str, Callable[[Path], Images]] = {
    "digits": digits,
    "mnist": lambda data_dir: idx(data_dir, *IDX["mnist"]),
    "fashion-mnist": lambda data_dir: idx(data_dir, *IDX["fashion-mnist"]),
    "cifar10": cifar10,
    "adult": adult.load,
}
