"""HTTP/1.1 to a model server: a small pool of connections, one request at a time on each. httptools reads the answers.

A connection is used again only if nothing but one complete answer came over it; what is not well-formed is an
`HttpFault`. docs/decisions/gateway.md says what this pool is worth.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

MAX_HEAD = 1 << 16  # bytes of an answer's status and headers
MAX_OVERHEAD = 8  # bytes that come over the wire for each that an answer may have: chunks of one byte have five more
MAX_IDLE = 30.0  # seconds that an idle connection is kept
MAX_UNREAD = 16  # reads of the socket
NEXT_ADDRESS = 1.0  # seconds after which a host's next address is tried
SAFE = "/:@!$&'()*+,;=~%"  # as they are in a path

Headers = Mapping[bytes, bytes]  # names in lower case; of those that came twice, the values joined


class HttpFault(Exception):
    """The server does not answer, or not in HTTP."""


class TooLarge(HttpFault):
    """The answer is longer than allowed."""


class OtherStatus(HttpFault):
    """The server answers with another status than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class HttpAnswer(NamedTuple):
    """Of any other status than 200 the body may be missing."""

    status: int
    headers: Headers
    body: bytes


class AnswerReader:
    """One answer, as its bytes come; what httptools calls as it reads them are the methods that begin with on_."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parser = HttpResponseParser(self)
        self._bytes = self._body_bytes = 0
        self._is_head = True
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self.is_complete = self.may_reuse = False

    @property
    def is_over(self) -> bool:
        """Whether no more is waited for; of an error nothing is told, so the rest may stay."""
        return self.is_complete or self.status not in (0, 200)

    def taken(self) -> bytes:
        """What has come of the body since this was asked last."""
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        return data

    def feed(self, data: bytes) -> None:
        """Read on. HttpFault: this is no answer."""
        self._bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.may_reuse = False
            if not self.is_complete:  # or else something came after the answer
                raise (TooLarge if isinstance(error.__context__, TooLarge) else HttpFault) from None
        if self._bytes > MAX_HEAD + (0 if self._is_head else MAX_OVERHEAD * self._limit):
            raise HttpFault

    def end(self) -> None:
        """The server has closed the connection, which ends an answer that says nothing of its length."""
        if self._is_head or b"content-length" in self.headers or b"transfer-encoding" in self.headers:
            raise HttpFault
        self.is_complete = True

    def on_message_begin(self) -> None:
        if self.is_complete:  # more than one answer, to one request
            raise HttpFault

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.strip(b" \t")
        self.headers[name] = self.headers[name] + b", " + value if name in self.headers else value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self._is_head = False
        if self.headers.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
            raise HttpFault
        length = self.headers.get(b"content-length", b"0")
        if len(length) > 18 or int(length) > self._limit:
            raise TooLarge
        self.may_reuse = self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes > self._limit:
            raise TooLarge
        self._parts.append(part)

    def on_message_complete(self) -> None:
        if self._is_head:  # 100 Continue and its like: the answer is yet to come
            self.status, self.headers = 0, {}
        else:
            self.is_complete = True


class _Connection(asyncio.Protocol):
    """A connection: what comes over it waits until it is read."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._unread: list[bytes] = []
        self._news: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.is_open, self.is_idle = True, False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, head: bytes, body: bytes) -> None:
        self.is_idle = False
        self._transport.writelines((head, body))

    async def read_into(self, reader: AnswerReader) -> None:
        """Read what comes next. HttpFault: nothing does, or it is no answer."""
        if not self._unread and self.is_open:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if self._error is not None:
            raise HttpFault
        if not self._unread:
            reader.end()
        for data in self._unread:
            reader.feed(data)
        if len(self._unread) >= MAX_UNREAD and self.is_open:
            self._transport.resume_reading()
        self._unread.clear()

    def data_received(self, data: bytes) -> None:
        if self.is_idle:  # nothing was asked
            self.close()
            return
        self._unread.append(data)
        if len(self._unread) == MAX_UNREAD:  # so that no more is held than somebody reads
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open, self._error = False, error
        self._wake()

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class HttpClient:
    """So many connections to one server."""

    def __init__(self, url: str, connections: int, limit: int, headers: Mapping[str, str]) -> None:
        """`limit` bounds the bytes of an answer; `headers` go with every request."""
        parts = urlsplit(url.rstrip("/"))
        is_https = parts.scheme == "https"
        self._limit, self._path = limit, parts.path
        self._host = (parts.hostname or "").encode("idna").decode()
        self._port = parts.port or (443 if is_https else 80)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.place = f"{shown}:{self._port}"
        host = shown if self._port == (443 if is_https else 80) else self.place
        self._shared = _written({"Host": host, "Accept": "*/*", **headers})
        self._ssl = ssl.create_default_context() if is_https else None
        self._starts: dict[tuple[str, str], bytes] = {}  # a handful: paths come from the configuration
        self._room = asyncio.Semaphore(connections)
        self._idle: deque[_Connection] = deque()  # the one that was used last is last

    async def ask(
        self, method: str, path: str, seconds: float, headers: Mapping[str, str], body: bytes = b""
    ) -> HttpAnswer:
        """An answer, whole.

        Raises:
            TimeoutError: It is not complete in so many seconds, from connecting to the last byte.
            HttpFault, OSError: There is none.
        """
        async with asyncio.timeout(seconds):
            connection, reader = await self._asked(method, path, headers, body), AnswerReader(self._limit)
            try:
                while not reader.is_over:
                    await connection.read_into(reader)
            finally:
                self._give_back(connection, reader)
        return HttpAnswer(reader.status, reader.headers, reader.taken())

    async def lines(
        self, path: str, seconds: float, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[bytes, None]:
        """The lines of an answer to a POST, as they come. Errors are those of `ask`, and OtherStatus."""
        deadline = asyncio.get_running_loop().time() + seconds
        async with asyncio.timeout_at(deadline):
            connection, reader = await self._asked("POST", path, headers, body), AnswerReader(self._limit)
        try:
            rest = b""
            while not reader.is_over:
                async with asyncio.timeout_at(deadline):
                    await connection.read_into(reader)
                *lines, rest = (rest + reader.taken()).split(b"\n")
                for line in lines:
                    yield line
            if reader.status != 200:
                raise OtherStatus(reader.status)
            yield rest
        finally:
            self._give_back(connection, reader)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _asked(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> _Connection:
        """A connection over which the request was sent, once there is room for one."""
        if (method, path) not in self._starts:
            target = quote(f"{self._path}{path}", safe=SAFE)
            self._starts[method, path] = f"{method} {target} HTTP/1.1\r\n".encode("ascii") + self._shared
        head = b"%s%sContent-Length: %d\r\n\r\n" % (self._starts[method, path], _written(headers), len(body))
        await self._room.acquire()
        try:
            connection = self._kept() or await self._connect()
        except BaseException:
            self._room.release()
            raise
        connection.send(head, body)
        return connection

    def _give_back(self, connection: _Connection, reader: AnswerReader) -> None:
        self._room.release()
        if reader.is_complete and reader.may_reuse and connection.is_open:
            connection.is_idle, connection.idle_since = True, asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.close()

    def _kept(self) -> _Connection | None:
        """An idle connection that is still open; those that were idle for long are closed."""
        oldest = asyncio.get_running_loop().time() - MAX_IDLE
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> _Connection:
        """A connection to the first of the host's addresses that takes one."""
        loop = asyncio.get_running_loop()
        name = self._host.rstrip(".") if self._ssl else None
        *others, last = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)

        async def connected(address: Any) -> _Connection:
            host = address[4][0]
            _, connection = await loop.create_connection(
                _Connection, host, self._port, ssl=self._ssl, server_hostname=name
            )
            return connection

        for address in others:
            with contextlib.suppress(OSError):  # a TimeoutError too
                async with asyncio.timeout(NEXT_ADDRESS):
                    return await connected(address)
        return await connected(last)


def _written(headers: Mapping[str, str]) -> bytes:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("ascii")
