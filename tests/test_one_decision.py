"""One decision: `fit`, `audit`, their reports and the demo say the same about what to do with a model's scores."""

import re

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier

from scoreveil import audit, cli
from scoreveil.audit.report import page
from scoreveil.fitting.decision import Advice
from scoreveil.veil import Veil

pytestmark = pytest.mark.slow

RECORDS = 400
MODELS = {
    "forest": RandomForestClassifier(40, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=40, max_depth=4, random_state=0),
    "logistic regression": LogisticRegression(C=0.01, max_iter=1000),
    "naive Bayes": GaussianNB(),
    "network": MLPClassifier((32,), alpha=0.0, learning_rate_init=0.01, max_iter=1000, random_state=0),
}
GIVEN = ["--members", "in.npy", "--member-labels", "y_in.npy"]
GIVEN += ["--nonmembers", "out.npy", "--nonmember-labels", "y_out.npy"]
QUICK = ["--attacks", "max_confidence,random_forest_known,label_floor,label_floor_known", "--jobs", "1"]
ATTACKS = tuple(QUICK[1].split(","))


@pytest.fixture
def scoreveil(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        shown = capsys.readouterr()
        assert ended.value.code in (0, 3), shown.err
        return shown.out

    return run


@pytest.fixture(scope="module")
def records():
    x, y = make_classification(2 * RECORDS, 12, n_informative=6, n_classes=3, flip_y=0.1, class_sep=1.2, random_state=0)
    return x[:RECORDS], y[:RECORDS], x[RECORDS:], y[RECORDS:]


def decision(shown):
    """The lines that say what to do, and what that rests on."""
    lines = shown.splitlines()
    starts = ("Take the fitted veil", "Publish labels only", "Nothing leaks", "Whether the raw scores leak")
    (first,) = {n for n, line in enumerate(lines) if line.startswith(starts)}
    size = 2 if lines[first].startswith(("Publish", "Nothing")) else 3
    return tuple(lines[first : first + size])


@pytest.mark.parametrize("name", list(MODELS))
def test_fit_audit_and_report_say_the_same(records, scoreveil, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    x_in, y_in, x_out, y_out = records
    model = MODELS[name].fit(x_in, y_in)
    inside, outside = model.predict_proba(x_in), model.predict_proba(x_out)
    for file, content in (("in", inside), ("out", outside), ("y_in", y_in), ("y_out", y_out)):
        np.save(f"{file}.npy", content)
    found = audit.run(inside, outside, y_in, y_out, defenses=("regions",), attacks=ATTACKS, jobs=1)
    fitted = scoreveil("fit", *GIVEN, "-o", "veil.json")
    said = decision(fitted)
    assert decision(str(found)) == said
    (after,) = re.findall(r"^  \S*scoreveil (audit scores --veil veil.json .*)$", fitted, re.MULTILINE)
    assert decision(scoreveil(*after.split(), *QUICK, "--defenses", "regions")) == said
    assert page.advice(found.study, found.verdict) == said[0]
    found.write("report")
    assert said[0] in (tmp_path / "report" / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert (tmp_path / "report" / "veil.json").exists() == (found.advice is Advice.TAKE_VEIL)
    if found.advice is Advice.TAKE_VEIL:
        assert not found.veil.is_constant
        assert found.veil.guarantee.epsilon == np.inf
    expected = {"forest": Advice.TAKE_VEIL, "logistic regression": Advice.MORE_RECORDS}
    assert found.advice is expected.get(name, found.advice)


def test_the_demo_and_the_commands_it_names_say_the_same(scoreveil, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = scoreveil("demo", "-o", "scores")
    commands = re.sub(r" *\\\n *", " ", shown.partition("Next, with these scores")[2]).splitlines()
    assert "  cd scores" in commands
    monkeypatch.chdir(tmp_path / "scores")
    lines = {words[1]: words[1:] for words in map(str.split, commands) if words and words[0].endswith("scoreveil")}
    said = decision(scoreveil(*lines["audit"], *QUICK))
    assert decision(scoreveil(*lines["fit"])) == said
    assert " ".join(said) in " ".join(shown.split())
    assert said[0] == "Take the fitted veil."
    assert not Veil.load("veil.json").is_constant
    assert not Veil.load("report/veil.json").is_constant
    for name in ("show", "verify", "protect"):
        scoreveil(*lines[name])
