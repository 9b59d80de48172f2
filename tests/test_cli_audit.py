"""`scoreveil audit`, as a user runs it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scoreveil import Veil, cli
from scoreveil.cli import terminal

pytestmark = pytest.mark.slow

K = 4
NAMES = ("dog", "ant", "cat", "bee")
QUICK = [
    *("--defenses", "published,regions"),
    *("--attacks", "ml_leaks,max_confidence,true_confidence,label_floor,label_floor_known"),
    *("--epsilon", "none,2", "--jobs", "1"),
]


SIDES = ["--members", "in.npy", "--nonmembers", "out.npy"]
LABELS = ["--member-labels", "true-in.npy", "--nonmember-labels", "true-out.npy"]  # right as often as scores say


def scores(rows, seed, sure):
    return np.random.default_rng(seed).dirichlet(np.full(K, 0.25 / sure), rows)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Scores of a model that is surer of its members than of others, and labels that it gets right by and large."""
    monkeypatch.chdir(tmp_path)
    for name, seed, sure in (("in", 0, 1.0), ("out", 1, 0.75)):
        rows = scores(1500, seed, sure)
        np.save(f"{name}.npy", rows)
        flipped = np.random.default_rng(seed).random(1500) > sure
        np.save(f"{name}-labels.npy", np.where(flipped, 0, rows.argmax(axis=1)))
        drawn = np.random.default_rng(seed + 10).random((1500, 1)) < rows.cumsum(axis=1)
        np.save(f"true-{name}.npy", drawn.argmax(axis=1))
    return tmp_path


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def notices(err):
    """What stands there beside the progress."""
    return [line for line in err.splitlines() if not line.startswith(("Asking the model", "Attacking"))]


def test_an_audit_of_scores_says_what_leaks_and_writes_a_report(folder, capsys):
    code, out, err = run(capsys, "audit", "scores", *SIDES, *LABELS, *QUICK, "-o", "seen")
    assert (code, notices(err)) == (0, [])
    assert "Take the fitted veil." in out
    assert "Undefended, the best attack" in out
    assert "label alone" in out
    assert "AUROC of the confidence on new records" in out
    found = json.loads((folder / "seen" / "results.json").read_text())
    assert {r["attack"] for r in found["results"]} == set(QUICK[3].split(","))
    assert {r["form"] for r in found["results"]} == {"paper", "adaptive", "averaging"}
    assert found["meta"]["records"]["classes"] == K
    assert "<html" in (folder / "seen" / "report.html").read_text()
    assert (folder / "seen" / "figures" / "frontier.svg").exists()
    # raw score vectors stay out of all of it
    raw = repr(float(np.load("in.npy")[0, 0])).encode()
    assert all(raw not in file.read_bytes() for file in (folder / "seen").glob("*.*"))


def test_the_first_answer_and_the_progress_show_no_score(folder, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "EVERY", 0.01)
    code, out, err = run(capsys, "audit", "scores", *SIDES, *QUICK)
    assert code == 0
    first, _, rest = out.partition("\n\n")
    assert first.startswith("First answer after ")
    assert "The raw scores leak." in first
    assert "Undefended, the best attack" in rest
    assert re.search(r"^Attacking(: [^:]+)?: \d+%, \d+ s so far(, about \d+ s left)?$", err, re.MULTILINE)
    digits = [f"{value:.6f}"[2:] for value in np.load("in.npy")[:200].ravel() if value > 1e-4]
    assert not [each for each in digits if each in out + err]


def test_files_of_tables_with_names_of_classes(folder, capsys):
    """Score columns among others, and labels by name in the same file."""
    for name in ("in", "out"):
        rows, labels = np.load(f"{name}.npy"), np.load(f"{name}-labels.npy")
        cells = ([*map(repr, row), NAMES[c]] for row, c in zip(rows.tolist(), labels, strict=True))
        lines = [",".join([f"r{i}", *row]) for i, row in enumerate(cells)]
        Path(f"{name}.csv").write_text("\n".join([f"id,{','.join(f'p_{n}' for n in NAMES)},label", *lines]))
    labelled = [*SIDES, "--member-labels", "in-labels.npy", "--nonmember-labels", "out-labels.npy"]
    numbers, names = (
        run(capsys, "audit", "scores", *words, *QUICK)
        for words in (
            labelled,
            [word.replace("npy", "csv").replace("-labels.", ".") for word in labelled] + ["--columns", "p_*"],
        )
    )
    assert numbers[0] == names[0] == 0
    note = "Note: Labels are names. The columns of scores are taken for 'dog', 'ant', 'cat', 'bee', by the names"
    assert note in names[1]
    assert numbers[1].splitlines()[-5:] == names[1].splitlines()[-5:]


