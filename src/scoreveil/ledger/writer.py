"""The writer of the embedded ledger: one thread, for all the workers of a machine.

Whoever holds the lock on `ledger.db.lock` owns the writer and listens on `ledger.db.sock`; the kernel takes the lock
back when its process dies, and another worker takes over. Workers talk to it through the socket, the owner's too, so
that there is one way to charge. What arrives while a commit waits for the disk goes into the next one together.

A worker whose owner died sends its calls again to the next one, who finds in the log those that were charged, and
what they were told. So nothing is charged twice.
"""

import contextlib
import fcntl
import os
import selectors
import socket
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from scoreveil.ledger import wire
from scoreveil.ledger.errors import IdempotencyConflict, LedgerUnavailable
from scoreveil.ledger.ledger import Horizon
from scoreveil.ledger.releases import ReleaseRequest
from scoreveil.ledger.sqlite_file import LedgerFile
from scoreveil.ledger.sqlite_format import reason

CHUNK = 1 << 20  # bytes read from one worker in one round
MAX_ADDRESS = 100  # bytes of a unix socket's path, with a margin


Work = ReleaseRequest | dict[str, str] | None  # facts, or a sign of life
Reply = tuple[int, bytes]  # DONE, CONFLICT or UNAVAILABLE, and what goes with it


class WriterCall(NamedTuple):
    """What a worker asks for."""

    worker: "Caller"
    ident: int
    work: Work
    is_again: bool


def _work(kind: int, body: bytes) -> Work:
    """What a message asks for. ValueError: it cannot be read."""
    if kind == wire.ASK:
        return wire.read_questions(body)
    return wire.read_facts(body) if kind == wire.BIND else None


class Caller:
    """The writer's end of one worker's connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.messages = wire.Messages()
        self.unsent = bytearray()

    def receive(self) -> Iterator[WriterCall]:
        """The calls that have come. ValueError: this is no worker.

        ConnectionError: the worker is gone. Nobody could be told what its last calls came to, so they are not charged.
        """
        come = bytearray()
        with contextlib.suppress(BlockingIOError):
            while len(come) < CHUNK:
                data = self.connection.recv(CHUNK)
                if not data:
                    raise ConnectionError
                come += data
        for ident, kind, body in self.messages.feed(come):
            # read here, so that what cannot be read never meets the calls of others
            yield WriterCall(self, ident, _work(kind & ~wire.AGAIN, body), bool(kind & wire.AGAIN))

    def send(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.connection.send(self.unsent)]


class Writer:
    """Owns the lock, the socket and the file, until it is stopped. Made by `try_to_own`."""

    def __init__(self, file: LedgerFile, lock: int) -> None:
        self._file, self._lock = file, lock
        self._listener = listen(address(file.path))
        self._selector = selectors.DefaultSelector()
        self._stopping, self._stopped = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stopped, selectors.EVENT_READ)
        self._workers: set[Caller] = set()
        self._thread = threading.Thread(target=self._run, name="scoreveil-ledger", daemon=True)
        _owned.add(self)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_loading(self) -> bool:
        return self._file.is_loading

    def stop(self) -> None:
        """Finish what has come, close the file, let go of the lock. Blocks for as long as that takes."""
        with contextlib.suppress(OSError):
            self._stopping.send(b".")
        self._thread.join()
        self._stopping.close()

    def _run(self) -> None:
        try:
            stopping = False
            while not stopping:
                calls, stopping = self._gather()
                for call, (kind, body) in zip(calls, self._answer(calls), strict=True):
                    call.worker.unsent += wire.framed(call.ident, kind, body)
                for worker in {call.worker for call in calls}:
                    self._send(worker)
        finally:
            self._close()

    def _gather(self) -> tuple[list[WriterCall], bool]:
        """Wait until something comes; everything that is there by then."""
        calls: list[WriterCall] = []
        stopping = False
        for ready, events in self._selector.select():
            if ready.fileobj is self._stopped:
                stopping = True
            elif ready.fileobj is self._listener:
                self._welcome()
            else:
                worker: Caller = ready.data
                if events & selectors.EVENT_WRITE:
                    self._send(worker)
                if events & selectors.EVENT_READ:
                    try:
                        calls += list(worker.receive())
                    except (OSError, ValueError):
                        self._drop(worker)
        return calls, stopping

    def _answer(self, calls: list[WriterCall]) -> list[Reply]:
        """All of them in one transaction, on disk before any is answered; or none of them."""
        if not calls:
            return []
        try:
            if any(call.work is None for call in calls):
                self._file.check()
            with self._file:
                replies = [self._answer_one(call) for call in calls]
        except Exception as error:
            return [(wire.UNAVAILABLE, reason(error).encode())] * len(calls)
        return replies

    def _answer_one(self, call: WriterCall) -> Reply:
        match call.work:
            case None:
                self._file.heartbeat()
                return wire.DONE, b""
            case dict():
                return wire.DONE, wire.packed(self._file.bind(call.work))
        try:
            return wire.DONE, wire.packed(self._file.answer(call.work, call.ident, call.is_again))
        except IdempotencyConflict:
            return wire.CONFLICT, b""

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):
            worker = Caller(self._listener.accept()[0])
            self._workers.add(worker)
            self._selector.register(worker.connection, selectors.EVENT_READ, worker)

    def _send(self, worker: Caller) -> None:
        if worker not in self._workers:
            return
        try:
            worker.send()
        except OSError:
            self._drop(worker)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        self._selector.modify(worker.connection, wanted, worker)

    def _drop(self, worker: Caller) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            self._selector.unregister(worker.connection)
            worker.connection.close()

    def _close(self) -> None:
        """The lock goes last: nobody else may own the file while it is open here."""
        for worker in list(self._workers):
            self._drop(worker)
        self._selector.close()
        self._listener.close()
        self._stopped.close()
        with contextlib.suppress(OSError), address(self._file.path) as name:
            os.unlink(name)
        with contextlib.suppress(Exception):
            self._file.close()
        _owned.discard(self)
        os.close(self._lock)

    def leave_to_parent(self) -> None:
        """In a forked child: close the inherited ends, or the lock would outlive its owner."""
        _inherited.append(self._file)  # SQLite forbids even closing a connection on this side of a fork
        for inherited in (self._listener, self._stopping, self._stopped, *(w.connection for w in self._workers)):
            inherited.close()
        os.close(self._lock)


_owned: "weakref.WeakSet[Writer]" = weakref.WeakSet()
_inherited: list[LedgerFile] = []


def _after_fork() -> None:
    for writer in list(_owned):
        writer.leave_to_parent()
    _owned.clear()


os.register_at_fork(after_in_child=_after_fork)


def try_to_own(path: Path, horizon: Horizon, patience: float, create: bool) -> Writer | None:
    """The writer, started, if nobody owns it yet."""
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LedgerUnavailable(reason(error)) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Writer(LedgerFile(path, horizon, patience, create), lock)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:
        os.close(lock)
        raise LedgerUnavailable(reason(error)) from None


@contextlib.contextmanager
def address(path: Path) -> Iterator[str]:
    """Where the writer of this ledger listens, as a path that is short enough for a unix socket."""
    name = f"{path.name}.sock"
    full = str(path.parent / name)
    if len(os.fsencode(full)) <= MAX_ADDRESS:
        yield full
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)


def listen(where: contextlib.AbstractContextManager[str]) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with where as name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)  # left behind by an owner that was killed
            listener.bind(name)
            os.chmod(name, 0o600)  # before anyone can connect: nobody can until it listens
        listener.listen(1024)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
