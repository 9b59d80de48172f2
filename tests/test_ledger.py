"""What every ledger keeps, in SQLite and in PostgreSQL alike: exact budgets, one charge per request, nothing lost."""

import asyncio
import json
import subprocess
import sys
import time
from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger_tools import key, opened, releases, with_ledger
from scoreveil.ledger import Grant, IdempotencyConflict, LedgerUnavailable, open_ledger, record_key

SECRET = b"sixteen bytes, or more"
CLIENTS = """
import asyncio, json, sys
from scoreveil.ledger import open_ledger

async def main(url, clients, tries, limit):
    ledger = await open_ledger(url)
    async def client(i):
        grants = []
        for _ in range(tries):
            grants += await ledger.charge("m", [bytes(32)], limit, client=str(i))
        return [grant.number for grant in grants if grant.granted]
    print("ready", flush=True)
    sys.stdin.readline()
    granted = await asyncio.gather(*(client(i) for i in range(clients)))
    print(json.dumps(sum(granted, [])), flush=True)
    sys.stdin.readline()  # the owner of the writer stays until all are through
    await ledger.close()

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


class Oracle:
    """The ledger as a dictionary."""

    def __init__(self):
        self.counters, self.requests = {}, {}

    def charge(self, model, keys, limit, units=1, client="", request=None):
        asked = (model, tuple(keys), client)
        if request is not None and request in self.requests:
            before, grants = self.requests[request]
            if before != asked:
                raise IdempotencyConflict
            return grants
        grants = []
        for each in keys:
            number, spent = self.counters.get((model, each), (0, 0))
            granted = spent + units <= limit
            if granted:
                number, spent = number + 1, spent + units
                self.counters[model, each] = number, spent
            grants.append(Grant(each, number, granted, spent, limit))
        if request is not None and any(grant.granted for grant in grants):
            self.requests[request] = asked, grants
        return grants


# Keys


def test_record_key_is_unambiguous_and_keyed():
    parts = [("ab", "c", b"d"), ("a", "bc", b"d"), ("ab", "", b"cd"), ("", "abc", b"d"), ("abc", "d", b"")]
    keys = {record_key(SECRET, *part) for part in parts} | {record_key(SECRET + b"!", *parts[0])}
    assert len(keys) == len(parts) + 1
    assert {len(each) for each in keys} == {32}
    # locked: a change of the encoding would forget every budget
    assert record_key(SECRET, "digits", "1", b"record").hex().startswith("5c701e28ce04f33d")


def test_short_secrets_are_refused():
    with pytest.raises(ValueError, match="Expected a secret of at least 16 bytes, got 3"):
        record_key(b"abc", "m", "1", b"")


def test_a_grant_shows_eight_digits_of_its_key_at_most():
    grant = Grant(key(1), 2, False, 2, 2)
    assert key(1).hex()[:8] in repr(grant)
    assert key(1).hex()[:9] not in repr(grant)


# One ledger


def test_grants_row_by_row_until_the_budget_is_spent(ledger_url):
    a, b = key("a"), key("b")

    async def work(ledger):
        assert await ledger.charge("m", [a, b, a, a], limit=2) == [
            Grant(a, 1, True, 1, 2),
            Grant(b, 1, True, 1, 2),
            Grant(a, 2, True, 2, 2),
            Grant(a, 2, False, 2, 2),
        ]
        assert await ledger.charge("m", [a, b], limit=2) == [Grant(a, 2, False, 2, 2), Grant(b, 2, True, 2, 2)]
        assert await ledger.charge("m", [], limit=2) == []
        assert await ledger.ready()

    with_ledger(ledger_url, work)


def test_units_are_spent_and_a_rest_too_small_is_refused(ledger_url):
    async def work(ledger):
        assert await ledger.charge("m", [key(1)] * 3, limit=7, units=3) == [
            Grant(key(1), 1, True, 3, 7),
            Grant(key(1), 2, True, 6, 7),
            Grant(key(1), 2, False, 6, 7),
        ]
        assert await ledger.charge("m", [key(1)], limit=7, units=1) == [Grant(key(1), 3, True, 7, 7)]
        assert await ledger.charge("m", [key(2)], limit=2, units=3) == [Grant(key(2), 0, False, 0, 2)]

    with_ledger(ledger_url, work)


def test_a_lower_limit_never_lowers_what_was_charged(ledger_url):
    async def work(ledger):
        await ledger.charge("m", [key(1)] * 5, limit=5)
        assert await ledger.charge("m", [key(1)], limit=2) == [Grant(key(1), 5, False, 5, 2)]
        assert await ledger.charge("m", [key(1)], limit=0) == [Grant(key(1), 5, False, 5, 0)]
        assert await ledger.charge("m", [key(1)], limit=6) == [Grant(key(1), 6, True, 6, 6)]

    with_ledger(ledger_url, work)


def test_models_have_budgets_of_their_own_and_clients_do_not(ledger_url):
    async def work(ledger):
        await ledger.charge("m", [key(1)], limit=1, client="x")
        assert not (await ledger.charge("m", [key(1)], limit=1, client="y"))[0].granted
        assert (await ledger.charge("n", [key(1)], limit=1, client="y"))[0].granted

    with_ledger(ledger_url, work)


def test_charges_outlive_the_process(ledger_url):
    async def work(ledger):
        return await ledger.charge("m", [key(1)], limit=3, request=b"r")

    assert with_ledger(ledger_url, work) == with_ledger(ledger_url, work)

    async def more(ledger):
        return (await ledger.charge("m", [key(1)], limit=3))[0].number

    assert [with_ledger(ledger_url, more), with_ledger(ledger_url, more)] == [2, 3]


UNCHARGEABLE = [
    ({"keys": [b"short"]}, "A record key has 32 bytes, and one of these has 5"),
    ({"limit": -1}, "Expected a limit between 0 and 2\\^48 units, got -1"),
    ({"limit": 2**48 + 1}, "Expected a limit between"),
    ({"units": 0}, "Expected between 1 and 2\\^48 units per release, got 0"),
    ({"model": ""}, "The model's name is empty"),
    ({"client": "c" * 1025}, "The client's name is longer than 1024 bytes, or has a NUL"),
    ({"client": "a\0b"}, "The client's name is longer than 1024 bytes, or has a NUL"),
    ({"request": b""}, "Expected a request of 1 to 64 bytes, got 0"),
    ({"request": b"r" * 65}, "Expected a request of 1 to 64 bytes, got 65"),
]


def test_what_cannot_be_charged_is_refused_before_it_is_sent(ledger_url):
    async def work(ledger):
        for wrong, message in UNCHARGEABLE:
            with pytest.raises(ValueError, match=message):
                await ledger.charge(**{"model": "m", "keys": [key(1)], "limit": 1} | wrong)
        assert (await ledger.charge("m", [key(1)], limit=1))[0].granted

    with_ledger(ledger_url, work)


def test_a_closed_ledger_is_unavailable(ledger_url):
    async def work():
        ledger = await open_ledger(ledger_url)
        await ledger.close()
        with pytest.raises(LedgerUnavailable, match="it was closed"):
            await ledger.charge("m", [key(1)], limit=1)
        assert not await ledger.ready()
        await ledger.close()

    asyncio.run(work())


@pytest.mark.parametrize("url", ["mysql://user:hidden@host/db", "sqlite:///", "sqlite://", "ledger.db", ""])
def test_other_addresses_are_refused_without_quoting_them(url):
    with pytest.raises(ValueError, match="The ledger's address is neither sqlite:///FILE nor postgresql://") as refused:
        asyncio.run(open_ledger(url))
    assert "hidden" not in str(refused.value)


# Many at once


def test_64_clients_on_one_record_get_exactly_the_budget(ledger_url):
    async def work(ledger):
        async def client(i):
            return [(await ledger.charge("m", [key(1)], 37, client=str(i)))[0] for _ in range(3)]

        grants = list(chain(*await asyncio.gather(*(client(i) for i in range(64)))))
        assert sorted(grant.number for grant in grants if grant.granted) == list(range(1, 38))
        assert {grant.number for grant in grants if not grant.granted} == {37}

    with_ledger(ledger_url, work)


def test_64_clients_in_4_processes_get_exactly_the_budget(ledger_url):
    command = [sys.executable, "-c", CLIENTS, ledger_url, "16", "3", "101"]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    granted = list(chain(*(json.loads(process.stdout.readline()) for process in processes)))
    for process in processes:
        process.communicate("stop\n")
        assert process.returncode == 0
    assert sorted(granted) == list(range(1, 102))


def test_batches_that_share_records_in_any_order_do_not_block_each_other(ledger_url):
    keys = [key(i) for i in range(40)]

    async def work(ledger):
        async def client(i):
            return await ledger.charge("m", keys[i:] + keys[:i] if i % 2 else keys[::-1], limit=15)

        grants = list(chain(*await asyncio.gather(*(client(i) for i in range(20)))))
        for each in keys:
            assert sorted(g.number for g in grants if g.key == each and g.granted) == list(range(1, 16))

    with_ledger(ledger_url, work)


# Requests


def test_a_request_is_charged_once_and_answered_the_same(ledger_url):
    async def work(ledger):
        first = await ledger.charge("m", [key(1), key(1), key(1), key(2)], limit=2, client="c", request=b"r")
        assert [grant.granted for grant in first] == [True, True, False, True]
        await ledger.charge("m", [key(2)], limit=2)
        for limit, units in ((2, 1), (9, 2)):  # a reload in between changes neither charge nor answer
            again = await ledger.charge(
                "m", [key(1), key(1), key(1), key(2)], limit, units=units, client="c", request=b"r"
            )
            assert again == first
        assert await releases(ledger, key(1), key(2)) == [2, 2]

    with_ledger(ledger_url, work)


def test_a_refused_request_is_not_kept(ledger_url):
    """Or whoever has spent a record could fill the disk with fresh idempotency keys."""

    async def work(ledger):
        await ledger.charge("m", [key(1)], limit=1)
        for i in range(3):
            (grant,) = await ledger.charge("m", [key(1)], limit=1, request=key(i))
            assert not grant.granted
        (later,) = await ledger.charge("m", [key(2)], limit=1, request=key(0))  # not even a conflict
        assert later.granted

    with_ledger(ledger_url, work)


def test_a_request_for_something_else_is_a_conflict(ledger_url):
    async def work(ledger):
        first = await ledger.charge("m", [key(1)], limit=5, client="c", request=b"r")
        for other in (
            {"keys": [key(2)]},
            {"keys": [key(1), key(1)]},
            {"model": "n"},
            {"client": "d"},
            {"keys": []},
        ):
            with pytest.raises(IdempotencyConflict, match="This idempotency key came with another request before"):
                await ledger.charge(
                    **{"model": "m", "keys": [key(1)], "limit": 5, "client": "c", "request": b"r"} | other
                )
        assert await ledger.charge("m", [key(1)], limit=5, client="c", request=b"r") == first
        assert await releases(ledger, key(1), key(2)) == [1, 0]

    with_ledger(ledger_url, work)


def test_concurrent_retries_are_one_charge(ledger_url):
    async def work(one):
        async with opened(ledger_url) as other:
            tries = [
                ledger.charge("m", [key(i), key("all")], limit=1000, request=key(i))
                for i in range(20)
                for ledger in (one, other) * 8
            ]
            answers = await asyncio.gather(*tries)
        for i in range(20):
            assert all(answer == answers[16 * i] for answer in answers[16 * i : 16 * (i + 1)])
        assert await releases(one, key("all"), *(key(i) for i in range(20))) == [20] + [1] * 20

    with_ledger(ledger_url, work)


# The clock


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_a_clock_that_jumps_changes_nothing(ledger_url, monkeypatch, jump):
    real = time.time

    async def work(ledger):
        first = await ledger.charge("m", [key(1)], limit=3, request=b"r")
        monkeypatch.setattr(time, "time", lambda: real() + jump)
        assert await ledger.charge("m", [key(1)], limit=3, request=b"r") == first
        assert (await ledger.charge("m", [key(1)], limit=3))[0].number == 2
        monkeypatch.setattr(time, "time", real)
        assert (await ledger.charge("m", [key(1)], limit=3))[0].number == 3
        assert not (await ledger.charge("m", [key(1)], limit=3))[0].granted
        assert (await ledger.books.verify()).intact

    with_ledger(ledger_url, work)


# Against a dictionary

CHARGES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["m", "n", "ε/1"]),
        "keys": st.lists(st.sampled_from([key(i) for i in range(4)]), max_size=6),
        "limit": st.integers(0, 12),
        "units": st.integers(1, 4),
        "client": st.sampled_from(["", "c", "d"]),
        "request": st.sampled_from([None, None, b"r", b"s"]),
    }
)


def test_any_sequence_of_charges_is_what_a_dictionary_says(ledger_url):
    """Every example has models and requests of its own in one ledger; at the end the books agree with all of them."""
    examples = iter(range(10**9))
    totals = {}

    async def compare(ledger, charges):
        mark, oracle = f"{next(examples)} ", Oracle()
        for charge in charges:
            request = charge["request"] and mark.encode() + charge["request"]
            charge = charge | {"model": mark + charge["model"], "request": request}
            try:
                expected = oracle.charge(**charge)
            except IdempotencyConflict:
                with pytest.raises(IdempotencyConflict):
                    await ledger.charge(**charge)
                continue
            assert await ledger.charge(**charge) == expected
        for (model, _), (number, spent) in oracle.counters.items():
            records, releases, units = totals.get(model, (0, 0, 0))
            totals[model] = records + 1, releases + number, units + spent

    with asyncio.Runner() as runner:
        ledger = runner.run(open_ledger(ledger_url))

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.lists(CHARGES, max_size=8))
        def check(charges):
            runner.run(compare(ledger, charges))

        check()
        found = runner.run(ledger.books.totals())
        assert {total.model: (total.records, total.releases, total.units) for total in found} == totals
        by_client = runner.run(ledger.books.totals(by_client=True))
        assert sum(total.units for total in by_client) == sum(units for _, _, units in totals.values())
        assert runner.run(ledger.books.verify()).intact
        runner.run(ledger.close())
