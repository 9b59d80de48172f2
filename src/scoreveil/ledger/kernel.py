"""The rule of `releases.py` as one compiled pass over the rows of a call, and the table of marks that it works on.

`answer` is the rule. Everything it needs of the past is in a *table*, a tuple of arrays of fixed size:

    slots     (buckets, 2, 8)  where marks lie: 32 bits of the mark (its tag), and 32 bits of its record's number
    cells     (records, 3)     what is known of a record, at its number modulo their count: SPENT, LAST, COUNT
    counters  (4,)             NEXT and FIRST: the number of the next record, and of the oldest that lives
    undo_slots, undo_cells     what was written over, in order, so that `undo` takes a call back exactly

Records are numbered as they begin, so the oldest is the smallest, and one ends when FIRST passes it: whatever a slot
says of it counts as free from then on. A mark may lie in two buckets, and where either lies follows from the tag and
the other alone (a partial-key cuckoo table), so a full bucket sends one of its marks to that mark's other bucket.
Two marks that differ are taken for one in 2⁻³² of cases for each of the 16 slots that are looked at.

Where numba is missing, the same functions run as they stand, some hundred times slower.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scoreveil.ledger.log import BEGUN, FRESH, SAME

F = TypeVar("F", bound=Callable[..., Any])
Array = NDArray[Any]
Table = tuple[Array, Array, Array, Array, Array]

NEXT, FIRST, NOTED_SLOTS, NOTED_CELLS = range(4)  # counters
SPENT, LAST, COUNT = range(3)  # of a cell: units, the last outcome, and with which settings how many were given
ANSWERED, REFUSED, NO_ROOM = range(3)  # what a call came to; no room: the lists of what to undo are full

SLOTS = 8  # of a bucket, which is a line of the processor's cache
MASK = (1 << 32) - 1
EMPTY = 0  # no record has this number
UNDER_WAY = 1 << 30  # beside the settings' number: the call under way has answered this record
MAX_SPENT = 1 << 62
STEPS = 64  # marks that are moved to make room for one before the oldest records give way


def compiled(**options: Any) -> Callable[[F], F]:
    def compile_if_possible(function: F) -> F:
        try:
            import numba
        except ImportError:
            return function
        try:
            fast: F = numba.njit(cache=True, error_model="numpy", **options)(function)
        except RuntimeError:  # no folder that could hold the cache
            fast = numba.njit(error_model="numpy", **options)(function)
        return fast

    return compile_if_possible


inlined = compiled(inline="always")  # where arrays are handed on, numba counts references, which takes most of the time


@compiled()
def answer(
    table: Table, hashes: Array, drawn: Array, rows: tuple[int, int], terms: tuple[int, int, int, int, bool],
    records: Array, kinds: Array, released: Array,
) -> int:  # fmt: skip
    """Answer rows of a call, in order; the GIL is held, so a long call comes in parts.

    Args:
        hashes: (rows, 2 · marks) halves of the hashed marks.
        drawn: An outcome for each row, in 64 bits.
        rows: From which row to which.
        terms: The settings' number, units, answers, limit and whether repeats are refused, as in `ReleaseRequest`.
        records, kinds, released: To be filled with each row's record, what it came to, and its outcome.
    """
    settings, units, answers, limit, refuses = terms
    slots, cells, counters, undo_slots, undo_cells = table
    for row in range(rows[0], rows[1]):
        kind = FRESH
        record = _oldest(slots, counters, hashes, row)
        if record < 0:
            kind = BEGUN
            record = _begin(cells, counters, undo_cells)
            if record < 0 or not _mark(slots, counters, undo_slots, hashes, row, record):
                return NO_ROOM
        at = record % len(cells)
        number = cells[at, COUNT] >> 32
        of_these_settings = number % UNDER_WAY == settings
        answered_by_this_call = number >= UNDER_WAY
        count = cells[at, COUNT] & MASK if of_these_settings else 0
        has_left = (answers == 0 or count < answers) and (limit == 0 or cells[at, SPENT] + units <= limit)
        if has_left and not answered_by_this_call:
            if not _note_cell(cells, counters, undo_cells, at):
                return NO_ROOM
            _charge(cells, at, settings, units, drawn[row])
            cells[at, COUNT] |= UNDER_WAY << 32
        elif answered_by_this_call or (of_these_settings and not refuses):
            kind = SAME
        else:
            return REFUSED
        records[row], kinds[row], released[row] = record, kind, cells[at, LAST]
    return ANSWERED


@compiled()
def end_call(table: Table, start: int) -> None:
    """The call is over whose first noted cell is `start`: its records are as others again."""
    _, cells, counters, _, noted = table
    for i in range(start, counters[NOTED_CELLS]):
        cells[noted[i, 0], COUNT] &= ~(UNDER_WAY << 32)


@compiled()
def undo(table: Table, before: Array) -> None:
    """Take everything back that was noted since the counters were these."""
    slots, cells, counters, undo_slots, undo_cells = table
    for i in range(counters[NOTED_SLOTS] - 1, before[NOTED_SLOTS] - 1, -1):
        bucket, slot = undo_slots[i, 0], undo_slots[i, 1]
        slots[bucket, 0, slot], slots[bucket, 1, slot] = undo_slots[i, 2], undo_slots[i, 3]
    for i in range(counters[NOTED_CELLS] - 1, before[NOTED_CELLS] - 1, -1):
        cells[undo_cells[i, 0]] = undo_cells[i, 1:]
    counters[:] = before


@compiled(nogil=True)
def restore(table: Table, bodies: Array, calls: Array) -> None:
    """Write into the table what earlier calls came to, as the log has it; nothing is noted.

    Args:
        table: Records before FIRST are passed over.
        bodies: The bytes of all bodies, one after the other (`log.py`).
        calls: For each call: where its rows begin, rows, bytes of an outcome, marks, NEXT after it, units, settings.
    """
    slots, cells, counters, undo_slots, _ = table
    for i in range(len(calls)):
        start, rows, width, marks, next_record, units, settings = calls[i]
        hashes = np.empty((1, 2 * marks), np.uint32)
        marks_at = start + rows * (5 + width)
        for row in range(rows):
            kind = bodies[start + 4 * rows + row]
            if kind == SAME:
                continue
            low = _number(bodies, start + 4 * row, 4)
            record = next_record - 1 - ((next_record - 1 - low) & MASK)
            lives = record >= counters[FIRST]
            at = record % len(cells)
            if kind == BEGUN:
                if lives:
                    for half in range(2 * marks):
                        hashes[0, half] = _number(bodies, marks_at + 4 * half, 4)
                    counters[NEXT] = record + 1
                    cells[at] = 0
                    _mark(slots, counters, undo_slots, hashes, 0, record)
                marks_at += 8 * marks
            if lives:
                outcome = _number(bodies, start + 5 * rows + row * width, width) if width <= 8 else 0
                _charge(cells, at, settings, units, outcome)
        counters[NEXT] = next_record


@compiled()
def mark_all(table: Table, hashes: Array, numbers: Array) -> None:
    """Note marks of records that are known from elsewhere."""
    slots, _, counters, undo_slots, _ = table
    for row in range(len(hashes)):
        _mark(slots, counters, undo_slots, hashes, row, numbers[row])


@inlined
def _number(data: Array, at: int, size: int) -> int:
    """Bytes, little-endian."""
    value = np.int64(0)
    for i in range(size):
        value |= np.int64(data[at + i]) << (8 * i)
    return int(value)


@inlined
def _charge(cells: Array, at: int, settings: int, units: int, outcome: int) -> None:
    """A fresh answer: under other settings the count begins anew."""
    count = cells[at, COUNT] & MASK if cells[at, COUNT] >> 32 == settings else 0
    cells[at, COUNT] = settings << 32 | min(count + 1, MASK)
    cells[at, SPENT] = min(cells[at, SPENT] + units, MAX_SPENT)
    cells[at, LAST] = outcome


@inlined
def _oldest(slots: Array, counters: Array, hashes: Array, row: int) -> int:
    """The oldest record that lives and has one of the row's marks; -1: none."""
    first = counters[FIRST]
    age = live = counters[NEXT] - first
    for i in range(0, hashes.shape[1], 2):
        tag = np.int64(hashes[row, i + 1])
        bucket = _bucket(hashes[row, i], len(slots))
        for _ in range(2):
            for slot in range(SLOTS):
                if slots[bucket, 0, slot] == tag and slots[bucket, 1, slot] != EMPTY:
                    age = min(age, (np.int64(slots[bucket, 1, slot]) - first) & MASK)
            bucket = _other(tag, bucket, len(slots))
    return int(first + age) if age < live else -1


