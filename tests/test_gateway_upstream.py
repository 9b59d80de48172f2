"""In front of other servers: what passes, and what never does."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from gateway_servers import Behind, Gateway, gateway, light_gateway, scores_of, until, v2
from scoreveil import Veil
from scoreveil.gateway.config import Limits, Upstream
from scoreveil.gateway.upstream import UpstreamPool

# digits that occur in raw scores and logits alone: wherever they appear, something has leaked
MARK = "739173"
RAW = np.array([[0.1739173, 0.0739173, 0.7521654], [0.5739173, 0.2739173, 0.1521654]])
LOGITS = [[-1.739173, -2.739173, 0.739173], [0.5739173, 0.739173, -1.739173]]
X = np.float32([[1, 2], [3, 4]])
JSON = {"Content-Type": "application/json"}


def leaky(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """A v2 server that tells more than it was asked, in every place where that is possible."""
    rows = json.loads(body)["inputs"][0]["shape"][0]
    outputs = [
        {
            "name": "scores",
            "datatype": "FP64",
            "shape": [rows, 3],
            "data": RAW[:rows].ravel().tolist(),
            "parameters": {"raw": MARK},
        },
        {"name": "label", "datatype": "INT64", "shape": [rows], "data": RAW[:rows].argmax(axis=1).tolist()},
        {"name": "logits", "datatype": "FP64", "shape": [rows, 3], "data": [v for row in LOGITS[:rows] for v in row]},
    ]
    tree = {
        "model_name": f"m{MARK}",
        "model_version": MARK,
        "id": MARK,
        "parameters": {"logits": LOGITS},
        "outputs": outputs,
    }
    return 200, {**JSON, "X-Raw-Scores": MARK, "Set-Cookie": f"raw={MARK}"}, json.dumps(tree).encode()


# what a broken or hostile upstream answers, by the first value of the input
def one(**changes: Any) -> bytes:
    output = {"name": "scores", "datatype": "FP64", "shape": [1, 3], "data": RAW[0].tolist(), **changes}
    return json.dumps({"outputs": [output]}).encode()


BROKEN: dict[int, tuple[int, bytes]] = {
    10: (500, f"Traceback: scores were {RAW.tolist()}".encode()),
    11: (400, json.dumps({"error": f"bad row, scores {RAW.tolist()}"}).encode()),
    12: (302, MARK.encode()),
    13: (200, b"not json " + MARK.encode()),
    14: (200, b"{}"),
    15: (200, json.dumps({"outputs": []}).encode()),
    16: (200, one(data=LOGITS[0])),  # logits in place of scores
    17: (200, one(data=[0.1739173, float("nan"), 0.8])),
    18: (200, one(shape=[3])),
    19: (200, one(shape=[1, 4])),
    20: (200, one(shape=[2, 3], data=RAW.ravel().tolist())),  # more rows than were asked about
    21: (200, one(datatype="BYTES", data=["0.1739173:0", "0.0739173:1", "0.7521654:2"])),
    22: (200, one(datatype="FP99")),
    23: (200, one(data=[0.1739173, 0.0739173])),
    24: (200, one(data=[[0.1739173, 0.0739173, "0.7521654"]])),
    25: (200, one(name="other")),
    26: (200, one(shape=[10**9, 10**9])),
    27: (200, one(parameters={"binary_data_size": 24}, data=None)),
    28: (204, b""),
    29: (200, b"[" * 5000),
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[Behind]:
    def answer(method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if method == "GET":
            about = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}], "secret": MARK}
            about["outputs"] = [{"name": n, "datatype": "FP64", "shape": [-1, 3]} for n in ("scores", "logits")]
            return 200, JSON, json.dumps(about).encode()
        if path.endswith(("/invocations", ":predict")):
            return 200, JSON, rowwise(path, json.loads(body))
        first = json.loads(body)["inputs"][0]["data"][0]
        if first in BROKEN:
            status, content = BROKEN[first]
            return status, {"Content-Type": "text/html", "X-Raw-Scores": MARK, "Location": "/elsewhere"}, content
        if first == 99:
            time.sleep(2)
        return leaky(path, body)

    server = Behind(answer)
    yield server
    server.close()


def rowwise(path: str, asked: dict[str, Any]) -> bytes:
    (kind,) = (name for name in asked if name != "signature_name")
    rows = asked[kind]["data"] if kind == "dataframe_split" else asked[kind]
    assert kind != "dataframe_records"  # whatever clients send, one form goes on
    scores = RAW[: len(rows)].tolist()
    if path.endswith(":predict"):
        named = [{"scores": s, "logits": logit} for s, logit in zip(scores, LOGITS, strict=False)]
        return json.dumps({"predictions": named, "metadata": MARK}).encode()
    return json.dumps({"predictions": scores, "logits": LOGITS}).encode()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, upstream: Behind) -> Iterator[Gateway]:
    inputs = '[{ name = "x", datatype = "FP32", shape = [-1, 2] }]'
    toml = f"""
    limits = {{ seconds = 1.0, upstream_bytes = 100_000 }}
    [models.m]
    epsilon = 2.0
    passes = ["label"]
    parameters = ["content_type"]
    upstream = {{ url = "{upstream.url}", model = "theirs", version = "3", token_file = "token" }}
    [models.named]
    epsilon = 2.0
    inputs = {inputs}
    upstream = {{ url = "{upstream.url}", model = "theirs" }}
    [models.counted]
    epsilon = 1.0
    memory.epsilon = 2.0
    memory.repeat = "refuse"
    inputs = {inputs}
    upstream = {{ url = "{upstream.url}", model = "theirs" }}
    [models.flow]
    epsilon = 1.0
    memory.epsilon = 2.0
    memory.repeat = "refuse"
    inputs = [{{ name = "a", datatype = "FP64", shape = [-1] }}, {{ name = "b", datatype = "FP64", shape = [-1] }}]
    upstream = {{ url = "{upstream.url}", protocol = "mlflow" }}
    [models.tf]
    epsilon = 2.0
    version = "7"
    inputs = {inputs}
    upstream = {{ url = "{upstream.url}", protocol = "tfserving", signature = "serving_default" }}
    [models.tfcounted]
    epsilon = 1.0
    memory.epsilon = 1.0
    memory.repeat = "refuse"
    inputs = {inputs}
    upstream = {{ url = "{upstream.url}", protocol = "tfserving" }}
    [models.gone]
    epsilon = 2.0
    upstream = {{ url = "http://127.0.0.1:9" }}
    """
    folder = tmp_path_factory.mktemp("front")
    (folder / "token").write_text("the-token-for-the-upstream\n")
    with gateway(folder, toml) as made:
        yield made


def no_leak(*texts: object) -> None:
    for text in texts:
        shown = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        assert MARK not in shown, shown


def infer(front: Gateway, x: np.ndarray, model: str = "m", **more: Any) -> tuple[int, dict[str, str], bytes]:
    return front.request("POST", f"/v2/models/{model}/infer", {**v2(x), **more})


def test_scores_are_veiled_and_nothing_else_passes(front: Gateway, upstream: Behind) -> None:
    upstream.asked.clear()
    status, headers, body = front.request(
        "POST",
        "/v2/models/m/infer",
        {**v2(X), "id": "mine"},
        cookie="mine",
        x_secret="mine",
        authorization="Bearer mine",
    )
    assert status == 200, body
    no_leak(headers, body)
    tree = json.loads(body)
    assert (tree["model_name"], tree["model_version"], tree["id"]) == ("m", "1", "mine")
    assert set(tree) == {"model_name", "model_version", "id", "outputs"}
    scores, label = tree["outputs"]
    assert set(scores) == {"name", "datatype", "shape", "data"}
    secret = bytes.fromhex((front.folder / "scoreveil.secret").read_text().strip())
    np.testing.assert_array_equal(
        np.array(scores["data"]).reshape(2, 3), Veil(2.0, secret=secret, model="m/1/scores")(RAW)
    )
    assert label["data"] == RAW.argmax(axis=1).tolist()
    ((method, path, sent, forwarded),) = upstream.asked
    assert (method, path) == ("POST", "/v2/models/theirs/versions/3/infer")
    assert sent["Authorization"] == "Bearer the-token-for-the-upstream"
    assert not {"cookie", "x-secret"} & {name.lower() for name in sent}
    assert set(json.loads(forwarded)) == {"inputs", "outputs"}
    assert json.loads(forwarded)["outputs"] == [{"name": "scores"}, {"name": "label"}]


def test_near_duplicates_get_one_answer_where_inputs_are_named(front: Gateway) -> None:
    bodies = [
        front.request("POST", "/v1/models/tf:predict", {"instances": rows})[2]
        for rows in ([[1, 2], [3, 4]], [[1.0, 2.0000001], [3, 4e0]])
    ]
    assert bodies[0] == bodies[1]
    rows = np.array(json.loads(bodies[0])["predictions"])
    np.testing.assert_array_equal(rows.argmax(axis=1), RAW.argmax(axis=1))
    assert not np.allclose(rows, RAW)
    answers = [json.loads(infer(front, x, "named")[2])["outputs"] for x in (X, X * np.float32(1 + 1e-6))]
    assert answers[0] == answers[1]


def test_allowed_parameters_pass_and_others_are_refused(front: Gateway, upstream: Behind) -> None:
    upstream.asked.clear()
    assert infer(front, X, parameters={"content_type": "np"})[0] == 200
    assert json.loads(upstream.asked[0][3])["parameters"] == {"content_type": "np"}
    x = v2(X)["inputs"][0]
    memory = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"parameters": {"classification": 3}}, "Parameter 'classification' is not allowed here"),
        ({"parameters": {"sequence_id": 1}}, "Parameter 'sequence_id' is not allowed here"),
        ({"parameters": {"content_type": {"nested": 1}}}, "parameters[...]: Expected"),
        ({"outputs": [{"name": "logits"}]}, "Output 'logits' is not served; ask for scores, label"),
        ({"outputs": [{"name": "scores"}, {"name": "logits"}]}, "Output 'logits' is not served"),
        ({"outputs": [{"name": "label", "parameters": {"classification": 3}}]}, "Classification is for scores alone"),
        ({"outputs": [{"name": "scores", "parameters": memory}]}, "Parameter 'shared_memory_region'"),
        ({"outputs": [{"name": "scores"}, {"name": "scores"}]}, "Output 'scores' is asked for twice"),
        ({"extra": 1}, "Unknown field `extra`; the fields are inputs, id"),
        ({"inputs": [{**x, "parameters": {"shared_memory_region": "r"}}]}, "Parameter 'shared_memory_region'"),
        ({"inputs": [{**x, "raw": True}]}, "inputs[0]: Unknown field `raw`; the fields are name, shape"),
        ({"inputs": [x, x]}, "Two inputs have the same name"),
        ({"inputs": [x, {**v2(X[:1])["inputs"][0], "name": "y"}]}, "Input 'y' has 1 rows and input 'x' has 2"),
    ]
    upstream.asked.clear()
    for more, words in refused:
        status, _, body = infer(front, X, **more)
        assert status == 400, more
        assert json.loads(body)["error"].startswith(words)
    assert not upstream.asked


def test_classification_is_done_here_and_the_upstream_does_not_hear_of_it(front: Gateway, upstream: Behind) -> None:
    plain = json.loads(infer(front, X, outputs=[{"name": "scores"}])[2])["outputs"][0]
    upstream.asked.clear()
    status, _, body = infer(front, X, outputs=[{"name": "scores", "parameters": {"classification": 1}}])
    assert status == 200, body
    (output,) = json.loads(body)["outputs"]
    assert json.loads(upstream.asked[0][3])["outputs"] == [{"name": "scores"}]
    tops = np.array(plain["data"]).reshape(plain["shape"])
    assert output["data"] == [f"{row.max():f}:{row.argmax()}" for row in tops]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(
            ("GET", f"/v2/models/m/{rest}")
            for rest in ("stats", "trace/setting", "versions/2", "versions/2/config", "versions/3/stats")
        ),
        *(("POST", f"/v2/repository/{rest}") for rest in ("models/m/load", "models/m/unload")),
        *(("GET", f"/v2/{rest}") for rest in ("models", "models/stats", "trace/setting", "logging")),
        *(("POST", f"/v2/{kind}sharedmemory/region/r/register") for kind in ("system", "cuda")),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/models/m/generate"),
        ("POST", "/v2/models/theirs/infer"),
        ("POST", "/v2/models/m/infer/"),
        ("POST", "/v2/models/m/../m/infer"),
        ("POST", "/v2//models/m/infer"),
        ("GET", "/metrics"),
        ("GET", "/api/state"),
        ("GET", "/docs"),
        ("POST", "/v1/models/tf:classify"),
        ("POST", "/v1/models/tf:regress"),
        ("GET", "/v1/models/tf/metadata"),
        ("POST", "/v1/models/tf/labels/stable:predict"),
        ("POST", "/v1/models/m:predict"),
    ],
)
def test_other_routes_are_not_served(front: Gateway, upstream: Behind, method: str, path: str) -> None:
    upstream.asked.clear()
    status, headers, body = front.request(method, path, json.dumps(v2(X)).encode() if method == "POST" else None)
    assert status == 404
    no_leak(headers, body)
    assert not upstream.asked


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v2/models/theirs/infer", "There is no model of this name"),
        ("/v2/models/theirs/versions/3/infer", "There is no model of this name"),
        ("/v2/models/m/generate", "This path is not served"),
        ("/v2/models/m/versions/9/infer", "This path is not served"),
        ("/v2/nothing", "This path is not served"),
        ("/v1/models/none:predict", "This path is not served"),  # TF Serving's errors are texts
        ("/v1/models/none/versions/1", "This path is not served"),
    ],
)
def test_a_missing_model_is_told_from_a_missing_path(front: Gateway, path: str, words: str) -> None:
    status, _, body = front.request("POST", path, b"{}")
    assert status == 404
    assert json.loads(body)["error"].startswith(words)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_upstream_gives_no_score(front: Gateway, case: int) -> None:
    status, headers, body = infer(front, np.float32([[case, 0]]))
    assert status == (400 if BROKEN[case][0] == 400 else 502)
    assert set(json.loads(body)) == {"error"}
    no_leak(headers, body)


def test_slow_and_missing_upstreams(front: Gateway) -> None:
    assert infer(front, np.float32([[99, 0]]))[0] == 504
    assert infer(front, X, "gone")[0] == 502
    assert front.request("GET", "/v2/models/gone/ready")[0] == 503
    assert front.request("GET", "/v2/health/ready")[0] == 503
    assert front.request("GET", "/v2/health/live")[0] == 200
    assert front.request("GET", "/v2/models/m/ready")[0] == 200


def test_the_log_says_what_failed_and_where(front: Gateway, upstream: Behind) -> None:
    """The client is told that the operator's log says why."""
    place = upstream.url.removeprefix("http://")
    cases = {
        10: f"upstream {place}: HTTP status 500",
        11: f"upstream {place}: HTTP status 400",
        13: f"upstream {place}: malformed answer",
        16: "the answer is not made of score vectors as they are configured",
        20: "the answer has another number of rows than the request",
        99: f"upstream {place}: timed out",
    }

    def refusals() -> list[str]:
        return [each.get("message", "") for each in front.events() if each["event"] == "refusal"]

    before = len(refusals())
    for case in cases:
        infer(front, np.float32([[case, 0]]), "named")
    infer(front, X, "gone")
    until(lambda: len(refusals()) > before + len(cases))  # a line is written after its answer
    assert refusals()[before:] == [
        *cases.values(),
        "upstream 127.0.0.1:9: cannot connect (ConnectionRefusedError)",
    ]
    no_leak(front.log.read_text())


