"""Images in disjoint parts, drawn at random.

parts = five_way_split(benchmarks.load("fashion-mnist"), size=10_000, reference=5_000, seed=0)
parts.target_train, parts.target_test, parts.shadow_train, parts.shadow_test, parts.reference
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scoreveil.audit.data.images import Images


@dataclass(frozen=True, eq=False)
class Parts:
    """Disjoint images: what the target and its shadow are trained on, what they never saw, and a public reference."""

    target_train: Images
    target_test: Images
    shadow_train: Images
    shadow_test: Images
    reference: Images


def split(images: Images, sizes: Sequence[int], seed: int) -> tuple[Images, ...]:
    """Disjoint parts of these sizes, drawn at random."""
    if not min(sizes, default=0) >= 0:
        raise ValueError(f"Expected sizes >= 0, got {list(sizes)}.")
    if sum(sizes) > len(images):
        raise ValueError(f"Expected at least {sum(sizes)} images in {images.name} for this split, got {len(images)}.")
    order = np.random.default_rng(seed).permutation(len(images))
    ends = np.cumsum([0, *sizes])
    return tuple(images.take(order[start:end]) for start, end in pairwise(ends))


def five_way_split(images: Images, size: int, reference: int, seed: int) -> Parts:
    """Four parts of `size` images and a reference."""
    return Parts(*split(images, [size] * 4 + [reference], seed))
