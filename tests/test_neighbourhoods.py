"""Near-duplicates share a record: what the ledger answers, however many ask at once, and what an attacker gains."""

import asyncio
import secrets
import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from ledger_tools import key, opened, with_ledger
from scoreveil.ledger import IdempotencyConflict, Questions
from scoreveil.ledger.releases import joined_marks
from scoreveil.neighbourhood import TABLES, Neighbourhoods

SECRET = b"0123456789abcdef"
SETTINGS, OTHER_SETTINGS = b"s" * 16, b"t" * 16
DIGITS = load_digits().data
CANCER = load_breast_cancer().data


def asked(*rows: tuple[Any, tuple[int, ...], bytes], **options: Any) -> Questions:
    """Rows of (name, marks, outcome)."""
    names, marks, outcomes = zip(*rows, strict=True)
    given = {"settings": SETTINGS, "limit": 2, "units": 1, "price": 10**13, "repeats": "sticky"} | options
    keys = b"".join(key(name) for name in names)
    return Questions(model="m", keys=keys, marks=joined_marks(marks), outcomes=b"".join(outcomes), **given)


def told(answers: list[Any]) -> list[tuple[bytes, bool, str]]:
    return [(answer.outcome, answer.granted, answer.refused) for answer in answers]


# Who is whose neighbour


@pytest.mark.parametrize("typical", [None, CANCER[:200]])
def test_tiny_moves_share_a_mark_and_other_records_do_not(typical: np.ndarray | None) -> None:
    near = Neighbourhoods(SECRET, b"m", typical)
    x = CANCER[200:]
    marks = near(len(x), [x])
    assert marks.shape == (len(x), TABLES)
    denormal, scaled = x.copy(), x * (1 + 1e-6)
    denormal[:, 3] += 5e-324
    for moved in (denormal, scaled, x.astype(np.float32)):
        assert (near(len(x), [moved]) == marks).any(axis=1).all()
    counts = Counter(marks.ravel().tolist())
    strangers = [row for row in marks.tolist() if any(counts[mark] > 1 for mark in row)]
    assert len(strangers) <= 0.03 * len(x)  # both of a pair are counted


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e-20, 1e-12])
def test_next_to_nothing_is_nothing(scale: float) -> None:
    """A blank record has no size of its own that noise could be compared with."""
    near = Neighbourhoods(SECRET, b"m")
    noise = np.random.default_rng(0).normal(size=(200, 13)) * scale
    assert (near(200, [noise]) == near(1, [np.zeros((1, 13))])).any(axis=1).all()


@pytest.mark.parametrize("scale", [1e-4, 1e-6, 1e-8])
def test_small_records_are_told_apart(scale: float) -> None:
    """Wavelengths in metres, or concentrations."""
    near = Neighbourhoods(SECRET, b"m")
    small = np.random.default_rng(0).normal(size=(200, 13)) * scale
    counts = Counter(near(200, [small]).ravel().tolist())
    assert max(counts.values()) == 1


def test_marks_are_functions_of_secret_context_and_texts() -> None:
    x = DIGITS[:20]
    marks = Neighbourhoods(SECRET, b"m")(20, [x])
    np.testing.assert_array_equal(Neighbourhoods(SECRET, b"m")(20, [x]), marks)
    np.testing.assert_array_equal(Neighbourhoods(SECRET, b"m")(20, [x[:, :30], x[:, 30:]]), marks)
    for other in (Neighbourhoods(SECRET, b"n"), Neighbourhoods(SECRET[::-1], b"m")):
        assert not np.isin(other(20, [x]), marks).any()
    with_text = Neighbourhoods(SECRET, b"m")(20, [x, np.array([["a"]] * 10 + [["b"]] * 10, dtype=object)])
    assert not np.isin(with_text, marks).any()
    assert not np.isin(with_text[:10], with_text[10:]).any()


@pytest.mark.parametrize("wrong", [np.ones((200, 3)), np.arange(30.0).reshape(10, 3), np.zeros(200)])
def test_typical_inputs_that_tell_no_scale_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="typical inputs"):
        Neighbourhoods(SECRET, b"m", wrong)


