"""Choosing ε: the paper's ε*, its τ policy, and a search for the ε that meets a target distortion.

from scoreveil.tuning import calibrate

tuned = calibrate(scores, distortion=0.2)   # the smallest ε whose mean ‖z - y‖₂ is at most 0.2
tuned.epsilon, tuned.low, tuned.high        # with the interval that the sampling noise leaves
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats
from scoreveil.mechanisms.ordering import restore
from scoreveil.mechanisms.published import Published, ascending_scores, modify, normalize
from scoreveil.mechanisms.scores import check_layout, check_rows
from scoreveil.randomness import secure_uniforms
from scoreveil.veil import Veil

Form = Literal["kl", "ratio", "top"]
Norm = Literal["l1", "l2"]
Measure = Literal["l1", "top"]

MIN_EPSILON, MAX_EPSILON = 2.0**-20, 2.0**20  # where ε is looked for
PAIRS = 100_000  # of records whose order is compared


def distances(released: Floats, scores: Floats, norm: Norm = "l2") -> Floats:
    """‖z - y‖ of each row. The paper measures distortion in ℓ2 and argues in ℓ1."""
    if norm not in get_args(Norm):
        raise ValueError(f"Expected norm 'l1' or 'l2', got {norm!r}.")
    difference = np.asarray(released, dtype=np.float64) - np.asarray(scores, dtype=np.float64)
    return np.asarray(np.linalg.norm(difference, ord=1 if norm == "l1" else 2, axis=-1))


def order_kept(scores: Floats, released: Floats, rng: np.random.Generator | None = None) -> float:
    """Of two records, how often the one with the higher top score still has it once veiled; ties count half.

    1 keeps all of the confidence, ½ none: a coin would do. Measured on pairs drawn at random.
    """
    before, after = (np.asarray(rows, dtype=np.float64).max(axis=1) for rows in (scores, released))
    rng = rng or np.random.default_rng()
    first, second = rng.integers(0, len(before), (2, PAIRS))
    apart = np.sign(before[first] - before[second])
    agree = apart * np.sign(after[first] - after[second])
    counted = int(np.count_nonzero(apart))
    return 0.5 + float(agree.sum()) / (2 * counted) if counted else 0.5


# ε* (paper, Equation 7)


def epsilon_star(scores: Floats, modified: Floats, form: Form = "kl") -> Floats:
    """The ε at which Phase 2 brings y' back to y, as nearly as one parameter can; per row.

    Equation 7 is k equations in one unknown: an exact root exists for k = 2, else only if ln y is affine in y'.

        "kl"     root of Σ z_i·y'_i = Σ y_i·y'_i: unique, the z closest to y in KL divergence
        "ratio"  2·(ln y_max - ln y_min)/(y'_max - y'_min), the paper's proof of Lemma 6 with j = min
        "top"    root of z_max = y_max

    Where a row has no positive root, the limit is returned: 0, or inf.
    """
    y, y_prime = np.atleast_2d(scores).astype(np.float64), np.atleast_2d(modified).astype(np.float64)
    if form == "ratio":
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = np.log(y.max(axis=1)) - np.log(y.min(axis=1))
            star = 2 * spread / (y_prime.max(axis=1) - y_prime.min(axis=1))
        return np.asarray(np.nan_to_num(star, nan=0.0, posinf=np.inf))
    if form == "kl":
        target = (y * y_prime).sum(axis=1)
        return _root(lambda e: (normalize(y_prime, e[:, None]) * y_prime).sum(axis=1) - target, len(y))
    if form == "top":
        return _root(lambda e: normalize(y_prime, e[:, None]).max(axis=1) - y.max(axis=1), len(y))
    raise ValueError(f"Expected form 'kl', 'ratio' or 'top', got {form!r}.")


def _root(excess: Callable[[Floats], Floats], rows: int) -> Floats:
    """Where an increasing function of ε crosses 0, per row; 0 or inf where it does not.

    The functions and why they increase: docs/derivations/tuning-solver.md.
    """
    low, high = np.full(rows, MIN_EPSILON), np.full(rows, MAX_EPSILON)
    above, below = excess(low) >= 0, excess(high) <= 0
    low, _ = _bisect(lambda e: excess(e) < 0, low, high)
    return np.where(above, 0.0, np.where(below, np.inf, low))


def _bisect(before: Callable[[Floats], NDArray[np.bool_]], low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Halve [low, high] in log ε, keeping `before` true at low, until they meet in floating point."""
    for _ in range(80):
        middle = np.sqrt(low * high)
        keep = before(middle)
        low, high = np.where(keep, middle, low), np.where(keep, high, middle)
    return low, high


