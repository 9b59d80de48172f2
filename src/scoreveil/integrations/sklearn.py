"""scikit-learn: a classifier whose probabilities are veiled.

    from sklearn.linear_model import LogisticRegression
    from scoreveil.integrations.sklearn import VeiledClassifier

    model = VeiledClassifier(LogisticRegression()).fit(X, y)
    model.predict_proba(X)

A meta-estimator: `fit` fits the classifier and, by cross-validation, the most useful veil for it. `predict` is the
wrapped classifier's, `predict_proba` and `predict_log_proba` are veiled, and `decision_function` is refused. Nothing
else is passed through, and no public name leads to the fitted classifier.

Of classifiers of several labels a record (MultiOutputClassifier, OneVsRestClassifier and others, where y is a matrix of
0 and 1) each label's yes or no stays, and each label has a map of its own.
"""

import hmac
import numbers
from typing import Any, Literal, Self, cast

import numpy as np

from scoreveil import fitting
from scoreveil.extras import needs
from scoreveil.fitting.neighbours import least, try_scales
from scoreveil.integrations.records import RecordVeil
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.randomness import KeyedDraws
from scoreveil.secret_file import Secret
from scoreveil.smoothing import Smoothing
from scoreveil.tables.label_columns import check_values
from scoreveil.veil import GivenSecret, Veil, VeilOptions

