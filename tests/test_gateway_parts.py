"""The gateway's parts, one by one: configuration, secrets, answers, limits, the protocol's bytes, deployment files."""

import json
import os
import re
import subprocess
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gateway_servers import SCOREVEIL
from scoreveil import Veil
from scoreveil.gateway import config, metrics, protocol, secrets
from scoreveil.gateway.answers import Sticky, release_tags
from scoreveil.gateway.auth import authenticator, key_hash, new_key
from scoreveil.gateway.config import Auth, Client, ConfigError, TensorSpec
from scoreveil.gateway.errors import Refusal
from scoreveil.gateway.limits import Buckets
from scoreveil.gateway.protocol import Request, Tensor
from scoreveil.gateway.served import tensor_records

ROOT = Path(__file__).parent.parent
SECRET = b"the secret of the tests, 32 byte"
MODEL = {"models": {"m": {"onnx": "m.onnx", "epsilon": 2.0}}}


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
    made = config.parse(MODEL, Path("/etc/scoreveil"))
    assert made.models["m"].onnx == Path("/etc/scoreveil/m.onnx")
    assert made.secrets.file == Path("/etc/scoreveil/scoreveil.secret")
    assert made.ledger.url == "sqlite:////etc/scoreveil/scoreveil-ledger.db"
    assert (made.server.host, made.server.port, made.server.admin_port) == ("127.0.0.1", 8080, 9090)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({}, "Expected models at the top, got none"),
        ({"models": {}}, "at least one model"),
        (merged(modles={}), "got modles"),
        (merged(limits__row=3), "of limits only body_bytes, .* got row"),
        (merged(limits__rows="many"), "limits.rows to be int, got str"),
        (merged(limits__rows=True), "limits.rows to be int, got bool"),
        (merged(limits__rows=0), "limits.rows > 0"),
        (merged(limits__requests_per_second=-1), "limits.requests_per_second >= 0"),
        (merged(server__port=99999), "server.port from 1 to 65535"),
        (merged(server__port=9090), "admin_port other than"),
        (merged(server__workers=0), "server.workers"),
        (merged(server__host="0.0.0.0"), "auth.mode where others can connect"),
        (merged(server__tls_cert="c.pem"), "tls_cert and tls_key together"),
        (merged(auth__mode="keys"), "at least one of auth.clients"),
        (merged(auth__mode="jwt"), "auth.jwt with mode 'jwt'"),
        (merged(auth__clients=[{"name": "a", "sha256": "00" * 32}]), "auth.mode = 'keys'"),
        (merged(auth__mode="keys", auth__clients=[{"name": "a", "sha256": "plain key"}]), "64 hex digits"),
        (merged(auth__mode="keys", auth__clients=[{"name": "a", "sha256": "00" * 32}] * 2), "different names"),
        (merged(ledger__url="mysql://"), "ledger.url"),
        (merged(models__m__epsilon=-1.0), "models.m: Expected a finite epsilon > 0"),
        (merged(models__m__mechanism="published", models__m__keep=2), "keep='all' for the published"),
        (merged(models__m__epsilon="2"), "models.m.epsilon to be float"),
        (merged(models__m__skops="m.skops"), "one of onnx, skops, python, upstream"),
        (merged(models__m__repeats="budget"), "total with repeats"),
        (merged(models__m__total=3.0), "with repeats = 'budget' only"),
        (merged(models__m__repeats="budget", models__m__total=1.0), "one release at least"),
        (merged(models__m__repeats="often"), "'sticky', 'budget'"),
        (merged(models__m__scores=[]), "at least one output"),
        (merged(models__m__passes=["scores"]), "an output once"),
        (merged(**{"models__a/b": {"onnx": "x", "epsilon": 1.0}}), "a model's name"),
        ({"models": {"m": {"epsilon": 1.0, "upstream": {"url": "ftp://x"}}}}, "http:// or https://"),
        ({"models": {"m": {"epsilon": 1.0, "upstream": {"url": "http://user:pw@x"}}}}, "without query or user"),
        (
            {"models": {"m": {"epsilon": 1.0, "repeats": "budget", "total": 9.0, "upstream": {"url": "http://x"}}}},
            "inputs with repeats = 'budget'",
        ),
    ],
)
def test_what_does_not_hold_is_refused_by_name(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.parse(tree)


def test_the_published_mechanism_has_no_budget() -> None:
    with pytest.raises(ConfigError, match="promises none"):
        config.parse(merged(models__m__mechanism="published", models__m__repeats="budget", models__m__total=9.0))


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "g.toml"
    file.write_text('[models.m]\nonnx = "m.onnx"\nepsilon = 2.0\n')
    environ = {
        "SCOREVEIL__MODELS__M__EPSILON": "0.5",
        "SCOREVEIL__SERVER__HOST": "::1",
        "SCOREVEIL__LOGS__REQUESTS": "true",
    }
    made = config.load(file, {"server/port": 1234}, environ)
    assert (made.models["m"].epsilon, made.server.host, made.logs.requests, made.server.port) == (
        0.5,
        "::1",
        True,
        1234,
    )
    with pytest.raises(ConfigError, match="got typo"):
        config.load(file, environ={"SCOREVEIL__SERVER__TYPO": "1"})
    file.write_text("[models")
    with pytest.raises(ConfigError, match="Expected TOML"):
        config.load(file, environ={})


def test_a_budget_counts_releases_by_its_rule() -> None:
    counted = merged(models__m__epsilon=0.5, models__m__repeats="budget", models__m__total=5.0)
    assert config.parse(counted).models["m"].allowed_releases == 10
    counted["models"]["m"] |= {"rule": "zcdp", "delta": 1e-6, "keep": "all"}
    assert config.parse(counted).models["m"].allowed_releases > 10
    # two score outputs are two draws in each release
    counted = merged(
        models__m__epsilon=0.5, models__m__repeats="budget", models__m__total=5.0, models__m__scores=["a", "b"]
    )
    assert config.parse(counted).models["m"].allowed_releases == 5


def test_config_check_and_key(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(SCOREVEIL), "config", *arguments], capture_output=True, text=True, timeout=60)

    made = run("key", "alice")
    key = made.stdout.split("once: ")[1].split()[0]
    table = made.stdout.split("For the file:\n")[1]
    file = tmp_path / "g.toml"
    file.write_text(f'auth.mode = "keys"\n{table}\n[models.m]\nonnx = "m.onnx"\nepsilon = 2\n')
    checked = run("check", str(file))
    assert checked.returncode == 0, checked.stderr
    assert "The configuration holds." in checked.stdout
    assert key_hash(key.encode()) in table
    file.write_text("models = 3")
    checked = run("check", str(file))
    assert (checked.returncode, checked.stderr) == (2, "Error: Expected tables under models, got int.\n")


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
    with pytest.raises(ValueError, match="others cannot read"):
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
    for shown, expected in ((keys[0][0], "c0"), (keys[4][0], "c4"), ("sv_none", None)):
        compared.clear()
        assert who({b"authorization": b"Bearer " + shown.encode()}) == expected
        assert len(compared) == 5