@pytest.mark.parametrize(
    ("url", "place"),
    [("https://:pw@host.example/token/v2", "host.example:443"), ("http://[::1]:8000/token", "[::1]:8000")],
)
def test_of_an_upstreams_address_the_host_and_port_are_logged(url: str, place: str) -> None:
    pool = UpstreamPool(Upstream(url), Limits())
    assert pool.malformed().detail == f"upstream {place}: malformed answer"


def test_metadata_names_what_is_served_alone(front: Gateway) -> None:
    body = front.request("GET", "/v2/models/m")[2]
    about = json.loads(body)
    assert [each["name"] for each in about["outputs"]] == ["scores"]
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    no_leak(body)
    assert b"logits" not in body


BAD_BINARY = [
    (b"", "0"),
    (b"{}", "99999"),
    (b"{}", "-1"),
    (b"{}", "two"),
    (b"\xff\xfe", "2"),
    (
        b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}' + b"\0" * 4,
        None,
    ),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":-8}}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":true}}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"BOOL","parameters":{"binary_data_size":2}}]}' + b"\2\3", "92"),
    (
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":4}}]}' + b"\xff" * 4,
        "91",
    ),
    (b'{"inputs":[{"name":"x","shape":[4294967296,4294967296],"datatype":"FP32","data":[]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[2147483647,2147483647],"datatype":"FP32","data":[1]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1e400,1]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[NaN,1]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":["1","2"]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[null,2]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"INT8","data":[300,2]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[[1],[2,3]]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[-1,2],"datatype":"FP32","data":[1,2]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[0,2],"datatype":"FP32","data":[]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[["' + b"x" * 500_000 + b'","a"]]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[[1,2]],"data":[["a","b"]]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[2,1],"datatype":"FP32","data":[[1,2]]}]}', None),
    (b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"BOOL","data":[[1,0]]}]}', None),
    (b"[" * 100_000, None),
    (b'{"inputs":' + b"[" * 100_000, None),
]


