"""What fitted maps promise, in numbers and in words: the sentence that matters most comes first; and their regions."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from scoreveil.mechanisms import promises
from scoreveil.mechanisms.guarantee import KEPT_CLASSES, Guarantee, Relation
from scoreveil.mechanisms.promises import SIXTEENTHS, WHOLE, Attacker, RegionCounts

if TYPE_CHECKING:
    from scoreveil.mechanisms.regions import Regions

Stated = dict[Attacker, float]


class _Advantages(TypedDict):
    """What a `Guarantee` states about records drawn at random."""

    advantage: float | None
    advantage_alone: float | None
    advantage_given_truth: float | None
    confidence: float | None
    evidence_kind: str | None


def guarantee(region_map: "Regions") -> Guarantee:
    """What a fitted map promises."""
    table, epsilon, evidence = region_map.table, region_map.epsilon, region_map.evidence
    stated = {} if evidence is None else {who: evidence.stated(who) for who in evidence.attackers}
    rho = worst = math.inf
    if table is not None:
        rho = promises.zcdp_rho(table, epsilon)
        worst = min(math.log(promises.worst_ratio(table)), epsilon)
    population = _population_words(evidence, stated, region_map.classes)
    return Guarantee(
        epsilon=epsilon,
        relation=Relation.SAME_TOP_CLASSES,
        words=" ".join([*population, *_epsilon_words(region_map, region_map.is_constant)]),
        limits=tuple(_limits(region_map, region_map.spent)),
        rho=rho,
        worst_loss=worst,
        fit_epsilon=region_map.spent,
        table=table,
        **_advantages(evidence, stated),
    )


def guarantee_of_labels(maps: "tuple[Regions, ...]") -> Guarantee:
    """Of one label at a time: about each attacker the largest of what the labels' own guarantees state."""
    promised = [label_map.guarantee() for label_map in maps]
    counted = [label_map.evidence for label_map in maps if label_map.evidence is not None]
    stated: Stated = {}
    if len(counted) == len(maps):
        shared = [who for who in Attacker if all(who in evidence.attackers for evidence in counted)]
        stated = {who: max(evidence.stated(who) for evidence in counted) for who in shared}
    fewest = min(counted, key=lambda evidence: sum(evidence.sizes)) if stated else None
    costliest = max(maps, key=lambda label_map: label_map.atoms)
    member, other = (math.fsum(label_map.spent[side] for label_map in maps) for side in (0, 1))
    words = [
        f"Each of {len(maps)} labels has a map of its own, and the promise is for each label; nothing is promised "
        "about the labels of a record together. What is stated is the most of any label.",
        *_population_words(fewest, stated, 2),
        *_epsilon_words(costliest, all(label_map.is_constant for label_map in maps)),
    ]
    return Guarantee(
        epsilon=maps[0].epsilon,
        relation=Relation.SAME_TOP_CLASSES,
        words=" ".join(words),
        limits=tuple(_limits(costliest, (member, other))),
        rho=max(promise.rho for promise in promised),
        worst_loss=max(promise.worst_loss or 0.0 for promise in promised),
        fit_epsilon=(member, other),
        **_advantages(fewest, stated),
    )


def _advantages(evidence: RegionCounts | None, stated: Stated) -> _Advantages:
    kind = None if evidence is None else "finite-sample" if evidence.certified else "estimate"
    return {
        "advantage": stated.get(Attacker.LABEL),
        "advantage_alone": stated.get(Attacker.ALONE),
        "advantage_given_truth": stated.get(Attacker.LABEL_AND_CORRECTNESS),
        "confidence": None if evidence is None else promises.CONFIDENCE,
        "evidence_kind": kind,
    }


def _population_words(evidence: RegionCounts | None, stated: Stated, classes: int) -> list[str]:
    """What is promised about records drawn at random, the sentence that matters most first."""
    if evidence is None:
        return ["No members were given, so nothing is promised about telling them from others."]
    tells = ", which tells the label of two classes," if evidence.tells_label else ""
    alone = (
        f"an attack that looks at the confidence alone{tells} exceeds guessing by at most {stated[Attacker.ALONE]:.3f}"
    )
    often = "However often a record is asked about with the same scores,"
    drawn = "for a record drawn at random"
    if Attacker.LABEL in stated:
        sentences = [
            f"{often} an attack that sees the label and the confidence exceeds one that sees the label alone by at "
            f"most {stated[Attacker.LABEL]:.3f} (true less false positive rate), {drawn} from the members or from the "
            f"others; {alone}."
        ]
    else:
        sentences = [_why_no_label(classes), f"{often} {alone} (true less false positive rate), {drawn}."]
    return [*sentences, *_truth_words(stated), _basis(evidence)]


def _why_no_label(classes: int) -> str:
    why = "too few records of each label"
    if classes > promises.MAX_LABELS:
        why = f"{classes:,} labels, and no more than {promises.MAX_LABELS} are told apart"
    return f"Nothing can be stated about an attack that reads each label's confidence in its own way: there are {why}."


