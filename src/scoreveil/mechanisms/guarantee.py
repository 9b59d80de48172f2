"""What one release promises, in numbers and in words."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scoreveil.mechanisms.promises import Evidence, Integers

KEPT_CLASSES = (
    "The kept classes are released as they are: label-only attacks are not stopped.",
    "It is a promise about score vectors, given the model; it is not training with differential privacy.",
    "It counts one release. Fresh answers for the same record add up (query_bound); a secret or a ledger prevents it.",
)


class BrokenPromise(ValueError):
    """A mechanism does not keep what it says; the message names the promise."""


@dataclass(frozen=True)
class Guarantee:
    """What one release promises. `str()` says it in words.

    Attributes:
        epsilon: ε of one release, for the relation; infinite where nothing is promised.
        relation: The pairs of score vectors that it holds for.
        words: The promise as a sentence or two.
        limits: What is not promised, a sentence each.
        rho: One release is ρ-zCDP for the same relation.
        worst_loss: The exact supremum of the privacy loss, where it is known.
        advantage: By how much, at most, an attack that sees the answer exceeds one that sees the label (TPR - FPR),
            for a record drawn from the members or from the others; None where nothing is promised about it.
        advantage_told: The same for an attack that is told the true label.
        confidence: The level at which the advantages hold for new records.
        table: The chances of all answers in units of 2^-32, a row for each bin, where they are known: `accounting`
            computes from it what many releases add up to.
        evidence: The histograms that the advantages were computed from.
    """

    epsilon: float
    relation: str
    words: str
    limits: tuple[str, ...]
    rho: float
    worst_loss: float | None = None
    advantage: float | None = None
    advantage_told: float | None = None
    confidence: float | None = None
    table: "Integers | None" = field(default=None, repr=False, compare=False)
    evidence: "Evidence | None" = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return "\n".join([self.words, "Limits:", *(f"- {limit}" for limit in self.limits)])
