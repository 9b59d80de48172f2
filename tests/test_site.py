"""The site builds with every warning an error, shows formulas, and works from disk with nothing fetched from others."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from filelock import FileLock
from playwright.sync_api import expect

from benchmarks.speed import extras
from doc_pages import ROOT, SITE, build_site, site_is_current

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def site() -> Path:
    """The built site: that of `make docs` where nothing has changed since, else built here, once for all workers."""
    (ROOT / "build").mkdir(exist_ok=True)
    with FileLock(ROOT / "build" / "site.lock"):
        if not site_is_current():
            wrong = build_site()
            assert not wrong, wrong
    return SITE


def test_every_page_is_in_the_navigation_and_in_the_site(site):
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    shown = set(re.findall(r'"([\w/-]+)\.md"', str(tomllib.loads(text)["project"]["nav"]).replace("'", '"')))
    there = {page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert there == shown
    assert all((site / f"{page}.html").is_file() for page in there)


def test_the_reference_names_what_users_import(site):
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    for name in ("Veil", "Reference", "Guarantee", "query_bound", "calibrate", "protect"):
        assert f'id="scoreveil.{name}"' in reference or re.search(rf'id="scoreveil\.[\w.]+\.{name}"', reference), name
    for name in ("VeiledClassifier", "VeiledModule", "VeiledSession", "VeiledPipeline", "VeilPostprocessor"):
        assert re.search(rf'id="scoreveil\.integrations\.\w+\.{name}"', reference), name


def test_links_and_files_of_the_site_lead_somewhere(site):
    """As the browser resolves them, so links in what was included from elsewhere count too."""
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue  # its links begin at the root of a server
        text = re.sub(r"<(script|code)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r'(?:href|src)="([^"#?]+)', text):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(site)} links to {target}"


def test_formulas_are_typeset_on_every_page(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        prose = re.sub(r"<(script|code|pre|annotation)\b.*?</\1>", "", text, flags=re.DOTALL)
        left = re.findall(r"\$[^$<>]*\\[a-z]+[^$<>]*\$|\\(?:frac|sum|exp|le)\b", prose)
        assert not left, f"{page.relative_to(site)} shows {left[0]}"
    assert (site / "guarantees.html").read_text(encoding="utf-8").count('display="block"') >= 3


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_with_formulas_fit_the_screen_and_fetch_nothing(site, browser, width):
    page = browser.new_page(viewport={"width": width, "height": 900})
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    names = ["guarantees", "paper", *(f"derivations/{path.stem}" for path in (site / "derivations").glob("*.html"))]
    for name in names:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        cut = page.eval_on_selector_all(
            "math", "all => all.filter(one => one.scrollWidth > one.clientWidth + 1 && one.clientWidth > 0).length"
        )
        assert not cut, f"{cut} formulas of {name} are wider than the screen"
    assert not [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
    page.close()


def test_search_finds_something_in_a_site_opened_from_disk(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.get_by_role("button", name="Search").first.click()
    page.keyboard.type("zcdp", delay=50)
    expect(page.get_by_role("option", name="Composition").first).to_be_visible()
    page.close()


def test_the_table_of_extras_is_made_from_its_results():
    results = json.loads(extras.RESULTS.read_text(encoding="utf-8"))
    assert extras.PAGE.read_text(encoding="utf-8") == extras.page(results)
    assert set(results) <= set(extras.extras())
