"""The demo's study shows what the paper's attacker misses, and what the fitted veil leaves."""

from dataclasses import replace

import pytest

from scoreveil.audit.study import digits
from scoreveil.audit.study.results import best

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "PLAN", replace(digits.PLAN, jobs=1))  # the tests' workers use the cores already
        return digits.run("test")


def test_the_published_mechanism_stops_the_papers_attacker_and_not_the_adaptive_one(found):
    undefended = best(found, ("none", None), reads="scores")
    assert undefended.auc > 0.7
    for epsilon in filter(None, digits.EPSILONS):
        paper = best(found, ("published", epsilon), attack="ml_leaks", form="paper")
        adaptive = best(found, ("published", epsilon), reads="scores", form="adaptive")
        assert abs(paper.accuracy - 0.5) < 0.03
        assert adaptive.auc > 0.62


def test_the_fitted_veil_stops_both_down_to_the_floor(found):
    for knows_label, name in ((False, "label_floor"), (True, "label_floor_known")):
        floor = max(0.5, best(found, ("none", None), attack=name).auc)
        for epsilon in digits.EPSILONS:
            left = best(found, ("regions", epsilon), reads="scores", knows_label=knows_label)
            # within the noise: half the width of the 95 % interval is about .03
            assert left.auc < floor + 0.02 + (left.auc_high - left.auc_low) / 2


def test_no_accuracy_is_lost(found):
    assert len({d.test_accuracy for d in found.defenses}) == 1
