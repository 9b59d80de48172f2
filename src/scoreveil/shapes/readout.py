"""What a fitted veil says of its answers, where they are a yes or no."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ReadOut:
    """What a fitted veil says of each answer of its table: how often it is yes, for each label and side.

    It is a function of what is released anyway, the label's yes or no and the answer, so it tells nothing more.

    Attributes:
        announced: The top of a veiled vector, which tells the answers apart, ascending: (answers,).
        yes: How often a label is yes where the model says no, and where it says yes: (labels, 2, answers).
    """

    announced: Floats
    yes: Floats

    def __post_init__(self) -> None:
        for name in ("announced", "yes"):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != np.float64:
                raise ValueError(f"Expected {name} of a read-out to be an array of float64.")
            copy = np.array(array, order="C")
            copy.flags.writeable = False
            object.__setattr__(self, name, copy)
        answers = self.announced.size
        if self.announced.ndim != 1 or self.yes.ndim != 3 or self.yes.shape[1:] != (2, answers) or not answers:
            raise ValueError(f"Expected a read-out (labels, 2, answers), got {self.yes.shape} for {answers} answers.")
        if not (np.all(np.diff(self.announced) > 0) and np.all((self.yes >= 0) & (self.yes <= 1))):
            raise ValueError("Expected announced values of a read-out that ascend, and probabilities.")

    @property
    def labels(self) -> int:
        return int(self.yes.shape[0])

    def __call__(self, vectors: Floats, yes: NDArray[np.bool_]) -> Floats:
        """The probabilities (n, labels) of veiled vectors (n, labels, 2), for these sides."""
        top = np.maximum(vectors[..., 0], vectors[..., 1])
        at = yes + 2 * np.arange(self.labels)
        at *= len(self.announced)
        for between in (self.announced[1:] + self.announced[:-1]) / 2:  # there are a few
            at += top > between
        return np.asarray(self.yes.ravel().take(at))
