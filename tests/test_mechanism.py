"""A mechanism is one class: with it alone everything works; nobody else knows which mechanisms there are."""

from __future__ import annotations

import ast
import base64
import copy
import hashlib
import json
import math
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import array_api_strict
import cloudpickle
import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from score_files import assert_veiled, leftovers, load_scores, save_scores
from scoreveil import Guarantee, Veil, accounting, blocks
from scoreveil.files import dataset, protect
from scoreveil.gateway import config_file
from scoreveil.gateway.opened import open_config
from scoreveil.integrations.columns import ColumnVeil
from scoreveil.integrations.sklearn import VeiledClassifier
from scoreveil.integrations.torch import VeiledModule
from scoreveil.keyed import KeyedVeil
from scoreveil.mechanisms import loading, mechanism
from scoreveil.mechanisms.isotonic import Isotonic
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.mechanisms.messages import messages
from scoreveil.mechanisms.ordering import rank
from scoreveil.mechanisms.published import Published
from scoreveil.mechanisms.scores import namespace
from scoreveil.randomness import KeyedDraws

SOURCE = Path(mechanism.__file__).parents[1]
SECRET = b"a secret of thirty-two bytes, ok"


@dataclass(frozen=True)
class Coin(Mechanism, name="coin"):
    """Says whether the top score reaches a border, .95 for yes and .75 for no, and lies once in 1 + e^ε times."""

    border: float = 0.9
    profile: tuple[float, ...] = ()  # how the other classes share the rest; none: evenly

    def draws(self, classes: int) -> int:
        return 1

    def perturb(self, rows: Any, uniforms: Any) -> Any:
        xp, k = namespace(rows), rows.shape[-1]
        wide, top = xp.astype(rows, xp.float64), rank(rows)[..., -1:]
        says_yes = (xp.max(wide, axis=-1, keepdims=True) >= self.border) ^ (uniforms < self.lie)
        shown = 0.75 + 0.2 * xp.astype(says_yes, xp.float64)
        is_top = xp.arange(k, device=rows.device)[None, :] == top
        shares = xp.asarray(np.array(self.profile or [1.0] * k), device=rows.device)[None, :]
        shares = xp.where(is_top, xp.zeros_like(wide), shares + xp.zeros_like(wide))
        others = (1 - shown) * shares / xp.sum(shares, axis=-1, keepdims=True)
        return xp.astype(xp.where(is_top, shown + xp.zeros_like(wide), others), rows.dtype)

    def cells(self, rows: Any) -> tuple[Any, Any]:
        return rank(rows)[:, -1:], (rows.max(axis=1, keepdims=True) >= self.border).astype(np.int64)

    def guarantee(self, classes: int | None = None) -> Guarantee:
        relation = "any two score vectors with the same top class"
        words = f"Whatever is released, {relation} give it with probabilities within e^{self.epsilon:g} of each other."
        return Guarantee(self.epsilon, relation, words, ("It is a toy.",), self.epsilon**2 / 2, self.epsilon)

    def loss(self, scores: Any, other: Any) -> float:
        if np.argmax(scores) != np.argmax(other):
            return math.inf
        return self.epsilon if (np.max(scores) >= self.border) != (np.max(other) >= self.border) else 0.0

    def settings(self) -> dict[str, Any]:
        return {"epsilon": self.epsilon, "border": self.border}

    def arrays(self) -> dict[str, Any]:
        return {"profile": np.array(self.profile)} if self.profile else {}

    @classmethod
    def restored(cls, settings: dict[str, Any], arrays: dict[str, Any]) -> Coin:
        return cls(**settings, profile=tuple(arrays["profile"].tolist()) if arrays else ())

    @property
    def lie(self) -> float:
        return 1 / (1 + math.exp(self.epsilon))


# other tests must not meet it
del mechanism._registered["coin"]


