"""The ledger: how often each record may still be asked, kept through crashes, for any number of workers.

    ledger = await open_ledger("sqlite:///ledger.db")                  # or "postgresql://…"
    key = record_key(secret, "digits", "1", record)                    # the record itself is never stored
    [grant] = await ledger.charge("digits", [key], limit=5)            # on disk when this returns
    grant.granted, grant.number                                        # True, 1: draw from (record, number), release

Charge, then draw, then release: a crash in between may over-charge what was under way, it never under-charges. Where
the ledger cannot promise that, it raises LedgerUnavailable, and nothing may be released.
"""

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

from scoreveil.ledger.books import Books, Forgotten, Head, Record, Scope, Total, Verification
from scoreveil.ledger.charges import Grant, record_key
from scoreveil.ledger.errors import IdempotencyConflict, LedgerUnavailable
from scoreveil.ledger.ledger import Ledger
from scoreveil.ledger.releases import Answered, Questions, Repeats

__all__ = [
    "Answered",
    "Books",
    "Forgotten",
    "Grant",
    "Head",
    "IdempotencyConflict",
    "Ledger",
    "LedgerUnavailable",
    "Questions",
    "Record",
    "Repeats",
    "Scope",
    "Total",
    "Verification",
    "open_books",
    "open_ledger",
    "record_key",
]

TIMEOUT = 10.0  # seconds after which a call that the storage does not answer fails
SQLITE, POSTGRES = "sqlite:///", ("postgresql://", "postgres://")


async def open_ledger(url: str, timeout: float = TIMEOUT) -> Ledger:
    """The ledger at an address, made where there is none. Open it in the process that uses it: after a fork.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`.
        timeout: Seconds after which a call that the storage does not answer fails.

    Raises:
        LedgerUnavailable: It cannot be reached, or is not a ledger.
        ValueError: The address is not one of these, or its folder is not there.
        ModuleNotFoundError: PostgreSQL needs asyncpg.
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
    """The books of the ledger at an address, which must exist; others may charge it meanwhile.

    Raises:
        ValueError, ModuleNotFoundError: As `open_ledger`.
    """
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
        raise ValueError("The ledger's address is neither sqlite:///FILE nor postgresql://….")
    if not path.parent.is_dir():
        raise ValueError(f"The ledger's folder {path.parent} does not exist; make it first.")
    return path.absolute()


def _needs_asyncpg() -> None:
    if find_spec("asyncpg") is None:
        message = "A ledger in PostgreSQL needs asyncpg: pip install 'scoreveil[postgres]'"
        raise ModuleNotFoundError(message, name="asyncpg")
