"""From the solver's table to integers that keep the promises exactly.

Answers that mean nearly the same are joined: to add two columns never breaks a promise. Then each column is rounded
between an integer and e^ε times it, rounded down, so that no two entries of it are further apart than ε allows.
"""

import math

import numpy as np
from numpy.typing import NDArray

from scoreveil.fitting.histograms import NOISE
from scoreveil.mechanisms.promises import WHOLE, exponential_below

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

LEAST_GAIN = 2.0  # in log-likelihood, that it must bring to tell two answers apart


def join_answers(table: Floats, outcomes: Floats) -> Floats:
    """Neighbouring answers added up, until confidences rise and each brings something.

    Args:
        table: Chances (bins, answers), by ascending confidence.
        outcomes: How often each rank is right in each bin, (bins, keep + 1), in records.
    """
    columns = [column.copy() for column in table.T]
    while len(columns) > 1:
        counts = np.array([column @ outcomes for column in columns])
        rate = (counts[:, 0] + 1e-9) / (counts.sum(axis=1) + 2e-9)
        gain = _likelihood(counts[:-1]) + _likelihood(counts[1:]) - _likelihood(counts[:-1] + counts[1:])
        gain = np.where(rate[1:] <= rate[:-1], -1.0, gain * _told_from_noise(columns, counts))
        least = int(np.argmin(gain))
        if gain[least] >= LEAST_GAIN:
            break
        columns[least : least + 2] = [columns[least] + columns[least + 1]]
    return np.stack(columns, axis=1)


def _told_from_noise(columns: list[Floats], counts: Floats) -> Floats:
    """For neighbouring answers, which part of the variance of their counts is that of records, not of noise."""
    both = counts[:-1] + counts[1:]
    total = both.sum(axis=1)
    records = both[:, 0] * (total - both[:, 0]) / np.maximum(total, 1e-9)
    of_noise = np.array([2 / NOISE**2 * float(column @ column) for column in columns])
    return np.asarray(records / np.maximum(records + of_noise[:-1] + of_noise[1:], 1e-9))


def _likelihood(counts: Floats) -> Floats:
    """ln of the likelihood of counts (…, ranks) under their own shares."""
    total = counts.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts > 0, counts * np.log(counts / total), 0.0)
    return np.asarray(terms.sum(axis=-1))


def to_integers(table: Floats, epsilon: float) -> Integers | None:
    """The table in units of 2^-32, each row summing to 2^32, within ε exactly; None where no such rounding is found."""
    ratio = exponential_below(epsilon)
    least = np.maximum(table.min(axis=0), table.max(axis=0) / float(ratio))  # the solver is exact to 1e-7 only
    low = np.maximum(np.ceil(least * WHOLE).astype(np.int64), 1)
    # rounded down: what lies above would break ε
    high = np.array([min(math.floor(ratio * int(value)), WHOLE) for value in low], dtype=np.int64)
    whole = np.clip(np.rint(table * WHOLE).astype(np.int64), low, high)
    for row in whole:
        missing = WHOLE - int(row.sum())
        for c in np.argsort(-(high - low), kind="stable"):
            step = int(np.clip(missing, low[c] - row[c], high[c] - row[c]))
            row[c] += step
            missing -= step
        if missing:
            return None
    return whole


def constant(table: Floats, shares: Floats) -> Integers:
    """The same row for every bin: what the answers are on average. Keeps every promise there is."""
    row = np.maximum(np.floor(shares @ table * WHOLE).astype(np.int64), 1)
    row[np.argmax(row)] += WHOLE - int(row.sum())
    return np.repeat(row[None], len(table), axis=0)
