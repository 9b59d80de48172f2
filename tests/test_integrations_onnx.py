"""The ONNX session: only labels and veiled scores come out."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from doc_pages import run_page
from raw_scores import names_that_answer_with
from scoreveil.integrations.onnx import VeiledSession
from scoreveil.shapes import VECTORS, Binary, MultiLabel

X, Y = load_iris(return_X_y=True)
X = X.astype(np.float32)
CLASSIFIER = LogisticRegression(max_iter=500).fit(X, Y)
SECRET = b"a secret of the tests"


@pytest.fixture(scope="module")
def model() -> bytes:
    return to_onnx(CLASSIFIER, X[:1], options={"zipmap": False}).SerializeToString()


def ending_in(last: str) -> bytes:
    """Logits, and what a last layer makes of them."""
    return two_outputs(helper.make_node(last, ["logits"], ["last"]))


def two_outputs(*more) -> bytes:
    """Logits, and the features they are made of; or what more nodes make of the logits."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, (4, 3), CLASSIFIER.coef_.T.ravel().astype(np.float32))
    bias = helper.make_tensor("b", TensorProto.FLOAT, (3,), CLASSIFIER.intercept_.astype(np.float32))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["inner"]), helper.make_node("Add", ["inner", "b"], ["logits"])]
    names = ("logits", "last") if more else ("inner", "logits")
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (None, 3)) for name in names]
    graph = helper.make_graph(
        [*nodes, *more],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (None, 4))],
        floats,
        [weights, bias],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made.SerializeToString()


def test_labels_stay_and_scores_are_veiled(model, tmp_path):
    (tmp_path / "model.onnx").write_bytes(model)
    bare = onnxruntime.InferenceSession(model)
    raw_label, raw = bare.run(None, {"X": X})
    for session in (model, tmp_path / "model.onnx", str(tmp_path / "model.onnx"), bare):
        veiled = VeiledSession(session, 2.0, labels="label")
        label, z = veiled.run(None, {"X": X})
        assert np.array_equal(label, raw_label)
        assert np.array_equal(z.argmax(axis=1), raw.argmax(axis=1))
        assert z.dtype == raw.dtype
        assert np.all(np.any(np.abs(z - raw) > 1e-6, axis=1))
        assert veiled.guarantee.epsilon == 2.0


def test_no_public_name_leads_to_raw_scores(model):
    bare = onnxruntime.InferenceSession(model)
    raw = bare.run(["probabilities"], {"X": X})[0]
    asks = [((names, {"X": X}), {}) for names in (None, [], ["probabilities"], ["label", "probabilities"])]
    asks += [(({"X": X},), {}), ((["probabilities"], {"X": X}, None), {})]
    assert names_that_answer_with(raw, VeiledSession(model, 2.0, labels="label"), asks) == []
    assert ".run" in names_that_answer_with(raw, bare, asks), "the search finds them where they are"


@pytest.mark.parametrize("secret", [None, SECRET])
def test_each_label_keeps_its_yes_or_no(secret):
    raw = 1 / (1 + np.exp(-(X @ CLASSIFIER.coef_.T + CLASSIFIER.intercept_)))
    session = VeiledSession(
        two_outputs(), 0.5, scores="logits", outputs="logits", shape=MultiLabel(threshold=0.3), secret=secret
    )
    (z,) = session.run(None, {"x": X})
    assert np.array_equal(z >= 0.3, raw >= 0.3)
    assert np.abs(z - raw).max() > 0.01
    with pytest.raises(ValueError, match="Expected one column"):
        VeiledSession(two_outputs(), 0.5, scores="logits", outputs="logits", shape=Binary()).run(None, {"x": X})


def test_only_known_outputs_can_be_asked_for(model):
    veiled = VeiledSession(two_outputs(), 2.0, scores="logits", outputs="logits")
    assert [output.name for output in veiled.get_outputs()] == ["logits"]
    assert [known.name for known in veiled.get_inputs()] == ["x"]
    assert veiled.get_providers()
    (z,) = veiled.run(["logits"], {"x": X})
    assert np.array_equal(z.argmax(axis=1), CLASSIFIER.predict(X))
    with pytest.raises(ValueError, match="Expected outputs among logits, got 'inner'"):
        veiled.run(["inner"], {"x": X})
    with pytest.raises(ValueError, match="got 'label'"):
        VeiledSession(model, 2.0).run(["label"], {"X": X})


def test_logits_and_probabilities_give_the_same_answer(model):
    (a,) = VeiledSession(two_outputs(), 2.0, scores="logits", outputs="logits", secret=SECRET).run(None, {"x": X})
    (b,) = VeiledSession(model, 2.0, secret=SECRET).run(None, {"X": X})
    # a cell's border may lie between two roundings of the same score
    assert np.mean(np.all(np.isclose(a, b, atol=1e-6), axis=1)) > 0.98


@pytest.mark.parametrize(
    ("last", "shape"), [("Softmax", VECTORS), ("Sigmoid", MultiLabel())], ids=["softmax", "sigmoid"]
)
def test_probabilities_are_refused_where_logits_are_expected(last, shape):
    told = r'The output last gives probabilities already, and not logits\. Leave outputs="logits" out'
    with pytest.raises(ValueError, match=told):
        VeiledSession(ending_in(last), 0.5, scores="last", outputs="logits", shape=shape).run(None, {"x": X})
    (z,) = VeiledSession(ending_in(last), 0.5, scores="last", shape=shape).run(None, {"x": X})
    (same,) = VeiledSession(ending_in(last), 0.5, scores="logits", outputs="logits", shape=shape).run(None, {"x": X})
    if shape == VECTORS:
        assert np.array_equal(z.argmax(axis=1), same.argmax(axis=1))
    else:
        assert np.array_equal(z >= 0.5, same >= 0.5)


def test_one_row_of_probabilities_is_refused_and_a_few_yes_or_no_are_not():
    session = VeiledSession(ending_in("Softmax"), 0.5, scores="last", outputs="logits")
    with pytest.raises(ValueError, match="gives probabilities already"):
        session.run(None, {"x": X[:1]})
    few = VeiledSession(ending_in("Sigmoid"), 0.5, scores="last", outputs="logits", shape=MultiLabel())
    assert few.run(None, {"x": X[:1]})[0].shape == (1, 3)  # logits may all lie from 0 to 1 by chance


def test_what_does_not_fit_is_refused(model):
    with pytest.raises(ValueError, match=r"Expected one output .* got inner: tensor\(float\), logits"):
        VeiledSession(two_outputs(), 2.0)
    with pytest.raises(ValueError, match=r"zipmap=False"):
        VeiledSession(to_onnx(CLASSIFIER, X[:1]).SerializeToString(), 2.0)
    with pytest.raises(ValueError, match="Expected an output of labels"):
        VeiledSession(model, 2.0, labels="probabilities")
    with pytest.raises(ValueError, match="Expected an output of scores"):
        VeiledSession(model, 2.0, scores="no such")
    with pytest.raises(ValueError, match="got 'odds'"):
        VeiledSession(model, 2.0, outputs="odds")
    with pytest.raises(ValueError, match="Row 0"):
        VeiledSession(two_outputs(), 2.0, scores="logits").run(None, {"x": X})


def test_the_page_runs():
    names = run_page("onnx")
    assert names["z"].shape == (5, 3)
