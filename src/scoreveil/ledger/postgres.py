"""The ledger for many machines: PostgreSQL, one statement per charge.

Rows are locked in the order of their keys, so that charges that share records wait for each other and never in a
circle. A statement is a transaction; a charge with an idempotency key takes more than one, and so do questions that
begin a neighbourhood: where another was faster, they look again. Why this loses no
charge and makes none twice: docs/derivations/ledger-postgres.md.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

import asyncpg

from scoreveil.ledger import wire
from scoreveil.ledger.books import Books
from scoreveil.ledger.charges import Charge, Grant, entry_digest
from scoreveil.ledger.errors import IdempotencyConflict, LedgerUnavailable
from scoreveil.ledger.ledger import Ledger
from scoreveil.ledger.releases import (
    Answered,
    Found,
    Known,
    Questions,
    Settlement,
    client_hash,
    settle,
    unit_fact,
)

VERSION = 2
LOCK = 0x53636F7665696C  # the advisory lock under which tables are made: "Scoveil"
CONNECTIONS = 8  # of one worker
TRIES = 5  # of a statement that the server gave up for another's sake, and surely undid

# the same tables as in the embedded ledger, told there; `lately`: releases granted by the last statement
SCHEMA = """
CREATE TABLE scoreveil_records (
    model text NOT NULL,
    key bytea NOT NULL,
    releases bigint NOT NULL,
    spent bigint NOT NULL,
    room bigint NOT NULL,
    lately bigint NOT NULL,
    PRIMARY KEY (model, key)
) WITH (fillfactor = 80);
CREATE TABLE scoreveil_journal (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    model text NOT NULL,
    client text NOT NULL,
    units bigint NOT NULL,
    most bigint NOT NULL,
    keys bytea NOT NULL,
    digest bytea NOT NULL
);
CREATE TABLE scoreveil_requests (
    request bytea PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    model text NOT NULL,
    client text NOT NULL,
    fingerprint bytea NOT NULL,
    grants bytea
);
CREATE TABLE scoreveil_forgotten (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    what text NOT NULL
);
CREATE TABLE scoreveil_version (version integer NOT NULL);
INSERT INTO scoreveil_version VALUES (1);
"""
SINCE_1 = f"""
ALTER TABLE scoreveil_records ADD COLUMN settings bytea NOT NULL DEFAULT '';
ALTER TABLE scoreveil_records ADD COLUMN outcome bytea NOT NULL DEFAULT '';
CREATE TABLE scoreveil_marks (mark bigint PRIMARY KEY, key bytea NOT NULL, born bigint NOT NULL);
CREATE SEQUENCE scoreveil_born;
CREATE TABLE scoreveil_clients (
    model text NOT NULL,
    client bytea NOT NULL,
    spent bigint NOT NULL,
    PRIMARY KEY (model, client)
) WITH (fillfactor = 50);
CREATE TABLE scoreveil_facts (name text PRIMARY KEY, value text NOT NULL);
UPDATE scoreveil_version SET version = {VERSION};
"""


def _little(number: str) -> str:
    """A bigint as 8 bytes, little-endian, as `charges` writes it."""
    places = (f"set_byte('\\x00'::bytea, 0, (({number}) >> {8 * i} & 255)::int)" for i in range(8))
    return "||".join(places)


def _part(expression: str) -> str:
    return f"{_little(f'octet_length({expression})::bigint')}||{expression}"


def digest(model: str, client: str, units: str, most: str, keys: str) -> str:
    """`charges.entry_digest`, in SQL."""
    numbers = f"({_little(units)}||{_little(most)})"
    texts = (f"convert_to({text}, 'UTF8')" for text in ("'scoreveil entry 1'", model, client))
    return f"sha256({'||'.join(_part(part) for part in (*texts, numbers, keys))})"


# $1 model, $2 keys (sorted, each once), $3 how often each, $4 limit, $5 units, $6 client
GRANTED = "least(excluded.lately, ($4 - r.spent) / $5)"
CHARGE = f"""
WITH charged AS (
    INSERT INTO scoreveil_records AS r (model, key, releases, spent, room, lately)
    SELECT $1::text, key, n, n * $5::bigint, $4::bigint / $5 - n, n
    FROM (
        SELECT key, least(often, $4::bigint / $5::bigint) AS n
        FROM unnest($2::bytea[], $3::bigint[]) AS asked (key, often) ORDER BY key
    ) AS wanted
    ON CONFLICT (model, key) DO UPDATE SET
        releases = r.releases + {GRANTED},
        spent = r.spent + {GRANTED} * $5,
        room = ($4 - r.spent) / $5 - {GRANTED},
        lately = {GRANTED}
    WHERE r.spent + $5 <= $4
    RETURNING key, releases, spent, lately
), entry AS (
    SELECT string_agg(key, ''::bytea ORDER BY key) AS keys FROM charged CROSS JOIN generate_series(1, lately)
), noted AS (
    INSERT INTO scoreveil_journal (model, client, units, most, keys, digest)
    SELECT $1, $6::text, $5, $4, keys, {digest("$1", "$6", "$5", "$4", "keys")} FROM entry WHERE keys IS NOT NULL
)
SELECT key, releases, spent, lately FROM charged
"""
CONVERT_JOURNAL = f"""
UPDATE scoreveil_journal SET units = units * $1::bigint, most = most * $1::bigint,
    digest = {digest("model", "client", "units * $1::bigint", "most * $1::bigint", "keys")} WHERE model = $2
