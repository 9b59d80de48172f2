"""What is charged and what is granted: the words that both ledgers and all workers share.

    key = record_key(secret, "digits", "1", record)    # 32 bytes; the record itself is never stored
    Charge("digits", joined_keys([key]), limit=5)      # checked once, here

A budget is counted in whole units. A release of a record is granted while spent + units <= limit.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

KEY = 32  # bytes of a record key
MOST_UNITS = 2**48  # sums over many records stay within 64 bits, which is what the stores count with
MOST_ROWS = 1_000_000  # in one charge
MOST_NAME = 1024  # bytes of a model's or client's name
MOST_REQUEST = 64  # bytes of a request


def record_key(secret: bytes, model: str, version: str, record: bytes) -> bytes:
    """The key under which a record is counted: HMAC-SHA256 over (model, version, record).

    Each has its length before it, so that no two triples run together. Without the secret a key tells nothing about
    its record but whether two keys are equal.

    Args:
        secret: At least 16 random bytes.
        model: The model's name.
        version: Its version; another version has budgets of its own.
        record: The bytes that tell the record.

    Returns:
        32 bytes.
    """
    return RecordKeys(secret, model, version)([record])[0]


class RecordKeys:
    """`record_key` for many records of one model: what they share is hashed once."""

    def __init__(self, secret: bytes, model: str, version: str) -> None:
        if len(secret) < 16:
            raise ValueError(f"Expected a secret of at least 16 bytes, got {len(secret)}.")
        self._shared = HMAC(secret, SHA256())
        self._shared.update(with_lengths(b"scoreveil record key 1", model.encode(), version.encode()))

    def __call__(self, records: Iterable[bytes]) -> list[bytes]:
        return [self._key(record) for record in records]

    def _key(self, record: bytes) -> bytes:
        state = self._shared.copy()
        state.update(with_lengths(record))
        return state.finalize()


def with_lengths(*parts: bytes) -> bytes:
    """The parts, each with its length before it, so that no two lists of parts run together."""
    return b"".join([len(part).to_bytes(8, "little") + part for part in parts])


class Grant(NamedTuple):
    """One row's answer. `number` is which release of the record this is, from 1; refused: the last granted, or 0."""

    key: bytes
    number: int
    granted: bool
    spent: int
    limit: int

    def __repr__(self) -> str:
        return (
            f"Grant({short(self.key)}…, number={self.number}, granted={self.granted}, "
            f"spent={self.spent}, limit={self.limit})"
        )


def check_names(model: str, client: str, request: bytes | None) -> None:
    """Raise ValueError where a store could not hold one of them."""
    if not model:
        raise ValueError("The model's name is empty.")
    for what, name in (("model", model), ("client", client)):
        # PostgreSQL's text holds no NUL
        if len(name.encode()) > MOST_NAME or "\0" in name:
            raise ValueError(f"The {what}'s name is longer than {MOST_NAME} bytes, or has a NUL in it.")
    if request is not None and not 1 <= len(request) <= MOST_REQUEST:
        raise ValueError(f"Expected a request of 1 to {MOST_REQUEST} bytes, got {len(request)}.")


def joined_keys(keys: Sequence[bytes]) -> bytes:
    """Record keys as one string of bytes."""
    if wrong := {len(key) for key in keys} - {KEY}:
        raise ValueError(f"A record key has {KEY} bytes, and one of these has {wrong.pop()}; `record_key` makes them.")
    return b"".join(keys)


@dataclass(frozen=True, slots=True, repr=False)
class Charge:
    """One call, checked. Keys are joined to one string of bytes: they come by the hundred."""

    model: str
    keys: bytes
    limit: int
    units: int = 1
    client: str = ""
    request: bytes | None = None

    def __post_init__(self) -> None:
        check_names(self.model, self.client, self.request)
        if len(self.keys) > MOST_ROWS * KEY:
            raise ValueError(f"Expected at most {MOST_ROWS:,} records in one charge, got {len(self.keys) // KEY:,}.")
        if not 0 <= self.limit <= MOST_UNITS:
            raise ValueError(f"Expected a limit between 0 and 2^48 units, got {self.limit}.")
        if not 1 <= self.units <= MOST_UNITS:
            raise ValueError(f"Expected between 1 and 2^48 units per release, got {self.units}.")

    def __len__(self) -> int:
        return len(self.keys) // KEY

    def split(self) -> list[bytes]:
        keys = self.keys
        return [keys[i : i + KEY] for i in range(0, len(keys), KEY)]

    def fingerprint(self) -> bytes:
        """What a repeated request must agree on. Not limit and units: a reload between two tries may change them."""
        parts = with_lengths(b"scoreveil request 1", self.model.encode(), self.client.encode(), self.keys)
        return hashlib.sha256(parts).digest()


def entry_digest(model: str, client: str, units: int, limit: int, keys: bytes) -> bytes:
    """The checksum of a journal entry: what was granted, to whom, at what price."""
    numbers = struct.pack("<QQ", units, limit)
    return hashlib.sha256(with_lengths(b"scoreveil entry 1", model.encode(), client.encode(), numbers, keys)).digest()


def short(key: bytes) -> str:
    """As much of a record's key as may be shown."""
    return key[:4].hex()
