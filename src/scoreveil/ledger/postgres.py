"""The ledger for many machines: PostgreSQL, one statement to find what a call needs, one to write what it came to.

The rule is the same compiled pass as in the embedded ledger, over a small index of the records that were found. They
are locked in the order of their numbers, and what a client has spent last, so that calls wait for each other and never
in a circle. Where another call was faster to begin a record, they look again. Why this loses no charge and makes none
twice: docs/derivations/ledger-postgres.md.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple

import asyncpg
import numpy as np
from numpy.typing import NDArray

from scoreveil.ledger.books import Books
from scoreveil.ledger.errors import LedgerUnavailable
from scoreveil.ledger.index import Index, client_hash, hashed
from scoreveil.ledger.ledger import Horizon, Ledger
from scoreveil.ledger.log import BASE, BEGUN, COLUMNS, SAME, Body, Entry, link
from scoreveil.ledger.releases import ReleaseRequest, ReleaseResult

Connection = Any  # asyncpg's; it has no types

VERSION = 3
LOCK = 0x53636F7665696C  # the advisory lock under which tables are made: "Scoveil"
CONNECTIONS = 8  # of one worker
TRIES = 5  # of a transaction that the server gave up for another's sake, or that was too late
ENDING_EVERY = 1.0  # seconds
ENDING_TAKES = 0.2  # seconds, at most
TOGETHER = 2000  # rows that are deleted together

SCHEMA = f"""
CREATE TABLE scoreveil_log (
    id bigint PRIMARY KEY,
    at bigint NOT NULL,
    model text NOT NULL,
    client text NOT NULL,
    settings bytea NOT NULL,
    units bigint NOT NULL,
    fresh bigint NOT NULL,
    begun bigint NOT NULL,
    next bigint NOT NULL,
    ident bigint,  -- of the embedded ledger only
    request bytea UNIQUE,
    fingerprint bytea NOT NULL,
    body bytea NOT NULL,
    digest bytea NOT NULL
);
CREATE TABLE scoreveil_records (
    id bigint PRIMARY KEY,
    at bigint NOT NULL,
    model text NOT NULL,
    settings bytea NOT NULL,  -- of the last answer
    answers bigint NOT NULL,  -- under these settings
    spent bigint NOT NULL,
    outcome bytea NOT NULL,
    marks bytea NOT NULL
) WITH (fillfactor = 80);
CREATE TABLE scoreveil_marks (mark bigint PRIMARY KEY, record bigint NOT NULL);
CREATE TABLE scoreveil_clients (
    model text NOT NULL,
    client bytea NOT NULL,
    name text NOT NULL,  -- empty once it is forgotten
    spent bigint NOT NULL,
    PRIMARY KEY (model, client)
) WITH (fillfactor = 50);
CREATE TABLE scoreveil_facts (name text PRIMARY KEY, value text NOT NULL);
CREATE TABLE scoreveil_state (version integer, forgotten bigint, base bigint, base_digest bytea);
INSERT INTO scoreveil_state VALUES ({VERSION}, 0, 0, '\\x{BASE.hex()}');
CREATE SEQUENCE scoreveil_call;
CREATE SEQUENCE scoreveil_record;
"""
FIND = """
SELECT r.id, r.settings, r.answers, r.spent, r.outcome, hits.marks
FROM (
    SELECT record, array_agg(mark) AS marks FROM scoreveil_marks WHERE mark = ANY($1::bigint[]) GROUP BY record
) AS hits
JOIN scoreveil_records AS r ON r.id = hits.record ORDER BY r.id
"""
HOLD = f"{FIND} FOR UPDATE OF r"
NUMBERS = """
SELECT nextval('scoreveil_call'), extract(epoch FROM now())::bigint,
    array(SELECT nextval('scoreveil_record') FROM generate_series(1, $1))
