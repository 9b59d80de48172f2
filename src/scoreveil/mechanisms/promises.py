"""What a fitted veil promises, recomputed from the whole numbers in its file alone.

    counts       noisy counts of records by (side, label, wrong or right, region); others come first, members second
    T[r, c]      integers, each row summing to 2^32: region r announces the answer c with chance T[r, c] / 2^32

**Advantage.** An attack says "member" for some set S of what it sees. With P and Q the shares of members and others, it
exceeds guessing (true positive rate less false positive rate) by P(S) - Q(S), and the best one by the total variation
between P and Q. The region is all that answers tell of a score vector beside the label, however often it is asked
about, so

    alone                     ½ Σ_r |P(r) - Q(r)|
    beyond the label          Σ_l min(P(l), Q(l)) · ½ Σ_r |P(r | l) - Q(r | l)|, which bounds what the region adds to
    the label beyond being right        the same within right and within wrong answers
    beyond both               the same within right and within wrong answers of each label

Of two classes each label announces numbers of its own, so the number alone tells label and region (`tells_label`):
r then stands for both in the first and the third line.

**For new records.** Let S be the best attack on the population. It does not depend on the records or on the noise, and
the best attack on the counts is no worse on them than S is. So the advantage on the population exceeds that of the
counts only by as much as the counts of S, one fixed set, fell short (`shortfall`): no more than one proportion on each
side errs, and the noise of the cells of S. That is a theorem where the map was chosen on other records (`certified`);
else the map was chosen, through noisy counts, on the same ones, and the figure is an estimate.

All of it is arithmetic of whole numbers and fractions, but for `shortfall`; e^ε is rounded down.
"""

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import Enum
from fractions import Fraction
from statistics import NormalDist

import numpy as np

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms.guarantee import BrokenPromise

WHOLE = 1 << 32  # what each row of a table sums to
ALWAYS = 23.0  # e^23 > 2^32: no two entries of a table differ by more
CONFIDENCE = 0.95
SIXTEENTHS = 16  # of a record: how finely counts are kept
MAX_RECORDS = 1 << 40
MAX_LABELS = 64  # of more classes, labels are not told apart
MIN_NOISE, MAX_NOISE = 2.0**-20, 2.0**20
FAR = 16.0  # standard deviations of noise: no sum of it is so far off


class Attacker(Enum):
    """What an attacker sees beside the confidence."""

    ALONE = "nothing else"
    CORRECTNESS = "whether the label is right"
    LABEL = "the label"
    LABEL_AND_CORRECTNESS = "the label, and whether it is right"


# the axes of (label, wrong or right, region) that an attacker does not see
UNSEEN = {
    Attacker.ALONE: (-3, -2),
    Attacker.CORRECTNESS: (-3,),
    Attacker.LABEL: (-2,),
    Attacker.LABEL_AND_CORRECTNESS: (),
}


