"""What attacks and defenses work on: score vectors of records, and who was a member of the training set."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreveil.arrays import Floats as Floats
from scoreveil.arrays import Integers as Integers

Bools = NDArray[np.bool_]
Defense = Callable[[Floats], Floats]  # (n, k) scores in, (n, k) scores out: ours and every rival
FOLDS = 5  # of the records, for what is fitted on some and judged on others


@dataclass(frozen=True)
class CrossFitted:
    """A defense for each fold of the records, which was fitted on the others: nobody is answered by one that knows him.

    Scores from elsewhere, such as those of a shadow, are dealt to all of them in turn.
    """

    of_fold: tuple[Defense, ...]

    def __call__(self, scores: Floats) -> Floats:
        return self.of(scores, np.arange(len(scores)) % len(self.of_fold))

    def of(self, scores: Floats, fold: Integers) -> Floats:
        answers = np.array(scores, dtype=np.float64)
        for number, defense in enumerate(self.of_fold):
            these = fold == number
            if these.any():
                answers[these] = defense(scores[these])
        return answers


@dataclass(frozen=True, eq=False)
class Records:
    """Score vectors, with the true labels where they are known."""

    scores: Floats  # (n, k)
    labels: Integers | None = None  # (n,)
    variants: Integers | None = None  # (n, a): the labels that the model gives to augmented copies of the input
    fold: Integers | None = None  # (n,): the part that what is fitted to answer about a record leaves out

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def predicted(self) -> Integers:
        return np.asarray(self.scores.argmax(axis=1))

    @property
    def true_labels(self) -> Integers:
        """The labels; a ValueError where they are not known."""
        if self.labels is None:
            raise ValueError(f"Expected true labels with the {len(self)} records, got scores alone.")
        return self.labels

    @property
    def is_right(self) -> Bools:
        return np.asarray(self.predicted == self.true_labels)

    @cached_property
    def digest(self) -> str:
        return digest(self.scores, self.labels, self.variants)

    def take(self, index: Integers | Bools | slice) -> "Records":
        labels = None if self.labels is None else self.labels[index]
        variants = None if self.variants is None else self.variants[index]
        fold = None if self.fold is None else self.fold[index]
        return Records(self.scores[index], labels, variants, fold)

    def in_folds(self, rng: np.random.Generator) -> "Records":
        """With a fold for each."""
        return self if self.fold is not None else replace(self, fold=rng.permutation(len(self)) % FOLDS)

    def defended(self, defense: Defense) -> "Records":
        if isinstance(defense, CrossFitted) and self.fold is not None:
            return replace(self, scores=defense.of(self.scores, self.fold))
        return replace(self, scores=np.asarray(defense(self.scores), dtype=np.float64))


@dataclass(frozen=True, eq=False)
class Membership:
    """Records that a model was trained on, and records that it was not."""

    members: Records
    nonmembers: Records

    @property
    def classes(self) -> int:
        return int(self.members.scores.shape[1])

    @property
    def records(self) -> Records:
        """Members first, then non-members."""
        return joined(self)

    def __iter__(self) -> Iterator[Records]:
        yield self.members
        yield self.nonmembers

    def changed(self, change: Callable[[Records], Records]) -> "Membership":
        """Both sides, each changed likewise."""
        return Membership(*map(change, self))

    @property
    def is_labelled(self) -> bool:
        """Whether true labels are known on both sides."""
        return all(side.labels is not None for side in self)

    def without_fold(self, number: int) -> "Membership":
        """All but those of a fold."""
        return self.changed(lambda side: side.take(np.flatnonzero(side.fold != number)))

    @property
    def truth(self) -> Bools:
        return np.arange(len(self.members) + len(self.nonmembers)) < len(self.members)

    def defended(self, defense: Defense) -> "Membership":
        return self.changed(lambda side: side.defended(defense))

    def balanced(self, rng: np.random.Generator) -> "Membership":
        """As many members as non-members, so that always saying "member" is right half of the time."""
        size = min(len(self.members), len(self.nonmembers))
        return self.changed(lambda side: side.take(rng.permutation(len(side))[:size]))

    def halves(self, rng: np.random.Generator) -> tuple["Membership", "Membership"]:
        """Two disjoint halves: one to fit an attack on, one to test it on."""
        shuffled = self.changed(lambda side: side.take(rng.permutation(len(side))))
        first = shuffled.changed(lambda side: side.take(slice(len(side) // 2)))
        return first, shuffled.changed(lambda side: side.take(slice(len(side) // 2, None)))


def joined(parts: Iterable[Records]) -> Records:
    """All records after each other; labels and variants are kept where every part has them."""
    sides = list(parts)

    def together(arrays: list[Integers | None]) -> Integers | None:
        known = [array for array in arrays if array is not None]
        return np.concatenate(known) if len(known) == len(arrays) else None

    return Records(
        np.concatenate([side.scores for side in sides]),
        together([side.labels for side in sides]),
        together([side.variants for side in sides]),
        together([side.fold for side in sides]),
    )


def digest(*arrays: ArrayLike | None) -> str:
    """SHA-256 of the arrays' bytes, one after the other."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return state.hexdigest()
