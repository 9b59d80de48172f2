"""The promises of a finite table, recomputed from its integers alone: apart from the solver and from the sampler.

    T[b, c]      integers, each row summing to 2^32: the answer c is given to scores in bin b with chance T[b, c] / 2^32
    ε            max_b T[b, c] <= e^ε · min_b T[b, c] for every c, so between any two bins
    advantage    by how much the best attack on an answer exceeds guessing, over the records of the evidence
                 the answer alone:  ½ Σ_c |Σ_b (P_member(b) - P_other(b)) T[b, c]| / 2^32
                 given the label g: the same among records of label g, weighted by min(P_member(g), P_other(g)), which
                                    bounds what the answer adds to the label
                 told who is right: the advantage of (right or wrong, answer) beyond that of right or wrong alone

All of it is arithmetic of whole numbers and fractions; e^ε is rounded down.

For new records the advantage is larger. Let f(b) be the chance of some set of answers. An error W of a histogram that
adds up to nothing changes Σ_b P(b) f(b) by at most L · sup_t |W(1) + … + W(t)|, L the total variation between
neighbouring rows, summed (summation by parts); and by at most R · ½ Σ_b |W(b)|, R the largest between any two rows. An
error of the total counts for itself. None of these errors depends on the table, which may have been fitted on the same
records. The evidence holds an upper quantile of each.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms.guarantee import BrokenPromise

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Table = NDArray[np.int64] | NDArray[np.object_]  # objects where the whole numbers have more than 64 bits

WHOLE = 1 << 32  # what each row of a table sums to
MOST_RECORDS = 1 << 31  # of a histogram, so that its products with a table are whole numbers of 64 bits
ALWAYS = 23.0  # e^23 > 2^32: no two entries of a table differ by more
MOST_TYPES = 5000  # counts of answers that are told apart when they add up
ATTACKERS = ("the answer alone", "the label and the answer", "the true label and the answer")  # what each sees


@dataclass(frozen=True, eq=False)
class Evidence:
    """The private histograms that bound the advantage, and what is stated from them.

    Others come first, members second. Counts are noisy, and in units of a sixteenth of a record.
    """

    group_of_class: Integers  # (k,): labels of one group are taken together
    counts: Integers  # (2, groups, 1 or 2, bins): with labels, wrong predictions first, then right ones
    smoothed: Integers  # (2, groups, bins): the groups' histograms drawn towards that of all records
    slack: Floats  # (3, 3): for each of ATTACKERS the errors of totals, of cumulative sums, and half of all errors
    stated: Floats  # (3,): the upper bounds for new records
    advantage: float  # that the fitted records are held to
    confidence: float  # at which `stated` holds

    @property
    def is_labelled(self) -> bool:
        return self.counts.shape[2] == 2

    @property
    def attackers(self) -> range:
        """Those that are bounded: who is told the true label only where labels were given."""
        return range(3 if self.is_labelled else 2)

    def shown(self, table: Table, attacker: int, held: bool = False) -> Fraction:
        """The advantage of an attacker over these records; `held`: as the fit holds it, on smoothed histograms."""
        if attacker == 0:
            return excess(self.counts.sum(axis=(1, 2))[:, None], table)
        if attacker == 1:
            shares = given_label(self.smoothed if held else self.counts.sum(axis=2), table)
            return sum((weight * variation for weight, variation in shares), Fraction(0))
        return excess(self.counts.sum(axis=1), table)


def exponential_below(epsilon: float) -> Fraction:
    """e^ε from below, to some 57 digits."""
    digits = Context(prec=60)
    return Fraction(digits.exp(Decimal(min(epsilon, ALWAYS)))) * (1 - Fraction(1, 10**57))


def worst_ratio(table: Integers) -> Fraction:
    """The largest ratio of two bins' chances of one answer."""
    return max(Fraction(int(high), int(low)) for high, low in zip(table.max(axis=0), table.min(axis=0), strict=True))


def whole(table: Table) -> int:
    """What each row sums to: 2^32, or for n answers together 2^32n."""
    return int(table[0].sum())


def excess(sides: Integers, table: Table) -> Fraction:
    """The advantage of the best attack on (group, answer) over the best one on the group; (2, groups, bins)."""
    (others, members), (n, m) = (sides @ table).reshape(2, -1).tolist(), sides.sum(axis=(1, 2)).tolist()
    both = sum(abs(y * n - x * m) for x, y in zip(others, members, strict=True))
    groups = sum(abs(y * n - x * m) for x, y in zip(*sides.sum(axis=2).tolist(), strict=True))
    return Fraction(both - groups * whole(table), 2 * n * m * whole(table))


