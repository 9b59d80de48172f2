"""The command line as a user meets it: what it prints, how it refuses, what it leaves behind."""

import math
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scoreveil import Veil, __version__, accounting, cli
from scoreveil.cli import choose
from scoreveil.mechanisms.isotonic import Isotonic

SECRET = "sixteen bytes, or more"
PEAK = """
import sys
from scoreveil.cli import main
try:
    main(sys.argv[1:])
finally:
    # of this program alone: what getrusage tells starts with the memory of the parent
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
    import pyarrow
    print("pyarrow:", pyarrow.default_memory_pool().max_memory())
"""


def make_scores(n=300, k=4, seed=0):
    scores = np.exp(np.random.default_rng(seed).normal(scale=2, size=(n, k)))
    return scores / scores.sum(axis=1, keepdims=True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    scores = make_scores()
    np.save("in.npy", scores)
    pq.write_table(pa.table({"id": np.arange(300), **{f"p{i}": scores[:, i] for i in range(4)}}), "in.parquet")
    Path("in.csv").write_text("who,p0,p1\nme,0.25,0.75\nyou,0.5,0.5\n")
    Path("key").write_text(SECRET + "\n")
    Path("key").chmod(0o600)
    return tmp_path


@pytest.fixture
def scoreveil(folder, capsys):
    """Run a command in this process; its exit code, and what it printed on stdout and stderr."""

    def run(line, *more):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main([*line.split(), *more])
        return (ended.value.code, *capsys.readouterr())

    return run


def command(*arguments, **options):
    """Run the installed program."""
    return subprocess.run(
        [sys.executable, "-c", "from scoreveil.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        **options,
    )


# Help and version


def test_help_names_the_commands(scoreveil):
    code, out, err = scoreveil("--help")
    assert (code, err) == (0, "")
    for name in ("protect", "tune", "guarantee", "fit", "show", "verify", "demo"):
        assert re.search(rf"^  {name}  +\w.*\.$", out, re.MULTILINE), name


@pytest.mark.parametrize("name", ["protect", "tune", "guarantee", "fit", "show", "verify", "demo"])
def test_each_command_has_help_with_an_example(scoreveil, name):
    code, out, err = scoreveil(f"{name} --help")
    assert (code, err) == (0, "")
    assert f"Example: scoreveil {name}" in out
    assert "None" not in out


def test_no_arguments_is_help(scoreveil):
    code, out, err = scoreveil("")
    assert (code, err) == (0, "")
    assert out.startswith("Usage: ")


def test_version_of_the_installed_program():
    script = Path(sys.executable).with_name("scoreveil")
    job = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert (job.returncode, job.stdout, job.stderr) == (0, f"scoreveil {__version__}\n", "")


# protect


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--mechanism published",
        "--keep 2",
        "--keep all",
        "--keep 2 --reference ref.npy",
        "--secret-file key --model m",
    ],
)
def test_protect_writes_scores_with_the_same_labels(scoreveil, options):
    np.save("ref.npy", make_scores(seed=1))
    code, out, err = scoreveil(f"protect in.npy -o out.npy --epsilon 2 {options}")
    assert (code, err) == (0, "")
    assert "Wrote out.npy: 300 rows × 4 classes veiled" in out
    before, after = np.load("in.npy"), np.load("out.npy")
    np.testing.assert_array_equal(after.argmax(axis=1), before.argmax(axis=1))
    assert not np.any(np.all(after == before, axis=1))


def test_protect_does_what_the_veil_of_these_options_does(scoreveil):
    np.save("ref.npy", make_scores(seed=1))
    scoreveil("protect in.npy -o out.npy --epsilon 3 --keep 2 --reference ref.npy --secret-file key --model m")
    veil = Veil(3.0, keep=2, reference=make_scores(seed=1), secret=SECRET.encode(), model="m")
    np.testing.assert_array_equal(np.load("out.npy"), veil(make_scores()))


