"""Models as people have them: scikit-learn's own, ONNX with labels, dictionaries or logits."""

import asyncio
import importlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import skops.io
from skl2onnx import to_onnx
from sklearn import (
    calibration,
    compose,
    decomposition,
    ensemble,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    model_selection,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    random_projection,
    svm,
    tree,
)
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_iris
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.discovery import all_estimators

from gateway_servers import SCOREVEIL, free_ports, v2
from scoreveil.cli.serve import serve
from scoreveil.gateway import config_file, secrets, skops_model, startup_checks
from scoreveil.gateway.config import Config, ConfigError, Limits, Model
from scoreveil.gateway.embedded_model import EmbeddedModel
from scoreveil.gateway.embedded_source import EmbeddedSource
from scoreveil.gateway.opened import OpenedConfig, load_model, open_config
from scoreveil.gateway.probabilities import probabilities
from scoreveil.inference_protocol.errors import ApiError
from scoreveil.inference_protocol.tensors import TensorSpec
from scoreveil.ledger import open_ledger

X, Y = load_iris(return_X_y=True)
X = preprocessing.StandardScaler().fit_transform(X).astype(np.float32)
TWO = (Y > 0).astype(int)
SMALL = {
    "n_estimators": 3,
    "max_iter": 20,
    "cv": 2,
    "thresholds": 5,
    "probability": True,
    "random_state": 0,
    "voting": "soft",
}
LABELS = {"ClassifierChain", "MultiOutputClassifier"}  # several labels a row
pytestmark = pytest.mark.filterwarnings("ignore")  # of models that are trained for the shortest time


def model(path: Path, **options: Any) -> Model:
    return Model(veil={"epsilon": 2.0}, **{path.suffix[1:]: path}, **options)


def opened(settings: Model) -> OpenedConfig:
    return open_config(Config(models={"m": settings}))


def loaded_model(settings: Model) -> EmbeddedModel:
    embedded = load_model(opened(settings).models["m"]).embedded
    assert embedded is not None
    return embedded


def here(path: Path, **options: Any) -> list[str]:
    return startup_checks.here(opened(model(path, **options)))


def source_of(settings: Model) -> EmbeddedSource:
    return EmbeddedSource(load_model(opened(settings).models["m"]), Limits())


def asked(path: Path, x: np.ndarray, **options: Any) -> np.ndarray:
    """The scores of an opened model, as they go to the veil."""
    loaded = loaded_model(model(path, **options))
    (given,) = loaded.inputs
    (score,) = loaded.scores
    found = loaded.run({given.name: x}, [score])[score]
    return probabilities(found, options.get("outputs", "scores"))


def saved(folder: Path, made: Any) -> Path:
    skops.io.dump(made, folder / "m.skops")
    return folder / "m.skops"


