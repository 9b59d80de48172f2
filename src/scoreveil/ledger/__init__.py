"""The ledger: how often each record may still be asked, kept through crashes, for any number of workers.

    ledger = await open_ledger("sqlite:///ledger.db")                  # or "postgresql://…"
    key = record_key(secret, "digits", "1", record)                    # the record itself is never stored
    [grant] = await ledger.charge("digits", [key], limit=5)            # on disk when this returns
    grant.granted, grant.number                                        # True, 1: draw from (record, number), release

Charge, then draw, then release: a crash in between may over-charge what was under way, it never under-charges. Where
the ledger cannot promise that, it raises LedgerUnavailable, and nothing may be released.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from scoreveil.ledger.books import Books, Forgotten, Head, Record, Scope, Total, Verdict
from scoreveil.ledger.charges import Grant, record_key
from scoreveil.ledger.errors import BudgetExceeded, IdempotencyConflict, LedgerUnavailable

__all__ = [
    "Books",
    "BudgetExceeded",
    "Forgotten",
    "Grant",
    "Head",
    "IdempotencyConflict",
    "Ledger",
    "LedgerUnavailable",
    "Record",
    "Scope",
    "Total",
    "Verdict",
    "open_books",
    "open_ledger",
    "record_key",
]

TIMEOUT = 10.0  # seconds after which a call that the storage does not answer fails
SQLITE, POSTGRES = "sqlite:///", ("postgresql://", "postgres://")


class Ledger(Protocol):
    """An open ledger, for the event loop and the process that opened it."""

    async def charge(
        self,
        model: str,
        keys: Sequence[bytes],
        limit: int,
        units: int = 1,
        client: str = "",
        request: bytes | None = None,
    ) -> list[Grant]:
        """Charge `units` for a release of each record, row by row, while its budget of `limit` units lasts.

        Guarantee: what is granted is on disk when this returns, and no record's granted units ever add up to more
        than the largest limit given. `number` is never granted twice. With `request` (the hash of an idempotency key)
        the same call gives the same grants and is charged once, for as long as the ledger keeps requests; with other
        records, client or model it raises IdempotencyConflict. LedgerUnavailable: release nothing; it may have been
        charged all the same.
        """

    async def ready(self) -> bool:
        """Whether a charge would be taken now."""

    async def close(self) -> None:
        """Let go of it. Another worker takes over the writing, where there is one."""

    @property
    def books(self) -> Books:
        """Who spent what, verify, forget."""


async def open_ledger(url: str, timeout: float = TIMEOUT) -> Ledger:
    """The ledger at `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`, made where there is none.

    Open it in the process that uses it: after a fork, not before.
    """
    if url.startswith(POSTGRES):
        _needs_asyncpg()
        from scoreveil.ledger.postgres import PostgresLedger

        postgres = PostgresLedger(url, timeout)
        await postgres.open()
        return postgres
    from scoreveil.ledger.sqlite import SqliteLedger

    sqlite = SqliteLedger(_path(url), timeout)
    await sqlite.open()
    return sqlite


async def open_books(url: str, timeout: float = TIMEOUT) -> Books:
    """The books of the ledger at `url`, which must exist; others may charge it meanwhile."""
    if url.startswith(POSTGRES):
        _needs_asyncpg()
        from scoreveil.ledger.postgres_books import PostgresBooks

        return PostgresBooks(url, timeout)
    from scoreveil.ledger.sqlite_books import SqliteBooks

    return SqliteBooks(_path(url), timeout)


def _path(url: str) -> Path:
    path = Path(unquote(url.removeprefix(SQLITE)))
    if not url.startswith(SQLITE) or path in (Path(), Path("/")):
        # never the address itself: it may hold a password
        raise ValueError("Expected a ledger at sqlite:///FILE or postgresql://…, got another address.")
    if not path.parent.is_dir():
        raise ValueError(f"Expected a folder for the ledger, got none: {path.parent}.")
    return path.absolute()


def _needs_asyncpg() -> None:
    if find_spec("asyncpg") is None:
        message = "Expected asyncpg for a ledger in PostgreSQL, got none: pip install 'scoreveil[postgres]'."
        raise ModuleNotFoundError(message, name="asyncpg")
