"""Attacks on the gateway that cost others their answers: each is refused, and the others are served."""

import concurrent.futures
import contextlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gateway_servers import SLOW, Behind, Gateway, gateway, until, v2
from scoreveil.gateway.auth import key_hash

pytestmark = pytest.mark.slow

KEY = "sv_the-key-of-alice-in-the-tests-0001"
MIB = 1 << 20
INFER = "/v2/models/slow/infer"
X = np.float32([[1, 0]])


class Asked:
    """What asks the model behind whether it is ready: how often, and how many at a time."""

    def __init__(self) -> None:
        self.times = self.now = self.most = 0
        self._lock = threading.Lock()

    def __call__(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        with self._lock:
            self.times += 1
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.2)
        with self._lock:
            self.now -= 1
        return 200, {"Content-Type": "application/json"}, b"{}"


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, asked: Asked) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "slow_model.py").write_text(SLOW)
    behind = Behind(asked)
    toml = f"""
    [auth]
    mode = "keys"
    clients = [{{ name = "alice", sha256 = "{key_hash(KEY.encode())}" }}]
    [limits]
    body_bytes = {2 * MIB}
    bytes_in_flight = {4 * MIB}
    [models.slow]
    python = "slow_model:make"
    epsilon = 1.0
    [models.counted]
    python = "slow_model:make"
    epsilon = 1.0
    memory.epsilon = 1.0
    memory.repeat = "refuse"
    [models.behind]
    epsilon = 1.0
    upstream = {{ url = "{behind.url}" }}
    """
    with gateway(folder, toml, PYTHONPATH=f"{folder}:{os.environ.get('PYTHONPATH', '')}") as made:
        yield made
    behind.close()


def ask(server: Gateway, body: Any, path: str = INFER, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return server.request("POST", path, body, authorization=f"Bearer {KEY}", **headers)


def raw(server: Gateway, *lines: str, body: bytes = b"") -> bytes:
    """The first line that comes back for a request written by hand."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall("\r\n".join([*lines, "Host: x", "", ""]).encode() + body)
        return connection.makefile("rb").readline()


# Connections


def test_idle_connections_lock_nobody_out_and_end(server: Gateway) -> None:
    """1,500 of them, some of which have begun a request: others are answered, and in the end all are closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        idle = []
        for i in range(1500):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            if i % 3 == 0:
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nX-")
            idle.append(connection)
        assert server.request("GET", "/v2/health/live")[0] == 200
        assert ask(server, v2(X))[0] == 200
        for connection in idle:
            connection.settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(4096):  # a refusal, perhaps, and then the end
                    pass


# Headers


def test_headers_that_cannot_be_are_refused(server: Gateway) -> None:
    bearer = f"Authorization: Bearer {KEY}"
    for digit in "09":
        assert b" 400 " in raw(server, f"POST {INFER} HTTP/1.1", bearer, f"Content-Length: {digit * 5000}")
    assert b" 400 " in raw(server, "GET /v2 HTTP/1.1", bearer, "Authorization: Bearer another")
    assert b" 400 " in raw(server, "GET /v2 HTTP/1.1", "Authorization: Bearer another", bearer)
    assert b" 400 " in raw(server, "GET /v2 HTTP/1.1", "X-API-Key: another", f"X-API-Key: {KEY}")
    assert b" 401 " in raw(server, "GET /v2 HTTP/1.1", "Authorization: Bearer ")
    chunk = b"2\r\n{}\r\n0\r\n\r\n"
    for coding in (["gzip, chunked"], ["chunked", "chunked"], ["gzip"], ["chunked, identity"]):
        lines = [f"Transfer-Encoding: {each}" for each in coding]
        assert b" 400 " in raw(server, f"POST {INFER} HTTP/1.1", bearer, *lines, body=chunk), coding
    assert b" 200 " in raw(server, "GET /v2 HTTP/1.1", bearer, "X-Other: 1", "X-Other: 2")


def test_no_second_request_hides_behind_two_lengths(server: Gateway) -> None:
    """Content-Length and Transfer-Encoding disagree: whichever another server on the way believed, what comes after the
    request is no request here, and the connection ends."""
    hidden = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    chunks = b"2\r\n{}\r\n0\r\n\r\n"
    for length in (4, len(chunks), len(chunks) + len(hidden)):
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {length}\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks + hidden)
            answers = connection.makefile("rb").read()
        assert answers.count(b"HTTP/1.1 ") == 1
        assert b'"live"' not in answers


