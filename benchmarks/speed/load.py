"""A load generator in a process of its own: raw HTTP/1.1 on kept connections, as fast as answers come, or at a rate.

    python -m benchmarks load 127.0.0.1 8080 requests.bin --connections 16 --seconds 5 [--rate 1000]

`requests.bin` holds whole requests, head and body, each with its length before it in four bytes; they are sent in turn,
again and again. Prints one line of JSON: requests, errors, seconds, and latencies in milliseconds. At a rate, a latency
counts from when the request was due, so that a server that stalls is not spared.
"""

import argparse
import asyncio
import json
import time
from collections import deque
from itertools import cycle
from pathlib import Path

import uvloop

PATIENCE = 30.0  # seconds for the first answer, which on a busy machine may come after the time is up


class Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, load: "Load") -> None:
        self.load = load
        self.due = 0.0
        self.buffer = b""
        self.missing = -1  # bytes of the answer that are still to come; -1: its head is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.load.idle(self)

    def send(self, due: float) -> None:
        self.due, self.buffer, self.missing = due, b"", -1
        self.transport.write(next(self.load.requests))  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self.missing < 0:
            self.buffer += data
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            lower = head.lower()
            self.good = lower.startswith(b"http/1.1 200")
            start = lower.index(b"\r\ncontent-length:") + 17
            length = int(lower[start : start + 20].split(b"\r\n", 1)[0])
            self.missing = length - len(rest)
        else:
            self.missing -= len(data)
        if self.missing == 0:
            self.load.done(self)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.load.over:
            self.load.errors += 1


class Load:
    def __init__(self, requests: list[bytes], seconds: float, rate: float) -> None:
        self.requests, self.seconds, self.rate = cycle(requests), seconds, rate
        self.latencies: list[float] = []
        self.errors, self.over = 0, False
        self.free: deque[Client] = deque()
        self.waiting: deque[float] = deque()

    def idle(self, client: Client) -> None:
        if self.rate:
            if self.waiting:
                client.send(self.waiting.popleft())
            else:
                self.free.append(client)
        else:
            client.send(time.perf_counter())

    def done(self, client: Client) -> None:
        self.latencies.append(time.perf_counter() - client.due)
        self.errors += not client.good
        if not self.over:
            self.idle(client)

    async def pace(self) -> None:
        """Requests become due at even intervals, whether answers come or not."""
        start, sent = time.perf_counter(), 0
        while not self.over:
            now = time.perf_counter()
            while sent < (now - start) * self.rate:
                due = start + sent / self.rate
                if self.free:
                    self.free.popleft().send(due)
                else:
                    self.waiting.append(due)
                sent += 1
            # uvloop counts in whole milliseconds: with less this would spin, and take its core from whoever shares it
            await asyncio.sleep(0.001)

    async def run(self, host: str, port: int, connections: int) -> dict[str, float]:
        loop = asyncio.get_running_loop()
        clients = [await loop.create_connection(lambda: Client(self), host, port) for _ in range(connections)]
        start = time.perf_counter()
        self.latencies.clear()
        pacing = loop.create_task(self.pace()) if self.rate else None
        await asyncio.sleep(self.seconds)
        while not self.latencies and not self.errors and time.perf_counter() - start < PATIENCE:
            await asyncio.sleep(0.01)
        self.over = True
        elapsed = time.perf_counter() - start
        count = len(self.latencies)
        if pacing is not None:
            await pacing
        for transport, _ in clients:
            transport.close()
        ordered = sorted(self.latencies) or [0.0]
        quantiles = {
            f"p{q:g}": 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * q / 100))] for q in (50, 95, 99)
        }
        return {
            "requests": count,
            "errors": self.errors,
            "seconds": elapsed,
            "unanswered": len(self.waiting),
            **quantiles,
        }


def read(path: Path) -> list[bytes]:
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : end])
        at = end
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("requests", type=Path)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=0.0)
    given = parser.parse_args()
    load = Load(read(given.requests), given.seconds, given.rate)
    print(json.dumps(uvloop.run(load.run(given.host, given.port, given.connections))))


if __name__ == "__main__":
    main()