# Answers


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 40).flatmap(lambda k: arrays(np.float64, (7, k), elements=st.floats(0, 1))),
    st.sampled_from(["float32", "float64"]),
    st.floats(0.1, 20),
)
def test_the_table_of_sticky_answers_holds_what_the_veil_draws(rows: np.ndarray, dtype: str, epsilon: float) -> None:
    rows = rows + 1e-9
    scores = (rows / rows.sum(axis=1, keepdims=True)).astype(dtype)
    veil = Veil(epsilon, secret=SECRET, model="m")
    np.testing.assert_array_equal(Sticky(veil)(scores), veil(scores))
    one = np.full((1, scores.shape[1]), 1 / scores.shape[1], dtype=dtype)  # may lie on the border of two cells
    np.testing.assert_array_equal(Sticky(veil)(one), veil(one))


@pytest.mark.parametrize("options", [{}, {"keep": 3}, {"mechanism": "published"}, {"reference": True}])
def test_sticky_answers_of_any_veil(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.full(8, 0.4), size=200).astype(np.float32)
    if options.get("reference"):
        options = {"reference": rng.dirichlet(np.full(8, 0.4), size=500)}
    veil = Veil(1.0, secret=SECRET, **options)
    np.testing.assert_array_equal(Sticky(veil)(scores), veil(scores))


