"""The embedded ledger's file as SQLite has it: its tables, how it is opened, and what may be wrong with it.

- `log` has a row for each call that was charged (`log.py`). Rows are added at the end, and dropped at the beginning
  once everything in them has ended. Only `forget` alters them.
- `state` has one row: how far the log goes, where it begins, and which record is the oldest that lives.
- `clients` has what clients have spent, under a hash of their names: calls that begin or charge no record have no row.
- `facts` are written once: which secret belongs here, and in which unit each model is counted.
"""

import os
import sqlite3
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from scoreveil.ledger.errors import LedgerUnavailable
from scoreveil.ledger.log import ALTERED, BASE

APPLICATION = 0x53636F76  # "Scov"
VERSION = 3
CHECKPOINT = 4096  # pages of the write-ahead log after which they are copied back

SCHEMA = f"""
CREATE TABLE log (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    model TEXT NOT NULL,
    client TEXT NOT NULL,
    settings BLOB NOT NULL,
    units INTEGER NOT NULL,
    fresh INTEGER NOT NULL,
    begun INTEGER NOT NULL,
    next INTEGER NOT NULL,
    ident INTEGER UNIQUE,
    request BLOB,
    fingerprint BLOB NOT NULL,
    body BLOB NOT NULL,
    digest BLOB NOT NULL
);
CREATE UNIQUE INDEX log_request ON log (request) WHERE request IS NOT NULL;
CREATE TABLE state (
    head INTEGER NOT NULL,
    digest BLOB NOT NULL,  -- of the row `head`
    base INTEGER NOT NULL,  -- the last row that was dropped
    base_digest BLOB NOT NULL,
    first INTEGER NOT NULL,  -- record that lives
    next INTEGER NOT NULL,  -- record
    forgotten INTEGER NOT NULL,  -- times
    pulse BLOB NOT NULL
);
INSERT INTO state VALUES (0, x'{BASE.hex()}', 0, x'{BASE.hex()}', 1, 1, 0, x'');
CREATE TABLE clients (
    model TEXT NOT NULL,
    client BLOB NOT NULL,
    name TEXT NOT NULL,  -- empty once it is forgotten
    spent INTEGER NOT NULL,
    PRIMARY KEY (model, client)
) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


class State(NamedTuple):
    head: int
    digest: bytes
    base: int
    base_digest: bytes
    first: int
    next: int
    forgotten: int

    @classmethod
    def read(cls, connection: sqlite3.Connection) -> "State":
        row = connection.execute(f"SELECT {', '.join(cls._fields)} FROM state").fetchone()
        if row is None:
            raise LedgerUnavailable(ALTERED)
        return cls(*row)

    def write(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"UPDATE state SET {', '.join(f'{name} = ?' for name in self._fields)}", self)


def connect(path: Path, mode: str, patience: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,  # one thread at a time all the same
    )


def is_ledger(connection: sqlite3.Connection) -> bool:
    """Whether the file is a ledger of this format; False where it is still empty."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application == APPLICATION and version == VERSION:
        return True
    if application == APPLICATION:
        raise LedgerUnavailable(f"its file has format {version}, and this is a program for format {VERSION}")
    if application or tables:
        raise LedgerUnavailable("its file is another program's database")
    return False


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


def open_to_write(path: Path, patience: float, may_create: bool) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return."""
    if may_create:
        create(path)
    connection = connect(path, "rw", patience)
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise LedgerUnavailable("its file system cannot keep a write-ahead log")
        for pragma in (
            "synchronous = FULL",
            "fullfsync = ON",  # where fsync alone does not reach the disk
            "checkpoint_fullfsync = ON",
            f"wal_autocheckpoint = {CHECKPOINT}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        if not is_ledger(connection):
            if not may_create:
                raise LedgerUnavailable("its file is empty")
            header = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
            connection.executescript(f"BEGIN IMMEDIATE; {header} {SCHEMA} COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def identity(path: str | Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


REASONS = {
    "SQLITE_FULL": "its disk is full",
    "SQLITE_BUSY": "its file is locked by another program",
    "SQLITE_LOCKED": "its file is locked by another program",
    "SQLITE_CORRUPT": "its file is damaged",
    "SQLITE_NOTADB": "its file is damaged",
    "SQLITE_CANTOPEN": "its file may not be opened",
    "SQLITE_READONLY": "its file may not be written",
}


def reason(error: BaseException) -> str:
    """What went wrong, in fixed words: SQLite's own may quote what is stored."""
    if isinstance(error, LedgerUnavailable):
        return error.reason
    if isinstance(error, FileNotFoundError):
        return "its file is not there"
    if isinstance(error, PermissionError):
        return "its file may not be opened"
    name = getattr(error, "sqlite_errorname", "")
    return next((words for start, words in REASONS.items() if name.startswith(start)), "its storage failed")


def is_damage(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and reason(error) == REASONS["SQLITE_CORRUPT"]
