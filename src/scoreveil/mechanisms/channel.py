"""The optimal veil's mechanism: a finite table, drawn from exactly.

    v            the top score, divided by the row's sum
    b            the bin that v lies in: how many of the fixed edges are <= v
    c            the answer, with chance T[b, c] / 2^32; T holds integers, and each row sums to 2^32
    announced    p_c: how often the class of each kept rank is the right one, given c

The kept classes are announced with p_c, the others share what is left as the errors do (who is right when this label
is wrong), none above the last that is kept. Tables come from `scoreveil.fit`, which finds the most useful one.

Formal guarantee: for any two score vectors with the same kept classes in the same order, and every outcome,
P(z | v) <= e^ε · P(z | v̂), since T[b, c] <= e^ε · T[b̂, c] for all b, b̂ and c. The draw compares the first 32 bits of a
uniform with cumulative integers: there is no floating point between the promise and the draw. `Channel.verify`
recomputes every promise from the integers (`promises.py`), at fit and whenever a table is loaded.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms import promises
from scoreveil.mechanisms.guarantee import KEPT_CLASSES, Guarantee
from scoreveil.mechanisms.mechanism import Arrays, Mechanism, Rows
from scoreveil.mechanisms.ordering import rank
from scoreveil.mechanisms.promises import WHOLE, Evidence, Floats, Integers
from scoreveil.mechanisms.scores import Array, namespace, totals

MOST_BINS = 256  # a bin is a byte of a keyed message
LEAST_SHARE = 1e-9  # of a class in the profile
NEAREST = 2.0**-20  # to 0 and 1 that a label is announced with
EVIDENCE = ("group_of_class", "counts", "smoothed", "slack", "stated")  # its arrays, as they are stored


@dataclass(frozen=True, eq=False)
class Channel(Mechanism, name="channel"):
    """A table as a value; made by `scoreveil.fit`.

    Attributes:
        epsilon: How much shows through, whoever asks.
        keep: How many top classes keep their place.
        edges: Where the bins of the top score begin, ascending: (bins - 1,).
        table: The chances of the answers in units of 2^-32: (bins, answers).
        announced: How often the class of each kept rank is right: (answers, keep).
        table_of_class: Which row of the profile a top class uses: (k,).
        profile: How the other classes share the rest: (tables, k).
        evidence: The histograms that bound the advantage, where members were given.
    """

    keep: int = 1
    edges: Floats = None  # type: ignore[assignment]
    table: Integers = None  # type: ignore[assignment]
    announced: Floats = None  # type: ignore[assignment]
    table_of_class: Integers = None  # type: ignore[assignment]
    profile: Floats = None  # type: ignore[assignment]
    evidence: Evidence | None = None

    kernels = "scoreveil.mechanisms.kernels.channel"

    # a table equals itself alone; the equality of `Mechanism` would compare ε
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table is None:
            raise ValueError("The channel mechanism is a fitted table: make one with scoreveil.fit, or load a veil.")
        for name, kind in _KINDS.items():
            object.__setattr__(self, name, _frozen(name, getattr(self, name), kind))
        if self.evidence is not None:
            for name in EVIDENCE:
                kind = np.float64 if name in ("slack", "stated") else np.int64
                object.__setattr__(self.evidence, name, _frozen(name, getattr(self.evidence, name), kind))
        _check_shapes(self)

    @property
    def classes(self) -> int:
        return int(self.table_of_class.shape[0])

    # The draw

    def draws(self, classes: int) -> int:
        """One."""
        return 1

    def plan(self, classes: int, eps: float, tiny: float) -> "ChannelPlan":
        """What answers need in a dtype of this eps and smallest normal number; computed once."""
        if classes != self.classes:
            raise ValueError(f"This veil was fitted for {self.classes} classes; these scores have {classes}.")
        return self.remembered(("plan", eps, tiny), lambda: _plan(self, eps, tiny))

    def perturb(self, rows: Array, uniforms: Array) -> Array:
        plan = self._plan_for(rows)
        kept, bins = self.read(rows)
        return release(kept, choose(bins, uniforms[..., 0], plan), plan, rows.dtype)

    def outcomes(self, rows: Rows, uniforms: Floats) -> Rows:
        """The number of the answer."""
        _, bins = self.read(rows)
        return np.asarray(choose(bins, uniforms[..., 0], self._plan_for(rows))[:, None], dtype=np.uint16)

    @property
    def different_answers(self) -> int | None:
        return len(self.announced) if self.keep == 1 else None

    def answers(self, rows: Rows, outcomes: Rows) -> Rows:
        kept, _ = self.read(rows)
        return np.asarray(release(kept, outcomes[:, 0].astype(np.int64), self._plan_for(rows), rows.dtype))

    def _plan_for(self, rows: Array) -> "ChannelPlan":
        info = namespace(rows).finfo(rows.dtype)
        return self.plan(rows.shape[-1], float(info.eps), float(info.smallest_normal))

    def read(self, rows: Array) -> tuple[Array, Array]:
        """The kept classes of each row, top first, (n, keep); and the bin of its top score, (n,)."""
        xp = namespace(rows)
        wide = xp.astype(rows, xp.float64, copy=False)
        if self.keep == 1:
            kept = xp.argmax(wide, axis=-1, keepdims=True)
        else:
            kept = xp.flip(rank(wide)[..., wide.shape[-1] - self.keep :], axis=-1)
        top = xp.take_along_axis(wide, kept[..., :1], axis=-1) / totals(wide)
        return kept, xp.searchsorted(xp.asarray(self.edges, device=rows.device, copy=True), top[..., 0], side="right")

    def cells(self, rows: Rows) -> tuple[Rows, Rows]:
        kept, bins = self.read(rows)
        return kept, np.repeat(bins[:, None], self.keep, axis=1)

    # The promise

    def guarantee(self, classes: int | None = None) -> Guarantee:
        return self.remembered("guarantee", lambda: _guarantee(self))

    def loss(self, scores: Floats, other: Floats) -> float:
        """The largest ratio of the two bins' chances; infinite where the kept classes differ."""
        kept, bins = self.read(np.stack([scores, other]))
        if not np.array_equal(kept[0], kept[1]):
            return math.inf
        first, second = self.table[bins]
        return math.log(max(int(a) / int(b) for a, b in zip(first, second, strict=True)))

    def verify(self) -> None:
        """Recompute every promise from the stored integers, in exact arithmetic.

        Raises:
            ValueError: A promise is broken; the message says which.
        """
        promises.check_table(self.table, self.epsilon)
        _check_announced(self)
        if self.evidence is not None:
            promises.check_evidence(self.table, self.evidence)

    # As data

    def as_table(self, scores: Floats) -> dict[str, Any]:
        """The least confidence first; and the bin that these scores lie in."""
        order = self.announced[:, 0].argsort()
        return {
            "edges": self.edges.tolist(),
            "announced": self.announced[order, 0].tolist(),
            "chances": (self.table[:, order] / WHOLE).tolist(),
            "bin": int(self.read(scores[None])[1][0]),
        }

    def settings(self) -> dict[str, Any]:
        about = {"epsilon": self.epsilon, "keep": self.keep}
        if self.evidence is not None:
            about |= {"advantage": self.evidence.advantage, "confidence": self.evidence.confidence}
        return about

    def arrays(self) -> Arrays:
        made = {name: getattr(self, name) for name in _KINDS}
        if self.evidence is not None:
            made |= {name: getattr(self.evidence, name) for name in EVIDENCE}
        return made

    @classmethod
    def restored(cls, settings: dict[str, Any], arrays: Arrays) -> "Channel":
        """The table of a file, verified."""
        evidence = None
        if "advantage" in settings:
            advantage, confidence = float(settings["advantage"]), float(settings["confidence"])
            evidence = Evidence(**{name: arrays[name] for name in EVIDENCE}, advantage=advantage, confidence=confidence)
        tables = {name: arrays[name] for name in _KINDS}
        made = cls(settings["epsilon"], settings["keep"], **tables, evidence=evidence)
        if len(made.arrays()) != len(arrays):
            raise ValueError("there are arrays that the channel mechanism does not have")
        made.verify()
        return made

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """None: a table is fitted, not set."""
        return ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Channel, tuple(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        bins, answers = self.table.shape
        return f"{super().__str__()}, {bins} bins, {answers} answers, {self.classes} classes"


_KINDS = {
    "edges": np.float64,
    "table": np.int64,
    "announced": np.float64,
    "table_of_class": np.int64,
    "profile": np.float64,
}


def _frozen(name: str, array: Any, kind: type) -> NDArray[Any]:
    """A read-only copy, so that what was verified stays as it was."""
    if not isinstance(array, np.ndarray) or array.dtype != kind:
        found = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"Expected {name} to be an array of {np.dtype(kind)}, got {found}.")
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