@pytest.mark.parametrize("bad", [[[0.5, np.nan]], [[0.7, 0.7]], [[1.2, -0.2]], [[1.0]], [0.5, 0.5], [[0, 0]]])
def test_what_is_no_score_vector_gets_no_sticky_answer(bad: Any) -> None:
    with pytest.raises(ValueError, match="xpected"):
        Sticky(Veil(1.0, secret=SECRET))(np.array(bad, dtype=np.float64))


@pytest.mark.parametrize("options", [{}, {"keep": 3}, {"keep": "all"}, {"mechanism": "published"}])
def test_tagged_draws_are_a_function_of_secret_cell_and_tag(options: dict[str, Any]) -> None:
    scores = np.random.default_rng(0).dirichlet(np.full(6, 0.4), size=40)
    veil, same, other = (Veil(1.0, secret=s, **options) for s in (SECRET, SECRET, SECRET[::-1]))
    tags = [b"%d" % i for i in range(40)]
    drawn = veil(scores, tags)
    np.testing.assert_array_equal(drawn, same(scores, tags))
    np.testing.assert_array_equal(drawn[5], veil(scores[5], tags[5:6]))
    for changed in (other(scores, tags), veil(scores, tags[::-1]), veil(scores)):
        assert (changed != drawn).any(axis=1).mean() > 0.3
    np.testing.assert_array_equal(drawn.argmax(axis=1), scores.argmax(axis=1))


def test_tags_spread_as_fresh_draws_do() -> None:
    """Over many tags the answers of one vector are distributed as the mechanism says."""
    row = np.array([0.6, 0.3, 0.1])
    batch = np.tile(row, (20_000, 1))
    tagged = Veil(1.0, secret=SECRET)(batch, [b"%d" % i for i in range(len(batch))])
    snapped = np.rint(row[0] * 31) / 31
    fresh = Veil(1.0, rng=np.random.default_rng(0))(
        np.tile([snapped, (1 - snapped) * 0.7, (1 - snapped) * 0.3], (20_000, 1))
    )
    # the standard deviation of one draw is below .3: five standard errors
    np.testing.assert_allclose(tagged.mean(axis=0), fresh.mean(axis=0), atol=5 * 0.3 * (2 / 20_000) ** 0.5)


def test_tags_need_a_secret_and_one_for_each_row() -> None:
    scores = np.full((2, 2), 0.5)
    for veil, tags in (
        (Veil(1.0), [b"a", b"b"]),
        (Veil(1.0, secret=SECRET), [b"a"]),
        (Veil(1.0, secret=SECRET), ["a", "b"]),
    ):
        with pytest.raises(ValueError, match="Expected"):
            veil(scores, tags)  # type: ignore[arg-type]
    assert release_tags([b"k" * 32], [3]) == [b"k" * 32 + (3).to_bytes(8, "little")]


# The protocol's bytes

NUMBERS = {"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"}


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(NUMBERS)), st.booleans())
def test_tensors_survive_either_form(data: st.DataObject, datatype: str, binary: bool) -> None:
    dtype = protocol.DTYPES[datatype]
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    shape = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 4)))
    from hypothesis.extra.numpy import from_dtype

    array = data.draw(arrays(dtype, shape, elements=from_dtype(dtype, **finite)))
    request = Request("id", [Tensor("x", datatype, array, {})], None, False, {})
    body, length = protocol.write_request(request, ["scores"], binary)
    header = str(length).encode() if length else None
    # what we write to an upstream is also what we read from a client
    again = protocol.read_request(body, header, frozenset(), 10)
    np.testing.assert_array_equal(again.inputs[0].array, array)
    assert again.inputs[0].array.dtype == dtype
    assert again.outputs == {"scores": binary}
    answer, length = protocol.write_response({"model_name": "m"}, {"x": array}, {"x": binary})
    read = protocol.read_response(answer, str(length).encode() if length else None, ["x"])
    np.testing.assert_array_equal(read["x"], array)


def test_texts_survive_either_form() -> None:
    array = np.array([[b"a"], ["äö".encode()]], dtype=object)
    for binary in (False, True):
        body, length = protocol.write_request(
            Request(None, [Tensor("x", "BYTES", array, {})], None, False, {}), ["y"], binary
        )
        again = protocol.read_request(body, str(length).encode() if length else None, frozenset(), 10)
        assert again.inputs[0].array.tolist() == array.tolist()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.none() | st.integers(0, 250).map(lambda n: str(n).encode()))
