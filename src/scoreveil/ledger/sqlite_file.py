"""The embedded ledger's file: one SQLite database. Its log is the truth; the index in memory derives from it.

`sqlite_format.py` has its tables. A refusal writes nothing. The clock decides only what ends after `Horizon.days`.
"""

import contextlib
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from scoreveil.ledger.errors import LedgerUnavailable
from scoreveil.ledger.index import Index, client_hash, hashed
from scoreveil.ledger.ledger import Horizon
from scoreveil.ledger.log import ALTERED, BASE, COLUMNS, Entry, linked
from scoreveil.ledger.releases import ReleaseRequest, ReleaseResult
from scoreveil.ledger.sqlite_format import State, connect, identity, is_damage, open_to_write, reason

PAGE = 4096  # bytes; what a call takes beyond its body, at least
READ = 8 << 20  # bytes of the log that are read at once
CHECKED = 2 << 20, 2048  # bytes and rows of the log that are read again by one heartbeat
CHECK_EVERY = 1.0  # seconds
DROPPED = 1024  # rows that one heartbeat drops
LOST = "its log lost what was written to it"

ROWS_AFTER = f"SELECT {COLUMNS} FROM log WHERE id > ? ORDER BY id"
EARLIER = f"SELECT {COLUMNS} FROM log WHERE %s = ?"
# few sizes only, so that each is compiled once; after each statement another thread may keep us waiting
AT_ONCE = (64, 8, 1)
ROW = f"({', '.join('?' * len(COLUMNS.split(', ')))})"
SPEND = """
INSERT INTO clients (model, client, name, spent) VALUES (?, ?, ?, ?)
ON CONFLICT (model, client) DO UPDATE SET name = excluded.name, spent = clients.spent + excluded.spent
"""