@pytest.mark.parametrize("case", range(len(BAD_BINARY)))
def test_malformed_requests_are_refused_before_the_upstream(front: Gateway, upstream: Behind, case: int) -> None:
    upstream.asked.clear()
    body, length = BAD_BINARY[case]
    headers = {} if length is None else {"inference_header_content_length": length}
    status, _, answer = front.request("POST", "/v2/models/m/infer", body, **headers)
    assert status in (400, 413), answer
    assert set(json.loads(answer)) == {"error"}
    assert not upstream.asked


def test_long_requests_pass_and_are_checked_too(front: Gateway, upstream: Behind) -> None:
    """Their numbers go on unread; all around them is read as ever."""
    x = np.zeros((600, 2), dtype=np.float32)
    x[0] = 14  # an answer without outputs
    upstream.asked.clear()
    assert infer(front, x)[0] == 502
    assert json.loads(upstream.asked[0][3])["inputs"][0]["data"] == x.ravel().tolist()
    upstream.asked.clear()
    for more in ({"parameters": {"classification": 3}}, {"outputs": [{"name": "logits"}]}, {"extra": 1}):
        assert infer(front, x, **more)[0] == 400
    assert not upstream.asked


@pytest.mark.parametrize("depth", [100, 300, 900, 1100, 100_000])
def test_deeply_nested_rows_are_no_internal_error(front: Gateway, depth: int) -> None:
    deep = b"[" * depth + b"1" + b"]" * depth
    bodies = {
        "/invocations": b'{"dataframe_records": [{"a": 1, "b": ' + deep + b"}]}",
        "/v1/models/tf:predict": b'{"instances": ' + deep + b"}",
        "/v2/models/m/infer": b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": '
        + deep
        + b"}]}",
    }
    for path, body in bodies.items():
        status = front.request("POST", path, body)[0]
        assert status == 400, (path, status)


