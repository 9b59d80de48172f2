"""Real gateways for the tests: processes on free ports, as in production, and the small servers behind them."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

SCOREVEIL = Path(sys.executable).parent / "scoreveil"
Answer = tuple[int, dict[str, str], bytes]
PIXELS = load_digits().data.astype(np.float32)
# a model that takes as many seconds as the second feature says, and leaves a file where such a call has begun
SLOW = """
import time
from pathlib import Path
import numpy as np

def make():
    return scores, 2

def scores(x):
    seconds = float(x[:, 1].max())
    if seconds:  # a gateway asks about zeros when it starts
        (Path(__file__).parent / f"begun-{time.perf_counter_ns()}").touch()
    time.sleep(seconds)
    return np.tile(np.float32([0.75, 0.25]), (len(x), 1))
"""
# a model that is there at once, with the shapes of the demo's: starting the demo takes three times as long, most of it
# to import scikit-learn
LIGHT = """
import numpy as np

def make():
    weights = np.random.default_rng(0).normal(0, 0.05, (64, 10)).astype(np.float32)
    return lambda x: np.exp(x @ weights) / np.exp(x @ weights).sum(axis=1, keepdims=True), 64
"""
LIGHT_TOML = """
[models.digits]
python = "light_model:make"
epsilon = 2.0
"""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Gateway:
    """A `scoreveil serve` process in a folder of its own."""

    def __init__(self, folder: Path, toml: str = "", arguments: tuple[str, ...] = ()) -> None:
        self.folder, self.toml, self.arguments = folder, toml, arguments
        self.command = (str(SCOREVEIL), "serve")
        self.port, self.admin_port = free_ports(2)
        self.config = folder / "gateway.toml"
        self.log = folder / "log"
        if toml:
            self.config.write_text(toml, encoding="utf-8")

    def start(self, wait: bool = True, environ: dict[str, str] | None = None) -> "Gateway":
        command = [*self.command, "--port", str(self.port), "--admin-port", str(self.admin_port)]
        command += ["--config", str(self.config)] if self.toml else []
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.arguments],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environ or {})},
            )
        if wait:
            self.wait_for("serving", int(self.arguments[-1]) if "--workers" in self.arguments else 1)
            until(self.listening)
        return self

    def listening(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_for(self, event: str, count: int = 1) -> None:
        def seen() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return sum(each["event"] == event for each in self.events()) >= count

        until(seen, message=lambda: self.log.read_text())

    def request(
        self, method: str, path: str, body: bytes | dict[str, Any] | None = None, admin: bool = False, **headers: str
    ) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.admin_port if admin else self.port, timeout=30)
        sent = json.dumps(body).encode() if isinstance(body, dict) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, sent, named)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def infer(self, x: np.ndarray, model: str = "digits", name: str = "x", **headers: str) -> Answer:
        return self.request("POST", f"/v2/models/{model}/infer", v2(x, name), **headers)

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels, as they are written."""
        text = self.request("GET", "/metrics", admin=True)[2].decode()
        found = re.findall(r"^(\w+(?:\{.*\})?) ([0-9.e+-]+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in found}

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def gateway(folder: Path, toml: str = "", *arguments: str, **environ: str) -> Iterator[Gateway]:
    folder.mkdir(parents=True, exist_ok=True)
    made = Gateway(folder, toml, arguments)
    try:
        yield made.start(environ=environ)
    finally:
        made.stop()


def light_gateway(folder: Path, *arguments: str, toml: str = "", **environ: str) -> AbstractContextManager[Gateway]:
    """A gateway for tests that ask how it lives and not what it answers."""
    return gateway(folder, toml + LIGHT_TOML, *arguments, PYTHONPATH=light_model(folder), **environ)


def light_model(folder: Path) -> str:
    """Write the light model there; the PYTHONPATH on which a gateway finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "light_model.py").write_text(LIGHT)
    return f"{folder}:{os.environ.get('PYTHONPATH', '')}"


def v2(x: np.ndarray, name: str = "x", datatype: str = "FP32") -> dict[str, Any]:
    return {"inputs": [{"name": name, "shape": list(x.shape), "datatype": datatype, "data": x.ravel().tolist()}]}


def scores_of(answer: Answer) -> np.ndarray:
    status, _, body = answer
    assert status == 200, body
    (output,) = json.loads(body)["outputs"]
    return np.array(output["data"], dtype=np.float32).reshape(output["shape"])


def until(condition: Callable[[], bool], seconds: float = 120, message: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, message()
        time.sleep(0.02)


class Behind:
    """A small HTTP server that answers as a function says, and remembers what it was asked."""

    def __init__(self, answer: Callable[[str, str, bytes], tuple[int, dict[str, str], bytes]]) -> None:
        asked: list[tuple[str, str, dict[str, str], bytes]] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked.append((self.command, self.path, dict(self.headers), body))
                status, headers, content = answer(self.command, self.path, body)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = _handle

            def log_message(self, *_: object) -> None:
                pass

        self.asked = asked
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