@pytest.fixture
def coin(monkeypatch: pytest.MonkeyPatch) -> type[Coin]:
    """The toy, known by its name."""
    monkeypatch.setitem(mechanism._registered, "coin", Coin)
    return Coin


PROFILE = (0.3, 0.1, 0.2, 0.3, 0.1)
COINS = {"plain": Coin(1.5), "with arrays": Coin(1.5, 0.8, PROFILE)}
each_coin = pytest.mark.parametrize("toy", COINS.values(), ids=COINS)


def sample(n: int = 400, dtype: str = "float64", seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).dirichlet(np.full(5, 0.2), size=n)
    return (rows / rows.sum(axis=1, keepdims=True)).astype(dtype)


def assert_answers(toy: Coin, scores: np.ndarray, released: np.ndarray) -> None:
    """Every row is one of the two that the toy can say."""
    assert released.dtype == scores.dtype
    assert_veiled(scores, released)
    said = np.round(released.max(axis=-1).astype(float), 3)
    assert set(np.unique(said)) == {0.75, 0.95}
    if toy.profile:
        top = scores.argmax(axis=1)[:, None]
        shares = np.tile(toy.profile, (len(scores), 1))
        np.put_along_axis(shares, top, 0.0, axis=1)
        expected = (1 - said[:, None]) * shares / shares.sum(axis=1, keepdims=True)
        np.put_along_axis(expected, top, said[:, None], axis=1)
        np.testing.assert_allclose(released.astype(float), expected, atol=1e-3)


# --- one class is all that it takes


def test_a_veil_takes_the_mechanism_whole_or_by_name(coin: type[Coin]) -> None:
    assert Veil(coin(2.0)).mechanism == Veil(2.0, "coin").mechanism == coin(2.0)
    assert Veil(2.0, "coin", border=0.7).mechanism == coin(2.0, border=0.7)
    assert Veil(np.float32(2.0), "coin").epsilon == 2.0
    assert repr(Veil(coin(2.0))) == "<Veil coin: epsilon=2.0, border=0.9>"
    with pytest.raises(ValueError, match=r"coin mechanism has no option 'keep'; it has border, profile"):
        Veil(2.0, "coin", keep=2)
    with pytest.raises(ValueError, match=r"A whole mechanism has its options already"):
        Veil(coin(2.0), border=0.7)
    for epsilon in (0, -1, math.nan, "2", True):
        with pytest.raises(ValueError, match=r"(?i)expected .*epsilon.*got"):
            Veil(epsilon, "coin")


@each_coin
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fresh_answers(toy: Coin, dtype: str) -> None:
    scores, veil = sample(4000, dtype), Veil(toy)
    released = veil(scores)
    assert_answers(toy, scores, released)
    assert released.tobytes() != veil(scores).tobytes()
    assert veil(scores[0]).shape == (5,)
    # 4,000 coins: eight standard deviations
    lied = (released.max(axis=1) > 0.85) != (scores.astype(np.float64).max(axis=1) >= toy.border)
    assert abs(lied.mean() - toy.lie) < 8 * math.sqrt(toy.lie * (1 - toy.lie) / len(scores))


@each_coin
def test_answers_from_a_generator(toy: Coin) -> None:
    scores = np.tile(sample(1000), (60, 1))
    first, again, threads = (Veil(toy, rng=np.random.default_rng(1), threads=threads)(scores) for threads in (1, 1, 3))
    assert_answers(toy, scores, first)
    assert first.tobytes() == again.tobytes() == threads.tobytes()
    assert first.tobytes() != Veil(toy, rng=np.random.default_rng(2))(scores).tobytes()
    assert len(scores) > blocks.BLOCK // 5  # more than one block


