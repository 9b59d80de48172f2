"""The fitted veil: a map of score vectors to a few regions, each announced with how often its answers are right.

    a            the top score, divided by the row's sum
    b            the second score over all but the top one: how the rest is spread
    strip        how many of the fixed borders of b are <= b: second >= border · (sum - top)
    region       in each strip, the cuts of a say where one region ends and another begins
    announced    p_c for the label, (1 - p_c) / (k - 1) for each other class

The region is a function of the score vector, without randomness or state: however often a record is asked about with
the same scores, the region is all there is to learn. Members and others fall into each region about equally often,
which is what a fit sees to (`scoreveil.fit`), and by how much they differ is recomputed from the counts in the file
(`promises.py`).

With ε, region r announces the answer c with chance T[r, c] / 2^32; T holds integers, and each row sums to 2^32. Formal
guarantee: for any two score vectors with the same label, and every answer, P(z | v) <= e^ε · P(z | v̂), since
T[r, c] <= e^ε · T[r̂, c] for all r, r̂ and c. The draw compares the first 32 bits of a uniform with cumulative integers.
It sees the region alone, so what regions promise stays (post-processing).
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms import promises, region_data, region_words
from scoreveil.mechanisms.guarantee import BrokenPromise, Guarantee, Malformed
from scoreveil.mechanisms.mechanism import Arrays, Mechanism, Settings
from scoreveil.mechanisms.promises import WHOLE, RegionCounts
from scoreveil.mechanisms.region_data import KINDS, NEAREST, frozen
from scoreveil.mechanisms.region_words import RegionRow
from scoreveil.mechanisms.scores import Array, check_epsilon, namespace, totals


@dataclass(frozen=True, eq=False)
class Regions(Mechanism, name="regions"):
    """A map to regions, as a value; made by `scoreveil.fit`.

    Attributes:
        epsilon: How much of the region an answer shows; infinite where it is announced as it is.
        number_of_classes: How many classes a score vector has.
        strips: Where the second and later strips of b begin, ascending: (strips - 1,).
        cuts: Where a region ends in each strip, ascending, and infinite where there are no more: (strips, cuts).
        regions: The regions between the cuts: (strips, cuts + 1).
        announced: How often answers are right: (1, answers); of two classes apart for each label, (2, answers).
        counts: How many others were counted in each region, right and wrong answers apart where labels were given:
            (truths, regions), in sixteenths of a record, with noise.
        table: The chances of the answers in units of 2^-32, (regions, answers); None without ε.
        evidence: The counts that bound the advantage, where members were given.
        spent: What fitting spent for a member and for another record.
        atoms: How much the Brier score rose since equal vectors cannot be told apart.
    """

    number_of_classes: int
    strips: Floats
    cuts: Floats
    regions: Integers
    announced: Floats
    counts: Integers
    table: Integers | None = None
    evidence: RegionCounts | None = None
    spent: tuple[float, float] = (0.0, 0.0)
    atoms: float = 0.0

    is_fitted = True
    kernels = "scoreveil.mechanisms.kernels.regions"

    # a map equals itself alone; the equality of `Mechanism` would compare ε
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        if self.table is not None:
            check_epsilon(self.epsilon)
        elif self.epsilon != math.inf:
            raise ValueError("Regions without a table promise no ε.")
        for name, kind in KINDS.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, frozen(name, getattr(self, name), kind))
        if self.evidence is not None:
            object.__setattr__(self.evidence, "counts", frozen("counts", self.evidence.counts, np.int64))
        region_data.check(self)

    @property
    def classes(self) -> int:
        return self.number_of_classes

    @property
    def maps(self) -> tuple["Regions", ...]:
        return (self,)

    @property
    def size(self) -> int:
        """How many regions there are."""
        return int(self.counts.shape[1])

    @property
    def is_constant(self) -> bool:
        """Whether every score vector of a label is announced with the same confidence."""
        return bool(np.all(self.announced == self.announced[:, :1])) or self.size == 1

    def with_overlap(self) -> "Regions":
        """The same where each record was fitted as a member and as another one."""
        both = math.fsum(self.spent)
        return replace(self, spent=(both, both))

    # The draw

    def draws(self, classes: int) -> int:
        """One with ε, none without."""
        return 0 if self.table is None else 1

    def plan(self, classes: int, eps: float) -> "RegionsPlan":
        """What answers need in a dtype of this eps; computed once."""
        if classes != self.classes:
            raise ValueError(f"This veil was fitted for {self.classes} classes; these scores have {classes}.")
        return self.remembered(("plan", eps), lambda: _plan(self, eps))

    def perturb(self, rows: Array, uniforms: Array) -> Array:
        plan = self._plan_for(rows)
        label, region = self.read(rows)
        return release(label, choose(region, uniforms, plan), plan, rows.dtype)

    def outcomes(self, rows: Rows, uniforms: Floats) -> Rows:
        """The number of the answer."""
        _, region = self.read(rows)
        return np.asarray(choose(region, uniforms, self._plan_for(rows))[:, None], dtype=np.uint16)

    @property
    def different_answers(self) -> int | None:
        return int(self.announced.shape[1])

    def answers(self, rows: Rows, outcomes: Rows) -> Rows:
        label, _ = self.read(rows)
        return np.asarray(release(label, outcomes[:, 0].astype(np.int64), self._plan_for(rows), rows.dtype))

    def _plan_for(self, rows: Array) -> "RegionsPlan":
        return self.plan(rows.shape[-1], float(namespace(rows).finfo(rows.dtype).eps))

    def read(self, rows: Array) -> tuple[Array, Array]:
        """The label and the region of each row: (n,) each."""
        xp = namespace(rows)
        wide = xp.astype(rows, xp.float64, copy=False)
        label, top, strip = top_and_strip(wide, self.strips)

        def there(array: Floats | Integers) -> Array:
            return xp.asarray(array, device=rows.device, copy=True)

        cuts = xp.take(there(self.cuts), strip, axis=0)
        at = xp.sum(xp.astype(cuts <= top[..., None], xp.int64), axis=-1)
        flat = xp.reshape(there(self.regions), (-1,))
        return label, xp.take(flat, strip * self.regions.shape[1] + at, axis=0)

    def cells(self, rows: Rows) -> tuple[Rows, Rows]:
        label, region = self.read(rows)
        return label[:, None], region[:, None]

    # The promise

    def guarantee(self, classes: int | None = None) -> Guarantee:
        return self.remembered("guarantee", lambda: region_words.guarantee(self))

    def loss(self, scores: Floats, other: Floats) -> float:
        """The largest ratio of the two regions' chances; infinite where the labels differ, or without ε the regions."""
        label, region = self.read(np.stack([scores, other]))
        if label[0] != label[1]:
            return math.inf
        if self.table is None:
            return 0.0 if region[0] == region[1] else math.inf
        first, second = self.table[region]
        return math.log(max(int(a) / int(b) for a, b in zip(first, second, strict=True)))

    def verify(self) -> None:
        """Recompute every promise from the stored integers.

        Raises:
            BrokenPromise: A promise is broken; the message says which.
        """
        if self.table is not None:
            promises.check_table(self.table, self.epsilon)
        if self.evidence is not None:
            self.evidence.holds()
            self._check_sums(self.evidence)

    def _check_sums(self, evidence: RegionCounts) -> None:
        """The counts of others are in the evidence too, by label; each was rounded by itself."""
        sums, counts = evidence.counts[0].sum(axis=0), self.counts
        if len(sums) == 1:
            counts = counts.sum(axis=0, keepdims=True)
        if counts.shape != sums.shape or np.abs(sums - counts).max() > 1 + evidence.counts.shape[1] / 2:
            raise BrokenPromise("The counts of others by region are not the sums of those by label.")

    # As data

    def as_table(self, scores: Floats) -> Settings:
        """The least confidence first; and the region that these scores lie in."""
        chances = np.eye(self.size) if self.table is None else self.table / WHOLE
        label, region = self.read(scores[None])
        return {
            "regions": [row.words for row in self.rows()],
            "announced": self.announced[label[0] if len(self.announced) > 1 else 0].tolist(),
            "chances": chances.tolist(),
            "region": int(region[0]),
        }

    def rows(self) -> list[RegionRow]:
        """What a person reads of each region, the least confident first."""
        return region_words.rows(self)

    def settings(self) -> Settings:
        return region_data.settings(self)

    def summary(self) -> Settings:
        return {"epsilon": None if self.table is None else self.epsilon, "regions": self.size, "classes": self.classes}

    @classmethod
    def restored(cls, settings: Settings, arrays: Arrays) -> "Regions":
        """The map of a file, verified."""
        if arrays:
            raise Malformed("The regions mechanism has no arrays.")
        region_map = cls(**region_data.fields(settings))
        region_map.verify()
        return region_map

    def __reduce__(self) -> tuple[object, ...]:
        return Regions, tuple(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        layer = "no ε" if self.table is None else f"epsilon={self.epsilon:g}"
        return f"{layer}, {self.size} regions, {self.classes} classes"


# What answers are made of


def top_and_strip(wide: Array, strips: Floats) -> tuple[Array, Array, Array]:
    """The label of each row, the top score's share of its sum, and the strip that the rest is in: (n,) each."""
    xp = namespace(wide)
    label = xp.argmax(wide, axis=-1, keepdims=True)
    top, total = xp.take_along_axis(wide, label, axis=-1), totals(wide)
    strip = xp.zeros(label.shape[:-1], dtype=xp.int64, device=wide.device)
    if len(strips):
        every = xp.arange(wide.shape[-1], dtype=label.dtype, device=wide.device)
        second = xp.max(xp.where(every == label, xp.zeros_like(wide), wide), axis=-1)
        rest = (total - top)[..., 0]
        for border in strips.tolist():  # without a division: a rest of nothing is in the last strip
            strip = strip + xp.astype(second >= border * rest, xp.int64)
    return label[..., 0], (top / total)[..., 0], strip


@dataclass(frozen=True, eq=False)
class RegionsPlan:
    """All that the draw and the release need besides the scores, for one dtype."""

    cumulative: Integers | None  # (regions, answers): chances of the answers up to each; None without ε
    tops: Floats  # (labels or 1, answers): what the label gets, strictly above the others in the dtype
    others: Floats  # what each other class gets
    classes: int


def _plan(mechanism: Regions, eps: float) -> RegionsPlan:
    k = mechanism.classes
    tops = np.clip(mechanism.announced, (1 + 8 * eps) / k, 1 - max(eps, NEAREST))
    others = (1 - tops) / (k - 1)
    if eps > 1e-4:  # by way of float32 in every library: float16 is rounded alike
        tops, others = (part.astype(np.float32).astype(np.float64) for part in (tops, others))
    cumulative = None if mechanism.table is None else np.cumsum(mechanism.table, axis=1)
    return RegionsPlan(cumulative, tops, others, k)


def choose(region: Array, uniforms: Array, plan: RegionsPlan) -> Array:
    """The answer of each row: its region; with ε, how many cumulative chances are <= the first 32 bits of a uniform."""
    if plan.cumulative is None:
        return region
    xp = namespace(region)
    drawn = xp.astype(xp.floor(uniforms[..., 0] * float(WHOLE)), xp.int64)
    chances = xp.take(xp.asarray(plan.cumulative, device=region.device, copy=True), region, axis=0)
    return xp.sum(xp.astype(chances <= drawn[..., None], xp.int64), axis=-1)


def release(label: Array, answer: Array, plan: RegionsPlan, dtype: object) -> Array:
    """The score vectors of answers. Functions of the label and the answer alone, to the last bit."""
    xp = namespace(answer)
    at = answer + (label * plan.tops.shape[1] if len(plan.tops) > 1 else 0)
    top, other = (
        xp.take(xp.reshape(xp.asarray(part, device=answer.device, copy=True), (-1,)), at, axis=0)[..., None]
        for part in (plan.tops, plan.others)
    )
    every = xp.arange(plan.classes, dtype=label.dtype, device=answer.device)
    return xp.astype(xp.where(every == label[..., None], top, other), dtype, copy=False)
