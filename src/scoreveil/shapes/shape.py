"""What every shape is, and shapes by name."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats as Floats
from scoreveil.arrays import Rows
from scoreveil.mechanisms.scores import Array, BadRow, check_rows, is_floating, to_numpy

PIECE = 1 << 16  # scores of vectors that are made at a time: what stays in a processor's cache
CHECKED = 256  # rows that are looked through at a time, once some are bad

_named: dict[str, type["Shape"]] = {}


@dataclass(frozen=True)
class Shape(ABC):
    """A way to serve scores. Subclasses are frozen dataclasses, and register under their name.

    A shape is what its methods answer: `check_layout`, `vectors`, `restored` and `words` make one. The others have a
    default, which holds where every record has one vector.
    """

    name: ClassVar[str] = ""
    words: ClassVar[str]  # what ε means for an answer of this shape, a sentence
    crowd: ClassVar[str] = ""  # and what an advantage against the crowd means, where that needs one
    title: ClassVar[str] = ""  # what it is, in words, beside an output
    noun: ClassVar[str] = "classes"  # what its columns are
    expected: ClassVar[str] = "scores of its shape"  # what an array of it holds

    is_plain: ClassVar[bool] = False  # the scores are the vectors, one for each record
    is_column: ClassVar[bool] = False  # a record has one number, of two classes
    is_list: ClassVar[bool] = False  # some of many classes, whose scores may sum to less than 1
    is_binary: ClassVar[bool] = False  # each score is a yes or no of its own, with a threshold
    sums_to_one: ClassVar[bool] = False  # along the last axis
    has_labels: ClassVar[bool] = False  # a record has several labels, each fitted and judged by itself
    has_places: ClassVar[bool] = False  # a record has a vector at each of several places

    can_smooth: ClassVar[bool] = True
    why_not_fitted: ClassVar[str] = ""  # nor attacked; a sentence, empty where they are
    why_not_audited: ClassVar[str] = ""

    def __init_subclass__(cls, name: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if name:
            cls.name = name
            _named[name] = cls

    # Scores as vectors, and back

    @abstractmethod
    def check_layout(self, layout: Sequence[int]) -> None:
        """Raise ValueError where arrays of this layout (`scores.shape`) are not of this shape, whatever they hold."""

    def check_array(self, scores: Array) -> None:
        """The same of an array of any library, and where it does not hold floating-point numbers."""
        if not is_floating(scores):
            raise ValueError(f"Expected floating-point scores, got dtype {scores.dtype}.")
        self.check_layout(scores.shape)

    def check(self, scores: Rows, first_row: int = 0) -> None:
        """Raise ValueError naming the first row, and column, that is not of this shape; no score is quoted."""
        self.check_layout(scores.shape)
        vectors = self.vectors(scores)
        with self.placing(scores.shape, first_row):
            check_rows(vectors.reshape(-1, vectors.shape[2]))

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

    def checked(self, given: Array) -> Floats:
        """Scores of any library, or lists of them, as a checked array of float64."""
        rows = np.asarray(to_numpy(given))
        if rows.dtype.kind != "f":
            raise ValueError(f"expected floating-point scores, got dtype {rows.dtype}.")
        self.check(rows)
        return rows.astype(np.float64)

    def records(self, scores: Rows) -> Rows:
        """The same scores with an axis of records first: one record may come without."""
        return np.atleast_2d(scores)

    def said(self, served: Rows) -> Floats:
        """What served scores say of every release, (releases, classes), summing to 1, whatever the thresholds."""
        vectors = self.vectors(served)
        return np.asarray(vectors.reshape(-1, vectors.shape[2]))

    def even(self, layout: Sequence[int]) -> Rows:
        """Scores of this layout that stand for vectors of equal scores."""
        self.check_layout(layout)
        like = np.full(layout, 1 / layout[-1])
        vectors = self.vectors(like)
        return self.restored(np.full(vectors.shape, 1 / vectors.shape[2]), like)

    def piece(self, layout: Sequence[int]) -> int:
        """How many records of an array of this layout are turned into vectors at a time."""
        return max(1, PIECE // (2 * self.releases(layout)))

    # What an answer holds

    def of(self, axes: int) -> "Shape":
        """The shape that an array with so many axes has, where it speaks for itself."""
        return self

    def counted(self, layout: Sequence[int]) -> tuple[int, ...]:
        """The axes of a layout along which each record has a release beside the other: none where it has one."""
        return ()

    def releases(self, layout: Sequence[int]) -> int:
        """How many vectors each record has in an array of this layout (`scores.shape`)."""
        return math.prod(self.counted(layout))

    @property
    def labels(self) -> int | None:
        """How many labels each record has, where that is known before there are scores."""
        return None

    @property
    def holds_several(self) -> bool:
        """Whether an answer may hold several releases."""
        return self.has_labels or self.has_places

    def placed(self, bad: BadRow, layout: Sequence[int], first: int = 0) -> BadRow:
        """A bad vector, spoken of as the record, from the first on, that it stands in."""
        return BadRow(first + bad.row // self.releases(layout), bad.fault, advice=bad.advice)

    @contextmanager
    def placing(self, layout: Sequence[int], first: int = 0) -> Iterator[None]:
        """Bad vectors of the block are spoken of as the records that they stand in."""
        try:
            yield
        except BadRow as bad:
            raise self.placed(bad, layout, first) from None

    def faults(self, scores: Rows) -> list[BadRow]:
        """The records that are not of this shape, each with what is wrong with it first."""
        bad_rows = []
        for start in range(0, len(scores), CHECKED):
            row, end = start, min(start + CHECKED, len(scores))
            while row < end:
                try:
                    self.check(scores[row:end], row)
                    break
                except BadRow as bad:
                    bad_rows.append(bad)
                    row = bad.row + 1
        return bad_rows

    # What stands around the scores

    @property
    def takes_logits(self) -> bool:
        """Whether scores are logits, ln(p / (1 - p)), and so are answers."""
        return False

    def thresholds(self, labels: int = 1) -> tuple[float, ...]:
        """From where on each of so many labels is yes, where they are a yes or no."""
        return (0.5,) * labels

    def by_label(self, labels: int) -> tuple["Shape", ...]:
        """How each of so many labels is served by itself."""
        return (self,)

    def of_logits(self, logits: Rows) -> Rows:
        """Probabilities of what a model gives before its last layer, in its dtype: the softmax of the last axis."""
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def of_classes(self, scores: Rows) -> Rows:
        """Probabilities of all classes, (n, k), as they are served."""
        return scores

    def predicted(self, scores: Rows) -> NDArray[np.int64]:
        """The class that these answers name, of probabilities of all classes, (n, k)."""
        return np.asarray(scores.argmax(axis=1))

    def check_columns(self, scores: Rows) -> None:  # noqa: B027  (most shapes have nothing to hide there)
        """Raise ValueError where the places of scores (n, k) in a table tell what is to be veiled."""

    def check_pairs(self) -> None:  # noqa: B027  (most shapes take them)
        """Raise ValueError where lists of labels and scores cannot be of this shape."""

    def settings(self) -> dict[str, Any]:
        """The plain values that it is made of, its name among them."""
        return {"shape": self.name, **{option: getattr(self, option) for option in _options(type(self))}}


def given(shape: Any) -> Shape:
    """A shape that someone gave, or ValueError."""
    if not isinstance(shape, Shape):
        got = f"the class {shape.__name__}; add the parentheses" if isinstance(shape, type) else type(shape).__name__
        raise ValueError(f"Expected a shape such as Binary(), got {got}.")
    return shape


def said_beside(own: Shape, said: Shape, refusal: str) -> Shape:
    """The shape of a veil: its own, or where it has the default the one that is said beside it.

    Raises:
        ValueError: It has its own, and another one is said; with this refusal.
    """
    if not (own.is_plain or said.is_plain):
        raise ValueError(refusal)
    return said if own.is_plain else own


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
