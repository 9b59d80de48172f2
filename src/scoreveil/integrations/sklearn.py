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

import hashlib
import hmac
import numbers
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from scoreveil import fitting
from scoreveil.extras import needs
from scoreveil.fitting.neighbours import MOST_RECORDS, Asked, least, try_scales
from scoreveil.integrations.records import RecordVeil
from scoreveil.label_columns import check_values, yes_columns
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.randomness import KeyedDraws
from scoreveil.secret_file import Secret
from scoreveil.shapes import VECTORS, ManyLabels
from scoreveil.smoothing import Smoothing, smoothed_scores
from scoreveil.veil import GivenSecret, Veil

with needs("sklearn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.frozen import FrozenEstimator
    from sklearn.model_selection import KFold, StratifiedKFold, check_cv
    from sklearn.pipeline import Pipeline
    from sklearn.utils import _safe_indexing, column_or_1d, get_tags, indexable
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import _num_samples, check_is_fitted

# what may be read of the fitted classifier; all that can be computed from scores stays out
SHOWN = ("classes_", "n_features_in_", "feature_names_in_")
SEVERAL = ManyLabels(threshold=float(np.nextafter(0.5, 1)))  # scikit-learn says yes where p > 1/2


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
        mechanism: The name of a mechanism that is not fitted, as in `Veil`: then there are no folds, and epsilon is
            its ε.
        keep: An option of the mechanism "isotonic": how many top classes keep their place.
        reading: An option of the mechanism "published".
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
        mechanism: str | None = None,
        keep: int | str | None = None,
        reading: str | None = None,
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
        self.mechanism = mechanism
        self.keep = keep
        self.reading = reading
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
        y = _labels(y)
        several = _are_several(y)
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
                folds, force = self._folds(inner, X, y, fit_params), True  # which side is which is known
            smoothing = self._chosen_smoothing(fitted, X, y, members, folds, secret)
            if folds is None:
                records = _given_sides(fitted, X, y, members, smoothing)
            else:
                records = _sides(folds, fitted, X, y, smoothing)
            veil = _sticky(self._fitted_veil(records, several, noise, force, smoothing), secret)
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
        scores = _scores(self._fitted, X, several, veil.veil.smoothing)
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
            return [np.log(each) for each in veiled] if isinstance(veiled, list) else np.asarray(np.log(veiled))

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
        veil = self._record_veil().veil
        return Veil(veil.mechanism, shape=veil.shape, model=veil.model, threads=veil.threads, smoothing=veil.smoothing)

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
        options = {"mechanism": self.mechanism, "keep": self.keep, "reading": self.reading, "model": self.model}
        given: Any = {name: value for name, value in options.items() if value is not None}
        if isinstance(self.epsilon, Veil):
            veil = Veil.from_given(self.epsilon, **given)
            if not (veil.shape.has_labels if several else veil.shape.is_plain):
                wanted = "a veil with shape=ManyLabels()" if several else "a veil for score vectors"
                raise ValueError(f"Expected {wanted} for these labels, got one with shape={veil.shape!r}.")
            return veil if veil.is_keyed and self.secret is None else _sticky(veil, self._secret())
        if isinstance(self.epsilon, Mechanism) or self.mechanism is not None:
            if self.epsilon is None:
                raise ValueError(f"The mechanism {self.mechanism!r} needs an epsilon, such as epsilon=2.0.")
            return _sticky(Veil(self.epsilon, shape=SEVERAL if several else VECTORS, **given), self._secret())
        for name in ("keep", "reading"):
            if name in given:
                raise ValueError(f"A fitted veil has no option {name!r}; name a mechanism= that has it, or remove it.")
        fitting.Settings(self.advantage, self.epsilon, self.beyond, self.regions, self.certify)
        if self.certify is not None and not _is_frozen(_opened(self.estimator)):
            raise ValueError(
                "certify needs a FrozenEstimator and its members: out-of-fold scores come from several classifiers, "
                "and nothing can be certified of them."
            )
        return None

    def _chosen_smoothing(
        self, fitted: Any, X: Any, y: Any, members: Any, folds: "list[_Fold] | None", secret: Secret
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
        if _are_several(y) or (folds is None and members is None):
            raise ValueError("smoothing='auto' attacks one label a record, with members; give a scale instead.")
        made, rng = Smoothing(typical=X, seed=seed), np.random.default_rng(seed)
        if folds is None:
            sides = [(fitted, members, (X, y))]
        else:
            X, y = indexable(X, y)
            sides = [(f.model, *(_both(X, y, rows) for rows in (f.trained_on, f.tested))) for f in folds]
        asked = []
        for model, *both in sides:
            most = min(MOST_RECORDS // len(sides), *(_num_samples(records) for records, _ in both))
            taken = [_both(records, each, rng.permutation(_num_samples(records))[:most]) for records, each in both]
            inside, outside = ((records, _numbers(np.asarray(each), fitted.classes_)) for records, each in taken)
            asked.append(Asked(partial(_aligned, model, fitted.classes_), *inside, *outside))
        settings: dict[str, Any] = {"advantage": self.advantage, "beyond": self.beyond, "regions": self.regions}
        self.smoothing_trials_ = try_scales(asked, made, **settings)
        scale = least(self.smoothing_trials_)
        return None if scale is None else made.replaced(scale=scale)

    def _fitted_veil(
        self, records: dict[str, Any], several: bool, noise: KeyedDraws, force: bool, smoothing: Smoothing | None
    ) -> Veil:
        assert not isinstance(self.epsilon, (Mechanism, Veil))
        return fitting.fit(
            **records, advantage=self.advantage, epsilon=self.epsilon, beyond=self.beyond, regions=self.regions,
            certify=self.certify, shape=SEVERAL if several else VECTORS, force=force, rng=_Noise(noise, records),
            model=self.model or "", smoothing=smoothing, overlap=not _is_frozen(_opened(self.estimator)),
        )  # fmt: skip

    def _folds(self, inner: Any, X: Any, y: Any, fit_params: dict[str, Any]) -> "list[_Fold]":
        """Clones of the estimator, each trained on a part of the records, and tested on others."""
        X, y = indexable(X, y)
        records = _num_samples(y)
        folds = check_cv(self.cv, y, classifier=True)
        if isinstance(self.cv, numbers.Integral) and self.random_state is not None:
            kind = KFold if _are_several(y) else StratifiedKFold
            folds = kind(self.cv, shuffle=True, random_state=self.random_state)
        made, times_tested = [], np.zeros(records, dtype=np.int64)
        for trained_on, tested in folds.split(X, y):
            params = {name: _rows(value, trained_on, records) for name, value in fit_params.items()}
            part = clone(inner).fit(*_both(X, y, trained_on), **params)
            made.append(_Fold(part, trained_on, tested))
            times_tested[tested] += 1
        if times_tested.max() > 1:
            raise ValueError("Expected a cv that tests each record at most once, got one that tests some repeatedly.")
        return made

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


def _labels(y: Any) -> Any:
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


def _are_several(y: Any) -> bool:
    return np.asarray(y).ndim == 2


@dataclass(frozen=True, eq=False)
class _Fold:
    """A classifier, the rows that it was trained on, and those that it is tested on."""

    model: Any
    trained_on: NDArray[Any]
    tested: NDArray[Any]


def _both(X: Any, y: Any, rows: NDArray[Any]) -> tuple[Any, Any]:
    return _safe_indexing(X, rows), _safe_indexing(y, rows)


def _sides(folds: list[_Fold], fitted: Any, X: Any, y: Any, smoothing: Smoothing | None) -> dict[str, Any]:
    """Both sides as `fit` takes them: out-of-fold scores, and the final classifier's own."""
    X, y = indexable(X, y)
    inside, labels = _scored(fitted, X, y, smoothing)
    scores = [
        _aligned(f.model, fitted.classes_, _safe_indexing(X, f.tested), _are_several(y), smoothing) for f in folds
    ]
    tested = np.concatenate([fold.tested for fold in folds])
    order = np.argsort(tested, kind="stable")
    return {
        "nonmembers": np.concatenate(scores)[order],
        "nonmember_labels": labels[tested[order]],
        "members": inside,
        "member_labels": labels,
    }


def _aligned(
    part: Any, classes: NDArray[Any], X: Any, several: bool = False, smoothing: Smoothing | None = None
) -> NDArray[Any]:
    """Scores of a classifier with a column for each of these classes: a rare one may be missing in a fold."""
    found = _scores(part, X, several, smoothing)
    if several:
        return found
    scores = np.zeros((len(found), len(classes)))
    scores[:, _numbers(part.classes_, classes)] = found
    return scores


def _given_sides(classifier: Any, X: Any, y: Any, members: Any, smoothing: Smoothing | None) -> dict[str, Any]:
    """Both sides of a frozen classifier as `fit` takes them, where members are given."""
    sides = dict(zip(("nonmembers", "nonmember_labels"), _scored(classifier, X, y, smoothing), strict=True))
    if members is None:
        return sides
    if not isinstance(members, (tuple, list)) or len(members) != 2:
        raise ValueError("Expected members=(X, y): records that the frozen classifier was trained on, and labels.")
    X_in, y_in = members
    inside = _scored(classifier, X_in, _labels(y_in), smoothing)
    return sides | dict(zip(("members", "member_labels"), inside, strict=True))


def _scored(classifier: Any, X: Any, y: Any, smoothing: Smoothing | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scores of records, and their labels as numbers."""
    several, labels = _are_several(y), np.asarray(y)
    return _scores(classifier, X, several, smoothing), labels if several else _numbers(labels, classifier.classes_)


def _sticky(veil: Veil, secret: Secret) -> Veil:
    """The veil keyed, where it draws; one without ε gives the same answers anyway."""
    classes = veil.mechanism.classes
    is_drawn = classes is None or veil.mechanism.draws(classes) > 0
    return veil.with_secret(secret) if is_drawn else veil


def _scores(classifier: Any, X: Any, several: bool, smoothing: Smoothing | None = None) -> NDArray[Any]:
    def ask(records: Any) -> NDArray[Any]:
        given = classifier.predict_proba(records)
        return yes_columns(given, classifier.classes_) if several else np.asarray(given)

    return ask(X) if smoothing is None else smoothed_scores(ask, X, smoothing, SEVERAL if several else VECTORS)


def _is_frozen(estimator: Any) -> bool:
    last = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    return isinstance(last, FrozenEstimator)


def _numbers(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each label among the classes."""
    order = np.argsort(classes)
    found = order[np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)]
    unknown = np.count_nonzero(classes[found] != labels)
    if unknown:
        raise ValueError(f"Expected labels that the classifier knows, got {unknown} records with others.")
    return np.asarray(found)


def _rows(value: Any, rows: NDArray[Any], total: int) -> Any:
    """A parameter of `fit` for these rows, where it has one value a row."""
    return _safe_indexing(value, rows) if hasattr(value, "__len__") and len(value) == total else value


class _Noise:
    """Uniforms for the noise of a fit, a function of the secret and of the records: fitted again, it is the same.

    Fresh noise on the same records would be another look at them.
    """

    def __init__(self, draws: KeyedDraws, records: dict[str, NDArray[Any]]) -> None:
        state = hashlib.sha256()
        for array in records.values():
            state.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
        self._draws, self._records, self._calls = draws, state.digest(), 0

    def random(self, size: int) -> NDArray[np.float64]:
        self._calls += 1
        message = np.frombuffer(self._records + self._calls.to_bytes(4, "little"), dtype=np.uint8)
        return self._draws.uniforms(message[None], size)[0]
