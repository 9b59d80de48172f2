"""Hugging Face: classification pipelines that answer with veiled scores.

    from transformers import pipeline
    from scoreveil.integrations.huggingface import VeiledPipeline, VeiledTokenPipeline

    classify = VeiledPipeline(pipeline("text-classification", model=name), epsilon=2.0)
    classify("A fine day.")              # [{"label": …, "score": …}], like the pipeline
    classify("A fine day.", top_k=None)  # every label, highest first
    tag = VeiledTokenPipeline(pipeline("token-classification", model=name), epsilon=0.1)

The answer has the pipeline's shape. Models of several labels (sigmoid) are recognised as the pipeline does. Options of
a call that would change what a score is (`function_to_apply`) are not taken; those that the pipeline was made with are.
"""

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import numpy as np

from scoreveil.arrays import Floats
from scoreveil.extras import needs
from scoreveil.integrations.records import LogitsCheck, RecordVeil, check_no_logits
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.shapes import VECTORS, Binary, MultiLabel, PerPosition, Shape
from scoreveil.veil import Veil, VeilOptions

with needs("huggingface"):
    import torch
    from transformers import TextClassificationPipeline, TokenClassificationPipeline

Text = str | dict[str, str]  # a dict holds a text and its text_pair
Answer = dict[str, Any]

WAY_OUT = "The pipeline would take their softmax or sigmoid once more: take that last layer out of the model."


class VeiledPipeline:
    """A text-classification pipeline behind a veil.

    A model of one label a text, of two labels or more, has score vectors. One of several labels a text has a yes or
    no for each, which stays, and each is a release of its own; a model with a single label has one column.

    Args:
        pipeline: A text-classification pipeline; whether it takes the softmax or the sigmoid is its own setting.
        epsilon: How much shows through; or a mechanism, or a veil, whole.
        options: As in `Veil`. `shape=MultiLabel(threshold=…)` sets other thresholds than a half, or says that the
            sigmoid is to be taken where the model's configuration does not.
    """

    def __init__(
        self, pipeline: TextClassificationPipeline, epsilon: float | Mechanism | Veil, **options: Unpack[VeilOptions]
    ) -> None:
        if not isinstance(pipeline, TextClassificationPipeline):
            raise ValueError(f"Expected a text-classification pipeline, got {type(pipeline).__name__}.")
        config = pipeline.model.config
        self._labels = [config.id2label[i] for i in range(config.num_labels)]
        if len(set(self._labels)) < len(self._labels):
            raise ValueError(f"Expected {len(self._labels)} labels with names of their own, got some twice.")
        self._pipeline = pipeline
        self._veil = RecordVeil(_shaped(epsilon, _shape(pipeline), options))
        shape = self._veil.veil.shape
        check_no_logits(shape)
        if not (shape.is_binary or shape.is_plain):
            raise ValueError(f"A text has a score for every label, veiled before it is listed; remove {shape!r}.")
        self._apply = shape.of_logits
        self._check = LogitsCheck(shape, "The model", WAY_OUT)

    def __call__(self, inputs: Text | Sequence[Text], *, top_k: int | Literal["best"] | None = "best") -> Any:
        """One answer a text: its best label with a veiled score, or its `top_k` labels; with None all of them."""
        if top_k not in ("best", None) and (not isinstance(top_k, int) or top_k < 1):
            raise ValueError(f"Expected top_k to be a whole number >= 1, 'best' or None, got {top_k!r}.")
        single = isinstance(inputs, (str, dict))
        texts = [inputs] if single else list(inputs)
        if not texts:
            return []
        veiled = self._veil(self._ask(texts), [[repr(text) for text in texts]])
        if top_k == "best":
            made_with = self._pipeline._postprocess_params
            lists = [self._ranked(z, made_with.get("top_k", 1)) for z in veiled]
            best = lists if "top_k" in made_with else [answers[0] for answers in lists]
            return best[0] if isinstance(inputs, dict) else best
        answers = [self._ranked(z, top_k) for z in veiled]
        return answers[0] if single else answers

    @property
    def guarantee(self) -> Guarantee:
        return self._veil.guarantee

    def _ask(self, texts: Sequence[Any]) -> Floats:
        """Raw scores (n, k), in the order of the model's labels."""
        column = {label: i for i, label in enumerate(self._labels)}
        logits = np.zeros((len(texts), len(self._labels)), dtype=np.float32)  # as the pipeline has them
        for row, answer in enumerate(self._pipeline(list(texts), top_k=None, function_to_apply="none")):
            for entry in answer:
                logits[row, column[entry["label"]]] = entry["score"]
        self._check(logits)
        return self._apply(logits).astype(np.float64)

    def _ranked(self, z: Floats, top_k: int | None) -> list[Answer]:
        order = np.argsort(-z, kind="stable")[:top_k]  # stable: the first of equals, as argmax has it
        return [{"label": self._labels[i], "score": float(z[i])} for i in order]


