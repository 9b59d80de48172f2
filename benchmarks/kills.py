"""Kill workers under load, again and again, and count what the ledger lost: it must be nothing.

    python benchmarks/kills.py sqlite:////tmp/ledger.db --kills 1000
    python benchmarks/kills.py postgres --kills 1000 --idempotent     starts a server of its own

Workers charge batches of random records as fast as they can, half of them as the gateway does, with marks and outcomes,
and tell what they are about to charge and what was granted. One at a time is killed with SIGKILL, the writer's owner as
likely as any, and replaced. At the end:
- missing: releases that were acknowledged and are not in the books. Never any.
- over-charged: releases in the books that nobody was told of. At most what the killed ones had under way, a batch each:
  as a share of all releases it is the smaller the longer the pauses between kills are.
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
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import NoReturn

# both kinds of ledger are imported before workers are forked: a worker that is replaced begins at once
import scoreveil.ledger.postgres
import scoreveil.ledger.sqlite  # noqa: F401
from postgres_server import PostgresServer
from scoreveil.ledger import (
    Answered,
    Grant,
    Ledger,
    LedgerUnavailable,
    Questions,
    open_books,
    open_ledger,
    record_key,
)
from scoreveil.ledger.releases import joined_marks

MODEL = "kills"
LIMIT = 1_000_000_000
SECRET = b"of the kills benchmark"
ABOUT_TO, GRANTED = b"?", b"!"


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
    numbers_given_twice: int
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


@cache
def keys(count: int) -> list[bytes]:
    return [record_key(SECRET, MODEL, "1", struct.pack("<I", i)) for i in range(count)]


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
    """A batch is its request, 16 bytes, and the numbers of its records, two bytes each."""
    choice = random.Random(seed)
    ledger = await open_ledger(url)
    while True:
        records = choice.sample(range(load.records), k=load.batch)
        batch = unfinished or os.urandom(16) + struct.pack(f"<{load.batch}H", *records)
        tell(pipe, ABOUT_TO + batch)
        try:
            numbers = await charged(ledger, batch, load)
        except LedgerUnavailable:
            unfinished = batch if load.idempotent else None
            continue
        unfinished = None
        tell(pipe, GRANTED + batch + numbers)


def numbers_in(batch: bytes, load: Load) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of a batch's records, and those of their releases, once they were granted."""
    end = 16 + 2 * load.batch
    return struct.unpack(f"<{load.batch}H", batch[16:end]), struct.unpack(f"<{len(batch[end:]) // 4}I", batch[end:])


async def charged(ledger: Ledger, batch: bytes, load: Load) -> bytes:
    """Charge a batch, in the one way or in the other; the number of each release, four bytes each."""
    records, _ = numbers_in(batch, load)
    request, client = batch[:16] if load.idempotent else None, f"client {batch[1] % 16}"
    mine = [keys(load.records)[i] for i in records]
    made: Sequence[Grant | Answered]
    if batch[0] % 2:
        made = await ledger.charge(MODEL, mine, LIMIT, client=client, request=request)
    else:
        marks, outcomes = joined_marks([(i, -1 - i) for i in records]), bytes(2 * len(mine))
        asked = Questions(MODEL, bytes(16), b"".join(mine), marks, outcomes, LIMIT, 1, 1, "replay", client, 0, request)
        made = await ledger.answer(asked)
    if not all(each.granted for each in made):
        raise SystemExit("A release was refused that nothing stands in the way of.")
    return struct.pack(f"<{len(made)}I", *(each.number for each in made))


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
    keys(load.records)  # made before the first fork
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


async def count(url: str, load: Load, ended: list[Told], last: list[Told], started: float) -> Outcome:
    """The books against what was told."""
    granted = [batch for worker in (*ended, *last) for batch in worker.granted]
    ledger = await open_ledger(url)
    if load.idempotent:
        for worker in last:
            if (batch := worker.unfinished) is not None:
                granted.append(batch + await charged(ledger, batch, load))
    books = await ledger.charge(MODEL, keys(load.records), limit=0)  # grants nothing, and tells how many there were
    await ledger.close()
    verdict = await (await open_books(url)).verify()
    told = Counter(i for batch in granted for i in numbers_in(batch, load)[0])
    numbers = Counter(
        pair
        for batch in {batch[:16]: batch for batch in granted}.values()
        for pair in zip(*numbers_in(batch, load), strict=True)
    )
    # a request that was granted, and told, and whose worker was killed before the pipe had it is told twice
    if load.idempotent:
        told = Counter(i for i, _ in numbers)
    charged_in_all = sum(grant.number for grant in books)
    missing = sum(max(0, told[i] - grant.number) for i, grant in enumerate(books))
    over = sum(max(0, grant.number - told[i]) for i, grant in enumerate(books))
    most = 0 if load.idempotent else (load.kills + load.workers) * load.batch  # the last kill is of all
    twice = sum(times - 1 for times in numbers.values())
    beyond = any(number > books[i].number for i, number in numbers)
    holds = missing == 0 and over <= most and twice == 0 and not beyond and verdict.intact
    return Outcome(
        load=load,
        seconds=round(time.perf_counter() - started, 2),
        acknowledged=sum(told.values()),
        charged=charged_in_all,
        missing=missing,
        over_charged=over,
        over_charged_at_most=most,
        over_charged_share=round(over / charged_in_all, 5),
        numbers_given_twice=twice,
        verified=verdict.intact,
        holds=holds,
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
