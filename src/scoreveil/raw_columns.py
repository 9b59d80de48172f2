"""Columns that give scores away beside the veiled ones: by their name, or because they hold one."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

RAW = re.compile(
    r"score|logit|margin|confiden|certain|prob(?![a-z])|proba|probs|likelihood|logp|softmax|sigmoid|entropy|loss(?![a-z])",
    re.IGNORECASE,
)


def looking_raw(scores: NDArray[Any], others: Iterable[tuple[Any, str, NDArray[np.float64]]]) -> list[Any]:
    """Columns of numbers that have the name of a score, or are one: equal to a score, to the largest, or its rest.

    Args:
        scores: The raw scores, (n, k).
        others: The other columns of numbers: what to call each, its name, and its numbers.
    """
    top = np.max(scores, axis=1, initial=-np.inf)
    known = [*scores.T, top, 1 - top]
    found = []
    for column, name, numbers in others:
        same = len(numbers) > 0 and any(np.isclose(numbers, each, rtol=0, atol=1e-6).mean() > 0.9 for each in known)
        if RAW.search(name) or (same and len(np.unique(numbers)) > 2):
            found.append(column)
    return list(dict.fromkeys(found))
