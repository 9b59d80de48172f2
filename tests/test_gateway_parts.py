"""The gateway's parts, one by one: configuration, secrets, answers, limits, the protocol's bytes, deployment files."""

import asyncio
import json
import math
import os
import pickle
import re
import subprocess
import textwrap
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gateway_servers import SCOREVEIL
from scoreveil import Veil, fit
from scoreveil.gateway import app, config_file, metrics, openapi, secrets
from scoreveil.gateway.auth import authenticator, key_hash, new_key
from scoreveil.gateway.config import Auth, Client, Config, ConfigError, Model
from scoreveil.gateway.limits import Buckets, network
from scoreveil.gateway.opened import open_config
from scoreveil.gateway.routes import route_table
from scoreveil.gateway.server import SILENCE, Heartbeats
from scoreveil.gateway.shared_config import SharedConfig
from scoreveil.gateway.sources import TensorQuery
from scoreveil.gateway.worker import heartbeat
from scoreveil.inference_protocol import messages
from scoreveil.inference_protocol.errors import ApiError
from scoreveil.inference_protocol.messages import InferenceRequest, InputTensor
from scoreveil.inference_protocol.tensors import DTYPES, TensorSpec
from scoreveil.keyed import KeyedVeil
from scoreveil.veil import MechanismOptions
from shaped_models import two_sides

ROOT = Path(__file__).parent.parent
SECRET = b"the secret of the tests, 32 byte"
SPOKEN = ("v2", "mlflow", "tfserving")
HASH = key_hash(b"sv_a-key-of-these-tests")
CLIENT = {"name": "a", "sha256": HASH}
MODEL: dict[str, Any] = {"models": {"m": {"onnx": "m.onnx", "epsilon": 2.0}}}


# Configuration


def merged(**changes: Any) -> dict[str, Any]:
    """MODEL with more keys, dotted with two underscores."""
    tree: dict[str, Any] = json.loads(json.dumps(MODEL))
    for path, value in changes.items():
        *tables, name = path.split("__")
        place = tree
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = value
    return tree


