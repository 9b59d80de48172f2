"""What the page says of others' tools is what was measured, and the goal is met."""

import json

import pytest

from experiments.peers import __main__ as peers


@pytest.fixture(scope="module")
def results():
    return json.loads(peers.RESULTS.read_text(encoding="utf-8"))


def test_the_page_shows_what_was_measured(results):
    page = peers.PAGE.read_text(encoding="utf-8")
    assert page.partition(peers.START)[2].partition(peers.END)[0].strip() == peers.table(results)


def test_our_best_attack_is_within_a_hundredth_of_theirs_or_above(results):
    rows = [row for found in results["models"] for row in peers.compared(found)]
    assert {row["tool"] for row in rows} == set(peers.GIVEN)
    for row in rows:
        assert row["ours"]["auc"] >= row["theirs"]["auc"] - peers.MARGIN, row


def test_every_attack_of_theirs_ran_and_the_same_one_of_ours_agrees(results):
    """LeakPro's LiRA and ours differ only in how the one variance for all records is pooled."""
    for found in results["models"]:
        assert not [row for row in found["theirs"] if "reason" in row]
        ours = {row["attack"]: row["auc"] for row in found["ours"]}
        theirs = {row["attack"]: row["auc"] for row in found["theirs"] if row["tool"] == "LeakPro"}
        assert ours["lira_online"] == pytest.approx(theirs["LiRA, online"], abs=0.01)
        assert ours["lira_offline"] == pytest.approx(theirs["LiRA, offline"], abs=0.01)


def test_a_model_takes_the_place_of_its_former_rows(results, tmp_path, monkeypatch):
    page, file = tmp_path / "page.md", tmp_path / "peers.json"
    page.write_text(f"before\n{peers.START}\nold\n{peers.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(peers, "RESULTS", file)
    monkeypatch.setattr(peers, "PAGE", page)
    for found in (*results["models"], results["models"][0]):
        peers.write(found)
    assert json.loads(file.read_text(encoding="utf-8")) == results
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith(f"{peers.END}\nafter\n")
    assert peers.table(results) in text
