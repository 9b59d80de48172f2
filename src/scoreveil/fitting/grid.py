"""The fixed bins that score vectors fall into. No data in them.

    a    the logit of the top score, in equal steps from 1/k to 1 - NEAREST
    b    the second score over all but the top one: how the rest is spread, from 1/(k-1), evenly, to 1, on one class

Two classes have no rest, and few records support no second number: then there is one strip, and bins are steps of a.
The members' histogram has `STEPS` steps; that of the others, whose noise is less, has each of them in `PARTS`, which
says where to cut a bin.
"""

import math
from dataclasses import dataclass

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.mechanisms.regions import top_and_strip

STEPS, PARTS, NEAREST = 12, 4, 1e-5
# where the strips of b begin; not at simple fractions, which the scores of small forests are
STRIPS = (0.413, 0.513, 0.613, 0.713, 0.827, 0.937)
PAIRS = 2000  # records of each side from which on the second number is read


@dataclass(frozen=True)
class Grid:
    """The bins of k classes, with or without the second number."""

    classes: int
    pairs: bool

    @property
    def strips(self) -> Floats:
        """Where the second and later strips of b begin."""
        return np.array(STRIPS if self.pairs else ())

    @property
    def bins(self) -> int:
        return STEPS * (len(self.strips) + 1)

    @property
    def fine_edges(self) -> Floats:
        low, high = -math.log(self.classes - 1), math.log((1 - NEAREST) / NEAREST)
        return np.asarray(1 / (1 + np.exp(-np.linspace(low, high, STEPS * PARTS + 1)[1:-1])))

    def fine(self, scores: Floats) -> Integers:
        """The fine bin of each row (n,): strip, then step, then part."""
        _, top, strip = top_and_strip(scores, self.strips)
        step = np.searchsorted(self.fine_edges, top, side="right")
        return np.asarray(strip * STEPS * PARTS + step)
