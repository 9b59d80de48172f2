"""The study: every defense against every attack, from scores of a target and of a shadow model.

    found = run(subject, Plan(settings=grid(DEFENSES, (0.5, 2.0, 8.0))), "scoreveil audit …")

The attacker has a shadow: members and non-members of a model like the target. "paper" attacks are fitted on its
undefended scores; "adaptive" ones on scores under the same defense; "averaging" ones too, with each record asked about
several times. Every cell of the study is kept on disk under the hash of all that went into it, so a study that is
killed goes on where it stopped and gives the same numbers.
"""

import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import joblib

from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.networks.inverter import InversionSettings
from scoreveil.audit.study.membership import Bench
from scoreveil.audit.study.redrawing import Studio
from scoreveil.audit.study.results import AttackResult, DefenseResult, InversionResult, Study
from scoreveil.audit.study.subjects import Setting, Subject, digest, name_of

Progress = Callable[[str, int, int], None]  # what was done, how many steps are, of how many
Findings = tuple[tuple[DefenseResult, ...], tuple[AttackResult, ...], tuple[InversionResult, ...]]

EPSILONS = (0.1, 0.5, 2.0, 8.0, 32.0)


def grid(defenses: Iterable[str], epsilons: Iterable[float]) -> tuple[Setting, ...]:
    """Each defense, at each ε where it takes one; no defense comes first."""
    given = tuple(epsilons)
    names = ["none", *(name for name in defenses if name != "none")]
    _known("defense", names, DEFENSES)
    return tuple((name, e) for name in names for e in (given if DEFENSES[name].takes_epsilon else (None,)))


@dataclass(frozen=True)
class Plan:
    """What to study.

    settings    defenses by name, each with its ε or None
    attacks     membership attacks by name
    likelihood  the settings that LiRA and RMIA attack, where the subject has many shadows
    inverted    the settings that the inversion attack is run on, where the subject has pictures
    """

    settings: tuple[Setting, ...] = field(default_factory=lambda: grid(DEFENSES, EPSILONS))
    attacks: tuple[str, ...] = tuple(ATTACKS)
    likelihood: tuple[Setting, ...] = ()
    inverted: tuple[Setting, ...] = ()
    inversion: InversionSettings = field(default_factory=InversionSettings)
    repeats: int = 5  # queries of the averaging attacker
    seed: int = 0
    jobs: int = 2

    def __post_init__(self) -> None:
        every = (*self.settings, *self.likelihood, *self.inverted)
        _known("defense", (name for name, _ in every), DEFENSES)
        _known("attack", self.attacks, ATTACKS)
        for name, epsilon in every:
            if (epsilon is not None) != DEFENSES[name].takes_epsilon:
                raise ValueError(f"Expected {'an' if epsilon is None else 'no'} epsilon for {name}, got {epsilon}.")
            if epsilon is not None and not 0 < epsilon < float("inf"):
                raise ValueError(f"Expected epsilons > 0, got {epsilon}.")
        if ("none", None) not in self.settings:
            raise ValueError("Expected the setting without a defense among the settings, got none.")
        if self.repeats < 1:
            raise ValueError(f"Expected repeats >= 1, got {self.repeats}.")


def _known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"Expected a {kind} among {', '.join(known)}, got {name!r}.")


def run(
    subject: Subject,
    plan: Plan,
    command: str = "",
    cache: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Study:
    """All results of the plan, in its order. `command` is what the reader types to get them again."""
    bench = Bench(subject, plan.attacks, plan.repeats, plan.seed, cache)
    # inversions first: they take longest
    tasks: list[tuple[str, Callable[[], Findings]]] = []
    if subject.pictures is not None and plan.inverted:
        studio = Studio(subject, plan.inversion, plan.seed, cache)
        tasks += [(f"pictures, {name}", task) for name, task in studio.tasks(plan.inverted)]
    tasks += [(name_of(one), _Task(bench, one, one in plan.likelihood)) for one in plan.settings]
    found: list[Findings] = []
    parallel = joblib.Parallel(n_jobs=min(plan.jobs, len(tasks)), return_as="generator")
    for (name, _), result in zip(tasks, parallel(joblib.delayed(task)() for _, task in tasks), strict=True):
        found.append(result)
        progress(name, len(found), len(tasks))
    defenses, attacks, inversions = (tuple(row for part in kind for row in part) for kind in zip(*found, strict=True))
    originals = subject.pictures.originals() if inversions and subject.pictures is not None else ()
    return Study(about(subject, plan, command), attacks, defenses, inversions, originals, subject.notes)


@dataclass(frozen=True, eq=False)
class _Task:
    """One setting, attacked; an object that goes to another process whole."""

    bench: Bench
    setting: Setting
    likelihood: bool

    def __call__(self) -> Findings:
        return self.bench.study_setting(self.setting, self.likelihood)


def about(subject: Subject, plan: Plan, command: str) -> dict[str, Any]:
    """How a study was made, for `Study.meta`."""
    packages = ("scoreveil", "numpy", "scipy", "scikit-learn", "torch", "numba")
    target, shadow = subject.target, subject.shadow
    records = {
        "members": len(target.members),
        "nonmembers": len(target.nonmembers),
        "shadow members": len(shadow.members),
        "shadow nonmembers": len(shadow.nonmembers),
        "reference": len(subject.reference),
        "classes": target.classes,
    }
    if subject.many is not None:
        records["shadow models"] = len(subject.many.inside)
    if subject.pictures is not None:
        records["pictures of the inversion attacker"] = len(subject.pictures.auxiliary)
    return ({"title": subject.title} if subject.title else {}) | {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "records": records,
        "plan": {"settings": [name_of(s) for s in plan.settings], "repeats": plan.repeats, "seed": plan.seed},
        "sha256": {"members": digest(target.members), "nonmembers": digest(target.nonmembers)},
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
