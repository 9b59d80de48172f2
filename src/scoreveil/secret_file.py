"""Secrets, the files that they are kept in, and how a veil that has one travels.

A secret file holds random bytes, or text. White space around text, such as the newline that an editor leaves, is not
part of the secret; binary secrets are taken as they are.

A `Secret` that is pickled carries the path of its file and a fingerprint, never the bytes. Where it arrives, the file
that SCOREVEIL_SECRET_FILE names is read, else the one at that path; a file with another secret is refused.
"""

import hmac
import os
import secrets
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from scoreveil import atomic

VARIABLE = "SCOREVEIL_SECRET_FILE"  # names a secret file where a veil is used on another machine or in a worker

AnyPath = str | os.PathLike[str]

# the secrets that are in use in this process, by a random name that tells nothing about them
_held: "WeakValueDictionary[str, Secret]" = WeakValueDictionary()


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
    complete = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    atomic.write(complete, content, mode=0o600)
    try:
        os.link(complete, path)  # fails where another process was first; nobody ever reads half a secret
    except FileExistsError:
        return False
    finally:
        complete.unlink()
    return True


def readable_by(path: AnyPath, bits: int) -> bool:
    """Whether the file's permission bits grant any of these, e.g. 0o077: group or others may read it."""
    return os.name == "posix" and bool(Path(path).stat().st_mode & bits)


class Secret:
    """Random bytes that never show: not in a repr, nor in a pickle.

    Attributes:
        path: The file that it came from, if it came from one.
        fingerprint: Tells whether two secrets are the same, and nothing else about them. None for one that was drawn
            here: where such a secret arrives by pickle, any other may take its place.
    """

    def __init__(self, value: bytes, path: Path | None = None, is_drawn: bool = False) -> None:
        self._value: bytes | None = value
        self.path = path
        self.fingerprint = None if is_drawn else _fingerprint(value)
        self._name = secrets.token_hex(16)
        _held[self._name] = self

    @classmethod
    def from_given(cls, secret: "bytes | AnyPath | Secret") -> "Secret":
        """A secret from its bytes, or from the path of its file."""
        if isinstance(secret, Secret):
            return secret
        if isinstance(secret, bytes):
            return cls(secret)
        if isinstance(secret, str) and not os.path.isfile(secret):  # perhaps the secret itself, so it is not quoted
            raise ValueError(
                "Expected a secret of type bytes, or the path of a secret file, got text that names no file."
            )
        if isinstance(secret, (str, os.PathLike)):
            return cls(read(secret), Path(secret).absolute())
        raise ValueError(f"Expected a secret of type bytes, or the path of a secret file, got {type(secret).__name__}.")

    @classmethod
    def drawn(cls) -> "Secret":
        """A new secret."""
        return cls(secrets.token_bytes(32), is_drawn=True)

    @property
    def value(self) -> bytes:
        """The bytes, read from a file where they did not come along.

        Raises:
            ValueError: No file is named, or it holds another secret.
        """
        if self._value is None:
            path = os.environ.get(VARIABLE) or self.path
            if path is None:
                raise ValueError(
                    f"The secret of this veil does not travel with it: name its file in {VARIABLE} where it is used."
                )
            value = read(path)
            if self.fingerprint not in (None, _fingerprint(value)):
                raise ValueError(f"The secret file {path} holds another secret than the one this veil was made with.")
            self._value = value
        return self._value

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_value": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        here = _held.get(state["_name"])  # in the same process it is at hand
        vars(self).update(state, _value=None if here is None else here._value)

    def __repr__(self) -> str:
        return "<Secret>"


def _fingerprint(secret: bytes) -> str:
    return hmac.digest(secret, b"scoreveil dataset check 1", "sha256").hex()[:16]
