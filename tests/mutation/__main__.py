"""Mutation testing: change one thing in a module that carries promises, and see whether a test notices.

    python -m tests.mutation --sample 200       # of all modules below
    python -m tests.mutation accounting.py      # every mutant of one

It runs the fast suite once to learn which test runs which line, then, for each mutant, the tests that run its line, the
quickest first, until one fails. What survives is printed; those that are understood stand in `survivors.toml`, with the
reason. The exit code is 1 where more than 5 % survive, or one that is not in that file.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.operators import Mutant, mutants

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "scoreveil"
MODULES = [
    "mechanisms/*.py",
    "fitting/*.py",
    "accounting.py",
    "ledger/releases.py",
    "ledger/index.py",
    "ledger/kernel.py",
]
MODULES += ["gateway/auth.py", "gateway/limits.py"]
SURVIVORS = Path(__file__).with_name("survivors.toml")
MAX_SHARE = 0.05  # of the mutants may survive
QUICK = 20.0  # seconds of tests that a mutant meets first; what survives these meets all that run its line
COPIED = ["src", "tests", "benchmarks", "experiments", "examples", "docs", "conformance", "deploy", "results", ".ci"]
COPIED += ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "constraints.txt"]


@dataclass
class Coverage:
    """Which tests run which line of a module, and how long each test takes."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    def tests(self, module: str, line: int) -> list[str]:
        """The tests that run a line, the quickest first; of a line that runs on import alone, those of its module."""
        covering = self.lines.get(module, {}).get(line, [])
        if not covering:
            covering = list({test for tests in self.lines.get(module, {}).values() for test in tests})
        return sorted(covering, key=lambda test: self.seconds.get(test, 0.0))


def measured(cache: Path) -> Coverage:
    """Run the fast suite, each test in a context of its own."""
    data, times = cache / "coverage", cache / "times.json"
    if not times.exists():
        environment = os.environ | {"MUTATION_DATA": str(data), "MUTATION_TIMES": str(times), "NUMBA_DISABLE_JIT": "0"}
        command = [sys.executable, "-m", "pytest", "-n", "0", "--fast", "-p", "tests.mutation.contexts"]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
    from coverage import CoverageData

    coverage = Coverage(seconds=json.loads(times.read_text()))
    covered = CoverageData(str(data))
    covered.read()
    by_file = defaultdict(list)
    for test in coverage.seconds:
        by_file[test.split("::")[0]].append(test)
    for name in covered.measured_files():
        path = Path(name)
        if not path.is_relative_to(PACKAGE):
            continue
        lines: dict[int, list[str]] = {}
        for line, contexts in covered.contexts_by_lineno(name).items():
            tests: set[str] = set()
            for context in contexts:
                test, _, phase = context.partition("|")
                # what a fixture did, all tests of its file may look at
                tests.update(by_file[test.split("::")[0]] if phase == "setup" else [test] * bool(test))
            lines[line] = [test for test in tests if test in coverage.seconds]
        coverage.lines[str(path.relative_to(PACKAGE))] = lines
    return coverage


class Copy:
    """A copy of the project in which one mutant at a time lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, folder / name)

    def survives(self, module: str, mutant: Mutant, tests: list[str], seconds: float) -> bool:
        """Whether all of these tests pass on the mutant; one that hangs counts as noticed."""
        path = self.folder / "src" / "scoreveil" / module
        original = path.read_bytes()
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()
        path.write_bytes(mutant.applied(original))
        environment = os.environ | {
            "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.folder}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.folder / ".hypothesis"),
        }
        if "kernel" in module:
            environment["NUMBA_DISABLE_JIT"] = "1"
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "--fast", "-p", "no:cacheprovider", *tests]
        process = subprocess.Popen(
            command, cwd=self.folder, env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return process.wait(30 + 10 * seconds) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            path.write_bytes(original)


def survives(copy: Copy, coverage: Coverage, module: str, mutant: Mutant) -> bool:
    """Whether no test notices, of all that run the mutant's line."""
    tests = coverage.tests(module, mutant.line)
    quick: list[str] = []
    total = 0.0
    for test in tests:
        total += coverage.seconds[test]
        if quick and total > QUICK:
            break
        quick.append(test)
    for some in (quick, tests[len(quick) :]):
        if some and not copy.survives(module, mutant, some, sum(coverage.seconds[test] for test in some)):
            return False
    return True


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.mutation", description="Change one thing; see who notices.")
    parser.add_argument("modules", nargs="*", help="paths below src/scoreveil; by default all that carry promises")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn at random; by default all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cache", type=Path, help="a folder that keeps what the tests run, for the next call")
    return parser.parse_args()


def drawn(patterns: list[str], sample: int | None, seed: int) -> tuple[list[tuple[str, Mutant]], int]:
    """The mutants to try, each with its module, and of how many they are drawn."""
    names = [str(path.relative_to(PACKAGE)) for pattern in patterns for path in sorted(PACKAGE.glob(pattern))]
    every = [(name, mutant) for name in names for mutant in mutants((PACKAGE / name).read_bytes())]
    if sample and sample < len(every):
        return random.Random(seed).sample(every, sample), len(every)
    return every, len(every)


def reasons() -> dict[tuple[str, str, str, str], str]:
    """Why a mutant survives, for those that are understood."""
    entries = tomllib.loads(SURVIVORS.read_text("utf-8")).get("survivor", [])
    return {(entry["module"], entry["function"], entry["before"], entry["after"]): entry["why"] for entry in entries}


def main() -> int:
    options, explained, began = read_options(), reasons(), time.monotonic()
    listed, total = drawn(options.modules or MODULES, options.sample, options.seed)
    alive = unexplained = 0
    with tempfile.TemporaryDirectory(prefix="mutants") as folder, ThreadPoolExecutor(options.workers) as pool:
        cache = options.cache or Path(folder, "cache")
        cache.mkdir(parents=True, exist_ok=True)
        coverage = measured(cache)
        copies: SimpleQueue[Copy] = SimpleQueue()
        for worker in range(options.workers):
            copies.put(Copy(Path(folder, f"copy{worker}")))

        def tried(entry: tuple[str, Mutant]) -> bool:
            copy = copies.get()
            try:
                return survives(copy, coverage, *entry)
            finally:
                copies.put(copy)

        for (module, mutant), is_alive in zip(listed, pool.map(tried, listed), strict=True):
            if is_alive:
                why = explained.get((module, mutant.function, mutant.before, mutant.after))
                alive, unexplained = alive + 1, unexplained + (why is None)
                say(f"{module}:{mutant.line} {mutant.function}\n  - {mutant.before}\n  + {mutant.after}")
                say(f"  {why or 'NOT EXPLAINED'}")
    share, minutes = alive / max(len(listed), 1), (time.monotonic() - began) / 60
    say(f"{len(listed)} of {total} mutants tried in {minutes:.0f} minutes: {alive} survive ({share:.1%}), ")
    say(f"{unexplained} of them not explained.")
    return int(share > MAX_SHARE or unexplained > 0)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