def test_where_a_veil_is_recommended_it_is_written_and_can_be_used(folder, capsys):
    code, out, _ = run(capsys, "audit", "scores", *SIDES, *LABELS, *QUICK, "-o", "seen")
    assert code == 0
    assert "Take the fitted veil." in out
    assert "fitted on all 1,500 members and 1,500 non-members" in out
    veil = Veil.load(folder / "seen" / "veil.json")
    assert not veil.is_constant
    assert veil.guarantee.advantage is not None
    given = np.load("out.npy")
    assert (veil(given).argmax(axis=1) == given.argmax(axis=1)).all()


def test_where_nothing_leaks_nothing_is_recommended_or_written(folder, capsys):
    for name, seed in (("in", 5), ("out", 6)):
        np.save(f"{name}.npy", scores(400, seed, 1.0))
    quick = [*QUICK[:-3], "0.0001", *QUICK[-2:]]
    code, out, _ = run(
        capsys, "audit", "scores", "--members", "in.npy", "--nonmembers", "out.npy", *quick, "-o", "seen"
    )
    assert code == 0
    assert "Whether the raw scores leak cannot be told from this many records." in out
    assert "Take" not in out
    assert "smaller ε" not in out
    assert not (folder / "seen" / "veil.json").exists()


@pytest.mark.parametrize(
    ("setting", "option", "code", "says"),
    [
        ("none", "--fail-over", 3, "Gate shut: on no defense an attack surely passes auc=0.6"),
        ("none", "--fail-unless-under", 3, "Gate shut: on no defense it cannot be ruled out that an attack passes"),
        ("regions:0.5", "--fail-over", 0, "Gate open: on fitted veil, ε = 0.5 it is not shown that an attack passes"),
        ("regions:0.5", "--fail-unless-under", 0, "Gate open: on fitted veil, ε = 0.5 every attack stays within"),
    ],
)
def test_the_gate_tells_by_its_exit_code_and_says_why(folder, capsys, setting, option, code, says):
    np.save("out.npy", scores(1500, 1, 0.35))
    quick = [*QUICK[:-3], "0.5", *QUICK[-2:]]
    words = ["--members", "in.npy", "--nonmembers", "out.npy", *quick, option, "auc=0.6", "--setting", setting]
    ended, out, _ = run(capsys, "audit", "scores", *words)
    assert ended == code
    assert says in out.splitlines()[-1]


def test_without_a_setting_the_gate_looks_at_what_is_recommended_or_else_at_the_scores(folder, capsys):
    words = [*SIDES, *LABELS, *QUICK, "--fail-over", "auc=0.53"]
    code, out, _ = run(capsys, "audit", "scores", *words)
    assert (code, out.splitlines()[-1].partition(" it is")[0]) == (0, "Gate open: on fitted veil")
    code, out, _ = run(capsys, "audit", "scores", *(word.replace(",regions", "") for word in words))
    assert (code, out.splitlines()[-1].partition(" an attack")[0]) == (3, "Gate shut: on no defense")


def test_a_veil_that_says_no_more_than_the_label_is_not_recommended_and_an_older_one_does_not_stay(folder, capsys):
    words = [*SIDES, *QUICK, "-o", "seen"]
    assert run(capsys, "audit", "scores", *words, *LABELS)[0] == 0
    for name in ("report.html", "vulnerability.json", "records.csv"):  # they say who is a member
        assert (folder / "seen" / name).stat().st_mode & 0o777 == 0o600
    assert (folder / "seen" / "veil.json").exists()
    # whether these labels are right has nothing to do with the confidence
    labels = ["--member-labels", "in-labels.npy", "--nonmember-labels", "out-labels.npy"]
    code, out, _ = run(capsys, "audit", "scores", *words, *labels)
    assert code == 0
    assert "Publish labels only: the confidence of the fitted veil is not clearly worth more than a label." in out
    assert not (folder / "seen" / "veil.json").exists()


