"""Peak memory beyond input and output, in a process of its own for every figure.

The kernel of the operating system counts: the high-water mark of the resident set is reset once the input is there
and the veil is warm (Linux, /proc/self/clear_refs), and read after the call. So numpy's and numba's memory is seen
alike. Where it cannot be reset, the mark of the whole process stands (ru_maxrss), which can hide some of the rise.
"""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import ENVIRONMENT

PAGE = resource.getpagesize()
CASES = (("published", 1), ("isotonic keep=1", 1), ("isotonic keep=1", 2), ("isotonic keep=all", 1))
CLASSES = 10
SLACK = 8 << 20  # bytes that the allocator may keep or not from run to run


def measure(sizes: tuple[int, ...], cases: int) -> list[dict[str, Any]]:
    """For each of the first `cases` and each n, the bytes beyond input and output; and whether they grow with n."""
    results = []
    for mechanism, threads in CASES[:cases]:
        peaks = [_in_new_process(mechanism, threads, n) for n in sizes]
        grown = peaks[-1]["beyond"] - peaks[0]["beyond"]
        results.append(
            {
                "mechanism": mechanism,
                "threads": threads,
                "k": CLASSES,
                "peaks": peaks,
                "grown": grown,
                "constant": grown <= SLACK,
            }
        )
    return results


def _in_new_process(mechanism: str, threads: int, n: int) -> dict[str, Any]:
    command = [sys.executable, __file__, mechanism, str(threads), str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def one(mechanism: str, threads: int, n: int) -> dict[str, Any]:
    """In this process: veil n rows and see how far the resident set rose beyond the output."""
    import numpy as np

    from benchmarks.speed.table import veil
    from scoreveil.mechanisms import loading

    loading.wait()
    draw = veil(mechanism, CLASSES, threads)
    rows = np.random.default_rng(1).random((n, CLASSES))
    for start in range(0, n, 1 << 16):  # in parts, so as to leave no freed memory that the veil could reuse
        part = rows[start : start + (1 << 16)]
        part /= part.sum(axis=1, keepdims=True)
    draw(rows[:64])
    reset = _reset_high_water_mark()
    before = _resident()
    out = draw(rows)
    beyond = _high_water_mark(reset) - before - out.nbytes
    return {"n": n, "input": rows.nbytes, "output": out.nbytes, "beyond": beyond, "reset": reset}


def _reset_high_water_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    except OSError:
        return _ru_maxrss()


def _high_water_mark(reset: bool) -> int:
    if not reset:
        return _ru_maxrss()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _ru_maxrss() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
