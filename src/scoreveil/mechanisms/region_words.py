"""What fitted maps promise, in numbers and in words: the sentence that matters most comes first."""

import math

from scoreveil.mechanisms import promises
from scoreveil.mechanisms.guarantee import KEPT_CLASSES, Guarantee, Relation
from scoreveil.mechanisms.promises import SIXTEENTHS, Attacker, Evidence
from scoreveil.mechanisms.regions import Regions


def guarantee(mechanism: Regions) -> Guarantee:
    """What a fitted map promises."""
    table, epsilon, evidence = mechanism.table, mechanism.epsilon, mechanism.evidence
    stated = {} if evidence is None else {who: evidence.stated(who) for who in evidence.attackers}
    rho = worst = math.inf
    if table is not None:
        rho = promises.zcdp_rho(table, epsilon)
        worst = min(math.log(promises.worst_ratio(table)), epsilon)
    population = _population_words(evidence, stated, mechanism.classes)
    return Guarantee(
        epsilon=epsilon,
        relation=Relation.SAME_TOP_CLASSES,
        words=" ".join([*population, *_epsilon_words(mechanism, mechanism.is_constant)]),
        limits=tuple(_limits(mechanism, mechanism.spent)),
        rho=rho,
        worst_loss=worst,
        advantage=stated.get(Attacker.LABEL),
        advantage_alone=stated.get(Attacker.ALONE),
        advantage_given_truth=stated.get(Attacker.LABEL_AND_CORRECTNESS),
        confidence=None if evidence is None else promises.CONFIDENCE,
        evidence_kind=None if evidence is None else "finite-sample" if evidence.certified else "estimate",
        fit_epsilon=mechanism.spent,
        table=table,
    )


def _population_words(evidence: Evidence | None, stated: dict[Attacker, float], classes: int) -> list[str]:
    """What is promised about records drawn at random, the sentence that matters most first."""
    if evidence is None:
        return ["No members were given, so nothing is promised about telling them from others."]
    often = "However often a record is asked about with the same scores,"
    tells = ", which tells the label of two classes," if evidence.tells_label else ""
    alone = (
        f"an attack that looks at the confidence alone{tells} exceeds guessing by at most {stated[Attacker.ALONE]:.3f}"
    )
    if Attacker.LABEL in stated:
        sentences = [
            f"{often} an attack that sees the label and the confidence exceeds one that sees the label alone by at "
            f"most {stated[Attacker.LABEL]:.3f} (true less false positive rate), for a record drawn at random from "
            f"the members or from the others; {alone}."
        ]
    else:
        why = "too few records of each label"
        if classes > promises.MAX_LABELS:
            why = f"{classes:,} labels, and no more than {promises.MAX_LABELS} are told apart"
        sentences = [
            "Nothing can be stated about an attack that reads each label's confidence in its own way: there are "
            f"{why}.",
            f"{often} {alone} (true less false positive rate), for a record drawn at random.",
        ]
    if Attacker.LABEL_AND_CORRECTNESS in stated:
        sentences.append(
            "To an attack that knows the label and whether it is right, the confidence adds at most "
            f"{stated[Attacker.LABEL_AND_CORRECTNESS]:.3f}."
        )
    elif Attacker.CORRECTNESS in stated:
        sentences.append(
            "To an attack that knows whether the label is right, and does not look at which label it is, the "
            f"confidence adds at most {stated[Attacker.CORRECTNESS]:.3f}."
        )
    (n, m), level = evidence.sizes, f"{promises.CONFIDENCE:.0%} confidence each"
    if evidence.certified:
        basis = (
            f"These bounds hold with {level}, for every population: they were counted on {m:,} members and {n:,} "
            "others that the map was not chosen on."
        )
    else:
        basis = (
            f"These are estimates at {level}, from noisy counts of the {m:,} members and {n:,} others of the fit; "
            "certify=0.3 makes them a theorem."
        )
    return [*sentences, basis]


def _epsilon_words(mechanism: Regions, is_constant: bool) -> list[str]:
    words = "There is no ε: nothing is promised about a single record that an attacker already knows."
    if mechanism.table is not None:
        words = (
            "About any single record, each answer changes an attacker's odds by a factor of at most "
            f"e^{mechanism.epsilon:g} beyond the label; fresh answers add up."
        )
    constant = "Every answer announces the same confidence: it tells no more than the label."
    return [words, constant] if is_constant else [words]


def _limits(mechanism: Regions, spent: tuple[float, float]) -> list[str]:
    evidence, bound = mechanism.evidence, "nothing" if mechanism.table is None else "ε alone"
    limits = list(KEPT_CLASSES[:2])
    if evidence is not None:
        limits += [
            "Not covered: an attacker who compares the answer to a record with answers to slightly changed copies of "
            "it, or a model whose scores for the same record vary.",
            "Attackers who know how the model answers a record with and without it in training (shadow models) are "
            f"bounded by {bound}.",
        ]
        limits += _limits_of_truth(mechanism.classes, evidence)
    member, other = spent
    # members and others cost different amounts, unless the same records are on both sides
    whom = f"each record ε = {member:g}"
    if member != other:
        whom = f"each member ε = {member:g} and each other record ε = {other:g}"
    limits.append(f"Fitting cost {whom} (zero-out: a record against none; twice that for one record against another).")
    if mechanism.atoms > 1e-4:
        limits.append(
            "Many records share the same scores, which no map can tell apart: that cost "
            f"{mechanism.atoms:.4f} of Brier score."
        )
    return limits


def _limits_of_truth(classes: int, evidence: Evidence) -> list[str]:
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


def guarantee_of_labels(maps: tuple[Regions, ...]) -> Guarantee:
    """Of one label at a time: about each attacker the largest of what the labels' own guarantees state."""
    promised = [each.guarantee() for each in maps]
    counted = [each.evidence for each in maps if each.evidence is not None]
    stated: dict[Attacker, float] = {}
    if len(counted) == len(maps):
        shared = [who for who in Attacker if all(who in evidence.attackers for evidence in counted)]
        stated = {who: max(evidence.stated(who) for evidence in counted) for who in shared}
    fewest = min(counted, key=lambda evidence: sum(evidence.sizes)) if stated else None
    costliest = max(maps, key=lambda each: each.atoms)
    member, other = (math.fsum(each.spent[side] for each in maps) for side in (0, 1))
    words = [
        f"Each of {len(maps)} labels has a map of its own, and the promise is for each label; nothing is promised "
        "about the labels of a record together. What is stated is the most of any label.",
        *_population_words(fewest, stated, 2),
        *_epsilon_words(costliest, all(each.is_constant for each in maps)),
    ]
    return Guarantee(
        epsilon=maps[0].epsilon,
        relation=Relation.SAME_TOP_CLASSES,
        words=" ".join(words),
        limits=tuple(_limits(costliest, (member, other))),
        rho=max(promise.rho for promise in promised),
        worst_loss=max(promise.worst_loss or 0.0 for promise in promised),
        advantage=stated.get(Attacker.LABEL),
        advantage_alone=stated.get(Attacker.ALONE),
        advantage_given_truth=stated.get(Attacker.LABEL_AND_CORRECTNESS),
        confidence=None if fewest is None else promises.CONFIDENCE,
        evidence_kind=None if fewest is None else promised[0].evidence_kind,
        fit_epsilon=(member, other),
    )
