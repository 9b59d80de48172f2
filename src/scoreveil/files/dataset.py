"""Datasets: many .parquet files in a folder, local or anywhere fsspec reaches, each veiled on its own.

    todo = dataset.begin("s3://bucket/scores", "s3://bucket/veiled", veil, columns="score_*")
    for partition in todo:
        dataset.protect_partition(partition, veil, "score_*")

A partition of the output is complete or absent: it is written beside its place and renamed. So a run that was stopped
goes on where it was, with the partitions that are missing; and it does not matter who writes which, or how often they
try. `_scoreveil.json` beside them says by which settings, so that one output is never of two.
"""

import glob
import json
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scoreveil.extras import needs
from scoreveil.files import AS_IT_IS, Cleaning, Protected, protect
from scoreveil.veil import Veil

MANIFEST = "_scoreveil.json"


@dataclass(frozen=True)
class Partition:
    """One file of the input, and its place in the output: URLs, or paths that hold in any process here."""

    source: str
    target: str


def is_dataset(source: str) -> bool:
    return "://" in source or Path(source).is_dir()


def begin(
    source: str, target: str, veil: Veil, columns: str | None, force: bool = False, cleaning: Cleaning = AS_IT_IS
) -> list[Partition]:
    """The partitions that are still to do; ValueError where the output is of other settings, or of others."""
    files, root = _filesystem(source)
    names = sorted(name for name in files.find(root) if _is_partition(name, root))
    if not names:
        raise ValueError(f"There are no .parquet files in {source}.")
    out, place = _filesystem(target)
    if files is out and (place == root or place.startswith(f"{root}/") or root.startswith(f"{place}/")):
        raise ValueError(f"Expected an output outside the input, got {target}.")
    mended = {name: value for name, value in asdict(cleaning).items() if value != getattr(AS_IT_IS, name)}
    about = {**described(veil), "columns": columns, **mended}
    _claim(out, place, about, force)
    below = [name.removeprefix(root) for name in names]
    todo = below if force else [name for name in below if not out.exists(place + name)]
    return [Partition(_absolute(source) + name, _absolute(target) + name) for name in todo]


def described(veil: Veil) -> dict[str, Any]:
    """What tells this veil from others, as plain values; of a secret only a fingerprint."""
    return {**veil.stored.summary(), "key": None if veil.secret is None else veil.secret.fingerprint}


def count(source: str) -> int:
    """How many partitions a dataset has."""
    files, root = _filesystem(source)
    return sum(_is_partition(name, root) for name in files.find(root))


def protect_partition(
    partition: Partition, veil: Veil, columns: str | None, one_core: bool = False, cleaning: Cleaning = AS_IT_IS
) -> Protected:
    """Veil one file into its place, whole or not at all. `one_core`: by one of many workers on a machine."""
    if one_core:
        import pyarrow

        pyarrow.set_cpu_count(1)
    out, place = _filesystem(partition.target)
    try:
        with _local(partition.source) as source:
            if _is_local(out):
                Path(place).parent.mkdir(parents=True, exist_ok=True)
                for left in Path(place).parent.glob(f".{glob.escape(Path(place).name)}.*.part"):
                    left.unlink()  # by a worker that was killed
                return protect(source, place, veil, columns, force=True, one_core=one_core, cleaning=cleaning)
            with tempfile.TemporaryDirectory() as folder:
                written = Path(folder) / "veiled.parquet"
                done = protect(source, written, veil, columns, one_core=one_core, cleaning=cleaning)
                parent, _, name = place.rpartition("/")
                out.makedirs(parent, exist_ok=True)
                beside = f"{parent}/.{name}.{secrets.token_hex(4)}.part"
                out.put_file(str(written), beside)
                out.mv(beside, place)
                return done
    except ValueError as error:
        # one that can be sent between processes, and says which file
        raise ValueError(f"{partition.source}: {error}") from None


def total(done: Sequence[Protected]) -> Protected:
    """What many partitions add up to."""
    first = done[0]
    bad = [fault for part in done for fault in part.bad]
    left_out = frozenset(row for part in done for row in part.left_out)  # all bad rows of all files, or none
    left_behind = tuple(dict.fromkeys(key for part in done for key in part.left_behind))
    return replace(first, rows=sum(part.rows for part in done), bad=bad, left_behind=left_behind, left_out=left_out)


def _claim(out: Any, place: str, about: dict[str, Any], force: bool) -> None:
    """Write down by which settings the output is made, or refuse where it is made by others."""
    manifest = f"{place}/{MANIFEST}"
    if not force and out.exists(manifest):
        if json.loads(out.cat_file(manifest)) != about:
            raise ValueError(f"{place} was begun with other settings: use the same ones, or --force to start anew.")
        return
    if not force and out.exists(place) and any(_is_partition(name, place) for name in out.find(place)):
        raise ValueError(f"{place} has .parquet files already: name a new folder, or use --force to replace them.")
    out.makedirs(place, exist_ok=True)
    out.pipe_file(manifest, json.dumps(about, indent=2, sort_keys=True).encode())


def _absolute(url: str) -> str:
    return url.rstrip("/") if "://" in url else str(Path(url).resolve())


def _is_partition(name: str, root: str) -> bool:
    """Whether it is a file of the dataset; what begins with a dot or underscore is none, as readers have it."""
    parts = name.removeprefix(root).strip("/").split("/")
    return name.endswith(".parquet") and not any(part.startswith((".", "_")) for part in parts)


@contextmanager
def _local(url: str) -> Iterator[Path]:
    """The file itself if it is here, else a copy for as long as it is needed."""
    files, path = _filesystem(url)
    if _is_local(files):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.rpartition("/")[2]
        files.get_file(path, str(copy))
        yield copy


def _is_local(files: Any) -> bool:
    return "file" in (files.protocol if isinstance(files.protocol, tuple) else (files.protocol,))


def _filesystem(url: str) -> tuple[Any, str]:
    with needs("files"):
        import fsspec
        from fsspec.registry import known_implementations
    try:
        files, path = fsspec.core.url_to_fs(url)
    except ImportError:
        protocol = url.partition("://")[0]
        package = known_implementations[protocol]["class"].partition(".")[0]
        raise ModuleNotFoundError(f"{protocol}:// needs a package that is missing: pip install {package}.") from None
    return files, str(path).rstrip("/")
