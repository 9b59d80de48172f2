"""One defense against every membership attack, trial by trial, each kept on disk once it is computed."""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.arrays import Floats
from scoreveil.audit import cache
from scoreveil.audit.attacks import ATTACKS, COMPARISONS, likelihood
from scoreveil.audit.attacks.interface import Attack, Features
from scoreveil.audit.data.records import Bools, Defense, Membership, Records
from scoreveil.audit.defenses import DEFENSES, Method, Timing, timed
from scoreveil.audit.study.metrics import membership_metrics
from scoreveil.audit.study.promises import proof
from scoreveil.audit.study.results import (
    FORMS,
    UNDEFENDED,
    AttackResult,
    DefenseResult,
    Findings,
    Form,
    Setting,
    restored,
)
from scoreveil.audit.study.subjects import Subject
from scoreveil.fitting import metrics
from scoreveil.tuning import distances

VERSION = 4  # of what a trial computes: what another version kept is made anew
VIEWS = 1_000_003  # between the seeds of two views


@dataclass(frozen=True)
class Trial:
    """One attack in one form on one setting."""

    setting: Setting
    attack: str
    form: Form
    features: Features

    def seed(self, study: int) -> int:
        """A seed of its own. The word "Cell" is how trials were called when the results in results/ were made."""
        fields = f"setting={self.setting!r}, attack={self.attack!r}, form={self.form!r}, features={self.features!r}"
        return int.from_bytes(hashlib.sha256(f"(Cell({fields}), {study})".encode()).digest()[:8], "little")


