"""The gateway with a model inside: what it serves, whom it refuses, and what it survives."""

import base64
import concurrent.futures
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from benchmarks.postgres_server import PostgresServer
from gateway_servers import LIGHT_TOML, PIXELS, SLOW, Gateway, gateway, light_gateway, light_model, scores_of, until, v2
from scoreveil import Veil
from scoreveil.gateway.auth import key_hash
from scoreveil.keyed import KeyedVeil

pytestmark = pytest.mark.slow

KEY, OTHER_KEY = "sv_the-key-of-alice-in-the-tests-0001", "sv_the-key-of-bob-in-the-tests-00002"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with gateway(tmp_path_factory.mktemp("demo"), "", "--demo", "--workers", "2") as made:
        yield made


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Gateway]:
    """Keys, limits, memory that refuses, memory that repeats, and one answer a record, from one file."""
    toml = f"""
    [auth]
    mode = "keys"
    clients = [
      {{ name = "alice", sha256 = "{key_hash(KEY.encode())}" }},
      {{ name = "bob", sha256 = "{key_hash(OTHER_KEY.encode())}", requests_per_second = 2.0, rows_per_second = 8.0 }},
    ]
    [limits]
    body_bytes = 200_000
    rows = 64
    seconds = 1.0
    [models.digits]
    onnx = "{models}/digits.onnx"
    epsilon = 2.0
    scores = ["probabilities"]
    passes = ["label"]
    [models.saved]
    skops = "{models}/digits.skops"
    epsilon = 2.0
    keep = "all"
    [models.refusing]
    onnx = "{models}/digits.onnx"
    epsilon = 0.5
    memory.epsilon = 2.5
    memory.repeat = "refuse"
    [models.replaying]
    onnx = "{models}/digits.onnx"
    epsilon = 0.5
    memory.epsilon = 1.0
    [models.slow]
    python = "slow_model:make"
    epsilon = 1.0
    """
    folder = tmp_path_factory.mktemp("locked")
    (folder / "slow_model.py").write_text(SLOW)
    with gateway(folder, toml, "--workers", "2", PYTHONPATH=f"{folder}:{os.environ.get('PYTHONPATH', '')}") as made:
        yield made