# The τ policy (paper, Section "Defending against membership inference attacks")


@dataclass(frozen=True)
class TauPolicy:
    """Confident vectors (y_max > τ) are released less confident, ε < ε*; the others more confident, ε > ε*.

    `target` fixes how far: ‖z - y‖₁ ("l1"), or the top score z_max itself ("top").
    """

    tau: float
    target: float
    measure: Measure = "l1"

    def __post_init__(self) -> None:
        if not 0 < self.tau < 1:
            raise ValueError(f"Expected 0 < tau < 1, got {self.tau}.")
        if self.measure not in get_args(Measure):
            raise ValueError(f"Expected measure 'l1' or 'top', got {self.measure!r}.")
        most = 2 if self.measure == "l1" else 1
        if not 0 < self.target < most:
            raise ValueError(f"Expected 0 < target < {most} for measure {self.measure!r}, got {self.target}.")


def tau_epsilons(scores: Floats, modified: Floats, policy: TauPolicy) -> Floats:
    """The Phase 2 ε of each row under the policy, for given y'.

    Each row's ε lies on its side of ε* (form "top", where z_max = y_max, so that Property 3 holds for the top score).
    Where the target cannot be met on that side, the ε on that side that comes closest is taken.
    """
    y, y_prime = np.atleast_2d(scores).astype(np.float64), np.atleast_2d(modified).astype(np.float64)
    star = np.clip(epsilon_star(y, y_prime, "top"), MIN_EPSILON, MAX_EPSILON)
    confident = y.max(axis=1) > policy.tau

    def reached(epsilon: Floats) -> Floats:
        z = normalize(y_prime, epsilon[:, None])
        return np.asarray(z.max(axis=1) if policy.measure == "top" else np.abs(z - y).sum(axis=1))

    end = np.where(confident, MIN_EPSILON, MAX_EPSILON)
    if policy.measure == "top":
        # z_max rises with ε everywhere
        low, high = np.minimum(star, end), np.maximum(star, end)
        return _bisect(lambda e: reached(e) < policy.target, low, high)[0]

    def off(walked: Floats) -> Floats:
        """The distance less its target, having walked this part of the way from ε* to the end of its side."""
        return reached(star ** (1 - walked) * end**walked) - policy.target

    walked = _first_crossing(off, len(y))
    return np.asarray(star ** (1 - walked) * end**walked)


def _first_crossing(off: Callable[[Floats], Floats], rows: int) -> Floats:
    """Where in [0, 1] a function first crosses 0, per row; or where it comes closest.

    It need not rise from the first step on (Property 4 fails), so look before bisecting.
    """
    steps = np.linspace(0, 1, 257) ** 3
    seen = np.array([off(np.full(rows, step)) for step in steps])
    changes = (seen[:-1] < 0) != (seen[1:] < 0)
    crosses = changes.any(axis=0)
    at = np.where(crosses, changes.argmax(axis=0), np.abs(seen).argmin(axis=0))
    near = steps[np.where(crosses, at, np.maximum(at - 1, 0))]
    far = steps[np.minimum(at + 1, len(steps) - 1)]
    rising = off(near) < 0
    for _ in range(80):
        third = (far - near) / 3
        middle, beyond = near + third, far - third
        is_beyond = np.where(crosses, (off(middle) < 0) == rising, np.abs(off(middle)) > np.abs(off(beyond)))
        near, far = np.where(is_beyond, middle, near), np.where(is_beyond, far, beyond)
    return np.asarray(near)


