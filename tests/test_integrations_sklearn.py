"""The scikit-learn classifier: an estimator like any other, except that raw scores do not come out."""

import json
import math
import os
import pickle
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from scipy.sparse import coo_matrix, csr_matrix
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, RepeatedStratifiedKFold, StratifiedKFold, train_test_split
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC
from xgboost import XGBClassifier

from doc_pages import run_page
from raw_scores import names_that_answer_with
from scoreveil import Veil
from scoreveil.fitting.metrics import auroc
from scoreveil.integrations.sklearn import VeiledClassifier
from scoreveil.mechanisms.mechanism import make
from scoreveil.shapes import MultiLabel

X, X_TEST, Y, Y_TEST = train_test_split(*load_iris(return_X_y=True), test_size=0.4, random_state=0)
SECRET = b"a secret of the tests"
# some of the data here are small, and the noise of a fit differs from run to run
pytestmark = pytest.mark.filterwarnings("ignore:This veil announces the same confidence")


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
    done = check_estimator(VeiledClassifier(inner), on_skip=None)
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
    without = VeiledClassifier(LogisticRegression()).fit(X, Y)
    assert np.array_equal(without.predict(X_TEST), bare.predict(X_TEST))
    assert without.guarantee_.epsilon == math.inf


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
@pytest.mark.filterwarnings("ignore:No members were given")
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
    for name in ("veil_", "guarantee_"):
        with pytest.raises(AttributeError, match="Expected a classifier with predict_proba, got LinearSVC"):
            getattr(without, name)


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
    veiled = VeiledClassifier(inner, random_state=0).fit(X, Y)
    z = veiled.predict_proba(X_TEST)
    assert np.allclose(z.sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(z.argmax(axis=1), veiled.predict(X_TEST))
    assert veiled.score(X_TEST, Y_TEST) > 0.85


class Announced(ClassifierMixin, BaseEstimator):
    """Scores are the features themselves; it remembers what it was trained on, and is sure of that."""

    trained_on: ClassVar[list[np.ndarray]] = []

    def fit(self, X, y, sample_weight=None):
        assert sample_weight is None or len(sample_weight) == len(y)
        self.classes_ = np.unique(y)
        self.known_ = {row.tobytes() for row in np.asarray(X)}
        Announced.trained_on.append(np.asarray(X))
        return self

    def predict_proba(self, X):
        scores = np.asarray(X)[:, : len(self.classes_)] + 1e-3
        scores[[row.tobytes() in self.known_ for row in np.asarray(X)]] **= 3
        return scores / scores.sum(axis=1, keepdims=True)

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def announced(n=1500, classes=3, seed=0):
    """Records, and labels that are right as often as the scores say."""
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(classes, 0.5), n)
    return scores, np.array([rng.choice(classes, p=row) for row in scores])


def test_others_are_scored_out_of_fold_and_the_last_fit_has_all_records():
    records, labels = announced()
    Announced.trained_on.clear()
    VeiledClassifier(Announced(), cv=3, random_state=0).fit(records, labels)
    final, *folds = Announced.trained_on
    assert len(final) == len(records)
    assert [len(rows) for rows in folds] == [1000, 1000, 1000]
    assert len(np.unique(np.concatenate(folds), axis=0)) == len(records)


def test_a_record_is_on_both_sides_and_the_fit_costs_it_both():
    def cost(estimator, **members):
        return VeiledClassifier(estimator, secret=SECRET).fit(X, Y, **members).guarantee_.fit_epsilon

    assert cost(GaussianNB()) == pytest.approx((3.0, 3.0))
    frozen = FrozenEstimator(GaussianNB().fit(X_TEST, Y_TEST))
    assert cost(frozen, members=(X_TEST, Y_TEST), force=True) == pytest.approx((0.5, 2.5))


