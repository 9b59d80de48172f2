"""The benchmark runs, what it writes has the shape that the page needs, and its rivals do what the page says."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.speed import rival_worker, table, timing
from scoreveil import Veil

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = ["about", "limits", "table", "one_vector", "new_process", "rivals", "memory", "parquet", "goals"]


def bench(*arguments: str) -> None:
    command = [sys.executable, "-m", "benchmarks", "veil", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def timings(node: Any) -> Iterator[dict[str, Any]]:
    """Every measured figure in the results, wherever it stands: those with the seconds they were made from."""
    if isinstance(node, list):
        for each in node:
            yield from timings(each)
    elif isinstance(node, dict):
        if "seconds" in node:
            yield node
        for value in node.values():
            yield from timings(value)


@pytest.mark.slow
def test_every_figure_of_a_quick_run_follows_from_what_was_timed(tmp_path: Path) -> None:
    bench("--quick", "--no-install", "--output", str(tmp_path))
    results = json.loads((tmp_path / "veil.json").read_text())
    assert list(results) == SECTIONS
    assert {"command", "date", "machine", "python", "packages"} <= set(results["about"])

    found = list(timings(results))
    assert len(found) > 60
    for figure in found:
        assert figure["runs"] == len(figure["seconds"]) > 0
        assert figure["ns_per_row"] == pytest.approx(min(figure["seconds"]) / figure["rows"] * 1e9, rel=2e-3)
        assert figure["spread"] == pytest.approx(np.median(figure["seconds"]) / min(figure["seconds"]), rel=2e-3)

    # mechanisms × k × dtypes × threads, each on 20,000 scores, beside what it cannot do without
    assert len(results["table"]) == 4 * 2 * 2 * 2
    parts = {(each["k"], each["dtype"]): each["parts"] for each in results["limits"]}
    for row in results["table"]:
        assert row["rows"] * row["k"] == 20_000
        least = sum(parts[row["k"], row["dtype"]][part]["ns_per_row"] for part in table.LIMITS[row["mechanism"]])
        assert row["limit_ns_per_row"] == pytest.approx(least, rel=1e-3)
        assert row["ratio_to_limit"] == pytest.approx(row["ns_per_row"] / least, rel=1e-3)
        assert row["ratio_numpy_to_ours"] == pytest.approx(row["numpy"]["ns_per_row"] / row["ns_per_row"], rel=1e-3)
    alone = [row["ratio_numpy_to_ours"] for row in results["table"] if row["threads"] == 1 and row["k"] == 10]
    assert min(alone) > 1.5, (
        "kernels that are no faster than numpy are not kernels: it is 3 to 25 times on a quiet machine"
    )

    for case in results["memory"]:
        assert all(peak["input"] == peak["n"] * case["k"] * 8 for peak in case["peaks"])
    assert [goal["met"] for goal in results["goals"]] == [g["measured"] <= g["goal"] for g in results["goals"]]
    # what did not run says why
    assert all(("ns_per_row" in rival) != ("reason" in rival) for rival in results["rivals"])
    assert all(("ratio_of_calls" in file) != ("reason" in file) for file in results["parquet"])

    page = (tmp_path / "benchmarks.md").read_text()
    assert results["about"]["date"] in page
    (tmp_path / "benchmarks.md").unlink()
    bench("--render", "--output", str(tmp_path))
    assert (tmp_path / "benchmarks.md").read_text() == page


def test_a_figure_is_the_fastest_run_and_its_spread() -> None:
    figure = timing.figures([0.4, 0.1, 0.2], rows=10)
    assert figure == {"rows": 10, "ns_per_row": 1e7, "spread": 2.0, "runs": 3, "seconds": [0.4, 0.1, 0.2]}


def test_the_page_in_the_docs_is_made_from_the_results(tmp_path: Path) -> None:
    shutil.copy(ROOT / "benchmarks" / "speed" / "veil.json", tmp_path)
    bench("--render", "--output", str(tmp_path))
    assert (tmp_path / "benchmarks.md").read_text() == (ROOT / "docs" / "benchmarks.md").read_text()


# the largest standard deviation is .033: the tolerance is more than five standard errors
@pytest.mark.parametrize(("rival", "rows", "within"), [("vectorised", 200_000, 0.0006), ("loop", 4000, 0.004)])
def test_numpy_rivals_are_the_published_mechanism(rival: str, rows: int, within: float) -> None:
    batch = np.tile([0.05, 0.6, 0.25, 0.1], (rows, 1))
    theirs = np.array(getattr(rival_worker, rival)(batch)())
    ours = Veil(rival_worker.EPSILON, "published")(batch)
    for moment in (np.mean, np.std):
        np.testing.assert_allclose(moment(theirs, axis=0), moment(ours, axis=0), atol=within, rtol=0)


def test_interleave_lets_slow_contestants_leave_early(monkeypatch: pytest.MonkeyPatch) -> None:
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
