"""Attacks on the gateway that asked around a record, changed its settings or took its secret away; each must fail."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway_servers import PIXELS, Gateway, gateway, light_model, scores_of
from scoreveil import Veil, fit
from scoreveil.gateway import config_file, ledger_link, secrets
from scoreveil.gateway.ledger_link import LedgerLink, LedgerMismatch, load_keys
from scoreveil.gateway.memory import Asker
from scoreveil.gateway.metrics import Metrics
from scoreveil.gateway.opened import OpenedConfig, open_config
from scoreveil.gateway.served import ServedModel
from scoreveil.inference_protocol.errors import ApiError
from scoreveil.ledger import LedgerUnavailable, open_books
from shaped_models import two_sides

SCORES = np.random.default_rng(1).dirichlet(np.ones(4), 50)


class Asked:
    """A query, without its protocol."""

    def __init__(self, x: np.ndarray) -> None:
        self.x, self.rows = x, len(x)

    def records(self) -> list[bytes]:
        return [row.tobytes() for row in self.x]

    def inputs(self) -> list[Any]:
        return [self.x]


def configured(folder: Path, **model: Any) -> OpenedConfig:
    tree = {"models": {"m": {"python": "a:b", "epsilon": 0.5} | model}}
    return open_config(config_file.parse(tree, folder))


def served(opened: OpenedConfig, work: Callable[[Any], Any], limit: float = 0.0) -> Any:
    """`await work(release)`, where `release(x, scores)` is what the gateway answers."""

    async def run() -> Any:
        config = opened.config
        keys, link = load_keys_here(opened), LedgerLink(config.ledger)
        try:
            if opened.has_memory:
                await link.require(keys, opened.models)
            model = ServedModel(opened.models["m"], None, keys, config.limits, Metrics().add("m"))  # type: ignore[arg-type]

            async def release(x: np.ndarray, scores: np.ndarray, request: bytes | None = None) -> np.ndarray:
                asker = Asker("alice", limit, request)
                return (await model.release({"scores": scores}, Asked(x), link, asker))["scores"]

            return await work(release)
        finally:
            await link.close()

    return asyncio.run(run())


def load_keys_here(opened: OpenedConfig) -> secrets.Keys:
    return secrets.load(opened.config.secrets.file)


# Asking around a record


def test_a_walk_through_a_border_gets_few_answers_and_true_labels(tmp_path: Path) -> None:
    """1,500 questions on a line, two classes: answers used to change where bins do."""
    along = np.random.default_rng(0).permutation(np.linspace(-1, 1, 1500))
    x = PIXELS[0] + (along[:, None] + 1) / 2 * (PIXELS[1] - PIXELS[0])
    odds = 1 / (1 + np.exp(-3 * along))
    scores = np.column_stack([odds, 1 - odds])
    config = configured(tmp_path)

    async def work(release: Any) -> None:
        released = np.concatenate([await release(x[i : i + 500], scores[i : i + 500]) for i in (0, 500, 1000)])
        np.testing.assert_array_equal(released.argmax(axis=1), scores.argmax(axis=1))
        [total] = await (await open_books(config.config.ledger.url)).totals()
        assert total.answers < 40

    served(config, work)


@pytest.mark.parametrize("memory", [{"answers": 1}, {"answers": 2}, {"epsilon": 1.0}])
def test_a_thousand_near_duplicates_get_no_more_answers_than_one_record(tmp_path: Path, memory: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    spread = PIXELS.std(axis=0)
    near = PIXELS[0] + rng.normal(size=(1000, 64)) * spread * 10.0 ** rng.uniform(-9, -3, (1000, 1))
    scores = np.tile([0.7, 0.1, 0.1, 0.1], (len(near), 1))

    async def work(release: Any) -> int:
        released = [await release(near[i : i + 50], scores[i : i + 50]) for i in range(0, len(near), 50)]
        return len(np.unique(np.concatenate(released).max(axis=1)))

    assert served(configured(tmp_path, memory=memory), work) <= memory.get("answers", 2)


@pytest.mark.parametrize("answers", [1, 3])
def test_questions_that_the_model_cannot_tell_apart_have_one_records_answers(tmp_path: Path, answers: int) -> None:
    """Features that a model ignores make new records, of the very same scores."""
    rng = np.random.default_rng(0)
    other = np.tile(PIXELS[:1].astype(float), (300, 1))
    other[:, 32:] = rng.uniform(-16, 0, (300, 32))
    scores = np.tile([0.7, 0.1, 0.1, 0.1], (300, 1))

    async def work(release: Any) -> int:
        released = await release(other, scores)
        [total] = await (await open_books(config.config.ledger.url)).totals()
        assert total.records > 250, "they are records of their own"
        return len(np.unique(released.max(axis=1)))

    config = configured(tmp_path, memory={"answers": answers})
    assert served(config, work) <= answers


def test_near_duplicates_of_another_label_keep_their_label(tmp_path: Path) -> None:
    async def work(release: Any) -> None:
        x = PIXELS[:2].astype(float)
        first = await release(x, np.array([[0.6, 0.4], [0.9, 0.1]]))
        second = await release(x + 1e-9, np.array([[0.4, 0.6], [0.9, 0.1]]))
        np.testing.assert_array_equal(second[:, ::-1][0], first[0])
        np.testing.assert_array_equal(second[1], first[1])

    served(configured(tmp_path), work)


def test_typical_inputs_tell_how_near_is_near(tmp_path: Path) -> None:
    line = PIXELS[0] + np.linspace(0, 0.1, 50)[:, None] * (PIXELS[1] - PIXELS[0])
    np.save(tmp_path / "inputs.npy", PIXELS[100:500])

    async def work(release: Any) -> None:
        released = await release(line, np.tile(SCORES[:1], (50, 1)))
        np.testing.assert_array_equal(released[:3], np.repeat(released[:1], 3, axis=0))
        with pytest.raises(ApiError, match="Typical inputs have 64 numbers; a record has 50") as caught:
            await release(line[:1, :50], SCORES[:1])
        assert caught.value.status == 400

    served(configured(tmp_path, memory={"answers": 1, "typical": "inputs.npy"}), work)


def test_without_memory_each_question_has_a_draw_of_its_own(tmp_path: Path) -> None:
    """Were it one for all records of equal scores, it could tell more than their region does; and the same question, in
    whatever company, always has the same one."""
    fit(*two_sides(4), epsilon=1.0, rng=np.random.default_rng(0)).save(tmp_path / "veil.json")
    x, scores = PIXELS[:400].astype(float), np.tile([0.7, 0.1, 0.1, 0.1], (400, 1))
    config = open_config(config_file.parse({"models": {"m": {"python": "a:b", "veil": "veil.json"}}}, tmp_path))
    assert not config.has_memory

    async def work(release: Any) -> np.ndarray:
        released = await release(x, scores)
        np.testing.assert_array_equal(await release(x[7:9], scores[7:9]), released[7:9])
        return np.asarray(released.max(axis=1))

    drawn = served(config, work)
    mechanism = Veil.load(tmp_path / "veil.json").mechanism
    _, region = mechanism.read(scores[:1])
    chances = mechanism.table[region[0]] / mechanism.table[region[0]].sum()
    shares = [np.mean(np.isclose(drawn, confidence)) for confidence in mechanism.announced[0]]
    np.testing.assert_allclose(shares, chances, atol=5 * 0.5 / 20)  # five standard errors of a share of 400
    assert (np.array(shares) > 0).sum() > 1


# Limits


def test_a_client_is_told_when_its_limit_is_reached_and_nothing_about_others(tmp_path: Path) -> None:
    """Whether a question was asked before, by whomever, must not decide whether it is answered beyond the limit."""

    async def work(release: Any) -> None:
        x = PIXELS[:50].astype(float)
        await release(x[:3], SCORES[:3])
        with pytest.raises(ApiError, match="All answers to one client may add up to ε = 2") as caught:
            await release(x[3:5], SCORES[3:5])
        assert (caught.value.status, caught.value.reason) == (429, "odometer")
        await release(x[3:4], SCORES[3:4])
        for asked_before in (x[:1], x[10:11]):
            with pytest.raises(ApiError, match="All answers to one client"):
                await release(asked_before, SCORES[:1])

    served(configured(tmp_path), work, limit=2.0)


def test_an_answer_that_was_given_before_costs_the_client_as_much(tmp_path: Path) -> None:
    """A client that asks what others have asked must not see by its limit that they have."""
    config = configured(tmp_path)

    def answered(x: np.ndarray) -> int:
        async def work(release: Any) -> int:
            for count in range(9):
                try:
                    await release(x, SCORES[:1])
                except ApiError:
                    return count
            raise AssertionError("the limit was never reached")

        return int(served(config, work, limit=2.0))

    assert answered(PIXELS[:1].astype(float)) == 4


def test_changing_epsilon_forgives_nothing_of_a_total(tmp_path: Path) -> None:
    """Total 1.0, two answers at ε = .5, then ε = .05: nothing is left, and nothing is drawn anew for free."""
    x, scores = PIXELS[:1].astype(float), SCORES[:1]

    async def spend(release: Any) -> None:
        await release(x, scores)
        await release(x, scores, b"request")

    served(configured(tmp_path, memory={"epsilon": 1.0}), spend)
    for repeat in ("refuse", "same"):

        async def again(release: Any) -> None:
            with pytest.raises(ApiError, match="has had all the answers") as caught:
                await release(x, scores)
            assert caught.value.status == 429
            with pytest.raises(ApiError, match="before the settings changed") as caught:
                await release(x, scores, b"request")
            assert caught.value.status == 409

        served(configured(tmp_path, epsilon=0.05, memory={"epsilon": 1.0, "repeat": repeat}), again)


def test_other_settings_have_answers_of_their_own(tmp_path: Path) -> None:
    """`answers` counts under one ε and secret; the page says that each change adds up."""
    x, scores = PIXELS[:40].astype(float), SCORES[:40]

    async def ask(release: Any) -> np.ndarray:
        return np.asarray(await release(x, scores))

    first = served(configured(tmp_path), ask)
    np.testing.assert_array_equal(served(configured(tmp_path), ask), first)
    assert (served(configured(tmp_path, epsilon=0.6), ask) != first).any()


def test_two_settings_in_turns_have_as_many_answers_as_two(tmp_path: Path) -> None:
    """Replicas of which one has another veil, or has not read the new secret: who asks one after the other is not
    answered anew each time."""
    near = np.tile(PIXELS[:1].astype(float), (20, 1)) * (1 + np.arange(20)[:, None] * 1e-7)
    one, other = configured(tmp_path), configured(tmp_path, epsilon=0.6)

    for i in range(20):

        async def ask(release: Any, i: int = i) -> int:
            await release(near[i : i + 1], SCORES[i : i + 1])
            (total,) = await (await open_books(one.config.ledger.url)).totals()
            return int(total.answers)

        assert served([one, other][i % 2], ask) <= 2


def test_two_numbers_of_places_in_turns_have_as_many_answers_as_two(tmp_path: Path) -> None:
    """A sign more is a token more, and the same record; who asks with it and without it is not answered anew."""
    config = configured(tmp_path, releases=8)
    texts = [np.array([["not good" + " " * (i // 2) + "!" * (i % 2)]], dtype=object) for i in range(20)]

    async def work(release: Any) -> int:
        for i, text in enumerate(texts):
            places = 2 + i % 2
            released = await release(text, SCORES[None, 3 * i % 40 : 3 * i % 40 + places])
            assert released.shape == (1, places, 4)
        (total,) = await (await open_books(config.config.ledger.url)).totals()
        return int(total.answers)

    assert served(config, work) == 2


def test_a_rule_that_counts_otherwise_is_refused(tmp_path: Path) -> None:
    async def nothing(release: Any) -> None: ...

    served(configured(tmp_path, memory={"epsilon": 1.0}), nothing)
    zcdp = configured(tmp_path, memory={"epsilon": 9.0, "rule": "zcdp", "delta": 1e-6})
    with pytest.raises(LedgerMismatch, match="counts what was spent on model m in epsilon; its rule now counts in rho"):
        served(zcdp, nothing)


# The secret


def test_a_missing_secret_beside_a_ledger_is_not_made_anew(tmp_path: Path) -> None:
    config = configured(tmp_path)
    load_keys(config)

    async def ask(release: Any) -> None:
        await release(PIXELS[:1].astype(float), SCORES[:1])

    served(config, ask)
    kept = config.config.secrets.file.read_bytes()
    config.config.secrets.file.unlink()
    with pytest.raises(ValueError, match=r"There is no secret file .*, but the ledger holds what was spent under one"):
        load_keys(config)
    assert not config.config.secrets.file.exists()
    config.config.secrets.file.write_text(f"{'ab' * 32}\n")
    config.config.secrets.file.chmod(0o600)
    with pytest.raises(LedgerMismatch, match="begun with another secret"):
        served(config, ask)
    config.config.secrets.file.write_bytes(kept)
    served(config, ask)


def test_a_secret_is_not_made_while_the_ledger_cannot_be_asked(tmp_path: Path) -> None:
    config = configured(tmp_path)
    Path(config.config.ledger.url.removeprefix("sqlite:///")).write_text("no ledger")
    with pytest.raises(ValueError, match="whether the ledger was begun with one cannot be told"):
        load_keys(config)
    assert not config.config.secrets.file.exists()


@pytest.mark.slow
def test_a_gateway_without_its_secret_does_not_start_and_one_that_is_reloaded_forgives_nothing(tmp_path: Path) -> None:
    toml = """
    [models.digits]
    python = "light_model:make"
    epsilon = 0.5
    memory.epsilon = 1.0
    memory.repeat = "refuse"
    """
    place = light_model(tmp_path)
    with gateway(tmp_path, toml, PYTHONPATH=place) as server:
        assert [server.infer(PIXELS[:1] * np.float32(1 + 1e-6 * i))[0] for i in range(3)] == [200, 200, 429]
        server.config.write_text(toml.replace("0.5", "0.05"))
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("reloaded")
        assert server.infer(PIXELS[:1])[0] == 429
        scores_of(server.infer(PIXELS[1:2]))
    (tmp_path / "scoreveil.secret").unlink()
    again = Gateway(tmp_path, toml).start(wait=False, environ={"PYTHONPATH": place})
    assert again.process.wait(timeout=60) != 0
    assert "There is no secret file" in again.log.read_text()


def test_who_waits_for_a_ledger_that_hangs_waits_for_one_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a database behind a network that swallows everything: each try takes ten seconds."""
    tries = 0

    async def hanging(*_: object) -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0.1)
        raise LedgerUnavailable("no answer in time")

    link = LedgerLink(configured(tmp_path).config.ledger)
    monkeypatch.setattr(ledger_link, "open_ledger", hanging)

    async def work() -> None:
        for count in (1, 2):  # whoever comes later tries again
            refused = await asyncio.gather(*(link.opened() for _ in range(50)), return_exceptions=True)
            assert {type(each) for each in refused} == {LedgerUnavailable}
            assert tries == count

    asyncio.run(work())


# Answers of several releases


def test_the_odometer_of_a_client_counts_every_label(tmp_path: Path) -> None:
    config = configured(tmp_path, shape="multi_label", threshold=[0.5, 0.5, 0.5])  # three times ε = 0.5

    async def work(release: Any) -> None:
        scores = np.array([[0.2, 0.9, 0.6]])
        first = await release(PIXELS[:1], scores)
        with pytest.raises(ApiError, match="All answers to one client may add up to ε = 2"):
            await release(PIXELS[1:2], scores)
        assert first.shape == scores.shape
        books = await open_books(config.config.ledger.url)
        (total,) = await books.totals()
        assert total.units == 1_500_000_000

    served(config, work, limit=2.0)
