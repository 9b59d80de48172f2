"""Lists of labels with their scores, as models give them: as columns, and back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from scoreveil.arrays import Rows
from scoreveil.mechanisms.scores import BadRow

Pair = tuple[Any, float]


def read_pairs(rows: Sequence[object]) -> tuple[list[list[Pair]], bool]:
    """Lists of (label, score), or of {"label": …, "score": …}, as lists of pairs; and whether they are the latter.

    Raises:
        ValueError: Something else is listed; the message names the row.
    """
    is_object = any(isinstance(entry, Mapping) for row in rows if isinstance(row, list | tuple) for entry in row)
    return [_read_row(row, i, is_object) for i, row in enumerate(rows)], is_object


def _read_row(row: object, i: int, is_object: bool) -> list[Pair]:
    if not isinstance(row, list | tuple):
        raise BadRow(i, f"expected a list of labels and scores, got {type(row).__name__}")
    read = []
    for entry in row:
        if is_object:
            if not isinstance(entry, Mapping) or entry.keys() != {"label", "score"}:
                raise BadRow(i, 'expected {"label": …, "score": …} and nothing else in it')
            label, score = entry["label"], entry["score"]
        elif isinstance(entry, list | tuple) and len(entry) == 2:
            label, score = entry
        else:
            raise BadRow(i, "expected pairs of a label and a score")
        if isinstance(score, bool | np.bool_) or not isinstance(score, int | float | np.integer | np.floating):
            raise BadRow(i, f"expected a number for each score, got {type(score).__name__}")
        read.append((label, float(score)))
    return read


def as_columns(rows: Sequence[Sequence[Pair]]) -> tuple[list[list[Any]], Rows]:
    """Lists of (label, score), equally long, as labels and scores (n, k), in the order of the labels' names.

    Models list the largest first; that order tells more than is released, and goes here.
    """
    if len({len(row) for row in rows}) > 1:
        raise ValueError("Expected lists of one length; give those of another length in a batch of their own.")
    ordered = [sorted(row, key=lambda pair: str(pair[0])) for row in rows]
    labels = [[label for label, _ in row] for row in ordered]
    for i, row in enumerate(labels):
        if len(set(map(str, row))) < len(row):
            raise BadRow(i, "a label is listed twice")
    return labels, np.array([[score for _, score in row] for row in ordered], dtype=np.float64)


def veiled_pairs(veil: Callable[[Rows], Rows], rows: Sequence[object]) -> list[Any]:
    """The same lists with veiled scores: the largest first, equals in the order of their names.

    Raises:
        ValueError: These are no such lists, or the veil does not take their scores.
    """
    read, is_object = read_pairs(rows)
    veiled: list[Any] = [[] for _ in rows]
    for length in sorted({len(row) for row in read} - {0}):
        places = [i for i, row in enumerate(read) if len(row) == length]
        try:
            labels, scores = as_columns([read[i] for i in places])
            answers = veil(scores)
        except BadRow as bad:
            raise BadRow(places[bad.row], bad.fault, advice=bad.advice) from None
        for i, names, answer in zip(places, labels, answers.tolist(), strict=True):
            pairs = sorted(zip(names, answer, strict=True), key=lambda pair: (-pair[1], str(pair[0])))
            veiled[i] = [{"label": label, "score": score} for label, score in pairs] if is_object else pairs
    return veiled
