"""Why the undefended attacks are below the paper's figures: what is tried, and that the page says what came out."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp

from experiments.data import benchmarks
from experiments.paper import undefended
from experiments.paper.printed import TABLE_2
from experiments.paper.undefended import Case
from scoreveil.audit.attacks.features import log_odds
from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.defenses import memguard
from scoreveil.audit.networks.training import TrainingRun
from scoreveil.audit.report.wording import number
from scoreveil.audit.study.results import UNDEFENDED

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
DIGITS = Case("digits", "apart", 150, epochs=3, dropout=0.0, width=2)


def test_apart_no_image_is_in_two_sets():
    sets = undefended.sets_of(replace(DIGITS, size=400), 1797)
    every = np.concatenate([sets.target_train, sets.target_test, sets.shadow_train, sets.shadow_test])
    assert len(np.unique(every)) == len(every) == 1600
    assert all(side.all() for side in sets.judged)
    with pytest.raises(ValueError, match="Expected at least 2000 images"):
        undefended.sets_of(replace(DIGITS, size=500), 1797)


def test_in_table_1_the_records_that_are_judged_are_those_of_the_attackers_other_set():
    """A member that the attacker's training set lacks is in his test set: all images are in one or the other."""
    sets = undefended.sets_of(Case("mnist", "table 1", 60_000, epochs=1), 70_000)
    members, others = sets.target_train[sets.judged[0]], sets.target_test[sets.judged[1]]
    assert np.isin(members, sets.shadow_test).all()
    assert np.isin(others, sets.shadow_train).all()
    # of the 10,000 that either leaves out, a seventh is left out by both
    assert len(members) == len(others) == pytest.approx(60_000 / 7, rel=0.02)


def test_a_shadow_on_the_targets_own_images_leaves_nobody_out_so_all_are_judged():
    sets = undefended.sets_of(Case("mnist", "same", 60_000, epochs=1), 70_000)
    assert np.array_equal(np.sort(sets.target_train), np.sort(sets.shadow_train))
    assert [int(side.sum()) for side in sets.judged] == [60_000, 10_000]


def test_labels_are_redrawn_as_often_as_said():
    images = benchmarks.load("digits")
    noisy = undefended.relabelled(images, 0.4, seed=0)
    assert np.mean(noisy.labels != images.labels) == pytest.approx(0.4 * 0.9, abs=0.03)
    assert np.array_equal(noisy.pixels, images.pixels)


def test_the_best_threshold_in_hindsight_is_half_of_one_plus_kolmogorov_and_smirnovs_distance():
    rng = np.random.default_rng(0)
    members, others = (Records(rng.dirichlet(np.full(3, a), 200), rng.integers(3, size=200)) for a in (0.3, 0.6))
    judged = Membership(members, others)
    sure = [log_odds(side.scores, side.predicted) for side in (others, members)]
    expected = 0.5 + ks_2samp(*sure, alternative="greater").statistic / 2
    assert undefended.hindsight(judged, judged.records.predicted) == pytest.approx(expected)


def test_a_case_is_measured_and_kept(tmp_path, monkeypatch):
    row = undefended.kept(DIGITS, None, tmp_path)
    rates = (row.ml_leaks, row.nsh, row.adaptive, row.hindsight, row.every_record, row.own_records)
    assert all(0 <= rate <= 1 for rate in rates)
    assert row.gap == pytest.approx(0.5 + (row.train_accuracy - row.test_accuracy) / 2)
    assert row.always_member == 0.5
    assert row.every_record == pytest.approx(row.ml_leaks)
    assert row.hindsight >= row.gap - 0.05

    def train(*_):
        raise AssertionError("everything was trained before")

    monkeypatch.setattr(TrainingRun, "train", train)
    assert undefended.kept(DIGITS, None, tmp_path) == row
    monkeypatch.setattr(memguard, "MemGuardSettings", lambda: replace(SHORT))
    guarded = undefended.kept_guarded(DIGITS, None, tmp_path)
    assert 0 <= guarded.changed <= 1
    assert guarded.distortion >= 0
    assert undefended.kept_guarded(DIGITS, None, tmp_path) == guarded


SHORT = memguard.MemGuardSettings(epochs=5)


def shown(start):
    return PAGE.partition(start)[2].partition(undefended.END)[0].strip()


def test_the_page_shows_what_was_measured():
    rows, guarded = undefended.read()
    assert shown(undefended.START) == undefended.table(rows)
    assert shown(undefended.START_GUARDED) == undefended.guarded_table(guarded)
    assert [row.case for row in rows] == list(undefended.CASES)
    assert [row.case for row in guarded] == list(undefended.GUARDED)


def test_the_printed_figures_fall_as_the_gap_between_training_and_test_rises():
    """Leaks rise with it, so these figures come from something else."""
    printed = [TABLE_2[name][UNDEFENDED] for name in ("mnist", "fashion-mnist", "cifar10")]
    gaps = [row.train - row.test for row in printed]
    assert gaps == sorted(gaps)
    for attack in ("ml_leaks", "nsh"):
        rates = [getattr(row, attack) for row in printed]
        assert rates == sorted(rates, reverse=True)


def test_every_numbered_statement_of_the_paper_has_its_row():
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    named = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))

    def numbers(kind):
        found = re.findall(rf"{kind}s? (\d(?:, \d)*)", named)
        return {int(each) for group in found for each in group.split(", ")}

    for kind, last in (("Definition", 6), ("Equation", 7), ("Lemma", 6), ("Theorem", 4), ("Property", 4)):
        assert numbers(kind) >= set(range(1, last + 1)), kind
        assert max(numbers(kind)) == last


def test_the_page_quotes_what_was_measured():
    """The figures of the sentences below each table."""
    rows, guarded = undefended.read()
    of = {row.case: row for row in rows}
    section = PAGE.partition("## Why its undefended attacks find more")[2].partition("## MemGuard on MNIST")[0]
    beside = PAGE.partition("## MemGuard on MNIST")[2].partition("\n## ")[0]
    own, noisy = of[undefended.OWN_MNIST], of[undefended.NOISY]
    smallest = min((row for row in rows if row.case.dataset == "mnist"), key=lambda row: row.case.size)
    quoted = (own.every_record, own.always_member, own.own_records, smallest.ml_leaks, smallest.test_accuracy)
    quoted = (
        *quoted,
        noisy.ml_leaks,
        noisy.nsh,
        noisy.test_accuracy,
        of[undefended.OWN_FASHION].ml_leaks,
        of[undefended.OWN_CIFAR10].test_accuracy,
    )
    for share in quoted:
        assert re.search(rf"\b{100 * share:.1f}\b", section.partition(undefended.END)[2]), share
    sure = {row.case: row for row in guarded}
    assert f"would be {number(sure[undefended.OWN_MNIST].free, 3)}." in beside.replace("\n", " ")
    assert f"{100 * sure[undefended.NOISY].changed:.1f} % of the records" in beside.replace("\n", " ")
