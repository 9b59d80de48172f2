"""What is typical: a public reference, counted from scores that need no protection.

The isotonic mechanism may lean on any measure that depends on the kept classes alone without losing its guarantee.
`Reference` holds two such things, per top class, with back-off to all classes where a class is rare:

    measure  q_i(g), the smoothed histogram of the i-th largest score on the grid
    profile  how the other classes share what the top class leaves, on average

Count it from held-out scores: public records, or at least none of the protected ones.
"""

from dataclasses import dataclass

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.mechanisms.ordering import rank

RARE = 16  # a class with fewer reference rows uses the pooled tables
BACK_OFF = 32  # pseudo-counts of the pooled table in the table of a class
MAX_ENTRIES = 1 << 22  # of measure and profile together; the most frequent classes get a table of their own


@dataclass(frozen=True, eq=False)
class Reference:
    """Tables counted from public scores. Table 0 is the pooled one; `table_of_class` says which a top class uses."""

    table_of_class: Integers  # (k,)
    measure: Floats  # (tables, kept, levels); each row sums to 1 and is positive
    profile: Floats  # (tables, k); each row sums to 1

    def __post_init__(self) -> None:
        arrays = (self.table_of_class, self.measure, self.profile)
        kinds, shapes = [array.dtype for array in arrays], [array.shape for array in arrays]
        if kinds != [np.int64, np.float64, np.float64]:
            raise ValueError(f"Expected tables of int64, float64 and float64, got {', '.join(map(str, kinds))}.")
        if list(map(len, shapes)) != [1, 3, 2] or shapes[2] != (shapes[1][0], shapes[0][0]):
            raise ValueError(
                "Expected table_of_class (k,), measure (tables, kept, levels) and profile (tables, k), "
                f"got shapes {', '.join(map(str, shapes))}."
            )
        tables = len(self.measure)
        if not (np.all(self.table_of_class >= 0) and np.all(self.table_of_class < tables)):
            raise ValueError(f"Expected table numbers from 0 to {tables - 1}.")
        for name, rows in (("measure", self.measure), ("profile", self.profile)):
            if not (np.all(np.isfinite(rows)) and np.all(rows > 0) and np.allclose(rows.sum(axis=-1), 1)):
                raise ValueError(f"Expected each row of the {name} to be positive and to sum to 1.")

    @property
    def classes(self) -> int:
        return int(self.table_of_class.shape[0])

    @property
    def kept(self) -> int:
        return int(self.measure.shape[1])

    @property
    def levels(self) -> int:
        return int(self.measure.shape[2])


def count(scores: Floats, kept: int, levels: int) -> Reference:
    """Count a reference from checked (n, k) scores, for the `kept` top classes on a grid of `levels`."""
    n, k = scores.shape
    if n < 1:
        raise ValueError("The reference has no rows; it needs at least one.")
    scores = scores / scores.sum(axis=1, keepdims=True)
    order = rank(scores)
    top = order[:, -1]
    descending = np.take_along_axis(scores, order[:, ::-1][:, :kept], axis=1)
    others = scores.copy()
    np.put_along_axis(others, top[:, None], 0.0, axis=1)

    frequency = np.bincount(top, minlength=k)
    most_tables = max(1, MAX_ENTRIES // (kept * levels + k))
    frequent = [int(c) for c in np.argsort(-frequency, kind="stable")[: most_tables - 1] if frequency[c] >= RARE]
    table_of_class = np.zeros(k, dtype=np.int64)
    table_of_class[frequent] = np.arange(1, len(frequent) + 1)

    pooled_measure = smoothed(histogram(descending, levels), n, np.full((kept, levels), 1 / levels), 1.0)
    pooled_profile = smoothed(others.sum(axis=0), others.sum(), np.full(k, 1 / k), 1e-3)
    measure, profile = [pooled_measure], [pooled_profile]
    for c in frequent:
        mine = top == c
        measure.append(smoothed(histogram(descending[mine], levels), mine.sum(), pooled_measure, BACK_OFF))
        rest = others[mine].sum(axis=0)
        # as many pseudo-counts here, each worth the mass that one row leaves to the other classes
        back_off = BACK_OFF * max(rest.sum() / mine.sum(), 1e-6)
        profile.append(smoothed(rest, rest.sum(), pooled_profile, back_off))
    return Reference(table_of_class, np.stack(measure), np.stack(profile))


def histogram(descending: Floats, levels: int) -> Floats:
    """Counts (kept, levels): each score is shared between the two grid points around it."""
    kept = descending.shape[1]
    position = np.clip(descending, 0, 1) * (levels - 1)
    below = np.minimum(position.astype(np.int64), levels - 2)
    share = position - below
    counts = np.zeros((kept, levels))
    for i in range(kept):
        counts[i] += np.bincount(below[:, i], weights=1 - share[:, i], minlength=levels)
        counts[i] += np.bincount(below[:, i] + 1, weights=share[:, i], minlength=levels)
    return counts


def smoothed(counts: Floats, total: float, prior: Floats, weight: float) -> Floats:
    """(counts + weight·prior) / (total + weight), normalised: positive wherever the prior is."""
    mixed = (counts + weight * prior) / (total + weight)
    return np.asarray(mixed / mixed.sum(axis=-1, keepdims=True))
