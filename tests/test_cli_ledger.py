"""`scoreveil ledger` as an operator meets it."""

import csv
import io
import sqlite3
from contextlib import closing

import pytest

from ledger_tools import question, with_ledger
from scoreveil import cli


@pytest.fixture
def scoreveil(ledger_url, tmp_path, monkeypatch, capsys):
    """Run a command on a ledger with something in it; its exit code, and what it printed on stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SCOREVEIL_LEDGER", ledger_url)

    async def work(ledger):
        await ledger.answer(question(1, 1, 2, model="digits/1", client="ann"))
        await ledger.answer(question(2, model="digits/1", answers=2, client="[bob]", request=b"r", price=9))
        await ledger.answer(question(1, model="=other", units=1_500))

    with_ledger(ledger_url, work)

    def run(line, *more):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main(["ledger", *line.split(), *more])
        return (ended.value.code, *capsys.readouterr())

    return run


def test_show_has_a_line_for_each_model(scoreveil):
    code, out, err = scoreveil("show")
    assert (code, err) == (0, "")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert lines == [["=other", "1", "1", "1", "1,500", "0"], ["digits/1", "2", "2", "3", "3", "9"]]


def test_show_has_a_line_for_each_client(scoreveil):
    _, out, _ = scoreveil("show --clients")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert ["digits/1", "[bob]", "1", "0", "1", "1", "9"] in lines
    assert ["=other", "(none)", "1", "1", "1", "1,500", "0"] in lines


def test_export_writes_csv(scoreveil):
    code, out, _ = scoreveil("export")
    assert code == 0
    assert out.splitlines()[0] == "model,calls,records,answers,units,price"
    # a name that a spreadsheet would run as a formula is text
    assert list(csv.reader(io.StringIO(out)))[1:] == [
        ["'=other", "1", "1", "1", "1500", "0"],
        ["digits/1", "2", "2", "3", "3", "9"],
    ]
    code, out, _ = scoreveil("export --clients")
    assert code == 0
    assert out.splitlines()[0] == "model,client,calls,records,answers,units,price"
    assert len(out.splitlines()) == 4


def test_verify_prints_a_head_that_a_later_verify_takes(scoreveil):
    code, out, err = scoreveil("verify")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "3 calls, 4 fresh answers.",
        "Intact: every digest fits.",
    ]
    head = out.splitlines()[-1].removeprefix("Head: ")
    assert scoreveil("verify --head", head)[0] == 0
    code, _, err = scoreveil("verify --head", f"3:{'0' * 64}")
    assert (code, err) == (1, "Not intact: the log does not begin with what it held at the given head.\n")
    code, _, err = scoreveil("verify --head nonsense")
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_verify_finds_a_row_that_was_altered(scoreveil, ledger_url):
    with closing(sqlite3.connect(ledger_url.removeprefix("sqlite:///"))) as file, file:
        file.execute("UPDATE log SET units = 1 WHERE units = 1500")
    code, _, err = scoreveil("verify")
    assert (code, err) == (1, "Not intact: row 3 of the log was altered, or one before it is missing.\n")


def test_forget_needs_yes_and_says_what_it_means(scoreveil):
    code, _, err = scoreveil("forget --model digits")
    assert (code, err) == (2, "Error: Nothing was deleted. Add --yes to delete for good.\n")
    assert "digits/1" in scoreveil("show")[1]
    code, out, _ = scoreveil("forget --model digits --yes")
    assert code == 0
    assert out == (
        "Forgot 2 calls, 1 with an idempotency key.\n"
        "Their records start anew. Earlier answers still count against privacy.\n"
    )
    assert "digits/1" not in scoreveil("show")[1]
    code, out, _ = scoreveil("verify")
    assert code == 0
    assert "Forgotten on purpose: once." in out


def test_forget_a_client_or_old_requests(scoreveil):
    code, out, _ = scoreveil("forget --client ann --yes")
    assert (code, out.splitlines()[1]) == (0, "What it received stays spent.")
    assert "ann" not in scoreveil("show --clients")[1]
    code, out, _ = scoreveil("forget --requests 0 --yes")
    assert (code, out) == (0, "Forgot 1 idempotency key; a request that comes again is charged again.\n")


def test_compact_says_what_was_deleted(scoreveil):
    assert scoreveil("compact") == (0, "Deleted 0 calls whose records have ended.\n", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("forget --yes", "Forget one of a model, a client and requests at a time; 0 are given."),
        ("forget --model a --client b --yes", "Forget one of a model, a client and requests at a time; 2 are given."),
        ("show --ledger mysql://me:hidden@host", "The ledger's address is neither sqlite:///FILE nor"),
        ("show --ledger sqlite:///none.db", "The ledger is unavailable: its file is not there."),
        ("show --ledger sqlite:///none/x.db", "The ledger's folder none does not exist; make it first."),
        ("show --ledger postgresql://me:hidden@localhost:1/x", "The ledger is unavailable: its server"),
        ("show --ledger postgresql://me:hidden@localhost:y/x", "The ledger's address is not one that"),
        ("show --ledger=", "Missing --ledger or SCOREVEIL_LEDGER."),
        ("steal", "No such command 'steal'."),
    ],
)
@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_errors_are_one_line(scoreveil, line, message):
    code, out, err = scoreveil(line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"Error: {message}")
    assert "hidden" not in err


def test_an_empty_ledger_says_so(ledger_url, capsys, monkeypatch):
    async def nothing(ledger): ...

    with_ledger(ledger_url, nothing)
    with pytest.raises(SystemExit):
        cli.main(["ledger", "show", "--ledger", ledger_url])
    assert capsys.readouterr().out == "Nothing has been spent yet.\n"
