"""Many labels, each with a map of its own: the rows of a record come one after the other, a row for each label."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scoreveil.arrays import Floats, Rows
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Arrays, Mechanism
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
        if not self.maps or any(each.epsilon != self.epsilon or each.classes != 2 for each in self.maps):
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
        return all(each.is_constant for each in self.maps)

    def with_overlap(self) -> "PerLabel":
        return PerLabel.of(tuple(each.with_overlap() for each in self.maps))

    def draws(self, classes: int) -> int:
        return self.maps[0].draws(classes)

    def perturb(self, rows: Array, uniforms: Array) -> Array:
        return self._interleaved(rows, lambda label_map, part: label_map.perturb(rows[part, ...], uniforms[part, ...]))

    def outcomes(self, rows: Rows, uniforms: Floats) -> Rows:
        return self._interleaved(rows, lambda label_map, part: label_map.outcomes(rows[part], uniforms[part]))

    def answers(self, rows: Rows, outcomes: Rows) -> Rows:
        return self._interleaved(rows, lambda label_map, part: label_map.answers(rows[part], outcomes[part]))

    def cells(self, rows: Rows) -> tuple[Rows, Rows]:
        label = rows.argmax(axis=1)[:, None]
        return label, self._interleaved(rows, lambda label_map, part: label_map.cells(rows[part])[1])

    def _interleaved(self, rows: Array, answer: Callable[[Regions, slice], Array]) -> Array:
        """What each label's map answers to its rows, in the order of the rows."""
        xp = namespace(rows)
        parts = [answer(label_map, slice(i, None, self.together)) for i, label_map in enumerate(self.maps)]
        return xp.reshape(xp.stack(parts, axis=1), (rows.shape[0], -1))

    def guarantee(self, classes: int | None = None) -> Guarantee:
        return self.remembered("guarantee", lambda: guarantee_of_labels(self.maps))

    def loss(self, scores: Floats, other: Floats) -> float:
        """Of the label that loses most."""
        return max(each.loss(scores, other) for each in self.maps)

    def verify(self) -> None:
        """Recompute every promise of every label."""
        for each in self.maps:
            each.verify()

    def settings(self) -> dict[str, Any]:
        return {"labels": [each.settings() for each in self.maps]}

    def summary(self) -> dict[str, Any]:
        return {**self.maps[0].summary(), "regions": [each.size for each in self.maps]}

    @classmethod
    def restored(cls, settings: dict[str, Any], arrays: Arrays) -> "PerLabel":
        return cls.of(tuple(Regions.restored(each, arrays) for each in settings["labels"]))

    def __reduce__(self) -> tuple[Any, ...]:
        return PerLabel.of, (self.maps,)

    def __str__(self) -> str:
        return f"{len(self.maps)} labels, each: {self.maps[0]}"