def test_the_smallest_configuration_is_two_lines() -> None:
    made = config_file.parse(MODEL, Path("/etc/scoreveil"))
    assert made.models["m"].onnx == Path("/etc/scoreveil/m.onnx")
    assert made.secrets.file == Path("/etc/scoreveil/scoreveil.secret")
    assert made.ledger.url == "sqlite:////etc/scoreveil/scoreveil-ledger.db"
    assert (made.server.host, made.server.port, made.server.admin_port) == ("127.0.0.1", 8080, 9090)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "There are no models"),
        ({"models": {}}, "models: Expected `object` of length >= 1"),
        (merged(modles={}), "Unknown field `modles`; the fields are models, server"),
        (merged(limits__row=3), "limits: Unknown field `row`; the fields are body_bytes, rows"),
        (merged(limits__rows="many"), "limits.rows: Expected `int`, got `str`"),
        (merged(limits__rows=True), "limits.rows: Expected `int`, got `bool`"),
        (merged(limits__rows=0), "limits.rows: Expected `int` >= 1"),
        (merged(limits__requests_per_second=-1), "limits.requests_per_second: Expected `float` >= 0"),
        (merged(limits=3), "limits: Expected `object`, got `int`"),
        (merged(server__port=99999), "server.port: Expected `int` <= 65535"),
        (merged(server__port=9090), "server: port and admin_port are both 9090"),
        (merged(server__grpc_port=8080), "server: grpc_port is 8080, which another port is already"),
        (merged(models__m__outputs="margins"), "outputs"),
        (merged(server__workers=0), "server.workers: Expected `int` >= 1"),
        (merged(server__host="0.0.0.0"), "others can connect to server.host 0.0.0.0: set auth.mode"),
        (merged(server__tls_cert="c.pem"), "tls_cert and tls_key need each other"),
        (merged(server__tls_cert=3), "server.tls_cert: Expected a path, got int"),
        (merged(auth__mode="keys"), "needs at least one of auth.clients"),
        (merged(auth__mode="jwt"), "mode 'jwt' needs the table auth.jwt"),
        (merged(auth__mode="key"), "auth.mode: Expected one of jwt, keys, none"),
        (merged(auth__clients=[{"name": "a", "sha256": HASH}]), "only used with mode = 'keys'"),
        (merged(auth__mode="keys", auth__clients=[{"name": "a", "sha256": "plain key"}]), "not 64 hex digits"),
        (merged(auth__mode="keys", auth__clients=[{"name": "a", "sha256": HASH}] * 2), "have the same name"),
        (merged(auth__mode="keys", auth__clients=[{"name": "a", "sha256": "00" * 32}]), "is a placeholder and no hash"),
        (merged(auth__mode="keys", auth__clients=[{"name": "a", "sha256": "0123" * 16}]), "is a placeholder"),
        (merged(ledger__url="mysql://"), "ledger: ledger.url begins with neither"),
        (merged(models__m__epsilon=-1.0), "models.m: Expected a finite epsilon > 0"),
        (merged(models__m__mechanism="published", models__m__keep=2), "models.m: .*keep='all' for the published"),
        (merged(models__m__mechanism="other"), "models.m: .*mechanism"),
        (merged(models__m__epsilon="2"), "models.m: .*epsilon"),
        (
            merged(models__m__levels_of_care=3),
            "models.m: Unknown key 'levels_of_care' of the model; did you mean levels",
        ),
        (merged(models__m__colour=3), "models.m: Unknown key 'colour' of the model; the keys are classes, .*keep, "),
        (merged(models__m__pases=["label"]), r"models.m: Unknown key 'pases' of the model; did you mean passes\?"),
        (merged(models__m__epsilom=1), r"models.m: Unknown key 'epsilom' of the model; did you mean epsilon\?"),
        (merged(models__m__reading="x"), "models.m: The isotonic mechanism has no option 'reading'"),
        (merged(models__m__threads=3), "models.m: threads cannot be set here"),
        (merged(models__m__skops="m.skops"), "one of onnx, skops, python and upstream; this one has 2"),
        (merged(models__m__memory={}), "models.m.memory: memory has one of answers, .* and epsilon"),
        (merged(models__m__memory={"answers": 1, "epsilon": 2.0}), "models.m.memory: memory has one of answers"),
        (merged(models__m__memory={"answers": 0}), "models.m.memory.answers: Expected `int` >= 1"),
        (merged(models__m__memory={"answers": 1, "rule": "zcdp"}), "say how answers add up to epsilon; remove them"),
        (merged(models__m__memory={"epsilon": 1.0}), "models.m: memory.epsilon = 1 allows no answer; raise it"),
        (merged(models__m__memory={"answers": 1, "repeat": "often"}), "repeat: Expected one of refuse, same"),
        (merged(ledger__records=10), "ledger: ledger.records must be between 1,000 and 200,000,000, got 10"),
        (merged(ledger__days=-1), "ledger: ledger.days must be between 0 and 36,500, got -1"),
        (merged(limits__epsilon=100.0), "limits.epsilon is the limit of one client, and clients have no keys"),
        (
            merged(limits__epsilon=9.0, auth__mode="keys", auth__clients=[CLIENT], models__m__mechanism="published"),
            "limits.epsilon counts answers of models with memory; none has one",
        ),
        (merged(models__m__scores=[]), "models.m.scores: Expected `array` of length >= 1"),
        (merged(models__m__passes=["scores"]), "name an output twice"),
        (merged(**{"models__a/b": {"onnx": "x", "epsilon": 1.0}}), "models.a/b: a model's name begins with"),
        ({"models": {"m": 3}}, "models.m is a int; begin a table with"),
        ({"models": {"m": {"onnx": "m.onnx"}}}, 'models.m: The model needs epsilon, .* or veil = "file"'),
        ({"models": {"m": {"onnx": "m.onnx", "keep": 2}}}, "models.m: The model needs epsilon"),
        (
            {"models": {"m": {"epsilon": 1.0, "upstream": {"url": "ftp://x"}}}},
            "models.m.upstream: .*http:// or https://",
        ),
        ({"models": {"m": {"epsilon": 1.0, "upstream": {"url": "http://user:pw@x"}}}}, "has a user, a query"),
        (
            {"models": {"m": {"epsilon": 1.0, "memory": {"answers": 1}, "upstream": {"url": "http://x"}}}},
            "memory needs inputs here",
        ),
        *(
            (
                {"models": {"m": {"epsilon": 1.0, "upstream": {"url": "http://x", "protocol": protocol}, **more}}},
                message,
            )
            for protocol in ("mlflow", "tfserving")
            for more, message in (
                ({}, "models.m: MLflow and TF Serving models need inputs"),
                ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}]}, "begins with -1"),
            )
        ),
    ],
)
def test_what_does_not_hold_is_refused_by_name(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_config(config_file.parse(tree))


@pytest.mark.parametrize(
    "tree",
    [
        merged(auth__mode="sv_a-key-in-the-wrong-place"),
        merged(ledger__url="mysql://user:sv_a-key-in-the-wrong-place@host"),
        merged(auth__mode="keys", auth__clients=[{"name": "a", "sha256": "sv_a-key-in-the-wrong-place"}]),
        merged(models__m__secret="sv_a-key-in-the-wrong-place"),
        {"models": {"m": {"epsilon": 1.0, "upstream": {"url": "http://user:sv_a-key-in-the-wrong-place@x"}}}},
    ],
)
def test_a_secret_in_the_wrong_place_is_not_quoted(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        open_config(config_file.parse(tree))
    assert "sv_a-key" not in str(caught.value)


def test_options_of_a_mechanism_pass_through_and_files_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "public.npy", np.random.default_rng(0).dirichlet(np.ones(3), size=50))
    config = config_file.parse(merged(models__m__keep=2, models__m__reference="public.npy"), tmp_path)
    assert config.models["m"].veil == {"epsilon": 2.0, "keep": 2, "reference": tmp_path / "public.npy"}
    opened = open_config(config).models["m"]
    assert "reference of 3 classes" in repr(opened.keyed_veils(SECRET)["scores"])
    (tmp_path / "public.npy").unlink()
    assert pickle.loads(pickle.dumps(opened)).keyed_veils(SECRET)  # what was read stays
    with pytest.raises(ConfigError, match=r"public\.npy"):
        open_config(config)


def test_memory_without_an_epsilon_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory means nothing without an ε"):
        open_config(config_file.parse(merged(models__m__mechanism="published", models__m__memory={"answers": 1})))


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text('[models.m]\nonnx = "m.onnx"\nepsilon = 2.0\n')
    environ = {
        "SCOREVEIL__MODELS__M__EPSILON": "0.5",
        "SCOREVEIL__SERVER__HOST": "::1",
        "SCOREVEIL__LOGS__REQUESTS": "true",
    }
    made = config_file.load(file, {"server/port": 1234}, environ)
    assert (made.models["m"].veil["epsilon"], made.server.host, made.logs.requests, made.server.port) == (
        0.5,
        "::1",
        True,
        1234,
    )
    with pytest.raises(ConfigError, match="server: Unknown field `typo`"):
        config_file.load(file, environ={"SCOREVEIL__SERVER__TYPO": "1"})
    file.write_text("[models")
    with pytest.raises(ConfigError, match=r"g\.toml is not TOML"):
        config_file.load(file, environ={})
    with pytest.raises(ConfigError, match=r"The configuration file \S+none\.toml cannot be read: No such file"):
        config_file.load(tmp_path / "none.toml", environ={})


def test_what_answers_add_up_to_is_counted_by_its_rule() -> None:
    counted = merged(models__m__epsilon=0.1, models__m__memory={"epsilon": 5.0})
    assert open_config(config_file.parse(counted)).models["m"].allowed_answers(1) == 50
    counted["models"]["m"] |= {"memory": {"epsilon": 5.0, "rule": "zcdp", "delta": 1e-6}, "keep": "all"}
    model = open_config(config_file.parse(counted)).models["m"]
    # the closed form of zCDP: the most answers n with n ρ + 2 √(n ρ ln(1/δ)) <= 5
    assert model.veil is not None
    rho = model.veil.guarantee.rho
    most = max(n for n in range(1, 1000) if n * rho + 2 * math.sqrt(n * rho * math.log(1e6)) <= 5.0)
    assert model.allowed_answers(1) == most > 50
    # two score outputs are two draws in each answer
    counted = merged(models__m__epsilon=0.5, models__m__memory={"epsilon": 5.0}, models__m__scores=["a", "b"])
    made = open_config(config_file.parse(counted)).models["m"]
    assert made.answer_releases == 2
    assert made.allowed_answers(2) == 5


def test_config_check_and_key(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(SCOREVEIL), "config", *arguments], capture_output=True, text=True, timeout=60)

    made = run("key", "alice")
    key = made.stdout.split("once: ")[1].split()[0]
    table = made.stdout.split("For the file:\n")[1]
    file = tmp_path / "g.toml"
    file.write_text(f'auth.mode = "keys"\n{table}\n[models.m]\nonnx = "m.onnx"\nepsilon = 2\n')
    checked = run("check", "--offline", str(file))
    assert checked.returncode == 0, checked.stderr
    assert "The configuration is valid." in checked.stdout
    assert key_hash(key.encode()) in table
    file.write_text("models = 3")
    checked = run("check", str(file))
    assert (checked.returncode, checked.stderr) == (
        2,
        "Error: There are no models: begin a table with [models.NAME].\n",
    )


