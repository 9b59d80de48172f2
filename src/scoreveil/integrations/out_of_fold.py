"""Scores of records that a scikit-learn classifier was trained on, and of others: what a veil is fitted on."""

import hashlib
import numbers
from functools import partial
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.utils import _safe_indexing, column_or_1d, indexable
from sklearn.utils.validation import _num_samples

from scoreveil.fitting.neighbours import MAX_RECORDS, Asked
from scoreveil.randomness import KeyedDraws
from scoreveil.shapes import VECTORS, MultiLabel, Shape
from scoreveil.smoothing import Smoothing, smoothed_scores
from scoreveil.tables.label_columns import yes_columns

Records = tuple[Any, Any]  # and their labels

SEVERAL = MultiLabel(threshold=float(np.nextafter(0.5, 1)))  # scikit-learn says yes where p > 1/2


class Sides(TypedDict, total=False):
    """Scores and labels, as `fitting.fit` takes them."""

    nonmembers: NDArray[Any]
    nonmember_labels: NDArray[Any]
    members: NDArray[Any]
    member_labels: NDArray[Any]


class Fold(NamedTuple):
    """A classifier, the rows that it was trained on, and those that it is tested on."""

    model: Any
    trained_on: NDArray[Any]
    tested: NDArray[Any]


def shape_of(several: bool) -> Shape:
    """How a classifier's scores are served, of one label a record or of several."""
    return SEVERAL if several else VECTORS


def checked_labels(y: Any) -> Any:
    """One label a record; or a matrix of 0 and 1, a column for each of several."""
    y = y.toarray() if hasattr(y, "toarray") else y
    shape = np.asarray(y).shape
    if len(shape) < 2:
        return y
    if shape[1] == 1:
        return column_or_1d(y, warn=True)
    if len(shape) > 2 or not np.isin(np.asarray(y), (0, 1)).all():
        raise ValueError(f"Expected one label a record, or several that are 0 or 1, got {shape[1]} others.")
    return np.asarray(y)


def are_several(y: Any) -> bool:
    return np.asarray(y).ndim == 2


def trained_folds(estimator: Any, X: Any, y: Any, cv: Any, random_state: Any, fit_params: dict[str, Any]) -> list[Fold]:
    """Clones of an estimator, each trained on a part of the records, to be tested on others."""
    X, y = indexable(X, y)
    records = _num_samples(y)
    splitter = check_cv(cv, y, classifier=True)
    if isinstance(cv, numbers.Integral) and random_state is not None:
        kind = KFold if are_several(y) else StratifiedKFold
        splitter = kind(cv, shuffle=True, random_state=random_state)
    folds, times_tested = [], np.zeros(records, dtype=np.int64)
    for trained_on, tested in splitter.split(X, y):
        params = {name: _rows(value, trained_on, records) for name, value in fit_params.items()}
        folds.append(Fold(clone(estimator).fit(*_taken(X, y, trained_on), **params), trained_on, tested))
        times_tested[tested] += 1
    if times_tested.max() > 1:
        raise ValueError("Expected a cv that tests each record at most once, got one that tests some repeatedly.")
    return folds


def _taken(X: Any, y: Any, rows: NDArray[Any]) -> Records:
    return _safe_indexing(X, rows), _safe_indexing(y, rows)


def _rows(value: Any, rows: NDArray[Any], total: int) -> Any:
    """A parameter of `fit` for these rows, where it has one value a row."""
    return _safe_indexing(value, rows) if hasattr(value, "__len__") and len(value) == total else value


def models_with_sides(folds: list[Fold], X: Any, y: Any) -> list[tuple[Any, Records, Records]]:
    """Each fold's classifier, with the records that it was trained on, and those that it is tested on."""
    X, y = indexable(X, y)
    return [(fold.model, _taken(X, y, fold.trained_on), _taken(X, y, fold.tested)) for fold in folds]


