"""What every defense is: made from what the defender has, then a function from scores to scores. And what it costs."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from scoreveil.arrays import Floats
from scoreveil.audit.data.records import Defense, Membership, Records
from scoreveil.shapes import VECTORS, Shape
from scoreveil.veil import Veil


@dataclass(frozen=True, eq=False)
class Given:
    """What a defender has: its own model's scores on its training set and on held-out records.

    known      members and non-members of the target that the defender itself knows, to fit a defense on
    reference  held-out records that are neither attacked nor protected: the public reference
    epsilon    for the defenses that take one
    everyone   all members and non-members with their folds, where what is fitted answers about each fold apart
    veil       a fitted one that was given: the defense "regions" is this
    shape      how the scores of everyone are served
    """

    known: Membership
    reference: Records
    seed: int
    epsilon: float | None = None
    everyone: Membership | None = None
    veil: Veil | None = None
    shape: Shape = VECTORS


Kept = Literal["label", "ranking"]


@dataclass(frozen=True)
class Method:
    """A defense by name."""

    name: str
    make: Callable[[Given], Defense]
    takes_epsilon: bool = False
    needs_epsilon: bool = True  # where it takes one: without it there is no such defense
    bounded_given: Kept | None = None  # its ε bounds what an answer tells beyond this; None where it promises nothing
    keeps_label: bool = True
    keeps_ranking: bool = False
    is_random: bool = False  # with an ε where it takes one, asking again gives another answer
    fits: bool = False  # fitted on members: on all folds of the records but the one that it answers about
    needs_labels: bool = False  # fitted to true labels
    is_slow: bool = False  # takes milliseconds a vector: a study begins with it

    def goes_with(self, epsilon: float | None) -> bool:
        """Whether there is such a defense with this ε, or without one."""
        return self.takes_epsilon if epsilon is not None else not (self.takes_epsilon and self.needs_epsilon)

    def draws_at(self, epsilon: float | None) -> bool:
        """Whether asking again gives another answer: what takes an ε draws only with it."""
        return self.is_random and (epsilon is not None or not self.takes_epsilon)


@dataclass(frozen=True)
class Timing:
    """Seconds on this machine, now: compare within one run only."""

    fit_seconds: float
    seconds_per_vector: float


def timed(method: Method, given: Given, scores: Floats) -> tuple[Defense, Timing]:
    """Make the defense and ask it once about all the scores. The answer is thrown away, the defense returned."""
    if len(scores) == 0:
        raise ValueError("Expected at least 1 score vector to time a defense on, got 0.")
    started = perf_counter()
    defense = method.make(given)
    made = perf_counter()
    defense(scores)
    return defense, Timing(made - started, (perf_counter() - made) / len(scores))
