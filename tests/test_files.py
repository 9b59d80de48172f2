"""Files of any format: scores come out veiled, and on any error nothing comes out at all."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from score_files import (
    NAMES,
    SECRET,
    assert_veiled,
    leftovers,
    load_scores,
    make_scores,
    save_scores,
    small_batches,
    write_csv,
)
from scoreveil import Veil, atomic, files, secret_file
from scoreveil.cli import main
from scoreveil.files import BadRows, cleaning, parquet


@pytest.fixture(params=list(files.FORMATS))
def suffix(request):
    return request.param


def test_same_secret_same_bytes(tmp_path, suffix):
    source = save_scores(tmp_path / f"in{suffix}", make_scores())
    for name in "ab":
        files.protect(source, tmp_path / f"{name}{suffix}", Veil(2.0, secret=SECRET))
    files.protect(source, tmp_path / f"c{suffix}", Veil(2.0, secret=SECRET[::-1]))
    first, again, other = ((tmp_path / f"{name}{suffix}").read_bytes() for name in "abc")
    assert first == again
    assert first != other


def test_chunks_do_not_matter(tmp_path, monkeypatch, suffix):
    source = save_scores(tmp_path / f"in{suffix}", make_scores())
    files.protect(source, tmp_path / f"whole{suffix}", Veil(2.0, secret=SECRET))
    small_batches(monkeypatch)
    files.protect(source, tmp_path / f"parts{suffix}", Veil(2.0, secret=SECRET))
    expected = Veil(2.0, secret=SECRET)(make_scores())
    for name in ("whole", "parts"):
        np.testing.assert_array_equal(load_scores(tmp_path / f"{name}{suffix}"), expected)


def test_no_rows_in_no_rows_out(tmp_path, suffix):
    source = save_scores(tmp_path / f"in{suffix}", make_scores()[:0])
    assert files.protect(source, tmp_path / f"out{suffix}", Veil(2.0)).rows == 0
    assert (tmp_path / f"out{suffix}").is_file()
    if suffix in (".csv", ".tsv", ".jsonl"):
        assert (tmp_path / f"out{suffix}").read_bytes() == source.read_bytes()
    else:
        assert load_scores(tmp_path / f"out{suffix}").shape == (0, 5)
    if suffix == ".parquet":
        assert pq.read_schema(tmp_path / "out.parquet").equals(pq.read_schema(source), check_metadata=True)


def test_no_rows_in_lists_of_unknown_length(tmp_path):
    table = pa.table({"scores": pa.array([], pa.list_(pa.float64()))})
    pq.write_table(table, tmp_path / "in.parquet")
    done = files.protect(tmp_path / "in.parquet", tmp_path / "out.parquet", Veil(2.0))
    assert (done.rows, done.classes) == (0, None)
    assert pq.read_table(tmp_path / "out.parquet").equals(table)


def test_bad_rows_are_listed_by_number_and_without_scores(tmp_path, monkeypatch, suffix):
    small_batches(monkeypatch)
    scores = np.tile([0.011317, 0.022943, 0.033871, 0.044689, 0.88718], (200, 1))
    scores[3, 1] = np.nan
    scores[17, [2, 4]] = -0.033871, 0.88718 + 2 * 0.033871  # that sum to 1 all the same
    scores[30, 4] = np.inf
    scores[100:120] *= 1.5
    source = save_scores(tmp_path / f"in{suffix}", scores)
    with pytest.raises(BadRows) as caught:
        files.protect(source, tmp_path / f"out{suffix}", Veil(2.0))
    assert [row for row, _ in caught.value.rows] == [3, 17, 30, *range(100, 120)]
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"in{suffix} has 23 rows that are not score vectors.")
    assert re.fullmatch(r"  row 3, column (1|'\w+'): a score is NaN", lines[1])
    assert lines[2].startswith("  row 17: some of the scores are negative")
    assert re.fullmatch(r"  row 30, column (4|'\w+'): a score is infinite", lines[3])
    assert lines[4].startswith("  row 100 and 19 more: the scores sum to more than 1")
    assert len(lines) == 5
    for digits in ("011317", "022943", "033871", "044689", "88718", "016975"):
        assert digits not in str(caught.value)
    assert leftovers(tmp_path, source.name) == []


def test_reading_stops_after_very_many_bad_rows(tmp_path, monkeypatch):
    small_batches(monkeypatch)
    monkeypatch.setattr(cleaning, "COUNTED", 20)
    np.save(tmp_path / "in.npy", make_scores() * 2)
    told = r"at least 21 rows that are not score vectors.*\n  row 0 and at least 20 more: .*$"
    with pytest.raises(BadRows, match=told):
        files.protect(tmp_path / "in.npy", tmp_path / "out.npy", Veil(2.0))


@pytest.mark.parametrize(
    ("spoil", "line", "way_out"),
    [
        (np.log, "  row 0 and 199 more: some of the scores are negative (logits? apply softmax first)", ""),
        (lambda scores: np.round(scores, 2), "  row 0 and 61 more: the scores do not sum to 1", "--rescale divides"),
        (lambda scores: scores * 100, "  row 0 and 199 more: the scores look like percentages; divide", "--rescale"),
        (
            lambda scores: np.where(np.eye(200, 5), np.nan, scores),
            "  row 0 and 4 more: a score is NaN (column 0 of row 0)",
            "--on-bad-row skip leaves such rows out",
        ),
    ],
    ids=["logits", "rounded", "percent", "gaps"],
)
def test_a_fault_of_many_rows_is_said_once_with_its_first_row_and_the_way_out(spoil, line, way_out, tmp_path, capsys):
    np.save(tmp_path / "in.npy", spoil(make_scores()))
    with pytest.raises(SystemExit):
        main(["protect", str(tmp_path / "in.npy"), "-o", str(tmp_path / "out.npy"), "--epsilon", "2"])
    _, said, *ways = capsys.readouterr().err.splitlines()
    assert said.startswith(line)
    assert len(ways) == 1
    assert way_out in ways[0]


def test_no_more_than_ten_faults_are_listed():
    bad = [(row, f"fault {row // 4}") for row in range(46)]
    lines = str(BadRows("in.csv", bad, True, "")).splitlines()
    assert lines[1] == "  row 0 and 3 more: fault 0"
    assert (len(lines), lines[-1]) == (12, "  and 6 more rows with other faults")
    lines = str(BadRows("in.csv", bad[2:6], False, "")).splitlines()
    assert lines[1:] == ["  row 2 and at least 1 more: fault 0", "  row 4 and at least 1 more: fault 1"]


def test_nulls_in_columns_are_bad_rows(tmp_path):
    table = pa.table({"a": pa.array([0.5, None, 0.5]), "b": pa.array([0.5, 1.0, None])})
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(BadRows, match="has 2 rows that are not score vectors") as caught:
        files.protect(tmp_path / "in.parquet", tmp_path / "out.parquet", Veil(2.0))
    assert caught.value.rows == [(1, parquet.NULL), (2, parquet.NULL)]


def test_guessed_columns_are_named_when_rows_are_bad(tmp_path):
    source = write_csv(tmp_path / "in.csv", ["index,a,b", "0,0.5,0.5", "1,0.5,0.5"])
    with pytest.raises(BadRows, match="Taken as scores: 'index', 'a', 'b'; --columns names others"):
        files.protect(source, tmp_path / "out.csv", Veil(2.0))
    files.protect(source, tmp_path / "out.csv", Veil(2.0), columns="a,b")


# The output


class Interrupting(Veil):
    """A veil that is interrupted at the third batch."""

    def __init__(self, error):
        super().__init__(2.0)
        self.calls, self.error = 0, error

    def __call__(self, scores):
        self.calls += 1
        if self.calls == 4:  # one is the check for the number of classes
            raise self.error
        return super().__call__(scores)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), MemoryError(), OSError("disk")])
def test_an_interrupted_job_leaves_nothing(tmp_path, monkeypatch, suffix, error):
    small_batches(monkeypatch)
    source = save_scores(tmp_path / f"in{suffix}", make_scores())
    with pytest.raises(type(error)):
        files.protect(source, tmp_path / f"out{suffix}", Interrupting(error))
    assert leftovers(tmp_path, source.name) == []


def test_an_interrupted_job_leaves_the_old_output(tmp_path, monkeypatch):
    small_batches(monkeypatch)
    source = save_scores(tmp_path / "in.npy", make_scores())
    (tmp_path / "out.npy").write_bytes(b"old")
    with pytest.raises(OSError, match="disk"):
        files.protect(source, tmp_path / "out.npy", Interrupting(OSError("disk")), force=True)
    assert (tmp_path / "out.npy").read_bytes() == b"old"
    assert leftovers(tmp_path, "in.npy", "out.npy") == []


@pytest.mark.slow
@pytest.mark.posix
def test_a_write_that_fails_leaves_nothing(tmp_path, suffix):
    """The system refuses to write more than some kilobytes, as a full disk would."""
    source = save_scores(tmp_path / f"in{suffix}", make_scores(5000))
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192));"
        "from scoreveil.cli import main; main(['protect', *sys.argv[1:], '--epsilon', '2', '--keep', 'all'])"
    )
    job = subprocess.run(
        [sys.executable, "-c", code, str(source), "-o", str(tmp_path / f"out{suffix}")], capture_output=True, text=True
    )
    assert job.returncode == 2, job.stderr
    assert job.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in job.stderr
    assert leftovers(tmp_path, source.name) == []


def test_an_output_that_exists_stays_unless_forced(tmp_path, suffix):
    source = save_scores(tmp_path / f"in{suffix}", make_scores())
    target = tmp_path / f"out{suffix}"
    target.write_bytes(b"precious")
    with pytest.raises(ValueError, match="exists already; --force replaces it"):
        files.protect(source, target, Veil(2.0))
    assert target.read_bytes() == b"precious"
    files.protect(source, target, Veil(2.0), force=True)
    assert_veiled(make_scores(), load_scores(target))


def test_an_output_that_appears_meanwhile_stays(tmp_path):
    source = save_scores(tmp_path / "in.npy", make_scores())
    target = tmp_path / "out.npy"

    def meanwhile(done):
        target.write_bytes(b"precious")

    with pytest.raises(ValueError, match="exists already"):
        files.protect(source, target, Veil(2.0), progress=meanwhile)
    assert target.read_bytes() == b"precious"
    assert leftovers(tmp_path, "in.npy", "out.npy") == []


@pytest.mark.parametrize("how", ["same", "dots", "symlink", "hardlink"])
def test_the_input_is_replaced_only_when_forced(tmp_path, suffix, how):
    source = save_scores(tmp_path / f"in{suffix}", make_scores())
    before = source.read_bytes()
    target = source
    if how == "dots":
        target = tmp_path / "." / ".." / tmp_path.name / source.name
    elif how == "symlink":
        target = tmp_path / f"link{suffix}"
        target.symlink_to(source)
    elif how == "hardlink":
        target = tmp_path / f"link{suffix}"
        os.link(source, target)
    with pytest.raises(ValueError, match="is the input itself"):
        files.protect(source, target, Veil(2.0))
    assert source.read_bytes() == before
    files.protect(source, target, Veil(2.0), force=True)
    assert_veiled(make_scores(), load_scores(target))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("out.csv", "Expected an output ending in .npy, like the input, got out.csv"),
        ("out", "Expected an output ending in .npy"),
        ("nowhere/out.npy", "There is no directory"),
        ("folder.npy", "is a directory; name a file"),
    ],
)
def test_targets_that_are_refused(tmp_path, target, message):
    source = save_scores(tmp_path / "in.npy", make_scores())
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(ValueError, match=message):
        files.protect(source, tmp_path / target, Veil(2.0))
    assert leftovers(tmp_path, "in.npy", "folder.npy") == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("in.txt", "Expected a file ending in .npy, .npz, .csv, .tsv, .jsonl, .parquet, or text that is compressed"),
        ("none.npy", "got no such file"),
        ("folder.npy", "got a directory"),
    ],
)
def test_sources_that_are_refused(tmp_path, source, message):
    (tmp_path / "in.txt").write_text("a,b")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(ValueError, match=message):
        files.protect(tmp_path / source, tmp_path / f"out{Path(source).suffix}", Veil(2.0))


@pytest.mark.posix
def test_the_output_is_no_more_readable_than_the_input(tmp_path):
    source = save_scores(tmp_path / "in.npy", make_scores())
    source.chmod(0o600)
    files.protect(source, tmp_path / "out.npy", Veil(2.0))
    assert stat.S_IMODE((tmp_path / "out.npy").stat().st_mode) == 0o600


def test_a_veil_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, monkeypatch, suffix):
    source = save_scores(tmp_path / f"in{suffix}", make_scores())
    monkeypatch.setattr(atomic, "replacing", None)
    with pytest.raises(ValueError, match="Expected keep <= 5"):
        files.protect(source, tmp_path / f"out{suffix}", Veil(2.0, keep=9))
    with pytest.raises(ValueError, match="Expected a reference of"):
        files.protect(source, tmp_path / f"out{suffix}", Veil(2.0, keep=2, reference=make_scores(k=4)))


def test_progress_rises_to_the_end(tmp_path, monkeypatch, suffix):
    small_batches(monkeypatch)
    told = []
    files.protect(
        save_scores(tmp_path / f"in{suffix}", make_scores()), tmp_path / f"out{suffix}", Veil(2.0), progress=told.append
    )
    assert len(told) > 5
    assert told == sorted(told)
    assert told[-1] == 1


# What else is read


def test_a_sample_is_drawn_evenly_from_all_rows(tmp_path, monkeypatch, suffix):
    """However the file is read, the rows that stay are those of the lowest of one uniform draw for each."""
    small_batches(monkeypatch)
    scores = make_scores(300)
    source = save_scores(tmp_path / f"in{suffix}", scores)
    rows, total = files.sample(source, most=100, rng=np.random.default_rng(5))
    lowest = np.argsort(np.random.default_rng(5).random(300))[:100]
    assert total == 300
    np.testing.assert_array_equal(rows, scores[np.sort(lowest)])
    np.testing.assert_array_equal(files.sample(source, most=1000)[0], scores)
    assert not np.array_equal(files.sample(source, most=100)[0], files.sample(source, most=100)[0])
    with pytest.raises(ValueError, match="has no rows; at least one row"):
        files.sample(save_scores(tmp_path / f"empty{suffix}", scores[:0]), most=100)


def test_a_reference_has_the_columns_of_the_source(tmp_path):
    scores = make_scores()
    source = save_scores(tmp_path / "in.parquet", scores)
    np.testing.assert_array_equal(files.read_reference(save_scores(tmp_path / "a.csv", scores), source), scores)
    np.testing.assert_array_equal(
        files.read_reference(save_scores(tmp_path / "b.npy", scores), source, columns="score_*"), scores
    )
    swapped = pq.read_table(source).select(NAMES[::-1])
    pq.write_table(swapped, tmp_path / "c.parquet")
    with pytest.raises(ValueError, match=r"Expected columns 'score_0', .* in c\.parquet, got 'score_4'"):
        files.read_reference(tmp_path / "c.parquet", source)
    named = ",".join(NAMES)
    np.testing.assert_array_equal(files.read_reference(tmp_path / "c.parquet", source, columns=named), scores)


@pytest.mark.parametrize(
    ("content", "secret"),
    [(b"0123456789abcdef\n", b"0123456789abcdef"), (b"\xff\x00 \n" * 5, b"\xff\x00 \n" * 5), (b" a b ", b"a b")],
)
def test_a_secret_is_stripped_where_it_is_text(tmp_path, content, secret):
    (tmp_path / "key").write_bytes(content)
    assert secret_file.read(tmp_path / "key") == secret


@pytest.mark.posix
def test_a_secret_that_others_can_read_is_noticed(tmp_path):
    (tmp_path / "key").write_bytes(SECRET)
    for mode, others in ((0o600, False), (0o400, False), (0o640, True), (0o604, True)):
        (tmp_path / "key").chmod(mode)
        assert secret_file.readable_by(tmp_path / "key", 0o077) == others
    with pytest.raises(ValueError, match="There is no secret file"):
        secret_file.read(tmp_path / "none")


def test_a_file_that_cannot_be_made_is_named_as_the_user_does(tmp_path):
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "none" / "out.npy"))):
        atomic.write(tmp_path / "none" / "out.npy", b"")
