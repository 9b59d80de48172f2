"""Shapes of scores as a configuration says them and models have them, before anything listens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neighbors import KNeighborsClassifier

from scoreveil import Veil, fit
from scoreveil.gateway import config_file, lists, startup_checks
from scoreveil.gateway.config import Config, ConfigError, Model
from scoreveil.gateway.ledger_link import load_keys
from scoreveil.gateway.opened import OpenedConfig, OpenedModel, load_model, open_config
from scoreveil.gateway.probabilities import probabilities
from scoreveil.keyed import KeyedVeil
from scoreveil.shapes import Binary, MultiLabel, TopK
from shaped_models import LABELS, WEIGHTS, X, made_models, sigmoid, two_sides


def test_a_list_tells_its_order_beyond_the_top_by_nothing() -> None:
    """Two models that list the same classes in another order below the top give the same bytes."""
    values = np.array([[0.5, 0.3, 0.1, 0.05]])
    other = np.array([[0.5, 0.2, 0.15, 0.1]])
    veil = Veil(2.0, shape=TopK(), secret=bytes(32))
    shown = []
    for scores, names in ((values, [["d", "c", "b", "a"]]), (other, [["d", "a", "b", "c"]])):
        ordered, passed = lists.by_label(scores, {"names": np.array(names, dtype=object)})
        outcomes = np.array([[20]], dtype=np.uint16)
        z, after = lists.largest_first(KeyedVeil(veil).answers(ordered, outcomes), passed)
        shown.append((z.tolist(), after["names"].tolist()))
    assert shown[0] == shown[1]


def opened(folder: Path = Path(), **table: Any) -> OpenedConfig:
    return open_config(config_file.parse({"models": {"m": table}}, folder))


def loaded(model: Model) -> OpenedModel:
    return load_model(open_config(Config(models={"m": model})).models["m"])


def said(folder: Path, **table: Any) -> str:
    return "\n".join(startup_checks.here(opened(folder, **table)))


def test_the_opening_says_what_a_whole_answer_spends(tmp_path: Path) -> None:
    made_models(tmp_path)
    words = said(tmp_path, onnx="tags.onnx", epsilon=0.5, shape="multi_label")
    assert "output  p FP32 [-1, 3]: veiled, many labels\n" in words
    assert "ε = 0.5 is that of a label; an answer holds 3 of them and spends ε = 1.5." in words
    words = said(tmp_path, onnx="places.onnx", epsilon=15.0)
    assert "that of a place; an answer holds up to 2 of them and spends up to ε = 30. Something is promised" in words
    words = said(tmp_path, onnx="list.onnx", epsilon=2.0, shape="top_k", scores=["values"], passes=["indices"])
    assert "indices INT64 [-1, 5]: passed, in the order of the veiled scores" in words


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"onnx": "tags.onnx"}, 'add up to 1 in each row.*say shape = "multi_label"'),
        ({"onnx": "tags.onnx", "shape": "binary"}, r"Expected one column"),
        ({"onnx": "tags.onnx", "shape": "multi_label", "threshold": [0.5, 0.5]}, "threshold.* 3 labels"),
        ({"onnx": "tags.onnx", "shape": "multi_label", "outputs": "logits"}, "holds probabilities already"),
        ({"onnx": "tags.onnx", "shape": "top_k"}, "does not hold the largest probabilities"),
        (
            {"onnx": "tags.onnx", "shape": "multi_label", "memory": {"epsilon": 1.0, "repeat": "refuse"}},
            "An answer holds 3 releases",
        ),
        ({"onnx": "list.onnx", "shape": "top_k", "classes": 4, "scores": ["values"]}, "5 classes are listed"),
    ],
)
def test_a_shape_that_the_model_does_not_have_is_refused(table: dict[str, Any], words: str, tmp_path: Path) -> None:
    made_models(tmp_path)
    with pytest.raises(ConfigError, match=words):
        said(tmp_path, epsilon=0.5, **table)


UPSTREAM = {"upstream": {"url": "http://x"}}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"shape": "many"}, "shape: Expected one of"),
        ({"threshold": 0.5}, "threshold and classes belong to a shape"),
        ({"shape": "binary", "threshold": 1.5}, "Expected a threshold between 0 and 1"),
        ({"shape": "binary", "threshold": [0.5, 0.5]}, "Expected a threshold between 0 and 1"),
        ({"shape": "binary", "classes": 3}, "has no classes"),
        ({"shape": "binary", "releases": 3}, "releases is for many labels"),
        ({"shape": "multi_label"}, "releases is missing: in front of a server"),
        (
            {"shape": "multi_label", "releases": 2, "threshold": [0.5]},
            "the veil is for 1 labels, and releases is another number",
        ),
        ({"shape": "top_k", "scores": ["a", "b"]}, "one output of scores"),
        ({"shape": "top_k", "classes": 9, "outputs": "logits"}, "do not tell what the rest has"),
        ({"releases": 10**6}, "releases: Expected `int` <= 32767"),
        (
            {"releases": 30_000, "epsilon": 10.0, "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]},
            "an answer would spend 300000",
        ),
    ],
)
def test_what_contradicts_itself_in_the_file_is_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        opened(**{"epsilon": 0.5, **UPSTREAM, **table})


@pytest.mark.parametrize("shape", [Binary(threshold=0.3), MultiLabel(threshold=(0.3, 0.6)), Binary(logits=True)])
def test_a_saved_veil_brings_its_shape(shape: Any, tmp_path: Path) -> None:
    Veil(2.0, shape=shape).save(tmp_path / "veil.json")
    table: dict[str, Any] = {"veil": "veil.json", "outputs": "logits", **UPSTREAM}
    made = opened(tmp_path, **table).models["m"]
    assert made.keyed_veils(bytes(32))["scores"].shape == shape
    raw = np.array([[0.7391, -0.2]])[:, : 1 if isinstance(shape, Binary) else 2]
    is_left = np.array_equal(probabilities(raw, "logits", shape), raw)
    assert is_left == shape.logits
    with pytest.raises(ConfigError, match="the veil was fitted for scores of another shape"):
        opened(tmp_path, **table, shape=shape.name, threshold=0.4)
    if shape.logits:
        with pytest.raises(ConfigError, match='say outputs = "logits"'):
            opened(tmp_path, veil="veil.json", **UPSTREAM)


def tags_veil(epsilon: float | None, labels: int = 3) -> Veil:
    """For yes from 0.4 on."""
    sides = [two_sides(2, seed=i) for i in range(labels)]
    scores, truth = (
        [np.stack([each[at][:, 1] for each in sides], axis=1) for at in (0, 2)],
        [np.stack([each[at] for each in sides], axis=1) for at in (1, 3)],
    )
    shape = MultiLabel(threshold=0.4)
    return fit(scores[0], truth[0], scores[1], truth[1], epsilon=epsilon, shape=shape, rng=np.random.default_rng(0))


@pytest.mark.parametrize("epsilon", [None, 4.0])
def test_a_fitted_veil_of_several_labels_is_served_and_counted(epsilon: float | None, tmp_path: Path) -> None:
    made_models(tmp_path)
    raw = sigmoid(X @ WEIGHTS[:, :3].astype(np.float64))
    tags_veil(epsilon).save(tmp_path / "veil.json")
    words = said(tmp_path, onnx="tags.onnx", veil="veil.json", shape="multi_label")
    assert "veiled, many labels" in words
    spent = "what is promised is about a label; an answer holds 3 of them." if epsilon is None else "spends ε = 12."
    assert spent in words
    assert "inf" not in words
    behind = opened(tmp_path, veil="veil.json", **UPSTREAM).models["m"]
    assert behind.answer_releases == 3
    with pytest.raises(ConfigError, match="the veil is for 3 labels"):
        opened(tmp_path, veil="veil.json", releases=4, **UPSTREAM)
    veil = behind.keyed_veils(bytes(32))["scores"]
    assert ((veil(raw) >= 0.4) == (raw >= 0.4)).all()
    if epsilon is not None:
        z = KeyedVeil(veil).answers(raw, KeyedVeil(veil).outcomes(raw, [bytes([i]) for i in range(len(raw))]))
        assert ((z >= 0.4) == (raw >= 0.4)).all()
    tags_veil(epsilon, labels=2).save(tmp_path / "veil.json")
    with pytest.raises(ConfigError, match="This veil was fitted for 2 labels, got 3"):
        said(tmp_path, onnx="tags.onnx", veil="veil.json", releases=2)


def test_a_veil_fitted_on_whole_vectors_takes_lists_of_the_largest(tmp_path: Path) -> None:
    made_models(tmp_path)
    fit(*two_sides(6)).save(tmp_path / "veil.json")
    table: dict[str, Any] = {"onnx": "list.onnx", "scores": ["values"], "passes": ["indices"], "veil": "veil.json"}
    words = said(tmp_path, **table, shape="top_k")
    assert "values FP32 [-1, 5]: veiled, top k" in words
    for more in ({"shape": "top_k"}, {"shape": "top_k", "classes": 6}):
        veil = opened(tmp_path, **table, **more).models["m"].veil
        assert veil is not None
        assert veil.shape == TopK(6)
    wrong = {"the veil was fitted for 6 classes": {"classes": 7}, "serve probabilities": {"outputs": "logits"}}
    for message, more in wrong.items():
        with pytest.raises(ConfigError, match=message):
            opened(tmp_path, **table, shape="top_k", **more)
    with pytest.raises(ConfigError, match="the veil was fitted for score vectors; remove shape"):
        opened(tmp_path, **table, shape="multi_label")


def test_a_veil_without_epsilon_needs_no_memory_and_no_secret(tmp_path: Path) -> None:
    sides = two_sides(3)
    fit(*sides).save(tmp_path / "fixed.json")
    fit(*sides, epsilon=4.0).save(tmp_path / "drawn.json")
    models = {
        "fixed": {"onnx": "m.onnx", "veil": "fixed.json"},
        "drawn": {"onnx": "m.onnx", "veil": "drawn.json"},
        "plain": {"onnx": "m.onnx", "epsilon": 2.0},
        "published": {"onnx": "m.onnx", "epsilon": 2.0, "mechanism": "published"},
        "behind": {"veil": "drawn.json", **UPSTREAM},
    }
    made = {name: opened(tmp_path, **table) for name, table in models.items()}
    needs = {name: (config.has_memory, config.needs_secret) for name, config in made.items()}
    assert needs == {
        "fixed": (False, False),
        "drawn": (False, True),  # the same scores get the same answer
        "plain": (True, True),
        "published": (False, True),
        "behind": (False, True),
    }
    assert load_keys(made["fixed"]) is None
    assert startup_checks.places(made["fixed"]) == []
    for name in ("fixed", "published"):
        with pytest.raises(ConfigError, match=r"memory means nothing without an ε: .* Remove memory"):
            opened(tmp_path, **models[name], memory={"answers": 1})


SEVERAL = [
    MultiOutputClassifier(KNeighborsClassifier()),
    OneVsRestClassifier(LogisticRegression()),
    ClassifierChain(LogisticRegression()),
    KNeighborsClassifier(),
    RandomForestClassifier(3, random_state=0),
]


@pytest.mark.filterwarnings("ignore:Label not 3 is present")
@pytest.mark.parametrize("made", SEVERAL, ids=lambda made: type(made).__name__)
def test_classifiers_of_several_labels_are_served_from_skops(made: BaseEstimator, tmp_path: Path) -> None:
    tags = np.column_stack([LABELS, np.zeros(len(X), dtype=int)])  # and one that nobody has
    if isinstance(made, ClassifierChain):
        tags = LABELS
    trained = clone(made).fit(X, tags)
    skops.io.dump(trained, tmp_path / "m.skops")
    model = Model(veil={"epsilon": 0.5}, skops=tmp_path / "m.skops", shape="multi_label")
    served = loaded(model)
    found, raw = served.embedded.run({"x": X}, ["scores"])["scores"], trained.predict_proba(X)  # type: ignore[union-attr]
    if isinstance(raw, list):
        raw = np.column_stack([each[:, 1] if each.shape[1] == 2 else 0 * each[:, 0] for each in raw])
    np.testing.assert_allclose(found, raw, atol=1e-6)
    assert served.answer_releases == tags.shape[1]


def test_a_label_of_three_values_is_refused(tmp_path: Path) -> None:
    three = np.column_stack([LABELS[:, 0], LABELS.sum(axis=1).clip(max=2)])
    skops.io.dump(MultiOutputClassifier(LogisticRegression()).fit(X, three), tmp_path / "m.skops")
    model = Model(veil={"epsilon": 0.5}, skops=tmp_path / "m.skops", shape="multi_label")
    with pytest.raises(ValueError, match="Label 1 has 3 values"):
        loaded(model)


def test_two_classes_are_one_column_and_its_label_is_that_of_the_threshold(tmp_path: Path) -> None:
    trained = LogisticRegression().fit(X, LABELS[:, 0])
    skops.io.dump(trained, tmp_path / "m.skops")
    model = Model(veil={"epsilon": 0.5}, skops=tmp_path / "m.skops", shape="binary", threshold=0.2, passes=("label",))
    found = loaded(model).embedded.run({"x": X}, ["scores", "label"])  # type: ignore[union-attr]
    np.testing.assert_allclose(found["scores"], trained.predict_proba(X)[:, 1:], atol=1e-6)
    np.testing.assert_array_equal(found["label"], found["scores"][:, 0] >= np.float32(0.2))
    assert (found["label"] != trained.predict(X)).any()


def test_logits_of_yes_and_no_go_through_the_sigmoid() -> None:
    z = np.array([[-800.0, 0.0, 800.0]])
    np.testing.assert_array_equal(probabilities(z, "logits", MultiLabel()), [[0, 0.5, 1]])
    assert np.isnan(probabilities(np.array([[np.inf]]), "logits", Binary())).all()
    np.testing.assert_allclose(probabilities(np.zeros((2, 3, 4)), "logits"), 0.25)


def test_the_examples_of_the_page_hold(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "serve.md").read_text(encoding="utf-8")
    section = page.split("### Other shapes of scores")[1].split("\n## ")[0]
    (toml,) = [part.split("```")[0] for part in section.split("```toml\n")[1:]]
    (tmp_path / "g.toml").write_text(toml, encoding="utf-8")
    made = open_config(config_file.load(tmp_path / "g.toml", environ={}))
    assert {name: model.answer_releases for name, model in made.models.items()} == {
        "tags": 5,
        "churn": 1,
        "pictures": 1,
    }
    assert made.models["tags"].allowed_answers(5) == 2
