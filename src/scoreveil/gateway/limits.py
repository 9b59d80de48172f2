"""How much a worker holds at a time, and how often each client may ask.

The second are token buckets that all workers of a machine share, in one memory-mapped file. A bucket refills at its
rate and holds one second's worth, one token at least. The file has a place for each bucket, found by hash; where all
places of its neighbourhood are taken, the one that was idle longest is given away, full, so that a flood of names
cannot grow it.
"""

import fcntl
import hashlib
import math
import mmap
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PLACES, NEIGHBOURS = 16384, 8
PLACE = struct.Struct("<16s2d")  # whose, when last used, tokens then


def network(address: str) -> str:
    """What an address is counted under: in IPv6 its /64, in which one host may have any number of addresses."""
    try:
        packed = socket.inet_pton(socket.AF_INET6, address)
    except OSError:
        return address
    return packed[:8].hex() if any(packed[:8]) else address  # IPv4 written as IPv6 begins with zeros


class Held:
    """How many bytes of requests are in memory at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0

    @contextmanager
    def bodies(self) -> Iterator[Callable[[int], bool]]:
        """For one request: a function that takes room for more bytes, or says that there is none. All ends with it."""
        taken = 0

        def take(count: int) -> bool:
            nonlocal taken
            if self._bytes + count > self._most:
                return False
            taken += count
            self._bytes += count
            return True

        try:
            yield take
        finally:
            self._bytes -= taken


class Buckets:
    """`take` says how many seconds to wait; 0: go ahead."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, PLACES * PLACE.size)
        self._map = mmap.mmap(self._file, PLACES * PLACE.size)
        self._clock = clock

    def take(self, name: str, rate: float, count: float) -> float:
        """Take `count` tokens out of a bucket that refills with `rate` a second, or none."""
        key = hashlib.blake2b(name.encode(), digest_size=16).digest()
        full = max(rate, 1.0)
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            now = self._clock()
            place, since, tokens = self._find(key, now)
            tokens = min(full, tokens + (now - since) * rate)
            # who asks for more than a bucket holds waits for a full one, and owes the rest
            wait = (min(count, full) - tokens) / rate
            if wait <= 1e-9:
                tokens, wait = tokens - count, 0.0
            PLACE.pack_into(self._map, place * PLACE.size, key, now, tokens)
            return wait
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._map.close()
        os.close(self._file)

    def _find(self, key: bytes, now: float) -> tuple[int, float, float]:
        start = int.from_bytes(key[:4], "little")
        idle, oldest = 0, math.inf
        for step in range(NEIGHBOURS):
            place = (start + step) % PLACES
            held, since, tokens = PLACE.unpack_from(self._map, place * PLACE.size)
            if held == key:
                return place, since, tokens
            if since < oldest:
                idle, oldest = place, since
        return idle, now, math.inf