def asked(models: list[tuple[Any, Records, Records]], classes: NDArray[Any], rng: np.random.Generator) -> list[Asked]:
    """Classifiers that an attacker asks, with some records of both sides."""
    attacked = []
    for model, *sides in models:
        most = min(MAX_RECORDS // len(models), *(_num_samples(records) for records, _ in sides))
        taken = [_taken(records, labels, rng.permutation(_num_samples(records))[:most]) for records, labels in sides]
        inside, outside = ((records, class_numbers(np.asarray(labels), classes)) for records, labels in taken)
        attacked.append(Asked(partial(aligned, model, classes), *inside, *outside))
    return attacked


def both_sides(folds: list[Fold], fitted: Any, X: Any, y: Any, smoothing: Smoothing | None) -> Sides:
    """The records as others, scored by classifiers that were not trained on them, and as the final one's own."""
    X, y = indexable(X, y)
    members, labels = _scored(fitted, X, y, smoothing)
    scores = [
        aligned(fold.model, fitted.classes_, _safe_indexing(X, fold.tested), are_several(y), smoothing)
        for fold in folds
    ]
    tested = np.concatenate([fold.tested for fold in folds])
    order = np.argsort(tested, kind="stable")
    return Sides(
        nonmembers=np.concatenate(scores)[order],
        nonmember_labels=labels[tested[order]],
        members=members,
        member_labels=labels,
    )


def given_sides(classifier: Any, X: Any, y: Any, members: Any, smoothing: Smoothing | None) -> Sides:
    """Both sides of a frozen classifier, where members are given."""
    nonmembers, nonmember_labels = _scored(classifier, X, y, smoothing)
    sides = Sides(nonmembers=nonmembers, nonmember_labels=nonmember_labels)
    if members is not None:
        if not isinstance(members, (tuple, list)) or len(members) != 2:
            raise ValueError("Expected members=(X, y): records that the frozen classifier was trained on, and labels.")
        X_in, y_in = members
        sides["members"], sides["member_labels"] = _scored(classifier, X_in, checked_labels(y_in), smoothing)
    return sides


def _scored(classifier: Any, X: Any, y: Any, smoothing: Smoothing | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores of records, and their labels as numbers."""
    several, labels = are_several(y), np.asarray(y)
    return (
        scores_of(classifier, X, several, smoothing),
        labels if several else class_numbers(labels, classifier.classes_),
    )


def aligned(
    part: Any, classes: NDArray[Any], X: Any, several: bool = False, smoothing: Smoothing | None = None
) -> NDArray[Any]:
    """Scores of a classifier with a column for each of these classes: a rare one may be missing in a fold."""
    own = scores_of(part, X, several, smoothing)
    if several:
        return own
    scores = np.zeros((len(own), len(classes)))
    scores[:, class_numbers(part.classes_, classes)] = own
    return scores


def scores_of(classifier: Any, X: Any, several: bool, smoothing: Smoothing | None = None) -> NDArray[Any]:
    """Raw scores; of several labels a record the probability of each one's yes."""

    def ask(records: Any) -> NDArray[Any]:
        answer = classifier.predict_proba(records)
        return yes_columns(answer, classifier.classes_) if several else np.asarray(answer)

    return ask(X) if smoothing is None else smoothed_scores(ask, X, smoothing, shape_of(several))


def class_numbers(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each label among the classes."""
    order = np.argsort(classes)
    places = order[np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)]
    unknown = np.count_nonzero(classes[places] != labels)
    if unknown:
        raise ValueError(f"Expected labels that the classifier knows, got {unknown} records with others.")
    return np.asarray(places)


class FitNoise:
    """Uniforms for the noise of a fit, a function of the secret and of the records: fitted again, it is the same.

    Fresh noise on the same records would be another look at them.
    """

    def __init__(self, draws: KeyedDraws, sides: Sides) -> None:
        state = hashlib.sha256()
        for array in sides.values():
            state.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        self._draws, self._records, self._calls = draws, state.digest(), 0

    def random(self, size: int) -> NDArray[np.float64]:
        self._calls += 1
        message = np.frombuffer(self._records + self._calls.to_bytes(4, "little"), dtype=np.uint8)
        return self._draws.uniforms(message[None], size)[0]
