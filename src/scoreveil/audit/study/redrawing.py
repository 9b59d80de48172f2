"""The inversion attack on each defense: as the paper runs it, adaptive, and from the label or the ranking alone."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from scoreveil.audit import cache
from scoreveil.audit.data.records import Floats
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.networks import inverter as inversion
from scoreveil.audit.networks.inverter import InversionSettings, Inverter
from scoreveil.audit.study import metrics
from scoreveil.audit.study.pictures import Pictures, data_uris
from scoreveil.audit.study.results import InversionForm, InversionResult
from scoreveil.audit.study.subjects import Setting, Subject, name_of

VERSION = 2  # of what a cell computes: cells of another version are made anew
PAPER: inversion.Form = "log_scores"  # as in the authors' code
ADAPTIVE: inversion.Form = "all"
COMPARED = 2_000  # pictures that SSIM and the nearest original are taken on: both take long

Redrawing = tuple[InversionForm, str]  # and what the attacker is given


def by_ranking(scores: Floats) -> Floats:
    """The ranking alone, as scores: each class has half of what the one above it has."""
    halves = 0.5 ** ((1 - inversion.ranks(scores)) * (scores.shape[1] - 1))
    return np.asarray(halves / halves.sum(axis=1, keepdims=True))


# the adaptive attacker, given no more than this: what no defense that keeps it can hide
FLOORS = {"label": inversion.label, "ranking": by_ranking}


@dataclass(frozen=True, eq=False)
class Studio:
    """Everything a reconstruction is made from."""

    subject: Subject
    settings: InversionSettings
    seed: int
    cache: Path | None

    def tasks(self, inverted: Iterable[Setting]) -> list[tuple[str, "Task"]]:
        """Pieces of work for one process each. What is undefended comes first: its network is the paper's attacker."""
        undefended: Setting = ("none", None)
        floors: list[Redrawing] = [("floor", given) for given in FLOORS]
        alone: list[Redrawing] = [("paper", PAPER), ("adaptive", ADAPTIVE), *floors]
        tasks = [(f"{form} {given}", Task(self, undefended, ((form, given),))) for form, given in alone]
        for one in inverted:
            if one != undefended:
                tasks.append((name_of(one), Task(self, one, (("paper", PAPER), ("adaptive", ADAPTIVE)))))
        return tasks

    def redraw(self, setting: Setting, redrawings: Iterable[Redrawing]) -> tuple[InversionResult, ...]:
        """Some forms of the attack on one setting."""
        worlds: list[tuple[Floats, Floats]] = []

        def world() -> tuple[Floats, Floats]:
            """Scores of the attacker's pictures, and of those to be drawn, through the defense."""
            if not worlds:
                defense = DEFENSES[setting[0]].make(self.subject.given(self.seed, setting[1]))
                worlds.append((defense(self._pictures.auxiliary_scores), defense(self._pictures.drawn_scores)))
            return worlds[0]

        found = []
        for form, given in redrawings:

            def make(form: InversionForm = form, given: str = given) -> InversionResult:
                auxiliary, drawn = world()
                if form == "paper":
                    inverter = self._inverter(self._pictures.auxiliary_scores, PAPER)
                elif form == "adaptive":
                    inverter = self._inverter(auxiliary, ADAPTIVE)
                else:
                    auxiliary, drawn = FLOORS[given](auxiliary), FLOORS[given](drawn)
                    inverter = self._inverter(auxiliary, ADAPTIVE)
                return self._measured(setting, form, given, inverter, drawn)

            found.append(self._kept(setting, form, given, make))
        return tuple(found)

    @property
    def _pictures(self) -> Pictures:
        assert self.subject.pictures is not None, "asked only of subjects with pictures"
        return self.subject.pictures

    def _inverter(self, scores: Floats, given: inversion.Form) -> Inverter:
        if self.cache is None:
            return inversion.fit(self._pictures.auxiliary, scores, given, self.settings)
        return inversion.cached_inverter(self._pictures.auxiliary, scores, given, self.settings, self.cache)

    def _measured(
        self, setting: Setting, form: InversionForm, given: str, inverter: Inverter, scores: Floats
    ) -> InversionResult:
        originals, redrawn = self._pictures.drawn.pixels, inverter.reconstruct(scores)
        some = metrics.inversion_metrics(originals[:COMPARED], redrawn[:COMPARED])
        return InversionResult(
            defense=setting[0],
            epsilon=setting[1],
            form=form,
            features=given,
            mse=metrics.mse(originals, redrawn),
            ssim=some.ssim,
            nearest_original=some.nearest_original,
            pictures=data_uris(redrawn[self._pictures.shown]),
        )

    def _kept(
        self, setting: Setting, form: InversionForm, given: str, make: Callable[[], InversionResult]
    ) -> InversionResult:
        if self.cache is None:
            return make()
        data = (self.subject.digest, self._pictures.digest)
        name = cache.key("inversion", VERSION, data, self.seed, self.settings, setting, form, given)
        stored = cache.kept_json("cells", name, lambda: asdict(make()), self.cache)
        return InversionResult(**{**stored, "pictures": tuple(stored["pictures"])})


@dataclass(frozen=True, eq=False)
class Task:
    """A piece of work that goes to another process whole."""

    studio: Studio
    setting: Setting
    redrawings: tuple[Redrawing, ...]

    def __call__(self) -> tuple[tuple[()], tuple[()], tuple[InversionResult, ...]]:
        return (), (), self.studio.redraw(self.setting, self.redrawings)
