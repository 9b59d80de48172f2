"""Lists of the largest: scores (n, k), and their classes in an output beside them that passes as it is.

A model lists the largest first. That order tells the ranks of all that are listed, and a veil keeps those of the top
classes alone. So a list is put in the order of its labels before it is veiled, and the largest answer first after.
What passes beside a list is moved along with it, or refused: another order would give the first one away.
"""

from collections.abc import Mapping

import numpy as np

from scoreveil.inference_protocol.tensors import Array

Arrays = Mapping[str, Array]


def labels(passed: Arrays) -> Array | None:
    """The output that names the classes of a list: the first that has as many columns; None where none passes."""
    return next((array for array in passed.values() if array.ndim > 1), None)


def by_label(scores: Array, passed: Arrays) -> tuple[Array, dict[str, Array]]:
    """Scores (n, k), and all that passes beside them, in the order of the labels.

    Raises:
        ValueError: An output beside the list is not one of its columns, or a label is listed twice.
    """
    if any(array.ndim > 1 and array.shape[1:2] != scores.shape[1:] for array in passed.values()):
        raise ValueError("An output that passes beside a list has other columns.")
    names = labels(passed)
    if names is None:
        return scores, dict(passed)
    if names.ndim != 2:
        raise ValueError("The labels of a list are one for each score.")
    order = np.argsort(names, axis=1, kind="stable")
    ordered = np.take_along_axis(names, order, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise ValueError("A label is listed twice.")
    return _moved(scores, order), {name: _moved(array, order) for name, array in passed.items()}


def largest_first(veiled: Array, passed: Arrays) -> tuple[Array, dict[str, Array]]:
    """The same by falling veiled scores; equals stay in the order of their labels."""
    order = np.argsort(-veiled, axis=1, kind="stable")
    return _moved(veiled, order), {name: _moved(array, order) for name, array in passed.items()}


def _moved(array: Array, order: Array) -> Array:
    if array.ndim < 2:
        return array  # of the whole list
    return np.take_along_axis(array, order.reshape(*order.shape, *(1,) * (array.ndim - 2)), axis=1)
