"""Attacks that see labels only. No defense that keeps the label can stop them: they are the floor of every audit.

What they learn from the shadow is a table: how often a record in this cell (its predicted class, say) was a member.
Rare cells are drawn towards a coarser table.
"""

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.features import balancing_weights
from scoreveil.audit.attacks.interface import Features, Scorer
from scoreveil.audit.data.records import Membership, Records

STRENGTH = 20.0  # the coarser table counts as much as this many records


def gap(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
    """Member iff the label is right (Yeom et al. 2018): accuracy ½ + (train − test)/2. There is nothing to learn."""
    return lambda records: records.is_right.astype(np.float64)


def augmentation(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
    """By the number of augmented copies that get the true label (Choquette-Choo et al. 2021)."""

    def cells(records: Records) -> Integers:
        counts = (_variants(records) == records.true_labels[:, None]).sum(axis=1)
        return np.asarray(counts * 2 + records.is_right)

    copies = _variants(shadow.records).shape[1]
    table = frequencies(cells(shadow.records), np.full(2 * (copies + 1), 0.5), shadow)
    return lambda records: table[cells(records)]


def _variants(records: Records) -> Integers:
    if records.variants is None:
        raise ValueError(f"Expected the labels of augmented copies with the {len(records)} records, got scores alone.")
    return records.variants


def floor(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
    """By the predicted class alone."""
    table = frequencies(shadow.records.predicted, np.full(shadow.classes, 0.5), shadow)
    return lambda records: table[records.predicted]


def floor_known(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
    """By the predicted and the true class: right or wrong, then in which class, then taken for which other."""
    k, records = shadow.classes, shadow.records
    labels, right = records.true_labels, records.is_right
    by_right = frequencies(right.astype(np.int64), np.full(2, 0.5), shadow)
    by_class = frequencies(labels * 2 + right, np.tile(by_right, k), shadow).reshape(k, 2)
    coarse = np.where(np.eye(k, dtype=bool), by_class[:, 1:], by_class[:, :1])  # (true, predicted)
    table = frequencies(labels * k + records.predicted, coarse.ravel(), shadow).reshape(k, k)
    return lambda others: table[others.true_labels, others.predicted]


def frequencies(cells: Integers, coarse: Floats, shadow: Membership) -> Floats:
    """How often each cell holds a member, given the same guess by a coarser table."""
    weights = balancing_weights(shadow)
    members = np.bincount(cells, weights * shadow.truth, minlength=len(coarse))
    total = np.bincount(cells, weights, minlength=len(coarse))
    return np.asarray((members + STRENGTH * coarse) / (total + STRENGTH))
