"""The ledger: how often each record may still be answered, kept through crashes, for any number of workers.

    ledger = await open_ledger("sqlite:///ledger.db")                       # or "postgresql://…"
    questions = ReleaseRequest("digits", settings, marks, outcomes, units=1)     # what was drawn, should it be due
    answers = await ledger.answer(questions)                                # on disk when this returns
    answers.refused, answers.outcomes                                       # "", and what to release

Records are told by their marks (`same_record/marks.py`), never stored. Draw, ask, then release what the ledger says: a
crash in between may charge too much, never too little. Where the ledger cannot promise that, it raises
LedgerUnavailable, and nothing may be released.
"""

from pathlib import Path
from urllib.parse import unquote

from scoreveil import extras
from scoreveil.ledger.books import Books, Forgotten, Head, Scope, Total, Verification
from scoreveil.ledger.errors import IdempotencyConflict, LedgerUnavailable, NoLedger
from scoreveil.ledger.ledger import Horizon, Ledger
from scoreveil.ledger.releases import ReleaseRequest, ReleaseResult, Repeat

__all__ = [
    "Books",
    "Forgotten",
    "Head",
    "Horizon",
    "IdempotencyConflict",
    "Ledger",
    "LedgerUnavailable",
    "NoLedger",
    "ReleaseRequest",
    "ReleaseResult",
    "Repeat",
    "Scope",
    "Total",
    "Verification",
    "open_books",
    "open_ledger",
]

TIMEOUT = 10.0  # seconds after which a call that the storage does not answer fails
HORIZON = Horizon()
SQLITE, POSTGRES = "sqlite:///", ("postgresql://", "postgres://")


async def open_ledger(url: str, horizon: Horizon = HORIZON, timeout: float = TIMEOUT) -> Ledger:
    """The ledger at an address, made where there is none. Open it in the process that uses it: after a fork.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`.
        horizon: When records end.
        timeout: Seconds after which a call that the storage does not answer fails.

    Raises:
        LedgerUnavailable: It cannot be reached, or is not a ledger.
        ValueError: The address is not one of these, or its folder is not there.
        ModuleNotFoundError: The extra `serve` is missing, or `postgres`, which a ledger in PostgreSQL needs.
    """
    if url.startswith(POSTGRES):
        with extras.needs("postgres"):
            from scoreveil.ledger.postgres import PostgresLedger

        postgres = PostgresLedger(url, horizon, timeout)
        await postgres.open()
        return postgres
    with extras.needs("serve"):
        from scoreveil.ledger.sqlite import SqliteLedger

    sqlite = SqliteLedger(_path(url), horizon, timeout)
    await sqlite.open()
    return sqlite


async def open_books(url: str, timeout: float = TIMEOUT) -> Books:
    """The books of the ledger at an address; others may charge it meanwhile. They raise NoLedger where there is none.

    Raises:
        ValueError, ModuleNotFoundError: As `open_ledger`.
    """
    if url.startswith(POSTGRES):
        with extras.needs("postgres"):
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