def given_label(sides: Integers, table: Table) -> list[tuple[Fraction, Fraction]]:
    """For each label, its weight and the advantage among its records; (2, labels, bins)."""
    (others, members), (n, m) = (sides @ table).tolist(), sides.sum(axis=(1, 2)).tolist()
    found = []
    for other, member, x, y in zip(others, members, *sides.sum(axis=2).tolist(), strict=True):
        if x and y:
            within = sum(abs(b * x - a * y) for a, b in zip(other, member, strict=True))
            found.append((min(Fraction(x, n), Fraction(y, m)), Fraction(within, 2 * x * y * whole(table))))
    return found


def path_length(table: Table) -> Fraction:
    """L: the total variation between neighbouring rows, summed."""
    return Fraction(int(np.abs(np.diff(table, axis=0)).sum()), 2 * whole(table))


def widest(table: Table) -> Fraction:
    """The largest total variation between two rows, which no advantage can exceed."""
    return Fraction(max(int(np.abs(table - row).sum(axis=1).max()) for row in table), 2 * whole(table))


def stated_advantage(table: Table, evidence: Evidence, attacker: int) -> Fraction:
    """The upper bound for new records: what the fitted ones show, and what sampling and noise can have hidden."""
    of_totals, of_sums, half = (Fraction(float(value)) for value in evidence.slack[attacker])
    if attacker == 1:  # an error of a label's weight counts for what its records show
        of_totals *= max((shown for _, shown in given_label(evidence.counts.sum(axis=2), table)), default=Fraction(0))
    hidden = of_totals + min(path_length(table) * of_sums, widest(table) * half)
    return min(widest(table), evidence.shown(table, attacker) + hidden)


def check_table(table: Integers, epsilon: float) -> None:
    """Raise ValueError unless the rows sum to 2^32 and no two differ by more than e^ε in any answer."""
    if not np.all(table >= 1):
        raise BrokenPromise("The table has an answer that some bins never give: its loss is infinite.")
    if not np.all(table <= WHOLE) or not np.all(table.sum(axis=1) == WHOLE):
        raise BrokenPromise("The table has a row that does not sum to 2^32.")
    if worst_ratio(table) > exponential_below(epsilon):
        raise BrokenPromise(
            f"The table breaks ε = {epsilon:g}: two of its rows differ by more than e^ε in some answer."
        )


def check_evidence(table: Integers, evidence: Evidence) -> None:
    """Raise ValueError unless the advantage is what it is held to, and stated as what follows."""
    for attacker in evidence.attackers:
        if evidence.shown(table, attacker, held=True) > Fraction(evidence.advantage):
            raise BrokenPromise(
                f"The table breaks the advantage of {evidence.advantage:g} that it is held to, for who sees "
                f"{ATTACKERS[attacker]}."
            )
        if stated_advantage(table, evidence, attacker) > Fraction(float(evidence.stated[attacker])):
            raise BrokenPromise(f"The advantage stated for who sees {ATTACKERS[attacker]} is too small.")


def rounded_up(value: Fraction) -> float:
    """The least float64 that is not below it."""
    near = float(value)
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)


# Composition


def repeated(table: Integers, releases: int) -> NDArray[np.object_]:
    """The table of so many fresh answers to one record: how often each answer came, in units of 2^-32 to the n.

    In what order they came tells nothing more. Where there are more than `MOST_TYPES` such counts, the bins themselves
    stand for them, told apart where their rows differ: who knows the bin knows at least as much.
    """
    answers = table.shape[1]
    if math.comb(releases + answers - 1, answers - 1) > MOST_TYPES:
        _, kind = np.unique(table, axis=0, return_inverse=True)
        return np.asarray(kind[:, None] == np.arange(kind.max() + 1)).astype(int).astype(object)
    exact = table.astype(object)
    columns = []
    for counts in _types(releases, answers):
        arrangements, chances, left = 1, np.ones(len(table), dtype=object), releases
        for answer, count in enumerate(counts):
            arrangements *= math.comb(left, count)
            chances, left = chances * exact[:, answer] ** count, left - count
        columns.append(arrangements * chances)
    return np.stack(columns, axis=1)


def _types(releases: int, answers: int) -> Iterator[tuple[int, ...]]:
    """Every way in which so many releases can fall on the answers."""
    if answers == 1:
        yield (releases,)
        return
    for first in range(releases + 1):
        for others in _types(releases - first, answers - 1):
            yield (first, *others)


def zcdp_rho(table: Integers, epsilon: float) -> float:
    """An upper bound, tight to 0.2 %, of the ρ for which one answer is ρ-zCDP: sup over rows and α > 1 of D_α / α.

    D_α does not fall with α, so on [α, α'] the supremum is at most D_α' / α: a coarse grid first, then a fine one
    where the supremum can be. Never above ε²/2, nor above what the range of the loss gives, range²/8.
    """
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
