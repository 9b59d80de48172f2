"""What a model gives, as scores: a probability for each class, or for each yes.

outputs = "scores"    probabilities already; one column is that of the second of two classes
outputs = "logits"    softmax turns them into probabilities; the sigmoid, where each is a yes or no of its own

Without a shape, one column becomes two. With one, scores are served as they come.
"""

from typing import Literal

import numpy as np
from msgspec import structs

from scoreveil.inference_protocol.tensors import Array, TensorSpec
from scoreveil.shapes import VECTORS, Shape

Outputs = Literal["scores", "logits"]
MAX_AXES = 3  # of logits: of pictures they have their classes before the places, and softmax would take another axis


def probabilities(rows: Array, outputs: Outputs, shape: Shape = VECTORS) -> Array:
    """A model's output as probabilities, in the same dtype. What cannot be scores stays as it is."""
    if rows.ndim == 0 or rows.dtype.kind not in "fiu":
        return rows
    column = shape.is_plain and rows.ndim == 2 and rows.shape[1] == 1
    in_logits = outputs == "logits" and not shape.takes_logits  # a veil may take them as they are
    if not (in_logits or column) or rows.ndim > MAX_AXES:
        return rows
    wide = rows.astype(np.float64)
    if column:
        wide = np.hstack([np.zeros_like(wide), wide] if in_logits else [1 - wide, wide])
    if in_logits:
        with np.errstate(invalid="ignore", over="ignore"):  # infinite logits become NaN, which is no score
            made = shape.of_logits(wide)
        wide = np.where(np.isfinite(wide), made, np.nan) if shape.is_binary else made
    return wide.astype(rows.dtype if rows.dtype.kind == "f" else np.float64)


def declared(spec: TensorSpec, shape: Shape = VECTORS) -> TensorSpec:
    """The tensor that is served, where the model declares this one."""
    return structs.replace(spec, shape=(spec.shape[0], 2)) if shape.is_plain and spec.shape[1:] == (1,) else spec
