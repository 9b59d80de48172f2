"""Secrets from the environment or a file, which is made at first start, for its owner alone.

The file holds one secret a line, 64 hex digits each, oldest first.

- The first line keys the ledger: record keys, and the draws of budgeted answers. It stays, because another one would
  forget what has been spent.
- The last line keys sticky answers. `rotate` adds a line; SIGHUP makes it count. Every answer is then drawn anew, so
  each rotation is one more release for every record: n lines promise n·ε in all.
"""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SCOREVEIL_SECRET"


@dataclass(frozen=True, repr=False)
class Keys:
    """`records` for the ledger, `answers` for sticky draws, and how many times those were drawn anew."""

    records: bytes
    answers: bytes
    rotations: int


def load(path: Path) -> Keys:
    """The keys; a file that is not there is made."""
    text = os.environ.get(VARIABLE)
    if text is None:
        _make(path)
        _check_owner(path)
        text = path.read_text(encoding="ascii", errors="replace")
    lines = text.split()
    if not lines or not all(re.fullmatch(r"[0-9a-fA-F]{64}", line) for line in lines):
        where = VARIABLE if VARIABLE in os.environ else str(path)
        raise ValueError(f"Expected secrets of 64 hex digits, one a line, in {where}, got others.")
    return Keys(bytes.fromhex(lines[0]), bytes.fromhex(lines[-1]), len(lines) - 1)


def rotate(path: Path) -> int:
    """Add a secret for sticky answers, in one atomic step; the number of lines now."""
    load(path)
    lines = [*path.read_text(encoding="ascii").split(), secrets.token_hex(32)]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    _write(temporary, "\n".join(lines) + "\n")
    temporary.replace(path)
    return len(lines)


def _make(path: Path) -> None:
    """Write a first secret unless there is a file; several workers may try at once."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    _write(temporary, secrets.token_hex(32) + "\n")
    try:
        os.link(temporary, path)  # fails where another process was first
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _write(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(handle)


def _check_owner(path: Path) -> None:
    mode = path.stat().st_mode
    # a group may read it: that is how Kubernetes mounts secrets for a pod's fsGroup
    if mode & 0o007:
        raise ValueError(
            f"Expected a secret that others cannot read, got {path} with mode {mode & 0o777:o}: chmod 600 it."
        )