def test_protect_says_what_it_veiled_and_what_it_left(scoreveil):
    _, out, _ = scoreveil("protect in.parquet -o out.parquet --epsilon 2")
    assert "veiled     p0, p1, p2, p3" in out
    assert "untouched  id" in out
    assert "ε = 2 for any two score vectors with the same top class, per release" in out
    assert "repeated answers about a record add up" in out
    _, out, _ = scoreveil("protect in.parquet -o out2.parquet --epsilon 2 --secret-file key")
    assert "add up" not in out
    _, out, _ = scoreveil("protect in.parquet -o out3.parquet --epsilon 2 --mechanism published")
    assert "guarantee  none" in out


@pytest.mark.posix
def test_a_secret_that_others_can_read_is_warned_about(scoreveil):
    Path("key").chmod(0o644)
    code, _, err = scoreveil("protect in.npy -o out.npy --epsilon 2 --secret-file key")
    assert code == 0
    assert err == "Warning: other users may read the secret in key; chmod 600 key prevents it.\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("none.npy -o out.npy --epsilon 2", "Expected a file of scores, got no such file: none.npy."),
        ("in.npy -o out.csv --epsilon 2", "Expected an output ending in .npy, like the input, got out.csv."),
        ("key -o out --epsilon 2", "Expected a file ending in .npy, .npz, .csv, .tsv, .jsonl, .parquet, or text"),
        ("in.npy -o in.npy --epsilon 2", "in.npy is the input itself; --force replaces it."),
        ("in.npy -o there.npy --epsilon 2", "exists already; --force replaces it"),
        ("in.npy -o no/out.npy --epsilon 2", "There is no directory"),
        ("in.npy -o out.npy --epsilon 0", "Expected a finite epsilon > 0, got 0.0."),
        ("in.npy -o out.npy --epsilon -1", "Expected a finite epsilon > 0, got -1.0."),
        ("in.npy -o out.npy --epsilon nan", "Expected a finite epsilon > 0, got nan."),
        ("in.npy -o out.npy --epsilon inf", "Expected a finite epsilon > 0, got inf."),
        ("in.npy -o out.npy --epsilon two", "Invalid value for '--epsilon'"),
        ("in.npy -o out.npy", "Missing --epsilon or --veil"),
        ("in.npy --epsilon 2", "Missing option '--output'"),
        ("-o out.npy --epsilon 2", "Missing argument 'IN'"),
        ("in.npy -o out.npy --epsilon 2 --wrong", "No such option: --wrong"),
        ("in.npy -o out.npy --epsilon 2 --keep 9", "Expected keep <= 4, the number of classes, got 9."),
        ("in.npy -o out.npy --epsilon 2 --keep 0", "Expected keep to be a whole number >= 1 or 'all', got 0."),
        ("in.npy -o out.npy --epsilon 2 --keep most", "Expected --keep to be a whole number or 'all', got 'most'."),
        ("in.npy -o out.npy --epsilon 2 --mechanism m", "There is no mechanism 'm'; there are isotonic"),
        ("in.npy -o out.npy --epsilon 2 --mechanism published --keep 2", "Expected keep='all' for the published"),
        ("in.npy -o out.npy --epsilon 2 --mechanism published --reference ref.npy", "has no option 'reference'"),
        ("in.npy -o out.npy --epsilon 2 --reference in.npy", "The reference is the file to be protected"),
        ("in.npy -o out.npy --epsilon 2 --reference none.npy", "Expected a file of scores, got no such file"),
        (
            "in.npy -o out.npy --epsilon 2 --keep 2 --reference bad.npy",
            "bad.npy has 1 row that is not a score vector.\n  row 7",
        ),
        (
            "in.npy -o out.npy --epsilon 2 --keep 2 --reference other.npy",
            "Expected a reference of (classes, kept, levels)",
        ),
        ("in.npy -o out.npy --epsilon 2 --reference other.npy", "Expected keep >= 2 with a reference"),
        ("in.npy -o out.npy --epsilon 2 --columns p*", "Expected no --columns for in.npy"),
        ("in.npy -o out.npy --epsilon 2 --secret-file none", "There is no secret file none."),
        ("in.npy -o out.npy --epsilon 2 --secret-file short", "Expected a secret of at least 16 bytes, got 5."),
        ("in.parquet -o out.parquet --epsilon 2 --columns q*", "Expected a column that matches 'q*'"),
        ("in.parquet -o out.parquet --epsilon 2 --threshold 0.4", "Expected one column, (n,) or (n, 1), got shape"),
        ("broken.parquet -o out.parquet --epsilon 2", "Expected a file that can be read, got broken.parquet"),
        ("in.csv -o out.csv --epsilon 2", "--columns to name those that hold scores, got text in 'who'"),
        (
            "bad.npy -o out.npy --epsilon 2",
            "bad.npy has 1 row that is not a score vector.\n  row 7, column 1: a score is NaN\n--on-bad-row skip ",
        ),
    ],
)
def test_bad_input_is_one_error_and_writes_nothing(scoreveil, folder, line, message):
    bad = make_scores()
    bad[7, 1] = np.nan
    for name, array in (("bad", bad), ("other", make_scores(k=3)), ("ref", make_scores(seed=1)), ("there", bad)):
        np.save(f"{name}.npy", array)
    Path("broken.parquet").write_bytes(Path("in.parquet").read_bytes()[:-50])
    Path("short").write_text("short")
    Path("short").chmod(0o600)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = scoreveil(f"protect {line}")
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert message in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1 + message.count("\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_wrong_command_is_one_error(scoreveil):
    code, out, err = scoreveil("protekt")
    assert (code, out) == (2, "")
    assert err.startswith("Error: No such command 'protekt'")


def test_errors_never_quote_a_score(scoreveil):
    scores = np.tile([0.1331717, 0.2717331, 0.5950952], (40, 1))
    scores[5] *= 3
    scores[6, 0] *= -1
    np.save("raw.npy", scores)
    Path("raw.csv").write_text("a,b,c\n0.1331717,0.2717331,0.5950952\n0.1331717,0.2717331,0.5950952x\n")
    for line in ("raw.npy -o out.npy", "raw.csv -o out.csv"):
        code, _, err = scoreveil(f"protect {line} --epsilon 2")
        assert code == 2
        for digits in ("1331", "2717", "5950", "3995", "8151", "785"):
            assert digits not in err


@pytest.mark.slow
@pytest.mark.posix
def test_progress_is_drawn_on_a_terminal_and_nowhere_else(folder):
    import pty  # not on Windows

    terminal, end = pty.openpty()
    arguments = [sys.executable, "-c", "from scoreveil.cli import main; main()"]
    arguments += ["protect", "in.npy", "-o", "out.npy", "--epsilon", "2"]
    environment = {**os.environ, "TERM": "xterm"}
    job = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=end, env=environment)
    os.close(end)
    assert job.returncode == 0
    assert b"Protecting" in os.read(terminal, 100_000)
    os.close(terminal)
    job = command("protect", "in.npy", "-o", "out2.npy", "--epsilon", "2")
    assert (job.returncode, job.stderr) == (0, "")


