"""What the ledger's books say: who spent what, whether the log is whole, and how to forget.

`verify` reads the whole log. In SQLite each row continues the digest of the one before it, and the last digest is kept
beside the log: a row that was altered, removed or cut off shows, and so does damage to the file. In PostgreSQL, which
looks after its pages itself, each row has a digest of its own, and each record must have spent what the log says. What
clients have spent is a sum beside the log, which `verify` does not cover.

It needs no secret. So it cannot find what someone does who makes all digests anew, nor an older copy put back, unless
it is given an earlier `head` that was kept elsewhere.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from scoreveil.ledger.errors import LedgerUnavailable
from scoreveil.ledger.log import ALTERED, COLUMNS, SAME, Body, Entry, link
from scoreveil.ledger.releases import unit_fact

PAGE = 200  # rows of the log that are read together
MAX_NAMED = 10  # faults of one kind
OF_MODEL = "(model = $1 OR substr(model, 1, length($1) + 1) = $1 || '/')"
NOT_MET = "the log does not begin with what it held at the given head"
TOO_OLD = "the given head is older than the log, whose beginning has ended since"


@dataclass(frozen=True)
class Total:
    """What the calls about a model came to, everyone's or one client's, as far as the log still has them.

    Attributes:
        model: The model's name.
        client: None: everyone.
        calls: That were charged to records.
        records: That they began.
        answers: Fresh ones, which were charged to records.
        units: What these cost the records.
        price: What all calls cost the client, those that were answered again and those that the log has dropped too.
    """

    model: str
    client: str | None
    calls: int
    records: int
    answers: int
    units: int
    price: int


@dataclass(frozen=True)
class Head:
    """How far the log goes, and a digest over all of it: `12:9f3c…`. Give it to a later `verify`."""

    entry: int
    digest: bytes

    def __str__(self) -> str:
        return f"{self.entry}:{self.digest.hex()}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        entry, _, digest = text.partition(":")
        try:
            head = cls(int(entry), bytes.fromhex(digest))
        except ValueError:
            head = cls(-1, b"")
        if head.entry < 0 or len(head.digest) != 32:
            raise ValueError("A head is a number, a colon and 64 hex digits, as verify prints it.")
        return head


@dataclass(frozen=True)
class Verification:
    """What `verify` found. Intact when `faults` is empty.

    Attributes:
        head: How far the log goes.
        calls: Rows of the log.
        answers: Fresh ones, in all of them.
        forgotten: How often something was forgotten on purpose.
        faults: What is wrong.
    """

    head: Head
    calls: int
    answers: int
    forgotten: int
    faults: tuple[str, ...]

    @property
    def intact(self) -> bool:
        return not self.faults


@dataclass(frozen=True)
class Scope:
    """What to forget: a model's records (all versions of `name` that are called `name/…` too), a client's name, or the
    idempotency keys of long ago. Exactly one of them."""

    model: str | None = None
    client: str | None = None
    requests_days: int | None = None

    def __post_init__(self) -> None:
        scopes = [name for name in (self.model, self.client, self.requests_days) if name is not None]
        if len(scopes) != 1:
            raise ValueError(f"Forget one of a model, a client and requests at a time; {len(scopes)} are given.")
        if scopes[0] == "":
            raise ValueError("The name of the model or client to forget is empty.")
        if self.requests_days is not None and self.requests_days < 0:
            raise ValueError(f"The number of days is {self.requests_days}; it cannot be negative.")


@dataclass(frozen=True)
class Forgotten:
    """How much was forgotten: calls that were deleted or made anonymous, and idempotency keys."""

    calls: int = 0
    requests: int = 0


Rows = Sequence[Sequence[Any]]  # of a table


class Session(Protocol):
    """One state of a store."""

    async def fetch(self, query: str, *values: object) -> Rows:
        """All rows that a statement returns; the values stand for $1, $2, … in it."""

    async def executemany(self, query: str, rows: Rows) -> None:
        """The same statement for the values of each row."""


class Books(ABC):
    """The books of a ledger that is open elsewhere or nowhere. Reading stops nobody; between calls nothing is open."""

    prefix = ""  # of the tables' names
    now = ""  # seconds since 1970, in SQL
    is_chained = False  # whether each row's digest continues that of the row before it

    async def totals(self, by_client: bool = False) -> list[Total]:
        """What was spent on each model, by everyone, or by each client."""
        groups = "model, client" if by_client else "model"
        sums = ", ".join(f"CAST(sum({column}) AS bigint)" for column in ("calls", "begun", "fresh", "units", "price"))
        async with self._reading() as session:
            rows = await session.fetch(f"""
                SELECT model, {"client" if by_client else "NULL"}, {sums} FROM (
                    SELECT model, client, 1 AS calls, begun, fresh, fresh * units AS units, 0 AS price
                        FROM {self.prefix}log
                    UNION ALL SELECT model, name, 0, 0, 0, 0, spent FROM {self.prefix}clients
                ) AS spent GROUP BY {groups}
            """)
        return sorted((Total(*row) for row in rows), key=lambda total: (total.model, total.client or ""))

    async def facts(self) -> dict[str, str]:
        """What was written down once (`Ledger.bind`), such as which secret belongs here; read, and not added to."""
        async with self._reading() as session:
            return {str(name): str(value) for name, value in await session.fetch(f"SELECT * FROM {self.prefix}facts")}

    async def verify(self, earlier: Head | None = None) -> Verification:
        """Whether the log is whole, as told above; `earlier` is the head of an earlier `verify`."""
        async with self._reading() as session:
            base, base_digest, forgotten = await self._state(session)
            head, calls, answers = Head(base, base_digest), 0, 0
            is_met, altered, units = earlier in (None, head), list[int](), Counter[int]()
            damage = await self._damage(session)
            while not damage and (page := await self._log_after(session, head.entry)):
                for *columns, digest in page:
                    entry = Entry._make(columns)
                    digest = digest if isinstance(digest, bytes) else b""
                    if entry.has_digest(digest, head.digest if self.is_chained else b""):
                        answers += entry.fresh
                        if not self.is_chained:
                            body = Body.read(entry.body)
                            for record in body.numbers(entry.next)[body.kinds != SAME].tolist():
                                units[record] += entry.units
                    else:
                        altered.append(entry.id)
                    head = Head(entry.id, digest if self.is_chained else link(head.digest, digest))
                    calls, is_met = calls + 1, is_met or head == earlier
            faults = [f"row {row} of the log was altered, or one before it is missing" for row in altered[:MAX_NAMED]]
            faults += damage or ([] if faults else await self._differences(session, head, units))
        if earlier is not None and not is_met and not (self.is_chained and faults):
            faults.append(NOT_MET if earlier.entry >= base else TOO_OLD)
        return Verification(head, calls, answers, forgotten, tuple(faults))

    async def forget(self, scope: Scope) -> Forgotten:
        """Delete a model's records, a client's name, or old idempotency keys."""
        log, clients = f"{self.prefix}log", f"{self.prefix}clients"
        value: str | int | None
        if scope.model is not None:
            value, where = scope.model, OF_MODEL
        elif scope.client is not None:
            value, where, change = scope.client, "client = $1", "client = '', request = NULL, fingerprint = $2"
        else:
            value, change = scope.requests_days, "request = NULL, fingerprint = $2"
            where = f"request IS NOT NULL AND at <= {self.now} - 86400 * CAST($1 AS bigint)"
        async with self._writing() as session:
            rows = await session.fetch(f"SELECT id, request IS NOT NULL FROM {log} WHERE {where}", value)
            if scope.model is not None:
                await session.fetch(f"DELETE FROM {clients} WHERE {OF_MODEL}", value)
                of_facts = OF_MODEL.replace("model", "name")
                await session.fetch(f"DELETE FROM {self.prefix}facts WHERE {of_facts}", unit_fact(scope.model))
                await session.fetch(f"DELETE FROM {log} WHERE {OF_MODEL}", value)
            elif rows:
                await session.fetch(f"UPDATE {log} SET {change} WHERE {where}", value, b"")
            if scope.client is not None:
                await session.fetch(f"UPDATE {clients} SET name = '' WHERE name = $1", value)
            if rows:
                await session.fetch(f"UPDATE {self.prefix}state SET forgotten = forgotten + 1")
                await self._forgotten(session, scope, [row for row, _ in rows])
        return Forgotten(0 if scope.requests_days is not None else len(rows), sum(has_key for _, has_key in rows))

    @abstractmethod
    async def compact(self) -> int:
        """Delete what has ended at once, and give its space back; how many rows of the log that were."""

    async def _state(self, session: Session) -> tuple[int, bytes, int]:
        """The last row that was dropped, its digest, and how often something was forgotten."""
        rows = await session.fetch(f"SELECT base, base_digest, forgotten FROM {self.prefix}state")
        if not rows:
            raise LedgerUnavailable(ALTERED)
        base, base_digest, forgotten = rows[0]
        return base, base_digest, forgotten

    async def _log_after(self, session: Session, row: int) -> Rows:
        rows = f"SELECT {COLUMNS} FROM {self.prefix}log WHERE id > $1 ORDER BY id LIMIT {PAGE}"
        return await session.fetch(rows, row)

    @abstractmethod
    def _reading(self) -> AbstractAsyncContextManager[Session]:
        """One state, at which no call is half written.

        Raises:
            NoLedger: There is none.
        """

    @abstractmethod
    def _writing(self) -> AbstractAsyncContextManager[Session]:
        """A transaction for which calls under way are waited for, and which others wait for."""

    @abstractmethod
    async def _damage(self, session: Session) -> list[str]:
        """What makes the rest not worth reading."""

    @abstractmethod
    async def _differences(self, session: Session, head: Head, units: Counter[int]) -> list[str]:
        """How the store differs from its log: its head, and what each record was charged."""

    @abstractmethod
    async def _forgotten(self, session: Session, scope: Scope, rows: list[int]) -> None:
        """These rows of the log were changed or deleted: digests are made anew, and records deleted that lie beside."""
