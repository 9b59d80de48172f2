"""What the ledger's books say: who spent what, whether it all adds up, and how to forget.

`verify` reads everything and finds
- damage to the file (SQLite's own integrity check; PostgreSQL looks after its pages itself),
- a journal entry that was altered, by its checksum,
- a counter that is lower or higher than the journal's entries add up to, or that is missing,
- with an earlier `head`: whether the journal still begins with what it held then.
It needs no secret, so it cannot find what someone does who rewrites journal, checksums and counters to agree with each
other, nor an older copy put back: unless an earlier head, kept elsewhere, is given.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from scoreveil.ledger.charges import short

START = hashlib.sha256(b"scoreveil journal 1").digest()
MOST_NAMED = 10  # faults of one kind that are named
SUMS = "count(*), CAST(sum(releases) AS bigint), CAST(sum(spent) AS bigint), count(*) FILTER (WHERE room < 1)"


@dataclass(frozen=True)
class Total:
    """What was spent on a model, by everyone or by one client. Exhausted: no room for one more of its last releases."""

    model: str
    client: str | None  # None: everyone
    records: int
    releases: int
    units: int
    exhausted: int


@dataclass(frozen=True)
class Record:
    """One record's counter; of its key only as much as may be shown."""

    model: str
    record: str
    releases: int
    units: int
    room: int


@dataclass(frozen=True)
class Head:
    """How far the journal goes, and a hash over all of it: `12:9f3c…`. Give it to a later `verify`."""

    entry: int
    digest: bytes

    def __str__(self) -> str:
        return f"{self.entry}:{self.digest.hex()}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        entry, _, digest = text.partition(":")
        try:
            found = cls(int(entry), bytes.fromhex(digest))
        except ValueError:
            found = cls(-1, b"")
        if found.entry < 0 or len(found.digest) != 32:
            raise ValueError("A head is a number, a colon and 64 hex digits, as verify prints it.")
        return found


@dataclass(frozen=True)
class Verification:
    """What `verify` found. Intact when `faults` is empty."""

    head: Head
    records: int
    entries: int
    releases: int
    forgotten: int  # times that journal entries were deleted or made anonymous on purpose
    faults: tuple[str, ...]

    @property
    def intact(self) -> bool:
        return not self.faults


@dataclass(frozen=True)
class Scope:
    """What to forget: a model's records (all versions of `name` that are called `name/…` too), a client's name, or the
    answers to requests of long ago. Exactly one of them."""

    model: str | None = None
    client: str | None = None
    requests_days: int | None = None

    def __post_init__(self) -> None:
        given = [name for name in (self.model, self.client, self.requests_days) if name is not None]
        if len(given) != 1:
            raise ValueError(f"Forget one of a model, a client and requests at a time; {len(given)} are given.")
        if given[0] == "":
            raise ValueError("The name of the model or client to forget is empty.")
        if self.requests_days is not None and self.requests_days < 0:
            raise ValueError(f"The number of days is {self.requests_days}; it cannot be negative.")


@dataclass(frozen=True)
class Forgotten:
    """How much was forgotten. A client's releases stay spent: the budget is the record's, not the client's."""

    records: int = 0
    entries: int = 0
    requests: int = 0


class Books(ABC):
    """The books of a ledger that is open elsewhere or nowhere. Reading stops nobody; between calls nothing is open."""

    @abstractmethod
    async def totals(self, by_client: bool = False) -> list[Total]:
        """What was spent on each model, by everyone, or by each client (which reads everything)."""

    @abstractmethod
    def records(self) -> AsyncIterator[Record]:
        """Every record's counter."""

    @abstractmethod
    async def facts(self) -> dict[str, str]:
        """What was written down once (`Ledger.bind`), such as which secret belongs here; read, and not added to."""

    @abstractmethod
    async def verify(self, earlier: Head | None = None) -> Verification:
        """Whether the books are intact, as told above; `earlier` is the head of an earlier `verify`."""

    @abstractmethod
    async def forget(self, scope: Scope) -> Forgotten:
        """Delete a model's records, a client's name, or old requests."""


# What both stores are asked, in the SQL that both speak. `records` is their table of counters, `released` has a row for
# each release in the journal.


def sql_by_model(records: str) -> str:
    return f"SELECT model, NULL, {SUMS} FROM {records} GROUP BY model"


def sql_by_client(records: str, released: str) -> str:
    return f"""
    WITH counters AS (SELECT model, key, room FROM {records}),
    spent AS (
        SELECT model, client, key, count(*) AS releases, sum(units) AS spent FROM {released} GROUP BY model, client, key
    )
    SELECT model, client, {SUMS} FROM spent JOIN counters USING (model, key) GROUP BY model, client
    """


def sql_differences(records: str, released: str) -> str:
    """Model, key, units by the counter and units by the journal of records where the two differ."""
    return f"""
    WITH sides AS (
        SELECT model, key, releases AS counted, spent AS counted_units, 0 AS noted, 0 AS noted_units FROM {records}
        UNION ALL SELECT model, key, 0, 0, 1, units FROM {released}
    )
    SELECT model, key, CAST(sum(counted_units) AS bigint), CAST(sum(noted_units) AS bigint)
    FROM sides GROUP BY model, key
    HAVING sum(counted_units) <> sum(noted_units) OR sum(counted) <> sum(noted) LIMIT {MOST_NAMED + 1}
    """


def totals(rows: Iterable[Iterable[Any]]) -> list[Total]:
    return sorted((Total(*row) for row in rows), key=lambda total: (total.model, total.client or ""))


class JournalHash:
    """The head, entry by entry; and whether the journal passed through an earlier one."""

    def __init__(self, earlier: Head | None) -> None:
        self._earlier = earlier
        self.head = Head(0, START)
        self.entries = 0
        self.met = earlier is None or earlier == self.head

    def add(self, entry: int, digest: bytes) -> None:
        self.head = Head(entry, hashlib.sha256(self.head.digest + digest).digest())
        self.entries += 1
        self.met = self.met or self.head == self._earlier

    def faults(self) -> Iterable[str]:
        if not self.met:
            yield "the journal does not begin with what it held at the given head"


def counter_faults(wrong: list[tuple[str, bytes, int, int]]) -> Iterable[str]:
    """What is wrong with each row of `sql_differences`."""
    for model, key, counted, journaled in wrong[:MOST_NAMED]:
        way = "less than" if counted < journaled else "more than" if counted > journaled else "not"
        yield f"record {short(key)}… of model {model}: its counter is {way} what the journal adds up to"
    if len(wrong) > MOST_NAMED:
        yield "more such records"


def entry_faults(wrong: list[int]) -> Iterable[str]:
    for entry in wrong[:MOST_NAMED]:
        yield f"journal entry {entry}: its checksum does not fit"
    if len(wrong) > MOST_NAMED:
        yield f"{len(wrong) - MOST_NAMED:,} more such entries"
