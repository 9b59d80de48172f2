"""Coins in one training run: what they prove is below what is promised, and a broken promise is found."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from scoreveil import Veil
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.study.canaries import release_canaries
from scoreveil.audit.study.results import from_json, to_json
from synthetic_study import make_study

K = 3
HONEST_RUNS, MAX_ALARMS = 40, 6  # where each errs in 5 %, more in 3 of 1,000


class Sure:
    """Its label never depends on what it was trained on, but it is sure of what it was."""

    def fit(self, x, y):
        self.seen = {row.tobytes() for row in x}

    def predict_proba(self, x):
        top = np.array([1.0 if row.tobytes() in self.seen else 0.34 for row in x])
        scores = np.repeat((1 - top)[:, None] / (K - 1), K, axis=1)
        scores[np.arange(len(x)), x[:, 0].astype(np.int64)] = top
        return scores


def data(count, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3))
    x[:, 0] = rng.integers(0, K, count)
    return x, x[:, 0].astype(np.int64)


def released(architecture, settings, count=400, seed=0):
    parts = [data(size, 10 * seed + i) for i, size in enumerate((200, 600, 200))]
    return {r.setting: r for r in release_canaries(architecture, *parts, settings, count, seed)}


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 6.0])
def test_an_honest_veil_is_not_accused(epsilon):
    """Not even where the scores say all: the model is sure of what it has seen, and of nothing else."""
    setting, proved = ("isotonic", epsilon), []
    for seed in range(HONEST_RUNS):
        found = released(Sure, [setting], seed=seed)[setting]
        assert found.promised == epsilon
        proved.append(found.beyond_label.epsilon)
    assert sum(one > epsilon for one in proved) <= MAX_ALARMS
    assert max(proved) > 0.2 * epsilon  # and it is not idle


def test_a_veil_that_breaks_its_promise_is_found(monkeypatch):
    """It says ε = 0.5, and draws with ε = 4."""

    def broken(given):
        return Veil(8 * given.epsilon, rng=np.random.default_rng(given.seed))

    setting = ("isotonic", 0.5)
    assert released(Sure, [setting])[setting].beyond_label.epsilon <= 0.5
    monkeypatch.setitem(DEFENSES, "isotonic", replace(DEFENSES["isotonic"], make=broken))
    found = released(Sure, [setting])[setting]
    assert found.beyond_label.epsilon > 2 * found.promised


def test_what_the_label_tells_is_not_held_against_the_veil():
    """A tree learns wrong labels by heart, so the label alone gives coins away: in all, not beyond the label."""
    settings = [("none", None), ("label_only", None), ("label_noise", None)]
    found = released(DecisionTreeClassifier, settings)
    alone = found["label_only", None]
    assert alone.in_all.epsilon > 2
    assert (alone.beyond_label.epsilon, alone.promised) == (0.0, 0.0)
    assert alone.beyond_label.canaries < 100 < alone.in_all.canaries == 400
    assert found["label_noise", None].beyond_label is None  # it does not keep the label
    assert found["none", None].promised is None


def test_guesses_are_counted():
    found = released(Sure, [("none", None)])["none", None]
    for one in (found.in_all, found.beyond_label):
        assert one.right == one.guesses <= one.canaries <= found.canaries == 400
        assert one.epsilon > 2


def test_what_promises_beyond_the_order_promises_nothing_beyond_the_label():
    settings = [("isotonic_all", 2.0), ("regions", 2.0), ("regions", None), ("label_constant", None)]
    found = released(Sure, settings, count=40)
    assert [found[one].promised for one in settings] == [None, 2.0, None, 0.0]


def test_too_few_or_too_many_are_refused():
    for count in (19, 601):
        with pytest.raises(ValueError, match=f"from 20 canaries to the 600 non-members .* got {count}"):
            released(Sure, [], count)
    with pytest.raises(ValueError, match="fit and predict_proba"):
        released(dict, [], 40)


def test_it_is_kept_with_the_results_and_older_files_are_read():
    bare = make_study(epsilons=(2.0,), rivals={}, inversions=())
    found = released(Sure, [("none", None), ("label_noise", None)], count=40)
    study = replace(bare, canaries=tuple(found.values()))
    assert from_json(to_json(study)) == study
    assert from_json(to_json(bare).replace('"canaries": [\n\n],\n', "")) == bare
