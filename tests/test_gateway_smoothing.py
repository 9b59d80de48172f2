"""Veils for smoothed scores through a real gateway: embedded and in front of servers that speak three protocols."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

from gateway_servers import SCOREVEIL, Behind, Gateway, gateway, scores_of, v2
from scoreveil import Smoothing, Veil, fit, smoothed_scores
from scoreveil.gateway import config_file
from scoreveil.gateway.metrics import Metrics
from scoreveil.gateway.opened import load_model, open_config
from scoreveil.gateway.served import ServedModel, open_source

pytestmark = pytest.mark.slow

X, Y = make_classification(1200, 6, n_informative=4, flip_y=0.2, random_state=0)
X = X.astype(np.float32)
FOREST = RandomForestClassifier(20, random_state=0).fit(X[:600], Y[:600])
SMOOTHING = Smoothing(8, 0.3, typical=X[600:], seed=3)
LARGEST = 50  # rows that the servers take at a time


def smoothed_veil() -> Veil:
    scores = smoothed_scores(FOREST.predict_proba, X, SMOOTHING)
    return fit(scores[600:], Y[600:], scores[:600], Y[:600], smoothing=SMOOTHING, rng=np.random.default_rng(0))


def answered(method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """The forest behind each of three protocols; it takes no more than 50 rows."""
    if method == "GET":
        return 200, {}, b"{}"
    asked = json.loads(body)
    if "inputs" in asked:
        (tensor,) = asked["inputs"]
        rows = np.array(tensor["data"]).reshape(tensor["shape"])
    else:
        rows = np.array(asked["dataframe_split"]["data"] if "dataframe_split" in asked else asked["instances"])
    if len(rows) > LARGEST:
        return 400, {}, b"{}"
    scores = FOREST.predict_proba(rows.astype(np.float32))
    if "inputs" not in asked:
        return 200, {"Content-Type": "application/json"}, json.dumps({"predictions": scores.tolist()}).encode()
    output = {"name": "scores", "datatype": "FP64", "shape": list(scores.shape), "data": scores.ravel().tolist()}
    return 200, {"Content-Type": "application/json"}, json.dumps({"outputs": [output]}).encode()


@pytest.fixture(scope="module")
def behind() -> Iterator[Behind]:
    server = Behind(answered)
    yield server
    server.close()


@pytest.fixture(scope="module")
def veil() -> Veil:
    return smoothed_veil()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, behind: Behind, veil: Veil) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("smoothed")
    skops.io.dump(FOREST, folder / "forest.skops")
    veil.save(folder / "veil.json")
    one = '[{ name = "x", datatype = "FP32", shape = [-1, 6] }]'
    columns = ", ".join(f'{{ name = "f{i}", datatype = "FP32", shape = [-1] }}' for i in range(6))
    frame = Smoothing.restored({**SMOOTHING.settings(), "inputs": by_column(SMOOTHING)})
    scores = smoothed_scores(FOREST.predict_proba, X, frame)
    fit(scores[600:], Y[600:], scores[:600], Y[:600], smoothing=frame).save(folder / "columns.json")
    toml = f"""
    [models.embedded]
    skops = "forest.skops"
    veil = "veil.json"
    [models.v2]
    veil = "veil.json"
    inputs = {one}
    upstream = {{ url = "{behind.url}", largest_batch = {LARGEST} }}
    [models.undeclared]
    veil = "veil.json"
    upstream = {{ url = "{behind.url}", largest_batch = {LARGEST} }}
    [models.tf]
    veil = "veil.json"
    inputs = {one}
    upstream = {{ url = "{behind.url}", protocol = "tfserving", largest_batch = {LARGEST} }}
    [models.flow]
    veil = "columns.json"
    inputs = [{columns}]
    upstream = {{ url = "{behind.url}", protocol = "mlflow", largest_batch = {LARGEST} }}
    """
    with gateway(folder, toml) as made:
        yield made


def by_column(smoothing: Smoothing) -> list[dict[str, Any]]:
    """The inputs of a smoothing, each column an input of its own."""
    (matrix,) = smoothing.settings()["inputs"]
    return [{"name": f"f{i}", "sizes": [], "parts": [part]} for i, part in enumerate(matrix["parts"])]


@pytest.mark.parametrize("name", ["embedded", "v2", "undeclared"])
def test_the_gateway_answers_what_the_veil_says_of_smoothed_scores(front: Gateway, veil: Veil, name: str) -> None:
    expected = veil(smoothed_scores(FOREST.predict_proba, X[:40], SMOOTHING))
    np.testing.assert_allclose(scores_of(front.infer(X[:40], name)), expected, atol=1e-6)
    raw = veil(FOREST.predict_proba(X[:40]))
    assert np.abs(expected - raw).max() > 0.01, "smoothing changes what is announced"
    np.testing.assert_allclose(scores_of(front.infer(X[[7]], name)), expected[[7]], atol=1e-6)


def test_rows_and_copies_go_on_in_parts_that_the_server_takes(front: Gateway, behind: Behind) -> None:
    behind.asked.clear()
    assert front.infer(X[:40], "v2")[0] == 200
    sizes = [json.loads(body)["inputs"][0]["shape"][0] for method, _, _, body in behind.asked if method == "POST"]
    assert sum(sizes) == 40 * 9
    assert max(sizes) == LARGEST
    assert len(sizes) == -(-40 * 9 // LARGEST)


def test_servers_of_rows_are_asked_about_copies_too(front: Gateway, veil: Veil) -> None:
    expected = veil(smoothed_scores(FOREST.predict_proba, X[:5], SMOOTHING))
    status, _, body = front.request("POST", "/v1/models/tf:predict", {"instances": X[:5].tolist()})
    assert status == 200, body
    np.testing.assert_allclose(json.loads(body)["predictions"], expected, atol=1e-6)
    names = [f"f{i}" for i in range(6)]
    split = {"dataframe_split": {"columns": names, "data": X[:5].tolist()}}
    status, _, body = front.request("POST", "/invocations", split)
    assert status == 200, body
    columns = Veil.load(front.folder / "columns.json")
    assert columns.smoothing is not None
    apart = {name: X[:5, i] for i, name in enumerate(names)}
    scores = smoothed_scores(
        lambda given: FOREST.predict_proba(np.stack([given[name] for name in names], axis=1)), apart, columns.smoothing
    )
    np.testing.assert_allclose(json.loads(body)["predictions"], columns(scores), atol=1e-6)


def test_inputs_of_another_size_are_a_bad_request_which_quotes_none(front: Gateway) -> None:
    status, _, body = front.infer(np.float32([[1234.5, 2, 3]]), "undeclared")
    assert status == 400
    assert b"1234" not in body


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('skops = "other.skops"', "other names or sizes"),
        ('inputs = [{ name = "x", datatype = "FP32", shape = [-1, 9] }]\nupstream = { url = "URL" }', "other names"),
        ('shape = "top_k"\nclasses = 2\nupstream = { url = "URL" }', "cannot be smoothed"),
        ('labels = ["yes", "no"]\nupstream = { url = "URL", protocol = "openai" }', "cannot be smoothed"),
    ],
)
def test_a_gateway_that_cannot_smooth_refuses_the_veil(
    tmp_path: Path, behind: Behind, veil: Veil, settings: str, words: str
) -> None:
    skops.io.dump(RandomForestClassifier(2).fit(X[:, :4], Y), tmp_path / "other.skops")
    veil.save(tmp_path / "veil.json")
    settings = settings.replace("URL", behind.url)
    (tmp_path / "gateway.toml").write_text(f'[models.m]\nveil = "veil.json"\n{settings}\n')
    ended = subprocess.run(
        [SCOREVEIL, "config", "check", "gateway.toml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert words in " ".join((ended.stdout + ended.stderr).split())


def test_copies_of_many_rows_are_made_a_few_at_a_time(
    tmp_path: Path, veil: Veil, monkeypatch: pytest.MonkeyPatch
) -> None:
    skops.io.dump(FOREST, tmp_path / "forest.skops")
    veil.save(tmp_path / "veil.json")
    config = config_file.parse({"models": {"m": {"skops": "forest.skops", "veil": "veil.json"}}}, tmp_path)
    opened = load_model(open_config(config).models["m"])
    source = open_source(opened, config.limits)
    model = ServedModel(opened, source, None, config.limits, Metrics().add("m"))
    asked: list[int] = []
    infer = source.infer

    async def counted(query: Any, seconds: float) -> Any:
        asked.append(query.rows)
        return await infer(query, seconds)

    monkeypatch.setattr(source, "infer", counted)
    query = source.read(json.dumps(v2(X[:25])).encode(), None)
    whole, _ = asyncio.run(model.ask(query))
    monkeypatch.setattr("scoreveil.smoothing.AT_A_TIME", 8 * 6 * 10)
    parts, _ = asyncio.run(model.ask(query))
    assert asked == [25 * 9, 10 * 9, 10 * 9, 5 * 9]
    np.testing.assert_array_equal(parts["scores"], whole["scores"])