"""
CONVERT_RECORDS = "UPDATE scoreveil_records SET spent = spent * $1::bigint WHERE model = $2"
COUNTERS = "SELECT key, releases, spent, 0 FROM scoreveil_records WHERE model = $1 AND key = ANY($2::bytea[])"
ANSWERED = "SELECT fingerprint, grants FROM scoreveil_requests WHERE request = $1"
RESERVE = """
INSERT INTO scoreveil_requests (request, model, client, fingerprint) VALUES ($1, $2, $3, $4)
ON CONFLICT DO NOTHING RETURNING true
"""
ANSWER = "UPDATE scoreveil_requests SET grants = $2 WHERE request = $1"
FREE = "DELETE FROM scoreveil_requests WHERE request = $1"
KNOWN = "r.key, r.releases, r.spent, r.settings, r.outcome"
OF_MARKS = f"""
SELECT m.mark, m.born, {KNOWN} FROM scoreveil_marks AS m JOIN scoreveil_records AS r ON r.model = $1 AND r.key = m.key
WHERE m.mark = ANY($2::bigint[])
UNION ALL
SELECT NULL, 0, {KNOWN} FROM scoreveil_records AS r WHERE r.model = $1 AND r.key = ANY($3::bytea[])
"""
HOLD = "SELECT 1 FROM scoreveil_records WHERE model = $1 AND key = ANY($2::bytea[]) ORDER BY key FOR UPDATE"
MARKED = """
INSERT INTO scoreveil_marks (mark, key, born)
SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[]) AS begun (mark, key, born) ORDER BY mark
ON CONFLICT DO NOTHING
"""
RECORDED = """
INSERT INTO scoreveil_records (model, key, releases, spent, room, lately, settings, outcome)
SELECT $1, key, releases, spent, room, 1, settings, outcome
FROM unnest($2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[], $7::bytea[])
    AS changed (key, releases, spent, room, settings, outcome) ORDER BY key
ON CONFLICT (model, key) DO UPDATE SET
    releases = excluded.releases, spent = excluded.spent, room = excluded.room, lately = 1,
    settings = excluded.settings, outcome = excluded.outcome
