"""The study: every defense against every attack, from scores of a target and of a shadow model.

    found = run(target, shadow, reference, Plan(epsilons=(0.5, 2.0, 8.0)))

The attacker has a shadow: members and non-members of a model like the target. "paper" attacks are fitted on its
undefended scores; "adaptive" ones on scores under the same defense; "averaging" ones too, with each record asked about
several times. Every cell of the study is kept on disk under the hash of all that went into it, so a study that is
killed goes on where it stopped and gives the same numbers.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from scoreveil.audit import metrics
from scoreveil.audit.attacks import ATTACKS
from scoreveil.audit.attacks.shape import Attack, Features
from scoreveil.audit.defenses import DEFENSES, timed
from scoreveil.audit.defenses.shape import Given, Method
from scoreveil.audit.records import Defense, Floats, Membership, Records
from scoreveil.audit.results import AttackResult, DefenseResult, Form

VERSION = 1  # of what a cell computes: cells of another version are made anew

Progress = Callable[[str, int, int], None]  # what was done, how many cells are, of how many
Setting = tuple[str, float | None]  # a defense and its ε


@dataclass(frozen=True)
class Plan:
    """What to study. Attacks and defenses by name; those that take an ε are studied at each of `epsilons`."""

    defenses: tuple[str, ...] = tuple(DEFENSES)
    attacks: tuple[str, ...] = tuple(ATTACKS)
    epsilons: tuple[float, ...] = (0.1, 0.5, 2.0, 8.0, 32.0)
    repeats: int = 5  # queries of the averaging attacker
    seed: int = 0
    jobs: int = 2

    def __post_init__(self) -> None:
        for kind, names, known in (("defense", self.defenses, DEFENSES), ("attack", self.attacks, ATTACKS)):
            for name in names:
                if name not in known:
                    raise ValueError(f"Expected a {kind} among {', '.join(known)}, got {name!r}.")
        if not self.epsilons or not all(0 < e < float("inf") for e in self.epsilons):
            raise ValueError(f"Expected epsilons > 0, got {self.epsilons}.")
        if self.repeats < 1:
            raise ValueError(f"Expected repeats >= 1, got {self.repeats}.")

    def settings(self) -> list[Setting]:
        """Each defense, at each ε where it takes one; no defense comes first."""
        names = ["none", *(d for d in self.defenses if d != "none")]
        return [(name, e) for name in names for e in (self.epsilons if DEFENSES[name].takes_epsilon else (None,))]


@dataclass(frozen=True)
class Cell:
    """One attack in one form on one setting."""

    setting: Setting
    attack: str
    form: Form
    features: Features


def run(
    target: Membership,
    shadow: Membership,
    reference: Records,
    plan: Plan,
    cache: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[tuple[AttackResult, ...], tuple[DefenseResult, ...]]:
    """All results of the plan, in its order."""
    hashes = [digest(r) for r in (target.members, target.nonmembers, shadow.members, shadow.nonmembers, reference)]
    bench = Bench(target, shadow, reference, plan, cache, "".join(hashes))
    jobs = [joblib.delayed(bench.study_setting)(setting) for setting in plan.settings()]
    attacks: list[AttackResult] = []
    defenses: list[DefenseResult] = []
    parallel = joblib.Parallel(n_jobs=min(plan.jobs, len(jobs)), return_as="generator")
    for done, (setting, (defense, found)) in enumerate(zip(plan.settings(), parallel(jobs), strict=True), 1):
        defenses.append(defense)
        attacks.extend(found)
        name, epsilon = setting
        progress(name if epsilon is None else f"{name} ε={epsilon:g}", done, len(jobs))
    return tuple(attacks), tuple(defenses)


def about(target: Membership, shadow: Membership, reference: Records, plan: Plan, command: str) -> dict[str, Any]:
    """How a study was made, for `Study.meta`."""
    packages = ("scoreveil", "numpy", "scipy", "scikit-learn", "torch", "numba")
    return {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "records": {
            "members": len(target.members),
            "nonmembers": len(target.nonmembers),
            "shadow members": len(shadow.members),
            "shadow nonmembers": len(shadow.nonmembers),
            "reference": len(reference),
            "classes": target.classes,
        },
        "plan": {"epsilons": list(plan.epsilons), "repeats": plan.repeats, "seed": plan.seed},
        "sha256": {"members": digest(target.members), "nonmembers": digest(target.nonmembers)},
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in packages},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def digest(records: Records) -> str:
    """The hash of records: of their scores, labels and variants."""
    state = hashlib.sha256()
    for array in (records.scores, records.labels, records.variants):
        state.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


@dataclass(frozen=True, eq=False)
class Bench:
    """Everything a cell is computed from."""

    target: Membership
    shadow: Membership
    reference: Records
    plan: Plan
    cache: Path | None
    data: str  # the hashes of all records

    def study_setting(self, setting: Setting) -> tuple[DefenseResult, list[AttackResult]]:
        """One defense against every attack."""
        method = DEFENSES[setting[0]]
        # the defender knows its own training set; its non-members are the reference, not the records under attack
        given = Given(Membership(self.target.members, self.reference), self.reference, self.plan.seed, setting[1])
        worlds: dict[str, Any] = {}

        def world() -> tuple[Defense, Any, Membership, Membership]:
            """The defense and what is seen through it, made when the first cell that is not cached needs it."""
            if "made" not in worlds:
                defense, timing = timed(method, given, self.target.nonmembers.scores)
                worlds["made"] = defense, timing, self.target.defended(defense), self.shadow.defended(defense)
            made: tuple[Defense, Any, Membership, Membership] = worlds["made"]
            return made

        def averaged() -> tuple[Membership, Membership]:
            if "averaged" not in worlds:
                often = repeated(world()[0], self.plan.repeats)
                worlds["averaged"] = self.target.defended(often), self.shadow.defended(often)
            both: tuple[Membership, Membership] = worlds["averaged"]
            return both

        defense = DefenseResult(**self._kept({"defense": setting}, lambda: self._utility(setting, method, *world())))
        found = []
        for cell in self._cells(setting, method):
            what = {"defense": setting, "attack": cell.attack, "form": cell.form, "features": cell.features}

            def attacked(cell: Cell = cell) -> dict[str, Any]:
                _, _, target, shadow = world()
                if cell.form == "averaging":
                    target, shadow = averaged()
                fitted_on = self.shadow if cell.form == "paper" else shadow
                return asdict(self._attack(cell, fitted_on, target))

            stored = self._kept(what, attacked)
            found.append(AttackResult(**{**stored, "roc": tuple(map(tuple, stored["roc"]))}))
        return defense, found

    def _cells(self, setting: Setting, method: Method) -> Iterator[Cell]:
        for name in self.plan.attacks:
            attack = ATTACKS[name]
            if not self._possible(attack):
                continue
            if attack.reads == "scores" and attack.needs == "":
                yield Cell(setting, name, "paper", attack.features[0])
                if method.is_random and self.plan.repeats > 1:
                    yield from (Cell(setting, name, "averaging", f) for f in attack.features[-1:])
            yield from (Cell(setting, name, "adaptive", features) for features in attack.features)

    def _possible(self, attack: Attack) -> bool:
        every = (self.target.members, self.target.nonmembers, self.shadow.members, self.shadow.nonmembers)
        if attack.knows_label and any(r.labels is None for r in every):
            return False
        return not (attack.needs == "variants" and any(r.variants is None for r in every))

    def _attack(self, cell: Cell, shadow: Membership, target: Membership) -> AttackResult:
        attack, began = ATTACKS[cell.attack], time.perf_counter()
        seed = int.from_bytes(hashlib.sha256(repr((cell, self.plan.seed)).encode()).digest()[:8], "little")
        # the same records for every cell, so that cells can be compared
        balanced_shadow, balanced = (m.balanced(np.random.default_rng(self.plan.seed)) for m in (shadow, target))
        scorer = attack.fit(balanced_shadow, cell.features, np.random.default_rng(seed))
        told = metrics.membership_metrics(balanced.truth, scorer(balanced.records))
        seconds = time.perf_counter() - began
        return AttackResult(
            defense=cell.setting[0],
            epsilon=cell.setting[1],
            attack=cell.attack,
            form=cell.form,
            features=cell.features,
            reads=attack.reads,
            knows_label=attack.knows_label,
            seconds=round(seconds, 3),
            **asdict(told),
        )

    def _utility(
        self, setting: Setting, method: Method, defense: Defense, timing: Any, target: Membership, shadow: Membership
    ) -> dict[str, Any]:
        before, after = self.target.nonmembers, target.nonmembers
        known = after.labels is not None
        l1, l2 = (metrics.distortion(after.scores, before.scores, norm) for norm in ("l1", "l2"))
        return asdict(
            DefenseResult(
                defense=setting[0],
                epsilon=setting[1],
                keeps_label=method.keeps_label,
                keeps_ranking=method.keeps_ranking,
                train_accuracy=metrics.accuracy(target.members) if known else None,
                test_accuracy=metrics.accuracy(after) if known else None,
                distortion_l1=l1,
                distortion_l2=l2,
                ece=metrics.ece(after) if known else None,
                brier=metrics.brier(after) if known else None,
                auroc_of_confidence=metrics.auroc_of_confidence(after) if known else None,
                fit_seconds=timing.fit_seconds,
                seconds_per_vector=timing.seconds_per_vector,
            )
        )

    def _kept(self, what: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A cell from the disk, or made and put there; whole or not at all."""
        if self.cache is None:
            return make()
        about = json.dumps([VERSION, self.data, self.plan.seed, self.plan.repeats, what], sort_keys=True)
        path = self.cache / "cells" / f"{hashlib.sha256(about.encode()).hexdigest()}.json"
        if path.exists():
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return stored
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{time.time_ns()}.part")
        temporary.write_text(json.dumps(made), encoding="utf-8")
        temporary.replace(path)
        return made


def repeated(defense: Defense, times: int) -> Defense:
    """The mean of several answers: what an attacker who asks again sees."""

    def mean(scores: Floats) -> Floats:
        total = np.zeros_like(scores)
        for _ in range(times):
            total += defense(scores)
        return total / times

    return mean
