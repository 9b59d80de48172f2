"""`scoreveil audit`, as a user runs it."""

import json

import numpy as np
import pytest

from scoreveil import Veil, cli

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
    assert "The scores leak." in out
    assert "Undefended, the best attack" in out
    assert "label alone" in out
    assert "What the confidence is worth" in out
    found = json.loads((folder / "seen" / "results.json").read_text())
    assert {r["attack"] for r in found["results"]} == set(QUICK[3].split(","))
    assert {r["form"] for r in found["results"]} == {"paper", "adaptive", "averaging"}
    assert found["meta"]["records"]["classes"] == K
    assert "<html" in (folder / "seen" / "report.html").read_text()
    assert (folder / "seen" / "figures" / "frontier.svg").exists()
    # raw score vectors stay out of all of it
    raw = repr(float(np.load("in.npy")[0, 0])).encode()
    assert all(raw not in file.read_bytes() for file in (folder / "seen").glob("*.*"))


def test_where_a_veil_is_recommended_it_is_written_and_can_be_used(folder, capsys):
    words = ["--members", "in.npy", "--nonmembers", "out.npy", *QUICK, "-o", "seen"]
    code, out, _ = run(capsys, "audit", *words)
    assert code == 0
    assert "Take optimal, ε = 0.5" in out
    assert "fitted on all 1,500 members and 1,500 non-members given" in out
    veil = Veil.load(folder / "seen" / "veil.npz")
    assert veil.guarantee.epsilon <= 0.5
    assert veil.guarantee.advantage is not None
    given = np.load("out.npy")
    assert (veil(given).argmax(axis=1) == given.argmax(axis=1)).all()


def test_where_nothing_leaks_nothing_is_recommended_or_written(folder, capsys):
    for name, seed in (("in", 5), ("out", 6)):
        np.save(f"{name}.npy", scores(400, seed, 1.0))
    quick = [*QUICK[:-3], "0.0001", *QUICK[-2:]]
    code, out, _ = run(capsys, "audit", "--members", "in.npy", "--nonmembers", "out.npy", *quick, "-o", "seen")
    assert code == 0
    assert "Nothing is recommended" in out
    assert "Take" not in out
    assert "smaller ε" not in out
    assert not (folder / "seen" / "veil.npz").exists()


@pytest.mark.parametrize(
    ("setting", "option", "code", "says"),
    [
        ("none", "--fail-over", 3, "Gate shut: on no defense an attack surely passes auc=0.6"),
        ("none", "--fail-unless-under", 3, "Gate shut: on no defense it cannot be ruled out that an attack passes"),
        ("optimal:0.5", "--fail-over", 0, "Gate open: on optimal, ε = 0.5 it is not shown that an attack passes"),
        ("optimal:0.5", "--fail-unless-under", 0, "Gate open: on optimal, ε = 0.5 every attack stays within auc=0.6"),
    ],
)
def test_the_gate_tells_by_its_exit_code_and_says_why(folder, capsys, setting, option, code, says):
    words = ["--members", "in.npy", "--nonmembers", "out.npy", *QUICK, option, "auc=0.6", "--setting", setting]
    ended, out, _ = run(capsys, "audit", *words)
    assert ended == code
    assert says in out.splitlines()[-1]


def test_without_a_setting_the_gate_looks_at_what_is_recommended_or_else_at_the_scores(folder, capsys):
    words = ["--members", "in.npy", "--nonmembers", "out.npy", *QUICK, "--fail-over", "auc=0.6"]
    code, out, _ = run(capsys, "audit", *words)
    assert (code, out.splitlines()[-1].partition(" it is")[0]) == (0, "Gate open: on optimal, ε = 0.5")
    code, out, _ = run(capsys, "audit", *(word.replace(",optimal", "") for word in words))
    assert (code, out.splitlines()[-1].partition(" an attack")[0]) == (3, "Gate shut: on no defense")


def test_a_folder_that_cannot_be_used_is_refused_before_the_study(folder, capsys):
    words = ["--members", "in.npy", "--nonmembers", "out.npy", *QUICK]
    for place, name in (("in.npy", "in.npy"), ("in.npy/below", "in.npy")):
        code, out, err = run(capsys, "audit", *words, "-o", place)
        assert (code, out) == (2, "")
        assert f"{name} is a file" in err
    code, out, err = run(capsys, "audit", *words, "--pdf")
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
        (["--members", "in.npy", "--nonmembers", "out.npy", "--fail-unless-under", "auc>0.5"], "auc="),
        (["--fail-over", "auc=0.5", "--setting", "optimal:3"], "--setting among what is studied (none, "),
        (["--setting", "none"], "give --fail-over"),
        (["--members", "in.npy", "--nonmembers", "out.npy", "--fail-over", "tpr@1%=0.1"], "at least 1000 non-members"),
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
