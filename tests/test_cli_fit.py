"""`scoreveil fit` and `scoreveil verify`, and the commands that take what they made."""

import json
import subprocess
import sys
import zipfile
from io import BytesIO

import numpy as np
import pytest

from scoreveil import Veil
from scoreveil.accounting import advantage_after
from scoreveil.cli import main
from scoreveil.gateway import config_file


def write_scores(folder):
    """Of a model that is surer of its members."""
    rng = np.random.default_rng(0)
    for name, sure in (("in", 0.02), ("out", 0.2)):
        scores = rng.dirichlet(np.full(4, sure), 600)
        np.save(folder / f"{name}.npy", scores / scores.sum(axis=1, keepdims=True))
        right = rng.random(600) < scores.max(axis=1)
        np.save(folder / f"y_{name}.npy", np.where(right, scores.argmax(axis=1), (scores.argmax(axis=1) + 1) % 4))


@pytest.fixture
def scoreveil(tmp_path, monkeypatch, capsys):
    """Run the command in a folder with scores."""
    monkeypatch.chdir(tmp_path)
    write_scores(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        shown = capsys.readouterr()
        return int(ended.value.code or 0), " ".join(shown.out.split()), shown.err

    return run


ALL = "--nonmembers out.npy --nonmember-labels y_out.npy --members in.npy --member-labels y_in.npy"


def test_fit_says_what_is_promised_and_what_it_is_worth_and_verify_repeats_the_promise(scoreveil):
    code, out, err = scoreveil(f"fit {ALL} -e 4 -o veil.npz")
    assert (code, err) == (0, "")
    promise = Veil.load("veil.npz").guarantee
    assert " ".join(promise.words.split()) in out
    told = f"the advantage is 0.02 at most, as was asked for; {promise.advantage:.3f} is what holds for others too"
    for words in ("constant", "temperature", "log-loss", "scoreveil verify veil.npz", told):
        assert words in out
    code, out, _ = scoreveil("verify veil.npz")
    assert code == 0
    assert "keeps its promises" in out
    assert " ".join(promise.words.split()) in out
    for n in (1, 2, 5, 10):
        assert f"│ {n} │ {4 * n} │ {advantage_after(promise, n):.3f} │" in out


def test_without_epsilon_several_are_compared_and_nothing_is_written(scoreveil, tmp_path):
    before = set(tmp_path.iterdir())
    code, out, _ = scoreveil(f"fit {ALL}")
    assert code == 0
    assert all(f"│ {epsilon} │" in out.replace("  ", " ") for epsilon in ("0.5", "8"))
    # which of the two is a matter of the noise with so few records
    assert "The smallest ε that is clearly better than the label alone: --epsilon" in out or "At none of these" in out
    assert set(tmp_path.iterdir()) == before


COUNTED = """
import sys
opened = []
sys.addaudithook(lambda event, what: opened.append(str(what[0])) if event == "open" else None)
from scoreveil.cli import main
try:
    main(sys.argv[1:])
finally:
    print(*(f"{name}={sum(each.endswith('/' + name) or each == name for each in opened)}" for name in FILES))
"""
FILES = ("out.npy", "y_out.npy", "in.npy", "y_in.npy")


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """A folder where a process of its own has fitted a veil, and what it said; last, how often it read each file."""
    folder = tmp_path_factory.mktemp("reported")
    write_scores(folder)
    program = COUNTED.replace("FILES", repr(FILES))
    line = f"fit {ALL} -e 3 -o veil.npz --report report"
    command = [sys.executable, "-X", "utf8", "-c", program, *line.split()]
    return folder, subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8")


def test_a_report_is_written_beside_the_veil(reported):
    folder, run = reported
    assert (run.returncode, run.stderr) == (0, "")
    assert "Report: report/report.html" in " ".join(run.stdout.split())
    found = json.loads((folder / "report" / "results.json").read_text(encoding="utf-8"))
    assert [each["epsilon"] for each in found["cost"]] == [0.5, 1, 2, 3, 4, 8]
    assert found["promise"]["epsilon"] == 3
    assert "scoreveil verify veil.npz" in (folder / "report" / "report.html").read_text(encoding="utf-8")


def test_each_file_is_read_once(reported):
    _, run = reported
    assert run.stdout.splitlines()[-1].split() == [f"{name}=1" for name in FILES]


def test_verify_refuses_a_table_that_was_edited(scoreveil):
    assert scoreveil("fit --nonmembers out.npy -e 2 -o veil.npz")[0] == 0
    with np.load("veil.npz") as saved:
        arrays = {name: saved[name] for name in saved.files}
    arrays["table"] = arrays["table"].copy()
    low, high = arrays["table"][0].argmin(), arrays["table"][0].argmax()
    arrays["table"][0, high] += arrays["table"][0, low]
    arrays["table"][0, low] = 0  # an answer that one bin never gives
    np.savez_compressed("veil.npz", **arrays)
    code, out, err = scoreveil("verify veil.npz")
    assert code == 2
    assert out == ""
    told = "veil.npz breaks a promise. The table has an answer that some bins never give: its loss is infinite."
    assert err == f"Error: {told}\n"


@pytest.mark.parametrize("change", ["edges", "slack", "announced"])
def test_verify_refuses_a_file_that_was_changed(scoreveil, change):
    """Not each of these breaks a promise that can be recomputed from the file, but none is what was written."""
    scoreveil(f"fit {ALL} -e 4 -o veil.npz")
    with np.load("veil.npz") as saved:
        arrays = {name: saved[name] for name in saved.files}
    arrays[change] = arrays[change] * (0.999 if change == "announced" else 0.5)
    np.savez_compressed("veil.npz", **arrays)
    code, _, err = scoreveil("verify veil.npz")
    assert code == 2
    assert "veil.npz" in err


def test_labels_may_have_a_header_and_no_cell_is_quoted(scoreveil, tmp_path):
    labels = np.load("y_out.npy")
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(map(str, labels)) + "\n")
    code, _, err = scoreveil("fit --nonmembers out.npy --nonmember-labels y.csv -e 4 -o veil.npz")
    assert (code, err) == (0, "")
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(["private"] * len(labels)) + "\n")
    code, _, err = scoreveil("fit --nonmembers out.npy --nonmember-labels y.csv -e 4 -o other.npz")
    assert code == 2
    assert "expected numbers of classes, 0 to 3, or their names" in err
    assert "private" not in err


