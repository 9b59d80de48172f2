"""An attack written by others, ART's, finds what ours finds and no more."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from scoreveil import Veil
from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.attacks.boundary import distances
from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.defenses import Given
from scoreveil.audit.study import digits
from scoreveil.audit.study.attributes import Column, infer_column
from scoreveil.audit.study.results import UNDEFENDED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what ART imports
    from art.attacks.evasion import HopSkipJump
    from art.attacks.inference.attribute_inference import AttributeInferenceBaseline, AttributeInferenceBlackBox
    from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
    from art.estimators.classification import BlackBoxClassifier

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world():
    """Target, shadow and reference of the demo's classifiers."""
    (target, reference), (shadow, _) = digits.trained(range(4)), digits.trained(range(4, 8))
    return target, shadow, reference


def by_art(shadow: Membership, target: Membership) -> float:
    """AUC of ART's random forest, which is told scores and true labels."""
    classes = target.classes
    classifier = BlackBoxClassifier(lambda x: x, (classes,), classes)
    attack = MembershipInferenceBlackBox(classifier, attack_model_type="rf")
    attack.fit(
        pred=shadow.members.scores, y=shadow.members.labels,
        test_pred=shadow.nonmembers.scores, test_y=shadow.nonmembers.labels,
    )  # fmt: skip
    records = target.records
    said = attack.infer(None, records.labels, pred=records.scores, probabilities=True)
    return float(roc_auc_score(target.truth, np.asarray(said).ravel()))


def by_ours(shadow: Membership, target: Membership) -> float:
    scorer = ATTACKS["random_forest_known"].fit(shadow, "scores", np.random.default_rng(0))
    return float(roc_auc_score(target.truth, scorer(target.records)))


def test_on_bare_scores_both_find_the_leak(world):
    target, shadow, _ = world
    art, ours = by_art(shadow, target), by_ours(shadow, target)
    assert art > 0.65
    assert abs(art - ours) < 0.06


def test_behind_the_veil_neither_does_better_than_the_label(world):
    target, shadow, _ = world
    veil = Veil(2.0, rng=np.random.default_rng(0))
    veiled = target.defended(veil), shadow.defended(veil)
    scorer = ATTACKS["label_floor_known"].fit(shadow, "scores", np.random.default_rng(0))
    floor = max(0.5, float(roc_auc_score(target.truth, scorer(target.records))))
    for attack in (by_art, by_ours):
        assert attack(veiled[1], veiled[0]) < floor + 0.02 + 0.04  # 400 members and others: ± .04


def test_behind_the_published_mechanism_both_still_find_it(world):
    target, shadow, _ = world
    veil = Veil(0.5, "published", rng=np.random.default_rng(0))
    veiled = target.defended(veil), shadow.defended(veil)
    assert by_ours(veiled[1], veiled[0]) > 0.62
    assert by_art(veiled[1], veiled[0]) > 0.6


def test_the_boundary_is_found_as_near_as_by_art():
    """On the same records of the same network, with no more questions than ART asks."""
    x, y = load_digits(return_X_y=True)
    x = x / 16
    model = MLPClassifier((32,), max_iter=2_000, random_state=0).fit(x[:600], y[:600])

    def label_of(points):
        return model.predict_proba(points).argmax(axis=1)

    records, pool = x[600:616], x[700:1000]
    apart = np.linalg.norm(records[:, None] - pool, axis=2)
    starts = pool[np.where(label_of(pool) == label_of(records)[:, None], np.inf, apart).argmin(axis=1)]
    ours = distances(label_of, records, starts, 0.0, 1.0, np.random.default_rng(0))
    classifier = BlackBoxClassifier(lambda points: np.eye(10)[label_of(points)], (64,), 10, clip_values=(0, 1))
    attack = HopSkipJump(classifier, norm=2, max_iter=10, max_eval=1000, init_eval=100, verbose=False)
    art = np.linalg.norm(attack.generate(records.astype(np.float32)) - records, axis=1)
    assert np.median(ours / art) < 1.02
    assert np.mean(ours < 1.1 * art) > 0.75


def test_a_column_is_inferred_as_well_as_by_art():
    """ART goes by the label; its baseline is what we call the imputation."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_200, 6))
    x[:, 2] = np.clip(np.round(x[:, 0] + 0.5 * rng.normal(size=1_200) + 1), 0, 2)
    y = (x[:, 1] + x[:, 2] > 1).astype(np.int64)
    members, others, public = ((x[part], y[part]) for part in (slice(400), slice(400, 800), slice(800, None)))
    model = RandomForestClassifier(30, random_state=0).fit(*members)
    reference = Records(model.predict_proba(public[0]), public[1])
    found = infer_column(
        model.predict_proba, members, others, public, Column(2, "2"), [UNDEFENDED, ("label_only", None)],
        lambda epsilon: Given(Membership(reference, reference), reference, 0, epsilon),
    )  # fmt: skip
    ours = {r.defense: r for r in found if r.side == "members" and r.sees_answer}
    attack = AttributeInferenceBlackBox(BlackBoxClassifier(model.predict_proba, (6,), 2), "rf", attack_feature=2)
    baseline = AttributeInferenceBaseline("rf", attack_feature=2)
    rest, values = np.delete(members[0], 2, axis=1), [0.0, 1.0, 2.0]
    labels = model.predict(members[0]).reshape(-1, 1)
    art = []
    for one, more in ((attack, {"pred": labels}), (baseline, {})):
        one.fit(public[0])
        art.append(np.mean(one.infer(rest, values=values, **more) == members[0][:, 2]))
    assert ours["label_only"].success > art[0] - 0.03  # 400 records: ± .04
    assert ours["none"].success > art[0] + 0.05
    assert ours["none"].imputation > art[1] - 0.03
