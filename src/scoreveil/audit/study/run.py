"""The study: every defense against every attack, from scores of a target and of a shadow model.

    found = run(subject, StudyPlan(settings=grid(DEFENSES, (0.5, 2.0, 8.0))), "scoreveil audit …")

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
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import joblib

from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.networks.inverter import InversionSettings
from scoreveil.audit.study.membership import Bench
from scoreveil.audit.study.redrawing import Studio
from scoreveil.audit.study.results import LABEL, TEMPERED, UNDEFENDED, Findings, Setting, Study, setting_name
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import Subject

EPSILONS = (0.1, 0.5, 2.0, 8.0, 32.0)
BESIDE: tuple[Setting, ...] = (TEMPERED, LABEL)  # which a confidence is measured beside, attacked or not


def grid(defenses: Iterable[str], epsilons: Iterable[float]) -> tuple[Setting, ...]:
    """Each defense, at each ε where it takes one; no defense comes first."""
    given = tuple(epsilons)
    names = ["none", *(name for name in defenses if name != "none")]
    _known("defense", names, DEFENSES)
    return tuple((name, e) for name in names for e in (given if DEFENSES[name].takes_epsilon else (None,)))


@dataclass(frozen=True)
class StudyPlan:
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
        if UNDEFENDED not in self.settings:
            raise ValueError("Expected the setting without a defense, ('none', None), among the settings.")
        if self.repeats < 1:
            raise ValueError(f"Expected repeats >= 1, got {self.repeats}.")


def _known(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"Expected a {kind} among {', '.join(known)}, got {name!r}.")


def run(
    subject: Subject, plan: StudyPlan, command: str = "", cache: Path | None = None, progress: Progress = silent
) -> Study:
    """Attack everything that the plan names.

    Args:
        subject: Whose scores are attacked.
        plan: Defenses and attacks.
        command: What the reader types to get the same results again.
        cache: A folder that keeps every trial, so that a study that is killed goes on where it stopped.
        progress: Told about each setting that is done.

    Returns:
        All results, in the order of the plan.
    """
    bench = Bench(subject, plan.attacks, plan.repeats, plan.seed, cache)
    tasks: list[tuple[str, Callable[[], Findings]]] = []
    if subject.pictures is not None and plan.inverted:  # first: inversions take longest
        tasks += Studio(subject, subject.pictures, plan.inversion, plan.seed, cache).tasks(plan.inverted)
    for one in plan.settings:
        tasks.append((setting_name(one), partial(bench.study_setting, one, one in plan.likelihood)))
    found: list[Findings] = []
    parallel = joblib.Parallel(n_jobs=min(plan.jobs, len(tasks)), return_as="generator")
    for (name, _), result in zip(tasks, parallel(joblib.delayed(task)() for _, task in tasks), strict=True):
        found.append(result)
        progress(name, len(found), len(tasks))
    defenses, attacks, inversions = (tuple(row for part in kind for row in part) for kind in zip(*found, strict=True))
    originals = subject.pictures.originals() if inversions and subject.pictures is not None else ()
    beside = tuple(bench.cost(one) for one in BESIDE if one not in plan.settings) if bench.labelled else ()
    return Study(about(subject, plan, command), attacks, defenses, inversions, originals, subject.notes, beside)


def about(subject: Subject, plan: StudyPlan, command: str) -> dict[str, Any]:
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
    if subject.given_records is not None:
        given = subject.given_records
        records |= {"given members": len(given.members), "given nonmembers": len(given.nonmembers)}
    if subject.many is not None:
        records["shadow models"] = len(subject.many.inside)
    if subject.pictures is not None:
        records["pictures of the inversion attacker"] = len(subject.pictures.auxiliary)
    return ({"title": subject.title} if subject.title else {}) | {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "records": records,
        "plan": {"settings": [setting_name(s) for s in plan.settings], "repeats": plan.repeats, "seed": plan.seed},
        "sha256": {"members": target.members.digest, "nonmembers": target.nonmembers.digest},
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
