"""The benchmark runs, what it writes has the shape that the page needs, and its rivals do what the page says."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreveil import Veil

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ["about", "limits", "table", "one_vector", "new_process", "rivals", "memory", "parquet", "goals"]


def bench(*arguments: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def figures(node: Any) -> Iterator[tuple[str, float]]:
    """Every ratio, spread and time in the results, wherever it stands."""
    if isinstance(node, list):
        for each in node:
            yield from figures(each)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key.startswith("ratio") or key in ("spread", "ns_per_row", "limit_ns_per_row"):
                yield key, value
            else:
                yield from figures(value)


@pytest.mark.slow
def test_quick_run_gives_positive_ratios_and_a_page(tmp_path: Path) -> None:
    bench("--quick", "--no-install", "--output", str(tmp_path))
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == SECTIONS
    assert {"command", "date", "machine", "python", "packages"} <= set(results["about"])
    found = list(figures(results))
    assert {key for key, _ in found} >= {"ratio_to_limit", "ratio_numpy_to_ours", "ratio_to_published", "spread"}
    for key, value in found:
        assert math.isfinite(value), key
        assert value > 0, key
    # mechanisms × k × dtypes × threads
    assert len(results["table"]) == 4 * 2 * 2 * 2
    assert all(isinstance(goal["met"], bool) for goal in results["goals"])
    # what did not run says why
    assert all(("ns_per_row" in rival) != ("reason" in rival) for rival in results["rivals"])
    assert all(("ratio_of_calls" in file) != ("reason" in file) for file in results["parquet"])

    page = (tmp_path / "benchmarks.md").read_text()
    assert results["about"]["date"] in page
    (tmp_path / "benchmarks.md").unlink()
    bench("--render", "--output", str(tmp_path))
    assert (tmp_path / "benchmarks.md").read_text() == page


def test_the_page_in_the_docs_is_made_from_the_results(tmp_path: Path) -> None:
    shutil.copy(ROOT / "benchmarks" / "results.json", tmp_path)
    bench("--render", "--output", str(tmp_path))
    assert (tmp_path / "benchmarks.md").read_text() == (ROOT / "docs" / "benchmarks.md").read_text()


# the largest standard deviation is .033: the tolerance is more than five standard errors
@pytest.mark.parametrize(("rival", "rows", "within"), [("vectorised", 200_000, 0.0006), ("loop", 4000, 0.004)])
def test_numpy_rivals_are_the_published_mechanism(
    rival: str, rows: int, within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import rival_worker

    batch = np.tile([0.05, 0.6, 0.25, 0.1], (rows, 1))
    theirs = np.array(getattr(rival_worker, rival)(batch)())
    ours = Veil(rival_worker.EPSILON, "published")(batch)
    for moment in (np.mean, np.std):
        np.testing.assert_allclose(moment(theirs, axis=0), moment(ours, axis=0), atol=within, rtol=0)


def test_interleave_lets_slow_contestants_leave_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import timing

    order: list[str] = []

    def contestant(name: str, seconds: float) -> Any:
        def run() -> float:
            order.append(name)
            now[0] += seconds
            return seconds

        return run

    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    effort = timing.Effort(seconds=1.0, least=2, most=5)
    seconds = timing.interleave({"slow": contestant("slow", 3.0), "fast": contestant("fast", 0.1)}, effort)
    assert {name: len(runs) for name, runs in seconds.items()} == {"slow": 2, "fast": 5}
    # a round to warm up, then rounds in turns, the order reversed each time
    assert order == ["slow", "fast", "slow", "fast", "fast", "slow", "fast", "fast", "fast"]
