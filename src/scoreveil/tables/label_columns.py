"""scikit-learn's probabilities of several labels a record, as one column for each label.

A list of (n, 2), one for each label, where classifiers stand side by side (MultiOutputClassifier, neighbours, trees);
(n, 1) for a label that had one value in training; a matrix (n, labels) already, where one classifier has them all.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.shapes import Shape


def check_values(classes: Any) -> None:
    """Refuse a classifier of which one label is not a yes or no.

    Args:
        classes: Its `classes_`; a list of the values of each label, where classifiers stand side by side.

    Raises:
        ValueError: A label has more than two values, or one that is neither 0 nor 1.
    """
    for i, values in enumerate(classes if isinstance(classes, list) else ()):
        if len(values) > 2:
            raise ValueError(f"Label {i} has {len(values)} values; many labels are a yes or no each.")
        if len(values) == 1 and values[0] not in (0, 1):  # False and True among them
            raise ValueError(f"Label {i} had one value in training, which is neither 0 nor 1.")


def yes_columns(answer: Any, classes: Any) -> NDArray[Any]:
    """The probability of each label's yes, the second of its two values, (n, labels).

    Args:
        answer: Of `predict_proba`.
        classes: The classifier's `classes_`, which `check_values` has seen.
    """
    if not isinstance(answer, list):
        return np.asarray(answer)
    columns = []
    for scores, values in zip(map(np.asarray, answer), classes, strict=True):
        columns.append(scores[:, 1] if len(values) == 2 else np.full(len(scores), values[0], dtype=scores.dtype))
    return np.column_stack(columns)


def asked_scores(answer: Any, shape: Shape, classes: Any = None) -> NDArray[Any]:
    """What `predict_proba` answered, as scores of a shape.

    Args:
        answer: An array, or a list of them, one for each label.
        shape: Of the veil: of many labels the yes of each is taken, of one column that of the second class.
        classes: The classifier's `classes_`, where they are known.

    Raises:
        ValueError: There are several labels a record, and the shape has none; or one is not a yes or no.
    """
    if not (isinstance(answer, list) and answer and np.ndim(answer[0]) == 2):
        scores = np.asarray(answer)
        return shape.of_classes(scores) if scores.ndim == 2 and scores.shape[1] == 2 else scores
    if not shape.has_labels:
        raise ValueError("The classifier has several labels a record; give the veil shape=MultiLabel().")
    if not isinstance(classes, list):
        classes = [range(np.shape(scores)[1]) for scores in answer]
        if any(len(values) < 2 for values in classes):
            raise ValueError("A label has one column, and whether that is its yes is not known; give two for each.")
    check_values(classes)
    return yes_columns(answer, classes)
