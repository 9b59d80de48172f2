"""The embedded ledger in trouble: it fails closed, says why in few words, and recovers."""

import asyncio
import os
import random
import resource
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress

import pytest

from ledger_tools import key, opened, reason, releases, with_ledger
from scoreveil.ledger import LedgerUnavailable, Questions, open_ledger, sqlite_file, wire
from scoreveil.ledger.charges import Charge
from scoreveil.ledger.releases import joined_marks
from scoreveil.ledger.writer import Caller

OWNER = """
import asyncio, os, sys, time
from scoreveil.ledger import open_ledger

async def main():
    ledger = await open_ledger(sys.argv[1])
    await ledger.charge("m", [bytes(32)], 1000)
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print("owner", flush=True)
    while True:
        await ledger.charge("m", [bytes(32)], 1000000)
        await asyncio.sleep(0.001)

asyncio.run(main())
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def url(path):
    return f"sqlite:///{path}"


@contextmanager
def owner(url, *more):
    """Another process that owns the writer, under load."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, url, *more], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "owner\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# Files


def test_everything_is_readable_by_its_owner_alone(path, url):
    async def work(ledger):
        await ledger.charge("m", [key(1)], limit=1)
        modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
        assert modes == dict.fromkeys(
            ["ledger.db", "ledger.db-shm", "ledger.db-wal", "ledger.db.lock", "ledger.db.sock"], 0o600
        )

    mask = os.umask(0)
    try:
        with_ledger(url, work)
    finally:
        os.umask(mask)
    assert {each.name for each in path.parent.iterdir()} == {"ledger.db", "ledger.db.lock"}


def test_a_file_that_others_may_read_is_closed_to_them(path, url):
    async def nothing(ledger): ...

    with_ledger(url, nothing)
    path.chmod(0o644)
    with_ledger(url, nothing)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_path_longer_than_a_socket_address_works(tmp_path):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()

    async def work(ledger):
        async with opened(f"sqlite:///{folder}/ledger.db") as other:
            await other.charge("m", [key(1)], limit=5)
            assert await releases(ledger, key(1)) == [1]

    with_ledger(f"sqlite:///{folder}/ledger.db", work)


def test_addresses_are_relative_or_absolute_and_percent_encoded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def work(ledger):
        await ledger.charge("m", [key(1)], limit=1)

    with_ledger("sqlite:///my%20ledger.db", work)
    assert (tmp_path / "my ledger.db").exists()
    with pytest.raises(ValueError, match="The ledger's folder nowhere does not exist"):
        asyncio.run(open_ledger("sqlite:///nowhere/ledger.db"))


# One writer


def test_charges_that_come_together_are_committed_together(url, monkeypatch):
    transactions = []
    begin = sqlite_file.LedgerFile.__enter__
    monkeypatch.setattr(sqlite_file.LedgerFile, "__enter__", lambda file: (transactions.append(1), begin(file))[1])

    async def work(ledger):
        transactions.clear()
        await asyncio.gather(*(ledger.charge("m", [key(i)], limit=1) for i in range(500)))
        assert len(transactions) < 50

    with_ledger(url, work)


def test_questions_that_come_together_are_answered_together(url, monkeypatch):
    """2,000 at once would otherwise take 2,000 times what one takes, and the last would wait too long."""
    sizes = []
    answer = sqlite_file.LedgerFile.answer
    monkeypatch.setattr(
        sqlite_file.LedgerFile, "answer", lambda file, calls: (sizes.append(len(calls)), answer(file, calls))[1]
    )

    async def work(ledger):
        found = await asyncio.gather(*(ledger.answer(question(i, (i, -1 - i))) for i in range(2000)))
        assert all(answers[0].granted for answers in found)
        assert sum(sizes) == 2000
        assert len(sizes) < 200
        assert (await ledger.books.verify()).intact

    with_ledger(url, work)


def question(name, marks, **options):
    given = {"limit": 3, "units": 1, "price": 7, "repeats": "sticky"} | options
    return Questions("m", bytes(16), key(name), joined_marks([marks]), secrets.token_bytes(4), **given)


