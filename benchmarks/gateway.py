"""Measure the gateway: with a model inside, and in front of one against a bare pass-through of the same stack.

    python benchmarks/gateway.py                        about 9 minutes, on a quiet machine
    python benchmarks/gateway.py --quick --output DIR   about 20 seconds: whether it works, not how fast
    python benchmarks/gateway.py --render               the table of docs/serve.md again, from benchmarks/gateway.json
    python benchmarks/gateway.py --soak 30              minutes at half load: errors, and how memory grows

Contestants are measured in turns, in one run. Every server has one worker. One question again and again is answered
from the worker's memory; questions that are all different are new to the ledger, which writes them down first.
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import orjson

from scoreveil.mechanisms.loading import LOADED

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
# more fresh answers than any client is allowed by default
INSIDE = """
limits = { epsilon = 0 }
[models.digits]
python = "scoreveil.demo:digits_model"
epsilon = 2.0
"""
FRONT = """
limits = {{ epsilon = 0 }}
ledger = {{ url = "sqlite:///front-ledger.db" }}
[models.digits]
epsilon = 2.0
upstream = {{ url = "{url}" }}
[models.binary]
epsilon = 2.0
upstream = {{ url = "{url}", model = "digits", binary = true }}
[models.recorded]
epsilon = 2.0
upstream = {{ url = "{url}", model = "digits" }}
inputs = [{{ name = "x", datatype = "FP32", shape = [-1, 64] }}]
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as the gateway has it for its own workers
PINNED = "; the contestant on one core, client and model on the other"
START, END = "<!-- speed: made by `python benchmarks/gateway.py --render` -->", "<!-- end of speed -->"
GOALS = {"ratio": 0.75, "per_core": 3500.0, "added_p99": 5.0, "growth": 0.01}


@dataclass(frozen=True)
class Case:
    rows: int
    binary: bool = False
    all_different: bool = False

    @property
    def most_per_second(self) -> int:
        """Requests that are prepared for a second, where they are all different."""
        return 4000 if self.rows == 1 else 400


CASES = {
    "1 row, JSON": Case(1),
    "1 row, binary": Case(1, binary=True),
    "256 rows, JSON": Case(256),
    "256 rows, binary": Case(256, binary=True),
    "1 row, JSON, all different": Case(1, all_different=True),
    "256 rows, JSON, all different": Case(256, all_different=True),
}


@dataclass(frozen=True)
class Effort:
    seconds: float  # of one measurement
    rounds: int


FULL, QUICK = Effort(4.0, 5), Effort(0.7, 1)


