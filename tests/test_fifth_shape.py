"""A shape is one class: one that only this file knows goes everywhere, and nobody else has heard of it."""

import asyncio
import pickle
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import scoreveil
from scoreveil import Veil, audit, files, fit, shapes
from scoreveil.cli import main
from scoreveil.files import BadRows, Cleaning
from scoreveil.gateway import config_file, startup_checks
from scoreveil.gateway.config import Limits
from scoreveil.gateway.ledger_link import load_keys
from scoreveil.gateway.metrics import Metrics, ModelMetrics
from scoreveil.gateway.opened import load_model, open_config
from scoreveil.gateway.served import ServedModel, open_source
from scoreveil.integrations.records import RecordVeil
from scoreveil.keyed import KeyedVeil
from scoreveil.shapes import Shape, shape
from shaped_models import two_sides

SECRET = b"a secret of the tests"


@dataclass(frozen=True)
class Percent(Shape, name="percent"):
    """Scores of all classes, (n, k), that sum to a hundred."""

    words = "An answer is one release, in percent."

    def check_layout(self, layout: Sequence[int]) -> None:
        if len(layout) not in (1, 2) or layout[-1] < 2:
            raise ValueError(f"Expected percentages, (n, k), got shape {tuple(layout)}.")

    def vectors(self, scores: np.ndarray) -> np.ndarray:
        return np.atleast_2d(scores)[:, None, :] / 100

    def restored(self, veiled: np.ndarray, like: np.ndarray) -> np.ndarray:
        return (100 * veiled).astype(like.dtype).reshape(like.shape)


@pytest.fixture(scope="module", autouse=True)
def named() -> Iterator[None]:
    yield
    del shape._named["percent"]


@pytest.fixture(scope="module")
def records() -> tuple[np.ndarray, ...]:
    others, labels, members, member_labels = two_sides(3, records=1500)
    return 100 * others, labels, 100 * members, member_labels


@pytest.fixture(scope="module")
def fitted(records: tuple[np.ndarray, ...]) -> Veil:
    return fit(*records, shape=Percent(), rng=np.random.default_rng(0))


def is_percent(veiled: np.ndarray, raw: np.ndarray) -> bool:
    same = (veiled.argmax(axis=-1) == raw.argmax(axis=-1)).all()
    return bool(same and np.allclose(veiled.sum(axis=-1), 100) and not np.allclose(veiled, raw))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_veil_takes_it_and_refuses_what_is_not_of_it(records: tuple[np.ndarray, ...], dtype: str) -> None:
    scores, veil = records[0].astype(dtype), Veil(2.0, shape=Percent(), secret=SECRET)
    veiled = veil(scores)
    assert (veiled.dtype, veiled.shape) == (scores.dtype, scores.shape)
    assert is_percent(veiled, scores)
    assert is_percent(veil(scores[0]), scores[0])
    assert veil.releases(scores) == 1
    assert veil.guarantee.limits[-1] == Percent.words
    outcomes = KeyedVeil(veil).outcomes(scores[:9], [b"%d" % i for i in range(9)])
    assert is_percent(KeyedVeil(veil).answers(scores[:9], outcomes), scores[:9])
    with pytest.raises(ValueError, match=r"^Row 7: the scores sum to less than 1"):
        veil(np.vstack([scores[:7], scores[7:8] / 2]))
    with pytest.raises(ValueError, match=r"Expected percentages, \(n, k\), got shape \(9, 1\)"):
        veil(scores[:9, :1])
    assert is_percent(RecordVeil(veil)(scores[:9], [np.arange(9.0)[:, None]]), scores[:9])


def test_it_is_saved_with_its_veil(tmp_path: Path, records: tuple[np.ndarray, ...]) -> None:
    veil = Veil(2.0, shape=Percent(), secret=SECRET)
    veil.save(tmp_path / "veil.json")
    again = Veil.load(tmp_path / "veil.json", secret=SECRET)
    assert again.shape == Percent() == pickle.loads(pickle.dumps(veil)).shape
    np.testing.assert_array_equal(again(records[0]), veil(records[0]))
    assert repr(veil).endswith("Percent(), keyed>")


def test_files_are_protected(tmp_path: Path, records: tuple[np.ndarray, ...]) -> None:
    scores, veil = records[0][:500].copy(), Veil(2.0, shape=Percent(), secret=SECRET)

    def protected(**options: Any) -> tuple[Any, np.ndarray]:
        pd.DataFrame(scores, columns=["a", "b", "c"]).to_csv(tmp_path / "in.csv", index=False)
        done = files.protect(tmp_path / "in.csv", tmp_path / "out.csv", veil, force=True, cleaning=Cleaning(**options))
        return done, pd.read_csv(tmp_path / "out.csv").to_numpy()

    done, veiled = protected()
    assert (done.rows, done.classes, done.releases) == (500, 3, 1)
    assert is_percent(veiled, scores)
    scores[400] /= 2
    with pytest.raises(BadRows, match="row 400: the scores sum to less than 1"):
        protected()
    done, veiled = protected(on_bad_row="skip")
    assert done.bad == [(400, "the scores sum to less than 1, by over 0.001")]
    assert is_percent(veiled, np.delete(scores, 400, axis=0))


