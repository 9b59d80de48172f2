"""scikit-learn's probabilities of several labels a record, as one column for each label.

A list of (n, 2), one for each label, where classifiers stand side by side (MultiOutputClassifier, neighbours, trees);
(n, 1) for a label that had one value in training; a matrix (n, labels) already, where one classifier has them all.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def yes_columns(given: Any, classes: Any) -> NDArray[Any]:
    """The probability of each label's yes, (n, labels): that of the second of two values.

    Args:
        given: What `predict_proba` answered.
        classes: The classifier's `classes_`: where `given` is a list, the values of each label.

    Raises:
        ValueError: A label has more than two values, or one that is neither a yes nor a no.
    """
    if not isinstance(given, list):
        return np.asarray(given)
    return np.column_stack([_yes(np.asarray(each), classes[i], i) for i, each in enumerate(given)])


def _yes(probabilities: NDArray[Any], values: NDArray[Any], label: int) -> NDArray[Any]:
    if len(values) == 2:
        return np.asarray(probabilities[:, 1])
    if len(values) > 2:
        raise ValueError(f"Label {label} has {len(values)} values; many labels are a yes or no each.")
    if values[0] not in (0, 1):  # False and True among them
        raise ValueError(f"Label {label} had one value in training, which is neither 0 nor 1.")
    return np.full(len(probabilities), values[0], dtype=probabilities.dtype)
