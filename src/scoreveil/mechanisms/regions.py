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
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Integers, Rows
from scoreveil.mechanisms import promises
from scoreveil.mechanisms.guarantee import BrokenPromise, Guarantee, Malformed, Relation
from scoreveil.mechanisms.mechanism import Arrays, Mechanism
from scoreveil.mechanisms.promises import MOST_RECORDS, SIXTEENTHS, WHOLE, Evidence
from scoreveil.mechanisms.scores import Array, check_epsilon, namespace, totals

MAX_REGIONS = 8
MAX_CUTS = 255
MAX_STRIPS = 7
NEAREST = 2.0**-20  # to 0 and 1 that a label is announced with


@dataclass(frozen=True, eq=False)
class Regions(Mechanism, name="regions"):
    """A map to regions, as a value; made by `scoreveil.fit`.

    Attributes:
        epsilon: How much of the region an answer shows; infinite where it is announced as it is.
        classes: How many classes a score vector has.
        strips: Where the second and later strips of b begin, ascending: (strips - 1,).
        cuts: Where a region ends in each strip, ascending, and infinite where there are no more: (strips, cuts).
        regions: The regions between the cuts: (strips, cuts + 1).
        announced: How often answers are right: (1, answers); of two classes apart for each label, (2, answers).
        table: The chances of the answers in units of 2^-32, (regions, answers); None without ε.
        counts: How many others were counted in each region, right and wrong answers apart where labels were given:
            (truths, regions), in sixteenths of a record, with noise.
        evidence: The counts that bound the advantage, where members were given.
        spent: What fitting spent for a member and for another record.
        atoms: How much the Brier score rose since equal vectors cannot be told apart.
    """

    epsilon: float = math.inf
    number_of_classes: int = 2
    strips: Floats = None  # type: ignore[assignment]
    cuts: Floats = None  # type: ignore[assignment]
    regions: Integers = None  # type: ignore[assignment]
    announced: Floats = None  # type: ignore[assignment]
    table: Integers | None = None
    counts: Integers = None  # type: ignore[assignment]
    evidence: Evidence | None = None
    spent: tuple[float, float] = (0.0, 0.0)
    atoms: float = 0.0

    is_fitted = True
    kernels = "scoreveil.mechanisms.kernels.regions"

    # a map equals itself alone; the equality of `Mechanism` would compare ε
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        if self.regions is None:
            raise ValueError("The regions mechanism is a fitted map: make one with scoreveil.fit, or load a veil.")
        if self.table is not None:
            check_epsilon(self.epsilon)
        elif self.epsilon != math.inf:
            raise ValueError("Regions without a table promise no ε.")
        for name, kind in _KINDS.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _frozen(name, getattr(self, name), kind))
        if self.evidence is not None:
            object.__setattr__(self.evidence, "counts", _frozen("counts", self.evidence.counts, np.int64))
        _check(self)

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

        def there(array: Any) -> Array:
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
        from scoreveil.mechanisms.region_words import guarantee  # which knows this class

        return self.remembered("guarantee", lambda: guarantee(self))

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

    def _check_sums(self, evidence: Evidence) -> None:
        """The counts of others are in the evidence too, by label; each was rounded by itself."""
        sums, counts = evidence.counts[0].sum(axis=0), self.counts
        if len(sums) == 1:
            counts = counts.sum(axis=0, keepdims=True)
        if counts.shape != sums.shape or np.abs(sums - counts).max() > 1 + evidence.counts.shape[1] / 2:
            raise BrokenPromise("The counts of others by region are not the sums of those by label.")

    # As data

    def as_table(self, scores: Floats) -> dict[str, Any]:
        """The least confidence first; and the region that these scores lie in."""
        chances = np.eye(self.size) if self.table is None else self.table / WHOLE
        label, region = self.read(scores[None])
        return {
            "regions": [row.words for row in self.rows()],
            "announced": self._announced_of(int(label[0])).tolist(),
            "chances": chances.tolist(),
            "region": int(region[0]),
        }

    def _announced_of(self, label: int) -> Floats:
        return np.asarray(self.announced[label if len(self.announced) > 1 else 0])

    def rows(self) -> list["RegionRow"]:
        """What a person reads of each region, the least confident first."""
        wrong_right = self.counts / SIXTEENTHS
        total = np.maximum(wrong_right.sum(axis=0), 1e-9)
        right = np.full(self.size, np.nan)
        if len(wrong_right) > 1:
            right = np.where(total > 0.5, wrong_right[1] / total, np.nan)  # of no record, nothing
        share = np.maximum(total, 0) / max(float(total.sum()), 1e-9)
        members = np.full(self.size, np.nan)
        if self.evidence is not None:
            inside = np.maximum(self.evidence.counts[1].sum(axis=(0, 1)), 0)
            members = inside / max(int(inside.sum()), 1)
        likeliest = np.arange(self.size) if self.table is None else self.table.argmax(axis=1)
        return [
            RegionRow(r, _place(self, r), float(members[r]), float(share[r]), float(np.clip(right[r], 0, 1)),
                      tuple(self.announced[:, likeliest[r]].tolist()),
                      () if self.table is None else tuple((self.table[r] / WHOLE).tolist()))
            for r in range(self.size)
        ]  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """All of it, as plain values that a person can read."""
        evidence = self.evidence
        return {
            "epsilon": None if self.table is None else self.epsilon,
            "classes": self.number_of_classes,
            "strips": self.strips.tolist(),
            "map": [
                {"cuts": [cut for cut in cuts if cut < math.inf], "regions": row[: sum(c < math.inf for c in cuts) + 1]}
                for cuts, row in zip(self.cuts.tolist(), self.regions.tolist(), strict=True)
            ],
            "announced": self.announced.tolist(),
            "table": None if self.table is None else self.table.tolist(),
            "counts": self.counts.tolist(),
            "evidence": None if evidence is None else {
                "relation": Relation.ZERO_OUT.name.lower(),
                "sixteenths_of_records": evidence.counts.tolist(),
                "records": list(evidence.sizes),
                "noise": list(evidence.noise),
                "asked": evidence.asked,
                "beyond": evidence.beyond,
                "certified": evidence.certified,
            },
            "spent": list(self.spent),
            "atoms": self.atoms,
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        return {"epsilon": None if self.table is None else self.epsilon, "regions": self.size, "classes": self.classes}

    @classmethod
    def restored(cls, settings: dict[str, Any], arrays: Arrays) -> "Regions":
        """The map of a file, verified."""
        if arrays:
            raise Malformed("The regions mechanism has no arrays.")
        parts = settings["map"]
        width = max(len(part["cuts"]) for part in parts)
        if width > MAX_CUTS or max(len(parts), len(settings["strips"]) + 1) > MAX_STRIPS:  # before there is room made
            raise Malformed("It has more strips, or more cuts of a strip, than there can be.")
        strips = np.array(settings["strips"], dtype=np.float64)
        cuts, regions = np.full((len(parts), width), math.inf), np.zeros((len(parts), width + 1), dtype=np.int64)
        for strip, part in enumerate(parts):
            if len(part["regions"]) != len(part["cuts"]) + 1:
                raise Malformed("A strip has cuts and regions that do not go together.")
            cuts[strip, : len(part["cuts"])] = part["cuts"]
            regions[strip, : len(part["regions"])] = _whole(part["regions"])
            regions[strip, len(part["regions"]) :] = part["regions"][-1]
        given, evidence = settings["evidence"], None
        if given is not None:
            if given["relation"] != Relation.ZERO_OUT.name.lower():
                raise Malformed("The counts are of another relation.")
            evidence = Evidence(
                _whole(given["sixteenths_of_records"]), tuple(map(int, given["records"])),  # type: ignore[arg-type]
                tuple(map(float, given["noise"])), float(given["asked"]), _beyond(given["beyond"]),  # type: ignore[arg-type]
                bool(given["certified"]), settings["classes"] == 2,
            )  # fmt: skip
        table = None if settings["table"] is None else _whole(settings["table"])
        made = cls(
            math.inf if settings["epsilon"] is None else settings["epsilon"], int(settings["classes"]), strips, cuts,
            regions, np.array(settings["announced"], dtype=np.float64), table, _whole(settings["counts"]), evidence,
            tuple(map(float, settings["spent"])), float(settings["atoms"]),  # type: ignore[arg-type]
        )  # fmt: skip
        made.verify()
        return made

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """None: a map is fitted, not set."""
        return ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Regions, tuple(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        layer = "no ε" if self.table is None else f"epsilon={self.epsilon:g}"
        return f"{layer}, {self.size} regions, {self.classes} classes"


@dataclass(frozen=True)
class RegionRow:
    """One region as people read it."""

    number: int
    words: str  # where it lies
    members: float  # share of the members; NaN where none were given
    others: float
    right: float  # how often answers were right; NaN without labels
    announced: tuple[float, ...]  # by label, where there are two; with ε, of the likeliest answer
    answers: tuple[float, ...]  # chances of the ε table; empty without


_KINDS = {
    "strips": np.float64,
    "cuts": np.float64,
    "regions": np.int64,
    "announced": np.float64,
    "table": np.int64,
    "counts": np.int64,
}


def _frozen(name: str, array: Any, kind: type) -> NDArray[Any]:
    """A read-only copy, so that what was verified stays as it was."""
    if not isinstance(array, np.ndarray) or array.dtype != kind:
        got = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"Expected {name} to be an array of {np.dtype(kind)}, got {got}.")
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


def _whole(values: Any) -> Integers:
    """Nested lists of whole numbers, as they are in a file."""
    array = np.array(values)
    if array.dtype.kind != "i":
        raise Malformed("It has numbers that are not whole, or lists of unequal length.")
    return array.astype(np.int64)


def _beyond(given: Any) -> str:
    if given not in ("label", "correctness"):
        raise Malformed("The advantage is beyond neither the label nor correctness.")
    return str(given)


def _check(mechanism: Regions) -> None:
    """Refuse arrays that do not go together, or that say something else than a map does."""
    k, size = mechanism.number_of_classes, mechanism.counts.shape[1] if mechanism.counts.ndim == 2 else 0
    strips, cuts = len(mechanism.strips) + 1, mechanism.cuts.shape[1] if mechanism.cuts.ndim == 2 else -1
    announced, answers = mechanism.announced, mechanism.announced.shape[1] if mechanism.announced.ndim == 2 else 0
    if isinstance(k, bool) or not isinstance(k, int) or k < 2:
        raise Malformed("Expected a whole number of classes, at least 2 classes.")
    if not 1 <= size <= MAX_REGIONS or mechanism.counts.shape[0] not in (1, 2):
        raise Malformed(f"Expected counts of 1 to {MAX_REGIONS} regions, got shape {mechanism.counts.shape}.")
    if np.any((mechanism.counts <= -MOST_RECORDS) | (mechanism.counts >= MOST_RECORDS)):
        raise Malformed("The counts are of more records than there can be.")
    if len(mechanism.spent) != 2 or not all(0 <= each < math.inf for each in (*mechanism.spent, mechanism.atoms)):
        raise Malformed("What the fit spent, or what atoms cost, is out of range.")
    if mechanism.strips.ndim != 1:
        raise Malformed(f"Expected strips of one dimension, got {mechanism.strips.ndim}.")
    if strips > 1 and k == 2:
        raise Malformed("Two classes have no rest that could be spread: expected one strip.")
    expected = {
        "cuts": (strips, cuts),
        "regions": (strips, cuts + 1),
        "announced": (2 if k == 2 else 1, answers if mechanism.table is not None else size),
    }
    if mechanism.table is not None:
        expected["table"] = (size, answers)
    for name, shape in expected.items():
        if getattr(mechanism, name).shape != shape or not 0 <= cuts <= MAX_CUTS:
            raise Malformed(f"Expected {name} of shape {shape}, got {getattr(mechanism, name).shape}.")
    if not 1 <= answers <= MAX_REGIONS:
        raise Malformed(f"Expected 1 to {MAX_REGIONS} answers, got {answers}.")
    finite = np.where(mechanism.cuts == math.inf, 2.0 + np.arange(cuts), mechanism.cuts)  # padding ascends too
    for name, array in (("strips", mechanism.strips), ("cuts", finite)):
        if not (np.all(np.diff(array, axis=-1) > 0) and np.all(array > 0)) or (name == "strips" and np.any(array > 1)):
            raise Malformed(f"Expected {name} that ascend, above 0.")
    if np.any((mechanism.cuts > 1) & np.isfinite(mechanism.cuts)):
        raise Malformed("Expected cuts up to 1.")
    if not np.array_equal(np.unique(mechanism.regions), np.arange(size)):
        raise Malformed(f"Expected a map to each of the regions 0 to {size - 1}.")
    if not (np.all(announced > 1 / k) and np.all(announced <= 1 - NEAREST)):
        raise Malformed("An announced confidence is below that of another class, or 1.")
    evidence = mechanism.evidence
    if evidence is not None and (evidence.counts.ndim != 4 or evidence.counts.shape[3] != size):
        raise Malformed(f"Expected evidence about {size} regions, got shape {evidence.counts.shape}.")
    if evidence is not None and evidence.counts.shape[1] not in ((2,) if k == 2 else (1, k)):
        raise Malformed(f"Expected evidence about {k} labels or about all together, got {evidence.counts.shape[1]}.")
    if evidence is not None and evidence.tells_label != (k == 2):
        raise Malformed("Expected evidence in which what is announced tells the label of two classes, and of no more.")


def _place(mechanism: Regions, region: int) -> str:
    """Where a region lies, in words: the range of the top score, and in how many strips of the rest."""
    low, high, strips = 1.0, 0.0, 0
    for cuts, row in zip(mechanism.cuts, mechanism.regions, strict=True):
        ends = [0.0, *np.minimum(cuts, 1.0).tolist(), 1.0]
        pieces = [(a, b) for (a, b), r in zip(pairwise(ends), row.tolist(), strict=True) if r == region and b > a]
        if pieces:
            low, high, strips = min(low, pieces[0][0]), max(high, pieces[-1][1]), strips + 1
    low = max(low, 1 / mechanism.classes)
    return f"{_digits(low)} to {_digits(high)}" + (
        f", {strips} of {len(mechanism.cuts)} strips" if len(mechanism.cuts) > 1 else ""
    )


def _digits(score: float) -> str:
    """With as many digits as it takes to tell it from 1."""
    return f"{score:.{max(2, 1 + math.ceil(-math.log10(1 - score)))}f}" if 0 < score < 1 else f"{score:g}"


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
    cumulative = None if mechanism.table is None else np.cumsum(mechanism.table, axis=1)
    return RegionsPlan(cumulative, tops, (1 - tops) / (k - 1), k)


def choose(region: Array, uniforms: Array, plan: RegionsPlan) -> Array:
    """The answer of each row: its region; with ε, how many cumulative chances are <= the first 32 bits of a uniform."""
    if plan.cumulative is None:
        return region
    xp = namespace(region)
    drawn = xp.astype(xp.floor(uniforms[..., 0] * float(WHOLE)), xp.int64)
    chances = xp.take(xp.asarray(plan.cumulative, device=region.device, copy=True), region, axis=0)
    return xp.sum(xp.astype(chances <= drawn[..., None], xp.int64), axis=-1)


def release(label: Array, answer: Array, plan: RegionsPlan, dtype: Any) -> Array:
    """The score vectors of answers. Functions of the label and the answer alone, to the last bit."""
    xp = namespace(answer)
    at = answer + (label * plan.tops.shape[1] if len(plan.tops) > 1 else 0)
    top, other = (
        xp.take(xp.reshape(xp.asarray(each, device=answer.device, copy=True), (-1,)), at, axis=0)[..., None]
        for each in (plan.tops, plan.others)
    )
    every = xp.arange(plan.classes, dtype=label.dtype, device=answer.device)
    made = xp.where(every == label[..., None], top, other)
    # by way of float32 in every library: float16 is rounded alike
    narrow = xp.astype(made, xp.float32) if float(xp.finfo(dtype).eps) > 1e-4 else made
    return xp.astype(narrow, dtype, copy=False)
