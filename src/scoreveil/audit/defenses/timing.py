"""What a defense costs: once to fit, and then for every score vector."""

from dataclasses import dataclass
from time import perf_counter

from scoreveil.audit.data.records import Defense, Floats
from scoreveil.audit.defenses.interface import Given, Method
from scoreveil.mechanisms import loading


@dataclass(frozen=True)
class Timing:
    """Seconds on this machine, now: compare within one run only."""

    fit_seconds: float
    seconds_per_vector: float
    vectors: int  # asked about at once


def timed(method: Method, given: Given, scores: Floats) -> tuple[Defense, Timing]:
    """Make the defense and ask it once about all the scores. The answer is thrown away, the defense returned."""
    if len(scores) == 0:
        raise ValueError("Expected at least 1 score vector to time a defense on, got 0.")
    loading.wait()  # the kernels are compiled once per machine: not what a vector costs
    started = perf_counter()
    defense = method.make(given)
    made = perf_counter()
    defense(scores)
    asked = perf_counter()
    return defense, Timing(made - started, (asked - made) / len(scores), len(scores))
