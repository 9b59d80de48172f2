"""Kill workers under load, again and again, and count what the ledger lost: it must be nothing.

    python -m benchmarks kills sqlite:////tmp/ledger.db --kills 1000
    python -m benchmarks kills postgres --kills 1000 --idempotent     starts a server of its own

Workers ask for fresh answers to batches of random records as fast as they can, and tell what they are about to ask and
what they were answered. One at a time is killed with SIGKILL, the writer's owner as likely as any, and replaced. Each
outcome is drawn once in all, so that at the end the log says of each what became of it:
- missing: outcomes that were released and are not in the log. Never any.
- over-charged: outcomes in the log that nobody was told of. At most what the killed ones had under way, a batch each:
  as a share of all releases it is the smaller the longer the pauses between kills are.
- misremembered: records whose last outcome in the log is not what the ledger, opened anew, answers. Never any.
- with --idempotent every batch is a request that the replacement sends again: then nothing is over-charged either.
Exit code 1 where that does not hold. Prints JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import select
import signal
import sqlite3
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

import asyncpg
import numpy as np

from benchmarks.postgres_server import PostgresServer
from scoreveil.ledger import Ledger, LedgerUnavailable, ReleaseRequest, open_books, open_ledger
from scoreveil.ledger.index import Index, hashed
from scoreveil.ledger.log import BEGUN, COLUMNS, Body, Entry

MODEL = "kills"
ABOUT_TO, GRANTED = b"?", b"!"
OUTCOME = 8  # bytes


@dataclass(frozen=True)
class Load:
    kills: int
    workers: int = 3
    batch: int = 16
    records: int = 4000
    idempotent: bool = False
    pause: float = 0.04  # seconds between two kills, at most
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    load: Load
    seconds: float
    acknowledged: int
    charged: int
    missing: int
    over_charged: int
    over_charged_at_most: int
    over_charged_share: float
    charged_twice: int
    misremembered: int
    verified: bool
    holds: bool


@dataclass
class Told:
    """What one worker told through its pipe, message by message; a message is written at once or not at all."""

    reader: int
    process: int
    inherited: bytes | None = None  # what the one before it left unfinished
    about_to: bytes | None = None  # told, and not yet granted
    granted: list[bytes] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        return self.about_to is not None or bool(self.granted)

    @property
    def unfinished(self) -> bytes | None:
        return self.about_to if self.begun else self.inherited

    def read(self) -> bool:
        """Take what is there. False: the worker is gone and all was read."""
        data = os.read(self.reader, 1 << 16)
        while data:
            length = struct.unpack_from("<H", data)[0]
            while len(data) < 2 + length:
                data += os.read(self.reader, 1 << 16)
            message, data = data[2 : 2 + length], data[2 + length :]
            if message[:1] == ABOUT_TO:
                self.about_to = message[1:]
            else:
                self.granted.append(message[1:])
                self.about_to = None
            if not data:
                return True
        return False


def start(url: str, load: Load, seed: int, unfinished: bytes | None) -> Told:
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return Told(reader, process, unfinished)
    os.close(reader)
    try:
        asyncio.run(work(url, load, seed, unfinished, writer))
    finally:
        os._exit(1)


async def work(url: str, load: Load, seed: int, unfinished: bytes | None, pipe: int) -> NoReturn:
    """A batch is its request, 16 bytes, and its records, two bytes each."""
    choice = random.Random(seed)
    ledger = await open_ledger(url)
    while True:
        records = choice.sample(range(load.records), k=load.batch)
        batch = unfinished or os.urandom(16) + struct.pack(f"<{load.batch}H", *records)
        tell(pipe, ABOUT_TO + batch)
        try:
            outcomes = await answered(ledger, batch, load)
        except LedgerUnavailable:
            unfinished = batch if load.idempotent else None
            continue
        unfinished = None
        tell(pipe, GRANTED + batch + outcomes)


def marks_of(records: Sequence[int]) -> Any:
    return np.array([(i, -1 - i) for i in records], np.int64)


async def answered(ledger: Ledger, batch: bytes, load: Load) -> bytes:
    """Ask for fresh answers to a batch; the outcome of each."""
    records = struct.unpack(f"<{load.batch}H", batch[16:])
    request, client = batch[:16] if load.idempotent else None, f"client {batch[1] % 16}"
    drawn = os.urandom(OUTCOME * load.batch)
    asked = ReleaseRequest(
        MODEL, bytes(16), marks_of(records), drawn, 1, 10**9, client=client, price=batch[0] % 2, request=request
    )  # fmt: skip
    answers = await ledger.answer(asked)
    if answers.fresh != load.batch:
        raise SystemExit("An answer was not fresh, although nothing stands in its way.")
    return answers.outcomes


def tell(pipe: int, message: bytes) -> None:
    os.write(pipe, struct.pack("<H", len(message)) + message)


def listen(workers: list[Told], seconds: float) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for reader in select.select([worker.reader for worker in workers], [], [], left)[0]:
            next(worker for worker in workers if worker.reader == reader).read()


def kill(worker: Told) -> None:
    os.kill(worker.process, signal.SIGKILL)
    os.waitpid(worker.process, 0)
    while worker.read():
        pass
    os.close(worker.reader)


def run(url: str, load: Load) -> Outcome:
    started, choice = time.perf_counter(), random.Random(load.seed)
    Index.warm_up()  # before the first fork: a worker that is replaced begins at once
    seeds = iter(range(load.seed * 1_000_003, sys.maxsize))
    workers = [start(url, load, next(seeds), None) for _ in range(load.workers)]
    ended: list[Told] = []
    try:
        for done in range(load.kills):
            if done and done % 1000 == 0:
                print(f"{done:,} kills after {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
            victim = choice.randrange(load.workers)
            while not workers[victim].begun:
                listen(workers, 0.005)  # killing those who have not begun would prove nothing
            listen(workers, choice.uniform(0.0, load.pause))
            kill(workers[victim])
            ended.append(workers[victim])
            unfinished = ended[-1].unfinished if load.idempotent else None
            workers[victim] = start(url, load, next(seeds), unfinished)
        while not any(worker.granted for worker in (*ended, *workers)):
            listen(workers, 0.005)  # few kills on a busy machine may all come too soon: nothing would be proved
    finally:
        for worker in workers:
            kill(worker)
    return asyncio.run(count(url, load, ended, workers, started))


async def entries_of(url: str) -> list[Entry]:
    """The log, read from the storage itself."""
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            rows = file.execute(f"SELECT {COLUMNS} FROM log ORDER BY id").fetchall()
    else:
        connection = await asyncpg.connect(url)
        rows = await connection.fetch(f"SELECT {COLUMNS} FROM scoreveil_log ORDER BY id")
        await connection.close()
    return [Entry._make(tuple(row)[:-1]) for row in rows]


def outcomes_in(joined: bytes) -> list[bytes]:
    return [joined[i : i + OUTCOME] for i in range(0, len(joined), OUTCOME)]


async def count(url: str, load: Load, ended: list[Told], last: list[Told], started: float) -> Outcome:
    """The log against what was told."""
    end = 16 + 2 * load.batch
    granted = [message[end:] for worker in (*ended, *last) for message in worker.granted]
    ledger = await open_ledger(url)
    if load.idempotent:
        granted += [await answered(ledger, worker.unfinished, load) for worker in last if worker.unfinished is not None]
    told = {outcome for joined in granted for outcome in outcomes_in(joined)}
    charged: Counter[bytes] = Counter()
    last_of: dict[int, bytes] = {}  # by the number that the ledger has for a record
    record_of: dict[int, int] = {}
    by_mark = {hashes.tobytes(): i for i, hashes in enumerate(hashed(MODEL, marks_of(range(load.records))))}
    for entry in await entries_of(url):
        body = Body.read(entry.body)
        numbers = body.numbers(entry.next).tolist()
        begun = [number for number, kind in zip(numbers, body.kinds, strict=True) if kind == BEGUN]
        record_of |= {number: by_mark[hashes.tobytes()] for number, hashes in zip(begun, body.begun, strict=True)}
        last_of |= dict(zip(numbers, outcomes_in(body.outcomes), strict=True))
        charged.update(outcomes_in(body.outcomes))
    records = [record_of[number] for number in last_of]
    drawn = bytes(OUTCOME * len(records))
    remembered = await ledger.answer(ReleaseRequest(MODEL, bytes(16), marks_of(records), drawn, 1))
    pairs = zip(outcomes_in(remembered.outcomes), last_of.values(), strict=True)
    misremembered = sum(remembers != outcome for remembers, outcome in pairs) + remembered.fresh
    await ledger.close()
    verdict = await (await open_books(url)).verify()
    missing, over = len(told - set(charged)), len(set(charged) - told)
    most = 0 if load.idempotent else (load.kills + load.workers) * load.batch  # the last kill is of all
    twice = charged.total() - len(charged)
    return Outcome(
        load=load,
        seconds=round(time.perf_counter() - started, 2),
        acknowledged=len(told),
        charged=charged.total(),
        missing=missing,
        over_charged=over,
        over_charged_at_most=most,
        over_charged_share=round(over / charged.total(), 5),
        charged_twice=twice,
        misremembered=misremembered,
        verified=verdict.intact,
        holds=missing == twice == misremembered == 0 and over <= most and verdict.intact,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill workers under load and count what the ledger lost.")
    parser.add_argument("url", help="of an empty ledger; sqlite or postgres: a new one of that kind")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--idempotent", action="store_true")
    parser.add_argument("--pause", type=float, default=0.04, help="seconds between two kills, at most")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    load = Load(
        given.kills, given.workers, given.batch, idempotent=given.idempotent, pause=given.pause, seed=given.seed
    )
    with contextlib.ExitStack() as stack:
        url = given.url
        if url == "postgres":
            url = stack.enter_context(PostgresServer()).url()
        elif url == "sqlite":
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/ledger.db"
        outcome = run(url, load)
    print(json.dumps(asdict(outcome), indent=2))
    raise SystemExit(0 if outcome.holds else 1)


if __name__ == "__main__":
    main()
