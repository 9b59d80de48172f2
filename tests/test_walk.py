"""Questions around a record, in short; and the pages of three studies show what was measured."""

import json

import pytest

from benchmarks.speed import ledger
from experiments.neighbours import gateway as neighbours
from experiments.walk import __main__ as walk


@pytest.mark.slow
def test_near_duplicates_and_ignored_features_gain_nothing_and_nudged_ones_do() -> None:
    errors = walk.measured("digits, k = 2, logistic regression", 2.0, records=4)
    assert errors["copies"] == errors["ignored"] == errors["one"]
    assert errors["nudged"] < 0.5 * errors["one"]
    assert errors["walk, fresh"] < 30  # of 1,500 questions
    assert errors["labels"] < errors["one"]


@pytest.mark.parametrize("study", [walk, neighbours, ledger], ids=lambda study: study.__name__)
def test_the_page_shows_what_was_measured(study) -> None:
    shown = study.PAGE.read_text(encoding="utf-8").partition(study.START)[2].partition(study.END)[0].strip()
    results = json.loads(study.RESULTS.read_text(encoding="utf-8"))
    assert shown == (study.table(results) if study is ledger else study.tables(results))