def answers_to(server: Gateway, request: bytes) -> bytes:
    """All that comes back until the connection ends, or for a second."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=1) as connection:
        connection.sendall(request)
        answers = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while part := connection.recv(65536):
                answers += part
    return answers


CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, gzip\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\nContent-Length: 12\r\n",
        b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 12\r\n",
        b'Transfer-Encoding: "chunked"\r\nContent-Length: 12\r\n',
        b"Transfer-Encoding : chunked\r\nContent-Length: 12\r\n",
        b"Transfer-Encoding: \r\nContent-Length: 12\r\n",
        b"Transfer-Encoding:\r\n chunked\r\n",
        CHUNKED + CHUNKED,
        CHUNKED + b"X: a\r\n b\r\n",
        CHUNKED + b"X: a\0b\r\n",
        CHUNKED + b"X: a\rY: b\r\n",
        CHUNKED + b"Xfoo\r\n",
        CHUNKED + b"Host: y\r\n",
        b"Content-Length: 12\r\nContent-Length: 0\r\n",
        b"Content-Length: 12, 12\r\n",
        b"Content-Length: +12\r\n",
        b"Content-Length: 0xc\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length : 12\r\n",
        b"Content-Length: 18446744073709551628\r\n",
    ],
)
def test_what_follows_a_request_of_doubtful_length_is_no_request(server: Gateway, lines: bytes) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n".encode()
    hidden = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = answers_to(server, head + lines + b"\r\n2\r\n{}\r\n0\r\n\r\n" + hidden)
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 ") == 1
    assert b'"live"' not in answers


@pytest.mark.parametrize("version", [b"1.0", b"1.2", b"2.0"])
def test_chunks_are_for_one_version_alone(server: Gateway, version: bytes) -> None:
    head = b"POST /v2 HTTP/%s\r\nHost: x\r\n" % version
    answers = answers_to(server, head + CHUNKED + b"\r\n0\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b'"live"' not in answers
    assert b" 200 " not in answers


@pytest.mark.parametrize(
    "chunks",
    [
        b"2;a\n{}\r\n0\r\n\r\n",
        b"+2\r\n{}\r\n0\r\n\r\n",
        b"0x2\r\n{}\r\n0\r\n\r\n",
        b"10000000000000002\r\n{}\r\n0\r\n\r\n",
        b"2\n{}\r\n0\r\n\r\n",
        b"2\r\n{}\n0\r\n\r\n",
        b"2\r\n{}0\r\n\r\n",
        b"2\r\n{}\r\n0\n\n",
        b"2;" + b"a" * 200_000 + b"\r\n{}\r\n0\r\n\r\n",
        b"2\r\n{}\r\n0\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    ],
)
def test_broken_chunks_end_the_connection(server: Gateway, chunks: bytes) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n".encode()
    hidden = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    answers = answers_to(server, head + CHUNKED + b"\r\n" + chunks + hidden)
    assert b'"live"' not in answers
    assert answers.count(b"HTTP/1.1 ") <= 1


def test_trailers_are_no_headers(server: Gateway) -> None:
    """A key that comes after the body is none."""
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n".encode()
    trailer = f"Authorization: Bearer {KEY}\r\n\r\n".encode()
    assert answers_to(server, head + CHUNKED + b"\r\n2\r\n{}\r\n0\r\n" + trailer).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("more", [b"X: " + b"a" * 2_000_000 + b"\r\n", b"X: a\r\n" * 5000], ids=["long", "many"])
def test_huge_headers_are_refused(server: Gateway, more: bytes) -> None:
    answers = answers_to(server, b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n" + more + b"\r\n")
    assert b" 200 " not in answers


# Bodies


def filled(start: bytes, part: bytes, end: bytes) -> bytes:
    """As many parts as a body may have."""
    return start + b",".join([part] * ((2 * MIB - len(start) - len(end)) // (len(part) + 1))) + end


def test_very_many_small_parts_are_refused_before_they_are_parsed(server: Gateway) -> None:
    tensor = b'{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,0]}'
    bodies = [
        filled(b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[', b"[]", b"]}]}"),
        filled(b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[', b"[[[[]]]]", b"]}]}"),
        filled(b'{"inputs":[' + tensor + b'],"outputs":[', b"{}", b"]}"),
        filled(b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"BYTES","data":[', b'""', b"]}]}"),
    ]
    for body in bodies:
        status, _, answer = ask(server, body)
        assert (status, json.loads(answer)["error"].partition(";")[0].startswith("The JSON has too many")) == (
            413,
            True,
        )
    # fewer parts than that are read, and refused for what they are
    status, _, answer = ask(server, filled(b'{"inputs":[', tensor, b"]}"))
    assert status == 400, answer
    assert b"length <= 1024" in answer
    status, _, answer = ask(
        server, filled(b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"BYTES","data":[', b'"abc"', b"]}]}")
    )
    assert (status, b"the model takes FP32" in answer) == (400, True)
    # long requests are answered as short ones are
    many = np.zeros((4096, 2), dtype=np.float32)
    spaced = json.dumps(v2(many)).encode() + b" " * MIB
    assert ask(server, spaced)[0] == 200


def test_held_bodies_are_bounded_and_give_way(server: Gateway) -> None:
    """Whoever sends nearly all of many bodies takes no more memory than is allowed; the others come later."""
    whole = b'{"inputs":[]}' + b" " * (2 * MIB - 13)
    assert ask(server, whole)[0] == 400
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(whole)}\r\n\r\n"
    with contextlib.ExitStack() as stack:

        def busy() -> bool:  # who comes first is held, and who comes too late is refused: so one more each time
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            with contextlib.suppress(ConnectionError):
                connection.sendall(head.encode() + whole[: -MIB // 8])
            status, headers, _ = ask(server, whole)
            return (status, headers.get("retry-after")) == (503, "1")

        until(busy)
        assert server.request("GET", "/v2/health/live")[0] == 200
        assert ask(server, v2(X))[0] == 200  # a small one finds room
    until(lambda: ask(server, whole)[0] == 400)


def test_refused_requests_with_fresh_keys_do_not_grow_the_ledger(server: Gateway) -> None:
    path, spent = "/v2/models/counted/infer", v2(np.float32([[i, 0] for i in range(1000)]))
    assert ask(server, spent, path)[0] == 200

    def size() -> int:
        return sum(file.stat().st_size for file in server.folder.glob("scoreveil-ledger.db*") if file.is_file())

    before = size()
    for i in range(20):
        assert ask(server, spent, path, idempotency_key=f"key {i}")[0] == 429
    assert size() - before < 100_000  # at 20 times 1,000 records


# Readiness


def test_the_model_is_asked_whether_it_is_ready_once_at_a_time(server: Gateway, asked: Asked) -> None:
    """However many ask, and nobody needs a key for it."""
    start = time.monotonic()
    before = asked.times
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        statuses = list(pool.map(lambda _: server.request("GET", "/v2/health/ready")[0], range(60)))
    assert statuses == [200] * 60
    assert asked.most == 1
    assert asked.times - before <= 1 + (time.monotonic() - start) / 0.5
