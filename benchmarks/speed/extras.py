"""What each extra costs: size and time of `pip install`, each in an environment of its own.

    python -m benchmarks extras sklearn onnx …     measures these (none: all), and writes docs/integrations/extras.md

Figures of extras that are not measured stay as they were; they are kept in benchmarks/speed/extras.json.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "integrations" / "extras.md"
LEFT_OUT = {"all", "dev"}


def extras() -> list[str]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return ["", *(name for name in declared if name not in LEFT_OUT)]


def measure(extra: str) -> dict[str, float | str | int]:
    """Install into an empty environment; pip's cache is used as it is, so the time is mostly unpacking."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        before = _bytes(Path(folder))
        wish = f"{ROOT}[{extra}]" if extra else str(ROOT)
        pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        started = time.perf_counter()
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), wish], check=True, capture_output=True)
        seconds = time.perf_counter() - started
        listed = subprocess.run([f"{folder}/bin/python", "-m", "pip", "list"], capture_output=True, check=True)
        packages = len(listed.stdout.splitlines()) - 2
        size = (_bytes(Path(folder)) - before) / 1e6
        shutil.rmtree(Path(folder) / "lib")
    return {"megabytes": size, "seconds": seconds, "packages": packages, "day": f"{datetime.now(UTC):%Y-%m-%d}"}


def _bytes(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def page(results: dict[str, dict[str, float | str | int]]) -> str:
    lines = [
        "# What each extra costs",
        "",
        "<!-- Made by benchmarks/speed/extras.py from benchmarks/speed/extras.json: do not edit. -->",
        "",
        "Made by `python -m benchmarks extras`: each extra with all it needs, in the versions of `constraints.txt`,",
        "installed into an empty environment. Seconds depend on the machine, its load and the cache of pip.",
        "",
        "| extra | MB | s | packages | measured |",
        "|---|---:|---:|---:|---|",
    ]
    for extra in extras():
        found, name = results.get(extra), f"`{extra}`" if extra else "none"
        if found is None:
            lines.append(f"| {name} | | | | not yet |")
        else:
            size = f"{found['megabytes']:,.0f} | {found['seconds']:.0f}"
            lines.append(f"| {name} | {size} | {found['packages']} | {found['day']} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for extra in sys.argv[1:] or extras():
        results["" if extra == "none" else extra] = measure("" if extra == "none" else extra)
        RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
