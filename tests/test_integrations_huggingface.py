"""The Hugging Face pipeline: the pipeline's shape, veiled scores. The model is made here; nothing is downloaded."""

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

from doc_pages import run_page
from raw_scores import names_that_answer_with
from scoreveil.integrations.huggingface import VeiledPipeline

pytestmark = pytest.mark.slow

WORDS = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "a", "fine", "rainy", "day"])}
TEXTS = ["a fine day", "a rainy day", "day", "fine fine"]
SECRET = b"a secret of the tests"


def make(labels: int = 3, **config):
    words = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    settings = BertConfig(vocab_size=len(WORDS), num_labels=labels, initializer_range=1.0, **sizes, **config)
    return pipeline("text-classification", model=BertForSequenceClassification(settings).eval(), tokenizer=tokenizer)


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


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: make(problem_type="multi_label_classification"), "one label a text, got multi_label"),
        (lambda: make(1), "two or more labels"),
        (lambda: len, "Expected a text-classification pipeline, got builtin"),
    ],
)
def test_what_does_not_fit_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        VeiledPipeline(made(), 2.0)
    with pytest.raises(ValueError, match="top_k"):
        VeiledPipeline(make(), 2.0)(TEXTS, top_k=0)


def test_the_page_runs():
    run_page("huggingface")