def small(name: str, kind: Callable[..., Any]) -> Any:
    """A classifier that is quickly trained."""
    members = [("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=2))]
    try:
        made = kind()
    except TypeError:
        made = kind(estimators=members) if name in ("StackingClassifier", "VotingClassifier") else kind(members[0][1])
    known = made.get_params()
    made.set_params(**{key: value for key, value in SMALL.items() if key in known})
    if name == "SGDClassifier":
        made.set_params(loss="log_loss")
    return made.set_params(estimator=members[0][1]) if name == "SelfTrainingClassifier" else made


CLASSIFIERS = {name: kind for name, kind in all_estimators(type_filter="classifier") if hasattr(kind, "predict_proba")}


@pytest.mark.parametrize("name", sorted(CLASSIFIERS.keys() - LABELS))
def test_every_classifier_of_scikit_learn_is_served_with_the_scores_it_gives(name: str, tmp_path: Path) -> None:
    made = small(name, CLASSIFIERS[name])
    x, y = (X, TWO) if "Threshold" in name else (X, Y)
    if name in ("CategoricalNB", "ComplementNB", "MultinomialNB"):
        x = np.abs(np.round(X))
    made.fit(x, y)
    np.testing.assert_allclose(asked(saved(tmp_path, made), x), made.predict_proba(x), atol=1e-6)


def test_the_list_of_classifiers_is_not_short() -> None:
    assert len(CLASSIFIERS) > 30
    assert {"RandomForestClassifier", "HistGradientBoostingClassifier", "KNeighborsClassifier", "SVC"} < {*CLASSIFIERS}


@pytest.mark.parametrize("name", sorted(LABELS))
def test_several_labels_a_row_are_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    made = small(name, CLASSIFIERS[name]).fit(X, np.column_stack([TWO, Y == 2]))
    with pytest.raises(ValueError, match=f"m.skops holds a {name} of several labels"):
        asked(saved(tmp_path, made), X)


KERNEL = gaussian_process.kernels
VARIANTS = [
    calibration.CalibratedClassifierCV(svm.LinearSVC(), method="isotonic", cv=model_selection.StratifiedKFold(2)),
    calibration.CalibratedClassifierCV(svm.LinearSVC(), method="temperature"),
    ensemble.GradientBoostingClassifier(n_estimators=3, loss="log_loss", init=LogisticRegression()),
    ensemble.HistGradientBoostingClassifier(max_iter=3, categorical_features=[0]),
    ensemble.RandomForestClassifier(3, oob_score=True, class_weight="balanced"),
    ensemble.StackingClassifier([("a", DecisionTreeClassifier())], ensemble.HistGradientBoostingClassifier(max_iter=2)),
    gaussian_process.GaussianProcessClassifier(KERNEL.WhiteKernel() + KERNEL.Matern() ** 2),
    model_selection.GridSearchCV(DecisionTreeClassifier(), {"max_depth": [1, 2]}, scoring="neg_log_loss", cv=2),
    model_selection.RandomizedSearchCV(LogisticRegression(), {"C": [1, 2]}, n_iter=2, cv=model_selection.KFold(2)),
    neighbors.KNeighborsClassifier(algorithm="ball_tree", metric="canberra"),
    neighbors.KNeighborsClassifier(algorithm="kd_tree", p=3),
    neighbors.KNeighborsClassifier(metric="mahalanobis", metric_params={"VI": np.eye(4)}, algorithm="ball_tree"),
    neural_network.MLPClassifier(solver="sgd", max_iter=2),
    svm.SVC(probability=True, kernel="poly"),
    tree.ExtraTreeClassifier(),
]
TRANSFORMERS = [
    preprocessing.MinMaxScaler(),
    preprocessing.RobustScaler(),
    preprocessing.PowerTransformer(),
    preprocessing.QuantileTransformer(n_quantiles=10),
    preprocessing.PolynomialFeatures(),
    preprocessing.KBinsDiscretizer(quantile_method="averaged_inverted_cdf"),
    preprocessing.OneHotEncoder(handle_unknown="ignore"),
    preprocessing.OrdinalEncoder(),
    preprocessing.TargetEncoder(),
    preprocessing.FunctionTransformer(np.arctan),
    impute.SimpleImputer(add_indicator=True),
    impute.KNNImputer(),
    decomposition.PCA(2),
    decomposition.TruncatedSVD(2),
    feature_selection.SelectKBest(k=2),
    feature_selection.SelectKBest(feature_selection.mutual_info_classif, k=2),
    feature_selection.SelectFromModel(ensemble.RandomForestClassifier(3)),
    feature_selection.VarianceThreshold(),
    random_projection.SparseRandomProjection(2, random_state=0),
    pipeline.FeatureUnion([("a", decomposition.PCA(2)), ("b", preprocessing.StandardScaler())]),
    compose.ColumnTransformer(
        [("a", preprocessing.StandardScaler(), [0, 1]), ("b", preprocessing.OneHotEncoder(), [2])],
        remainder="passthrough",
    ),
]


@pytest.mark.parametrize(
    "made",
    [*VARIANTS, *(pipeline.make_pipeline(each, LogisticRegression()) for each in TRANSFORMERS)],
    ids=lambda each: re.sub(r"\W+", "-", str(each))[:60],
)
def test_other_settings_searches_and_pipelines_are_served_too(made: BaseEstimator, tmp_path: Path) -> None:
    x = np.round(X)
    made = clone(made).fit(x, Y)
    np.testing.assert_allclose(asked(saved(tmp_path, made), x), made.predict_proba(x), atol=1e-6)


def test_a_table_with_named_columns_is_asked_column_by_column(tmp_path: Path) -> None:
    colours = np.where(X[:, 0] > 0, "red", "grün")
    frame = pandas.DataFrame({"width": X[:, 1], "colour": colours})
    columns = compose.make_column_transformer(
        (preprocessing.StandardScaler(), ["width"]), (preprocessing.OneHotEncoder(), ["colour"])
    )
    made = pipeline.make_pipeline(columns, ensemble.RandomForestClassifier(3)).fit(frame, Y)
    inputs = (TensorSpec("width", "FP32", (-1, 1)), TensorSpec("colour", "BYTES", (-1, 1)))
    loaded = loaded_model(model(saved(tmp_path, made), inputs=inputs))
    sent = {"colour": np.array([[c.encode()] for c in colours], dtype=object), "width": X[:, 1:2]}
    np.testing.assert_allclose(loaded.run(sent, ["scores"])["scores"], made.predict_proba(frame), atol=1e-6)
    wrong = (inputs[0], TensorSpec("color", "BYTES", (-1, 1)))
    with pytest.raises(ValueError, match="takes the columns width, colour; inputs has width, color"):
        loaded_model(model(tmp_path / "m.skops", inputs=wrong))


def test_a_table_of_numbers_is_one_matrix(tmp_path: Path) -> None:
    made = ensemble.RandomForestClassifier(3).fit(pandas.DataFrame(X, columns=list("abcd")), Y)
    expected = made.predict_proba(pandas.DataFrame(X, columns=list("abcd")))
    np.testing.assert_allclose(asked(saved(tmp_path, made), X), expected, atol=1e-6)


def test_texts_are_classified(tmp_path: Path) -> None:
    texts = ["a good one", "a bad one", "so bad", "sehr schön"]
    made = pipeline.make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [1, 0, 0, 1])
    sent = np.array([text.encode() for text in texts], dtype=object)
    np.testing.assert_allclose(asked(saved(tmp_path, made), sent), made.predict_proba(texts), atol=1e-6)


# What is refused


def shouting(x: np.ndarray) -> np.ndarray:
    raise AssertionError("This function came with the file, and was run.")


@pytest.mark.parametrize(
    ("made", "foreign"),
    [
        (pipeline.make_pipeline(preprocessing.FunctionTransformer(shouting), LogisticRegression()), "shouting"),
        (neighbors.KNeighborsClassifier(metric=shouting), "shouting"),
        (pipeline.make_pipeline(TfidfVectorizer(tokenizer=str.split), LogisticRegression()), "method_descriptor"),
    ],
    ids=["transformer", "metric", "tokenizer"],
)
def test_a_function_of_someone_elses_is_not_read(made: Any, foreign: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"m.skops holds .*{foreign}.* are not built here"):
        asked(saved(tmp_path, made), X)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (LogisticRegression(), "a LogisticRegression that was not trained"),
        (linear_model.RidgeClassifier().fit(X, Y), "no predict_proba; .* CalibratedClassifierCV"),
        ({"a": 1}, "holds a dict, which has no predict_proba"),
    ],
)
def test_what_is_no_trained_classifier_is_called_what_it_is(made: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        asked(saved(tmp_path, made), X)


def test_a_file_that_skops_did_not_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.skops").write_bytes(b"a pickle, perhaps")
    with pytest.raises(ValueError, match="is not a file that skops"):
        asked(tmp_path / "m.skops", X)


def test_what_is_trusted_are_types_of_three_libraries_and_a_few_functions_of_arrays() -> None:
    functions = set()
    for name in skops_model.TRUSTED:
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)  # each of them is there
        assert module.startswith(("sklearn.", "scipy.sparse.")) or name in (
            "numpy.dtype",
            "numpy.mean",
            "functools.partial",
        )
        if not isinstance(found, type):
            functions.add(attribute)
    measures = {each for each in functions if each.endswith(("_score", "_loss", "_corrcoef"))}
    assert functions - measures == {"chi2", "f_classif", "mutual_info_classif", "mean", "check_array"}
    assert len(measures) == 13


