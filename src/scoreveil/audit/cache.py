"""What took long to compute, kept on disk under a name made from everything it depends on.

    name = cache.key("classifier", images, settings)
    model = cache.load_or_make("classifiers", name, make, save, load, directory)

An entry is one .npz of plain arrays (no pickle), complete or absent; a checksum inside finds damage, and what is
damaged is made anew. Processes that want the same entry wait for the one that is making it.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scoreveil import atomic

Made = TypeVar("Made")
Arrays = dict[str, NDArray[Any]]
Directory = str | os.PathLike[str] | None

VERSION = 2  # of the code whose results are kept: raise it when the same settings would give other numbers
CHECKSUM = "sha256"


class Damaged(Exception):
    """A file that is not what was written."""


def root(directory: Directory = None) -> Path:
    """The given directory, else $SCOREVEIL_CACHE, else ~/.cache/scoreveil."""
    return Path(directory or os.environ.get("SCOREVEIL_CACHE") or Path.home() / ".cache" / "scoreveil")


def key(*what: object) -> str:
    """SHA-256 of the code's version and of `what`, as canonical JSON.

    Settings count by their fields, images by their digest, arrays by their bytes.
    """
    text = json.dumps([VERSION, *map(_plain, what)], sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def load_or_make(
    kind: str,
    key: str,
    make: Callable[[], Made],
    save: Callable[[Made], Arrays],
    load: Callable[[Arrays], Made],
    directory: Directory = None,
) -> Made:
    """The entry of this kind and key; made, and kept, where there is none that is whole."""
    file = path(kind, key, directory)
    try:
        return load(read(file))
    except (FileNotFoundError, Damaged):
        pass
    file.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(file.with_suffix(".lock")):
        try:
            return load(read(file))  # another process was quicker
        except (FileNotFoundError, Damaged):
            made = make()
            write(file, save(made))
            return made


def kept_json(kind: str, key: str, make: Callable[[], dict[str, Any]], directory: Directory) -> dict[str, Any]:
    """A small result as a JSON file, made where there is none."""
    file = path(kind, key, directory).with_suffix(".json")
    if file.exists():
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return stored
    made = make()
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(file, json.dumps(made))
    return made


def path(kind: str, key: str, directory: Directory = None) -> Path:
    return root(directory) / kind / f"{key}.npz"


def write(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Arrays and their checksum, in a file that is complete or absent."""
    # not savez(**arrays): a name may be one of its own arguments
    with atomic.replacing(file) as opened, zipfile.ZipFile(opened, "w") as archive:
        for name, array in {**arrays, CHECKSUM: np.array(_checksum(arrays))}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def read(file: Path) -> Arrays:
    """The arrays of a file that `write` wrote; FileNotFoundError where there is none, `Damaged` if it has changed."""
    try:
        with file.open("rb") as opened, np.load(opened, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
        checksum = str(arrays.pop(CHECKSUM)[()])
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise Damaged(f"Expected arrays in {file}, got a damaged file: {error!r}.") from error
    if checksum != _checksum(arrays):
        raise Damaged(f"The arrays in {file} do not match their checksum: the file has changed since it was written.")
    return arrays


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    return hashlib.sha256(json.dumps({name: _plain(arrays[name]) for name in sorted(arrays)}).encode()).hexdigest()


def _plain(value: object) -> Any:
    """What JSON can write, and the same for the same content on every machine."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        little_endian = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        return [str(little_endian.dtype), list(value.shape), hashlib.sha256(little_endian.tobytes()).hexdigest()]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if hasattr(value, "digest"):
        return value.digest
    if is_dataclass(value) and not isinstance(value, type):
        return {"": type(value).__name__, **{field.name: _plain(getattr(value, field.name)) for field in fields(value)}}
    raise TypeError(f"Expected settings, images, arrays or plain values in a key, got {type(value).__name__}.")


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """Wait until no other process or thread is in here. Where the system has no such locks, work is done twice."""
    try:
        import fcntl
    except ModuleNotFoundError:  # pragma: no cover - Windows
        yield
        return
    with lock.open("ab") as opened:
        # the system releases it when the process ends, however it ends
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