def test_questions_answered_together_come_to_the_same_as_one_by_one(tmp_path):
    choice = random.Random(1)
    calls = []
    for i in range(400):
        marks = choice.sample(range(200), 3)
        options = {
            "repeats": choice.choice(["sticky", "replay", "refuse"]),
            "client": choice.choice("ab"),
            "client_limit": 150,
            "request": bytes([i % 50, 1]) if i % 3 == 0 else None,
        }
        calls.append(question(choice.randrange(80), tuple(marks), **options))
    one_by_one, together = (sqlite_file.LedgerFile(tmp_path / name, 1.0, create=True) for name in ("a", "b"))
    found = []
    for call in calls:
        with one_by_one:
            found += one_by_one.answer([call])
    with together:
        assert together.answer(calls[:7]) + together.answer(calls[7:]) == found
        assert found.count(None) > 0  # requests that came before with something else
        answers = [wire.read_answers(body)[0] for body in found if body is not None]
        assert {answer.refused for answer in answers} == {"", "record", "client"}
        tables = ("marks", "records", "clients", "requests", "journal")
        for table in tables:
            columns = "model, client, units, most, keys, digest" if table == "journal" else "*"
            first, second = (
                file._connection.execute(f"SELECT {columns} FROM {table}").fetchall() for file in (one_by_one, together)
            )
            assert [without_time(table, row) for row in first] == [without_time(table, row) for row in second]
    one_by_one.close()
    together.close()


def without_time(table, row):
    return (row[0], *row[2:]) if table == "requests" else row


def test_a_call_that_is_sent_again_is_told_the_same_and_charged_once(path, url):
    """As after the death of an owner who charged and did not come to tell: to the same one, or to the next."""
    ident = 12345 << wire.COUNTED | 1
    charge = wire.framed(ident, wire.CHARGE, wire.charge_body(Charge("m", key(1), 5)))
    other = wire.framed(ident + 1, wire.CHARGE, wire.charge_body(Charge("m", key(1), 5)))

    def send(*messages):
        with closing(socket.socket(socket.AF_UNIX)) as worker:
            worker.connect(f"{path}.sock")
            replies, come = wire.Messages(), []
            for sent, message in enumerate(messages, 1):
                worker.sendall(message)
                while len(come) < sent:
                    come += replies.feed(worker.recv(1 << 16))
            return come

    async def work(ledger):
        first = await asyncio.to_thread(send, charge)
        assert await asyncio.to_thread(send, charge, charge) == first * 2
        assert (await ledger.books.totals())[0].releases == 1
        return first

    first = with_ledger(url, work)

    async def after(ledger):
        again, new = await asyncio.to_thread(send, charge, other)
        assert again == first[0]
        assert new != first[0]
        assert (await ledger.books.totals())[0].releases == 2

    with_ledger(url, after)


def test_a_worker_that_is_gone_is_not_charged():
    worker, end = socket.socketpair()
    with closing(end):
        worker.sendall(wire.framed(1, wire.CHARGE, wire.charge_body(Charge("m", key(1), 5))))
        caller = Caller(end)
        assert len(list(caller.receive())) == 1
        worker.sendall(wire.framed(2, wire.CHARGE, wire.charge_body(Charge("m", key(1), 5))))
        worker.close()
        with pytest.raises(ConnectionError):
            list(caller.receive())


def test_commits_wait_for_the_disk(path, url):
    file = sqlite_file.LedgerFile(path, 1.0, create=True)
    with file:
        assert file._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert file._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    file.close()


def test_refusals_write_nothing(path, url):
    async def work(ledger):
        await ledger.charge("m", [key(1)], limit=1)
        before = (path.parent / "ledger.db-wal").stat().st_size
        for _ in range(50):
            await ledger.charge("m", [key(1)], limit=1)
        assert (path.parent / "ledger.db-wal").stat().st_size == before

    with_ledger(url, work)


def test_when_the_owner_is_killed_another_takes_over(url):
    async def work(ledger, process):
        before = (await ledger.charge("m", [bytes(32)], 10**6))[0].number
        pending = [asyncio.create_task(ledger.charge("m", [key(i)], 10**6)) for i in range(100)]
        await asyncio.sleep(0)
        process.kill()
        process.wait()
        for answer in await asyncio.gather(*pending):
            assert answer[0].granted
        assert (await ledger.charge("m", [bytes(32)], 10**6))[0].number > before
        # each was under way when the owner died: charged once or twice, never less than it was granted
        assert {count - 1 for count in await releases(ledger, *(key(i) for i in range(100)))} <= {0, 1}
        assert (await ledger.books.verify()).intact

    with owner(url) as process:
        with_ledger(url, lambda ledger: work(ledger, process))


