"""Progress says what remains, wherever it goes."""

import re
import time

import pytest

from scoreveil.cli import terminal
from scoreveil.cli.terminal import Estimate, duration, progress_bar, progress_steps


def test_the_estimate_falls_as_time_goes_by_and_with_each_step():
    now = [0.0]
    estimate = Estimate(clock=lambda: now[0])
    now[0] = 30.0
    assert str(estimate) == "30 s so far"  # nothing is known yet
    estimate.tell(0.25)
    assert str(estimate) == "30 s so far, about 1 min 30 s left"
    now[0] = 45.0
    assert str(estimate) == "45 s so far, about 1 min 15 s left"
    now[0] = 60.0
    estimate.tell(0.75)
    assert str(estimate) == "1 min so far, about 20 s left"
    now[0] = 90.0
    assert str(estimate) == "1 min 30 s so far, nearly done"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (48.4, "48 s"), (60, "1 min"), (80, "1 min 20 s"), (500, "8 min"), (-3, "0 s")],
)
def test_durations_are_short(seconds, words):
    assert duration(seconds) == words


def test_without_a_terminal_a_line_comes_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "EVERY", 0.01)
    with progress_steps("Attacking") as progress:
        progress("none", 1, 4)
        lines = ""
        while lines.count("\n") < 2:
            time.sleep(0.01)
            lines += capsys.readouterr().err
    assert re.match(r"Attacking: none: 25%, 0 s so far, (about \d+ s left|nearly done)\n", lines.splitlines(True)[-1])


def test_a_short_job_says_nothing_without_a_terminal(capsys):
    with progress_bar("Protecting") as job:
        job(0.5)
    assert capsys.readouterr().err == ""
