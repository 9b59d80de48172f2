"""HTTP/1.1 to a model server: one request at a time on a kept connection, and its whole answer.

aiohttp can do far more, and a call of it costs several times as much. Answers are read strictly: whatever is not
well-formed is an `HttpFault`, and a connection is used again only if nothing but one complete answer came over it.
"""

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

import aiohappyeyeballs
from yarl import URL

MOST_HEAD = 1 << 16  # bytes of an answer's status and headers
MOST_LINE = 1 << 10  # bytes of the line before a chunk
KEPT = 30.0  # seconds that an idle connection is kept
SECOND_ADDRESS = 0.25  # seconds until a host's next address is tried too
STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?")
NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")

Headers = Mapping[bytes, bytes]  # names in lower case; of those that came twice, the values joined


class HttpFault(Exception):
    """The server does not answer, or not in HTTP."""


class TooLarge(HttpFault):
    """The answer is longer than allowed."""


class HttpAnswer(NamedTuple):
    """Of any other status than 200 the body may be missing."""

    status: int
    headers: Headers
    body: bytes


class AnswerReader:
    """One answer, as its bytes come."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._next: Callable[[bytes], bytes] = self._read_head
        self._unread = b""  # too little to go on with
        self._parts: list[bytes] = []
        self._missing = self._size = 0  # bytes of the body, or of a chunk of it, that are still to come; bytes so far
        self._chunked = self._until_close = False
        self.status, self.headers = 0, cast(Headers, {})
        self.is_complete = self.may_reuse = False

    @property
    def body(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def feed(self, data: bytes) -> None:
        """Read on. HttpFault: this is no answer."""
        if self._unread:
            data, self._unread = self._unread + data, b""
        while data and not self.is_complete:
            data = self._next(data)
        if data:  # more than one answer, to one request
            self.may_reuse = False

    def end(self) -> None:
        """The server has closed the connection."""
        if not self._until_close:
            raise HttpFault
        self.is_complete = True

    def _read_head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n")
        if max(end, len(data) if end < 0 else 0) > MOST_HEAD:
            raise HttpFault
        if end < 0:
            self._unread = data
            return b""
        first, *lines = data[:end].split(b"\r\n")
        found = STATUS.fullmatch(first)
        if found is None:
            raise HttpFault
        status = int(found[2])
        if status >= 200:
            self.status, self.headers = status, _headers(lines)
            self._begin_body(persistent=found[1] == b"1")
        elif status == 101:  # nobody asked for another protocol
            raise HttpFault
        return data[end + 4 :]

    def _begin_body(self, persistent: bool) -> None:
        length, coding = self.headers.get(b"content-length"), self.headers.get(b"transfer-encoding")
        said = self.headers.get(b"connection", b"").lower()
        self.may_reuse = b"close" not in said and (persistent or b"keep-alive" in said)
        if self.status in (204, 304):
            self.is_complete = True
        elif coding is not None:
            if length is not None or coding.lower() != b"chunked":
                raise HttpFault
            self._chunked, self._next = True, self._read_size
        elif length is not None:
            if not length.isdigit() or len(length) > 18:
                raise HttpFault
            self._expect(int(length))
            self.is_complete = not self._missing
        else:
            self._until_close, self.may_reuse = True, False
            self._missing, self._next = self._most + 1, self._read_body

    def _expect(self, count: int) -> None:
        if self._size + count > self._most:
            raise TooLarge
        self._missing, self._next = count, self._read_body

    def _read_body(self, data: bytes) -> bytes:
        taken = data if len(data) <= self._missing else data[: self._missing]
        self._parts.append(taken)
        self._size += len(taken)
        self._missing -= len(taken)
        if not self._missing:
            if self._until_close:
                raise TooLarge
            if self._chunked:
                self._next = self._read_chunk_end
            else:
                self.is_complete = True
        return data[len(taken) :]

    def _line(self, data: bytes) -> tuple[bytes | None, bytes]:
        """The next line, None where it is not complete; and what comes after it."""
        end = data.find(b"\r\n")
        if max(end, len(data) if end < 0 else 0) > MOST_LINE:
            raise HttpFault
        if end < 0:
            self._unread = data
            return None, b""
        return data[:end], data[end + 2 :]

    def _read_size(self, data: bytes) -> bytes:
        line, rest = self._line(data)
        if line is not None:
            found = SIZE.fullmatch(line)
            if found is None:
                raise HttpFault
            size = int(found[1], 16)
            if size:
                self._expect(size)
            else:
                self._next = self._read_trailer
        return rest

    def _read_chunk_end(self, data: bytes) -> bytes:
        line, rest = self._line(data)
        if line:
            raise HttpFault
        if line is not None:
            self._next = self._read_size
        return rest

    def _read_trailer(self, data: bytes) -> bytes:
        line, rest = self._line(data)
        if line is not None:
            self._size += len(line)  # so that trailers have an end too
            if self._size > self._most + MOST_HEAD:
                raise TooLarge
            self.is_complete = not line
        return rest


def _headers(lines: list[bytes]) -> Headers:
    found: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not NAME.fullmatch(name) or b"\n" in value or b"\r" in value or b"\0" in value:
            raise HttpFault
        name, value = name.lower(), value.strip(b" \t")
        found[name] = found[name] + b", " + value if name in found else value
    return found


class _Connection(asyncio.Protocol):
    """A connection, with one request under way or none."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._waiting: asyncio.Future[HttpAnswer] | None = None
        self.is_free = False  # for another request
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, message: tuple[bytes, bytes], deadline: float) -> HttpAnswer:
        """Send a head and a body. HttpFault, TimeoutError: there is no answer to them."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self.is_free = False
        self._reader = AnswerReader(self._most)
        self._waiting = loop.create_future()
        self._transport.writelines(message)
        timer = loop.call_at(deadline, self._fail, TimeoutError())  # which costs less than `asyncio.timeout`
        try:
            return await self._waiting
        finally:
            timer.cancel()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:  # nothing was asked
            self.close()
            return
        try:
            reader.feed(data)
        except HttpFault as fault:
            self._fail(fault)
            return
        if reader.is_complete or reader.status not in (0, 200):  # of an error nothing is told, so the rest may stay
            self.is_free = reader.is_complete and reader.may_reuse
            self._finish(reader)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_free = False
        if self._reader is None:
            return
        try:
            if error is not None:
                raise HttpFault
            self._reader.end()
        except HttpFault as fault:
            self._fail(fault)
        else:
            self._finish(self._reader)

    def close(self) -> None:
        self.is_free = False
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, reader: AnswerReader) -> None:
        self._reader = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(HttpAnswer(reader.status, reader.headers, reader.body))

    def _fail(self, fault: Exception) -> None:
        self._reader = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(fault)
        self.close()


class HttpClient:
    """So many connections to one server."""

    def __init__(self, url: str, connections: int, most: int, headers: Mapping[str, str]) -> None:
        """`most` bounds the bytes of an answer; `headers` go with every request."""
        self._base, self._most = URL(url.rstrip("/")), most
        self._host = self._base.raw_host or ""
        shown = f"[{self._host}]" if ":" in self._host else self._host
        port = "" if self._base.is_default_port() else f":{self._base.port}"
        self._shared = _written({"Host": shown + port, "Accept": "*/*", **headers})
        self._ssl = ssl.create_default_context() if self._base.scheme == "https" else None
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
        head = b"%s%sContent-Length: %d\r\n\r\n" % (self._start(method, path), _written(headers), len(body))
        deadline = asyncio.get_running_loop().time() + seconds
        if self._room.locked():
            async with asyncio.timeout_at(deadline):
                await self._room.acquire()
        else:
            await self._room.acquire()  # which does not wait
        try:
            return await self._ask((head, body), deadline)
        finally:
            self._room.release()

    async def _ask(self, message: tuple[bytes, bytes], deadline: float) -> HttpAnswer:
        connection = self._kept()
        if connection is None:
            async with asyncio.timeout_at(deadline):
                connection = await self._connect()
        try:
            return await connection.ask(message, deadline)
        finally:
            if connection.is_free:
                connection.idle_since = asyncio.get_running_loop().time()
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _start(self, method: str, path: str) -> bytes:
        if (method, path) not in self._starts:
            target = URL(f"{self._base}{path}").raw_path_qs
            self._starts[method, path] = f"{method} {target} HTTP/1.1\r\n".encode("ascii") + self._shared
        return self._starts[method, path]

    def _kept(self) -> _Connection | None:
        """An idle connection that is still open; those that were idle for long are closed."""
        oldest = asyncio.get_running_loop().time() - KEPT
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().close()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_free:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host, self._base.port or 0, type=socket.SOCK_STREAM)
        opened = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=SECOND_ADDRESS)
        try:
            name = self._host.rstrip(".") if self._ssl else None
            _, connection = await loop.create_connection(
                lambda: _Connection(self._most), sock=opened, ssl=self._ssl, server_hostname=name
            )
        except BaseException:
            opened.close()
            raise
        return connection


def _written(headers: Mapping[str, str]) -> bytes:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("ascii")