class Process:
    """A server under test: its port, and what its worker used."""

    def __init__(self, name: str, command: list[str], port: int, folder: Path, **environ: str) -> None:
        self.name, self.port = name, port
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env={**os.environ, **environ})
        deadline = time.monotonic() + 180
        while True:
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                break
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit(f"{name} did not start:\n{self.log.read_text()}")
            time.sleep(0.1)

    def pin(self, cores: set[int]) -> None:
        """Let it run on these cores alone."""
        for pid in (self.process.pid, *self.workers):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)

    @property
    def workers(self) -> list[int]:
        main = self.process.pid
        found = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        # the resource tracker of multiprocessing is a child too
        return [int(pid) for pid in found if b"spawn_main" in cmdline(pid) or b"granian" in cmdline(pid)]

    def cpu(self) -> float:
        """Seconds of processor time that the workers have used."""
        ticks = 0
        for pid in self.workers:
            parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(parts[11]) + int(parts[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes that the workers hold for themselves. Clean pages are left out: those of libraries come and go with
        other processes that map them."""
        total = 0
        for pid in self.workers:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += sum(int(kb) for kb in re.findall(r"^Private_Dirty:\s+(\d+) kB", text, re.MULTILINE))
        return total * 1024

    def wait_for_kernels(self) -> None:
        """They load beside the first requests, and take memory."""
        deadline = time.monotonic() + 180
        while LOADED not in self.log.read_text() and time.monotonic() < deadline:
            time.sleep(0.1)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)


def cmdline(pid: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def servers(folder: Path, *wanted: str) -> Iterator[dict[str, Process]]:
    """The embedded gateway; a model, and a gateway and a pass-through in front of it."""
    ports = free_ports(6)
    url = f"http://127.0.0.1:{ports[5]}"
    (folder / "inside.toml").write_text(INSIDE)
    (folder / "front.toml").write_text(FRONT.format(url=url))
    serve = [str(BIN / "scoreveil"), "serve"]
    bare = [str(BIN / "granian"), "--interface", "asginl", "--runtime-mode", "mt", "--no-ws"]
    bare += ["--working-dir", str(ROOT / "benchmarks"), "--port"]
    commands = {
        "embedded": (
            [*serve, "--config", "inside.toml", "--port", str(ports[0]), "--admin-port", str(ports[1])],
            ports[0],
        ),
        "gateway": (
            [*serve, "--config", "front.toml", "--port", str(ports[2]), "--admin-port", str(ports[3])],
            ports[2],
        ),
        "pass-through": ([*bare, str(ports[4]), "passthrough:app"], ports[4]),
        "model": ([*bare, str(ports[5]), "bare_model:app"], ports[5]),
    }
    started: dict[str, Process] = {}
    try:
        for name in wanted:
            command, port = commands[name]
            # a second thread of the model's arithmetic would spin on the core that the contestants need
            started[name] = Process(name, command, port, folder, PASSTHROUGH_UPSTREAM=url, **ONE_THREAD)
        yield started
    finally:
        for each in reversed(list(started.values())):
            each.stop()


def requests(server: Process, case: Case, seconds: float) -> Iterator[bytes]:
    """Whole HTTP requests with digits that are like digits: one, or as many different ones as can be sent."""
    model = "digits"
    if server.name == "gateway" and (case.binary or case.all_different):
        model = "binary" if case.binary else "recorded"
    if not case.all_different:
        yield request(np.random.default_rng(case.rows), case.rows, case.binary, model, server.port)
        return
    rng = np.random.default_rng()  # others than in any run before
    for _ in range(math.ceil(seconds * case.most_per_second)):
        yield request(rng, case.rows, case.binary, model, server.port)


def request(rng: np.random.Generator, rows: int, binary: bool, model: str, port: int) -> bytes:
    x = rng.integers(0, 17, (rows, 64)).astype("<f4")
    tensor: dict[str, Any] = {"name": "x", "shape": [rows, 64], "datatype": "FP32"}
    extra, blob = "", b""
    if binary:
        blob = x.tobytes()
        tensor["parameters"] = {"binary_data_size": len(blob)}
        outputs = [{"name": "scores", "parameters": {"binary_data": True}}]
    else:
        tensor["data"] = x.ravel().tolist()
        outputs = [{"name": "scores"}]
    head = orjson.dumps({"inputs": [tensor], "outputs": outputs})
    if binary:
        extra = f"inference-header-content-length: {len(head)}\r\n"
    start = f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{start}{extra}content-length: {len(head) + len(blob)}\r\n\r\n".encode() + head + blob


def load(
    server: Process, case: Case, seconds: float, folder: Path, rate: float = 0.0, cores: set[int] | None = None
) -> dict[str, Any]:
    """One measurement by a generator in another process, on these cores alone."""
    file = folder / "requests.bin"
    with file.open("wb") as prepared:
        for each in requests(server, case, seconds):
            prepared.write(len(each).to_bytes(4, "little") + each)
    command = [sys.executable, str(ROOT / "benchmarks" / "load.py"), "127.0.0.1", str(server.port), str(file)]
    command += ["--seconds", str(seconds), "--connections", "16", "--rate", str(rate)]
    before = server.cpu()
    pinned = None if cores is None else lambda: os.sched_setaffinity(0, cores)
    done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=pinned)
    found: dict[str, Any] = json.loads(done.stdout)
    if found["errors"] or not found["requests"]:
        raise SystemExit(f"{server.name}: {found}\n{server.log.read_text()[-2000:]}")
    if case.all_different and server.name != "pass-through" and found["requests"] > seconds * case.most_per_second:
        raise SystemExit(f"{server.name}: {found['requests']} requests were sent, so some of them came twice.")
    found["per_second"] = found["requests"] / found["seconds"]
    found["cpu_us"] = (server.cpu() - before) / found["requests"] * 1e6
    return found


def measure(effort: Effort, cases: dict[str, Case] = CASES) -> dict[str, Any]:
    results: dict[str, Any] = {"embedded": {}, "front": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with servers(folder, "embedded", "model", "gateway", "pass-through") as running:
            for name in ("embedded", "gateway"):
                running[name].wait_for_kernels()
            for name, case in cases.items():
                progress(name)
                results["embedded"][name] = rounds(running, ["embedded"], case, effort, folder)["embedded"]
                found = rounds(running, ["gateway", "pass-through"], case, effort, folder)
                pairs = zip(found["gateway"]["runs"], found["pass-through"]["runs"], strict=True)
                results["front"][name] = {**found, "ratio": statistics.median(a / b for a, b in pairs)}
            progress("half load")
            results["half_load"] = half_load(running, results, effort, folder)
    return results


def rounds(
    running: dict[str, Process], names: list[str], case: Case, effort: Effort, folder: Path
) -> dict[str, dict[str, Any]]:
    """Requests a second of each, in turns; the median counts."""
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for name in names:
        load(running[name], case, max(0.5, effort.seconds / 4), folder)
    for _ in range(effort.rounds):
        for name in names:
            seen[name].append(load(running[name], case, effort.seconds, folder))
    return {
        name: {
            "per_second": statistics.median(run["per_second"] for run in runs),
            "cpu_us": statistics.median(run["cpu_us"] for run in runs),
            "runs": [round(run["per_second"], 1) for run in runs],
        }
        for name, runs in seen.items()
    }


def half_load(running: dict[str, Process], results: dict[str, Any], effort: Effort, folder: Path) -> dict[str, Any]:
    """p99 of both, in turns, at half of what the gateway in front can bear.

    Each has a core of its own, where there are two: or client and model would take it away just when they wait.
    """
    rate = results["front"]["1 row, JSON"]["gateway"]["per_second"] / 2
    first, *others = sorted(os.sched_getaffinity(0))
    pinned = bool(others)
    for name, server in running.items():
        if pinned:
            server.pin({first} if name in ("gateway", "pass-through") else set(others))
    seen: dict[str, list[float]] = {"gateway": [], "pass-through": []}
    for _ in range(effort.rounds):
        for name, p99 in seen.items():
            cores = set(others) if pinned else None
            p99.append(load(running[name], Case(1), effort.seconds, folder, rate, cores)["p99"])
    medians = {name: statistics.median(p99) for name, p99 in seen.items()}
    added = medians["gateway"] - medians["pass-through"]
    return {"rate": rate, "pinned": pinned, "p99_ms": medians, "added_ms": added}


def soak(minutes: float, folder: Path) -> dict[str, Any]:
    """Half load for as long as is wanted; memory after a tenth of the time is what it is compared with."""
    with servers(folder, "embedded") as running:
        server = running["embedded"]
        server.wait_for_kernels()
        rate = load(server, Case(1), 2.0, folder)["per_second"] / 2
        pieces, memory, sent = 10, [], 0
        for piece in range(pieces):
            sent += load(server, Case(1), minutes * 60 / pieces, folder, rate)["requests"]
            memory.append(server.memory())
            progress(f"{piece + 1}/{pieces}: {sent:,} requests, {memory[-1] / 2**20:.1f} MB")
    growth = memory[-1] / memory[0] - 1
    return {"minutes": minutes, "rate": rate, "requests": sent, "errors": 0, "memory": memory, "growth": growth}


def about(arguments: list[str], quick: bool) -> dict[str, Any]:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "command": " ".join(["python benchmarks/gateway.py", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "behind": "the demo's, with no veil, on the same stack, with one thread",
        "quick": quick,
    }


def table(results: dict[str, Any]) -> str:
    """The section of docs/serve.md."""
    said = results["about"]
    lines = [
        f"Measured by `{said['command']}` on {said['machine']}, {said['date']}, load before the run "
        f"{said['load_before']:.1f}; one worker each, the median of rounds in turns. The model behind is "
        f"{said.get('behind', 'a gateway of its own')}. "
        "“per core” is requests for each second of processor time that the worker used, “own time” the processor time "
        "that gateway and pass-through used themselves for a request.",
        "",
        "| | embedded, requests/s | per core | in front, requests/s | pass-through, requests/s | ratio | own time |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, inside in results["embedded"].items():
        front = results["front"][case]
        ours, bare = front["gateway"]["per_second"], front["pass-through"]["per_second"]
        lines.append(
            f"| {case} | {inside['per_second']:,.0f} | {1e6 / inside['cpu_us']:,.0f} "
            f"| {ours:,.0f} | {bare:,.0f} | {front['ratio']:.2f} "
            f"| {front['gateway']['cpu_us']:,.0f} and {front['pass-through']['cpu_us']:,.0f} µs |"
        )
    half = results["half_load"]
    lines += [
        "",
        f"At half load ({half['rate']:,.0f} requests/s{PINNED if half.get('pinned') else ''}) the p99 is "
        f"{half['p99_ms']['gateway']:.1f} ms, of the "
        f"pass-through {half['p99_ms']['pass-through']:.1f} ms: {half['added_ms']:+.1f} ms. "
        f"Goals: a ratio of {GOALS['ratio']:.2f}, "
        f"{GOALS['per_core']:,.0f} one-row requests a second for each core, at most {GOALS['added_p99']:g} ms added.",
    ]
    if "soak" in results:
        run = results["soak"]
        lines.append(
            f"\nSoak: {run['minutes']:g} minutes at {run['rate']:,.0f} requests/s, {run['requests']:,} requests, "
            f"{run['errors']} errors, memory {run['growth']:+.2%} after warm-up (goal: under {GOALS['growth']:.0%})."
        )
    return "\n".join(lines)


def progress(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short form, whose figures mean little")
    parser.add_argument("--output", type=Path, help="a folder for gateway.json, in place of ours")
    parser.add_argument("--render", action="store_true", help="make the table from gateway.json, measuring nothing")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="half load for so long; adds to gateway.json")
    given = parser.parse_args()
    if given.quick and given.output is None:
        parser.error("--quick needs --output: short figures do not belong in the docs")
    data = (given.output or ROOT / "benchmarks") / "gateway.json"
    data.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(data.read_text()) if data.exists() else {}
    if given.soak:
        with tempfile.TemporaryDirectory() as name:
            results["soak"] = soak(given.soak, Path(name))
    elif not given.render:
        kept = {"soak": results["soak"]} if "soak" in results else {}
        results = {"about": about(sys.argv[1:], given.quick), **measure(QUICK if given.quick else FULL), **kept}
    data.write_text(json.dumps(results, indent=1) + "\n")
    if given.output is None and "about" in results:
        page = ROOT / "docs" / "serve.md"
        before, _, rest = page.read_text(encoding="utf-8").partition(START)
        page.write_text(f"{before}{START}\n{table(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    elif "about" in results:
        (given.output / "speed.md").write_text(table(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