def test_records_of_another_size_than_the_typical_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="Typical inputs have 30 numbers; a record has 64"):
        Neighbourhoods(SECRET, b"m", CANCER)(5, [DIGITS[:5]])


def test_marks_of_what_is_no_number_are_finite_functions() -> None:
    near = Neighbourhoods(SECRET, b"m")
    odd = np.array([[np.nan, np.inf], [0.0, 1e308], [0.0, 0.0], [-np.inf, 1.0]])
    assert near(4, [odd]).shape == (4, TABLES)
    np.testing.assert_array_equal(near(4, [odd]), near(4, [odd]))


# What the ledger answers


def test_a_neighbour_gets_the_first_answer_and_costs_nothing(ledger_url: str) -> None:
    async def work(ledger: Any) -> None:
        assert told(await ledger.answer(asked(("a", (1, 2), b"A")))) == [(b"A", True, "")]
        first = key("a")
        for name, marks in (("b", (2, 3)), ("a", (1, 2)), ("c", (9, 1))):
            [answer] = await ledger.answer(asked((name, marks, b"X")))
            assert (answer.outcome, answer.granted, answer.key, answer.spent) == (b"A", False, first, 1)
        # a neighbour's marks are not the record's: 3 and 9 lead nowhere
        assert told(await ledger.answer(asked(("d", (3, 9), b"D")))) == [(b"D", True, "")]
        # the earliest of two records is meant
        assert told(await ledger.answer(asked(("e", (9, 2), b"E")))) == [(b"A", False, "")]
        total = (await ledger.books.totals())[0]
        assert (total.records, total.releases, total.units) == (2, 2, 2)
        assert (await ledger.books.verify()).intact

    with_ledger(ledger_url, work)


def test_neighbours_within_one_call_are_one_record(ledger_url: str) -> None:
    async def work(ledger: Any) -> None:
        rows = (("a", (1, 2), b"A"), ("b", (2, 3), b"B"), ("c", (4, 5), b"C"), ("a", (1, 2), b"Z"))
        expected = [(b"A", True, ""), (b"A", False, ""), (b"C", True, ""), (b"A", False, "")]
        for repeats in ("sticky", "refuse"):
            settings = SETTINGS if repeats == "sticky" else OTHER_SETTINGS
            made = await ledger.answer(asked(*rows, repeats=repeats, limit=9, settings=settings))
            assert told(made) == expected
        assert (await ledger.books.verify()).intact

    with_ledger(ledger_url, work)


def test_a_budget_is_shared_by_neighbours(ledger_url: str) -> None:
    async def work(ledger: Any) -> None:
        for i, drawn in enumerate((b"A", b"B")):
            [answer] = await ledger.answer(asked((i, (1, 10 + i), drawn), repeats="replay"))
            assert (answer.outcome, answer.granted, answer.number) == (drawn, True, i + 1)
        assert told(await ledger.answer(asked((7, (1, 30), b"C"), repeats="replay"))) == [(b"B", False, "")]
        # one refused row costs the others nothing
        both = asked((8, (50, 51), b"D"), (9, (1, 40), b"E"), repeats="refuse")
        assert told(await ledger.answer(both)) == [(b"", False, ""), (b"", False, "record")]
        [fresh] = await ledger.answer(asked((8, (50, 51), b"D"), repeats="refuse"))
        assert (fresh.number, fresh.granted) == (1, True)

    with_ledger(ledger_url, work)