def test_any_bytes_are_read_or_refused(body: bytes, header: bytes | None) -> None:
    with pytest.raises(Refusal):
        protocol.read_request(body, header, frozenset(), 10)


LONG = ", ".join(map(str, range(500)))


@pytest.mark.parametrize("space", ["", " ", "\n\t"])
def test_numbers_pass_unread_as_they_came(space: str) -> None:
    data = f'"data"{space}:{space}[{LONG}]'
    body = f'{{"inputs": [{{"name": "data", "shape": [2, 250], "datatype": "INT64", {data}{space}}}]}}'.encode()
    read = protocol.read_request(body, None, frozenset(), 10)
    kept = protocol.read_request(body, None, frozenset(), 10, read_numbers=False)
    assert kept.inputs[0].unread == f"[{LONG}]".encode()
    assert kept.inputs[0].shape == read.inputs[0].shape == (2, 250)
    sent = [json.loads(protocol.write_request(each, ["scores"], False)[0]) for each in (read, kept)]
    assert sent[0] == sent[1]


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


@pytest.mark.parametrize("case", range(len(SMUGGLED)))
def test_nothing_hides_among_unread_numbers(case: int) -> None:
    with pytest.raises(Refusal):
        protocol.read_request(SMUGGLED[case].encode(), None, frozenset(["data"]), 4096, read_numbers=False)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='[]{}",:0123456789.eE+- datinpus\\', max_size=60), st.integers(0, 3))
def test_what_passes_unread_is_one_list_of_numbers(text: str, where: int) -> None:
    pieces = ['{"inputs": [{"name": "x", "shape": [500], "datatype": "FP32", ', f'"data": [{LONG}]', "}]}"]
    pieces.insert(where, text)
    try:
        kept = protocol.read_request("".join(pieces).encode(), None, frozenset(), 4096, read_numbers=False)
    except Refusal:
        return
    sent = protocol.write_request(kept, ["scores"], False)[0]
    numbers = re.fullmatch(
        rb'.*"data":\[([0-9eE+., \t\r\n-]*)\]\}\],"outputs":\[\{"name":"scores"\}\]\}', sent, re.DOTALL
    )
    assert numbers
    assert numbers[1].count(b",") == 499


def test_inputs_must_be_what_the_model_declares() -> None:
    declared = [TensorSpec("x", "FP32", (-1, 2))]
    protocol.check_inputs([Tensor("x", "FP32", np.zeros((3, 2), np.float32), {})], declared)
    for wrong in (
        [Tensor("y", "FP32", np.zeros((3, 2)), {})],
        [Tensor("x", "FP64", np.zeros((3, 2)), {})],
        [Tensor("x", "FP32", np.zeros((3, 3)), {})],
        [Tensor("x", "FP32", np.zeros(3), {})],
        [],
    ):
        with pytest.raises(Refusal):
            protocol.check_inputs(wrong, declared)


def test_records_are_told_by_their_values_alone() -> None:
    def records(*tensors: tuple[str, np.ndarray]) -> list[bytes]:
        return tensor_records([Tensor(name, "FP32", array.astype(np.float32), {}) for name, array in tensors])

    a, b = np.array([[1.0, 0.0], [2.0, np.nan]]), np.array([[3.0], [4.0]])
    assert records(("a", a), ("b", b)) == records(("b", b), ("a", np.where(a == 0, -0.0, a)))
    quiet = np.array([[1.0, 0.0], [2.0, -np.nan]])
    assert records(("a", a)) == records(("a", quiet))
    assert len(set(records(("a", np.arange(6.0).reshape(6, 1))))) == 6
    assert records(("a", a)) != records(("b", a))
    assert records(("a", np.zeros((1, 2, 1)))) != records(("a", np.zeros((1, 1, 2))))


# Limits and metrics


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


def test_deployment_files_hold() -> None:
    """Every configuration in deploy/ and in the docs is one that `serve` takes."""
    tomls = embedded_tomls()
    assert {name for name, _ in tomls} == {"compose.yaml", "kubernetes.yaml", "serve.md"}
    for name, text in tomls:
        assert config.parse(tomllib.loads(text)).models, name


def test_environment_names_in_deploy_are_real_keys() -> None:
    known = config.known_keys()
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
    for key in config.known_keys():
        assert f"`{key.split('.')[-1]}`" in page, key
