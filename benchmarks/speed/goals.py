"""The goals of the design, and what was measured, side by side. Nothing else knows these numbers."""

from collections.abc import Iterator
from typing import Any

GOALS_OF_TABLE = (  # mechanism, k, figure, at most; one thread
    ("published", 10, "ratio_to_limit", 1.0),
    ("published", 1000, "ratio_to_limit", 1.2),
    ("isotonic keep=1", 10, "ns_per_row", 250.0),
    ("isotonic keep=all", 10, "ns_per_row", 700.0),
    ("isotonic keep=1", 1000, "ns_per_row", 3_000.0),
    ("isotonic keep=all", 1000, "ns_per_row", 80_000.0),
)
ONE_VECTOR = 15_000.0  # ns, k = 10
FIRST_ANSWER = 1e9  # ns


def compare(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Each goal with its figure: {what, figure, goal, measured, met}."""
    return [
        {"what": what, "figure": figure, "goal": goal, "measured": measured, "met": measured <= goal}
        for what, figure, goal, measured in _pairs(results)
    ]


def _pairs(results: dict[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    rows = {(r["mechanism"], r["k"], r["dtype"]): r for r in results["table"] if r["threads"] == 1}
    for mechanism, k, figure, goal in GOALS_OF_TABLE:
        for dtype in ("float64", "float32"):
            row = rows[mechanism, k, dtype]
            yield f"{mechanism}, k = {k:,}, n = {row['rows']:,}, {dtype}", figure, goal, row[figure]
    for row in results["one_vector"]:
        what = f"one vector, k = {row['k']}, whole Python call, {row['mechanism']}, {row['dtype']}"
        yield what, "ns_per_row", ONE_VECTOR, row["ns_per_row"]
    for cache, first in results["new_process"]["first_answer"].items():
        yield f"first answer in a new process, {cache} cache", "ns_per_row", FIRST_ANSWER, first["ns_per_row"]
