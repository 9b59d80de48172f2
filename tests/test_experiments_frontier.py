"""Defenses in training are compared end to end: alone and behind the veil, on everyone, the exposed and canaries."""

from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from experiments.data.benchmarks import load
from experiments.frontier import comparison, training
from experiments.paper.reproduction import PROFILES
from experiments.recipes import RECIPES
from scoreveil.audit.networks.training import TrainingRun
from test_experiments_adult import write

pytestmark = pytest.mark.slow

TINY = replace(
    PROFILES["defenses"],
    size=120,
    reference=100,
    width=2,
    epochs={"adult": 3},
    shadows={"adult": 6},
    canaries=40,
    attacks=("true_confidence", "max_confidence"),
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


def test_there_is_a_row_alone_one_behind_the_veil_and_one_of_the_label(made):
    rows, _, _ = made
    assert [(row.recipe, row.defense, row.epsilon) for row in rows] == [
        ("label_smoothing", "none", None),
        ("label_smoothing", "regions", None),
        ("label_smoothing", "label_constant", None),
    ]
    assert rows[0].test_accuracy == rows[1].test_accuracy == rows[2].test_accuracy > 0.5
    assert rows[2].auroc_of_confidence == 0.5
    assert all(row.promised_epsilon is None and row.training_seconds > 0 for row in rows)
    for row in rows:
        for leak in (row.everyone, row.scores_alone, row.exposed, row.canaries):
            assert 0 <= leak.tpr_at_1pct_low <= leak.tpr_at_1pct <= leak.tpr_at_1pct_high <= 1
            assert leak.auc_low <= leak.auc <= leak.auc_high
        assert row.everyone.auc >= row.scores_alone.auc
        # whoever sees the label with a confidence may go by the label alone
        assert row.everyone.auc >= rows[2].everyone.auc
        assert row.canaries.tpr_at_1pct >= rows[2].canaries.tpr_at_1pct


def test_from_the_cache_it_is_the_same_without_training(made, monkeypatch):
    rows, data, cache = made

    def train(*_):
        raise AssertionError("everything was trained before")

    monkeypatch.setattr(TrainingRun, "train", train)
    assert training.study_recipe("label_smoothing", TINY, "adult", data, cache, jobs=1) == rows


def test_the_files_hold_every_row(made, tmp_path):
    rows, _, _ = made
    text = comparison.write(rows, tmp_path / "out", "python -m experiments").read_text()
    assert "## Adult" in text
    assert sum(line.startswith("| label smoothing |") for line in text.splitlines()) == 1
    assert comparison.read(tmp_path / "out") == list(rows)
    picture = (tmp_path / "out" / "adult.svg").read_text()
    assert "Adult: ways to train" in picture
    assert "defenses of the scores" not in picture + text  # those are rows of plain training


def test_the_field_may_be_run_in_parts(made, tmp_path):
    """What was run again takes the place of what there was; all else stays, in the order of the recipes."""
    rows, _, _ = made
    first = [replace(row, recipe=name) for name in ("pate", "l2") for row in rows]
    again = [replace(row, recipe="pate", nll=1.0) for row in rows]
    for part in (first, rows, again):
        text = comparison.write(part, tmp_path, "python -m experiments").read_text()
    assert comparison.read(tmp_path) == [*first[len(rows) :], *rows, *again]
    shown = [line.split(" | ")[0] for line in text.splitlines()]
    assert [name for name in shown if name in ("| L2", "| label smoothing", "| PATE")] == [
        *("| L2", "| label smoothing", "| PATE"),
    ]


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
        answer = CliRunner().invoke(app, [*arguments, *place])
        assert answer.exit_code != 0
        assert message in str(answer.exception) + answer.output


def test_the_profile_compares_every_recipe():
    assert PROFILES["defenses"].recipes == tuple(RECIPES)
    assert set(PROFILES["defenses"].datasets) <= set(PROFILES["defenses"].epochs)


# What the rows are compared by


def leak(auc, spread=0.01):
    return training.Leak("lira_online", auc, auc - spread, auc + spread, 0.02, 0.01, 0.03)


def row(defense, epsilon=None, auc=0.6, useful=0.7, recipe="plain", nll=0.5):
    return training.Row(
        dataset="adult", recipe=recipe, defense=defense, epsilon=epsilon, promised_epsilon=None, promised_delta=None,
        records=2_500, train_accuracy=1.0, test_accuracy=0.8, auroc_of_confidence=useful, nll=nll, ece=0.01,
        everyone=leak(auc), scores_alone=leak(auc), exposed=leak(auc), canaries=leak(auc), training_seconds=1.0,
    )  # fmt: skip


def test_the_spread_of_usefulness_is_that_of_simulated_records():
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        right, wrong = rng.normal(1, 1, 160), rng.normal(0, 1, 40)
        found.append((right[:, None] > wrong).mean())
    made = replace(row("none", useful=float(np.mean(found))), records=200, test_accuracy=0.8)
    assert comparison.spread(made) == pytest.approx(np.std(found), rel=0.15)


def test_a_rival_must_surely_leak_less_and_leave_more():
    ours = row("regions", 4.0, auc=0.60, useful=0.70)
    assert comparison.beats(row("memguard", auc=0.58, useful=0.80), ours, comparison.everyone)
    assert not comparison.beats(row("memguard", auc=0.595, useful=0.80), ours, comparison.everyone)  # within the error
    assert not comparison.beats(row("memguard", auc=0.58, useful=0.71), ours, comparison.everyone)
    assert not comparison.beats(row("memguard", auc=0.70, useful=0.80), ours, comparison.everyone)


def test_a_claim_names_the_rival_that_wins():
    rows = [row("none", auc=0.7, useful=0.9), row("regions"), row("label_constant", auc=0.55, useful=0.5)]
    told, alone = comparison.claims_of(rows, "adult")
    assert told.met
    assert alone.met
    told, alone = comparison.claims_of([*rows, row("memguard", auc=0.5, useful=0.9)], "adult")
    assert told.measured == alone.measured == "MemGuard (beside fitted veil)"
    assert not told.met


def test_an_attacker_who_may_choose_takes_the_better_of_each():
    sure = replace(leak(0.6), tpr_at_1pct=0.3, tpr_at_1pct_low=0.2, tpr_at_1pct_high=0.4, attack="gap")
    chosen = leak(0.7).at_least(sure)
    assert (chosen.attack, chosen.auc, chosen.tpr_at_1pct, chosen.tpr_at_1pct_high) == ("lira_online", 0.7, 0.3, 0.4)
    assert chosen == sure.at_least(leak(0.7))


def test_without_plain_training_nothing_is_claimed_of_defenses_of_the_scores():
    rows = [row("none", recipe="dp_sgd"), row("regions", recipe="dp_sgd")]
    (only,) = comparison.claims_of(rows, "adult")
    assert only.what == "DP-SGD behind the veil, beside DP-SGD"
    assert only.met is None, "three figures, of which one may be better and another worse"
    assert all(name in only.measured for name in ("leak", "log-loss", "AUROC"))


def test_what_an_attack_gains_beyond_the_label_is_told_of_the_same_recipe():
    rows = [
        *(row("none", auc=0.7), row("label_constant", auc=0.55)),
        *(row("none", auc=0.7, recipe="l2"), row("label_constant", auc=0.4, recipe="l2")),
    ]
    gains = [comparison.beyond_label(rows[i], rows, comparison.everyone) for i in (0, 2)]
    assert gains == pytest.approx([0.15, 0.2])  # nobody does worse than guessing