def test_encoded_bodies_are_415(front: Gateway) -> None:
    assert front.request("POST", "/v2/models/m/infer", b"x", content_encoding="gzip")[0] == 415


def test_tritonclient_in_front_of_an_upstream(front: Gateway) -> None:
    expected = np.array(json.loads(infer(front, X)[2])["outputs"][0]["data"]).reshape(2, 3)
    with triton.InferenceServerClient(f"127.0.0.1:{front.port}") as client:
        for binary in (False, True):
            given = triton.InferInput("x", [2, 2], "FP32")
            given.set_data_from_numpy(X, binary_data=binary)
            found = client.infer("m", [given], outputs=[triton.InferRequestedOutput("scores", binary_data=binary)])
            np.testing.assert_array_equal(found.as_numpy("scores"), expected)


def test_a_counted_record_is_one_however_it_is_written(front: Gateway) -> None:
    x = np.float32([[5, 6]])
    assert infer(front, x, "counted")[0] == 200
    assert infer(front, x, "counted", inputs=[{**v2(x)["inputs"][0], "data": [[5.0, 6.0]]}])[0] == 200
    assert infer(front, x, "counted")[0] == 429
    # another datatype is another input, which the model does not declare
    assert infer(front, x, "counted", inputs=[{**v2(x)["inputs"][0], "datatype": "FP64"}])[0] == 400


