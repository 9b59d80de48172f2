"""The linear programs: the map without ε, and the table of ε on top of it.

    minimise   Σ_b P(b) Σ_c Q[b,c] · ( r_b (1 - p_c)² + (1 - r_b) p_c² )        the Brier score of what is announced
    such that  ½ Σ_{g,c} |Σ_b Δ_g(b) Q[b,c]| <= allowance                       the advantage, for each attacker
               m_c <= Q[b,c] <= e^ε m_c                                         ε, in the second program
               Σ_c Q[b,c] = 1

Without ε the simplex method ends at a corner, where few bins are shared by two answers: such a bin is cut in two. A bin
that cannot be cut, since its scores are one and the same (an atom), goes whole to one answer. Solved by HiGHS.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Integers
from scoreveil.extras import needs
from scoreveil.mechanisms.promises import WHOLE, exponential_below

with needs("fit"):
    from scipy import sparse
    from scipy.optimize import linprog

Bools = NDArray[np.bool_]

SHARED = 1e-6  # a smaller part of a bin is none
MAX_EPSILON = 22.0  # e^22 < 2^32: beyond it a table of such integers cannot tell


@dataclass(frozen=True, eq=False)
class BoundedAttack:
    """What an attacker could gain: (groups, bins) weights Δ_g(b), and the ½ Σ |…| that is allowed."""

    weights: Floats
    allowance: float


@dataclass(frozen=True, eq=False)
class Solution:
    """The best table, and its Brier score."""

    table: Floats  # (bins, answers)
    value: float


def cost(shares: Floats, rates: Floats, confidences: Floats) -> Floats:
    """What each entry of a table costs: (bins, answers)."""
    r, p = rates[:, None], confidences
    return np.asarray(shares[:, None] * (r * (1 - p) ** 2 + (1 - r) * p**2))


def candidates(rates: Floats, answers: int) -> Floats:
    """Confidences that may be announced: in equal steps, and in equal steps of logits, which part the sure ones."""
    low, high = float(rates.min()), float(max(rates.max(), rates.min() + 1e-6))
    logits = np.linspace(math.log(low / (1 - low)), math.log(high / (1 - high)), answers)
    return np.unique(np.round(np.concatenate([np.linspace(low, high, answers), 1 / (1 + np.exp(-logits))]), 6))


def best_map(
    shares: Floats, rates: Floats, answers: int, attackers: Sequence[BoundedAttack], whole: Bools
) -> tuple[Solution, float]:
    """The most useful map of bins to answers.

    Args:
        shares: P(b), (bins,).
        rates: r_b, (bins,).
        answers: How many regions there may be.
        attackers: Those whose advantage is bounded.
        whole: Which bins cannot be cut.

    Returns:
        The solution, whose rows are 0 and 1 but for few bins that are not `whole`; and what it costs in Brier score
        that some bins must stay whole.
    """
    problem = _Problem(shares, rates, candidates(rates, answers), attackers)
    solution = relaxed = problem.solve({}) or problem.constant()
    fixed: dict[int, int] = {}
    while True:
        shared = [
            int(b) for b in np.flatnonzero(whole & (solution.table.max(axis=1) < 1 - SHARED)) if int(b) not in fixed
        ]
        if not shared:
            return solution, solution.value - relaxed.value
        heaviest = max(shared, key=lambda b: float(shares[b]))
        tried = []
        for answer in np.flatnonzero(solution.table[heaviest] > SHARED).tolist():
            solved = problem.solve({**fixed, heaviest: answer})
            if solved is not None:
                tried.append((solved.value, answer, solved))
        if not tried:  # no answer that the bin was shared by can have it alone
            return problem.constant(), problem.constant().value - relaxed.value
        _, fixed[heaviest], solution = min(tried, key=lambda candidate: candidate[:2])


class _Problem:
    """The program without ε, ready to be solved with some bins fixed."""

    def __init__(self, shares: Floats, rates: Floats, confidences: Floats, attackers: Sequence[BoundedAttack]) -> None:
        self.shares, self.rates, self.confidences = shares, rates, confidences
        bins, answers = self.size = len(shares), len(confidences)
        self.upper = self.limit = None
        gaps = 0
        if attackers:
            each = [
                sparse.kron(sparse.csr_matrix(attacker.weights), sparse.identity(answers)) for attacker in attackers
            ]
            seen = sparse.vstack(each)
            gaps = seen.shape[0]
            together = sparse.block_diag([np.ones((1, part.shape[0])) for part in each])
            bound = sparse.identity(gaps)  # |…| is at most a number beside it; these sum to at most what is allowed
            self.upper = sparse.bmat([[seen, -bound], [-seen, -bound], [None, together]]).tocsr()
            self.limit = np.concatenate([np.zeros(2 * gaps), [2 * one.allowance for one in attackers]])
        self.sums = _sums(bins, answers, gaps)
        self.objective = np.concatenate([cost(shares, rates, confidences).ravel(), np.zeros(gaps)])

    def solve(self, fixed: dict[int, int]) -> Solution | None:
        """A corner; None where fixing these bins leaves none."""
        (bins, answers), bounds = self.size, np.zeros((len(self.objective), 2))
        bounds[:, 1] = np.inf
        for b, answer in fixed.items():
            bounds[b * answers : (b + 1) * answers, 1] = 0
            bounds[b * answers + answer] = 1
        solved = linprog(self.objective, self.upper, self.limit, self.sums, np.ones(bins), bounds, method="highs-ds")
        if solved.status == 2:
            return None
        if solved.status:
            raise RuntimeError(f"The solver found no map: {solved.message}")
        table = np.maximum(solved.x[: bins * answers].reshape(bins, answers), 0.0)
        table[table < SHARED] = 0.0
        return Solution(table / table.sum(axis=1, keepdims=True), float(solved.fun))

    def constant(self) -> Solution:
        """One answer for all, which keeps every promise there is."""
        cost_of_answer = cost(self.shares, self.rates, self.confidences).sum(axis=0)
        table = np.zeros(self.size)
        table[:, int(np.argmin(cost_of_answer))] = 1.0
        return Solution(table, float(cost_of_answer.min()))


def _sums(rows: int, columns: int, others: int) -> "sparse.csr_matrix":
    """What sums up each row of a table, whose entries stand before so many other variables."""
    return sparse.hstack([sparse.kron(sparse.identity(rows), np.ones((1, columns))), sparse.csr_matrix((rows, others))])


def best_table(shares: Floats, rates: Floats, epsilon: float) -> Integers:
    """The table of ε: for each region the chances of announcing each, in units of 2^-32, within e^ε exactly."""
    regions = len(shares)
    epsilon = min(epsilon, MAX_EPSILON)
    entries, top = regions * regions, math.exp(epsilon * (1 - 1e-9))
    of_answer = sparse.kron(np.ones((regions, 1)), sparse.identity(regions))
    own = sparse.identity(entries)
    upper = sparse.bmat([[own, -top * of_answer], [-own, of_answer]]).tocsr()
    sums = _sums(regions, regions, regions)
    objective = np.concatenate([cost(shares, rates, rates).ravel(), np.zeros(regions)])
    solved = linprog(objective, upper, np.zeros(2 * entries), sums, np.ones(regions), method="highs")
    if solved.status:
        raise RuntimeError(f"The solver found no table: {solved.message}")
    table = np.maximum(solved.x[:entries].reshape(regions, regions), 0.0)
    table = table[:, table.max(axis=0) > SHARED]  # answers that are worth giving
    return _integers(table / table.sum(axis=1, keepdims=True), epsilon)


def _integers(table: Floats, epsilon: float) -> Integers:
    """The nearest integers that sum to 2^32 in each row and differ by e^ε at most in each column.

    Each column lies between an integer and e^ε times it, rounded down. Where the rows cannot be made to sum up so, they
    are drawn a little towards their mean, which has room.
    """
    ratio = exponential_below(epsilon)
    for blend in (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        wanted = (1 - blend) * table + blend * table.mean(axis=0)
        least = np.maximum(wanted.min(axis=0), wanted.max(axis=0) / float(ratio))  # the solver is exact to 1e-7 only
        low = np.maximum(np.ceil(least * WHOLE).astype(np.int64), 1)
        high = np.array([min(math.floor(ratio * int(value)), WHOLE) for value in low], dtype=np.int64)
        rounded = np.clip(np.rint(wanted * WHOLE).astype(np.int64), low, high)
        for row in rounded:
            missing = WHOLE - int(row.sum())
            for c in np.argsort(-(high - low), kind="stable"):
                step = int(np.clip(missing, low[c] - row[c], high[c] - row[c]))
                row[c] += step
                missing -= step
        if np.all(rounded.sum(axis=1) == WHOLE):
            return np.asarray(rounded)
    raise RuntimeError("No table of integers was found that keeps ε; this is a defect of Scoreveil.")
