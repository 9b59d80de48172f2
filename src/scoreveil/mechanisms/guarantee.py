"""What one release promises, in numbers and in words."""

from dataclasses import dataclass, field
from enum import Enum

from scoreveil.arrays import Integers

KEPT_CLASSES = (
    "The kept classes are released as they are: label-only attacks are not stopped.",
    "It is a promise about score vectors, given the model; it is not training with differential privacy.",
    "It counts one release. Fresh answers for the same record add up (query_bound); a secret or a ledger prevents it.",
)


class BrokenPromise(ValueError):
    """A mechanism does not keep what it says; the message names the promise."""


class Malformed(ValueError):
    """Parts of a saved veil that do not go together; the message names the fault and quotes no value."""


class Relation(Enum):
    """The pairs that ε compares. Guarantees for different pairs cannot be added up; the value says it in words."""

    SAME_TOP_CLASSES = "any two score vectors with the same top classes in order"
    SAME_RANKING = "any two score vectors with the same ranking of all classes"
    ZERO_OUT = "any two datasets that a veil was fitted on, where one record is replaced by one that counts nowhere"
    SUBSTITUTION = "any two datasets that a veil was fitted on, where one record is replaced by another"

    @property
    def words(self) -> str:
        return self.value


@dataclass(frozen=True)
class Guarantee:
    """What one release promises. `str()` says it in words.

    Attributes:
        epsilon: ε of one release, for the relation; infinite where nothing is promised.
        relation: The pairs that it holds for.
        words: The promise as a sentence or two.
        limits: What is not promised, a sentence each.
        rho: One release is ρ-zCDP for the same relation.
        worst_loss: The supremum of the privacy loss of the draws, where it is known.
        kept: How many top classes the pairs share, for `Relation.SAME_TOP_CLASSES`.
        advantage: By how much, at most, an attack that sees the label and the answer exceeds one that sees the label
            alone (TPR - FPR), for a record drawn at random from the members or from the others, however often it asks;
            None where it cannot be stated.
        advantage_alone: The same for an attack that looks at the confidence and not at the label, beyond guessing; the
            confidence of two classes tells the label too.
        advantage_given_truth: The same for an attack that knows the label and whether it is right: the total variation
            within the right and within the wrong answers of each label, weighted by how common they are.
        confidence: The level at which the advantages hold for new records.
        evidence_kind: What that level rests on: "estimate", or "finite-sample" for a bound that holds for
            every population.
        fit_epsilon: The ε that the fit itself spends on a member and on another record (`Relation.ZERO_OUT`), over all
            labels where there are many.
        table: The chances of all answers in units of 2^-32, a row for each input, where they are known: `accounting`
            computes from it what many releases add up to.
    """

    epsilon: float
    relation: Relation
    words: str
    limits: tuple[str, ...]
    rho: float
    worst_loss: float | None = None
    kept: int = 1
    advantage: float | None = None
    advantage_alone: float | None = None
    advantage_given_truth: float | None = None
    confidence: float | None = None
    evidence_kind: str | None = None
    fit_epsilon: tuple[float, float] | None = None
    table: Integers | None = field(default=None, repr=False, compare=False)

    @property
    def relation_words(self) -> str:
        """The pairs that it holds for, in words: "any two score vectors with the same top class"."""
        return relation_words(self.relation, self.kept)

    def __str__(self) -> str:
        return "\n".join([self.words, "Limits:", *(f"- {limit}" for limit in self.limits)])


def relation_words(relation: Relation, kept: int = 1) -> str:
    """A relation in words; `kept` is the number of top classes that the pairs share."""
    if relation is not Relation.SAME_TOP_CLASSES:
        return relation.words
    return f"any two score vectors with the same {'top class' if kept == 1 else f'{kept} top classes in order'}"
