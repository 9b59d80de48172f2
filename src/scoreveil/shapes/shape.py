"""What every shape is, and shapes by name."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]
Floats = NDArray[np.float64]

PIECE = 1 << 16  # scores of vectors that are made at a time: what stays in a processor's cache

_named: dict[str, type["Shape"]] = {}


@dataclass(frozen=True)
class Shape(ABC):
    """A way to serve scores. Subclasses are frozen dataclasses, and register under their name."""

    name: ClassVar[str]
    words: ClassVar[str]  # what ε means for an answer of this shape, a sentence
    crowd: ClassVar[str] = ""  # and what an advantage against the crowd means, where that needs one

    def __init_subclass__(cls, name: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.name = name
        _named[name] = cls

    @abstractmethod
    def check_layout(self, layout: Sequence[int]) -> None:
        """Raise ValueError where arrays of this layout (`scores.shape`) are not of this shape, whatever they hold."""

    def check(self, scores: Rows, first_row: int = 0) -> None:
        """Raise ValueError naming the first row, and column, that is not of this shape; no score is quoted."""
        self.check_layout(scores.shape)

    @abstractmethod
    def vectors(self, scores: Rows) -> Rows:
        """The score vectors of every record: (records, releases of a record, classes)."""

    def read(self, scores: Rows, first_row: int = 0) -> Rows:
        """The score vectors of every record, which are checked first."""
        self.check(scores, first_row)
        return self.vectors(scores)

    @abstractmethod
    def restored(self, veiled: Rows, like: Rows) -> Rows:
        """Veiled vectors as `like` has its scores: of its shape and dtype, with its labels."""

    def records(self, scores: Rows) -> Rows:
        """The same scores with an axis of records first: one record may come without."""
        return np.atleast_2d(scores)

    def releases(self, layout: Sequence[int]) -> int:
        """How many vectors each record has in an array of this layout (`scores.shape`)."""
        return 1

    def piece(self, layout: Sequence[int]) -> int:
        """How many records of an array of this layout are turned into vectors at a time."""
        return max(1, PIECE // (2 * self.releases(layout)))

    def place(self, vector: int, layout: Sequence[int]) -> tuple[int, str]:
        """The record that the vector of this number belongs to, and where in it, for messages."""
        return vector // self.releases(layout), ""

    def check_columns(self, scores: Rows) -> None:  # noqa: B027  (most shapes have nothing to hide there)
        """Raise ValueError where the places of scores (n, k) in a table tell what is to be veiled."""

    def settings(self) -> dict[str, Any]:
        """The plain values that it is made of, its name among them."""
        return {"shape": self.name, **{option: getattr(self, option) for option in _options(type(self))}}


def make(name: str, **options: Any) -> Shape:
    """The shape of a name; an option that is None counts as not given.

    Raises:
        ValueError: There is no such shape, or it has no such option, or does not take this value.
    """
    if name not in _named:
        raise ValueError(f"There is no shape {name!r}; there are {', '.join(sorted(_named))}.")
    kind = _named[name]
    given = {option: value for option, value in options.items() if value is not None}
    known = _options(kind)
    for option in given:
        if option not in known:
            raise ValueError(f"The shape {name!r} has no {option}; it has {', '.join(known) or 'no options'}.")
    return kind(**given)


def restored(settings: dict[str, Any]) -> Shape:
    """The shape of these settings, as a file has them."""
    return make(settings["shape"], **{option: value for option, value in settings.items() if option != "shape"})


def _options(kind: type[Shape]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]