"""
WRITE = f"""
WITH changed AS (
    INSERT INTO scoreveil_records (id, answers, spent, outcome, marks, settings, model, at)
    SELECT *, $6, $7, $8 FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bytea[]) ORDER BY 1
    ON CONFLICT (id) DO UPDATE SET
        answers = excluded.answers, spent = excluded.spent, outcome = excluded.outcome, settings = excluded.settings
), marked AS (
    INSERT INTO scoreveil_marks SELECT * FROM unnest($9::bigint[], $10::bigint[]) ORDER BY 1
)
INSERT INTO scoreveil_log ({COLUMNS}) VALUES ({", ".join(f"${n}" for n in range(11, 25))})
"""
EARLIER = f"SELECT {COLUMNS} FROM scoreveil_log WHERE request = $1"
SPENT = "SELECT coalesce((SELECT spent FROM scoreveil_clients WHERE model = $1 AND client = $2), 0)"
# last in its transaction: everyone else with this client's name waits for it
PAY = """
INSERT INTO scoreveil_clients AS c (model, client, name, spent) VALUES ($1, $2, $3, $4)
ON CONFLICT (model, client) DO UPDATE SET name = excluded.name, spent = c.spent + excluded.spent
WHERE $5::bigint = 0 OR c.spent + excluded.spent <= $5 RETURNING true
"""
ENDED = """
SELECT id, marks FROM scoreveil_records
WHERE id IN (SELECT id FROM scoreveil_records ORDER BY id LIMIT $1)
    AND (id <= (SELECT last_value FROM scoreveil_record) - $2 OR at < extract(epoch FROM now()) - $3)
ORDER BY id FOR UPDATE SKIP LOCKED
"""
WRITABLE = "SELECT current_setting('transaction_read_only') = 'off' AND to_regclass('scoreveil_records') IS NOT NULL"


class _Overtaken(LedgerUnavailable):
    """Another call was faster to spend the last that the client had left: look again."""

    def __init__(self) -> None:
        super().__init__("too many ask the same at once")


# the server has undone the transaction; a mark that is there already was begun by another call meanwhile
UNDONE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.UniqueViolationError, _Overtaken)


class PostgresLedger(Ledger):
    def __init__(self, url: str, horizon: Horizon, timeout: float) -> None:
        self._url, self._horizon, self._timeout = url, horizon, timeout
        self._pool: Any = None
        self._next_ending = 0.0

    async def open(self) -> None:
        with unavailable():
            first = await connect(self._url, self._timeout)
            try:
                commits = await first.fetchval("SHOW synchronous_commit")
                await make_tables(first)
            finally:
                await first.close(timeout=self._timeout)
            self._pool = await asyncpg.create_pool(
                self._url,
                min_size=0,  # else it logs tracebacks while the server is down
                max_size=CONNECTIONS,
                timeout=self._timeout,
                command_timeout=self._timeout,
                max_inactive_connection_lifetime=60,
                reset=_nothing_to_reset,
                server_settings={
                    "application_name": "scoreveil",
                    # on disk when a commit returns, whatever the server's default; its one stronger setting stays
                    "synchronous_commit": "remote_apply" if commits == "remote_apply" else "on",
                    "statement_timeout": str(int(self._timeout * 500)),  # ms: the server gives up before we do
                    "idle_in_transaction_session_timeout": str(int(self._timeout * 1000)),
                    # a call looks up few keys: a plan of when the tables were small must not read them whole later
                    "enable_seqscan": "off",
                    "enable_hashjoin": "off",
                    "enable_mergejoin": "off",
                },
            )
        await asyncio.to_thread(Index.warm_up)

    async def answer(self, questions: ReleaseRequest) -> ReleaseResult:
        async with self._connection() as connection:
            for left in reversed(range(TRIES)):
                try:
                    return await _answer(connection, questions)
                except UNDONE:
                    if not left:
                        raise _Overtaken from None
        raise AssertionError("the last try returns or raises")

    async def bind(self, facts: Mapping[str, str]) -> dict[str, str]:
        async with self._connection() as connection:
            names = sorted(facts)
            await connection.execute(
                "INSERT INTO scoreveil_facts SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING",
                names,
                [facts[name] for name in names],
            )
            return dict(await connection.fetch("SELECT name, value FROM scoreveil_facts"))

    async def ready(self) -> bool:
        try:
            async with self._connection() as connection:
                is_writable = await connection.fetchval(WRITABLE)
                started = time.monotonic()
                if is_writable and started >= self._next_ending:
                    self._next_ending = started + ENDING_EVERY
                    while await end_some(connection, self._horizon) and time.monotonic() < started + ENDING_TAKES:
                        pass
            return bool(is_writable)
        except LedgerUnavailable:
            return False

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), self._timeout)
            except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                pool.terminate()

    @property
    def books(self) -> Books:
        from scoreveil.ledger.postgres_books import PostgresBooks

        return PostgresBooks(self._url, self._timeout)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        if self._pool is None:
            raise LedgerUnavailable("it was closed")
        with unavailable():
            async with self._pool.acquire(timeout=self._timeout) as connection:
                yield connection


async def _nothing_to_reset(connection: Connection) -> None:
    """Calls leave no state in a session; asking the server to clear it would cost each a round trip."""


async def connect(url: str, timeout: float) -> Connection:
    try:
        return await asyncpg.connect(url, timeout=timeout)
    except ValueError:  # which quotes parts of the address
        raise ValueError("The ledger's address is not one that PostgreSQL's clients can read.") from None


class _Known(NamedTuple):
    """The records of a call, by age, and the rule's index, which knows them as 1, 2, …"""

    numbers: list[int]
    rule: Index


