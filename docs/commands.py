"""Writes docs/reference/cli.md from the commands themselves: `python docs/commands.py`; with `--check` it compares."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from scoreveil import cli

PAGE = Path(__file__).parent / "reference" / "cli.md"
HEAD = """# Command line

What `scoreveil COMMAND --help` says, made by `python docs/commands.py`. Errors are one line on stderr, with exit code
2; a gate that shuts exits with 3, and so does `verify` where records exceed a promise.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_command("scoreveil", get_command(cli.app))])


def _command(name: str, command: Any) -> Iterator[str]:
    """A command with its arguments and options; of a group, each of its commands."""
    if hasattr(command, "commands"):
        for each in command.commands.values():
            yield from _command(f"{name} {each.name}", each)
        return
    yield f"## {name}\n"
    yield from (f"{' '.join(part.split())}\n" for part in (command.help or "").split("\n\n"))
    example = (command.epilog or "").removeprefix("Example: ")
    if example:
        yield f"```\n{example}\n```\n"
    panels = dict[str, list[str]]()
    for param in command.params:
        if param.name != "help":
            panels.setdefault(getattr(param, "rich_help_panel", None) or "", []).append(_row(param))
    for title, rows in panels.items():
        yield "\n".join([*([f"**{title}**", ""] if title else []), "| | |", "|---|---|", *rows]) + "\n"


def _row(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts) if name.startswith("-"))
    value = "" if getattr(param, "is_flag", False) else f"`{param.metavar or 'N'}`"  # whole numbers have no word
    told = [getattr(param, "help", "") or ""]
    if param.required:
        told.append("Required.")
    elif param.default not in (None, False, "") and "default" not in told[0]:
        told.append(f"By default {param.default}.")
    return "| {} | {} |".format(*(" ".join(each).strip().replace("|", "\\|") for each in ((names, value), told)))


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/reference/cli.md is not what the commands say; make it anew: python docs/commands.py")
