"""The page of `scoreveil fit --report`: its numbers are those of the fit, and it can be read on any screen."""

import json
import re

import numpy as np
import pytest

from channel_tools import Population, make_channel
from scoreveil import Veil
from scoreveil.accounting import advantage_after
from scoreveil.audit.report import fitted
from scoreveil.fitting.cost import LEAST_OF_GROUP, reliability
from scoreveil.fitting.frontier import Trial, fit_and_measure, frontier, smallest_better

POPULATION = Population(classes=3)


def given(count: int = 400) -> dict:
    rng = np.random.default_rng(2)
    (others, y_out), (members, y_in) = POPULATION.draw(0, count, rng), POPULATION.draw(1, count, rng)
    return {"nonmembers": others, "nonmember_labels": y_out, "members": members, "member_labels": y_in}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A veil, its trials, and the folder of its report."""
    records = {**given(), "advantage": 0.1}
    veil, own = fit_and_measure(4.0, **records)
    trials = (*frontier((0.5,), **records), own)
    folder = tmp_path_factory.mktemp("fitted")
    fitted.write(veil, trials, "veil.npz", folder)
    return veil, trials, folder


def test_the_page_says_what_is_promised_and_what_it_costs(made):
    veil, trials, folder = made
    page = (folder / "report.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert "within a factor e^4 of each other" in page
    for measure in trials[1].cost.nll.values():
        assert f"{measure.value:.3f}".removeprefix("0") in page
    assert f"{advantage_after(veil.guarantee, 10):.3f}".removeprefix("0") in page
    for words in ("raw, temperature scaled", "scoreveil verify veil.npz", "this veil", "Reliability"):
        assert words in page
    for confidence in veil.mechanism.announced[:, 0]:
        assert f'scope="col">{confidence:.3f}'.replace(">0.", ">.") in page
    assert page.count('<th scope="row">') == len(veil.mechanism.table)


def test_the_json_has_the_same_numbers(made):
    veil, trials, folder = made
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert found["promise"]["advantage"] == veil.guarantee.advantage == found["after"]["1"]
    assert [each["epsilon"] for each in found["cost"]] == [0.5, 4.0]
    assert found["cost"][1]["cost"]["useful"]["veiled"]["value"] == trials[1].cost.useful["veiled"].value
    assert np.array_equal(np.array(found["table"]["chances"]) * 2**32, veil.mechanism.table)


def test_no_score_of_a_record_is_in_it(made):
    _, _, folder = made
    records = given()
    texts = [path.read_text(encoding="utf-8") for path in folder.iterdir()]
    numbers = {float(each) for text in texts for each in re.findall(r"\d*\.\d{4,}", text)}
    scores = np.concatenate([records["nonmembers"], records["members"]]).ravel()
    near = np.sort(scores)
    for value in numbers:
        at = np.searchsorted(near, value)
        closest = np.abs(near[max(0, at - 1) : at + 1] - value).min()
        assert closest > 1e-12


def test_groups_of_like_confidence_hold_many_records_each_and_all_together():
    rng = np.random.default_rng(0)
    confidence = rng.random(415)
    right = rng.random(415) < confidence
    groups = reliability(confidence, right)
    assert sum(group.records for group in groups) == 415
    assert min(group.records for group in groups) >= LEAST_OF_GROUP
    assert [group.announced for group in groups] == sorted(group.announced for group in groups)
    assert sum(group.records * group.right.value for group in groups) == pytest.approx(right.sum())
    inside = [group.right.low <= group.announced <= group.right.high for group in groups]
    assert sum(inside) >= len(groups) - 2
    assert len(reliability(confidence[:5], right[:5])) == 1


def test_without_labels_it_says_what_is_missing(tmp_path):
    records = {"nonmembers": given()["nonmembers"]}
    veil, own = fit_and_measure(4.0, **records)
    page = fitted.write(veil, [own], "veil.npz", tmp_path).read_text(encoding="utf-8")
    assert "--nonmember-labels" in page
    assert "for want of labels" in page
    assert "Reliability" not in page
    assert json.loads((tmp_path / "results.json").read_text())["cost"][0]["cost"] is None


def test_names_are_escaped(tmp_path):
    veil = Veil(make_channel(), model="<b>name</b>")
    page = fitted.html(veil, [Trial(2.0, veil.guarantee, None)], "<i>.npz")
    assert "<b>name" not in page
    assert "<i>.npz" not in page
    assert "&lt;b&gt;name" in page


def test_only_a_fitted_veil_has_such_a_page():
    veil = Veil(2.0)
    with pytest.raises(ValueError, match="Expected a fitted veil, got one of the isotonic"):
        fitted.html(veil, [Trial(2.0, veil.guarantee, None)], "veil.npz")


def test_the_smallest_better_epsilon_is_none_without_costs(made):
    veil, trials, _ = made
    assert smallest_better([Trial(2.0, veil.guarantee, None)]) is None
    better = [trial.epsilon for trial in trials if trial.cost.beats_label]
    assert smallest_better(trials) == (min(better) if better else None)


# In a browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_it_opens_without_errors_requests_or_sideways_scrolling(browser, made, scheme, width):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if not request.url.startswith("file:") else None)
    page.goto((made[2] / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 18, 22)"
    assert dark == (scheme == "dark")
    shares = page.locator(".heat td").evaluate_all("cells => cells.map(c => getComputedStyle(c).backgroundColor)")
    assert len(set(shares)) > 1
    assert problems == []
    context.close()
