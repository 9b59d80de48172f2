"""A saved veil answers as it did, holds neither the secret nor a score, runs no code, and is refused when damaged."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreveil import Veil, fit
from scoreveil.mechanisms.mechanism import Mechanism

SECRET = b"a secret that is never written!!"
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "isotonic": {},
    "keep 3": {"keep": 3},
    "keep all": {"keep": "all"},
    "published": {"mechanism": "published"},
    "printed": {"mechanism": "published", "reading": "printed"},
    "model": {"model": "ResNet, version 2 — “ε”"},
    "fitted": {"fitted": None},
    "fitted with ε": {"fitted": 1.25, "model": "m"},
    "reference": {"reference": True, "keep": 2},
    "reference and keep 3": {"reference": True, "keep": 3, "model": "m"},
    "reference and keep all": {"reference": True, "keep": "all"},
}


def sample(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(5, 0.4), size=n)


def make(name: str, **more: Any) -> Veil:
    options = dict(CONFIGURATIONS[name])
    if "fitted" in options:
        return Veil(mechanism(options.pop("fitted")), **options, **more)
    if options.pop("reference", False):
        options["reference"] = sample(200, seed=1)
    return Veil(1.25, **options, **more)


@functools.cache
def mechanism(epsilon: float | None) -> Mechanism:
    """A fitted one."""
    rng = np.random.default_rng(2)
    scores = sample(1200, seed=2)
    labels = np.array([rng.choice(5, p=row) for row in scores])
    return fit(scores[:600], labels[:600], scores[600:], labels[600:], epsilon=epsilon, rng=rng).mechanism


def file(name: str, folder: Path) -> Path:
    """The file that such a veil is saved as."""
    return folder / f"veil.{'npz' if 'reference' in name else 'json'}"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_loaded_veil_gives_the_same_answers_with_the_same_secret(name: str, tmp_path: Path) -> None:
    scores = sample(300)
    veil, path = make(name, secret=SECRET), file(name, tmp_path)
    veil.save(path)
    for given_path in (path, str(path)):
        loaded = Veil.load(given_path, secret=SECRET)
        assert loaded(scores).tobytes() == veil(scores).tobytes()
        assert loaded.epsilon == (math.inf if name == "fitted" else 1.25)
        assert loaded.guarantee == veil.guarantee
        assert repr(loaded) == repr(veil)
    other = Veil.load(path, secret=b"another secret of enough bytes")
    is_same = other(scores).tobytes() == veil(scores).tobytes()
    assert is_same == (name == "fitted"), "without ε nothing is drawn"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_loaded_veil_without_a_secret_draws_afresh(name: str, tmp_path: Path) -> None:
    scores = sample(300)
    path = file(name, tmp_path)
    make(name, secret=SECRET).save(path)
    loaded = Veil.load(path)
    released = loaded(scores)
    assert np.array_equal(released.argmax(axis=1), scores.argmax(axis=1))
    if name != "printed":  # nearly deterministic by construction
        assert (released.tobytes() == loaded(scores).tobytes()) == (name == "fitted")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_was_loaded_saves_to_the_same_again(name: str, tmp_path: Path) -> None:
    scores = sample(100)
    path = file(name, tmp_path)
    make(name).save(path)
    again = path.with_stem("again")
    Veil.load(path).save(again)
    assert Veil.load(again, secret=SECRET)(scores).tobytes() == make(name, secret=SECRET)(scores).tobytes()


def test_saving_over_an_older_file_replaces_it(tmp_path: Path) -> None:
    Veil(1.0).save(tmp_path / "veil.json")
    Veil(2.0, keep="all").save(tmp_path / "veil.json")
    assert Veil.load(tmp_path / "veil.json").epsilon == 2.0


def test_threads_are_taken_from_the_caller(tmp_path: Path) -> None:
    Veil(1.0, threads=7).save(tmp_path / "veil.json")
    scores = np.tile(sample(100), (50, 1))
    one, many = (Veil.load(tmp_path / "veil.json", secret=SECRET, threads=threads)(scores) for threads in (1, 3))
    assert one.tobytes() == many.tobytes()
    with pytest.raises(ValueError, match=r"(?i)expected threads"):
        Veil.load(tmp_path / "veil.json", threads=0)
    with pytest.raises(ValueError, match=r"(?i)expected .*secret"):
        Veil.load(tmp_path / "veil.json", secret=b"short")


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_secret_is_never_in_the_file(name: str, tmp_path: Path) -> None:
    path = file(name, tmp_path)
    make(name, secret=SECRET).save(path)
    # what is compressed is looked through unpacked
    contents = [path.read_bytes()]
    if path.suffix == ".npz":
        with np.load(path) as archive:
            contents += [archive[entry].tobytes() for entry in archive.files]
            contents += [str(archive[entry]).encode() for entry in archive.files]
    for content in contents:
        for form in (SECRET, SECRET.hex().encode(), SECRET.decode().encode("utf-32-le")):
            assert form not in content


def test_scores_of_the_reference_are_never_in_the_file(tmp_path: Path) -> None:
    reference = sample(200, seed=1)
    for keep in (3, "all"):
        Veil(1.0, keep=keep, reference=reference).save(tmp_path / "veil.npz")
        with np.load(tmp_path / "veil.npz") as archive:
            stored = np.concatenate([archive[e].ravel() for e in archive.files if archive[e].dtype.kind == "f"])
        assert not np.isin(stored, reference).any()
        assert stored.size < reference.size * 20


def test_scores_that_were_veiled_are_never_in_the_file(tmp_path: Path) -> None:
    scores = np.array([[0.123456789, 0.3, 0.2, 0.376543211, 0.0]])
    for name in CONFIGURATIONS:
        veil = make(name, secret=SECRET)
        veil(scores)
        path = file(name, tmp_path)
        veil.save(path)
        content = path.read_bytes()
        assert scores[:, :1].tobytes() not in content
        assert b"0.1234" not in content


# --- no code is run


class Exploit:
    """Unpickling this makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, np.ndarray]:
    """The entries of a good file with a reference."""
    Veil(1.0, keep=2, reference=sample(60)).save(tmp_path / "good.npz")
    with np.load(tmp_path / "good.npz") as archive:
        return {entry: archive[entry] for entry in archive.files}


