"""What every ledger keeps, in SQLite and in PostgreSQL alike: exact counts, one charge per request, nothing lost."""

import asyncio
import json
import subprocess
import sys
import time

import numpy as np
import pytest

from ledger_tools import fresh, opened, pieces, question, with_books, with_ledger
from scoreveil.ledger import Horizon, IdempotencyConflict, LedgerUnavailable, ReleaseRequest, open_ledger

CLIENTS = """
import asyncio, sys
import numpy as np
from scoreveil.ledger import ReleaseRequest, open_ledger

async def main(url, clients, tries, answers):
    ledger = await open_ledger(url)
    asked = dict(answers=answers, price=1, client_limit=10 * answers, client="all")
    async def client(i):
        marks = np.array([[1, i]])
        request = ReleaseRequest("m", bytes(16), marks, b"x", 1, **asked)
        return [(await ledger.answer(request)).fresh for _ in range(tries)]
    print("ready", flush=True)
    sys.stdin.readline()
    print(sum(sum(await asyncio.gather(*(client(i) for i in range(clients))), [])), flush=True)
    sys.stdin.readline()  # the owner of the writer stays until all are through
    await ledger.close()

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


# One ledger


def test_a_record_is_answered_afresh_until_it_is_spent_and_then_the_same(ledger_url):
    async def work(ledger):
        outcomes = []
        for _ in range(4):
            answers = await ledger.answer(question(1, 2, 1, answers=2))
            first, _, third = pieces(answers, 3)
            assert first == third
            outcomes.append((first, answers.fresh))
        assert [n for _, n in outcomes] == [2, 2, 0, 0]
        assert outcomes[0] != outcomes[1] == (outcomes[2][0], 2)
        assert (await ledger.answer(question(3, 1, answers=2, repeat="refuse"))).refused == "record"
        assert await fresh(ledger, 3) == 1  # it was not charged beside one that was refused
        assert await ledger.ready()

    with_ledger(ledger_url, work)


def test_models_have_records_of_their_own_and_clients_do_not(ledger_url):
    async def work(ledger):
        assert await fresh(ledger, 1, client="x") == 1
        assert await fresh(ledger, 1, client="y") == 0
        assert await fresh(ledger, 1, client="y", model="n") == 1

    with_ledger(ledger_url, work)


def test_answers_limits_and_long_outcomes_outlive_the_process(ledger_url):
    settings = {"settings": b"l" * 16, "answers": 0, "limit": 6, "units": 3}
    paid = {"client": "ann", "price": 2, "client_limit": 3}

    async def first(ledger):
        await ledger.answer(question(1, outcomes=bytes(300), **settings))
        await ledger.answer(question(2, **paid))
        return await ledger.answer(question(3, outcomes=b"kept"))

    async def after(ledger):
        assert (await ledger.answer(question(1, outcomes=b"l" * 300, **settings))).outcomes == b"l" * 300
        assert (await ledger.answer(question(1, outcomes=bytes(300), **settings))).outcomes == b"l" * 300
        assert (await ledger.answer(question(2, **paid))).refused == "client"
        return await ledger.answer(question(3))

    assert with_ledger(ledger_url, first).outcomes == with_ledger(ledger_url, after).outcomes == b"kept"


WRONG = [
    ({"marks": np.zeros((1, 2))}, "64-bit integers"),
    ({"marks": np.zeros((0, 2), np.int64)}, "rows of 1 to 64 marks"),
    ({"marks": np.zeros((1, 65), np.int64)}, "rows of 1 to 64 marks"),
    ({"outcomes": b""}, "an outcome of 1 to 65535 bytes"),
    ({"settings": b"short"}, "settings of 16 bytes, got 5"),
    ({"units": 0}, "between 1 and 2\\^48 units"),
    ({"answers": 0}, "a number of answers or a limit"),
    ({"limit": -1}, "a number of answers or a limit"),
    ({"price": -1}, "price and client_limit"),
    ({"repeat": "sticky"}, "repeat to be one of same, refuse"),
    ({"model": ""}, "The model's name is empty"),
    ({"client": "a\0b"}, "longer than 1024 bytes, or has a NUL"),
    ({"request": b"r" * 65}, "a request of 1 to 64 bytes, got 65"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_what_cannot_be_asked_is_refused_before_it_is_sent(wrong, message):
    with pytest.raises(ValueError, match=message):
        ReleaseRequest(**{"model": "m", "settings": bytes(16), "marks": np.zeros((1, 2), np.int64)} | ASKED | wrong)


ASKED = {"outcomes": b"x", "units": 1}


def test_a_closed_ledger_is_unavailable(ledger_url):
    async def work():
        ledger = await open_ledger(ledger_url)
        await ledger.close()
        with pytest.raises(LedgerUnavailable, match="it was closed"):
            await ledger.answer(question(1))
        assert not await ledger.ready()
        await ledger.close()

    asyncio.run(work())


@pytest.mark.parametrize("url", ["mysql://user:hidden@host/db", "sqlite:///", "sqlite://", "ledger.db", ""])
def test_other_addresses_are_refused_without_quoting_them(url):
    with pytest.raises(ValueError, match="The ledger's address is neither sqlite:///FILE nor postgresql://") as refused:
        asyncio.run(open_ledger(url))
    assert "hidden" not in str(refused.value)


def test_facts_are_written_once(ledger_url):
    async def work(ledger):
        assert await ledger.bind({"secret": "a"}) == {"secret": "a"}
        return await ledger.bind({"secret": "b", "unit of m": "rho"})

    assert with_ledger(ledger_url, work) == {"secret": "a", "unit of m": "rho"}
    assert with_books(ledger_url, lambda books: books.facts()) == {"secret": "a", "unit of m": "rho"}


# Many at once


def test_64_clients_on_one_record_get_exactly_its_answers(ledger_url):
    async def work(ledger):
        async def client(i):
            return [await fresh(ledger, (7, 100 + i), answers=37, client=str(i)) for _ in range(3)]

        assert np.sum(await asyncio.gather(*(client(i) for i in range(64)))) == 37

    with_ledger(ledger_url, work)


def test_64_clients_in_4_processes_get_exactly_its_answers(ledger_url):
    """And they pay for them, although each begins with questions of its own."""
    command = [sys.executable, "-c", CLIENTS, ledger_url, "16", "3", "101"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    granted = [json.loads(process.stdout.readline()) for process in processes]
    for process in processes:
        process.communicate("stop\n")
        assert process.returncode == 0
    assert sum(granted) == 101
    (total,) = with_books(ledger_url, lambda books: books.totals(by_client=True))
    assert (total.client, total.records, total.answers, total.price) == ("all", 1, 101, 4 * 16 * 3)


def test_a_clients_limit_is_exact_among_calls_that_come_at_once(ledger_url):
    async def work(ledger):
        calls = [ledger.answer(question(i, client="ann", price=3, client_limit=30)) for i in range(40)]
        answers = await asyncio.gather(*calls)
        assert sorted(answer.refused for answer in answers) == [""] * 10 + ["client"] * 30

    with_ledger(ledger_url, work)


def test_calls_that_share_records_in_any_order_do_not_block_each_other(ledger_url):
    async def work(ledger):
        async def client(i):
            rows = [*range(i, 40), *range(i)] if i % 2 else range(39, -1, -1)
            return await fresh(ledger, *rows, answers=15)

        assert sum(await asyncio.gather(*(client(i) for i in range(20)))) == 40 * 15

    with_ledger(ledger_url, work)


# Requests


def test_a_request_is_charged_once_and_answered_the_same(ledger_url):
    same = {"client": "c", "request": b"r", "answers": 5}

    async def work(ledger):
        first = await ledger.answer(question(1, 1, 2, **same))
        await ledger.answer(question(2, answers=2))
        for change in ({}, {"limit": 1}, {"repeat": "refuse"}):  # a reload in between changes nothing
            assert await ledger.answer(question(1, 1, 2, **same | change)) == first
        assert await fresh(ledger, 1, answers=2) == 1

    with_ledger(ledger_url, work)


def test_a_refused_request_is_not_kept(ledger_url):
    """Or whoever has spent a record could fill the disk with fresh idempotency keys."""

    async def work(ledger):
        await ledger.answer(question(1))
        for i in range(3):
            assert (await ledger.answer(question(1, repeat="refuse", request=bytes([i])))).refused == "record"
        assert await fresh(ledger, 2, request=bytes(1)) == 1  # not even a conflict

    with_ledger(ledger_url, work)


def test_a_request_that_costs_nothing_is_not_kept(ledger_url):
    """It is told the same without; or anyone who repeats a question with fresh keys could fill the disk."""

    async def work(ledger):
        first = await ledger.answer(question(1))
        for i in range(20):
            again = await ledger.answer(question(1, request=bytes([i])))
            assert (again.outcomes, again.fresh) == (first.outcomes, 0)
        assert (await ledger.books.totals())[0].calls == 1
        for _ in range(2):  # what costs the client is charged once
            await ledger.answer(question(1, request=b"r", client="ann", price=1, client_limit=1))
        assert (await ledger.books.totals())[0].calls == 2

    with_ledger(ledger_url, work)


def test_a_request_for_something_else_is_a_conflict(ledger_url):
    async def work(ledger):
        first = await ledger.answer(question(1, client="c", request=b"r"))
        for other in (
            question(2, client="c", request=b"r"),
            question(1, 1, client="c", request=b"r"),
            question(1, client="c", request=b"r", model="n"),
            question(1, client="d", request=b"r"),
            question(1, client="c", request=b"r", settings=b"o" * 16),
        ):
            with pytest.raises(IdempotencyConflict, match="This idempotency key came with another request before"):
                await ledger.answer(other)
        assert await ledger.answer(question(1, client="c", request=b"r")) == first

    with_ledger(ledger_url, work)


def test_concurrent_retries_are_one_charge(ledger_url):
    async def work(one):
        async with opened(ledger_url) as other:
            tries = [
                ledger.answer(question(i, 99, answers=1000, request=bytes([i])))
                for i in range(20)
                for ledger in (one, other) * 8
            ]
            answers = await asyncio.gather(*tries)
        for i in range(20):
            assert all(answer == answers[16 * i] for answer in answers[16 * i : 16 * (i + 1)])
        assert await fresh(one, 99, answers=21) == 1
        assert await fresh(one, 99, answers=21) == 0

    with_ledger(ledger_url, work)


# The clock, and the end of records


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_clock_that_jumps_changes_nothing(ledger_url, monkeypatch, jump):
    real = time.time

    async def work(ledger):
        first = await ledger.answer(question(1, answers=3, request=b"r"))
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        assert await ledger.answer(question(1, answers=3, request=b"r")) == first
        assert await fresh(ledger, 1, answers=3) == 1
        assert await ledger.ready()
        monkeypatch.setattr(time, "time", real)
        assert [await fresh(ledger, 1, answers=3) for _ in range(2)] == [1, 0]
        assert (await ledger.books.verify()).intact

    with_ledger(ledger_url, work)


def test_answers_that_are_given_again_leave_no_row_and_count_all_the_same(ledger_url):
    """A log that grew with every question about known records would take ever longer to read."""
    paid = {"client": "ann", "price": 2, "client_limit": 13}

    async def work(ledger):
        for _ in range(5):
            assert (await ledger.answer(question(1, **paid))).refused == ""
        (total,) = await ledger.books.totals(by_client=True)
        assert (total.client, total.calls, total.answers, total.price) == ("ann", 1, 1, 10)

    with_ledger(ledger_url, work)

    async def after(ledger):
        assert [(await ledger.answer(question(1, **paid))).refused for _ in range(2)] == ["", "client"]

    with_ledger(ledger_url, after)


def test_the_oldest_records_end_and_what_clients_spent_does_not(ledger_url):
    paid = {"client": "ann", "price": 2, "client_limit": 5}

    async def work(ledger):
        await ledger.answer(question(-7, request=b"r", **paid))
        await ledger.answer(question(-8))
        for start in range(0, 1400, 100):
            await ledger.answer(question(*range(start, start + 100)))
        await asyncio.sleep(1.1)  # between two heartbeats that do more than to write
        assert await ledger.ready()
        assert await fresh(ledger, 1399) == await fresh(ledger, 500) == 0
        assert await fresh(ledger, -8) == 1
        assert (await ledger.books.verify()).intact
        assert (await ledger.books.totals())[0].records <= 1100
        # the row of its first call was dropped, with the idempotency key
        assert [(await ledger.answer(question(-7, request=b"r", **paid))).refused for _ in range(2)] == ["", ""]
        assert (await ledger.answer(question(-9, **paid))).refused == "client"

    with_ledger(ledger_url, work, horizon=Horizon(records=1000))

    async def after(ledger):
        assert await fresh(ledger, 1399) == 0
        assert (await ledger.answer(question(-9, **paid))).refused == "client"

    with_ledger(ledger_url, after, horizon=Horizon(records=1000))
