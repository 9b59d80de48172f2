"""The committed results are what the tables and the page say."""

from pathlib import Path

import pytest

from scoreveil.audit import tables
from scoreveil.audit.reproduce import DATASETS
from scoreveil.audit.results import from_json

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


def test_every_claim_of_the_isotonic_veil_but_distortion_is_met(studies):
    """What the README promises of it; where purification distorts less, the page says so."""
    for study in studies.values():
        for claim in tables.claims_of(study):
            if claim.what.startswith("isotonic") and "distortion" not in claim.what:
                assert claim.met, claim
