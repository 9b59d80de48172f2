"""The pages of the docs, and the code on them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


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
