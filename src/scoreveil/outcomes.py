"""Answers as the few numbers that were drawn, and back: what a ledger keeps of an answer.

With one kept class, as by default, there are few answers for each label: they are made once, and looked up.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from scoreveil import blocks
from scoreveil.arrays import Rows
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.randomness import KeyedDraws

MAX_TABLES = 256
MAX_STACKED = 64  # classes of which all labels' tables are looked up at once
FEW = 64  # scores of one row: numpy's argmax would let other threads in, which costs more than to look at them here


class Outcomes:
    """The outcomes of one mechanism."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._tables: dict[tuple[int, Any, int], AnswerTable] = {}
        self._stacks: dict[tuple[int, Any], Rows] = {}  # every answer, by label and outcome

    def drawn(self, rows: Rows, draws: KeyedDraws, tags: Rows | None) -> Rows:
        """(n, j) whole numbers below 2^16; `tags` are hashed ones, and the rows were checked."""
        if self._mechanism.different_answers is None:
            return self._mechanism.outcomes(rows, blocks.keyed_uniforms(self._mechanism, rows, draws, tags))
        answers = blocks.keyed(self._mechanism, rows, draws, tags)  # compiled, where it can be
        if _are_stacked(rows):
            labels = rows.argmax(axis=1)
            stack, classes = self._stack(rows), np.arange(rows.shape[1])
            tops = stack[classes, ::-1, classes]  # the last of two with the same top score comes first
            is_top = tops[labels] == answers[np.arange(len(rows)), labels][:, None]
            return np.asarray(tops.shape[1] - 1 - is_top.argmax(axis=1)[:, None], dtype=np.uint16)
        outcomes = np.empty((len(rows), 1), dtype=np.uint16)
        for label, some in _by_label(rows):
            table = self._table(rows, label)
            outcomes[some, 0] = table.outcomes[np.searchsorted(table.tops, answers[some, label])]
        return outcomes

    def answers(self, rows: Rows, outcomes: Rows) -> Rows:
        """The answers that the outcomes stand for; of the rows' scores only the kept classes count."""
        if self._mechanism.different_answers is None:
            return self._mechanism.answers(rows, outcomes)
        if _are_stacked(rows):
            return np.asarray(self._stack(rows)[rows.argmax(axis=1), outcomes[:, 0]])
        answers = np.empty_like(rows)
        for label, some in _by_label(rows):
            answers[some] = self._table(rows, label).answers[outcomes[some, 0]]
        return answers

    def _stack(self, rows: Rows) -> Rows:
        key = rows.shape[1], rows.dtype
        if key not in self._stacks:
            self._stacks[key] = np.stack([self._table(rows, label).answers for label in range(rows.shape[1])])
        return self._stacks[key]

    def _table(self, rows: Rows, label: int) -> "AnswerTable":
        key = rows.shape[1], rows.dtype, label
        if key not in self._tables:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
            count = self._mechanism.different_answers
            assert count is not None
            labelled = np.zeros((count, rows.shape[1]), dtype=rows.dtype)
            labelled[:, label] = 1
            answers = self._mechanism.answers(labelled, np.arange(count, dtype=np.uint16)[:, None])
            # the last of two with the same top score: levels below 1/k are never drawn
            tops, last = np.unique(answers[::-1, label], return_index=True)
            self._tables[key] = AnswerTable(answers, tops, count - 1 - last)
        return self._tables[key]


class AnswerTable(NamedTuple):
    """Every answer with one label, by outcome; and which outcome has which top score, in their order."""

    answers: Rows
    tops: Rows
    outcomes: Rows


def _are_stacked(rows: Rows) -> bool:
    return len(rows) > 1 and rows.shape[1] <= MAX_STACKED


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