@pytest.mark.parametrize("entry", ["veil", "table_of_class", "measure", "profile"])
def test_an_object_array_is_refused_unread(saved: dict[str, np.ndarray], entry: str, tmp_path: Path) -> None:
    assert entry in saved
    exploited = tmp_path / "exploited"
    hostile = np.empty(1, object)
    hostile[0] = Exploit(exploited)
    np.savez(tmp_path / "hostile.npz", **saved | {entry: hostile})
    with pytest.raises(ValueError):
        Veil.load(tmp_path / "hostile.npz")
    assert not exploited.exists()


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_a_pickle_is_refused_unread(suffix: str, tmp_path: Path) -> None:
    exploited = tmp_path / "exploited"
    hostile = tmp_path / f"hostile{suffix}"
    hostile.write_bytes(pickle.dumps(Exploit(exploited)))
    with pytest.raises(ValueError):
        Veil.load(hostile)
    assert not exploited.exists()


# --- damaged and foreign files


Settings = dict[str, Any]


def without(settings: Settings, key: str) -> Settings:
    assert key in settings
    return {k: v for k, v in settings.items() if k != key}


def with_other(settings: Settings, **changes: Any) -> Settings:
    assert changes.keys() <= settings.keys()
    return settings | changes


# what was saved for (isotonic, published) -> the text of a damaged file
DAMAGED: dict[str, Callable[[Settings, Settings], Any]] = {
    "a list": lambda isotonic, published: [isotonic],
    "null": lambda isotonic, published: None,
    "a number": lambda isotonic, published: 3,
    "a string": lambda isotonic, published: "veil",
    "an empty object": lambda isotonic, published: {},
    "a later format": lambda isotonic, published: with_other(isotonic, format=isotonic["format"] + 1),
    "no format": lambda isotonic, published: without(isotonic, "format"),
    "no mechanism": lambda isotonic, published: without(isotonic, "mechanism"),
    "no epsilon": lambda isotonic, published: without(isotonic, "epsilon"),
    "no model": lambda isotonic, published: without(isotonic, "model"),
    "an unknown key": lambda isotonic, published: isotonic | {"surprise": 1},
    "an unknown mechanism": lambda isotonic, published: with_other(isotonic, mechanism="other"),
    "an unknown one like the published": lambda isotonic, published: with_other(published, mechanism="other"),
    "the other mechanism": lambda isotonic, published: with_other(isotonic, mechanism="published"),
    "an unknown reading": lambda isotonic, published: with_other(published, reading="other"),
    "epsilon 0": lambda isotonic, published: with_other(isotonic, epsilon=0),
    "epsilon NaN": lambda isotonic, published: with_other(isotonic, epsilon=float("nan")),
    "epsilon infinite": lambda isotonic, published: with_other(isotonic, epsilon=float("inf")),
    "epsilon null": lambda isotonic, published: with_other(isotonic, epsilon=None),
    "epsilon a string": lambda isotonic, published: with_other(isotonic, epsilon="1"),
    "epsilon a truth": lambda isotonic, published: with_other(isotonic, epsilon=True),
    "epsilon a list": lambda isotonic, published: with_other(isotonic, epsilon=[1]),
    "keep 0": lambda isotonic, published: with_other(isotonic, keep=0),
    "keep some": lambda isotonic, published: with_other(isotonic, keep="some"),
    "levels 1": lambda isotonic, published: with_other(isotonic, levels=1),
    "m 0": lambda isotonic, published: with_other(published, m=0),
}


