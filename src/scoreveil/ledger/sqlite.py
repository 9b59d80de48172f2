"""The embedded ledger as a worker sees it: connect to the writer, or become its owner."""

import asyncio
import contextlib
import itertools
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from scoreveil.ledger import wire
from scoreveil.ledger.books import Books
from scoreveil.ledger.errors import IdempotencyConflict, LedgerUnavailable
from scoreveil.ledger.ledger import Horizon, Ledger
from scoreveil.ledger.releases import ReleaseRequest, ReleaseResult
from scoreveil.ledger.sqlite_books import SqliteBooks
from scoreveil.ledger.writer import Writer, address, try_to_own

PAUSE = 0.01  # seconds between two tries while another worker takes over


class WriterConnection(asyncio.Protocol):
    """A connection to the writer: any number of calls under way, each with its own future."""

    def __init__(self) -> None:
        self._messages = wire.Messages()
        self._waiting: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._transport: asyncio.Transport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # other loops have transports of their own

    def data_received(self, data: bytes) -> None:
        for ident, kind, body in self._messages.feed(data):
            waiting = self._waiting.pop(ident, None)
            if waiting is not None and not waiting.done():
                waiting.set_result((kind, body))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError())
        self._waiting.clear()

    async def call(self, ident: int, message: bytes) -> tuple[int, bytes]:
        """The writer's reply. ConnectionError: it is gone, and whether it did what was asked is not known."""
        if self.lost or self._transport is None:
            raise ConnectionResetError
        waiting: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[ident] = waiting
        try:
            self._transport.write(message)
            return await waiting
        finally:
            self._waiting.pop(ident, None)

    def close(self) -> None:
        self.lost = True
        if self._transport is not None:
            self._transport.abort()


class SqliteLedger(Ledger):
    """A ledger in a file, for all workers on one machine.

    When the writer's owner dies, calls under way are sent again to whoever takes over, who knows those that were
    charged already, and what they were told.
    """

    def __init__(self, path: Path, horizon: Horizon, timeout: float) -> None:
        self._path, self._horizon, self._timeout = path, horizon, timeout
        self._connection: WriterConnection | None = None
        self._connecting = asyncio.Lock()
        self._worker, self._calls = 0, itertools.count()
        self._writer: Writer | None = None
        self._create = True
        self._process = os.getpid()
        self._closed = False

    async def open(self) -> None:
        try:
            while not await self.ready():
                if self._writer is None or not self._writer.is_loading:  # a long log takes its time
                    await self._call(wire.PING)
        except BaseException:
            await self.close()
            raise
        self._create = False

    async def answer(self, questions: ReleaseRequest) -> ReleaseResult:
        return wire.read_answers(await self._call(wire.ASK, wire.packed(questions)))

    async def bind(self, facts: Mapping[str, str]) -> dict[str, str]:
        return wire.read_facts(await self._call(wire.BIND, wire.packed(dict(facts))))

    async def ready(self) -> bool:
        try:
            await self._call(wire.PING)
        except LedgerUnavailable:
            return False
        return True

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()
            await asyncio.sleep(0)  # the transport closes in the loop's next round
        writer, self._writer = self._writer, None
        if writer is not None:
            await asyncio.to_thread(writer.stop)

    @property
    def books(self) -> Books:
        return SqliteBooks(self._path, self._timeout)

    async def _call(self, kind: int, body: bytes = b"") -> bytes:
        if self._process != os.getpid():
            raise LedgerUnavailable("it was opened before this process was forked")
        status, reply = wire.UNAVAILABLE, b"no answer in time"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                status, reply = await self._call_until_answered(kind, body)
        if status == wire.CONFLICT:
            raise IdempotencyConflict
        if status != wire.DONE:
            raise LedgerUnavailable(reply.decode())
        return reply

    async def _call_until_answered(self, kind: int, body: bytes) -> tuple[int, bytes]:
        count = next(self._calls) % (1 << wire.COUNTED)
        if count == 0:  # what was counted before may still be in the log
            self._worker = secrets.randbits(63 - wire.COUNTED)
        ident = self._worker << wire.COUNTED | count
        while True:
            try:
                return await (await self._connected()).call(ident, wire.framed(ident, kind, body))
            except ConnectionError:
                kind |= wire.AGAIN
                await asyncio.sleep(PAUSE)

    async def _connected(self) -> WriterConnection:
        """The connection; a new one where the last one is lost, to the owner of the writer, who may be us."""
        if self._connection is not None and not self._connection.lost:
            return self._connection
        async with self._connecting:
            while self._connection is None or self._connection.lost:
                if self._closed:
                    raise LedgerUnavailable("it was closed")
                if self._writer is None or not self._writer.alive:
                    self._writer = try_to_own(self._path, self._horizon, self._timeout / 2, self._create)
                try:
                    with address(self._path) as where:
                        loop = asyncio.get_running_loop()
                        _, self._connection = await loop.create_unix_connection(WriterConnection, where)
                except OSError:  # whoever owns the lock does not listen yet, or does no longer
                    await asyncio.sleep(PAUSE)
            return self._connection
