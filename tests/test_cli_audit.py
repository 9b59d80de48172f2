"""`scoreveil audit`, as a user runs it."""

import json

import numpy as np
import pytest

from scoreveil import cli

pytestmark = pytest.mark.slow

K = 4
QUICK = [
    *("--defenses", "published,optimal"),
    *("--attacks", "ml_leaks,max_confidence,true_confidence,label_floor,label_floor_known"),
    *("--epsilons", "0.5", "--jobs", "1"),
]


def scores(rows, seed, sure):
    return np.random.default_rng(seed).dirichlet(np.full(K, 0.25 / sure), rows)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Scores of a model that is surer of its members than of others, and labels that it gets right by and large."""
    monkeypatch.chdir(tmp_path)
    for name, seed, sure in (("in", 0, 1.0), ("out", 1, 0.35)):
        rows = scores(1500, seed, sure)
        np.save(f"{name}.npy", rows)
        flipped = np.random.default_rng(seed).random(1500) > sure
        np.save(f"{name}-labels.npy", np.where(flipped, 0, rows.argmax(axis=1)))
    return tmp_path


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


def test_an_audit_of_scores_says_what_leaks_and_writes_a_report(folder, capsys):
    labels = ["--member-labels", "in-labels.npy", "--nonmember-labels", "out-labels.npy"]
    code, out, err = run(
        capsys, "audit", "--members", "in.npy", "--nonmembers", "out.npy", *labels, *QUICK, "-o", "seen"
    )
    assert (code, err) == (0, "")
    assert "Undefended, the best attack" in out
    assert "label alone" in out
    assert "isotonic" in out
    found = json.loads((folder / "seen" / "results.json").read_text())
    assert {r["attack"] for r in found["results"]} == set(QUICK[3].split(","))
    assert {r["form"] for r in found["results"]} == {"paper", "adaptive", "averaging"}
    assert found["meta"]["records"]["classes"] == K
    assert "<html" in (folder / "seen" / "report.html").read_text()
    assert (folder / "seen" / "figures" / "frontier.svg").exists()
    # raw score vectors stay out of all of it
    raw = repr(float(np.load("in.npy")[0, 0]))
    assert all(raw not in file.read_text() for file in (folder / "seen").glob("*.*"))


@pytest.mark.parametrize(("setting", "limit", "code"), [("none", "auc=0.6", 3), ("optimal:0.5", "auc=0.6", 0)])
def test_the_gate_tells_by_its_exit_code(folder, capsys, setting, limit, code):
    words = [
        "audit",
        "--members",
        "in.npy",
        "--nonmembers",
        "out.npy",
        *QUICK,
        "--fail-over",
        limit,
        "--setting",
        setting,
    ]
    ended, out, _ = run(capsys, *words)
    assert ended == code
    assert "Gate:" in out


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
    words = ["--model", "audited_by_name:predict_proba", "--member-data", "train.npz", "--nonmember-data", "test.npz"]
    code, out, err = run(capsys, "audit", *words, *QUICK)
    assert (code, err) == (0, "")
    assert "Undefended" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Expected --members"),
        (["--members", "in.npy"], "Expected --nonmembers"),
        (["--members", "none.npy", "--nonmembers", "out.npy"], "no such file"),
        (["--members", "in.npy", "--nonmembers", "logits.npy"], "logits"),
        (["--members", "in.npy", "--nonmembers", "few.npy"], "at least 100 nonmembers, got 20"),
        (["--members", "in.npy", "--nonmembers", "other.npy"], "same number of classes"),
        (["--members", "in.npy", "--nonmembers", "out.npy", "--member-labels", "few-labels.npy"], "1500 labels"),
        (["--members", "in.npy", "--nonmembers", "out.npy", "--member-labels", "none.npy"], "no such file"),
        (["--members", "in.npy", "--nonmembers", "out.npy", "--defenses", "magic"], "defense among"),
        (["--members", "in.npy", "--nonmembers", "out.npy", "--epsilons", "1,x"], "numbers with commas"),
        (["--members", "in.npy", "--nonmembers", "out.npy", "--epsilons", "-1"], "epsilons > 0"),
        (["--members", "in.npy", "--nonmembers", "out.npy", "--fail-over", "auc>0.5"], "auc="),
        (["--model", "no.such:thing", "--member-data", "x.npz", "--nonmember-data", "x.npz"], "imported"),
        (["--model", "no.onnx"], "--member-data"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(folder, capsys, words, message):
    rng = np.random.default_rng(0)
    np.save("logits.npy", rng.normal(size=(300, K)) * 3 + 1)
    np.save("few.npy", scores(20, 3, 1.0))
    np.save("few-labels.npy", np.zeros(20, dtype=int))
    np.save("other.npy", rng.dirichlet(np.ones(K + 1), 300))
    code, out, err = run(capsys, "audit", *words, "-o", "seen")
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("Error: ")
    assert "Traceback" not in err
    assert not (folder / "seen").exists()