def test_the_announced_confidence_is_that_of_new_records_and_tells_no_members():
    records, labels = announced(3000)
    new, new_labels = announced(3000, seed=1)
    raw = Announced().fit(records, labels)
    assert auroc(raw.predict_proba(records).max(axis=1), raw.predict_proba(new).max(axis=1)) > 0.65
    for epsilon in (None, 4.0):
        veiled = VeiledClassifier(Announced(), epsilon, secret=SECRET).fit(records, labels)  # by the noise .04 to .09
        inside, outside = veiled.predict_proba(records).max(axis=1), veiled.predict_proba(new).max(axis=1)
        right = veiled.predict(new) == new_labels
        assert abs(outside.mean() - right.mean()) < 0.03, "in-sample scores are much larger"
        assert auroc(outside[right], outside[~right]) > 0.53
        assert abs(auroc(inside, outside) - 0.5) < 0.09
        assert 0.02 <= veiled.guarantee_.advantage < 0.2


def test_parameters_of_the_fit_are_those_of_the_veil():
    records, labels = announced(3000)
    veiled = VeiledClassifier(Announced(), advantage=0.05, beyond="correctness", regions=3).fit(records, labels)
    mechanism = veiled.veil_.mechanism
    assert (mechanism.evidence.asked, mechanism.evidence.beyond) == (0.05, "correctness")
    assert mechanism.size <= 3


def same_map(first, second):
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ("cuts", "announced", "counts"))


@pytest.mark.filterwarnings("ignore:No members were given")
def test_labels_of_any_kind_are_numbered_as_the_classes_are():
    records, labels = announced()
    veils = []
    for names in (np.arange(3), np.array(["ant", "bee", "cat"]), np.array([7, 8, 11]), np.array([0.0, 1.0, 2.0])):
        made = VeiledClassifier(Announced(), secret=SECRET).fit(records, names[labels])
        veils.append(made.veil_.mechanism)
        assert np.array_equal(made.classes_, names)
    assert all(same_map(veil, veils[0]) for veil in veils)
    backwards = VeiledClassifier(FrozenEstimator(Backwards().fit(records, labels)), secret=SECRET).fit(records, labels)
    ordered = VeiledClassifier(FrozenEstimator(Announced().fit(records, labels)), secret=SECRET).fit(records, labels)
    both = [each.predict_proba(records).max(axis=1).mean() for each in (backwards, ordered)]
    assert np.allclose(*both, atol=0.02)


class Backwards(Announced):
    """Its classes are not in order, and its scores are as its classes."""

    def fit(self, X, y):
        super().fit(X, y)
        self.classes_ = self.classes_[::-1]
        return self

    def predict_proba(self, X):
        return super().predict_proba(X)[:, ::-1]


def test_bools_frames_series_and_sparse_records():
    labels = Y == 2
    frame, series = pd.DataFrame(X, columns=list("abcd")), pd.Series(labels, index=np.arange(len(Y))[::-1])
    for records, targets in ((X, labels), (frame, series), (csr_matrix(X), labels), (coo_matrix(X), labels)):
        veiled = VeiledClassifier(forest(), secret=SECRET).fit(records, targets)
        assert np.array_equal(veiled.classes_, [False, True])
        z = veiled.predict_proba(records)
        assert np.array_equal(z.argmax(axis=1) == 1, veiled.predict(records))
        assert np.mean(veiled.predict(records) == labels) > 0.95
    named = VeiledClassifier(make_pipeline(StandardScaler(), forest())).fit(
        frame, pd.Series(Y).map({0: "a", 1: "b", 2: "c"})
    )
    assert list(named.feature_names_in_) == list("abcd")
    assert set(named.predict(frame)) == {"a", "b", "c"}


