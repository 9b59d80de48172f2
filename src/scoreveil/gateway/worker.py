"""The life of one worker: it opens what the configuration names, reloads on SIGHUP, and closes what it opened."""

import asyncio
import contextlib
import gc
import os
import shutil
import signal
import time
import warnings
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from scoreveil.gateway import logs, secrets
from scoreveil.gateway.app import App, Gateway, Send
from scoreveil.gateway.config import Limits, Server
from scoreveil.gateway.handlers import Headers, Receive
from scoreveil.gateway.ledger_link import LedgerLink
from scoreveil.gateway.limits import Buckets
from scoreveil.gateway.metrics import Metrics, ModelMetrics
from scoreveil.gateway.opened import OpenedConfig, OpenedModel, errors_at, load_model
from scoreveil.gateway.secrets import Keys
from scoreveil.gateway.served import ServedModel, open_source
from scoreveil.gateway.shared_config import SharedConfig
from scoreveil.gateway.traces import open_tracer
from scoreveil.mechanisms import loading

LISTENING = ("host", "port", "grpc_port", "admin_host", "admin_port")
READ_AT_START = (*LISTENING, "tls_cert", "tls_key", "tls_client_ca", "workers", "drain_seconds")  # of `Server`
HEARTBEAT = 1.0  # seconds
CATCH_UP = 1.0  # seconds from the end of the start, when the server runs the event loop again


class Worker:
    """Holds the gateway that requests are answered with."""

    gateway: Gateway  # from when the worker has started

    def __init__(self, shared: SharedConfig, folder: Path, started: Server) -> None:
        """`started`: what the main process was started with, and still listens with."""
        self._shared, self._folder, self._started = shared, folder, started
        self._version = shared.good()
        self._ledgers: dict[str, LedgerLink] = {}
        self._metrics: Metrics | None = None
        self._buckets = Buckets(folder / "rates")
        self._reloading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def live(self, receive: Receive, send: Send) -> None:
        """From start to end, as ASGI's lifespan asks for it."""
        await receive()
        warnings.filterwarnings("ignore", message="An answer holds")  # it was said before anything listened
        loading.start()  # kernels load beside what is opened, not beside the first requests
        try:
            self.gateway = await self._open(self._version.opened)
            grpc = await self._listen_to_grpc()
        except Exception as error:
            logs.failure("start_failed", error, message=_words(error))
            await send({"type": "lifespan.startup.failed", "message": ""})
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: self._begin(self._reload()))
        heartbeat(self._folder, os.getpid()).touch()  # from now on SIGHUP may come
        self._catch_up()  # it may have come while this one was starting,
        loop.call_later(CATCH_UP, self._catch_up)  # or between two runs of the event loop, which hear no signal
        # what was loaded stays: the garbage collector need not look at it again and again
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        await send({"type": "lifespan.startup.complete"})
        self._begin(self._warm())
        self._begin(self._beat())
        await receive()
        if grpc is not None:
            await grpc.stop(self._started.drain_seconds)
        await self._close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _listen_to_grpc(self) -> Any:
        """gRPC beside HTTP, in the same event loop, where a port was configured for it when the gateway started."""
        if self._started.grpc_port is None:
            return None
        from scoreveil.gateway import grpc_service

        def known(headers: Headers) -> bool:
            return self.gateway.authenticate(headers) is not None

        return await grpc_service.start(App(self), known, self._started, self.gateway.config.limits)

    async def _beat(self) -> None:
        """Show the main process that this worker answers."""
        sign = heartbeat(self._folder, os.getpid())
        while True:
            await asyncio.sleep(HEARTBEAT)
            with contextlib.suppress(OSError):
                os.utime(sign)

    async def _warm(self) -> None:
        """Wait for the kernels, and say so to the main process. Connections are accepted meanwhile."""
        await asyncio.gather(*(asyncio.to_thread(served.warm) for served in self.gateway.models.values()))
        (self._folder / f"warm-{os.getpid()}").touch()

    def _catch_up(self) -> None:
        """Reload where another configuration is offered than the one that is served."""
        if self._shared.offered().place != self._version.place and not self._reloading.locked():
            self._begin(self._reload())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, opened: OpenedConfig) -> Gateway:
        config, keys = opened.config, None
        if opened.needs_secret:
            keys = await asyncio.to_thread(secrets.load, config.secrets.file, create=False)
        if self._metrics is None:
            self._metrics = Metrics()
        ledger = None
        if opened.has_memory:  # one that is open stays open, with all that was charged
            assert keys is not None  # whoever remembers needs a secret
            ledger = self._ledgers.setdefault(config.ledger.url, LedgerLink(config.ledger))
            await ledger.require(keys, opened.models)
        models = {}
        for name, model in opened.models.items():
            with errors_at(f"models.{name}"):
                models[name] = await _serve(model, keys, config.limits, self._metrics.add(name))
        tracer, unnamed = open_tracer(config.traces), self._metrics.add("")
        gateway = Gateway(opened, models, ledger, self._buckets, tracer, unnamed)
        logs.event("serving", model=",".join(models), rotations=0 if keys is None else keys.rotations)
        return gateway

    async def _reload(self) -> None:
        """Open what is offered, and read the secrets again; where that fails, everything stays as it was."""
        async with self._reloading:
            before, offered = self.gateway, self._shared.offered()
            try:
                self.gateway = await self._open(offered.opened)
            except Exception as error:
                self._shared.reject(offered)
                logs.failure("reload_failed", error, message=_words(error))
                return
            self._version = offered
            self._shared.keep(offered)
            unchanged = needs_restart(self._started, offered.opened.config.server)
            logs.event("reloaded", **({"message": unchanged} if unchanged else {}))
        try:
            await asyncio.sleep(before.config.limits.seconds + 1)  # requests under way keep what they began with
        finally:
            before.close()

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.gateway.close()
        for ledger in self._ledgers.values():
            await ledger.close()
        self._buckets.close()


async def _serve(model: OpenedModel, keys: Keys | None, limits: Limits, counters: ModelMetrics) -> ServedModel:
    loaded = await asyncio.to_thread(load_model, model)
    source = open_source(loaded, limits)  # whose connections belong to this event loop
    return await asyncio.to_thread(ServedModel, loaded, source, keys, limits, counters)


def heartbeat(folder: Path, process: int) -> Path:
    """The file that a worker touches while it lives."""
    return folder / f"worker-{process}"


def needs_restart(started: Server, read: Server) -> str:
    """Which settings of the server are others now and stay as they were; empty where there are none."""
    names = [name for name in READ_AT_START if getattr(started, name) != getattr(read, name)]
    return f"These stay as they were until a restart: {', '.join(f'server.{name}' for name in names)}." if names else ""


def _words(error: Exception) -> str:
    """What an error of the configuration says; of others, whose messages may quote what they met, nothing."""
    return str(error) if isinstance(error, (ValueError, OSError)) else ""


def leave_with(parent: int, folder: Path, drain_seconds: float) -> None:
    """Leave when the main process is gone: nobody else would stop this one, and it holds the port."""
    while os.getppid() == parent:
        time.sleep(0.5)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(drain_seconds)
    os.kill(os.getpid(), signal.SIGKILL)