def _check_shapes(channel: Channel) -> None:
    bins, answers = channel.table.shape if channel.table.ndim == 2 else (0, 0)
    k, keep, evidence = channel.classes, channel.keep, channel.evidence
    if not (1 <= bins <= MOST_BINS and answers >= 1):
        raise ValueError(f"Expected a table of 1 to {MOST_BINS} bins and at least 1 answer, got {channel.table.shape}.")
    if isinstance(keep, bool) or not isinstance(keep, int) or not 1 <= keep <= k:
        raise ValueError(f"Expected keep to be a whole number from 1 to {k}, the number of classes, got {keep!r}.")
    expected = {"edges": (bins - 1,), "announced": (answers, keep), "profile": (len(channel.profile), k)}
    if evidence is not None:
        groups = evidence.counts.shape[1] if evidence.counts.ndim == 4 else 0
        sides = 2 if evidence.counts.ndim == 4 and evidence.is_labelled else 1
        expected |= {"group_of_class": (k,), "counts": (2, groups, sides, bins), "smoothed": (2, groups, bins)}
        expected |= {"slack": (3, 3), "stated": (3,)}
    for name, shape in expected.items():
        found = getattr(channel if name in _KINDS else evidence, name).shape
        if found != shape:
            raise ValueError(f"Expected {name} of shape {shape}, got {found}.")
    if not (np.all(np.isfinite(channel.edges)) and np.all(np.diff(channel.edges) > 0)):
        raise ValueError("Expected edges that ascend.")
    if not (np.all(channel.table_of_class >= 0) and np.all(channel.table_of_class < len(channel.profile))):
        raise ValueError(f"Expected table_of_class to name rows of the profile, 0 to {len(channel.profile) - 1}.")
    if not (np.all(channel.profile >= LEAST_SHARE) and np.allclose(channel.profile.sum(axis=1), 1, rtol=0, atol=1e-9)):
        raise ValueError(f"Expected rows of the profile that sum to 1, of shares of at least {LEAST_SHARE:g}.")
    if evidence is not None:
        _check_evidence_values(evidence)


