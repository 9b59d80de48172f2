"""Attacks on whole answers with many labels.

An answer is (n, labels, 2): of each label the scores of no and yes. True labels are (n, labels), 0 or 1. The floors
read the yes or no of every label and nothing else: no defense that keeps them can go below.
"""

from collections.abc import Callable

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks import thresholds, trees
from scoreveil.audit.attacks.features import SMALLEST_FLOAT
from scoreveil.audit.attacks.interface import Attack, Fit
from scoreveil.audit.data.records import Records


def _log_odds(records: Records) -> Floats:
    """ln(yes / no) of every label."""
    logs = np.log(records.scores + SMALLEST_FLOAT)
    return np.asarray(logs[..., 1] - logs[..., 0])


def _says_yes(records: Records) -> Integers:
    return np.asarray(records.scores.argmax(axis=-1))


def _sure_of_truth(records: Records) -> Floats:
    return np.asarray(np.where(records.true_labels == 1, 1, -1) * _log_odds(records))


def confidence(records: Records) -> Floats:
    """How sure all labels are, on average."""
    return np.asarray(np.abs(_log_odds(records)).mean(axis=1))


def true_confidence(records: Records) -> Floats:
    """How sure all labels are of the truth, on average."""
    return np.asarray(_sure_of_truth(records).mean(axis=1))


def _threshold(signal: Callable[[Records], Floats]) -> Fit:
    """One number for each record, and one threshold."""
    return thresholds.fit_by(signal, lambda records: np.zeros(len(records), dtype=np.int64))


def _columns(records: Records) -> trees.Columns:
    odds = _log_odds(records)
    return np.column_stack([odds, np.sort(np.abs(odds), axis=1), confidence(records)]).astype(np.float32)


def _columns_known(records: Records) -> trees.Columns:
    sure = _sure_of_truth(records)
    every = (_columns(records), sure, np.sort(sure, axis=1), true_confidence(records), _floor_columns_known(records))
    return np.column_stack(every).astype(np.float32)


def _floor_columns(records: Records) -> trees.Columns:
    yes = _says_yes(records)
    return np.column_stack([yes, yes.sum(axis=1)]).astype(np.float32)


def _floor_columns_known(records: Records) -> trees.Columns:
    right = _says_yes(records) == records.true_labels
    every = [_floor_columns(records), records.true_labels, right, right.sum(axis=1)]
    return np.column_stack(every).astype(np.float32)


def _forest(columns: Callable[[Records], trees.Columns]) -> Fit:
    return trees.fit_by(trees.random_forest, columns)


ON_WHOLE_ANSWERS = (
    Attack("max_confidence", _threshold(confidence)),
    Attack("true_confidence", _threshold(true_confidence), knows_label=True),
    Attack("random_forest", _forest(_columns)),
    Attack("random_forest_known", _forest(_columns_known), knows_label=True),
    Attack("label_floor", _forest(_floor_columns), "label"),
    Attack("label_floor_known", _forest(_floor_columns_known), "label", knows_label=True),
)
