"""Smoothing: the confidence is read around a record, not at it.

    from scoreveil import Smoothing, smoothed_scores

    smoothing = Smoothing(copies=16, scale=0.3, typical=X_public)
    scores = smoothed_scores(model.predict_proba, X, smoothing)

A model that has memorised a record is sure at it and less sure beside it. The label stays the model's own at the
record; its confidence becomes the mean of what the label scores at a few noisy copies. That takes the spike away,
without retraining or memory, and the same question has the same answer: the noise is drawn once.

Numbers move by a part of their spread among typical inputs, and whole numbers stay whole. Categories, booleans, one-hot
groups and columns that hardly vary are replaced now and then by a typical value. Pictures get noise, and move by a
pixel. Missing values stay missing. Texts cannot be smoothed. What this is worth, and for whom: docs/smoothing.md.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from scoreveil.arrays import Rows
from scoreveil.randomness import KeyedDraws
from scoreveil.shapes import VECTORS, Shape
from scoreveil.smoothing.forms import Inputs, arrays_of, like, taken
from scoreveil.smoothing.noise import drawn_noise
from scoreveil.smoothing.typical import Input, described, restored_part

MAX_COPIES, MAX_SCALE = 256, 2.0
HAIR = 2.0**-20  # that single precision still tells
AT_A_TIME = 1 << 20  # numbers of copies that are made at a time


class Smoothing:
    """Noisy copies of records, by the same noise for every record.

    Args:
        copies: How many the confidence is read at.
        scale: How far they lie from the record, in standard deviations of each column.
        typical: Inputs as clients send them: an array, a pandas DataFrame, or arrays by the names of inputs. Of these
            only rounded spreads, ranges and common categories are kept. Better public records than members.
        seed: Of the noise; by default it is drawn, as secrets are. It is saved with the veil, whose promise is about
            scores with this noise: who reads that file knows it.

    Raises:
        ValueError: An argument is out of range, or such inputs cannot be smoothed.
    """

    def __init__(
        self, copies: int = 16, scale: float = 0.3, typical: Inputs = None, *, seed: int | None = None
    ) -> None:
        if typical is None:
            raise ValueError("Give typical inputs, typical=X: noise is scaled by how they spread.")
        inputs = tuple(described(name, array) for name, array in arrays_of(typical).items())
        self._set(inputs, copies, scale, secrets.randbits(127) if seed is None else seed)

    def _set(self, inputs: tuple[Input, ...], copies: int, scale: float, seed: int) -> None:
        for name, value, least, most in (("copies", copies, 1, MAX_COPIES), ("seed", seed, 0, 2**127 - 1)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
                raise ValueError(f"Expected {name} to be a whole number from {least} to {most}.")
        if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale <= MAX_SCALE:
            raise ValueError(f"Expected a scale above 0, up to {MAX_SCALE:g}.")
        self.copies, self.scale, self.seed, self.inputs = int(copies), float(scale), int(seed), inputs
        secret = self.seed.to_bytes(16, "little")
        self._noise = {
            one.name: drawn_noise(one, self.copies, self.scale, KeyedDraws(secret, b"smoothing %d" % number))
            for number, one in enumerate(inputs)
        }
        if not any(noise.added.any() or noise.replaced for noise in self._noise.values()):
            raise ValueError("Expected typical inputs that differ, got columns of one value each.")

    @classmethod
    def restored(cls, settings: Mapping[str, Any]) -> "Smoothing":
        """The smoothing of these settings, as a file has them."""
        inputs = tuple(
            Input(str(one["name"]), tuple(map(int, one["sizes"])), tuple(map(restored_part, one["parts"])))
            for one in settings["inputs"]
        )
        smoothing = cls.__new__(cls)
        smoothing._set(inputs, settings["copies"], settings["scale"], settings["seed"])
        return smoothing

    def settings(self) -> dict[str, Any]:
        """The plain values that it is made of."""
        inputs = [
            {"name": one.name, "sizes": list(one.sizes), "parts": [part.settings() for part in one.parts]}
            for one in self.inputs
        ]
        return {"copies": self.copies, "scale": self.scale, "seed": self.seed, "inputs": inputs}

    def replaced(self, **settings: float) -> "Smoothing":
        """The same with another scale, seed or number of copies."""
        return Smoothing.restored({**self.settings(), **settings})

    def around(self, given: Inputs) -> Inputs:
        """Copies of records in the form in which these are given, (copies × rows): all first copies come first.

        Raises:
            ValueError: These are other inputs than the typical ones.
        """
        arrays, wanted = arrays_of(given), [one.name for one in self.inputs]
        first = next(iter(arrays.values()))
        is_matrix = len(arrays) == 1 and len(wanted) > 1 and first.shape[1:] == (len(wanted),)
        if is_matrix:  # a frame was typical, and these are its columns
            arrays = dict(zip(wanted, first.T, strict=True))
        elif len(arrays) == len(wanted) == 1:
            arrays = {wanted[0]: first}
        sizes = {name: math.prod(array.shape[1:]) for name, array in arrays.items()}
        if sizes != {one.name: one.size for one in self.inputs}:
            raise ValueError("These inputs have other names or sizes than the typical ones that smoothing was made of.")
        copies = {}
        for one in self.inputs:
            array = arrays[one.name]
            around = self._noise[one.name].around(array.reshape(len(array), *one.sizes))
            copies[one.name] = around.reshape(len(around), *array.shape[1:])
        return like(given, {"": np.stack(list(copies.values()), axis=1)} if is_matrix else copies, self.copies)

    @property
    def rows_at_a_time(self) -> int:
        """Of how many records copies are made at a time, so that they fit into memory."""
        return max(1, AT_A_TIME // (self.copies * sum(one.size for one in self.inputs)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Smoothing) and self.settings() == other.settings()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Smoothing: {self.copies} copies at scale {self.scale:g}>"


def smoothed_scores(
    predict_proba: Callable[[Inputs], Any], X: Inputs, smoothing: Smoothing, shape: Shape = VECTORS
) -> Rows:
    """Scores read around each record: the label is the model's own at the record, its score the mean over copies.

    Args:
        predict_proba: The model: scores (n, k) of inputs like X, or what the shape says.
        X: Inputs like the typical ones.
        smoothing: The copies.
        shape: How scores are served, where they are not vectors.
    """
    rows = len(next(iter(X.values()))) if isinstance(X, Mapping) else len(X)
    parts = []
    for first in range(0, max(rows, 1), smoothing.rows_at_a_time):
        part = taken(X, first, first + smoothing.rows_at_a_time)
        own, around = np.asarray(predict_proba(part)), np.asarray(predict_proba(smoothing.around(part)))
        parts.append(averaged(own, around, shape))
    return np.concatenate(parts)


def averaged(own: Rows, around: Rows, shape: Shape = VECTORS) -> Rows:
    """The scores of `smoothed_scores`, of what a model answers at records and at their copies.

    Where the mean puts another class first, as much certainty of the label is mixed in as makes it first by a hair.

    Raises:
        ValueError: Such scores cannot be averaged.
    """
    if not shape.can_smooth:
        raise ValueError("Lists of the largest scores, and scores of places, cannot be smoothed: copies have others.")
    mean = around.reshape(-1, *own.shape).mean(axis=0, dtype=np.float64)
    scores, own_scores = shape.vectors(mean), shape.vectors(own)
    label = own_scores.argmax(axis=-1)[..., None]
    behind = scores.max(axis=-1, keepdims=True) - np.take_along_axis(scores, label, axis=-1)
    is_first = scores.argmax(axis=-1)[..., None] == label
    mixed = np.where(is_first, 0.0, behind / (1 + behind) + HAIR)
    smooth = (1 - mixed) * scores
    np.put_along_axis(smooth, label, np.take_along_axis(smooth, label, axis=-1) + mixed, axis=-1)
    return np.asarray(shape.restored(smooth, own))
