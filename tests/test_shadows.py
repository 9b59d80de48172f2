"""Audits from a model: many shadows for LiRA and RMIA, moved copies for label-only attacks, pictures to redraw."""

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from scoreveil.audit.data.records import Records
from scoreveil.audit.networks.inverter import InversionSettings
from scoreveil.audit.report import page as report
from scoreveil.audit.study import run as study
from scoreveil.audit.study.models import Model, from_model, with_extras
from scoreveil.audit.study.results import best
from scoreveil.audit.study.run import StudyPlan, grid
from scoreveil.audit.study.shadows import halves, part, shadow_models

pytestmark = pytest.mark.slow

SETTINGS = grid(("regions", "label_only"), (0.5,))
RNG = np.random.default_rng(0)


class Neighbours:
    """Knows its training pictures by heart: a picture's own neighbour is itself."""

    def fit(self, x, y):
        self.model = KNeighborsClassifier(5, weights=lambda distances: 1 / (distances + 0.05)).fit(flat(x), y)

    def predict_proba(self, x):
        return self.model.predict_proba(flat(x))


def flat(x):
    return np.asarray(x).reshape(len(x), -1)


@pytest.fixture(scope="module")
def subject():
    bundled = load_digits()
    x = (bundled.images[:, None] / 16).astype(np.float32)
    # some labels are wrong: what is known of these is known by heart
    y = np.where(RNG.random(len(x)) < 0.3, RNG.integers(0, 10, len(x)), bundled.target)
    members, nonmembers, auxiliary = ((x[part], y[part]) for part in np.split(RNG.permutation(1600), (300, 700)))
    model = Neighbours()
    model.fit(*members)
    asked = Model(model, Neighbours, auxiliary, shadows=8, inversion=True)
    return with_extras(from_model(asked, members, nonmembers), asked, members, nonmembers, jobs=1)


@pytest.fixture(scope="module")
def found(subject):
    plan = StudyPlan(
        settings=SETTINGS,
        attacks=("max_confidence", "true_confidence", "label_floor", "label_floor_known", "augmentation"),
        likelihood=SETTINGS[:2],
        inverted=SETTINGS[:2],
        inversion=InversionSettings(width=16, epochs=15, batch=16, lr=2e-3, bf16=False),
        jobs=1,
    )
    return study.run(subject, plan, "test")


def test_every_record_is_inside_half_of_the_shadows():
    inside = halves(16, 101, seed=3)
    assert (inside.sum(axis=0) == 8).all()
    assert (np.abs(inside.sum(axis=1) - 50.5) < 1).all()
    assert not np.array_equal(inside[0], inside[2])
    for wrong in (2, 5, 0):
        with pytest.raises(ValueError, match="even number of shadows"):
            halves(wrong, 10, seed=0)


def test_progress_of_a_part_is_that_of_the_whole():
    told = []
    for done in (0, 1, 2):
        part(lambda *step: told.append(step), 0.4, 1.0)("attack", done, 2)
    assert told == [("attack", 400, 1000), ("attack", 700, 1000), ("attack", 1000, 1000)]


def test_shadows_are_trained_on_their_halves_and_progress_is_told():
    trained, told = [], []

    def train(index, seed):
        trained.append((index, seed))
        return np.full((10, 3), 1 / 3), np.full((4, 3), 1 / 3)

    population = Records(np.full((4, 3), 1 / 3), np.zeros(4, dtype=np.int64))
    many = shadow_models(train, 10, population, 4, seed=0, jobs=1, progress=lambda *step: told.append(step))
    assert many.of_records.shape == (4, 10, 3)
    assert all(np.array_equal(np.flatnonzero(row), index) for row, (index, _) in zip(many.inside, trained, strict=True))
    assert len({seed for _, seed in trained}) == 4
    assert told[-1] == ("a shadow model", 4, 4)
    assert many.digest != replace(many, inside=~many.inside).digest


def test_lira_and_rmia_find_what_the_model_knows_by_heart(found):
    for name in ("lira_online", "rmia_online", "rmia_offline"):
        undefended = best(found, ("none", None), attack=name, reads="scores")
        assert undefended.auc > 0.75
        # the same attack on labels alone is its floor, and the veil brings it down to that
        floor = best(found, ("none", None), attack=name, reads="label")
        veiled = best(found, ("regions", 0.5), attack=name)
        assert veiled.auc < max(0.5, floor.auc) + 0.02 + (veiled.auc_high - veiled.auc_low) / 2
    assert not [r for r in found.results if r.defense == "label_only" and "lira" in r.attack]


def test_moved_copies_are_asked_about(subject, found):
    assert subject.target.members.variants.shape == (300, 5)
    assert best(found, ("none", None), attack="augmentation").auc > 0.5


def test_scores_redraw_more_than_the_label_and_the_veil_brings_it_back(found):
    mse = {(i.defense, i.form, i.features): i.mse for i in found.inversions}
    assert set(mse) == {
        *(("none", "paper", "log_scores"), ("none", "adaptive", "all")),
        *(("none", "floor", "label"), ("none", "floor", "ranking")),
        *(("regions", "paper", "log_scores"), ("regions", "adaptive", "all")),
    }
    label = mse["none", "floor", "label"]
    assert mse["none", "adaptive", "all"] < 0.95 * label
    assert mse["regions", "adaptive", "all"] > 0.97 * label
    assert len(found.originals) == 10


def test_the_report_shows_the_pictures(found, tmp_path):
    page = report.write(found, tmp_path).read_text(encoding="utf-8")
    assert page.count("data:image/webp;base64,") >= 40
    assert re.search("LiRA", page)


def test_pictures_and_shadows_are_asked_for_with_what_they_need():
    x, y = RNG.random((200, 4)), RNG.integers(0, 2, 200)

    def predict(rows):
        return np.full((len(rows), 2), 0.5)

    with pytest.raises(ValueError, match="architecture"):
        Model(predict, shadows=8)
    with pytest.raises(ValueError, match="at least 4"):
        Model(predict, Neighbours, shadows=2)
    with pytest.raises(ValueError, match="auxiliary pictures"):
        Model(predict, inversion=True)
    drawing = Model(predict, auxiliary=(x, y), inversion=True)
    subject = from_model(drawing, (x, y), (x + 1, y))
    with pytest.raises(ValueError, match=r"pictures \(n, channels"):
        with_extras(subject, drawing, (x, y), (x + 1, y))
    with pytest.raises(ValueError, match="auxiliary data for a shadow"):
        Model(predict, Neighbours, shadows=4)
