"""The books of a ledger in PostgreSQL."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from scoreveil.ledger import books, kernel
from scoreveil.ledger.errors import NoLedger
from scoreveil.ledger.log import COLUMNS, Body, Entry, link
from scoreveil.ledger.postgres import connect, drop_some, unavailable
from scoreveil.ledger.releases import unit_fact

ROWS = f"SELECT {COLUMNS} FROM scoreveil_log ORDER BY id"
OF_MODEL = "(model = $1 OR starts_with(model, $1 || '/'))"
WITHOUT_REQUEST = "request = NULL, fingerprint = ''"
ANONYMOUS = f"client = '', {WITHOUT_REQUEST}"
MAX_NAMED = 10  # faults of one kind


class PostgresBooks(books.Books):
    def __init__(self, url: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout

    async def totals(self, by_client: bool = False) -> list[books.Total]:
        async with self._one_state() as connection:
            rows = await connection.fetch(books.sql_totals(by_client, "scoreveil_"))
        return sorted((books.Total(*row) for row in rows), key=lambda total: (total.model, total.client or ""))

    async def facts(self) -> dict[str, str]:
        async with self._one_state() as connection:
            return dict(await connection.fetch("SELECT name, value FROM scoreveil_facts"))

    async def verify(self, earlier: books.Head | None = None) -> books.Verification:
        async with self._one_state() as connection:
            state = await connection.fetchrow("SELECT base, base_digest, forgotten FROM scoreveil_state")
            head, calls, answers = books.Head(*state[:2]), 0, 0
            is_met, altered, spent = earlier in (None, head), [], Counter[int]()
            async for *columns, digest in connection.cursor(ROWS, prefetch=1000):
                entry = Entry._make(columns)
                if digest != entry.digest(b""):
                    altered.append(entry.id)
                else:
                    body = Body.read(entry.body)
                    for number in body.numbers(entry.next)[body.kinds != kernel.SAME].tolist():
                        spent[number] += entry.units
                head = books.Head(entry.id, link(head.digest, digest))
                calls, answers, is_met = calls + 1, answers + entry.fresh, is_met or head == earlier
            rows = connection.cursor("SELECT id, spent FROM scoreveil_records", prefetch=10_000)
            differ = [number async for number, units in rows if spent[number] != units]
        faults = [f"row {row} of the log was altered" for row in altered[:MAX_NAMED]]
        if differ and not altered:
            faults.append(f"what {len(differ):,} records have spent differs from what the log says")
        if earlier is not None and not is_met:
            faults.append(books.not_met(earlier, state["base"]))
        return books.Verification(head, calls, answers, state["forgotten"], tuple(faults))

    async def forget(self, scope: books.Scope) -> books.Forgotten:
        async with self._connected() as connection, connection.transaction():
            # calls lock them in this order; those under way are waited for, and others wait
            await connection.execute("LOCK TABLE scoreveil_records, scoreveil_log IN EXCLUSIVE MODE")
            if scope.model is not None:
                of_model = f"SELECT id FROM scoreveil_records WHERE {OF_MODEL}"
                await connection.execute(f"DELETE FROM scoreveil_marks WHERE record IN ({of_model})", scope.model)
                await connection.execute(f"DELETE FROM scoreveil_records WHERE {OF_MODEL}", scope.model)
                await connection.execute(f"DELETE FROM scoreveil_clients WHERE {OF_MODEL}", scope.model)
                of_facts = OF_MODEL.replace("model", "name")
                await connection.execute(f"DELETE FROM scoreveil_facts WHERE {of_facts}", unit_fact(scope.model))
                gone = f"DELETE FROM scoreveil_log WHERE {OF_MODEL} RETURNING request"
                requests = [row["request"] for row in await connection.fetch(gone, scope.model)]
                done = books.Forgotten(len(requests), len(requests) - requests.count(None))
            elif scope.client is not None:
                of_client = "SELECT count(request) FROM scoreveil_log WHERE client = $1"
                requests = await connection.fetchval(of_client, scope.client)
                await connection.execute("UPDATE scoreveil_clients SET name = '' WHERE name = $1", scope.client)
                done = books.Forgotten(await _alter(connection, ANONYMOUS, "client = $1", scope.client), requests)
            else:
                old = "request IS NOT NULL AND at <= extract(epoch FROM now())::bigint - 86400 * $1::bigint"
                done = books.Forgotten(requests=await _alter(connection, WITHOUT_REQUEST, old, scope.requests_days))
            if done != books.Forgotten():
                await connection.execute("UPDATE scoreveil_state SET forgotten = forgotten + 1")
        return done

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
    async def _one_state(self) -> AsyncIterator[Any]:
        """Everything that is read is of one moment, at which no call was half written.

        Rows are numbered before they are committed. The lock waits until those under way are through; so no row with a
        smaller number can appear after a head was taken.
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
    async def _connected(self) -> AsyncIterator[Any]:
        with unavailable():
            connection = await connect(self._url, self._timeout)
            try:
                if await connection.fetchval("SELECT to_regclass('scoreveil_state') IS NULL"):
                    raise NoLedger("its tables are not there")
                yield connection
            finally:
                await connection.close(timeout=self._timeout)


async def _alter(connection: Any, change: str, where: str, value: Any) -> int:
    """Change rows of the log, and their digests with them; how many."""
    rows = await connection.fetch(f"UPDATE scoreveil_log SET {change} WHERE {where} RETURNING {COLUMNS}", value)
    entries = [Entry._make(tuple(row)[:-1]) for row in rows]
    digests = [(entry.id, entry.digest(b"")) for entry in entries]
    await connection.executemany("UPDATE scoreveil_log SET digest = $2 WHERE id = $1", digests)
    return len(digests)
