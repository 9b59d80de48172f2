"""Processes and signals: granian's workers for the gateway, a thread of the main process for the admin port.

    SIGTERM, SIGINT   stop listening, finish what is under way, leave
    SIGHUP            workers read configuration and secrets again, in place: no connection is dropped

Ports, TLS and the number of workers are read at start; the rest is reloaded.
"""

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from granian import Granian
from granian.constants import Interfaces, RuntimeModes
from granian.server.embed import Server as EmbeddedGranian

from scoreveil import atomic
from scoreveil.gateway import config_file, logs, metrics
from scoreveil.gateway.app import App
from scoreveil.gateway.config import Config, ConfigError
from scoreveil.gateway.ledger_link import load_keys
from scoreveil.gateway.worker import Worker


@dataclass(frozen=True)
class Setup:
    """Where the configuration comes from: what is needed to read it again."""

    path: Path | None
    overrides: Mapping[str, Any]

    def load(self) -> Config:
        return config_file.load(self.path, self.overrides)


def worker(folder: Path) -> App:
    """The application of one worker process."""
    return App(Worker(partial(last_good, folder), folder))


def last_good(folder: Path) -> Config:
    """The last configuration that held: a worker that starts after the file was spoilt still has one."""
    config: Config = pickle.loads((folder / "config").read_bytes())  # written by the main process, for its owner alone
    return config


def _keep(folder: Path, config: Config) -> None:
    atomic.write(folder / "config", pickle.dumps(config), mode=0o600)


def run(setup: Setup) -> None:
    """Serve until told to stop."""
    config = setup.load()
    load_keys(config)
    for host, port in ((config.server.host, config.server.port), (config.server.admin_host, config.server.admin_port)):
        _check_free(host, port)
    # workers start from nothing: threads of this process, such as the admin port's, do not survive a fork
    multiprocessing.set_start_method("spawn", force=True)
    folder = Path(tempfile.mkdtemp(prefix="scoreveil-"))
    _keep(folder, config)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # workers are what runs in parallel; their threads would only contend
    metrics.use_folder(folder)
    admin = Admin(config, folder)
    server = _granian(config)
    server.on_startup(admin.start)
    server.on_startup(lambda: signal.signal(signal.SIGHUP, lambda *_: _hang_up(setup, server, folder)))
    try:
        server.serve(target_loader=partial(worker, folder), wrap_loader=False)
    finally:
        admin.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _granian(config: Config) -> Any:
    settings = config.server
    return Granian(
        "scoreveil",
        address=settings.host,
        port=settings.port,
        interface=Interfaces.ASGI,
        workers=settings.workers,
        runtime_mode=RuntimeModes.mt,
        websockets=False,
        ssl_cert=settings.tls_cert,
        ssl_key=settings.tls_key,
        ssl_ca=settings.tls_client_ca,
        ssl_client_verify=settings.tls_client_ca is not None,
        respawn_failed_workers=True,
        workers_kill_timeout=settings.drain_seconds,
        log_dictconfig=LOGGING,
    )


def _hang_up(setup: Setup, server: Any, folder: Path) -> None:
    """Read the configuration again and tell every worker; where it does not hold, everything stays as it was."""
    try:
        _keep(folder, setup.load())
    except (ValueError, OSError) as error:
        logs.failure("reload_failed", error, message=str(error) if isinstance(error, ConfigError) else "")
        return
    for process in server.wrks:
        # one that is just starting does not hear it yet, and would die of it
        if (folder / f"worker-{process.inner.pid}").exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.inner.pid, signal.SIGHUP)


def _check_free(host: str, port: int) -> None:
    """Workers share a port, so that a second gateway could share it too, unseen: it must be free before."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(f"{host}:{port} cannot be listened on: {error.strerror}; choose another port.") from None


class Admin:
    """The admin port, in a thread of the main process."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
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
        settings = self._config.server
        self._server = EmbeddedGranian(
            admin.application(partial(last_good, self._folder)),
            address=settings.admin_host,
            port=settings.admin_port,
            interface=Interfaces.ASGINL,
            websockets=False,
            log_enabled=False,
        )
        await self._server.serve()


LOGGING = {
    "formatters": {"generic": {"()": "scoreveil.gateway.logs.Formatter"}},
    "handlers": {
        "console": {"formatter": "generic", "class": "logging.StreamHandler", "stream": "ext://sys.stderr"},
    },
    "loggers": {
        name: {"handlers": ["console"], "level": "INFO", "propagate": False} for name in ("_granian", "scoreveil")
    },
}
