"""The batches that everyone gets: softmax of normal logits, confident as trained classifiers are."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[Any]

EPSILON = 2.0
CLASSES = 10  # of the batch on which rivals meet
SPREAD = 4.0  # standard deviation of the logits: with 10 classes the top score is .8 in the mean


def scores(n: int, k: int, dtype: str, seed: int = 1) -> Scores:
    logits = np.random.default_rng(seed).normal(0.0, SPREAD, (n, k))
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits.astype(dtype, copy=False)
