"""The books of the embedded ledger; another process may be writing to it."""

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from scoreveil.ledger.books import Books, Head, Rows, Scope, Session
from scoreveil.ledger.errors import LedgerUnavailable, NoLedger
from scoreveil.ledger.log import Entry
from scoreveil.ledger.sqlite_format import connect, is_ledger, reason


class SqliteSession:
    """A connection that waits for the disk in a thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.text_factory = lambda text: text.decode(errors="replace")  # what was altered may be no text at all
        self._connection = connection

    async def fetch(self, query: str, *values: object) -> Rows:
        return await asyncio.to_thread(lambda: self._connection.execute(query, _named(values)).fetchall())

    async def executemany(self, query: str, rows: Rows) -> None:
        await asyncio.to_thread(self._connection.executemany, query, list(map(_named, rows)))


def _named(values: Sequence[object]) -> dict[str, object]:
    return {str(number): value for number, value in enumerate(values, 1)}


class SqliteBooks(Books):
    now = "CAST(strftime('%s', 'now') AS bigint)"
    is_chained = True

    def __init__(self, path: Path, patience: float) -> None:
        self._path, self._patience = path, patience

    async def compact(self) -> int:
        async with self._opened("rw") as session:
            await session.fetch("BEGIN IMMEDIATE")
            ((head, first),) = await session.fetch("SELECT head, first FROM state")
            alive = await session.fetch("SELECT id FROM log WHERE next > $1 ORDER BY id LIMIT 1", first)
            until = alive[0][0] if alive else head + 1
            dead = "SELECT count(*), max(id) FROM log WHERE id < $1"
            ((count, last),) = await session.fetch(dead, until)
            if count:
                digest = "(SELECT digest FROM log WHERE id = $1)"
                await session.fetch(f"UPDATE state SET base = $1, base_digest = {digest}", last)
                await session.fetch("DELETE FROM log WHERE id <= $1", last)
            await session.fetch("COMMIT")
            await session.fetch("VACUUM")
            await session.fetch("PRAGMA wal_checkpoint(TRUNCATE)")
        return int(count)

    def _reading(self) -> AbstractAsyncContextManager[Session]:
        return self._opened("ro", "BEGIN")

    def _writing(self) -> AbstractAsyncContextManager[Session]:
        return self._opened("rw", "BEGIN IMMEDIATE")

    @contextlib.asynccontextmanager
    async def _opened(self, mode: str, begin: str = "") -> AsyncIterator[Session]:
        """A session on one state of the file, if it begins with a transaction; all that is done in it or nothing."""
        try:
            if not self._path.is_file():
                raise NoLedger("its file is not there")
            with contextlib.closing(connect(self._path, mode, self._patience)) as connection:
                if not is_ledger(connection):
                    raise NoLedger("its file is empty")
                session = SqliteSession(connection)
                await session.fetch("PRAGMA synchronous = FULL")
                await session.fetch("PRAGMA secure_delete = ON")  # what is forgotten stays in no free page
                if begin:
                    await session.fetch(begin)
                yield session
                if begin:
                    await session.fetch("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise LedgerUnavailable(reason(error)) from None

    async def _damage(self, session: Session) -> list[str]:
        with contextlib.suppress(sqlite3.DatabaseError):
            if [tuple(row) for row in await session.fetch("PRAGMA integrity_check(1)")] == [("ok",)]:
                return []
        return ["SQLite finds the file damaged"]

    async def _differences(self, session: Session, head: Head, units: Counter[int]) -> list[str]:
        ((digest,),) = await session.fetch("SELECT digest FROM state")
        return [] if digest == head.digest else [f"the log ends at row {head.entry}, and went further"]

    async def _forgotten(self, session: Session, scope: Scope, rows: list[int]) -> None:
        """All digests are made anew; whoever writes to the log sees what was forgotten, and reads it again."""
        last, digest, _ = await self._state(session)
        while page := await self._log_after(session, last):
            digests = []
            for *columns, _ in page:
                entry = Entry._make(columns)
                last, digest = entry.id, entry.digest(digest)
                digests.append((digest, last))
            await session.executemany("UPDATE log SET digest = $1 WHERE id = $2", digests)
        await session.fetch("UPDATE state SET digest = $1", digest)