# Secrets and keys


def test_a_secret_is_made_for_its_owner_and_rotated_in_place(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "secret"
    first = secrets.load(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert secrets.load(file) == first
    assert first.records == first.answers
    assert secrets.rotate(file) == 2
    second = secrets.load(file)
    assert (second.records, second.rotations) == (first.records, 1)
    assert second.answers != first.answers
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(file.parent)) == ["secret"]
    assert first.records.hex() not in repr(first)


def test_bad_secrets_are_refused_and_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("too short\n")
    file.chmod(0o600)
    with pytest.raises(ValueError, match="64 hex digits") as caught:
        secrets.load(file)
    assert "too short" not in str(caught.value)
    file.write_text("ab" * 32)
    file.chmod(0o644)
    with pytest.raises(ValueError, match=r"Others can read the secret file .*chmod 600"):
        secrets.load(file)
    monkeypatch.setenv("SCOREVEIL_SECRET", "cd" * 32)
    assert secrets.load(file).records == bytes.fromhex("cd" * 32)


def test_every_stored_hash_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """No early way out: finding the first client takes as many comparisons as finding none."""
    import scoreveil.gateway.auth as module

    compared = []
    real = module.hmac.compare_digest
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: compared.append(1) or real(a, b))
    keys = [new_key() for _ in range(5)]
    who = authenticator(Auth("keys", tuple(Client(f"c{i}", digest) for i, (_, digest) in enumerate(keys))))
    for shown, expected in ((keys[0][0], "c0"), (keys[4][0], "c4"), ("sv_a-key-of-nobody", None)):
        compared.clear()
        assert who({b"authorization": b"Bearer " + shown.encode()}) == expected
        assert len(compared) == 5


