"""What the README and the docs show works, and what they name exists."""

import importlib.util
import itertools
import re
import shlex
import sys

import pytest
from typer.core import TyperGroup
from typer.main import get_command

import scoreveil
from doc_pages import PAGES, ROOT, blocks
from scoreveil import cli

INTEGRATIONS = ROOT / "docs" / "integrations"


# the examples of an integration run in its own tests, beside the library they need; so does that of language models
ELSEWHERE = [p for p in PAGES if p.parent == INTEGRATIONS or p.name == "language-models.md"]


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ELSEWHERE], ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write files
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_ones_that_exist(page):
    """Names and options of each are known; what they do is for other tests."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    fenced = "".join(re.findall(r"^```\n(.*?)^```$", _without_code(page), re.DOTALL | re.MULTILINE))
    for line in re.findall(r"^(?:make|scoreveil) .*$", fenced.replace("\\\n", " "), re.MULTILINE):
        program, *arguments = shlex.split(line, comments=True)
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


def test_the_readme_has_ten_lines_of_code():
    (block,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in block.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif not target.startswith("http"):
            assert (page.parent / target.partition("#")[0]).exists(), target


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


def test_the_picture_of_the_readme_is_true():
    """Measured again: veils leave nothing of the leak and less and less of the worth; the drawn figures agree."""
    rows = _script("picture").measured()
    assert [row.name for row in rows] == ["raw scores", "fitted veil", "with ε = 4", "with ε = 2", "label alone"]
    assert rows[0].told > 0.8 > 0.55 > max(row.told for row in rows[1:])
    assert all(more.useful > less.useful for more, less in itertools.pairwise(rows))
    assert not any(row.relabelled for row in rows)
    drawn = re.findall(
        r"told apart ([\d.]+), useful ([\d.]+)", (ROOT / "docs" / "veil.svg").read_text(encoding="utf-8")
    )
    assert [(row.told, row.useful) for row in rows] == [
        (pytest.approx(float(told), abs=0.02), pytest.approx(float(useful), abs=0.02)) for told, useful in drawn
    ]