@dataclass(frozen=True, eq=False)
class Bench:
    """Everything a trial is computed from."""

    subject: Subject
    attacks: tuple[str, ...]
    comparisons: tuple[str, ...]
    repeats: int
    seed: int
    cache: Path | None
    forms: tuple[Form, ...] = FORMS

    def study_setting(self, setting: Setting, with_cost: bool, with_likelihood: bool) -> Findings:
        """One defense against the attacks, and what it costs; inversions are studied elsewhere."""
        seen = Seen(self.subject, setting, self.repeats, self.seed)
        costs, found = [], []
        if with_cost:
            costs.append(self._with_proof(self.cost(setting, seen), seen))
        for trial in self._trials(setting):
            what = {"defense": setting, "attack": trial.attack, "form": trial.form, "features": trial.features}
            found.append(self._result(what, partial(self._attack, trial, seen)))
        if with_likelihood and self.subject.many is not None:
            # what is undefended is also asked for its label alone: the floor of these attacks
            for reads in ("scores", "label") if setting == UNDEFENDED else ("scores",):
                for attack in self.comparisons:
                    what = {"defense": setting, "attack": attack, "reads": reads}
                    found.append(self._result(what, partial(self._compare, attack, reads, seen)))
        return tuple(costs), tuple(found), ()

    def cost(self, setting: Setting, seen: "Seen | None" = None) -> DefenseResult:
        """What a defense costs. Kept as "costs", since rows that were kept as "defense" have no curves."""
        seen = seen or Seen(self.subject, setting, self.repeats, self.seed)
        return restored(DefenseResult, self._kept({"costs": setting}, lambda: asdict(self._cost(seen))))

    @property
    def labelled(self) -> bool:
        """Whether it is known which answers are right, of the records under attack and of the reference."""
        return self.subject.target.nonmembers.labels is not None and self.subject.reference.labels is not None

    def _trials(self, setting: Setting) -> Iterator[Trial]:
        possible = (ATTACKS[name] for name in self.attacks if self._possible(ATTACKS[name]))
        return (
            trial for attack in possible for trial in self._of_every_form(setting, attack) if trial.form in self.forms
        )

    def _of_every_form(self, setting: Setting, attack: Attack) -> Iterator[Trial]:
        if attack.reads == "scores" and attack.needs == "":
            yield Trial(setting, attack.name, "paper", attack.features[0])
            method = DEFENSES[setting[0]]
            # asked again and again, a fitted veil with ε shows its region: that is the setting without
            if method.is_random and not method.fits and self.repeats > 1:
                yield Trial(setting, attack.name, "averaging", attack.features[-1])
        yield from (Trial(setting, attack.name, "adaptive", features) for features in attack.features)

    def _possible(self, attack: Attack) -> bool:
        if attack.knows_label and any(r.labels is None for r in self.subject.sides):
            return False
        return not (attack.needs == "variants" and any(r.variants is None for r in self.subject.sides))

    def _attack(self, trial: Trial, seen: "Seen") -> AttackResult:
        target, shadow = seen.averaged if trial.form == "averaging" else (seen.target, seen.shadow)
        attack, began = ATTACKS[trial.attack], time.perf_counter()
        if attack.knows_half:
            undefended, shadow = (m.halves(np.random.default_rng(self.seed))[0] for m in (self.subject.target, target))
            target = target.halves(np.random.default_rng(self.seed))[1]
        else:
            undefended = self.subject.shadow
        fitted_on = undefended if trial.form == "paper" else shadow
        # the same records for every trial, so that trials can be compared
        balanced_shadow, balanced = (m.balanced(np.random.default_rng(self.seed)) for m in (fitted_on, target))
        scorer = attack.fit(balanced_shadow, trial.features, np.random.default_rng(trial.seed(self.seed)))
        about = {"form": trial.form, "features": trial.features, "reads": attack.reads}
        scores = scorer(balanced.records)
        return judged(seen.setting, attack.name, attack.knows_label, balanced.truth, scores, began, about)

    def _compare(self, attack: str, reads: str, seen: "Seen") -> AttackResult:
        """LiRA and its kin: the target's answers beside those of many shadows under the same defense."""
        began = time.perf_counter()
        scores = seen.compared(attack, reads)
        about = {"form": "adaptive", "features": COMPARISONS[attack].features, "reads": reads}
        return judged(seen.setting, attack, True, self.subject.target.truth, scores, began, about)

    def _cost(self, seen: "Seen") -> DefenseResult:
        before, after = self.subject.target.nonmembers, seen.target.nonmembers
        defense, epsilon = seen.setting
        return DefenseResult(
            defense=defense,
            epsilon=epsilon,
            keeps_label=seen.method.keeps_label,
            keeps_ranking=seen.method.keeps_ranking,
            distortion_l1=float(distances(after.scores, before.scores, "l1").mean()),
            distortion_l2=float(distances(after.scores, before.scores, "l2").mean()),
            **_worth(seen.target),
            **asdict(seen.timing),
        )

    def _with_proof(self, cost: DefenseResult, seen: "Seen") -> DefenseResult:
        """With the ε that is promised, and the one that attacks prove."""
        kept, epsilon = seen.method.bounded_given, seen.setting[1]
        if kept is None or epsilon is None:
            return cost
        both = self.subject.target, self.subject.shadow
        make = partial(proof, epsilon, kept, *both)
        return replace(cost, **self._kept({"proof": seen.setting}, lambda: asdict(make(seen.fresh, self.seed))))

    def _result(self, what: dict[str, Any], make: Callable[[], AttackResult]) -> AttackResult:
        return restored(AttackResult, self._kept(what, lambda: asdict(make())))

    def _kept(self, what: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A row from the disk, or made and put there."""
        if self.cache is None:
            return make()
        many = what.get("attack") in COMPARISONS
        data = self.subject.digest_with_many if many else self.subject.digest
        return cache.kept_json("cells", cache.key(VERSION, data, self.seed, self.repeats, what), make, self.cache)


@dataclass(eq=False)
class Seen:
    """The subject through one defense; each view is made when the first trial that is not on disk needs it."""

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
        if not self.method.draws_at(self.setting[1]):
            return self._made[0]
        return self.method.make(self.subject.given(self.seed + VIEWS * (view + 1), self.setting[1]))

    @property
    def fresh(self) -> Defense:
        """Whose draws are those of no other view."""
        return self._defense(4)

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

    def compared(self, attack: str, reads: str) -> Floats:
        """What an attack from many shadows says of each record, given the scores or the labels alone."""
        records, population = self._many if reads == "scores" else self._labels_of_many
        chosen = COMPARISONS[attack]
        return chosen.compare(*records, *(population if chosen.population else ()))

    @cached_property
    def _many(self) -> tuple[tuple[Records, likelihood.Ensemble], ...]:
        return self._under_shadows(self._defense(3))

    @cached_property
    def _labels_of_many(self) -> tuple[tuple[Records, likelihood.Ensemble], ...]:
        return self._under_shadows(DEFENSES["label_only"].make(self.subject.given(self.seed)))

    def _under_shadows(self, defense: Defense) -> tuple[tuple[Records, likelihood.Ensemble], ...]:
        """The records, and a population that was not trained on: under the target, and under its shadows."""
        many = self.subject.many
        assert many is not None, "asked only of subjects with many shadows"

        def side(records: Records, of_shadows: Floats, inside: Bools) -> tuple[Records, likelihood.Ensemble]:
            defended = records.defended(defense)
            shadowed = [replace(records, scores=rows).defended(defense).scores for rows in of_shadows]
            return defended, likelihood.Ensemble(np.stack(shadowed), inside)

        outside = np.zeros(many.of_population.shape[:2], dtype=bool)
        return (
            side(self.subject.target.records, many.of_records, many.inside),
            side(many.population, many.of_population, outside),
        )


def _worth(target: Membership) -> dict[str, Any]:
    """What the confidence is worth on records that were not trained on; nothing without their labels."""
    others = target.nonmembers
    accuracy = {
        f"{name}_accuracy": None if side.labels is None else float(side.is_right.mean())
        for name, side in (("train", target.members), ("test", others))
    }
    if others.labels is None:
        return dict.fromkeys(("ece", "brier", "auroc_of_confidence")) | accuracy
    confidence, right = others.scores.max(axis=1), others.is_right
    return accuracy | {
        "ece": metrics.calibration_error(confidence, right),
        "brier": float(metrics.brier(others.scores, others.labels).mean()),
        "nll": float(metrics.log_loss(others.scores, others.labels).mean()),
        "aurc": metrics.aurc(confidence, right),
        "auroc_of_confidence": metrics.auroc(confidence[right], confidence[~right]),
        "reliability": metrics.reliability(confidence, right),
        "risk_coverage": metrics.risk_coverage(confidence, right),
    }


def judged(
    setting: Setting, attack: str, told: bool, truth: Bools, scores: Floats, began: float, about: dict[str, Any]
) -> AttackResult:
    """How well an attack did, which took from `began` until now."""
    measured = asdict(membership_metrics(truth, scores))
    took = round(time.perf_counter() - began, 3)
    name, epsilon = setting
    return AttackResult(
        defense=name, epsilon=epsilon, attack=attack, knows_label=told, seconds=took, **about, **measured
    )


def repeated(defense: Defense, times: int) -> Defense:
    """The mean of several answers: what an attacker who asks again sees."""
    return lambda scores: np.asarray(sum(defense(scores) for _ in range(times)) / times)
