"""Answers that keep the label alone: one number for the label, and another for every other class.

Both mechanisms that give such answers draw, write and key them by these loops. There is no exponential in them, nor a
sum in another order, so that a machine without numba gives the same bytes.
"""

from collections.abc import Callable
from functools import cache

import numba
import numpy as np

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms import messages
from scoreveil.mechanisms.kernels.common import ScoreType, bits_of_float, loop_rows, options
from scoreveil.mechanisms.loading import KeyedKernel
from scoreveil.randomness import KeyedDraws, Words

# (the labels' numbers, the others' numbers) of every answer: (labels, answers), or (1, answers) where all labels share
Numbers = Callable[[ScoreType], tuple[Rows, Rows]]
# (rows, labels, cells) -> the first row that is not a score vector, or -1; labels and cells are to be filled in
Read = Callable[[Rows, Integers, Integers], int]


@numba.njit(**options)
def answer(
    labels: Integers, cells: Integers, uniforms: Floats, below: Floats, tops: Rows, others: Rows, out: Rows
) -> None:
    """Write the answer that each row draws: as many as `below`, its cell's cumulative chances, are <= its uniform.

    With no uniforms the cells are the answers.
    """
    several = len(tops) > 1
    for r in range(len(out)):
        number = cells[r]
        if len(uniforms):
            chances, number = below[cells[r]], 0
            for i in range(len(chances) - 1):
                number += chances[i] <= uniforms[r]
        label = labels[r]
        of = label if several else 0
        other = others[of, number]
        for i in range(out.shape[1]):
            out[r, i] = other
        out[r, label] = tops[of, number]


@numba.njit(**options)
def _answer_words(
    labels: Integers, cells: Integers, words: Words, below: Floats, tops: Rows, others: Rows, out: Rows
) -> None:
    """The answers that the first words of each row draw, as `randomness.to_uniforms` has it."""
    uniforms = np.empty(len(words))
    for r in range(len(words)):
        uniforms[r] = np.float64(words[r, 0] >> np.uint64(12)) * 2.0**-52
    answer(labels, cells, uniforms, below, tops, others, out)


@numba.njit(**options)
def _magnitudes(rows: Rows, smallest: float, exponent: int, magnitude: Rows) -> None:
    """The order of magnitude of every score, as `messages` has it."""
    for r in range(len(rows)):
        for i in range(rows.shape[1]):
            value = np.float64(rows[r, i])
            magnitude[r, i] = bits_of_float(value if value > smallest else smallest) >> exponent


def for_loops(numbers: Numbers) -> Numbers:
    """The same numbers in the dtype that loops write, made once for each dtype that answers have."""

    @cache
    def made(dtype: ScoreType) -> tuple[Rows, Rows]:
        wide = np.float64 if dtype == np.float16 else dtype
        tops, others = numbers(dtype)
        return tops.astype(wide), others.astype(wide)

    return made


def bind_keyed(classes: int, read: Read, below: Floats, numbers: Numbers) -> KeyedKernel:
    """Keyed answers of a mechanism whose cells draw by `below`."""

    def run(rows: Rows, keyed: KeyedDraws, tags: Rows | None) -> Rows | None:
        scores = loop_rows(rows)
        labels, cells = np.empty((2, len(rows)), dtype=np.int64)
        if read(scores, labels, cells) >= 0:
            return None
        message = messages.empty(len(rows), classes, 1, tags=tags)
        if tags is None:
            _magnitudes(scores, messages.SMALLEST, int(messages.EXPONENT), message["magnitude"])
        message["kept"], message["cell"] = labels[:, None], cells[:, None]
        words, out = keyed.words(messages.as_bytes(message), 1), np.empty(rows.shape, dtype=scores.dtype)
        _answer_words(labels, cells, words, below, *numbers(rows.dtype), out)
        return out.astype(rows.dtype, copy=False)

    return run
