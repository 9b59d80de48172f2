"""What the books say, what verify finds, and what is left after forgetting."""

import asyncio
import sqlite3
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from ledger_tools import key, releases, with_ledger
from scoreveil.ledger import Forgotten, Head, LedgerUnavailable, Record, Scope, Total, open_books


@pytest.fixture
def alter(ledger_url, request):
    """Do to the tables what only someone with access to the storage can."""

    def run(statement):
        if ledger_url.startswith("sqlite"):
            with closing(sqlite3.connect(ledger_url.removeprefix("sqlite:///"))) as connection, connection:
                connection.execute(statement)
        else:
            schema = urlsplit(ledger_url).query.rpartition("=")[2]
            names = [("UPDATE ", f"UPDATE {schema}.scoreveil_"), ("DELETE FROM ", f"DELETE FROM {schema}.scoreveil_")]
            for name, full in names:
                statement = statement.replace(name, full)
            request.getfixturevalue("postgres").sql(statement)

    return run


@pytest.fixture
def spent(ledger_url):
    """A ledger with two models, one in two versions, and two clients."""

    async def work(ledger):
        await ledger.charge("digits/1", [key(1), key(1), key(2)], limit=2, client="ann")
        await ledger.charge("digits/1", [key(2), key(3)], limit=2, client="bob")
        await ledger.charge("digits/2", [key(1)], limit=9, units=4, client="ann", request=b"r")
        await ledger.charge("digits2", [key(1)], limit=9, units=4)

    with_ledger(ledger_url, work)
    return ledger_url


def books(url, work):
    async def run():
        return await work(await open_books(url))

    return asyncio.run(run())


def verified(url, earlier=None):
    return books(url, lambda found: found.verify(earlier))


def test_totals_per_model_and_per_client(spent):
    assert books(spent, lambda found: found.totals()) == [
        Total("digits/1", None, records=3, releases=5, units=5, exhausted=2),
        Total("digits/2", None, records=1, releases=1, units=4, exhausted=0),
        Total("digits2", None, records=1, releases=1, units=4, exhausted=0),
    ]
    assert books(spent, lambda found: found.totals(by_client=True)) == [
        Total("digits/1", "ann", records=2, releases=3, units=3, exhausted=2),
        Total("digits/1", "bob", records=2, releases=2, units=2, exhausted=1),
        Total("digits/2", "ann", records=1, releases=1, units=4, exhausted=0),
        Total("digits2", "", records=1, releases=1, units=4, exhausted=0),
    ]


def test_records_one_by_one(spent):
    async def work(found):
        return [record async for record in found.records()]

    shown = {n: key(n).hex()[:8] for n in (1, 2, 3)}
    records = books(spent, work)
    assert [record.model for record in records] == ["digits/1"] * 3 + ["digits/2", "digits2"]
    assert {(r.record, r.releases, r.units, r.room) for r in records[:3]} == {
        (shown[1], 2, 2, 0),
        (shown[2], 2, 2, 0),
        (shown[3], 1, 1, 1),
    }
    assert records[4] == Record("digits2", shown[1], 1, 4, 1)


def test_verify_finds_nothing_wrong_where_nothing_is(spent):
    found = verified(spent)
    assert found.intact
    assert (found.records, found.entries, found.releases, found.forgotten) == (5, 4, 7, 0)


def test_both_kinds_have_the_same_head_for_the_same_charges(spent):
    # of the four charges above, whatever the storage
    assert str(verified(spent).head) == "4:b787bf4c522f428e57556bdcba454d0b1ab751d7d49d426b7b0f487ea5b68084"


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE records SET spent = spent - 1 WHERE model = 'digits/2'", "its counter is less than what the journal"),
        ("UPDATE records SET spent = spent + 1 WHERE model = 'digits/2'", "its counter is more than what the journal"),
        ("UPDATE records SET releases = 0 WHERE model = 'digits/2'", "its counter is not what the journal adds up to"),
        ("DELETE FROM records WHERE model = 'digits/2'", "its counter is less than what the journal adds up to"),
        ("DELETE FROM journal WHERE id = 3", "its counter is more than what the journal adds up to"),
        ("UPDATE journal SET units = 1 WHERE id = 3", "journal entry 3: its checksum does not fit"),
        ("UPDATE journal SET client = 'bob' WHERE id = 3", "journal entry 3: its checksum does not fit"),
    ],
)
def test_verify_finds_what_was_altered(spent, alter, statement, fault):
    alter(statement)
    found = verified(spent)
    assert not found.intact
    assert any(fault in each for each in found.faults), found.faults
    assert not any(key(n).hex()[:9] in each for each in found.faults for n in (1, 2, 3))


