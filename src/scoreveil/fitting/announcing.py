"""The regions of a map, counted once more: what they announce, and the evidence of what follows for new records."""

import math
from dataclasses import replace

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.files.records import Scored
from scoreveil.fitting.counting import Counting
from scoreveil.fitting.grid import PARTS, STEPS
from scoreveil.fitting.mapping import Map
from scoreveil.fitting.program import best_table
from scoreveil.mechanisms.promises import SIXTEENTHS, WHOLE, RegionCounts
from scoreveil.mechanisms.region_data import NEAREST
from scoreveil.mechanisms.regions import Regions

ANSWER_WEIGHT = 5.0  # records' worth of the overall accuracy in what a region announces
SIDE_WEIGHT = 40.0  # of what both labels of two show, in what a region announces for one of them


def announced_regions(chosen: Map, others: Scored, members: Scored | None, counting: Counting) -> Regions:
    """The mechanism of a map."""
    settings, layer, k = counting.settings, None, others.classes
    if settings.epsilon is not None:
        chosen, layer = chosen.joined_by(best_table(chosen.share / chosen.share.sum(), chosen.rate, settings.epsilon))
    # what is announced of two classes tells the label; a record is in one cell however many there are
    labels = k if counting.by_label or k == 2 else 1
    counts = counting.truths("regions", "other", others, chosen.of(others.scores), chosen.size, labels)
    evidence = None
    if members is not None:
        inside = counting.truths("regions", "member", members, chosen.of(members.scores), chosen.size, labels)
        evidence = _evidence(counts, inside, (others.records, members.records), counting, k)
    announced = _announced(chosen, counts, others.records, _trust(chosen, len(counts), counting), layer, k)
    if others.shape.is_binary:
        announced = _stretched(announced, others.threshold)
    announced, layer, order = _sorted(announced, layer)
    return Regions(
        epsilon=math.inf if settings.epsilon is None else settings.epsilon,
        number_of_classes=k,
        strips=chosen.strips,
        cuts=chosen.cuts,
        regions=np.argsort(order)[chosen.regions],
        announced=announced,
        table=layer,
        counts=_sixteenths(counts.sum(axis=0))[:, order],
        evidence=None if evidence is None else replace(evidence, counts=evidence.counts[..., order]),
        spent=(counting.releases.spent("member"), counting.releases.spent("other")),
        atoms=max(chosen.atoms, 0.0),
    )


def _evidence(others: Floats, members: Floats, sizes: tuple[int, int], counting: Counting, k: int) -> RegionCounts:
    """Counts of both sides; those of the others summed up where nobody says which members are right."""
    outside = others.sum(axis=1, keepdims=True) if members.shape[1] == 1 else others
    # a cell that sums up several has the variance of noise with so much less ε, and no heavier a tail
    noise = counting.epsilon("other", "regions") / math.sqrt(others.size / outside.size)
    settings, counts = counting.settings, _sixteenths(np.stack([outside, members]))
    both = noise, counting.epsilon("member", "regions")
    return RegionCounts(counts, sizes, both, settings.advantage, settings.beyond, counting.is_apart, k == 2)


def _sixteenths(counts: Floats) -> Integers:
    return np.rint(counts * SIXTEENTHS).astype(np.int64)


def _sorted(announced: Floats, layer: Integers | None) -> tuple[Floats, Integers | None, Integers]:
    """Answers and regions by what they announce, the least first; and where each region stood before.

    Of two labels it is their mean. Counts may contradict the bins, by which the regions stand in order so far.
    """
    answers = np.argsort(announced.mean(axis=0), kind="stable")
    announced = announced[:, answers]
    if layer is None:
        return announced, None, answers
    order = np.argsort(layer[:, answers] @ announced.mean(axis=0), kind="stable")
    return announced, layer[order][:, answers], order


def _trust(chosen: Map, labels: int, counting: Counting) -> float:
    """How much the counts of the regions are to be trusted beside those of the bins, 0 to 1: by their noise."""
    cells = STEPS * PARTS * (len(chosen.strips) + 1) / chosen.size  # fine bins of a region
    of_bins = cells / counting.epsilon("other", "bins") ** 2
    of_regions = labels / counting.epsilon("other", "regions") ** 2
    return of_bins / (of_bins + of_regions)


def _announced(chosen: Map, counts: Floats, records: int, trust: float, layer: Integers | None, k: int) -> Floats:
    """How often each answer is right, (1, answers); of two classes for each label, (2, answers).

    There are two estimates, that of the bins and that of the regions; a few records' worth of the overall accuracy is
    added. An answer of the table of ε stands for the regions that give it.
    """
    table = np.eye(chosen.size) if layer is None else layer / WHOLE
    pooled = np.maximum(counts.sum(axis=0), 0.0)  # (2, regions): wrong, right
    right = (1 - trust) * chosen.share * chosen.rate * records + trust * pooled[1]
    every = (1 - trust) * chosen.share * records + trust * pooled.sum(axis=0)
    accuracy = float(right.sum() / max(every.sum(), 1e-9))
    rate = (table.T @ right + ANSWER_WEIGHT * accuracy) / (table.T @ every + ANSWER_WEIGHT)
    if k > 2:
        return _inside(rate[None], k)
    rates = []
    for wrong, correct in np.maximum(counts, 0.0):  # of each label
        own, total = table.T @ correct, table.T @ (wrong + correct)
        expected = _moved(rate, total, (float(own.sum()) + 2) / (float(total.sum()) + 4))
        rates.append((own + SIDE_WEIGHT * expected) / (total + SIDE_WEIGHT))
    return _inside(np.stack(rates), k)


def _inside(rates: Floats, k: int) -> Floats:
    """Above what the other classes get, and below 1."""
    return np.clip(rates, (1 + 1e-6) / k, 1 - NEAREST)


def _moved(rates: Floats, weights: Floats, mean: float) -> Floats:
    """Rates moved by the same number of logits, so that their weighted mean is `mean`."""
    logits = np.log(rates) - np.log1p(-rates)
    shares = (weights + 1e-9) / (weights + 1e-9).sum()
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        is_below = float(shares @ (1 / (1 + np.exp(-(logits + middle))))) < mean
        low, high = (middle, high) if is_below else (low, middle)
    return np.asarray(1 / (1 + np.exp(-(logits + low))))


def _stretched(announced: Floats, threshold: float) -> Floats:
    """Probabilities of no and of yes as shapes with a threshold take them: the threshold stands for one half."""
    no, yes = np.maximum(announced[0], 1 - threshold), np.maximum(announced[1], threshold)
    return _inside(np.stack([1 - (1 - no) / (2 * threshold), 1 - (1 - yes) / (2 * (1 - threshold))]), 2)