def asked(
    server: Gateway, x: np.ndarray, model: str, key: str = KEY, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    name = {"saved": "x", "slow": "x"}.get(model, "X")
    for _ in range(10):
        answer = server.infer(x, model, name, authorization=f"Bearer {key}", **headers)
        if answer[0] != 408:  # on a busy machine a thread of 64 may take more than a second to send its body
            break
    return answer


# What it serves


def test_the_demo_speaks_the_protocol(demo: Gateway) -> None:
    for path in (
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/digits/ready",
        "/v2/models/digits/versions/1/ready",
    ):
        assert demo.request("GET", path)[0] == 200, path
    about = json.loads(demo.request("GET", "/v2/models/digits")[2])
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 64]}]
    assert about["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}]
    assert json.loads(demo.request("GET", "/v2")[2])["extensions"][0] == "binary_tensor_data"
    for path in ("/v2/models", "/v2/models/"):
        status, _, body = demo.request("GET", path)
        assert (status, "POST /v2/repository/index lists the models" in body.decode()) == (404, True)
    assert [each["name"] for each in json.loads(demo.request("POST", "/v2/repository/index")[2])] == ["digits"]


def test_the_demo_veils_and_keeps_the_label(demo: Gateway) -> None:
    from scoreveil.demo import digits_model

    raw = digits_model()[0](PIXELS[:50])
    veiled = scores_of(demo.infer(PIXELS[:50]))
    np.testing.assert_array_equal(veiled.argmax(axis=1), raw.argmax(axis=1))
    np.testing.assert_allclose(veiled.sum(axis=1), 1, atol=1e-5)
    assert not np.isclose(veiled.max(axis=1), raw.max(axis=1), atol=1e-6).any()
    # the same record always gets the same answer, alone or among others, from either worker
    for row in (0, 7, 49):
        for _ in range(4):
            np.testing.assert_array_equal(scores_of(demo.infer(PIXELS[row : row + 1]))[0], veiled[row])


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True])
def test_tritonclient_passes_as_it_is(demo: Gateway, binary_in: bool, binary_out: bool) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{demo.port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("digits")
        assert client.is_model_ready("digits", "1")
        assert client.get_model_metadata("digits")["platform"] == "python"
        given = triton.InferInput("x", [3, 64], "FP32")
        given.set_data_from_numpy(PIXELS[:3], binary_data=binary_in)
        wanted = [triton.InferRequestedOutput("scores", binary_data=binary_out)]
        found = client.infer("digits", [given], outputs=wanted, request_id="seven")
        assert found.get_response()["id"] == "seven"
        np.testing.assert_array_equal(found.as_numpy("scores"), scores_of(demo.infer(PIXELS[:3])))
        # without a word about outputs all are given, in binary
        np.testing.assert_array_equal(client.infer("digits", [given]).as_numpy("scores"), found.as_numpy("scores"))


def test_tritonclient_meets_refusals_as_errors(demo: Gateway) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{demo.port}") as client:
        given = triton.InferInput("x", [1, 64], "FP32")
        given.set_data_from_numpy(PIXELS[:1])
        with pytest.raises(InferenceServerException, match="Parameter 'priority' is not allowed here"):
            client.infer("digits", [given], priority=1)
        with pytest.raises(InferenceServerException, match="Output 'logits' is not served; ask for scores"):
            client.infer("digits", [given], outputs=[triton.InferRequestedOutput("logits")])
        for call in (client.get_inference_statistics, client.get_system_shared_memory_status):
            with pytest.raises(InferenceServerException, match="This path is not served"):
                call()
        with pytest.raises(InferenceServerException, match="This path is not served"):
            client.load_model("digits")


def test_onnx_and_skops_models_are_served(locked: Gateway, models: Path) -> None:
    raw = np.load(models / "raw.npy")[:20]
    for model in ("digits", "saved"):
        status, _, body = asked(locked, PIXELS[:20], model)
        assert status == 200, body
        outputs = {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in json.loads(body)["outputs"]}
        scores = outputs["probabilities" if model == "digits" else "scores"]
        np.testing.assert_array_equal(scores.argmax(axis=1), raw.argmax(axis=1))
        if model == "digits":  # the label is passed as it is
            np.testing.assert_array_equal(outputs["label"], raw.argmax(axis=1))


def test_answers_are_drawn_by_the_scores_and_near_duplicates_share_them(locked: Gateway, models: Path) -> None:
    """Whoever holds the secret can draw them again: should the ledger be lost, they come out the same."""
    secret = bytes.fromhex((locked.folder / "scoreveil.secret").read_text().split()[-1])
    raw = np.load(models / "raw.npy")[:30].astype(np.float32)
    veil = Veil(2.0, keep="all", secret=secret, model="saved/1/scores")
    expected = KeyedVeil(veil)(raw, KeyedVeil(veil).score_tags(raw[:, None, :]))
    np.testing.assert_array_equal(scores_of(asked(locked, PIXELS[:30], "saved")), expected)
    near = PIXELS[:30] * np.float32(1 + 1e-6)
    assert (near != PIXELS[:30]).any()
    np.testing.assert_array_equal(scores_of(asked(locked, near, "saved")), expected)


# Who is refused


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer sv_wrong"},
        {"authorization": f"Basic {base64.b64encode(KEY.encode()).decode()}"},
        {"x_api_key": KEY[:-1]},
        {"x_api_key": key_hash(KEY.encode())},
        {"authorization": "Bearer "},
    ],
)
def test_without_a_key_everything_but_health_is_401(locked: Gateway, headers: dict[str, str]) -> None:
    routes = ["/v2", "/v2/models/digits", "/v2/models/digits/ready", "/v2/models/nothing", "/metrics", "/elsewhere"]
    for path in routes:
        status, answered, body = locked.request("GET", path, **headers)
        assert (status, answered["www-authenticate"]) == (401, "Bearer"), path
        assert json.loads(body) == {
            "error": "No valid key or token; send it as Authorization: Bearer …, or a key as X-API-Key."
        }
    assert locked.request("POST", "/v2/models/digits/infer", v2(PIXELS[:1], "X"), **headers)[0] == 401
    assert locked.request("GET", "/v2/health/live")[0] == 200
    assert locked.request("GET", "/v2/health/ready")[0] == 200


def test_keys_open_by_either_header(locked: Gateway) -> None:
    assert locked.request("GET", "/v2", authorization=f"Bearer {KEY}")[0] == 200
    assert locked.request("GET", "/v2", x_api_key=KEY)[0] == 200


def test_limits_are_413_and_504(locked: Gateway) -> None:
    status, _, body = asked(locked, np.repeat(PIXELS[:1], 65, axis=0), "digits")
    assert (status, json.loads(body)["error"]) == (413, "The request has 65 rows; send at most 64 at a time.")
    status, _, body = locked.request("POST", "/v2/models/digits/infer", b" " * 200_001, x_api_key=KEY)
    assert status == 413
    start = time.monotonic()
    assert asked(locked, np.float32([[0, 8.0]]), "slow")[0] == 504
    assert time.monotonic() - start < 8  # before the model has answered
    assert asked(locked, np.float32([[0, 0.01]]), "slow")[0] == 200
    # a client that sends its body drop by drop is let go
    import socket

    with socket.create_connection(("127.0.0.1", locked.port)) as slow:
        head = f"POST /v2/models/digits/infer HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-length: 100\r\n\r\n{{"
        slow.sendall(head.encode())
        slow.settimeout(10)
        assert slow.recv(64).startswith(b"HTTP/1.1 408")


