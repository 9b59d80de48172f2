"""The study of who asks about neighbours, in short: a real gateway is asked, and equal draws are told from others."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.neighbours import gateway as neighbours


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "experiments.neighbours.gateway",
        "--output",
        str(folder),
        "--cache",
        str(folder / "cache"),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_memorised_table_tells_more_by_raw_scores_than_by_labels(tmp_path: Path) -> None:
    results = run(tmp_path, "--quick")
    assert set(results) == {"neighbours", "equality"}
    assert {part["about"]["command"] for part in results.values()} == {
        "python -m experiments.neighbours.gateway --quick"
    }

    [(model, measured)] = results["neighbours"]["models"].items()
    assert model == "forest, table"
    assert list(measured["attack"]) == list(measured["useful"]) == list(neighbours.COLUMNS)
    for by_questions in measured["attack"].values():
        assert list(by_questions) == ["1", "8"]
        assert all(0 <= low <= value <= high <= 1 for value, low, high in by_questions.values())
    for questions in ("1", "8"):
        (_, _, labels_high), (_, raw_low, _) = (measured["attack"][way][questions] for way in ("labels", "raw"))
        assert raw_low > labels_high
    # a veil hides most of a single answer, and the attacker who goes on asking gets past it
    (fitted, _, one_high), (_, around_low, _) = (measured["attack"]["fitted"][k] for k in ("1", "8"))
    assert fitted < measured["attack"]["raw"]["1"][1]
    assert around_low > one_high
    assert measured["useful"]["labels"] == 0.5 < measured["useful"]["fitted"] < measured["useful"]["raw"]

    [forest] = results["equality"]["forests"].values()
    assert forest["at_one"][0] > forest["at_one"][1] > 0  # atoms, of which members have more
    for epsilon in ("4", "1"):
        assert all(len(forest[epsilon][way]) == neighbours.QUICK.names for way in ("fresh", "shared"))

    page = (tmp_path / "neighbours.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith(("| forest", "| 10 trees"))]
    assert [row.count("|") for row in rows] == [10, 10, 9, 8, 8]
    (tmp_path / "neighbours.md").unlink()
    assert run(tmp_path, "--render") == results
    assert (tmp_path / "neighbours.md").read_text(encoding="utf-8") == page


def test_short_figures_do_not_get_into_the_docs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["neighbours.py", "--quick"])
    with pytest.raises(SystemExit):
        neighbours.main()
    assert "--quick needs --output" in capsys.readouterr().err


def test_reading_off_gains_from_a_draw_that_equal_scores_share_and_not_from_draws_of_their_own() -> None:
    rng = np.random.default_rng(0)
    is_member, truth = np.arange(4000) < 2000, np.zeros(4000, dtype=np.int64)
    # members share an atom; half of the others do, too, and the rest have scores of their own
    is_atom = is_member | (rng.random(4000) < 0.5)
    top = np.where(is_atom, 1.0, rng.uniform(0.6, 0.9, 4000))
    raw = np.column_stack([top, 1 - top])
    drawn = rng.choice([0.7, 0.8], 4000)
    shared = np.where(is_atom, 0.7, drawn)

    def auc_of(announced: np.ndarray | None) -> tuple[float, float, float]:
        answers = None if announced is None else np.column_stack([announced, 1 - announced])
        return neighbours.read_off(raw, truth, is_member, answers)

    assert auc_of(None)[0] == 0.5
    assert auc_of(drawn)[1] < 0.5 < auc_of(drawn)[2]
    # all members and three of four others have the atom's answer: 1/8 + 1/2
    assert auc_of(shared)[0] == pytest.approx(0.625, abs=0.02)


def test_the_attacker_finds_members_that_stand_out_beside_their_copies_alone() -> None:
    rng = np.random.default_rng(0)
    is_member, truth = np.arange(400) < 200, np.zeros(400, dtype=np.int64)
    level = rng.uniform(0.6, 0.9, 400)  # of a record and its copies, which hides a small spike at the record
    top = level + rng.normal(0, 0.005, (9, 400))
    top[0, is_member] += 0.02

    def judged(questions: int) -> tuple[float, float, float]:
        return neighbours.judge(np.stack([top, 1 - top], axis=2)[:questions], truth, is_member)

    assert judged(1)[2] < 0.72
    assert judged(9)[1] > 0.9
