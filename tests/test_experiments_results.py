"""The committed results are what the tables and the pages say."""

import re
import sys
from pathlib import Path

import pytest

from experiments.frontier import comparison, page, training
from experiments.paper import reports, tables, which_veil
from experiments.paper.reproduction import DATASETS, PROFILES
from experiments.recipes import RECIPES
from scoreveil.audit.attacks import ATTACKS, COMPARISONS
from scoreveil.audit.report.wording import number
from scoreveil.audit.study.results import LABEL, UNDEFENDED, VEIL, from_json

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
FOLDERS = ("standard",)
PAGE = ROOT / "docs" / "reproduction.md"


def studies_of(folder):
    there = {name: RESULTS / folder / name / "results.json" for name in DATASETS}
    return {name: from_json(path.read_text(encoding="utf-8")) for name, path in there.items()}


@pytest.fixture(scope="module")
def results():
    return {folder: studies_of(folder) for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_tables_are_made_from_the_results(results, folder):
    (command,) = {study.meta["command"] for study in results[folder].values()}
    made = tables.markdown(results[folder], command)
    assert (RESULTS / folder / "tables.md").read_text(encoding="utf-8") == made


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_page_shows_what_was_measured(results, folder):
    page = PAGE.read_text(encoding="utf-8")
    shown = page.split(f"<!-- claims of {folder}")[1].split("-->\n", 1)[1].split("<!-- end of claims")[0]
    assert shown.strip() == tables.claims(results[folder])


def generated(script):
    """What a script has written into its page."""
    return script.PAGE.read_text(encoding="utf-8").partition(script.START)[2].partition(script.END)[0].strip()


def test_which_veil_shows_what_was_measured(results):
    assert generated(which_veil) == tables.worth(results["standard"])


@pytest.mark.slow
def test_reports_are_made_from_the_committed_results(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["reports.py", "-o", str(tmp_path), "--dataset", "mnist"])
    reports.main()
    report = (tmp_path / "mnist" / "report.html").read_text(encoding="utf-8")
    assert "optimal, ε" in report
    assert report.count("<svg") > 5


# The frontier


@pytest.fixture(scope="module")
def rows():
    return comparison.read(RESULTS / "defenses")


def test_the_page_of_the_frontier_shows_what_was_measured(rows):
    assert generated(page) == page.section(rows)
    for dataset in {row.dataset for row in rows}:
        drawn = comparison.figure(rows, dataset)
        assert (RESULTS / "defenses" / f"{dataset}.svg").read_text(encoding="utf-8") == drawn
        assert (ROOT / "docs" / page.picture(dataset)).read_text(encoding="utf-8") == drawn


def test_the_tables_of_the_frontier_are_made_from_its_rows(rows):
    said = (RESULTS / "defenses" / "tables.md").read_text(encoding="utf-8")
    command = said.partition("Made by `")[2].partition("`")[0]
    assert said == comparison.markdown(rows, command)


def test_every_way_to_train_has_its_rows_and_the_page_names_those_that_were_not_run(rows):
    text = page.PAGE.read_text(encoding="utf-8")
    for dataset in {row.dataset for row in rows}:
        there = {row.recipe for row in rows if row.dataset == dataset}
        named = text.partition(f"- Not run on {tables.NAMES[dataset]}:")[2].partition("\n")[0]
        assert set(re.findall(r"`(\w+)`", named)) == set(RECIPES) - there
        assert {training.PLAIN, "dp_sgd"} <= there
        # the fitted veil is another one today than when these rows were made
        assert {
            (row.recipe, row.setting) for row in rows if row.dataset == dataset if "optimal" not in row.defense
        } == {
            *((recipe, setting) for recipe in there for setting in (UNDEFENDED, LABEL)),
            *((training.PLAIN, setting) for setting in training.AFTERWARDS if setting[0] != VEIL),
        }


def test_what_is_private_promises_8(rows):
    promised = {row.recipe: row.promised_epsilon for row in rows}
    assert {name for name, epsilon in promised.items() if epsilon is not None} == {
        *("dp_inputs", "dp_loss", "dp_sgd", "dp_weights", "pate"),
    }
    assert all(7.9 < epsilon <= 8 for epsilon in promised.values() if epsilon is not None)


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_result_says_how_it_was_made(results, folder):
    for study in results[folder].values():
        assert {"command", "date", "records", "plan", "sha256", "versions", "machine"} <= set(study.meta)
        assert study.meta["records"]["members"] == study.meta["records"]["nonmembers"] == 10_000
        assert study.originals


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_profile_runs_the_attacks_that_its_results_were_made_with(results, folder):
    for study in results[folder].values():
        assert {r.attack for r in study.results} - set(COMPARISONS) == set(PROFILES[folder].attacks) == set(ATTACKS)


def test_the_optimal_veil_keeps_near_the_floor_and_its_confidence_is_worth_more_than_the_label(results):
    for study in results["standard"].values():
        costs = {d.setting: d for d in study.defenses}
        for epsilon in (1.0, 2.0, 4.0, 8.0):
            for knows in (False, True):
                attacked = tables.on_scores(study, ("optimal", epsilon), knows)
                assert attacked.auc < max(0.5, tables.floor(study, "label", knows).auc) + 0.05
            veiled, label = costs["optimal", epsilon], costs["label_constant", None]
            assert veiled.auroc_of_confidence > 0.54
            assert veiled.nll < label.nll + 0.001  # on MNIST at ε = 1 it is worth the same
            assert veiled.ece < 0.015


def test_the_page_says_what_lira_and_rmia_found(results):
    said = PAGE.read_text(encoding="utf-8").partition("**LiRA and RMIA**")[2].partition("\n\n")[0]
    found = {(r.defense, r.epsilon, r.attack, r.reads): r for r in results["standard"]["cifar10"].results}
    for defense, epsilon, reads in (
        ("none", None, "scores"),
        ("published", 0.1, "scores"),
        ("none", None, "label"),
    ):
        for attack in ("lira_online", "rmia_online"):
            result = found[defense, epsilon, attack, reads]
            assert number(result.auc, 3) in said
            if (defense, reads) == ("none", "scores"):
                assert number(100 * result.tpr_at_1pct, 1) in said
