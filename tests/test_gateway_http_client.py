"""The client that asks model servers: whole answers, read strictly, over connections that are used again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from scoreveil.gateway.http_client import AnswerReader, HttpAnswer, HttpClient, HttpFault, TooLarge

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = {
    "length": (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello", b"hello", True),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    "chunks": (CHUNKED + b"3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\n\r\n", b"hello", True),
    "trailers": (CHUNKED + b"5\r\nhello\r\n0\r\nx: y\r\n\r\n", b"hello", True),
    "continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
    "closing": (OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello", False),
    "old, kept": (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 5\r\n\r\nhello", b"hello", True),
}
BAD = {
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "another version": b"HTTP/2 200\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "two lengths": OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "the same length twice": OK + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "length and chunks": OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "negative length": OK + b"Content-Length: -5\r\n\r\nhello",
    "length in words": OK + b"Content-Length: five\r\n\r\nhello",
    "folded header": OK + b"Content-Length: 5\r\n x\r\n\r\nhello",
    "space before colon": OK + b"Content-Length : 5\r\n\r\nhello",
    "header without colon": OK + b"Content-Length\r\n\r\nhello",
    "bare line feed": OK + b"a: b\nContent-Length: 5\r\n\r\nhello",
    "endless head": OK + b"a: " + b"x" * 100_000,
    "no size": CHUNKED + b"\r\nhello\r\n0\r\n\r\n",
    "size in words": CHUNKED + b"five\r\nhello\r\n0\r\n\r\n",
    "negative size": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "a chunk that goes on": CHUNKED + b"3\r\nhello\r\n0\r\n\r\n",
    "endless size": CHUNKED + b"0" * 100_000,
}


def read(data: bytes, step: int, most: int = 100) -> AnswerReader:
    reader = AnswerReader(most)
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
    return reader


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize("case", GOOD)
def test_an_answer_is_read_however_its_bytes_come(case: str, step: int) -> None:
    data, body, may_reuse = GOOD[case]
    reader = read(data, step)
    assert (reader.is_complete, reader.status, reader.taken(), reader.may_reuse) == (True, 200, body, may_reuse)
    for end in range(len(data)):
        assert not read(data[:end], step).is_complete


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize("case", BAD)
def test_what_is_not_well_formed_is_no_answer(case: str, step: int) -> None:
    with pytest.raises(HttpFault):
        read(BAD[case], step)


@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 101\r\n\r\n",
        CHUNKED + b"32\r\n" + b"x" * 50 + b"\r\n33\r\n" + b"x" * 51,
        OK + b"\r\n" + b"x" * 101,
    ],
)
def test_an_answer_has_a_largest_size(data: bytes) -> None:
    with pytest.raises(TooLarge):
        read(data, 1000)


def test_without_a_length_an_answer_ends_with_its_connection() -> None:
    reader = read(OK + b"\r\nhello", 3)
    assert not reader.is_complete
    reader.end()
    assert (reader.is_complete, reader.taken(), reader.may_reuse) == (True, b"hello", False)
    for cut in (OK, OK + b"Content-Length: 5\r\n\r\nhell", CHUNKED + b"5\r\nhello\r\n"):
        with pytest.raises(HttpFault):
            read(cut, 1000).end()


def test_a_connection_over_which_more_than_an_answer_came_is_not_used_again() -> None:
    assert not read(GOOD["length"][0] + OK, 1000).may_reuse


Reply = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each request as told; remembers which connection it came over."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.connections = self.most_at_once = self._open = 0
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                self.heads.append(head)
                self._open += 1
                self.most_at_once = max(self.most_at_once, self._open)
                await self.reply(body, writer)
                self._open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def running(reply: Reply, connections: int = 4) -> AsyncIterator[tuple[Server, HttpClient]]:
    server = Server(reply)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    client = HttpClient(f"http://127.0.0.1:{port}/behind/", connections, 1000, {"User-Agent": "test"})
    try:
        yield server, client
    finally:
        client.close()
        listening.close()


async def echo(body: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def post(client: HttpClient, body: bytes = b"", seconds: float = 5.0) -> HttpAnswer:
    return await client.ask("POST", "/a b", seconds, {"Content-Type": "text/plain"}, body)


def test_one_connection_serves_one_request_after_the_other() -> None:
    async def run() -> None:
        async with running(echo) as (server, client):
            for i in range(5):
                assert await post(client, b"%d" % i) == (200, {b"x-a": b"1", b"content-length": b"1"}, b"%d" % i)
            assert server.connections == 1
            assert server.heads[0].startswith(b"POST /behind/a%20b HTTP/1.1\r\nHost: 127.0.0.1:")
            assert b"\r\nUser-Agent: test\r\nContent-Type: text/plain\r\n" in server.heads[0]

    asyncio.run(run())


def test_many_at_once_share_as_many_connections_as_are_allowed() -> None:
    async def slow(body: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.02)
        await echo(body, writer)

    async def run() -> None:
        async with running(slow, connections=3) as (server, client):
            answers = await asyncio.gather(*(post(client, b"%d" % i) for i in range(12)))
            assert [answer.body for answer in answers] == [b"%d" % i for i in range(12)]
            assert (server.connections, server.most_at_once) == (3, 3)

    asyncio.run(run())


def test_what_came_late_is_nobodys_answer() -> None:
    """After a time-out the answer of the first request must not become that of the second."""

    async def reply(body: bytes, writer: asyncio.StreamWriter) -> None:
        if body == b"slow":
            await asyncio.sleep(0.2)
        await echo(body, writer)

    async def run() -> None:
        async with running(reply) as (server, client):
            with pytest.raises(TimeoutError):
                await post(client, b"slow", seconds=0.05)
            assert (await post(client, b"fast")).body == b"fast"
            await asyncio.sleep(0.3)
            assert (await post(client, b"last")).body == b"last"
            assert server.connections == 2

    asyncio.run(run())


@pytest.mark.parametrize("surplus", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"x"])
def test_an_answer_that_nobody_asked_for_is_not_given(surplus: bytes) -> None:
    async def reply(body: bytes, writer: asyncio.StreamWriter) -> None:
        await echo(body, writer)
        if body == b"together":
            writer.write(surplus)
        elif body == b"later":
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(surplus)

    async def run() -> None:
        async with running(reply) as (server, client):
            for first in (b"together", b"later"):
                assert (await post(client, first)).body == first
                await asyncio.sleep(0.1)
                assert (await post(client, b"next")).body == b"next"
            assert server.connections == 3

    asyncio.run(run())


def test_a_connection_that_the_server_closed_is_replaced() -> None:
    async def once(body: bytes, writer: asyncio.StreamWriter) -> None:
        await echo(body, writer)
        writer.close()

    async def run() -> None:
        async with running(once) as (server, client):
            for i in range(3):
                assert (await post(client, b"%d" % i)).body == b"%d" % i
                await asyncio.sleep(0.05)
            assert server.connections == 3

    asyncio.run(run())


def test_an_error_is_told_by_its_status_without_waiting_for_its_body() -> None:
    async def fail(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 500\r\n\r\nbecause")

    async def run() -> None:
        async with running(fail) as (server, client):
            assert (await post(client)).status == 503
            assert (await post(client)).status == 503
            assert server.connections == 2

    asyncio.run(run())


def test_a_server_that_leaves_or_is_not_there_gives_no_answer() -> None:
    async def leave(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Content-Length: 5\r\n\r\nhell")
        writer.close()

    async def run() -> None:
        async with running(leave) as (_, client):
            with pytest.raises(HttpFault):
                await post(client)
        nobody = HttpClient("http://127.0.0.1:9", 1, 1000, {})
        with pytest.raises(OSError, match="Connect call failed"):
            await post(nobody)

    asyncio.run(run())