def test_what_was_drawn_with_other_settings_is_not_given_again(ledger_url: str) -> None:
    """Total 1.0, ε from .5 to .05: what is spent stays spent, and a replay is not drawn anew."""

    async def work(ledger: Any) -> None:
        first = {"repeats": "replay", "limit": 1000, "units": 500}
        then = {"repeats": "replay", "limit": 1000, "units": 50, "settings": OTHER_SETTINGS}
        for drawn in (b"A", b"B"):
            await ledger.answer(asked((1, (1, 2), drawn), **first))
        [refused] = await ledger.answer(asked((1, (1, 2), b"C"), **then))
        assert (refused.outcome, refused.refused, refused.spent) == (b"", "record", 1000)
        assert told(await ledger.answer(asked((1, (1, 2), b"C"), **first))) == [(b"B", False, "")]
        # sticky: other settings are another release, which is charged
        [fresh] = await ledger.answer(asked((1, (1, 2), b"D"), settings=OTHER_SETTINGS, units=50))
        assert (fresh.outcome, fresh.granted, fresh.spent) == (b"D", True, 1050)

    with_ledger(ledger_url, work)


def test_a_retry_is_answered_the_same_and_not_under_other_settings(ledger_url: str) -> None:
    async def work(ledger: Any) -> None:
        budget = {"repeats": "refuse", "request": b"r"}
        first = await ledger.answer(asked((1, (1, 2), b"A"), **budget))
        assert await ledger.answer(asked((1, (1, 2), b"B"), **budget)) == first
        for other in (asked((1, (1, 2), b"B"), settings=OTHER_SETTINGS, **budget), asked((2, (8, 9), b"B"), **budget)):
            with pytest.raises(IdempotencyConflict):
                await ledger.answer(other)
        assert (await ledger.books.totals())[0].releases == 1

    with_ledger(ledger_url, work)


def test_a_client_is_refused_beyond_its_limit_and_still_gets_what_it_has(ledger_url: str) -> None:
    async def work(ledger: Any) -> None:
        limited = {"client": "alice", "client_limit": 25 * 10**12}
        for name in (1, 2):
            assert (await ledger.answer(asked((name, (name, -name), b"A"), **limited)))[0].granted
        assert told(await ledger.answer(asked((3, (3, -3), b"A"), **limited))) == [(b"", False, "client")]
        both = await ledger.answer(asked((1, (1, -1), b"X"), (4, (4, -4), b"X"), **limited))
        assert [answer.outcome for answer in both] == [b"", b""]
        assert told(await ledger.answer(asked((1, (1, -1), b"X"), **limited))) == [(b"A", False, "")]
        # others have their own, and it does not matter to them who asked before
        assert told(await ledger.answer(asked((3, (3, -3), b"B"), client="bob", client_limit=10**13))) == [
            (b"B", True, "")
        ]
        assert (await ledger.answer(asked((5, (5, -5), b"A"), client="alice")))[0].granted
        from scoreveil.ledger import Scope

        await ledger.books.forget(Scope(client="alice"))  # the name goes, what was spent stays
        assert told(await ledger.answer(asked((6, (6, -6), b"A"), **limited))) == [(b"", False, "client")]

    with_ledger(ledger_url, work)


def test_many_that_ask_one_neighbourhood_at_once_get_one_record(ledger_url: str) -> None:
    """A unique constraint, not luck: 4 connections, each 8 near-duplicates at a time, of 5 neighbourhoods."""

    async def one(url: str, worker: int) -> list[Any]:
        async with opened(url) as ledger:
            calls = []
            for place in range(5):
                for i in range(8):
                    own = 1000 * worker + 100 * place + i + 100
                    calls.append(asked((own, (place, -place - 1, own), secrets.token_bytes(8)), client=f"c{worker}"))
            return await asyncio.gather(*(ledger.answer(call) for call in calls))

    async def work() -> None:
        found = await asyncio.gather(*(one(ledger_url, worker) for worker in range(4)))
        for place in range(5):
            answers = [each[place * 8 + i][0] for each in found for i in range(8)]
            assert len({answer.outcome for answer in answers}) == 1
            assert len({answer.key for answer in answers}) == 1
            assert sum(answer.granted for answer in answers) == 1
        async with opened(ledger_url) as ledger:
            total = (await ledger.books.totals())[0]
            assert (total.records, total.releases) == (5, 5)
            assert (await ledger.books.verify()).intact

    asyncio.run(work())


