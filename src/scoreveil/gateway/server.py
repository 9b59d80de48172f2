"""Processes and signals: granian's workers for the gateway, a thread of the main process for the admin port.

    SIGTERM, SIGINT   stop listening, finish what is under way, leave
    SIGHUP            workers read configuration and secrets again, in place: no connection is dropped

Ports, TLS and the number of workers are read at start; the rest is reloaded.
"""

import asyncio
import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from granian.constants import HTTPModes, Interfaces, RuntimeModes
from granian.http import HTTP1Settings
from granian.server.embed import Server as EmbeddedGranian
from granian.server.mp import MPServer

from scoreveil.gateway import logs, metrics
from scoreveil.gateway.app import App
from scoreveil.gateway.config import ConfigError, Server
from scoreveil.gateway.ledger_link import load_keys
from scoreveil.gateway.opened import OpenedConfig
from scoreveil.gateway.shared_config import SharedConfig
from scoreveil.gateway.worker import Worker, heartbeat, leave_with

MAX_CONNECTIONS = 16_384  # of clients, for each worker
LASTING = 10  # seconds after which the death of a worker is not one of a row
MAX_PAUSE = 30  # seconds before a worker is started again
OTHER_FILES = 512  # descriptors that a worker needs for all else
IDLE = 10  # seconds
SILENCE = 10  # seconds without a sign after which a worker hangs
WATCH = 1.0  # seconds between two looks at the workers


def worker(shared: SharedConfig, folder: Path, parent: int, started: Server) -> App:
    """The application of one worker process."""
    leaving = (parent, folder, started.drain_seconds)
    threading.Thread(target=leave_with, args=leaving, daemon=True, name="parent").start()
    return App(Worker(shared, folder, started))


def run(opened: OpenedConfig, reopen: Callable[[], OpenedConfig], ready: Callable[[], None]) -> None:
    """Serve until told to stop; `ready` is called once every worker accepts connections and is warm."""
    settings = opened.config.server
    check_ports(settings)
    load_keys(opened)  # which makes the secret
    # workers start from nothing: threads of this process, such as the admin port's, do not survive a fork
    multiprocessing.set_start_method("spawn", force=True)
    folder = _scratch()
    shared = SharedConfig.of(opened)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # workers are what runs in parallel; their threads would only contend
    metrics.use_folder(folder)
    admin = Admin(settings, shared)
    server = _granian(settings, folder)
    server.on_startup(admin.start)
    announcing = threading.Thread(target=_announce, args=(folder, settings.workers, ready), name="ready", daemon=True)
    server.on_startup(announcing.start)
    server.on_startup(lambda: signal.signal(signal.SIGHUP, lambda *_: _hang_up(reopen, server, shared, folder)))
    try:
        server.serve(target_loader=partial(worker, shared, folder, os.getpid(), settings), wrap_loader=False)
    finally:
        admin.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _scratch() -> Path:
    """A folder in memory or on disk for what the processes count together; also where the file system is read-only."""
    try:
        return Path(tempfile.mkdtemp(prefix="scoreveil-"))
    except FileNotFoundError:  # no place for temporary files can be written
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="scoreveil-", dir="/dev/shm")
        # numba's cache too: else workers would do without kernels
        os.environ.setdefault("NUMBA_CACHE_DIR", tempfile.tempdir)
        return Path(tempfile.tempdir)


def _connections() -> dict[str, Any]:
    """How many connections a worker holds, and how long one may be idle.

    An idle one costs a few kilobytes, so many are held before anyone waits, if there are file descriptors. Each is
    closed after `IDLE` seconds without a whole request. HTTP/2 is not spoken: with it granian would wait for ever.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = (
        MAX_CONNECTIONS + OTHER_FILES if hard == resource.RLIM_INFINITY else min(MAX_CONNECTIONS + OTHER_FILES, hard)
    )
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))  # workers inherit it
    return {
        "http": HTTPModes.http1,
        "http1_settings": HTTP1Settings(header_read_timeout=IDLE * 1000),
        "backpressure": max(files - OTHER_FILES, 128),
    }


def _granian(settings: Server, folder: Path) -> Any:
    return Supervisor(
        folder,
        "scoreveil",
        address=settings.host,
        port=settings.port,
        interface=Interfaces.ASGI,
        workers=settings.workers,
        runtime_mode=RuntimeModes.mt,
        websockets=False,
        **_connections(),
        ssl_cert=settings.tls_cert,
        ssl_key=settings.tls_key,
        ssl_ca=settings.tls_client_ca,
        ssl_client_verify=settings.tls_client_ca is not None,
        workers_kill_timeout=settings.drain_seconds,
        log_dictconfig=LOGGING,
    )


def _hang_up(reopen: Callable[[], OpenedConfig], server: Any, shared: SharedConfig, folder: Path) -> None:
    """Read the configuration again and tell every worker; where it does not hold, everything stays as it was."""
    try:
        shared.offer(reopen())
    except (ValueError, OSError) as error:
        logs.failure("reload_failed", error, message=str(error) if isinstance(error, ConfigError) else "")
        return
    for process in server.wrks:
        # one that is just starting does not hear it yet, and would die of it
        if served(folder, process.inner.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.inner.pid, signal.SIGHUP)


def _announce(folder: Path, workers: int, ready: Callable[[], None]) -> None:
    """Wait until as many workers as there shall be are warm, then say so."""
    while folder.exists():
        if len(list(folder.glob("warm-*"))) >= workers:
            ready()
            return
        time.sleep(0.05)


def check_ports(settings: Server) -> None:
    """Refuse to start where another program listens on one of the ports."""
    _check_free(settings.host, settings.port)
    _check_free(settings.admin_host, settings.admin_port)
    if settings.grpc_port is not None:
        _check_free(settings.host, settings.grpc_port)


def _check_free(host: str, port: int) -> None:
    """Workers share a port, so that a second gateway could share it too, unseen: it must be free before."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(f"{host}:{port} cannot be listened on: {error.strerror}. Choose another port.") from None