def test_files_that_seem_mixed_up_are_not_attacked_without_an_answer(folder, capsys):
    swapped = ["--members", "out.npy", "--member-labels", "out-labels.npy"]
    swapped += ["--nonmembers", "in.npy", "--nonmember-labels", "in-labels.npy"]
    code, out, err = run(capsys, "audit", "scores", *swapped, *QUICK, "-o", "seen")
    assert (code, out) == (2, "")
    assert "Are the two sides swapped?" in err
    assert err.endswith("Nothing was attacked. If these files are meant so, say --yes.\n")
    assert not (folder / "seen").exists()
    same = ["--members", "in.npy", "--nonmembers", "in.npy"]
    assert "Are the two sides the same records?" in run(capsys, "audit", "scores", *same, *QUICK)[2]
    np.save("true-in.npy", np.roll(np.load("true-in.npy"), 1))
    said = run(capsys, "audit", "scores", *SIDES, *LABELS, *QUICK)[2]
    assert "no more than by chance. Are they the labels of these records, in the same order?" in said


def test_with_yes_they_are_attacked_and_the_doubt_is_noted(folder, capsys):
    quick = [*QUICK[:3], "max_confidence,label_floor", *QUICK[4:]]
    swapped = ["--members", "out.npy", "--member-labels", "out-labels.npy"]
    swapped += ["--nonmembers", "in.npy", "--nonmember-labels", "in-labels.npy"]
    code, out, _ = run(capsys, "audit", "scores", *swapped, *quick, "--yes")
    assert code == 0
    assert "Note: The model is right about" in out
    assert "Undefended, the best attack" in out