def test_a_vectorizer_that_opens_files_is_refused(tmp_path: Path) -> None:
    made = pipeline.make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["a good one", "a bad one"], [1, 0])
    made[0].input = "filename"
    with pytest.raises(ValueError, match="a vectorizer opens files"):
        asked(saved(tmp_path, made), X)


def spoilt_tree(field: str, value: int) -> Any:
    made = DecisionTreeClassifier(max_depth=3).fit(X, Y)
    state = made.tree_.__getstate__()
    state["nodes"] = state["nodes"].copy()
    state["nodes"][field][0] = value
    made.tree_.__setstate__(state)
    return made


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("left_child", 10**6, "leads outside, or back"),
        ("right_child", -7, "leads outside, or back"),
        ("left_child", 0, "leads outside, or back"),  # for ever
        ("feature", 10**6, "a feature there is not"),
        ("feature", -5, "a feature there is not"),
    ],
)
def test_a_tree_that_leads_beyond_its_nodes_is_refused(field: str, value: int, words: str, tmp_path: Path) -> None:
    spoilt = spoilt_tree(field, value)
    forest = ensemble.RandomForestClassifier(2).fit(X, Y)
    forest.estimators_[1] = spoilt
    boosted = ensemble.GradientBoostingClassifier(n_estimators=1).fit(X, Y)
    boosted.estimators_[0, 1] = spoilt
    nested = ensemble.VotingClassifier([("a", spoilt)], voting="soft").fit(X, Y)
    nested.estimators_ = [spoilt]
    for made in (spoilt, forest, boosted, nested):
        with pytest.raises(ValueError, match=f"m.skops is not sound: .*{words}"):
            asked(saved(tmp_path, made), X)


