"""What the log comes to, in memory: which records live, what each may still answer, and what clients have spent.

Its size is fixed by the horizon, about 100 bytes for a record of 8 marks: the arrays of `kernel.py`. Outcomes of more
than 8 bytes, which few veils have, lie in a dictionary beside them. Everything since the last `keep` can be undone: a
call that is refused leaves no trace, and a commit that fails none of its calls.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.ledger import kernel
from scoreveil.ledger.log import BEGUN, SAME, Body, Entry, shape_of
from scoreveil.ledger.releases import SETTINGS, Marks, Refused, ReleaseRequest

MARKS = 8  # of a record, that there is room for; where they have more, the oldest records end earlier
LOAD = 0.85  # of the table's slots
INLINE = 8  # bytes of an outcome
NOTES = 1 << 14  # slots and cells that can be undone at first; more where a call needs more
PART = 4096  # rows that are answered before other threads get their turn

Payer = tuple[str, bytes]  # a model, and the hash of a client's name
Position = tuple[NDArray[np.int64], int]


class Index:
    def __init__(self, records: int, marks: int = MARKS) -> None:
        """Room for so many records of so many marks."""
        buckets = int(records * marks / LOAD / kernel.SLOTS) + 1
        words = np.zeros(2 * kernel.SLOTS * (buckets + 1), np.uint32)
        start = -words.ctypes.data % 64 // 4  # a bucket is one line of the cache
        self._slots = words[start : start + 2 * kernel.SLOTS * buckets].reshape(buckets, 2, kernel.SLOTS)
        self._cells = np.zeros((records, 3), np.int64)
        self._counters = np.array([1, 1, 0, 0], np.int64)
        self._notes = np.empty((2, min(NOTES, 64 + records * (marks + 2)), 4), np.int64)
        self._numbers: dict[tuple[bytes, int], int] = {}  # of settings and bytes of an outcome, from 1
        self._spent: dict[Payer, int] = {}
        self._long: dict[int, bytes] = {}  # outcomes that no cell holds, by the record's number
        self._swept = 1  # the first record that may still have one
        self._replaced: list[tuple[dict[Any, Any], list[Any], list[Any]]] = []  # keys, and what they had before
        self._kept = self.position()

    @staticmethod
    def warm_up() -> None:
        """Compile what is needed, or load it from numba's cache, before anyone waits for it."""
        index, marks = Index(1), np.zeros((1, 1), np.int64)
        index.answer(ReleaseRequest("m", bytes(SETTINGS), marks, b"0", 1), hashed("m", marks))
        index.undo()
        kernel.restore(index._table, np.zeros(1, np.uint8), np.empty((0, 7), np.int64))

    @property
    def _table(self) -> kernel.Table:
        return self._slots, self._cells, self._counters, self._notes[0], self._notes[1]

    @property
    def _unnoted(self) -> kernel.Table:
        """The same, without a list of what to undo."""
        return *self._table[:3], self._notes[0, :0], self._notes[1, :0]

    @property
    def first(self) -> int:
        """The number of the oldest record that lives."""
        return int(self._counters[kernel.FIRST])

    @property
    def next(self) -> int:
        """The number of the next record."""
        return int(self._counters[kernel.NEXT])

    def answer(self, questions: ReleaseRequest, hashes: NDArray[np.uint32]) -> Body | Refused:
        """Answer by the rule. Where the call is refused, nothing changes."""
        payer = questions.model, client_hash(questions.client)
        spent = self._spent.get(payer, 0) + questions.price
        # before all else: whether the limit is reached must not depend on what others have asked
        if questions.client_limit and spent > questions.client_limit:
            return "client"
        body = self._answer_rows(questions, hashes)
        if body is None:
            return "record"
        if questions.price:
            self._replace(self._spent, [payer], [spent])
        return body

    def _answer_rows(self, questions: ReleaseRequest, hashes: NDArray[np.uint32]) -> Body | None:
        rows, before = len(questions), self.position()
        number = self._number(questions.settings, questions.width)
        terms = number, questions.units, questions.answers, questions.limit, questions.repeat == "refuse"
        drawn = np.zeros((rows, INLINE), np.uint8)
        if questions.width <= INLINE:
            drawn[:, : questions.width] = np.frombuffer(questions.outcomes, np.uint8).reshape(rows, -1)
        records, kinds, released = np.empty(rows, np.int64), np.empty(rows, np.uint8), np.empty(rows, np.int64)
        came, row = kernel.ANSWERED, 0
        while came == kernel.ANSWERED and row < rows:
            part, row = (row, min(row + PART, rows)), min(row + PART, rows)
            came = kernel.answer(
                self._table, hashes, drawn.view(np.int64).ravel(), part, terms, records, kinds, released
            )
            if came == kernel.NO_ROOM:
                self.undo(before)
                self._notes = np.concatenate((self._notes, np.empty_like(self._notes).repeat(3, axis=1)), axis=1)
                came, row = kernel.ANSWERED, 0
        if came == kernel.REFUSED:
            self.undo(before)
            return None
        kernel.end_call(self._table, before[0][kernel.NOTED_CELLS])
        if questions.width <= INLINE:
            outcomes = released.view(np.uint8).reshape(rows, INLINE)[:, : questions.width].tobytes()
        else:
            fresh = kinds != SAME
            drawn_long = np.frombuffer(questions.outcomes, f"V{questions.width}")
            self._replace(self._long, records[fresh].tolist(), drawn_long[fresh].tolist())
            outcomes = b"".join(map(self._long.__getitem__, records.tolist()))
        return Body(records.astype(np.uint32), kinds, outcomes, hashes[kinds == BEGUN])

    def _number(self, settings: bytes, width: int) -> int:
        """The number under which cells hold settings, with outcomes of one length."""
        return self._numbers.setdefault((settings, width), len(self._numbers) + 1)

    def _replace(self, table: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
        self._replaced.append((table, keys, list(map(table.get, keys))))
        table.update(zip(keys, values, strict=True))

    def position(self) -> Position:
        """Up to here; for `undo`."""
        return self._counters.copy(), len(self._replaced)

    def undo(self, to: Position | None = None) -> None:
        """Take back what was done since the position, or since the last `keep`."""
        counters, replaced = to or self._kept
        kernel.undo(self._table, counters)
        for table, keys, values in reversed(self._replaced[replaced:]):
            table.update(zip(keys, values, strict=True))
            for key in [key for key, value in zip(keys, values, strict=True) if value is None]:
                del table[key]
        del self._replaced[replaced:]

    def keep(self) -> None:
        """What was done is on disk, and stays."""
        if self._long:
            for record in range(self._swept, self.first):
                self._long.pop(record, None)
        self._swept = self.first
        self._replaced.clear()
        self._counters[kernel.NOTED_SLOTS :] = 0
        if self._notes.shape[1] > 64 * NOTES:
            self._notes = np.empty((2, NOTES, 4), np.int64)
        self._kept = self.position()

    def end(self, first: int, next_record: int = 0) -> None:
        """Records before the first have ended, and those for which there is no room before the next one."""
        self._counters[kernel.FIRST] = max(self.first, first, next_record - len(self._cells))
        self._counters[kernel.NEXT] = max(self.next, self.first)

    def restore(self, entries: Iterable[Entry]) -> None:
        """Take over what calls came to in earlier days."""
        calls, bodies, at = [], [], 0
        for entry in entries:
            start, rows, width, marks = shape_of(entry)
            number = self._number(entry.settings, width)
            calls.append((at + start, rows, width, marks, entry.next, entry.units, number))
            bodies.append(entry.body)
            at += len(entry.body)
            if width > INLINE:
                self._restore_long(entry, width)
        if calls:
            everything = np.frombuffer(bytearray().join(bodies), np.uint8)
            kernel.restore(self._unnoted, everything, np.array(calls, np.int64))

    def _restore_long(self, entry: Entry, width: int) -> None:
        body = Body.read(entry.body)
        records = body.numbers(entry.next)
        lasting = (body.kinds != SAME) & (records >= self.first)
        self._long.update(
            zip(records[lasting].tolist(), np.frombuffer(body.outcomes, f"V{width}")[lasting].tolist(), strict=True)
        )

    def load(
        self, settings: Sequence[bytes], answers: Sequence[int], spent: Sequence[int], outcomes: Sequence[bytes],
        hashes: Sequence[Sequence[int]],
    ) -> None:  # fmt: skip
        """Take over records that are held elsewhere, as 1, 2, …, with some of their marks."""
        count = len(settings)
        self._counters[kernel.NEXT] = count + 1
        cells = self._cells[1 : count + 1]
        numbers = [self._number(*pair) for pair in zip(settings, map(len, outcomes), strict=True)]
        cells[:, kernel.COUNT] = np.array(numbers) << 32 | np.array(answers)
        cells[:, kernel.SPENT] = spent
        inline = [outcome.ljust(INLINE, b"\0") if len(outcome) <= INLINE else bytes(INLINE) for outcome in outcomes]
        cells[:, kernel.LAST] = np.frombuffer(b"".join(inline), np.int64)
        self._long = {n: outcome for n, outcome in enumerate(outcomes, 1) if len(outcome) > INLINE}
        marks = np.array([mark for some in hashes for mark in some], np.int64).view(np.uint32).reshape(-1, 2)
        kernel.mark_all(self._unnoted, marks, np.repeat(np.arange(1, count + 1), list(map(len, hashes))))
        self.keep()

    def standing(self, numbers: NDArray[Any]) -> tuple[list[int], list[int]]:
        """ReleaseResult under the last settings, and units spent, of each of these records."""
        cells = self._cells[numbers % len(self._cells)]
        return (cells[:, kernel.COUNT] & kernel.MASK).tolist(), cells[:, kernel.SPENT].tolist()

    def spend(self, model: str, client: bytes, price: int) -> None:
        self._spent[model, client] = self._spent.get((model, client), 0) + price


def hashed(model: str, marks: Marks) -> NDArray[np.uint32]:
    """The marks as the table holds them, (rows, 2 · marks): other models' are other ones."""
    words = marks.view(np.uint64) + _salt(model)
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words.view(np.uint32)


@lru_cache(maxsize=1024)
def _salt(model: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(b"scoreveil marks 3\0" + model.encode()).digest()[:8], "little"))


@lru_cache(maxsize=4096)
def client_hash(client: str) -> bytes:
    """A client as its spending is kept: it stays when the name is forgotten."""
    return hashlib.sha256(b"scoreveil client 1\0" + client.encode()).digest()