# Killed


def start_slow_job(folder):
    """A job of some seconds: keyed draws for every class. Returns once its output is half written."""
    np.save("large.npy", make_scores(150_000, 10))
    before = {path.name for path in folder.iterdir()}
    # a shell that runs the tests in the background has them, and so the job, ignore interrupts
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from scoreveil.cli import main; main()"
    arguments = ["protect", "large.npy", "-o", "out.npy", "--epsilon", "2", "--keep", "all", "--secret-file", "key"]
    job = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while {path.name for path in folder.iterdir()} == before:
        assert time.monotonic() < deadline
        assert job.poll() is None
        time.sleep(0.01)
    return job, before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.slow
@pytest.mark.posix
def test_an_ended_job_clears_up(folder, number, code):
    job, before = start_slow_job(folder)
    job.send_signal(number)
    _, err = job.communicate(timeout=60)
    assert job.returncode == code
    assert "Traceback" not in err
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.slow
def test_a_killed_job_leaves_no_output(folder):
    job, before = start_slow_job(folder)
    job.kill()
    job.communicate(timeout=60)
    (left,) = {path.name for path in folder.iterdir()} - before
    assert re.fullmatch(r"\.out\.npy\.\w+\.part", left)


# Large files


@pytest.mark.slow
@pytest.mark.linux
def test_memory_does_not_grow_with_the_file(folder):
    scores = make_scores(2_000_000, 10).astype(np.float64)
    columns = {"id": np.arange(len(scores)), **{f"p{i}": np.ascontiguousarray(scores[:, i]) for i in range(10)}}
    pq.write_table(pa.table(columns), "large.parquet", row_group_size=len(scores))
    arguments = ["protect", "large.parquet", "-o", "out.parquet", "--epsilon", "2", "--columns", "p*"]
    job = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", job.stdout).group(1))
    assert 50_000 < peak < 700_000
    # a row group, which is the whole file here, is not read at once: it would be 180 MB
    assert 0 < int(re.search(r"pyarrow: (\d+)", job.stdout).group(1)) < 180e6
    out = pq.ParquetFile("out.parquet")
    assert out.metadata.num_rows == len(scores)
    part = out.read_row_group(out.num_row_groups - 1)
    tail = scores[-len(part) :]
    veiled = np.stack([part[f"p{i}"].to_numpy() for i in range(10)], axis=1)
    np.testing.assert_array_equal(part["id"].to_numpy(), columns["id"][-len(part) :])
    np.testing.assert_array_equal(veiled.argmax(axis=1), tail.argmax(axis=1))


