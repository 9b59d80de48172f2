"""Labels of a language model: how much of the probability of its first token belongs to each of them.

A token belongs to a label that begins with it, without regard to blanks before it and to case: "positive", " positive",
"Positive" and "pos" all say *positive*. The scores of a prompt are these masses, renormalised over the labels.
"""

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from scoreveil.inference_protocol.errors import ApiError
from scoreveil.inference_protocol.tensors import Array

BLANKS = " \t\r\n\u2581\u0120\u010a"  # the last three are how tokenizers write a space or the end of a line
MAX_SHARED = 0.01  # of the labels' mass: what tokens may have with which several labels begin


class NoLabel(ApiError):
    """Nothing of any label is among the likeliest first tokens."""

    def __init__(self) -> None:
        words = "The model's answer begins with none of the labels"
        super().__init__(502, f"{words}; say in the prompt to answer with one of them alone.", "no_label")


def folded(text: str) -> str:
    """A token or label as they are compared."""
    return text.strip(BLANKS).casefold()


def check_labels(labels: Sequence[str]) -> None:
    """Raise ValueError where the labels cannot be told apart by how they begin."""
    if len(labels) < 2:
        raise ValueError(f"Expected at least two labels, got {len(labels)}.")
    for label in labels:
        if not folded(label) or label != label.strip() or not label.isprintable():
            raise ValueError("A label is a text on one line, with no blanks around it.")
    for one, other in itertools.combinations(sorted(labels, key=folded), 2):
        if folded(other).startswith(folded(one)):
            words = "so the first token cannot tell them apart; rename one, here and in the prompt"
            raise ValueError(f"The label {other!r} begins with the label {one!r}, {words}.")


def label_scores(listed: Iterable[tuple[str, float]], labels: Sequence[str]) -> Array:
    """One score vector, (1, labels), from the first token's likeliest values and their logprobs.

    A label of which nothing is listed has somewhere between nothing and what the last one listed has, or what is left;
    it gets half of that. So it is never the top one.

    Raises:
        ApiError: Nothing of any label is listed, or labels share their first token.
    """
    names = [folded(label) for label in labels]
    masses, shared, total, least = np.zeros(len(labels)), 0.0, 0.0, 1.0
    for token, logprob in listed:
        mass = math.exp(min(logprob, 0.0))
        total, least = total + mass, min(least, mass)
        start = folded(token)
        owners = [i for i, name in enumerate(names) if start and name.startswith(start)]
        if len(owners) == 1:
            masses[owners[0]] += mass
        elif owners:
            shared += mass
    known = masses.sum()
    if shared > MAX_SHARED * known:
        words = "Several labels begin with the same token, so the model's answer cannot be read"
        raise ApiError(502, f"{words}; the gateway's operator has to rename them.", "labels_alike")
    if not known > 0:
        raise NoLabel
    unseen = masses == 0
    masses[unseen] = min(least, max(0.0, 1.0 - total) / max(1, unseen.sum())) / 2
    return np.asarray((masses / masses.sum())[None])