@dataclass(frozen=True, eq=False)
class RegionCounts:
    """Noisy counts of the regions, and what they were held to.

    Attributes:
        counts: (2, labels, truths, regions) in sixteenths of a record, others first; labels is 1 where they are not
            told apart, truths is 2 (wrong, right) where true labels were given.
        sizes: How many records of each side were counted, others first.
        noise: ε₀ of the Laplace noise of each side, others first.
        asked: The advantage that was asked for.
        beyond: What it was held beyond, "label" or "correctness".
        certified: Whether the map was chosen on other records.
        tells_label: Whether what is announced tells the label, as the numbers of two classes do.
    """

    counts: Integers
    sizes: tuple[int, int]
    noise: tuple[float, float]
    asked: float
    beyond: str
    certified: bool
    tells_label: bool = False

    @property
    def attackers(self) -> tuple[Attacker, ...]:
        """Those about whom the counts can say something."""
        _, labels, truths, _ = self.counts.shape
        there = {Attacker.ALONE: True, Attacker.CORRECTNESS: truths > 1, Attacker.LABEL: labels > 1}
        there[Attacker.LABEL_AND_CORRECTNESS] = labels > 1 and truths > 1
        return tuple(attacker for attacker, is_there in there.items() if is_there)

    def groups(self, attacker: Attacker) -> Integers:
        """The counts as an attacker sees them: (2, groups, regions), or labels and regions where both are told."""
        return np.asarray(as_seen(self.counts, attacker, self.tells_label))

    def shown(self, attacker: Attacker, for_new: bool = False) -> Fraction:
        """The advantage over these counts, beyond what the attacker sees in any case."""
        groups = self.groups(attacker)
        if groups.shape[2] == 1:  # one answer for all tells nothing, whatever the noise says
            return Fraction(0)
        if attacker is Attacker.ALONE:
            return total_variation(groups[:, 0], self.sizes)
        if self.certified:  # by two bounds that hold for every population
            return total_variation(groups.reshape(2, -1), self.sizes) - self._baseline(attacker)
        return sum((within(group, self.sizes, for_new) for group in groups.transpose(1, 0, 2)), Fraction(0))

    def _baseline(self, attacker: Attacker) -> Fraction:
        """At least what the attacker gains without the confidence."""
        seen = self.groups(attacker).sum(axis=2)
        return max(total_variation(seen, self.sizes) - Fraction(self.shortfall(attacker, both=True)), Fraction(0))

    def shortfall(self, attacker: Attacker, both: bool = False) -> float:
        """By how much counts may fall short of the population, for one set of cells."""
        cells = self.counts[0].size
        groups = self.groups(attacker).shape[1]
        if not self.certified:
            return estimated_shortfall(self.sizes, self.noise, cells)
        log = math.log((1 if attacker is Attacker.ALONE else 2) / (1 - CONFIDENCE))  # two bounds share the error
        if both:  # for every set of groups at once, in both directions; its noise may be that of all cells
            return certain_shortfall(self.sizes, self.noise, 2 * cells, log + (groups + 1) * math.log(2))
        return certain_shortfall(self.sizes, self.noise, cells, log)

    def stated(self, attacker: Attacker) -> float:
        """The upper bound for new records, rounded up."""
        if self.groups(attacker).shape[2] == 1:
            return 0.0
        return rounded_up(min(self.shown(attacker, for_new=True) + Fraction(self.shortfall(attacker)), Fraction(1)))

    def holds(self) -> None:
        """Raise BrokenPromise where the counts are not those of a fit."""
        counts = self.counts
        if counts.ndim != 4 or counts.shape[0] != 2 or counts.shape[2] not in (1, 2) or 0 in counts.shape:
            raise BrokenPromise("The counts are not of (side, label, wrong or right, region).")
        if len(self.sizes) != 2 or len(self.noise) != 2:
            raise BrokenPromise("The counts are not of two sides.")
        most = max(*self.sizes, int(counts.max()), -int(counts.min()))
        if min(self.sizes) < 1 or most >= MAX_RECORDS:
            raise BrokenPromise("The counts are of no records, or of more than there can be.")
        if not (all(MIN_NOISE <= rate <= MAX_NOISE for rate in self.noise) and 0 < self.asked <= 1):  # NaN fails
            raise BrokenPromise("The noise or the advantage that was asked for is out of range.")
        cells = counts[0].size
        for side, size, noise, who in zip(counts, self.sizes, self.noise, ("others", "members"), strict=True):
            surplus = abs(int(side.sum()) / SIXTEENTHS - size)
            if surplus > FAR * math.sqrt(2 * cells) / noise + cells / (2 * SIXTEENTHS):
                raise BrokenPromise(f"The counts of {who} sum to another number than there were, by more than noise.")


def as_seen(counts: Rows, attacker: Attacker, tells_label: bool) -> Rows:
    """Counts (…, label, wrong or right, region) as an attacker sees them: (…, group, what is announced)."""
    if tells_label and attacker in (Attacker.ALONE, Attacker.CORRECTNESS):
        labels, truths, regions = counts.shape[-3:]
        counts = counts.swapaxes(-3, -2).reshape(*counts.shape[:-3], 1, truths, labels * regions)
    seen = counts.sum(axis=UNSEEN[attacker], keepdims=True)
    return seen.reshape(*counts.shape[:-3], -1, counts.shape[-1])


def total_variation(sides: Integers, sizes: tuple[int, int]) -> Fraction:
    """The best attack on (2, cells) noisy counts: the larger of what is above and of what is below."""
    gaps = _gaps(sides, sizes)
    above, below = sum(gap for gap in gaps if gap > 0), -sum(gap for gap in gaps if gap < 0)
    return Fraction(max(above, below), SIXTEENTHS * sizes[0] * sizes[1])


def within(sides: Integers, sizes: tuple[int, int], for_new: bool = False) -> Fraction:
    """min(P, Q) · ½ Σ |P(r | group) - Q(r | group)| of one group's (2, regions) noisy counts.

    `for_new`: the smaller of two counted shares that are near each other errs on the low side, so for new records a
    standard error is added to it, up to the mean of both.
    """
    others, members = (max(int(side.sum()), 0) for side in sides)
    if not others or not members:
        return Fraction(0)
    gap = sum(abs(m * others - o * members) for o, m in zip(*sides.tolist(), strict=True))
    shares = [Fraction(count, SIXTEENTHS * size) for count, size in zip((others, members), sizes, strict=True)]
    weight, size = min(zip(shares, sizes, strict=True))
    if for_new:
        weight = min(weight + Fraction(math.sqrt(float(weight) / size)), (shares[0] + shares[1]) / 2)
    return min(weight * Fraction(gap, 2 * others * members), weight)


def _gaps(sides: Integers, sizes: tuple[int, int]) -> list[int]:
    others, members = sides.tolist()
    return [int(m) * sizes[0] - int(o) * sizes[1] for o, m in zip(others, members, strict=True)]


