"""The paper's datasets from where they are published, checked, and taken up again where a download broke off.

download.fetch("fashion-mnist", data_dir, progress)
"""

import gzip
import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scoreveil import atomic

BLOCK = 1 << 20
PATIENCE = 30  # seconds without a byte


@dataclass(frozen=True)
class File:
    """Where a file comes from, where it goes, and the SHA-256 of its content (of a .gz: unpacked)."""

    url: str
    path: str
    sha256: str
    megabytes: float


def _idx(base: str, folder: str, *files: tuple[str, str, float]) -> tuple[File, ...]:
    return tuple(File(f"{base}/{name}.gz", f"{folder}/{name}.gz", digest, size) for name, digest, size in files)


FILES: dict[str, tuple[File, ...]] = {
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "MNIST/raw",
        ("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 9.9),
        ("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 0.1),
        ("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 1.6),
        ("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 0.1),
    ),
    "fashion-mnist": _idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "FashionMNIST/raw",
        ("train-images-idx3-ubyte", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", 26.4),
        ("train-labels-idx1-ubyte", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", 0.1),
        ("t10k-images-idx3-ubyte", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", 4.4),
        ("t10k-labels-idx1-ubyte", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", 0.1),
    ),
    "cifar10": (
        File(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            170.5,
        ),
    ),
    "adult": tuple(
        File(f"https://archive.ics.uci.edu/ml/machine-learning-databases/adult/{name}", f"adult/{name}", digest, size)
        for name, digest, size in (
            ("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", 4.0),
            ("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", 2.0),
        )
    ),
}


def size(dataset: str) -> float:
    """Megabytes to fetch."""
    return sum(file.megabytes for file in FILES[dataset])


def fetch(
    dataset: str,
    data_dir: Path,
    progress: Callable[[float], None] = lambda done: None,
    files: dict[str, tuple[File, ...]] | None = None,
) -> None:
    """Put the dataset's files into the folder; what is there already is not fetched again.

    Raises:
        ConnectionError: A file cannot be had. What came so far is kept, and the next try goes on from there.
        ValueError: A file is not what it should be.
    """
    wanted = (FILES if files is None else files)[dataset]
    total, before = sum(file.megabytes for file in wanted), 0.0

    def told(start: float, megabytes: float) -> None:
        progress(min(1.0, (start + megabytes) / total))

    for file in wanted:
        _fetch(file, data_dir / file.path, partial(told, before))
        before += file.megabytes
    progress(1.0)


def _fetch(file: File, target: Path, progress: Callable[[float], None]) -> None:
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        _append(file.url, part, progress)
        found = _sha256(part)
        if found != file.sha256:
            part.unlink()
            raise ValueError(f"Expected {file.url} with SHA-256 {file.sha256}, got {found}; it was thrown away.")
        os.replace(part, target)
    if target.name.endswith(".tar.gz"):
        _unpack(target)


def _append(url: str, part: Path, progress: Callable[[float], None]) -> None:
    """Fetch what is still missing of a file. A server that cannot go on from the middle sends it all."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            goes_on = answer.status == 206
            with part.open("ab" if goes_on else "wb") as out:
                while block := answer.read(BLOCK):
                    out.write(block)
                    progress(out.tell() / 1e6)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is missing
            return
        raise ConnectionError(f"{url} answered {error.code} {error.reason}.") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise ConnectionError(f"{url} did not answer ({reason}). What came so far is kept: try again.") from None


def _sha256(path: Path) -> str:
    """Of the content: a .gz of one file counts by what is in it, whoever packed it."""
    digest = hashlib.sha256()
    packed = path.name.endswith(".gz.part") and not path.name.endswith(".tar.gz.part")
    try:
        with gzip.open(path) if packed else path.open("rb") as opened:
            while block := opened.read(BLOCK):
                digest.update(block)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return "a damaged file"
    return digest.hexdigest()


def _unpack(archive: Path) -> None:
    """The archive's files beside it, each complete or absent."""
    with tarfile.open(archive) as opened:
        for member in opened:
            member = tarfile.data_filter(member, str(archive.parent))  # refuses what would lie outside
            place, content = archive.parent / member.name, opened.extractfile(member)
            if content is not None and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                with atomic.replacing(place) as out:
                    shutil.copyfileobj(content, out, BLOCK)
