"""Messages between a worker and the writer: a length, then that many bytes. Little-endian, no padding.

ask    id, ASK, numbers and lengths, then the model, client, request, settings, marks and outcomes
bind   id, BIND, facts as JSON
ping   id, PING
reply  id, DONE and answers or JSON, or CONFLICT, or UNAVAILABLE and a few words

The upper bits of an id are its worker's own, the lower ones count its calls. A call that is sent again, because its
reply was lost with the writer's owner, keeps its id and says so (AGAIN).
"""

import json
import struct
from collections.abc import Iterator, Mapping

import numpy as np

from scoreveil.ledger.releases import REFUSED, REPEATS, SETTINGS, Answers, Questions

PING, ASK, BIND = 1, 2, 3
AGAIN = 0x80  # added to the kind
DONE, CONFLICT, UNAVAILABLE = 1, 2, 3

_length = struct.Struct("<I")
_head = struct.Struct("<QB")
_ask = struct.Struct(
    "<QIQQQBHHBIBH"
)  # units, answers, limit, price, client's limit, repeat; lengths; rows, marks, width
_answers = struct.Struct("<BI")  # refused, fresh
MAX_MESSAGE = 1 << 28  # bytes
COUNTED = 24  # lower bits of an id


def framed(ident: int, kind: int, body: bytes = b"") -> bytes:
    """ValueError: it is too long."""
    length = _head.size + len(body)
    if length > MAX_MESSAGE:
        raise ValueError(f"One call has {length:,} bytes of marks and outcomes; {MAX_MESSAGE:,} is the most.")
    return _length.pack(length) + _head.pack(ident, kind) + body


def ask_body(asked: Questions) -> bytes:
    model, client, request = asked.model.encode(), asked.client.encode(), asked.request or b""
    numbers = _ask.pack(
        asked.units, asked.answers, asked.limit, asked.price, asked.client_limit, REPEATS.index(asked.repeat),
        len(model), len(client), len(request), *asked.marks.shape, asked.width,
    )  # fmt: skip
    return b"".join((numbers, model, client, request, asked.settings, asked.marks.tobytes(), asked.outcomes))


def read_ask(body: bytes) -> Questions:
    """ValueError: this is no such call."""
    if len(body) < _ask.size:
        raise ValueError(f"Expected a call of at least {_ask.size} bytes, got {len(body)}.")
    units, answers, limit, price, client_limit, repeat, *lengths, rows, marks, width = _ask.unpack_from(body)
    parts, start = [], _ask.size
    for length in (*lengths, SETTINGS, rows * marks * 8, rows * width):
        parts.append(body[start : start + length])
        start += length
    if start != len(body) or repeat >= len(REPEATS):
        raise ValueError(f"Expected a call of {start} bytes, got {len(body)}.")
    model, client, request, settings, all_marks, outcomes = parts
    return Questions(
        model.decode(), settings, np.frombuffer(all_marks, np.int64).reshape(rows, marks), outcomes, units, answers,
        limit, REPEATS[repeat], client.decode(), price, client_limit, request or None,
    )  # fmt: skip


def answers_body(answers: Answers) -> bytes:
    return _answers.pack(REFUSED.index(answers.refused), answers.fresh) + answers.outcomes


def read_answers(body: bytes) -> Answers:
    refused, fresh = _answers.unpack_from(body)
    return Answers(REFUSED[refused], body[_answers.size :], fresh)


def facts_body(facts: Mapping[str, str]) -> bytes:
    return json.dumps(dict(facts)).encode()


def read_facts(body: bytes) -> dict[str, str]:
    """ValueError: these are no texts by name."""
    facts = json.loads(body)
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        raise ValueError("Expected texts by name.")
    return facts


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
