"""The embedded ledger's file: one SQLite database, and what one charge does in it.

- `records` holds a counter for every record. Spending only ever grows.
- `journal` has one entry for every charge that granted something, with a checksum; nothing but `forget` alters it.
  The counters are its sums, which is what `verify` checks.
- `requests` keeps the answers to requests that carry an idempotency key and were granted something.
- `marks` tells which record a question belongs to, `clients` what each client has spent, under a hash of its name.
- `facts` are written once: which secret belongs here, and in which unit each model is counted.
- `replies` has what each worker was told last: one whose reply was lost with the writer's owner asks again.

A refusal writes nothing. Times are there to be read by people; nothing is decided by them.
"""

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

from scoreveil.ledger import wire
from scoreveil.ledger.charges import Charge, Grant, entry_digest
from scoreveil.ledger.errors import IdempotencyConflict, LedgerUnavailable
from scoreveil.ledger.releases import Found, Known, Questions, client_hash, settle, unit_fact

T = TypeVar("T", int, bytes)
APPLICATION = 0x53636F76  # "Scov"
VERSION = 2
CACHE = 64 << 10  # KiB of pages kept in memory
PAGE = 4096  # bytes: what a changed row may take in the log, since keys are random
CHECKPOINT = 16384  # pages: keys are random, so the same pages come again before they need to be copied back

SCHEMA = """
CREATE TABLE records (
    model TEXT NOT NULL,
    key BLOB NOT NULL,
    releases INTEGER NOT NULL,
    spent INTEGER NOT NULL,
    room INTEGER NOT NULL,  -- releases that were still possible after the last one
    PRIMARY KEY (model, key)
) WITHOUT ROWID;
CREATE TABLE journal (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    model TEXT NOT NULL,
    client TEXT NOT NULL,
    units INTEGER NOT NULL,
    most INTEGER NOT NULL,
    keys BLOB NOT NULL,  -- sorted, each as often as it was granted
    digest BLOB NOT NULL
);
CREATE TABLE requests (
    request BLOB PRIMARY KEY,
    at INTEGER NOT NULL,
    model TEXT NOT NULL,
    client TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    grants BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE forgotten (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    what TEXT NOT NULL
);
CREATE TABLE pulse (beats INTEGER NOT NULL);
INSERT INTO pulse VALUES (0);
"""
# what format 2 has beyond format 1
SINCE_1 = """
ALTER TABLE records ADD COLUMN settings BLOB NOT NULL DEFAULT x'';  -- that the last outcome was drawn with
ALTER TABLE records ADD COLUMN outcome BLOB NOT NULL DEFAULT x'';  -- as it was released
CREATE TABLE marks (mark INTEGER PRIMARY KEY, key BLOB NOT NULL, born INTEGER NOT NULL);
CREATE TABLE clients (
    model TEXT NOT NULL,
    client BLOB NOT NULL,
    spent INTEGER NOT NULL,
    PRIMARY KEY (model, client)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
# not part of the format: what is in it counts for seconds, and whoever does not know it does without
REPLIES = "CREATE TABLE IF NOT EXISTS replies (worker INTEGER PRIMARY KEY, at INTEGER NOT NULL, replies BLOB NOT NULL)"
KEPT = 60  # seconds that replies are kept: longer than anyone asks for them again

# statements of few sizes only, so that SQLite compiles each once
TOGETHER = 128
AT_ONCE = (256, 64, 8, 1)  # rows written by one statement
COUNTER = "SELECT key, releases, spent FROM records WHERE model = ? AND key = ?"
COUNTERS = f"SELECT key, releases, spent FROM records WHERE model = ? AND key IN ({', '.join('?' * TOGETHER)})"
COUNT = """
INSERT INTO records (model, key, releases, spent, room) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (model, key) DO UPDATE SET releases = excluded.releases, spent = excluded.spent, room = excluded.room
"""
KNOWN = "r.key, r.releases, r.spent, r.settings, r.outcome"
OF_MARKS = f"""
SELECT m.mark, m.born, {KNOWN} FROM marks AS m JOIN records AS r ON r.model = ? AND r.key = m.key WHERE m.mark IN (%s)
"""
OF_8_MARKS, OF_MANY_MARKS = (OF_MARKS % ", ".join("?" * n) for n in (8, TOGETHER))
OF_KEYS = f"SELECT {KNOWN} FROM records AS r WHERE r.model = ? AND r.key IN (%s)"
OF_1_KEY, OF_MANY_KEYS = (OF_KEYS % ", ".join("?" * n) for n in (1, TOGETHER))
RECORD = """
INSERT INTO records (model, key, releases, spent, room, settings, outcome) VALUES %s
ON CONFLICT (model, key) DO UPDATE SET
    releases = excluded.releases, spent = excluded.spent, room = excluded.room,
    settings = excluded.settings, outcome = excluded.outcome