@pytest.fixture
def good(tmp_path: Path) -> tuple[Settings, Settings]:
    """The settings in a good file of each mechanism, as they are written."""
    found = []
    for veil in (Veil(1.0, keep=2), Veil(1.0, "published")):
        veil.save(tmp_path / "good.json")
        found.append(json.loads((tmp_path / "good.json").read_text()))
    return found[0], found[1]


def test_what_is_damaged_below_is_good_before(good: tuple[Settings, Settings], tmp_path: Path) -> None:
    for settings in good:
        (tmp_path / "veil.json").write_text(json.dumps(settings))
        assert Veil.load(tmp_path / "veil.json").epsilon == 1.0


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_json_file_is_refused(case: str, good: tuple[Settings, Settings], tmp_path: Path) -> None:
    (tmp_path / "veil.json").write_text(json.dumps(DAMAGED[case](*good)))
    with pytest.raises(ValueError, match=r"is damaged, or was not written by Veil\.save"):
        Veil.load(tmp_path / "veil.json")


def test_a_fitted_map_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "veil.json"
    make("fitted with ε").save(path)
    good = json.loads(path.read_text())
    table = good["table"]
    changes: dict[str, Any] = {
        "epsilon": 0.5,
        "announced": [[each / 2 for each in good["announced"][0]]],
        "table": [[table[0][0] + 1, *table[0][1:]], *table[1:]],
        "counts": [[count + 16 for count in row] for row in good["counts"]],
        "map": good["map"][::-1],
        "evidence": {**good["evidence"], "records": [10**6, 10**6]},
    }
    for key, value in changes.items():
        path.write_text(json.dumps(with_other(good, **{key: value})))
        if value != good[key]:
            with pytest.raises(ValueError):
                Veil.load(path)
    path.write_text(json.dumps(good))
    assert Veil.load(path).epsilon == 1.25


@pytest.mark.parametrize("left", [0, 1, 2, 40, -2, -10])
def test_a_truncated_json_file_is_refused(left: int, good: tuple[Settings, Settings], tmp_path: Path) -> None:
    (tmp_path / "veil.json").write_text(json.dumps(good[0])[:left])
    with pytest.raises(ValueError, match=r"is damaged, or was not written by Veil\.save"):
        Veil.load(tmp_path / "veil.json")


def test_a_json_file_of_other_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "veil.json").write_bytes(b"\xff\xfe\x00\x80" * 20)
    with pytest.raises(ValueError):
        Veil.load(tmp_path / "veil.json")


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_settings_in_an_npz_file_are_refused(
    case: str, good: tuple[Settings, Settings], saved: dict[str, np.ndarray], tmp_path: Path
) -> None:
    damaged = DAMAGED[case](json.loads(str(saved["veil"])), good[1])
    np.savez(tmp_path / "veil.npz", **saved | {"veil": np.array(json.dumps(damaged))})
    with pytest.raises(ValueError, match=r"is damaged, or was not written by Veil\.save"):
        Veil.load(tmp_path / "veil.npz")


@pytest.mark.parametrize("left", [0, 1, 4, 100, 0.3, 0.5, 0.9, -1, -10, -30])
def test_a_truncated_npz_file_is_refused(saved: dict[str, np.ndarray], left: float, tmp_path: Path) -> None:
    whole = (tmp_path / "good.npz").read_bytes()
    cut = int(left * len(whole)) if isinstance(left, float) else left
    (tmp_path / "veil.npz").write_bytes(whole[:cut])
    with pytest.raises(ValueError, match=r"is damaged, or was not written by Veil\.save"):
        Veil.load(tmp_path / "veil.npz")