def estimated_shortfall(sizes: tuple[int, int], noise: tuple[float, float], cells: int) -> float:
    """By how much the counts of one set fall short, by the normal approximation, at `CONFIDENCE`.

    A proportion of n records has a variance of 1/4n at most. Of a set or its complement, the smaller has half of the
    cells at most, and the noise of each has the variance 2/ε₀².
    """
    variance = sum(1 / (4 * n) + math.ceil(cells / 2) * 2 / (eps * n) ** 2 for n, eps in zip(sizes, noise, strict=True))
    return NormalDist().inv_cdf(CONFIDENCE) * math.sqrt(variance)


def certain_shortfall(sizes: tuple[int, int], noise: tuple[float, float], cells: int, log: float) -> float:
    """By how much the counts of one set fall short, except with chance α = e^-log, for every population.

    Half of the error is Hoeffding's for the two proportions, √(ln(1/α)/2 · (1/n + 1/m)), and half Chernoff's for the
    noise: ln E exp(sX) = -ln(1 - s²/ε₀²) of Laplace noise, and discrete noise has less.
    """
    log += math.log(2)
    sampling = math.sqrt(log / 2 * sum(1 / n for n in sizes))
    count, rates = math.ceil(cells / 2), [eps * n for n, eps in zip(sizes, noise, strict=True)]
    steps = (min(rates) * i / 512 for i in range(1, 512))
    noisy = min((log - count * sum(math.log1p(-((s / rate) ** 2)) for rate in rates)) / s for s in steps)
    return sampling + noisy


def exponential_below(epsilon: float) -> Fraction:
    """e^ε from below, to some 57 digits."""
    digits = Context(prec=60)
    return Fraction(digits.exp(Decimal(min(epsilon, ALWAYS)))) * (1 - Fraction(1, 10**57))


def worst_ratio(table: Integers) -> Fraction:
    """The largest ratio of two rows' chances of one answer."""
    return max(Fraction(int(high), int(low)) for high, low in zip(table.max(axis=0), table.min(axis=0), strict=True))


def check_table(table: Integers, epsilon: float) -> None:
    """Raise BrokenPromise unless the rows sum to 2^32 and no two differ by more than e^ε in any answer."""
    if not np.all(table >= 1):
        raise BrokenPromise("The table has an answer that some regions never give: its loss is infinite.")
    if not np.all(table <= WHOLE) or not np.all(table.sum(axis=1) == WHOLE):
        raise BrokenPromise("The table has a row that does not sum to 2^32.")
    if worst_ratio(table) > exponential_below(epsilon):
        raise BrokenPromise(
            f"The table breaks ε = {epsilon:g}: two of its rows differ by more than e^ε in some answer."
        )


def rounded_up(value: Fraction) -> float:
    """The least float64 that is not below it."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


def zcdp_rho(table: Integers, epsilon: float) -> float:
    """An upper bound, tight to 0.2 %, of the ρ for which one answer is ρ-zCDP: sup over rows and α > 1 of D_α / α.

    D_α does not fall with α, so on [α, α'] the supremum is at most D_α' / α: a coarse grid first, then a fine one
    where the supremum can be. Never above ε²/2, nor above what the range of the loss gives, range²/8.
    """
    epsilon = min(epsilon, ALWAYS)
    rows = np.unique(table, axis=0)
    logs = np.log(rows / WHOLE)
    loss = logs[:, None] - logs[None]  # (pairs of rows, answers)
    first, second = np.nonzero(~np.eye(len(rows), dtype=bool))
    loss, log_q = loss[first, second], logs[second]
    if not len(loss):
        return 0.0
    by_range = float(np.ptp(loss, axis=1).max()) ** 2 / 8
    steps = 1.1 ** np.arange(math.ceil(math.log(max(2.0, 64 * epsilon), 1.1)) + 2)
    divergence = np.stack([_renyi(loss, log_q, alpha) for alpha in steps])  # (α, pairs)
    reached = float((divergence / steps[:, None]).max())
    upper = divergence[1:] / steps[:-1, None]
    bound = float(loss.max()) / steps[-1]  # beyond the grid
    for interval, pairs in ((i, upper[i] > max(reached, bound)) for i in range(len(upper))):
        if not pairs.any():
            continue
        fine = np.geomspace(steps[interval], steps[interval + 1], 65)
        there = np.stack([_renyi(loss[pairs], log_q[pairs], alpha) for alpha in fine])
        bound = max(bound, float((there[1:] / fine[:-1, None]).max()))
    return min(max(bound, reached) * (1 + 1e-9), by_range * (1 + 1e-9), epsilon**2 / 2)


def _renyi(loss: Floats, log_q: Floats, alpha: float) -> Floats:
    """D_α of each pair: ln Σ_c q_c e^{α·loss_c} / (α - 1), the mean loss where α is 1."""
    if alpha == 1:
        return np.asarray((np.exp(log_q + loss) * loss).sum(axis=1))
    exponent = log_q + alpha * loss
    highest = exponent.max(axis=1, keepdims=True)
    return np.asarray((highest[:, 0] + np.log(np.exp(exponent - highest).sum(axis=1))) / (alpha - 1))
