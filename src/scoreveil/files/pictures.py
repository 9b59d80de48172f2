"""Pictures in a folder or a .zip, in a directory for each class.

What is damaged is a ValueError that names the file: it is never trained on.
"""

import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.float32]
Bytes = NDArray[np.uint8]

SIDE = 32  # of the paper's images
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}  # of Pillow: eight bits a channel
GREY = {"1", "L", "LA"}


def read_pictures(source: Path, side: int = SIDE) -> tuple[Pixels, NDArray[np.int64], tuple[str, ...]]:
    """Every picture in a folder or .zip; its class is the directory it lies in. Grey if all of them are.

    Returns:
        Pixels (n, channels, side, side) from 0 to 1, the number of each picture's class, and the classes' names.
    """
    decoded = [(name, *_decoded(name, content, side)) for name, content in _files(source)]
    class_names, labels = np.unique([Path(name).parent.name for name, _, _ in decoded], return_inverse=True)
    if len(class_names) < 2:
        got = f"{len(class_names)} of them"
        raise ValueError(f"Expected pictures in 2 directories or more, one for each class, in {source}, got {got}.")
    channels = 1 if all(grey for _, _, grey in decoded) else 3
    pixels = np.stack([picture for _, picture, _ in decoded]).transpose(0, 3, 1, 2)[:, :channels]
    return unit(pixels), labels.astype(np.int64), tuple(map(str, class_names))


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
