"""The map of bins to regions: counted with noise, smoothed, solved for, and cut where a bin is shared."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Integers
from scoreveil.files.records import Scored
from scoreveil.fitting.counting import Counting, part_of_record
from scoreveil.fitting.estimates import Estimates, beyond_chance, estimate, label_tilts
from scoreveil.fitting.grid import PAIRS, PARTS, STEPS, Grid
from scoreveil.fitting.program import BoundedAttack, best_map
from scoreveil.fitting.releases import Side, clipped
from scoreveil.fitting.settings import Settings
from scoreveil.mechanisms.region_data import MAX_REGIONS
from scoreveil.mechanisms.regions import Regions

FEW_REGIONS = 6  # where few records support no more, and fewer are stated more tightly about
TIED = 0.15  # of a bin's records: if more share one top score, the bin cannot be cut
HIDDEN = 0.35  # over √n: how much of the advantage on new records chance hides on the records of the fit
SMALLEST = 0.004  # share of the others: a smaller region joins its neighbour


@dataclass(frozen=True, eq=False)
class Map:
    """What `Regions` takes, before anything is announced."""

    strips: Floats
    cuts: Floats
    regions: Integers
    share: Floats  # of the others, by region
    rate: Floats  # how often they are right
    atoms: float

    @property
    def size(self) -> int:
        return len(self.share)

    def of(self, scores: Floats) -> Integers:
        """The region of each row."""
        k = scores.shape[1]
        announced, counts = np.full((2 if k == 2 else 1, self.size), 0.9), np.zeros((1, self.size), dtype=np.int64)
        mechanism = Regions(
            epsilon=math.inf, number_of_classes=k, strips=self.strips, cuts=self.cuts, regions=self.regions,
            announced=announced, counts=counts,
        )  # fmt: skip
        return np.asarray(mechanism.read(scores)[1])

    def joined_by(self, layer: Integers) -> tuple["Map", Integers]:
        """Regions that give every answer of a table with the same chance are one: nobody can tell them apart."""
        _, first, same = np.unique(layer, axis=0, return_index=True, return_inverse=True)
        kept = np.sort(first)
        place = np.searchsorted(kept, first)[same.ravel()]  # of each region, among those that are kept
        share = np.bincount(place, weights=self.share).astype(np.float64)
        rate = np.bincount(place, weights=self.share * self.rate) / share
        return replace(self, regions=place[self.regions], share=share, rate=rate), layer[kept]


def choose_map(others: Scored, members: Scored | None, counting: Counting) -> Map:
    """The map of the least Brier score under which members and others are alike."""
    size = min(others.records, others.records if members is None else members.records)
    grid = Grid(others.classes, pairs=others.classes > 2 and size >= PAIRS)
    fine = grid.fine(others.scores)
    fine_counts = clipped(counting.truths("bins", "other", others, fine, grid.bins * PARTS)[0])
    other_counts = fine_counts.reshape(2, grid.bins, PARTS).sum(axis=2)
    whole = tied_bins(others, fine // PARTS, other_counts.sum(axis=0), counting)
    noise = counting.epsilon("member", "bins")
    if members is None:
        estimates, attackers = estimate(other_counts, None, grid, noise), list[BoundedAttack]()
    else:
        bins = fine // PARTS, grid.fine(members.scores) // PARTS
        member_counts = clipped(counting.truths("bins", "member", members, bins[1], grid.bins)[0])
        estimates = estimate(other_counts, member_counts, grid, noise)
        tilts = _label_tilts((others, members), bins, counting) if counting.by_label else None
        estimates = beyond_chance(estimates, whole, (others.records, members.records), noise)
        attackers = _attackers(estimates, tilts, counting.settings, size, is_labelled=members.labels is not None)
    regions = min(counting.settings.regions, MAX_REGIONS if size >= PAIRS else FEW_REGIONS)
    solution, atoms = best_map(estimates.share, estimates.rate, regions, attackers, whole)
    table = _joined(solution.table, estimates, regions)
    return _cut(table, estimates, fine_counts.sum(axis=0), grid, atoms)


def tied_bins(others: Scored, places: Integers, counts: Floats, counting: Counting) -> NDArray[np.bool_]:
    """Which bins cannot be cut, since many of their records share one top score.

    How many share the commonest score of a bin changes by at most 1 with a record, and in its own bin alone.
    """
    pairs = np.stack([places.astype(np.float64), others.scores.max(axis=1)], axis=1)
    values, shared = np.unique(pairs, axis=0, return_counts=True)
    most = np.zeros(len(counts))
    np.maximum.at(most, values[:, 0].astype(np.int64), shared)
    every = np.arange(len(counts))
    noisy = counting.histogram("ties", "other", every, every.shape, most / others.releases)
    by_noise = 2 * math.sqrt(2) / counting.epsilon("other", "ties")  # two deviations: few records must not look tied
    return np.asarray(noisy > TIED * counts + by_noise)


def _label_tilts(
    sides: tuple[Scored, Scored], bins: tuple[Integers, Integers], counting: Counting
) -> tuple[Floats, Floats]:
    """The share of each label on both sides (2, k), and how its records lie in the steps, as `label_tilts` has it."""
    names: tuple[Side, Side] = ("other", "member")
    counts = []
    for side, places, name in zip(sides, bins, names, strict=True):
        cells = side.predicted * STEPS + places % STEPS
        counts.append(clipped(counting.histogram("labels", name, cells, (side.classes, STEPS), part_of_record(side))))
    both = np.stack(counts)
    noise = counting.epsilon("other", "labels"), counting.epsilon("member", "labels")
    return both.sum(axis=2) / both.sum(axis=(1, 2))[:, None], label_tilts(both, noise)


def _attackers(
    estimates: Estimates, by_label: tuple[Floats, Floats] | None, settings: Settings, size: int, is_labelled: bool
) -> list[BoundedAttack]:
    """Those whom the program bounds: a little tighter than was asked for, for what chance hides in so few records."""
    allowance = settings.advantage - min(settings.advantage / 2, HIDDEN / math.sqrt(size))
    if settings.beyond == "correctness" and is_labelled:
        weights = []
        for others, members in (estimates.right, estimates.wrong):
            weight = min(float(others.sum()), float(members.sum()))
            weights.append(weight * (members / max(members.sum(), 1e-12) - others / max(others.sum(), 1e-12)))
        return [BoundedAttack(np.stack(weights), allowance)]
    gap = estimates.members - estimates.share
    attackers = [BoundedAttack(gap[None], allowance)]
    if is_labelled:
        right, wrong = (sides[1] - sides[0] for sides in (estimates.right, estimates.wrong))
        own = (abs(float(right.sum())) + abs(float(wrong.sum()))) / 2
        attackers.append(BoundedAttack(np.stack([right, wrong]), own + allowance))
    if by_label is not None:
        shares, tilts = by_label
        step = np.arange(len(gap)) % STEPS
        others, members = (
            base * np.exp(np.clip(tilt[:, step], -20, 20))
            for base, tilt in zip((estimates.share, estimates.members), tilts, strict=True)
        )
        within = members / members.sum(axis=1, keepdims=True) - others / others.sum(axis=1, keepdims=True)
        attackers.append(BoundedAttack(shares.min(axis=0)[:, None] * within, allowance))
    return attackers


def _joined(table: Floats, estimates: Estimates, regions: int) -> Floats:
    """Neighbouring answers that say least more apart are joined, until there are few enough and none is of few records.

    To join two regions never breaks a promise.
    """
    table = table[:, table.sum(axis=0) > 0].copy()
    while table.shape[1] > 1:
        share = table.T @ estimates.share
        right = table.T @ (estimates.share * estimates.rate)
        pair_share, pair_right = share[1:] + share[:-1], right[1:] + right[:-1]
        loss = _information(share[1:], right[1:]) + _information(share[:-1], right[:-1])
        loss = loss - _information(pair_share, pair_right)
        loss = np.where(np.minimum(share[1:], share[:-1]) < SMALLEST, -1.0, loss)
        least = int(np.argmin(loss))
        if table.shape[1] <= regions and loss[least] >= 0:
            break
        table[:, least] += table[:, least + 1]
        table = np.delete(table, least + 1, axis=1)
    return table


def _information(share: Floats, right: Floats) -> Floats:
    """Records' log-likelihood of being right or wrong, by their own rate."""
    rate = np.clip(right / np.maximum(share, 1e-12), 1e-9, 1 - 1e-9)
    return np.asarray(right * np.log(rate) + (share - right) * np.log1p(-rate))


