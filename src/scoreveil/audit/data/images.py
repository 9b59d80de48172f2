"""Labelled images to audit with, and their split into disjoint parts.

    images = data.load("fashion-mnist", data_dir)           # or "digits", "mnist", "cifar10", a folder, .zip or .npz
    parts = data.five_way_split(images, size=10_000, reference=5_000, seed=0)
    parts.target_train, parts.target_test, parts.shadow_train, parts.shadow_test, parts.reference

A benchmark's training and test files are pooled: a study makes its own split. What is damaged is a ValueError that
names the file, what is missing a FileNotFoundError that says where it goes; neither is ever trained on.
"""

import gzip
import hashlib
import io
import math
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.audit import cache

Pixels = NDArray[np.float32]
Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

SIDE = 32  # of the paper's images
SHIFTS = ((0, 1), (0, -1), (1, 0), (-1, 0))  # down, right
DIGITS = tuple("0123456789")
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
CIFAR10_BATCH = 10_000  # images in each
CIFAR10_ZIP = "cifar10-images.zip"
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}  # of Pillow: eight bits a channel
GREY = {"1", "L", "LA"}


@dataclass(frozen=True, eq=False)
class Images:
    """Images in [0, 1] with their classes."""

    pixels: Pixels  # (n, channels, height, width)
    labels: Integers  # (n,)
    name: str
    classes: int
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.float32 or self.pixels.ndim != 4 or 0 in self.pixels.shape[1:]:
            shape = self.pixels.shape
            raise ValueError(f"Expected float32 pixels (n, channels, height, width), got {self.pixels.dtype} {shape}.")
        if self.labels.dtype != np.int64 or self.labels.shape != self.pixels.shape[:1]:
            raise ValueError(f"Expected {len(self.pixels)} int64 labels, got {self.labels.dtype} {self.labels.shape}.")
        if not self.classes >= 2:
            raise ValueError(f"Expected at least 2 classes, got {self.classes}.")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < self.classes:
            raise ValueError(f"Expected labels below {self.classes}, got {self.labels.min()} to {self.labels.max()}.")
        if self.pixels.size and not (self.pixels.min() >= 0 and self.pixels.max() <= 1):
            raise ValueError(f"Expected pixels in [0, 1], got {self.pixels.min()} to {self.pixels.max()}.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    @cached_property
    def digest(self) -> str:
        """SHA-256 of pixels and labels, the same on every machine: what a cache knows these images by."""
        digest = hashlib.sha256(f"{self.pixels.shape} {self.classes}".encode())
        digest.update(np.ascontiguousarray(self.pixels, dtype="<f4").data)
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
        return digest.hexdigest()

    def take(self, index: Integers | NDArray[np.bool_] | slice) -> "Images":
        return Images(self.pixels[index], self.labels[index], self.name, self.classes, self.class_names)


@dataclass(frozen=True, eq=False)
class Parts:
    """Disjoint images: what the target and its shadow are trained on, what they never saw, and a public reference."""

    target_train: Images
    target_test: Images
    shadow_train: Images
    shadow_test: Images
    reference: Images


def split(images: Images, sizes: Sequence[int], seed: int) -> tuple[Images, ...]:
    """Disjoint parts of these sizes, drawn at random."""
    if not min(sizes, default=0) >= 0:
        raise ValueError(f"Expected sizes >= 0, got {list(sizes)}.")
    if sum(sizes) > len(images):
        raise ValueError(f"Expected at least {sum(sizes)} images in {images.name} for this split, got {len(images)}.")
    order = np.random.default_rng(seed).permutation(len(images))
    ends = np.cumsum([0, *sizes])
    return tuple(images.take(order[start:end]) for start, end in pairwise(ends))


def five_way_split(images: Images, size: int, reference: int, seed: int) -> Parts:
    """Four parts of `size` images and a reference."""
    return Parts(*split(images, [size] * 4 + [reference], seed))


def load(source: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> Images:
    """A benchmark by name, or the images of a folder, .zip or .npz.

    Benchmarks are looked for in `data_dir`, else in $SCOREVEIL_DATA, else in `data` of the cache.
    """
    if str(source) in BENCHMARKS:
        return BENCHMARKS[str(source)](place(data_dir))
    path = Path(source)
    if not path.exists():
        known = ", ".join(BENCHMARKS)
        raise FileNotFoundError(f"Expected one of {known}, or a folder, .zip or .npz that exists, got {source}.")
    return from_npz(path) if path.suffix.lower() == ".npz" else from_pictures(path)


def place(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where benchmarks are looked for, and downloaded to."""
    return Path(data_dir or os.environ.get("SCOREVEIL_DATA") or cache.root() / "data")


def find(name: str, data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """The files of a benchmark, or a FileNotFoundError that says which are missing and where they go."""
    return FILES[name](place(data_dir))


def variants(pixels: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Pictures (n, channels, height, width) moved by one pixel in four directions, and mirrored."""
    height, width = pixels.shape[2:]
    padded = np.pad(pixels, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    for down, right in SHIFTS:
        yield padded[:, :, 1 - down : 1 - down + height, 1 - right : 1 - right + width]
    yield pixels[..., ::-1]


# Benchmarks


def digits(_: Path) -> Images:
    """The 1797 handwritten digits of 8×8 that scikit-learn brings along."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    pixels = np.asarray(bundled.images / 16, dtype=np.float32)[:, None]
    return Images(pixels, np.asarray(bundled.target, dtype=np.int64), "digits", 10, DIGITS)


def cifar10(data_dir: Path) -> Images:
    """CIFAR-10 in the first of its three forms that is there whole: Python batches, binary batches, image zip."""
    files = cifar10_files(data_dir)
    if files[0].name == CIFAR10_ZIP:
        images = from_pictures(files[0])
        if images.class_names != CIFAR10 or images.shape != (3, SIDE, SIDE):
            raise ValueError(f"Expected colour images of {', '.join(CIFAR10)} in {files[0]}, got others.")
        return Images(images.pixels, images.labels, "CIFAR-10 (re-encoded as JPEG)", 10, CIFAR10)
    read = _binary_batch if files[0].suffix == ".bin" else _python_batch
    pixels, labels = (np.concatenate(parts) for parts in zip(*map(read, files), strict=True))
    return Images(_unit(pixels.reshape(-1, 3, 32, 32)), labels, "CIFAR-10", 10, CIFAR10)


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
        f"or {pictures}. Another place: --data-dir, or SCOREVEIL_DATA."
    )


BENCHMARKS: dict[str, Callable[[Path], Images]] = {
    "digits": digits,
    "mnist": lambda data_dir: _idx(data_dir, "MNIST", DIGITS),
    "fashion-mnist": lambda data_dir: _idx(data_dir, "Fashion-MNIST", CLOTHES),
    "cifar10": cifar10,
}
FILES: dict[str, Callable[[Path], list[Path]]] = {
    "mnist": lambda data_dir: _idx_files(data_dir, "MNIST"),
    "fashion-mnist": lambda data_dir: _idx_files(data_dir, "Fashion-MNIST"),
    "cifar10": cifar10_files,
}


def _idx_files(data_dir: Path, name: str) -> list[Path]:
    """The four idx files of MNIST and its kin, gzipped or not, where torchvision puts them."""
    folder = data_dir / name.replace("-", "") / "raw"
    stems = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    files = [next(filter(Path.is_file, (folder / stem, folder / f"{stem}.gz")), None) for stem in stems]
    missing = [stem for stem, file in zip(stems, files, strict=True) if file is None]
    if missing:
        raise FileNotFoundError(
            f"Expected {name} in {folder}, got no {', '.join(missing)} there, with or without .gz. "
            "Another place: --data-dir, or SCOREVEIL_DATA."
        )
    return [file for file in files if file is not None]


def _idx(data_dir: Path, name: str, class_names: tuple[str, ...]) -> Images:
    """Training and test images, resized as in the paper."""
    found = _idx_files(data_dir, name)
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
    resized = resize(_unit(np.concatenate(pixels))[:, None], SIDE)
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
        raise ValueError(f"Expected {CIFAR10_BATCH} labels from 0 to 9 in {file}, got others.")
    return pixels, labels


# The user's own


def from_npz(file: Path) -> Images:
    """Arrays x, of (n, height, width) or with 1 or 3 channels second or last, bytes or in [0, 1]; and y, any labels."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            x, y = arrays["x"], arrays["y"]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"Expected arrays x and y in {file}, got a file without, or damaged: {error}.") from error
    is_known = x.dtype == np.uint8 or x.dtype.kind == "f"
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = np.moveaxis(x, 3, 1)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or not is_known or y.shape != x.shape[:1]:
        got = f"{x.dtype} x of {x.shape} and y of {y.shape}"
        raise ValueError(f"Expected images of 1 or 3 channels and a label for each in {file}, got {got}.")
    names, labels = np.unique(y, return_inverse=True)
    pixels = _unit(x) if x.dtype == np.uint8 else np.ascontiguousarray(x, dtype=np.float32)
    try:
        return Images(pixels, labels.astype(np.int64), file.stem, len(names), tuple(str(name) for name in names))
    except ValueError as error:
        raise ValueError(f"{error} In {file}.") from error


def from_pictures(source: Path, side: int = SIDE) -> Images:
    """Every picture in a folder or .zip; its class is the directory it lies in. Grey if all of them are."""
    decoded = [(name, *_decoded(name, content, side)) for name, content in _files(source)]
    class_names, labels = np.unique([Path(name).parent.name for name, _, _ in decoded], return_inverse=True)
    if len(class_names) < 2:
        got = f"{len(class_names)} of them"
        raise ValueError(f"Expected pictures in 2 directories or more, one for each class, in {source}, got {got}.")
    channels = 1 if all(grey for _, _, grey in decoded) else 3
    pixels = np.stack([picture for _, picture, _ in decoded]).transpose(0, 3, 1, 2)[:, :channels]
    names = tuple(str(name) for name in class_names)
    return Images(_unit(pixels), labels.astype(np.int64), source.stem, len(names), names)


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    """The names and contents of all pictures, in the order of their names."""
    if source.is_dir():
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            if _is_picture(file.relative_to(source)):
                yield str(file), file.read_bytes()
        return
    try:
        with zipfile.ZipFile(source) as archive:
            for name in sorted(name for name in archive.namelist() if _is_picture(Path(name))):
                yield f"{source}/{name}", archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"Expected a .zip of pictures in {source}, got a damaged file: {error}.") from error


def _is_picture(path: Path) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def _decoded(name: str, content: bytes, side: int) -> tuple[Bytes, bool]:
    """(side, side, 3) bytes, and whether the picture is grey."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as picture:
            if picture.mode not in MODES:
                raise ValueError(f"mode {picture.mode}, not eight bits a channel")
            colours = picture.convert("RGB")
            if colours.size != (side, side):
                colours = colours.resize((side, side), Image.Resampling.BILINEAR)
            return np.asarray(colours), picture.mode in GREY
    except Exception as error:  # Pillow's decoders raise whatever they stumble over
        raise ValueError(f"Expected a picture in {name}, got an unreadable one: {error}.") from error


# Pixels


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


def _unit(pixels: Bytes) -> Pixels:
    return np.ascontiguousarray(pixels).astype(np.float32) / np.float32(255)
