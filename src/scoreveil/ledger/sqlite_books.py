"""The books of the embedded ledger, read beside its writer."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

from scoreveil.ledger import books, sqlite_file
from scoreveil.ledger.charges import KEY, entry_digest
from scoreveil.ledger.errors import LedgerUnavailable

T = TypeVar("T")
PAGE = 10_000  # records read at a time

RELEASED = "CREATE TEMP TABLE released (model TEXT, client TEXT, units INTEGER, key BLOB)"
PAGE_OF_RECORDS = """
SELECT model, key, releases, spent, room FROM records WHERE (model, key) > (?, ?) ORDER BY model, key LIMIT ?
"""
OF_MODEL = "(model = :name OR substr(model, 1, length(:name) + 1) = :name || '/')"


class SqliteBooks(books.Books):
    def __init__(self, path: Path, patience: float) -> None:
        self._path, self._patience = path, patience

    async def totals(self, by_client: bool = False) -> list[books.Total]:
        def read(connection: sqlite3.Connection) -> list[books.Total]:
            if not by_client:
                return books.totals(connection.execute(books.sql_by_model("records")))
            list_releases(connection)
            return books.totals(connection.execute(books.sql_by_client("records", "released")))

        return await self._with("ro", read)

    async def records(self) -> AsyncIterator[books.Record]:
        last: tuple[str, bytes] = ("", b"")

        def page_after_last(connection: sqlite3.Connection) -> list[Any]:
            return connection.execute(PAGE_OF_RECORDS, (*last, PAGE)).fetchall()

        while page := await self._with("ro", page_after_last):
            for model, key, releases, spent, room in page:
                yield books.Record(model, key[:4].hex(), releases, spent, room)
                last = model, key

    async def facts(self) -> dict[str, str]:
        def read(connection: sqlite3.Connection) -> dict[str, str]:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            # a ledger of format 1 has none yet
            return dict(connection.execute("SELECT name, value FROM facts").fetchall()) if version > 1 else {}

        return await self._with("ro", read)

    async def verify(self, earlier: books.Head | None = None) -> books.Verification:
        return await self._with("ro", lambda connection: verify(connection, earlier))

    async def forget(self, scope: books.Scope) -> books.Forgotten:
        return await self._with("rw", lambda connection: forget(connection, scope))

    async def _with(self, mode: str, work: Callable[[sqlite3.Connection], T]) -> T:
        """`work` on one state of the file, in a thread; all of it or nothing."""

        def run() -> T:
            with contextlib.closing(sqlite_file.connect(self._path, mode, self._patience)) as connection:
                if not sqlite_file.is_ledger(connection):
                    raise LedgerUnavailable("its file is empty")
                if mode == "rw":
                    sqlite_file.upgrade(connection)
                connection.execute("BEGIN" if mode == "ro" else "BEGIN IMMEDIATE")
                done = work(connection)
                connection.execute("COMMIT")
                return done

        try:
            if not self._path.is_file():
                raise LedgerUnavailable("its file is not there")
            return await asyncio.to_thread(run)
        except (sqlite3.Error, OSError) as error:
            raise LedgerUnavailable(sqlite_file.reason(error)) from None


def list_releases(connection: sqlite3.Connection) -> None:
    """One row for each release in the journal, in a table of this connection alone."""
    connection.execute(RELEASED)
    entries = connection.execute("SELECT model, client, units, keys FROM journal")
    rows = (
        (model, client, units, keys[i : i + KEY])
        for model, client, units, keys in entries
        for i in range(0, len(keys), KEY)
    )
    connection.executemany("INSERT INTO released VALUES (?, ?, ?, ?)", rows)


def verify(connection: sqlite3.Connection, earlier: books.Head | None) -> books.Verification:
    if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        return books.Verification(books.Head(0, books.START), 0, 0, 0, 0, ("SQLite finds the file damaged",))
    journal = books.JournalHash(earlier)
    wrong = []
    for entry, model, client, units, most, keys, digest in connection.execute(
        "SELECT id, model, client, units, most, keys, digest FROM journal ORDER BY id"
    ):
        if digest != entry_digest(model, client, units, most, keys):
            wrong.append(entry)
        journal.add(entry, digest)
    records, releases = connection.execute("SELECT count(*), coalesce(sum(releases), 0) FROM records").fetchone()
    (forgotten,) = connection.execute("SELECT count(*) FROM forgotten").fetchone()
    list_releases(connection)
    faults = [
        *books.entry_faults(wrong),
        *books.counter_faults(connection.execute(books.sql_differences("records", "released")).fetchall()),
        *journal.faults(),
    ]
    return books.Verification(journal.head, records, journal.entries, releases, forgotten, tuple(faults))


def forget(connection: sqlite3.Connection, scope: books.Scope) -> books.Forgotten:
    connection.execute("PRAGMA secure_delete = ON")  # what is forgotten does not stay in the file's free pages
    connection.execute("DELETE FROM replies")
    if scope.model is not None:
        name = {"name": scope.model}
        connection.execute(f"DELETE FROM marks WHERE key IN (SELECT key FROM records WHERE {OF_MODEL})", name)
        connection.execute(f"DELETE FROM clients WHERE {OF_MODEL}", name)
        counts = {
            table: connection.execute(f"DELETE FROM {table} WHERE {OF_MODEL}", name).rowcount
            for table in ("records", "journal", "requests")
        }
        done, what = books.Forgotten(counts["records"], counts["journal"], counts["requests"]), "a model"
    elif scope.client is not None:
        done, what = _forget_client(connection, scope.client), "a client"
    else:
        assert scope.requests_days is not None
        before = int(time.time()) - scope.requests_days * 86400
        gone = connection.execute("DELETE FROM requests WHERE at <= ?", (before,)).rowcount
        done, what = books.Forgotten(requests=gone), "requests"
    if done.entries:
        connection.execute("INSERT INTO forgotten (at, what) VALUES (?, ?)", (int(time.time()), what))
    return done


def _forget_client(connection: sqlite3.Connection, client: str) -> books.Forgotten:
    """The name goes; what was released stays spent, by nobody in particular."""
    requests = connection.execute("DELETE FROM requests WHERE client = ?", (client,)).rowcount
    entries = connection.execute("SELECT id, model, units, most, keys FROM journal WHERE client = ?", (client,))
    anonymous = [(entry_digest(model, "", *rest), entry) for entry, model, *rest in entries.fetchall()]
    connection.executemany("UPDATE journal SET client = '', digest = ? WHERE id = ?", anonymous)
    return books.Forgotten(entries=len(anonymous), requests=requests)
