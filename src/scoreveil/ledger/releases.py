"""What is asked of a ledger and what it answers: the rule by which near-duplicates share a record and its answers.

A question comes with its *marks* (`same_record/marks.py`) and with the outcome that was drawn for it, should a fresh
answer be allowed. It belongs to the oldest record that has one of its marks; where there is none, it begins a record,
and its marks become that record's. Then, row by row:

    fresh    the record has answers left: the drawn outcome is released, charged and remembered as the record's last
    same     it has none left, or this call has just answered it: its last outcome again, which costs the record nothing
    refused  it has none left, and `repeat` is "refuse", or its last outcome is of other settings

A record has answers left while it has fewer than `answers` under the present settings, and another one fits into
`limit`. Other settings (another ε, secret or mechanism) begin the count of answers anew, because their draws are
independent; `limit` counts what was spent under all of them. Where several may be asked in turns, and `limit` does not
count them, give each marks of its own.

Where one row is refused, nothing is charged and nothing is written. The client is charged `price` for the whole call,
however many of its rows are fresh: whether the odometer moves must not tell what others have asked.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from scoreveil.same_record.exact import with_lengths

Repeat = Literal["same", "refuse"]
Refused = Literal["", "record", "client"]
REPEATS: tuple[Repeat, ...] = get_args(Repeat)
REFUSED: tuple[Refused, ...] = get_args(Refused)
SETTINGS = 16  # bytes of their hash
MAX_MARKS = 64  # of a row
MAX_OUTCOME = (1 << 16) - 1  # bytes of a row
MAX_ROWS = 1_000_000  # of a call
MAX_UNITS = 2**48  # sums over many records stay within 64 bits
MAX_NAME = 1024  # bytes of a model's or client's name
MAX_REQUEST = 64  # bytes of a request

Marks = NDArray[np.int64]


class ReleaseResult(NamedTuple):
    """What a call came to.

    Attributes:
        refused: Whose limit stands in the way, the record's or the client's; empty where the call is answered.
        outcomes: What to release, as many bytes for each row as were drawn; empty where the call is refused.
        fresh: How many rows were charged to their records.
    """

    refused: Refused
    outcomes: bytes
    fresh: int


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ReleaseRequest:
    """One call, checked: rows of one client about one model.

    Attributes:
        model: The name under which the records are counted.
        settings: A hash of all that answers depend on; an outcome is given again only under the same.
        marks: The marks of each row, (rows, marks).
        outcomes: What was drawn for each row, joined; as many bytes for each.
        units: What a fresh answer costs a record.
        answers: How many fresh answers a record has under the same settings; 0: as many as `limit` allows.
        limit: How many units a record may spend under all settings; 0: as many as `answers` allows.
        repeat: What becomes of a record that has no answer left.
        client: Who asks.
        price: What the call costs the client; 0: its spending is not counted.
        client_limit: What all calls of the client about this model may cost; 0: no limit.
        request: The hash of an idempotency key. The same call under the same key gets the same answers, and is charged
            once, for as long as the ledger keeps it.
    """

    model: str
    settings: bytes
    marks: Marks
    outcomes: bytes
    units: int
    answers: int = 1
    limit: int = 0
    repeat: Repeat = "same"
    client: str = ""
    price: int = 0
    client_limit: int = 0
    request: bytes | None = None

    def __post_init__(self) -> None:
        check_names(self.model, self.client, self.request)
        marks: Any = self.marks
        if not (isinstance(marks, np.ndarray) and marks.dtype == np.int64 and marks.ndim == 2):
            raise ValueError("Expected marks as an array (rows, marks) of 64-bit integers.")
        if not (1 <= len(marks) <= MAX_ROWS and 1 <= marks.shape[1] <= MAX_MARKS):
            raise ValueError(f"Expected 1 to {MAX_ROWS:,} rows of 1 to {MAX_MARKS} marks, got shape {marks.shape}.")
        if not self.outcomes or len(self.outcomes) % len(marks) or self.width > MAX_OUTCOME:
            raise ValueError(f"Expected an outcome of 1 to {MAX_OUTCOME} bytes for each of the {len(marks)} rows.")
        if len(self.settings) != SETTINGS:
            raise ValueError(f"Expected settings of {SETTINGS} bytes, got {len(self.settings)}.")
        if self.repeat not in REPEATS:
            raise ValueError(f"Expected repeat to be one of {', '.join(REPEATS)}, got {self.repeat!r}.")
        if not 1 <= self.units <= MAX_UNITS:
            raise ValueError(f"Expected between 1 and 2^48 units for an answer, got {self.units}.")
        if not (0 <= self.answers < 2**32 and 0 <= self.limit <= MAX_UNITS and (self.answers or self.limit)):
            raise ValueError(f"Expected a number of answers or a limit, got {self.answers} and {self.limit}.")
        if not (0 <= self.price < 2**62 and 0 <= self.client_limit < 2**62):
            raise ValueError("Expected price and client_limit between 0 and 2^62 units.")

    def __len__(self) -> int:
        return len(self.marks)

    @property
    def width(self) -> int:
        """Bytes of one row's outcome."""
        return len(self.outcomes) // len(self.marks)

    def fingerprint(self) -> bytes:
        """What a repeated request must agree on: who asks what, under which settings."""
        names = self.model.encode(), self.client.encode()
        return hashlib.sha256(
            with_lengths(b"scoreveil request 3", *names, self.settings, self.marks.tobytes())
        ).digest()


def check_names(model: str, client: str, request: bytes | None) -> None:
    """Raise ValueError where a store could not hold one of them."""
    if not model:
        raise ValueError("The model's name is empty.")
    for what, name in (("model", model), ("client", client)):
        # PostgreSQL's text holds no NUL
        if len(name.encode()) > MAX_NAME or "\0" in name:
            raise ValueError(f"The {what}'s name is longer than {MAX_NAME} bytes, or has a NUL in it.")
    if request is not None and not 1 <= len(request) <= MAX_REQUEST:
        raise ValueError(f"Expected a request of 1 to {MAX_REQUEST} bytes, got {len(request)}.")


def unit_fact(model: str) -> str:
    """The fact that says in which unit a model's records are counted, "epsilon" or "rho"."""
    return f"unit of {model}"
