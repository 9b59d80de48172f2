"""Contestants are run in turns, so that whatever else the machine does falls on all of them alike.

A contestant is a function that does its work once and says how many seconds it took. The figure that counts is the
minimum; the spread, median over minimum, says how far it can be trusted.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Contestant = Callable[[], float]


@dataclass(frozen=True)
class Effort:
    """How much to measure: seconds for each contestant, and the fewest and most runs."""

    seconds: float
    least: int
    most: int


def timed(work: Callable[[], object], times: int = 1) -> Contestant:
    """A contestant that does `work`; seconds for each of `times` calls in a row."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - start) / times

    return run


def interleave(contestants: Mapping[str, Contestant], effort: Effort) -> dict[str, list[float]]:
    """The seconds of every run. One run each to warm up, then rounds, forwards and backwards in turn.

    A contestant that has had its time leaves, so that slow ones do not cost the others their repeats.
    """
    spent = dict.fromkeys(contestants, 0.0)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        run()
    racing = list(contestants)
    while racing:
        for name in racing:
            start = time.perf_counter()
            seconds[name].append(contestants[name]())
            spent[name] += time.perf_counter() - start
        racing = [
            name
            for name in reversed(racing)
            if len(seconds[name]) < effort.least or (len(seconds[name]) < effort.most and spent[name] < effort.seconds)
        ]
    return seconds


def figures(seconds: list[float], rows: int = 1) -> dict[str, Any]:
    """The minimum for each row, the spread, and every run, for results.json."""
    return {
        "rows": rows,
        "ns_per_row": significant(min(seconds) / rows * 1e9),
        "spread": significant(statistics.median(seconds) / min(seconds)),
        "runs": len(seconds),
        "seconds": [significant(s) for s in seconds],
    }


def significant(value: float) -> float:
    """Four significant digits: more would be noise."""
    return float(f"{value:.4g}")
