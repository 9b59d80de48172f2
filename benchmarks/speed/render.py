"""docs/benchmarks.md from results.json: says what was measured, and measures nothing."""

from collections.abc import Iterable
from typing import Any

Results = dict[str, Any]

HEAD = """# Benchmarks

<!-- Made by benchmarks/speed/veil.py from benchmarks/speed/veil.json: do not edit. -->

Made by `{command}` on {date}{quick}; all raw figures are in `benchmarks/speed/veil.json`, and
`python -m benchmarks veil --render` makes this page from them again.

| | |
|---|---|
| machine | {machine} |
| system | {system} |
| Python | {python} |
| packages | {packages} |
| commit | {commit} |
| load before and after | {load} |

Contestants are run in turns and the minimum counts. *Spread* is how far the median lies above it. Every ratio is
taken in one run. ε = {epsilon:g}; scores are the softmax of normal logits of standard deviation 4.
"""

WARMING = """All of these hold once the kernels are loaded. A new process loads them beside its first answers:
asked for one vector after the other, it gave some 3,500 answers of 174 to 252 µs by plain numpy, then took 10 to 15 µs
a call. `veil.warm()` loads them first; the gateway does that before it says Ready. Without the extra `fast` every call
took 169 µs. Measured by `python -m benchmarks first_answer`, 4 classes, 2 cores that were busy with other work,
2026-11-18.
"""

LIMIT = """What stands in the way where the published mechanism misses: its network, its table of choices and Equation 4
stay below the limit's own parts, and reading, checking, transposing and writing the rows, which the limit leaves out,
come on top. For 1,000 classes numpy's argsort alone is 60 % of the limit, so little is left to win back; in float32 the
repair of the order, one rank after the other, adds to it. keep="all" is near its goal, on either side from run to run.

## The limit

What the unavoidable parts of a batch cost with the best primitives at hand, on one thread, in blocks of the veil's own
size ({block:,} scores): the order of the rows (`np.argsort`; `np.argmax` where one class is kept), the needed
exponentials (`np.exp`, float64), the random bits (AES-256-CTR by `cryptography`). Nanoseconds a row.

- published: argsort, 6 exponentials a score (five candidates and Equation 4), 1 draw a score
- isotonic keep="all": argsort, 1 exponential a score, 1 draw a score
- isotonic keep=1: argmax, 1 exponential a row, 1 draw a row

A class's weights on the isotonic grid are two geometric runs, which one exponential and its inverse start. The limit
leaves out reading, checking and writing the scores and, for keep="all", the chain's sums over its 32 levels, so the
isotonic ratios are no measure of waste. Nor is it a strict bound: the published kernel sorts small rows by a network of
its own and looks most selections up in a table, where it needs no exponentials.
"""

TABLE = """## Every size

Time a row of the whole call `veil(scores)`. *Limit* is that of one thread, also beside two threads. *Numpy*: how many
times as long as one thread our own plain-numpy path takes, measured on fewer rows.
"""

RIVALS = """## What people would use instead

The same batch for all: {rows:,} vectors of 10 classes, float64, one thread. Those that take one vector or one selection
at a time get fewer rows. The last two columns: how many times as long as ours they take.
"""

MEMORY = """## Memory

Peak resident memory beyond input and output, k = 10, float64, each figure from a process of its own. *Constant*: the
largest batch takes no more than {slack} MiB above the smallest.
"""

PARQUET = """## Files

Veiling a parquet file, against pyarrow reading and writing the same file with the same batches and compression and
doing nothing else: first as whole processes, `scoreveil protect` on the command line, starts included; then as calls
in a process that has everything loaded. Veiled scores take few values, and parquet writes those faster than raw ones,
so the last columns stand against pyarrow reading the input and writing the veiled output, ready made. Ours writes
while it reads and veils, in a second thread; it also checks every row and syncs its output to disk.
"""


