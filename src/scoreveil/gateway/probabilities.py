"""What a model gives, as score vectors: a probability for each class.

outputs = "scores"    probabilities already; one column is that of the second of two classes
outputs = "logits"    softmax turns them into probabilities; the sigmoid, where there is one column
"""

from typing import Literal

import numpy as np
from msgspec import structs

from scoreveil.inference_protocol.tensors import Array, TensorSpec

Outputs = Literal["scores", "logits"]


def probabilities(rows: Array, outputs: Outputs) -> Array:
    """Rows of a model's output as rows of probabilities, in the same dtype. What is no matrix stays as it is."""
    if rows.ndim != 2 or rows.dtype.kind not in "fiu" or (outputs == "scores" and rows.shape[1] != 1):
        return rows
    wide = rows.astype(np.float64)
    if wide.shape[1] == 1:
        wide = np.hstack([np.zeros_like(wide), wide] if outputs == "logits" else [1 - wide, wide])
    if outputs == "logits":
        with np.errstate(invalid="ignore"):  # infinite logits become NaN, which is no score
            wide = np.exp(wide - wide.max(axis=1, keepdims=True))
            wide /= wide.sum(axis=1, keepdims=True)
    return wide.astype(rows.dtype if rows.dtype.kind == "f" else np.float64)


def declared(spec: TensorSpec) -> TensorSpec:
    """The tensor that is served, where the model declares this one."""
    return structs.replace(spec, shape=(spec.shape[0], 2)) if spec.shape[1:] == (1,) else spec
