"""A study gives the same table twice, goes on where it was stopped, and knows what it cannot do."""

import json
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.study import run as study
from scoreveil.audit.study.membership import repeated
from scoreveil.audit.study.results import Study, best, from_json, to_json
from scoreveil.audit.study.run import StudyPlan, grid
from scoreveil.audit.study.subjects import Subject

pytestmark = pytest.mark.slow

K = 5
SMALL = StudyPlan(
    settings=grid(("published", "regions", "label_only"), (None, 0.5)),
    attacks=(
        "ml_leaks",
        "max_confidence",
        "true_confidence",
        "gap",
        "label_floor",
        "label_floor_known",
        "augmentation",
    ),
    jobs=1,
)


def records(rows, seed, sure, labelled=True):
    """Records whose scores are the more peaked the surer the model is; right with that probability too."""
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(K, 0.2 / sure), rows)
    labels = np.where(rng.random(rows) < sure, scores.argmax(axis=1), rng.integers(0, K, rows))
    return Records(scores, labels if labelled else None)


def subject(labelled=True, rows=600):
    target = Membership(records(rows, 0, 1.0, labelled), records(rows, 1, 0.4, labelled))
    shadow = Membership(records(rows, 2, 1.0, labelled), records(rows, 3, 0.4, labelled))
    return Subject(target, shadow, records(rows, 4, 0.4, labelled))


def numbers(found):
    attacks, defenses = found.results, found.defenses
    return [(r.defense, r.epsilon, r.attack, r.form, r.features, r.accuracy, r.auc, r.tpr_at_1pct) for r in attacks], [
        (d.defense, d.epsilon, d.distortion_l2, d.test_accuracy) for d in defenses
    ]


@pytest.fixture(scope="module")
def found():
    return study.run(subject(), SMALL)


def test_the_same_seed_gives_the_same_table(found):
    again = study.run(subject(), SMALL)
    assert numbers(again) == numbers(found)


def test_processes_do_not_change_the_table(found):
    parallel = study.run(subject(), StudyPlan(**{**vars(SMALL), "jobs": 2}))
    for kind, expected in zip(numbers(parallel), numbers(found), strict=True):
        assert [pair for pair in zip(kind, expected, strict=True) if pair[0] != pair[1]] == []


def test_a_study_of_adaptive_attackers_alone_finds_the_same_of_them(found):
    alone = study.run(subject(), replace(SMALL, forms=("adaptive",)))
    assert numbers(alone)[0] == [row for row in numbers(found)[0] if row[3] == "adaptive"]
    assert numbers(alone)[1] == numbers(found)[1]


def test_every_setting_and_form_is_there(found):
    attacks, defenses = found.results, found.defenses
    assert [(d.defense, d.epsilon) for d in defenses] == list(SMALL.settings)
    forms = {(r.defense, r.form) for r in attacks if r.attack == "max_confidence"}
    assert ("published", "averaging") in forms
    assert not {("none", "averaging"), ("regions", "averaging")} & forms  # it would tell nothing more, or the region
    assert {("none", "paper"), ("none", "adaptive"), ("label_only", "adaptive")} <= forms
    features = {r.features for r in attacks if r.attack == "ml_leaks" and r.form == "adaptive"}
    assert features == {"scores", "standardised", "log_ratios"}
    # there are no augmented copies here
    assert not [r for r in attacks if r.attack == "augmentation"]


def test_what_leaks_shows_and_what_is_veiled_does_not(found):
    defenses = found.defenses
    undefended = best(found, ("none", None), knows_label=False)
    assert undefended.auc > 0.75
    for epsilon in (None, 0.5):
        assert best(found, ("regions", epsilon), knows_label=False, reads="scores").auc < 0.58
    assert len({d.test_accuracy for d in defenses if d.keeps_label}) == 1


def test_a_study_without_labels_leaves_out_what_needs_them():
    found = study.run(subject(labelled=False), SMALL)
    attacks, defenses = found.results, found.defenses
    assert {r.attack for r in attacks} == {"ml_leaks", "max_confidence", "label_floor"}
    assert all(d.test_accuracy is None and d.ece is None for d in defenses)


def test_cells_are_kept_and_not_made_again(found, tmp_path):
    kept = study.run(subject(), SMALL, cache=tmp_path)
    assert numbers(kept) == numbers(found)
    files = sorted((tmp_path / "cells").iterdir())
    stamps = [f.stat().st_mtime_ns for f in files]
    assert numbers(study.run(subject(), SMALL, cache=tmp_path)) == numbers(found)
    assert [f.stat().st_mtime_ns for f in sorted((tmp_path / "cells").iterdir())] == stamps
    # other records are other cells
    study.run(subject(rows=500), StudyPlan(settings=grid((), ()), attacks=("gap",), jobs=1), cache=tmp_path)
    assert len(list((tmp_path / "cells").iterdir())) > len(files)