with needs("sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.utils import get_tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted

    from scoreveil.integrations import out_of_fold

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
    """A classifier behind a veil that is fitted with it.

    `fit` trains a clone of the estimator on all records. The veil is the most useful one under which records that were
    trained on look like others (`scoreveil.fit`). Scores of others are out-of-fold scores; those of records that the
    estimator was trained on are its own. The announced confidence is how often such answers are right.

    A FrozenEstimator, by itself or as the last step of a pipeline, is used as it is. The records that `fit` gets then
    count as ones that it was **not** trained on, and there are no folds. Give those that it was trained on too,
    `fit(X, y, members=(X_in, y_in))`; without them no advantage is stated, and `fit` warns.

    The same record always gets the same answer, so that asking again gains nothing. A veil without ε is a function of
    the scores. Where answers are drawn they are keyed by a secret, and those of different records are independent. A
    pickle holds no secret: give the path of a secret file to draw alike wherever the classifier is loaded.

    Args:
        estimator: A classifier; `fit` fits clones of it.
        epsilon: None fits a veil without ε, a number one with that ε, as in `scoreveil.fit`; of several labels a record
            it is that of each label. A mechanism or a veil is used whole, and none is fitted.
        cv: How out-of-fold scores are made: a number of stratified folds, a splitter, or pairs of indices, as
            everywhere in scikit-learn. No record may be tested twice.
        advantage: As in `scoreveil.fit`.
        beyond: As in `scoreveil.fit`.
        regions: As in `scoreveil.fit`.
        certify: As in `scoreveil.fit`, of a FrozenEstimator whose members are given. Out-of-fold scores come from
            several classifiers, and each record is on both sides, so that nothing can be certified of them.
        smoothing: Reads the confidence around each record (`Smoothing`), against who asks about its neighbours: a
            scale such as 0.3, of 16 copies that move as the records of `fit` spread; a `Smoothing`; or "auto", which
            attacks the out-of-fold classifiers, and takes the least scale that stops the attack, or none;
            `smoothing_trials_` has what it found.
        secret: Of answers that are drawn, and of the noise of the fit: bytes, or the path of a secret file. Without
            one, a secret is drawn when first fitted, and stays with this object.
        model: A name; other models get independent answers.
        random_state: Shuffles the records before they are divided into `cv` folds; nothing of the veil.
    """

    def __init__(
        self,
        estimator: Any,
        epsilon: float | Mechanism | Veil | None = None,
        *,
        cv: Any = 5,
        advantage: float = 0.02,
        beyond: fitting.Beyond = "label",
        regions: int = 8,
        certify: float | None = None,
        smoothing: float | Smoothing | Literal["auto"] | None = None,
        secret: GivenSecret | None = None,
        model: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.epsilon = epsilon
        self.cv = cv
        self.advantage = advantage
        self.beyond = beyond
        self.regions = regions
        self.certify = certify
        self.smoothing = smoothing
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

    def fit(
        self, X: Any, y: Any, *, members: tuple[Any, Any] | None = None, force: bool = False, **fit_params: Any
    ) -> Self:
        """Fit a clone of the estimator on all records, and the veil by cross-validation.

        Args:
            X: Records; of a frozen estimator, ones that it was not trained on.
            y: Their labels.
            members: Of a frozen estimator: (X, y) of records that it was trained on. Then the advantage is bounded.
            force: Of a frozen estimator: fit even if the two sides seem to be swapped or the same.
            fit_params: For the estimator's own `fit`.

        Raises:
            ValueError: A parameter is out of range, or the records are not such records.
        """
        inner = _opened(self.estimator)
        if not is_classifier(inner):
            raise ValueError(f"Expected a classifier, got {type(inner).__name__}.")
        y = out_of_fold.checked_labels(y)
        several = out_of_fold.are_several(y)
        # refuse before the training what they would refuse after
        veil, secret = self._given_veil(several), self._secret()
        if members is not None and (veil is not None or not _is_frozen(inner)):
            raise ValueError(
                "members are for a veil that is fitted to a FrozenEstimator; any other classifier is trained here, and "
                "its members are the records of fit. Remove members."
            )
        noise = KeyedDraws(secret.value, b"noise of a classifier's veil")
        fitted = clone(inner).fit(X, y, **fit_params)
        if several:
            check_values(fitted.classes_)
        elif len(fitted.classes_) < 2:
            raise ValueError(f"Expected at least 2 classes, got {len(fitted.classes_)} class.")
        if veil is None and hasattr(fitted, "predict_proba"):
            folds = None
            if not _is_frozen(inner):
                folds = out_of_fold.trained_folds(inner, X, y, self.cv, self.random_state, fit_params)
                force = True  # which side is which is known
            smoothing = self._chosen_smoothing(fitted, X, y, members, folds, secret)
            if folds is None:
                sides = out_of_fold.given_sides(fitted, X, y, members, smoothing)
            else:
                sides = out_of_fold.both_sides(folds, fitted, X, y, smoothing)
            veil = _sticky(self._fitted_veil(sides, several, noise, force, smoothing), secret)
        self._fitted, self._veil = fitted, None if veil is None else RecordVeil(veil)
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
    def predict_proba(self, X: Any) -> Any:
        """Veiled probabilities, (n, classes); of several labels as the classifier has them, a list or (n, labels)."""
        veil = self._record_veil()
        several = veil.veil.shape.has_labels
        scores = out_of_fold.scores_of(self._fitted, X, several, veil.veil.smoothing)
        if not several:
            return veil(scores, [X])
        yes = veil(scores.astype(np.float64), [X])
        classes = self._fitted.classes_
        if not isinstance(classes, list):
            return yes
        # a label with one value in training has one column, of ones
        return [
            np.column_stack([1 - column, column]) if len(values) == 2 else np.ones((len(yes), 1))
            for values, column in zip(classes, yes.T, strict=True)
        ]

    @available_if(_scores_exist)
    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of the same veiled probabilities; -inf where one is 0."""
        veiled = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return [np.log(label) for label in veiled] if isinstance(veiled, list) else np.asarray(np.log(veiled))

    @property
    def decision_function(self) -> Any:
        """Refused: its values are raw scores, on a scale that no veil knows."""
        raise AttributeError("Expected predict_proba, which is veiled; decision_function would be raw scores.")

    @property
    def guarantee_(self) -> Guarantee:
        """What one answer promises."""
        return self._record_veil().guarantee

    @property
    def veil_(self) -> Veil:
        """The veil without its secret: to save, and to serve elsewhere."""
        return self._record_veil().veil.with_secret(None)

    def _record_veil(self) -> RecordVeil:
        check_is_fitted(self)
        _scores_exist(self)
        assert self._veil is not None
        return self._veil

    def _secret(self) -> Secret:
        """The given secret, else one that stays the same when fitted again: both fits answer alike."""
        if self.secret is not None:
            return Secret.from_given(self.secret)
        if "_drawn" not in vars(self):
            self._drawn = Secret.drawn()
        return self._drawn

    def _given_veil(self, several: bool) -> Veil | None:
        """The veil of the parameters, keyed; None where it is to be fitted."""
        if self.epsilon is not None and not isinstance(self.epsilon, numbers.Real):
            named: VeilOptions = {} if self.model is None else {"model": self.model}
            veil = Veil.from_given(self.epsilon, out_of_fold.shape_of(several), **named)
            if not (veil.shape.has_labels if several else veil.shape.is_plain):
                wanted = "a veil with shape=MultiLabel()" if several else "a veil for score vectors"
                raise ValueError(f"Expected {wanted} for these labels, got one with shape={veil.shape!r}.")
            return veil if veil.is_keyed and self.secret is None else _sticky(veil, self._secret())
        fitting.Settings(self.advantage, cast(float | None, self.epsilon), self.beyond, self.regions, self.certify)
        if self.certify is not None and not _is_frozen(_opened(self.estimator)):
            raise ValueError(
                "certify needs a FrozenEstimator and its members: out-of-fold scores come from several classifiers, "
                "and nothing can be certified of them."
            )
        return None

    def _chosen_smoothing(
        self, fitted: Any, X: Any, y: Any, members: Any, folds: list[out_of_fold.Fold] | None, secret: Secret
    ) -> Smoothing | None:
        """The smoothing of the parameters; "auto" tries several on models and records that they were not trained on."""
        given = self.smoothing
        if given is None or isinstance(given, Smoothing):
            return given
        if isinstance(given, str) and given != "auto":
            raise ValueError(f"Expected smoothing to be a scale, a Smoothing, 'auto' or None, got {given!r}.")
        seed = int.from_bytes(hmac.digest(secret.value, b"seed of smoothing", "sha256")[:15], "little")
        if given != "auto":
            return Smoothing(scale=given, typical=X, seed=seed)
        if out_of_fold.are_several(y) or (folds is None and members is None):
            raise ValueError("smoothing='auto' attacks one label a record, with members; give a scale instead.")
        models = [(fitted, members, (X, y))] if folds is None else out_of_fold.models_with_sides(folds, X, y)
        start = Smoothing(typical=X, seed=seed)
        asked = out_of_fold.asked(models, fitted.classes_, np.random.default_rng(seed))
        settings: dict[str, Any] = {"advantage": self.advantage, "beyond": self.beyond, "regions": self.regions}
        self.smoothing_trials_ = try_scales(asked, start, **settings)
        scale = least(self.smoothing_trials_)
        return None if scale is None else start.replaced(scale=scale)

    def _fitted_veil(
        self, sides: out_of_fold.Sides, several: bool, noise: KeyedDraws, force: bool, smoothing: Smoothing | None
    ) -> Veil:
        epsilon = cast(float | None, self.epsilon)
        return fitting.fit(
            **sides, advantage=self.advantage, epsilon=epsilon, beyond=self.beyond, regions=self.regions,
            certify=self.certify, shape=out_of_fold.shape_of(several), force=force, smoothing=smoothing,
            rng=out_of_fold.FitNoise(noise, sides), model=self.model or "",
            overlap=not _is_frozen(_opened(self.estimator)),
        )  # fmt: skip

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


def _sticky(veil: Veil, secret: Secret) -> Veil:
    """The veil keyed, where it draws; one without ε gives the same answers anyway."""
    classes = veil.mechanism.classes
    is_drawn = classes is None or veil.mechanism.draws(classes) > 0
    return veil.with_secret(secret) if is_drawn else veil


def _is_frozen(estimator: Any) -> bool:
    last = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    return isinstance(last, FrozenEstimator)
