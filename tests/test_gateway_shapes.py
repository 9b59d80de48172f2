"""Scores that are not vectors, through a real gateway: one column, many labels, lists of the largest, many places."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from gateway_servers import Behind, Gateway, free_ports, gateway, scores_of, v2
from shaped_models import WEIGHTS, X, made_models, sigmoid, softmax

pytestmark = pytest.mark.slow

MARK = "739173"  # digits of raw scores alone
JSON = {"Content-Type": "application/json"}


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
        if case == 112:  # a list of one, and no list
            return {"values": scores[0, :1], "names": labels[0, :1], "again": labels[0, :1]}
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
    one = {{ onnx = "one.onnx", epsilon = 2.0, shape = "binary", threshold = 0.3 }}
    tags = {{ onnx = "tags.onnx", epsilon = 0.5, shape = "multi_label", threshold = [0.5, 0.2, 0.7] }}
    places = {{ onnx = "places.onnx", epsilon = 0.5, memory.epsilon = 2.0, memory.repeat = "refuse" }}
    [models.counted]
    onnx = "tags.onnx"
    epsilon = 0.5
    shape = "multi_label"
    memory = {{ answers = 2, repeat = "refuse" }}
    [models.list]
    onnx = "list.onnx"
    epsilon = 2.0
    shape = "top_k"
    classes = 6
    scores = ["values"]
    passes = ["indices"]
    [models.behind]
    epsilon = 0.5
    shape = "multi_label"
    releases = 3
    {inputs}
    upstream = {{ url = "{server.url}", model = "tags" }}
    [models.unknown]
    epsilon = 0.5
    shape = "multi_label"
    releases = 3
    upstream = {{ url = "{server.url}", model = "tags" }}
    [models.binary]
    epsilon = 0.5
    shape = "multi_label"
    releases = 3
    outputs = "logits"
    {inputs}
    upstream = {{ url = "{server.url}", model = "logits", binary = true }}
    [models.column]
    epsilon = 0.5
    shape = "binary"
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
    memory.epsilon = 1.5
    memory.repeat = "refuse"
    {inputs}
    upstream = {{ url = "{server.url}" }}
    [models.flow]
    epsilon = 0.5
    shape = "binary"
    inputs = [{columns}]
    upstream = {{ url = "{server.url}", protocol = "mlflow" }}
    [models.tf]
    epsilon = 0.5
    shape = "binary"
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


def test_many_labels_keep_each_yes_and_no(front: Gateway) -> None:
    raw, threshold = sigmoid(X @ WEIGHTS[:, :3]), np.float32([0.5, 0.2, 0.7])
    z = scores_of(front.infer(X, "tags"))
    assert ((z >= threshold) == (raw >= threshold)).all()
    assert np.abs(z - raw).max() > 0.01
    np.testing.assert_array_equal(scores_of(front.infer(X, "tags")), z)


def test_a_budget_of_two_answers_of_three_labels_is_two_answers(front: Gateway) -> None:
    x = of_record(7)
    assert [front.infer(x, "counted")[0] for _ in range(3)] == [200, 200, 429]  # total = 2 · 3 · 0.5
    assert "all the answers that it may have" in json.loads(front.infer(x + 1e-7, "counted")[2])["error"]
    state = json.loads(front.request("GET", "/api/state", admin=True)[2])["models"]
    memory = {each["model"]: each["memory"] for each in state}
    assert memory["counted"] == "2 answers for a record and its near-duplicates, then none"
    assert memory["tokens"] == "answers of ε = 1.5 in all for a record and its near-duplicates, then none"


def test_a_vector_at_each_place_is_a_release(front: Gateway) -> None:
    raw = softmax((X @ WEIGHTS).reshape(40, 2, 3))
    z = scores_of(front.infer(X, "places"))
    assert z.shape == raw.shape
    assert (z.argmax(axis=-1) == raw.argmax(axis=-1)).all()
    np.testing.assert_allclose(z.sum(axis=-1), 1, atol=1e-5)
    assert front.infer(X, "places")[0] == 200  # 2 places, ε = 0.5, total = 2
    assert front.infer(X, "places")[0] == 429
    asked = {**v2(X), "outputs": [{"name": "p", "parameters": {"classification": 1}}]}
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


# Hostile answers


@pytest.mark.parametrize("model", ["behind", "unknown"])
@pytest.mark.parametrize("case", [101, 102, 103, 104, 105, 106])
def test_what_was_not_paid_for_or_is_no_probability_is_502(front: Gateway, model: str, case: int) -> None:
    status, headers, body = front.infer(of_record(case), model)
    assert (status, set(json.loads(body))) == (502, {"error"})
    no_leak(headers, body)


@pytest.mark.parametrize("case", [110, 111, 112])
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
    wanted = triton.InferRequestedOutput("p", binary_data=True)
    outputs = {"tags": "p", "behind": "scores", "binary": "scores", "column": "scores"}
    with triton.InferenceServerClient(f"127.0.0.1:{front.port}") as client:
        about = client.get_model_metadata("tags")["outputs"]
        assert about == [{"name": "p", "datatype": "FP32", "shape": [-1, 3]}]
        assert client.get_model_metadata("one")["outputs"][0]["shape"] == [-1, 1]
        http = {name: client.infer(name, [tensor]).as_numpy(output) for name, output in outputs.items()}
        best = triton.InferRequestedOutput("p", class_count=2)
        top = client.infer("tags", [tensor], outputs=[best]).as_numpy("p")
        np.testing.assert_array_equal(client.infer("tags", [tensor], outputs=[wanted]).as_numpy("p"), http["tags"])
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
            np.testing.assert_array_equal(client.infer(name, [asked]).as_numpy(outputs[name]), z)


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