@pytest.mark.parametrize("key", [b"", b"test", b"password", b"changeme1234567"])
def test_a_key_that_anyone_can_guess_is_none_even_where_its_hash_was_configured(key: bytes) -> None:
    who = authenticator(Auth("keys", (Client("alice", key_hash(key)),)))
    assert who({b"x-api-key": key}) is None
    assert who({}) is None


# Answers


@pytest.mark.parametrize("options", [{}, {"keep": 3}, {"keep": "all"}, {"mechanism": "published"}])
def test_tagged_draws_are_a_function_of_secret_cell_and_tag(options: dict[str, Any]) -> None:
    scores = np.random.default_rng(0).dirichlet(np.full(6, 0.4), size=40)
    veil, same, other = (Veil(1.0, secret=s, **options) for s in (SECRET, SECRET, SECRET[::-1]))
    tags = [b"%d" % i for i in range(40)]
    drawn = KeyedVeil(veil)(scores, tags)
    np.testing.assert_array_equal(drawn, KeyedVeil(same)(scores, tags))
    np.testing.assert_array_equal(drawn[5], KeyedVeil(veil)(scores[5], tags[5:6]))
    for changed in (KeyedVeil(other)(scores, tags), KeyedVeil(veil)(scores, tags[::-1]), veil(scores)):
        assert (changed != drawn).any(axis=1).mean() > 0.3
    np.testing.assert_array_equal(drawn.argmax(axis=1), scores.argmax(axis=1))


def test_tags_spread_as_fresh_draws_do() -> None:
    """Over many tags the answers of one vector are distributed as the mechanism says."""
    row = np.array([0.6, 0.3, 0.1])
    batch = np.tile(row, (20_000, 1))
    tagged = KeyedVeil(Veil(1.0, secret=SECRET))(batch, [b"%d" % i for i in range(len(batch))])
    snapped = np.rint(row[0] * 31) / 31
    fresh = Veil(1.0, rng=np.random.default_rng(0))(
        np.tile([snapped, (1 - snapped) * 0.7, (1 - snapped) * 0.3], (20_000, 1))
    )
    # the standard deviation of one draw is below .3: five standard errors
    np.testing.assert_allclose(tagged.mean(axis=0), fresh.mean(axis=0), atol=5 * 0.3 * (2 / 20_000) ** 0.5)