# tune


@pytest.mark.parametrize(
    ("options", "name", "limit"),
    [
        ("", "l2", 0.2),
        ("--norm l1", "l1", 0.3),
        ("--mechanism published", "l2", 0.5),
        ("--keep all --reference ref.npy", "l2", 0.1),
    ],
)
def test_tune_prints_an_epsilon_and_a_command_that_meets_the_wish(scoreveil, options, name, limit):
    np.save("ref.npy", make_scores(2000, seed=1))
    code, out, err = scoreveil(f"tune in.npy --distortion {limit} {options}")
    assert code == 0
    epsilon = float(re.search(r"^ε = (\S+)   \(95% interval (\S+) to (\S+)\)", out).group(1))
    assert ("promises nothing" in err) == (epsilon > math.log(1000) and "published" not in options)
    measured = float(re.search(rf"Mean {name} distortion there: (\S+)", out).group(1))
    assert measured <= limit
    assert "measured on all 300 rows" in out
    line = out.splitlines()[-1].strip()
    assert line.startswith("scoreveil protect in.npy -o in-veiled.npy --epsilon")
    assert f"--epsilon {epsilon:.4g}" in line
    assert scoreveil(line.removeprefix("scoreveil "))[0] == 0
    moved = np.load("in-veiled.npy") - make_scores()
    order = 1 if name == "l1" else 2
    assert np.linalg.norm(moved, ord=order, axis=1).mean() == pytest.approx(limit, rel=0.2)


def test_tune_warns_where_the_confidence_is_worthless_and_points_to_fit(scoreveil):
    code, out, err = scoreveil("tune in.npy --distortion 0.5")
    assert code == 0
    assert float(re.match(r"ε = (\S+)", out)[1]) < 1
    share = re.fullmatch(
        r"Warning: at this ε the confidence is worthless. It keeps the order of two records in (\d+)% of cases; "
        r"chance gives 50%. If you have held-out scores, `scoreveil fit` makes .*\n",
        err,
    )
    assert 45 <= int(share[1]) < 60


def test_tune_looks_at_a_sample_and_says_so(scoreveil, monkeypatch):
    monkeypatch.setattr(choose, "MAX_SAMPLE", 100)
    assert "measured on 100 of 300 rows, drawn at random" in scoreveil("tune in.npy --distortion 0.3")[1]


