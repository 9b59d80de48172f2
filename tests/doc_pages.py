"""The pages of the docs, the code on them, and the site made of them. `python tests/doc_pages.py` builds the site."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "experiments/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SITE = ROOT / "build" / "site"
BUILT = ROOT / "build" / "site.stamp"  # as new as the sources of the last build without a warning


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def run_page(name: str) -> dict[str, object]:
    """Run the Python of a page of docs/integrations, block after block; the names it leaves behind."""
    page = ROOT / "docs" / "integrations" / f"{name}.md"
    names: dict[str, object] = {"__name__": "example"}
    found = blocks(page, "python")
    assert found, f"Expected Python on {page}."
    for block in found:
        exec(compile(block, page.name, "exec"), names)
    return names


def site_is_current() -> bool:
    """Whether nothing that the site is made of has changed since it was last built without a warning."""
    if not (BUILT.is_file() and SITE.is_dir()):
        return False
    made_of = [ROOT / "zensical.toml", ROOT / "CHANGELOG.md", ROOT / "constraints.txt"]
    found = [path for folder in ("docs", "src") for path in (ROOT / folder).rglob("*")]
    made_of += [path for path in found if "__pycache__" not in path.parts]  # numba keeps its kernels there too
    return all(path.stat().st_mtime <= BUILT.stat().st_mtime for path in made_of if path.is_file())


def build_site() -> str:
    """Build the site with every warning an error; what went wrong, or nothing."""
    BUILT.unlink(missing_ok=True)
    shutil.rmtree(SITE, ignore_errors=True)  # pages that are gone must not stay
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    if built.returncode == 0:
        BUILT.touch()
        return ""
    return re.sub(r"\x1b\[[\d;]*m", "", built.stdout + built.stderr)


if __name__ == "__main__":
    sys.exit(build_site() or 0)