class Supervisor(MPServer):
    """Granian's main process, which replaces workers that died or hang, and says why they did.

    Granian itself gives up after two deaths within seconds. Here a worker that cannot start ends the gateway only while
    none has ever served; later it is tried again, after a pause that grows, and the others serve meanwhile.
    """

    def __init__(self, folder: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._folder = folder
        self._failures: dict[int, int] = {}  # of each worker, in a row
        self._heartbeats = Heartbeats(folder)

    def _serve_loop(self, spawn_target: Any, target_loader: Any) -> None:
        due: dict[int, float] = {}  # which worker is started again, and when
        while not self.interrupt_signal:
            next_start = max(0.0, min(due.values()) - time.monotonic()) if due else WATCH
            self.main_loop_interrupt.wait(min(next_start, WATCH))
            self.main_loop_interrupt.clear()
            for process in self._heartbeats.silent([worker.inner.pid for worker in self.wrks]):
                logs.event("worker_hangs", message=f"It gave no sign for {SILENCE} seconds and is ended.")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            while self.interrupt_children and not self.interrupt_signal:
                index = self.interrupt_children.pop()
                pause = self._pause(index)
                if pause is None:
                    self.interrupt_children.append(index)  # for granian's exit status
                    return
                due[index] = time.monotonic() + pause
            for index in [index for index, when in due.items() if when <= time.monotonic()]:
                del due[index]
                self._respawn_workers([index], spawn_target, target_loader)

    def _pause(self, index: int) -> float | None:
        """How long to wait before a dead worker is replaced; None: not at all, since it cannot start."""
        dead = self.wrks[index]
        status = dead.inner.exitcode
        why = f"by {signal.Signals(-status).name}" if status is not None and status < 0 else f"with status {status}"
        did = served(self._folder, dead.inner.pid)
        if not did and not any(self._folder.glob("worker-*")):
            logs.event("stopped", message=f"No worker can start: one ended {why}. The lines before this say why.")
            return None
        lasted = time.monotonic() - dead.birth > LASTING
        self._failures[index] = 0 if did and lasted else self._failures.get(index, 0) + 1
        pause = min(MAX_PAUSE, 2.0 ** (self._failures[index] - 1)) if self._failures[index] else 0.0
        what = "while it served" if did else "before it could serve"
        logs.event("worker_died", message=f"It ended {why} {what}; another is started in {pause:g} seconds.")
        return pause


class Heartbeats:
    """Which workers have given no sign for so long that they hang: others would wait for answers from them."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._last: dict[int, tuple[int, float]] = {}  # of each worker, its last sign, and when it was first seen
        self._looked = clock()

    def silent(self, processes: list[int]) -> list[int]:
        now = self._clock()
        # after a pause of this process, or of the whole machine, signs are waited for anew
        paused, self._looked = now - self._looked > SILENCE / 2, now
        before, self._last = {} if paused else self._last, {}
        for process in processes:
            with contextlib.suppress(FileNotFoundError):  # one that is still starting
                sign = heartbeat(self._folder, process).stat().st_mtime_ns
                seen = before.get(process, (sign, now))
                self._last[process] = seen if seen[0] == sign else (sign, now)
        return [process for process, (_, since) in self._last.items() if now - since > SILENCE]


def served(folder: Path, process: int) -> bool:
    """Whether a worker came as far as serving."""
    return heartbeat(folder, process).exists()


class Admin:
    """The admin port, in a thread of the main process."""

    def __init__(self, settings: Server, shared: SharedConfig) -> None:
        self._settings, self._shared = settings, shared
        self._thread = threading.Thread(target=self._run, name="admin", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Any = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._loop is not None and self._server is not None:
            with contextlib.suppress(RuntimeError):  # it has stopped by itself
                self._loop.call_soon_threadsafe(self._server.stop)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            logs.failure("admin_failed", error)

    async def _serve(self) -> None:
        from scoreveil.gateway import admin

        self._loop = asyncio.get_running_loop()
        self._server = EmbeddedGranian(
            admin.application(lambda: self._shared.good().opened),
            address=self._settings.admin_host,
            port=self._settings.admin_port,
            interface=Interfaces.ASGINL,
            websockets=False,
            log_enabled=False,
            **_connections(),
        )
        await self._server.serve()


LOGGING = {
    "formatters": {"generic": {"()": "scoreveil.gateway.logs.Formatter"}},
    "filters": {"starting": {"()": "scoreveil.gateway.logs.NotYetListening"}},
    "handlers": {
        "console": {
            "formatter": "generic",
            "filters": ["starting"],
            "class": "logging.StreamHandler",
            "stream": "ext://sys.stderr",
        },
    },
    "loggers": {
        name: {"handlers": ["console"], "level": "INFO", "propagate": False} for name in ("_granian", "scoreveil")
    },
}
