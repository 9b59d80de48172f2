"""What a mechanism is: a frozen value that turns scores and uniform draws into answers.

    @dataclass(frozen=True)
    class Constant(Mechanism, name="constant"):
        epsilon: float

        def draws(self, classes): ...
        def perturb(self, rows, uniforms): ...
        def cells(self, rows): ...
        def guarantee(self, classes=None): ...
        def loss(self, scores, other): ...

Such a class is all that it takes: `Veil`, keyed answers, accounting, files, the gateway and the integrations know
mechanisms through this interface and by no other way. Its dataclass fields are its options, wherever they are given:
in Python, in a configuration, on the command line.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np

from scoreveil.arrays import Floats, Rows
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.scores import Array, check_epsilon

T = TypeVar("T")
Arrays = dict[str, Rows]
Settings = dict[str, Any]  # plain values, as files hold them

DEFAULT_MECHANISM = "isotonic"

_registered: dict[str, type["Mechanism"]] = {}


@dataclass(frozen=True)
class Mechanism(ABC):
    """A randomised way to answer with scores. Subclasses are frozen dataclasses, and register under their name."""

    epsilon: float

    name: ClassVar[str]
    is_fitted: ClassVar[bool] = False  # made by `scoreveil.fit`, and not set by an ε
    kernels: ClassVar[str | None] = None  # a module with the same mechanism as compiled loops (`loading.py`)

    def __init_subclass__(cls, name: str, **more: object) -> None:
        super().__init_subclass__(**more)
        cls.name = name
        _registered[name] = cls

    def __post_init__(self) -> None:
        if isinstance(self.epsilon, (np.floating, np.integer)):
            object.__setattr__(self, "epsilon", self.epsilon.item())
        check_epsilon(self.epsilon)
        object.__setattr__(self, "epsilon", float(self.epsilon))

    # The draw

    @abstractmethod
    def draws(self, classes: int) -> int:
        """How many uniforms one row of so many classes uses."""

    @abstractmethod
    def perturb(self, rows: Array, uniforms: Array) -> Array:
        """Answers to an (n, k) batch from (n, draws) uniforms in [0, 1), in plain operations of the array's library."""

    @abstractmethod
    def cells(self, rows: Rows) -> tuple[Rows, Rows]:
        """What a keyed answer may depend on: the kept classes of each row, and the cell that its scores lie in."""

    def outcomes(self, rows: Rows, uniforms: Floats) -> Rows:
        """What is drawn for an (n, k) batch, (n, draws) whole numbers below 2^16: with the kept classes, the answer.

        Raises:
            ValueError: The answers of this mechanism tell more than such numbers do.
        """
        raise ValueError(f"Answers of the {self.name} mechanism cannot be kept as whole numbers.")

    @property
    def different_answers(self) -> int | None:
        """How many outcomes there are, where the label is all that is kept; None where more is."""
        return None

    def answers(self, rows: Rows, outcomes: Rows) -> Rows:
        """The answers to a batch with these outcomes: of the rows' scores only the kept classes count."""
        raise ValueError(f"Answers of the {self.name} mechanism cannot be made from whole numbers.")

    def keyed(self) -> "Mechanism":
        """The mechanism that keyed draws use: one whose answers depend on the cell alone. By default itself."""
        return self

    @property
    def together(self) -> int:
        """How many rows belong together: a batch is cut between such groups only."""
        return 1

    def remembered(self, what: Hashable, compute: Callable[[], T]) -> T:
        """What is computed once for this value, and forgotten with it: tables, kernels."""
        memory: dict[Hashable, object] = vars(self).setdefault("_memory", {})
        if what not in memory:
            memory[what] = compute()
        return cast(T, memory[what])

    def __getstate__(self) -> Settings:
        return {name: value for name, value in vars(self).items() if name != "_memory"}

    # The promise

    @abstractmethod
    def guarantee(self, classes: int | None = None) -> Guarantee:
        """What one release promises; with the number of classes, as exactly as it is known."""

    @abstractmethod
    def loss(self, scores: Floats, other: Floats) -> float:
        """The exact sup over outcomes of ln P(outcome | scores) - ln P(outcome | other), two score vectors."""

    # As data

    @property
    def classes(self) -> int | None:
        """How many classes it was fitted for; None where it takes any number."""
        return None

    def as_table(self, scores: Floats) -> Settings | None:
        """The table that answers to this score vector are drawn from, as people read it; None where there is none."""
        return None

    def settings(self) -> Settings:
        """The plain values that it is made of, for files and names."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def maps(self) -> tuple[Any, ...]:
        """The fitted maps that it is made of, one or one for each label; none where it is not fitted."""
        return ()

    def summary(self) -> Settings:
        """The settings that tell it from others at a glance, for manifests."""
        return self.settings()

    def arrays(self) -> Arrays:
        """The arrays that it is made of, beside the settings."""
        return {}

    @classmethod
    def restored(cls, settings: Settings, arrays: Arrays) -> Self:
        """The mechanism of these settings and arrays."""
        if arrays:
            raise ValueError(f"The {cls.name} mechanism has no arrays.")
        return cls(**settings)

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """The names of its options besides epsilon; none where it is fitted, not set."""
        if cls.is_fitted:
            return ()
        return tuple(field.name for field in fields(cls) if field.name != "epsilon" and not field.name.startswith("_"))

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())


def names() -> tuple[str, ...]:
    """The names of all mechanisms that have been defined."""
    return tuple(_registered)


def settable_names() -> tuple[str, ...]:
    """The names of those that an ε sets, and no fit."""
    return tuple(name for name, kind in _registered.items() if not kind.is_fitted)


def named(name: str) -> type[Mechanism]:
    """The mechanism of a name.

    Raises:
        ValueError: There is none of that name.
    """
    if not isinstance(name, str) or name not in _registered:
        raise ValueError(f"There is no mechanism {name!r}; there are {', '.join(names())}.")
    return _registered[name]


def make(epsilon: float, mechanism: str, **options: object) -> Mechanism:
    """The mechanism of a name with these options; an option that is None counts as not given.

    Raises:
        ValueError: The mechanism has no such option, or it does not take this value.
    """
    kind = named(mechanism)
    if kind.is_fitted:
        raise ValueError(f"The {kind.name} mechanism is fitted: make one with scoreveil.fit, or load a veil.")
    options = {name: value for name, value in options.items() if value is not None}
    for name in options:
        if name not in kind.options():
            known = ", ".join(kind.options()) or "no options"
            raise ValueError(f"The {kind.name} mechanism has no option {name!r}; it has {known}.")
    return kind(epsilon, **options)