@pytest.mark.parametrize(("field", "value"), [("left", 10**6), ("feature_idx", 10**6), ("is_categorical", 1)])
def test_boosting_that_leads_beyond_its_nodes_is_refused(field: str, value: int, tmp_path: Path) -> None:
    made = ensemble.HistGradientBoostingClassifier(max_iter=2).fit(X, Y)
    made._predictors[1][2].nodes[field][0] = value
    with pytest.raises(ValueError, match=r"m.skops is not sound: "):
        asked(saved(tmp_path, made), X)


def test_a_tree_for_more_features_than_its_forest_is_refused(tmp_path: Path) -> None:
    made = ensemble.RandomForestClassifier(2).fit(X, Y)
    made.estimators_[1] = DecisionTreeClassifier().fit(np.hstack([X, X]), Y)
    with pytest.raises(ValueError, match="another number of features than its forest"):
        asked(saved(tmp_path, made), X)


# ONNX


def onnx_file(folder: Path, made: Any, **options: Any) -> Path:
    (folder / "m.onnx").write_bytes(to_onnx(made, X[:1], options=options, target_opset=17).SerializeToString())
    return folder / "m.onnx"


def layers(folder: Path, *, last: str, columns: int) -> Path:
    """A linear model with another last layer, or none."""
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).normal(size=(4, columns)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"])]
    nodes.append(helper.make_node(last, ["z"], ["out"], **({"axis": 1} if last == "Softmax" else {})))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", columns])],
        [numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    np.save(folder / "w.npy", weights)
    return folder / "m.onnx"


@pytest.mark.parametrize("names", [np.arange(3), np.array(["setosa", "versicolor", "virginica"])], ids=["int", "text"])
def test_skl2onnxs_dictionaries_are_read(names: np.ndarray, tmp_path: Path) -> None:
    made = ensemble.RandomForestClassifier(3, random_state=0).fit(X, names[Y])
    path = onnx_file(tmp_path, made)
    np.testing.assert_allclose(asked(path, X), made.predict_proba(X), atol=1e-5)
    found = "\n".join(here(path, passes=("output_label",)))
    assert f"output_probability FP32 [-1, 3]: veiled; classes {', '.join(map(str, names))}" in found
    assert f"output_label {'INT64' if names.dtype.kind == 'i' else 'BYTES'} [-1]: passed as it is" in found
    (label,) = loaded_model(model(path, passes=("output_label",))).run({"X": X[:1]}, ["output_label"]).values()
    assert label.tolist() == [names[0] if names.dtype.kind == "i" else b"setosa"]


@pytest.mark.parametrize("columns", [1, 3])
def test_logits_become_probabilities_when_told(columns: int, tmp_path: Path) -> None:
    path = layers(tmp_path, last="Identity", columns=columns)
    z = (X @ np.load(tmp_path / "w.npy")).astype(np.float64)
    z = np.hstack([np.zeros_like(z), z]) if columns == 1 else z
    expected = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(asked(path, X, outputs="logits"), expected, atol=1e-5)
    (line,) = [line for line in here(path, outputs="logits") if "output" in line]
    assert line == f"  output  out FP32 [-1, {max(2, columns)}]: veiled, made from logits"


@pytest.mark.parametrize("columns", [1, 3])
def test_logits_are_not_taken_for_probabilities(columns: int, tmp_path: Path) -> None:
    path = layers(tmp_path, last="Identity", columns=columns)
    with pytest.raises(ConfigError, match=r'Output out of m.onnx does not hold probabilities .* outputs = "logits"'):
        here(path)


def test_probabilities_are_not_taken_for_logits(tmp_path: Path) -> None:
    path = layers(tmp_path, last="Softmax", columns=3)
    with pytest.raises(ConfigError, match="holds probabilities already"):
        here(path, outputs="logits")
    assert here(path)


def test_one_logit_written_twice_is_refused(tmp_path: Path) -> None:
    """softmax([-z, z]) is the sigmoid of 2z, and not what the model means."""
    made = LogisticRegression().fit(X, TWO)
    path = onnx_file(tmp_path, made, zipmap=False, raw_scores=True)
    with pytest.raises(
        ConfigError, match=r"of m.onnx has two columns that are each other's negatives.*raw_scores=False"
    ):
        here(path, outputs="logits")
    # each a yes or no of its own: the sigmoid is that of the model
    assert here(path, outputs="logits", shape="multi_label")
    assert here(onnx_file(tmp_path, made, zipmap=False))
    assert here(layers(tmp_path, last="Identity", columns=2), outputs="logits")


def test_one_column_is_the_probability_of_the_second_class(tmp_path: Path) -> None:
    path = layers(tmp_path, last="Sigmoid", columns=1)
    one = 1 / (1 + np.exp(-X @ np.load(tmp_path / "w.npy")))
    np.testing.assert_allclose(asked(path, X), np.hstack([1 - one, one]), atol=1e-5)


def test_infinite_logits_are_no_scores() -> None:
    assert np.isnan(probabilities(np.array([[np.inf, np.inf, 0.0]]), "logits")).any()


# Before anything listens


def served(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """`scoreveil serve`, which is expected to end by itself."""
    command = [str(SCOREVEIL), "serve", *arguments]
    for option, port in zip(("--port", "--admin-port"), free_ports(2), strict=True):
        command += [option, str(port)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stdout, ended.stderr


def test_what_cannot_be_served_is_said_once_and_nothing_starts(tmp_path: Path) -> None:
    layers(tmp_path, last="Identity", columns=3)
    code, said, error = served(tmp_path, "m.onnx", "--epsilon", "2")
    assert code == 2
    assert said == ""
    assert error.startswith("Error: models.m: Output out of m.onnx does not hold probabilities")
    assert error.count("\n") == 1
    assert "outputs" in error


def test_serve_says_where_secret_and_ledger_are_and_whether_they_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layers(tmp_path, last="Softmax", columns=3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("scoreveil.gateway.server.run", lambda opened, reopen, ready: None)
    secret, ledger = tmp_path / "scoreveil.secret", tmp_path / "scoreveil-ledger.db"
    serve(Path("m.onnx"), epsilon=2.0)
    said = capsys.readouterr().out
    assert f"Secret   {secret}, which is new\nLedger   {ledger}, which is new\n" in said
    secrets.load(secret)
    serve(Path("m.onnx"), epsilon=2.0)
    said = capsys.readouterr().out
    assert f"Secret   {secret}, which was there already\nLedger   {ledger}, which is new\n" in said
    assert secret.read_text().strip() not in said
    monkeypatch.setenv("SCOREVEIL_SECRET", "cd" * 32)
    monkeypatch.setenv("SCOREVEIL__LEDGER__URL", "postgresql://user:the-password@host/db")
    serve(Path("m.onnx"), epsilon=2.0)
    said = capsys.readouterr().out
    assert "Secret   that of SCOREVEIL_SECRET in the environment\nLedger   PostgreSQL, as ledger.url says\n" in said
    assert "the-password" not in said


# scoreveil config check


def checked(folder: Path, toml: str) -> list[str]:
    (folder / "g.toml").write_text(toml, encoding="utf-8")
    return startup_checks.check(open_config(config_file.load(folder / "g.toml")))


def test_config_check_opens_what_the_file_names(tmp_path: Path) -> None:
    layers(tmp_path, last="Softmax", columns=3)
    (tmp_path / "g.toml").write_text(
        '[models.m]\nonnx = "m.onnx"\nepsilon = 0.5\nmemory.epsilon = 5.0\nmemory.repeat = "refuse"\n'
    )
    command = [str(SCOREVEIL), "config", "check", "g.toml"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "  input   x FP32 [-1, 4]\n  output  out FP32 [-1, 3]: veiled\n" in ended.stdout
    assert re.search(r"Secret \S+ is not there; it is made at the first start\.", ended.stdout)
    assert re.search(r"Ledger \S+ is not there; it is made at the first start\.", ended.stdout)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["g.toml", "m.onnx", "w.npy"]  # nothing was made
    (tmp_path / "m.onnx").unlink()
    ended = subprocess.run([*command, "--offline"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "The configuration is valid.")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('onnx = "other.onnx"\nepsilon = 2', "models.m: ONNX Runtime cannot open"),
        ('onnx = "m.onnx"\nepsilon = 2\nscores = ["p"]', "has the outputs out; scores and passes name p"),
        ('onnx = "m.onnx"\nveil = "veil.json"', "veil.json"),
        ('onnx = "m.onnx"\nepsilon = 2\nkeep = 2\nreference = "r.npy"', "r.npy"),
        ('upstream = { url = "http://127.0.0.1:9" }\nepsilon = 2', "models.m: the upstream does not answer"),
    ],
)
def test_config_check_finds_what_is_missing(more: str, words: str, tmp_path: Path) -> None:
    layers(tmp_path, last="Softmax", columns=3)
    with pytest.raises(ConfigError, match=words):
        checked(tmp_path, f"[models.m]\n{more}\n")


def test_config_check_reads_secret_and_ledger(tmp_path: Path) -> None:
    layers(tmp_path, last="Softmax", columns=3)
    toml = '[models.m]\nonnx = "m.onnx"\nepsilon = 0.5\nmemory.epsilon = 5.0\nmemory.repeat = "refuse"\n'
    (tmp_path / "scoreveil.secret").write_text("not a secret\n")
    (tmp_path / "scoreveil.secret").chmod(0o600)
    with pytest.raises(ConfigError, match="does not hold secrets of 64 hex digits"):
        checked(tmp_path, toml)
    (tmp_path / "scoreveil.secret").write_text("ab" * 32 + "\n")
    (tmp_path / "scoreveil-ledger.db").write_bytes(b"not a ledger" * 1000)
    with pytest.raises(ConfigError, match="ledger: it does not answer, or is not a ledger"):
        checked(tmp_path, toml)


def test_config_check_compares_the_ledger_with_the_secret(tmp_path: Path) -> None:
    """As `serve` does: under another secret every record would be new, and nothing spent."""
    layers(tmp_path, last="Softmax", columns=3)
    toml = '[models.m]\nonnx = "m.onnx"\nepsilon = 0.5\n'
    secret = tmp_path / "scoreveil.secret"
    secret.write_text("ab" * 32 + "\n")
    secret.chmod(0o600)

    async def begin(fingerprint: str | None) -> None:
        ledger = await open_ledger(f"sqlite:///{tmp_path / 'scoreveil-ledger.db'}")
        await ledger.bind({} if fingerprint is None else {"secret": fingerprint})
        await ledger.close()

    asyncio.run(begin(None))
    assert any(": 0 records" in line for line in checked(tmp_path, toml))
    asyncio.run(begin(secrets.load(secret).fingerprint))
    assert any(": 0 records" in line for line in checked(tmp_path, toml))
    secret.write_text("ab" * 32 + "\n" + "cd" * 32 + "\n")  # rotated: the first line stays
    checked(tmp_path, toml)
    secret.write_text("cd" * 32 + "\n")
    with pytest.raises(ConfigError, match="ledger: The ledger was begun with another secret"):
        checked(tmp_path, toml)
    secret.unlink()
    with pytest.raises(ConfigError, match="ledger: There is no secret file"):
        checked(tmp_path, toml)


# Names and datatypes


def test_an_onnx_models_outputs_keep_their_names(tmp_path: Path) -> None:
    source = source_of(model(layers(tmp_path, last="Softmax", columns=3)))
    assert (source.embedded.scores, list(source.embedded.outputs)) == (("out",), ["out"])
    body = json.dumps(v2(X[:2], "x") | {"outputs": [{"name": "out"}]}).encode()
    assert source.read(body, None).asked == ["out"]
    with pytest.raises(ApiError, match="out"):
        source.read(json.dumps(v2(X[:2], "x") | {"outputs": [{"name": "scores"}]}).encode(), None)


DOUBLE = """
import numpy as np

def make():
    return lambda x: np.float64([[0.75, 0.25]]) * np.ones((len(x), 1)), 4

def takes_floats_alone():
    def scores(x):
        assert x.dtype == np.float32
        return np.tile([0.75, 0.25], (len(x), 1))
    return scores, 4
"""


@pytest.mark.parametrize("kind", ["skops", "python"])
def test_a_model_of_doubles_takes_them_and_floats_as_the_same_record(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "skops":
        served = model(saved(tmp_path, LogisticRegression().fit(X, Y)))
    else:
        (tmp_path / "double_model.py").write_text(DOUBLE)
        monkeypatch.syspath_prepend(tmp_path)
        served = Model(veil={"epsilon": 2.0}, python="double_model:make")
    source = source_of(served)
    queries = [source.read(json.dumps(v2(X[:2], "x", name)).encode(), None) for name in ("FP64", "FP32")]
    assert [query.arrays()["x"].dtype for query in queries] == [np.float64, np.float64]
    np.testing.assert_array_equal(queries[0].inputs()[0], queries[1].inputs()[0])
    with pytest.raises(ApiError, match="INT32; the model takes FP64"):
        source.read(json.dumps(v2(np.ones((1, 4), int), "x", "INT32")).encode(), None)


def test_a_model_of_floats_refuses_doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be cut off, and two records might become one."""
    (tmp_path / "single_model.py").write_text(DOUBLE)
    monkeypatch.syspath_prepend(tmp_path)
    served = Model(veil={"epsilon": 2.0}, python="single_model:takes_floats_alone")
    source = source_of(served)
    with pytest.raises(ApiError, match="FP64; the model takes FP32"):
        source.read(json.dumps(v2(X[:2], "x", "FP64")).encode(), None)
