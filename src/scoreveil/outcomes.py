"""Answers as the few numbers that were drawn, and back: what a ledger keeps of an answer.

With one kept class, as by default, there are few answers for each label: they are made once, and looked up.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from scoreveil import blocks
from scoreveil.mechanisms.mechanism import Mechanism, Rows
from scoreveil.randomness import KeyedDraws

MOST_TABLES = 256
FEW = 64  # scores of one row: numpy's argmax would let other threads in, which costs more than to look at them here


class Outcomes:
    """The outcomes of one mechanism."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._tables: dict[tuple[int, Any, int], Table] = {}

    def drawn(self, rows: Rows, draws: KeyedDraws, tags: Rows | None) -> Rows:
        """(n, j) whole numbers below 2^16; `tags` are hashed ones, and the rows were checked."""
        if self._mechanism.different_answers is None:
            return self._mechanism.outcomes(rows, blocks.keyed_uniforms(self._mechanism, rows, draws, tags))
        answers = blocks.keyed(self._mechanism, rows, draws, tags)  # compiled, where it can be
        found = np.empty((len(rows), 1), dtype=np.uint16)
        for label, some in _by_label(rows):
            table = self._table(rows, label)
            found[some, 0] = table.outcomes[np.searchsorted(table.tops, answers[some, label])]
        return found

    def answers(self, rows: Rows, outcomes: Rows) -> Rows:
        """The answers that the outcomes stand for; of the rows' scores only the kept classes count."""
        if self._mechanism.different_answers is None:
            return self._mechanism.answers(rows, outcomes)
        made = np.empty_like(rows)
        for label, some in _by_label(rows):
            made[some] = self._table(rows, label).answers[outcomes[some, 0]]
        return made

    def _table(self, rows: Rows, label: int) -> "Table":
        key = rows.shape[1], rows.dtype, label
        if key not in self._tables:
            if len(self._tables) >= MOST_TABLES:
                self._tables.clear()
            count = self._mechanism.different_answers
            assert count is not None
            labelled = np.zeros((count, rows.shape[1]), dtype=rows.dtype)
            labelled[:, label] = 1
            answers = self._mechanism.answers(labelled, np.arange(count, dtype=np.uint16)[:, None])
            # the last of two with the same top score: levels below 1/k are never drawn
            tops, last = np.unique(answers[::-1, label], return_index=True)
            self._tables[key] = Table(answers, tops, count - 1 - last)
        return self._tables[key]


class Table(NamedTuple):
    """Every answer with one label, by outcome; and which outcome has which top score, in their order."""

    answers: Rows
    tops: Rows
    outcomes: Rows


def _by_label(rows: Rows) -> Iterator[tuple[int, Any]]:
    """Each label that occurs, and which rows have it."""
    if rows.size <= FEW and len(rows) == 1:
        (scores,) = rows.tolist()
        yield scores.index(max(scores)), slice(None)
        return
    labels = rows.argmax(axis=1)
    if len(labels) == 1:
        yield int(labels[0]), slice(None)
        return
    for label in np.flatnonzero(np.bincount(labels)).tolist():
        yield label, labels == label
