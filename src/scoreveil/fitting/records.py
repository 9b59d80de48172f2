"""Both sides of a fit, checked against each other, and what looks as if they were mixed up."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from scoreveil.files.records import Scored, Source, read_sides
from scoreveil.shapes import VECTORS, Shape

SURE = 3.0  # standard errors
DIFFERENT = 0.9  # share of score vectors that differ, from which on equal ones on the other side tell something


def read_both(
    nonmembers: Source,
    nonmember_labels: Source = None,
    members: Source = None,
    member_labels: Source = None,
    columns: str | None = None,
    shape: Shape = VECTORS,
) -> tuple[Scored, Scored | None, str]:
    """Nonmembers and members, as `fit` takes them or read already; and how names of classes were understood.

    Raises:
        ValueError: As `read_sides`; or the sides do not go together.
    """
    if isinstance(nonmembers, Scored):
        return nonmembers, members, ""
    if nonmembers is None:
        raise ValueError(
            "Expected scores of nonmembers: what is useful is measured on records that were not trained on."
        )
    if member_labels is not None and members is None:
        raise ValueError("member_labels were given without members; give their scores too.")
    if member_labels is not None and nonmember_labels is None:
        raise ValueError("member_labels were given without nonmember_labels; both sides are needed to compare them.")
    given = {"nonmembers": (nonmembers, nonmember_labels)}
    if members is not None:
        given["members"] = members, member_labels
    sides, note = read_sides(given, columns, shape)
    others, inside = _normalised(sides["nonmembers"]), None
    if members is not None:
        inside = _normalised(sides["members"])
        for what in ("releases", "classes"):
            own, its = getattr(inside, what), getattr(others, what)
            if own != its:
                noun = "vectors a record" if what == "releases" else what
                raise ValueError(f"members have {own} {noun}, nonmembers {its}; they must be the same.")
    return others, inside, note


def _normalised(side: Scored) -> Scored:
    """Rows that sum to 1 as nearly as can be."""
    return replace(side, scores=side.scores / side.scores.sum(axis=1, keepdims=True))


def check_doubts(others: Scored, members: Scored | None) -> None:
    """Refuse sides that seem to be mixed up.

    Raises:
        ValueError: The sides seem to be swapped or the same, or labels to be those of other records.
    """
    for doubt in doubts({"nonmembers": others, "members": members}):
        raise ValueError(f"{doubt} If it is meant so, say force=True (--force).")


def doubts(sides: Mapping[str, Scored | None]) -> Iterator[str]:
    """What looks mixed up: labels that fit no better than chance, sides that are swapped or the same."""
    for who, side in sides.items():
        if side is not None and side.labels is not None and _are_labels_of_others(side):
            yield (
                f"The labels of {who} agree with the top scores in {side.is_right.mean():.0%} of the records, no more "
                "than by chance. Are they the labels of these records, in the same order?"
            )
    members, others = sides.get("members"), sides.get("nonmembers")
    if members is None or others is None:
        return
    if members.labels is not None and others.labels is not None:
        inside, outside = members.is_right, others.is_right
        error = math.sqrt(sum(right.mean() * (1 - right.mean()) / len(right) for right in (inside, outside)))
        if outside.mean() - inside.mean() > SURE * error:
            yield (
                f"The model is right about {inside.mean():.0%} of the members and about {outside.mean():.0%} of the "
                "nonmembers, which it was not trained on. Are the two sides swapped?"
            )
    if _are_same(members, others):
        yield "Most score vectors of the members are among the nonmembers too. Are the two sides the same records?"


def _are_labels_of_others(side: Scored) -> bool:
    """Whether labels agree with the top scores no more than if neither knew of the other."""
    agreements, by_chance = list[NDArray[np.bool_]](), list[float]()
    for part in side.by_label():
        shares = [
            np.bincount(labels, minlength=side.classes) / len(part) for labels in (part.predicted, part.true_labels)
        ]
        if max(map(max, shares)) < 1:
            agreements.append(part.is_right)
            by_chance.append(float(shares[0] @ shares[1]))
    if not agreements:
        return False
    correct, chance = np.concatenate(agreements), sum(by_chance) / len(by_chance)
    return bool(correct.mean() - chance < SURE * math.sqrt(chance * (1 - chance) / len(correct)))


def _are_same(members: Scored, others: Scored) -> bool:
    """Whether most different score vectors of the smaller side are also on the other one."""
    inside, outside = ({row.tobytes() for row in np.ascontiguousarray(side.scores)} for side in (members, others))
    small = min(inside, outside, key=len)
    # a tree, a small forest, or a model of few features has few different vectors: then equal ones say nothing
    return len(small) >= DIFFERENT * min(len(members), len(others)) and len(inside & outside) > len(small) / 2
