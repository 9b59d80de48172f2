"""How soon a new process gives its first answer: from the first line of its program, `import scoreveil` included.

The interpreter's own start is left out; the files are in the operating system's cache. With numba's cache cold the
kernels compile in the background while numpy answers; with a warm one they load. Run by itself, it prints how long the
calls take meanwhile, one vector each:

    python -m benchmarks first_answer
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed.timing import Effort, figures, interleave

ANSWER = """
import time
start = time.perf_counter()
import scoreveil
scoreveil.Veil(epsilon=2.0)([0.7, 0.2, 0.05, 0.05])
first = time.perf_counter() - start
"""
# without waiting for the compiler, which would go on in the background
STOP = "print(first, flush=True)\nimport os\nos._exit(0)\n"
WAIT = """
from scoreveil.mechanisms import loading
ready = loading.wait()
print(time.perf_counter() - start if ready else -1)
"""
# calls one after the other until long after the kernels are there; numba can be taken away
CALLS = """
import sys, time
if {without_numba}:
    sys.modules["numba"] = None
import numpy as np
import scoreveil
from scoreveil.mechanisms import loading
if {without_numba}:
    loading.start = lambda: None
scores, veil, microseconds, before = np.array([[0.7, 0.2, 0.05, 0.05]]), scoreveil.Veil(epsilon=2.0), [], 0
while len(microseconds) < before + 5000:
    start = time.perf_counter_ns()
    veil(scores)
    microseconds.append((time.perf_counter_ns() - start) / 1000)
    before += not ({without_numba} or loading._ready.is_set())
print(before, np.median(microseconds[:before]) if before else 0.0, np.median(microseconds[before:]))
"""


def measure(effort: Effort, compile_too: bool) -> dict[str, Any]:
    """First answers with a cold and with a warm cache, and how long it takes until the kernels are there."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        count = iter(range(1_000_000))
        seconds = interleave(
            {
                "warm": lambda: run(ANSWER + STOP),
                "cold": lambda: run(ANSWER + STOP, Path(folder, f"cold{next(count)}")),
            },
            effort,
        )
        ready = {"warm": run(ANSWER + WAIT)}
        if compile_too:
            ready["cold"] = run(ANSWER + WAIT, Path(folder, "compile"))
    return {
        "first_answer": {cache: figures(times) for cache, times in seconds.items()},
        "kernels_ready_seconds": {cache: round(time, 3) for cache, time in ready.items()},
    }


def run(program: str, cache: Path | None = None) -> float:
    """The seconds that a program prints, run in a new process with its own numba cache, or the usual one."""
    environment = dict(os.environ) if cache is None else {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def calls(without_numba: bool) -> tuple[int, float, float]:
    """Calls before the kernels were there, and the microseconds of one before and after, the median."""
    program = CALLS.format(without_numba=without_numba)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, slow, fast = done.stdout.split()
    return int(before), float(slow), float(fast)


if __name__ == "__main__":
    for _ in range(3):
        before, slow, fast = calls(without_numba=False)
        print(f"{before:,} calls of {slow:.0f} µs while kernels load, then {fast:.1f} µs")
    print(f"without numba {calls(without_numba=True)[2]:.0f} µs")
