"""The Hugging Face pipeline: the pipeline's shape, veiled scores. The model is made here; nothing is downloaded."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedTokenizerFast,
    pipeline,
)

from doc_pages import run_page
from raw_scores import names_that_answer_with
from scoreveil import Veil
from scoreveil.integrations.huggingface import VeiledPipeline, VeiledTokenPipeline
from scoreveil.shapes import MultiLabel, PerPosition, TopK

pytestmark = pytest.mark.slow

WORDS = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "a", "fine", "rainy", "day"])}
TEXTS = ["a fine day", "a rainy day", "day", "fine fine"]
SECRET = b"a secret of the tests"


def make(labels: int = 3, task: str = "text-classification", made_with: dict | None = None, **config):
    words = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    settings = BertConfig(vocab_size=len(WORDS), num_labels=labels, initializer_range=1.0, **sizes, **config)
    kind = BertForSequenceClassification if task == "text-classification" else BertForTokenClassification
    return pipeline(task, model=kind(settings).eval(), tokenizer=tokenizer, **(made_with or {}))


def shape(answer):
    """An answer with its values left out."""
    if isinstance(answer, list):
        return [shape(each) for each in answer]
    return {name: type(value) for name, value in answer.items()}


@pytest.mark.parametrize("texts", ["a fine day", ["a fine day"], TEXTS, {"text": "a", "text_pair": "day"}], ids=str)
@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"top_k": 2}, {"top_k": None}], ids=str)
def test_answers_have_the_pipelines_shape(texts, options):
    bare = make()
    assert shape(VeiledPipeline(bare, 2.0)(texts, **options)) == shape(bare(texts, **options))


def test_the_label_stays_and_scores_are_veiled():
    bare = make()
    veiled = VeiledPipeline(bare, 2.0)
    assert [answer["label"] for answer in veiled(TEXTS)] == [answer["label"] for answer in bare(TEXTS)]
    for z, raw in zip(veiled(TEXTS, top_k=None), bare(TEXTS, top_k=None), strict=True):
        assert sum(entry["score"] for entry in z) == pytest.approx(1)
        assert [entry["score"] for entry in z] == sorted((entry["score"] for entry in z), reverse=True)
        assert {entry["label"] for entry in z} == {entry["label"] for entry in raw}
        assert max(entry["score"] for entry in z) != pytest.approx(max(entry["score"] for entry in raw), abs=1e-6)
    assert veiled([]) == []
    assert veiled.guarantee.epsilon == 2.0


def test_no_public_name_leads_to_raw_scores():
    bare = make()
    raw = np.array([[entry["score"] for entry in answer] for answer in bare(TEXTS, top_k=None)])
    veiled = VeiledPipeline(bare, 2.0)
    assert [name for name in dir(veiled) if not name.startswith("_")] == ["guarantee"]
    assert names_that_answer_with(raw, veiled, [((TEXTS,), {}), ((TEXTS,), {"top_k": None})]) == []
    with pytest.raises(TypeError):
        veiled(TEXTS, function_to_apply="none")


def test_the_same_text_gets_the_same_answer_with_a_secret():
    veiled = VeiledPipeline(make(), 2.0, secret=SECRET)
    assert veiled(TEXTS, top_k=None) == veiled(TEXTS, top_k=None)


def with_last(bare, last):
    """The pipeline of a model that takes the softmax or sigmoid itself."""
    ask = bare.model.forward

    def forward(*args, **named):
        answer = ask(*args, **named)
        answer.logits = last(answer.logits)
        return answer

    bare.model.forward = forward
    return bare


def test_a_model_that_gives_probabilities_already_is_refused():
    told = "The model gives probabilities already, and not logits. .* take that last layer out of the model"
    with pytest.raises(ValueError, match=told):
        VeiledPipeline(with_last(make(), lambda z: z.softmax(-1)), 2.0)(TEXTS[0])
    many = VeiledPipeline(with_last(make(40, **MANY), torch.sigmoid), 0.1)
    with pytest.raises(ValueError, match=told):
        many(TEXTS)
    tokens = with_last(make(task="token-classification"), lambda z: z.softmax(-1))
    with pytest.raises(ValueError, match=told):
        VeiledTokenPipeline(tokens, 0.5)(TEXTS[0])


@pytest.mark.parametrize("config", [{}, {"problem_type": "multi_label_classification"}], ids=str)
def test_raw_scores_are_those_of_the_pipeline(config):
    bare = make(**config)
    by_label = [{entry["label"]: entry["score"] for entry in answer} for answer in bare(TEXTS, top_k=None)]
    raw = [[scores[f"LABEL_{i}"] for i in range(3)] for scores in by_label]
    np.testing.assert_allclose(VeiledPipeline(bare, 2.0)._ask(TEXTS), raw, rtol=1e-6)


# Several labels a text, and one

MANY = {"problem_type": "multi_label_classification"}


@pytest.mark.parametrize("texts", ["a fine day", TEXTS, {"text": "a", "text_pair": "day"}], ids=str)
@pytest.mark.parametrize("made_with", [{}, {"top_k": None}, {"top_k": 2}, {"function_to_apply": "sigmoid"}], ids=str)
def test_answers_have_the_shape_that_the_pipeline_was_made_for(texts, made_with):
    bare = make(made_with=made_with)
    assert shape(VeiledPipeline(bare, 2.0)(texts)) == shape(bare(texts))


@pytest.mark.parametrize(
    "made",
    [
        lambda: make(**MANY),
        lambda: make(made_with={"function_to_apply": "sigmoid"}),
        lambda: make(made_with={"function_to_apply": "sigmoid", "top_k": None}),
        lambda: make(1),
    ],
    ids=["problem_type", "sigmoid", "sigmoid and top_k", "one label"],
)
def test_each_label_keeps_its_yes_or_no(made):
    bare = made()
    veiled = VeiledPipeline(bare, 0.5, secret=SECRET)
    found, raw = veiled(TEXTS, top_k=None), bare(TEXTS, top_k=None)
    assert shape(found) == shape(raw)
    assert veiled(TEXTS, top_k=None) == found
    moved = []
    for answer, before in zip(found, raw, strict=True):
        scores = {entry["label"]: entry["score"] for entry in answer}
        for entry in before:
            assert (scores[entry["label"]] >= 0.5) == (entry["score"] >= 0.5)
            moved.append(abs(scores[entry["label"]] - entry["score"]))
        assert [entry["score"] for entry in answer] == sorted(scores.values(), reverse=True)
    assert max(moved) > 0.01
    assert veiled(TEXTS, top_k=2) == [answer[:2] for answer in found]


def test_thresholds_of_ones_own_are_kept():
    bare, threshold = make(), (0.2, 0.9, 0.6)
    veiled = VeiledPipeline(bare, Veil(0.5, shape=MultiLabel(threshold=threshold)))
    for z, raw in zip(veiled(TEXTS, top_k=None), bare(TEXTS, top_k=None, function_to_apply="sigmoid"), strict=True):
        after = {entry["label"]: entry["score"] for entry in z}
        for entry in raw:
            border = threshold[int(entry["label"][-1])]
            assert (after[entry["label"]] >= border) == (entry["score"] >= border)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: make(problem_type="regression"), "applies no function"),
        (lambda: make(made_with={"function_to_apply": "none"}), "applies no function"),
        (lambda: make(1, made_with={"function_to_apply": "softmax"}), "two labels or more"),
        (lambda: make(id2label={0: "a", 1: "b", 2: "a"}), "got some twice"),
        (lambda: len, "Expected a text-classification pipeline, got builtin"),
    ],
)
def test_what_does_not_fit_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        VeiledPipeline(made(), 2.0)


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="top_k"):
        VeiledPipeline(make(), 2.0)(TEXTS, top_k=0)
    with pytest.raises(ValueError, match="remove TopK"):
        VeiledPipeline(make(), 2.0, shape=TopK())
    with pytest.raises(ValueError, match=r"Expected a veil made with shape=MultiLabel"):
        VeiledPipeline(make(**MANY), Veil(2.0))
    with pytest.raises(ValueError, match="without logits=True"):
        VeiledPipeline(make(**MANY), 2.0, shape=MultiLabel(logits=True))


# Tokens


@pytest.mark.parametrize(
    "made_with",
    [{}, {"ignore_labels": []}, {"aggregation_strategy": "simple"}, {"aggregation_strategy": "first"}],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_the_label_of_every_token_stays(made_with):
    bare = make(task="token-classification", made_with=made_with)
    veiled = VeiledTokenPipeline(bare, 0.5, secret=SECRET)
    found, raw = veiled(TEXTS), bare(TEXTS)
    assert [[_without_score(each) for each in answer] for answer in found] == [
        [_without_score(each) for each in answer] for answer in raw
    ]
    pairs = [(z, r) for answer, before in zip(found, raw, strict=True) for z, r in zip(answer, before, strict=True)]
    assert max(abs(z["score"] - r["score"]) for z, r in pairs) > 0.01
    assert veiled(TEXTS) == found
    assert veiled(TEXTS[0]) == found[0]
    assert any("Each place is a release of its own" in limit for limit in veiled.guarantee.limits)


def _without_score(entity):
    return {name: value for name, value in entity.items() if name != "score"}


def test_many_tokens_promise_nothing_together_and_that_is_said():
    veiled = VeiledTokenPipeline(make(task="token-classification"), 8.0)
    with pytest.warns(UserWarning, match="An answer holds 3 releases of ε = 8"):
        veiled("a fine day")


def test_tokens_of_another_pipeline_or_shape_are_refused():
    tokens = make(task="token-classification")
    with pytest.raises(ValueError, match="Expected a token-classification pipeline"):
        VeiledTokenPipeline(make(), 2.0)
    with pytest.raises(ValueError, match=r"Expected a veil made with shape=PerPosition\(\)"):
        VeiledTokenPipeline(tokens, Veil(2.0))
    with pytest.raises(ValueError, match="Tokens have a score vector each; remove MultiLabel"):
        VeiledTokenPipeline(tokens, 2.0, shape=MultiLabel())
    assert VeiledTokenPipeline(tokens, Veil(0.5, shape=PerPosition()))("a fine day")
    assert [name for name in dir(VeiledTokenPipeline(tokens, 2.0)) if not name.startswith("_")] == ["guarantee"]


def test_the_page_runs():
    run_page("huggingface")
