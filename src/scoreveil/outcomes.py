"""Answers as the few numbers that were drawn, and back: what a ledger keeps of an answer.

With one kept class, as by default, there are few answers for each label: they are made once, and looked up.
"""

from typing import Any

import numpy as np

from scoreveil import blocks
from scoreveil.mechanisms.mechanism import Mechanism, Rows
from scoreveil.randomness import KeyedDraws

MOST_TABLES = 256


class Outcomes:
    """The outcomes of one mechanism."""

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism
        self._tables: dict[tuple[int, Any, int], tuple[Rows, dict[bytes, int]]] = {}

    def drawn(self, rows: Rows, draws: KeyedDraws, tags: Rows | None) -> Rows:
        """(n, j) whole numbers below 2^16; `tags` are hashed ones, and the rows were checked."""
        if self._mechanism.different_answers is None:
            return self._mechanism.outcomes(rows, blocks.keyed_uniforms(self._mechanism, rows, draws, tags))
        answers = blocks.keyed(self._mechanism, rows, draws, tags)  # compiled, where it can be
        labels = rows.argmax(axis=1).tolist()
        found = [self._table(rows, label)[1][row[label].tobytes()] for row, label in zip(answers, labels, strict=True)]
        return np.array(found, dtype=np.uint16)[:, None]

    def answers(self, rows: Rows, outcomes: Rows) -> Rows:
        """The answers that the outcomes stand for; of the rows' scores only the kept classes count."""
        if self._mechanism.different_answers is None:
            return self._mechanism.answers(rows, outcomes)
        made = np.empty_like(rows)
        pairs = zip(rows.argmax(axis=1).tolist(), outcomes[:, 0].tolist(), strict=True)
        for i, (label, outcome) in enumerate(pairs):
            made[i] = self._table(rows, label)[0][outcome]
        return made

    def _table(self, rows: Rows, label: int) -> tuple[Rows, dict[bytes, int]]:
        """Every answer with this label, and which outcome has which top score."""
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
            self._tables[key] = answers, {answer[label].tobytes(): c for c, answer in enumerate(answers)}
        return self._tables[key]