def test_a_fold_without_a_rare_class_is_placed_by_class():
    rare = np.where(np.arange(len(Y)) == np.argmax(Y == 1), 1, np.where(Y == 1, 0, Y))  # one record of class 1
    with pytest.warns(UserWarning, match="The least populated class"):
        veiled = VeiledClassifier(forest()).fit(X, rare)
    z = veiled.predict_proba(X_TEST)
    assert z.shape == (len(X_TEST), 3)
    assert np.array_equal(veiled.classes_[z.argmax(axis=1)], veiled.predict(X_TEST))
    assert z.max(axis=1).mean() > 0.8, "classes 0 and 2 are told apart with ease"
    with pytest.raises(ValueError, match="n_splits=5 cannot be greater"):
        VeiledClassifier(forest()).fit(X[:8], [0, 0, 0, 0, 1, 1, 1, 1])


def test_folds_are_a_number_a_splitter_or_pairs():
    records, labels = announced(300)
    everything = np.arange(300)
    for cv in (2, StratifiedKFold(2), [(everything[:150], everything[150:])]):
        Announced.trained_on.clear()
        VeiledClassifier(Announced(), cv=cv).fit(records, labels)
        assert [len(rows) for rows in Announced.trained_on[1:]] == [150] * (1 if isinstance(cv, list) else 2)
    with pytest.raises(ValueError, match="tests each record at most once"):
        VeiledClassifier(Announced(), cv=RepeatedStratifiedKFold(n_splits=2, n_repeats=2)).fit(records, labels)


def test_weights_follow_the_rows_that_are_trained_on():
    weights = np.where(Y == 2, 1e-9, 1.0)
    veiled = VeiledClassifier(LogisticRegression(), random_state=0).fit(X, Y, sample_weight=weights)
    assert set(veiled.predict(X_TEST)) == {0, 1}
    records, labels = announced(300)
    VeiledClassifier(Announced(), cv=3).fit(records, labels, sample_weight=np.ones(300))  # which compares lengths


def test_a_frozen_model_is_not_fitted_again_and_without_members_no_advantage_is_stated():
    bare = forest().fit(X, Y)
    for frozen in (FrozenEstimator(bare), make_pipeline(FunctionTransformer(), FrozenEstimator(bare))):
        veiled = VeiledClassifier(frozen)
        with pytest.warns(UserWarning, match="about membership is bounded by nothing"):
            veiled.fit(X_TEST[:40], Y_TEST[:40])
        assert np.array_equal(veiled.predict(X_TEST), bare.predict(X_TEST))
        assert veiled.guarantee_.advantage_alone is None
        again = clone(veiled).fit(X_TEST, Y_TEST, members=(X, Y))
        assert np.array_equal(again.predict(X_TEST), bare.predict(X_TEST))
        assert again.guarantee_.advantage_alone is not None
    with pytest.raises(ValueError, match="This estimator is fitted"):
        VeiledClassifier(FrozenEstimator(bare)).set_params(estimator__n_estimators=3)
    with pytest.raises(ValueError, match="labels that the classifier knows, got 60 records with others"):
        VeiledClassifier(FrozenEstimator(bare)).fit(X_TEST, np.full(60, 5))


def test_with_members_a_frozen_model_gets_the_veil_that_fit_would_give():
    records, labels = announced(3000)
    new, new_labels = announced(3000, seed=1)
    raw = Announced().fit(records, labels)
    veiled = VeiledClassifier(FrozenEstimator(raw), secret=SECRET).fit(new, new_labels, members=(records, labels))
    leaks = [
        abs(auroc(scores_of(records).max(axis=1), scores_of(new).max(axis=1)) - 0.5)
        for scores_of in (raw.predict_proba, veiled.predict_proba)
    ]
    assert leaks[0] > 0.25
    assert leaks[1] < 0.1  # .03 to .09, as the noise of the fit falls
    evidence, promise = veiled.veil_.mechanism.evidence, veiled.guarantee_
    assert (evidence.sizes, promise.confidence) == ((3000, 3000), 0.95)
    assert 0.02 <= promise.advantage < 0.2


