"""The configuration that the processes of one gateway share, in a file without a name.

It may hold the address of a database, with its password: whatever kills the gateway, nothing of it stays behind.

    main      shared.offer(opened)        at SIGHUP: read and checked, with its veils
    workers   shared.offered()            load the models that it names, then `keep` it, or `reject` it
              shared.good()               what a worker starts with: the last that was kept
"""

import os
import pickle
import struct
import tempfile
from multiprocessing import reduction
from typing import Any, NamedTuple

from scoreveil.gateway.opened import OpenedConfig

PLACE = struct.Struct("<QQ")  # where an entry begins, and its length; entries are appended and never change
GOOD, OFFERED = 0, PLACE.size


class Version(NamedTuple):
    """An opened configuration, and where it is: later ones have larger places."""

    place: int
    length: int
    opened: OpenedConfig


class SharedConfig:
    """Travels to workers as they are spawned, through an inherited file descriptor."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._last: Version | None = None  # that was read here

    @classmethod
    def of(cls, opened: OpenedConfig) -> "SharedConfig":
        with tempfile.TemporaryFile() as unnamed:
            shared = cls(os.dup(unnamed.fileno()))
        os.pwrite(shared._file, bytes(2 * PLACE.size), 0)
        shared.offer(opened)
        shared.keep(shared.offered())
        return shared

    def __reduce__(self) -> tuple[object, ...]:
        return _arrived, (reduction.DupFd(self._file),)

    def good(self) -> Version:
        return self._read(GOOD)

    def offered(self) -> Version:
        return self._read(OFFERED)

    def offer(self, opened: OpenedConfig) -> None:
        entry = pickle.dumps(opened)
        place = os.fstat(self._file).st_size
        os.pwrite(self._file, entry, place)
        self._point(OFFERED, place, len(entry))

    def keep(self, version: Version) -> None:
        """A worker serves this one, so a later one can start with it."""
        if version.place > self._place(GOOD)[0]:
            self._point(GOOD, version.place, version.length)

    def reject(self, version: Version) -> None:
        """What it names cannot be opened; the last good one stays."""
        if version.place == self._place(OFFERED)[0]:
            self._point(OFFERED, *self._place(GOOD))

    def _place(self, which: int) -> tuple[int, int]:
        place, length = PLACE.unpack(os.pread(self._file, PLACE.size, which))
        return place, length

    def _point(self, which: int, place: int, length: int) -> None:
        os.pwrite(self._file, PLACE.pack(place, length), which)

    def _read(self, which: int) -> Version:
        place, length = self._place(which)
        if self._last is None or self._last.place != place:
            entry = os.pread(self._file, length, place)
            self._last = Version(place, length, pickle.loads(entry))  # written by the main process alone
        return self._last


def _arrived(file: Any) -> SharedConfig:
    return SharedConfig(file.detach())