def test_tags_need_a_secret_and_one_for_each_row() -> None:
    scores = np.full((2, 2), 0.5)
    for veil, tags, message in (
        (Veil(1.0), [b"a", b"b"], "Tags need a secret"),
        (Veil(1.0, secret=SECRET), [b"a"], "for each of the 2 rows; got 1"),
        (Veil(1.0, secret=SECRET), ["a", "b"], "a tag of type bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            KeyedVeil(veil)(scores, tags)  # type: ignore[arg-type]


# The protocol's bytes


def tensor(name: str, datatype: str, array: np.ndarray) -> InputTensor:
    return InputTensor(name, array.shape, datatype, {}, array)


NUMBERS = {"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"}


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(NUMBERS)), st.booleans())
def test_tensors_survive_either_form(data: st.DataObject, datatype: str, binary: bool) -> None:
    dtype = DTYPES[datatype]
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 4)))
    from hypothesis.extra.numpy import from_dtype

    array = data.draw(arrays(dtype, shape, elements=from_dtype(dtype, **finite)))
    request = InferenceRequest("id", [tensor("x", datatype, array)], None, False, {})
    body, length = messages.write_request(request, ["scores"], binary)
    header = str(length).encode() if length else None
    # what we write to an upstream is also what we read from a client
    again = messages.read_request(body, header, frozenset(), 10)
    np.testing.assert_array_equal(again.inputs[0].data, array)
    assert again.inputs[0].data.dtype == dtype
    assert again.outputs == {"scores": binary}
    answer, length = messages.write_response({"model_name": "m"}, {"x": array}, {"x": binary})
    read = messages.read_response(answer, str(length).encode() if length else None, ["x"])
    np.testing.assert_array_equal(read["x"], array)


def test_texts_survive_either_form() -> None:
    array = np.array([[b"a"], ["äö".encode()]], dtype=object)
    for binary in (False, True):
        body, length = messages.write_request(
            InferenceRequest(None, [tensor("x", "BYTES", array)], None, False, {}), ["y"], binary
        )
        again = messages.read_request(body, str(length).encode() if length else None, frozenset(), 10)
        assert again.inputs[0].data.tolist() == array.tolist()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.none() | st.integers(0, 250).map(lambda n: str(n).encode()))
def test_any_bytes_are_read_or_refused(body: bytes, header: bytes | None) -> None:
    with pytest.raises(ApiError):
        messages.read_request(body, header, frozenset(), 10)


LONG = ", ".join(map(str, range(500)))


@pytest.mark.parametrize("space", ["", " ", "\n\t"])
def test_numbers_pass_unread_as_they_came(space: str) -> None:
    data = f'"data"{space}:{space}[{LONG}]'
    body = f'{{"inputs": [{{"name": "data", "shape": [2, 250], "datatype": "INT64", {data}{space}}}]}}'.encode()
    read = messages.read_request(body, None, frozenset(), 10)
    kept = messages.read_request(body, None, frozenset(), 10, read_numbers=False)
    assert kept.inputs[0].data == f"[{LONG}]".encode()
    assert kept.inputs[0].shape == read.inputs[0].shape == (2, 250)
    both = messages.read_request(body, None, frozenset(), 10, keep_written=True)
    np.testing.assert_array_equal(both.inputs[0].data, read.inputs[0].data)
    assert both.written == {"data": kept.inputs[0].data}
    sent = [json.loads(messages.write_request(each, ["scores"], False)[0]) for each in (read, kept, both)]
    assert sent[0] == sent[1] == sent[2]
    other = np.zeros((2, 250), np.int64)
    around = TensorQuery(both, {}, []).of({"data": other})  # other records are not written as these were
    assert json.loads(messages.write_request(around.request, [], False)[0])["inputs"][0]["data"] == [0] * 500


def test_numbers_of_another_datatype_go_on_as_they_were_read() -> None:
    """0.1 in float32 is another number than 0.1: the model must be asked about the record that is remembered."""
    body = f'{HEAD}, "data": [{", ".join(["0.1"] * 500)}]}}]}}'.encode()
    read = messages.read_request(body, None, declared=[TensorSpec("x", "FP64", (-1,))], keep_written=True)
    sent = json.loads(messages.write_request(read, [], False)[0])["inputs"][0]
    assert (sent["datatype"], sent["data"][0]) == ("FP64", float(np.float32(0.1)))
    with pytest.raises(ApiError, match=r"not JSON: .* at character 25\d\d"):
        messages.read_request(body.replace(b"0.1]", b"0.1.1]"), None, keep_written=True)


