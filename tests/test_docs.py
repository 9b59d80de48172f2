"""What the README and the docs show works, and what they name exists."""

import importlib.util
import re
import shlex
import statistics
import sys

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import scoreveil
from doc_pages import PAGES, ROOT, blocks
from scoreveil import cli, demo
from scoreveil.audit.report.charts.svg import svg

INTEGRATIONS = ROOT / "docs" / "integrations"


# the examples of an integration run in its own tests, beside the library they need; so does that of language models
ELSEWHERE = [p for p in PAGES if p.parent == INTEGRATIONS or p.name == "language-models.md"]


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ELSEWHERE], ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), {"__name__": "example"})


def test_commands_are_ones_that_exist():
    """Names and options of each are known; what they do is for other tests."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    fenced = "".join(
        part
        for page in PAGES
        for part in re.findall(r"^```\n(.*?)^```$", _without_code(page), re.DOTALL | re.MULTILINE)
    )
    for line in re.findall(r"^(?:make|scoreveil) .*$", fenced.replace("\\\n", " "), re.MULTILINE):
        program, *arguments = shlex.split(line.partition(" > ")[0], comments=True)
        if program == "make":
            assert arguments[0].rstrip(",") in targets, line
            continue
        command = get_command(cli.app)
        while isinstance(command, TyperGroup):
            command = command.commands[arguments.pop(0)]
        command.make_context(line, arguments)


def _without_code(page):
    """A page without its blocks that name a language."""
    return re.sub(r"^```\w+\n.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_the_readme_fits_a_veil_in_a_few_lines_and_is_short():
    (block,) = blocks(ROOT / "README.md", "python")
    assert "veil = fit(" in block
    assert len([line for line in block.splitlines() if line.strip()]) <= 12
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_what_is_not_published_is_installed_from_a_clone():
    """Until it is on PyPI: every line that installs it says where."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        published = re.findall(r"pip install (?:-\S+ )*'?scoreveil", text.replace("`pip install 'scoreveil[…]'`", ""))
        assert not published, page.name
        for line in re.findall(r"^.*pip install '\..*$", text, re.MULTILINE):
            assert "clone" in line, (page.name, line)


def _anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    """To a file, and in a page to one of its headings."""
    dead = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if target.startswith("http"):
                continue
            if not file.exists() or (anchor and file.suffix == ".md" and anchor not in _anchors(file)):
                dead.append(f"{page.name}: {target}")
    assert not dead


def _script(name):
    """A script of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # a dataclass looks for its module
    spec.loader.exec_module(script)
    return script


def test_the_page_of_the_command_line_is_what_the_commands_say():
    script = _script("commands")
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), "make it anew: python docs/commands.py"


def test_tests_named_in_the_docs_exist():
    defined = {
        name
        for file in (ROOT / "tests").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    for page in PAGES:
        for name, cut in re.findall(r"`(test_\w+?)(_?…|)`", page.read_text(encoding="utf-8")):
            found = any(d.startswith(name) for d in defined) if cut else name in defined
            assert found, f"{page.name} names {name}"


def test_the_module_examples_run():
    for module in (scoreveil, scoreveil.veil, scoreveil.accounting):
        example = "\n".join(line[4:] for line in (module.__doc__ or "").splitlines() if line.startswith("    "))
        assert example
        exec(example, {"scores": [0.1, 0.2, 0.7]})


# The picture


def test_the_picture_shows_what_was_measured():
    script = _script("picture")
    ways = script.ways(script.measured())
    assert script.PICTURE.read_text(encoding="utf-8") == svg(script.picture(ways), alone=True)
    raw, fitted, with_epsilon, label = ways
    assert raw.leak.span[0] > fitted.leak.span[1], "in every refit the veil leaks less than raw scores in any"
    assert raw.useful.value > fitted.useful.value > with_epsilon.useful.value > label.useful.value == 0.5


@pytest.mark.slow
def test_a_refit_measures_again_what_the_picture_is_drawn_from():
    script = _script("picture")
    committed, strongest = script.measured()[0], {way.attack for way in script.ways(script.measured())}
    again = script.refit(
        0, [name for name in script.ATTACKS if any(each.startswith(f"{name} on") for each in strongest)]
    )
    for name, row in again.items():
        assert row["useful"] == pytest.approx(committed[name]["useful"], abs=0.02)
        for attack in strongest:
            assert row["attacks"][attack] == pytest.approx(committed[name]["attacks"][attack], abs=0.03)


INSIDE = """() => {
  const svg = document.querySelector("svg"), box = svg.viewBox.baseVal, out = [];
  for (const mark of svg.querySelectorAll("text, polyline, circle")) {
    const {x, y, width, height} = mark.getBBox();
    const inside = x >= 0 && y >= 0 && x + width <= box.width && y + height <= box.height;
    if (!inside) out.push(mark.textContent || mark.tagName);
  }
  return out;
}"""


@pytest.mark.slow
@pytest.mark.parametrize("font", ["DejaVu Sans", "sans-serif", "serif", "monospace"])
def test_nothing_of_the_picture_is_cut(browser, font):
    page = browser.new_page(viewport={"width": 900, "height": 600})
    page.goto((ROOT / "docs" / "veil.svg").as_uri())
    page.evaluate(f"document.documentElement.style.fontFamily = '{font}'")
    assert page.evaluate(INSIDE) == []
    ticks = page.evaluate("[...document.querySelectorAll('text')].map((text) => text.textContent)")
    assert ticks.count("50 %") >= 2, "each axis says where it starts"
    page.close()


# Headline numbers


def _prose(page):
    """A page without its code, its links' targets and what is no measurement."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def _picture_figures():
    script = _script("picture")
    raw, fitted, _, label = script.ways(script.measured())
    return [f"{100 * value:.0f} %" for value in (raw.leak.value, fitted.leak.value, label.leak.value)] + [
        f"{100 * way.useful.value:.0f} %" for way in (raw, fitted)
    ]


