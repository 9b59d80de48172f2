"""Many labels, each with a map of its own: the rows of a record come one after the other, a row for each label."""

from collections.abc import Callable
from dataclasses import dataclass

from scoreveil.arrays import Floats, Rows
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Arrays, Mechanism, Settings
from scoreveil.mechanisms.region_words import guarantee_of_labels
from scoreveil.mechanisms.regions import Regions
from scoreveil.mechanisms.scores import Array, namespace


@dataclass(frozen=True, eq=False)
class PerLabel(Mechanism, name="per_label"):
    """Fitted maps, one for each label, all with the same ε or all without.

    Attributes:
        epsilon: That of every map.
        maps: One for each label.
    """

    maps: tuple[Regions, ...] = ()

    is_fitted = True
    kernels = "scoreveil.mechanisms.kernels.regions"

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __post_init__(self) -> None:
        if not self.maps or any(one.epsilon != self.epsilon or one.classes != 2 for one in self.maps):
            raise ValueError("Expected a fitted map of yes and no for each label, all with the same ε.")

    @classmethod
    def of(cls, maps: tuple[Regions, ...]) -> "PerLabel":
        return cls(maps[0].epsilon, maps)

    @property
    def together(self) -> int:
        return len(self.maps)

    @property
    def classes(self) -> int:
        return 2

    @property
    def is_constant(self) -> bool:
        return all(one.is_constant for one in self.maps)

    def with_overlap(self) -> "PerLabel":
        return PerLabel.of(tuple(one.with_overlap() for one in self.maps))

    def draws(self, classes: int) -> int:
        return self.maps[0].draws(classes)

    def perturb(self, rows: Array, uniforms: Array) -> Array:
        return self._interleaved(rows, lambda one, part: one.perturb(rows[part, ...], uniforms[part, ...]))

    def outcomes(self, rows: Rows, uniforms: Floats) -> Rows:
        return self._interleaved(rows, lambda one, part: one.outcomes(rows[part], uniforms[part]))

    def answers(self, rows: Rows, outcomes: Rows) -> Rows:
        return self._interleaved(rows, lambda one, part: one.answers(rows[part], outcomes[part]))

    def cells(self, rows: Rows) -> tuple[Rows, Rows]:
        label = rows.argmax(axis=1)[:, None]
        return label, self._interleaved(rows, lambda one, part: one.cells(rows[part])[1])

    def _interleaved(self, rows: Array, answer: Callable[[Regions, slice], Array]) -> Array:
        """What each label's map answers to its rows, in the order of the rows."""
        xp = namespace(rows)
        parts = [answer(one, slice(i, None, self.together)) for i, one in enumerate(self.maps)]
        return xp.reshape(xp.stack(parts, axis=1), (rows.shape[0], -1))

    def guarantee(self, classes: int | None = None) -> Guarantee:
        return self.remembered("guarantee", lambda: guarantee_of_labels(self.maps))

    def loss(self, scores: Floats, other: Floats) -> float:
        """Of the label that loses most."""
        return max(one.loss(scores, other) for one in self.maps)

    def verify(self) -> None:
        """Recompute every promise of every label."""
        for one in self.maps:
            one.verify()

    def settings(self) -> Settings:
        return {"labels": [one.settings() for one in self.maps]}

    def summary(self) -> Settings:
        return {**self.maps[0].summary(), "regions": [one.size for one in self.maps]}

    @classmethod
    def restored(cls, settings: Settings, arrays: Arrays) -> "PerLabel":
        return cls.of(tuple(Regions.restored(label, arrays) for label in settings["labels"]))

    def __reduce__(self) -> tuple[object, ...]:
        return PerLabel.of, (self.maps,)

    def __str__(self) -> str:
        return f"{len(self.maps)} labels, each: {self.maps[0]}"