HEAD = '{"inputs": [{"name": "x", "shape": [500], "datatype": "FP32"'
SMUGGLED = [
    f'{HEAD}, "data": [{LONG}]}}], "data": [{LONG}]}}',
    f'{{"data": [{LONG}], {HEAD[1:]}, "data": [{LONG}]}}]}}',
    f'{HEAD}, "data": [{LONG}], "data": [{LONG}]}}]}}',
    f'{HEAD}, "parameters": {{"data": [{LONG}]}}, "data": 0}}]}}',
    f'{HEAD}, "data": [{LONG}, {{"a": 1}}]}}]}}',
    f'{HEAD}, "data": [{LONG}, "a"]}}]}}',
    f'{HEAD}, "data": [{LONG}, 1]}}]}}',
    f'{HEAD.replace("FP32", "BYTES")}, "data": [{LONG}]}}]}}',
    f'{HEAD}, "data": [{LONG}]]}}]}}',
    f'{HEAD}, "data": 0}}], "outputs": [{{"data": [{LONG}]}}]}}',
    f'{HEAD}, "data": 0}}, {{"name": "y", "shape": [500], "datatype": "FP32", "data": [{LONG}]}}]}}',
    f'{HEAD}, "data": 1}}, {{"name": "y", "shape": [500], "datatype": "FP32", "data": [{LONG}]}}]}}',
]


@pytest.mark.parametrize("how", [{"read_numbers": False}, {"keep_written": True}], ids=str)
@pytest.mark.parametrize("case", range(len(SMUGGLED)))
def test_nothing_hides_among_unread_numbers(case: int, how: dict[str, bool]) -> None:
    with pytest.raises(ApiError):
        messages.read_request(SMUGGLED[case].encode(), None, frozenset(["data"]), 4096, **how)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='[]{}",:0123456789.eE+- datinpus\\', max_size=60), st.integers(0, 3))
def test_what_passes_unread_is_one_list_of_numbers(text: str, where: int) -> None:
    pieces = ['{"inputs": [{"name": "x", "shape": [500], "datatype": "FP32", ', f'"data": [{LONG}]', "}]}"]
    pieces.insert(where, text)
    try:
        kept = messages.read_request("".join(pieces).encode(), None, frozenset(), 4096, read_numbers=False)
    except ApiError:
        return
    sent = messages.write_request(kept, ["scores"], False)[0]
    numbers = re.fullmatch(
        rb'.*"data":\[([0-9eE+., \t\r\n-]*)\]\}\],"outputs":\[\{"name":"scores"\}\]\}', sent, re.DOTALL
    )
    assert numbers
    assert numbers[1].count(b",") == 499


def test_inputs_that_differ_in_rows_are_refused_before_any_model_is_asked() -> None:
    one = {"name": "a", "shape": [2, 1], "datatype": "FP32", "data": [1, 2]}
    other = {"name": "b", "shape": [3, 1], "datatype": "FP32", "data": [1, 2, 3]}
    with pytest.raises(ApiError, match="Input 'b' has 3 rows and input 'a' has 2") as refused:
        messages.read_request(json.dumps({"inputs": [one, other]}).encode(), None)
    assert refused.value.status == 400


def test_bytes_that_json_cannot_carry_do_not_go_on_as_others() -> None:
    """Each would be a record of its own here, and all of them one to the model."""
    values = np.empty(1, dtype=object)
    values[0] = b"a\xff"
    request = InferenceRequest(None, [tensor("t", "BYTES", values)], None, False, {})
    assert b"a\xff" in messages.write_request(request, ["scores"], True)[0]
    with pytest.raises(ApiError, match="not UTF-8"):
        messages.write_request(request, ["scores"], False)


def test_every_route_is_described() -> None:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    upstreams = {
        f"m{i}": {"epsilon": 1.0, "inputs": inputs, "upstream": {"url": "http://x", "protocol": p}}
        for i, p in enumerate(SPOKEN)
    }
    made = config_file.parse({"models": {**upstreams, **MODEL["models"]}})
    described = openapi.document(made)["paths"]
    table = route_table(made.models)
    assert {path: [route.method.lower()] for path, route in table.items()} == {p: list(o) for p, o in described.items()}
    assert {"/health", "/ping", "/invocations", "/v2/health/ready", "/v1/models/m2:predict"} <= described.keys()


