"""Choices that are made once per record: draws that are a function of the score vector."""

import numpy as np

from scoreveil.arrays import Floats
from scoreveil.randomness import KeyedDraws


def sticky_uniforms(scores: Floats, seed: int, purpose: str) -> Floats:
    """One uniform in [0, 1) for each row, the same whenever the same score vector comes again."""
    draws = KeyedDraws(seed.to_bytes(32, "little", signed=True), purpose.encode())
    rows = np.ascontiguousarray(scores + 0.0, dtype="<f8")  # + 0.0: a zero has one sign
    return draws.uniforms(rows.view(np.uint8), 1)[:, 0]
