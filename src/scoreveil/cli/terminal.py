"""The terminal: where output, errors and progress go, and how a reader calls this program.

Progress goes to stderr: as a bar where that is a terminal, else as a line at the start and after a step now and then.
Both say what remains, as soon as the pace of the work is steady enough to tell.
"""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

EVERY = 20.0  # seconds between two lines, at least
MIN_DONE = 0.1  # the part of a job that says something about its pace
STEADY = 1.5  # by how much the pace of the second half may differ

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def program(folder: Path | None = None) -> str:
    """What to type in a shell to run this program, such as `scoreveil` or `.venv/bin/scoreveil`.

    Args:
        folder: Where it will be typed; by default the current folder.
    """
    name = "scoreveil"
    script = shutil.which(name, path=Path(sys.executable).parent)
    on_path = shutil.which(name)
    if script is None or (on_path is not None and os.path.samefile(on_path, script)):
        return name
    return shlex.quote(min(script, os.path.relpath(script, folder or Path.cwd()), key=len))


@dataclass
class Estimate:
    """How long a job takes. It is told now and then which fraction of it is done."""

    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    marks: list[tuple[float, float]] = field(default_factory=list, init=False)  # what was done, and when

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.began

    def tell(self, done: float) -> None:
        if done > (self.marks[-1][0] if self.marks else 0):
            self.marks.append((done, self.elapsed))

    @property
    def left(self) -> float | None:
        """Seconds that remain, by the pace since the start; None until the pace of the second half is like it.

        A job that begins slowly, since it loads or compiles first, has another pace in its second half.
        """
        done, when = self.marks[-1] if self.marks else (0.0, 0.0)
        if len(self.marks) < 2 or done < MIN_DONE:
            return None
        middle, then = min(self.marks[:-1], key=lambda mark: abs(mark[0] - done / 2))
        pace, lately = when / done, (when - then) / (done - middle)
        left = pace - self.elapsed
        is_steady = max(pace, lately) < STEADY * min(pace, lately)
        return left if is_steady and left >= 1 else None

    def __str__(self) -> str:
        """`1 min 20 s so far, about 4 min left`."""
        so_far, left = f"{duration(self.elapsed)} so far", self.left
        return so_far if left is None else f"{so_far}, about {duration(left)} left"


def duration(seconds: float) -> str:
    """`48 s`, `1 min 20 s`, `12 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 5 and rest else f"{round(whole / 60)} min"


@dataclass
class Job:
    """Something that takes a while, and says how far it is."""

    name: str
    show: Callable[[float, str], None]
    hidden: Callable[[], AbstractContextManager[None]] = nullcontext  # while something else is printed

    def __call__(self, done: float, now: str = "") -> None:
        self.show(done, f"{self.name}: {now}" if now else self.name)

    def step(self, name: str, done: int, total: int) -> None:
        """The same for work in steps."""
        self(done / total, name)


class _Left(ProgressColumn):
    """What remains. rich's own column knows nothing where steps are half a minute apart."""

    def __init__(self, estimate: Estimate) -> None:
        super().__init__()
        self._estimate = estimate

    def render(self, task: Task) -> Text:
        return Text(str(self._estimate))


@contextmanager
def progress_bar(what: str, is_short: bool = False) -> Iterator[Job]:
    """A job that is told the fraction that is done, and what was done last.

    Args:
        what: Its name.
        is_short: Whether it is often done at once, so that without a terminal nothing is said at the start.
    """
    estimate = Estimate()
    with _bar(what, estimate) if err.is_terminal else _lines(what, estimate, is_short) as job:
        yield job


@contextmanager
def progress_steps(what: str) -> Iterator[Callable[[str, int, int], None]]:
    """The same for work in steps."""
    with progress_bar(what) as job:
        yield job.step


@contextmanager
def _bar(what: str, estimate: Estimate) -> Iterator[Job]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Left(estimate))
    # what is printed meanwhile goes where it belongs, and not to stderr
    bar = Progress(*columns, console=err, transient=True, redirect_stdout=False)
    task = bar.add_task(what, total=1.0)

    def show(done: float, now: str) -> None:
        estimate.tell(done)
        bar.update(task, completed=done, description=now)

    @contextmanager
    def hidden() -> Iterator[None]:
        bar.stop()
        yield
        bar.start()

    with bar:
        yield Job(what, show, hidden)


@contextmanager
def _lines(what: str, estimate: Estimate, is_short: bool) -> Iterator[Job]:
    if not is_short:
        err.print(f"{what} …")
    due = EVERY

    def show(done: float, now: str) -> None:
        nonlocal due
        estimate.tell(done)
        if estimate.elapsed >= due:
            err.print(f"{now}: {done:.0%}, {estimate}", soft_wrap=True)
            due = estimate.elapsed + EVERY

    yield Job(what, show)
