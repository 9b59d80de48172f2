"""Scores that are not vectors, through a real gateway: one column, many labels, lists of the largest, many places."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier

from gateway_servers import Behind, Gateway, free_ports, gateway, scores_of, v2
from scoreveil import Veil, fit
from scoreveil.gateway import config_file, embedded, lists, opening
from scoreveil.gateway.config import Config, ConfigError, Model
from scoreveil.gateway.probabilities import probabilities
from scoreveil.shapes import ManyLabels, OneColumn

RNG = np.random.default_rng(0)
X = RNG.normal(scale=2, size=(40, 4)).astype(np.float32)
WEIGHTS = RNG.normal(size=(4, 6)).astype(np.float32)
MARK = "739173"  # digits of raw scores alone
JSON = {"Content-Type": "application/json"}
LABELS = (X[:, :3] > 0).astype(int)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)


# Models that are made here


def onnx_file(path: Path, columns: int, *nodes: Any, outputs: dict[str, tuple[Any, list[Any]]]) -> Path:
    """A linear model x -> z of so many columns, with further nodes."""
    made = [numpy_helper.from_array(WEIGHTS[:, :columns], "w"), numpy_helper.from_array(np.array([5]), "five")]
    made.append(numpy_helper.from_array(np.array([0, 2, 3]), "places"))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"]), *nodes],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        made,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def made_models(folder: Path) -> None:
    number, whole = TensorProto.FLOAT, TensorProto.INT64
    node = helper.make_node
    onnx_file(folder / "one.onnx", 1, node("Sigmoid", ["z"], ["p"]), outputs={"p": (number, ["n", 1])})
    onnx_file(folder / "tags.onnx", 3, node("Sigmoid", ["z"], ["p"]), outputs={"p": (number, ["n", 3])})
    onnx_file(
        folder / "list.onnx",
        6,
        node("Softmax", ["z"], ["p"], axis=1),
        node("TopK", ["p", "five"], ["values", "indices"]),
        outputs={"values": (number, ["n", 5]), "indices": (whole, ["n", 5])},
    )
    onnx_file(
        folder / "places.onnx",
        6,
        node("Reshape", ["z", "places"], ["zz"]),
        node("Softmax", ["zz"], ["p"], axis=2),
        outputs={"p": (number, ["n", 2, 3])},
    )
    skops.io.dump(MultiOutputClassifier(LogisticRegression()).fit(X, LABELS), folder / "several.skops")
    skops.io.dump(OneVsRestClassifier(LogisticRegression()).fit(X, LABELS), folder / "rest.skops")


# A server behind, honest about most inputs, and hostile where the first number says so


def hostile(case: int, scores: np.ndarray) -> Any:
    """The scores of one record as an upstream might send them."""
    wrong = scores.copy()
    if case == 101:
        return np.hstack([scores, scores[:, :1]])  # one more than is paid for
    if case == 102:
        wrong[0, 0] = np.nan
    elif case == 103:
        wrong[0, 0] = 1.739173
    elif case == 104:
        wrong[0, 0] = -0.739173
    elif case == 105:
        return scores[None]  # another dimension
    elif case == 106:
        return scores[:, :-1]
    return wrong


def answered(name: str, x: np.ndarray) -> dict[str, np.ndarray]:
    z = x @ WEIGHTS.astype(np.float64)
    case = int(x[0, 0])
    if name == "tags":
        return {"scores": hostile(case, sigmoid(z[:, :3]))}
    if name == "logits":
        return {"scores": z[:, :3]}
    if name == "one":
        return {"scores": sigmoid(z[:, 0])}
    if name == "list":
        scores = softmax(z)
        order = np.argsort(-scores, axis=1)[:, :4]
        labels = np.array([[f"class {i}" for i in row] for row in order])
        if case == 110:
            labels[0, 1] = labels[0, 0]
        more = labels[:, :3] if case == 111 else labels
        return {"values": np.take_along_axis(scores, order, axis=1), "names": labels, "again": more}
    assert name == "tokens"
    places = 5 if case == 120 else int(abs(case)) % 3 + 1
    return {"scores": np.repeat(softmax(z)[:, None], places, axis=1)}


def written(name: str, array: np.ndarray) -> dict[str, Any]:
    kind = "BYTES" if array.dtype.kind == "U" else "FP64"
    return {"name": name, "datatype": kind, "shape": list(array.shape), "data": array.ravel().tolist()}


def behind(method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    if method == "GET":
        return 200, JSON, b"{}"
    if path.endswith(("/invocations", ":predict")):
        asked = json.loads(body)
        rows = asked["dataframe_split"]["data"] if "dataframe_split" in asked else asked["instances"]
        p = sigmoid(np.array(rows) @ WEIGHTS.astype(np.float64))
        named = [{"p": [float(v)], "logits": MARK} for v in p[:, 0]]
        return 200, JSON, json.dumps({"predictions": named if "instances" in asked else p[:, 0].tolist()}).encode()
    head, end = json.JSONDecoder().raw_decode(body.decode("latin1"))
    (given,) = head["inputs"]
    binary = "binary_data_size" in given.get("parameters", {})
    values = np.frombuffer(body[end:], "<f4") if binary else np.array(given["data"])
    found = answered(path.split("/")[3], values.reshape(given["shape"]))
    wanted = {output["name"] for output in head["outputs"]}
    outputs = [written(name, array) for name, array in found.items() if name in wanted]
    if not binary:
        return 200, JSON, json.dumps({"outputs": outputs}).encode()
    for output in outputs:
        output["parameters"] = {"binary_data_size": 8 * len(output["data"])}
    blobs = b"".join(np.array(output.pop("data")).astype("<f8").tobytes() for output in outputs)
    text = json.dumps({"outputs": outputs}).encode()
    return 200, {"Inference-Header-Content-Length": str(len(text))}, text + blobs


class WithGrpc(Gateway):
    grpc_port: int


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithGrpc]:
    folder = tmp_path_factory.mktemp("shapes")
    made_models(folder)
    server = Behind(behind)
    (port,) = free_ports(1)
    inputs = 'inputs = [{ name = "x", datatype = "FP32", shape = [-1, 4] }]'
    columns = ", ".join(f'{{ name = "{name}", datatype = "FP64", shape = [-1] }}' for name in "abcd")
    toml = f"""
    server = {{ grpc_port = {port} }}
    logs = {{ requests = true }}
    [models]
    one = {{ onnx = "one.onnx", epsilon = 2.0, shape = "one_column", threshold = 0.3 }}
    tags = {{ onnx = "tags.onnx", epsilon = 0.5, shape = "many_labels", threshold = [0.5, 0.2, 0.7] }}
    counted = {{ onnx = "tags.onnx", epsilon = 0.5, shape = "many_labels", repeats = "budget", total = 3.0 }}
    places = {{ onnx = "places.onnx", epsilon = 0.5, repeats = "budget", total = 2.0 }}
    several = {{ skops = "several.skops", epsilon = 0.5, shape = "many_labels" }}
    rest = {{ skops = "rest.skops", epsilon = 0.5, shape = "many_labels" }}
    [models.list]
    onnx = "list.onnx"
    epsilon = 2.0
    shape = "top_k"
    classes = 6
    scores = ["values"]
    passes = ["indices"]
    [models.behind]
    epsilon = 0.5
    shape = "many_labels"
    releases = 3
    {inputs}
    upstream = {{ url = "{server.url}", model = "tags" }}
    [models.unknown]
    epsilon = 0.5
    shape = "many_labels"
    releases = 3
    upstream = {{ url = "{server.url}", model = "tags" }}
    [models.binary]
    epsilon = 0.5
    shape = "many_labels"
    releases = 3
    outputs = "logits"
    {inputs}
    upstream = {{ url = "{server.url}", model = "logits", binary = true }}
    [models.column]
    epsilon = 0.5
    shape = "one_column"
    {inputs}
    upstream = {{ url = "{server.url}", model = "one" }}
    [models.listed]
    epsilon = 2.0
    shape = "top_k"
    scores = ["values"]
    passes = ["names", "again"]
    upstream = {{ url = "{server.url}", model = "list" }}
    [models.tokens]
    epsilon = 0.5
    releases = 3
    repeats = "budget"
    total = 1.5
    {inputs}
    upstream = {{ url = "{server.url}" }}
    [models.flow]
    epsilon = 0.5
    shape = "one_column"
    inputs = [{columns}]
    upstream = {{ url = "{server.url}", protocol = "mlflow" }}
    [models.tf]
    epsilon = 0.5
    shape = "one_column"
    scores = ["p"]
    {inputs}
    upstream = {{ url = "{server.url}", protocol = "tfserving" }}
    """
    with gateway(folder, toml) as made:
        made.grpc_port = port  # type: ignore[attr-defined]
        yield made  # type: ignore[misc]
    server.close()


def no_leak(*texts: object) -> None:
    for text in texts:
        assert MARK not in (text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text))


def outputs_of(answer: tuple[int, dict[str, str], bytes]) -> dict[str, np.ndarray]:
    status, _, body = answer
    assert status == 200, body
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in json.loads(body)["outputs"]}


def of_record(value: float, *more: float) -> np.ndarray:
    return np.float32([[value, *(more or (1, 1, 1))]])


# Each shape


def test_one_column_keeps_its_side_of_the_threshold(front: Gateway) -> None:
    raw = sigmoid(X @ WEIGHTS[:, :1])
    z = scores_of(front.infer(X, "one"))
    assert z.shape == (40, 1)
    assert ((z >= 0.3) == (raw >= 0.3)).all()
    assert np.abs(z - raw).max() > 0.01
    np.testing.assert_array_equal(scores_of(front.infer(X[:3] + 1e-7, "one")), z[:3])  # near-duplicates share it


@pytest.mark.parametrize("model", ["tags", "several", "rest"])
def test_many_labels_keep_each_yes_and_no(front: Gateway, model: str) -> None:
    if model == "tags":
        raw, threshold = sigmoid(X @ WEIGHTS[:, :3]), np.float32([0.5, 0.2, 0.7])
    else:
        raw = np.column_stack([LogisticRegression().fit(X, LABELS[:, i]).predict_proba(X)[:, 1] for i in range(3)])
        threshold = np.float32(0.5)
    z = scores_of(front.infer(X, model))
    assert ((z >= threshold) == (raw >= threshold)).all()
    assert np.abs(z - raw).max() > 0.01
    np.testing.assert_array_equal(scores_of(front.infer(X, model)), z)


def test_a_budget_of_two_answers_of_three_labels_is_two_answers(front: Gateway) -> None:
    x = of_record(7)
    assert [front.infer(x, "counted")[0] for _ in range(3)] == [200, 200, 429]  # total = 2 · 3 · 0.5
    assert "2 are allowed, 2 were made" in json.loads(front.infer(x + 1e-7, "counted")[2])["error"]
    state = json.loads(front.request("GET", "/api/state", admin=True)[2])["models"]
    assert {each["model"]: each["releases"] for each in state}["tokens"] == 1


def test_a_vector_at_each_place_is_a_release(front: Gateway) -> None:
    raw = softmax((X @ WEIGHTS).reshape(40, 2, 3))
    z = scores_of(front.infer(X, "places"))
    assert z.shape == raw.shape
    assert (z.argmax(axis=-1) == raw.argmax(axis=-1)).all()
    np.testing.assert_allclose(z.sum(axis=-1), 1, atol=1e-5)
    assert front.infer(X, "places")[0] == 200  # 2 places, ε = 0.5, total = 2
    assert front.infer(X, "places")[0] == 429
    asked = {**v2(X), "outputs": [{"name": "scores", "parameters": {"classification": 1}}]}
    status, _, body = front.request("POST", "/v2/models/places/infer", asked)
    assert (status, "one for each place" in json.loads(body)["error"]) == (400, True)


def test_fewer_places_cost_less_and_more_than_are_known_are_refused(front: Gateway) -> None:
    one, three = of_record(3), of_record(5)  # so many places, of three at most; total = 3 · 0.5
    assert [scores_of(front.infer(one, "tokens")).shape[1] for _ in range(3)] == [1, 1, 1]
    assert front.infer(one, "tokens")[0] == 429
    assert [front.infer(three, "tokens")[0] for _ in range(2)] == [200, 429]
    status, headers, body = front.infer(of_record(120), "tokens")
    assert status == 502
    no_leak(headers, body)


# Lists of the largest


def test_a_list_is_ordered_by_its_veiled_scores(front: Gateway) -> None:
    found = outputs_of(front.infer(X, "list"))
    z, indices = found["values"], found["indices"]
    raw = softmax(X @ WEIGHTS)
    listed = np.argsort(-raw, axis=1)[:, :5]
    assert (np.sort(indices, axis=1) == np.sort(listed, axis=1)).all()  # which classes they are is told
    assert (indices[:, 0] == raw.argmax(axis=1)).all()
    by_score_then_label = np.array([np.lexsort([row, -score]) for row, score in zip(indices, z, strict=True)])
    assert (by_score_then_label == np.arange(5)).all()
    assert not (indices == listed).all()
    assert np.abs(z[:, 0] - raw.max(axis=1)).max() > 0.01
    assert (z.sum(axis=1) < 1 + 1e-6).all()


@pytest.mark.parametrize("wanted", [["names"], ["again"], ["values"], ["names", "values"]])
def test_whatever_is_asked_of_a_list_comes_in_one_order(front: Gateway, wanted: list[str]) -> None:
    whole = outputs_of(front.infer(X, "listed"))
    assert (whole["names"] == whole["again"]).all()
    asked = {**v2(X), "outputs": [{"name": name} for name in wanted]}
    found = outputs_of(front.request("POST", "/v2/models/listed/infer", asked))
    assert set(found) == set(wanted)
    for name, array in found.items():
        np.testing.assert_array_equal(array, whole[name])


def test_a_list_tells_its_order_beyond_the_top_by_nothing() -> None:
    """Two models that list the same classes in another order below the top give the same bytes."""
    values = np.array([[0.5, 0.3, 0.1, 0.05]])
    other = np.array([[0.5, 0.2, 0.15, 0.1]])
    veil = Veil(2.0, shape=config_shape(), secret=bytes(32))
    shown = []
    for scores, names in ((values, [["d", "c", "b", "a"]]), (other, [["d", "a", "b", "c"]])):
        ordered, passed = lists.by_label(scores, {"names": np.array(names, dtype=object)})
        outcomes = np.array([[20]], dtype=np.uint16)
        z, after = lists.largest_first(veil.answers(ordered, outcomes), passed)
        shown.append((z.tolist(), after["names"].tolist()))
    assert shown[0] == shown[1]


def config_shape() -> Any:
    model = Model(veil={"epsilon": 2.0}, onnx=Path("m.onnx"), shape="top_k")
    return model.make_veil().shape


# Hostile answers


@pytest.mark.parametrize("model", ["behind", "unknown"])
@pytest.mark.parametrize("case", [101, 102, 103, 104, 105, 106])
def test_what_was_not_paid_for_or_is_no_probability_is_502(front: Gateway, model: str, case: int) -> None:
    status, headers, body = front.infer(of_record(case), model)
    assert (status, set(json.loads(body))) == (502, {"error"})
    no_leak(headers, body)


@pytest.mark.parametrize("case", [110, 111])
def test_a_label_twice_or_a_column_that_has_no_place_in_the_list_is_502(front: Gateway, case: int) -> None:
    status, headers, body = front.infer(of_record(case), "listed")
    assert (status, set(json.loads(body))) == (502, {"error"})
    no_leak(headers, body)


def test_nothing_raw_in_the_log(front: Gateway) -> None:
    front.infer(of_record(103), "behind")
    no_leak(front.log.read_text(), front.request("GET", "/metrics", admin=True)[2])


# Clients as they are


def test_triton_over_http_and_grpc_gets_one_answer(front: WithGrpc) -> None:
    tensor = triton.InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X, binary_data=True)
    wanted = triton.InferRequestedOutput("scores", binary_data=True)
    with triton.InferenceServerClient(f"127.0.0.1:{front.port}") as client:
        about = client.get_model_metadata("tags")["outputs"]
        assert about == [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}]
        assert client.get_model_metadata("one")["outputs"][0]["shape"] == [-1, 1]
        http = {
            name: client.infer(name, [tensor]).as_numpy("scores") for name in ("tags", "behind", "binary", "column")
        }
        best = triton.InferRequestedOutput("scores", class_count=2)
        top = client.infer("tags", [tensor], outputs=[best]).as_numpy("scores")
        np.testing.assert_array_equal(client.infer("tags", [tensor], outputs=[wanted]).as_numpy("scores"), http["tags"])
    assert (http["column"].shape, http["behind"].dtype) == ((40,), np.float64)
    raw = sigmoid(X @ WEIGHTS[:, :3].astype(np.float64))
    assert ((http["binary"] >= 0.5) == (raw >= 0.5)).all()
    assert ((http["column"] >= 0.5) == (raw[:, 0] >= 0.5)).all()
    for texts, row in zip(top, http["tags"], strict=True):
        order = np.argsort(-row, kind="stable")[:2]
        assert [text.decode() for text in texts] == [f"{row[i]:f}:{i}" for i in order]
    asked = triton_grpc.InferInput("x", list(X.shape), "FP32")
    asked.set_data_from_numpy(X)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{front.grpc_port}") as client:
        for name, z in http.items():
            np.testing.assert_array_equal(client.infer(name, [asked]).as_numpy("scores"), z)


def test_classification_of_a_list_names_what_is_listed(front: Gateway) -> None:
    found = outputs_of(front.infer(X[:5], "list"))
    asked = {**v2(X[:5]), "outputs": [{"name": "values", "parameters": {"classification": 2}}]}
    top = outputs_of(front.request("POST", "/v2/models/list/infer", asked))["values"]
    pairs = zip(np.float32(found["values"]), found["indices"], strict=True)
    expected = [[f"{v:f}:{i}" for v, i in zip(z[:2], row[:2], strict=True)] for z, row in pairs]
    assert top.tolist() == expected
    names = outputs_of(front.infer(X[:1], "listed"))["names"]
    asked = {**v2(X[:1]), "outputs": [{"name": "values", "parameters": {"classification": 1}}]}
    ((best,),) = outputs_of(front.request("POST", "/v2/models/listed/infer", asked))["values"]
    assert best.split(":")[1:] == ["0", names[0, 0]]


def test_mlflow_answers_with_numbers_and_tf_serving_with_rows_of_one(front: Gateway) -> None:
    raw = sigmoid(X @ WEIGHTS[:, 0])
    rows = X.astype(float).tolist()
    sent = {"dataframe_split": {"columns": list("abcd"), "data": rows}}
    status, _, body = front.request("POST", "/invocations", sent, Content_Type="application/json")
    assert status == 200, body
    z = np.array(json.loads(body)["predictions"])
    assert z.shape == (40,)
    assert ((z >= 0.5) == (raw >= 0.5)).all()
    status, _, body = front.request("POST", "/v1/models/tf:predict", {"instances": rows})
    z = np.array(json.loads(body)["predictions"])
    assert (status, z.shape) == (200, (40, 1))
    assert ((z[:, 0] >= 0.5) == (raw >= 0.5)).all()
    no_leak(body)


# What is said before anything listens


def said(folder: Path, **table: Any) -> str:
    return "\n".join(opening.here(config_file.parse({"models": {"m": table}}, folder)))


def test_the_opening_says_what_a_whole_answer_spends(tmp_path: Path) -> None:
    made_models(tmp_path)
    words = said(tmp_path, onnx="tags.onnx", epsilon=0.5, shape="many_labels")
    assert "output  p FP32 [-1, 3]: veiled as scores, many labels\n" in words
    assert "ε = 0.5 is that of a label; an answer holds 3 of them and spends ε = 1.5." in words
    words = said(tmp_path, onnx="places.onnx", epsilon=30.0)
    assert "that of a place; an answer holds up to 2 of them and spends up to ε = 60. Something is promised" in words
    words = said(tmp_path, onnx="list.onnx", epsilon=2.0, shape="top_k", scores=["values"], passes=["indices"])
    assert "indices INT64 [-1, 5]: passed, in the order of the veiled scores" in words


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"onnx": "tags.onnx"}, 'add up to 1 in each row.*say shape = "many_labels"'),
        ({"onnx": "tags.onnx", "shape": "one_column"}, r"Expected one column"),
        ({"onnx": "tags.onnx", "shape": "many_labels", "threshold": [0.5, 0.5]}, "2 thresholds for 3 labels"),
        ({"onnx": "tags.onnx", "shape": "many_labels", "outputs": "logits"}, "holds probabilities already"),
        ({"onnx": "tags.onnx", "shape": "top_k"}, "does not hold the largest probabilities"),
        (
            {"onnx": "tags.onnx", "shape": "many_labels", "repeats": "budget", "total": 1.0},
            "An answer holds 3 releases",
        ),
        ({"onnx": "list.onnx", "shape": "top_k", "classes": 4, "scores": ["values"]}, "5 classes are listed"),
        ({"skops": "several.skops"}, "MultiOutputClassifier of several labels; say shape"),
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
        ({"shape": "one_column", "threshold": 1.5}, "Expected a threshold between 0 and 1"),
        ({"shape": "one_column", "threshold": [0.5, 0.5]}, "Expected a threshold between 0 and 1"),
        ({"shape": "one_column", "classes": 3}, "has no classes"),
        ({"shape": "one_column", "releases": 3}, "releases is for many labels"),
        ({"shape": "many_labels"}, "releases is missing: in front of a server"),
        (
            {"shape": "many_labels", "releases": 2, "threshold": [0.5]},
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
        config_file.parse({"models": {"m": {"epsilon": 0.5, **UPSTREAM, **table}}})


@pytest.mark.parametrize("shape", [OneColumn(threshold=0.3), ManyLabels(threshold=(0.3, 0.6)), OneColumn(logits=True)])
def test_a_saved_veil_brings_its_shape(shape: Any, tmp_path: Path) -> None:
    Veil(2.0, shape=shape).save(tmp_path / "veil.npz")
    table: dict[str, Any] = {"veil": "veil.npz", "outputs": "logits", **UPSTREAM}
    made = config_file.parse({"models": {"m": table}}, tmp_path).models["m"]
    assert made.make_veil(bytes(32), "m/1/scores").shape == shape
    raw = np.array([[0.7391, -0.2]])[:, : 1 if isinstance(shape, OneColumn) else 2]
    is_left = np.array_equal(probabilities(raw, "logits", shape), raw)
    assert is_left == shape.logits
    with pytest.raises(ConfigError, match="the veil was fitted for scores of another shape"):
        config_file.parse({"models": {"m": {**table, "shape": shape.name, "threshold": 0.4}}}, tmp_path)
    if shape.logits:
        with pytest.raises(ConfigError, match='say outputs = "logits"'):
            config_file.parse({"models": {"m": {"veil": "veil.npz", **UPSTREAM}}}, tmp_path)


def test_a_fitted_veil_of_several_labels_is_served_and_counted(tmp_path: Path) -> None:
    made_models(tmp_path)
    raw = sigmoid(X @ WEIGHTS[:, :3].astype(np.float64))
    fit(4.0, nonmembers=raw, nonmember_labels=LABELS, shape=ManyLabels(threshold=0.4)).save(tmp_path / "veil.npz")
    words = said(tmp_path, onnx="tags.onnx", veil="veil.npz", shape="many_labels")
    assert "veiled as scores, many labels" in words
    assert "an answer holds 3 of them and spends ε = 12." in words
    behind = config_file.parse({"models": {"m": {"veil": "veil.npz", **UPSTREAM}}}, tmp_path).models["m"]
    assert behind.answer_releases == 3
    with pytest.raises(ConfigError, match="the veil is for 3 labels"):
        config_file.parse({"models": {"m": {"veil": "veil.npz", "releases": 4, **UPSTREAM}}}, tmp_path)
    veil = behind.make_veil(bytes(32), "m/1/scores")
    z = veil.answers(raw, veil.outcomes(raw, [bytes([i]) for i in range(len(raw))]))
    assert ((z >= 0.4) == (raw >= 0.4)).all()


def test_a_forest_of_several_labels_is_served_and_one_of_three_values_is_not(tmp_path: Path) -> None:
    skops.io.dump(RandomForestClassifier(3, random_state=0).fit(X, LABELS), tmp_path / "m.skops")
    model = Model(veil={"epsilon": 0.5}, skops=tmp_path / "m.skops", shape="many_labels")
    opened = embedded.load("m", model)
    raw = RandomForestClassifier(3, random_state=0).fit(X, LABELS).predict_proba(X)
    found = opened.run({"x": X}, ["scores"])["scores"]
    np.testing.assert_allclose(found, np.column_stack([each[:, 1] for each in raw]), atol=1e-6)
    assert embedded.counted(model, opened).answer_releases == 3
    three = np.column_stack([LABELS[:, 0], LABELS.sum(axis=1).clip(max=2)])
    skops.io.dump(MultiOutputClassifier(LogisticRegression()).fit(X, three), tmp_path / "m.skops")
    with pytest.raises(ConfigError, match="Label 1 has 3 values"):
        opening.here(Config(models={"m": model}))


def test_logits_of_yes_and_no_go_through_the_sigmoid() -> None:
    z = np.array([[-800.0, 0.0, 800.0]])
    np.testing.assert_array_equal(probabilities(z, "logits", ManyLabels()), [[0, 0.5, 1]])
    assert np.isnan(probabilities(np.array([[np.inf]]), "logits", OneColumn())).all()
    np.testing.assert_allclose(probabilities(np.zeros((2, 3, 4)), "logits"), 0.25)


def test_the_examples_of_the_page_hold(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "serve.md").read_text(encoding="utf-8")
    section = page.split("### Other shapes of scores")[1].split("\n## ")[0]
    (toml,) = [part.split("```")[0] for part in section.split("```toml\n")[1:]]
    (tmp_path / "g.toml").write_text(toml, encoding="utf-8")
    made = config_file.load(tmp_path / "g.toml", environ={})
    assert {name: model.answer_releases for name, model in made.models.items()} == {
        "tags": 5,
        "churn": 1,
        "pictures": 1,
    }
    assert made.models["tags"].allowed_answers(5) == 2
