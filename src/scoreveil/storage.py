"""A veil as a file: JSON, which a person can read; in an .npz where the mechanism has arrays. No secret, no pickle."""

import hashlib
import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scoreveil import atomic, shapes
from scoreveil.mechanisms.guarantee import BrokenPromise, Malformed
from scoreveil.mechanisms.mechanism import Mechanism, named
from scoreveil.shapes import VECTORS, Shape
from scoreveil.smoothing import Smoothing

FORMAT = 4
# what parsing a file that is damaged, or not a veil, may raise
DAMAGED = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, OSError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, ArithmeticError, RecursionError, MemoryError),
)
LARGEST, MAX_EXPANDED = 1 << 28, 200  # bytes that tables take; more only where the file is large itself


class Stored(NamedTuple):
    """A veil as a file has it: without secret, threads or generator."""

    mechanism: Mechanism
    model: str = ""
    shape: Shape = VECTORS
    smoothing: Smoothing | None = None

    def settings(self) -> dict[str, Any]:
        """All but the arrays, as plain values."""
        settings = {"mechanism": self.mechanism.name, "model": self.model, **self.mechanism.settings()}
        if served := self.shape.settings():
            settings["served"] = served
        if self.smoothing is not None:
            settings["smoothing"] = self.smoothing.settings()
        return settings

    def fingerprint(self) -> bytes:
        """What tells one veil from another: keyed draws of another ε, reference, model or shape are independent."""
        return json.dumps(self.settings(), sort_keys=True).encode() + digest(self.mechanism)

    def summary(self) -> dict[str, Any]:
        """What a manifest says of it: as `settings`, in few words, and its arrays by their hash."""
        tables = digest(self.mechanism)
        return {
            "mechanism": self.mechanism.name,
            "model": self.model,
            "tables": hashlib.sha256(tables).hexdigest() if tables else None,
            **self.shape.settings(),
            **({"copies": self.smoothing.copies, "scale": self.smoothing.scale} if self.smoothing else {}),
            **self.mechanism.summary(),
        }

    def checksum(self) -> str:
        """Against files that were changed by mistake; whoever changes one on purpose can write another."""
        return hashlib.sha256(self.fingerprint()).hexdigest()


def save(stored: Stored, path: Path) -> None:
    """Write a veil to .npz, or to .json where its mechanism has no arrays."""
    arrays = stored.mechanism.arrays()
    settings = {"format": FORMAT, **stored.settings(), "tables": sorted(arrays), "sha256": stored.checksum()}
    text = _text(settings)
    if path.suffix == ".json":
        if arrays:
            raise ValueError(f"This veil has tables, which .json cannot hold; save it as {path.stem}.npz.")
        atomic.write(path, text + "\n")
    elif path.suffix == ".npz" and arrays:
        with atomic.replacing(path) as file:
            np.savez_compressed(file, veil=np.array(text), **arrays)  # type: ignore[arg-type]
    else:
        raise ValueError(f"This veil is saved as {path.stem}.{'npz' if arrays else 'json'}, got {path.name}.")


def _text(settings: dict[str, Any]) -> str:
    """JSON with a line for each setting: lists of numbers stay on one line, so that a person can read them."""
    lines = []
    for name, value in settings.items():
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            value_text = "[\n    " + ",\n    ".join(map(_in_line, value)) + "\n  ]"
        elif isinstance(value, dict):
            value_text = "{\n    " + ",\n    ".join(f"{_in_line(k)}: {_in_line(v)}" for k, v in value.items()) + "\n  }"
        else:
            value_text = _in_line(value)
        lines.append(f"{_in_line(name)}: {value_text}")
    return "{\n  " + ",\n  ".join(lines) + "\n}"


def _in_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def load(path: Path) -> Stored:
    """What `save` wrote.

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


def _parsed(content: bytes, is_npz: bool) -> Stored:
    if is_npz:
        with np.load(io.BytesIO(content), allow_pickle=False) as saved:
            check_expanded(saved.zip, len(content))
            arrays = {name: saved[name] for name in saved.files}
        text = str(arrays.pop("veil")[()])
    else:
        text, arrays = content.decode(), {}
    settings = json.loads(text, object_pairs_hook=_unique)
    checksum = settings.pop("sha256")
    if settings.pop("format") != FORMAT or sorted(arrays) != settings.pop("tables"):
        raise Malformed("Its format is another version's, or tables are missing.")
    kind, model = named(settings.pop("mechanism")), str(settings.pop("model"))
    shape = shapes.restored(settings.pop("served")) if "served" in settings else VECTORS
    smoothed = settings.pop("smoothing", None)
    smoothing = None if smoothed is None else Smoothing.restored(smoothed)
    if smoothing is not None and smoothing.settings() != smoothed:
        raise Malformed("Its smoothing has other settings than a saved one.")
    mechanism = kind.restored(settings, arrays)
    if settings != json.loads(json.dumps(mechanism.settings())):
        raise Malformed("It has other settings than a saved veil.")
    stored = Stored(mechanism, model, shape, smoothing)
    if checksum != stored.checksum():
        raise Malformed("It was changed after it was written.")
    return stored


def check_expanded(file: zipfile.ZipFile, size: int) -> None:
    """Refuse a file of a few megabytes that expands to gigabytes."""
    if sum(member.file_size for member in file.infolist()) > max(LARGEST, MAX_EXPANDED * size):
        raise Malformed("Its tables are too large.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; readers differ in which of two equal keys they take."""
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise Malformed("It has a setting twice.")
    return settings


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