def _check_evidence_values(evidence: Evidence) -> None:
    for name in ("counts", "smoothed"):
        array = getattr(evidence, name)
        by_side = array.reshape(2, -1)
        if not (np.all(array >= 0) and np.all(array < promises.MOST_RECORDS)):
            raise ValueError(f"Expected {name} from 0 to {promises.MOST_RECORDS - 1}.")
        if not (np.all(by_side.sum(axis=1) > 0) and np.all(by_side.sum(axis=1) < promises.MOST_RECORDS)):
            raise ValueError(f"Expected {name} of some members and some others, fewer than 2^31 each.")
    groups = evidence.counts.shape[1]
    if not (np.all(evidence.group_of_class >= 0) and np.all(evidence.group_of_class < groups)):
        raise ValueError(f"Expected group_of_class to name groups 0 to {groups - 1}.")
    if not (np.all(np.isfinite(evidence.slack)) and np.all(evidence.slack >= 0)):
        raise ValueError("Expected slack to be finite and not negative.")
    if not 0 < evidence.advantage <= 1 or not 0 < evidence.confidence < 1:
        raise ValueError("Expected an advantage and a confidence between 0 and 1.")


def _check_announced(channel: Channel) -> None:
    """Announced values fall with the rank, exceed what is left for each other class, and are neither 0 nor 1."""
    k, keep = channel.classes, channel.keep
    for answer in channel.announced:
        rest = 1 - float(answer.sum())
        each = max(rest, 0.0) / (k - keep) if k > keep else 0.0
        inside = 1 / k < answer[0] <= 1 - NEAREST and np.all(answer > 0) and abs(min(rest, 0.0)) <= 1e-9
        falls = np.all(answer[:-1] > answer[1:]) and answer[-1] > each
        if not (inside and falls and (k > keep or abs(rest) <= 1e-9)):
            raise ValueError("An announced confidence is 0 or 1, or below that of a class that ranks lower.")