WHERE scoreveil_records.releases = excluded.releases - 1
"""
ENTERED = "INSERT INTO scoreveil_journal (model, client, units, most, keys, digest) VALUES ($1, $2, $3, $4, $5, $6)"
SPENT = "SELECT coalesce((SELECT spent FROM scoreveil_clients WHERE model = $1 AND client = $2), 0)"
# last in its transaction: everyone else with this client's name waits for it
PAY = """
INSERT INTO scoreveil_clients AS c (model, client, spent) VALUES ($1, $2, $3)
ON CONFLICT (model, client) DO UPDATE SET spent = c.spent + excluded.spent
WHERE $4::bigint = 0 OR c.spent + excluded.spent <= $4 RETURNING true
"""
WRITABLE = "SELECT current_setting('transaction_read_only') = 'off' AND to_regclass('scoreveil_records') IS NOT NULL"

UNDONE = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)


class PostgresLedger(Ledger):
    def __init__(self, url: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout
        self._pool: Any = None

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
                min_size=1,
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
                },
            )

    async def grant(self, charge: Charge) -> list[Grant]:
        once = _charge if charge.request is None else _charge_once
        async with self._connection() as connection:
            for left in reversed(range(TRIES)):
                with contextlib.suppress(*(UNDONE if left else ())):
                    return await once(connection, charge)
        raise AssertionError("the last try returns or raises")

    async def answer(self, asked: Questions) -> list[Answered]:
        async with self._connection() as connection:
            for left in reversed(range(TRIES)):
                with contextlib.suppress(*((*UNDONE, _Overtaken) if left else ())):
                    return await _answer(connection, asked)
        raise AssertionError("the last try returns or raises")

    async def bind(self, facts: Mapping[str, str]) -> dict[str, str]:
        async with self._connection() as connection:
            names = sorted(facts)
            await connection.execute(
                "INSERT INTO scoreveil_facts SELECT * FROM unnest($1::text[], $2::text[]) ON CONFLICT DO NOTHING",
                names,
                [facts[name] for name in names],
            )
            found = await connection.fetch("SELECT name, value FROM scoreveil_facts")
        return dict(tuple(row) for row in found)

    async def convert(self, model: str, unit: str, price: int) -> str:
        name = unit_fact(model)
        async with self._connection() as connection, connection.transaction():
            new = "INSERT INTO scoreveil_facts VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING true"
            if await connection.fetchval(new, name, unit):
                await connection.execute("LOCK TABLE scoreveil_records, scoreveil_journal IN SHARE ROW EXCLUSIVE MODE")
                altered = await connection.execute(CONVERT_JOURNAL, price, model)
                await connection.execute(CONVERT_RECORDS, price, model)
                if altered != "UPDATE 0":
                    await connection.execute("INSERT INTO scoreveil_forgotten (what) VALUES ('releases became units')")
            held: str = await connection.fetchval("SELECT value FROM scoreveil_facts WHERE name = $1", name)
        return held

    async def ready(self) -> bool:
        try:
            async with self._connection() as connection:
                return bool(await connection.fetchval(WRITABLE))
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
    async def _connection(self) -> AsyncIterator[Any]:
        if self._pool is None:
            raise LedgerUnavailable("it was closed")
        with unavailable():
            async with self._pool.acquire(timeout=self._timeout) as connection:
                yield connection


async def _nothing_to_reset(connection: Any) -> None:
    """Charges leave no state in a session; asking the server to clear it would cost each a round trip."""


async def connect(url: str, timeout: float) -> Any:
    try:
        return await asyncpg.connect(url, timeout=timeout)
    except ValueError:  # which quotes parts of the address
        raise ValueError("The ledger's address is not one that PostgreSQL's clients can read.") from None


async def _charge(connection: Any, charge: Charge) -> list[Grant]:
    keys = charge.split()
    often = sorted(Counter(keys).items())
    counters = {}
    if charge.units <= charge.limit:
        asked = [key for key, _ in often], [count for _, count in often]
        rows = await connection.fetch(CHARGE, charge.model, *asked, charge.limit, charge.units, charge.client)
        counters = {key: tuple(rest) for key, *rest in rows}
    # Refused outright: read after the charge, which waited for whoever spent the rest. Never in one statement with it,
    # which would see the records as they were before that wait.
    if refused := [key for key, _ in often if key not in counters]:
        rows = await connection.fetch(COUNTERS, charge.model, refused)
        counters |= {key: tuple(rest) for key, *rest in rows}
    return list(_in_order(keys, counters, charge))


def _in_order(keys: list[bytes], counters: dict[bytes, tuple[int, int, int]], charge: Charge) -> Iterable[Grant]:
    """A grant for each row: the first of a record's rows get what there was, one by one."""
    limit, units = charge.limit, charge.units
    ungranted = {key: lately for key, (_, _, lately) in counters.items()}
    for key in keys:
        releases, spent, _ = counters.get(key, (0, 0, 0))
        if left := ungranted.get(key, 0):
            ungranted[key] = left - 1
            yield Grant(key, releases - left + 1, True, spent - (left - 1) * units, limit)
        else:
            yield Grant(key, releases, False, spent, limit)


async def _charge_once(connection: Any, charge: Charge) -> list[Grant]:
    """With an idempotency key: whoever comes first charges, everyone else waits for its commit and reads its grants."""
    found = await connection.fetchrow(ANSWERED, charge.request)
    if found is None:
        async with connection.transaction():
            fingerprint = charge.fingerprint()
            if await connection.fetchval(RESERVE, charge.request, charge.model, charge.client, fingerprint):
                grants = await _charge(connection, charge)
                if any(grant.granted for grant in grants):
                    await connection.execute(ANSWER, charge.request, wire.grants_body(grants, charge.limit))
                else:  # a refusal writes nothing, or anyone could fill the disk with them
                    await connection.execute(FREE, charge.request)
                return grants
            found = await connection.fetchrow(ANSWERED, charge.request)
    if found is None:  # forgotten just now
        raise LedgerUnavailable("the request was forgotten while it was asked for")
    if found["fingerprint"] != charge.fingerprint():
        raise IdempotencyConflict
    return wire.read_grants(charge, found["grants"])