async def _answer(connection: Connection, questions: ReleaseRequest) -> ReleaseResult:
    """What was answered before is read, in one statement; what is new takes a transaction."""
    hashes, known = hashed(questions.model, questions.marks), None
    if questions.request is None and not questions.price:
        known = await _find(connection, FIND, questions, hashes)
        body = known.rule.answer(questions, hashes)
        if isinstance(body, str):
            return ReleaseResult(body, b"", 0)
        if not body.fresh:
            return ReleaseResult("", body.outcomes, 0)
        known.rule.undo()
    async with connection.transaction():
        if questions.request is not None:
            # waits for whoever is about to answer the same
            await connection.execute("SELECT pg_advisory_xact_lock($1)", int.from_bytes(questions.request[:7].rjust(7)))
            if (row := await connection.fetchrow(EARLIER, questions.request)) is not None:
                return Entry._make(tuple(row)[:-1]).answers(questions)
        if known is None or known.numbers:
            known = await _find(connection, HOLD, questions, hashes)
        payer = questions.model, client_hash(questions.client)
        if questions.client_limit:
            known.rule.spend(*payer, await connection.fetchval(SPENT, *payer))
        body = known.rule.answer(questions, hashes)
        if isinstance(body, str):
            return ReleaseResult(body, b"", 0)
        if body.fresh or (questions.price and questions.request is not None):
            await _write(connection, questions, known, body)
        if questions.price:
            payment = questions.client, questions.price, questions.client_limit
            if not await connection.fetchval(PAY, *payer, *payment):
                raise _Overtaken
    return ReleaseResult("", body.outcomes, body.fresh)


async def _find(
    connection: Connection, statement: str, questions: ReleaseRequest, hashes: NDArray[np.uint32]
) -> _Known:
    rows = await connection.fetch(statement, np.unique(hashes.view(np.int64)).tolist())
    index = Index(len(rows) + len(questions), questions.marks.shape[1])
    if not rows:
        return _Known([], index)
    numbers, settings, answers, spent, outcomes, marks = zip(*rows, strict=True)
    index.load(settings, answers, spent, outcomes, marks)
    return _Known(list(numbers), index)