def tau_release(
    scores: Floats, settings: Published, policy: TauPolicy, rng: np.random.Generator | None = None
) -> Floats:
    """The published mechanism under the τ policy: Phase 1 with the settings' ε, Phase 2 with each row's own."""
    scores = np.asarray(scores)
    check_layout(scores)
    rows = np.atleast_2d(scores)
    check_rows(rows)
    order, ascending, strict = ascending_scores(rows)
    uniforms = secure_uniforms(*rows.shape) if rng is None else rng.random(rows.shape)
    modified = modify(ascending, settings, uniforms)
    z = normalize(modified, tau_epsilons(ascending, modified, policy)[:, None])
    return np.asarray(restore(z, strict, order, rows.dtype)).reshape(scores.shape)


# The search for a target distortion


@dataclass(frozen=True)
class Calibration:
    """The ε found; [low, high] is where sampling noise could have moved it; `distortion` is what was measured there."""

    epsilon: float
    low: float
    high: float
    distortion: float
    distortion_low: float
    distortion_high: float
    norm: Norm
    confidence: float
    rows: int

    @property
    def is_least(self) -> bool:
        """Whether every ε meets the target."""
        return self.epsilon <= MIN_EPSILON


def calibrate(
    scores: Floats,
    distortion: float,
    norm: Norm = "l2",
    defense: Callable[[float], Callable[[Floats], Floats]] = Veil,
    confidence: float = 0.95,
) -> Calibration:
    """The smallest ε whose mean distortion is at most the target.

    `defense` makes the defense for an ε. Distortion falls with ε up to sampling noise, which gives the interval: at
    `high` even the upper confidence limit meets the target, below `low` not even the lower one does.
    """
    if not distortion > 0:
        raise ValueError(f"Expected a distortion > 0, got {distortion}.")
    if not 0 < confidence < 1:
        raise ValueError(f"Expected 0 < confidence < 1, got {confidence}.")
    scores = np.atleast_2d(np.asarray(scores))
    if len(scores) < 2:
        raise ValueError(f"Expected at least 2 rows of scores to calibrate on, got {len(scores)}.")
    width = NormalDist().inv_cdf(0.5 + confidence / 2)

    @cache
    def measure(epsilon: float) -> tuple[float, float, float]:
        """Mean distortion, and its confidence interval."""
        moved = distances(defense(epsilon)(scores), scores, norm)
        mean, half = float(moved.mean()), width * float(moved.std(ddof=1)) / math.sqrt(len(moved))
        return mean, mean - half, mean + half

    def search(limit: int) -> float:
        return _smallest(lambda epsilon: measure(epsilon)[limit] <= distortion)

    epsilon = search(0)
    if math.isinf(epsilon):
        least = min(measure(end)[0] for end in (MIN_EPSILON, MAX_EPSILON))
        raise ValueError(
            f"Expected a distortion that some epsilon meets, got {distortion:g}; the least reached is {least:.4g}. "
            "More kept classes or a reference bring it down."
        )
    low, high = min(epsilon, search(1)), max(epsilon, search(2))
    return Calibration(epsilon, low, high, *measure(epsilon), norm, confidence, len(scores))


def _smallest(meets: Callable[[float], bool]) -> float:
    """The smallest ε, within 1 %, that meets a target; infinite where none does."""
    if meets(MIN_EPSILON):
        return MIN_EPSILON
    if not meets(MAX_EPSILON):
        return math.inf
    low, high = MIN_EPSILON, MAX_EPSILON
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high