class _Overtaken(LedgerUnavailable):
    """Another call began the same neighbourhood, or charged the same record, at the same moment: look again."""

    def __init__(self) -> None:
        super().__init__("too many ask the same at once")


async def _answer(connection: Any, asked: Questions) -> list[Answered]:
    """What was answered before is read, in one statement; what is new takes a transaction."""
    payer = asked.model, client_hash(asked.client)
    if asked.request is None:
        made = settle(asked, await _found(connection, asked), 0, 0)
        if not (made.changed or made.begun or any(answer.refused for answer in made.answers)):
            return made.answers
    async with connection.transaction():
        if asked.request is not None:
            reserved = asked.request, asked.model, asked.client, asked.fingerprint()
            if not await connection.fetchval(RESERVE, *reserved):  # waits for whoever is about to answer it
                stored = await connection.fetchrow(ANSWERED, asked.request)
                if stored is None:
                    raise _Overtaken
                if stored["fingerprint"] != asked.fingerprint():
                    raise IdempotencyConflict
                return wire.read_answers(stored["grants"])
        held = sorted(known.key for known in _all(await _found(connection, asked)))
        await connection.fetch(HOLD, asked.model, held)
        born = await connection.fetchval("SELECT nextval('scoreveil_born')") << 20  # with room for a call's records
        spent = await connection.fetchval(SPENT, *payer)
        made = settle(asked, await _found(connection, asked), spent, born)
        await _write(connection, asked, made, payer)
        if asked.request is not None:
            if any(answer.refused for answer in made.answers):
                await connection.execute(FREE, asked.request)
            else:
                await connection.execute(ANSWER, asked.request, wire.answers_body(made.answers))
        return made.answers


def _all(found: Found) -> set[Known]:
    return {*found.by_mark.values(), *found.by_key}


async def _found(connection: Any, asked: Questions) -> Found:
    keys = sorted({key for key, _, _ in asked.rows()})
    by_mark, own = {}, []
    for mark, *known in await connection.fetch(OF_MARKS, asked.model, sorted(set(asked.all_marks())), keys):
        if mark is None:
            own.append(Known(*known))
        else:
            by_mark[mark] = Known(*known)
    marked = {known.key for known in by_mark.values()}
    return Found(by_mark, [known for known in own if known.key not in marked])


async def _write(connection: Any, asked: Questions, made: Settlement, payer: tuple[str, bytes]) -> None:
    if made.begun:
        done = await connection.execute(MARKED, *(list(column) for column in zip(*made.begun, strict=True)))
        if done != f"INSERT 0 {len(made.begun)}":
            raise _Overtaken
    if made.changed:
        rows = [(k.key, k.number, k.spent, asked.room(k.spent), k.settings, k.outcome) for k in made.changed.values()]
        done = await connection.execute(RECORDED, asked.model, *(list(column) for column in zip(*rows, strict=True)))
        if done != f"INSERT 0 {len(rows)}":
            raise _Overtaken
        keys = b"".join(sorted(made.changed))
        digest = entry_digest(asked.model, asked.client, asked.units, asked.limit, keys)
        await connection.execute(ENTERED, asked.model, asked.client, asked.units, asked.limit, keys, digest)
        if not await connection.fetchval(PAY, *payer, made.paid, asked.client_limit):
            raise _Overtaken


async def make_tables(connection: Any) -> None:
    """Idempotent, also where many workers start at once, and without the right to make tables once they are there."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        if await connection.fetchval("SELECT to_regclass('scoreveil_version') IS NULL"):
            await connection.execute(SCHEMA)
        version = await connection.fetchval("SELECT version FROM scoreveil_version")
        if version == 1:
            await connection.execute(SINCE_1)
            version = VERSION
    if version != VERSION:
        raise LedgerUnavailable(f"its tables have format {version}, and this is a program for format {VERSION}")


REASONS: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((TimeoutError, asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError), "no answer in time"),
    ((asyncpg.DiskFullError, asyncpg.OutOfMemoryError), "the server's disk or memory is full"),
    ((asyncpg.ReadOnlySQLTransactionError,), "the server takes no writes"),
    (
        (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InsufficientPrivilegeError),
        "the server does not let us in",
    ),
    ((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError), "its server is not reachable"),
    ((asyncpg.CannotConnectNowError, asyncpg.AdminShutdownError), "its server is not reachable"),
    ((asyncpg.PostgresError,), "its server failed"),
)


@contextlib.contextmanager
def unavailable() -> Iterator[None]:
    """Trouble with the server, in fixed words: its own quote addresses and values."""
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:  # a TimeoutError is an OSError
        words = next(words for kinds, words in REASONS if isinstance(error, kinds))
        raise LedgerUnavailable(words) from None
