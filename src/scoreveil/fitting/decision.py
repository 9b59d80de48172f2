"""What to do with a model's scores: decided here, for `fit`, `audit`, their reports and the demo.

    advice = decide(evidence)          # Advice.TAKE_VEIL, …
    sentences(evidence)                # the same in words

The evidence is measured in one place too (`evidence.py`), by cross-fitting on all records:

    leak      the AUC of an attack on the scores, above that of the same attack on the label (and the true label)
    veiled    the same behind the veil
    worth     the log-loss of the label with a constant confidence, less that of the veil

An audit tries many more attacks. They join the evidence where they surely find more (`Excess.joined`).
"""

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

Outcome = Literal["leaks", "leaks no more than the label", "cannot be told from this many records"]

MARGIN = 0.02  # of AUC above the floor: less is no more than the label
LEAKS: Outcome = "leaks"
NO_MORE: Outcome = "leaks no more than the label"
UNDECIDED: Outcome = "cannot be told from this many records"


class Advice(Enum):
    """What to do."""

    TAKE_VEIL = "take the fitted veil"
    LABELS_ONLY = "publish labels only"
    RAW_SCORES = "serve the raw scores, calibrated"
    MORE_RECORDS = "cannot be told from this many records"
    GIVE_LABELS = "give true labels to choose"  # what the veil is worth cannot be told without them
    GIVE_MEMBERS = "give members to choose"  # nor what leaks, without scores of both sides


@dataclass(frozen=True)
class Bounded:
    """A figure with its 95 % bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Excess(Bounded):
    """How far the best attack comes above what the label alone gives, in AUC."""

    @property
    def outcome(self) -> Outcome:
        if self.high <= MARGIN:
            return NO_MORE
        return LEAKS if self.low > 0 else UNDECIDED

    @property
    def times_as_many(self) -> int:
        """How many times as many records narrow the bounds to the margin."""
        return math.ceil(((self.high - self.low) / MARGIN) ** 2)

    def joined(self, attacks: "Excess | None") -> "Excess":
        """What other attacks found, where they surely find a leak that is not seen here, or is not seen to be large."""
        if attacks is None or attacks.outcome != LEAKS:
            return self
        return attacks if self.outcome != LEAKS or attacks.low > MARGIN >= self.low else self


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a decision rests on."""

    leak: Excess | None  # of the raw scores, beyond the label; None without members
    veiled: Excess | None  # the same behind the veil
    worth: Bounded | None  # how far its log-loss is below that of the label, constant; None without labels
    confidences: int  # how many different ones the veil announces for one label, at most
    epsilon: float | None  # of the veil
    records: tuple[int, int]  # members and nonmembers that it was measured on
    in_sample: bool = False  # whether the veil that was given may have been fitted on these records
    smoothed: bool = False  # whether the veil is for smoothed scores: these take the place of raw ones

    def joined(self, leak: Excess | None, veiled: Excess | None) -> "Evidence":
        """With what other attacks found on the raw scores, and behind the veil."""
        if self.leak is None or self.veiled is None:
            return self
        return replace(self, leak=self.leak.joined(leak), veiled=self.veiled.joined(veiled))

    @property
    def is_worth_more(self) -> bool:
        """Whether the confidence is surely worth more than the label alone."""
        return self.worth is not None and self.worth.low > 0


def decide(evidence: Evidence) -> Advice:
    """What to do with these scores."""
    leak, veiled = evidence.leak, evidence.veiled
    if leak is None or veiled is None:
        return Advice.GIVE_MEMBERS
    if leak.outcome == NO_MORE:
        return Advice.RAW_SCORES
    if leak.outcome == UNDECIDED:
        return Advice.MORE_RECORDS
    if evidence.confidences == 1 or veiled.low > MARGIN:
        return Advice.LABELS_ONLY
    if evidence.worth is None:
        return Advice.GIVE_LABELS
    return Advice.TAKE_VEIL if evidence.is_worth_more else Advice.LABELS_ONLY


def preferred(tried: tuple[Evidence, ...]) -> Evidence | None:
    """Of veils with different ε, the one to go by: the first to take, no ε before any, a large one before a small."""
    if not tried:
        return None
    ordered = sorted(tried, key=lambda one: -(one.epsilon or math.inf))
    wanted = (Advice.TAKE_VEIL, Advice.GIVE_LABELS)
    return next((one for advice in wanted for one in ordered if decide(one) is advice), ordered[0])


# In words


def veil_name(epsilon: float | None) -> str:
    return "the fitted veil" if epsilon is None else f"the fitted veil with ε = {epsilon:g}"


def sentences(evidence: Evidence) -> tuple[str, ...]:
    """The decision, and what it rests on."""
    advice, leak, worth = decide(evidence), evidence.leak, evidence.worth
    veil, scores = veil_name(evidence.epsilon), "smoothed scores" if evidence.smoothed else "raw scores"
    if leak is None:
        return ("No advice yet: what leaks cannot be told without scores of members.",)
    about = f"An attack on the {scores} gains {_span(leak)} AUC beyond the label."
    if advice is Advice.RAW_SCORES:
        return (
            f"Nothing leaks beyond the label: serve the {scores}, calibrated.",
            f"{about} That is within the margin of {_figure(MARGIN)}.",
        )
    if advice is Advice.MORE_RECORDS:
        members, others = (leak.times_as_many * count for count in evidence.records)
        return (
            f"Whether the {scores} leak cannot be told from this many records.",
            about,
            f"About {leak.times_as_many} times as many ({members:,} members and {others:,} non-members) would tell.",
        )
    if advice is Advice.GIVE_LABELS:
        return (f"The {scores} leak. True labels of both sides would tell what to do.", about)
    if advice is Advice.LABELS_ONLY:
        return (f"Publish labels only: {_why_not(evidence)}.", about)
    assert worth is not None, "else no veil is taken"
    assert evidence.veiled is not None, "as is the leak"
    return (
        f"Take {veil}.",
        f"{about} Behind the veil it gains {_span(evidence.veiled)}.",
        f"The veil's log-loss is {_span(worth)} below that of the label alone.",
    )


def _why_not(evidence: Evidence) -> str:
    veil = veil_name(evidence.epsilon)
    if evidence.confidences == 1:
        return f"{veil} announces one confidence for every answer"
    if evidence.veiled is not None and evidence.veiled.low > MARGIN:
        return f"{veil} still leaks {_figure(evidence.veiled.value)} AUC beyond the label"
    return f"the confidence of {veil} is not clearly worth more than a label"


def _span(bounded: Bounded) -> str:
    return f"{_figure(bounded.value)} ({_figure(bounded.low)} to {_figure(bounded.high)})"


def _figure(value: float) -> str:
    """.032, −.004"""
    return f"{value:.3f}".replace("-", "−").replace("0.", ".", 1)
