"""The veil against the limit and against its own plain-numpy path, over k, mechanism, dtype and threads.

The limit is what the unavoidable parts of a batch cost with the best primitives at hand, on one thread, in blocks of
the veil's own size:

    order         published and keep="all": np.argsort of the rows; keep=1: np.argmax
    exponentials  np.exp in float64; published: m+1 = 6 for each score, m weights and one for Equation 4;
                  isotonic: one for each kept class, since a class's weights are two geometric runs from one exponential
    random bits   AES-256-CTR, one 64-bit draw for each score (published, keep="all") or each row (keep=1)

It leaves out reading, checking and writing the scores, the borders, and the isotonic chain's sums over the grid.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.speed.batches import CLASSES, EPSILON, Scores, scores
from benchmarks.speed.timing import Contestant, Effort, figures, interleave, significant, timed
from scoreveil import Veil, fit, randomness
from scoreveil.blocks import BLOCK, block_rows
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.published import Published

DTYPES = ("float64", "float32")
THREADS = (1, 2)
HELD_OUT_ROWS = 4096
EXPONENTIALS = Published(EPSILON).m + 1  # the published mechanism's, for each score

# mechanism -> the parts of its limit
LIMITS = {
    "published": ("argsort", "exp, 6 a score", "draws, 1 a score"),
    "isotonic keep=1": ("argmax", "exp, 1 a row", "draws, 1 a row"),
    "regions": ("argmax", "draws, 1 a row"),
    "isotonic keep=all": ("argsort", "exp, 1 a score", "draws, 1 a score"),
}


def veil(mechanism: str, k: int, threads: int = 1) -> Veil:
    """The veil that the table calls by this name."""
    if mechanism == "published":
        return Veil(EPSILON, "published", threads=threads)
    if mechanism == "isotonic keep=all":
        return Veil(EPSILON, keep="all", threads=threads)
    if mechanism == "isotonic keep=1":
        return Veil(EPSILON, threads=threads)
    held_out = scores(max(8, min(HELD_OUT_ROWS, (1 << 20) // k)), k, "float64", seed=2)
    return Veil(fit(held_out, epsilon=EPSILON, rng=np.random.default_rng(4)).mechanism, threads=threads)


# The limit


def by_blocks(rows: Scores, work: Callable[[Scores], object]) -> Contestant:
    size = block_rows(rows.shape[1])
    return timed(lambda: [work(rows[start : start + size]) for start in range(0, len(rows), size)])


def exponentials(count: int) -> Contestant:
    """This many exponentials, a block of BLOCK at a time, into memory that is there already."""
    exponents = -EPSILON * np.random.default_rng(3).random(min(count, BLOCK))
    out = np.empty_like(exponents)

    def work() -> None:
        for start in range(0, count, BLOCK):
            size = min(BLOCK, count - start)
            np.exp(exponents[:size], out=out[:size])

    return timed(work)


def limit_parts(rows: Scores) -> dict[str, Contestant]:
    n, k = rows.shape
    return {
        "argsort": by_blocks(rows, lambda block: np.argsort(block, axis=1)),
        "argmax": by_blocks(rows, lambda block: np.argmax(block, axis=1)),
        "exp, 6 a score": exponentials(EXPONENTIALS * n * k),
        "exp, 1 a score": exponentials(n * k),
        "exp, 1 a row": exponentials(n),
        "draws, 1 a score": by_blocks(rows, lambda block: randomness.secure_uniforms(*block.shape)),
        "draws, 1 a row": by_blocks(rows, lambda block: randomness.secure_uniforms(len(block), 1)),
    }


# The table


def measure(k: int, dtype: str, total: int, numpy_total: int, effort: Effort) -> tuple[dict[str, Any], list[Any]]:
    """The limit's parts and the table's rows for one k and dtype, all run in turns on one batch of `total` scores."""
    rows = scores(max(8, total // k), k, dtype)
    few = rows[: max(1, numpy_total // k)]
    contestants = {f"limit {name}": run for name, run in limit_parts(rows).items()}
    for mechanism in LIMITS:
        for threads in THREADS:
            contestants[f"{mechanism} {threads}"] = timed(partial(veil(mechanism, k, threads), rows))
        contestants[f"{mechanism} numpy"] = _without_kernels(timed(partial(veil(mechanism, k), few)))
    seconds = interleave(contestants, effort)

    parts = {name: figures(seconds[f"limit {name}"], len(rows)) for name in limit_parts(rows)}
    table = []
    for mechanism, needed in LIMITS.items():
        limit = sum(parts[name]["ns_per_row"] for name in needed)
        plain = figures(seconds[f"{mechanism} numpy"], len(few))
        for threads in THREADS:
            ours = figures(seconds[f"{mechanism} {threads}"], len(rows))
            row = {"mechanism": mechanism, "k": k, "dtype": dtype, "threads": threads, **ours}
            row["limit_ns_per_row"] = significant(limit)
            row["ratio_to_limit"] = significant(ours["ns_per_row"] / limit)
            row["numpy"] = plain
            row["ratio_numpy_to_ours"] = significant(plain["ns_per_row"] / ours["ns_per_row"])
            table.append(row)
    return {"k": k, "dtype": dtype, "parts": parts}, table


def _without_kernels(contestant: Contestant) -> Contestant:
    """The same veil, with the kernels out of its sight."""

    def run() -> float:
        with mock.patch.object(loading, "kernel", return_value=None):
            return contestant()

    return run


# One vector


def one_vector(effort: Effort, calls: int) -> list[dict[str, Any]]:
    """The whole Python call for a single vector of 10 classes: the mean of `calls` in a row, at its smallest."""
    vectors = {dtype: scores(1, CLASSES, dtype)[0] for dtype in DTYPES}
    veils = {mechanism: veil(mechanism, CLASSES) for mechanism in LIMITS}
    seconds = interleave(
        {
            f"{mechanism} {dtype}": timed(partial(veils[mechanism], vectors[dtype]), calls)
            for mechanism in LIMITS
            for dtype in DTYPES
        },
        effort,
    )
    return [
        {"mechanism": mechanism, "k": CLASSES, "dtype": dtype, **figures(seconds[f"{mechanism} {dtype}"])}
        for mechanism in LIMITS
        for dtype in DTYPES
    ]
