"""Hugging Face: a text-classification pipeline that answers with veiled scores.

    from transformers import pipeline
    from scoreveil.integrations.huggingface import VeiledPipeline

    classify = VeiledPipeline(pipeline("text-classification", model=name), epsilon=2.0)
    classify("A fine day.")              # [{"label": …, "score": …}], like the pipeline
    classify("A fine day.", top_k=None)  # every label, highest first

The answer has the pipeline's shape. Options that would change what a score is (`function_to_apply`) are not taken.
"""

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import numpy as np

from scoreveil.extras import needs
from scoreveil.integrations.records import RecordVeil
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.veil import Veil, VeilOptions

with needs("huggingface"):
    from transformers import TextClassificationPipeline

Text = str | dict[str, str]  # a dict holds a text and its text_pair
Answer = dict[str, Any]


class VeiledPipeline:
    """A text-classification pipeline behind a veil.

    Args:
        pipeline: A text-classification pipeline whose model gives one label a text, of two labels or more.
        epsilon: How much shows through; or a mechanism, or a veil, whole.
        options: As in `Veil`.
    """

    def __init__(
        self, pipeline: TextClassificationPipeline, epsilon: float | Mechanism | Veil, **options: Unpack[VeilOptions]
    ) -> None:
        if not isinstance(pipeline, TextClassificationPipeline):
            raise ValueError(f"Expected a text-classification pipeline, got {type(pipeline).__name__}.")
        config = pipeline.model.config
        if config.problem_type not in (None, "single_label_classification"):
            raise ValueError(f"Expected a model with one label a text, got {config.problem_type}.")
        self._labels = [config.id2label[i] for i in range(config.num_labels)]
        if len(set(self._labels)) < max(2, len(self._labels)):
            raise ValueError(f"Expected two or more labels with names of their own, got {len(self._labels)}.")
        self._pipeline = pipeline
        self._veil = RecordVeil(epsilon, **options)

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
            best = [self._ranked(z, 1)[0] for z in veiled]
            return best[0] if isinstance(inputs, dict) else best
        answers = [self._ranked(z, top_k) for z in veiled]
        return answers[0] if single else answers

    @property
    def guarantee(self) -> Guarantee:
        return self._veil.guarantee

    def _ask(self, texts: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Raw scores (n, k), in the order of the model's labels."""
        column = {label: i for i, label in enumerate(self._labels)}
        scores = np.zeros((len(texts), len(self._labels)))
        for row, answer in enumerate(self._pipeline(list(texts), top_k=None, function_to_apply="softmax")):
            for entry in answer:
                scores[row, column[entry["label"]]] = entry["score"]
        return scores

    def _ranked(self, z: np.ndarray[Any, np.dtype[np.float64]], top_k: int | None) -> list[Answer]:
        order = np.argsort(-z, kind="stable")[:top_k]  # stable: the first of equals, as argmax has it
        return [{"label": self._labels[i], "score": float(z[i])} for i in order]