@pytest.mark.filterwarnings("ignore:.*too few to certify")
def test_a_frozen_model_with_members_can_be_certified():
    frozen = FrozenEstimator(GaussianNB().fit(X_TEST, Y_TEST))
    veiled = VeiledClassifier(frozen, certify=0.5, secret=SECRET).fit(X, Y, members=(X_TEST, Y_TEST), force=True)
    assert veiled.guarantee_.evidence_kind == "finite-sample"
    assert veiled.veil_.mechanism.evidence.sizes == (len(X) // 2, len(X_TEST) // 2)


def test_sides_of_a_frozen_model_that_seem_swapped_are_refused_unless_forced():
    records, _ = announced(600)
    certain = Announced().fit(records, records.argmax(axis=1))
    given = {"X": records, "y": records.argmax(axis=1), "members": announced(600, seed=1)}
    veiled = VeiledClassifier(FrozenEstimator(certain))
    with pytest.raises(ValueError, match=r"Are the two sides swapped.*force=True"):
        veiled.fit(**given)
    assert veiled.fit(**given, force=True).guarantee_.advantage_alone is not None


@pytest.mark.parametrize(
    ("veiled", "members", "message"),
    [
        (VeiledClassifier(forest()), (X, Y), "members are for a veil that is fitted to a FrozenEstimator"),
        (VeiledClassifier(FrozenEstimator(forest().fit(X, Y)), Veil(2.0)), (X, Y), "members are for a veil"),
        (VeiledClassifier(FrozenEstimator(forest().fit(X, Y))), X, r"Expected members=\(X, y\)"),
    ],
)
def test_members_that_have_no_use_are_refused(veiled, members, message):
    with pytest.raises(ValueError, match=message):
        veiled.fit(X_TEST, Y_TEST, members=members)


def test_members_are_handed_on_whole_by_scikit_learn():
    records, labels = announced(600)
    frozen = FrozenEstimator(Announced().fit(records, labels))
    search = GridSearchCV(VeiledClassifier(frozen), {"advantage": [0.02, 0.1]}, cv=2, error_score="raise")
    new, new_labels = announced(600, seed=1)
    search.fit(new, new_labels, members=(records, labels))  # as many records as in the search: they are not divided
    assert search.best_estimator_.veil_.mechanism.evidence.sizes == (600, 600)


def test_a_whole_veil_or_a_mechanism_is_not_fitted():
    for epsilon in (None, 4.0):
        fitted = VeiledClassifier(forest(), epsilon, secret=SECRET).fit(X, Y)
        for given in (fitted.veil_, fitted.veil_.with_secret(SECRET), fitted.veil_.mechanism):
            veiled = VeiledClassifier(forest(), given, cv="never read", secret=SECRET).fit(X, Y)
            assert np.array_equal(clone(veiled).fit(X, Y).predict_proba(X_TEST), fitted.predict_proba(X_TEST))
    whole = VeiledClassifier(forest(), Veil(2.0, keep=2), cv="never read").fit(X, Y)
    assert whole.veil_.mechanism.keep == 2


def test_the_veil_comes_out_without_its_secret_and_can_be_saved(tmp_path):
    for epsilon in (None, 3.0):
        veiled = VeiledClassifier(forest(), epsilon, model="iris", secret=SECRET).fit(X, Y)
        assert not veiled.veil_.is_keyed
        veiled.veil_.save(tmp_path / "veil.json")
        loaded = Veil.load(tmp_path / "veil.json")
        assert (loaded.epsilon, loaded.model) == (math.inf if epsilon is None else 3.0, "iris")
        assert loaded.guarantee == veiled.guarantee_


def test_fitted_again_it_is_the_same_veil_and_other_records_have_other_noise():
    records, labels = announced(600)
    veiled = VeiledClassifier(Announced(), random_state=0)
    first = veiled.fit(records, labels).veil_.mechanism
    second = veiled.fit(records, labels).veil_.mechanism
    assert same_map(first, second)
    moved = records.copy()
    moved[0] = moved[0][::-1]
    third = veiled.fit(moved, labels).veil_.mechanism
    assert not same_map(first, third)
    other_secret = clone(veiled).fit(records, labels).veil_.mechanism
    assert not same_map(first, other_secret)


def test_pipeline_grid_search_and_calibration():
    pipeline = make_pipeline(StandardScaler(), VeiledClassifier(LogisticRegression(), cv=2, secret=SECRET))
    pipeline.set_output(transform="pandas")
    grid = {"veiledclassifier__advantage": [0.02, 0.1], "veiledclassifier__estimator__C": [0.1, 1.0]}
    search = GridSearchCV(pipeline, grid, scoring="neg_log_loss", cv=2).fit(X, Y)
    assert np.all(np.isfinite(search.cv_results_["mean_test_score"]))
    assert list(search.best_estimator_[-1].feature_names_in_) == ["x0", "x1", "x2", "x3"]
    inside = VeiledClassifier(CalibratedClassifierCV(GaussianNB(), cv=2), 2.0).fit(X, Y)
    outside = CalibratedClassifierCV(VeiledClassifier(GaussianNB(), 8.0, cv=2), cv=2).fit(X, Y)
    for model in (search, inside, outside):
        assert np.mean(model.predict(X_TEST) == Y_TEST) > 0.8
        assert np.allclose(model.predict_proba(X_TEST).sum(axis=1), 1)


def test_answers_are_sticky_and_survive_pickling():
    veiled = VeiledClassifier(forest(), Veil(2.0)).fit(X, Y)
    z = veiled.predict_proba(X_TEST)
    assert np.array_equal(veiled.predict_proba(X_TEST), z)
    assert np.array_equal(pickle.loads(pickle.dumps(veiled)).predict_proba(X_TEST), z)
    others = clone(veiled).fit(X, Y).predict_proba(X_TEST)
    assert not np.array_equal(others, z), "a clone draws a key of its own"
    keyed = [VeiledClassifier(forest(), 2.0, secret=SECRET).fit(X, Y).predict_proba(X_TEST) for _ in range(2)]
    assert np.array_equal(*keyed)


ELSEWHERE = "import pickle, sys; sys.stdout.buffer.write(pickle.load(sys.stdin.buffer).predict_proba({}).tobytes())"


def test_a_veil_without_epsilon_answers_alike_in_another_process_without_a_secret():
    veiled = VeiledClassifier(forest()).fit(X, Y)
    command = [sys.executable, "-c", ELSEWHERE.format(X_TEST[:5].tolist())]
    ran = subprocess.run(command, input=pickle.dumps(veiled), capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == veiled.predict_proba(X_TEST[:5]).tobytes()
    drawn = VeiledClassifier(forest(), 4.0).fit(X, Y)
    refused = subprocess.run(command, input=pickle.dumps(drawn), capture_output=True)
    assert b"SCOREVEIL_SECRET_FILE" in refused.stderr


@pytest.mark.parametrize(
    ("veiled", "message"),
    [
        (VeiledClassifier(LinearRegression(), 2.0), "Expected a classifier, got LinearRegression"),
        (VeiledClassifier(GaussianNB(), -1.0), "Expected a finite epsilon > 0"),
        (VeiledClassifier(GaussianNB(), advantage=2.0), "Expected an advantage from 0.0001 to 1"),
        (VeiledClassifier(GaussianNB(), regions=9), "Expected regions to be a whole number from 1 to 8"),
        (VeiledClassifier(GaussianNB(), certify=0.5), "certify needs a FrozenEstimator and its members"),
        (VeiledClassifier(GaussianNB(), certify=2.0), "Expected certify to be a part from 0.05 to 0.95"),
        (VeiledClassifier(GaussianNB(), beyond="all"), "Expected beyond to be 'label' or 'correctness'"),
        (VeiledClassifier(GaussianNB(), Veil(2.0), model="m"), "A veil has its options already"),
        (VeiledClassifier(GaussianNB(), cv="five"), "Expected `cv` as an integer"),
        (VeiledClassifier(GaussianNB(), 2.0, secret=b"short"), "Expected a secret of at least 16 bytes"),
    ],
)
def test_what_cannot_be_fitted_says_why(veiled, message):
    with pytest.raises(ValueError, match=message):
        veiled.fit(X, Y)


def test_labels_of_many_values_and_one_class_are_refused():
    with pytest.raises(ValueError, match="one label a record, or several that are 0 or 1, got 2 others"):
        VeiledClassifier(forest(), 2.0).fit(X, np.stack([Y, Y], axis=1))
    with pytest.raises(ValueError, match="at least 2 classes"):
        VeiledClassifier(forest(), 2.0).fit(X, np.zeros(len(X)))


# Several labels a record

TAGGED, TAGS = make_multilabel_classification(300, n_classes=3, random_state=0)
SEVERAL = [
    OneVsRestClassifier(LogisticRegression(max_iter=500)),
    MultiOutputClassifier(KNeighborsClassifier(4)),  # of four neighbours two may say yes, which is no
    RandomForestClassifier(10, random_state=0),
]


@pytest.mark.parametrize(
    "options",
    [{"epsilon": 4.0}, {}, {"epsilon": make(4.0, "isotonic")}],
    ids=["fitted with ε", "fitted", "isotonic"],
)
@pytest.mark.parametrize("inner", SEVERAL, ids=lambda inner: type(inner).__name__)
def test_each_of_several_labels_keeps_its_yes_or_no(inner, options):
    bare, veiled = clone(inner).fit(TAGGED, TAGS), VeiledClassifier(inner, cv=2, **options).fit(TAGGED, TAGS)
    raw, z = bare.predict_proba(TAGGED), veiled.predict_proba(TAGGED)
    np.testing.assert_array_equal(veiled.predict(TAGGED), bare.predict(TAGGED))
    assert type(z) is type(raw)
    assert np.shape(z) == np.shape(raw)
    yes, before = (np.column_stack([p[:, 1] for p in each]) if isinstance(each, list) else each for each in (z, raw))
    np.testing.assert_array_equal(yes > 0.5, bare.predict(TAGGED) == 1)
    assert np.abs(yes - before).max() > 0.01
    np.testing.assert_array_equal(veiled.predict_proba(TAGGED), z)  # sticky
    np.testing.assert_allclose(np.exp(veiled.predict_log_proba(TAGGED)), z)
    assert any("m labels spends m · ε" in limit for limit in veiled.guarantee_.limits)


def test_a_veil_of_several_labels_comes_out_with_its_shape(tmp_path):
    veiled = VeiledClassifier(SEVERAL[0], 4.0, cv=2, random_state=0).fit(TAGGED, csr_matrix(TAGS))
    veiled.veil_.save(tmp_path / "veil.json")
    again = VeiledClassifier(SEVERAL[0], Veil.load(tmp_path / "veil.json")).fit(TAGGED, TAGS)
    assert again.veil_.shape.name == "multi_label"
    assert ((again.predict_proba(TAGGED) > 0.5) == again.predict(TAGGED)).all()


def test_a_label_that_nobody_has_keeps_its_one_column():
    tags = np.column_stack([TAGS, np.zeros(len(TAGS), dtype=int)])
    veiled = VeiledClassifier(SEVERAL[1], Veil(4.0, shape=MultiLabel())).fit(TAGGED, tags)
    found = veiled.predict_proba(TAGGED)
    assert [each.shape[1] for each in found] == [2, 2, 2, 1]
    assert (found[3] == 1).all()


def test_a_veil_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"Expected a veil with shape=MultiLabel\(\)"):
        VeiledClassifier(SEVERAL[0], Veil(2.0)).fit(TAGGED, TAGS)
    with pytest.raises(ValueError, match="Expected a veil for score vectors"):
        VeiledClassifier(forest(), Veil(2.0, shape=MultiLabel())).fit(X, Y)


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it saves a veil
    names = run_page("sklearn")
    assert names["model"].score(names["X_test"], names["y_test"]) > 0.8
