"""The paper's mechanism: Algorithm 1 (Phase 1) and Equation 4 (Phase 2).

    y sorted ascending
    sub-range i    [(y_{i-1} + y_i)/2, (y_i + y_{i+1})/2), the first from 0, the last to 1
    candidates     c_ij = lo_i + (j-1)·ρ_i,  j = 1…m,  ρ_i = (hi_i - lo_i)/m
    Phase 1        y'_i = c_ij with probability ∝ exp(ε·u_ij / (2Δu))
    Phase 2        z_i = exp(ε·y'_i/2) / Σ_j exp(ε·y'_j/2)

The paper prints the utility as u_ij = 1/|y_i - ((i-1)/k + (j-1)ρ)|, with an offset left over from an equal-width
version that its own text abandons, and never gives Δu. Two readings:

    "bounded"  distance in steps, u = 1/max(|y_i - c_ij|/ρ_i, 1/2), Δu = 2 - 1/m. Meets Theorem 1's ε per sub-range.
    "printed"  absolute distance to the candidate, floored at 1e-12, Δu = 1. In effect: the nearest candidate.

Guarantee: none that bounds what two score vectors of the same ranking reveal, since the borders of the sub-ranges
are functions of the data and Phase 2 can be inverted (docs/paper.md). The isotonic mechanism is the repair.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from scoreveil.arrays import Floats, Rows
from scoreveil.mechanisms.guarantee import KEPT_CLASSES, Guarantee, Relation
from scoreveil.mechanisms.mechanism import Mechanism, Settings
from scoreveil.mechanisms.ordering import normalized, rank, restore
from scoreveil.mechanisms.scores import Array, namespace

Reading = Literal["bounded", "printed"]

SNAP = 2.0**-20
NEAREST = {"bounded": 0.5, "printed": 1e-12}  # distances below this count as this


@dataclass(frozen=True)
class Published(Mechanism, name="published"):
    """The paper's mechanism as a value.

    Attributes:
        epsilon: ε of both phases.
        reading: How the paper's utility is read, "bounded" or "printed".
        m: The number of candidates in a sub-range.
        keep: "all": every class keeps its rank.
    """

    reading: Reading = "bounded"
    m: int = 5
    keep: Literal["all"] = "all"
    _snapped: bool = False  # scores are rounded to a grid of 2^-20 first, as keyed draws need it

    kernels = "scoreveil.mechanisms.kernels.published"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reading not in get_args(Reading):
            raise ValueError(f"Expected reading 'bounded' or 'printed', got {self.reading!r}.")
        if isinstance(self.m, bool) or not isinstance(self.m, int) or self.m < 1:
            raise ValueError(f"Expected m to be a whole number >= 1, got {self.m!r}.")
        if self.keep != "all":
            raise ValueError(f"Expected keep='all' for the published mechanism, which keeps all, got {self.keep!r}.")

    @property
    def sensitivity(self) -> float:
        """Δu. Bounded utilities lie in [1/m, 2]; for the printed one the paper's Phase 2 says 1."""
        return 2 - 1 / self.m if self.reading == "bounded" else 1.0

    def draws(self, classes: int) -> int:
        """One for each sub-range."""
        return classes

    def perturb(self, rows: Array, uniforms: Array) -> Array:
        """Both phases, for an (n, k) batch and (n, k) uniforms; ties and order as in `ordering`."""
        if self._snapped:
            return release(*snapped_scores(rows), None, self, uniforms, rows.dtype)
        return release(*ascending_scores(rows), self, uniforms, rows.dtype)

    def keyed(self) -> "Published":
        return replace(self, _snapped=True)

    def cells(self, rows: Rows) -> tuple[Rows, Rows]:
        order, values = snapped_scores(rows)
        return order, values

    def guarantee(self, classes: int | None = None) -> Guarantee:
        part = "" if self.reading == "bounded" else " (and not under the printed reading, whose Δu is wrong)"
        return Guarantee(
            epsilon=math.inf,
            relation=Relation.SAME_RANKING,
            words=(
                "The published mechanism bounds nothing between two score vectors that merely share their ranking. "
                f"The paper's Theorem 1 covers vectors whose adjacent sorted scores have equal sums{part}: they differ "
                "by (t, -t, t, …), and since scores sum to 1, for an odd number of classes no two such vectors exist."
            ),
            limits=(
                "The borders of the sub-ranges are functions of the scores, so an outcome possible for one vector is "
                "impossible for its neighbour: the exact loss is infinite.",
                "Phase 2 can be inverted: y'_i - y'_j = (2/ε)·ln(z_i/z_j). An attacker who retrains sees through it.",
                *KEPT_CLASSES[:1],
            ),
            rho=math.inf,
        )

    def loss(self, scores: Floats, other: Floats) -> float:
        """Over all y' of Phase 1, by a product over the sub-ranges; infinite where their borders differ."""
        order, ascending, _ = ascending_scores(np.stack([scores, other]).astype(np.float64))
        lower, upper = sub_ranges(ascending)
        if not (np.array_equal(order[0], order[1]) and np.allclose(lower[0], lower[1], rtol=0, atol=1e-12)):
            return math.inf
        log_p = selection_log_probabilities(ascending, self)
        different = upper[0] > lower[0]  # an empty sub-range has one outcome
        return float((log_p[0] - log_p[1]).max(axis=-1)[different].sum())

    def settings(self) -> Settings:
        return {"epsilon": self.epsilon, "reading": self.reading, "m": self.m}


