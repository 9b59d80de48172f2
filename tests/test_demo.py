"""The demo: measured, quick, and what it shows holds."""

import numpy as np
import pytest

from scoreveil import demo
from scoreveil.fitting import fit

RAW, TEMPERED, ISOTONIC, FITTED, WITH_EPSILON, LABEL = range(6)


@pytest.fixture(scope="module")
def shown():
    steps = []
    result = demo.run(steps.append)
    assert [step.split()[0] for step in steps] == ["Training", "Fitting", "Measuring"]
    return result


def test_the_classifier_knows_its_training_records_by_heart_and_leaks_them(shown):
    assert shown.training_accuracy == 1
    assert 0.9 < shown.test_accuracy < 0.99
    assert demo.LEARNED + demo.HELD_OUT + shown.test_records == 1797
    assert shown.outcomes[RAW].leak > 0.7
    assert shown.outcomes[TEMPERED].leak > 0.7, "calibration does not hide"


def test_the_rows_are_what_they_are_called(shown):
    assert [outcome.name for outcome in shown.outcomes] == [
        "raw scores",
        "raw, temperature scaled",
        "isotonic veil, ε = 4",
        "fitted veil",
        "fitted veil, ε = 4",
        "the label alone",
    ]


@pytest.mark.parametrize("which", [FITTED, WITH_EPSILON])
def test_a_fitted_veil_hides_members_and_its_confidence_is_worth_something(shown, which):
    isotonic, fitted, label = (shown.outcomes[i] for i in (ISOTONIC, which, LABEL))
    assert abs(fitted.leak - 0.5) < 0.12
    assert label.leak == label.useful == 0.5
    assert fitted.useful > 0.7
    assert fitted.log_loss < label.log_loss < isotonic.log_loss
    assert fitted.calibration_error < shown.outcomes[RAW].calibration_error


def test_no_label_changes(shown):
    assert {outcome.same_label for outcome in shown.outcomes} == {1.0}


def test_what_it_hands_on_fits_the_same_kind_of_veil(shown):
    scores = shown.scores
    again = fit(
        scores.reference, scores.reference_labels, scores.members, scores.member_labels, rng=np.random.default_rng(0)
    )
    assert again.mechanism.table is None is shown.veil.mechanism.table
    assert not shown.veil.is_constant
    assert shown.veil.guarantee.advantage_alone < 0.5


def test_the_network_of_the_gateway_is_the_one_of_the_picture():
    predict, width = demo.digits_model()
    _, scores = demo.train()
    assert width == 64
    assert (len(scores.members), len(scores.reference)) == (demo.TRAINING, demo.REFERENCE)
    assert np.allclose(predict(np.zeros((1, 64), np.float32)).sum(), 1, atol=1e-5)
