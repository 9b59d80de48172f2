"""Secrets from the environment or a file, which is made at first start, for its owner alone.

The file holds one secret a line, 64 hex digits each, oldest first.

- The first line keys the marks by which the ledger knows records. It stays, because another one would forget them all.
- The last line keys the draws. `rotate` adds a line; SIGHUP makes it count. Every answer is then drawn anew, so each
  rotation is one more answer for every record: n lines promise n·ε in all.
"""

import hmac
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from scoreveil import atomic, secret_file

VARIABLE = "SCOREVEIL_SECRET"


@dataclass(frozen=True, repr=False)
class Keys:
    """`records` for the ledger's marks, `answers` for draws, and how many times these were drawn anew."""

    records: bytes
    answers: bytes
    rotations: int

    @property
    def fingerprint(self) -> str:
        """Tells whether a ledger belongs to these keys, and nothing else about them."""
        return hmac.digest(self.records, b"scoreveil ledger check 1", "sha256").hex()[:32]


def is_there(path: Path) -> bool:
    return VARIABLE in os.environ or path.exists()


def load(path: Path, create: bool = True) -> Keys:
    """The keys; a file that is not there is made, or else ValueError."""
    text = os.environ.get(VARIABLE)
    if text is None:
        if create:
            secret_file.create(path, secrets.token_hex(32) + "\n")
        elif not path.exists():
            raise ValueError(
                f"There is no secret file {path}; put it back. If there never was one, restart to make it."
            )
        # a group may read it: that is how Kubernetes mounts secrets for a pod's fsGroup
        if secret_file.readable_by(path, 0o007):
            raise ValueError(f"Others can read the secret file {path}; chmod 600 it.")
        text = path.read_text(encoding="ascii", errors="replace")
    lines = text.split()
    if not lines or not all(re.fullmatch(r"[0-9a-fA-F]{64}", line) for line in lines):
        where = VARIABLE if VARIABLE in os.environ else str(path)
        raise ValueError(f"{where} does not hold secrets of 64 hex digits, one a line.")
    return Keys(bytes.fromhex(lines[0]), bytes.fromhex(lines[-1]), len(lines) - 1)


def rotate(path: Path) -> int:
    """Add a secret for the draws, in one atomic step; the number of lines now."""
    load(path)
    lines = [*path.read_text(encoding="ascii").split(), secrets.token_hex(32)]
    atomic.write(path, "\n".join(lines) + "\n", mode=0o600)
    return len(lines)
