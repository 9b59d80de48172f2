"""The embedded ledger in trouble: it fails closed, says why in few words, and recovers."""

import asyncio
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress

import pytest

from ledger_tools import fresh, opened, question, reason, with_books, with_ledger
from scoreveil.ledger import Horizon, LedgerUnavailable, open_ledger, sqlite_file, wire
from scoreveil.ledger.sqlite_file import LedgerFile
from scoreveil.ledger.writer import Caller

OWNER = """
import asyncio, os, sys, time
import numpy as np
from scoreveil.ledger import ReleaseRequest, open_ledger

async def main():
    ledger = await open_ledger(sys.argv[1])
    numbers = iter(range(10**6, 10**9))
    async def charge():
        marks = np.array([[next(numbers)]])
        await ledger.answer(ReleaseRequest("m", bytes(16), marks, b"over", 1))
    await charge()
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print("owner", flush=True)
    while True:
        await charge()
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
        await ledger.answer(question(1))
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
            await other.answer(question(1))
            assert await fresh(ledger, 1) == 0

    with_ledger(f"sqlite:///{folder}/ledger.db", work)


def test_addresses_are_relative_or_absolute_and_percent_encoded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def nothing(ledger): ...

    with_ledger("sqlite:///my%20ledger.db", nothing)
    assert (tmp_path / "my ledger.db").exists()
    with pytest.raises(ValueError, match="The ledger's folder nowhere does not exist"):
        asyncio.run(open_ledger("sqlite:///nowhere/ledger.db"))


# One writer


def test_calls_that_come_together_are_committed_together(url, monkeypatch):
    """2,000 at once would otherwise take 2,000 times what one takes, and the last would wait too long."""
    transactions = []
    begin = LedgerFile.__enter__
    monkeypatch.setattr(LedgerFile, "__enter__", lambda file: (transactions.append(1), begin(file))[1])

    async def work(ledger):
        transactions.clear()
        assert sum(await asyncio.gather(*(fresh(ledger, i) for i in range(2000)))) == 2000
        assert len(transactions) < 200
        assert (await ledger.books.verify()).calls == 2000

    with_ledger(url, work)


def test_a_call_that_is_sent_again_is_told_the_same_and_charged_once(path, url):
    """As after the death of an owner who charged and did not come to tell: to the same one, or to the next."""
    ident, again = 12345 << wire.COUNTED | 1, wire.ASK | wire.AGAIN
    lost, other = wire.packed(question(1, answers=9)), wire.packed(question(1, answers=9))

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
        first = await asyncio.to_thread(send, wire.framed(ident, wire.ASK, lost))
        assert await asyncio.to_thread(send, *[wire.framed(ident, again, lost)] * 2) == first * 2
        assert (await ledger.books.totals())[0].answers == 1
        return first

    first = with_ledger(url, work)

    async def after(ledger):
        told, new = await asyncio.to_thread(
            send, wire.framed(ident, again, lost), wire.framed(ident + 1, again, other)
        )  # the second is sent again as well, and never arrived before
        assert told == first[0]
        assert new != first[0]
        assert (await ledger.books.totals())[0].answers == 2

    with_ledger(url, after)


def test_more_calls_than_a_worker_can_count_are_told_apart(url, monkeypatch):
    """2^24 of them are a few hours; what was charged before may still be in the log."""
    monkeypatch.setattr(wire, "COUNTED", 3)

    async def work(ledger):
        assert [await fresh(ledger, n) for n in range(50)] == [1] * 50
        assert sum(await asyncio.gather(*(fresh(ledger, n) for n in range(100)))) == 50

    with_ledger(url, work)


def test_a_worker_that_is_gone_is_not_charged():
    worker, end = socket.socketpair()
    with closing(end):
        worker.sendall(wire.framed(1, wire.ASK, wire.packed(question(1))))
        caller = Caller(end)
        assert len(list(caller.receive())) == 1
        worker.sendall(wire.framed(2, wire.ASK, wire.packed(question(1))))
        worker.close()
        with pytest.raises(ConnectionError):
            list(caller.receive())


def test_commits_wait_for_the_disk(path, url):
    file = LedgerFile(path, Horizon(), 1.0, create=True)
    with file:
        assert file._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert file._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    file.close()


def test_refusals_and_repeats_write_nothing(path, url):
    async def work(ledger):
        await ledger.answer(question(1))
        before = (path.parent / "ledger.db-wal").stat().st_size
        for _ in range(50):
            await ledger.answer(question(1))
            await ledger.answer(question(2, 1, repeat="refuse", client="ann", price=1))
            await ledger.answer(question(3, client="ann", price=2, client_limit=1))
        assert (path.parent / "ledger.db-wal").stat().st_size == before

    with_ledger(url, work)


@pytest.mark.parametrize("request_of", [lambda i: None, lambda i: bytes([i])], ids=["as they are", "with a request"])
def test_calls_under_way_when_the_owner_is_killed_are_charged_once(url, request_of):
    async def work(ledger, process):
        await ledger.answer(question(0))
        pending = [
            asyncio.create_task(ledger.answer(question(i, answers=9, request=request_of(i)))) for i in range(1, 100)
        ]
        await asyncio.sleep(0.002)
        process.kill()
        process.wait()
        assert all(answers.fresh == 1 for answers in await asyncio.gather(*pending))
        assert await fresh(ledger, 0) == 0
        assert await fresh(ledger, *range(1, 100), answers=2) == 99
        assert await fresh(ledger, *range(1, 100), answers=2) == 0
        assert (await ledger.books.verify()).intact

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
                await ledger.answer(question(1, answers=100))
            calls = [
                ledger.answer(question(1, answers=100, request=bytes([i])))
                for i in range(20)
                for ledger in (second, third)
            ]
            *_, answers = await asyncio.gather(first.close(), asyncio.gather(*calls))
            assert len({each.outcomes for each in answers}) == 20
            assert [await fresh(third, 1, answers=24) for _ in range(2)] == [1, 0]

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
        body = wire.packed(question(1))
        for noise in (
            b"",
            b"\xff" * 100,
            b"\x10\0\0\0half",
            wire.framed(1, wire.ASK),
            wire.framed(1, wire.ASK, body[:30]),
            wire.framed(1, wire.ASK, body[:-1]),
            wire.framed(1, wire.ASK, bytes(len(body))),
            wire.framed(1, wire.BIND, b"[]"),
            wire.framed(1, 77),
        ):
            pending = [asyncio.create_task(ledger.answer(question(i))) for i in range(10)]
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
        await ledger.answer(question(1, answers=10))
        with full():
            found = [await reason(ledger, 1, answers=10, client="c" * 1000) for _ in range(3)]
            assert found[-1] in ("its disk is full", "its storage failed")
            assert not await ledger.ready()
        failed = sum(each is not None for each in found)
        assert await ledger.ready()
        # what was refused was not charged, what was answered was
        assert [await fresh(ledger, 1, answers=2 + 3 - failed) for _ in range(2)] == [1, 0]
        assert (await ledger.books.verify()).intact

    with small_disk(kind, folder) as full:
        with_ledger(f"sqlite:///{folder}/ledger.db", lambda ledger: work(ledger, full))


def test_a_disk_that_is_nearly_full_is_not_ready_while_charges_fail(url):
    """There may be room for a sign of life, and none for what was just refused."""

    async def work(ledger):
        await ledger.answer(question(0, answers=10))
        assert await ledger.ready()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        try:
            with pytest.raises(LedgerUnavailable):
                await ledger.answer(question(*range(20_000)))
            assert [await ledger.ready() for _ in range(3)] == [False] * 3
            assert await fresh(ledger, 0, answers=10) == 1  # for this there is room
            assert not await ledger.ready()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert await ledger.ready()
        assert await fresh(ledger, *range(20_000)) == 19_999

    with_ledger(url, work)


def test_a_file_locked_by_another_program_fails_closed_and_recovers(path, url):
    async def work(ledger):
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert await reason(ledger) == "its file is locked by another program"
            assert not await ledger.ready()
        assert await reason(ledger) is None
        assert await fresh(ledger, 1) == 0

    with_ledger(url, work, timeout=0.4)


@pytest.mark.parametrize("replace", [False, True])
def test_a_file_that_is_moved_or_replaced_fails_closed(path, url, replace):
    async def work(ledger):
        await ledger.answer(question(1))
        path.rename(path.with_name("moved"))
        if replace:
            path.touch()
        assert await reason(ledger) in ("its file was moved or replaced", "its file is not there")
        assert await reason(ledger) is not None  # nor is a new one begun
        assert not await ledger.ready()
        path.with_name("moved").rename(path)
        assert await reason(ledger) is None

    with_ledger(url, work)


# Damage: refused at the start, and noticed while it runs


def charged(url, rows=3000):
    async def work(ledger):
        for start in range(0, rows, 100):
            await ledger.answer(question(*range(start, start + 100), request=b"of %d" % start))

    with_ledger(url, work)


def overwrite_pages(path):
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        for page in range(pages // 2, pages):
            file.seek(4096 * page + 100)
            file.write(os.urandom(3900))


def cut_in_a_record(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 2 // 3 + 1234)


def alter(statement):
    def run(path):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return run


DAMAGES = {
    "pages": overwrite_pages,
    "cut": cut_in_a_record,
    "units": alter("UPDATE log SET units = 7 WHERE id = 11"),
    "a body": alter("UPDATE log SET body = zeroblob(length(body)) WHERE id = 11"),
    "another type": alter("UPDATE log SET model = 3, units = 'x' WHERE id = 11"),
    "first row": alter("DELETE FROM log WHERE id = 1"),
    "a row": alter("DELETE FROM log WHERE id = 11"),
    "last row": alter("DELETE FROM log WHERE id = 30"),
    "state": alter("DELETE FROM state"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_refused_at_the_start_in_fixed_words(path, url, damage):
    charged(url)
    damage(path)
    with pytest.raises(LedgerUnavailable) as refused:
        asyncio.run(open_ledger(url))
    assert refused.value.reason in ("its file is damaged", "its log was altered, or a part of it is missing")
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_while_it_runs_ends_answers_and_readiness(path, url, monkeypatch, damage):
    monkeypatch.setattr(sqlite_file, "CHECK_EVERY", 0.0)
    charged(url)

    async def work(ledger):
        assert await ledger.ready()
        with closing(sqlite3.connect(path)) as other:  # what is in the write-ahead log would hide the file
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        await asyncio.to_thread(damage, path)
        beats = [await ledger.ready() for _ in range(4)]
        assert not beats[-1]
        assert await reason(ledger, 5000) is not None
        assert not await ledger.ready()

    with_ledger(url, work)


def test_all_of_a_long_log_is_read_again_in_the_course_of_time(path, url, monkeypatch):
    monkeypatch.setattr(sqlite_file, "CHECK_EVERY", 0.0)
    monkeypatch.setattr(sqlite_file, "CHECKED", (1 << 20, 4))
    charged(url)

    async def work(ledger):
        assert all([await ledger.ready() for _ in range(20)])
        await asyncio.to_thread(alter("UPDATE log SET at = at + 1 WHERE id = 28"), path)
        beats = [await ledger.ready() for _ in range(10)]
        assert beats == sorted(beats, reverse=True)
        assert beats[0]
        assert not beats[-1]

    with_ledger(url, work)


@pytest.mark.parametrize("names", [["-wal"], ["-shm"], ["-wal", "-shm"]], ids="".join)
@pytest.mark.parametrize("notice", ["call", "heartbeat"])
def test_a_write_ahead_log_that_is_deleted_is_rescued_before_anyone_is_answered(tmp_path, names, notice):
    """A kill afterwards forgives nothing."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    program = RESCUED.format(names=names, notice=notice)
    with subprocess.Popen(
        [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "21\n"
        process.kill()

    async def after(ledger):
        assert await fresh(ledger, *range(21 if notice == "call" else 20)) == 0
        assert (await ledger.books.verify()).intact

    with_ledger(url, after)


RESCUED = """
import asyncio, os, sys
import numpy as np
from scoreveil.ledger import ReleaseRequest, open_ledger

async def main(url):
    ledger = await open_ledger(url)
    fresh = 0
    async def ask(n):
        return (await ledger.answer(ReleaseRequest("m", bytes(16), np.array([[n, -1 - n]]), b"once", 1))).fresh
    for n in range(20):
        fresh += await ask(n)
    for name in {names}:
        os.unlink(url.removeprefix("sqlite:///") + name)
    fresh += await ask(20) if "{notice}" == "call" else await ledger.ready()
    print(fresh, flush=True)
    sys.stdin.read()

asyncio.run(main(sys.argv[1]))
"""


def test_a_write_ahead_log_that_is_cut_is_noticed(path, url):
    async def work(ledger):
        for n in range(20):
            await ledger.answer(question(n))
        os.truncate(f"{path}-wal", 10_000)
        assert await reason(ledger, 20) is not None
        assert not await ledger.ready()

    with_ledger(url, work)


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
    charged(url, 100)
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 7")
    with pytest.raises(LedgerUnavailable, match="its file has format 7, and this is a program for format 3"):
        asyncio.run(open_ledger(url))


def test_a_folder_that_may_not_be_written_is_refused(tmp_path):
    (tmp_path / "ledger.db").mkdir()
    started = time.monotonic()
    with pytest.raises(LedgerUnavailable):
        asyncio.run(open_ledger(f"sqlite:///{tmp_path}/ledger.db"))
    assert time.monotonic() - started < 5


@pytest.mark.skipif(os.geteuid() == 0 and not can_mount(), reason="root may write everywhere")
def test_a_folder_that_may_only_be_read_is_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    url = f"sqlite:///{folder}/ledger.db"
    charged(url, 100)
    if os.geteuid() == 0:
        subprocess.run(["mount", "--bind", folder, folder], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
    else:
        folder.chmod(0o500)
    try:
        with pytest.raises(LedgerUnavailable):
            asyncio.run(open_ledger(url))
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", folder], check=True)
        else:
            folder.chmod(0o700)
    assert with_books(url, lambda books: books.verify()).intact


def test_days_end_records_and_their_calls(path, url, monkeypatch):
    real = time.time

    async def work(ledger):
        monkeypatch.setattr(time, "time", lambda: real() - 3 * 86400)
        await ledger.answer(question(1))
        monkeypatch.setattr(time, "time", real)
        await ledger.answer(question(2))
        assert [await fresh(ledger, 1), await fresh(ledger, 2)] == [1, 0]
        assert (await ledger.books.verify()).calls == 2

    with_ledger(url, work, horizon=Horizon(days=2))


def test_a_log_of_many_records_is_read_whole(url):
    charged(url, 30_000)

    async def work(ledger):
        assert await fresh(ledger, *range(30_000)) == 0

    with_ledger(url, work)


def test_a_long_log_is_waited_for_when_it_is_opened(path, url, monkeypatch):
    charged(url, 300)
    restore = sqlite_file.Index.restore
    monkeypatch.setattr(sqlite_file.Index, "restore", lambda *given: (time.sleep(1.5), restore(*given))[1])

    async def work(ledger):
        assert await fresh(ledger, 299) == 0

    with_ledger(url, work, timeout=0.4)
