"""How far the label's boundary is, found by labels alone, and the floor that it raises."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from scoreveil.audit.attacks.boundary import QUESTIONS, distances
from scoreveil.audit.report.gate import bounds
from scoreveil.audit.report.sentences import sentences
from scoreveil.audit.study.boundary import boundary_floor
from scoreveil.audit.study.results import floor, from_json, to_json
from scoreveil.audit.verdict import verdict
from synthetic_study import attack_result, make_study


class Counted:
    """A model that counts what it is asked."""

    def __init__(self, predict):
        self.predict, self.asked = predict, 0

    def __call__(self, x):
        self.asked += len(x)
        return self.predict(x)


def test_of_a_plane_the_distance_is_known():
    rng = np.random.default_rng(0)
    normal = rng.normal(size=20)
    x = rng.normal(size=(40, 20))
    true = np.abs(x @ normal) / np.linalg.norm(normal)
    label_of = Counted(lambda z: (z @ normal > 0).astype(int))
    starts = x - 2 * (x @ normal)[:, None] * normal / (normal @ normal) + 0.3 * rng.normal(size=x.shape)
    starts[label_of(starts) == label_of(x)] *= -1
    label_of.asked = 0
    found = distances(label_of, x, starts, -10.0, 10.0, rng)
    assert (found >= true - 1e-9).all()
    assert np.median(found / true) < 1.1
    assert label_of.asked <= len(x) * (QUESTIONS + 1)


def test_points_stay_where_data_is():
    """In a box, and a column that never changes is never changed."""
    seen = []

    def label_of(z):
        seen.append(z)
        return (z.sum(axis=1) > 1.2).astype(int)

    x = np.array([[0.1, 0.2, 0.5], [0.0, 0.3, 0.5]])
    found = distances(
        label_of,
        x,
        np.array([[1.0, 1.0, 0.5]] * 2),
        np.array([0, 0, 0.5]),
        np.array([1, 1, 0.5]),
        np.random.default_rng(0),
    )
    rows = np.concatenate(seen)
    assert rows.min() >= 0
    assert rows.max() <= 1
    assert (rows[:, 2] == 0.5).all()
    # as far as the first two columns have to go
    assert found == pytest.approx([0.4 / 2**0.5] * 2, rel=0.05)


@pytest.mark.parametrize("shape", [(6,), (1, 2, 3)])
def test_it_finds_members_where_labels_alone_tell_nothing(shape):
    """The nearest neighbour's label: members sit in the middle of their cells. Classes are random."""
    rng = np.random.default_rng(0)
    data = [(rng.uniform(size=(300, *shape)), rng.integers(0, 2, 300)) for _ in range(3)]
    model = KNeighborsClassifier(1).fit(data[0][0].reshape(300, -1), data[0][1])
    predict = Counted(lambda x: model.predict_proba(x.reshape(len(x), -1)))
    done = []
    alone, told = boundary_floor(
        predict, *data, count=40, seed=0, progress=lambda what, now, total: done.append((now, total))
    )
    assert alone.auc_low > 0.55
    assert told.auc > 0.7
    assert alone.accuracy > 0.55
    assert (alone.members, alone.nonmembers, alone.reads, alone.knows_label) == (40, 40, "label", False)
    assert done[-1] == (80, 80)
    assert predict.asked < 80 * (QUESTIONS + 10) + 1_000


def test_columns_are_measured_in_their_own_units():
    """The same records in other units are just as far from the boundary."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(60, 3)), rng.integers(0, 2, 60)) for _ in range(3)]
    units = np.array([1.0, 1024.0, 1 / 1024])

    def predict(x):
        inside = (x.sum(axis=1) > 0.2).astype(int)
        return np.eye(2)[inside]

    bare = boundary_floor(predict, *data, count=20)
    scaled = boundary_floor(lambda x: predict(x / units), *((x * units, y) for x, y in data), count=20)
    assert [r.auc for r in bare] == [r.auc for r in scaled]


def test_what_cannot_be_walked_is_refused():
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(60, 3)), rng.integers(0, 2, 60)) for _ in range(3)]
    with pytest.raises(ValueError, match="at least two labels"):
        boundary_floor(lambda x: np.tile([0.9, 0.1], (len(x), 1)), *data, count=20)
    words = [(x.astype(str), y) for x, y in data]
    with pytest.raises(ValueError, match="inputs that are numbers"):
        boundary_floor(lambda x: np.tile([0.9, 0.1], (len(x), 1)), *words, count=20)


def by_labels(auc, n=100, **more):
    return attack_result("none", None, "label_boundary", auc, n, reads="label", **more)


def test_it_raises_the_floor_where_it_is_surely_above():
    study = make_study()
    before, raised = floor(study, False).auc, replace(study, boundary=(by_labels(0.8),))
    assert before < 0.51
    assert floor(raised, False).auc == floor(raised, True).auc == 0.8
    assert floor(replace(study, boundary=(by_labels(0.53),)), False).auc == before
    assert floor(replace(study, boundary=(by_labels(0.8, knows_label=True),)), False).auc == before
    above = [verdict(replace(one, evidence=())).excess for one in (study, raised)]
    assert above[1].value < above[0].value - 0.1
    assert above[1].high - above[1].low > above[0].high - above[0].low


def test_the_verdict_says_what_it_means():
    said = " ".join(sentences(verdict(replace(make_study(), boundary=(by_labels(0.8),)))))
    assert "around 100 members and 100 non-members, an attacker reaches" in said
    assert f"It asks up to {QUESTIONS:,} times about each." in said
    assert "cannot go below that. It is surely above what one label gives. This is the floor without and with" in said
    said = " ".join(sentences(verdict(replace(make_study(), boundary=(by_labels(0.51),)))))
    assert "not surely above what one label gives. The floor stays." in said
    assert "nothing but labels" not in " ".join(sentences(verdict(make_study())))


def test_the_gate_counts_it_behind_every_veil_that_keeps_the_label():
    study = replace(make_study(), boundary=(by_labels(0.9),))
    assert bounds(study, ("regions", 0.5), "auc")[0] == 0.9
    changed = replace(study, defenses=tuple(replace(d, keeps_label=d.defense != "regions") for d in study.defenses))
    assert bounds(changed, ("regions", 0.5), "auc")[0] < 0.9


def test_it_is_kept_with_the_results_and_older_files_are_read():
    bare = make_study(epsilons=(2.0,), rivals={}, inversions=())
    study = replace(bare, boundary=(by_labels(0.8),))
    assert from_json(to_json(study)) == study
    text = to_json(bare)
    assert '"boundary": [\n\n]' in text
    assert from_json(text.replace('"boundary": [\n\n],\n', "")) == bare
