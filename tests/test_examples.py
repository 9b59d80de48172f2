"""The scripts of examples/ run, and what they print is what their text says."""

import os
import re
import subprocess
import sys

import pytest

from doc_pages import ROOT

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.slow


def printed(name, folder):
    ran = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=folder, capture_output=True, text=True, encoding="utf-8", env={**os.environ, "PYTHONUTF8": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert not list(folder.iterdir()), "nothing is left behind"
    return ran.stdout


def test_an_ml_engineer_loses_no_accuracy(tmp_path):
    text = printed("ml_engineer", tmp_path)
    bare, veiled = re.search(r"accuracy +([\d.]+) bare, ([\d.]+) veiled", text).groups()
    assert bare == veiled
    assert "100% of" in text
    assert "the same answer" in text
    assert "There is no ε" in text
    gaps = [float(a) - float(b) for a, b in re.findall(r"([\d.]+) where trained on, ([\d.]+) elsewhere", text)]
    assert gaps[0] > 0.1 > abs(gaps[1])


def test_a_privacy_engineer_gates_a_release(tmp_path):
    text = printed("privacy_engineer", tmp_path)
    assert "for none: shut" in text
    assert "for regions: open" in text


@pytest.mark.posix
def test_a_platform_engineer_serves_veiled_scores(tmp_path):
    text = printed("platform_engineer", tmp_path)
    assert "as the model's: True" in text
    assert "the same answer: True" in text
    assert re.search(r"^metrics +scoreveil_requests_total\S* 2\.0$", text, re.MULTILINE)


def test_a_researcher_sees_who_falls_to_whom(tmp_path):
    text = printed("researcher", tmp_path)
    rows = re.findall(r"^(no defense|published|isotonic|fitted).*?(0\.\d\d) +(0\.\d\d) ", text, re.MULTILINE)
    aucs = {name: (float(paper), float(adapted)) for name, paper, adapted in rows}
    assert aucs["published"][0] < aucs["no defense"][0] - 0.1
    assert aucs["published"][1] > aucs["no defense"][1] - 0.05
    assert aucs["isotonic"][1] < aucs["no defense"][1] - 0.1
    assert max(aucs["fitted"]) < 0.6


def test_each_kind_of_user_has_one():
    guides = {page.stem.replace("-", "_") for page in (ROOT / "docs" / "guides").glob("*.md")}
    assert {script.stem for script in EXAMPLES.glob("*.py")} == guides
