"""Messages between a worker and the writer: a length, the call's number, a kind, then a body in MessagePack.

ask    id, ASK, ReleaseRequest
bind   id, BIND, facts
ping   id, PING
reply  id, DONE and ReleaseResult or facts, or CONFLICT, or UNAVAILABLE and a few words

The upper bits of an id are its worker's own, the lower ones count its calls. A call that is sent again, because its
reply was lost with the writer's owner, keeps its id and says so (AGAIN).
"""

import struct
from collections.abc import Iterator

import msgspec
import numpy as np

from scoreveil.ledger.releases import Marks, ReleaseRequest, ReleaseResult

PING, ASK, BIND = 1, 2, 3
AGAIN = 0x80  # added to the kind
DONE, CONFLICT, UNAVAILABLE = 1, 2, 3

_length = struct.Struct("<I")
_head = struct.Struct("<QB")
MAX_MESSAGE = 1 << 28  # bytes
COUNTED = 24  # lower bits of an id


def _sent(marks: object) -> tuple[int, bytes]:
    if not isinstance(marks, np.ndarray):
        raise NotImplementedError
    return marks.shape[1], marks.tobytes()


def _received(_: type, sent: tuple[int, bytes]) -> Marks:
    width, marks = sent
    return np.frombuffer(marks, np.int64).reshape(-1, width)


packed = msgspec.msgpack.Encoder(enc_hook=_sent).encode
# each raises ValueError where a body is something else
read_questions = msgspec.msgpack.Decoder(ReleaseRequest, dec_hook=_received).decode
read_answers = msgspec.msgpack.Decoder(ReleaseResult).decode
read_facts = msgspec.msgpack.Decoder(dict[str, str]).decode


def framed(ident: int, kind: int, body: bytes = b"") -> bytes:
    """ValueError: it is too long."""
    length = _head.size + len(body)
    if length > MAX_MESSAGE:
        raise ValueError(f"One call has {length:,} bytes of marks and outcomes; {MAX_MESSAGE:,} is the most.")
    return _length.pack(length) + _head.pack(ident, kind) + body


class Messages:
    """Bytes as they come in, whole messages as they are complete."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, data: bytes | bytearray) -> Iterator[tuple[int, int, bytes]]:
        """(id, kind, body) of every message that is now complete. ValueError: this is no such stream."""
        self._waiting += data
        while len(self._waiting) >= _length.size:
            (length,) = _length.unpack_from(self._waiting)
            if not _head.size <= length <= MAX_MESSAGE:
                raise ValueError(f"Expected a message of {_head.size} to {MAX_MESSAGE} bytes, got {length}.")
            end = _length.size + length
            if len(self._waiting) < end:
                return
            ident, kind = _head.unpack_from(self._waiting, _length.size)
            body = bytes(self._waiting[_length.size + _head.size : end])
            del self._waiting[:end]
            yield ident, kind, body
