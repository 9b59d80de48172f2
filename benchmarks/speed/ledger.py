"""How many rows a second the ledgers answer, durably; and how long a large one takes to start, and how much memory.

    python -m benchmarks ledger                     both kinds; about two minutes
    python -m benchmarks ledger --rows 2000         a few seconds: whether it works, not how fast
    python -m benchmarks ledger --records 10000000  fills a ledger with so many records, and starts it anew
    python -m benchmarks ledger --output FILE       writes the figures as JSON too
    python -m benchmarks ledger --render            puts benchmarks/speed/ledger.json on its page, measuring nothing

`new`: records that the ledger has never seen, of 8 marks and 4 bytes each; `known`: the same ones again, which are
answered as before. Each client has one call under way.
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ENVIRONMENT
from benchmarks.postgres_server import PostgresServer
from scoreveil.ledger import Horizon, Ledger, ReleaseRequest, open_ledger

BATCHES = {1: 64, 32: 8, 256: 8}  # rows of a call: clients
SINGLE = 10  # of so many rows, one is asked by itself
MARKS, OUTCOME = 8, 4
FILLING = 256  # rows of a call while filling
GOALS = {"start_seconds": 20.0, "bytes_a_record": 128.0}
ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = Path(__file__).with_suffix(".json"), ROOT / "docs" / "decisions" / "ledgers.md"
START, END = "<!-- ledger: made by `python -m benchmarks ledger --render` -->", "<!-- end of ledger -->"


def batches(rows: int, size: int, seed: int) -> Iterator[ReleaseRequest]:
    """Calls with records of their own, the same under the same seed."""
    choose = np.random.default_rng(seed)
    for start in range(0, rows, size):
        count = min(size, rows - start)
        marks = choose.integers(-(2**63), 2**63 - 1, (count, MARKS))
        yield ReleaseRequest("bench", bytes(16), marks, choose.bytes(OUTCOME * count), units=1)


async def rate(ledger: Ledger, calls: Iterator[ReleaseRequest], clients: int) -> dict[str, Any]:
    delays: list[float] = []
    rows = fresh = 0

    async def client() -> None:
        nonlocal rows, fresh
        for asked in calls:
            started = time.perf_counter()
            answers = await ledger.answer(asked)
            delays.append(time.perf_counter() - started)
            rows, fresh = rows + len(asked), fresh + answers.fresh

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - started
    delays.sort()
    return {
        "rows": rows,
        "fresh": fresh,
        "rows_per_second": round(rows / seconds),
        "median_ms": round(1e3 * delays[len(delays) // 2], 2),
        "p99_ms": round(1e3 * delays[len(delays) * 99 // 100], 2),
    }


async def measure(url: str, rows: int) -> list[dict[str, Any]]:
    ledger = await open_ledger(url, timeout=60)
    results = []
    for seed, (size, clients) in enumerate(BATCHES.items()):
        count = rows // SINGLE if size == 1 else rows
        for which in ("new", "known"):
            # made beforehand: making random marks would be timed otherwise
            calls = iter(list(batches(count, size, seed)))
            results.append({"which": which, "batch": size, "clients": clients} | await rate(ledger, calls, clients))
    charged = sum(total.answers for total in await ledger.books.totals())
    await ledger.close()
    # what was timed was charged, once
    if charged != sum(result["rows"] for result in results if result["which"] == "new"):
        raise SystemExit(f"The ledger has {charged:,} fresh answers, which is not how many new rows were asked.")
    return results


async def start(url: str, records: int) -> dict[str, Any]:
    """Open the ledger in this process: seconds, and the bytes that it takes."""
    with tempfile.TemporaryDirectory() as folder:  # libraries, compiled code, and an empty ledger
        await (await open_ledger(f"sqlite:///{folder}/empty.db", Horizon(1000))).close()
    before, started = resident(), time.perf_counter()
    ledger = await open_ledger(url, Horizon(records))
    seconds = time.perf_counter() - started
    taken = resident() - before
    await ledger.close()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "records": records,
        "start_seconds": round(seconds, 1),
        "bytes_a_record": round(taken / records, 1),
        "whole_process_bytes_a_record": round((before + taken) / records, 1),
        "peak_bytes_a_record": round(peak / records, 1),
    }


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def fill(url: str, records: int, size: int) -> None:
    ledger = await open_ledger(url, Horizon(records), timeout=60)
    await rate(ledger, batches(records, size, 0), 8)
    await ledger.close()


def measure_start(records: int, size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/ledger.db"
        asyncio.run(fill(url, records, size))
        command = [sys.executable, __file__, "--start", url, "--records", str(records)]
        figures: dict[str, Any] = json.loads(
            subprocess.run(command, capture_output=True, check=True, env=ENVIRONMENT).stdout
        )
        file = Path(folder, "ledger.db").stat().st_size
    met = all(figures[name] <= goal for name, goal in GOALS.items())
    return {"rows_of_a_call": size, **figures, "file_bytes_a_record": round(file / records, 1), "met": met}


def table(results: dict[str, Any]) -> str:
    """The results as the page shows them."""
    about, start = results["about"], results["start"]
    lines = [
        f"Measured by `{about['command']}`, {about['date']}, {about['machine']}.",
        "",
        "| | rows of a call | clients | SQLite, rows/s | median, p99 | PostgreSQL, rows/s | median, p99 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for sqlite, postgres in zip(results["sqlite"], results["postgresql"], strict=True):
        cells = [
            f"{kind['rows_per_second']:,} | {kind['median_ms']:.1f} ms, {kind['p99_ms']:.1f} ms"
            for kind in (sqlite, postgres)
        ]
        lines.append(f"| {sqlite['which']} | {sqlite['batch']} | {sqlite['clients']} | {' | '.join(cells)} |")
    lines += [
        "",
        f"A log of {start['records']:,} records, {start['rows_of_a_call']} to a call, is read in "
        f"{start['start_seconds']:.1f} s (goal: {GOALS['start_seconds']:.0f} s). In memory a record takes "
        f"{start['bytes_a_record']:.0f} bytes (goal: {GOALS['bytes_a_record']:.0f}), with all that the process needs "
        f"beside it {start['whole_process_bytes_a_record']:.0f}, on the disk {start['file_bytes_a_record']:.0f}.",
    ]
    return "\n".join(lines)


def render() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    made = table(json.loads(RESULTS.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{START}\n{made}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows a second that the ledgers answer, and how they start.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=0, help="fill a ledger with so many, and start it anew")
    parser.add_argument("--batch", type=int, default=FILLING, help="rows of a call while filling")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--render", action="store_true", help="put ledger.json on its page, measuring nothing")
    parser.add_argument("--start", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.render:
        render()
        return
    if given.start is not None:
        print(json.dumps(asyncio.run(start(given.start, given.records))))
        return
    results: dict[str, Any] = {
        "about": {
            "command": f"python -m benchmarks ledger --rows {given.rows} --records {given.records}",
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "python": platform.python_version(),
        }
    }
    if given.rows:
        with tempfile.TemporaryDirectory() as folder:
            results["sqlite"] = asyncio.run(measure(f"sqlite:///{folder}/ledger.db", given.rows))
        with PostgresServer() as server:
            results["postgresql"] = asyncio.run(measure(server.url(), given.rows))
    for kind in ("sqlite", "postgresql"):
        for figures in results.get(kind, []):
            print(
                f"{kind:10}  {figures['which']:5}  calls of {figures['batch']:>3}  {figures['clients']:>2} clients"
                f"  {figures['rows_per_second']:>9,} rows/s  median {figures['median_ms']:.1f} ms,"
                f" p99 {figures['p99_ms']:.1f} ms"
            )
    if given.records:
        results["start"] = measure_start(given.records, given.batch)
        print(json.dumps(results["start"]))
    if given.output is not None:
        given.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
