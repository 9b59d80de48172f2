"""The books of the embedded ledger; another process may be writing to it."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from scoreveil.ledger import books, sqlite_file
from scoreveil.ledger.errors import LedgerUnavailable, NoLedger
from scoreveil.ledger.log import Entry, linked
from scoreveil.ledger.releases import unit_fact
from scoreveil.ledger.sqlite_file import ROWS_AFTER, State

T = TypeVar("T")
OF_MODEL = "(model = :name OR substr(model, 1, length(:name) + 1) = :name || '/')"
PAGE = 1000


class SqliteBooks(books.Books):
    def __init__(self, path: Path, patience: float) -> None:
        self._path, self._patience = path, patience

    async def totals(self, by_client: bool = False) -> list[books.Total]:
        def read(connection: sqlite3.Connection) -> list[books.Total]:
            return [books.Total(*row) for row in connection.execute(books.sql_totals(by_client))]

        return await self._with("ro", read)

    async def facts(self) -> dict[str, str]:
        return await self._with("ro", lambda connection: dict(connection.execute("SELECT name, value FROM facts")))

    async def verify(self, earlier: books.Head | None = None) -> books.Verification:
        return await self._with("ro", lambda connection: verify(connection, earlier))

    async def forget(self, scope: books.Scope) -> books.Forgotten:
        return await self._with("rw", lambda connection: forget(connection, scope))

    async def compact(self) -> int:
        return await self._with("rw", drop_dead, vacuum)

    async def _with(
        self,
        mode: str,
        work: Callable[[sqlite3.Connection], T],
        after: Callable[[sqlite3.Connection], None] | None = None,
    ) -> T:
        """`work` on one state of the file, in a thread; all of it or nothing."""

        def run() -> T:
            with contextlib.closing(sqlite_file.connect(self._path, mode, self._patience)) as connection:
                if not sqlite_file.is_ledger(connection):
                    raise NoLedger("its file is empty")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN" if mode == "ro" else "BEGIN IMMEDIATE")
                done = work(connection)
                connection.execute("COMMIT")
                if after is not None:
                    after(connection)
                return done

        try:
            if not self._path.is_file():
                raise NoLedger("its file is not there")
            return await asyncio.to_thread(run)
        except (sqlite3.Error, OSError) as error:
            raise LedgerUnavailable(sqlite_file.reason(error)) from None


def verify(connection: sqlite3.Connection, earlier: books.Head | None) -> books.Verification:
    state = State.read(connection)
    head, calls, answers, faults = books.Head(state.base, state.base_digest), 0, 0, []
    is_met = earlier in (None, head)
    try:
        if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
            raise sqlite3.DatabaseError
        for entry, digest in linked(connection.execute(ROWS_AFTER, (state.base,)), state.base_digest):
            head, calls, answers = books.Head(entry.id, digest), calls + 1, answers + entry.fresh
            is_met = is_met or head == earlier
        if head.digest != state.digest:
            faults.append(f"the log ends at row {head.entry}, and went further")
    except LedgerUnavailable:
        faults.append(f"the log was altered after row {head.entry}, or a part of it is missing")
    except sqlite3.DatabaseError:
        faults.append("SQLite finds the file damaged")
    if earlier is not None and not is_met and not faults:
        faults.append(books.not_met(earlier, state.base))
    return books.Verification(head, calls, answers, state.forgotten, tuple(faults))


def forget(connection: sqlite3.Connection, scope: books.Scope) -> books.Forgotten:
    connection.execute("PRAGMA secure_delete = ON")  # what is forgotten does not stay in the file's free pages
    if scope.model is not None:
        name = {"name": scope.model}
        (requests,) = connection.execute(f"SELECT count(request) FROM log WHERE {OF_MODEL}", name).fetchone()
        calls = connection.execute(f"DELETE FROM log WHERE {OF_MODEL}", name).rowcount
        connection.execute(f"DELETE FROM clients WHERE {OF_MODEL}", name)
        fact = {"name": unit_fact(scope.model)}
        connection.execute(f"DELETE FROM facts WHERE {OF_MODEL.replace('model', 'name')}", fact)
        done = books.Forgotten(calls, requests)
    elif scope.client is not None:
        of_client = "FROM log WHERE client = ?", (scope.client,)
        (requests,) = connection.execute(f"SELECT count(request) {of_client[0]}", of_client[1]).fetchone()
        connection.execute("UPDATE clients SET name = '' WHERE name = ?", of_client[1])
        anonymous = "client = '', request = NULL, fingerprint = x''"
        calls = connection.execute(f"UPDATE log SET {anonymous} WHERE client = ?", of_client[1]).rowcount
        done = books.Forgotten(calls, requests)
    else:
        assert scope.requests_days is not None
        before = int(time.time()) - scope.requests_days * 86400
        old = "UPDATE log SET request = NULL, fingerprint = x'' WHERE request IS NOT NULL AND at <= ?"
        done = books.Forgotten(requests=connection.execute(old, (before,)).rowcount)
    if done != books.Forgotten():
        relink(connection)
    return done


def relink(connection: sqlite3.Connection) -> None:
    """Make the digests anew; whoever writes to the log sees that something was forgotten, and reads it again."""
    state = State.read(connection)
    row, digest = state.base, state.base_digest
    while page := connection.execute(f"{ROWS_AFTER} LIMIT {PAGE}", (row,)).fetchall():
        made = []
        for *columns, _ in page:
            entry = Entry._make(columns)
            row, digest = entry.id, entry.digest(digest)
            made.append((digest, row))
        connection.executemany("UPDATE log SET digest = ? WHERE id = ?", made)
    state._replace(digest=digest, forgotten=state.forgotten + 1).write(connection)


def drop_dead(connection: sqlite3.Connection) -> int:
    state = State.read(connection)
    alive = connection.execute("SELECT id FROM log WHERE next > ? ORDER BY id LIMIT 1", (state.first,)).fetchone()
    dead = "SELECT id, digest FROM log WHERE id < ? ORDER BY id DESC LIMIT 1"
    last = connection.execute(dead, alive or (state.head + 1,)).fetchone()
    if last is None:
        return 0
    (count,) = connection.execute("SELECT count(*) FROM log WHERE id <= ?", last[:1]).fetchone()
    sqlite_file.drop(connection, state, *last).write(connection)
    return int(count)


def vacuum(connection: sqlite3.Connection) -> None:
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