def _speed_figures():
    """Of one answer without ε: the table of docs/fit.md."""
    said = (ROOT / "docs" / "fit.md").read_text(encoding="utf-8").partition("## How fast it is")[2]
    return [re.search(r"^\| no ε \|.*\| ([\d.]+ µs) \|$", said, re.MULTILINE)[1]]


HEADLINES = {  # the measured figures of a page, in their order
    "README.md": lambda: [*_picture_figures(), *_speed_figures()],
    "docs/index.md": _picture_figures,
    "docs/guides/ml-engineer.md": list,
    "docs/guides/privacy-engineer.md": list,
    "docs/guides/researcher.md": list,
    "docs/guides/platform-engineer.md": lambda: ["0.3 s"],  # the test that it names
}
MEASURED = re.compile(r"(?<![\w.])(?:\d*\.)?\d+ (?:%|µs|ns|ms|s)(?!\w)|(?<![\w.])0?\.\d+")


@pytest.mark.parametrize("page", HEADLINES)
def test_every_headline_number_is_that_of_its_results(page):
    assert MEASURED.findall(_prose(page)) == HEADLINES[page]()


def test_the_pages_with_headline_numbers_are_all_checked():
    assert {f"docs/guides/{path.name}" for path in (ROOT / "docs" / "guides").iterdir()} < set(HEADLINES)


def test_the_demo_says_what_the_readme_says_of_a_veil_without_data():
    """Worse than the label alone in leak, log-loss and calibration; measured again, the median of three draws."""
    runs = [{outcome.name: outcome for outcome in demo.run().outcomes} for _ in range(3)]
    (said,) = re.findall(r"`Veil\(2\.0\)`.*?\n\n", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    leak, log_loss, off = re.findall(r"`([\d.]+)` against `([\d.]+)`", said)
    for measure, (ours, its) in zip(("leak", "log_loss", "calibration_error"), (leak, log_loss, off), strict=True):
        without_data, label = (
            statistics.median(getattr(run[name], measure) for run in runs)
            for name in ("isotonic veil, ε = 4", "the label alone")
        )
        assert without_data == pytest.approx(float(ours), abs=0.02)
        assert label == pytest.approx(float(its), abs=0.02)
        assert float(ours) > float(its)


def _rows(page):
    """The rows of all tables of a page."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")][1:-1] for line in lines if line.startswith("|")]


def test_the_decision_page_quotes_the_tables_that_it_names():
    said = (ROOT / "docs" / "which-veil.md").read_text(encoding="utf-8")
    networks = {name: figures for name, *figures in _rows("fit.md")}
    for row, leak, aurocs, less in (
        ("CIFAR-10, 5,000 + 5,000", "leak .032", ".807 → .673", "−.049"),
        ("Fashion-MNIST, 5,000 + 5,000", ".016", ".910 → .841", "−.076"),
    ):
        raw, fitted, _, told, truth, log_loss, _ = networks[row]
        assert (f"{raw} → {fitted}", leak.split()[-1], less) == (aurocs, told, log_loss)
        assert all(figure in said for figure in (leak, aurocs, less))
        if row.startswith("CIFAR"):
            assert f"and {truth} if the attacker knows the true label" in said
    raw, fitted, _, _, less, _ = networks["wine, forest"]
    assert f"wine, forest: AUROC {raw} → {fitted}, log-loss {less}" in said
    asked = [row for row in _rows("guarantees.md") if row[:2] == ["forest, 2% wrong labels", "33"]]
    (_, _, labels, scores, veil, with_epsilon) = asked[0]
    assert f"raw scores {scores}, fitted veil {veil}, with ε = 1 {with_epsilon}, labels alone {labels}" in said
    attack, worth, _ = (row for row in _rows("smoothing.md") if row[0] == "2 % wrong labels, forest")
    told = f"raw scores {attack[2]}, fitted veil {attack[3]}, smoothed and fitted {attack[7]}, labels alone {attack[1]}"
    assert f"{told}; AUROC {worth[1]} → {worth[4]}" in said
