"""What the ledger's tests share, and the rule of `releases.py` as a model in plain Python."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np

from scoreveil.ledger import LedgerUnavailable, ReleaseRequest, ReleaseResult, open_books, open_ledger


class Model:
    """The rule, with dictionaries."""

    def __init__(self, horizon=10**9):
        self.horizon, self.records, self.spent = horizon, [], {}  # records by age: marks and what they have spent

    def answer(self, asked):
        payer = asked.model, asked.client
        paid = self.spent.get(payer, 0) + asked.price
        if asked.client_limit and paid > asked.client_limit:
            return ReleaseResult("client", b"", 0)
        records = [dict(record) for record in self.records]
        released, answered = [], []
        for row, marks in enumerate(asked.marks.tolist()):
            drawn = asked.outcomes[row * asked.width : (row + 1) * asked.width]
            marks = {(asked.model, mark) for mark in marks}
            record = next((record for record in records if record["marks"] & marks), None)
            if record is None:
                record = {"marks": marks, "settings": None, "answers": 0, "units": 0, "last": b""}
                records = [*records, record][-self.horizon :]
            same_settings = record["settings"] == asked.settings
            given = record["answers"] if same_settings else 0
            is_within = asked.limit == 0 or record["units"] + asked.units <= asked.limit
            has_left = is_within and (asked.answers == 0 or given < asked.answers)
            just_answered = any(record is each for each in answered)
            if has_left and not just_answered:
                units = record["units"] + asked.units
                record.update(settings=asked.settings, answers=given + 1, units=units, last=drawn)
                answered.append(record)
            elif not (just_answered or (same_settings and asked.repeat == "same")):
                return ReleaseResult("record", b"", 0)
            released.append(record["last"])
        self.records = records
        self.spent[payer] = paid
        return ReleaseResult("", b"".join(released), len(answered))


def question(*marks, outcomes=None, model="m", settings=bytes(16), units=1, **options):
    """A call with a row for each tuple of marks; a number alone stands for a record of two marks."""
    rows = np.array([(n, -1 - n) if isinstance(n, int) else n for n in marks], np.int64)
    if outcomes is None:
        outcomes = np.random.default_rng().bytes(4 * len(rows))
    return ReleaseRequest(model, settings, rows, outcomes, units, **options)


def pieces(answers, rows):
    """The outcome of each row."""
    width = len(answers.outcomes) // rows
    return [answers.outcomes[i * width : (i + 1) * width] for i in range(rows)]


@asynccontextmanager
async def opened(url, **options):
    ledger = await open_ledger(url, **options)
    try:
        yield ledger
    finally:
        await ledger.close()


def with_ledger(url, work, **options):
    """`await work(ledger)`, in a loop of its own."""

    async def run():
        async with opened(url, **options) as ledger:
            return await work(ledger)

    return asyncio.run(run())


def with_books(url, work):
    async def run():
        return await work(await open_books(url))

    return asyncio.run(run())


async def fresh(ledger, *marks, **options):
    """How many rows were charged: none of those that have their answers already."""
    return (await ledger.answer(question(*marks, **options))).fresh


async def reason(ledger, n=1, **options):
    """Why it is unavailable; None where it answers."""
    caught = None
    try:
        await ledger.answer(question(n, **{"answers": 1_000_000} | options))
    except LedgerUnavailable as error:
        caught = error
    if caught is None:
        return None
    assert caught.__context__ is None or caught.__suppress_context__  # which may quote what is stored
    return caught.reason
