"""What the ledger's books say: who spent what, whether the log is whole, and how to forget.

`verify` reads the whole log. In SQLite each row continues the digest of the one before it, and the last digest is kept
beside the log: a row that was altered, removed or cut off shows, and so does damage to the file. In PostgreSQL, which
looks after its pages itself, each row has a digest of its own, and each record must have spent what the log says. What
clients have spent is a sum beside the log, which `verify` does not cover.

It needs no secret. So it cannot find what someone does who makes all digests anew, nor an older copy put back, unless
it is given an earlier `head` that was kept elsewhere.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass


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
        given = [name for name in (self.model, self.client, self.requests_days) if name is not None]
        if len(given) != 1:
            raise ValueError(f"Forget one of a model, a client and requests at a time; {len(given)} are given.")
        if given[0] == "":
            raise ValueError("The name of the model or client to forget is empty.")
        if self.requests_days is not None and self.requests_days < 0:
            raise ValueError(f"The number of days is {self.requests_days}; it cannot be negative.")


@dataclass(frozen=True)
class Forgotten:
    """How much was forgotten: calls that were deleted or made anonymous, and idempotency keys."""

    calls: int = 0
    requests: int = 0


class Books(ABC):
    """The books of a ledger that is open elsewhere or nowhere. Reading stops nobody; between calls nothing is open."""

    @abstractmethod
    async def totals(self, by_client: bool = False) -> list[Total]:
        """What was spent on each model, by everyone, or by each client."""

    @abstractmethod
    async def facts(self) -> dict[str, str]:
        """What was written down once (`Ledger.bind`), such as which secret belongs here; read, and not added to."""

    @abstractmethod
    async def verify(self, earlier: Head | None = None) -> Verification:
        """Whether the log is whole, as told above; `earlier` is the head of an earlier `verify`."""

    @abstractmethod
    async def forget(self, scope: Scope) -> Forgotten:
        """Delete a model's records, a client's name, or old idempotency keys."""

    @abstractmethod
    async def compact(self) -> int:
        """Delete what has ended at once, and give its space back; how many rows of the log that were."""


def not_met(earlier: Head, base: int) -> str:
    """What is wrong where the log does not pass through an earlier head."""
    if earlier.entry < base:
        return "the given head is older than the log, whose beginning has ended since"
    return "the log does not begin with what it held at the given head"


def sql_totals(by_client: bool, prefix: str = "") -> str:
    """In the SQL that both stores speak; the prefix is that of their tables."""
    groups = "model, client" if by_client else "model"
    sums = ", ".join(f"CAST(sum({column}) AS bigint)" for column in ("calls", "begun", "fresh", "units", "price"))
    return f"""
        SELECT model, {"client" if by_client else "NULL"}, {sums} FROM (
            SELECT model, client, 1 AS calls, begun, fresh, fresh * units AS units, 0 AS price FROM {prefix}log
            UNION ALL SELECT model, name, 0, 0, 0, 0, spent FROM {prefix}clients
        ) AS spent GROUP BY {groups} ORDER BY {groups}
    """