@pytest.mark.posix
def test_on_a_terminal_it_asks_before_the_attack(folder):
    """Answered with n, nothing is attacked."""
    import pty

    controller, terminal_end = pty.openpty()
    program = [sys.executable, "-c", "from scoreveil.cli import main; main()"]
    words = [*program, "audit", "scores", "--members", "in.npy", "--nonmembers", "in.npy", *QUICK]
    started = subprocess.Popen(words, stdin=terminal_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.write(controller, b"n\n")
    out, err = started.communicate(timeout=120)
    os.close(controller)
    os.close(terminal_end)
    assert started.returncode == 130
    assert out.strip() == ""
    assert "Attack them all the same?" in err


def test_the_veil_that_was_fitted_is_attacked(folder, capsys):
    given = "--nonmembers out.npy --nonmember-labels true-out.npy --members in.npy --member-labels true-in.npy"
    fitted = run(capsys, "fit", *given.split(), "--epsilon", "3", "-o", "veil.json")
    assert fitted[0] == 0
    after = next(line.split()[1:] for line in fitted[1].splitlines() if "scoreveil audit" in line)
    assert after == ["audit", "scores", "--veil", "veil.json", *given.split()]
    quick = [*QUICK[:4], "--jobs", "1"]
    code, out, _ = run(capsys, *after, *quick, "-o", "seen")
    assert code == 0
    assert "If they are the same, what attacks find behind it is in-sample." in out
    advice = next(line for line in fitted[1].splitlines() if line.startswith("Take the fitted veil with ε = 3."))
    assert advice in out
    assert not (folder / "seen" / "veil.json").exists()
    for name in ("in", "out"):
        np.save(f"{name}.npy", np.load(f"{name}.npy")[:1000])
        np.save(f"true-{name}.npy", np.load(f"true-{name}.npy")[:1000])
    out = run(capsys, *after, *quick)[1]
    assert "hold for new records only if it was not fitted on these" in out
    assert "A veil that was fitted has its ε: leave epsilon out." in run(capsys, *after, *quick, "--epsilon", "2")[2]


def test_a_gate_that_the_label_alone_shuts_says_so(folder, capsys):
    np.save("out-labels.npy", (np.load("out.npy").argmax(axis=1) + (np.arange(1500) % 2)) % K)
    words = ["--member-labels", "in-labels.npy", "--nonmember-labels", "out-labels.npy", "--fail-over", "auc=0.55"]
    code, out, _ = run(capsys, "audit", "scores", *SIDES, *words, *QUICK)
    assert code == 3
    assert "no defense that keeps the label opens this gate." in out


def test_a_folder_that_cannot_be_used_is_refused_before_the_study(folder, capsys):
    words = ["--members", "in.npy", "--nonmembers", "out.npy", *QUICK]
    for place, name in (("in.npy", "in.npy"), ("in.npy/below", "in.npy")):
        code, out, err = run(capsys, "audit", "scores", *words, "-o", place)
        assert (code, out) == (2, "")
        assert f"{name} is a file" in err
    if Path("/proc/self").exists():  # where not even root may make a folder
        code, out, err = run(capsys, "audit", "scores", *words, "-o", "/proc/report")
        assert (code, out) == (2, "")
        assert "Expected a folder that can be written to, got /proc/report" in err
    code, out, err = run(capsys, "audit", "scores", *words, "--jobs", "0")
    assert (code, out) == (2, "")
    assert "jobs" in err
    code, out, err = run(capsys, "audit", "scores", *words, "--pdf")
    assert (code, out) == (2, "")
    assert "--pdf prints the report that -o writes" in err


def test_an_audit_of_a_model(folder, capsys):
    (folder / "audited_by_name.py").write_text(
        "import numpy as np\n"
        "def predict_proba(x):\n"
        "    z = np.exp(x - x.max(axis=1, keepdims=True))\n"
        "    return z / z.sum(axis=1, keepdims=True)\n"
    )
    rng = np.random.default_rng(0)
    for name, spread in (("train", 4.0), ("test", 1.0)):
        x = rng.normal(size=(600, K)) * spread
        np.savez(f"{name}.npz", x=x, y=x.argmax(axis=1))
    words = ["audited_by_name:predict_proba", "--member-data", "train.npz", "--nonmember-data", "test.npz"]
    code, out, err = run(capsys, "audit", "model", *words, *QUICK)
    assert (code, notices(err)) == (0, [])
    assert "Undefended" in out


def test_an_audit_that_asks_a_model_of_a_table(folder, capsys):
    """A tree that knows its training set by heart, from .csv files."""
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        x = rng.normal(size=(400, 4))
        x[:, 2] = rng.integers(0, 3, 400)
        table = np.column_stack([x, rng.integers(0, K, 400)])
        np.savetxt(f"{name}.csv", table, delimiter=",", header="age,size,income,height,y", comments="")
    (folder / "audited_tree.py").write_text(
        "import numpy as np\n"
        "from sklearn.tree import DecisionTreeClassifier\n"
        "table = np.loadtxt('train.csv', delimiter=',', skiprows=1)\n"
        "predict_proba = DecisionTreeClassifier(random_state=0).fit(table[:, :-1], table[:, -1]).predict_proba\n"
    )
    words = ["audited_tree:predict_proba", "--member-data", "train.csv", "--nonmember-data", "test.csv"]
    words += ["--architecture", "sklearn.tree:DecisionTreeClassifier", "--cache", "kept", "--yes"]
    asked = ["--boundary", "20", "--sensitive", "income", "--canaries", "200"]
    quick = ["--attacks", "max_confidence,label_floor,label_floor_known", "--defenses", "label_only", "--jobs", "1"]
    code, out, err = run(capsys, "audit", "model", *words, *asked, *quick, "-o", "seen")
    assert (code, notices(err)) == (0, [])
    assert "By asking for nothing but labels around 20 members and 20 non-members" in out
    assert "The column income (3 values)" in out
    assert "Of 200 canaries" in out
    report = (folder / "seen" / "report.html").read_text()
    for said in ("By asking the model", "Inferring income", "The ε that canaries prove", "Asked for labels alone"):
        assert said in report
    found = json.loads((folder / "seen" / "results.json").read_text())
    assert [r["attack"] for r in found["boundary"]] == ["label_boundary", "label_boundary_known"]
    by_side = {r["side"]: r for r in found["attributes"] if r["defense"] == "none" and not r["sees_answer"]}
    assert by_side["members"]["gain_low"] > by_side["nonmembers"]["gain_high"]
    assert {(r["defense"], r["promised"]) for r in found["canaries"]} == {("none", None), ("label_only", 0.0)}
    # asked again, the model need not be: what took long was kept
    _, again, _ = run(capsys, "audit", "model", *words, *asked, *quick)
    assert again.splitlines() == out.splitlines()[: len(again.splitlines())]


# a table, and a model that goes by its columns
MODEL = ["audited_table:predict_proba", "--member-data", "table.npz", "--nonmember-data", "table.npz"]
FACTORY = ["--architecture", "sklearn.tree:DecisionTreeClassifier"]
OTHER = ["--nonmembers", "out.npy"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--members"),
        (["--members", "in.npy"], "--nonmembers"),
        (["--members", "none.npy", *OTHER], "no such file"),
        (["--members", "in.npy", "--nonmembers", "logits.npy"], "logits"),
        (["--members", "in.npy", "--nonmembers", "few.npy"], "at least 100 nonmembers, got 20"),
        (["--members", "in.npy", "--nonmembers", "other.npy"], "same number of classes"),
        ([*SIDES, "--member-labels", "few-labels.npy", "--nonmember-labels", "out-labels.npy"], "expected 1500 of"),
        ([*SIDES, "--member-labels", "none.npy", "--nonmember-labels", "out-labels.npy"], "no such file"),
        ([*SIDES, "--member-labels", "in-labels.npy"], "got none for nonmembers"),
        ([*SIDES, "--shadow-members", "in.npy"], "both sides of a shadow"),
        ([*SIDES, "--columns", "p*"], "no --columns for in.npy"),
        ([*SIDES, "--attacks", "gapp"], "did you mean gap?"),
        (
            [*SIDES, "--defenses", "label_constant", "--fail-over", "auc=1", "--setting", "label_constant"],
            "true labels",
        ),
        ([*SIDES, "--defenses", "magic"], "defense among"),
        ([*SIDES, "--epsilon", "1,x"], "numbers with commas"),
        ([*SIDES, "--epsilon", "-1"], "every epsilon > 0"),
        ([*SIDES, "--fail-over", "auc>0.5"], "auc="),
        ([*SIDES, "--fail-unless-under", "auc>0.5"], "auc="),
        ([*SIDES, "--fail-over", "auc=0.5", "--setting", "regions:3"], "--setting among what is studied (none, "),
        ([*SIDES, "--fail-over", "auc=0.5", "--setting", "regions:x"], "--setting among what is studied (none, "),
        ([*SIDES, "--setting", "none"], "give --fail-over"),
        ([*SIDES, "--fail-over", "tpr@1%=0.1"], "at least 1000 non-members"),
    ],
)
def test_wrong_scores_are_one_line_and_leave_nothing(folder, capsys, words, message):
    refused(folder, capsys, ["scores", *words], message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.such:thing", *MODEL[1:]], "imported"),
        (["no.onnx"], "--member-data"),
        (["no.onnx", *MODEL[1:]], "no .onnx file"),
        ([*MODEL, "--canaries", "50"], "give an architecture"),
        ([*MODEL, *FACTORY, "--canaries", "-5"], "0 or more canaries"),
        ([*MODEL, *FACTORY, "--yes", "--canaries", "500"], "to the 160 non-members"),
        ([*MODEL, "--boundary", "3"], "10 or more records"),
        ([*MODEL, "--yes", "--sensitive", "age"], "a column by its number from 0 to 3"),
        ([*MODEL, "--yes", "--sensitive", "4"], "from 0 to 3"),
    ],
)
def test_a_wrong_model_is_one_line_and_leaves_nothing(folder, capsys, words, message):
    refused(folder, capsys, ["model", *words], message)


def refused(folder, capsys, words, message):
    rng = np.random.default_rng(0)
    (folder / "audited_table.py").write_text(
        "def predict_proba(x):\n    return abs(x) / abs(x).sum(1, keepdims=True)\n"
    )
    np.savez("table.npz", x=rng.normal(size=(200, K)), y=rng.integers(0, K, 200))
    np.save("logits.npy", rng.normal(size=(300, K)) * 3 + 1)
    np.save("few.npy", scores(20, 3, 1.0))
    np.save("few-labels.npy", np.zeros(20, dtype=int))
    np.save("other.npy", rng.dirichlet(np.ones(K + 1), 300))
    code, out, err = run(capsys, "audit", *words, "-o", "seen")
    assert code == 2
    assert out == ""
    assert message in err
    steps = [line for line in err.splitlines() if line.endswith(" …")]
    assert err.removeprefix("".join(f"{step}\n" for step in steps)).startswith("Error: ")
    assert "Traceback" not in err
    assert not (folder / "seen").exists()