def sub_ranges(ascending: Array) -> tuple[Array, Array]:
    """Line 4 of Algorithm 1: the lower and upper border of the sub-range of each sorted score."""
    xp = namespace(ascending)
    middle = (ascending[..., :-1] + ascending[..., 1:]) / 2
    first, last = xp.zeros_like(ascending[..., :1]), xp.ones_like(ascending[..., :1])
    return xp.concat([first, middle], axis=-1), xp.concat([middle, last], axis=-1)


def candidates(lower: Array, rho: Array, m: int) -> Array:
    """Lines 5 and 6: c_ij = lo_i + (j-1)·ρ_i; an empty sub-range yields its point m times."""
    return lower[..., None] + _steps(lower, m) * rho[..., None]


def utility(ascending: Array, lower: Array, rho: Array, settings: Published) -> Array:
    """u_ij = 1/distance(y_i, c_ij): the closer a candidate, the more useful."""
    xp = namespace(ascending)
    if settings.reading == "bounded":
        empty = rho <= 0
        position = xp.where(empty, xp.zeros_like(rho), (ascending - lower) / xp.where(empty, xp.ones_like(rho), rho))
        distance = xp.abs(position[..., None] - _steps(lower, settings.m))
    else:
        distance = xp.abs(ascending[..., None] - candidates(lower, rho, settings.m))
    return 1 / xp.maximum(distance, xp.full_like(distance, NEAREST[settings.reading]))


def exponents(ascending: Array, lower: Array, rho: Array, settings: Published) -> Array:
    """ε·u_ij/(2Δu), shifted so that the largest of each sub-range is 0."""
    xp = namespace(ascending)
    scaled = settings.epsilon / (2 * settings.sensitivity) * utility(ascending, lower, rho, settings)
    return scaled - xp.max(scaled, axis=-1, keepdims=True)


def select(exponent: Array, uniforms: Array) -> Array:
    """Line 8: the exponential mechanism picks a candidate j of each sub-range, by inversion of its distribution."""
    xp = namespace(exponent)
    cumulative = xp.cumulative_sum(xp.exp(exponent), axis=-1)
    below = cumulative[..., :-1] <= uniforms[..., None] * cumulative[..., -1:]
    return xp.sum(xp.astype(below, xp.float64), axis=-1)


def modify(ascending: Array, settings: Published, uniforms: Array) -> Array:
    """Phase 1 (Algorithm 1): y' from sorted scores.

    Guarantee: y' keeps the order of y, and strictly so wherever y is strict (the paper's order lemma).
    """
    lower, upper = sub_ranges(ascending)
    rho = (upper - lower) / settings.m
    return lower + select(exponents(ascending, lower, rho, settings), uniforms) * rho


def normalize(modified: Array, epsilon: float | Array) -> Array:
    """Phase 2 (Equation 4): z_i = exp(ε·y'_i/2) / Σ_j exp(ε·y'_j/2).

    Guarantee: strictly increasing in y', so the order of the scores is kept (Property 1).
    """
    xp = namespace(modified)
    weight = xp.exp(epsilon / 2 * (modified - xp.max(modified, axis=-1, keepdims=True)))
    return normalized(weight)


def ascending_scores(scores: Array) -> tuple[Array, Array, Array]:
    """Line 3: the order of each row, its scores in that order (float64, summing to 1), and which steps are strict."""
    xp = namespace(scores)
    wide = xp.astype(scores, xp.float64, copy=False)
    order = rank(wide)
    ascending = xp.take_along_axis(wide, order, axis=-1)
    strict = ascending[..., 1:] > ascending[..., :-1]
    return order, normalized(ascending), strict


def release(
    order: Array, ascending: Array, strict: Array | None, settings: Published, uniforms: Array, dtype: object
) -> Array:
    """Both phases for ranked scores; `strict` says which steps the answer must show, None: all of them."""
    z = normalize(modify(ascending, settings, uniforms), settings.epsilon)
    return restore(z, strict, order, dtype)


def snapped_scores(scores: Array) -> tuple[Array, Array]:
    """Order and sorted scores rounded to a grid of 2^-20: what a keyed answer depends on, so that noise in the last
    digits of the same scores draws no fresh answer."""
    xp = namespace(scores)
    order, ascending, _ = ascending_scores(scores)
    return order, normalized(xp.round(ascending / SNAP) * SNAP + 0.0)


def selection_log_probabilities(ascending: Array, settings: Published) -> Array:
    """The exact ln P(y'_i = c_ij), shape (n, k, m), computed apart from the sampler."""
    xp = namespace(ascending)
    lower, upper = sub_ranges(ascending)
    exponent = exponents(ascending, lower, (upper - lower) / settings.m, settings)
    return exponent - xp.log(xp.sum(xp.exp(exponent), axis=-1, keepdims=True))


def _steps(like: Array, m: int) -> Array:
    """0, 1, …, m-1, where `like` lives."""
    return namespace(like).arange(m, dtype=like.dtype, device=like.device)
