"""What the books say, what verify finds, and what is left after forgetting."""

import asyncio
import sqlite3
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from ledger_tools import fresh, question, with_books, with_ledger
from scoreveil.ledger import Forgotten, Head, Horizon, LedgerUnavailable, Scope, Total


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
        await ledger.answer(question(1, 1, 2, model="digits/1", client="ann", price=3))
        await ledger.answer(question(2, 3, model="digits/1", client="bob", answers=2, price=2))
        await ledger.answer(question(1, model="digits/2", client="ann", units=4, request=b"r"))
        await ledger.answer(question(1, model="digits2", units=4))
        await ledger.bind({"unit of digits/1": "epsilon", "unit of digits2": "rho"})

    with_ledger(ledger_url, work)
    return ledger_url


def verified(url, earlier=None):
    return with_books(url, lambda books: books.verify(earlier))


def test_totals_by_model_and_by_client(spent):
    assert with_books(spent, lambda books: books.totals()) == [
        Total("digits/1", None, calls=2, records=3, answers=4, units=4, price=5),
        Total("digits/2", None, calls=1, records=1, answers=1, units=4, price=0),
        Total("digits2", None, calls=1, records=1, answers=1, units=4, price=0),
    ]
    assert with_books(spent, lambda books: books.totals(by_client=True)) == [
        Total("digits/1", "ann", calls=1, records=2, answers=2, units=2, price=3),
        Total("digits/1", "bob", calls=1, records=1, answers=2, units=2, price=2),
        Total("digits/2", "ann", calls=1, records=1, answers=1, units=4, price=0),
        Total("digits2", "", calls=1, records=1, answers=1, units=4, price=0),
    ]


def test_verify_finds_nothing_wrong_where_nothing_is(spent):
    found = verified(spent)
    assert found.intact
    assert (found.calls, found.answers, found.forgotten, found.head.entry) == (4, 6, 0, 4)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log SET units = 1 WHERE id = 3",
        "UPDATE log SET client = 'bob' WHERE id = 3",
        "UPDATE log SET digest = digest || digest WHERE id = 3",
        "UPDATE log SET body = body || body WHERE id = 2",
        "UPDATE log SET fresh = fresh + 1 WHERE id = 2",
        "DELETE FROM log WHERE id = 1",
        "DELETE FROM log WHERE id = 4",
    ],
)
def test_verify_finds_what_was_altered(spent, alter, statement):
    alter(statement)
    faults = verified(spent).faults
    known = "was altered", "went further", "differs", "the file damaged"
    assert any(words in fault for fault in faults for words in known), faults


def test_an_earlier_head_finds_what_was_rewritten_to_agree(spent):
    head = Head.parse(str(verified(spent).head))
    assert verified(spent, head).intact

    async def more(ledger):
        await ledger.answer(question(9, model="digits/1"))

    with_ledger(spent, more)
    assert verified(spent, head).intact
    with_books(spent, lambda books: books.forget(Scope(model="digits2")))  # which makes all digests anew
    assert verified(spent).intact
    assert verified(spent, head).faults == ("the log does not begin with what it held at the given head",)


@pytest.mark.parametrize("text", ["", "4", "x:00", "4:00", "-1:" + "0" * 64])
def test_other_heads_are_refused(text):
    with pytest.raises(ValueError, match="A head is a number, a colon and 64 hex digits"):
        Head.parse(text)


def test_a_forgotten_model_starts_anew(spent):
    assert with_books(spent, lambda books: books.forget(Scope(model="digits"))) == Forgotten(calls=3, requests=1)
    assert with_books(spent, lambda books: books.facts()) == {"unit of digits2": "rho"}

    async def work(ledger):
        assert await fresh(ledger, 1, 2, 3, model="digits/1") == 3
        assert await fresh(ledger, 1, model="digits2") == 0
        assert await fresh(ledger, 1, model="digits/2", client="ann", request=b"r") == 1

    with_ledger(spent, work)
    assert verified(spent).intact
    assert verified(spent).forgotten == 1


def test_a_forgotten_client_leaves_its_answers_and_its_odometer_spent(spent):
    before = with_books(spent, lambda books: books.totals())
    assert with_books(spent, lambda books: books.forget(Scope(client="ann"))) == Forgotten(calls=2, requests=1)
    after = with_books(spent, lambda books: books.totals())
    assert [total.units for total in after] == [total.units for total in before]
    assert {total.client for total in with_books(spent, lambda books: books.totals(by_client=True))} == {"", "bob"}
    assert verified(spent).intact

    async def work(ledger):
        assert await fresh(ledger, 1, 2, model="digits/1") == 0
        paid = {"model": "digits/1", "client": "ann", "price": 2, "client_limit": 5}
        assert [(await ledger.answer(question(7, **paid))).refused for _ in range(2)] == ["", "client"]

    with_ledger(spent, work)


def test_old_requests_are_forgotten_and_charged_again(spent):
    assert with_books(spent, lambda books: books.forget(Scope(requests_days=1))) == Forgotten()
    assert with_books(spent, lambda books: books.forget(Scope(requests_days=0))) == Forgotten(requests=1)
    assert verified(spent).intact

    async def work(ledger):
        again = question(1, model="digits/2", client="ann", units=4, answers=2, request=b"r")
        assert (await ledger.answer(again)).fresh == 1

    with_ledger(spent, work)


def test_forgetting_nothing_says_so(spent):
    assert with_books(spent, lambda books: books.forget(Scope(model="other"))) == Forgotten()
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


def test_forgetting_and_compacting_go_on_beside_calls(spent):
    async def work(ledger):
        async def asking():
            for i in range(50):
                await ledger.answer(question(i, 1000 + i, model="digits/1"))

        async def forgetting():
            for _ in range(5):
                await ledger.books.forget(Scope(model="digits"))
                await ledger.books.compact()

        await asyncio.gather(asking(), asking(), forgetting())
        assert (await ledger.books.verify()).intact
        last = await ledger.books.forget(Scope(model="digits"))
        assert last.calls == 0 or await fresh(ledger, 49, model="digits/1") == 1

    with_ledger(spent, work)


def test_compacting_drops_what_has_ended_and_gives_its_space_back(tmp_path):
    path = tmp_path / "ledger.db"

    async def work(ledger):
        head = (await ledger.books.verify()).head
        await asyncio.gather(*(ledger.answer(question(n, outcomes=bytes(5000))) for n in range(900)))
        await ledger.answer(question(*range(1000, 2000)))  # which ends them all
        assert await ledger.books.compact() > 800
        assert path.stat().st_size < 1 << 20
        assert await fresh(ledger, 1999) == 0
        assert (await ledger.books.verify()).intact
        faults = (await ledger.books.verify(head)).faults
        assert faults == ("the given head is older than the log, whose beginning has ended since",)

    with_ledger(f"sqlite:///{path}", work, horizon=Horizon(records=1000))


def test_books_of_no_ledger_are_unavailable_and_none_is_made(tmp_path, postgres_url):
    for url, words in (
        (f"sqlite:///{tmp_path}/none.db", "its file is not there"),
        (postgres_url, "its tables are not there"),
    ):
        with pytest.raises(LedgerUnavailable, match=words):
            with_books(url, lambda books: books.totals())
    assert list(tmp_path.iterdir()) == []
