"""Messages between a worker and the writer: a length, then that many bytes. Little-endian, no padding.

charge   id, CHARGE, limit, units, lengths of (model, client, request), then these and the keys
ask      id, ASK, numbers and lengths, then the model, client, request, settings, keys, marks and outcomes
bind     id, BIND, facts as JSON
convert  id, CONVERT, model, unit and price as JSON
ping     id, PING
reply    id, DONE and a row for each key, or JSON, or CONFLICT, or UNAVAILABLE and a few words

The upper bits of an id are its worker's own, the lower ones count its calls: a call that is sent again keeps its id.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping

from scoreveil.ledger.charges import KEY, MOST_ROWS, Charge, Grant
from scoreveil.ledger.releases import MARK, REFUSED, REPEATS, SETTINGS, Answered, Questions

CHARGE, PING, ASK, BIND, CONVERT = 1, 2, 3, 4, 5
DONE, CONFLICT, UNAVAILABLE = 1, 2, 3

_length = struct.Struct("<I")
_head = struct.Struct("<QB")
_charge = struct.Struct("<QQHHB")
_row = struct.Struct("<Q?Q")
_limit = struct.Struct("<Q")
_ask = struct.Struct("<QQQQBHHBIHI")  # limit, units, price, client's limit, repeats; lengths; rows, marks, outcome
_answer = struct.Struct(f"<{KEY}sQ?QBH")  # key, number, granted, spent, refused, length of the outcome
LARGEST = 64 * MOST_ROWS  # bytes of a message
COUNTED = 24  # lower bits of an id


def framed(ident: int, kind: int, body: bytes = b"") -> bytes:
    return _length.pack(_head.size + len(body)) + _head.pack(ident, kind) + body


def charge_body(charge: Charge) -> bytes:
    model, client, request = charge.model.encode(), charge.client.encode(), charge.request or b""
    numbers = _charge.pack(charge.limit, charge.units, len(model), len(client), len(request))
    return b"".join((numbers, model, client, request, charge.keys))


def read_charge(body: bytes) -> Charge:
    """ValueError: this is no charge."""
    if len(body) < _charge.size:
        raise ValueError(f"Expected a charge of at least {_charge.size} bytes, got {len(body)}.")
    limit, units, model, client, request = _charge.unpack_from(body)
    start = _charge.size
    client_at, request_at, keys_at = start + model, start + model + client, start + model + client + request
    if len(body) < keys_at or (len(body) - keys_at) % KEY:
        raise ValueError(f"The keys after the names are not a whole number of {KEY} bytes.")
    return Charge(
        model=body[start:client_at].decode(),
        keys=body[keys_at:],
        limit=limit,
        units=units,
        client=body[client_at:request_at].decode(),
        request=body[request_at:keys_at] or None,
    )


def grants_body(grants: list[Grant], limit: int) -> bytes:
    """Grants without their keys, which whoever asked has. Also the form in which answered requests are stored."""
    pack = _row.pack
    return _limit.pack(limit) + b"".join([pack(number, granted, spent) for _, number, granted, spent, _ in grants])


def read_grants(charge: Charge, body: bytes) -> list[Grant]:
    (limit,) = _limit.unpack_from(body)
    rows = _row.iter_unpack(body[_limit.size :])
    return [
        Grant(key, number, granted, spent, limit)
        for key, (number, granted, spent) in zip(charge.split(), rows, strict=True)
    ]


def ask_body(asked: Questions) -> bytes:
    model, client, request = asked.model.encode(), asked.client.encode(), asked.request or b""
    rows = len(asked)
    numbers = _ask.pack(
        asked.limit, asked.units, asked.price, asked.client_limit, REPEATS.index(asked.repeats),
        len(model), len(client), len(request), rows, len(asked.marks) // (rows * MARK), asked.outcome_bytes,
    )  # fmt: skip
    return b"".join((numbers, model, client, request, asked.settings, asked.keys, asked.marks, asked.outcomes))


def read_ask(body: bytes) -> Questions:
    """ValueError: this is no such call."""
    if len(body) < _ask.size:
        raise ValueError(f"Expected a call of at least {_ask.size} bytes, got {len(body)}.")
    limit, units, price, client_limit, repeats, *lengths, rows, marks, outcome = _ask.unpack_from(body)
    parts, start = [], _ask.size
    for length in (*lengths, SETTINGS, rows * KEY, rows * marks * MARK, rows * outcome):
        parts.append(body[start : start + length])
        start += length
    if start != len(body) or repeats >= len(REPEATS):
        raise ValueError(f"Expected a call of {start} bytes, got {len(body)}.")
    model, client, request, settings, keys, all_marks, outcomes = parts
    return Questions(
        model.decode(), settings, keys, all_marks, outcomes, limit, units, price, REPEATS[repeats], client.decode(),
        client_limit, request or None,
    )  # fmt: skip


def answers_body(answers: Iterable[Answered]) -> bytes:
    """Also the form in which answered requests are stored."""
    made = []
    for key, number, granted, spent, refused, outcome in answers:
        made.append(_answer.pack(key, number, granted, spent, REFUSED.index(refused), len(outcome)))
        made.append(outcome)
    return b"".join(made)


def read_answers(body: bytes) -> list[Answered]:
    made, at = [], 0
    while at < len(body):
        key, number, granted, spent, refused, length = _answer.unpack_from(body, at)
        at += _answer.size
        made.append(Answered(key, number, granted, spent, REFUSED[refused], body[at : at + length]))
        at += length
    return made


def facts_body(facts: Mapping[str, str]) -> bytes:
    return json.dumps(dict(facts)).encode()


def read_facts(body: bytes) -> dict[str, str]:
    """ValueError: these are no texts by name."""
    found = json.loads(body)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("Expected texts by name.")
    return found


class Messages:
    """Bytes as they come in, whole messages as they are complete."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, data: bytes | bytearray) -> Iterator[tuple[int, int, bytes]]:
        """(id, kind, body) of every message that is now complete. ValueError: this is no such stream."""
        self._waiting += data
        while len(self._waiting) >= _length.size:
            (length,) = _length.unpack_from(self._waiting)
            if not _head.size <= length <= LARGEST:
                raise ValueError(f"Expected a message of {_head.size} to {LARGEST} bytes, got {length}.")
            end = _length.size + length
            if len(self._waiting) < end:
                return
            ident, kind = _head.unpack_from(self._waiting, _length.size)
            body = bytes(self._waiting[_length.size + _head.size : end])
            del self._waiting[:end]
            yield ident, kind, body
