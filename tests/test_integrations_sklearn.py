"""The scikit-learn classifier: an estimator like any other, except that raw scores do not come out."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from xgboost import XGBClassifier

from doc_pages import run_page
from raw_scores import names_that_answer_with
from scoreveil.integrations.sklearn import VeiledClassifier

X, X_TEST, Y, Y_TEST = train_test_split(*load_iris(return_X_y=True), test_size=0.4, random_state=0)
SECRET = b"a secret of the tests"


def forest() -> RandomForestClassifier:
    return RandomForestClassifier(20, random_state=0)


# in a process of its own, since one of the checks needs SCIPY_ARRAY_API before the first import
CHECKS = """
import json
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator
from scoreveil.integrations.sklearn import VeiledClassifier
from scoreveil.mechanisms import loading

loading.wait()  # filters of warnings are the process's, and loading in another thread sets some
for inner in (DecisionTreeClassifier(random_state=0), KNeighborsClassifier()):
    done = check_estimator(VeiledClassifier(inner, 2.0), on_skip=None)
    print(json.dumps([check["status"] for check in done]))
"""


@pytest.mark.slow
def test_scikit_learns_own_checks_pass():
    command = [sys.executable, "-W", "ignore", "-c", CHECKS]  # checks fit tiny data, and classifiers say so
    ran = subprocess.run(command, env={**os.environ, "SCIPY_ARRAY_API": "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    tree, neighbours = map(json.loads, ran.stdout.splitlines())
    assert min(len(tree), len(neighbours)) > 50
    assert {*tree, *neighbours} == {"passed"}, "and none is skipped"


def test_labels_stay_and_probabilities_are_veiled():
    bare, veiled = LogisticRegression().fit(X, Y), VeiledClassifier(LogisticRegression(), 2.0).fit(X, Y)
    z = veiled.predict_proba(X_TEST)
    assert np.array_equal(veiled.predict(X_TEST), bare.predict(X_TEST))
    assert veiled.score(X_TEST, Y_TEST) == bare.score(X_TEST, Y_TEST)
    assert np.array_equal(z.argmax(axis=1), bare.predict_proba(X_TEST).argmax(axis=1))
    assert np.all(np.any(np.abs(z - bare.predict_proba(X_TEST)) > 1e-9, axis=1))
    assert np.allclose(np.exp(veiled.predict_log_proba(X_TEST)), z)
    assert veiled.guarantee_.epsilon == 2.0


def raw_scores_reachable_from(veiled) -> list[str]:
    raw, asks = forest().fit(X, Y).predict_proba(X_TEST), [((X_TEST,), {}), ((X_TEST, Y_TEST), {})]
    found = names_that_answer_with(raw, veiled, asks)
    for name, value in veiled.get_params(deep=True).items():
        found += [f"get_params()[{name!r}]{path}" for path in names_that_answer_with(raw, value, asks)]
    return found


@pytest.mark.parametrize(
    "inner",
    [
        forest(),
        forest().fit(X, Y),
        FrozenEstimator(forest().fit(X, Y)),
        make_pipeline(StandardScaler(with_mean=False, with_std=False), FrozenEstimator(forest().fit(X, Y))),
    ],
    ids=["fresh", "fitted", "frozen", "frozen in a pipeline"],
)
def test_no_public_name_leads_to_raw_scores(inner):
    assert raw_scores_reachable_from(VeiledClassifier(inner, 2.0).fit(X, Y)) == []


def test_the_search_for_raw_scores_finds_them_where_they_are():
    assert ".predict_proba" in raw_scores_reachable_from(forest().fit(X, Y))


def test_the_decision_function_is_refused():
    veiled = VeiledClassifier(LogisticRegression(), 2.0).fit(X, Y)
    assert not hasattr(veiled, "decision_function")
    with pytest.raises(AttributeError, match="Expected predict_proba"):
        veiled.decision_function(X)
    without = VeiledClassifier(LinearSVC(), 2.0).fit(X, Y)
    assert not hasattr(without, "predict_proba")
    assert without.score(X_TEST, Y_TEST) > 0.8


def test_options_of_the_wrapped_library_do_not_get_through():
    veiled = VeiledClassifier(LGBMClassifier(n_estimators=3, verbose=-1), 2.0).fit(X, Y)
    for method in (veiled.predict, veiled.predict_proba):
        with pytest.raises(TypeError):
            method(X_TEST, raw_score=True)


@pytest.mark.parametrize(
    "inner",
    [XGBClassifier(n_estimators=5, n_jobs=1), LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1)],
    ids=["xgboost", "lightgbm"],
)
def test_boosted_trees(inner):
    veiled = VeiledClassifier(inner, 2.0, reference=0.3, random_state=0).fit(X, Y)
    z = veiled.predict_proba(X_TEST)
    assert np.allclose(z.sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(z.argmax(axis=1), veiled.predict(X_TEST))
    assert veiled.score(X_TEST, Y_TEST) > 0.85


def test_a_held_out_part_is_not_trained_on_and_becomes_the_reference():
    seen = []

    class Recording(KNeighborsClassifier):
        def fit(self, X, y):
            seen.append(len(X))
            return super().fit(X, y)

    veiled = VeiledClassifier(Recording(), 2.0, reference=0.3, random_state=0).fit(X, Y)
    assert seen == [len(X) - round(0.3 * len(X))]
    plain = VeiledClassifier(KNeighborsClassifier(), 2.0).fit(X, Y)
    bare = KNeighborsClassifier().fit(X, Y).predict_proba(X_TEST)
    assert np.abs(veiled.predict_proba(X_TEST) - bare).mean() < np.abs(plain.predict_proba(X_TEST) - bare).mean()


def test_weights_follow_the_rows_that_are_trained_on():
    weights = np.where(Y == 2, 1e-9, 1.0)
    veiled = VeiledClassifier(LogisticRegression(), 2.0, reference=0.3, random_state=0)
    veiled.fit(X, Y, sample_weight=weights)
    assert set(veiled.predict(X_TEST)) == {0, 1}


def test_a_frozen_model_is_not_fitted_again():
    bare = forest().fit(X, Y)
    veiled = VeiledClassifier(FrozenEstimator(bare), 2.0, reference=1.0).fit(X_TEST[:40], np.roll(Y_TEST[:40], 7))
    assert np.array_equal(veiled.predict(X_TEST), bare.predict(X_TEST))
    again = clone(veiled).fit(X_TEST, Y_TEST)
    assert np.array_equal(again.predict(X_TEST), bare.predict(X_TEST))
    with pytest.raises(ValueError, match="This estimator is fitted"):
        veiled.set_params(estimator__n_estimators=3)


def test_pipeline_grid_search_and_calibration():
    pipeline = make_pipeline(StandardScaler(), VeiledClassifier(LogisticRegression(), 2.0, secret=SECRET))
    grid = {"veiledclassifier__epsilon": [0.5, 50.0], "veiledclassifier__estimator__C": [0.1, 1.0]}
    search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=2).fit(X, Y)
    assert search.best_params_["veiledclassifier__epsilon"] == 50.0
    inside = VeiledClassifier(CalibratedClassifierCV(GaussianNB(), cv=2), 2.0).fit(X, Y)
    outside = CalibratedClassifierCV(VeiledClassifier(GaussianNB(), 8.0), cv=2).fit(X, Y)
    for model in (search, inside, outside):
        assert np.mean(model.predict(X_TEST) == Y_TEST) > 0.8
        assert np.allclose(model.predict_proba(X_TEST).sum(axis=1), 1)


def test_answers_are_sticky_and_survive_pickling():
    veiled = VeiledClassifier(forest(), 2.0, reference=0.2, random_state=0).fit(X, Y)
    z = veiled.predict_proba(X_TEST)
    assert np.array_equal(veiled.predict_proba(X_TEST), z)
    assert np.array_equal(pickle.loads(pickle.dumps(veiled)).predict_proba(X_TEST), z)
    others = clone(veiled).fit(X, Y).predict_proba(X_TEST)
    assert not np.array_equal(others, z), "a clone draws a key of its own"
    keyed = [VeiledClassifier(forest(), 2.0, secret=SECRET).fit(X, Y).predict_proba(X_TEST) for _ in range(2)]
    assert np.array_equal(*keyed)


@pytest.mark.parametrize(
    ("veiled", "message"),
    [
        (VeiledClassifier(LinearRegression(), 2.0), "Expected a classifier, got LinearRegression"),
        (VeiledClassifier(GaussianNB(), -1.0), "Expected a finite epsilon > 0"),
        (VeiledClassifier(GaussianNB(), 2.0, reference=1.0), "Expected a held-out fraction"),
        (VeiledClassifier(GaussianNB(), 2.0, reference=True), "Expected a held-out fraction"),
        (VeiledClassifier(GaussianNB(), 2.0, secret=b"short"), "Expected a secret of at least 16 bytes"),
        (VeiledClassifier(GaussianNB(), 2.0, mechanism="published", reference=0.2), "has no option 'reference'"),
    ],
)
def test_what_cannot_be_fitted_says_why(veiled, message):
    with pytest.raises(ValueError, match=message):
        veiled.fit(X, Y)


def test_several_labels_a_record_and_one_class_are_refused():
    with pytest.raises(ValueError, match="one label a record"):
        VeiledClassifier(forest(), 2.0).fit(X, np.stack([Y, Y], axis=1))
    with pytest.raises(ValueError, match="at least 2 classes"):
        VeiledClassifier(forest(), 2.0).fit(X, np.zeros(len(X)))


def test_the_page_runs():
    names = run_page("sklearn")
    assert names["model"].score(names["X_test"], names["y_test"]) > 0.8
