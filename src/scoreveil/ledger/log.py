"""One row of the log is one call that was charged to records: who asked, and what each of its rows came to.

The rows of a call are packed into a body, little-endian:

    how many rows, bytes of an outcome, marks of a record
    for each row the number of its record (the lower 32 bits), then for each what it came to, then for each its outcome
    the hashed marks of the records that it began

Each log row has a digest over itself and the digest before it, so that whoever reads the log from its base finds a row
that was removed, altered or cut off, unless all digests after it were made anew as well.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreveil.ledger.errors import IdempotencyConflict, LedgerUnavailable
from scoreveil.ledger.releases import ReleaseRequest, ReleaseResult

SAME, FRESH, BEGUN = range(3)  # what a row came to; begun: fresh, and the first of its record
BASE = hashlib.sha256(b"scoreveil log 3").digest()
ALTERED = "its log was altered, or a part of it is missing"

_body = struct.Struct("<IHB")
_numbers = struct.Struct("<7q4H")


class Entry(NamedTuple):
    """A row of the log.

    Attributes:
        id: Its place; they rise, with gaps where something was forgotten.
        at: Seconds since 1970.
        model, client, settings, units: As they were asked.
        fresh: How many rows were charged to their records.
        begun: How many records it began.
        next: The number of the first record that it did not know: once that one ended, nothing in it counts any more.
        ident: The worker's number of the call, by which one that is sent again is found.
        request: The hash of the idempotency key.
        fingerprint: What the request must agree on.
        body: As above.
    """

    id: int
    at: int
    model: str
    client: str
    settings: bytes
    units: int
    fresh: int
    begun: int
    next: int
    ident: int | None
    request: bytes | None
    fingerprint: bytes
    body: bytes

    @classmethod
    def of(
        cls, questions: ReleaseRequest, body: "Body", number: int, at: int, next_record: int, ident: int | None = None
    ) -> "Entry":
        """The row of a call that came to this."""
        fingerprint = b"" if questions.request is None else questions.fingerprint()
        return cls(
            number, at, questions.model, questions.client, questions.settings, questions.units, body.fresh,
            len(body.begun), next_record, ident, questions.request, fingerprint, body.pack(),
        )  # fmt: skip

    def digest(self, before: bytes) -> bytes:
        """The next link of the chain."""
        model, client, request = self.model.encode(), self.client.encode(), self.request or b""
        numbers = _numbers.pack(
            self.id, self.at, self.units, self.fresh, self.begun, self.next, self.ident or 0,
            len(model), len(client), len(request), len(self.fingerprint),
        )  # fmt: skip
        parts = (before, numbers, model, client, request, self.fingerprint, self.settings, self.body)
        return hashlib.sha256(b"".join(parts)).digest()

    def has_digest(self, digest: bytes, before: bytes) -> bool:
        """Whether this is its digest after the one before."""
        try:
            return digest == self.digest(before)
        except (struct.error, AttributeError, TypeError):  # a column holds something else altogether
            return False

    def answers(self, questions: ReleaseRequest) -> ReleaseResult:
        """What the call was told, for one that comes again.

        Raises:
            IdempotencyConflict: It is another one.
        """
        if self.request is not None and self.fingerprint != questions.fingerprint():
            raise IdempotencyConflict
        return ReleaseResult("", Body.read(self.body).outcomes, self.fresh)


class Body(NamedTuple):
    """What the rows of a call came to.

    Attributes:
        records: The number of each row's record.
        kinds: SAME, FRESH or BEGUN, for each row.
        outcomes: What was released, joined.
        begun: The hashed marks of the records that it began, (records, 2 · marks).
    """

    records: NDArray[np.uint32]
    kinds: NDArray[np.uint8]
    outcomes: bytes
    begun: NDArray[np.uint32]

    def pack(self) -> bytes:
        rows = len(self.records)
        head = _body.pack(rows, len(self.outcomes) // rows, self.begun.shape[1] // 2)
        return b"".join((head, self.records.tobytes(), self.kinds.tobytes(), self.outcomes, self.begun.tobytes()))

    @classmethod
    def read(cls, body: bytes) -> "Body":
        rows, width, marks = _body.unpack_from(body)
        kinds_at = _body.size + 4 * rows
        outcomes_at = kinds_at + rows
        begun_at = outcomes_at + rows * width
        return cls(
            np.frombuffer(body, np.uint32, rows, _body.size),
            np.frombuffer(body, np.uint8, rows, kinds_at),
            body[outcomes_at:begun_at],
            np.frombuffer(body, np.uint32, offset=begun_at).reshape(-1, 2 * marks),
        )

    @property
    def fresh(self) -> int:
        return int(np.count_nonzero(self.kinds))

    def numbers(self, next_record: int) -> NDArray[np.int64]:
        """The full number of each row's record: the last before the next record that ends with these 32 bits."""
        last = next_record - 1
        return np.asarray(last - ((last - self.records.astype(np.int64)) & 0xFFFFFFFF))


def link(before: bytes, digest: bytes) -> bytes:
    """A digest over all digests up to this one, where rows have digests of their own."""
    return hashlib.sha256(before + digest).digest()


COLUMNS = ", ".join((*Entry._fields, "digest"))


def linked(rows: Iterable[Any], before: bytes) -> Iterator[tuple[Entry, bytes]]:
    """Rows of the log with their digests, each of which continues the one before it; the first, that before it.

    Raises:
        LedgerUnavailable: One does not.
    """
    for *columns, digest in rows:
        entry = Entry._make(columns)
        if not entry.has_digest(digest, before):
            raise LedgerUnavailable(ALTERED)
        before = digest
        yield entry, before


def shape_of(entry: Entry) -> tuple[int, int, int, int]:
    """Where the rows begin in the body; how many they are, bytes of an outcome, marks of a record.

    Raises:
        LedgerUnavailable: The body is of another length than these come to.
    """
    rows, width, marks = _body.unpack_from(entry.body)
    if len(entry.body) != _body.size + rows * (5 + width) + entry.begun * 8 * marks:
        raise LedgerUnavailable(ALTERED)
    return _body.size, rows, width, marks
