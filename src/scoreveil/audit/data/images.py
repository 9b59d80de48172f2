"""Labelled images, and the user's own pictures.

    pictures = images.from_pictures(Path("pictures.zip"))

What is damaged is a ValueError that names the file: it is never trained on.
"""

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Integers
from scoreveil.audit.data.records import Bools

Pixels = NDArray[np.float32]
Bytes = NDArray[np.uint8]

SIDE = 32  # of the paper's images
SHIFTS = ((0, 1), (0, -1), (1, 0), (-1, 0))  # down, right
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
            row = int(np.argmax((self.labels < 0) | (self.labels >= self.classes)))
            raise ValueError(f"Expected labels from 0 to {self.classes - 1}; that of image {row} is outside.")
        if self.pixels.size and not (self.pixels.min() >= 0 and self.pixels.max() <= 1):
            raise ValueError("Expected pixels in [0, 1], got some outside: divide bytes by 255.")

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

    def take(self, index: Integers | Bools | slice) -> "Images":
        return Images(self.pixels[index], self.labels[index], self.name, self.classes, self.class_names)


def variants(pixels: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Pictures (n, channels, height, width) moved by one pixel in four directions, and mirrored."""
    height, width = pixels.shape[2:]
    padded = np.pad(pixels, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    for down, right in SHIFTS:
        yield padded[:, :, 1 - down : 1 - down + height, 1 - right : 1 - right + width]
    yield pixels[..., ::-1]


# The user's own


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
    return Images(unit(pixels), labels.astype(np.int64), source.stem, len(names), names)


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


def unit(pixels: Bytes) -> Pixels:
    return np.ascontiguousarray(pixels).astype(np.float32) / np.float32(255)