def test_requests_under_way_when_the_owner_is_killed_are_charged_once(url):
    async def work(ledger, process):
        pending = [asyncio.create_task(ledger.charge("m", [key(i)], 10**6, request=key(i))) for i in range(100)]
        await asyncio.sleep(0.002)
        process.kill()
        process.wait()
        assert all(answer[0].number == 1 for answer in await asyncio.gather(*pending))
        assert await releases(ledger, *(key(i) for i in range(100))) == [1] * 100

    with owner(url) as process:
        with_ledger(url, lambda ledger: work(ledger, process))


def test_an_owner_that_stops_and_hangs_is_no_answer_in_time(url):
    async def work(ledger, process):
        process.send_signal(signal.SIGSTOP)
        assert await reason(ledger) == "no answer in time"
        assert not await ledger.ready()
        process.send_signal(signal.SIGCONT)
        assert await ledger.ready()

    with owner(url) as process:
        with_ledger(url, lambda ledger: work(ledger, process), timeout=0.5)


def test_an_owner_that_closes_hands_over(url):
    async def work():
        first = await open_ledger(url)
        async with opened(url) as second, opened(url) as third:
            for ledger in (first, second, third):
                await ledger.charge("m", [key(1)], limit=100)
            charges = [
                ledger.charge("m", [key(1)], limit=100, request=key(i)) for i in range(20) for ledger in (second, third)
            ]
            *_, answers = await asyncio.gather(first.close(), asyncio.gather(*charges))
            assert {answer[0].number for answer in answers} == set(range(4, 24))
            assert await releases(third, key(1)) == [23]

    asyncio.run(work())


def test_a_forked_child_neither_charges_nor_keeps_the_lock(url):
    with owner(url, "fork") as process:
        process.kill()  # its child lives on, with what it inherited
        process.wait()

        async def work(ledger):
            assert await reason(ledger) is None

        with_ledger(url, work, timeout=5)


def test_a_ledger_from_before_a_fork_is_refused(url, monkeypatch):
    async def work(ledger):
        monkeypatch.setattr(os, "getpid", lambda: 1)
        assert await reason(ledger) == "it was opened before this process was forked"
        monkeypatch.undo()

    with_ledger(url, work)


def test_noise_on_the_socket_disturbs_nobody(path, url):
    async def work(ledger):
        charge = wire.charge_body(Charge("m", key(1), 5))
        for noise in (
            b"",
            b"\xff" * 100,
            b"\x10\0\0\0half",
            wire.framed(1, wire.CHARGE),
            wire.framed(1, wire.CHARGE, charge[:30]),
            wire.framed(1, wire.CHARGE, charge[:-1]),
            wire.framed(1, wire.CHARGE, bytes(len(charge))),
            wire.framed(1, 77),
        ):
            pending = [asyncio.create_task(ledger.charge("n", [key(1)], limit=10**6)) for _ in range(10)]
            with closing(socket.socket(socket.AF_UNIX)) as stranger:
                stranger.connect(f"{path}.sock")
                stranger.send(noise)
                await asyncio.gather(*pending)
        assert await reason(ledger) is None
        assert await ledger.ready()

    with_ledger(url, work)


# Trouble


@contextmanager
def small_disk(kind, folder):
    """Let the disk be full, by a limit on files or by a file system of 1 MB."""
    if kind == "limit":
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

        @contextmanager
        def full():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        yield full
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)

    @contextmanager
    def full():
        filler = folder / "filler"
        with suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filler.unlink()

    try:
        yield full
    finally:
        subprocess.run(["umount", folder], check=True)


def can_mount():
    if os.geteuid() != 0:
        return False
    return (
        subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode == 0
    )