def test_inputs_must_be_what_the_model_declares() -> None:
    declared = [TensorSpec("x", "FP32", (-1, 2))]
    messages.check_inputs([tensor("x", "FP32", np.zeros((3, 2), np.float32))], declared)
    for wrong in (
        [tensor("y", "FP32", np.zeros((3, 2)))],
        [tensor("x", "FP64", np.zeros((3, 2)))],
        [tensor("x", "FP32", np.zeros((3, 3)))],
        [tensor("x", "FP32", np.zeros(3))],
        [],
    ):
        with pytest.raises(ApiError):
            messages.check_inputs(wrong, declared)


def test_a_probe_does_not_wait_for_a_ledger_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while the worker that writes is stopped: ten seconds, until it is replaced."""

    class Hanging:
        async def ready(self) -> bool:
            await asyncio.sleep(60)
            return True

    monkeypatch.setattr(app, "READY_WITHIN", 0.2)
    opened = open_config(config_file.parse({"models": {"m": {"python": "a:b", "epsilon": 1.0}}}, Path()))
    gateway: Any = app.Gateway(opened, {}, Hanging(), *[None] * 3)  # type: ignore[arg-type]

    async def probes() -> list[bool]:
        return await asyncio.gather(*(gateway.ready() for _ in range(20)))

    start = time.monotonic()
    assert asyncio.run(probes()) == [False] * 20
    assert time.monotonic() - start < 2.0


def test_a_worker_that_gives_no_sign_hangs_and_a_pause_of_all_is_none(tmp_path: Path) -> None:
    now = [0.0]
    watch = Heartbeats(tmp_path, lambda: now[0])

    def pass_by(seconds: int, *beating: int) -> list[int]:
        """Second after second; those that beat give a sign in each. Whoever is silent in the end."""
        for _ in range(seconds):
            now[0] += 1
            for process in beating:
                os.utime(heartbeat(tmp_path, process), ns=(0, int(now[0] * 1e9)))
            silent = watch.silent([1, 2, 3])
        return silent

    for process in (1, 2):  # the third one is still starting
        heartbeat(tmp_path, process).touch()
    assert pass_by(SILENCE, 1) == []
    assert pass_by(2, 1) == [2]
    now[0] += 1000  # the machine slept: nobody could give a sign
    assert pass_by(1) == []
    assert pass_by(SILENCE - 1, 2) == []
    assert pass_by(3, 2) == [1]


# Limits and metrics


def test_a_host_with_many_ipv6_addresses_has_one_rate() -> None:
    given = ["2001:db8:1:2::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1", "192.0.2.1", "::ffff:192.0.2.1", "::1", ""]
    found = [network(address) for address in given]
    assert found[0] == found[1]
    assert len(set(found)) == 6
    assert found[3:] == given[3:]


def test_buckets_fill_at_their_rate(tmp_path: Path) -> None:
    now = [100.0]
    buckets = Buckets(tmp_path / "rates", lambda: now[0])
    assert [buckets.take("a", 2.0, 1) for _ in range(3)] == [0, 0, 0.5]
    assert buckets.take("b", 2.0, 1) == 0
    now[0] += 0.5
    assert [buckets.take("a", 2.0, 1) for _ in range(2)] == [0, 0.5]
    now[0] += 100
    assert [buckets.take("a", 2.0, 1) for _ in range(3)] == [0, 0, 0.5]
    # a request larger than the bucket waits for a full one, then owes
    now[0] += 100
    assert buckets.take("a", 2.0, 10) == 0
    assert buckets.take("a", 2.0, 1) == 4.5
    # another worker sees the same bucket
    assert Buckets(tmp_path / "rates", lambda: now[0]).take("a", 2.0, 1) == 4.5


def test_a_flood_of_names_does_not_grow_the_buckets(tmp_path: Path) -> None:
    buckets = Buckets(tmp_path / "rates")
    size = (tmp_path / "rates").stat().st_size
    for i in range(30_000):
        assert buckets.take(f"client {i}", 1.0, 1) == 0
    assert (tmp_path / "rates").stat().st_size == size


def test_quantiles_of_a_histogram() -> None:
    buckets = [(0.1, 50.0), (0.2, 90.0), (float("inf"), 100.0)]
    assert metrics.quantile(buckets, 0.5) == pytest.approx(0.1)
    assert metrics.quantile(buckets, 0.7) == pytest.approx(0.15)
    assert metrics.quantile(buckets, 0.99) == pytest.approx(0.2)
    assert metrics.quantile([], 0.5) == 0.0


# What processes share


def test_a_configuration_is_kept_once_it_was_opened() -> None:
    first, second, third = (open_config(config_file.parse(merged(limits__rows=rows))) for rows in (1, 2, 3))
    shared = SharedConfig.of(first)

    def rows() -> tuple[int, int]:
        return shared.good().opened.config.limits.rows, shared.offered().opened.config.limits.rows

    assert rows() == (1, 1)
    shared.offer(second)
    version = shared.offered()
    assert rows() == (1, 2)
    shared.offer(third)  # before the second one was loaded
    shared.keep(version)
    assert rows() == (2, 3)
    shared.reject(shared.offered())
    assert rows() == (2, 2)
    shared.keep(version)
    shared.reject(version)
    assert rows() == (2, 2)


# Deployment


def embedded_tomls() -> list[tuple[str, str]]:
    found = []
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    found += [("compose.yaml", each["content"]) for each in compose["configs"].values()]
    for part in yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text()):
        if part["kind"] == "ConfigMap":
            found += [("kubernetes.yaml", text) for text in part["data"].values()]
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    found += [("serve.md", textwrap.dedent(text)) for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    return found


def test_deployment_files_hold(tmp_path: Path) -> None:
    """Every configuration in deploy/ and in the docs is one that `serve` takes, with a hash in place of the zeros."""
    fit(*two_sides(3), epsilon=1.0, rng=np.random.default_rng(0)).save(tmp_path / "veil.json")
    tomls = embedded_tomls()
    assert {name for name, _ in tomls} == {"compose.yaml", "kubernetes.yaml", "serve.md"}
    for name, text in tomls:
        if "sha256" in text:
            with pytest.raises(ConfigError, match="is a placeholder and no hash; `scoreveil config key alice` makes"):
                config_file.parse(tomllib.loads(text), tmp_path)
        assert config_file.parse(tomllib.loads(text.replace("0" * 64, HASH)), tmp_path).models, name


def test_the_admin_port_stays_inside() -> None:
    """Deployed as deploy/ says, it is not reachable from where clients are."""
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in published if "9090" in port)
    parts = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text()))
    (service,) = (part for part in parts if part["kind"] == "Service")
    assert [port["name"] for port in service["spec"]["ports"]] == ["http"]
    (policy,) = (p for p in parts if p["kind"] == "NetworkPolicy" and p["metadata"]["name"] == "scoreveil-admin-inside")
    assert policy["spec"]["podSelector"]["matchLabels"] == {"app": "scoreveil"}
    everyone = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
    assert everyone == [{"ports": [{"port": "http"}]}]
    assert "9090" not in (ROOT / "deploy" / "haproxy.cfg").read_text()


def known_keys(kind: Any, prefix: str = "") -> Iterator[str]:
    """Every key that a file may have, dotted; * for the name of a model, whose options are those of `Veil` too."""
    for field in msgspec.inspect.type_info(kind).fields:
        parts = getattr(field.type, "types", (field.type,))
        parts = [getattr(part, "item_type", part) for part in parts]
        nested = next((part for part in parts if isinstance(part, msgspec.inspect.StructType)), None)
        if field.name == "models":
            yield from known_keys(Model, "models.*.")
        elif field.name == "veil":
            options = {"epsilon", "mechanism", "veil", *MechanismOptions.__annotations__}
            yield from (f"{prefix}{name}" for name in options)
        elif nested is not None:
            yield from known_keys(nested.cls, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def test_environment_names_in_deploy_are_real_keys() -> None:
    known = set(known_keys(Config))
    for file in ("compose.yaml", "kubernetes.yaml"):
        for word in (ROOT / "deploy" / file).read_text().split():
            name = word.strip("\"':,-")
            if name.startswith("SCOREVEIL__"):
                path = name.removeprefix("SCOREVEIL__").lower().replace("__", ".")
                parts = path.split(".")
                if parts[0] == "models":
                    parts[1] = "*"
                assert ".".join(parts) in known, name


def test_the_docs_name_every_key() -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    for key in known_keys(Config):
        assert f"`{key.split('.')[-1]}`" in page, key
