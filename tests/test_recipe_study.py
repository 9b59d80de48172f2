"""Defenses in training are compared end to end: alone and behind the veil, on everyone, the exposed and canaries."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from scoreveil.audit.data.benchmarks import load
from scoreveil.audit.networks.training import TrainingRun
from scoreveil.audit.paper import training
from scoreveil.audit.paper.experiments import PROFILES
from scoreveil.audit.recipes import RECIPES
from scoreveil.cli import app
from test_adult import write

pytestmark = pytest.mark.slow

TINY = replace(
    PROFILES["defenses"],
    size=120,
    reference=100,
    width=2,
    epochs={"adult": 3},
    shadows={"adult": 6},
    canaries=40,
    attacks=("true_confidence", "label_floor", "label_floor_known"),
)


def people(count):
    """Rows of a table from which the class can be told, mostly."""
    rng = np.random.default_rng(0)
    for age, hours in rng.integers(18, 90, (count, 2)):
        rich = ">50K" if age + hours + rng.normal(0, 15) > 108 else "<=50K"
        yield f"{age}, Private, 77516, HS-grad, 9, Divorced, Sales, Wife, White, Male, 0, 0, {hours}, Peru, {rich}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The rows of one recipe, where its data is, and the cache that it left."""
    data, cache = write(tmp_path_factory.mktemp("data"), list(people(400))), tmp_path_factory.mktemp("cache")
    return training.study_recipe("label_smoothing", TINY, "adult", data, cache, jobs=1), data, cache


def test_there_is_a_row_alone_and_one_behind_the_veil(made):
    rows, _, _ = made
    assert [(row.recipe, row.defense, row.epsilon) for row in rows] == [
        ("label_smoothing", "none", None),
        ("label_smoothing", "optimal", 4.0),
    ]
    assert rows[0].test_accuracy == rows[1].test_accuracy > 0.5
    assert all(row.promised_epsilon is None and row.training_seconds > 0 for row in rows)
    for row in rows:
        assert all(0 <= leak.tpr_at_1pct <= 1 and 0.3 < leak.auc <= 1 for leak in (row.everyone, row.canaries))


def test_from_the_cache_it_is_the_same_without_training(made, monkeypatch):
    rows, data, cache = made

    def train(*_):
        raise AssertionError("everything was trained before")

    monkeypatch.setattr(TrainingRun, "train", train)
    assert training.study_recipe("label_smoothing", TINY, "adult", data, cache, jobs=1) == rows


def test_the_files_hold_every_row(made, tmp_path):
    rows, _, _ = made
    text = training.write(rows, tmp_path / "out", "scoreveil reproduce").read_text()
    assert "## Adult" in text
    assert sum(line.startswith("| label_smoothing |") for line in text.splitlines()) == 2
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    kept = json.loads((tmp_path / "out" / "rows.json").read_text())
    assert [(row["defense"], row["everyone"]["auc"]) for row in kept] == [(r.defense, r.everyone.auc) for r in rows]


def test_no_canary_keeps_its_label(made):
    images = load("adult", made[1])
    assert (training.mislabelled(images, 0).labels != images.labels).all()


def test_what_cannot_be_compared_is_refused_before_the_work(made):
    _, data, cache = made
    with pytest.raises(ValueError, match="Expected a recipe among plain, l2"):
        training.study_recipe("magic", TINY, "adult", data, cache)
    with pytest.raises(ValueError, match="Expected 6 shadows or more to judge single records by, got 4"):
        training.study_recipe("plain", replace(TINY, shadows={"adult": 4}), "adult", data, cache)
    for arguments, message in (
        (["--recipe", "plain"], "--recipe goes with --profile defenses"),
        (["--profile", "defenses", "--recipe", "magic"], "Expected ways to train among plain, l2"),
        (["--profile", "defenses", "--dataset", "iris"], "adult or all, got 'iris'"),
    ):
        place = ["--data-dir", str(data)] + (["--dataset", "adult"] if "--dataset" not in arguments else [])
        answer = CliRunner().invoke(app, ["reproduce", *arguments, *place])
        assert answer.exit_code != 0
        assert message in str(answer.exception) + answer.output


def test_the_profile_compares_every_recipe():
    assert PROFILES["defenses"].recipes == tuple(RECIPES)
    assert set(PROFILES["defenses"].datasets) <= set(PROFILES["defenses"].epochs)