def _guarantee(channel: Channel) -> Guarantee:
    kept = "top class" if channel.keep == 1 else f"{channel.keep} top classes in order"
    relation, epsilon, evidence = f"any two score vectors with the same {kept}", channel.epsilon, channel.evidence
    words = (
        f"Whatever is released, {relation} give it with probabilities within a factor e^{epsilon:g} of each other: "
        f"ε = {epsilon:g} for the scores, given what is kept, whatever an attacker knows."
    )
    limits = [
        *KEPT_CLASSES,
        "An attack that knows the record, such as LiRA, is bounded by ε alone; many related questions are not covered.",
    ]
    advantage = told = confidence = None
    if evidence is None:
        limits.append("No members were given: ε alone is promised, and no advantage against the crowd.")
    else:
        confidence = evidence.confidence
        advantage = float(evidence.stated[:2].max())
        words += (
            f" For a record drawn from the members or from the others, an attack that sees the answer exceeds one that "
            f"sees the label alone by at most {advantage:.3f} (TPR - FPR), with {confidence:.0%} confidence"
        )
        alone = float(evidence.stated[0])
        words += "." if alone == advantage else f"; by at most {alone:.3f} if it looks at the confidence alone."
        if evidence.is_labelled:
            told = float(evidence.stated[2])
            words += f" If it is told the true label: by at most {told:.3f} beyond knowing who is right."
        else:
            limits.append(
                "No labels of members were given: attackers who are told the true label are bounded by ε alone."
            )
        limits.append(
            "The advantage holds for records drawn as those of the fit were, one answer each; it says nothing about "
            "a record that an attacker has chosen."
        )
        together = int(np.bincount(evidence.group_of_class, minlength=1).max())
        if together > 1:
            limits.append(
                f"{together} of {channel.classes} labels are taken together, for want of records: an attack that reads "
                "the confidence of each of them in another way is bounded by ε alone."
            )
    if np.all(channel.table == channel.table[0]) and len(np.unique(channel.announced, axis=0)) == 1:
        words += " Every answer announces the same confidence: it tells no more than the label alone."
    worst = min(math.log(promises.worst_ratio(channel.table)), epsilon)
    return Guarantee(
        epsilon, relation, words, tuple(limits), promises.zcdp_rho(channel.table, epsilon), worst,
        advantage, told, confidence, channel.table, evidence,
    )  # fmt: skip


# What answers are made of


@dataclass(frozen=True, eq=False)
class ChannelPlan:
    """All that the draw and the release need besides the scores, for one dtype."""

    classes: int
    keep: int
    cumulative: Integers  # (bins, answers): chances of the answers up to each
    tops: Floats  # (answers, keep): what kept classes get, strictly apart in the dtype
    rest: Floats  # (answers,): what the others get together
    cap: Floats  # (answers,): what none of them exceeds
    least: float  # what every class gets: 0 but in float16, whose smallest number is not small
    table_of_class: Integers
    profile: Floats
    slope: Floats  # (k, answers) for one kept class: another class gets slope · its share + base
    base: Floats

    def spread(self, remaining: Any, largest: Any, answer: Any, xp: Any = np) -> tuple[Any, Any]:
        """Slope and base for other classes whose shares add up to `remaining`, the largest of them `largest`.

        Where the largest would exceed the cap, all are drawn towards equal parts until it meets it.
        """
        rest, cap = (xp.take(xp.asarray(a, device=answer.device), answer, axis=0) for a in (self.rest, self.cap))
        equal = rest / (self.classes - self.keep)
        peak = rest * largest / remaining
        over = peak > cap
        kept = xp.where(over, (cap - equal) / xp.where(over, peak - equal, xp.ones_like(peak)), xp.ones_like(peak))
        return rest * kept / remaining, equal * (1 - kept)


