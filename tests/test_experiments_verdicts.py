"""The benchmark of the audit's verdicts: in short, and what its committed results say."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.verdicts import __main__ as verdicts
from scoreveil.fitting.decision import LEAKS

pytestmark = pytest.mark.slow

CHEAP = ("max_confidence", "true_confidence", "label_floor", "label_floor_known")
ROOT = Path(__file__).resolve().parent.parent


def test_a_model_with_no_leak_is_not_called_leaking_and_a_memorising_forest_is():
    digits = verdicts._flat("digits", None)
    for seed in range(3):
        calm = verdicts.audited("logistic regression", seed, verdicts.logistic_regression(seed), CHEAP)
        assert calm.outcome != LEAKS
        known_by_heart = verdicts.audited("forest", seed, verdicts.forest(seed, digits, 800), CHEAP)
        assert known_by_heart.outcome == LEAKS
        assert known_by_heart.shut


def test_where_there_is_nothing_to_find_the_gate_stays_open():
    found = [verdicts.audited("nothing", seed, verdicts.nothing(seed), CHEAP) for seed in range(20)]
    assert sum(row.shut for row in found) <= 2
    assert sum(row.outcome == LEAKS for row in found) <= 2


def test_a_goal_that_is_missed_is_named_and_a_run_goes_on_where_it_stopped(tmp_path):
    rows = verdicts.read(verdicts.RESULTS)
    assert verdicts.missed(rows) == []
    calm = next(row for row in rows if row.kind == "logistic regression")
    assert verdicts.missed([*rows, replace(calm, outcome=LEAKS)]) == ["logistic regression is never said to leak"]
    forest = next(row for row in rows if row.kind == "forest")
    assert verdicts.missed([*rows, replace(forest, outcome="cannot be told")]) == ["a forest is always said to leak"]
    verdicts.write(tmp_path / "verdicts.json", rows[:5])
    assert verdicts.read(tmp_path / "verdicts.json") == rows[:5]


def test_the_page_quotes_the_committed_results():
    """Every study was run, and docs/audit.md has their figures."""
    rows = verdicts.read(verdicts.RESULTS)
    assert {(row.kind, row.seed) for row in rows} == {(kind, seed) for kind, seed, _ in verdicts.planned(None)}
    counts = verdicts.summary(rows)
    assert json.loads(verdicts.RESULTS.read_text())["summary"] == counts
    page = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    table = re.search(r"python -m experiments\.verdicts.*", page, re.DOTALL)[0]
    for kind in counts.values():
        quoted = [kind.get(outcome, 0) for outcome in (LEAKS, "gate shut")]
        assert re.search(rf"\| {kind['studies']} \| {quoted[0]} \|.*\| {quoted[1]} \|", table)