@each_coin
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_keyed_and_tagged_answers(path: str, toy: Coin, dtype: str) -> None:
    scores, veil = sample(dtype=dtype), Veil(toy, secret=SECRET)
    whole = veil(scores)
    assert_answers(toy, scores, whole)
    assert veil(scores[::-1])[::-1].tobytes() == whole.tobytes()
    assert np.concatenate([veil(row[None]) for row in scores]).tobytes() == whole.tobytes()
    assert Veil(toy, secret=SECRET, threads=3)(scores).tobytes() == whole.tobytes()
    changed = [Veil(toy, secret=SECRET[::-1]), Veil(toy, secret=SECRET, model="m"), Veil(Coin(1.6), secret=SECRET)]
    assert len({veil(scores).tobytes() for veil in [Veil(toy, secret=SECRET), *changed]}) == 4

    tags = [b"%d" % i for i in range(len(scores))]
    tagged = KeyedVeil(veil)(scores, tags)
    assert_answers(toy, scores, tagged)
    assert KeyedVeil(veil)(scores, tags).tobytes() == tagged.tobytes()
    assert len({tagged.tobytes(), whole.tobytes(), KeyedVeil(veil)(scores, tags[::-1]).tobytes()}) == 3
    with pytest.raises(ValueError, match=r"Tags need a secret"):
        KeyedVeil(Veil(toy))(scores, tags)


