"""The ε that an attack proves: with 95 % confidence, no smaller ε would allow what was seen.

    proved_epsilon(in_scores, out_scores)                 # from an attack on members and on others
    one_run_epsilon(right=95, guesses=100, canaries=400)  # from coins that an attack guessed, of one training run

What is ε-differentially private allows no event S with P(S | in) > e^ε P(S | out) + δ, nor the other way round. An
attack that says "member" too often of members and too rarely of others is such an event. A promise of ε is broken where
the proved ε lies above it; a proved ε below it shows nothing but that these attacks did not do better.

A veil's promise is about two score vectors with the same label. What the label itself tells is no part of it, so
records are compared within *cells*: records of one cell have the same label (and the same true label, where the
attacker is told it). Without cells, the proved ε is that of label and scores together.

For the best of several attacks, divide 1 - confidence by their number.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta, binom

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.records import Bools

CONFIDENCE = 0.95
MAX_THRESHOLDS = 256  # that are tried on the half where one is chosen


def proved_epsilon(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
    *,
    in_cells: ArrayLike | None = None,
    out_cells: ArrayLike | None = None,
    seed: int = 0,
) -> float:
    """The larger of ln((TPR - δ) / FPR) and ln((TNR - δ) / FNR), each rate at the worse end of its interval; or 0.

    The threshold is chosen on one half of the records and judged on the other. Both bounds rest on the same two
    one-sided Clopper-Pearson bounds, of TPR from below and of FPR from above, each wrong in (1 - confidence) / 2.

    Args:
        in_scores: What the attack says of members, each from one answer; higher is more likely a member.
        out_scores: The same of non-members.
        delta: The δ that is allowed.
        confidence: How sure the bound is.
        in_cells: A whole number for each member: what the attacker knows beyond the answer's scores. As many members as
            non-members of each cell are compared, so that the cells themselves give nothing away.
        out_cells: The same of non-members.
        seed: Of the halves.
    """
    _check(delta, confidence)
    rng = np.random.default_rng(seed)
    chosen_on, judged_on = [], []
    for side in _compared(in_scores, out_scores, in_cells, out_cells, rng):
        order, half = rng.permutation(len(side)), len(side) // 2
        chosen_on.append(side[order[:half]])
        judged_on.append(side[order[half:]])
    if min(map(len, chosen_on)) == 0:
        return 0.0
    tried = np.unique(np.concatenate(chosen_on))
    if len(tried) > MAX_THRESHOLDS:
        tried = tried[np.linspace(0, len(tried) - 1, MAX_THRESHOLDS).round().astype(np.int64)]
    threshold = tried[_bounds(chosen_on, tried, delta, confidence).argmax()]
    return float(_bounds(judged_on, np.array([threshold]), delta, confidence)[0])


def _compared(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    in_cells: ArrayLike | None,
    out_cells: ArrayLike | None,
    rng: np.random.Generator,
) -> list[Floats]:
    """Both sides, checked; with cells as many of one as of the other in each."""
    names, sides = ("members", "non-members"), [np.asarray(side, dtype=np.float64) for side in (in_scores, out_scores)]
    for name, side in zip(names, sides, strict=True):
        if side.ndim != 1 or np.isnan(side).any():
            raise ValueError(f"Expected one number for each of the {name}, got shape {side.shape} or NaN.")
    if (in_cells is None) != (out_cells is None):
        raise ValueError("Expected cells of members and of non-members, got those of one side.")
    if in_cells is None or out_cells is None:
        return sides
    cells = [np.asarray(in_cells), np.asarray(out_cells)]
    for name, side, cell in zip(names, sides, cells, strict=True):
        if side.shape != cell.shape:
            raise ValueError(f"Expected a cell for each of the {len(side)} {name}, got shape {cell.shape}.")
    return [side[index] for side, index in zip(sides, pairs(cells[0], cells[1], rng), strict=True)]


def _bounds(sides: list[Floats], thresholds: Floats, delta: float, confidence: float) -> Floats:
    """The ε that each threshold proves, "member" being what reaches it."""
    wrong, (m, n) = (1 - confidence) / 2, map(len, sides)
    hits, alarms = (len(side) - np.searchsorted(np.sort(side), thresholds) for side in sides)
    with np.errstate(invalid="ignore"):  # scipy's answer at the ends is NaN
        tpr = np.where(hits > 0, beta.ppf(wrong, hits, m - hits + 1), 0.0)
        fpr = np.where(alarms < n, beta.ppf(1 - wrong, alarms + 1, n - alarms), 1.0)
    with np.errstate(divide="ignore"):
        logs = [np.log(np.maximum(low - delta, 0.0) / high) for low, high in ((tpr, fpr), (1 - fpr, 1 - tpr))]
    return np.asarray(np.maximum(0.0, np.maximum(*logs)))


def pairs(in_cells: Integers, out_cells: Integers, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """As many of one side as of the other in each cell, at random: which of the first, and which of the second.

    The i-th of the first has the same cell as the i-th of the second.
    """
    first, second = [], []
    for cell in np.intersect1d(in_cells, out_cells):
        there = [rng.permutation(np.flatnonzero(cells == cell)) for cells in (in_cells, out_cells)]
        size = min(map(len, there))
        first.append(there[0][:size])
        second.append(there[1][:size])
    none = np.zeros(0, dtype=np.int64)
    return np.concatenate([none, *first]), np.concatenate([none, *second])


def fair_within(inside: Bools, cells: Integers, rng: np.random.Generator) -> Integers:
    """Some of the records, such that who is inside is a fair coin, independent of the cells and of each other.

    One of each pair of an inside and an outside record of the same cell, by the toss of a coin.
    """
    members, others = np.flatnonzero(inside), np.flatnonzero(~inside)
    first, second = pairs(cells[members], cells[others], rng)
    heads = rng.random(len(first)) < 0.5
    return np.asarray(np.where(heads, members[first], others[second]))


def one_run_epsilon(
    right: int, guesses: int, canaries: int, delta: float = 0.0, confidence: float = CONFIDENCE
) -> float:
    """The ε that guessed coins prove, after Steinke, Nasr and Jagielski 2023, Theorem 5.2.

    Each of `canaries` records was put into the training set by a fair coin, and an attack guessed `guesses` of the
    coins, abstaining on the rest. If all is (ε, δ)-differentially private, then with W ~ Binomial(guesses, e^ε/(1+e^ε))

        P(at least `right` guesses are right) ≤ P(W ≥ right) + 2 δ canaries · max_i P(right - i ≤ W < right) / i

    Returns:
        The largest ε for which this is at most 1 - confidence; 0 where there is none.
    """
    _check(delta, confidence)
    if not 0 <= right <= guesses <= canaries:
        raise ValueError(f"Expected 0 <= right <= guesses <= canaries, got {right}, {guesses} and {canaries}.")
    if right == 0:
        return 0.0
    wrong = 1 - confidence
    share = float(beta.ppf(wrong, right, guesses - right + 1))  # the largest with P(W >= right) <= wrong
    if share <= 0.5:
        return 0.0
    highest = math.log(share / (1 - share))
    if delta == 0:
        return highest
    below = np.arange(1, right + 1)

    def p_value(epsilon: float) -> float:
        q = 1 / (1 + math.exp(-epsilon))
        passed = np.cumsum(binom.pmf(right - below, guesses, q)) / below
        return float(binom.sf(right - 1, guesses, q) + 2 * delta * canaries * passed.max())

    if p_value(0.0) > wrong:
        return 0.0
    low, high = 0.0, highest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) <= wrong else (low, middle)
    return low


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"Expected 0 <= delta < 1, got {delta}.")
    if not 0 < confidence < 1:
        raise ValueError(f"Expected 0 < confidence < 1, got {confidence}.")