@inlined
def _begin(cells: Array, counters: Array, notes: Array) -> int:
    """A new record; where there are as many as there is room for, the oldest ends. -1: no room to note it."""
    if counters[NEXT] & MASK == EMPTY:
        counters[NEXT] += 1
    record = counters[NEXT]
    counters[NEXT] = record + 1
    counters[FIRST] = max(counters[FIRST], record + 1 - len(cells))
    if not _note_cell(cells, counters, notes, record % len(cells)):
        return -1
    cells[record % len(cells)] = 0
    return int(record)


@inlined
def _mark(slots: Array, counters: Array, notes: Array, hashes: Array, row: int, record: int) -> bool:
    """The row's marks become the record's; one that the row has twice, once."""
    for i in range(0, hashes.shape[1], 2):
        is_new = True
        for j in range(0, i, 2):
            is_new = is_new and (hashes[row, i] != hashes[row, j] or hashes[row, i + 1] != hashes[row, j + 1])
        bucket = _bucket(hashes[row, i], len(slots))
        if is_new and not _place(slots, counters, notes, np.int64(hashes[row, i + 1]), bucket, record & MASK):
            return False
    return True


@inlined
def _place(slots: Array, counters: Array, notes: Array, tag: Any, bucket: int, number: Any) -> bool:
    """Find a slot for a mark: a free one, or that of another, which is placed in its own other bucket instead."""
    step = 0
    while True:
        first, live = counters[FIRST], counters[NEXT] - counters[FIRST]
        if (number - first) & MASK >= live:
            return True  # it ended meanwhile
        for _ in range(2):
            for slot in range(SLOTS):
                occupant = np.int64(slots[bucket, 1, slot])
                if occupant == EMPTY or (occupant - first) & MASK >= live:
                    return _write(slots, counters, notes, bucket, slot, tag, number)
            bucket = _other(tag, bucket, len(slots))
        step += 1
        if step % STEPS == 0:  # records have more marks than there was room planned for
            counters[FIRST] = min(first + live // STEPS + 1, counters[NEXT] - 1)
        slot = (tag + 5 * step) % SLOTS
        bucket = _other(tag, bucket, len(slots))
        moved_tag, moved = np.int64(slots[bucket, 0, slot]), np.int64(slots[bucket, 1, slot])
        if not _write(slots, counters, notes, bucket, slot, tag, number):
            return False
        tag, number = moved_tag, moved


@inlined
def _write(slots: Array, counters: Array, notes: Array, bucket: int, slot: int, tag: int, number: int) -> bool:
    if len(notes):
        n = counters[NOTED_SLOTS]
        if n == len(notes):
            return False
        notes[n, 0], notes[n, 1] = bucket, slot
        notes[n, 2], notes[n, 3] = slots[bucket, 0, slot], slots[bucket, 1, slot]
        counters[NOTED_SLOTS] = n + 1
    slots[bucket, 0, slot], slots[bucket, 1, slot] = tag, number
    return True


@inlined
def _note_cell(cells: Array, counters: Array, notes: Array, at: int) -> bool:
    n = counters[NOTED_CELLS]
    if n == len(notes):
        return False
    notes[n, 0] = at
    for i in range(3):
        notes[n, 1 + i] = cells[at, i]
    counters[NOTED_CELLS] = n + 1
    return True


@inlined
def _bucket(low: int, buckets: int) -> int:
    return int((np.int64(low) * buckets) >> 32)


@inlined
def _other(tag: Any, bucket: int, buckets: int) -> int:
    """The other bucket of a mark; of that one, the first."""
    mixed = ((tag ^ (tag >> 16)) * 0x45D9F3B) & MASK
    other = (((mixed ^ (mixed >> 16)) * buckets) >> 32) - bucket
    return int(other) if other >= 0 else int(other + buckets)
