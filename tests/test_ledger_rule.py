"""The rule of `releases.py`: the compiled pass, the same interpreted and both stores, against a model in Python."""

import copy
import importlib.util
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger_tools import Model, question, with_books, with_ledger
from scoreveil.ledger import ReleaseResult
from scoreveil.ledger import index as compiled_index
from scoreveil.ledger import kernel as compiled_kernel
from scoreveil.ledger.index import Index, client_hash, hashed
from scoreveil.ledger.log import Entry


def interpreted_kernel():
    """The module as it is where numba is missing."""
    spec = importlib.util.spec_from_file_location("interpreted_kernel", compiled_kernel.__file__)
    module = importlib.util.module_from_spec(spec)
    numba, sys.modules["numba"] = sys.modules.get("numba"), None
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules["numba"] = numba
    assert not hasattr(module.answer, "py_func")
    return module


@pytest.fixture(params=["compiled", "interpreted"])
def kernel(request, monkeypatch):
    if request.param == "interpreted":
        monkeypatch.setattr(compiled_index, "kernel", interpreted_kernel())
    return compiled_index.kernel


WIDTHS = {b"a" * 16: 4, b"b" * 16: 8, b"c" * 16: 11}  # bytes of an outcome under each settings
MARKS = st.integers(0, 9)


@st.composite
def calls(draw, marks=MARKS):
    rows = draw(st.lists(st.tuples(marks, marks, marks), min_size=1, max_size=5))
    chosen = draw(st.sampled_from(sorted(WIDTHS)))
    answers, limit = draw(st.tuples(st.integers(0, 3), st.integers(0, 7)).filter(any))
    return question(
        *rows,
        outcomes=draw(st.binary(min_size=WIDTHS[chosen] * len(rows), max_size=WIDTHS[chosen] * len(rows))),
        model=draw(st.sampled_from(["m", "n"])),
        settings=chosen,
        units=draw(st.integers(1, 3)),
        answers=answers,
        limit=limit,
        repeat=draw(st.sampled_from(["same", "refuse"])),
        client=draw(st.sampled_from(["", "ann"])),
        price=draw(st.integers(0, 3)),
        client_limit=draw(st.sampled_from([0, 9])),
    )


def ask(index, asked):
    body = index.answer(asked, hashed(asked.model, asked.marks))
    return ReleaseResult(body, b"", 0) if isinstance(body, str) else ReleaseResult("", body.outcomes, body.fresh)


def contents(index):
    """All that later answers depend on, to the bit."""
    arrays = index._slots.tobytes(), index._cells.tobytes(), index._counters.tobytes()
    return arrays, dict(index._spent), dict(index._long)


SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@SETTINGS
@given(st.lists(calls(), max_size=12), st.sampled_from([3, 1000]))
def test_any_calls_come_to_what_the_model_says(kernel, asked, horizon):
    index, model = Index(horizon), Model(horizon)
    for call in asked:
        assert ask(index, call) == model.answer(call)


@SETTINGS
@given(st.lists(st.tuples(st.lists(calls(), max_size=4), st.booleans()), max_size=5), st.sampled_from([3, 1000]))
def test_what_is_refused_or_not_committed_is_undone_to_the_bit(kernel, batches, horizon):
    index = Index(horizon)
    for batch, is_committed in batches:
        before = contents(index)
        for call in batch:
            between = contents(index)
            if ask(index, call).refused:
                assert contents(index) == between
        if is_committed:
            index.keep()
        else:
            index.undo()
            assert contents(index) == before


def logged(call, body, following):
    """The row of the log for a call, as far as the index reads it."""
    begun = len(body.begun)
    return Entry(
        1, 0, call.model, call.client, call.settings, call.units, body.fresh, begun, following, None, None, b"",
        body.pack(),
    )  # fmt: skip


STEPS = st.lists(st.tuples(st.lists(calls(), max_size=4), st.sampled_from(["keep", "undo", "restart"])), max_size=8)


