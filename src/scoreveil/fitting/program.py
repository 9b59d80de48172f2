"""The linear program: among all tables on these bins that keep the promises, the one with the least Brier score.

    minimise   Σ_b P(b) Σ_c Q[b,c] · ( r_b (1 - p_c)² + (1 - r_b) p_c² )
    such that  m_c <= Q[b,c] <= e^ε m_c                                 ε, between any two bins
               ½ Σ_{g,c} |Σ_b Δ_g(b) Q[b,c]| <= allowance               the advantage, for each attacker
               Σ_c Q[b,c] = 1

r_b is how often bin b is right; or, where fidelity is wanted, its top score: then the same expression is the squared
distance to it, but for a constant. Solved by HiGHS (through scipy, which every data-science environment has).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scoreveil.extras import needs

with needs("fit"):
    from scipy import sparse
    from scipy.optimize import linprog

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Attacker:
    """What an attacker could gain: (groups, bins) weights Δ_g(b), and the ½ Σ |…| that is allowed."""

    weights: Floats
    allowance: float


@dataclass(frozen=True, eq=False)
class Solution:
    """The best table, and the proof that there is none better: the value of the dual program."""

    table: Floats  # (bins, answers)
    confidences: Floats  # (answers,), ascending
    value: float
    dual: float


def cost(shares: Floats, rates: Floats, confidences: Floats) -> Floats:
    """What each entry of a table costs: (bins, answers)."""
    r, p = rates[:, None], confidences
    return np.asarray(shares[:, None] * (r * (1 - p) ** 2 + (1 - r) * p**2))


def candidates(rates: Floats) -> Floats:
    """Confidences that may be announced: those of the bins, and some between them."""
    return np.unique(np.round(np.concatenate([rates, np.linspace(rates.min(), rates.max(), 17)]), 6))


def solve(
    shares: Floats, rates: Floats, confidences: Floats, epsilon: float, attackers: Sequence[Attacker] = ()
) -> Solution:
    """Solve the program.

    Args:
        shares: P(b), (bins,).
        rates: r_b, (bins,).
        confidences: p_c, (answers,).
        epsilon: ε between any two bins.
        attackers: Those whose advantage is bounded.

    Raises:
        RuntimeError: The solver failed, or its dual value disagrees.
    """
    bins, answers = len(shares), len(confidences)
    entries = bins * answers
    # variables: Q by rows, then m, then one gap for each attacker, group and answer
    gaps = [len(attacker.weights) * answers for attacker in attackers]
    size = entries + answers + sum(gaps)
    one, of_answer = np.ones(entries), sparse.kron(np.ones((bins, 1)), sparse.identity(answers))
    wide = sparse.csr_matrix((entries, sum(gaps)))
    # beyond e^23 a table of integers cannot tell
    top = np.exp(min(epsilon, 23.0))
    rows = [
        sparse.hstack([sparse.identity(entries), -top * of_answer, wide]),
        sparse.hstack([-sparse.identity(entries), of_answer, wide]),
    ]
    limits = [np.zeros(2 * entries)]
    before = entries + answers
    for attacker, count in zip(attackers, gaps, strict=True):
        told = sparse.kron(sparse.csr_matrix(attacker.weights), sparse.identity(answers))  # (groups·answers, entries)
        gap = sparse.csr_matrix(
            (np.ones(count), (np.arange(count), np.arange(before - entries, before - entries + count))),
            shape=(count, size - entries),
        )
        rows += [sparse.hstack([told, -gap]), sparse.hstack([-told, -gap])]
        together = np.zeros(size)
        together[before : before + count] = 1
        rows.append(sparse.csr_matrix(together))
        limits += [np.zeros(2 * count), np.array([2 * attacker.allowance])]
        before += count
    sums = sparse.csr_matrix((one, (np.repeat(np.arange(bins), answers), np.arange(entries))), shape=(bins, size))
    objective = np.concatenate([cost(shares, rates, confidences).ravel(), np.zeros(size - entries)])
    limit = np.concatenate(limits)
    solved = linprog(objective, sparse.vstack(rows).tocsr(), limit, sums, np.ones(bins), method="highs")
    if solved.status:
        raise RuntimeError(f"The solver found no table: {solved.message}")
    dual = float(solved.ineqlin.marginals @ limit + solved.eqlin.marginals.sum())
    if abs(dual - solved.fun) > 1e-6:
        raise RuntimeError(f"The solver's two values differ, {solved.fun} and {dual}: its table may not be the best.")
    table = np.maximum(solved.x[:entries].reshape(bins, answers), 0.0)
    return Solution(table / table.sum(axis=1, keepdims=True), confidences, float(solved.fun), dual)
