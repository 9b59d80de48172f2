"""Releases by neighbourhood: near-duplicates of an earlier question share its record, its budget and its answer.

A question comes with its record's key, its *marks* (`neighbourhood.py`) and the outcome that was drawn for it in case
it is granted. It belongs to the record of its own key, else to the earliest that has one of its marks; where there is
none, it begins a record, and its marks become that record's. What is remembered of a record is its last outcome, which
was released and tells no more.

    sticky    a record has one outcome for given settings; whoever asks again gets it
    replay    a fresh outcome while the budget lasts, then the last one again
    refuse    a fresh outcome while the budget lasts, then none

An outcome is given again only under the settings it was drawn with: under others it would be another release. All rows
of a call are answered, or nothing is charged. `settle` is the whole rule, for both stores.
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from scoreveil.ledger.charges import KEY, MOST_ROWS, MOST_UNITS, check_names, short, with_lengths

Repeats = Literal["sticky", "replay", "refuse"]
Refused = Literal["", "record", "client"]
REPEATS: tuple[Repeats, ...] = get_args(Repeats)
REFUSED: tuple[Refused, ...] = get_args(Refused)
MARK = 8  # bytes
SETTINGS = 16  # bytes of their hash
MOST_OUTCOME = (1 << 16) - 1  # bytes


class Answered(NamedTuple):
    """One row's answer: the outcome to release, empty where the row is refused, and by whose limit it is.

    Attributes:
        key: The record that the row belongs to: its own, or that of the earlier question that it is near to.
        number: How many releases of the record there are now.
        granted: Whether this is a new one, which was charged.
        spent: What they cost, in units.
        refused: The limit that stands in the way: "record" or "client".
        outcome: What to release.
    """

    key: bytes
    number: int
    granted: bool
    spent: int
    refused: Refused
    outcome: bytes

    def __repr__(self) -> str:
        words = f"granted={self.granted}, spent={self.spent}, refused={self.refused!r}"
        return f"Answered({short(self.key)}…, number={self.number}, {words})"


class Known(NamedTuple):
    """What a store holds of a record. `born` orders records by age."""

    born: int
    key: bytes
    number: int = 0
    spent: int = 0
    settings: bytes = b""
    outcome: bytes = b""


@dataclass(frozen=True, slots=True, repr=False)
class Questions:
    """One call, checked: rows of one client about one model.

    Attributes:
        model: The name under which the records are counted.
        settings: A hash of all that answers depend on; an outcome is given again only under the same.
        keys: A `record_key` for each row, joined.
        marks: The marks of each row, joined; as many for each.
        outcomes: What was drawn for each row, joined; as many bytes for each.
        limit: The budget of one record, in units; not used by "sticky".
        units: What one release costs a record.
        price: What one release costs the client.
        repeats: What becomes of a record that was asked before.
        client: Who asks.
        client_limit: What all releases to the client may cost; 0: no limit.
        request: The hash of an idempotency key.
    """

    model: str
    settings: bytes
    keys: bytes
    marks: bytes
    outcomes: bytes
    limit: int
    units: int
    price: int
    repeats: Repeats = "sticky"
    client: str = ""
    client_limit: int = 0
    request: bytes | None = None

    def __post_init__(self) -> None:
        check_names(self.model, self.client, self.request)
        rows, rest = divmod(len(self.keys), KEY)
        if rest or not 1 <= rows <= MOST_ROWS:
            raise ValueError(f"Expected 1 to {MOST_ROWS:,} keys of {KEY} bytes, got {len(self.keys)} bytes.")
        if not self.marks or len(self.marks) % (rows * MARK):
            raise ValueError(f"Expected as many marks of {MARK} bytes for each of the {rows} rows.")
        if not self.outcomes or len(self.outcomes) % rows or len(self.outcomes) // rows > MOST_OUTCOME:
            raise ValueError(f"Expected an outcome of 1 to {MOST_OUTCOME} bytes for each of the {rows} rows.")
        if len(self.settings) != SETTINGS:
            raise ValueError(f"Expected settings of {SETTINGS} bytes, got {len(self.settings)}.")
        if self.repeats not in REPEATS:
            raise ValueError(f"Expected repeats to be one of {', '.join(REPEATS)}, got {self.repeats!r}.")
        for what, units, least in (("limit", self.limit, 0), ("units", self.units, 1), ("price", self.price, 1)):
            if not least <= units <= MOST_UNITS:
                raise ValueError(f"Expected {what} between {least} and 2^48 units, got {units}.")
        if not 0 <= self.client_limit < 2**62:
            raise ValueError(f"Expected a client_limit between 0 and 2^62 units, got {self.client_limit}.")

    def __len__(self) -> int:
        return len(self.keys) // KEY

    @property
    def outcome_bytes(self) -> int:
        return len(self.outcomes) // len(self)

    def all_marks(self) -> tuple[int, ...]:
        return struct.unpack(f"<{len(self.marks) // MARK}q", self.marks)

    def split(self) -> list[bytes]:
        return [self.keys[i : i + KEY] for i in range(0, len(self.keys), KEY)]

    def rows(self) -> Iterable[tuple[bytes, tuple[int, ...], bytes]]:
        """Key, marks and outcome of each row."""
        marks, size = self.all_marks(), self.outcome_bytes
        each = len(marks) // len(self)
        for i, key in enumerate(self.split()):
            yield key, marks[i * each : (i + 1) * each], self.outcomes[i * size : (i + 1) * size]

    def room(self, spent: int) -> int:
        """Releases that are still possible for a record; of a sticky one the next settings allow another."""
        return 1 if self.repeats == "sticky" else max(0, self.limit - spent) // self.units

    def fingerprint(self) -> bytes:
        """What a repeated request must agree on: its records, and the settings, or it would be another release."""
        names = self.model.encode(), self.client.encode()
        return hashlib.sha256(with_lengths(b"scoreveil request 2", *names, self.settings, self.keys)).digest()


class Found(NamedTuple):
    """What a store holds for a call: the record of each mark, and the records of the keys themselves."""

    by_mark: Mapping[int, Known]
    by_key: Sequence[Known]


@dataclass(slots=True)
class Settlement:
    """What a call comes to: the answers, and what is to be written. Nothing is, where a row is refused."""

    answers: list[Answered]
    changed: dict[bytes, Known] = field(default_factory=dict)  # records with a new release
    begun: list[tuple[int, bytes, int]] = field(default_factory=list)  # new marks: (mark, key, born)
    paid: int = 0  # by the client


def settle(asked: Questions, found: "Found", client_spent: int, next_born: int) -> Settlement:
    """Answer row by row.

    Args:
        asked: The call.
        found: The records that the store has for its marks and keys.
        client_spent: What the client has spent so far.
        next_born: The age of the next record.
    """
    marked = dict(found.by_mark)
    before = {known.key: known for known in (*found.by_mark.values(), *found.by_key)}
    current = dict(before)
    made = Settlement([])
    answers: list[Answered] = []
    refused: Refused = ""
    for key, marks, drawn in asked.rows():
        hits = [marked[mark] for mark in marks if mark in marked]
        record = current[min(hits).key] if hits and key not in current else current.get(key, Known(next_born, key))
        if not hits:  # a new record, or one from before there were marks
            current[key] = record = Known(next_born, *record[1:])
            next_born += 1
            for mark in dict.fromkeys(marks):
                marked[mark] = record
                made.begun.append((mark, key, record.born))
        can_repeat = record.settings == asked.settings and bool(record.outcome)
        charged_now = record.key in made.changed
        fresh = not can_repeat if asked.repeats == "sticky" else not charged_now
        within = asked.repeats == "sticky" or record.spent + asked.units <= asked.limit
        if fresh and within:
            record = Known(
                record.born, record.key, record.number + 1, record.spent + asked.units, asked.settings, drawn
            )
            current[record.key] = made.changed[record.key] = record
            made.paid += asked.price
            if asked.client_limit and client_spent + made.paid > asked.client_limit:
                refused = refused or "client"
            answers.append(Answered(record.key, record.number, True, record.spent, "", drawn))
        elif can_repeat and (charged_now or asked.repeats != "refuse"):
            answers.append(Answered(record.key, record.number, False, record.spent, "", record.outcome))
        else:
            refused = "record"
            answers.append(Answered(record.key, record.number, False, record.spent, "record", b""))
    if not refused:
        made.answers = answers
        return made
    # one refused row costs the others nothing; what was spent is told as it was before
    told = []
    for answer in answers:
        known = before.get(answer.key) or Known(0, answer.key)
        why: Refused = answer.refused or ("client" if refused == "client" else "")
        told.append(Answered(answer.key, known.number, False, known.spent, why, b""))
    return Settlement(told)


def client_hash(client: str) -> bytes:
    """A client as its spending is kept: it stays when the name is forgotten."""
    return hashlib.sha256(b"scoreveil client 1\0" + client.encode()).digest()


def unit_fact(model: str) -> str:
    return f"unit of {model}"


def joined_marks(marks: Sequence[Sequence[int]]) -> bytes:
    return b"".join(struct.pack(f"<{len(row)}q", *row) for row in marks)