@pytest.mark.parametrize("kind", ["limit", "tmpfs"] if can_mount() else ["limit"])
def test_a_full_disk_fails_closed_and_recovers(tmp_path, kind):
    folder = tmp_path / "disk"
    folder.mkdir()

    async def work(ledger, full):
        await ledger.charge("m", [key(1)], limit=10)
        with full():
            found = [await reason(ledger, client="c" * 1000) for _ in range(3)]
            assert found[-1] in ("its disk is full", "its storage failed")
            assert not await ledger.ready()
        failed = sum(each is not None for each in found)
        assert await ledger.ready()
        assert (await ledger.charge("m", [key(1)], limit=10))[0].granted
        # what was refused was not charged, what was granted was
        assert await releases(ledger, key(1)) == [2 + 3 - failed]
        assert (await ledger.books.verify()).intact

    with small_disk(kind, folder) as full:
        with_ledger(f"sqlite:///{folder}/ledger.db", lambda ledger: work(ledger, full))


def test_a_disk_that_is_nearly_full_is_not_ready_while_charges_fail(url):
    """There may be room for a sign of life, and none for what was just refused."""

    async def work(ledger):
        many = [key(i) for i in range(4096)]
        await ledger.charge("m", many[:1], limit=10)
        assert await ledger.ready()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        try:
            with pytest.raises(LedgerUnavailable):
                await ledger.charge("m", many, limit=10)
            assert [await ledger.ready() for _ in range(3)] == [False] * 3
            assert (await ledger.charge("m", many[:1], limit=10))[0].granted  # for this there is room
            assert not await ledger.ready()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await ledger.ready()
        assert all(grant.granted for grant in await ledger.charge("m", many, limit=10))

    with_ledger(url, work)


def test_a_file_locked_by_another_program_fails_closed_and_recovers(path, url):
    async def work(ledger):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await reason(ledger) == "its file is locked by another program"
            assert not await ledger.ready()
        assert await reason(ledger) is None
        assert await releases(ledger, key(1)) == [1]

    with_ledger(url, work, timeout=0.4)


@pytest.mark.parametrize("replace", [False, True])
def test_a_file_that_is_moved_or_replaced_fails_closed(path, url, replace):
    async def work(ledger):
        await ledger.charge("m", [key(1)], limit=5)
        path.rename(path.with_name("moved"))
        if replace:
            path.touch()
        assert await reason(ledger) in ("its file was moved or replaced", "its file is not there")
        assert await reason(ledger, limit=7) is not None  # nor is a new one begun
        assert not await ledger.ready()
        path.with_name("moved").rename(path)
        assert await reason(ledger) is None

    with_ledger(url, work)


def charged(url, rows):
    async def work(ledger):
        for start in range(0, rows, 1000):
            await ledger.charge("m", [key(i) for i in range(start, start + 1000)], limit=5)

    with_ledger(url, work)


def test_a_damaged_file_fails_closed(path, url):
    charged(url, 3000)
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        for page in range(1, pages):
            file.seek(4096 * page)
            file.write(os.urandom(4096))

    async def work():
        async with opened(url) as ledger:
            for i in range(3000):
                await ledger.charge("m", [key(i)], limit=5)

    with pytest.raises(LedgerUnavailable, match="damaged"):
        asyncio.run(work())


@pytest.mark.parametrize("content", [b"no database at all" * 1000, os.urandom(8192)])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path, url, content):
    path.write_bytes(content)
    with pytest.raises(LedgerUnavailable, match="unavailable: its file is damaged") as refused:
        asyncio.run(open_ledger(url))
    assert str(path) not in str(refused.value)
    assert path.read_bytes() == content


def test_the_database_of_another_program_is_refused(path, url):
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(LedgerUnavailable, match="another program's database"):
        asyncio.run(open_ledger(url))


def test_a_newer_format_is_refused(path, url):
    charged(url, 1000)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 7")
    with pytest.raises(LedgerUnavailable, match="its file has format 7, and this is a program for format 2"):
        asyncio.run(open_ledger(url))


def test_a_folder_that_may_not_be_written_is_refused(tmp_path):
    (tmp_path / "ledger.db").mkdir()
    started = time.monotonic()
    with pytest.raises(LedgerUnavailable):
        asyncio.run(open_ledger(f"sqlite:///{tmp_path}/ledger.db"))
    assert time.monotonic() - started < 5
