"""gRPC beside HTTP: real clients pass as they are, and nothing about limits, budgets or the veil is another."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from gateway_servers import PIXELS, Gateway, free_ports, gateway, scores_of
from scoreveil.gateway import grpc_service
from scoreveil.gateway.auth import key_hash
from scoreveil.gateway.grpc_service import MESSAGES, SERVICE, Service
from scoreveil.inference_protocol.classification import top_classes

PROTOCOL = Path(__file__).parents[1] / "src" / "scoreveil" / "inference_protocol"
KEY, OTHER_KEY = "sv_the-key-of-alice-in-the-tests-0001", "sv_the-key-of-bob-in-the-tests-00002"
ALICE = {"authorization": f"Bearer {KEY}"}  # copied for tritonclient, which writes into what it is given
# a model of two features that answers with four logits
LOGITS = """
import numpy as np

def make():
    return lambda x: np.hstack([x, -x]), 2
"""


class WithGrpc(Gateway):
    """A gateway, and where it speaks gRPC."""

    grpc_port: int


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[WithGrpc]:
    (port,) = free_ports(1)
    toml = f"""
    server = {{ grpc_port = {port}, workers = 2 }}
    limits = {{ rows = 64, body_bytes = 200_000 }}
    [auth]
    mode = "keys"
    clients = [
      {{ name = "alice", sha256 = "{key_hash(KEY.encode())}" }},
      {{ name = "bob", sha256 = "{key_hash(OTHER_KEY.encode())}", requests_per_second = 0.001 }},
    ]
    [models.digits]
    onnx = "{models}/digits.onnx"
    epsilon = 2.0
    passes = ["label"]
    [models.counted]
    onnx = "{models}/digits.onnx"
    epsilon = 0.5
    memory.epsilon = 1.0
    memory.repeat = "refuse"
    [models.logits]
    python = "logits_model:make"
    outputs = "logits"
    epsilon = 2.0
    """
    folder = tmp_path_factory.mktemp("grpc")
    (folder / "logits_model.py").write_text(LOGITS)
    places = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    with gateway(folder, toml, PYTHONPATH=places) as made:
        made.grpc_port = port  # type: ignore[attr-defined]
        yield made  # type: ignore[misc]


def test_a_caller_has_the_address_that_http_knows_it_by() -> None:
    """Or it would have two rates, where clients have no keys."""
    peers = ["ipv4:192.0.2.7:50123", "ipv6:%5B2001:db8::7%5D:50123", "unix:"]
    assert [grpc_service._address(peer) for peer in peers] == ["192.0.2.7", "2001:db8::7", ""]


def given(x: np.ndarray, kind: Any = triton) -> Any:
    tensor = kind.InferInput("X", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)
    return tensor


def called(both: WithGrpc, name: str, message: Any, metadata: dict[str, str] = ALICE) -> Any:
    """One call, with messages of our own, as any generated client makes it."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{both.grpc_port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/{name}")
        return MESSAGES[f"{name}Response"].FromString(call(data, metadata=tuple(metadata.items()), timeout=30))


def typed(x: np.ndarray, model: str = "digits", **more: Any) -> Any:
    tensor = {
        "name": "X",
        "datatype": "FP32",
        "shape": list(x.shape),
        "contents": {"fp32_contents": x.ravel().tolist()},
    }
    return MESSAGES["ModelInferRequest"](model_name=model, inputs=[{**tensor, **more}])


