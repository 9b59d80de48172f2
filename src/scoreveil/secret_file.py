"""The files that secrets are kept in, and nothing else about secrets.

A secret file holds random bytes, or text. White space around text, such as the newline that an editor leaves, is not
part of the secret; binary secrets are taken as they are.
"""

import os
from pathlib import Path

VARIABLE = "SCOREVEIL_SECRET_FILE"  # names a secret file where a veil is used on another machine or in a worker

AnyPath = str | os.PathLike[str]


def read(path: AnyPath) -> bytes:
    """The secret in a file.

    Raises:
        ValueError: There is no such file.
    """
    if not Path(path).is_file():
        raise ValueError(f"There is no secret file {path}.")
    secret = Path(path).read_bytes()
    return secret.strip() if secret.isascii() else secret


def create(path: Path, content: str) -> bool:
    """Write a new secret file for its owner alone, in one step; False where there is one already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return True


def readable_by(path: AnyPath, bits: int) -> bool:
    """Whether the file's permission bits grant any of these, e.g. 0o077: group or others may read it."""
    return os.name == "posix" and bool(Path(path).stat().st_mode & bits)