def test_forgetting_a_model_forgets_its_neighbourhoods(ledger_url: str) -> None:
    async def work(ledger: Any) -> None:
        from scoreveil.ledger import Scope

        await ledger.answer(asked((1, (1, 2), b"A")))
        await ledger.books.forget(Scope(model="m"))
        assert told(await ledger.answer(asked((2, (2, 3), b"B")))) == [(b"B", True, "")]
        assert (await ledger.books.verify()).intact

    with_ledger(ledger_url, work)


@pytest.mark.parametrize(
    "wrong",
    [
        {"settings": b"short"},
        {"units": 0},
        {"limit": -1},
        {"price": 0},
        {"repeats": "often"},
        {"client": "a\0"},
        {"request": b""},
        {"client_limit": -1},
    ],
)
def test_what_cannot_be_asked_is_refused_before_it_is_sent(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Expected|name"):
        asked((1, (1, 2), b"A"), **wrong)


# Facts, and ledgers from before


def test_facts_are_written_once(ledger_url: str) -> None:
    async def work(ledger: Any) -> None:
        assert await ledger.bind({}) == {}
        assert await ledger.bind({"secret": "a"}) == {"secret": "a"}
        assert await ledger.bind({"secret": "b", "more": "c"}) == {"secret": "a", "more": "c"}

    with_ledger(ledger_url, work)


def test_releases_of_an_earlier_ledger_become_units_once(ledger_url: str) -> None:
    async def work(ledger: Any) -> None:
        await ledger.charge("m", [key(1), key(1), key(2)], limit=5, client="alice")
        await ledger.charge("n", [key(1)], limit=5)
        for _ in range(2):
            assert await ledger.convert("m", "epsilon", 500) == "epsilon"
        assert await ledger.convert("m", "rho", 3) == "epsilon"
        totals = {total.model: (total.releases, total.units) for total in await ledger.books.totals()}
        assert totals == {"m": (3, 1500), "n": (1, 1)}
        found = await ledger.books.verify()
        assert (found.intact, found.forgotten) == (True, 1)
        # a record that has no marks yet is known by its key, and what it spent counts
        [refused] = await ledger.answer(asked((1, (1, 2), b"A"), repeats="refuse", limit=1000, units=500))
        assert (refused.refused, refused.spent) == ("record", 1000)
        [granted] = await ledger.answer(asked((2, (3, 4), b"B"), repeats="refuse", limit=1000, units=500))
        assert (granted.number, granted.spent) == (2, 1000)
        [near] = await ledger.answer(asked((3, (4, 5), b"C"), repeats="replay", limit=1000, units=500))
        assert (near.outcome, near.key) == (b"B", key(2))

    with_ledger(ledger_url, work)


def test_a_file_of_format_1_is_brought_to_this_one(tmp_path: Any) -> None:
    from scoreveil.ledger import sqlite_file

    path = tmp_path / "ledger.db"
    sqlite_file.create(path)
    with closing(sqlite3.connect(path)) as old:
        old.executescript(sqlite_file.SCHEMA)
        old.execute(f"PRAGMA application_id = {sqlite_file.APPLICATION}")
        old.execute("PRAGMA user_version = 1")
        from scoreveil.ledger.charges import entry_digest

        old.execute("INSERT INTO records VALUES ('m', ?, 2, 2, 3)", (key(1),))
        keys = key(1) * 2
        entry = 0, "m", "alice", 1, 5, keys, entry_digest("m", "alice", 1, 5, keys)
        old.execute("INSERT INTO journal (at, model, client, units, most, keys, digest) VALUES (?,?,?,?,?,?,?)", entry)
        old.commit()
    url = f"sqlite:///{path}"

    async def before() -> None:
        from scoreveil.ledger import open_books

        books = await open_books(url)  # is read as it is
        assert (await books.verify()).intact
        assert [total.releases for total in await books.totals()] == [2]

    asyncio.run(before())

    async def work(ledger: Any) -> None:
        assert [grant.number for grant in await ledger.charge("m", [key(1)], limit=0)] == [2]
        assert (await ledger.answer(asked((2, (1, 2), b"A"))))[0].granted
        assert (await ledger.books.verify()).intact

    with_ledger(url, work)
