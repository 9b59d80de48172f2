"""One defense against every membership attack, cell by cell, each kept on disk once it is computed."""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.audit import cache
from scoreveil.audit.attacks import ATTACKS, likelihood
from scoreveil.audit.attacks.interface import Attack, Features, Reads
from scoreveil.audit.data.records import Defense, Floats, Membership, Records
from scoreveil.audit.defenses import DEFENSES, Timing, timed
from scoreveil.audit.defenses.interface import Method
from scoreveil.audit.study import metrics
from scoreveil.audit.study.results import AttackResult, DefenseResult, Form
from scoreveil.audit.study.subjects import Setting, Subject

VERSION = 2  # of what a cell computes: cells of another version are made anew
VIEWS = 1_000_003  # between the seeds of two views
LIKELIHOOD = ("lira_online", "lira_offline", "rmia_online", "rmia_offline")


@dataclass(frozen=True)
class Cell:
    """One attack in one form on one setting."""

    setting: Setting
    attack: str
    form: Form
    features: Features


@dataclass(frozen=True, eq=False)
class Bench:
    """Everything a cell is computed from."""

    subject: Subject
    attacks: tuple[str, ...]
    repeats: int
    seed: int
    cache: Path | None

    def study_setting(
        self, setting: Setting, with_likelihood: bool
    ) -> tuple[tuple[DefenseResult, ...], tuple[AttackResult, ...], tuple[()]]:
        """One defense against every attack; the empty tuple is for inversions, which are studied elsewhere."""
        seen = Seen(self.subject, setting, self.repeats, self.seed)
        cost = DefenseResult(**self._kept({"defense": setting}, lambda: asdict(self._cost(seen))))
        found = [
            self._result(
                {"defense": setting, "attack": cell.attack, "form": cell.form, "features": cell.features},
                partial(self._attack, cell, seen),
            )
            for cell in self._cells(setting)
        ]
        if with_likelihood and self.subject.many is not None:
            # what is undefended is also asked for its label alone: the floor of these attacks
            both: tuple[Reads, ...] = ("scores", "label")
            for reads in both if setting[0] == "none" else both[:1]:
                for attack in LIKELIHOOD:
                    what = {"defense": setting, "attack": attack, "reads": reads}
                    found.append(self._result(what, partial(self._compare, attack, reads, seen)))
        return (cost,), tuple(found), ()

    def _cells(self, setting: Setting) -> Iterator[Cell]:
        for name in self.attacks:
            attack = ATTACKS[name]
            if not self._possible(attack):
                continue
            if attack.reads == "scores" and attack.needs == "":
                yield Cell(setting, name, "paper", attack.features[0])
                if DEFENSES[setting[0]].is_random and self.repeats > 1:
                    yield from (Cell(setting, name, "averaging", f) for f in attack.features[-1:])
            yield from (Cell(setting, name, "adaptive", features) for features in attack.features)

    def _possible(self, attack: Attack) -> bool:
        target, shadow = self.subject.target, self.subject.shadow
        every = (target.members, target.nonmembers, shadow.members, shadow.nonmembers)
        if attack.knows_label and any(r.labels is None for r in every):
            return False
        return not (attack.needs == "variants" and any(r.variants is None for r in every))

    def _attack(self, cell: Cell, seen: "Seen") -> AttackResult:
        target, shadow = seen.averaged if cell.form == "averaging" else (seen.target, seen.shadow)
        attack, began = ATTACKS[cell.attack], time.perf_counter()
        if attack.knows_half:
            undefended, shadow = (m.halves(np.random.default_rng(self.seed))[0] for m in (self.subject.target, target))
            target = target.halves(np.random.default_rng(self.seed))[1]
        else:
            undefended = self.subject.shadow
        fitted_on = undefended if cell.form == "paper" else shadow
        seed = int.from_bytes(hashlib.sha256(repr((cell, self.seed)).encode()).digest()[:8], "little")
        # the same records for every cell, so that cells can be compared
        balanced_shadow, balanced = (m.balanced(np.random.default_rng(self.seed)) for m in (fitted_on, target))
        scorer = attack.fit(balanced_shadow, cell.features, np.random.default_rng(seed))
        told = metrics.membership_metrics(balanced.truth, scorer(balanced.records))
        return AttackResult(
            defense=cell.setting[0],
            epsilon=cell.setting[1],
            attack=cell.attack,
            form=cell.form,
            features=cell.features,
            reads=attack.reads,
            knows_label=attack.knows_label,
            seconds=round(time.perf_counter() - began, 3),
            **asdict(told),
        )

    def _compare(self, attack: str, reads: Reads, seen: "Seen") -> AttackResult:
        """LiRA and RMIA: the target's answers beside those of many shadows under the same defense."""
        began = time.perf_counter()
        world = seen.many if reads == "scores" else seen.labels_of_many
        compare: Callable[..., Floats] = getattr(likelihood, attack)
        population = (world.population, world.of_population) if attack.startswith("rmia") else ()
        scores = compare(world.records, world.of_records, *population)
        told = metrics.membership_metrics(self.subject.target.truth, scores)
        return AttackResult(
            defense=seen.setting[0],
            epsilon=seen.setting[1],
            attack=attack,
            form="adaptive",
            features="log_odds" if attack.startswith("lira") else "scores",
            reads=reads,
            knows_label=True,
            seconds=round(time.perf_counter() - began, 3),
            **asdict(told),
        )

    def _cost(self, seen: "Seen") -> DefenseResult:
        before, after = self.subject.target.nonmembers, seen.target.nonmembers
        known = after.labels is not None
        l1, l2 = (metrics.distortion(after.scores, before.scores, norm) for norm in ("l1", "l2"))
        return DefenseResult(
            defense=seen.setting[0],
            epsilon=seen.setting[1],
            keeps_label=seen.method.keeps_label,
            keeps_ranking=seen.method.keeps_ranking,
            train_accuracy=metrics.accuracy(seen.target.members) if known else None,
            test_accuracy=metrics.accuracy(after) if known else None,
            distortion_l1=l1,
            distortion_l2=l2,
            ece=metrics.ece(after) if known else None,
            brier=metrics.brier(after) if known else None,
            auroc_of_confidence=metrics.auroc_of_confidence(after) if known else None,
            fit_seconds=seen.timing.fit_seconds,
            seconds_per_vector=seen.timing.seconds_per_vector,
        )

    def _result(self, what: dict[str, Any], make: Callable[[], AttackResult]) -> AttackResult:
        stored = self._kept(what, lambda: asdict(make()))
        return AttackResult(**{**stored, "roc": tuple(map(tuple, stored["roc"]))})

    def _kept(self, what: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A cell from the disk, or made and put there."""
        if self.cache is None:
            return make()
        many = what.get("attack") in LIKELIHOOD
        data = self.subject.digest_with_many if many else self.subject.digest
        return cache.kept_json("cells", cache.key(VERSION, data, self.seed, self.repeats, what), make, self.cache)


@dataclass(frozen=True, eq=False)
class Many:
    """What LiRA and RMIA see: records, and a population that was not trained on, under the target and its shadows."""

    records: Records
    of_records: likelihood.Ensemble
    population: Records
    of_population: likelihood.Ensemble


@dataclass(eq=False)
class Seen:
    """The subject through one defense; each view is made when the first cell that is not on disk needs it."""

    subject: Subject
    setting: Setting
    repeats: int
    seed: int

    @property
    def method(self) -> Method:
        return DEFENSES[self.setting[0]]

    @cached_property
    def _made(self) -> tuple[Defense, Timing]:
        given = self.subject.given(self.seed, self.setting[1])
        return timed(self.method, given, self.subject.target.nonmembers.scores)

    def _defense(self, view: int) -> Defense:
        """For each view draws of its own, so that it is the same whichever others were made before it."""
        if not self.method.is_random:
            return self._made[0]
        return self.method.make(self.subject.given(self.seed + VIEWS * (view + 1), self.setting[1]))

    @property
    def timing(self) -> Timing:
        return self._made[1]

    @cached_property
    def target(self) -> Membership:
        return self.subject.target.defended(self._defense(0))

    @cached_property
    def shadow(self) -> Membership:
        return self.subject.shadow.defended(self._defense(1))

    @cached_property
    def averaged(self) -> tuple[Membership, Membership]:
        often = repeated(self._defense(2), self.repeats)
        return self.subject.target.defended(often), self.subject.shadow.defended(often)

    @cached_property
    def many(self) -> Many:
        return self._many(self._defense(3))

    @cached_property
    def labels_of_many(self) -> Many:
        return self._many(DEFENSES["label_only"].make(self.subject.given(self.seed)))

    def _many(self, defense: Defense) -> Many:
        there = self.subject.many
        assert there is not None, "asked only of subjects with many shadows"

        def ensemble(scores: Floats, inside: Any) -> likelihood.Ensemble:
            return likelihood.Ensemble(np.stack([defense(rows) for rows in scores]), inside)

        outside = np.zeros(there.of_population.shape[:2], dtype=bool)
        return Many(
            self.subject.target.records.defended(defense),
            ensemble(there.of_records, there.inside),
            there.population.defended(defense),
            ensemble(there.of_population, outside),
        )


def repeated(defense: Defense, times: int) -> Defense:
    """The mean of several answers: what an attacker who asks again sees."""

    def mean(scores: Floats) -> Floats:
        total = np.zeros_like(scores)
        for _ in range(times):
            total += defense(scores)
        return total / times

    return mean