def test_a_killed_study_goes_on_and_gives_the_same_numbers(found, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from test_study import SMALL, study, subject\n"
        "study.run(subject(), SMALL, cache=Path(sys.argv[2]))\n"
    )
    cells = tmp_path / "cache" / "cells"
    process = subprocess.Popen([sys.executable, str(script), str(__file__).rpartition("/")[0], str(tmp_path / "cache")])
    while not (cells.exists() and len(list(cells.glob("*.json"))) >= 5):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = len(list(cells.glob("*.json")))
    total = len(found.results) + len(found.defenses)
    assert done < total
    assert numbers(study.run(subject(), SMALL, cache=tmp_path / "cache")) == numbers(found)


def test_results_survive_json(found):
    whole = replace(found, notes=("a note",))
    text = to_json(whole)
    assert from_json(text) == whole
    loaded = json.loads(text)
    wanted = {
        "defense",
        "epsilon",
        "attack",
        "form",
        "accuracy",
        "auc",
        "auc_low",
        "auc_high",
        "tpr_at_1pct",
        "tpr_at_01pct",
    }
    assert wanted <= set(loaded["results"][0])
    assert loaded["meta"]["records"]["members"] == 600


def test_averaging_asks_again():
    asked = []

    def defense(scores):
        asked.append(1)
        return scores * len(asked)

    assert repeated(defense, 3)(np.ones((1, 2))).tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"settings": (("none", None), ("nothing", None))}, "defense among"),
        ({"settings": (("none", None), ("isotonic", None))}, "an epsilon for isotonic"),
        ({"settings": (("none", 1.0),)}, "no epsilon for none"),
        ({"settings": (("none", None), ("isotonic", -1.0))}, "every epsilon > 0"),
        ({"settings": (("label_only", None),)}, "without a defense"),
        ({"attacks": ("magic",)}, "attack among"),
        ({"repeats": 0}, "repeats >= 1"),
    ],
)
def test_bad_plans_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        StudyPlan(**wrong)


def test_progress_is_told():
    told = []
    plan = StudyPlan(settings=grid(("label_only",), ()), attacks=("gap",), jobs=1)
    study.run(subject(), plan, progress=lambda what, done, total: told.append((what, done, total)))
    names, done, totals = zip(*told, strict=True)
    assert names == ("none", "label_only")
    assert 0 < done[0] < done[1] == totals[0] == totals[1]


def test_the_first_answer_comes_before_the_slow_attacks_and_the_rivals():
    plan = StudyPlan(settings=grid(("label_only", "regions"), (2.0,)), attacks=("gradient_boosting", "gap"), jobs=1)
    told = []
    found = study.run(
        subject(), plan, progress=lambda *step: told.append(step), first=lambda so_far: told.append(so_far)
    )
    (early,) = (each for each in told if isinstance(each, Study))
    assert {(r.attack, r.defense) for r in early.results} == {("gap", "none"), ("gap", "regions")}
    assert [d.defense for d in early.defenses] == ["none", "regions"]
    assert told.index(early) == 2  # after two parts of five
    assert len(told) == 6
    # and all is in the order of the plan, whatever was done first
    assert [r.attack for r in found.results if r.setting == ("none", None)] == [*3 * ["gradient_boosting"], "gap"][1:]
    assert [d.setting for d in found.defenses] == list(plan.settings)


def test_a_first_answer_is_not_given_where_it_is_the_last():
    told = []
    study.run(subject(), StudyPlan(settings=grid((), ()), attacks=("gap",), jobs=1), first=told.append)
    assert told == []


def test_by_default_slow_rivals_are_left_out_and_named():
    plan = study.planned()
    assert [epsilon for name, epsilon in plan.settings if name == "regions"] == [None]
    assert {name for name, _ in plan.settings} == {"none", "regions", "label_constant", "rounding_1", "top_3"}
    (note,) = plan.notes
    assert "memguard" in note
    assert "--defenses" in note
    assert ("isotonic", 4.0) in study.planned(("isotonic",)).settings, "which is none without"
    assert ("regions", 2.0) in study.planned(epsilon=2.0).settings
    every = study.planned("all")
    assert {name for name, _ in every.settings} == set(DEFENSES)
    assert every.notes == ()


def test_without_labels_what_is_fitted_to_them_is_left_out_and_named():
    plan = study.planned(("label_constant", "rounding_1"), attacks=("max_confidence",), jobs=1)
    found = study.run(subject(labelled=False), plan)
    assert {d.defense for d in found.defenses} == {"none", "rounding_1"}
    assert found.notes == ("Left out, since there are no true labels: label_constant.",)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"defenses": ("memgard",)}, "did you mean memguard"),
        ({"attacks": ("random_forrest",)}, "did you mean random_forest"),
        ({"attacks": ("zzz",)}, "got 'zzz'\\.$"),
    ],
)
def test_a_name_that_is_not_known_suggests_the_nearest(wrong, message):
    with pytest.raises(ValueError, match=message):
        study.planned(**wrong)
