"""The terminal: where output, errors and progress go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[..., None]]:
    """A bar on stderr, where that is a terminal: told the fraction that is done, and what is being done now."""
    if not err.is_terminal:
        yield lambda done, now=what: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda done, now=what: bar.update(task, completed=done, description=now)


@contextmanager
def progress_steps(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """The same for work in steps, which says what was done last."""
    with progress_bar(what) as bar:
        yield lambda name, done, total: bar(done / total, f"{what}: {name}")