def test_a_veil_is_fitted_as_on_the_vectors(records: tuple[np.ndarray, ...], fitted: Veil) -> None:
    others, labels, members, member_labels = records
    plain = fit(others / 100, labels, members / 100, member_labels, rng=np.random.default_rng(0))
    assert fitted.guarantee.advantage == plain.guarantee.advantage
    assert is_percent(fitted(others), others)
    np.testing.assert_allclose(fitted(others), 100 * plain(others / 100))
    with pytest.raises(ValueError, match="nonmembers: Row 0: the scores sum to less than 1"):
        fit(others / 2, labels, members, member_labels, shape=Percent())


class Asked:
    """One question of three records, as the gateway reads it."""

    rows, asked = 3, ["scores"]

    def arrays(self) -> dict[str, np.ndarray]:
        return {"x": np.arange(12, dtype=np.float32).reshape(3, 4)}

    def records(self) -> list[bytes]:
        return [b"a", b"b", b"c"]


def test_a_gateway_serves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fitted: Veil) -> None:
    fitted.save(tmp_path / "veil.json")
    (tmp_path / "percent_model.py").write_text(
        "import numpy as np\n\n\ndef factory():\n"
        "    return lambda x: np.tile([[60.0, 30.0, 10.0]], (len(x), 1)).astype(x.dtype), 4\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    table = {"python": "percent_model:factory", "veil": "veil.json"}
    opened = open_config(config_file.parse({"models": {"m": table}}, tmp_path))
    assert any("percent" in line for line in startup_checks.here(opened))
    model, keys = load_model(opened.models["m"]), load_keys(opened)
    served = ServedModel(model, open_source(model, Limits()), keys, Limits(), ModelMetrics(Metrics(), "m"))
    query: Any = Asked()

    async def answered() -> np.ndarray:
        scores, _ = await served.ask(query)
        return (await served.release(scores, query, None, None))["scores"]

    assert is_percent(asyncio.run(answered()), np.tile([[60.0, 30.0, 10.0]], (3, 1)))


def test_a_gateway_refuses_a_model_whose_scores_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Veil(2.0, shape=Percent()).save(tmp_path / "veil.json")
    model = "def factory():\n    return lambda x: x * 0 + 0.25, 4\n"
    (tmp_path / "unit_model.py").write_text(model)
    monkeypatch.syspath_prepend(tmp_path)
    table = {"python": "unit_model:factory", "veil": "veil.json"}
    opened = open_config(config_file.parse({"models": {"m": table}}, tmp_path))
    with pytest.raises(ValueError, match="does not hold scores of its shape"):
        startup_checks.here(opened)


@pytest.mark.slow
def test_an_audit_attacks_it_and_the_command_line_verifies_its_veil(
    tmp_path: Path, records: tuple[np.ndarray, ...], fitted: Veil
) -> None:
    others, labels, members, member_labels = records
    found = audit.run(
        members, others, member_labels, labels, shape=Percent(), attacks=["max_confidence"], defenses=["none"], jobs=1
    )
    assert found.subject.everyone.members.scores.sum() == pytest.approx(len(members))
    assert found.subject.for_use(None).shape == Percent()
    fitted.save(tmp_path / "veil.json")
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(tmp_path / "veil.json")])
    assert ended.value.code == 0


def test_what_cannot_be_fitted_or_attacked_says_so(records: tuple[np.ndarray, ...]) -> None:
    class Refused(Percent):
        why_not_fitted = "Percentages of this kind are not fitted."

    others, labels, members, member_labels = records
    with pytest.raises(ValueError, match=Refused.why_not_fitted):
        fit(*records, shape=Refused())
    with pytest.raises(ValueError, match=Refused.why_not_fitted):
        audit.run(members, others, member_labels, labels, shape=Refused())


def test_nobody_outside_asks_which_shape_it_is() -> None:
    names = {kind.__name__ for kind in vars(shapes).values() if isinstance(kind, type) and issubclass(kind, Shape)}
    asks = re.compile(rf"isinstance\([^)]*\b({'|'.join(names)})\b|getattr\([\w.]*shape,")
    root = Path(scoreveil.__file__).parent
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if path.parent.name != "shapes"
        for line in path.read_text().splitlines()
        if asks.search(line)
    ]
    assert found == []
