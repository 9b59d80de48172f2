"""The books of a ledger in PostgreSQL."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from scoreveil.ledger.books import OF_MODEL, Books, Head, Scope, Session
from scoreveil.ledger.errors import NoLedger
from scoreveil.ledger.log import COLUMNS, Entry
from scoreveil.ledger.postgres import TRIES, Connection, connect, drop_some, unavailable


class PostgresBooks(Books):
    prefix = "scoreveil_"
    now = "extract(epoch FROM now())::bigint"

    def __init__(self, url: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout

    async def compact(self) -> int:
        total = 0
        async with self._connected() as connection:
            while True:
                async with connection.transaction():
                    count = await drop_some(connection)
                total += count
                if not count:
                    return total

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Session]:
        """Rows are numbered before they are committed. The lock waits until those under way are through; so no row with
        a smaller number can appear after a head was taken.
        """
        async with self._connected() as connection, self._connected() as other:
            locking = other.transaction()
            await locking.start()
            await other.execute("LOCK TABLE scoreveil_log IN SHARE MODE")
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute("SELECT 1")
                await locking.rollback()
                yield connection

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Session]:
        async with self._connected() as connection:
            for left in reversed(range(TRIES)):
                transaction = connection.transaction()
                await transaction.start()
                try:
                    await connection.execute("LOCK TABLE scoreveil_records, scoreveil_log IN EXCLUSIVE MODE")
                    break
                except asyncpg.DeadlockDetectedError:  # a call may lock them in the other order
                    await transaction.rollback()
                    if not left:
                        raise
            yield connection  # an error closes it, which undoes what was done
            await transaction.commit()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Connection]:
        with unavailable():
            connection = await connect(self._url, self._timeout)
            try:
                if await connection.fetchval("SELECT to_regclass('scoreveil_state') IS NULL"):
                    raise NoLedger("its tables are not there")
                yield connection
            finally:
                await connection.close(timeout=self._timeout)

    async def _damage(self, session: Session) -> list[str]:
        return []  # the server looks after its pages itself

    async def _differences(self, session: Session, head: Head, units: Counter[int]) -> list[str]:
        records = await session.fetch("SELECT id, spent FROM scoreveil_records")
        differ = sum(units[number] != spent for number, spent in records)
        return [f"what {differ:,} records have spent differs from what the log says"] if differ else []

    async def _forgotten(self, session: Session, scope: Scope, rows: list[int]) -> None:
        if scope.model is not None:
            of_model = f"SELECT id FROM scoreveil_records WHERE {OF_MODEL}"
            await session.fetch(f"DELETE FROM scoreveil_marks WHERE record IN ({of_model})", scope.model)
            await session.fetch(f"DELETE FROM scoreveil_records WHERE {OF_MODEL}", scope.model)
        of_rows = f"SELECT {COLUMNS} FROM scoreveil_log WHERE id = ANY($1::bigint[])"
        entries = [Entry._make(tuple(row)[:-1]) for row in await session.fetch(of_rows, rows)]
        digests = [(entry.id, entry.digest(b"")) for entry in entries]
        await session.executemany("UPDATE scoreveil_log SET digest = $2 WHERE id = $1", digests)
