"""The inversion attack on each defense: as the paper runs it, adaptive, and from the label or the ranking alone."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from scoreveil.arrays import Floats
from scoreveil.audit import cache
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.networks import inverter as inversion
from scoreveil.audit.networks.inverter import InversionSettings, Inverter
from scoreveil.audit.study import metrics
from scoreveil.audit.study.pictures import Pictures, data_uris
from scoreveil.audit.study.results import (
    UNDEFENDED,
    Findings,
    InversionForm,
    InversionResult,
    Setting,
    restored,
    setting_name,
)
from scoreveil.audit.study.subjects import Subject

VERSION = 2  # of what is kept on disk: what another version computed is made anew
PAPER: inversion.ScoreForm = "log_scores"  # as in the authors' code
ADAPTIVE: inversion.ScoreForm = "all"
COMPARED = 2_000  # pictures that SSIM and the nearest original are taken on: both take long

Attacker = tuple[InversionForm, str]  # and what it is given


def by_ranking(scores: Floats) -> Floats:
    """The ranking alone, as scores: each class has half of what the one above it has."""
    halves = 0.5 ** ((1 - inversion.ranks(scores)) * (scores.shape[1] - 1))
    return np.asarray(halves / halves.sum(axis=1, keepdims=True))


# the adaptive attacker, given no more than this: what no defense that keeps it can hide
FLOORS = {"label": inversion.label, "ranking": by_ranking}


@dataclass(frozen=True, eq=False)
class InversionStudy:
    """Everything a reconstruction is made from."""

    subject: Subject
    pictures: Pictures
    settings: InversionSettings
    seed: int
    cache: Path | None

    def tasks(self, inverted: Iterable[Setting]) -> list[tuple[str, Callable[[], Findings]]]:
        """Pieces of work for one process each. What is undefended comes first: its network is the paper's attacker.

        Where what is undefended is not among them, there are the adaptive attacker and the label's floor alone.
        """
        inverted = tuple(inverted)
        attackers: list[Attacker] = [("adaptive", ADAPTIVE)]
        undefended: list[Attacker] = [("floor", "label")]
        if UNDEFENDED in inverted:
            attackers = [("paper", PAPER), *attackers]
            undefended = [*attackers, *(("floor", given) for given in FLOORS)]
        tasks = [(" ".join(one), partial(self.redraw, UNDEFENDED, (one,))) for one in undefended]
        tasks += [(setting_name(one), partial(self.redraw, one, attackers)) for one in inverted if one != UNDEFENDED]
        return [(f"pictures, {name}", task) for name, task in tasks]

    def redraw(self, setting: Setting, attackers: Iterable[Attacker]) -> Findings:
        """Some attackers on one setting."""

        @functools.cache
        def defended() -> tuple[Floats, Floats]:
            """Scores of the attacker's pictures, and of those to be drawn, through the defense."""
            method = DEFENSES[setting[0]]
            subject = self.subject.for_fitting() if method.fits else self.subject
            defense = method.make(subject.given(self.seed, setting[1]))
            return defense(self.pictures.auxiliary_scores), defense(self.pictures.drawn_scores)

        found = []
        for attacker in attackers:

            def make(attacker: Attacker = attacker) -> InversionResult:
                return self._attack(setting, attacker, *defended())

            found.append(self._kept(setting, attacker, make))
        return (), (), tuple(found)

    def _attack(self, setting: Setting, attacker: Attacker, auxiliary: Floats, drawn: Floats) -> InversionResult:
        form, given = attacker
        if form == "floor":
            auxiliary, drawn = FLOORS[given](auxiliary), FLOORS[given](drawn)
        if form == "paper":
            inverter = self._inverter(self.pictures.auxiliary_scores, PAPER)
        else:
            inverter = self._inverter(auxiliary, ADAPTIVE)
        originals, redrawn = self.pictures.drawn.pixels, inverter.reconstruct(drawn)
        some = metrics.inversion_metrics(originals[:COMPARED], redrawn[:COMPARED])
        return InversionResult(
            defense=setting[0],
            epsilon=setting[1],
            form=form,
            features=given,
            pictures=data_uris(redrawn[self.pictures.shown]),
            **asdict(some) | {"mse": metrics.mse(originals, redrawn)},
        )

    def _inverter(self, scores: Floats, given: inversion.ScoreForm) -> Inverter:
        if self.cache is None:
            return inversion.fit(self.pictures.auxiliary, scores, given, self.settings)
        return inversion.cached_inverter(self.pictures.auxiliary, scores, given, self.settings, self.cache)

    def _kept(self, setting: Setting, attacker: Attacker, make: Callable[[], InversionResult]) -> InversionResult:
        if self.cache is None:
            return make()
        data = (self.subject.digest, self.pictures.digest)
        name = cache.key("inversion", VERSION, data, self.seed, self.settings, setting, *attacker)
        return restored(InversionResult, cache.kept_json("cells", name, lambda: asdict(make()), self.cache))