def _plan(channel: Channel, eps: float, tiny: float) -> ChannelPlan:
    k, keep, profile = channel.classes, channel.keep, channel.profile
    # float64 is also what we compute in: leave room for rounding
    factor = 1 + (16 * eps if eps < 1e-15 else 4 * eps)
    tops = np.array([shown(answer.tolist(), k, factor, eps) for answer in channel.announced])
    rest = np.maximum(1 - tops.sum(axis=1), 0.0)
    least = tiny * eps if tiny > 1e-30 else 0.0
    cumulative = np.cumsum(channel.table, axis=1)
    plan = ChannelPlan(
        k, keep, cumulative, tops, rest, tops[:, -1] / factor, least, channel.table_of_class, profile,
        np.empty((0, 0)), np.empty((0, 0)),
    )  # fmt: skip
    if keep > 1:
        return plan
    label = np.arange(k)
    own = profile[channel.table_of_class, label]
    two = np.sort(profile, axis=1)[:, -2:][channel.table_of_class]  # a label is not among the other classes
    largest = np.where(profile.argmax(axis=1)[channel.table_of_class] == label, two[:, 0], two[:, 1])
    answer = np.broadcast_to(np.arange(len(tops)), (k, len(tops)))
    slope, base = plan.spread((1 - own)[:, None], largest[:, None], answer)
    return replace(plan, slope=slope, base=base)


def shown(answer: list[float], classes: int, factor: float, eps: float) -> list[float]:
    """Announced values, top first, moved as little as it takes to stand apart in the dtype, and below 1."""
    others = classes - len(answer)
    chain = [max(1 - sum(answer), 0.0) / others if others else 0.0, *answer[::-1]]
    for i in range(1, len(chain)):
        chain[i] = max(chain[i], chain[i - 1] * factor * factor)
    total = others * chain[0] + sum(chain[1:])
    shown = [value / total for value in chain[:0:-1]]
    if shown[0] > 1 - eps:
        below = others * chain[0] / total + sum(shown[1:])
        shown = [1 - eps, *(value * eps / below for value in shown[1:])]
    return shown


def choose(bins: Array, uniforms: Array, plan: ChannelPlan) -> Array:
    """The answer of each row: how many cumulative chances are <= the first 32 bits of its uniform."""
    xp = namespace(bins)
    drawn = xp.astype(xp.floor(uniforms * float(WHOLE)), xp.int64)
    chances = xp.take(xp.asarray(plan.cumulative, device=bins.device, copy=True), bins, axis=0)
    return xp.sum(xp.astype(chances <= drawn[..., None], xp.int64), axis=-1)


def release(kept: Array, answer: Array, plan: ChannelPlan, dtype: Any) -> Array:
    """The score vectors of answers. Functions of the kept classes and the answer alone, to the last bit."""
    xp = namespace(answer)

    def there(array: Any) -> Array:
        return xp.asarray(array, device=answer.device, copy=True)

    tops = xp.take(there(plan.tops), answer, axis=0)
    cap = xp.take(there(plan.cap), answer, axis=0)[..., None]
    label, every = kept[..., 0], xp.arange(plan.classes, dtype=kept.dtype, device=answer.device)
    shares = xp.take(there(plan.profile), xp.take(there(plan.table_of_class), label, axis=0), axis=0)
    if plan.keep == 1:
        at = label * plan.slope.shape[1] + answer
        slope, base = (xp.take(xp.reshape(there(a), (-1,)), at, axis=0)[..., None] for a in (plan.slope, plan.base))
        made = xp.where(every == kept, tops, xp.minimum(slope * shares + base, cap))
    else:
        made = xp.zeros_like(shares)
        for i in range(plan.keep):
            made = xp.where(every == kept[..., i : i + 1], tops[..., i : i + 1], made)
        if plan.keep < plan.classes:
            is_kept = made > 0
            remaining = 1 - totals(xp.take_along_axis(shares, kept, axis=-1))[..., 0]
            largest = xp.max(xp.where(is_kept, xp.zeros_like(shares), shares), axis=-1)
            slope, base = plan.spread(remaining, largest, answer, xp)
            made = xp.where(is_kept, made, xp.minimum(slope[..., None] * shares + base[..., None], cap))
    if plan.least:
        made = xp.maximum(made, xp.full_like(made, plan.least))
    # by way of float32 in every library: float16 is rounded alike
    narrow = xp.astype(made, xp.float32) if float(xp.finfo(dtype).eps) > 1e-4 else made
    return xp.astype(narrow, dtype, copy=False)