def test_rates_hold_for_each_client_over_all_workers(locked: Gateway) -> None:
    def statuses(key: str, count: int) -> list[int]:
        return [asked(locked, PIXELS[:1], "digits", key)[0] for _ in range(count)]

    time.sleep(1.1)
    start = time.monotonic()
    answers = statuses(OTHER_KEY, 12)
    allowed = 2 + 2 * (time.monotonic() - start) + 1
    assert 2 <= answers.count(200) <= allowed
    assert answers.count(429) == 12 - answers.count(200)
    assert statuses(KEY, 5) == [200] * 5
    time.sleep(1.1)
    start = time.monotonic()
    status, headers, _ = asked(locked, np.repeat(PIXELS[:1], 64, axis=0), "digits", OTHER_KEY)
    assert status == 200  # a full bucket lets a large request through, which then is owed
    status, headers, _ = asked(locked, PIXELS[:1], "digits", OTHER_KEY)
    owed = (64 - 8 + 1) / 8
    assert status == 429
    assert owed - (time.monotonic() - start) <= int(headers["retry-after"]) <= math.ceil(owed)


# Budgets


def test_sixty_four_clients_on_one_record_get_exactly_b_grants(locked: Gateway) -> None:
    record = PIXELS[100:101]
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda _: asked(locked, record, "refusing"), range(64)))
    statuses = [status for status, _, _ in answers]
    assert (statuses.count(200), statuses.count(429)) == (5, 59)
    refusal = next(json.loads(body)["error"] for status, _, body in answers if status == 429)
    assert refusal == "A record of this request, or a near-duplicate of it, has had all the answers that it may have."
    # however it is sent it is the same record
    given = triton.InferInput("X", [1, 64], "FP32")
    given.set_data_from_numpy(np.where(record == 0, np.float32(-0.0), record), binary_data=True)
    with (
        triton.InferenceServerClient(f"127.0.0.1:{locked.port}") as client,
        pytest.raises(InferenceServerException, match="all the answers that it may have"),
    ):
        client.infer("refusing", [given], headers={"X-API-Key": KEY})


def test_an_idempotency_key_gives_the_same_bytes_and_one_charge(locked: Gateway) -> None:
    record = PIXELS[200:240]  # so many that two answers are never the same by chance
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        repeated = list(pool.map(lambda _: asked(locked, record, "refusing", idempotency_key="k1"), range(40)))
    assert {status for status, _, _ in repeated} == {200}
    assert len({body for _, _, body in repeated}) == 1
    others = [asked(locked, record, "refusing") for _ in range(5)]
    assert [status for status, _, _ in others] == [200] * 4 + [429]
    assert len({body for _, _, body in [*others[:4], repeated[0]]}) == 5
    # it still stands for what it stood for, and for nothing else
    assert asked(locked, record, "refusing", idempotency_key="k1")[2] == repeated[0][2]
    assert asked(locked, PIXELS[300:301], "refusing", idempotency_key="k1")[0] == 409


def test_a_spent_record_gets_its_last_answer_again_where_that_is_configured(locked: Gateway) -> None:
    records = PIXELS[400:440]  # so many that two answers are never the same by chance
    bodies = [asked(locked, records, "replaying")[2] for _ in range(6)]
    assert len(set(bodies)) == 2
    assert bodies[1:] == [bodies[1]] * 5
    name = 'scoreveil_repeated_total{model="replaying"}'
    assert locked.metrics()[name] >= 4 * len(records)


def test_a_record_twice_in_one_request_is_one_release(locked: Gateway) -> None:
    record = np.repeat(PIXELS[500:501], 4, axis=0)
    for _ in range(5):
        scores = scores_of(asked(locked, record, "refusing"))
        np.testing.assert_array_equal(scores, np.repeat(scores[:1], 4, axis=0))
    assert asked(locked, record, "refusing")[0] == 429


def test_a_spent_record_does_not_cost_the_others(locked: Gateway) -> None:
    spent, others = PIXELS[600:601], PIXELS[601:604]
    assert [asked(locked, spent, "refusing")[0] for _ in range(5)] == [200] * 5
    assert asked(locked, np.concatenate([others, spent]), "refusing")[0] == 429
    assert [asked(locked, others, "refusing")[0] for _ in range(6)] == [200] * 5 + [429]