def test_a_veil_is_replaced_only_if_that_is_wanted(scoreveil):
    scoreveil("fit --nonmembers out.npy -e 4 -o veil.npz")
    code, _, err = scoreveil("fit --nonmembers out.npy -e 2 -o veil.npz")
    assert code == 2
    assert "veil.npz exists already; --force replaces it" in err
    assert Veil.load("veil.npz").epsilon == 4
    assert scoreveil("fit --nonmembers out.npy -e 2 -o veil.npz --force")[0] == 0
    assert Veil.load("veil.npz").epsilon == 2


def test_protect_and_the_gateway_take_a_fitted_veil(scoreveil, tmp_path):
    assert scoreveil(f"fit {ALL} -e 4 -o veil.npz")[0] == 0
    assert scoreveil("protect out.npy -o safe.npy --veil veil.npz")[0] == 0
    before, after = np.load("out.npy"), np.load("safe.npy")
    assert np.array_equal(after.argmax(axis=1), before.argmax(axis=1))
    announced = Veil.load("veil.npz").mechanism.announced[:, 0]
    assert np.isin(np.round(after.max(axis=1), 9), np.round(announced, 9)).all()
    table = {"veil": "veil.npz", "onnx": "model.onnx"}
    model = config_file.parse({"models": {"digits": table}}, tmp_path).models["digits"]
    assert model.make_veil(bytes(32), "digits").guarantee.epsilon == 4
    with pytest.raises(ValueError, match="name it alone"):
        config_file.parse({"models": {"digits": {**table, "epsilon": 2.0}}}, tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"fit {ALL} -e 4", "Where shall the veil be written"),
        (f"fit {ALL} -e 4 -o veil.txt", "veil.txt does not end in it"),
        (f"fit {ALL} -e -1 -o veil.npz", "Expected a finite epsilon > 0"),
        (
            "fit --nonmembers out.npy --members in.npy --member-labels y_in.npy -e 4 -o veil.npz",
            "without nonmember_labels",
        ),
        ("fit --nonmembers out.npy --nonmember-labels out.npy -e 4 -o veil.npz", "labels of nonmembers: expected 600"),
        ("fit --nonmembers none.npy -e 4 -o veil.npz", "no such file"),
        (f"fit {ALL} --report report", "A report is about one veil"),
        (
            f"fit {ALL} -e 4 -o veil.npz --report in.npy",
            "Expected a folder for the report, got in.npy: in.npy is a file",
        ),
        (f"fit {ALL} -e 4 -o veil.npz --pdf", "--pdf prints the page that --report writes"),
        ("fit --nonmembers out.npy", "Without labels there is nothing to compare"),
        ("protect out.npy -o safe.npy", "--epsilon, such as 2, or a fitted --veil"),
        ("protect out.npy -o safe.npy --veil out.npy", "was not written by Veil.save"),
        ("verify none.npz", "There is no file none.npz"),
        ("serve --veil veil.npz", "--veil needs a MODEL"),
    ],
)
def test_what_cannot_be_done_is_one_line(scoreveil, tmp_path, line, message):
    code, out, err = scoreveil(line)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("veil.*")) + list(tmp_path.glob("safe.*"))


def test_the_file_is_small_and_holds_no_score(scoreveil, tmp_path):
    assert scoreveil(f"fit {ALL} -e 4 -o veil.npz")[0] == 0
    content = (tmp_path / "veil.npz").read_bytes()
    assert len(content) <= 100_000
    with zipfile.ZipFile(BytesIO(content)) as parts:
        assert all(not name.endswith(".pkl") for name in parts.namelist())
    scores = np.load("out.npy").ravel()
    with np.load("veil.npz") as saved:
        assert json.loads(str(saved["veil"][()]))["mechanism"] == "channel"
        for name in set(saved.files) - {"veil"}:
            assert not np.isin(saved[name][saved[name] > 0], scores).any()
