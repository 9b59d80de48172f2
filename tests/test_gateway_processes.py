"""The gateway's processes under attack: what is killed is replaced or gone, and nothing of it stays behind."""

import os
import signal
import socket
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.gateway import cmdline
from gateway_servers import (
    LIGHT_TOML,
    PIXELS,
    SLOW,
    Gateway,
    free_ports,
    gateway,
    light_gateway,
    light_model,
    scores_of,
    until,
)
from scoreveil import fit, secret_file
from shaped_models import two_sides

pytestmark = [pytest.mark.slow, pytest.mark.linux]

X = PIXELS[:40]  # so many that two sets of answers are never the same by chance


def workers(server: Gateway) -> list[int]:
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in cmdline(pid)]


def slow(folder: Path, toml: str, **environ: str) -> AbstractContextManager[Gateway]:
    """A gateway with a model that starts quickly, and answers as slowly as it is asked to."""
    (folder / "slow_model.py").write_text(SLOW)
    return gateway(folder, toml, PYTHONPATH=f"{folder}:{os.environ.get('PYTHONPATH', '')}", **environ)


def said(server: Gateway, event: str) -> list[str]:
    return [each.get("message", "") for each in server.events() if each["event"] == event]


def test_a_configuration_that_cannot_be_opened_is_never_served_and_deaths_are_survived(tmp_path: Path) -> None:
    with light_gateway(tmp_path) as server:
        before = server.infer(X)[2]
        assert len(np.unique(scores_of(server.infer(X)).max(axis=1))) > 10, "not near-duplicates, which share a draw"
        server.config.write_text('[models.digits]\nonnx = "missing.onnx"\nepsilon = 1.0\n')
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reload_failed")
        assert "missing.onnx" in said(server, "reload_failed")[0]
        assert server.infer(X)[2] == before
        # what starts later starts with what was served; a second death within seconds is survived too
        for deaths in (1, 2):
            (worker,) = workers(server)
            os.kill(worker, signal.SIGKILL)
            server.wait_for("serving", 1 + deaths)
            until(lambda: server.listening() and server.request("GET", "/v2/health/live")[0] == 200)
            assert server.infer(X)[2] == before
        assert all("by SIGKILL while it served" in words for words in said(server, "worker_died"))
        assert len(said(server, "worker_died")) == 2
        # and a good configuration is taken
        server.config.write_text(LIGHT_TOML.replace("2.0", "1.0"))
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded")
        assert server.infer(X)[2] != before
        assert server.stop() == 0


def test_a_reload_says_what_it_left_and_why_it_failed(tmp_path: Path) -> None:
    with light_gateway(tmp_path) as server:

        def hang_up(event: str) -> str:
            before = len(said(server, event))
            server.process.send_signal(signal.SIGHUP)
            server.wait_for(event, before + 1)
            return said(server, event)[-1]

        assert hang_up("reloaded") == ""
        (port,) = free_ports(1)
        changed = f'grpc_port = {port}, workers = 2, drain_seconds = 5, admin_names = ["new.example"]'
        server.config.write_text(f"server = {{ {changed} }}\n{LIGHT_TOML}")
        assert server.request("GET", "/healthz", admin=True, Host="new.example")[0] == 421
        for _ in range(2):  # they are not taken by the second one either
            words = "These stay as they were until a restart: server.grpc_port, server.workers, server.drain_seconds."
            assert hang_up("reloaded") == words
        assert server.request("GET", "/healthz", admin=True, Host="new.example")[0] == 200
        # nor by a worker that starts later
        (worker,) = workers(server)
        served = sum(each["event"] == "serving" for each in server.events())
        os.kill(worker, signal.SIGKILL)
        server.wait_for("serving", served + 1)
        until(lambda: server.listening() and server.request("GET", "/v2/health/live")[0] == 200)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        server.config.write_text(LIGHT_TOML)
        assert hang_up("reloaded") == ""
        server.config.write_text('[models.digits]\nskops = "missing.skops"\nepsilon = 1.0\n')
        assert hang_up("reload_failed") == f"models.digits: No such file or directory: {tmp_path / 'missing.skops'}."
        server.config.unlink()
        words = f"The configuration file {server.config} cannot be read: No such file or directory."
        assert hang_up("reload_failed") == words
        assert server.infer(X)[0] == 200


def test_what_cannot_start_says_why_and_ends(tmp_path: Path) -> None:
    server = Gateway(tmp_path, '[models.m]\nonnx = "missing.onnx"\nepsilon = 1.0\n').start(wait=False)
    assert server.process.wait(timeout=120) != 0
    assert "missing.onnx" in server.log.read_text()
    assert len(said(server, "start_failed")) <= 1


def test_a_killed_gateway_leaves_no_worker_and_no_configuration(tmp_path: Path) -> None:
    """Not even while a client holds a request, and whoever finds its folder finds no address of a database."""
    secret_file.create(tmp_path / "scoreveil.secret", f"{'5c' * 32}\n")  # none is made beside a ledger that is away
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    toml = """
    server = { drain_seconds = 1 }
    [ledger]
    url = "postgresql://scoreveil:the-password@127.0.0.1:9/none"
    [models.slow]
    python = "slow_model:make"
    epsilon = 1.0
    """
    with slow(tmp_path, toml, TMPDIR=str(temporary)) as server:
        (worker,) = workers(server)
        files = [file for file in temporary.rglob("*") if file.is_file()]
        assert files
        assert not [file for file in files if b"the-password" in file.read_bytes()]
        with socket.create_connection(("127.0.0.1", server.port)) as held:
            held.sendall(b"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            until(lambda: not cmdline(str(worker)))
        assert not server.listening()
        assert not list(temporary.rglob("worker-*"))
        assert b"the-password" not in b"".join(file.read_bytes() for file in temporary.rglob("*") if file.is_file())


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    """Half of all probes would wait for it, for as long as it is stopped."""
    with light_gateway(tmp_path, "--workers", "2") as server:
        until(lambda: len(workers(server)) == 2)
        stopped = workers(server)[0]
        os.kill(stopped, signal.SIGSTOP)
        server.wait_for("worker_hangs")
        server.wait_for("serving", 3)
        until(lambda: not cmdline(str(stopped)))
        assert [server.request("GET", "/v2/health/ready")[0] for _ in range(20)] == [200] * 20


READ_ONLY = """
set -e
mount --make-rprivate /
mount -o remount,bind,ro /
if touch "$1/scoreveil.secret"; then exit 99; fi
shift
exec "$@"
"""


def test_a_fitted_veil_is_served_from_a_read_only_file_system(tmp_path: Path) -> None:
    """In a mount namespace of its own, where only what is in memory can be written."""
    fit(*two_sides(10), rng=np.random.default_rng(0)).save(tmp_path / "veil.json")
    toml = '[models.digits]\npython = "light_model:make"\nveil = "veil.json"\n'
    server = Gateway(tmp_path, toml)
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh", str(tmp_path)]
    server.command = (*command, *server.command)
    try:
        server.start(environ={"PYTHONPATH": light_model(tmp_path), "TMPDIR": str(tmp_path)})
        assert scores_of(server.infer(X)).shape == (40, 10)
        assert {each.name for each in tmp_path.iterdir()} <= {"gateway.toml", "veil.json", "light_model.py", "log"}
    finally:
        server.stop()