@each_coin
@pytest.mark.parametrize("source", ["rng", "secret"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_array_library_gets_the_same_answers(toy: Coin, source: str, dtype: str) -> None:
    def veil() -> Veil:
        return Veil(toy, rng=np.random.default_rng(1)) if source == "rng" else Veil(toy, secret=SECRET)

    scores = sample(dtype=dtype)
    expected = veil()(scores)
    for given in (torch.from_numpy(scores), array_api_strict.asarray(scores)):
        released = veil()(given)
        assert type(released) is type(given)
        assert released.dtype == given.dtype
        assert np.from_dlpack(released).tobytes() == expected.tobytes()
    # what numpy does not have: the same answers, rounded
    dyadic = np.tile([[0.5, 0.25, 0.125, 0.0625, 0.0625], [0.9375, 0.0625, 0.0, 0.0, 0.0]], (200, 1))
    coarse = veil()(torch.from_numpy(dyadic).to(torch.bfloat16))
    assert torch.equal(coarse, torch.from_numpy(veil()(dyadic)).to(torch.bfloat16))


@each_coin
def test_bad_rows_are_named(toy: Coin) -> None:
    scores = sample()
    scores[17] = np.nan
    for veil in (Veil(toy), Veil(toy, rng=np.random.default_rng(0)), Veil(toy, secret=SECRET)):
        for given in (scores, torch.from_numpy(scores), array_api_strict.asarray(scores)):
            with pytest.raises(ValueError, match=r"Row 17, column \d: a score is NaN"):
                veil(given)


# --- its promise


def test_the_promise_is_the_mechanisms_own() -> None:
    toy = Coin(0.5)
    for veil in (Veil(toy), Veil(toy, secret=SECRET)):
        assert veil.guarantee == toy.guarantee()
        assert "It is a toy." in str(veil.guarantee)
    assert accounting.query_bound(toy.guarantee(), total=5.0) == 10
    assert accounting.epsilon_after(toy.guarantee(), 7) == 3.5
    # ρ = ε²/2 = 1/8: as many releases as add up to (ε, δ) by its closed form
    allowed = accounting.query_bound(toy.guarantee(), total=5.0, rule="zcdp", delta=1e-6)
    assert allowed == math.floor((math.sqrt(math.log(1e6) + 5) - math.sqrt(math.log(1e6))) ** 2 * 8)
    tight = accounting.tight_epsilon_after(toy.guarantee(), 30, 1e-6)
    assert 0 < tight <= accounting.epsilon_after(toy.guarantee(), 30, "zcdp", 1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_exact_loss_is_epsilon_and_the_answers_show_it(epsilon: float) -> None:
    toy = Coin(epsilon)
    sure, unsure = np.array([0.95, 0.03, 0.02]), np.array([0.5, 0.3, 0.2])
    assert accounting.worst_loss(np.array([sure, unsure, [0.91, 0.0, 0.09]]), toy) == epsilon
    assert toy.loss(sure, np.array([0.03, 0.95, 0.02])) == math.inf
    uniforms = (np.arange(100_000)[:, None] + 0.5) / 100_000
    likely = [np.mean(toy.perturb(np.tile(row, (len(uniforms), 1)), uniforms)[:, 0] > 0.9) for row in (sure, unsure)]
    assert math.log(likely[0] / likely[1]) == pytest.approx(epsilon, abs=2e-3)
    assert math.log((1 - likely[1]) / (1 - likely[0])) == pytest.approx(epsilon, abs=2e-3)


# --- as data


@each_coin
def test_a_saved_veil_answers_as_it_did(coin: type[Coin], toy: Coin, tmp_path: Path) -> None:
    scores, veil = sample(), Veil(toy, secret=SECRET, model="m")
    if toy.profile:
        with pytest.raises(ValueError, match=r"has tables, which \.json cannot hold"):
            veil.save(tmp_path / "veil.json")
        assert leftovers(tmp_path) == []
    for name in ["veil.npz"] if toy.profile else ["veil.json"]:
        veil.save(tmp_path / name)
        loaded = Veil.load(tmp_path / name, secret=SECRET)
        assert loaded.mechanism == toy
        assert loaded.model == "m"
        assert loaded(scores).tobytes() == veil(scores).tobytes()
        assert loaded.stored.summary() == veil.stored.summary()
        assert Veil.load(tmp_path / name).guarantee == toy.guarantee()


def test_what_tells_veils_apart_is_in_their_description() -> None:
    veils = [Veil(Coin(1.0)), Veil(Coin(2.0)), Veil(Coin(1.0, 0.8)), Veil(Coin(1.0, profile=PROFILE)), Veil(1.0)]
    veils += [Veil(Coin(1.0), model="m"), Veil(Coin(1.0), secret=SECRET), Veil(Coin(1.0), secret=SECRET[::-1])]
    described = [json.dumps(dataset.described(veil), sort_keys=True) for veil in veils]
    assert len(set(described)) == len(veils)
    assert not any(form in text for text in described for form in texts(SECRET))


@each_coin
@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_protect_takes_it(toy: Coin, suffix: str, tmp_path: Path) -> None:
    scores, veil = sample(), Veil(toy, secret=SECRET)
    source, target = save_scores(tmp_path / f"scores{suffix}", scores), tmp_path / f"safe{suffix}"
    done = protect(source, target, veil)
    assert (done.rows, done.classes) == (len(scores), 5)
    released = load_scores(target)
    assert_answers(toy, scores, released)
    np.testing.assert_array_equal(released, veil(scores))


def test_the_gateway_takes_its_name_and_options(coin: type[Coin]) -> None:
    table = {"epsilon": 1.5, "mechanism": "coin", "border": 0.8, "onnx": "model.onnx"}
    opened = open_config(config_file.parse({"models": {"digits": table}})).models["digits"]
    veil = opened.keyed_veils(SECRET)["scores"]
    assert veil.mechanism == Coin(1.5, 0.8)
    assert_answers(veil.mechanism, sample(), veil(sample()))
    with pytest.raises(ValueError, match="has no option 'keep'"):
        open_config(config_file.parse({"models": {"digits": {**table, "keep": 2}}}))


@each_coin
def test_the_integrations_take_it(toy: Coin) -> None:
    scores = sample(50)
    logits = torch.tensor(np.log(scores + 1e-9))
    module = VeiledModule(torch.nn.Identity(), toy)
    assert_answers(toy, torch.softmax(logits, -1).numpy(), module(logits).numpy())
    columns = ColumnVeil(toy, "z", "id", secret=SECRET)({"z": scores, "id": np.arange(50)})["z"]
    assert_answers(toy, scores, columns)
    x, y = load_iris(return_X_y=True)
    classifier = VeiledClassifier(LogisticRegression(max_iter=500), toy if not toy.profile else Coin(1.5)).fit(x, y)
    assert set(np.round(classifier.predict_proba(x).max(axis=1), 3)) <= {0.75, 0.95}


# --- nobody else knows which mechanisms there are


MODULES = {f"scoreveil.mechanisms.{name}" for name in ("isotonic", "published", "regions", "per_label", "kernels")}
CLASSES = {"Isotonic", "IsotonicPlan", "Published", "Regions", "PerLabel"}
NAMES = {"isotonic", "published", "per_label"}  # "regions" is an option of a fit too
# where mechanisms are imported or told apart: the types of the options that `Veil` takes, and what is about the paper
KNOWS_MECHANISMS = {"veil.py", "tuning.py", "audit/", "fitting/"}
# where they are called by name: what compares them
KNOWS_NAMES = {"demo.py", "audit/"}


def others(allowed: set[str]) -> Iterator[tuple[str, ast.Module]]:
    """The modules outside of mechanisms/ and of what is allowed."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(("mechanisms/", *allowed)):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def imported(node: ast.AST) -> Iterator[str]:
    """The modules that an import may bring."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield str(node.module)
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_of_a_mechanism(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in MODULES)


def test_mechanisms_are_imported_and_told_apart_nowhere_else() -> None:
    found = []
    for name, tree in others(KNOWS_MECHANISMS):
        for node in ast.walk(tree):
            if any(map(is_of_a_mechanism, imported(node))):
                found.append(f"{name}:{node.lineno}: imports a mechanism")
            is_test = isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass")
            if is_test and CLASSES & set(re.findall(r"\w+", ast.unparse(node))):
                found.append(f"{name}:{node.lineno}: asks which mechanism it is")
    assert not found, "\n".join(found)


def test_mechanisms_are_called_by_name_nowhere_else() -> None:
    found = [
        f"{name}:{node.lineno}: {node.value!r}"
        for name, tree in others(KNOWS_NAMES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]
    assert not found, "\n".join(found)


def test_the_search_finds_what_it_looks_for() -> None:
    known = dict(others(set()))
    assert len(known) > 50
    assert any(is_of_a_mechanism(each) for node in ast.walk(known["veil.py"]) for each in imported(node))
    defined = ast.parse((SOURCE / "mechanisms" / "isotonic.py").read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.Constant) and node.value in NAMES for node in ast.walk(defined))
    assert set(mechanism.names()) == NAMES | {"regions"}
    assert {mechanism.named(name).__name__ for name in NAMES} <= CLASSES


# --- travelling


VALUES = {
    "coin": Coin(1.5, 0.8, PROFILE),
    "isotonic": Isotonic(1.5),
    "keep 2": Isotonic(1.5, keep=2, levels=16),
    "reference": Isotonic(1.5, keep=2, reference=sample(200, seed=1)),
    "published": Published(1.5, "printed", m=3),
}
each_value = pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
KEYS = {"text": SECRET, "binary": bytes(range(250, 256)) + bytes(range(26)), "short": b"sixteen bytes !!"}


def texts(secret: bytes) -> list[str]:
    """The forms in which a text could show it."""
    encoded = [base64.b64encode(secret), base64.urlsafe_b64encode(secret), base64.b32encode(secret)]
    shown = [secret.hex(), secret.hex().upper(), secret.decode("latin-1"), repr(secret)[2:-1], str(list(secret))[1:-1]]
    return shown + [form.decode().rstrip("=") for form in encoded]


def forms(secret: bytes) -> list[bytes]:
    written = [text.encode(coding) for text in texts(secret) for coding in ("utf-8", "utf-16-le", "raw-unicode-escape")]
    return [secret, secret[::-1], secret[:12], secret[-12:], *written]


@each_value
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_mechanisms_and_veils_without_a_secret_are_pickled(value: Mechanism, protocol: int) -> None:
    scores, uniforms = sample(), np.random.default_rng(0).random((400, value.draws(5)))
    there = pickle.loads(pickle.dumps(value, protocol))
    assert type(there) is type(value)
    assert there.settings() == value.settings()
    assert there.perturb(scores, uniforms).tobytes() == value.perturb(scores, uniforms).tobytes()
    veil = pickle.loads(pickle.dumps(Veil(value, model="m", threads=2), protocol))
    assert (veil.model, veil.threads, veil.is_keyed) == ("m", 2, False)
    assert np.array_equal(veil(scores).argmax(axis=1), scores.argmax(axis=1))
    seeded = Veil(value, rng=np.random.default_rng(3))
    there = pickle.loads(pickle.dumps(seeded, protocol))
    assert there(scores).tobytes() == seeded(scores).tobytes()


@each_value
@pytest.mark.parametrize("key", KEYS)
def test_a_secret_is_never_in_a_pickle(value: Mechanism, key: str, tmp_path: Path) -> None:
    secret, scores = KEYS[key], sample(20)
    file = tmp_path / "secret"
    file.write_bytes(secret)
    for given in (secret, file, str(file)):
        veil = Veil(value, secret=given)
        answers = veil(scores).tobytes()
        pickles = [pickle.dumps(veil, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        pickles.append(cloudpickle.dumps(veil))
        for content in pickles:
            assert not any(form in content for form in forms(secret))
            assert pickle.loads(content)(scores).tobytes() == answers  # here it is at hand
        assert copy.deepcopy(veil)(scores).tobytes() == answers
    # what it looks for is found where it is
    assert any(form in pickle.dumps({"secret": secret.hex()}) for form in forms(secret))


ELSEWHERE = """
import hashlib, json, pickle, sys
import numpy as np
said, scores = {}, np.load(sys.argv[1])
for path in sys.argv[2:]:
    veil = pickle.load(open(path, "rb"))
    assert repr(veil)
    try:
        said[path.rpartition("/")[2]] = hashlib.sha256(veil(scores).tobytes()).hexdigest()
    except ValueError as error:
        said[path.rpartition("/")[2]] = str(error)
print(json.dumps(said))
"""


def elsewhere(folder: Path, named: Path | None) -> dict[str, str]:
    """What another process answers with each pickled veil, or its refusal."""
    environment = {name: value for name, value in os.environ.items() if name != "SCOREVEIL_SECRET_FILE"}
    if named is not None:
        environment["SCOREVEIL_SECRET_FILE"] = str(named)
    return json.loads(run(ELSEWHERE, folder / "scores.npy", *sorted(folder.glob("*.pickle")), env=environment))


def run(program: str, *arguments: object, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def pickled(tmp_path: Path) -> dict[str, str]:
    """Veils in files, their secret in others; and what each of them answers here."""
    secret, scores, here = KEYS["text"], sample(200), {}
    (tmp_path / "secret").write_bytes(secret + b"\n")  # as an editor leaves it
    (tmp_path / "another").write_bytes(KEYS["binary"])
    (tmp_path / "replaced").write_bytes(secret)
    np.save(tmp_path / "scores.npy", scores)
    for name, value in VALUES.items():
        if name != "coin":  # which is defined in this file
            for made, given in (("bytes", secret), ("path", tmp_path / "secret"), ("replaced", tmp_path / "replaced")):
                veil = Veil(value, secret=given)
                (tmp_path / f"{name} {made}.pickle").write_bytes(pickle.dumps(veil))
                here[f"{name} {made}.pickle"] = hashlib.sha256(veil(scores).tobytes()).hexdigest()
    (tmp_path / "replaced").write_bytes(KEYS["binary"])
    return here


def test_elsewhere_the_secret_file_that_is_named_gives_the_same_bytes(pickled: dict[str, str], tmp_path: Path) -> None:
    assert elsewhere(tmp_path, tmp_path / "secret") == pickled


def test_elsewhere_the_file_that_a_secret_came_from_is_enough(pickled: dict[str, str], tmp_path: Path) -> None:
    for name, said in elsewhere(tmp_path, None).items():
        if "path" in name:
            assert said == pickled[name]
        elif "bytes" in name:
            assert re.fullmatch(
                r"The secret .* does not travel with it: name its file in SCOREVEIL_SECRET_FILE .*", said
            )
        else:
            assert said.startswith(f"The secret file {tmp_path / 'replaced'} holds another secret than")


def test_elsewhere_a_file_with_another_secret_or_none_is_refused(pickled: dict[str, str], tmp_path: Path) -> None:
    for said in elsewhere(tmp_path, tmp_path / "another").values():
        assert said.startswith(f"The secret file {tmp_path / 'another'} holds another secret than")
    for said in elsewhere(tmp_path, tmp_path / "missing").values():
        assert said == f"There is no secret file {tmp_path / 'missing'}."


# --- no thread in a constructor, and the same bytes from the first call on


BEGUN = """
import json, sys, threading
from hashlib import sha256
if sys.argv[1] == "without numba":
    sys.modules["numba"] = None
elif sys.argv[1] == "numba is broken":
    sys.modules["llvmlite"] = None
import numpy as np
from scoreveil import Veil
from scoreveil.mechanisms import loading

rows = np.random.default_rng(0).dirichlet(np.full(5, 0.3), size=3000)
options = [{}, {"keep": 3}, {"keep": "all"}, {"keep": 2, "reference": rows[:200]}, {"mechanism": "published"}]
kinds = [rows.astype(dtype) for dtype in ("float16", "float32", "float64")]

def seeded():
    return [Veil(1.0, **each, rng=np.random.default_rng(7)) for each in options]

def digest(veils):
    return sha256(b"".join(veil(scores).tobytes() for veil in veils for scores in kinds)).hexdigest()

before = threading.enumerate()
veils = seeded()
keyed = [Veil(1.0, **each, secret=bytes(16)) for each in options]
fresh = [Veil(1.0, **each) for each in options]
assert threading.enumerate() == before, "a constructor started a thread"
first = digest(veils)
assert threading.enumerate() == before, "a seeded veil started a thread"
assert sys.modules.get("numba") is None, "a seeded veil loads numba"
sticky = digest(keyed)
ready = loading.wait()
assert digest(seeded()) == first, "later answers of a seeded veil differ"
assert digest(keyed) == sticky, "later answers of a keyed veil differ"
for veil in fresh:
    for scores in kinds:
        assert np.array_equal(veil(scores).argmax(axis=1), scores.argmax(axis=1))
print(json.dumps({"first": first, "sticky": sticky, "kernels": ready}))
"""


def test_no_constructor_starts_a_thread_and_seeded_answers_do_not_depend_on_numba() -> None:
    said = {how: json.loads(run(BEGUN, how)) for how in ("with numba", "without numba", "numba is broken")}
    assert [each.pop("kernels") for each in said.values()] == [True, False, False]
    assert said["with numba"] == said["without numba"] == said["numba is broken"]


def test_the_package_is_imported_where_processes_cannot_fork() -> None:
    program = """
import os
del os.fork, os.register_at_fork
import scoreveil
print(scoreveil.Veil(1.0)([0.2, 0.8]).argmax())
"""
    assert run(program).strip() == "1"


# --- the message of a keyed draw


ROWS = np.array([[0.625, 0.3125, 0.0625, 0.0], [0.125, 0.0625, 0.8125, 2.0**-39], [0.25, 0.25, 0.25, 0.25]])
# the kept classes; the cell; 0xff for scores from 1/8 on, 0xfe from 1/128 on, … 0xf6 below 2^-35; and whether tagged
LAYOUT = {
    # on a grid of 31 steps the top scores are nearest to 19, 25 and 8
    "keep 1": (
        Isotonic(1.0),
        "00000000 13 ff ff fe f6 00",
        "02000000 19 ff fe ff f6 00",
        "00000000 08 ff ff ff ff 00",
    ),
    # the next ones are rounded down
    "keep 2": (
        Isotonic(1.0, keep=2),
        "00000000 01000000 13 09 ff ff fe f6 00",
        "02000000 00000000 19 03 ff fe ff f6 00",
        "00000000 01000000 08 07 ff ff ff ff 00",
    ),
    # the scores themselves, to 2^-20, ascending
    "published": (
        Published(1.0),
        "03000000 02000000 01000000 00000000"
        "0000000000000000 000000000000b03f 000000000000d43f 000000000000e43f ff ff fe f6 00",
        "03000000 01000000 00000000 02000000"
        "0000000000000000 000000000000b03f 000000000000c03f 000000000000ea3f ff fe ff f6 00",
        "03000000 02000000 01000000 00000000"
        "000000000000d03f 000000000000d03f 000000000000d03f 000000000000d03f ff ff ff ff 00",
    ),
    "coin": (
        Coin(1.0, border=0.8),
        "00000000 00 ff ff fe f6 00",
        "02000000 01 ff fe ff f6 00",
        "00000000 00 ff ff ff ff 00",
    ),
}


@pytest.mark.parametrize("name", LAYOUT)
def test_a_message_is_these_bytes(name: str) -> None:
    value, expected = LAYOUT[name][0].keyed(), [bytes.fromhex(text) for text in LAYOUT[name][1:]]
    assert [row.tobytes() for row in messages(ROWS, *value.cells(ROWS))] == expected
    tags = np.arange(96, dtype=np.uint8).reshape(3, 32)
    tagged = messages(ROWS, *value.cells(ROWS), tags)
    magnitudes = ROWS.shape[1] + 1  # and the last byte: a tag takes their place
    assert [row.tobytes() for row in tagged] == [
        plain[:-magnitudes] + tag.tobytes() + b"\1" for plain, tag in zip(expected, tags, strict=True)
    ]


class Recorder(KeyedDraws):
    """Keyed draws that remember what they were asked."""

    def __init__(self) -> None:
        super().__init__(SECRET, b"context")
        self.asked: list[bytes] = []

    def words(self, messages: np.ndarray, blocks: int) -> np.ndarray:
        self.asked += [row.tobytes() for row in messages]
        return super().words(messages, blocks)


@pytest.mark.parametrize("with_tags", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("classes", [2, 4, 70])
def test_kernel_and_numpy_make_the_same_message(
    classes: int, dtype: str, with_tags: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(classes)
    rows = np.concatenate([rng.dirichlet(np.full(classes, a), size=300) for a in (0.02, 0.3, 3.0)])
    rows = np.concatenate([rows, np.eye(classes), -0.0 * rows[:1] + np.eye(classes)[:1], rows[:1] * 0 + 1 / classes])
    rows = np.ascontiguousarray(rows.astype(dtype))
    tags = rng.integers(0, 256, size=(len(rows), 32), dtype=np.uint8) if with_tags else None
    value = Isotonic(1.0).keyed()

    assert loading.wait()
    assert loading.keyed_kernel(value, classes) is not None
    compiled, plain = Recorder(), Recorder()
    answers = blocks.keyed(value, rows, compiled, tags)
    monkeypatch.setattr(loading, "keyed_kernel", lambda mechanism, classes: None)
    assert blocks.keyed(value, rows, plain, tags).tobytes() == answers.tobytes()
    assert compiled.asked == plain.asked == [row.tobytes() for row in messages(rows, *value.cells(rows), tags)]
    assert len(plain.asked) == len(rows)
