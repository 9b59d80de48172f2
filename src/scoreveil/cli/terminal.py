"""The terminal: where output, errors and progress go.

Progress goes to stderr: as a bar where that is a terminal, else as a line now and then. Both say what remains, by what
the part that is done took.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

EVERY = 20.0  # seconds between two lines

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


@dataclass
class Estimate:
    """How long a job takes, told now and then which fraction of it is done."""

    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    total: float | None = field(default=None, init=False)  # seconds in all, by what is done

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def elapsed(self) -> float:
        return self.clock() - self.began

    def tell(self, done: float) -> None:
        if done > 0:
            self.total = self.elapsed / done

    def __str__(self) -> str:
        """`1 min 20 s so far, about 4 min left`."""
        so_far = f"{duration(self.elapsed)} so far"
        if self.total is None:
            return so_far
        left = self.total - self.elapsed
        return f"{so_far}, about {duration(left)} left" if left >= 1 else f"{so_far}, nearly done"


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
def progress_bar(what: str) -> Iterator[Job]:
    """A job that is told the fraction that is done, and what was done last."""
    estimate = Estimate()
    with _bar(what, estimate) if err.is_terminal else _lines(what, estimate) as job:
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
def _lines(what: str, estimate: Estimate) -> Iterator[Job]:
    state, ended = (0.0, what), threading.Event()

    def show(done: float, now: str) -> None:
        nonlocal state
        estimate.tell(done)
        state = done, now

    def speak() -> None:
        while not ended.wait(EVERY):
            done, now = state
            err.print(f"{now}: {done:.0%}, {estimate}", soft_wrap=True)

    speaker = threading.Thread(target=speak, name="scoreveil-progress", daemon=True)
    speaker.start()
    try:
        yield Job(what, show)
    finally:
        ended.set()
        speaker.join()
