"""What a language model's tokens say of labels, which labels can be told apart, and what a prompt's record is."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scoreveil.gateway import completions
from scoreveil.gateway.config import ConfigError
from scoreveil.gateway.config_file import parse
from scoreveil.gateway.labels import NoLabel, check_labels, label_scores
from scoreveil.gateway.opened import open_config
from scoreveil.inference_protocol.errors import ApiError

UPSTREAM = {"url": "http://127.0.0.1:9", "protocol": "openai"}


def test_blanks_and_case_do_not_matter_and_beginnings_count() -> None:
    tokens = [
        ("positive", 0.1),
        (" Positive", 0.1),
        ("\u2581pos", 0.1),
        ("\u0120POSITIVE", 0.1),
        ("neg", 0.1),
        ("The", 0.5),
    ]
    found = label_scores([(token, math.log(mass)) for token, mass in tokens], ("positive", "negative"))
    np.testing.assert_allclose(found, [[0.8, 0.2]])


def test_a_label_that_is_not_listed_gets_half_of_what_it_could_have() -> None:
    few = label_scores([("yes", math.log(0.6)), ("the", math.log(0.1))], ("yes", "no", "maybe"))
    np.testing.assert_allclose(few, [[0.6, 0.05, 0.05]] / np.float64(0.7))
    rest = label_scores([("yes", math.log(0.9)), ("the", math.log(0.08))], ("yes", "no"))
    np.testing.assert_allclose(rest, [[0.9, 0.01]] / np.float64(0.91))


def test_labels_that_share_their_first_token_are_refused() -> None:
    with pytest.raises(ApiError, match="same token"):
        label_scores([("un", math.log(0.9)), ("under", math.log(0.05))], ("unknown", "underway"))
    found = label_scores([("unknown", math.log(0.9)), ("un", math.log(0.001))], ("unknown", "underway"))
    assert found.argmax() == 0


def test_no_label_is_no_answer() -> None:
    for listed_tokens in ([], [("The", -0.1)], [(" ", -0.1)], [("", -0.1)], [("yes", -math.inf)]):
        with pytest.raises(NoLabel):
            label_scores(listed_tokens, ("yes", "no"))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    st.lists(st.tuples(st.sampled_from(["yes", " Y", "no", "n", "The", "\n", "maybe"]), st.floats(-50, 0)), min_size=1)
)
def test_scores_are_scores_and_the_top_one_was_listed(tokens: list[tuple[str, float]]) -> None:
    labels = ("perhaps", "maybe", "no", "yes")
    try:
        (found,) = label_scores(tokens, labels)
    except NoLabel:
        assert not any(token.strip() in ("yes", "Y", "no", "n", "maybe") for token, _ in tokens)
        return
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    assert found.argmax() != 0, "of the first label nothing is ever listed"


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["yes"], "two labels"),
        (["yes", "Yes"], "begins with"),
        (["1", "10"], "begins with"),
        (["yes", " no"], "blanks"),
        (["yes", ""], "blanks"),
        (["yes", "no\nno"], "one line"),
    ],
)
def test_labels_that_cannot_be_told_apart_are_not_configured(labels: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_labels(labels)
    with pytest.raises(ConfigError, match=words):
        open_config(parse({"models": {"m": {"epsilon": 2.0, "labels": labels, "upstream": UPSTREAM}}}))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"epsilon": 2.0}, "name labels"),
        (
            {"epsilon": 2.0, "labels": ["a", "b"], "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}]},
            "inputs",
        ),
        ({"epsilon": 2.0, "labels": ["a", "b"], "outputs": "logits"}, "outputs"),
        ({"epsilon": 2.0, "labels": ["a", "b"], "passes": ["text"]}, "passes"),
        ({"labels": ["a", "b"]}, "epsilon"),
        ({"epsilon": 2.0, "labels": ["a", "b"], "upstream": {"url": "http://127.0.0.1:9"}}, "openai"),
        ({"memory": {"epsilon": 2.0, "repeat": "refuse"}}, "remove memory"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_config(parse({"models": {"m": {"upstream": UPSTREAM, **table}}}))


def test_prompts_are_told_apart_by_their_words() -> None:
    def like(text: str) -> str:
        return completions.likeness([{"role": "user", "content": text}])

    assert like("Not good!") == like("not  GOOD") == completions.likeness("(not) good")
    assert like("good") == like("go\u200bod") == like("good\ufe0f") == like("\U000e0041good")
    assert like("5-3") == like("5 + 3")
    different = ["not good", "good", "5-3", "53", "!", "?", "", "not good 1"]
    assert len({like(text) for text in different}) == len(different)
