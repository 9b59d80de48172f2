"""The site builds with every warning an error, and has a page for all that the docs name."""

import json
import os
import re
import subprocess
import sys

import pytest

import extras
from doc_pages import ROOT


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    for page in ("index", "scale", "changelog", "guides/researcher", "reference/veil", "integrations/sklearn"):
        assert (tmp_path / f"{page}.html").is_file()
    reference = (tmp_path / "reference" / "integrations.html").read_text(encoding="utf-8")
    for name in ("VeiledClassifier", "VeiledModule", "VeiledSession", "VeiledPipeline", "VeilPostprocessor"):
        assert name in reference
    assert "<code>random_state</code>: of the held-out part" in reference, "columns of docstrings are lists"
    start = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="https?://(?!squidfunk)[^"]*\.(?:js|css|woff2?)', start), "nothing from others"


def test_every_page_is_in_the_navigation():
    shown = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert there <= shown


def test_the_table_of_extras_is_made_from_its_results():
    results = json.loads(extras.RESULTS.read_text(encoding="utf-8"))
    assert extras.PAGE.read_text(encoding="utf-8") == extras.page(results)
    assert set(results) <= set(extras.extras())
