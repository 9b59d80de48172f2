"""The noise of each copy, drawn once: what is added to numbers, and what takes the place of categories."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Rows
from scoreveil.randomness import KeyedDraws
from scoreveil.smoothing.typical import Input, Numbers, is_missing

REPLACED = 1.0  # probability that a category is replaced, for each unit of scale


@dataclass(frozen=True, eq=False)
class Noise:
    """What is added to numbers, what takes the place of values, and by how much pictures move."""

    added: Floats  # (copies, *sizes)
    low: Floats
    high: Floats
    whole: NDArray[np.bool_]
    replaced: list[tuple[int, int, Any]]  # copy, column, value
    axes: tuple[int, ...]
    steps: NDArray[np.int64]  # (copies, axes)

    def around(self, records: Rows) -> Rows:
        """The copies of records, (copies × rows, *sizes)."""
        copies = np.repeat(records[None], len(self.added), axis=0)
        for copy, steps in enumerate(self.steps.tolist()):
            for axis, step in zip(self.axes, steps, strict=True):
                places = (np.arange(copies.shape[axis + 2]) - step).clip(0, copies.shape[axis + 2] - 1)
                copies[copy] = np.take(copies[copy], places, axis=axis + 1)
        if self.added.any():
            own = copies.astype(np.float64)
            noisy = own + self.added[:, None]
            noisy = np.where(self.whole, np.rint(noisy), noisy)
            # a record outside the range of typical ones stays there
            noisy = np.clip(noisy, np.minimum(self.low, own), np.maximum(self.high, own))
            copies = np.where(self.added[:, None] == 0, copies, noisy.astype(copies.dtype))
        columns = copies.reshape(len(self.added), len(records), math.prod(records.shape[1:]))
        for copy, column, value in self.replaced:
            values = columns[copy, :, column]
            if values.dtype == object:
                text = str(value).encode() if len(values) and isinstance(values[0], bytes) else value
                columns[copy, :, column] = [own if is_missing(own) else text for own in values]
            else:
                columns[copy, :, column] = np.where(values == values, values.dtype.type(value), values)
        return columns.reshape(len(self.added) * len(records), *records.shape[1:])


def drawn_noise(described: Input, copies: int, scale: float, draws: KeyedDraws) -> Noise:
    def uniforms(use: int, columns: int) -> Floats:
        messages = (np.arange(copies, dtype="<u4") | np.uint32(use << 16)).view(np.uint8).reshape(copies, 4)
        return draws.uniforms(messages, columns + 1)[:, :columns]

    size, at = described.size, 0
    half = -(-size // 2)
    drawn = uniforms(0, 2 * half)
    radius, angle = np.sqrt(-2 * np.log1p(-drawn[:, :half])), 2 * np.pi * drawn[:, half:]
    # rounded, so that every machine has the same
    normals = np.round(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :size], 6)
    spread, low, high, whole = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size, dtype=bool)
    whether, which = (uniforms(use, len(described.parts)) for use in (1, 2))
    replaced: list[tuple[int, int, Any]] = []
    for number, part in enumerate(described.parts):
        if isinstance(part, Numbers):
            to = size if len(described.sizes) > 1 else at + 1
            spread[at:to], low[at:to], high[at:to], whole[at:to] = part.spread, part.low, part.high, part.whole
        else:
            reached = np.cumsum(part.shares) / sum(part.shares)
            for copy in np.flatnonzero(whether[:, number] < REPLACED * scale).tolist():
                row = part.values[min(int(np.searchsorted(reached, which[copy, number], "right")), len(reached) - 1)]
                replaced += [(copy, at + place, value) for place, value in enumerate(row)]
        at += part.width
    steps = np.floor(3 * uniforms(3, len(described.axes))).astype(np.int64) - 1
    added = (scale * spread * normals).reshape(copies, *described.sizes)
    low, high, whole = low.reshape(described.sizes), high.reshape(described.sizes), whole.reshape(described.sizes)
    return Noise(added, low, high, whole, replaced, described.axes, steps)
