"""The isotonic mechanism: the paper's two phases and single parameter, made to hold. The default.

The values are chosen jointly, from a grid that does not depend on the data, and only what the user needs is kept:

    v_1 >= … >= v_j    the j top scores (`keep` = j)
    L                  {0, 1/(G-1), …, 1}, G levels
    C                  the sequences c_1 > c_2 >= … >= c_j in L with c_1 >= 1/k, below which no top score lies
    Phase 1            c with probability P(c | v) ∝ q(c) · exp(-a · Σ_i |c_i - v_i|)
    Phase 2            the other classes share 1 - Σ c_i by a public profile, or evenly, none above c_j; normalise

q is uniform, or a public reference (`reference.py`); like the profile it depends on the kept classes alone.

Formal guarantee: for any two score vectors with the same j top classes in the same order, and every outcome,
P(z | v) <= e^ε · P(z | v̂). The utility -Σ|c_i - v_i| differs by at most ‖v - v̂‖₁ <= Δ_j, the ℓ1 diameter of the j
top entries of a sorted score vector, so a = ε/(2Δ_j) suffices; for j = 1 the exact worst loss has a closed form and
a is the largest scale that meets ε. Up to ε = 20 that loss includes the grain of the draws, which have 52 bits; above,
the guarantee states what it comes to. Proof, composition and limits: docs/guarantees.md.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms.guarantee import KEPT_CLASSES, Guarantee, Relation, relation_words
from scoreveil.mechanisms.mechanism import Arrays, Mechanism, Settings
from scoreveil.mechanisms.ordering import lift, normalized, rank, unrank
from scoreveil.mechanisms.reference import Reference, count
from scoreveil.mechanisms.scores import Array, checked_rows, namespace, totals

Keep = int | Literal["all"]

MAX_SCALE = 512.0  # beyond it the noise is nil (e^-16 per level), and floating point would suffer; only safer
GRAIN = 2.0**-50  # by which a chance can be off: draws have 52 bits, and cumulative sums are rounded
MAX_PROVEN = 20.0  # the largest ε for which the scale makes room for the grain
RAMP = 1 / 1024  # of a grid step, shared over the kept ranks: separates ties by rank alone

PROMISE = (
    "Whatever is released, {pairs} give it with probabilities within a factor e^{epsilon:g} of each other: "
    "ε = {epsilon:g} for the scores, given what is kept. An attack on the scores gains at most that factor over the "
    "best attack that sees only what is kept."
)
NO_PROMISE = (
    "ε = {epsilon:g} promises nothing: a draw has 52 bits, too few for the rarest answers, so an answer may tell two "
    "score vectors with the same top class apart with certainty."
)
RARE_ANSWERS = (
    "the 52 bits of a draw make rare answers a little more or less likely than intended; the ε stated here includes "
    "that, and is infinite where an answer may never come."
)
UNPROVEN = "the 52 bits of a draw are too few to prove it: rare answers may never come."
RANKING = "The full ranking alone leaves a model inversion attack nearly all it wants; keep=1 does not."
KEYED = (
    "Keyed answers: the same question, and near-duplicates in the same grid cell, always get the same answer; larger "
    "moves get fresh draws, which add up. Where only scores are seen, records of the same cell and magnitudes share an "
    "answer: who knows the membership of some can learn what it means."
)


@dataclass(frozen=True)
class Isotonic(Mechanism, name="isotonic"):
    """The mechanism as a value: keeps the top classes in order, and promises ε for everything else.

    Attributes:
        epsilon: How much shows through.
        keep: How many top classes keep their place; "all" for every class.
        levels: The number of grid points that a score can become.
        reference: Public scores (n, k), or a `Reference` counted from them: far less distortion for the same ε. For
            keep >= 2; with the label alone kept, `scoreveil.fit` makes more of such scores.
    """

    keep: Keep = 1
    levels: int = 32
    reference: Reference | None = None
    _snapped: bool = False  # scores are moved to the grid first, as keyed draws need it

    kernels = "scoreveil.mechanisms.kernels.isotonic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.keep, np.integer):
            object.__setattr__(self, "keep", int(self.keep))
        whole = isinstance(self.keep, int) and not isinstance(self.keep, bool)
        if self.keep != "all" and not (whole and self.keep >= 1):
            raise ValueError(f"Expected keep to be a whole number >= 1 or 'all', got {self.keep!r}.")
        if isinstance(self.levels, bool) or not isinstance(self.levels, int) or not 3 <= self.levels <= 256:
            raise ValueError(f"Expected levels to be a whole number from 3 to 256, got {self.levels!r}.")
        if self.reference is not None and self.keep == 1:
            raise ValueError(
                "Expected keep >= 2 with a reference. Where the label alone is kept, scoreveil.fit makes more of such "
                "scores: fit(nonmembers=scores, epsilon=…)."
            )
        if self.reference is not None and not isinstance(self.reference, Reference):
            rows = checked_rows(self.reference)
            object.__setattr__(self, "reference", count(rows, self.kept(rows.shape[1]), self.levels))

    def kept(self, classes: int) -> int:
        """j, the number of classes that keep their place among this many."""
        if self.keep == "all":
            return classes
        if self.keep > classes:
            raise ValueError(f"Expected keep <= {classes}, the number of classes, got {self.keep}.")
        return self.keep

    @property
    def step(self) -> float:
        return 1 / (self.levels - 1)

    def plan(self, classes: int) -> "IsotonicPlan":
        """What the draw needs for this many classes; computed once."""
        return self.remembered(("plan", classes), lambda: _plan(self, classes))

    def draws(self, classes: int) -> int:
        """One for each kept class."""
        return self.kept(classes)

    def perturb(self, rows: Array, uniforms: Array) -> Array:
        return perturb(rows, self.plan(rows.shape[-1]), uniforms)

    def outcomes(self, rows: Rows, uniforms: Floats) -> Rows:
        """The levels of the kept classes, top first."""
        plan = self.plan(rows.shape[-1])
        order, tops = top_scores(rows, plan)
        return np.asarray(choose(tops, order[..., -1], plan, uniforms), dtype=np.uint16)

    @property
    def different_answers(self) -> int | None:
        return self.levels if self.keep == 1 else None

    def answers(self, rows: Rows, outcomes: Rows) -> Rows:
        plan = self.plan(rows.shape[-1])
        order, _ = top_scores(rows, plan)
        return np.asarray(release(outcomes.astype(np.int64), order, plan, rows.dtype))

    def keyed(self) -> "Isotonic":
        return replace(self, _snapped=True)

    def cells(self, rows: Rows) -> tuple[Rows, Rows]:
        plan = self.plan(rows.shape[-1])
        order, values = top_scores(rows, plan)
        kept = np.flip(order[:, plan.classes - plan.kept :], axis=1)
        return kept, np.rint(values / self.step).astype(np.int64)

    def guarantee(self, classes: int | None = None) -> Guarantee:
        if classes is None and self.reference is not None:
            classes = self.reference.classes
        relation = Relation.SAME_RANKING if self.keep == "all" else Relation.SAME_TOP_CLASSES
        kept = 1 if self.keep == "all" else self.keep
        plan = None if classes is None else self.plan(classes)
        worst, epsilon = None, self.epsilon
        # ρ follows from the range of the loss: 2aΔ; for one kept class ε-DP alone gives less, 2ε
        if self.keep == 1:
            worst = None if plan is None else plan.worst_loss
            epsilon = largest_loss(self.epsilon, self.levels) if worst is None else max(self.epsilon, worst)
            loss_range = 2 * epsilon
        else:
            loss_range = self.epsilon if plan is None else min(2 * self.epsilon, plan.range)
        return Guarantee(
            epsilon, relation, self._words(epsilon, relation, kept), self._limits(), loss_range**2 / 8, worst, kept
        )

    def _words(self, epsilon: float, relation: Relation, kept: int) -> str:
        if math.isinf(epsilon):
            return NO_PROMISE.format(epsilon=self.epsilon)
        return PROMISE.format(epsilon=epsilon, pairs=relation_words(relation, kept))

    def _limits(self) -> tuple[str, ...]:
        first, *others = KEPT_CLASSES
        limits = [first, *([RANKING] if self.keep == "all" else []), *others]
        if self.epsilon > MAX_PROVEN:
            limits.append(f"Above ε = {MAX_PROVEN:g} {RARE_ANSWERS if self.keep == 1 else UNPROVEN}")
        if self._snapped:
            limits.append(KEYED)
        if self.reference is not None:
            limits.append("The reference must not be counted from the records to be protected.")
        return tuple(limits)

    def loss(self, scores: Floats, other: Floats) -> float:
        """Over all c ∈ C, by a max-plus pass over the chain; infinite where the kept classes differ."""
        plan = self.plan(len(scores))
        order, tops = top_scores(np.stack([scores, other]).astype(np.float64), plan)
        kept = order[:, plan.classes - plan.kept :]
        if not np.array_equal(kept[0], kept[1]):
            return math.inf
        weights = log_weights(tops, order[:, -1], plan)
        normaliser = over_chain(weights, np.logaddexp)
        with np.errstate(invalid="ignore"):
            gain = np.where(np.isfinite(weights[0]), weights[0] - weights[1], -np.inf)
        return float(over_chain(gain[None], np.maximum)[0] - normaliser[0] + normaliser[1])

    def settings(self) -> Settings:
        return {"epsilon": self.epsilon, "keep": self.keep, "levels": self.levels}

    def arrays(self) -> Arrays:
        return {} if self.reference is None else vars(self.reference)

    @classmethod
    def restored(cls, settings: Settings, arrays: Arrays) -> "Isotonic":
        return cls(**settings, reference=Reference(**arrays) if arrays else None)

    def __str__(self) -> str:
        reference = "" if self.reference is None else f", reference of {self.reference.classes} classes"
        return super().__str__() + reference


@dataclass(frozen=True, eq=False)
class IsotonicPlan:
    """All that the draw needs besides the scores: made once for a mechanism and a number of classes."""

    levels: int
    classes: int
    kept: int
    snapped: bool  # the scores are moved to the grid first (keyed draws)
    sensitivity: float  # Δ_j for these scores
    table_of_class: Integers  # (k,): which table a top class uses
    measure: Floats  # (tables, j, G): q_i; the top rank has no mass where no top score lies
    scale: float  # a
    profile: Floats | None  # (tables, k), or None: the other classes share evenly

    @property
    def step(self) -> float:
        return 1 / (self.levels - 1)

    @property
    def range(self) -> float:
        """max - min of the privacy loss of one release, at most: 2aΔ_j. Makes it ρ-zCDP with ρ = range²/8."""
        return 2 * self.scale * self.sensitivity

    @property
    def worst_loss(self) -> float:
        """The supremum of the privacy loss of the draws, for one kept class, over all pairs with the same top class."""
        return worst_loss(self.measure[0, 0], self.scale, lowest_top(self.classes, self.snapped, self.step))


def sensitivity(kept: int, classes: int, snapped: bool, step: float) -> float:
    """Δ_j: the ℓ1 diameter of the j top entries over all sorted score vectors.

    Its extreme points are (1/t, …, 1/t, 0, …), so Δ_1 = 1 - 1/k and Δ_j = 2(1 - 1/j). On snapped scores the top
    entry moves by half a step at most, and the others, rounded down, stay within the diameter.
    """
    if kept == 1:
        return 1 - lowest_top(classes, snapped, step)
    return 2 * (1 - 1 / kept) + (step if snapped else 0)


def lowest_top(classes: int, snapped: bool, step: float) -> float:
    """The smallest value that a top score takes: 1/k, or its grid point."""
    return float(np.rint(1 / classes / step) * step) if snapped else 1 / classes


def _plan(mechanism: Isotonic, classes: int) -> IsotonicPlan:
    kept, levels, step = mechanism.kept(classes), mechanism.levels, mechanism.step
    reference, snapped = mechanism.reference, mechanism._snapped
    if reference is None:
        table_of_class, profile = np.zeros(classes, dtype=np.int64), None
        measure = np.full((1, kept, levels), 1 / levels)
    else:
        expected, got = (classes, kept, levels), (reference.classes, reference.kept, reference.levels)
        if got != expected:
            raise ValueError(f"Expected a reference of (classes, kept, levels) {expected}, got {got}.")
        table_of_class, measure, profile = reference.table_of_class, reference.measure.copy(), reference.profile
    grid = np.arange(levels) * step
    measure[:, 0, grid < max(1 / classes, step) - 1e-12] = 0.0
    measure /= measure.sum(axis=-1, keepdims=True)
    delta = sensitivity(kept, classes, snapped, step)
    scale = min(mechanism.epsilon / (2 * delta), MAX_SCALE)
    if kept == 1:
        scale = calibrated_scale(measure[0, 0], lowest_top(classes, snapped, step), mechanism.epsilon, scale)
    return IsotonicPlan(levels, classes, kept, snapped, delta, table_of_class, measure, scale, profile)


def worst_loss(measure: Floats, scale: float, low: float, grain: float = GRAIN) -> float:
    """The worst loss for keep=1: sup over c, v, v̂ in [low, 1] of ln(P(c|v) + grain) - ln(P(c|v̂) - grain).

    P(c|v) rises while v approaches c from either side, so the supremum over v is at clip(c, low, 1) and the infimum at
    one of the ends. The loss is infinite where that is no larger than the grain. A grain of 0 gives the loss of the
    formula, as if draws had infinitely many bits.
    """
    levels = len(measure)
    grid = np.arange(levels) / (levels - 1)
    inputs = np.concatenate([np.clip(grid, low, 1.0), [low, 1.0]])
    exponent = -scale * np.abs(grid - inputs[:, None])  # (inputs, levels)
    highest = exponent.max(axis=-1, keepdims=True)
    log_p = exponent - highest - np.log((measure * np.exp(exponent - highest)).sum(axis=-1, keepdims=True))
    at_best, at_ends = np.diagonal(log_p[:levels]), log_p[levels:].min(axis=0)  # without ln q(c), which cancels
    loss = at_best - at_ends
    if grain:
        with np.errstate(divide="ignore", over="ignore"):
            share_of_best, share_of_end = (grain / (measure * np.exp(log)) for log in (at_best, at_ends))
            loss = loss + np.log1p(share_of_best) - np.log1p(-np.minimum(share_of_end, 1.0))
    return float(np.where(measure > 0, loss, -np.inf).max())


def largest_loss(epsilon: float, levels: int) -> float:
    """What the worst loss for keep=1 is at most, whatever the number of classes.

    At v = c the answer c is the most likely one of at most G, so its chance is at least 1/G, and at any v̂ at least e^-ε
    of that. The grain is added to the one and taken from the other. Up to `MAX_PROVEN` the scale makes room for it.
    """
    least = 2 * math.atanh(GRAIN * levels)  # even answers that ignore the scores are off by the grain
    if epsilon <= MAX_PROVEN:
        return max(epsilon, least)
    if epsilon >= -math.log(GRAIN * levels):
        return math.inf
    return epsilon + math.log1p(GRAIN * levels) - math.log1p(-GRAIN * levels * math.exp(epsilon))


def calibrated_scale(measure: Floats, low: float, epsilon: float, at_least: float) -> float:
    """The largest a <= MAX_SCALE with worst loss <= ε, by bisection; `at_least` is safe but for the grain."""
    grain = GRAIN if epsilon <= MAX_PROVEN else 0.0
    if worst_loss(measure, MAX_SCALE, low, grain) <= epsilon:
        return MAX_SCALE
    is_safe = not grain or worst_loss(measure, at_least, low, grain) <= epsilon
    safe, unsafe = at_least if is_safe else 0.0, MAX_SCALE
    for _ in range(64):
        middle = (safe + unsafe) / 2
        safe, unsafe = (middle, unsafe) if worst_loss(measure, middle, low, grain) <= epsilon else (safe, middle)
    return safe


# Phase 1: the draw


def top_scores(scores: Array, plan: IsotonicPlan) -> tuple[Array, Array]:
    """The order of each row, and its j top scores, largest first, as the mechanism reads them."""
    xp = namespace(scores)
    wide = xp.astype(scores, xp.float64, copy=False)
    order = rank(wide)
    kept = xp.flip(order[..., plan.classes - plan.kept :], axis=-1)
    tops = xp.take_along_axis(wide, kept, axis=-1) / totals(wide)
    tops = xp.clip(tops, 0.0, 1.0)
    return order, snap(tops, plan.step) if plan.snapped else tops


def snap(tops: Array, step: float) -> Array:
    """Scores moved to the grid: the top one to its nearest point, the others down, which keeps Δ_j (almost)."""
    xp = namespace(tops)
    nearest = xp.round(tops[..., :1] / step)
    # a score that sits on a grid point but for rounding stays there
    down = xp.floor(tops[..., 1:] / step + 1e-9)
    return xp.concat([nearest, down], axis=-1) * step


def choose(tops: Array, top_class: Array, plan: IsotonicPlan, uniforms: Array) -> Array:
    """Draw c ∈ C exactly, as level numbers (n, j), top first: forward over the ranks, then backward.

    Forward, lowest rank first: F_i(g) = Σ_{g' <= g} w_i(g')·F_{i-1}(g'), w_i(g) = q_i(g)·exp(-a·|g/(G-1) - v_i|).
    Backward, top rank first: one inversion of F_i cut at the level above.
    Why it is exact: docs/derivations/isotonic-chain.md.
    """
    xp = namespace(tops)
    weights = [rank_weights(tops, top_class, plan, i) for i in range(plan.kept)]
    forward: list[Array] = []
    for i in reversed(range(plan.kept)):
        mass = weights[i]
        if forward:
            below = forward[-1]
            mass = mass * (_strictly_below(below) if i == 0 else below)
        cumulative = xp.cumulative_sum(mass, axis=-1)
        forward.append(cumulative / cumulative[..., -1:])
    forward.reverse()
    limit = xp.full_like(top_class, plan.levels - 1)
    chosen: list[Array] = []
    for i in range(plan.kept):
        reach = xp.take_along_axis(forward[i], limit[..., None], axis=-1)
        below = forward[i] <= uniforms[..., i : i + 1] * reach
        level = xp.minimum(xp.sum(xp.astype(below, limit.dtype), axis=-1), limit)
        chosen.append(level)
        limit = level - 1 if i == 0 else level
    return xp.stack(chosen, axis=-1)


def rank_weights(tops: Array, top_class: Array, plan: IsotonicPlan, i: int) -> Array:
    """w_i(g) for each row: (n, G)."""
    xp = namespace(tops)
    measure = _like(plan.measure[:, i], tops)
    if plan.profile is not None:
        measure = xp.take(measure, xp.take(_like(plan.table_of_class, top_class), top_class, axis=0), axis=0)
    grid = xp.arange(plan.levels, dtype=tops.dtype, device=tops.device) * plan.step
    return measure * xp.exp(-plan.scale * xp.abs(grid - tops[..., i : i + 1]))


def _strictly_below(cumulative: Array) -> Array:
    """F(g-1) in place of F(g)."""
    xp = namespace(cumulative)
    return xp.concat([xp.zeros_like(cumulative[..., :1]), cumulative[..., :-1]], axis=-1)


# Phase 2: the release


def ramp(plan: IsotonicPlan) -> Floats:
    """What each kept rank gets on top of its level, top first: less than a grid step in all, by rank alone."""
    j = plan.kept
    return RAMP * plan.step / j * np.arange(j, 0, -1) / j


def release(levels: Array, order: Array, plan: IsotonicPlan, dtype: object) -> Array:
    """The score vector of chosen levels. A function of the levels and the kept classes alone.

    Guarantee: the kept classes keep their order, strictly where `dtype` can express it, and no other passes them.
    """
    xp = namespace(levels)
    values = xp.astype(levels, xp.float64) * plan.step
    chain = xp.flip(values + _like(ramp(plan), values), axis=-1)
    others = plan.classes - plan.kept
    if others:
        # by class, not by rank: the last bit of a sum must not tell how those that are not kept were ranked
        order = xp.concat([xp.sort(order[..., :others], axis=-1), order[..., others:]], axis=-1)
        left = xp.clip(1 - xp.sum(values, axis=-1, keepdims=True), 0.0, 1.0)
        rest = xp.minimum(left * _share(order, plan, values), values[..., -1:])
        chain = xp.concat([rest, chain], axis=-1)
    chain = normalized(chain)
    # every rank stays apart, whatever the scores were: which ones tied must not show
    if others:
        # the largest of the rest stands for all of it in the chain of ranks that must stay apart
        highest = xp.max(chain[..., :others], axis=-1, keepdims=True)
        lifted = lift(xp.concat([highest, chain[..., others:]], axis=-1), None, dtype)
        chain = xp.concat([chain[..., :others], lifted[..., 1:]], axis=-1)
    else:
        chain = lift(chain, None, dtype)
    return xp.astype(unrank(normalized(chain), order), dtype, copy=False)


def perturb(scores: Array, plan: IsotonicPlan, uniforms: Array) -> Array:
    """Both phases, for an (n, k) batch and (n, j) uniforms."""
    order, tops = top_scores(scores, plan)
    levels = choose(tops, order[..., -1], plan, uniforms)
    return release(levels, order, plan, scores.dtype)


def _share(order: Array, plan: IsotonicPlan, like: Array) -> Array:
    """How the classes that are not kept share the rest, in the order that they have in `order`."""
    xp = namespace(order)
    others = order[..., : plan.classes - plan.kept]
    if plan.profile is None:
        return xp.full(others.shape, 1 / others.shape[-1], dtype=like.dtype, device=like.device)
    table = xp.take(_like(plan.table_of_class, order), order[..., -1], axis=0)
    return normalized(xp.take_along_axis(xp.take(_like(plan.profile, like), table, axis=0), others, axis=-1))


def _like(table: Floats | Integers, like: Array) -> Array:
    """A table of the plan as an array where `like` lives."""
    return namespace(like).asarray(table, device=like.device)


# What is exact


def log_weights(tops: Floats, top_class: Integers, plan: IsotonicPlan) -> Floats:
    """ln q_i(g) - a·|g/(G-1) - v_i|: (n, j, G), -inf where the measure is nil. Not used by the draw."""
    with np.errstate(divide="ignore"):
        log_q = np.log(plan.measure[plan.table_of_class[top_class]])
    return np.asarray(log_q - plan.scale * np.abs(np.linspace(0, 1, plan.levels) - tops[:, :, None]))


def over_chain(weights: Floats, add: np.ufunc) -> Floats:
    """The sum over c ∈ C of Σ_i weights_i(c_i), added up by `add`, from the lowest rank: (n, j, G) to (n,)."""
    total = np.zeros_like(weights[:, 0])
    for i in reversed(range(1, weights.shape[1])):
        total = add.accumulate(weights[:, i] + total, axis=-1)
        if i == 1:
            total = np.concatenate([np.full_like(total[:, :1], -np.inf), total[:, :-1]], axis=-1)
    return np.asarray(add.reduce(weights[:, 0] + total, axis=-1))


def log_probability(scores: Floats, levels: Integers, plan: IsotonicPlan) -> Floats:
    """The exact ln P(c | v) of each row's levels (n, j), computed apart from the sampler; -inf outside C."""
    order, tops = top_scores(np.atleast_2d(scores), plan)
    weights = log_weights(tops, order[:, -1], plan)
    levels = np.broadcast_to(np.atleast_2d(levels), (len(tops), plan.kept))
    chosen = np.take_along_axis(weights, levels[:, :, None], axis=-1).sum(axis=(1, 2))
    inside = np.all(levels[:, 1:-1] >= levels[:, 2:], axis=1)
    if plan.kept > 1:
        inside &= levels[:, 0] > levels[:, 1]
    return np.where(inside, chosen - over_chain(weights, np.logaddexp), -np.inf)
