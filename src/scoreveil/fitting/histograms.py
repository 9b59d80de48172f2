"""What a fit learns about its records: histograms, each with Laplace noise, and nothing else.

A record adds at most 1 to a histogram in all, so discrete Laplace noise of scale 1/ε₀ makes it ε₀-differentially
private. Counts are whole numbers of `UNIT` to a record, and the noise is whole too: nothing hides in a last digit.
The bins have fixed edges; which are joined is decided by a noisy histogram. How many records there are is not hidden.

A member is in one histogram (ε₀ = 0.5). Another record is in up to four, 2.5 in all: the outcomes by bin (0.5) and on
the whole (1), who is right when the label is wrong (0.5), and the evidence for the advantage (0.5). With too few
records or two classes nobody asks who is right when the label is wrong, and its part goes to the outcomes on the whole.

Of scores that are served as one column or as many labels, the outcomes of each label, side and answer (`readout.py`, 1)
are counted, and those on the whole less finely (0.5): the sum is the same. What is a record here is one label, or one
place, of a record that has several: fitting spends as much for each of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from scoreveil.fitting.records import Scored
from scoreveil.randomness import secure_uniforms

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Uniforms = Callable[[int], Floats]

NOISE = 0.5  # ε₀ of each histogram
NOISE_OF_TOTALS = 1.0  # of how often each rank is right, on all records: with few of them everything rests on it
UNIT = 1 << 20  # what one record counts
SIXTEENTHS = 16  # of a record: how finely the evidence counts
BINS, NEAREST = 32, 1e-5  # fixed bins, up to 1 - NEAREST
MOST_BINS, LEAST_RECORDS = 24, 40  # bins that are told apart, and what each must hold
LABELS, RECORDS_OF_LABEL = 16, 300  # up to so many classes, with so many records on average, are told apart
RARE = 100  # labels with fewer records are taken together
BACK_OFF = 300  # records' worth of all labels' histogram in that of one label
PROFILE_RECORDS, CONFUSIONS = 100, 64  # records for each class to have a profile; classes to have one each


class Draws(Protocol):
    """What draws uniforms in [0, 1): a numpy Generator, or keyed draws."""

    def random(self, size: int, /) -> Floats: ...


def uniforms(rng: Draws | None) -> Uniforms:
    """Where the noise comes from: the cryptographic stream, or what was given."""
    return (lambda count: secure_uniforms(count, 1)[:, 0]) if rng is None else rng.random


def fixed_edges(classes: int) -> Floats:
    """Equal steps in the logit of the top score, from 1/k to 1 - NEAREST. No data in them."""
    low, high = -math.log(classes - 1), math.log((1 - NEAREST) / NEAREST)
    return np.asarray(1 / (1 + np.exp(-np.linspace(low, high, BINS + 1)[1:-1])))


def release(counts: Integers, draw: Uniforms, noise: float = NOISE) -> Floats:
    """A private histogram, in records: noise is added to every cell, and the excess of clipping at 0 taken away."""
    ratio = -noise / UNIT  # ln of the geometric distribution's ratio; the difference of two is discrete Laplace
    geometric = np.floor(np.log1p(-draw(2 * counts.size)) / ratio).reshape(2, *counts.shape)
    return clipped((counts + geometric[0] - geometric[1]) / UNIT)


def clipped(noisy: Floats, batch: int = 0) -> Floats:
    """The nearest histogram without negative cells that has the same total, or 1 where that is below 1.

    `batch`: how many of the first dimensions count histograms.
    """
    rows = noisy.reshape(*noisy.shape[:batch], -1)
    total = np.maximum(rows.sum(axis=-1, keepdims=True), 1.0)
    descending = np.flip(np.sort(rows, axis=-1), axis=-1)
    excess = (np.cumsum(descending, axis=-1) - total) / np.arange(1, rows.shape[-1] + 1)
    last = (descending > excess).sum(axis=-1, keepdims=True) - 1  # they are the first ones
    return np.asarray(np.maximum(rows - np.take_along_axis(excess, last, axis=-1), 0.0)).reshape(noisy.shape)


def counted(cells: Integers, shape: tuple[int, ...], weights: Floats | None = None) -> Integers:
    """How many units lie in each cell of a histogram of this shape; a record may be shared over some cells."""
    size = math.prod(shape)
    if weights is None:
        return np.asarray(np.bincount(cells.ravel(), minlength=size) * UNIT).reshape(shape)
    whole = np.floor(weights * UNIT)
    return np.bincount(cells.ravel(), weights=whole.ravel(), minlength=size).astype(np.int64).reshape(shape)


def outcome_weights(records: Scored, keep: int, by_label: bool) -> Floats:
    """(n, keep + 1): which rank is right, the last for none of the kept; without labels, as the scores have it."""
    kept = records.kept(keep)
    if by_label:
        assert records.labels is not None
        right = (kept == records.labels[:, None]).astype(np.float64)
    else:
        right = np.take_along_axis(records.scores, kept, axis=1)
    return np.concatenate([right, np.maximum(1 - right.sum(axis=1, keepdims=True), 0.0)], axis=1)


def outcomes(bins: Integers, weights: Floats, count: int, draw: Uniforms, noise: float = NOISE_OF_TOTALS) -> Floats:
    """The private histogram of (bin, rank that is right), brought in line with a second one of the ranks alone."""
    ranks = weights.shape[1]
    every = np.broadcast_to(np.arange(ranks), weights.shape)
    found = release(counted(bins[:, None] * ranks + every, (count, ranks), weights), draw)
    totals = release(counted(every, (ranks,), weights), draw, noise)
    sums = found.sum(axis=0)
    # what has a total but no bin goes where the records are
    where = found.sum(axis=1) / found.sum()
    return np.stack([found[:, i] * totals[i] / sums[i] if sums[i] else where * totals[i] for i in range(ranks)], axis=1)


def joined(histogram: Floats) -> Integers:
    """Which bin each fixed bin is joined to: each must hold records enough, and its part of all records and errors."""
    records, errors = histogram.sum(axis=1), histogram[:, 1:].sum(axis=1)
    part = records / records.sum() / 2 + errors / max(errors.sum(), 1e-9) / 2
    group, held, share = np.zeros(len(records), dtype=np.int64), 0.0, 0.0
    for b in range(len(records)):
        if b:
            full = held >= LEAST_RECORDS and share >= 1 / MOST_BINS
            group[b] = group[b - 1] + full
            held, share = (0.0, 0.0) if full else (held, share)
        held, share = held + records[b], share + part[b]
    if held < LEAST_RECORDS and group[-1] > 0:
        group[group == group[-1]] -= 1
    return group


def monotone(rates: Floats, weights: Floats) -> Floats:
    """The nearest rates that do not fall, by weighted squares: neighbours that would fall are pooled."""
    blocks: list[list[float]] = []  # mean, weight, length
    for rate, weight in zip(rates.tolist(), weights.tolist(), strict=True):
        blocks.append([rate, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            mean, weight, length = blocks.pop()
            low = blocks[-1]
            total = low[1] + weight
            low[0] = (low[0] * low[1] + mean * weight) / total if total else (low[0] + mean) / 2
            low[1], low[2] = total, low[2] + length
    return np.concatenate([np.full(int(length), mean) for mean, _, length in blocks])


# Who is where: the evidence


@dataclass(frozen=True, eq=False)
class Places:
    """Private histograms of both sides, others first: (2, groups, 1 or 2, bins), in records."""

    group_of_class: Integers
    histogram: Floats
    as_released: tuple[int, ...]  # the shape of one side's histogram when noise was added
    sizes: tuple[int, int]  # records of each side


def places(others: Scored, members: Scored, bins: tuple[Integers, Integers], count: int, draw: Uniforms) -> Places:
    """The private histograms of (label, right or wrong, bin), where there are records enough to tell labels apart."""
    k, sizes = others.classes, (others.records, members.records)
    by_label = 2 <= k <= LABELS and min(sizes) >= RECORDS_OF_LABEL * k
    by_truth = others.labels is not None and members.labels is not None
    shape = (k if by_label else 1, 2 if by_truth else 1, count)
    sides = []
    for side, its_bins in zip((others, members), bins, strict=True):
        cells = side.predicted if by_label else np.zeros(len(side), dtype=np.int64)
        if by_truth:
            cells = 2 * cells + side.is_right
        # Labels of one record depend on each other. Their mean over a record errs no more than one of them, drawn at
        # random: it is an expectation of that, so any convex measure of its error is less. Hence records are counted
        sides.append(release(counted(cells * count + its_bins, shape), draw) / side.releases)
    histogram, group = np.stack(sides), np.zeros(k, dtype=np.int64)
    if by_label:
        rare = histogram.sum(axis=(2, 3)).min(axis=0) < RARE
        group = np.where(rare, 0, np.cumsum(~rare) - 1 + rare.any()).astype(np.int64)
        together = np.zeros((2, int(group.max()) + 1, *shape[1:]))
        for label, its_group in enumerate(group.tolist()):
            together[:, its_group] += histogram[:, label]
        histogram = together
    return Places(group, histogram, shape, sizes)


def smoothed(histogram: Floats) -> Floats:
    """(2, groups, bins): each label's histogram drawn towards that of all, its total kept."""
    of_labels = histogram.sum(axis=2)
    if of_labels.shape[1] == 1:
        return np.asarray(of_labels)
    of_all = of_labels.sum(axis=1, keepdims=True)
    of_all = of_all / of_all.sum(axis=2, keepdims=True)
    total = of_labels.sum(axis=2, keepdims=True)
    return np.asarray((of_labels + BACK_OFF * of_all) * total / (total + BACK_OFF))


