"""The report: what it says follows from the study, it opens offline at any width, and no name in it can do anything."""

import io
import json
import re
import shutil
import sys
import unicodedata
from dataclasses import fields, replace
from html.parser import HTMLParser
from itertools import product
from statistics import NormalDist

import numpy as np
import pypdf
import pytest

from scoreveil.audit.report import figures, pdf
from scoreveil.audit.report import page as report
from scoreveil.audit.report.charts.bars import Bar, Column, Row, bars
from scoreveil.audit.report.charts.marks import Line, Text
from scoreveil.audit.report.charts.panel import NARROW, WIDE, Axis, Frame, lay_out
from scoreveil.audit.report.charts.svg import svg
from scoreveil.audit.report.gate import gate, parse_limit
from scoreveil.audit.report.sentences import sentences
from scoreveil.audit.report.table import Table, TableCell, compact
from scoreveil.audit.report.wording import interval, number, percent, seconds
from scoreveil.audit.study.metrics import auc
from scoreveil.audit.study.results import (
    CHANCE,
    UNDEFENDED,
    Study,
    best,
    floor,
    from_json,
    shared,
    to_json,
)
from scoreveil.audit.verdict import LABEL, excess, leaks, verdict
from scoreveil.fitting import fit
from scoreveil.fitting.decision import LEAKS, MARGIN, NO_MORE, UNDECIDED, Advice, Bounded, Excess
from synthetic_study import attack_result, evidence_of, make_study

pytestmark = pytest.mark.slow