"""
MARKED = "INSERT INTO marks (mark, key, born) VALUES %s"
SPENT = "SELECT spent FROM clients WHERE model = ? AND client = ?"
PAY = """
INSERT INTO clients (model, client, spent) VALUES %s
ON CONFLICT (model, client) DO UPDATE SET spent = clients.spent + excluded.spent
"""
ENTRY = "INSERT INTO journal (at, model, client, units, most, keys, digest) VALUES %s"
ANSWERED = "SELECT fingerprint, grants FROM requests WHERE request = ?"
ANSWER = "INSERT INTO requests (request, at, model, client, fingerprint, grants) VALUES (?, ?, ?, ?, ?, ?)"
TOLD = "SELECT replies FROM replies WHERE worker = ?"
TELL = "INSERT OR REPLACE INTO replies (worker, at, replies) VALUES (?, ?, ?)"


@dataclass(slots=True)
class Draft:
    """What some calls found of one model, as each leaves it to the next, and what is to be written for all of them."""

    marked: dict[int, Known]
    records: dict[bytes, Known]
    changed: dict[bytes, tuple[int, int, int, bytes, bytes]] = field(default_factory=dict)
    begun: list[tuple[int, bytes, int]] = field(default_factory=list)
    entries: list[tuple[int, str, str, int, int, bytes, bytes]] = field(default_factory=list)
    spent: dict[bytes, int] = field(default_factory=dict)  # by each client, before
    paid: dict[bytes, int] = field(default_factory=dict)  # by each client, now

    def found(self, asked: Questions) -> Found:
        """What one of the calls needs of it."""
        by_mark = {mark: self.marked[mark] for mark in asked.all_marks() if mark in self.marked}
        keys = {*asked.split(), *(known.key for known in by_mark.values())}
        return Found(by_mark, [self.records[key] for key in keys if key in self.records])


class LedgerFile:
    """The file, open for writing by one thread: `with file.transaction(): file.charge(…)`."""

    def __init__(self, path: Path, patience: float, create: bool) -> None:
        self.path, self.patience = path, patience
        self._create = create
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None  # of the file that was opened first
        self._changes = self._tried = 0  # rows changed before this transaction; bytes that it writes to try the disk
        self._failed = 0  # bytes that the largest transaction which failed may have needed
        self._born = 0  # the age of the next record; 0: not known

    def __enter__(self) -> None:
        """Begin a transaction; the file is opened first where an earlier trouble closed it."""
        try:
            # a ledger that was moved away or replaced would take charges that nobody finds again
            if self._identity is not None and self._identity != identity(self.path):
                raise LedgerUnavailable("its file was moved or replaced")
            self._tried = 0
            if self._connection is None:
                self._connection = self._open()
            self._connection.execute("BEGIN IMMEDIATE")
            self._changes = self._connection.total_changes
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Commit: on disk when this returns. After any error nothing is taken over, and the file is opened anew."""
        assert self._connection is not None
        size = max(self._tried, PAGE * (self._connection.total_changes - self._changes))
        try:
            if error is None:
                self._connection.execute("COMMIT")
        except BaseException:
            self._failed = max(self._failed, size)
            self.close()
            raise
        if error is not None:
            self._failed = max(self._failed, size)
            self.close()
        elif size >= self._failed:
            self._failed = 0

    def charge(self, charge: Charge) -> bytes:
        """Grant row by row, within the transaction. The grants, as `wire` writes them."""
        assert self._connection is not None
        if charge.request is not None:
            found = self._connection.execute(ANSWERED, (charge.request,)).fetchall()
            if found:
                (fingerprint, stored) = found[0]
                if fingerprint != charge.fingerprint():
                    raise IdempotencyConflict
                return bytes(stored)
        grants = self._release(charge)
        granted = sorted(grant.key for grant in grants if grant.granted)
        model, client, units, limit = charge.model, charge.client, charge.units, charge.limit
        now = int(time.time())
        if granted:
            keys = b"".join(granted)
            digest = entry_digest(model, client, units, limit, keys)
            self._insert(ENTRY, [(now, model, client, units, limit, keys, digest)])
        body = wire.grants_body(grants, limit)
        if charge.request is not None and granted:
            answer = charge.request, now, model, client, charge.fingerprint(), body
            self._connection.execute(ANSWER, answer)
        return body

    def _release(self, charge: Charge) -> list[Grant]:
        """Read the counters, grant, write them back: nobody else writes before this transaction's end."""
        assert self._connection is not None
        keys, limit, units = charge.split(), charge.limit, charge.units
        counters = self._counters(charge.model, sorted(set(keys)))
        changed = set()
        grants = []
        for key in keys:
            number, spent = counters.get(key, (0, 0))
            granted = spent + units <= limit
            if granted:
                number, spent = counters[key] = number + 1, spent + units
                changed.add(key)
            grants.append(Grant(key, number, granted, spent, limit))
        rows = [(charge.model, key, *counters[key], (limit - counters[key][1]) // units) for key in sorted(changed)]
        self._connection.executemany(COUNT, rows)
        return grants

    def answer(self, calls: Sequence[Questions]) -> list[bytes | None]:
        """Answer questions by neighbourhood, one call after the other, within the transaction.

        What they need is read for all of them at once, and what comes out is written at once: many small calls cost
        little more than one large one.

        Returns:
            The answers to each call, as `wire` writes them. None: its request came before with something else.
        """
        drafts = {model: self._draft(model, calls) for model in {asked.model for asked in calls}}
        replies = [self._answer_one(asked, drafts[asked.model]) for asked in calls]
        for model, draft in drafts.items():
            self._write(model, draft)
        return replies

    def _answer_one(self, asked: Questions, draft: Draft) -> bytes | None:
        assert self._connection is not None
        execute = self._connection.execute
        if asked.request is not None:
            for fingerprint, stored in execute(ANSWERED, (asked.request,)).fetchall():
                return bytes(stored) if fingerprint == asked.fingerprint() else None
        client = client_hash(asked.client)
        if client not in draft.spent:
            (draft.spent[client],) = execute(SPENT, (asked.model, client)).fetchone() or (0,)
            draft.paid[client] = 0
        if self._born == 0:
            (self._born,) = execute("SELECT coalesce(max(born), 0) + 1 FROM marks").fetchone()
        made = settle(asked, draft.found(asked), draft.spent[client] + draft.paid[client], self._born)
        for mark, key, born in made.begun:
            draft.marked[mark] = Known(born, key)
            self._born = born + 1
        draft.begun += made.begun
        draft.records |= made.changed
        draft.paid[client] += made.paid
        for key, known in made.changed.items():
            draft.changed[key] = known.number, known.spent, asked.room(known.spent), known.settings, known.outcome
        now = int(time.time())
        if made.changed:
            keys = b"".join(sorted(made.changed))
            digest = entry_digest(asked.model, asked.client, asked.units, asked.limit, keys)
            draft.entries.append((now, asked.model, asked.client, asked.units, asked.limit, keys, digest))
        body = wire.answers_body(made.answers)
        if asked.request is not None and not any(answer.refused for answer in made.answers):
            execute(ANSWER, (asked.request, now, asked.model, asked.client, asked.fingerprint(), body))
        return body

    def _write(self, model: str, draft: Draft) -> None:
        # in the order of the tables, whose pages are then met once each
        self._insert(MARKED, sorted(draft.begun))
        self._insert(RECORD, [(model, key, *row) for key, row in sorted(draft.changed.items())])
        self._insert(ENTRY, draft.entries)
        self._insert(PAY, [(model, client, paid) for client, paid in draft.paid.items() if paid])

    def _insert(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Many rows by few statements: after each, another thread of this process may keep us waiting."""
        assert self._connection is not None
        at = 0
        while at < len(rows):
            size = next(size for size in AT_ONCE if size <= len(rows) - at)
            some = rows[at : at + size]
            row = f"({', '.join('?' * len(some[0]))})"
            self._connection.execute(statement % ", ".join([row] * size), [value for each in some for value in each])
            at += size

    def _draft(self, model: str, calls: Iterable[Questions]) -> Draft:
        assert self._connection is not None
        execute = self._connection.execute
        mine = [asked for asked in calls if asked.model == model]
        marked: dict[int, Known] = {}
        for statement, marks in _together({mark for a in mine for mark in a.all_marks()}, 8, OF_8_MARKS, OF_MANY_MARKS):
            for mark, *known in execute(statement, (model, *marks)):
                marked[mark] = Known(*known)
        records = {known.key: known for known in marked.values()}
        for statement, keys in _together(
            {key for a in mine for key in a.split()} - set(records), 1, OF_1_KEY, OF_MANY_KEYS
        ):
            for known in execute(statement, (model, *keys)):
                records[known[0]] = Known(0, *known)
        return Draft(marked, records)

    def told(self, worker: int) -> bytes:
        """What a worker was told last, as `tell` was given it."""
        assert self._connection is not None
        (replies,) = self._connection.execute(TOLD, (worker,)).fetchone() or (b"",)
        return bytes(replies)

    def tell(self, replies: Iterable[tuple[int, bytes]]) -> None:
        """Keep what each worker is about to be told, if there is anything new in this transaction."""
        assert self._connection is not None
        if self._connection.total_changes != self._changes:
            now = int(time.time())
            self._connection.executemany(TELL, [(worker, now, told) for worker, told in replies])

    def bind(self, facts: dict[str, str]) -> dict[str, str]:
        """Facts that are not there yet are written; all that are there now."""
        assert self._connection is not None
        self._connection.executemany("INSERT OR IGNORE INTO facts (name, value) VALUES (?, ?)", list(facts.items()))
        return dict(self._connection.execute("SELECT name, value FROM facts").fetchall())

    def convert(self, model: str, unit: str, price: int) -> str:
        """Releases become units, once for each model, and the books show it."""
        assert self._connection is not None
        execute = self._connection.execute
        name = unit_fact(model)
        for (value,) in execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchall():
            return str(value)
        execute("INSERT INTO facts (name, value) VALUES (?, ?)", (name, unit))
        entries = execute("SELECT id, client, units, most, keys FROM journal WHERE model = ?", (model,)).fetchall()
        converted = [
            (units * price, most * price, entry_digest(model, client, units * price, most * price, keys), entry)
            for entry, client, units, most, keys in entries
        ]
        self._connection.executemany("UPDATE journal SET units = ?, most = ?, digest = ? WHERE id = ?", converted)
        execute("UPDATE records SET spent = spent * ? WHERE model = ?", (price, model))
        if converted:
            execute("INSERT INTO forgotten (at, what) VALUES (?, ?)", (int(time.time()), "releases became units"))
        return unit

    def _counters(self, model: str, keys: list[bytes]) -> dict[bytes, tuple[int, int]]:
        assert self._connection is not None
        rows: list[tuple[bytes, int, int]] = []
        for start in range(0, len(keys), TOGETHER):
            some = keys[start : start + TOGETHER]
            if len(some) < TOGETHER // 8:
                for key in some:
                    rows += self._connection.execute(COUNTER, (model, key)).fetchall()
            else:
                some += some[-1:] * (TOGETHER - len(some))  # which changes nothing
                rows += self._connection.execute(COUNTERS, (model, *some)).fetchall()
        return {key: (releases, spent) for key, releases, spent in rows}

    def beat(self) -> bytes:
        """Write something, to know that charges can be written: as much as the largest one that failed would take."""
        assert self._connection is not None
        self._tried = self._failed
        self._connection.execute(
            "UPDATE pulse SET beats = " + ("zeroblob(?)" if self._failed else "beats + ?"), (self._failed or 1,)
        )
        return b""

    def close(self) -> None:
        connection, self._connection, self._born = self._connection, None, 0
        if connection is not None:
            connection.close()  # rolls back what is open

    def _open(self) -> sqlite3.Connection:
        if self._create:
            create(self.path)
        connection = connect(self.path, "rw", self.patience)
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise LedgerUnavailable("its file system cannot keep a write-ahead log")
            for pragma in (
                "synchronous = FULL",
                "fullfsync = ON",  # where fsync alone does not reach the disk
                "checkpoint_fullfsync = ON",
                f"cache_size = {-CACHE}",
                f"wal_autocheckpoint = {CHECKPOINT}",
            ):
                connection.execute(f"PRAGMA {pragma}")
            if not is_ledger(connection):
                if not self._create:
                    raise LedgerUnavailable("its file is empty")
                write_schema(connection)
            upgrade(connection)
            connection.execute("DELETE FROM replies WHERE at < ?", (int(time.time()) - KEPT,))
            self._create = False  # a ledger that vanishes later is trouble, not a new start
            self._identity = self._identity or identity(self.path)
        except BaseException:
            connection.close()
            raise
        return connection


def create(path: Path) -> None:
    """The empty file, readable by its owner alone; SQLite gives its log the same permissions."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # or a power cut could take the file with all that is in it
    finally:
        os.close(folder)


def connect(path: Path, mode: str, patience: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,  # one thread at a time all the same
    )


def is_ledger(connection: sqlite3.Connection) -> bool:
    """Whether the file is a ledger of this version or an earlier one; False where it is still empty."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == APPLICATION and 1 <= version <= VERSION:
        return True
    if application == APPLICATION:
        raise LedgerUnavailable(f"its file has format {version}, and this is a program for format {VERSION}")
    if application or tables:
        raise LedgerUnavailable("its file is another program's database")
    return False


def write_schema(connection: sqlite3.Connection) -> None:
    header = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = 1;"
    connection.executescript(f"BEGIN IMMEDIATE; {header} {SCHEMA} COMMIT;")


def upgrade(connection: sqlite3.Connection) -> None:
    """Bring a ledger of an earlier format to this one; all that it holds stays."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version < VERSION:
        connection.executescript(f"BEGIN IMMEDIATE; PRAGMA user_version = {VERSION}; {SINCE_1} COMMIT;")
    connection.execute(REPLIES)


def _together(values: set[T], few: int, of_few: str, of_many: str) -> Iterator[tuple[str, list[T]]]:
    """Statements that ask for all the values, and what each is given: one for a few at a time, or for many."""
    left = sorted(values)
    while left:
        size, statement = (few, of_few) if len(left) <= few else (TOGETHER, of_many)
        some, left = left[:size], left[size:]
        yield statement, some + some[-1:] * (size - len(some))  # which changes nothing


def identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def reason(error: BaseException) -> str:
    """What went wrong, in fixed words: SQLite's own may quote what is stored."""
    if isinstance(error, LedgerUnavailable):
        return error.reason
    if isinstance(error, FileNotFoundError):
        return "its file is not there"
    if isinstance(error, PermissionError):
        return "its file may not be opened"
    name = getattr(error, "sqlite_errorname", "")
    for start, words in REASONS.items():
        if name.startswith(start):
            return words
    return "its storage failed"


REASONS = {
    "SQLITE_FULL": "its disk is full",
    "SQLITE_BUSY": "its file is locked by another program",
    "SQLITE_LOCKED": "its file is locked by another program",
    "SQLITE_CORRUPT": "its file is damaged",
    "SQLITE_NOTADB": "its file is damaged",
    "SQLITE_CANTOPEN": "its file may not be opened",
    "SQLITE_READONLY": "its file may not be written",
}
