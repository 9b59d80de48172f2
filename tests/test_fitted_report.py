"""The page of `scoreveil fit --report`: its numbers are those of the fit, and it can be read on any screen."""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

from scoreveil import Veil
from scoreveil.audit.report import fitted
from scoreveil.audit.report.charts import regions as chart
from scoreveil.fitting.frontier import fit_and_measure, frontier
from scoreveil.fitting.metrics import MIN_GROUP, reliability


def draw(lead: float, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Scores and labels of a model that is the surer the larger the lead."""
    labels = rng.integers(0, 3, count)
    logits = 1.5 * rng.normal(size=(count, 3))
    logits[np.arange(count), labels] += 2 + lead
    scores = np.exp(logits)
    return scores / scores.sum(axis=1, keepdims=True), labels


def given(count: int = 500) -> dict:
    rng = np.random.default_rng(2)
    (others, y_out), (members, y_in) = draw(0.0, count, rng), draw(1.0, count, rng)
    return {"nonmembers": others, "nonmember_labels": y_out, "members": members, "member_labels": y_in}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A veil with ε, its trials, and the folder of its report."""
    records = {**given(), "advantage": 0.1}
    veil, own = fit_and_measure(4.0, **records)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # with a small ε, and few records, an answer may tell the label alone
        trials = (*frontier((None,), **records), own, *frontier((0.5,), **records))
    folder = tmp_path_factory.mktemp("fitted")
    fitted.write(veil, trials, "veil.json", folder)
    return veil, trials, folder


def read_page(folder) -> str:
    return (folder / "report.html").read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_leads_with_the_regions(made):
    veil, _, folder = made
    page = read_page(folder)
    places = [page.index(f'<section id="{name}"') for name in ("regions", "promise", "cost", "reliability", "frontier")]
    assert places == sorted(places)
    rows = veil.mechanism.rows()
    assert f"<h1>A veil of {len(rows)} regions and ε = 4</h1>" in page
    part = page[places[0] : places[1]]
    for row in rows:
        assert f"<td>{row.words}</td>" in part
        assert ("–" if np.isnan(row.right) else f"{row.right:.3f}".removeprefix("0")) in part
        assert f"{row.announced[0]:.3f}".removeprefix("0") in part
    assert part.count('class="chart ') == 2, "a wide drawing and a narrow one"
    assert "How often a region announces each confidence" in part


def test_the_page_says_what_is_promised_and_what_it_costs(made):
    veil, trials, folder = made
    page = read_page(folder)
    assert "by a factor of at most e^4 beyond the label" in page
    assert f"<b>{veil.guarantee.advantage_alone:.3f}".replace(">0.", ">.") in page
    assert "holds however often a record is asked about" in page
    assert "Asked again" not in page
    for measure in trials[1].cost.nll.values():
        assert f"{measure.value:.3f}".removeprefix("0") in page
    for words in ("raw, temperature scaled", "scoreveil verify veil.json", "this veil", "Reliability", "without ε"):
        assert words in page


def test_the_json_has_the_same_numbers(made):
    veil, trials, folder = made
    text = (folder / "results.json").read_text(encoding="utf-8")
    assert "Infinity" not in text
    assert "NaN" not in text
    found = json.loads(text)
    assert found["promise"]["advantage_alone"] == veil.guarantee.advantage_alone
    assert [each["epsilon"] for each in found["cost"]] == [None, 4.0, 0.5]
    assert found["cost"][1]["cost"]["useful"]["veiled"]["value"] == trials[1].cost.useful["veiled"].value
    rows = found["regions"][0]["rows"]
    assert np.array_equal(np.array([row["answers"] for row in rows]) * 2**32, veil.mechanism.table)
    assert [row["others"] for row in rows] == [row.others for row in veil.mechanism.rows()]


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
    assert min(group.records for group in groups) >= MIN_GROUP
    assert [group.announced for group in groups] == sorted(group.announced for group in groups)
    assert sum(group.records * group.right.value for group in groups) == pytest.approx(right.sum())
    inside = [group.right.low <= group.announced <= group.right.high for group in groups]
    assert sum(inside) >= len(groups) - 2
    assert len(reliability(confidence[:5], right[:5])) == 1


def test_without_labels_it_says_what_is_missing(tmp_path):
    records = {name: given()[name] for name in ("nonmembers", "members")}
    veil, own = fit_and_measure(None, **records)
    page = fitted.write(veil, [own], "veil.json", tmp_path).read_text(encoding="utf-8")
    assert "--nonmember-labels" in page
    assert "for want of labels" in page
    assert "Reliability" not in page
    assert json.loads((tmp_path / "results.json").read_text())["cost"][0]["cost"] is None


def test_a_veil_that_announces_a_constant_says_so_and_is_not_recommended(tmp_path):
    records = {name: given()[name] for name in ("nonmembers", "members")}
    with pytest.warns(UserWarning, match="same confidence for every answer"):
        veil, own = fit_and_measure(None, **records, regions=1)
    page = fitted.html(veil, [own], "veil.json")
    assert "This veil announces the same confidence for every answer" in page
    assert "scoreveil verify veil.json" in page
    assert "scoreveil protect" not in page


def test_names_are_escaped(made):
    veil = Veil(made[0].mechanism, model="<b>name</b>")
    page = fitted.html(veil, [replace(made[1][1], guarantee=veil.guarantee, cost=None)], "<i>.json")
    assert "<b>name" not in page
    assert "<i>.json" not in page
    assert "&lt;b&gt;name" in page


def test_only_a_fitted_veil_has_such_a_page(made):
    veil = Veil(2.0)
    with pytest.raises(ValueError, match="Expected a fitted veil, got one of the isotonic"):
        fitted.html(veil, [replace(made[1][1], epsilon=2.0)], "veil.json")


# The picture


def test_every_piece_of_the_map_is_drawn_in_its_region(made):
    """Read back from the marks: the colour at a score is that of the region that the veil finds there."""
    it = chart.read(made[0])[0]
    drawing, left = chart.sheet(it), chart.left_of(it)
    pieces = [
        mark for mark in drawing.marks
        if isinstance(mark, chart.Line) and mark.tone.startswith("r") and mark.points[0][0] >= left
        and mark.points[1][0] < chart.PLANE
    ]  # fmt: skip
    ends = sorted(point[0] for piece in pieces for point in piece.points)
    assert ends[0] == left
    assert ends[-1] == chart.PLANE - 14
    ticks = {m.text: m.at[0] for m in drawing.marks if isinstance(m, chart.Text) and m.anchor == "middle"}
    for tick in (".5", ".9", ".99"):
        score = float(tick)
        row = np.array([[score, (1 - score) * 0.6, (1 - score) * 0.4]])
        _, region = it.mechanism.read(row)
        there = [piece.tone for piece in pieces if piece.points[0][0] <= ticks[tick] + 0.01 < piece.points[1][0]]
        assert chart.tone(it, int(region[0])) in there


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
    shown = "wide" if width > 600 else "narrow"
    assert page.locator(f"#regions .chart.{shown}").is_visible()
    pieces = page.locator(f"#regions .chart.{shown} polyline[class*='t-r']")
    colours = pieces.evaluate_all("all => all.map(each => getComputedStyle(each).stroke)")
    assert len(set(colours)) == made[0].mechanism.size
    assert problems == []
    context.close()