def test_mlflow(front: Gateway, upstream: Behind) -> None:
    upstream.asked.clear()
    split = {"dataframe_split": {"columns": ["a", "b"], "index": [0], "data": [[1, 2.0]]}}
    records = {"dataframe_records": [{"b": 2, "a": 1.0}]}
    status, headers, body = front.request("POST", "/invocations", split)
    assert status == 200, body
    no_leak(headers, body)
    assert set(json.loads(body)) == {"predictions"}
    (veiled,) = json.loads(body)["predictions"]
    assert int(np.argmax(veiled)) == 2
    assert json.loads(upstream.asked[0][3]) == {"dataframe_split": {"columns": ["a", "b"], "data": [[1, 2.0]]}}
    # the same record in another format is the same record
    assert front.request("POST", "/invocations", records)[0] == 200
    assert front.request("POST", "/invocations", split)[0] == 429
    for refused in (
        {"instances": [[1, 2]]},
        {"inputs": [[1, 2]]},
        {**split, "params": {"raw": True}},
        {"dataframe_records": [{"a": 1, "b": 2, "c": 3}]},
        {"dataframe_records": [{"a": 1}]},
        {"dataframe_split": {"columns": ["a", "a"], "data": [[1, 2]]}},
        {"dataframe_records": []},
    ):
        assert front.request("POST", "/invocations", refused)[0] == 400, refused