async def _write(connection: Connection, questions: ReleaseRequest, known: _Known, body: Body) -> None:
    call, at, begun = await connection.fetchrow(NUMBERS, len(body.begun))
    numbers = np.array([0, *known.numbers, *begun])[body.records]
    fresh, width = body.kinds != SAME, 4 * body.begun.shape[1]
    answers, spent = known.rule.standing(body.records[fresh])
    outcomes = np.frombuffer(body.outcomes, f"V{questions.width}")[fresh].tolist()
    marks = np.zeros(len(numbers), f"V{width}")
    marks[body.kinds == BEGUN] = np.frombuffer(body.begun.tobytes(), f"V{width}")
    new, first = np.unique(body.begun.view(np.int64), return_index=True)  # a record may have a mark twice
    records = np.array(begun, np.int64)[first // questions.marks.shape[1]]
    body = body._replace(records=numbers.astype(np.uint32))
    entry = Entry.of(questions, body, call, at, int(numbers.max()) + 1)
    await connection.execute(
        WRITE, numbers[fresh].tolist(), answers, spent, outcomes, marks[fresh].tolist(),
        questions.settings, questions.model, at, new.tolist(), records.tolist(), *entry, entry.digest(b""),
    )  # fmt: skip


async def end_some(connection: Connection, horizon: Horizon) -> int:
    """Delete some of what has ended, unless somebody else is at it; how many records that were."""
    async with connection.transaction():
        if await connection.fetchval("SELECT true FROM scoreveil_state FOR UPDATE SKIP LOCKED"):
            seconds = 86400 * horizon.days or 1 << 40
            ended = await connection.fetch(ENDED, TOGETHER, horizon.records, seconds)
            marks = np.frombuffer(b"".join(marks for _, marks in ended), np.int64)
            await connection.execute("DELETE FROM scoreveil_marks WHERE mark = ANY($1::bigint[])", marks.tolist())
            numbers = [number for number, _ in ended]
            await connection.execute("DELETE FROM scoreveil_records WHERE id = ANY($1::bigint[])", numbers)
            await drop_some(connection)
            return len(ended)
    return 0


async def drop_some(connection: Connection) -> int:
    """Delete some rows at the log's beginning of which no record lives; how many."""
    oldest = await connection.fetchval("SELECT coalesce(min(id), 1::bigint << 62) FROM scoreveil_records")
    base, digest = await connection.fetchrow("SELECT base, base_digest FROM scoreveil_state FOR UPDATE")
    count, rows = 0, "SELECT id, next, digest FROM scoreveil_log ORDER BY id LIMIT $1"
    for row in await connection.fetch(rows, TOGETHER):
        if row["next"] > oldest:
            break
        base, digest, count = row["id"], link(digest, row["digest"]), count + 1
    if count:
        await connection.execute("DELETE FROM scoreveil_log WHERE id <= $1", base)
        await connection.execute("UPDATE scoreveil_state SET base = $1, base_digest = $2", base, digest)
    return count


async def make_tables(connection: Connection) -> None:
    """Idempotent, also where many workers start at once, and without the right to make tables once they are there."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        if await connection.fetchval("SELECT to_regclass('scoreveil_state') IS NULL"):
            await connection.execute(SCHEMA)
        version = await connection.fetchval("SELECT version FROM scoreveil_state")
    if version != VERSION:
        raise LedgerUnavailable(f"its tables have format {version}, and this is a program for format {VERSION}")


# the second where the server dies between two steps of a call
CLIENT_ERRORS = (asyncpg.InterfaceError, asyncpg.InternalClientError)
REASONS: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((TimeoutError, asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError), "no answer in time"),
    ((asyncpg.DiskFullError, asyncpg.OutOfMemoryError), "the server's disk or memory is full"),
    ((asyncpg.ReadOnlySQLTransactionError,), "the server takes no writes"),
    (
        (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InsufficientPrivilegeError),
        "the server does not let us in",
    ),
    ((asyncpg.PostgresConnectionError, *CLIENT_ERRORS, OSError), "its server is not reachable"),
    ((asyncpg.CannotConnectNowError, asyncpg.AdminShutdownError), "its server is not reachable"),
    ((asyncpg.PostgresError,), "its server failed"),
)


@contextlib.contextmanager
def unavailable() -> Iterator[None]:
    """Trouble with the server, in fixed words: its own quote addresses and values."""
    try:
        yield
    except (asyncpg.PostgresError, *CLIENT_ERRORS, OSError) as error:  # a TimeoutError is an OSError
        words = next(words for kinds, words in REASONS if isinstance(error, kinds))
        raise LedgerUnavailable(words) from None
