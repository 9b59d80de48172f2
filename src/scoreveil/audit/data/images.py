"""Labelled images."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Integers
from scoreveil.audit.data.records import Bools
from scoreveil.files.pictures import Pixels, read_pictures

SHIFTS = ((0, 1), (0, -1), (1, 0), (-1, 0))  # down, right


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

    @classmethod
    def from_pictures(cls, source: Path) -> "Images":
        """Every picture in a folder or .zip; its class is the directory it lies in."""
        pixels, labels, names = read_pictures(source)
        return cls(pixels, labels, source.stem, len(names), names)

    def take(self, index: Integers | Bools | slice) -> "Images":
        return Images(self.pixels[index], self.labels[index], self.name, self.classes, self.class_names)


def variants(pixels: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Pictures (n, channels, height, width) moved by one pixel in four directions, and mirrored."""
    height, width = pixels.shape[2:]
    padded = np.pad(pixels, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    for down, right in SHIFTS:
        yield padded[:, :, 1 - down : 1 - down + height, 1 - right : 1 - right + width]
    yield pixels[..., ::-1]
