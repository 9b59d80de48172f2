"""A scikit-learn classifier that skops saved: read without running any code that the file brings.

skops builds objects of named types alone, and reads them into `__dict__` or `__setstate__`. By itself it trusts
scikit-learn's public estimators and numpy's ufuncs; `TRUSTED` are the types beneath them that fitted classifiers
and transformers hold, each looked at. What is trusted is either plain data, or a function of arrays of scikit-learn's
own. A function from anywhere else, a callable metric among them, is refused.

Compiled code does not check what it indexes with, so that a crafted tree could read beyond its arrays. `check` looks
at all such contents before anything is predicted, and builds neighbours' trees anew.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from scoreveil import storage
from scoreveil.extras import needs
from scoreveil.gateway.config import Model
from scoreveil.gateway.embedded_model import EmbeddedModel, as_bytes
from scoreveil.inference_protocol.tensors import NAMES, Array, Arrays, TensorSpec, texts
from scoreveil.mechanisms.guarantee import Malformed
from scoreveil.shapes import Shape
from scoreveil.tables.label_columns import check_values, yes_columns

DISTANCES = (
    "BrayCurtis Canberra Chebyshev Dice Euclidean Hamming Haversine Jaccard Mahalanobis Manhattan Minkowski "
    "RogersTanimoto RussellRao SEuclidean SokalMichener SokalSneath"
)
KERNELS = (
    "CompoundKernel ConstantKernel DotProduct ExpSineSquared Exponentiation Matern PairwiseKernel Product RBF "
    "RationalQuadratic Sum WhiteKernel"
)
SPLITTERS = (
    "GroupKFold GroupShuffleSplit KFold LeaveOneGroupOut LeaveOneOut LeavePOut PredefinedSplit RepeatedKFold "
    "RepeatedStratifiedKFold ShuffleSplit StratifiedGroupKFold StratifiedKFold StratifiedShuffleSplit TimeSeriesSplit"
)
MEASURES = (
    "accuracy_score balanced_accuracy_score brier_score_loss f1_score fbeta_score jaccard_score log_loss "
    "matthews_corrcoef precision_score recall_score"
)
TRUSTED = [
    # arrays of nodes, read by compiled code without looking: `check` looks first
    "sklearn.tree._tree.Tree",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    # trees of neighbours: read, never used. `check` builds them anew from the data, with their metrics by name
    "sklearn.neighbors._ball_tree.BallTree",
    "sklearn.neighbors._kd_tree.KDTree",
    *(f"sklearn.metrics._dist_metrics.{name}Distance{bits}" for name in DISTANCES.split() for bits in (32, 64)),
    # sparse matrices: numbers and indices, which `check` compares with their shape
    *(f"scipy.sparse._{kind}.{kind}_{form}" for kind in ("csr", "csc") for form in ("matrix", "array")),
    # plain objects whose attributes are numbers, arrays and estimators
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.calibration._TemperatureScaling",
    "sklearn.compose._column_transformer.make_column_selector",  # a pattern and dtypes; selects when fitted
    "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
    *(f"sklearn.gaussian_process.kernels.{name}" for name in KERNELS.split()),
    "sklearn.impute._iterative._ImputerTriplet",
    "sklearn.multiclass._ConstantPredictor",  # of a label that every record had, or none
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",  # moments, used in training alone
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.utils._bunch.Bunch",  # a dict
    "numpy.dtype",  # that of an array, read without pickle
    # how a search or a threshold was chosen: kept by the fitted object, not used to predict
    "sklearn.metrics._scorer._CurveScorer",
    "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.metrics._scorer._Scorer",
    *(f"sklearn.model_selection._split.{name}" for name in SPLITTERS.split()),
    "sklearn.utils._metadata_requests.MetadataRequest",
    "sklearn.utils._metadata_requests.MethodMetadataRequest",
    # functions of arrays that return numbers or arrays
    *(f"sklearn.metrics._classification.{name}" for name in MEASURES.split()),
    "sklearn.metrics._ranking.average_precision_score",
    "sklearn.metrics._ranking.roc_auc_score",
    "sklearn.metrics._ranking.top_k_accuracy_score",
    "sklearn.feature_selection._mutual_info.mutual_info_classif",
    "sklearn.feature_selection._univariate_selection.chi2",
    "sklearn.feature_selection._univariate_selection.f_classif",
    "numpy.mean",
    # boosting on categories checks its other columns by a partial of check_array; a partial holds trusted parts only
    "sklearn.utils.validation.check_array",
    "functools.partial",
]


def load(path: Path, shape: Shape, settings: Model) -> EmbeddedModel:
    """The classifier in a file, checked."""
    classifier = read(path)
    classes, several = _classes(classifier, path, shape)
    (score,) = settings.scores
    inputs = settings.inputs or (_input(classifier),)
    names = _column_names(classifier, inputs, path)

    def run(arrays: Arrays, wanted: list[str]) -> Arrays:
        answer = classifier.predict_proba(_table(arrays, names))
        scores = np.asarray(yes_columns(answer, classes) if several else answer, dtype=np.float32)
        outputs = {score: shape.of_classes(scores)}
        if "label" in wanted:
            outputs["label"] = _labels(classes, shape.predicted(scores))
        return {name: outputs[name] for name in wanted}

    columns = 1 if shape.is_column else len(classes)
    class_names = () if shape.is_column or isinstance(classes, list) else tuple(str(label) for label in classes)
    outputs = {score: TensorSpec(score, "FP32", (-1, columns))}
    if not several:  # of many labels the scores themselves tell which are on
        kind = NAMES[_labels(classes, np.zeros(1, dtype=int)).dtype]
        outputs["label"] = TensorSpec("label", kind, (-1,))
    return EmbeddedModel("sklearn", inputs, outputs, run, (score,), class_names)


def _classes(classifier: Any, path: Path, shape: Shape) -> tuple[Any, bool]:
    """The classes of a classifier that can be served in this shape, and whether they are of several labels."""
    holds = f"{path.name} holds a {type(classifier).__name__}"
    if not hasattr(classifier, "predict_proba"):
        raise ValueError(
            f"{holds}, which has no predict_proba; "
            "scikit-learn's CalibratedClassifierCV gives one to a classifier that has none."
        )
    classes = getattr(classifier, "classes_", None)
    if classes is None:
        raise ValueError(f"{holds} that was not trained.")
    several = not isinstance(classes, np.ndarray) or classes.ndim != 1 or _many_labels(classifier)
    if several and not shape.has_labels:
        raise ValueError(f'{holds} of several labels; say shape = "multi_label" in the model\'s table.')
    if shape.has_labels and not several:
        raise ValueError(f'{holds} of one label a row; remove shape = "multi_label".')
    if shape.is_column and len(classes) != 2:
        raise ValueError(f"{path.name} has {len(classes)} classes; one column is for two.")
    check_values(classes)
    return classes, several


def read(path: Path) -> Any:
    """The object in a file, if it is built of trusted types alone and its contents are sound."""
    with needs("skops"):
        from skops import io
    try:
        with ZipFile(path) as file:
            storage.check_expanded(file, path.stat().st_size)
        named = io.get_untrusted_types(file=path)
    except Malformed as error:
        raise ValueError(f"{path.name} is not opened. {error}") from None
    except (BadZipFile, KeyError, UnicodeDecodeError):
        raise ValueError(f"{path.name} is not a file that skops.io.dump wrote.") from None
    foreign = sorted(set(named) - set(TRUSTED))
    if foreign:
        raise ValueError(
            f"{path.name} holds {', '.join(foreign)}, and types and functions that are not among scikit-learn's own "
            "are not built here; save the model as .onnx, or name a Python factory (python = …)."
        )
    classifier = io.load(path, trusted=TRUSTED)
    try:
        check(classifier)
    except ValueError as error:
        raise ValueError(f"{path.name} is not sound: {error}") from None
    return classifier


def _many_labels(classifier: Any) -> bool:
    """Whether each row gets a probability for each of several labels, which add up to anything."""
    last = classifier[-1] if hasattr(classifier, "named_steps") else classifier
    encoder = getattr(last, "_label_binarizer", None)
    kind = getattr(encoder, "y_type_", "")
    return bool(getattr(last, "multilabel_", False)) or type(last).__name__ == "ClassifierChain" or "label-" in kind


def _input(classifier: Any) -> TensorSpec:
    """One row for each record: as many numbers as the model has features, or one text."""
    features = getattr(classifier, "n_features_in_", None)
    return TensorSpec("x", "BYTES", (-1,)) if features is None else TensorSpec("x", "FP64", (-1, int(features)))


def _column_names(classifier: Any, inputs: tuple[TensorSpec, ...], path: Path) -> list[str] | None:
    """The columns of the table that the model was trained on; None where it was none, or where they do not matter."""
    known = getattr(classifier, "feature_names_in_", None)
    names = None if known is None else [str(name) for name in known]
    declared = [spec.name for spec in inputs]
    if len(declared) > 1 and (names is None or sorted(names) != sorted(declared)):
        wanted = "one matrix" if names is None else f"the columns {', '.join(names)}"
        raise ValueError(f"{path.name} takes {wanted}; inputs has {', '.join(declared)}.")
    return names


def _table(arrays: Arrays, names: list[str] | None) -> Any:
    """What the classifier takes: a matrix, texts, or a table with named columns."""
    read_arrays = {name: texts(array) if array.dtype == object else array for name, array in arrays.items()}
    if names is None:
        (x,) = read_arrays.values()
        return x
    import pandas

    if set(read_arrays) == set(names):
        return pandas.DataFrame({name: read_arrays[name].ravel() for name in names})
    (x,) = read_arrays.values()
    return pandas.DataFrame(x, columns=names)


def _labels(classes: Array, chosen: Array) -> Array:
    """The label that is released anyway, by its number."""
    labels = classes[chosen]
    return np.asarray(labels) if labels.dtype in NAMES and labels.dtype != object else as_bytes(labels)


# What compiled code would follow without looking


def check(model: Any) -> None:
    """Look at everything within a model that leads elsewhere: what compiled code indexes with, files.

    Raises:
        ValueError: It leads outside.
    """
    from scipy import sparse
    from sklearn.ensemble._forest import BaseForest
    from sklearn.ensemble._gb import BaseGradientBoosting
    from sklearn.ensemble._hist_gradient_boosting.gradient_boosting import BaseHistGradientBoosting
    from sklearn.feature_extraction.text import _VectorizerMixin
    from sklearn.neighbors._base import NeighborsBase
    from sklearn.tree import BaseDecisionTree

    fitted = {BaseDecisionTree: "tree_", BaseForest: "estimators_", BaseGradientBoosting: "estimators_"}
    fitted |= {BaseHistGradientBoosting: "_predictors", NeighborsBase: "_tree"}
    for part in _parts(model):
        if any(isinstance(part, kind) and not hasattr(part, name) for kind, name in fitted.items()):
            continue  # what an ensemble was made from: it predicts nothing
        if isinstance(part, BaseDecisionTree):
            _check_tree(part)
        elif isinstance(part, BaseForest):
            _check_members(part, np.asarray(part.estimators_, dtype=object), part.n_outputs_)
        elif isinstance(part, BaseGradientBoosting):
            _check_members(part, part.estimators_)
            first = part._raw_predict_init(np.zeros((1, part.n_features_in_), dtype=np.float32))
            _sound(first.shape == (1, part.estimators_.shape[1]), "boosting has trees for other classes")
        elif isinstance(part, BaseHistGradientBoosting):
            _check_predictors(part)
        elif isinstance(part, NeighborsBase) and part._tree is not None:
            part._tree = type(part._tree)(
                part._fit_X, part.leaf_size, metric=part.effective_metric_, **part.effective_metric_params_
            )
        elif sparse.issparse(part):
            part.check_format(full_check=True)
        elif isinstance(part, _VectorizerMixin):
            # else a client's text would name a file of this machine
            _sound(getattr(part, "input", "content") == "content", "a vectorizer opens files")


def _sound(condition: object, words: str) -> None:
    if not condition:
        raise ValueError(f"{words}.")


def _parts(model: Any) -> Iterator[Any]:
    """Everything within a model, once, innermost first: what an ensemble asks of its members has been looked at."""
    seen: set[int] = set()
    stack: list[tuple[Any, bool]] = [(model, False)]
    while stack:
        part, entered = stack.pop()
        if entered:
            yield part
            continue
        if id(part) in seen or isinstance(part, (str, bytes, int, float, type)):
            continue
        seen.add(id(part))
        stack.append((part, True))
        inside = list(vars(part).values()) if hasattr(part, "__dict__") else []
        if isinstance(part, dict):
            inside += part.values()
        elif isinstance(part, (list, tuple, set)) or (isinstance(part, np.ndarray) and part.dtype == object):
            inside += list(np.ravel(part) if isinstance(part, np.ndarray) else part)
        stack += [(inner, False) for inner in inside]


def _check_tree(owner: Any) -> None:
    tree = owner.tree_
    left, right, feature = tree.children_left, tree.children_right, tree.feature
    _sound(tree.n_features == owner.n_features_in_, "a tree is for another number of features than its owner")
    _check_nodes(left, right, feature, left == -1, tree.n_features)


def _check_nodes(left: Array, right: Array, feature: Array, leaf: Array, features: int) -> None:
    _sound(len(left), "a tree has no nodes")
    inner = np.flatnonzero(~leaf)
    for child in (left[inner].astype(np.int64), right[inner].astype(np.int64)):
        _sound((child > inner).all() and (child < len(left)).all(), "a node of a tree leads outside, or back")
    _sound((feature[inner] >= 0).all() and (feature[inner] < features).all(), "a tree asks for a feature there is not")


def _check_members(owner: Any, members: Array, outputs: int = 1) -> None:
    from sklearn.tree import BaseDecisionTree

    for tree in members.ravel():
        _sound(isinstance(tree, BaseDecisionTree), "an ensemble of trees holds something else")
        _sound(tree.n_features_in_ == owner.n_features_in_, "a tree is for another number of features than its forest")
        _sound(tree.tree_.n_outputs == outputs, "a tree has another number of outputs than its forest")


def _check_predictors(owner: Any) -> None:
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE

    for stage in owner._predictors:
        _sound(len(stage) == owner.n_trees_per_iteration_, "boosting has trees for other classes")
        for predictor in stage:
            nodes, sets = predictor.nodes, predictor.raw_left_cat_bitsets
            _sound(nodes.dtype == PREDICTOR_RECORD_DTYPE and nodes.ndim == 1, "a tree is not made of nodes")
            _check_nodes(
                nodes["left"], nodes["right"], nodes["feature_idx"], nodes["is_leaf"] != 0, owner.n_features_in_
            )
            by_category = nodes[(nodes["is_categorical"] != 0) & (nodes["is_leaf"] == 0)]
            _sound(sets.ndim == 2 and sets.shape[1] == 8, "a tree's categories are not sets")
            _sound((by_category["bitset_idx"] < len(sets)).all(), "a tree asks for categories there are not")
            known = owner._bin_mapper.is_categorical_
            _sound(len(known) == owner.n_features_in_, "boosting bins another number of features")
            _sound(known[by_category["feature_idx"]].all(), "a tree asks for categories of a feature that has none")