def in_sixteenths(histogram: Floats) -> Integers:
    """As the evidence stores it; no side is empty."""
    whole = np.rint(histogram * SIXTEENTHS).astype(np.int64)
    for side in whole:
        if not side.sum():
            side.flat[0] = 1
    return whole


# How the other classes share the rest


def has_profile(records: Scored) -> bool:
    """Whether it is counted which class is right when the label is wrong; by public numbers alone."""
    return records.classes > 2 and len(records) >= PROFILE_RECORDS * records.classes


def profile(records: Scored, by_label: bool, draw: Uniforms) -> tuple[Integers, Floats]:
    """Which class is right when the label is wrong, from private counts: (k,), (tables, k). Any, with few records."""
    k, n = records.classes, len(records)
    if not has_profile(records):
        return np.zeros(k, dtype=np.int64), np.full((1, k), 1 / k)
    predicted = records.predicted
    own_tables = k <= CONFUSIONS and n >= 40 * k * k
    if by_label:
        assert records.labels is not None
        wrong = ~records.is_right
        cells, weights = records.labels[wrong][:, None], np.ones((int(wrong.sum()), 1))
        table = predicted[wrong][:, None]
    else:
        weights = records.scores.copy()
        np.put_along_axis(weights, predicted[:, None], 0.0, axis=1)
        cells, table = np.broadcast_to(np.arange(k), weights.shape), predicted[:, None]
    shape = (k if own_tables else 1, k)
    found = release(counted(cells + (table * k if own_tables else 0), shape, weights), draw)
    # as many pseudo-counts as the noise is worth
    pooled = _positive(found.sum(axis=0) + 1 / NOISE)
    if not own_tables:
        return np.zeros(k, dtype=np.int64), pooled[None]
    mine = []
    for label in range(k):
        others = np.where(np.arange(k) == label, 0.0, pooled)
        mine.append(_positive(found[label] + k / NOISE * others / others.sum()))
    return np.arange(k), np.stack(mine)


def _positive(shares: Floats) -> Floats:
    return np.asarray(0.99 * shares / shares.sum() + 0.01 / len(shares))
