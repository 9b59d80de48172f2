"""Tags, by which keyed draws tell records apart: (records, 32), a hash each."""

import hashlib
from collections.abc import Sequence

import numpy as np

from scoreveil.arrays import Rows
from scoreveil.mechanisms import messages


def magnitude_tags(vectors: Rows) -> Rows:
    """What tells records apart where scores are all that is known."""
    return digests(messages.magnitudes(vectors.reshape(len(vectors), -1)))


def digests(rows: Rows | Sequence[bytes]) -> Rows:
    """SHA-256 of each row."""
    hashed = b"".join(hashlib.sha256(row).digest() for row in rows)
    return np.frombuffer(hashed, dtype=np.uint8).reshape(len(rows), hashlib.sha256().digest_size)


def of_places(tags: Rows, places: int) -> Rows:
    """A tag for every place of every record, none like another: two places that look alike are drawn for apart."""
    repeated = np.repeat(tags, places, axis=0)
    repeated.view("<u8")[:, 0] ^= np.tile(np.arange(places, dtype="<u8"), len(tags))
    return repeated