def test_a_value_is_cast_to_what_is_declared_and_goes_on_as_that(front: Gateway, upstream: Behind) -> None:
    """One release of a record is allowed, however its values are spelt."""
    upstream.asked.clear()
    spellings = [
        [[1.5, 2.25]],
        [{"x": [1.5, 2.25]}],
        [[1.500000001, 2.25]],
        [[15e-1, 2.2500000000001]],
        *([[1.5 + i * 1e-12, 2.25]] for i in range(20)),
    ]
    statuses = [front.request("POST", "/v1/models/tfcounted:predict", {"instances": rows})[0] for rows in spellings]
    assert statuses == [200] + [429] * (len(spellings) - 1)
    assert [json.loads(body)["instances"] for *_, body in upstream.asked[:3]] == [
        [[1.5, 2.25]],
        [{"x": [1.5, 2.25]}],
        [[1.5, 2.25]],
    ]
    upstream.asked.clear()
    for refused in (
        [["1.5", 2.25]],
        [[True, 2.25]],
        [{"x": [1.5, "2.25"]}],
        [{"x": [1.5, 2.25], "y": [1]}],
        [{"x": [1.5, {"b64": "AA=="}]}],
        [[1.5, 2.25, 0.0]],
        [[[1.5, 2.25]]],
        [{"y": [1.5, 2.25]}],
        [[1e39, 2.25]],
        [[1.5, 2.25], {"x": [1.5, 2.25]}],
        [1.5, 2.25],
        ["1.5"],
    ):
        assert front.request("POST", "/v1/models/tfcounted:predict", {"instances": refused})[0] == 400, refused
    for value in ("1", "1.0", True, [1], {"b64": "AA=="}):
        assert front.request("POST", "/invocations", {"dataframe_records": [{"a": value, "b": 2}]})[0] == 400, value
    assert not upstream.asked


def test_tf_serving(front: Gateway, upstream: Behind) -> None:
    upstream.asked.clear()
    for path in ("/v1/models/tf:predict", "/v1/models/tf/versions/7:predict"):
        status, headers, body = front.request("POST", path, {"instances": [[1, 2], [3, 4]]})
        assert status == 200, body
        no_leak(headers, body)
        assert set(json.loads(body)) == {"predictions"}
        np.testing.assert_array_equal(np.argmax(json.loads(body)["predictions"], axis=1), RAW.argmax(axis=1))
    assert json.loads(upstream.asked[0][3]) == {"instances": [[1, 2], [3, 4]], "signature_name": "serving_default"}
    for refused in (
        {"inputs": [[1, 2]]},
        {"instances": [[1]], "signature_name": "logits"},
        {"instances": []},
        {"instances": 1},
    ):
        assert front.request("POST", "/v1/models/tf:predict", refused)[0] == 400


def test_nothing_raw_in_logs_or_metrics(front: Gateway) -> None:
    """Last in this file: after all of the above, neither holds a score, an input or a token."""
    infer(front, X)
    infer(front, np.float32([[10, 0]]))
    text = front.log.read_text()
    no_leak(re.sub(r'"time":"[^"]*"', "", text), front.request("GET", "/metrics", admin=True)[2])
    assert "the-token-for-the-upstream" not in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_our_own_gateway_can_be_the_upstream(tmp_path: Path) -> None:
    """A second process that speaks the protocol, in JSON and in binary: veiled twice, the label stays."""
    x = np.random.default_rng(0).uniform(0, 16, (4, 64)).astype(np.float32)
    with light_gateway(tmp_path / "behind") as behind:
        label = scores_of(behind.infer(x)).argmax(axis=1)
        url = f"http://127.0.0.1:{behind.port}"
        toml = "\n".join(
            f'[models.{name}]\nepsilon = 2.0\nupstream = {{ url = "{url}", model = "digits", binary = {binary} }}'
            for name, binary in (("json", "false"), ("binary", "true"))
        )
        with gateway(tmp_path / "front", toml) as front:
            for model in ("json", "binary"):
                np.testing.assert_array_equal(scores_of(front.infer(x, model)).argmax(axis=1), label)
                assert front.request("GET", "/v2/health/ready")[0] == 200
