"""How many rows a second the ledgers charge, durably, in batches.

    python benchmarks/ledger.py                          both kinds; about a minute
    python benchmarks/ledger.py --rows 2000 --full 0     a few seconds: whether it works, not how fast
    python benchmarks/ledger.py --output FILE            writes the figures as JSON too

`new`: records that the ledger has never seen; `known`: ones that it has; `one by one`: charges of a single row by many
clients at once. `--full` records are there beforehand, so that the tables are larger than what is touched.
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from postgres_server import PostgresServer
from scoreveil.ledger import Ledger, open_ledger

GOAL = 20_000  # rows/s, in batches
LIMIT = 1_000_000
FILLING = 20_000  # rows of a charge while filling


def random_keys(count: int) -> list[bytes]:
    everything = os.urandom(32 * count)
    return [everything[i : i + 32] for i in range(0, len(everything), 32)]


def batches(keys: list[bytes], size: int) -> Iterator[list[bytes]]:
    rest = iter(keys)
    while batch := list(islice(rest, size)):
        yield batch


async def rate(ledger: Ledger, keys: list[bytes], size: int, clients: int) -> dict[str, Any]:
    """Charge all of them; each client has one charge under way."""
    waiting = batches(keys, size)
    delays: list[float] = []

    async def client() -> None:
        for batch in waiting:
            started = time.perf_counter()
            grants = await ledger.charge("bench", batch, LIMIT)
            delays.append(time.perf_counter() - started)
            assert all(grant.granted for grant in grants)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - started
    delays.sort()
    return {
        "rows": len(keys),
        "batch": size,
        "clients": clients,
        "rows_per_second": round(len(keys) / seconds),
        "charges_per_second": round(len(delays) / seconds),
        "median_ms": round(1e3 * delays[len(delays) // 2], 2),
        "p99_ms": round(1e3 * delays[len(delays) * 99 // 100], 2),
    }


async def measure(url: str, rows: int, batch: int, clients: int, full: int) -> dict[str, Any]:
    ledger = await open_ledger(url, timeout=60)
    for keys in batches(random_keys(full), FILLING):
        await ledger.charge("bench", keys, LIMIT)
    keys = random_keys(rows)
    found = {
        "new": await rate(ledger, keys, batch, clients),
        "known": await rate(ledger, keys, batch, clients),
        "one by one": await rate(ledger, keys[: rows // 10], 1, 64),
    }
    # what was timed was charged: three times where single rows were too, twice elsewhere; and once more now
    numbers = [grant.number for grant in await ledger.charge("bench", [keys[0], keys[-1]], LIMIT)]
    if numbers != [4, 3]:
        raise SystemExit(f"Two records should have been charged 4 and 3 times; the ledger counted {numbers}.")
    await ledger.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows a second that the ledgers charge.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--full", type=int, default=200_000, help="records in the ledger beforehand")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    sizes = given.rows, given.batch, given.clients, given.full
    results: dict[str, Any] = {
        "about": {
            "command": f"python benchmarks/ledger.py --rows {sizes[0]} --batch {sizes[1]} --clients {sizes[2]} "
            f"--full {sizes[3]}",
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
            "python": platform.python_version(),
        }
    }
    with tempfile.TemporaryDirectory() as folder:
        results["sqlite"] = asyncio.run(measure(f"sqlite:///{folder}/ledger.db", *sizes))
    with PostgresServer() as server:
        results["postgresql"] = asyncio.run(measure(server.url(), *sizes))
    for kind in ("sqlite", "postgresql"):
        results[kind]["met"] = min(results[kind][which]["rows_per_second"] for which in ("new", "known")) >= GOAL
        for which in ("new", "known", "one by one"):
            figures = results[kind][which]
            print(
                f"{kind:10}  {which:10}  {figures['rows_per_second']:>8,} rows/s  batches of {figures['batch']:>3}  "
                f"median {figures['median_ms']:.1f} ms, p99 {figures['p99_ms']:.1f} ms"
            )
        print(f"{kind:10}  goal        {GOAL:>8,} rows/s  {'met' if results[kind]['met'] else 'not met'}")
    if given.output is not None:
        given.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
