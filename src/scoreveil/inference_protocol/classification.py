"""Triton's classification extension: the top classes of each row as texts, `0.900000:3:cat`, made from veiled scores.

It tells nothing that the scores do not: it is computed from them. Classes with equal scores come by their number, so
that ranks which a veil does not keep are not told by the order either.
"""

from collections.abc import Sequence

import numpy as np

from scoreveil.inference_protocol.tensors import Array


def top_classes(scores: Array, count: int, names: Sequence[str] = ()) -> Array:
    """The `count` first classes of each row, by falling score: BYTES of shape (n, count), value, number and name."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    texts = np.empty(order.shape, dtype=object)
    for row, numbers in enumerate(order.tolist()):
        for rank, number in enumerate(numbers):
            shown = [f"{scores[row, number]:f}", str(number), *([names[number]] if names else [])]
            texts[row, rank] = ":".join(shown).encode()
    return texts
