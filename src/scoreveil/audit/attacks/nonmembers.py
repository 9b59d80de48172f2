"""How far a record stands above non-members like it: attacks whose order is learned from non-members alone.

    population  (Ye et al. 2022, attack P; Privacy Meter's): "like it" is of the same class
    quantile    (Bertran et al. 2023): of the same class, and with the same rest of the score vector

They need no shadow that was trained as the target was: non-members look much the same under every model. Members of the
shadow only choose the common level from which on the attacks say "member".

Bertran et al. learn the quantiles of the signal from the inputs. Here the attacker has scores, and what these say of a
record beside the signal is how the model shares out what it leaves to the other classes: p_i / max_{j≠c} p_j for i ≠ c
does not depend on p_c, but tells a picture of a shoe that is nearly a boot from one that is nothing else.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.features import SMALLEST_FLOAT, balancing_weights
from scoreveil.audit.attacks.interface import Features, Fit, Scorer
from scoreveil.audit.attacks.thresholds import Signal, threshold
from scoreveil.audit.attacks.trees import Columns, one_thread
from scoreveil.audit.data.records import Membership, Records

Level = Callable[[Floats, Integers, Records], Floats]  # signals, classes and records to how far above the others
Learn = Callable[[Floats, Integers, Records, int], Level]  # the same of non-members, and a seed, to that

FEWEST = 20  # non-members of a class; with fewer, those of all classes stand in
UPPER = 0.84  # the quantile that lies one standard deviation above the median of a Gaussian
MIN_SPREAD = 0.1  # of what it is on average: a spread of nearly 0 would put any record at the top


def fit_by(signal: Signal, classes_of: Callable[[Records], Integers], learn: Learn) -> Fit:
    """An attack's `fit` from a signal, the class that it is about, and what is learned from non-members."""

    def fit(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
        others = shadow.nonmembers
        level = learn(signal(others), classes_of(others), others, int(rng.integers(2**31)))

        def levels(records: Records) -> Floats:
            return level(signal(records), classes_of(records), records)

        cut = threshold(levels(shadow.records), shadow.truth, balancing_weights(shadow))
        return lambda records: 0.5 + levels(records) - cut

    return fit


def population(values: Floats, classes: Integers, nonmembers: Records, seed: int) -> Level:
    """The share of the class's non-members that lie below; beyond all of them it goes on by standard deviations."""
    every = _share_below(values)
    by_class = {
        int(c): _share_below(values[classes == c]) for c in np.unique(classes) if (classes == c).sum() >= FEWEST
    }

    def level(signals: Floats, of: Integers, records: Records) -> Floats:
        found = np.empty(len(signals))
        for c in np.unique(of):
            found[of == c] = by_class.get(int(c), every)(signals[of == c])
        return found

    return level


def _share_below(values: Floats) -> Callable[[Floats], Floats]:
    distinct, counts = np.unique(values, return_counts=True)
    shares = (np.cumsum(counts) - counts / 2) / len(values)
    deviation = values.std() or 1.0

    def share(signals: Floats) -> Floats:
        beyond = signals - np.clip(signals, distinct[0], distinct[-1])
        return np.asarray(np.interp(signals, distinct, shares) + beyond / deviation)

    return share


def quantile(values: Floats, classes: Integers, nonmembers: Records, seed: int) -> Level:
    """(s − median)/(upper quantile − median), both as boosted trees predict them for a non-member like this."""
    columns = rest_of_vector(nonmembers, classes)
    with one_thread():
        middle, upper = (_boosted(q, seed).fit(columns, values) for q in (0.5, UPPER))
        usual = float(np.abs(values - middle.predict(columns)).mean())

    def level(signals: Floats, of: Integers, records: Records) -> Floats:
        given = rest_of_vector(records, of)
        with one_thread():
            median, above = middle.predict(given), upper.predict(given)
        return np.asarray((signals - median) / np.maximum(above - median, MIN_SPREAD * usual + 1e-9))

    return level


def _boosted(q: float, seed: int) -> Any:
    return HistGradientBoostingRegressor(
        loss="quantile",
        quantile=q,
        learning_rate=0.1,
        max_iter=100,
        max_leaf_nodes=15,
        min_samples_leaf=20,
        early_stopping=True,
        random_state=seed,
    )


def rest_of_vector(records: Records, classes: Integers) -> Columns:
    """The class, and ln p_i − ln max_{j≠c} p_j of the others: in the order of the classes, and sorted."""
    chosen = np.arange(records.scores.shape[1]) == classes[:, None]
    logs = np.where(chosen, -np.inf, np.log(records.scores + SMALLEST_FLOAT))
    ratios = logs - logs.max(axis=1, keepdims=True)
    ordered = -np.sort(-ratios, axis=1)[:, 1:-1]  # the first is 0, the last that of the class itself
    return np.column_stack([classes, np.where(chosen, 1.0, ratios), ordered]).astype(np.float32)
