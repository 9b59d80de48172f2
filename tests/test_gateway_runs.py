"""The gateway's benchmark and soak in short, traces, and what `make conformance` does at length."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed import gateway as bench
from gateway_servers import SCOREVEIL, Behind, light_gateway, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def test_the_benchmark_measures_and_renders() -> None:
    cases = {name: bench.CASES[name] for name in ("1 row, JSON", "256 rows, binary", "1 row, JSON, with memory")}
    results = {"about": bench.about(["--quick"], True), **bench.measure(bench.Effort(0.5, 1), cases)}
    assert all(case["ratio"] > 0 for case in results["front"].values())
    # of all cases together: processor time is counted in hundredths of a second
    assert sum(case["gateway"]["cpu_us"] for case in results["front"].values()) > 0
    page = bench.table(results)
    assert all(f"| {name} |" in page for name in cases)
    assert "At half load" in page


def test_the_table_in_the_docs_is_made_from_the_results() -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    shown = page.partition(bench.START)[2].partition(bench.END)[0].strip()
    data = ROOT / "benchmarks" / "speed" / "gateway.json"
    assert shown == (bench.table(json.loads(data.read_text())) if data.exists() else "")


def test_a_short_soak_has_no_error_and_does_not_grow(tmp_path: Path) -> None:
    """Six seconds in place of thirty minutes; growth is bounded loosely, since warm-up is part of it."""
    run = bench.soak(0.1, tmp_path)
    assert run["errors"] == 0
    assert run["requests"] > 100
    assert run["growth"] < 0.05


def test_workers_leave_with_their_main_process(tmp_path: Path) -> None:
    with light_gateway(tmp_path) as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        (worker,) = [pid for pid in children if b"spawn_main" in bench.cmdline(pid)]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        until(lambda: not bench.cmdline(worker))  # gone, or a zombie that nobody has waited for


def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    with light_gateway(tmp_path, "--workers", "2") as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        worker = next(pid for pid in children if b"spawn_main" in bench.cmdline(pid))
        os.kill(int(worker), signal.SIGKILL)
        server.wait_for("serving", 3)
        assert {server.infer(np.zeros((1, 64), dtype=np.float32))[0] for _ in range(8)} == {200}


def test_traces_name_a_request_and_hold_no_payload(tmp_path: Path) -> None:
    """A real OTLP exporter, and a collector that keeps what it gets."""
    collector = Behind(lambda method, path, body: (200, {"Content-Type": "application/x-protobuf"}, b""))
    toml = f'traces = {{ endpoint = "{collector.url}/v1/traces", service = "the-gateway" }}'
    with light_gateway(tmp_path, toml=toml, OTEL_BSP_SCHEDULE_DELAY="200") as server:
        assert server.infer(np.full((1, 64), 3.25, dtype=np.float32), x_secret="not-for-traces")[0] == 200
        assert server.infer(np.zeros((1, 3), dtype=np.float32))[0] == 400
        until(lambda: sum(body.count(b"http.response.status_code") for *_, body in collector.asked) == 2)
    sent = b"".join(body for *_, body in collector.asked)
    collector.close()
    for word in (b"the-gateway", b"infer", b"digits", b"http.response.status_code"):
        assert word in sent
    for word in (b"not-for-traces", b"3.25", b"the model takes", b"ApiError"):
        assert word not in sent


def test_requests_keep_coming_while_workers_reload_many_times(tmp_path: Path) -> None:
    with light_gateway(tmp_path) as server:
        stop, failed, done = threading.Event(), [], []

        def load() -> None:
            while not stop.is_set():
                (done if server.infer(np.zeros((1, 64), dtype=np.float32))[0] == 200 else failed).append(1)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            for count in range(1, 4):
                server.process.send_signal(signal.SIGHUP)
                server.wait_for("reloaded", count)
                so_far = len(done)
                until(lambda: len(done) >= so_far + 5)  # noqa: B023, it is waited for here
        finally:
            stop.set()
            thread.join()
        assert not failed


MISSING = {
    (): "There is nothing to serve. Name a MODEL",
    ("--epsilon", "2"): "--epsilon needs a MODEL",
    ("model.txt", "--epsilon", "2"): "model.txt cannot be served",
    ("missing.onnx", "--epsilon", "2"): "There is no model file missing.onnx",
}


@pytest.mark.parametrize("given", MISSING)
def test_serve_says_what_is_missing(tmp_path: Path, given: tuple[str, ...]) -> None:
    done = subprocess.run([str(SCOREVEIL), "serve", *given], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"Error: {MISSING[given]}")
