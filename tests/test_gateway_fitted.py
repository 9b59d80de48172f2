"""Fitted veils through a real gateway: nothing is remembered, and without ε no secret is needed either."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from gateway_servers import Behind, Gateway, free_ports, gateway, scores_of, v2
from scoreveil import Veil, fit
from scoreveil.shapes import Binary, MultiLabel, TopK
from shaped_models import WEIGHTS, X, made_models, sigmoid, softmax, two_sides

pytestmark = pytest.mark.slow

Z = X @ WEIGHTS
RAW = {
    "vectors": softmax(Z[:, :3]),
    "one": sigmoid(Z[:, :1]),
    "tags": sigmoid(Z[:, :3]),
    "places": softmax(Z.reshape(-1, 2, 3)),
}
MODELS = ("vectors", "one", "tags", "list", "places")


def yes_or_no(labels: int) -> list[np.ndarray]:
    """Probabilities and truths of so many labels, of both sides."""
    sides = [two_sides(2, seed=i) for i in range(labels)]
    return [np.stack([side[at][:, 1] if at in (0, 2) else side[at] for side in sides], axis=1) for at in range(4)]


def fitted(epsilon: float | None = None) -> dict[str, Veil]:
    options: dict[str, Any] = {"epsilon": epsilon, "rng": np.random.default_rng(0)}
    scores, truth, inside, inside_truth = yes_or_no(1)
    one = fit(scores, truth[:, 0], inside, inside_truth[:, 0], shape=Binary(threshold=0.3), **options)
    three = fit(*two_sides(3), **options)
    return {
        "vectors": three,
        "places": three,
        "one": one,
        "tags": fit(*yes_or_no(3), shape=MultiLabel(threshold=0.4), **options),
        "list": fit(*two_sides(6), **options),
    }


def vectors_behind(method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    if method == "GET":
        return 200, {}, b"{}"
    (given,) = json.loads(body)["inputs"]
    z = np.array(given["data"]).reshape(given["shape"]) @ WEIGHTS[:, :3]
    scores = softmax(z)
    output = {"name": "scores", "datatype": "FP64", "shape": list(scores.shape), "data": scores.ravel().tolist()}
    return 200, {"Content-Type": "application/json"}, json.dumps({"outputs": [output]}).encode()


def toml_of(folder: Path, veils: dict[str, Veil], url: str, **server: int) -> str:
    made_models(folder)
    for name, veil in veils.items():
        veil.save(folder / f"{name}.json")
    settings = ", ".join(f"{key} = {value}" for key, value in server.items())
    return f"""
    server = {{ {settings} }}
    [models]
    one = {{ onnx = "one.onnx", veil = "one.json" }}
    tags = {{ onnx = "tags.onnx", veil = "tags.json" }}
    places = {{ onnx = "places.onnx", veil = "places.json" }}
    [models.list]
    onnx = "list.onnx"
    shape = "top_k"
    veil = "list.json"
    scores = ["values"]
    passes = ["indices"]
    [models.vectors]
    veil = "vectors.json"
    inputs = [{{ name = "x", datatype = "FP32", shape = [-1, 4] }}]
    upstream = {{ url = "{url}" }}
    """


class WithGrpc(Gateway):
    grpc_port: int
    veils: dict[str, Veil]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithGrpc]:
    folder, server, veils = tmp_path_factory.mktemp("fixed"), Behind(vectors_behind), fitted()
    (port,) = free_ports(1)
    with gateway(folder, toml_of(folder, veils, server.url, grpc_port=port)) as made:
        made.grpc_port, made.veils = port, veils  # type: ignore[attr-defined]
        yield made  # type: ignore[misc]
    server.close()


@pytest.mark.parametrize("name", ["vectors", "one", "tags", "places"])
def test_without_epsilon_an_answer_is_a_function_of_the_scores(front: WithGrpc, name: str) -> None:
    z = scores_of(front.infer(X, name))
    np.testing.assert_allclose(z, front.veils[name](RAW[name]), atol=1e-6)
    assert np.abs(z - RAW[name]).max() > 0.01
    assert len(np.unique(z.round(6))) > 4, "the veil is not constant"
    np.testing.assert_array_equal(scores_of(front.infer(X, name, idempotency_key="again")), z)
    for i in (0, 7):  # whatever is asked beside it
        np.testing.assert_array_equal(scores_of(front.infer(X[[i]], name)), z[[i]])


def test_a_list_of_the_largest_is_veiled_by_a_map_of_whole_vectors(front: WithGrpc) -> None:
    status, _, body = front.infer(X, "list")
    assert status == 200, body
    found = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in json.loads(body)["outputs"]}
    raw = softmax(Z)
    assert (found["indices"][:, 0] == raw.argmax(axis=1)).all()
    listed = -np.sort(-raw, axis=1)[:, :5]
    expected = front.veils["list"].with_shape(TopK(6))(listed)
    np.testing.assert_allclose(found["values"], expected, atol=1e-6)


def test_grpc_gives_what_http_gives(front: WithGrpc) -> None:
    asked = triton_grpc.InferInput("x", list(X.shape), "FP32")
    asked.set_data_from_numpy(X)
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{front.grpc_port}") as client:
        assert client.is_server_ready()
        for name in ("one", "tags", "places"):
            assert client.is_model_ready(name)
            z = client.infer(name, [asked]).as_numpy("p")
            np.testing.assert_array_equal(z, scores_of(front.infer(X, name)))


def test_without_epsilon_there_is_no_ledger_no_secret_and_no_odometer(front: WithGrpc) -> None:
    for name in MODELS:
        assert front.request("GET", f"/v2/models/{name}/ready")[0] == 200
        assert [front.infer(X, name)[0] for _ in range(3)] == [200] * 3
    assert front.request("GET", "/v2/health/ready")[0] == 200
    there = {each.name for each in front.folder.iterdir()}
    assert not any("ledger" in name or "secret" in name for name in there), there
    charged = {name: value for name, value in front.metrics().items() if "charged" in name or "repeated" in name}
    assert set(charged.values()) <= {0.0}
    said = [line for line in front.log.read_text().splitlines() if line.startswith("Model")]
    assert sum("no ε" in line for line in said) == len(MODELS)
    assert not any("inf" in line for line in said), said
    state = json.loads(front.request("GET", "/api/state", admin=True)[2])["models"]
    assert {(each["epsilon"], each["mechanism"]) for each in state} == {(None, "fitted")}
    # of many labels there is no vector that could be tried
    classes = {each["model"]: each["classes"] for each in state}
    assert classes == {"one": 2, "tags": None, "places": 3, "list": 6, "vectors": 3}
    asked = {"scores": [0.7, 0.2, 0.1], "model": "vectors"}
    found = json.loads(front.request("POST", "/api/veil", asked, admin=True)[2])
    assert found["guarantee"]["epsilon"] is None
    assert found["guarantee"]["advantage"] == front.veils["vectors"].guarantee.advantage
    np.testing.assert_allclose(found["after"], front.veils["vectors"](np.array([0.7, 0.2, 0.1])), atol=1e-9)
    asked["model"] = "tags"
    assert front.request("POST", "/api/veil", {**asked, "scores": [0.7, 0.3]}, admin=True)[0] == 400


def test_with_epsilon_two_replicas_answer_alike_with_nothing_in_common_but_the_secret(tmp_path: Path) -> None:
    server, veils = Behind(vectors_behind), fitted(1.0)
    environ = {"SCOREVEIL_SECRET": "ab" * 32}
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    tomls = [toml_of(folder, veils, server.url, drain_seconds=5) for folder in folders]
    with gateway(folders[0], tomls[0], **environ) as one, gateway(folders[1], tomls[1], **environ) as other:
        for name in ("vectors", "one", "tags", "places"):
            z = scores_of(one.infer(X, name))
            np.testing.assert_array_equal(scores_of(one.infer(X, name)), z)
            np.testing.assert_array_equal(scores_of(other.infer(X[::-1], name)), z[::-1])
            expected = veils[name](RAW[name])
            assert (np.abs(z - expected) > 1e-6).any(), "it is the veil's draw, and not its likeliest answer"
        assert (
            one.request("POST", "/v2/models/list/infer", v2(X))[2]
            == other.request("POST", "/v2/models/list/infer", v2(X))[2]
        )
        charged = {value for name, value in one.metrics().items() if "charged" in name}
        assert charged <= {0.0}
        for folder in folders:
            names = {each.name for each in folder.iterdir()}
            assert not any("ledger" in name or "secret" in name for name in names), names
    server.close()


def test_memory_that_is_asked_for_is_kept(tmp_path: Path) -> None:
    server, veils = Behind(vectors_behind), fitted(1.0)
    toml = toml_of(tmp_path, veils, server.url, drain_seconds=5) + "memory = { answers = 1 }\n"
    with gateway(tmp_path, toml) as front:
        z = scores_of(front.infer(X, "vectors"))
        near = X * np.float32(1 + 1e-6)
        assert (near != X).any()
        np.testing.assert_array_equal(scores_of(front.infer(near, "vectors")), z)
        metrics = front.metrics()
        assert metrics['scoreveil_charged_total{model="vectors"}'] == len(X)
        assert metrics['scoreveil_repeated_total{model="vectors"}'] == len(X)
        assert {"scoreveil.secret", "scoreveil-ledger.db"} <= {each.name for each in tmp_path.iterdir()}
    server.close()
