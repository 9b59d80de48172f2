"""The books of a ledger in PostgreSQL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from scoreveil.ledger import books
from scoreveil.ledger.errors import LedgerUnavailable
from scoreveil.ledger.postgres import connect, digest, make_tables, unavailable

RELEASED = """(
    SELECT model, client, units, substring(keys FROM 32 * i + 1 FOR 32) AS key
    FROM scoreveil_journal CROSS JOIN generate_series(0, octet_length(keys) / 32 - 1) AS i
) AS released"""
ENTRIES = f"""
SELECT id, digest, digest <> {digest("model", "client", "units", "most", "keys")} AS wrong
FROM scoreveil_journal ORDER BY id
"""
RECORDS = """
SELECT model, left(encode(key, 'hex'), 8), releases, spent, room FROM scoreveil_records ORDER BY model COLLATE "C", key
"""
TABLES = "scoreveil_requests, scoreveil_records, scoreveil_journal"  # in the order in which charges lock them
OF_MODEL = "(model = $1 OR starts_with(model, $1 || '/'))"
ANONYMOUS = f"""
UPDATE scoreveil_journal SET client = '', digest = {digest("model", "''", "units", "most", "keys")} WHERE client = $1
"""


class PostgresBooks(books.Books):
    def __init__(self, url: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout

    async def totals(self, by_client: bool = False) -> list[books.Total]:
        async with self._one_state() as connection:
            if by_client:
                return books.totals(await connection.fetch(books.sql_by_client("scoreveil_records", RELEASED)))
            return books.totals(await connection.fetch(books.sql_by_model("scoreveil_records")))

    async def records(self) -> AsyncIterator[books.Record]:
        async with self._one_state() as connection:
            async for row in connection.cursor(RECORDS, prefetch=10_000):
                yield books.Record(*row)

    async def facts(self) -> dict[str, str]:
        async with self._one_state() as connection:
            return dict(await connection.fetch("SELECT name, value FROM scoreveil_facts"))

    async def verify(self, earlier: books.Head | None = None) -> books.Verification:
        async with self._one_state() as connection:
            journal, wrong = books.JournalHash(earlier), []
            async for entry, found, is_wrong in connection.cursor(ENTRIES, prefetch=10_000):
                if is_wrong:
                    wrong.append(entry)
                journal.add(entry, found)
            records, releases = await connection.fetchrow(
                "SELECT count(*), coalesce(sum(releases), 0)::bigint FROM scoreveil_records"
            )
            forgotten = await connection.fetchval("SELECT count(*) FROM scoreveil_forgotten")
            different = await connection.fetch(books.sql_differences("scoreveil_records", RELEASED))
        faults = (*books.entry_faults(wrong), *books.counter_faults(different), *journal.faults())
        return books.Verification(journal.head, records, journal.entries, releases, forgotten, faults)

    async def forget(self, scope: books.Scope) -> books.Forgotten:
        async with self._connected() as connection, connection.transaction():
            # a charge between two of these statements would leave a counter without its entry
            await make_tables(connection)  # of an earlier format
            await connection.execute(f"LOCK TABLE {TABLES} IN SHARE ROW EXCLUSIVE MODE")
            if scope.model is not None:
                of_model = f"key IN (SELECT key FROM scoreveil_records WHERE {OF_MODEL})"
                await connection.execute(f"DELETE FROM scoreveil_marks WHERE {of_model}", scope.model)
                await connection.execute(f"DELETE FROM scoreveil_clients WHERE {OF_MODEL}", scope.model)
                counts = [
                    _count(await connection.execute(f"DELETE FROM scoreveil_{table} WHERE {OF_MODEL}", scope.model))
                    for table in ("requests", "records", "journal")
                ]
                done, what = books.Forgotten(requests=counts[0], records=counts[1], entries=counts[2]), "a model"
            elif scope.client is not None:
                gone = await connection.execute("DELETE FROM scoreveil_requests WHERE client = $1", scope.client)
                entries = await connection.execute(ANONYMOUS, scope.client)
                done, what = books.Forgotten(entries=_count(entries), requests=_count(gone)), "a client"
            else:
                old = "DELETE FROM scoreveil_requests WHERE at <= now() - make_interval(days => $1)"
                gone = await connection.execute(old, scope.requests_days)
                done, what = books.Forgotten(requests=_count(gone)), "requests"
            if done.entries:
                await connection.execute("INSERT INTO scoreveil_forgotten (what) VALUES ($1)", what)
        return done

    @asynccontextmanager
    async def _one_state(self) -> AsyncIterator[Any]:
        """Everything that is read is of one moment, at which no charge was half done.

        Entries are numbered before they are committed. The lock waits until those under way are through; so no entry
        with a smaller number can appear after a head was taken.
        """
        async with self._connected() as connection, self._connected() as other:
            locking = other.transaction()
            await locking.start()
            await other.execute("LOCK TABLE scoreveil_journal IN SHARE MODE")
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute("SELECT 1")
                await locking.rollback()
                yield connection

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        with unavailable():
            connection = await connect(self._url, self._timeout)
            try:
                if await connection.fetchval("SELECT to_regclass('scoreveil_version') IS NULL"):
                    raise LedgerUnavailable("its tables are not there")
                yield connection
            finally:
                await connection.close(timeout=self._timeout)


def _count(status: str) -> int:
    """Of "DELETE 3"."""
    return int(status.rpartition(" ")[2])