SECTIONS = ("verdict", "words", "worth", "leaks", "reconstructions", "tables", "made")
HOSTILE = '</script><img src=x onerror="alert(1)">&"\' $x_y$ {{ 7*7 }}'
VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """Reads a page, insisting that every element is closed in its turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.cells, self.sentences, self.addresses, self.handlers = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [v for k, v in attributes if k in ("src", "href", "xlink:href", "action", "srcset") and v]
        self.addresses += [v for k, v in attributes if k == "style" and "url(" in v]
        self.handlers += [k for k, _ in attributes if k.startswith("on")]
        self.cells += [""] * (tag == "td")
        self.sentences += [""] * (tag in ("li", "p", "h2"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "td" in self.open:
            self.cells[-1] += f" {data}"
        if {"li", "p", "h2"} & set(self.open):
            self.sentences[-1] += data.replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture(scope="module")
def study():
    return make_study()


@pytest.fixture(scope="module")
def text(study):
    return report.html(study, verdict(study))


# What the page is


def test_the_page_is_well_formed_and_asks_for_nothing_from_outside(text):
    page = Page(text)
    assert page.tags.count("h1") == 1
    assert all(a.startswith(("data:", "#")) for a in page.addresses)
    assert not re.search(r"@import|(https?:)?//[a-z]", text)


def values(rows):
    found = (getattr(row, f.name) for row in rows for f in fields(row) if f.name not in ("roc", "pictures"))
    return {v for v in found if isinstance(v, float) and not isinstance(v, bool)}


def test_every_number_in_tables_and_sentences_comes_from_the_study(study, text):
    measured = values(study.results) | values(study.defenses) | values(study.inversions) | values(study.beside)
    above = {leak.excess for one in figures.settings(study) for leak in leaks(study, one)}
    shown = [excess(leaks(study, one)) for one in (UNDEFENDED, verdict(study).recommended)]
    own = verdict(study).evidence
    shown += [own.leak, own.veiled, own.worth]
    derived = above | {MARGIN, CHANCE} | {v for found in shown for v in (found.value, found.low, found.high)}
    written = {form(v) for v in measured for form in (number, percent, seconds, "{:g}".format)}
    written |= {number(v, digits) for v in measured | derived for digits in (2, 3)}
    allowed = {n for w in written for n in re.findall(r"[\d.]+", w)}
    names = {n for d in study.defenses for n in re.findall(r"\d+", d.defense)}
    page = Page(text)
    assert len(page.cells) > 5000
    for cell in page.cells:
        assert set(re.findall(r"\.?\d[\d.]*", cell)) <= allowed | names, cell
    promised = {"7.39", "1", "95"}  # e^ε, 1 % false alarms, and 95 %
    for sentence in sentences(verdict(study)):
        assert sentence in page.sentences
        assert {n.rstrip(".") for n in re.findall(r"\.?\d[\d.]*", sentence)} <= allowed | promised, sentence


def test_hostile_names_stay_text(study):
    first, *others = study.results
    hostile = replace(first, attack=HOSTILE, auc=0.99, features=HOSTILE)
    also = tuple(replace(r, defense=HOSTILE) if r.defense == "memguard" else r for r in others)
    costs = tuple(replace(d, defense=HOSTILE) if d.defense == "memguard" else d for d in study.defenses)
    meta = {**study.meta, "title": HOSTILE, "command": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}}
    inversions = tuple(replace(i, features=HOSTILE) for i in study.inversions)
    bad = replace(study, results=(hostile, *also), defenses=costs, meta=meta, inversions=inversions, notes=(HOSTILE,))
    page = Page(report.html(bad, verdict(bad)))
    assert page.tags.count("script") == 1
    assert page.handlers == []
    assert all(a.startswith(("data:", "#")) for a in page.addresses)
    assert any(HOSTILE in s for s in page.sentences)
    for sheet in figures.sheets(bad, verdict(bad)).values():
        assert "<img" not in svg(sheet, alone=True)


def test_pictures_that_are_no_png_are_refused(study):
    tracked = replace(study, originals=("https://example.org/pixel.png",))
    with pytest.raises(ValueError, match=r"Expected pictures as PNG or WebP data URIs, got 'https://example.org"):
        report.html(tracked, verdict(tracked))


def test_a_study_without_labels_epsilons_and_pictures_has_a_report_too(study):
    few = tuple(r for r in study.results if r.defense == "none" and not r.knows_label and r.reads == "scores")
    small = replace(study, results=few, defenses=(), inversions=(), originals=(), notes=(), meta={})
    said = verdict(small)
    page = report.html(small, said)
    Page(page)
    assert "What leaks, over ε" not in page
    assert said.floors == ()
    assert any("chance (AUC .50) stands in" in each for each in sentences(said))


# The verdict


def test_of_several_epsilons_the_largest_whose_veil_is_not_shown_to_leak_is_recommended(study):
    said = verdict(study)
    assert said.excess.outcome == LEAKS
    assert said.advice is Advice.TAKE_VEIL
    assert said.recommended == ("regions", 2.0)
    assert excess(leaks(study, ("regions", 2.0))).outcome == NO_MORE
    assert excess(leaks(study, ("regions", 4.0))).outcome == LEAKS
    assert said.undefended.auc == 0.83
    assert [f.auc for f in said.floors] == [0.503, 0.692]
    assert sentences(said)[0] == "Take the fitted veil with ε = 2."
    words = " ".join(sentences(said))
    assert "the best attack (random forest on log-ratios) tells members from non-members with AUC .80" in words
    assert "Behind the fitted veil with ε = 2 the best attack reaches AUC .51" in words


def test_no_epsilon_is_one_of_the_settings(study):
    """A veil without ε is taken before any with one, unless it is constant or leaks."""
    rows = tuple(replace(r, epsilon=None) for r in study.results if r.setting == ("regions", 2.0))
    plain = replace(study.costs["regions", 2.0], epsilon=None, nll=0.1)
    own = evidence_of(plain)
    both = replace(
        study,
        results=study.results + rows,
        defenses=(*study.defenses, plain),
        evidence=(*study.evidence, own),
    )
    said = verdict(both)
    assert said.recommended == ("regions", None)
    assert sentences(said)[0] == "Take the fitted veil."
    assert any("takes an ε" in each for each in sentences(said))
    Page(report.html(both, said))
    constant = replace(both, evidence=(*study.evidence, replace(own, confidences=1)))
    assert verdict(constant).recommended == ("regions", 2.0)


def test_the_worth_of_the_confidence_stands_beside_calibration_and_beside_the_label(study):
    ways = (("none", None), ("temperature_scaled", None), ("regions", 2.0), LABEL)
    said, page = " ".join(sentences(verdict(study))), report.html(study, verdict(study))
    named = ("undefended", "after temperature scaling", "fitted veil, ε = 2", "label alone")
    for field in ("auroc_of_confidence", "nll", "ece"):
        written = (number(getattr(study.costs[way], field), 3) for way in ways)
        assert ", ".join(f"{v} ({name})" for v, name in zip(written, named, strict=True)) in said
    for field in ("auroc_of_confidence", "aurc", "nll", "brier", "ece"):
        cells = (f">{number(getattr(study.costs[way], field), 3)}</td>" for way in ways)
        assert re.search(".*".join(map(re.escape, cells)), page)


def written(sheet):
    return [mark.text for mark in sheet.marks if isinstance(mark, Text)]


def test_where_no_confidence_tells_anything_the_axes_still_have_a_length(study):
    worthless = replace(study, defenses=tuple(replace(d, auroc_of_confidence=0.5) for d in study.defenses))
    Page(report.html(worthless, verdict(worthless)))


def test_the_first_screen_is_a_word_what_to_do_and_one_chart(study):
    said = verdict(study)
    assert report.advice(study, said) == "Take the fitted veil with ε = 2."
    for sheet in figures.glance(study, said):
        shown = written(sheet)
        assert {"raw scores", "fitted veil, ε = 2", "label alone"} <= set(shown)
        assert {".80", ".51", ".50", ".79", ".53"} <= set(shown)
    calm, small = quiet(40_000), quiet(400, 0.53)
    assert report.advice(calm, verdict(calm)).startswith("No fitted veil was studied")
    assert "What is left" not in written(figures.glance(calm, verdict(calm))[0]), "no labels were given"
    assert "times as many (" in report.advice(small, verdict(small))
    for one, word, tone in ((study, "Leaks", "bad"), (calm, "No leak found", "good"), (small, "Undecided", "open")):
        page = report.html(one, verdict(one))
        assert f'<p class="status {tone}">{word}</p>' in page
        assert Page(page).tags.count("svg") == page.count("<svg")
        first = page.partition('<section id="words">')[0].partition('<section id="verdict">')[2]
        assert first.count("<svg") == 2, "one chart, drawn wide and narrow"


def test_bars_end_where_their_axis_says(study):
    """An axis starts at guessing, and a bar of .75 ends in its middle."""
    column, row = Column("Title", "words", ("guessing", "certainty")), Row("name", "c0", (Bar(0.75),))
    for narrow in (False, True):
        marks = bars("A title", [column], [row], narrow).marks
        start, end = (next(m for m in marks if isinstance(m, Text) and m.text == tick) for tick in (".50", "1.00"))
        assert (start.anchor, end.anchor) == ("start", "end")
        assert {m.at[0] for m in marks if isinstance(m, Text) and m.text == "guessing"} == {start.at[0]}
        assert {m.at[0] for m in marks if isinstance(m, Text) and m.text == "certainty"} == {end.at[0]}
        (bar,) = (m for m in marks if isinstance(m, Line) and m.tone == "c0")
        assert bar.points[0][0] == start.at[0]
        assert bar.points[1][0] == pytest.approx((start.at[0] + end.at[0]) / 2)


def test_what_was_left_out_is_said_at_the_end_and_what_is_wrong_with_the_records_at_the_start(study):
    notes = ("Left out to save time: MemGuard.", "Members and non-members are the same records.")
    page = report.html(replace(study, notes=notes), verdict(study))
    assert page.index(notes[1]) < page.index('<section id="words">')
    assert page.index(notes[0]) > page.index('<section id="made">')


def test_the_regions_of_the_veil_to_take_stand_in_the_report(study):
    rng = np.random.default_rng(0)
    others, members = rng.dirichlet([0.3] * 3, 500), rng.dirichlet([0.2] * 3, 500)
    veil = fit(nonmembers=others, members=members, rng=rng)
    page = report.html(study, verdict(study), veil=veil)
    part = page.partition('<section id="regions">')[2].partition("</section>")[0]
    assert part.count("<tr>") == 1 + len(veil.mechanism.rows())
    assert all(f"{row.announced[0]:.3f}".removeprefix("0") in part for row in veil.mechanism.rows())
    assert 'id="regions"' not in report.html(study, verdict(study))


def test_columns_that_say_nothing_or_the_same_in_every_row_are_left_out():
    def row(*texts):
        return tuple(TableCell(text, text) for text in texts)

    columns = tuple((name, "") for name in ("defense", "AUC", "TPR", "keeps label"))
    rows = tuple(row(name, auc, "–", "yes") for name, auc in (("a", ".6"), ("b", ".7"), ("c", ".7")))
    found = compact(Table("A table", columns, rows, groups=(("", 1), ("attacks", 2), ("costs", 1))))
    assert [name for name, _ in found.columns] == ["defense", "AUC"]
    assert found.groups == (("", 1), ("attacks", 1))
    assert found.same == (("keeps label", "yes"),)
    assert len(compact(Table("Two rows", columns, rows[:2])).columns) == 3


def test_where_the_label_is_as_good_it_says_publish_labels(study):
    no_better = replace(study, evidence=tuple(replace(one, worth=Bounded(0.0, -0.01, 0.01)) for one in study.evidence))
    said = verdict(no_better)
    assert (said.advice, said.recommended) == (Advice.LABELS_ONLY, LABEL)
    assert sentences(said)[0].startswith("Publish labels only: ")
    Page(report.html(no_better, said))
    constant = verdict(replace(study, evidence=tuple(replace(one, confidences=1) for one in study.evidence)))
    assert constant.recommended == LABEL
    assert "announces one confidence for every answer" in sentences(constant)[0]


def test_where_every_veil_leaks_it_says_publish_labels():
    leaky = make_study(leak=40.0, epsilons=(1.0, 4.0))
    said = verdict(leaky)
    assert said.recommended == LABEL
    assert "Publish labels only: the fitted veil with ε = 4 still leaks" in sentences(said)[0]
    assert "Recommended" not in report.html(leaky, said)


def test_without_labels_nothing_is_said_about_worth(study):
    said = verdict(replace(study, evidence=tuple(replace(one, worth=None) for one in study.evidence)))
    assert (said.advice, said.recommended) == (Advice.GIVE_LABELS, None)
    assert not [each for each in sentences(said) if "log-loss" in each.lower() or "AUROC" in each]


def test_a_leak_that_only_an_attack_of_the_audit_finds_counts(study):
    none = replace(study, evidence=tuple(replace(one, leak=Excess(0.0, -0.01, 0.01)) for one in study.evidence))
    assert verdict(none).recommended == ("regions", 2.0)
    quiet_attacks = replace(
        none, results=tuple(replace(r, auc=0.5, auc_low=0.49, auc_high=0.51) for r in study.results)
    )
    assert verdict(quiet_attacks).advice is Advice.RAW_SCORES


def everywhere(study, name, aucs, **more):
    """An attack on every setting, which reaches these AUCs on some and nothing on the others."""
    return tuple(attack_result(*one, name, aucs.get(one, 0.5), **more) for one in figures.settings(study))


def test_an_attacker_who_knows_the_label_can_rule_a_setting_out(study):
    worse = everywhere(study, "lira_known", {("regions", 2.0): 0.75}, knows_label=True)
    assert verdict(replace(study, results=study.results + worse)).recommended == ("regions", 1.0)


@pytest.mark.parametrize("form", ["averaging", "adaptive", "paper"])
def test_every_form_of_attack_counts(study, form):
    worse = attack_result("regions", 2.0, "entropy", 0.61, form=form)
    assert verdict(replace(study, results=(*study.results, worse))).recommended == ("regions", 1.0)


def test_an_attack_that_is_given_labels_alone_raises_the_floor_of_its_own_form(study):
    """LiRA finds much in a label; on a veil it is judged by what it finds beyond that."""
    aucs = {("none", None): 0.9, ("regions", 2.0): 0.75}
    lira = everywhere(study, "lira_online", aucs, knows_label=True)
    label = attack_result("none", None, "lira_online", 0.75, reads="label", knows_label=True)
    assert verdict(replace(study, results=study.results + lira)).recommended == ("regions", 1.0)
    assert verdict(replace(study, results=(*study.results, *lira, label))).recommended == ("regions", 2.0)


def test_without_a_fitted_veil_there_is_no_advice(study):
    others = replace(study, results=tuple(r for r in study.results if r.defense != "regions"), evidence=())
    said = verdict(others)
    assert (said.excess.outcome, said.advice, said.recommended) == (LEAKS, None, None)
    assert any("No fitted veil was studied" in each for each in sentences(said))


def quiet(n, auc=0.5):
    """A study of scores that give away what the label does."""
    rows = [
        row
        for setting in (("none", None), ("regions", 0.0001))
        for row in (
            attack_result(*setting, "entropy", auc, n),
            attack_result(*setting, "label_floor", 0.5, n, reads="label"),
        )
    ]
    return Study({"records": {"members": n, "nonmembers": n}}, tuple(rows), ())


def test_nothing_is_recommended_where_nothing_leaks():
    said = verdict(quiet(40_000))
    assert (said.excess.outcome, said.recommended) == (NO_MORE, None)
    assert sentences(said)[0].startswith("The scores leak no more than the label.")
    assert "Take" not in " ".join(sentences(said))


def test_a_small_sample_cannot_tell_and_says_how_many_records_would():
    small = verdict(quiet(400, 0.53))
    assert (small.excess.outcome, small.recommended) == (UNDECIDED, None)
    times = small.excess.times_as_many
    assert f"About {times} times as many ({400 * times:,} members and" in sentences(small)[1]
    assert "smaller ε" not in " ".join(sentences(small))
    for best_attack in (0.5, 0.51, 0.52, 0.53):
        assert verdict(quiet(400 * times, best_attack)).excess.outcome != UNDECIDED


def test_nothing_undefended_is_refused(study):
    with pytest.raises(ValueError, match="Expected attacks on the undefended scores"):
        verdict(replace(study, results=tuple(r for r in study.results if r.defense != "none")))


# The verdict as a statistic


def simulated(rng, n, gain=0.0, gap=0.0, attacks=4):
    """A study of noisy attacks on one confidence; members are `gap` more often right, and surer by `gain`.

    Those that are told the label add to it whether the label is right, so that what the label gives they have too.
    """
    truth = np.arange(2 * n) < n
    right = rng.random(2 * n) < np.where(truth, 0.75 + gap, 0.75)
    confidence = rng.normal(size=2 * n) + gain * truth
    rows = [("label_floor", False, "label", rng.integers(0, 10, 2 * n)), ("label_floor_known", True, "label", right)]
    for i in range(attacks):
        seen = confidence + rng.normal(size=2 * n) * 0.5
        rows += [(f"attack_{i}", False, "scores", seen), (f"attack_{i}_known", True, "scores", seen + 10 * right)]
    results = []
    for name, told, reads, scores in rows:
        value, low, high = auc(truth, scores)
        about = {"reads": reads, "knows_label": told, "auc_low": low, "auc_high": high}
        results.append(attack_result("none", None, name, value, n, **about))
    return Study({}, tuple(results), ())


@pytest.mark.parametrize("gap", [0.0, 0.2])
def test_a_model_that_leaks_nothing_beyond_its_label_is_called_leaking_in_5_percent_of_cases_at_most(gap):
    rng = np.random.default_rng(0)
    studies = [simulated(rng, 200, gap=gap) for _ in range(200)]
    outcomes = [verdict(study).excess.outcome for study in studies]
    assert outcomes.count(LEAKS) <= 10
    if not gap:  # nobody does better than guessing
        shut = [not gate(study, UNDEFENDED, fail_over="auc=0.5")[0].passes for study in studies]
        assert sum(shut) <= 10


def test_a_leak_at_the_margin_is_called_none_in_5_percent_of_cases_at_most():
    rng = np.random.default_rng(1)
    gain = 2**0.5 * 1.25**0.5 * NormalDist().inv_cdf(0.5 + MARGIN)  # AUC = Φ(gain / √2σ), with σ² = 1 + 0.5²
    outcomes = [verdict(simulated(rng, 1000, gain, attacks=2)).excess.outcome for _ in range(200)]
    assert outcomes.count(NO_MORE) <= 10


def test_what_leaks_is_found_and_what_does_not_is_cleared_with_records_enough():
    rng = np.random.default_rng(2)
    assert all(verdict(simulated(rng, 400, gain=1.0)).excess.outcome == LEAKS for _ in range(20))
    assert [verdict(simulated(rng, 30_000)).excess.outcome for _ in range(5)] == [NO_MORE] * 5


# What is compared


def test_settings_are_compared_by_the_attacks_that_were_run_on_all_of_them(study):
    """RMIA on ε = 2 and 8 alone must not put them above ε = 32, which it was not run on."""
    strong = [attack_result("regions", e, "rmia_online", 0.95, knows_label=True) for e in (2.0, 8.0)]
    mixed = replace(study, results=(*study.results, *strong))
    assert verdict(mixed).recommended == verdict(study).recommended == ("regions", 2.0)
    for draw in (figures.frontier, figures.sweeps):
        assert draw(mixed) == draw(study)
    assert figures.roc(mixed, verdict(mixed)) == figures.roc(study, verdict(study))
    best_of = {one: best(shared(mixed), one).auc for one in figures.settings(study)}
    assert best_of["regions", 8.0] < best_of["regions", 32.0]


def test_what_is_left_out_of_the_comparison_is_said(study):
    strong = attack_result("regions", 8.0, "rmia_online", 0.95, knows_label=True)
    mixed = replace(study, results=(*study.results, strong))
    assert "rmia" not in " ".join(figures.compared_by(study)).lower()
    assert figures.compared_by(mixed)[1] == "Left out, since run on some settings only: RMIA."
    said = sentences(verdict(mixed))[-1]
    assert "not every setting was attacked with them: RMIA." in said
    assert "AUC .95 (.95–.95) on fitted veil, ε = 8" in said
    for line in figures.compared_by(mixed):
        assert line in report.html(mixed, verdict(mixed))
        assert all(
            line in svg(sheet, alone=True)
            for name, sheet in figures.sheets(mixed, verdict(mixed)).items()
            if name not in ("reconstructions", "worth")
        )


def test_an_attack_on_all_settings_that_can_be_recommended_counts_for_the_verdict(study):
    """MemGuard is too slow for shadows: that it was left out must not take LiRA out of the verdict."""
    aucs = {("regions", 2.0): 0.75}
    lira = tuple(r for r in everywhere(study, "lira_online", aucs, knows_label=True) if r.defense != "memguard")
    assert verdict(replace(study, results=study.results + lira)).recommended == ("regions", 1.0)


# Floors, and members found at few false alarms


def test_a_floor_is_one_number_wherever_it_stands(study):
    low = replace(study, results=tuple(
        replace(r, auc=0.47, auc_low=0.46, auc_high=0.48) if r.attack == "label_floor" else r for r in study.results
    ))  # fmt: skip
    more = attack_result("none", None, "augmentation", 0.7, reads="label", knows_label=True)
    known = attack_result("none", None, "label_floor_known", 0.69, reads="label", knows_label=True)
    low = replace(low, results=(*low.results, more, known))
    said = verdict(low)
    assert [floor(low, told).auc for told in (False, True)] == [f.auc for f in said.floors] == [0.5, 0.69]
    assert "alone gives AUC .50 (.50–.50) without the true label and AUC .69" in " ".join(sentences(said))
    for panel in figures.frontier(low) + figures.sweeps(low):
        told = "knows the true label" in panel.title
        assert panel.y.limits[0] <= 0.5
        drawn = [level for name, level in panel.floors if name.startswith("label alone")]
        assert drawn in ([], [0.69 if told else 0.5])
    for sheet in figures.glance(low, said):
        assert "AUC of the best attack if the attacker has the scores alone" in " ".join(written(sheet))
        assert {mark.text for mark in sheet.marks if isinstance(mark, Text) and mark.bold} >= {".80", ".50"}


def test_members_found_are_those_of_the_attack_that_is_best_at_that_rate(study):
    early = everywhere(study, "lira", {}, tpr_at_1pct=0.44, tpr_at_1pct_low=0.43, tpr_at_1pct_high=0.45)
    said = verdict(replace(study, results=study.results + early))
    found = "At 1 % false alarms 44 % (43–45 %) of the members are found (by lira on scores)."
    assert any(found in each for each in sentences(said))


def test_members_found_are_left_out_where_there_are_too_few_nonmembers():
    few = make_study(n=900)
    said = verdict(few)
    assert any("takes 1,000 non-members under attack to tell" in each for each in sentences(said))
    page = report.html(few, said)
    assert (
        "TPR at 1 % takes 1,000 and TPR at .1 % takes 10,000 non-members under attack to tell; there were 900" in page
    )
    assert not any("%" in s.name for panel in figures.roc(few, said) for s in panel.series)
    with pytest.raises(ValueError, match="at least 1000 non-members under attack for this limit, got 900"):
        gate(few, UNDEFENDED, fail_over="tpr@1%=0.05")
    enough = make_study(n=1000)
    assert any("At 1 % false alarms" in each for each in sentences(verdict(enough)))
    assert any("%" in s.name for panel in figures.roc(enough, verdict(enough)) for s in panel.series)


def test_roc_curves_show_the_recommended_veil(study):
    for panel in figures.roc(study, verdict(study)):
        assert any(s.name.endswith("fitted veil, ε = 2") and not s.dash for s in panel.series)


# The gate


def test_the_gate_goes_by_the_bounds_of_the_best_attack():
    study = quiet(400, 0.53)
    passes = {
        limit: [g.passes for g in gate(study, UNDEFENDED, fail_over=limit, fail_unless_under=limit)]
        for limit in ("auc=0.45", "auc=0.52", "auc=0.55", "auc=0.6")
    }
    assert passes == {
        "auc=0.45": [False, False],
        "auc=0.52": [True, False],
        "auc=0.55": [True, False],
        "auc=0.6": [True, True],
    }
    (shut,) = gate(study, UNDEFENDED, fail_unless_under="auc=0.55")
    why = "it cannot be ruled out that an attack passes auc=0.55 (best attack .530, 95 % upper bound"
    assert shut.sentence.startswith(f"Gate shut: on no defense {why}")


def test_every_attack_counts_for_the_gate(study):
    assert not gate(study, ("none", None), fail_over="tpr@1%=0.05")[0].passes
    early = attack_result("regions", 2.0, "lira", 0.5, tpr_at_01pct=0.4)
    found = replace(study, results=(*study.results, early))
    assert gate(study, ("regions", 2), fail_over="TPR@0.1% = .3")[0].passes
    assert not gate(found, ("regions", 2), fail_over="TPR@0.1% = .3")[0].passes
    assert not gate(found, ("regions", 2), fail_unless_under="tpr@0.1%=.4")[0].passes
    assert gate(found, ("regions", 2), fail_unless_under="tpr@0.1%=.41")[0].passes


@pytest.mark.parametrize("bad", ["", "auc", "auc=", "auc=x", "auc=nan", "auc=1.5", "auc=-1", "tpr@5%=0.1", "auc=.5=.6"])
def test_a_limit_with_bad_syntax_is_refused(bad):
    with pytest.raises(ValueError, match=r"Expected auc=0.55, tpr@1%=0.05 or tpr@0.1%=0.01.*, got "):
        parse_limit(bad)


def test_the_gate_refuses_a_setting_that_was_not_studied(study):
    with pytest.raises(ValueError, match=r"Expected a setting of the study \(.*\), got regions ε=3\."):
        gate(study, ("regions", 3.0), fail_over="auc=0.55")


# Figures, numbers, files


def test_names_in_figures_do_not_overlap(study):
    said = verdict(study)
    panels = figures.frontier(study) + figures.roc(study, said) + figures.sweeps(study) + figures.worth(study, said)
    for panel, canvas in product(panels, (WIDE, NARROW)):
        lines = len(Frame(panel, canvas).title)
        named = [m for m in lay_out(panel, canvas) if isinstance(m, Text) and m.anchor == "start"][lines:]
        assert {s.name for s in panel.series} <= {m.text for m in named}
        boxes = [(m.at[0], m.at[1] - 0.8 * m.size, m.at[0] + 0.5 * m.size * len(m.text), m.at[1]) for m in named]
        for i, (l, t, r, b) in enumerate(boxes):
            for l2, t2, r2, b2 in boxes[:i]:
                assert not (l < r2 and l2 < r and t < b2 and t2 < b), (panel.title, named[i].text)


def test_ticks_are_round_numbers():
    assert [round(t, 9) for t in Axis("", (0.49, 0.83)).ticks()] == [0.5, 0.6, 0.7, 0.8]
    assert Axis("", (0.001, 1.0), log=True).ticks() == pytest.approx([0.001, 0.01, 0.1, 1])
    assert Axis("", (0.4, 40.0), log=True).ticks() == pytest.approx([1, 3, 10, 30])


def test_numbers_are_written_as_people_read_them():
    assert [number(v) for v in (0.8, 1.0, -0.034, None)] == [".80", "1.00", "−.03", "–"]
    assert [percent(v) for v in (0.123, 0.0996, 0.004, 1.0)] == ["12 %", "10 %", ".4 %", "100 %"]
    assert interval(0.12, 0.11, 0.13, percent) == "12 % (11–13 %)"
    assert [seconds(v) for v in (3.14159, 0.25, 2.5e-7, 0.0)] == ["3.14 s", "250 ms", "250 ns", "0 s"]


def test_write_leaves_whole_files_and_nothing_else(study, tmp_path):
    folder = tmp_path / "new" / "audit"
    assert report.write(study, folder) == folder / "report.html"
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    drawn = {f"figures/{name}.svg" for name in report.FIGURES}
    assert there == {"report.html", "results.json", "vulnerability.json"} | drawn
    assert from_json((folder / "results.json").read_text()) == from_json(to_json(study))
    assert all((folder / f).read_bytes().startswith(b"<svg xmlns") for f in drawn)

    (folder / "mine.txt").write_text("kept")
    few = replace(study, inversions=(), originals=(), results=study.results[:40])
    report.write(few, folder)
    assert not (folder / "figures" / "reconstructions.svg").exists()
    assert len(json.loads((folder / "results.json").read_text())["results"]) == 40
    assert (folder / "mine.txt").read_text() == "kept"


def test_a_failed_write_changes_nothing(study, tmp_path, monkeypatch):
    (tmp_path / "report.html").write_text("earlier")
    broken = replace(study, meta={**study.meta, "loss": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        report.write(broken, tmp_path)
    monkeypatch.setattr(report.atomic, "write", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        report.write(replace(study, results=study.results[:20], defenses=()), tmp_path)
    assert [p.name for p in tmp_path.rglob("*")] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "earlier"


# In a browser


@pytest.fixture(scope="module")
def page_file(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(text)
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_the_page_opens_without_errors_requests_or_sideways_scrolling(browser, page_file, scheme, width):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    troubles, asked = [], []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("requestfailed", lambda request: troubles.append(request.url))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    for section in SECTIONS:
        assert page.locator(f"#{section} h2").is_visible()
    assert page.locator("#leaks svg:visible").count() == 3
    assert page.locator("#verdict svg:visible").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
    bright = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0] > 128")
    assert bright == (scheme == "light")
    assert troubles == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    context.close()


LEGIBLE = """() => Math.min(...[...document.querySelectorAll("svg.chart")].flatMap((chart) => {
  const scale = chart.getBoundingClientRect().width / chart.viewBox.baseVal.width; // 0 where it is hidden
  return scale ? [...chart.querySelectorAll("text")].map((text) => scale * text.getAttribute("font-size")) : [];
}))"""


def test_on_a_telephone_charts_are_legible_and_what_is_wider_says_so(browser, page_file):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.evaluate(LEGIBLE) >= 11
    first = page.locator("#tables .box").first
    sign = first.locator("xpath=preceding-sibling::p[1]")
    assert "scroll it sideways" in sign.inner_text()
    assert "wide" in first.get_attribute("class")
    assert "ended" not in first.get_attribute("class")
    first.evaluate("(box) => { box.scrollLeft = box.scrollWidth; }")
    page.wait_for_function("document.querySelector('#tables .box').classList.contains('ended')")
    name = first.locator("tbody td").first.bounding_box()
    assert name["x"] >= first.bounding_box()["x"]  # which setting a row is about stays in sight
    page.set_viewport_size({"width": 1280, "height": 900})
    assert page.evaluate(LEGIBLE) >= 11
    context.close()


def test_a_click_on_a_heading_sorts_and_what_is_missing_comes_last(browser, page_file):
    page = browser.new_page()
    page.goto(page_file.as_uri())
    table = page.locator("#tables table").first
    column = "[...document.querySelector('#tables table').tBodies[0].rows].map((r) => r.cells[{}].dataset.value)"
    auc = table.locator("thead tr").last.locator("th").nth(2)
    for direction, reverse in (("ascending", False), ("descending", True)):
        auc.locator("button").click()
        assert auc.get_attribute("aria-sort") == direction
        shown = [float(v) for v in page.evaluate(column.format(2))]
        assert shown == sorted(shown, reverse=reverse)
    table.locator("thead tr").last.locator("th").nth(1).locator("button").click()
    shown = page.evaluate(column.format(1))
    numbers = [float(v) for v in shown if v]
    assert numbers == sorted(numbers)
    assert shown[len(numbers) :] == [""] * (len(shown) - len(numbers))
    assert auc.get_attribute("aria-sort") is None
    page.close()


def test_the_page_reads_without_scripts_and_prints_in_light_colours(browser, page_file):
    context = browser.new_context(java_script_enabled=False, color_scheme="dark")
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.locator("#tables table").first.is_visible()
    assert page.locator("button").count() == 0
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("nav").is_hidden()
    context.close()


@pytest.mark.browser
def test_the_pdf_starts_with_the_verdict_on_a_page_of_its_own(study, text):
    printed = pypdf.PdfReader(io.BytesIO(pdf.find()(text)))
    # without ligatures and line breaks
    pages = [" ".join(unicodedata.normalize("NFKC", page.extract_text()).split()) for page in printed.pages]
    assert 6 <= len(pages) <= 16
    assert "Take the fitted veil with ε = 2." in pages[0]
    assert "What an attack finds" in pages[0]
    assert "What is left" in pages[0]
    assert "The verdict in full" not in pages[0]
    assert pages[1].startswith("The verdict in full")
    whole = " ".join(pages)
    for sentence in sentences(verdict(study)):
        assert sentence in whole
    assert whole.count("attacker has the scores alone") > len(figures.frontier(study)) / 2  # a heading on every page


def test_without_anything_to_print_with_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(pdf, "BROWSERS", pdf.BROWSERS[:6])
    monkeypatch.setitem(sys.modules, "weasyprint", None)
    with pytest.raises(ValueError, match=r"install Chromium or Google Chrome, or pip install 'scoreveil\[pdf\]'"):
        pdf.find()


def test_a_browser_that_prints_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"Expected .*true to print the report, got exit code 0 and no file"):
        pdf.by_chromium(shutil.which("true"), "<p>")