def test_flipped_bytes_in_an_npz_file_are_refused_or_change_nothing(
    saved: dict[str, np.ndarray], tmp_path: Path
) -> None:
    whole = (tmp_path / "good.npz").read_bytes()
    scores = sample(50)
    answers = Veil.load(tmp_path / "good.npz", secret=SECRET)(scores)
    refused = 0
    for where in range(0, len(whole), 13):
        damaged = bytearray(whole)
        damaged[where] ^= 0xFF
        (tmp_path / "veil.npz").write_bytes(damaged)
        try:
            loaded = Veil.load(tmp_path / "veil.npz", secret=SECRET)
        except ValueError:
            refused += 1
        else:
            assert np.array_equal(loaded(scores), answers), where
    assert refused > len(whole) / 13 / 2


def foreign_files() -> dict[str, bytes]:
    array, archive = io.BytesIO(), io.BytesIO()
    np.save(array, np.ones(3))
    np.savez(archive, weights=np.ones(3))
    return {
        "text": b"hello world",
        "one array": array.getvalue(),
        "other arrays": archive.getvalue(),
        "json": b'{"format": 1}',
    }


@pytest.mark.parametrize("case", foreign_files())
def test_a_foreign_npz_file_is_refused(case: str, tmp_path: Path) -> None:
    (tmp_path / "veil.npz").write_bytes(foreign_files()[case])
    with pytest.raises(ValueError):
        Veil.load(tmp_path / "veil.npz")


@pytest.mark.parametrize("missing", ["veil", "table_of_class", "measure", "profile"])
def test_an_npz_file_that_lost_a_part_of_its_reference_is_refused(
    saved: dict[str, np.ndarray], missing: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "veil.npz", **{entry: array for entry, array in saved.items() if entry != missing})
    with pytest.raises(ValueError):
        Veil.load(tmp_path / "veil.npz")


TAMPERED = {
    "measure with NaN": ("measure", lambda m: np.where(np.arange(m.shape[-1]) == 3, np.nan, m)),
    "measure negative": ("measure", lambda m: -m),
    "measure nil": ("measure", lambda m: m * 0),
    "measure of text": ("measure", lambda m: m.astype(str)),
    "measure complex": ("measure", lambda m: m.astype(complex)),
    "measure of other levels": ("measure", lambda m: m[..., :5] / m[..., :5].sum(axis=-1, keepdims=True)),
    "measure of fewer kept classes": ("measure", lambda m: m[:, :1]),
    "measure of two dimensions": ("measure", lambda m: m[0]),
    "table out of range": ("table_of_class", lambda t: t + 99),
    "table negative": ("table_of_class", lambda t: t - 99),
    "table of fractions": ("table_of_class", lambda t: t + 0.5),
    "table too short": ("table_of_class", lambda t: t[:2]),
    "profile with NaN": ("profile", lambda p: p * np.nan),
    "profile negative": ("profile", lambda p: -p),
    "profile too short": ("profile", lambda p: p[:, :2]),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_reference_that_was_tampered_with_is_refused_before_it_answers(
    saved: dict[str, np.ndarray], case: str, tmp_path: Path
) -> None:
    entry, tamper = TAMPERED[case]
    np.savez(tmp_path / "veil.npz", **saved | {entry: tamper(saved[entry])})
    with pytest.raises(ValueError):
        Veil.load(tmp_path / "veil.npz")(sample(3))


def test_a_reference_needs_npz_all_else_json_and_other_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has tables, which \.json cannot hold; save it as veil\.npz"):
        make("reference").save(tmp_path / "veil.json")
    for name in ("veil", "veil.txt", "veil.pkl", "veil.npz"):
        with pytest.raises(ValueError, match=rf"This veil is saved as veil\.json, got {re.escape(name)}\."):
            Veil(1.0).save(tmp_path / name)
    with pytest.raises(ValueError, match=r"This veil is saved as veil\.npz, got veil\.txt\."):
        make("reference").save(tmp_path / "veil.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    for name in ("veil.json", "veil.npz"):
        with pytest.raises(FileNotFoundError):
            Veil.load(tmp_path / name)