class LedgerFile:
    """The file, open for writing by one thread: `with file: file.answer(…)` is one transaction.

    Attributes:
        is_loading: The log is being read.
    """

    def __init__(self, path: Path, horizon: Horizon, patience: float, create: bool) -> None:
        self.path, self.horizon, self.patience = path, horizon, patience
        self.is_loading = False
        self._create = create
        self._connection: sqlite3.Connection | None = None
        self._index: Index | None = None
        self._state = State(0, BASE, 0, BASE, 1, 1, 0)  # as on disk, as far as we know
        self._added: list[Entry] = []  # in this transaction
        self._paid: Counter[tuple[str, str]] = Counter()  # model and client, in this transaction
        self._added_by: dict[bytes | int | None, Entry] = {}  # request, or the worker's number
        self._oldest: tuple[int, int] | None = None  # when the first row was written, and its `next`
        self._identity: tuple[int, int] | None = None  # of the file that was opened first
        self._beside: list[tuple[int, int]] = []  # of the files that SQLite keeps beside it
        self._wal_size = 0
        self._is_stranded = False  # what was committed is in a file that nobody else can open
        self._damage = ""  # why nothing is answered any more
        self._failed = 0  # bytes of the largest transaction that failed
        self._pulse = 0  # bytes that a heartbeat writes in this transaction
        self._checked = 0, BASE  # up to which row the log was read again
        self._next_check = 0.0

    def __enter__(self) -> None:
        """Begin a transaction; the file is opened first where an earlier trouble closed it."""
        with self._closing_on_error():
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            state = State.read(connection)
            if state.forgotten != self._state.forgotten:
                connection.execute("COMMIT")
                self._load(connection)
                connection.execute("BEGIN IMMEDIATE")
            elif (state.head, state.digest) != (self._state.head, self._state.digest):
                self._damage = LOST
                raise LedgerUnavailable(LOST)
            else:
                self._state = state  # `compact` may have dropped rows
            self._pulse = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Commit: on disk when this returns. After any error nothing is taken over, and the file is opened anew."""
        assert self._connection is not None
        assert self._index is not None
        connection, index = self._connection, self._index
        size = self._pulse + sum(PAGE + len(entry.body) for entry in self._added) + PAGE * len(self._paid)
        state = self._state
        with self._closing_on_error():
            try:
                if error is not None:
                    raise error
                if self._added:
                    state = self._append(connection, state._replace(next=index.next))
                paid = [(model, client_hash(name), name, price) for (model, name), price in self._paid.items()]
                connection.executemany(SPEND, paid)
                if self._added or self._pulse:
                    state = self._drop(connection, state, 2 * len(self._added) + (DROPPED if self._pulse else 8))
                    state._replace(first=index.first).write(connection)
                connection.execute("COMMIT")
            except BaseException:
                self._failed = max(self._failed, size)
                raise
            index.keep()
            self._state = state._replace(first=index.first)
            self._forget_added()
            if size >= self._failed:
                self._failed = 0
            if size:
                self._opened()  # before anyone is answered: what was committed can be found

    @contextlib.contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if is_damage(error):
                self._damage = reason(error)
            self._forget_added()
            if self._index is not None:
                self._index.undo()
            if not self._is_stranded:
                self.close()
            elif self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def answer(self, questions: ReleaseRequest, ident: int, is_again: bool) -> ReleaseResult:
        """Answer questions within the transaction.

        Args:
            questions: The call.
            ident: The worker's number of it.
            is_again: It was sent before, so it may have been charged already.

        Raises:
            IdempotencyConflict: Its request came before with something else.
        """
        assert self._index is not None
        may_be_there = is_again or questions.request is not None
        if may_be_there and (earlier := self._earlier(questions.request, ident)) is not None:
            return earlier.answers(questions)
        body = self._index.answer(questions, hashed(questions.model, questions.marks))
        if isinstance(body, str):
            return ReleaseResult(body, b"", 0)
        if questions.price:
            self._paid[questions.model, questions.client] += questions.price
        if body.fresh or (questions.price and questions.request is not None):
            number, at = self._state.head + len(self._added) + 1, int(time.time())
            entry = Entry.of(questions, body, number, at, self._index.next, ident)
            self._added.append(entry)
            self._added_by[ident] = entry
            if questions.request is not None:
                self._added_by[questions.request] = entry
        return ReleaseResult("", body.outcomes, body.fresh)

    def _earlier(self, request: bytes | None, ident: int) -> Entry | None:
        """The row of the same request, or of the same call."""
        assert self._connection is not None
        for name, value in (("request", request), ("ident", ident)):
            if value in self._added_by:
                return self._added_by[value]
            if value is not None and (row := self._connection.execute(EARLIER % name, (value,)).fetchone()):
                return Entry._make(row[:-1])
        return None

    def _append(self, connection: sqlite3.Connection, state: State) -> State:
        """Write the rows of this transaction to the log's end."""
        digest, rows = state.digest, []
        for entry in self._added:
            digest = entry.digest(digest)
            rows.append((*entry, digest))
        at = 0
        while at < len(rows):
            size = next(size for size in AT_ONCE if size <= len(rows) - at)
            values = [value for row in rows[at : at + size] for value in row]
            connection.execute(f"INSERT INTO log ({COLUMNS}) VALUES {', '.join([ROW] * size)}", values)
            at += size
        return state._replace(head=self._added[-1].id, digest=digest)

    def _forget_added(self) -> None:
        self._added, self._added_by = [], {}
        self._paid.clear()

    def _drop(self, connection: sqlite3.Connection, state: State, most: int) -> State:
        """Delete the oldest rows of which nothing lives any more."""
        assert self._index is not None
        until = time.time() - 86400 * self.horizon.days if self.horizon.days else -1
        last = None
        if self._oldest is None or self._oldest[0] < until or self._oldest[1] <= self._index.first:
            self._oldest = None
            for row in connection.execute("SELECT at, next, id, digest FROM log ORDER BY id LIMIT ?", (most,)):
                if row[0] >= until and row[1] > self._index.first:
                    self._oldest = row[:2]
                    break
                last = row
        if last is None:
            return state
        _, next_record, row_id, digest = last
        self._index.end(next_record)
        connection.execute("DELETE FROM log WHERE id <= ?", (row_id,))
        return state._replace(base=row_id, base_digest=digest)

    def bind(self, facts: dict[str, str]) -> dict[str, str]:
        """Facts that are not there yet are written; all that are there now."""
        assert self._connection is not None
        self._connection.executemany("INSERT OR IGNORE INTO facts (name, value) VALUES (?, ?)", list(facts.items()))
        return dict(self._connection.execute("SELECT name, value FROM facts").fetchall())

    def heartbeat(self) -> None:
        """Write something, to know that calls can be written: as much as the largest one that failed would take."""
        assert self._connection is not None
        self._pulse = max(1, self._failed)
        self._connection.execute("UPDATE state SET pulse = zeroblob(?)", (self._pulse,))

    def check(self) -> None:
        """Read a part of the log again, as others would find it on the disk, and all of it in the course of time.

        Raises:
            LedgerUnavailable: It is not what was written; nor will anything else be answered.
        """
        if self._connection is None or time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK_EVERY
        with self._closing_on_error():
            self._opened()
            with contextlib.closing(connect(self.path, "ro", self.patience)) as fresh:
                fresh.execute("BEGIN")
                state = State.read(fresh)
                if state.forgotten != self._state.forgotten:
                    self._checked = 0, BASE
                    return
                try:
                    self._check_part(fresh, state)
                except LedgerUnavailable as error:
                    self._damage = error.reason
                    raise

    def _check_part(self, fresh: sqlite3.Connection, state: State) -> None:
        if state[:2] != self._state[:2]:
            raise LedgerUnavailable(LOST)
        if self._checked[0] < state.base:
            self._checked = state.base, state.base_digest
        (row, last), (size, rows) = self._checked, CHECKED
        for entry, digest in linked(fresh.execute(ROWS_AFTER, (row,)), last):
            last, size, rows = digest, size - len(entry.body), rows - 1
            if size < 0 or rows == 0:
                self._checked = entry.id, last
                return
        if last != state.digest:
            raise LedgerUnavailable(ALTERED)
        self._checked = 0, BASE  # from the beginning

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()  # rolls back what is open

    def _opened(self) -> sqlite3.Connection:
        """The connection; where there is none, a new one, and all that the index does not know yet is read."""
        if self._damage:
            raise LedgerUnavailable(self._damage)
        # a ledger that was moved away or replaced would take charges that nobody finds again
        if self._identity is not None and self._identity != identity(self.path):
            raise LedgerUnavailable("its file was moved or replaced")
        self._rescue_log()
        if self._connection is not None:
            return self._connection
        connection = self._connection = open_to_write(self.path, self.patience, self._create)
        self._create = False  # a ledger that vanishes later is trouble, not a new start
        self._load(connection)
        self._identity = self._identity or identity(self.path)
        self._beside, self._wal_size = [identity(path) for path in self._paths_beside()], 0
        return connection

    def _load(self, connection: sqlite3.Connection) -> None:
        """Read the log, as far as it is not in the index yet."""
        state = State.read(connection)
        index, known = self._index, self._state[:2]
        self._oldest = None
        if index is None or state.forgotten != self._state.forgotten:
            self._index = None  # before there is another: each is large
            index, known = Index(self.horizon.records), (state.base, state.base_digest)
            for model, client, spent in connection.execute("SELECT model, client, spent FROM clients"):
                index.spend(model, client, spent)
        self.is_loading = True
        try:
            index.warm_up()
            index.end(state.first, state.next)
            entries, size, last = [], 0, known[1]
            for entry, digest in linked(connection.execute(ROWS_AFTER, known[:1]), last):
                last = digest
                entries.append(entry)
                size += PAGE // 4 + len(entry.body)
                if size >= READ:
                    index.restore(entries)
                    entries, size = [], 0
            index.restore(entries)
            if last != state.digest or state.head < known[0]:
                raise LedgerUnavailable(ALTERED if self._index is None else LOST)
            index.end(state.first, state.next)
            index.keep()
        finally:
            self.is_loading = False
        self._index, self._state = index, state

    def _paths_beside(self) -> tuple[str, str]:
        return f"{self.path}-wal", f"{self.path}-shm"

    def _rescue_log(self) -> None:
        """Where SQLite's log was deleted while we write to it: copy what is in it into the file, and close both.

        Nobody else can open it any more, so that whatever is only there would end with this process.
        """
        if self._connection is None:
            return
        with contextlib.suppress(OSError):
            size = os.stat(self._paths_beside()[0]).st_size
            if size >= self._wal_size and self._beside == [identity(path) for path in self._paths_beside()]:
                self._wal_size = size
                return
        self._is_stranded = True
        busy, pages, copied = self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
        if busy or pages != copied:
            raise LedgerUnavailable("its write-ahead log was deleted, and cannot be copied into the file yet")
        self._is_stranded = False
        self.close()
