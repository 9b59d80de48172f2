"""Send the same requests again and again, from several processes at once: one charge each, the same answer each time.

    python -m benchmarks retries sqlite --tries 100000
    python -m benchmarks retries postgres --tries 100000      starts a server of its own

Exit code 1 where a request was charged twice or answered in two ways. Prints JSON.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import ENVIRONMENT
from benchmarks.postgres_server import PostgresServer
from scoreveil.ledger import ReleaseRequest, open_books, open_ledger

MODEL = "retries"
ANSWERS = 3  # some records are spent, and whoever asks for them is refused, every time
ROWS = 4  # of a request
RECORDS = 1000
CONCURRENT = 64  # of one process


def request(number: int) -> ReleaseRequest:
    """The same records under the same key; what is drawn is another each time."""
    choice = random.Random(number)
    marks = np.array([(record, -1 - record) for record in choice.choices(range(RECORDS), k=ROWS)])
    key = hashlib.sha256(str(number).encode()).digest()
    return ReleaseRequest(MODEL, bytes(16), marks, os.urandom(8 * ROWS), 1, ANSWERS, repeat="refuse", request=key)


async def work(url: str, requests: int, tries: int, seed: int) -> dict[str, Any]:
    """All requests in an order of its own, round after round: how they were answered, and how often differently."""
    ledger = await open_ledger(url, timeout=60)
    answers: dict[int, tuple[str, str, int]] = {}
    different = 0
    order = [number % requests for number in range(tries)]
    random.Random(seed).shuffle(order)
    waiting = iter(order)

    async def one_after_another() -> None:
        nonlocal different
        for number in waiting:
            answered = await ledger.answer(request(number))
            answer = answered.refused, answered.outcomes.hex(), answered.fresh
            different += answers.setdefault(number, answer) != answer

    await asyncio.gather(*(one_after_another() for _ in range(CONCURRENT)))
    await ledger.close()
    return {"answers": answers, "different": different}


async def charged(url: str) -> int:
    """Fresh answers in the books."""
    return sum(total.answers for total in await (await open_books(url)).totals())


def run(url: str, tries: int, requests: int, processes: int) -> dict[str, Any]:
    started = time.perf_counter()
    share = tries // processes
    command = [sys.executable, __file__, url, "--requests", str(requests), "--tries", str(share), "--worker"]
    running = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        for seed in range(processes)
    ]
    told = [json.loads(process.communicate()[0]) for process in running]
    seconds = time.perf_counter() - started
    different = sum(each["different"] for each in told)
    first: dict[str, Any] = {}
    for each in told:
        for number, answer in each["answers"].items():
            different += first.setdefault(number, answer) != answer
    fresh = sum(fresh for _, _, fresh in first.values())
    refused = sum(bool(refused) for refused, _, _ in first.values())
    booked = asyncio.run(charged(url))
    return {
        "tries": share * processes,
        "requests": len(first),
        "processes": processes,
        "seconds": round(seconds, 2),
        "answered_differently": different,
        "refused": refused,
        "fresh": fresh,
        "charged": booked,
        "holds": different == 0 and fresh == booked and len(first) == requests and 0 < refused < requests,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Repeat requests and count charges.")
    parser.add_argument("url", help="of an empty ledger; sqlite or postgres: a new one of that kind")
    parser.add_argument("--tries", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--worker", type=int, metavar="SEED", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        print(json.dumps(asyncio.run(work(given.url, given.requests, given.tries, given.worker))))
        return
    with contextlib.ExitStack() as stack:
        url = given.url
        if url == "postgres":
            url = stack.enter_context(PostgresServer()).url()
        elif url == "sqlite":
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/ledger.db"
        outcome = run(url, given.tries, given.requests, given.processes)
    print(json.dumps(outcome, indent=2))
    raise SystemExit(0 if outcome["holds"] else 1)


if __name__ == "__main__":
    main()