def test_an_earlier_head_finds_what_was_rewritten_to_agree(spent, alter):
    head = Head.parse(str(verified(spent).head))
    assert verified(spent, head).intact

    async def more(ledger):
        await ledger.charge("digits/1", [key(9)], limit=2)

    with_ledger(spent, more)
    assert verified(spent, head).intact
    alter("DELETE FROM journal WHERE model = 'digits/2'")
    alter("DELETE FROM records WHERE model = 'digits/2'")
    assert verified(spent).intact  # counters and journal agree: without the head nothing shows
    assert verified(spent, head).faults == ("the journal does not begin with what it held at the given head",)


@pytest.mark.parametrize("text", ["", "4", "x:00", "4:00", "-1:" + "0" * 64])
def test_other_heads_are_refused(text):
    with pytest.raises(ValueError, match="A head is a number, a colon and 64 hex digits"):
        Head.parse(text)


def test_a_forgotten_model_starts_anew(spent):
    assert books(spent, lambda found: found.forget(Scope(model="digits"))) == Forgotten(
        records=4, entries=3, requests=1
    )

    async def work(ledger):
        assert await releases(ledger, key(1), key(2), model="digits/1") == [0, 0]
        assert await releases(ledger, key(1), model="digits2") == [1]
        (grant,) = await ledger.charge("digits/2", [key(1)], limit=9, units=4, client="ann", request=b"r")
        assert grant.number == 1

    with_ledger(spent, work)
    found = verified(spent)
    assert found.intact
    assert found.forgotten == 1


def test_one_version_is_forgotten_alone(spent):
    assert books(spent, lambda found: found.forget(Scope(model="digits/2"))).records == 1
    assert [total.model for total in books(spent, lambda found: found.totals())] == ["digits/1", "digits2"]


def test_a_forgotten_client_leaves_its_releases_spent(spent):
    before = books(spent, lambda found: found.totals())
    assert books(spent, lambda found: found.forget(Scope(client="ann"))) == Forgotten(entries=2, requests=1)
    assert books(spent, lambda found: found.totals()) == before
    assert {total.client for total in books(spent, lambda found: found.totals(by_client=True))} == {"", "bob"}
    assert verified(spent).intact


def test_old_requests_are_forgotten_and_charged_again(spent):
    assert books(spent, lambda found: found.forget(Scope(requests_days=1))) == Forgotten()
    assert books(spent, lambda found: found.forget(Scope(requests_days=0))) == Forgotten(requests=1)
    assert verified(spent).forgotten == 0

    async def work(ledger):
        return await ledger.charge("digits/2", [key(1)], limit=9, units=4, client="ann", request=b"r")

    assert with_ledger(spent, work)[0].number == 2


def test_forgetting_nothing_says_so(spent):
    assert books(spent, lambda found: found.forget(Scope(model="other"))) == Forgotten()
    assert verified(spent).forgotten == 0


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ({}, "0 are given"),
        ({"model": "m", "client": "c"}, "2 are given"),
        ({"model": ""}, "is empty"),
        ({"requests_days": -1}, "cannot be negative"),
    ],
)
def test_a_scope_is_one_thing(scope, words):
    with pytest.raises(ValueError, match=words):
        Scope(**scope)


def test_forgetting_goes_on_beside_charges(spent):
    async def work(ledger):
        async def charging():
            for i in range(50):
                await ledger.charge("digits/1", [key(i), key(1000 + i)], limit=100)

        async def forgetting():
            for _ in range(5):
                await ledger.books.forget(Scope(model="digits"))

        await asyncio.gather(charging(), charging(), forgetting())
        assert (await ledger.books.verify()).intact

    with_ledger(spent, work)


def test_books_of_no_ledger_are_unavailable_and_none_is_made(tmp_path, postgres_url):
    for url, words in (
        (f"sqlite:///{tmp_path}/none.db", "its file is not there"),
        (postgres_url, "its tables are not there"),
    ):
        with pytest.raises(LedgerUnavailable, match=words):
            books(url, lambda found: found.totals())
    assert list(tmp_path.iterdir()) == []


def test_verify_finds_a_damaged_file(tmp_path):
    path = tmp_path / "ledger.db"

    async def work(ledger):
        for start in range(0, 3000, 1000):
            await ledger.charge("m", [key(i) for i in range(start, start + 1000)], limit=5)

    with_ledger(f"sqlite:///{path}", work)
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        for page in range(pages // 2, pages):
            file.seek(4096 * page)
            file.write(b"\x00" * 4096)
    assert verified(f"sqlite:///{path}").faults == ("SQLite finds the file damaged",)