@pytest.mark.slow
def test_tritonclient_passes_as_it_is(both: WithGrpc, models: Path) -> None:
    with triton.InferenceServerClient(f"127.0.0.1:{both.grpc_port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("digits", headers={**ALICE})
        assert client.is_model_ready("digits", "1", headers={**ALICE})
        assert client.get_server_metadata(headers={**ALICE}).name == "scoreveil"
        about = client.get_model_metadata("digits", headers={**ALICE})
        assert [(each.name, each.datatype, list(each.shape)) for each in about.inputs] == [("X", "FP32", [-1, 64])]
        assert [each.name for each in about.outputs] == ["probabilities", "label"]
        config = client.get_model_config("digits", headers={**ALICE}).config
        assert (config.max_batch_size, list(config.input[0].dims)) == (64, [64])
        index = client.get_model_repository_index(headers={**ALICE}).models
        assert {(each.name, each.version, each.state) for each in index} == {
            ("digits", "1", "READY"),
            ("counted", "1", "READY"),
            ("logits", "1", "READY"),
        }
        found = client.infer("digits", [given(PIXELS[:20])], headers={**ALICE}, request_id="seven")
        assert found.get_response().id == "seven"
        scores, raw = found.as_numpy("probabilities"), np.load(models / "raw.npy")[:20]
        np.testing.assert_array_equal(scores.argmax(axis=1), raw.argmax(axis=1))
        np.testing.assert_array_equal(found.as_numpy("label"), raw.argmax(axis=1))
        assert not np.isclose(scores.max(axis=1), raw.max(axis=1), atol=1e-6).any()


@pytest.mark.slow
def test_the_answer_is_that_of_http_whichever_way_the_numbers_come(both: WithGrpc) -> None:
    wanted = [triton.InferRequestedOutput("probabilities")]
    with triton.InferenceServerClient(f"127.0.0.1:{both.grpc_port}") as client:
        raw = client.infer("digits", [given(PIXELS[:5])], outputs=wanted, headers={**ALICE}).as_numpy("probabilities")
    with triton_http.InferenceServerClient(f"127.0.0.1:{both.port}") as client:
        http = client.infer("digits", [given(PIXELS[:5], triton_http)], headers={**ALICE}).as_numpy("probabilities")
    np.testing.assert_array_equal(raw, http)
    answer = called(both, "ModelInfer", typed(PIXELS[:5]))
    scores, label = answer.outputs
    assert not answer.raw_output_contents  # typed, as it was asked
    np.testing.assert_array_equal(np.float32(scores.contents.fp32_contents).reshape(5, 10), http)
    assert list(label.contents.int64_contents) == http.argmax(axis=1).tolist()


@pytest.mark.slow
def test_logits_leave_as_veiled_probabilities(both: WithGrpc) -> None:
    x = np.random.default_rng(1).normal(scale=5, size=(20, 2)).astype(np.float32)
    veiled = scores_of(both.infer(x, "logits", X_API_Key=KEY))
    np.testing.assert_allclose(veiled.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(veiled.argmax(axis=1), np.hstack([x, -x]).argmax(axis=1))


@pytest.mark.slow
def test_a_budget_is_one_for_both(both: WithGrpc) -> None:
    """Two releases of a record: one over HTTP and one over gRPC; a third over neither."""
    row = PIXELS[7:8]
    assert both.infer(row, "counted", "X", X_API_Key=KEY)[0] == 200
    assert called(both, "ModelInfer", typed(row, "counted"), {"x-api-key": KEY}).outputs
    assert both.infer(row, "counted", "X", X_API_Key=KEY)[0] == 429
    with pytest.raises(grpc.RpcError) as spent:
        called(both, "ModelInfer", typed(row, "counted"))
    assert spent.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "all the answers that it may have" in spent.value.details()
    # a retry that names itself is the same release
    again = {**ALICE, "idempotency-key": "grpc-1"}
    first, second = (called(both, "ModelInfer", typed(PIXELS[8:9], "counted"), again) for _ in range(2))
    assert first == second


@pytest.mark.slow
def test_who_has_no_key_or_asks_too_often_is_refused(both: WithGrpc) -> None:
    counts = ('scoreveil_requests_total{model="",status="401"}', 'scoreveil_refusals_total{model="",reason="auth"}')
    before = both.metrics()
    for metadata in ({}, {"authorization": "Bearer nobody's"}):
        for name, message in (("ModelInfer", typed(PIXELS[:1])), ("ModelInfer", b"\xff"), ("RepositoryIndex", b"")):
            with pytest.raises(grpc.RpcError) as refused:
                called(both, name, message, metadata)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    # their messages, which name a model, are not read
    assert [both.metrics()[name] - before.get(name, 0.0) for name in counts] == [6, 6]
    assert called(both, "ServerLive", b"", {}).live
    bob = {"authorization": f"Bearer {OTHER_KEY}"}
    assert called(both, "ServerMetadata", b"", bob).name == "scoreveil"
    with pytest.raises(grpc.RpcError) as refused:
        called(both, "ServerMetadata", b"", bob)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(refused.value.trailing_metadata())["retry-after"]) > 1


@pytest.mark.slow
@pytest.mark.parametrize("second", [KEY, OTHER_KEY, "nobody's"])
def test_two_keys_are_refused_whichever_they_are(both: WithGrpc, second: str) -> None:
    """Another server might have read the other one."""
    status, _, body = both.infer(PIXELS[:1], name="X", Authorization=f"Bearer {KEY}", X_API_Key=second)
    assert (status, "send one of them" in json.loads(body)["error"]) == (400, True)
    with pytest.raises(grpc.RpcError) as refused:
        called(both, "ModelInfer", typed(PIXELS[:1]), {**ALICE, "x-api-key": second})
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_what_is_not_foreseen_is_logged_and_not_told(capfd: pytest.CaptureFixture[str]) -> None:
    class Context:
        async def abort(self, code: grpc.StatusCode, words: str, more: tuple[Any, ...]) -> bytes:
            return f"{code.name}: {words}".encode()

    async def fails(asked: Any, answer: Any, context: Any) -> Any:
        raise RuntimeError("a score of 7654321")

    async def messages() -> AsyncIterator[bytes]:
        yield b""

    service = Service(None, None)  # type: ignore[arg-type]
    told = asyncio.run(service._guarded("ServerLive", fails)(messages(), Context()))
    logged = json.loads(capfd.readouterr().err)
    assert told == f"INTERNAL: Internal error; see the server log, request id {logged['request']}.".encode()
    assert (logged["error"], logged["message"]) == ("RuntimeError", "gRPC ServerLive")
    assert "7654321" not in str(logged)


@pytest.mark.slow
def test_what_is_wrong_is_said_and_never_quoted(both: WithGrpc) -> None:
    one = PIXELS[:1]
    request = MESSAGES["ModelInferRequest"]
    raw = typed(one, contents=None)
    tensor = raw.inputs[0]
    cases = {
        "not a ModelInferRequest": b"\xff\xff",
        "no such model": typed(one, "other"),
        "has neither|binary_data_size|bytes": typed(one, contents=None),
        "1 inputs and 2 raw_input_contents": request(
            model_name="digits", inputs=[tensor], raw_input_contents=[one.tobytes(), b"7654321"]
        ),
        "beside raw_input_contents": request(
            model_name="digits", inputs=typed(one).inputs, raw_input_contents=[one.tobytes()]
        ),
        "has int_contents; send fp32_contents": typed(one, contents={"int_contents": [7654321] * 64}),
        "FP16 has no typed contents": typed(one, datatype="FP16"),
        "outside the range of INT8": typed(one, datatype="INT8", contents={"int_contents": [7654321] * 64}),
        "is INT8; the model takes FP32": typed(one, datatype="INT8", contents={"int_contents": [1] * 64}),
        "datatype": typed(one, datatype="COMPLEX"),
        "shape": typed(one, shape=[2, 32]),
        "at most 64": typed(np.tile(one, (65, 1))),
        "larger than 200000": typed(np.tile(one, (790, 1))),
        "not allowed": typed(one, parameters={"p": {"string_param": "7654321"}}),
        "is not served": request(model_name="digits", inputs=typed(one).inputs, outputs=[{"name": "logits"}]),
        "for scores alone": request(
            model_name="digits",
            inputs=typed(one).inputs,
            outputs=[{"name": "label", "parameters": {"classification": {"int64_param": 1}}}],
        ),
    }
    seen = {}
    for words, message in cases.items():
        with pytest.raises(grpc.RpcError) as refused:
            called(both, "ModelInfer", message)
        seen[words] = (refused.value.code().name, refused.value.details())
        assert "7654321" not in refused.value.details()
    codes = {words: code for words, (code, _) in seen.items()}
    assert codes.pop("no such model") == "NOT_FOUND"
    assert codes.pop("at most 64") == "RESOURCE_EXHAUSTED"
    assert codes.pop("larger than 200000") == "RESOURCE_EXHAUSTED"
    assert set(codes.values()) == {"INVALID_ARGUMENT"}, seen
    for words, (_, details) in seen.items():
        assert any(each in details for each in words.split("|")) or words == "larger than 200000", (words, details)


@pytest.mark.slow
def test_the_top_classes_are_those_of_the_veiled_scores(both: WithGrpc) -> None:
    body = {
        "inputs": [{"name": "X", "shape": [3, 64], "datatype": "FP32", "data": PIXELS[:3].ravel().tolist()}],
        "outputs": [{"name": "probabilities"}],
    }
    veiled = scores_of(both.request("POST", "/v2/models/digits/infer", body, X_API_Key=KEY))
    body["outputs"] = [{"name": "probabilities", "parameters": {"classification": 3}}]
    status, _, answer = both.request("POST", "/v2/models/digits/infer", body, X_API_Key=KEY)
    assert status == 200, answer
    (output,) = json.loads(answer)["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [3, 3])
    wanted = [text.decode() for text in top_classes(veiled, 3).ravel()]
    assert output["data"] == wanted
    with triton.InferenceServerClient(f"127.0.0.1:{both.grpc_port}") as client:
        asked = [triton.InferRequestedOutput("probabilities", class_count=3)]
        found = client.infer("digits", [given(PIXELS[:3])], outputs=asked, headers={**ALICE}).as_numpy("probabilities")
    assert [text.decode() for text in found.ravel()] == wanted
    for wrong in (0, -1, True, "3", 2.5):
        body["outputs"] = [{"name": "probabilities", "parameters": {"classification": wrong}}]
        assert both.request("POST", "/v2/models/digits/infer", body, X_API_Key=KEY)[0] == 400


def test_equal_scores_come_by_their_number_and_names_stand_beside() -> None:
    scores = np.array([[0.1, 0.7, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]])
    assert top_classes(scores, 3).tolist() == [
        [b"0.700000:1", b"0.100000:0", b"0.100000:2"],
        [b"0.250000:0", b"0.250000:1", b"0.250000:2"],
    ]
    assert top_classes(scores[:1], 9, ("a", "b", "c", "d")).tolist() == [
        [b"0.700000:1:b", b"0.100000:0:a", b"0.100000:2:c", b"0.100000:3:d"]
    ]


@pytest.mark.slow
def test_http_lists_models_and_their_configuration_too(both: WithGrpc) -> None:
    with triton_http.InferenceServerClient(f"127.0.0.1:{both.port}") as client:
        index = client.get_model_repository_index(headers={**ALICE})
        assert [(each["name"], each["state"]) for each in index] == [
            (name, "READY") for name in ("digits", "counted", "logits")
        ]
        config = client.get_model_config("digits", headers={**ALICE})
    assert config["max_batch_size"] == 64
    assert config["output"][0] == {"name": "probabilities", "data_type": "TYPE_FP32", "dims": [10]}
    assert both.request("POST", "/v2/repository/index")[0] == 401


# The messages


def fields(messages: Any, prefix: str = "") -> dict[str, tuple[int, int, int]]:
    """Every field: its number, type and whether it is repeated."""
    found = {}
    for message in messages:
        found |= {f"{prefix}{message.name}.{each.name}": (each.number, each.type, each.label) for each in message.field}
        found |= fields(message.nested_type, f"{prefix}{message.name}.")
    return found


def test_the_messages_are_those_of_the_protocol_as_others_compiled_it() -> None:
    ours = descriptor_pb2.FileDescriptorSet.FromString((PROTOCOL / "open_inference.binpb").read_bytes()).file[0]
    theirs: dict[str, tuple[int, int, int]] = {}
    for module in (service_pb2, model_config_pb2):
        theirs |= fields(descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb).message_type)
    mine = fields(ours.message_type)
    assert len(mine) > 60
    assert {name: theirs.get(name) for name in mine} == mine
    assert f"{ours.package}.{ours.service[0].name}" == SERVICE


def test_the_compiled_messages_are_what_the_description_says(tmp_path: Path) -> None:
    made = tmp_path / "made"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOCOL}", f"--descriptor_set_out={made}"]
    subprocess.run([*command, "open_inference.proto"], check=True, capture_output=True)
    read = descriptor_pb2.FileDescriptorSet.FromString
    assert read(made.read_bytes()) == read((PROTOCOL / "open_inference.binpb").read_bytes())