def page(results: Results) -> str:
    """The whole page."""
    parts = [
        _head(results["about"]),
        "## Goals",
        _goals(results["goals"]),
        WARMING,
        LIMIT.format(block=results["about"]["block"]),
        _limits(results["limits"]),
        TABLE,
        _table(results["table"]),
        "## One vector\n\nThe whole Python call for one vector of 10 classes.",
        _one_vector(results["one_vector"]),
        "## A new process\n",
        _new_process(results["new_process"]),
        RIVALS.format(rows=results["rivals"][0]["rows"]),
        _rivals(results["rivals"]),
        MEMORY.format(slack=results["about"]["memory_slack"] >> 20),
        _memory(results["memory"]),
        PARQUET,
        _parquet(results["parquet"]),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _head(about: Results) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    load = " and ".join(f"{load:.1f}" for load in about["load"])
    quick = " (short form: these figures mean little)" if about["quick"] else ""
    return HEAD.format(**{**about, "packages": packages, "load": load, "quick": quick})


def _goals(goals: list[Results]) -> str:
    def show(goal: Results, value: float) -> str:
        return f"{value:.2f} × limit" if goal["figure"] == "ratio_to_limit" else time(value)

    return markdown(
        ("what (one thread)", "goal", "measured", ""),
        (
            (g["what"], f"≤ {show(g, g['goal'])}", show(g, g["measured"]), "met" if g["met"] else "**missed**")
            for g in goals
        ),
    )


def _limits(limits: list[Results]) -> str:
    names = list(limits[0]["parts"])
    return markdown(
        ("k", "dtype", *names),
        (
            (f"{row['k']:,}", row["dtype"], *(number(row["parts"][name]["ns_per_row"]) for name in names))
            for row in limits
        ),
    )


def _table(table: list[Results]) -> str:
    two = {(r["mechanism"], r["k"], r["dtype"]): r for r in table if r["threads"] == 2}
    rows: list[tuple[object, ...]] = []
    for one in (r for r in table if r["threads"] == 1):
        both = (one, two[one["mechanism"], one["k"], one["dtype"]])
        cells = [(time(r["ns_per_row"]), f"{r['ratio_to_limit']:.2f}", spread(r)) for r in both]
        limit, plain = time(one["limit_ns_per_row"]), f"{number(one['ratio_numpy_to_ours'])} ×"
        shape = (f"{one['k']:,}", f"{one['rows']:,}", one["dtype"])
        rows.append((one["mechanism"], *shape, limit, *cells[0], *cells[1], plain))
    threads = ("one thread", "× limit", "spread", "two threads", "× limit", "spread")
    return markdown(("mechanism", "k", "n", "dtype", "limit", *threads, "numpy"), rows)


def _one_vector(rows: list[Results]) -> str:
    return markdown(
        ("mechanism", "dtype", "a call", "spread"),
        ((row["mechanism"], row["dtype"], time(row["ns_per_row"]), spread(row)) for row in rows),
    )


def _new_process(new: Results) -> str:
    said = (
        "Seconds from a program's first line, `import scoreveil` included, to its first answer; and until the kernels "
        "have replaced numpy in the background.\n\n"
    )
    ready = new["kernels_ready_seconds"]
    return said + markdown(
        ("numba's cache", "first answer", "spread", "kernels ready"),
        (
            (
                cache,
                time(first["ns_per_row"]),
                spread(first),
                f"{ready[cache]:.1f} s" if ready.get(cache, -1) >= 0 else "not measured",
            )
            for cache, first in new["first_answer"].items()
        ),
    )


def _rivals(rivals: list[Results]) -> str:
    rows: list[tuple[object, ...]] = []
    for rival in rivals:
        package = f"{rival.get('package', 'scoreveil')} {rival.get('version', '')}".strip()
        if "reason" in rival:
            rows.append((rival["name"], rival["covers"], package, "", f"not measured: {rival['reason']}", "", "", ""))
            continue
        ratios = [rival.get(f"ratio_to_{ours}") for ours in ("isotonic keep=1", "published")]
        shown = [f"{number(ratio)} ×" if ratio else "" for ratio in ratios]
        rows.append(
            (
                rival["name"],
                rival["covers"],
                package,
                f"{rival['rows']:,}",
                time(rival["ns_per_row"]),
                spread(rival),
                *shown,
            )
        )
    head = ("what", "does", "package", "rows", "a row", "spread", "to isotonic keep=1", "to published")
    return markdown(head, rows)


def _memory(memory: list[Results]) -> str:
    sizes = [f"n = {peak['n']:,}" for peak in memory[0]["peaks"]]
    return markdown(
        ("mechanism", "threads", *sizes, "constant"),
        (
            (
                row["mechanism"],
                row["threads"],
                *(f"{max(peak['beyond'], 0) / 2**20:.1f} MiB" for peak in row["peaks"]),
                "met" if row["constant"] else "**missed**",
            )
            for row in memory
        ),
    )


def _parquet(files: list[Results]) -> str:
    rows: list[tuple[object, ...]] = []
    for file in files:
        size = f"{file['rows']:,} × {file.get('columns', 10)} {file['dtype']}"
        if "reason" in file:
            rows.append((size, f"not measured: {file['reason']}", *[""] * 8))
            continue
        layout = f"{file['batch']:,} rows, {file['compression']}"
        pairs = (
            ("command", "pyarrow_process", "ratio_of_processes"),
            ("protect", "pyarrow", "ratio_of_calls"),
            ("pyarrow_same_output", "ratio_same_output"),
        )
        cells = [
            cell
            for *names, ratio in pairs
            for cell in (*(time(min(file[name]["seconds"]) * 1e9) for name in names), f"{file[ratio]:.2f}")
        ]
        rows.append((size, layout, *cells))
    commands, calls = ("`scoreveil protect`", "pyarrow", "ratio"), ("`files.protect`", "pyarrow", "ratio")
    return markdown(("file", "row groups", *commands, *calls, "pyarrow, same output", "ratio"), rows)


# Small things


def markdown(head: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def time(nanoseconds: float) -> str:
    """Three digits in the unit that fits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.3g} ns"


def number(value: float) -> str:
    """Three digits, never in powers of ten."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def spread(row: Results) -> str:
    return f"{(row['spread'] - 1) * 100:.0f} %"
