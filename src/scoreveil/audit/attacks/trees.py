"""The strong generic attackers: a random forest and gradient boosting on everything there is to read.

Trees do not care about monotone changes of a column, and the log-ratios are among the columns, so they see through a
defense that only rescales. On ranks alone they are the floor of every defense that keeps the ranking.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from scoreveil.arrays import Floats
from scoreveil.audit.attacks.features import at, descending, log_odds, log_ratios, logarithms, ranks
from scoreveil.audit.attacks.interface import Features, Fit, Scorer
from scoreveil.audit.data.records import Membership, Records

Columns = NDArray[np.float32]  # trees read float32; everything fine-grained is a logarithm by then


def random_forest(seed: int) -> Any:
    # small leaves would learn the shadow by heart; threads would add up the trees in any order, and spoil each other's
    # warning filters, while the study's processes use the cores already
    return RandomForestClassifier(100, min_samples_leaf=20, class_weight="balanced", random_state=seed)


def gradient_boosting(seed: int) -> Any:
    return HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_iter=200,
        max_leaf_nodes=15,
        min_samples_leaf=20,
        class_weight="balanced",
        early_stopping=True,
        random_state=seed,
    )


def all_columns(records: Records) -> Columns:
    """Scores, their logarithms and log-ratios, ranks; top score, margin and entropy."""
    scores, sorted_scores, logs = records.scores, descending(records.scores), logarithms(records.scores)
    summary = (
        log_odds(scores, records.predicted),
        sorted_scores[:, 0],
        sorted_scores[:, 0] - sorted_scores[:, 1],
        -(scores * logs).sum(axis=1),
    )
    return _side_by_side(scores, logs, log_ratios(scores), ranks(scores), *summary)


def all_columns_known(records: Records) -> Columns:
    """The same, and the true label, its score, and whether the model is right."""
    labels = records.true_labels
    return _side_by_side(
        all_columns(records), rank_columns_known(records), log_odds(records.scores, labels), at(records.scores, labels)
    )


def rank_columns(records: Records) -> Columns:
    return _side_by_side(ranks(records.scores))


def rank_columns_known(records: Records) -> Columns:
    place, labels = ranks(records.scores), records.true_labels
    return _side_by_side(place, labels, at(place, labels), records.is_right)


def fit_by(make: Callable[[int], Any], columns: Callable[[Records], Columns]) -> Fit:
    """An attack's `fit` from a classifier and the columns that it reads."""

    def fit(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
        model = make(int(rng.integers(2**31)))
        with one_thread():
            model.fit(columns(shadow.records), shadow.truth)

        def score(records: Records) -> Floats:
            with one_thread():
                return np.asarray(model.predict_proba(columns(records))[:, 1], dtype=np.float64)

        return score

    return fit


def one_thread() -> Any:
    """For boosting, whose threads wait for each other: on cores that are shared they cost more than they bring."""
    return threadpool_limits(1, user_api="openmp")


def _side_by_side(*blocks: NDArray[Any]) -> Columns:
    return np.column_stack(blocks).astype(np.float32)
