"""scikit-learn: a classifier whose probabilities are veiled.

    from sklearn.linear_model import LogisticRegression
    from scoreveil.integrations.sklearn import VeiledClassifier

    model = VeiledClassifier(LogisticRegression(), epsilon=2.0, reference=0.2).fit(X, y)
    model.predict_proba(X)

A meta-estimator: `predict` is the wrapped classifier's, `predict_proba` and `predict_log_proba` are veiled, and
`decision_function` is refused. Nothing else is passed through, and no public name leads to the fitted classifier.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scoreveil.extras import needs
from scoreveil.integrations.records import RecordVeil
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.mechanisms.reference import Reference
from scoreveil.secret_file import Secret
from scoreveil.veil import GivenSecret

with needs("sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import train_test_split
    from sklearn.utils import _safe_indexing, column_or_1d, get_tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted

# what may be read of the fitted classifier; all that can be computed from scores stays out
SHOWN = ("classes_", "n_features_in_", "feature_names_in_")


class Behind:
    """A fitted estimator given as a parameter: it can be cloned and used by the veil, and not asked for scores."""

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def __sklearn_clone__(self) -> Self:
        return self

    def set_params(self, **_: object) -> None:
        raise ValueError("This estimator is fitted, so its parameters cannot be set; give one that is not fitted.")

    def __repr__(self) -> str:
        return f"<fitted {type(self._estimator).__name__} behind a veil>"


def _scores_exist(veiled: "VeiledClassifier") -> bool:
    inner = getattr(veiled, "_fitted", None) or _opened(veiled.estimator)
    if not hasattr(inner, "predict_proba"):
        raise AttributeError(f"Expected a classifier with predict_proba, got {type(inner).__name__} without.")
    return True


class VeiledClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """A classifier behind a veil.

    Answers are always sticky: the same record gets the same answer, so that asking again gains nothing; those of
    different records are independent. A pickle holds no secret: give the path of a secret file to answer alike
    wherever the classifier is loaded.

    Args:
        estimator: A classifier; `fit` fits a clone of it. A FrozenEstimator is used as it is.
        epsilon: How much shows through; or a mechanism, whole.
        mechanism: The mechanism's name, as in `Veil`; `keep` and `reading` are its options.
        reference: Public scores (n, k), or a `Reference`; or a fraction: so much of what `fit` gets is held out, not
            trained on, and its scores become the reference. 1.0 with a frozen estimator: all of it.
        secret: Of sticky answers: bytes, or the path of a secret file. Without one, a secret is drawn when first
            fitted, and stays with this object.
        model: A name; other models get independent answers.
        random_state: Of the held-out part, never of the veil.
    """

    def __init__(
        self,
        estimator: Any,
        epsilon: float | Mechanism,
        *,
        mechanism: str | None = None,
        keep: int | str | None = None,
        reading: str | None = None,
        reference: float | NDArray[Any] | Reference | None = None,
        secret: GivenSecret | None = None,
        model: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.mechanism = mechanism
        self.keep = keep
        self.reading = reading
        self.reference = reference
        self.secret = secret
        self.model = model
        self.random_state = random_state

    @property
    def estimator(self) -> Any:
        """The estimator as given; one with fitted parts does not come out again."""
        return self.__dict__["estimator"]

    @estimator.setter
    def estimator(self, estimator: Any) -> None:
        self.__dict__["estimator"] = Behind(estimator) if _has_fitted_parts(estimator) else estimator

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit a clone of the estimator, on all records or on those that are not held out for the reference."""
        inner = _opened(self.estimator)
        if not is_classifier(inner):
            raise ValueError(f"Expected a classifier, got {type(inner).__name__}.")
        y = _one_label(y)
        if isinstance(self.reference, (int, float)):
            self._veiled(None)  # refuses before the training what it would refuse after
            trained_on, held_out = self._split(inner, y)
            params = {name: _rows(value, trained_on, len(y)) for name, value in fit_params.items()}
            fitted = clone(inner).fit(_safe_indexing(X, trained_on), _safe_indexing(y, trained_on), **params)
            _check_classes(fitted)
            veil = self._veiled(np.asarray(fitted.predict_proba(_safe_indexing(X, held_out))))
        else:
            veil = self._veiled(self.reference)
            fitted = clone(inner).fit(X, y, **fit_params)
            _check_classes(fitted)
        self._fitted, self._veil = fitted, veil
        for name in SHOWN:
            self.__dict__.pop(name, None)
            if hasattr(fitted, name):
                setattr(self, name, getattr(fitted, name))
        return self

    def predict(self, X: Any) -> Any:
        """The wrapped classifier's labels, unchanged."""
        check_is_fitted(self)
        return self._fitted.predict(X)

    @available_if(_scores_exist)
    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Veiled probabilities, (n, classes)."""
        check_is_fitted(self)
        return self._veil(np.asarray(self._fitted.predict_proba(X)), [X])

    @available_if(_scores_exist)
    def predict_log_proba(self, X: Any) -> NDArray[Any]:
        """Logarithms of the same veiled probabilities; -inf where one is 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    @property
    def decision_function(self) -> Any:
        """Refused: its values are raw scores, on a scale that no veil knows."""
        raise AttributeError("Expected predict_proba, which is veiled; decision_function would be raw scores.")

    @property
    def guarantee_(self) -> Guarantee:
        """What one answer promises."""
        check_is_fitted(self)
        return self._veil.guarantee

    def _veiled(self, reference: Any) -> RecordVeil:
        """The veil, with the given secret, else one that stays the same when fitted again: both fits answer alike."""
        if self.secret is None and "_drawn" not in vars(self):
            self._drawn = Secret.drawn()
        secret = self._drawn if self.secret is None else self.secret
        options = {"mechanism": self.mechanism, "keep": self.keep, "reading": self.reading, "model": self.model}
        given = {name: value for name, value in options.items() if value is not None}
        return RecordVeil(self.epsilon, secret=secret, reference=reference, **given)  # type: ignore[arg-type]

    def _split(self, inner: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Which rows to train on, and which to hold out."""
        assert isinstance(self.reference, (int, float))
        everything, frozen = np.arange(len(y)), isinstance(inner, FrozenEstimator)
        if frozen and self.reference == 1:
            return everything, everything
        if not 0 < self.reference < 1 or isinstance(self.reference, bool):
            wish = "between 0 and 1, or 1.0 with a frozen estimator"
            raise ValueError(f"Expected a held-out fraction {wish}, got {self.reference}.")
        trained_on, held_out = train_test_split(
            everything, test_size=self.reference, stratify=np.asarray(y), random_state=self.random_state
        )
        return trained_on, held_out

    def __sklearn_is_fitted__(self) -> bool:
        return "_fitted" in vars(self)

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), _opened(self.estimator)
        if hasattr(inner, "__sklearn_tags__"):
            of_inner = get_tags(inner)
            tags.input_tags = of_inner.input_tags
            tags.classifier_tags = of_inner.classifier_tags or tags.classifier_tags
            tags.non_deterministic = of_inner.non_deterministic
        tags.target_tags.multi_output = tags.classifier_tags.multi_label = False
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if self.secret is not None:
            state["secret"] = Secret.from_given(self.secret)  # which leaves the bytes behind
        return state


def _opened(estimator: Any) -> Any:
    return estimator._estimator if isinstance(estimator, Behind) else estimator


def _has_fitted_parts(estimator: Any) -> bool:
    """Whether the estimator, or one inside it, could answer with scores as it is."""
    if isinstance(estimator, Behind) or not hasattr(estimator, "get_params") or isinstance(estimator, type):
        return False
    return any(map(_is_fitted, [estimator, *estimator.get_params(deep=True).values()]))


def _is_fitted(part: Any) -> bool:
    if not hasattr(part, "fit") or not hasattr(part, "predict") or isinstance(part, type):
        return False
    try:
        check_is_fitted(part)
    except NotFittedError:
        return False
    return True


def _one_label(y: Any) -> Any:
    """One label a record, which is all that a veil over one score vector can keep."""
    shape = np.asarray(y).shape
    if len(shape) < 2:
        return y
    if shape[1] != 1:
        raise ValueError(f"Expected one label a record, got {shape[1]}.")
    return column_or_1d(y, warn=True)


def _check_classes(fitted: Any) -> None:
    if len(fitted.classes_) < 2:
        raise ValueError(f"Expected at least 2 classes, got {len(fitted.classes_)} class.")


def _rows(value: Any, rows: NDArray[Any], total: int) -> Any:
    """A parameter of `fit` for these rows, where it has one value a row."""
    return _safe_indexing(value, rows) if hasattr(value, "__len__") and len(value) == total else value
