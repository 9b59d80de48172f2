"""What is audited: scores of members and non-members.

Checks come first, so that nothing is fitted on records that are not what they should be.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from scoreveil import storage
from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.defenses.interface import Given
from scoreveil.audit.defenses.ours import fitted_veil, studied_veil
from scoreveil.audit.study.pictures import Pictures
from scoreveil.audit.study.shadows import ShadowModels
from scoreveil.files.records import read, read_sides
from scoreveil.fitting.decision import Evidence
from scoreveil.fitting.evidence import evidence, may_be_fitted_on, options_of
from scoreveil.fitting.records import doubts
from scoreveil.shapes import VECTORS, Shape
from scoreveil.veil import Veil

SIDES = ("members", "nonmembers")
FOLDING = 2  # the seed of folds
MIN_RECORDS = 100  # members and non-members each, before any split: fewer cannot tell an attack from luck
REFERENCE_SHARE = 0.2  # of the non-members, held out as the public reference

Sides = Mapping[str, tuple[Any, Any]]  # scores and labels by name


@dataclass(frozen=True, eq=False)
class Subject:
    """What is audited.

    target, shadow  members and non-members of the model, and of a shadow to fit attacks on
    reference       held-out records that are neither attacked nor protected
    notes           what the reader should know about them
    many            the target's records under many shadow models, for LiRA and its kin
    pictures        what the inversion attack draws, where the records are pictures
    fitted_on       members that a defense is fitted on, where they are not those under attack
    given_records   all members and non-members that the audit was given, in that order, to fit a veil for use on
    shape, served   how scores are served, and all records so, where that is not as vectors
    names           of the labels, where a record has several
    doubts          what looks mixed up
    veil            a fitted one that was given, to be attacked in place of veils that are fitted here
    """

    target: Membership
    shadow: Membership
    reference: Records
    notes: tuple[str, ...] = ()
    many: ShadowModels | None = None
    pictures: Pictures | None = None
    title: str = ""
    fitted_on: Records | None = None
    given_records: Membership | None = None
    shape: Shape = VECTORS
    served: Membership | None = None
    names: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    veil: Veil | None = None

    def __post_init__(self) -> None:
        """Every record has a fold, given by whoever made the subject or here."""
        rng = np.random.default_rng(FOLDING)
        object.__setattr__(self, "target", Membership(*(side.in_folds(rng) for side in self.sides[:2])))

    @property
    def everyone(self) -> Membership:
        """All members and non-members there are, in the order in which they were given."""
        return self.given_records or self.target

    @property
    def everyone_served(self) -> Membership:
        """The same, as they are served."""
        return self.served or self.everyone

    def given(self, seed: int, epsilon: float | None = None) -> Given:
        """What a defender has. It knows its own training set; its non-members are the reference, not the records under
        attack."""
        members = self.target.members if self.fitted_on is None else self.fitted_on
        everyone = self.everyone_served if self.fitted_on is None else None
        known = Membership(members, self.reference)
        return Given(known, self.reference, seed, epsilon, everyone, self.veil, self.shape)

    def for_use(self, epsilon: float | None) -> Veil:
        """The veil that was given; else one that is fitted on all records, as they are served, for whoever takes it."""
        if self.veil is not None:
            return self.veil
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a fit would warn of is part of the evidence
            return fitted_veil(self.everyone_served, self.shape, epsilon)

    def evidence(self, epsilon: float | None) -> Evidence:
        """What there is to go by about the fitted veil: measured as `scoreveil fit` measures it."""
        known, shape = self.everyone_served, self.shape
        veil = self.veil or studied_veil(known, epsilon, shape)  # the same seed gives the same numbers
        others, inside = known.nonmembers, known.members
        labelled = others.labels is not None and inside.labels is not None
        options: dict[str, Any] = {"epsilon": epsilon, "shape": shape}
        may_know = self.veil is not None and may_be_fitted_on(veil, len(inside), len(others))
        measured = evidence(
            veil, others.scores, others.labels, inside.scores, inside.labels if labelled else None,
            held_out=self.veil is not None and not may_know,
            **(options if self.veil is None else {**options_of(veil), **options}),
        )  # fmt: skip
        return replace(measured, in_sample=may_know)

    def by_label(self) -> dict[str, "Subject"]:
        """Each of many labels as a subject of its own, two classes that are served as one column."""
        shapes = self.shape.by_label(self.target.classes)
        return {self.names[i] if self.names else str(i): self._of_label(i, shape) for i, shape in enumerate(shapes)}

    def _of_label(self, label: int, shape: Shape) -> "Subject":
        def served(side: Records) -> Records:
            return replace(
                side, scores=side.scores[:, label], labels=None if side.labels is None else side.labels[:, label]
            )

        def vectors(side: Records) -> Records:
            return replace(served(side), scores=self.shape.vectors(side.scores)[:, label])

        return replace(
            self,
            target=self.target.changed(vectors),
            shadow=self.shadow.changed(vectors),
            reference=vectors(self.reference),
            given_records=self.everyone.changed(vectors),
            served=self.everyone_served.changed(served),
            shape=shape,
            names=(),
            veil=None if self.veil is None else Veil(self.veil.mechanism.maps[label], shape=shape),
        )

    def for_fitting(self) -> "Subject":
        """The subject for a defense that answers about others than these records, and is fitted on half of them: what
        redraws pictures, or infers a column."""
        members = self.target.members
        known, attacked = np.array_split(np.random.default_rng(0).permutation(len(members)), 2)
        kept = np.concatenate([np.sort(attacked), len(members) + np.arange(len(self.target.nonmembers))])
        return replace(
            self,
            target=Membership(members.take(np.sort(attacked)), self.target.nonmembers),
            many=None if self.many is None else self.many.take(kept),
            fitted_on=members.take(np.sort(known)),
        )

    @property
    def sides(self) -> tuple[Records, ...]:
        """Members and non-members of the target, then of the shadow."""
        return self.target.members, self.target.nonmembers, self.shadow.members, self.shadow.nonmembers

    @cached_property
    def digest(self) -> str:
        """The hash of all records."""
        known = [] if self.fitted_on is None else [self.fitted_on]
        veil = "" if self.veil is None else storage.digest(self.veil.mechanism).hex()
        return "".join(r.digest for r in (*self.sides, self.reference, *known)) + veil

    @cached_property
    def digest_with_many(self) -> str:
        return self.digest if self.many is None else self.digest + self.many.digest


def checked(name: str, scores: Any, labels: Any = None) -> Records:
    """Records of score vectors and labels, or a ValueError that names what is wrong with which."""
    scored = read(scores, labels, name)
    return Records(scored.scores, scored.labels)


def from_given(sides: Sides, columns: str | None = None, seed: int = 0, shape: Shape = VECTORS) -> Subject:
    """A subject from scores and labels of any kind, as `files.records` reads them.

    One column is attacked as the vectors that it stands for. Of many labels the records are what is served,
    (n, labels), with as many true labels.

    Args:
        sides: Scores and labels by name, None for what is not there: "members" and "nonmembers"; "shadow members" and
            "shadow nonmembers", which may be absent; "reference", likewise.
        columns: Of tables: the columns of the scores.
        seed: Of the split.
        shape: How scores are served, where not as vectors.

    Raises:
        ValueError: Records are missing on one side, or are not scores or labels.
    """
    if shape.why_not_audited:
        raise ValueError(shape.why_not_audited)
    scored, note = read_sides(_complete(sides), columns, shape)
    served = {name: Records(*side.given) for name, side in scored.items()}
    records = served if shape.has_labels else {name: Records(s.scores, s.labels) for name, s in scored.items()}
    shadow = (records["shadow members"], records["shadow nonmembers"]) if "shadow members" in records else None
    subject = from_scores(records["members"], records["nonmembers"], shadow, records.get("reference"), seed)
    if not shape.has_labels and (threshold := scored["members"].threshold) != 0.5:
        note += f" The threshold {threshold:g} is moved to one half, and what scores are worth is measured there."
    folded = (replace(served[name], fold=side.fold) for name, side in zip(SIDES, subject.everyone, strict=True))
    return replace(
        subject,
        notes=(*subject.notes, *([note.strip()] if note else [])),
        shape=shape,
        served=None if shape.is_plain else Membership(*folded),
        names=scored["members"].names if shape.has_labels else (),
        doubts=tuple(doubts(scored)),
    )


def _complete(sides: Sides) -> dict[str, tuple[Any, Any]]:
    """The sides that are there, each with its counterpart, and labels on all or on none."""
    there = {name: side for name, side in sides.items() if side[0] is not None}
    for name, (scores, labels) in sides.items():
        if scores is None and (labels is not None or name in SIDES):
            raise ValueError(
                f"Expected scores of {name}, got {'their labels alone' if labels is not None else 'none'}."
            )
    names = [name for name in there if name != "reference"]
    if len(names) == 3:
        raise ValueError(f"Expected both sides of a shadow, members and nonmembers, got {names[-1]} alone.")
    unlabelled = [name for name in names if there[name][1] is None]
    if unlabelled and unlabelled != names:
        raise ValueError(f"Expected labels for all records, or for none; got none for {', '.join(unlabelled)}.")
    return there


def from_scores(
    members: Records,
    nonmembers: Records,
    shadow: tuple[Records, Records] | None = None,
    reference: Records | None = None,
    seed: int = 0,
) -> Subject:
    """A subject from scores. Without a shadow, attacks are fitted on one half of the records and tested on the other:
    an attacker who knows the membership of half of them. Without a reference, a part of the non-members is held out."""
    every = {"members": members, "nonmembers": nonmembers}
    if shadow is not None:
        every |= {"shadow members": shadow[0], "shadow nonmembers": shadow[1]}
    classes = {r.scores.shape[1] for r in every.values()}
    if len(classes) > 1:
        raise ValueError(f"Expected the same number of classes everywhere, got {sorted(classes)}.")
    for name, records in every.items():
        if len(records) < MIN_RECORDS:
            raise ValueError(f"Expected at least {MIN_RECORDS} {name}, got {len(records)}.")
    notes, folding = overlap_notes(members, nonmembers), np.random.default_rng(FOLDING)
    members, nonmembers = members.in_folds(folding), nonmembers.in_folds(folding)
    whole, rng = Membership(members, nonmembers), np.random.default_rng(seed)
    if reference is None:
        shuffled = nonmembers.take(rng.permutation(len(nonmembers)))
        cut = int(len(nonmembers) * REFERENCE_SHARE)
        reference, nonmembers = shuffled.take(slice(cut)), shuffled.take(slice(cut, None))
    target = Membership(members, nonmembers)
    if shadow is not None:
        return Subject(target, Membership(*shadow), reference, notes, given_records=whole)
    known, attacked = target.halves(rng)
    notes += ("No shadow was given: attacks are fitted on one half of the records and tested on the other half.",)
    return Subject(attacked, known, reference, notes, given_records=whole)


def overlap_notes(members: Records, nonmembers: Records) -> tuple[str, ...]:
    """A warning where records stand on both sides."""
    both = {row.tobytes() for row in members.scores} & {row.tobytes() for row in nonmembers.scores}
    rows = (np.frombuffer(row) for row in both)
    # saturated rows coincide by themselves
    distinct = [row for row in rows if row.max() < 1 and (row > 0).sum() > 1]
    shared = len(distinct) / min(len(members), len(nonmembers))
    if shared > 0.01:
        return (f"{shared:.0%} of the score vectors stand among members and non-members alike: do the sets overlap?",)
    return ()