class VeiledTokenPipeline:
    """A token-classification pipeline behind a veil. Each token's scores are a release: m tokens spend m · ε.

    The label of every token stays. How tokens become words and entities is the pipeline's own setting
    (`aggregation_strategy`), and is done with veiled scores.

    Args:
        pipeline: A token-classification pipeline.
        epsilon: How much of one token's scores shows through; or a mechanism, or a veil, whole.
        options: As in `Veil`.
    """

    def __init__(
        self, pipeline: TokenClassificationPipeline, epsilon: float | Mechanism | Veil, **options: Unpack[VeilOptions]
    ) -> None:
        if not isinstance(pipeline, TokenClassificationPipeline):
            raise ValueError(f"Expected a token-classification pipeline, got {type(pipeline).__name__}.")
        self._pipeline = pipeline
        self._veil = RecordVeil(_shaped(epsilon, PerPosition(), options))
        shape = self._veil.veil.shape
        if not shape.has_places:
            raise ValueError(f"Tokens have a score vector each; remove {shape!r}.")
        self._check = LogitsCheck(shape, "The model", WAY_OUT)

    def __call__(self, inputs: str | Sequence[str]) -> Any:
        """The entities of a text, each with a veiled score; of several texts, a list for each."""
        if isinstance(inputs, str):
            return self._entities(inputs)
        return [self._entities(text) for text in inputs]

    @property
    def guarantee(self) -> Guarantee:
        return self._veil.guarantee

    def _entities(self, text: str) -> list[Answer]:
        bare, parts = self._pipeline, []
        for number, part in enumerate(bare.preprocess(text, **bare._preprocess_params)):
            answer = bare.forward(part, **bare._forward_params)
            logits = answer["logits"].double().numpy()  # (1, tokens, labels)
            self._check(logits)
            veiled = self._veil(self._veil.veil.shape.of_logits(logits), [[text], [str(number)]])
            # what comes after takes the softmax, which gives these very scores
            parts.append({**answer, "logits": torch.from_numpy(veiled).log()})
        return list(bare.postprocess(parts, **bare._postprocess_params))


def _shape(pipeline: TextClassificationPipeline) -> Shape:
    """How a pipeline's scores are served: as it decides itself which function it applies."""
    config = pipeline.model.config
    given = pipeline._postprocess_params.get("function_to_apply")
    if given is not None:
        applied = given.value
    elif config.problem_type == "regression":
        applied = "none"
    else:
        several = config.problem_type == "multi_label_classification" or config.num_labels == 1
        applied = "sigmoid" if several else "softmax"
    if applied == "none":
        raise ValueError("Expected a pipeline that gives probabilities, got one that applies no function.")
    if applied == "softmax":
        if config.num_labels < 2:
            raise ValueError("Expected two labels or more for a softmax, got one.")
        return VECTORS
    return Binary() if config.num_labels == 1 else MultiLabel()


def _shaped(epsilon: float | Mechanism | Veil, shape: Shape, options: VeilOptions) -> Veil:
    """The veil that is given or made, with a shape where none was said."""
    veil = Veil.from_given(epsilon, shape, **options).for_scores()
    if veil.shape.is_plain and not shape.is_plain:
        raise ValueError(f"Expected a veil made with shape={shape!r}, got one for score vectors.")
    return veil