def test_tune_says_when_every_epsilon_will_do(scoreveil):
    assert "Every ε meets this target" in scoreveil("tune in.npy --distortion 3")[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("in.npy --distortion 0", "Expected a distortion > 0, got 0.0."),
        ("in.npy --distortion nan", "Expected a distortion > 0, got nan."),
        ("in.npy --distortion 0.00001", "Expected a distortion that some epsilon meets"),
        ("in.npy --distortion 0.1 --norm l3", "Expected norm 'l1' or 'l2', got 'l3'."),
        ("in.npy --distortion 0.1 --keep 9", "Expected keep <= 4"),
        ("in.npy --distortion 0.1 --reference in.npy", "The reference is the file to be protected"),
        ("none.npy --distortion 0.1", "got no such file"),
        ("in.csv --distortion 0.1", "got text in 'who'"),
        ("empty.npy --distortion 0.1", "empty.npy has no rows; at least one row of scores is needed."),
    ],
)
def test_tune_refuses_in_one_line(scoreveil, line, message):
    np.save("empty.npy", make_scores()[:0])
    code, out, err = scoreveil(f"tune {line}")
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert message in err
    assert len(err.splitlines()) == 1


# guarantee


def flat(text):
    return " ".join(re.sub("[│┃]", " ", text).split())


@pytest.mark.parametrize("keep", [None, "3", "all"])
def test_guarantee_prints_what_accounting_says(scoreveil, keep):
    code, out, err = scoreveil(
        "guarantee --epsilon 0.5 --classes 10 --total 5 --delta 1e-5" + (f" --keep {keep}" if keep else "")
    )
    assert (code, err) == (0, "")
    mechanism = Isotonic(0.5) if keep is None else Isotonic(0.5, "all" if keep == "all" else int(keep))
    promise = mechanism.guarantee(classes=10)
    words = flat(out)
    assert flat(promise.words) in words
    for limit in promise.limits:
        assert flat(limit) in words
    assert f"ε, for {promise.relation_words} 0.5" in words
    assert f"differential privacy {promise.rho:.4g} " in words
    assert f"pure: ε adds up {accounting.query_bound(promise, 5.0)} " in words
    concentrated = accounting.query_bound(promise, 5.0, rule="zcdp", delta=1e-5)
    assert f"zcdp: ρ adds up, with δ = 1e-05 {concentrated} " in words
    assert ("the worst loss, never more than ε" in words) == (keep is None)
    if keep is None:
        assert f"never more than ε {promise.worst_loss:.4g} " in words


@pytest.mark.parametrize(("epsilon", "times"), [(6.9, None), (7, "1,097-fold"), (30, "e^30-fold")])
def test_guarantee_warns_where_epsilon_promises_nothing_and_points_to_fit(scoreveil, epsilon, times):
    code, _, err = scoreveil(f"guarantee --epsilon {epsilon} --classes 10")
    assert code == 0
    if times is None:
        assert err == ""
    else:
        assert err.startswith(
            f"Warning: ε = {epsilon} promises nothing: one answer may change an attacker's odds {times}."
        )
        assert "`scoreveil fit`" in err


def test_guarantee_of_the_published_mechanism_is_none(scoreveil):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, out, err = scoreveil("guarantee --epsilon 0.1 --classes 10 --mechanism published --total 5")
    assert (code, err) == (0, "")
    words = flat(out)
    assert "for any number of releases none" in words
    assert "the paper's Theorem 3, releases within ε = 5 429" in words
    assert "Do not rely on that number. Theorem 3 compares two upper bounds" in words
    assert "pure" not in words
    assert "ρ" not in words


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--epsilon 2 --classes 1", "Expected --classes >= 2, got 1."),
        ("--epsilon 0 --classes 10", "Expected a finite epsilon > 0"),
        ("--epsilon 2 --classes 3 --keep 5", "Expected keep <= 3"),
        ("--epsilon 2 --classes 3 --total 0", "Expected a finite total > 0"),
        ("--epsilon 2 --classes 3 --delta 2", "Expected 0 < delta < 1"),
        ("--epsilon 2", "Missing option '--classes'"),
    ],
)
def test_guarantee_refuses_in_one_line(scoreveil, line, message):
    code, out, err = scoreveil(f"guarantee {line}")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