def _cut(table: Floats, estimates: Estimates, fine: Floats, grid: Grid, atoms: float) -> Map:
    """The map of a table: a bin that is shared by several answers is cut where its others have come so far."""
    edges = np.concatenate([[1 / grid.classes], grid.fine_edges, [1.0]])
    pieces: list[list[tuple[float, int]]] = []  # of each strip: where a region begins
    for strip in range(len(grid.strips) + 1):
        begins: list[tuple[float, int]] = []
        for step in range(STEPS):
            b = strip * STEPS + step
            counts = fine[b * PARTS : (b + 1) * PARTS] + 0.25
            reached = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
            ends = edges[step * PARTS : (step + 1) * PARTS + 1]
            done = 0.0
            for region in np.flatnonzero(table[b]).tolist():
                at = _between(ends, float(np.interp(done, reached, np.arange(PARTS + 1))))
                if not begins or begins[-1][1] != region:
                    begins.append((at, region))
                done += float(table[b, region])
        pieces.append(begins)
    width = max(map(len, pieces)) - 1
    cuts, regions = np.full((len(pieces), width), np.inf), np.zeros((len(pieces), width + 1), dtype=np.int64)
    for strip, begins in enumerate(pieces):
        cuts[strip, : len(begins) - 1] = [at for at, _ in begins[1:]]
        regions[strip] = [*(region for _, region in begins), *[begins[-1][1]] * (width + 1 - len(begins))]
    share = table.T @ estimates.share
    return Map(grid.strips, cuts, regions, share, table.T @ (estimates.share * estimates.rate) / share, atoms)


def _between(ends: Floats, place: float) -> float:
    """The score at a place between edges, by logits: 1.5 is half way from the second to the third."""
    part = min(int(place), len(ends) - 2)
    low, high = (math.log(e / (1 - e)) for e in np.clip(ends[part : part + 2], 1e-9, 1 - 1e-9).tolist())
    logit = low + (place - part) * (high - low)
    return float(ends[part]) if place == part else 1 / (1 + math.exp(-logit))
