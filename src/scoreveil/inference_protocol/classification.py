"""Triton's classification extension: the top classes of each row as texts, `0.900000:3:cat`, made from veiled scores.

It tells nothing that the scores do not: it is computed from them. Classes with equal scores come by their number, so
that ranks which a veil does not keep are not told by the order either.
"""

from collections.abc import Sequence

import numpy as np

from scoreveil.inference_protocol.tensors import Array


def top_classes(scores: Array, count: int, names: Sequence[str] | Array | None = ()) -> Array:
    """The `count` first classes of each row, by falling score: BYTES of shape (n, count), value, number and name.

    `names` are those of the columns; or, of scores that are lists, an array of the labels that each row lists: numbers
    stand in the place of a column's, texts are names.
    """
    columns = scores.reshape(len(scores), -1)  # one for each row may be one number
    order = np.argsort(-columns, axis=1, kind="stable")[:, :count]
    texts = np.empty(order.shape, dtype=object)
    for row, numbers in enumerate(order.tolist()):
        for rank, number in enumerate(numbers):
            texts[row, rank] = b":".join([b"%f" % columns[row, number], *_called(row, number, names)])
    return texts


def _called(row: int, number: int, names: Sequence[str] | Array | None) -> list[bytes]:
    place = b"%d" % number
    if isinstance(names, np.ndarray):
        label = names[row, number]
        return [place, label] if isinstance(label, bytes) else [str(label).encode()]
    return [place, names[number].encode()] if names else [place]
