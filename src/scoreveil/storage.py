"""A veil as a file: JSON, which a person can read; in an .npz where the mechanism has arrays. No secret, no pickle."""

import hashlib
import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil import atomic, shapes
from scoreveil.mechanisms.guarantee import BrokenPromise, Malformed
from scoreveil.mechanisms.mechanism import Mechanism, named
from scoreveil.shapes import VECTORS, Shape
from scoreveil.smoothing import Smoothing

Saved = tuple[Mechanism, str, Shape, Smoothing | None]

FORMAT = 4
# what parsing a file that is damaged, or not a veil, may raise
DAMAGED = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, ArithmeticError, RecursionError, MemoryError),
)
LARGEST, MOST_EXPANDED = 1 << 28, 200  # bytes that tables take; more only where the file is large itself


def save(
    mechanism: Mechanism, model: str, path: Path, shape: Shape = VECTORS, smoothing: Smoothing | None = None
) -> None:
    """Write a mechanism, the name of its model, its shape and smoothing to .npz, or to .json where it has no arrays."""
    arrays = mechanism.arrays()
    about = {"format": FORMAT, "mechanism": mechanism.name, "model": model, **mechanism.settings()}
    if served := shape.settings():
        about["served"] = served
    if smoothing is not None:
        about["smoothing"] = smoothing.settings()
    text = _text({**about, "tables": sorted(arrays), "sha256": _checksum(mechanism, model, shape, smoothing)})
    if path.suffix == ".json":
        if arrays:
            raise ValueError(f"This veil has tables, which .json cannot hold; save it as {path.stem}.npz.")
        atomic.write(path, text + "\n")
    elif path.suffix == ".npz" and arrays:
        with atomic.replacing(path) as file:
            np.savez_compressed(file, veil=np.array(text), **arrays)  # type: ignore[arg-type]
    else:
        raise ValueError(f"This veil is saved as {path.stem}.{'npz' if arrays else 'json'}, got {path.name}.")


def _text(about: dict[str, Any]) -> str:
    """JSON with a line for each setting: lists of numbers stay on one line, so that a person can read them."""
    lines = []
    for name, value in about.items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            inner = ",\n    ".join(json.dumps(each, ensure_ascii=False) for each in value)
            lines.append(f"{json.dumps(name)}: [\n    {inner}\n  ]")
        elif isinstance(value, dict):
            inner = ",\n    ".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
            lines.append(f"{json.dumps(name)}: {{\n    {inner}\n  }}")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n  " + ",\n  ".join(lines) + "\n}"


def load(path: Path) -> Saved:
    """The mechanism, the model's name, the shape and the smoothing that `save` wrote.

    Raises:
        ValueError: The file is damaged, or was not written by `save`.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for, and some devices never end
        raise ValueError(f"{path} is not a file.")
    content = path.read_bytes()
    try:
        return _parsed(content, is_npz=path.suffix == ".npz")
    except BrokenPromise as error:
        raise BrokenPromise(f"{path.name} breaks a promise. {error}") from None
    except DAMAGED as error:
        reason = f" {error}" if isinstance(error, Malformed) else ""  # others may quote what the file holds
        raise ValueError(f"{path.name} is damaged, or was not written by Veil.save.{reason}") from error


def _parsed(content: bytes, is_npz: bool) -> Saved:
    if is_npz:
        with np.load(io.BytesIO(content), allow_pickle=False) as saved:
            check_expanded(saved.zip, len(content))
            arrays = {name: saved[name] for name in saved.files}
        text = str(arrays.pop("veil")[()])
    else:
        text, arrays = content.decode(), {}
    about = json.loads(text, object_pairs_hook=_unique)
    checksum = about.pop("sha256")
    if about.pop("format") != FORMAT or sorted(arrays) != about.pop("tables"):
        raise Malformed("Its format is another version's, or tables are missing.")
    kind, model = named(about.pop("mechanism")), str(about.pop("model"))
    shape = shapes.restored(about.pop("served")) if "served" in about else VECTORS
    smoothed = about.pop("smoothing", None)
    smoothing = None if smoothed is None else Smoothing.restored(smoothed)
    if smoothing is not None and smoothing.settings() != smoothed:
        raise Malformed("Its smoothing has other settings than a saved one.")
    mechanism = kind.restored(about, arrays)
    if about != json.loads(json.dumps(mechanism.settings())):
        raise Malformed("It has other settings than a saved veil.")
    if checksum != _checksum(mechanism, model, shape, smoothing):
        raise Malformed("It was changed after it was written.")
    return mechanism, model, shape, smoothing


def check_expanded(file: zipfile.ZipFile, size: int) -> None:
    """Refuse a file of a few megabytes that expands to gigabytes."""
    if sum(each.file_size for each in file.infolist()) > max(LARGEST, MOST_EXPANDED * size):
        raise Malformed("Its tables are too large.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; readers differ in which of two equal keys they take."""
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise Malformed("It has a setting twice.")
    return settings


def _checksum(mechanism: Mechanism, model: str, shape: Shape, smoothing: Smoothing | None) -> str:
    """Against files that were changed by mistake; whoever changes one on purpose can write another."""
    return hashlib.sha256(fingerprint(mechanism, model, shape, smoothing)).hexdigest()


def fingerprint(mechanism: Mechanism, model: str, shape: Shape = VECTORS, smoothing: Smoothing | None = None) -> bytes:
    """What tells one veil from another: keyed draws of another ε, reference, model or shape must be independent."""
    about = {"mechanism": mechanism.name, "model": model, **mechanism.settings()}
    if served := shape.settings():
        about["served"] = served
    if smoothing is not None:
        about["smoothing"] = smoothing.settings()
    return json.dumps(about, sort_keys=True).encode() + digest(mechanism)


def digest(mechanism: Mechanism) -> bytes:
    """SHA-256 of the arrays of the mechanism; empty where it has none."""
    arrays = mechanism.arrays()
    if not arrays:
        return b""
    state = hashlib.sha256()
    for array in arrays.values():
        state.update(repr(array.shape).encode())
        state.update(np.ascontiguousarray(array).tobytes())
    return state.digest()
