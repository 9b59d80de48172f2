"""Measure speed and memory as ratios taken in one run, and write them down.

    python -m benchmarks veil                        about 8 minutes, on a quiet machine
    python -m benchmarks veil --quick --output DIR   about 20 seconds: whether it works, not how fast
    python -m benchmarks veil --render               docs/benchmarks.md again, from benchmarks/speed/veil.json

Writes benchmarks/speed/veil.json (every figure, machine, date, versions, command) and docs/benchmarks.md.
The first full run installs the rivals into .venv-rivals.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed import first_answer, goals, memory, parquet, render, rivals, table
from benchmarks.speed.batches import EPSILON
from benchmarks.speed.timing import Effort
from scoreveil.blocks import BLOCK
from scoreveil.mechanisms import loading

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("scoreveil", "numpy", "numba", "cryptography", "pyarrow", "torch")


@dataclass(frozen=True)
class Sizes:
    """How much of everything a run measures."""

    classes: tuple[int, ...]
    total: int  # scores in a batch of the table
    numpy_total: int  # and in that of the plain-numpy path
    effort: Effort
    vector_calls: int
    processes: Effort
    rival_rows: int
    rival_few: int
    memory_rows: tuple[int, ...]
    memory_cases: int
    file_rows: int
    compile_too: bool


FULL = Sizes(
    classes=(2, 10, 100, 1000, 100_000),
    total=1_000_000,
    numpy_total=100_000,
    effort=Effort(seconds=0.6, least=3, most=40),
    vector_calls=2000,
    processes=Effort(seconds=6, least=3, most=7),
    rival_rows=100_000,
    rival_few=100,
    memory_rows=(100_000, 1_000_000, 4_000_000),
    memory_cases=4,
    file_rows=2_000_000,
    compile_too=True,
)
QUICK = Sizes(
    classes=(10, 1000),
    total=20_000,
    numpy_total=2_000,
    effort=Effort(seconds=0.01, least=2, most=3),
    vector_calls=50,
    processes=Effort(seconds=0, least=1, most=1),
    rival_rows=2_000,
    rival_few=5,
    memory_rows=(10_000, 50_000),
    memory_cases=2,
    file_rows=20_000,
    compile_too=False,
)


def measure(sizes: Sizes, install: bool) -> dict[str, Any]:
    """Every section of results.json but the first."""
    results: dict[str, Any] = {"limits": [], "table": []}
    if not loading.wait():
        raise SystemExit("Expected compiled kernels, got none: is numba installed (pip install 'scoreveil[fast]')?")
    for k in sizes.classes:
        for dtype in table.DTYPES:
            progress(f"table, k = {k:,}, {dtype}")
            limits, rows = table.measure(k, dtype, sizes.total, sizes.numpy_total, sizes.effort)
            results["limits"].append(limits)
            results["table"] += rows
    progress("one vector")
    results["one_vector"] = table.one_vector(sizes.effort, sizes.vector_calls)
    progress("first answer in a new process")
    results["new_process"] = first_answer.measure(sizes.processes, sizes.compile_too)
    progress("rivals")
    results["rivals"] = rivals.measure(sizes.rival_rows, sizes.rival_few, sizes.effort, install)
    progress("memory")
    results["memory"] = memory.measure(sizes.memory_rows, sizes.memory_cases)
    progress("parquet")
    results["parquet"] = parquet.measure(sizes.file_rows, sizes.processes)
    return results


def about(quick: bool, arguments: list[str]) -> dict[str, Any]:
    """What made these figures: the command, machine, date and versions."""
    return {
        "command": shlex.join(["python", "benchmarks/speed/veil.py", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "quick": quick,
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "load": [os.getloadavg()[0]],
        "epsilon": EPSILON,
        "block": BLOCK,
        "memory_slack": memory.SLACK,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def as_json(results: dict[str, Any]) -> str:
    """Indented, but every list of numbers on one line."""
    text = json.dumps(results, indent=1) + "\n"
    return re.sub(r"\[[\s\d.,e+-]+\]", lambda numbers: " ".join(numbers[0].split()), text)


def progress(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short form, whose figures mean little")
    parser.add_argument("--output", type=Path, help="a folder for results.json and benchmarks.md, in place of ours")
    parser.add_argument("--render", action="store_true", help="make the page from results.json, measuring nothing")
    parser.add_argument("--no-install", action="store_true", help="leave out rivals that would have to be installed")
    options = parser.parse_args()
    if options.quick and options.output is None:
        parser.error("--quick needs --output: short figures do not belong in the docs")
    data = (options.output or Path(__file__).parent) / "veil.json"
    page = (options.output or ROOT / "docs") / "benchmarks.md"
    if not options.render:
        data.parent.mkdir(parents=True, exist_ok=True)
        results: dict[str, Any] = {"about": about(options.quick, sys.argv[1:])}
        results |= measure(QUICK if options.quick else FULL, install=not options.no_install)
        results["about"]["load"].append(os.getloadavg()[0])
        results["goals"] = goals.compare(results)
        data.write_text(as_json(results), encoding="utf-8")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render.page(json.loads(data.read_text(encoding="utf-8"))), encoding="utf-8")
    progress(f"wrote {page}")


if __name__ == "__main__":
    main()
