"""An attack written by others, ART's, finds what ours finds and no more."""

import warnings

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from scoreveil import Veil
from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.attacks.boundary import distances
from scoreveil.audit.data.records import Membership
from scoreveil.audit.study import digits

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what ART imports
    from art.attacks.evasion import HopSkipJump
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
    model = MLPClassifier((32,), max_iter=300, random_state=0).fit(x[:600], y[:600])

    def label_of(points):
        return model.predict_proba(points).argmax(axis=1)

    records, pool = x[600:616], x[700:1000]
    apart = np.linalg.norm(records[:, None] - pool, axis=2)
    starts = pool[np.where(label_of(pool) == label_of(records)[:, None], np.inf, apart).argmin(axis=1)]
    ours = distances(label_of, records, starts, np.float64(0.0), np.float64(1.0), np.random.default_rng(0))
    classifier = BlackBoxClassifier(lambda points: np.eye(10)[label_of(points)], (64,), 10, clip_values=(0, 1))
    attack = HopSkipJump(classifier, norm=2, max_iter=10, max_eval=1000, init_eval=100, verbose=False)
    art = np.linalg.norm(attack.generate(records.astype(np.float32)) - records, axis=1)
    assert np.median(ours / art) < 1.02
    assert spearmanr(ours, art).statistic > 0.7