def _truth_words(stated: Stated) -> list[str]:
    if Attacker.LABEL_AND_CORRECTNESS in stated:
        adds, who = stated[Attacker.LABEL_AND_CORRECTNESS], "that knows the label and whether it is right"
    elif Attacker.CORRECTNESS in stated:
        adds = stated[Attacker.CORRECTNESS]
        who = "that knows whether the label is right, and does not look at which label it is"
    else:
        return []
    return [f"To an attack {who}, the confidence adds at most {adds:.3f}."]


def _basis(evidence: RegionCounts) -> str:
    (n, m), level = evidence.sizes, f"{promises.CONFIDENCE:.0%} confidence each"
    if evidence.certified:
        return (
            f"These bounds hold with {level}, for every population: they were counted on {m:,} members and {n:,} "
            "others that the map was not chosen on."
        )
    return (
        f"These are estimates at {level}, from noisy counts of the {m:,} members and {n:,} others of the fit; "
        "certify=0.3 makes them a theorem."
    )


def _epsilon_words(region_map: "Regions", is_constant: bool) -> list[str]:
    words = "There is no ε: nothing is promised about a single record that an attacker already knows."
    if region_map.table is not None:
        words = (
            "About any single record, each answer changes an attacker's odds by a factor of at most "
            f"e^{region_map.epsilon:g} beyond the label; fresh answers add up."
        )
    constant = "Every answer announces the same confidence: it tells no more than the label."
    return [words, constant] if is_constant else [words]


def _limits(region_map: "Regions", spent: tuple[float, float]) -> list[str]:
    evidence, bound = region_map.evidence, "nothing" if region_map.table is None else "ε alone"
    limits = list(KEPT_CLASSES[:2])
    if evidence is not None:
        limits += [
            "Not covered: an attacker who compares the answer to a record with answers to slightly changed copies of "
            "it, or a model whose scores for the same record vary.",
            "Attackers who know how the model answers a record with and without it in training (shadow models) are "
            f"bounded by {bound}.",
        ]
        limits += _limits_of_truth(region_map.classes, evidence)
    member, other = spent
    # members and others cost different amounts, unless the same records are on both sides
    whom = f"each record ε = {member:g}"
    if member != other:
        whom = f"each member ε = {member:g} and each other record ε = {other:g}"
    limits.append(f"Fitting cost {whom} (zero-out: a record against none; twice that for one record against another).")
    if region_map.atoms > 1e-4:
        limits.append(
            "Many records share the same scores, which no map can tell apart: that cost "
            f"{region_map.atoms:.4f} of Brier score."
        )
    return limits


def _limits_of_truth(classes: int, evidence: RegionCounts) -> list[str]:
    """What is not stated about attackers who know the true label."""
    if evidence.counts.shape[2] == 1:
        return ["No labels of members were given: nothing is stated about attackers who know the true label."]
    if classes == 2:
        return []
    wrong = [max(int(side[:, 0].sum()), 0) / SIXTEENTHS for side in evidence.counts]
    most = min(count / size for count, size in zip(wrong, evidence.sizes, strict=True))
    return [
        "Where a label is wrong, it is not told apart which other class is right: an attacker who knows gains at most "
        f"{most:.3f} more, the share of wrong answers."
    ]


# The regions


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


def rows(region_map: "Regions") -> list[RegionRow]:
    """What a person reads of each region, the least confident first."""
    size, table, counts = region_map.size, region_map.table, region_map.counts / SIXTEENTHS
    total = np.maximum(counts.sum(axis=0), 1e-9)
    right = members = np.full(size, np.nan)
    if len(counts) > 1:
        right = np.clip(np.where(total > 0.5, counts[1] / total, np.nan), 0, 1)  # of no record, nothing
    if region_map.evidence is not None:
        inside = np.maximum(region_map.evidence.counts[1].sum(axis=(0, 1)), 0)
        members = inside / max(int(inside.sum()), 1)
    others = total / max(float(total.sum()), 1e-9)
    likeliest = np.arange(size) if table is None else table.argmax(axis=1)
    return [
        RegionRow(
            number=r,
            words=_place(region_map, r),
            members=float(members[r]),
            others=float(others[r]),
            right=float(right[r]),
            announced=tuple(region_map.announced[:, likeliest[r]].tolist()),
            answers=() if table is None else tuple((table[r] / WHOLE).tolist()),
        )
        for r in range(size)
    ]


def _place(region_map: "Regions", region: int) -> str:
    """Where a region lies, in words: the range of the top score, and in how many strips of the rest."""
    low, high, strips = 1.0, 0.0, 0
    for cuts, regions in zip(region_map.cuts, region_map.regions, strict=True):
        ends = [0.0, *np.minimum(cuts, 1.0).tolist(), 1.0]
        pieces = [(a, b) for (a, b), r in zip(pairwise(ends), regions.tolist(), strict=True) if r == region and b > a]
        if pieces:
            low, high, strips = min(low, pieces[0][0]), max(high, pieces[-1][1]), strips + 1
    place = f"{_digits(max(low, 1 / region_map.classes))} to {_digits(high)}"
    return f"{place}, {strips} of {len(region_map.cuts)} strips" if len(region_map.cuts) > 1 else place


def _digits(score: float) -> str:
    """With as many digits as it takes to tell it from 1."""
    return f"{score:.{max(2, 1 + math.ceil(-math.log10(1 - score)))}f}" if 0 < score < 1 else f"{score:g}"
