"""The committed results are what the tables and the page say."""

from pathlib import Path

import pytest

from scoreveil.audit.paper import tables
from scoreveil.audit.paper.experiments import DATASETS
from scoreveil.audit.report.wording import number
from scoreveil.audit.study.results import from_json

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "standard"
PAGE = ROOT / "docs" / "reproduction.md"


@pytest.fixture(scope="module")
def studies():
    there = [name for name in DATASETS if (RESULTS / name / "results.json").exists()]
    return {name: from_json((RESULTS / name / "results.json").read_text(encoding="utf-8")) for name in there}


def test_the_tables_are_made_from_the_results(studies):
    (command,) = {study.meta["command"] for study in studies.values()}
    assert (RESULTS / "tables.md").read_text(encoding="utf-8") == tables.markdown(studies, command)


def test_the_page_shows_what_was_measured(studies):
    shown = PAGE.read_text(encoding="utf-8").split("<!-- claims")[1].split("-->\n", 1)[1].split("<!-- end of claims")[0]
    assert shown.strip() == tables.claims(studies)


def test_each_result_says_how_it_was_made(studies):
    for study in studies.values():
        assert {"command", "date", "records", "plan", "sha256", "versions", "machine"} <= set(study.meta)
        assert study.meta["records"]["members"] == study.meta["records"]["nonmembers"] == 10_000
        assert study.originals


def test_the_isotonic_veil_holds_and_its_misses_are_small(studies):
    """At ε = 0.5 the best attack stays at the floor; at ε = 2 within .03 of it, on every dataset."""
    for study in studies.values():
        for claim in tables.claims_of(study):
            if claim.what.startswith("isotonic") and ("ε = 0.5" in claim.what or "inversion" in claim.what):
                assert claim.met, claim
        for defense, reads in (("isotonic_reference", "label"), ("isotonic_all_reference", "ranking")):
            for knows in (False, True):
                attacked = tables.on_scores(study, (defense, 2.0), knows)
                assert attacked.auc < max(0.5, tables.floor(study, reads, knows).auc) + 0.03


def test_the_page_says_what_lira_and_rmia_found(studies):
    said = PAGE.read_text(encoding="utf-8").partition("**LiRA and RMIA**")[2].partition("\n\n")[0]
    found = {(r.defense, r.epsilon, r.attack, r.reads): r for r in studies["cifar10"].results}
    for defense, epsilon, reads in (
        ("none", None, "scores"),
        ("published", 0.1, "scores"),
        ("isotonic_reference", 2.0, "scores"),
        ("none", None, "label"),
    ):
        for attack in ("lira_online", "rmia_online"):
            result = found[defense, epsilon, attack, reads]
            assert number(result.auc, 3) in said
            if (defense, reads) == ("none", "scores"):
                assert number(100 * result.tpr_at_1pct, 1) in said