# demo


@pytest.mark.slow
def test_a_newcomer_runs_the_demo_and_then_each_line_it_prints(tmp_path):
    script = Path(sys.executable).parent / "scoreveil"
    tmp_path.chmod(0o700)
    plain = {**os.environ, "COLUMNS": "80", "PATH": "/usr/bin:/bin"}  # no environment of Python is active
    job = subprocess.run([script, "demo"], cwd=tmp_path, env=plain, capture_output=True, text=True)
    steps = job.stderr.splitlines()
    assert (job.returncode, len(steps)) == (0, 3)
    assert all(step.endswith(" …") for step in steps)
    rows = [line for line in job.stdout.splitlines() if line.startswith("│")]
    outcomes, regions = rows[:6], rows[6:]
    assert all(len(re.findall(r"\d\.\d+", row)) >= 4 for row in outcomes), "no figure is cut off"
    assert [row.split()[1] for row in regions] == [str(i) for i in range(len(regions))]
    assert len(regions) > 1
    shown, _, printed = job.stdout.partition(" Next, ")
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    (picture,) = re.findall(r"^Picture: (.*)$", shown, re.MULTILINE)
    assert (tmp_path / picture).read_text(encoding="utf-8").startswith("<svg")
    lines = printed.replace("\\\n", " ").strip().splitlines()[1:]
    lines = [line for line in lines if line.strip()]
    assert lines[0] == "  cd scoreveil-demo"
    verbs = []
    for line in lines[1:]:
        verbs.append(line.split()[1])
        if verbs[-1] != "serve":  # of a model that the reader has
            typed = f"{lines[0]} && {line}"
            done = subprocess.run(typed, shell=True, cwd=tmp_path, env=plain, capture_output=True, text=True)
            assert done.returncode == 0, (line, done.stderr)
    assert verbs == ["audit", "fit", "show", "verify", "protect", "serve"]
    for name in ("report/report.html", "veil.json", "veil.svg", "veiled.npy"):
        assert (tmp_path / "scoreveil-demo" / name).is_file(), name


def test_a_terminal_without_greek_letters_is_no_reason_to_fail(folder):
    job = command("guarantee", "--epsilon", "2", "--classes", "3", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (job.returncode, job.stderr) == (0, "")


# Parts that may be missing


def without(module, *arguments):
    code = f"import sys; sys.modules[{module!r}] = None; from scoreveil.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("module", ["typer", "rich.console"])
def test_without_typer_one_line_says_what_to_install(module):
    job = without(module, "--version")
    assert job.returncode != 0
    assert job.stderr == "Error: the command line needs typer and rich: pip install 'scoreveil[cli]'.\n"


@pytest.mark.slow
def test_without_pyarrow_arrays_and_text_work_and_parquet_says_what_to_install(folder):
    assert without("pyarrow", "protect", "in.npy", "-o", "out.npy", "--epsilon", "2").returncode == 0
    assert without("pyarrow", "protect", "in.csv", "-o", "out.csv", "--epsilon", "2", "--columns", "p*").returncode == 0
    job = without("pyarrow", "protect", "in.parquet", "-o", "out.parquet", "--epsilon", "2")
    assert job.returncode == 2
    assert job.stderr == "Error: The package pyarrow is missing: pip install 'scoreveil[files]'.\n"


def test_without_scikit_learn_the_demo_says_what_to_install():
    job = without("sklearn", "demo")
    assert job.returncode == 2
    assert job.stderr.splitlines()[-1] == "Error: The package sklearn is missing: pip install 'scoreveil[demo]'."


def test_importing_the_package_imports_none_of_it():
    code = (
        "import sys, scoreveil; "
        "found = {'typer', 'rich', 'pyarrow', 'sklearn', 'scoreveil.cli', 'scoreveil.files'} & set(sys.modules); "
        "sys.exit(', '.join(found) or 0)"
    )
    job = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (job.returncode, job.stderr) == (0, "")