@SETTINGS
@given(STEPS, st.sampled_from([3, 1000]))
def test_an_index_that_is_read_from_the_log_goes_on_as_the_one_before(kernel, steps, horizon):
    index, model, log = Index(horizon), Model(horizon), []
    for some, then in steps:
        before, added = copy.deepcopy(model), []
        for call in some:
            body, expected = index.answer(call, hashed(call.model, call.marks)), model.answer(call)
            if isinstance(body, str):
                assert body == expected.refused
            else:
                assert ReleaseResult("", body.outcomes, body.fresh) == expected
                added.append(logged(call, body, index.next))
        if then == "undo":
            index.undo()
            model = before
            continue
        index.keep()
        log += added
        if then == "restart":
            ends = index.first, index.next
            index = Index(horizon)
            for (name, client), spent in model.spent.items():  # a sum beside the log
                index.spend(name, client_hash(client), spent)
            index.end(*ends)
            for part in (log[: len(log) // 2], log[len(log) // 2 :]):
                index.restore(part)
            index.end(*ends)
            index.keep()


def test_both_stores_come_to_what_the_model_says_and_still_do_after_a_restart(ledger_url):
    """Every example has models of its own in one ledger, which is opened anew for each."""
    examples = iter(range(10**9))

    @settings(SETTINGS, max_examples=25)
    @given(st.lists(calls(), max_size=10))
    def check(asked):
        prefix, model = f"{next(examples)} ", Model()
        asked = [replace(call, model=prefix + call.model) for call in asked]

        async def compare(ledger, some):
            for call in some:
                assert await ledger.answer(call) == model.answer(call)

        with_ledger(ledger_url, lambda ledger: compare(ledger, asked[::2]))
        with_ledger(ledger_url, lambda ledger: compare(ledger, asked[1::2]))

    check()
    assert with_books(ledger_url, lambda books: books.verify()).intact


# What must not be mistaken, one by one: each fails where its rule is broken


def test_the_oldest_of_several_records_answers(kernel):
    index = Index(1000)
    for n, outcome in ((1, b"old "), (2, b"new ")):
        ask(index, question((n, n), outcomes=outcome))
    assert ask(index, question((2, 1), outcomes=b"none")).outcomes == b"old "


def test_rows_of_one_record_in_one_call_are_one_answer(kernel):
    index = Index(1000)
    for repeat in ("same", "refuse"):
        answers = ask(index, question(*[(7, 8)] * 3, outcomes=b"abc", answers=5, limit=2, repeat=repeat))
        assert (answers.outcomes, answers.fresh) == (b"aaa", 1)


def test_other_settings_begin_the_answers_anew_and_not_the_limit(kernel):
    index, other = Index(1000), b"o" * 16
    fresh = [ask(index, question(1, answers=1, limit=3, settings=s)).fresh for s in (bytes(16), other, other)]
    assert fresh == [1, 1, 0]
    assert ask(index, question(1, answers=1, limit=3, settings=bytes(16))).fresh == 1
    # all three units are spent, so that settings whose answer was not the last have none
    assert ask(index, question(1, answers=1, limit=3, settings=other)).refused == "record"


def test_a_client_pays_for_rows_that_are_not_fresh_as_well(kernel):
    index = Index(1000)
    ask(index, question(1, 2))
    paid = {"client": "ann", "price": 4, "client_limit": 8}
    assert [ask(index, question(1, 2, **paid)).refused for _ in range(3)] == ["", "", "client"]
    # whether it is refused does not depend on what others have asked: not on a record's limit either
    assert ask(index, question(1, repeat="refuse", **paid)).refused == "client"


def test_a_table_filled_to_the_horizon_finds_every_mark(kernel):
    records = 1000 if kernel is not compiled_kernel else 50_000
    index = Index(records)
    marks = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (3 * records, 8))
    for start in range(0, len(marks), 500):
        assert ask(index, question(*marks[start : start + 500])).fresh == 500
        index.keep()
    assert (index.first, index.next) == (2 * records + 1, 3 * records + 1)
    for column in range(8):  # each mark alone
        lasting = question(*(marks[2 * records :, column : column + 1]))
        assert ask(index, lasting).fresh == 0
    assert ask(index, question(*marks[:100])).fresh == 100  # these have ended


def test_records_of_more_marks_than_planned_end_earlier(kernel):
    index = Index(500)
    marks = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (1000, 40))
    for row in marks:
        assert ask(index, question(tuple(row))).fresh == 1
        index.keep()
    assert 50 < index.next - index.first < 500
    lasting = question(*marks[index.first - index.next :])
    assert ask(index, lasting).fresh == 0


def test_numbers_of_records_pass_32_bits(kernel):
    index = Index(100)
    index.end(2**32 - 60)
    for n in range(200):
        assert ask(index, question(n)).fresh == 1
        assert ask(index, question(*range(max(0, n - 98), n + 1))).fresh == 0  # one number is left out
        index.keep()
    assert ask(index, question(0)).fresh == 1


def test_a_call_of_more_rows_than_can_be_undone_at_first(kernel):
    index = Index(100_000)
    rows = np.arange(5000 if kernel is not compiled_kernel else 60_000).reshape(-1, 1)
    before = contents(index)
    assert ask(index, question(*rows)).fresh == len(rows)
    assert ask(index, question(*rows)).fresh == 0
    index.undo()
    assert contents(index) == before
    assert ask(index, question(*rows[::-1])).fresh == len(rows)


def test_long_outcomes_of_records_that_ended_are_dropped(kernel):
    index = Index(10)
    for n in range(50):
        ask(index, question(n, outcomes=bytes(100)))
        index.keep()
    assert len(index._long) == 10


def test_importing_the_ledger_brings_neither_numba_nor_asyncpg():
    program = "import sys, scoreveil.ledger, scoreveil.ledger.books; print({'numba', 'asyncpg'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
