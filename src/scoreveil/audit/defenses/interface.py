"""The one shape of a defense: made from what the defender has, then a function from scores to scores."""

from collections.abc import Callable
from dataclasses import dataclass

from scoreveil.audit.data.records import Defense, Membership, Records


@dataclass(frozen=True, eq=False)
class Given:
    """What a defender has: its own model's scores on its training set and on held-out records.

    known      members and non-members of the target that the defender itself knows, to fit a defense on
    reference  held-out records that are neither attacked nor protected: the public reference
    epsilon    for the defenses that take one
    """

    known: Membership
    reference: Records
    seed: int
    epsilon: float | None = None


@dataclass(frozen=True)
class Method:
    """A defense by name."""

    name: str
    make: Callable[[Given], Defense]
    takes_epsilon: bool = False
    keeps_label: bool = True
    keeps_ranking: bool = False
    is_random: bool = False  # asking again gives another answer