@pytest.mark.postgres
def test_postgresql_stopped_and_started_again(tmp_path: Path, models: Path) -> None:
    """Nothing is released while it is away, and nothing is forgotten."""
    with PostgresServer() as postgres:
        toml = f"""
        ledger.url = "{postgres.url("public")}"
        [models.m]
        onnx = "{models}/digits.onnx"
        epsilon = 1.0
        memory.epsilon = 3.0
        memory.repeat = "refuse"
        """
        with gateway(tmp_path, toml, "--workers", "2") as server:
            assert [server.infer(PIXELS[:1], "m", "X")[0] for _ in range(2)] == [200, 200]
            postgres.stop()
            assert server.infer(PIXELS[:1], "m", "X")[0] == 503
            assert server.request("GET", "/v2/models/m/ready")[0] == 503
            postgres.start()
            until(lambda: server.request("GET", "/v2/models/m/ready")[0] == 200)
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                statuses = [a[0] for a in pool.map(lambda _: server.infer(PIXELS[:1], "m", "X"), range(8))]
            assert (statuses.count(200), statuses.count(429)) in ((1, 7), (0, 8))  # the refused one may have counted


def test_without_a_ledger_nothing_is_released(tmp_path: Path, models: Path) -> None:
    """The ledger cannot be opened, then it can: 503 and not ready, then answers."""
    toml = f"""
    ledger.url = "sqlite:///missing/ledger.db"
    [models.m]
    onnx = "{models}/digits.onnx"
    epsilon = 1.0
    memory.epsilon = 3.0
    memory.repeat = "refuse"
    """
    with gateway(tmp_path, toml) as server:
        assert server.infer(PIXELS[:1], "m", "X")[0] == 503
        assert server.request("GET", "/v2/health/ready")[0] == 503
        assert server.request("GET", "/v2/models/m/ready")[0] == 503
        assert server.request("GET", "/v2/health/live")[0] == 200
        (tmp_path / "missing").mkdir()
        until(lambda: server.request("GET", "/v2/health/ready")[0] == 200)
        statuses = [server.infer(PIXELS[:1], "m", "X")[0] for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        # a larger budget after a reload adds to what is left; what is spent stays spent
        server.config.write_text(toml.replace("memory.epsilon = 3.0", "memory.epsilon = 4.0"))
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded")
        assert [server.infer(PIXELS[:1], "m", "X")[0] for _ in range(2)] == [200, 429]


# What is counted and logged


def test_metrics_add_up_over_workers(demo: Gateway) -> None:
    def counted() -> float:
        return demo.metrics().get('scoreveil_requests_total{model="digits",status="200"}', 0.0)

    before = counted()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert {a[0] for a in pool.map(lambda i: demo.infer(PIXELS[i : i + 1]), range(60))} == {200}
    until(lambda: counted() == before + 60)
    demo.infer(PIXELS[:1], name="y")
    refused = 'scoreveil_refusals_total{model="digits",reason="malformed"}'
    until(lambda: demo.metrics().get(refused, 0) >= 1)


def test_logs_name_what_happened_and_hold_no_payload(locked: Gateway) -> None:
    asked(locked, PIXELS[:1], "digits", "sv_not-a-key")
    asked(locked, np.float32([[12345.678, 0.0]]), "digits")
    text = locked.log.read_text()
    assert any(event["event"] == "refusal" and event["status"] == 401 for event in locked.events())
    for payload in (KEY, OTHER_KEY, "sv_not-a-key", "12345", (locked.folder / "scoreveil.secret").read_text().strip()):
        assert payload not in text


def test_a_second_gateway_on_the_same_port_does_not_start(demo: Gateway, tmp_path: Path) -> None:
    other = Gateway(tmp_path, LIGHT_TOML)
    other.port = demo.port
    other.start(wait=False, environ={"PYTHONPATH": light_model(tmp_path)})
    assert other.process.wait(timeout=120) == 2
    line = f"Error: 127.0.0.1:{demo.port} cannot be listened on: Address already in use. Choose another port.\n"
    assert other.log.read_text() == line
    assert not (tmp_path / "scoreveil.secret").exists()


def test_ready_is_said_once_when_connections_are_accepted_and_kernels_are_there(tmp_path: Path) -> None:
    with light_gateway(tmp_path) as made:
        until(lambda: "\nReady " in made.log.read_text(), message=made.log.read_text)
        assert scores_of(made.infer(PIXELS[:1])).shape == (1, 10)
        log = made.log.read_text()
        assert log.count("Ready") == 1
        assert f"Ready    http://127.0.0.1:{made.port} accepts requests.\n" in log
        before = log.partition("\nReady ")[0]
        assert "Kernels are loaded." in before
        assert '"event":"serving"' in before
        assert "Listening" not in log
