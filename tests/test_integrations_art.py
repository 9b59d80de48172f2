"""ART's own classifier takes the veil as it is, and ART's own attack finds no more behind it than the label tells."""

import itertools
import warnings

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from doc_pages import run_page
from scoreveil import Veil
from scoreveil.audit.data.records import Records
from scoreveil.audit.study import digits
from scoreveil.keyed import KeyedVeil

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what ART imports
    from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
    from art.estimators.classification import BlackBoxClassifier

    from scoreveil.integrations.art import VeilPostprocessor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def worlds():
    """Target, shadow and reference: four groups of the demo's classifiers, each attacked with every other's help."""
    groups = [digits.trained(range(first, first + 4)) for first in (0, 4, 8, 12)]
    return [(target, shadow, reference) for (target, reference), (shadow, _) in itertools.permutations(groups, 2)]


@pytest.fixture(scope="module")
def from_labels(worlds):
    """What the attack makes of labels alone, in each world."""
    return np.array([auc(world, labels_only=True) for world in worlds])


def classifier(classes: int, defense=None) -> BlackBoxClassifier:
    """A model that was asked before: its records are their scores."""
    return BlackBoxClassifier(lambda scores: scores, (classes,), classes, postprocessing_defences=defense)


def auc(world, defense=None, labels_only: bool = False) -> float:
    """Of ART's random forest, fitted on a shadow behind the same defense, told scores and true labels."""
    target, shadow, _ = world

    def seen(records: Records) -> np.ndarray:
        return np.eye(target.classes)[records.scores.argmax(axis=1)] if labels_only else records.scores

    attack = MembershipInferenceBlackBox(
        classifier(target.classes, defense), attack_model_type="rf", scaler_type="standard"
    )
    attack.fit(
        seen(shadow.members), shadow.members.labels, seen(shadow.nonmembers), shadow.nonmembers.labels
    )  # the attack asks the classifier
    said = attack.infer(seen(target.records), target.records.labels, probabilities=True)
    return float(roc_auc_score(target.truth, np.asarray(said).ravel()))


def test_the_classifier_answers_with_veiled_scores(worlds):
    target, _, _ = worlds[0]
    scores = target.records.scores
    z = classifier(target.classes, VeilPostprocessor(2.0)).predict(scores)
    assert np.array_equal(z.argmax(axis=1), scores.astype(z.dtype).argmax(axis=1))
    assert np.allclose(z.sum(axis=1), 1, atol=1e-5)
    assert np.mean(np.abs(z - scores)) > 1e-3


def test_an_attack_of_art_gains_no_more_than_the_label(worlds, from_labels, record_property):
    def gain(name: str, defense) -> float:
        """Beyond labels: the mean of all worlds, each with draws of its own."""
        found = float(np.mean([auc(world, defense(world[2].scores)) for world in worlds] - from_labels))
        record_property(name, round(found, 4))
        return found

    record_property("labels alone", round(float(from_labels.mean()), 4))
    assert gain("isotonic 0.5", lambda reference: VeilPostprocessor(0.5)) < 0.02
    assert gain("isotonic 2", lambda reference: VeilPostprocessor(2.0)) < 0.02
    assert gain("published 2", lambda reference: VeilPostprocessor(2.0, mechanism="published")) > 0.02
    assert gain("bare", lambda reference: None) > 0.1


@pytest.mark.parametrize("by_record", [True, False])
def test_sticky_answers_are_as_safe_as_fresh_ones(worlds, from_labels, record_property, by_record):
    """Who knows some records, and asks with the same secret, cannot read others' scores from their answers."""

    def asked(world) -> float:
        target, shadow, reference = world
        veil = Veil(2.0, secret=b"a secret of the tests")

        def answer(scores):
            return KeyedVeil(veil)(scores, [row.tobytes() for row in scores]) if by_record else veil(scores)

        return auc((target.defended(answer), shadow.defended(answer), reference))

    found = float(np.mean([asked(world) for world in worlds] - from_labels))
    record_property("sticky by record" if by_record else "sticky by scores", round(found, 4))
    assert found < 0.02


def test_it_is_a_postprocessor_like_arts_own():
    veil = VeilPostprocessor(2.0)
    assert veil.apply_predict
    assert not veil.apply_fit
    assert veil.is_fitted
    assert veil.guarantee.epsilon == 2.0
    with pytest.raises(ValueError, match="Row 0"):
        veil(np.ones((2, 3)))


def test_the_page_runs():
    run_page("art")
