"""The pictures of an inversion study, and pictures as the report shows them."""

import base64
import hashlib
import io
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.images import Images
from scoreveil.files.pictures import Pixels

SHOWN = 10


@dataclass(frozen=True, eq=False)
class Pictures:
    """The attacker's own pictures, and those to be redrawn, each with the target's undefended scores."""

    auxiliary: Images
    auxiliary_scores: Floats
    drawn: Images
    drawn_scores: Floats

    @cached_property
    def shown(self) -> Integers:
        """Which of the drawn pictures are shown: one of each class in turn."""
        turns = [np.flatnonzero(self.drawn.labels == label) for label in range(self.drawn.classes)]
        order = [turn[i] for i in range(SHOWN) for turn in turns if i < len(turn)]
        return np.asarray(order[:SHOWN], dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        scores = (np.ascontiguousarray(s).tobytes() for s in (self.auxiliary_scores, self.drawn_scores))
        parts = (self.auxiliary.digest.encode(), self.drawn.digest.encode(), *scores)
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()

    def originals(self) -> tuple[str, ...]:
        return data_uris(self.drawn.pixels[self.shown])


def data_uris(pixels: Pixels) -> tuple[str, ...]:
    """Each picture as a small WebP, ready to stand in a page: to look at, not to measure."""
    from PIL import Image

    uris = []
    for picture in pixels:
        rows = np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
        image = Image.fromarray(rows[0] if len(rows) == 1 else np.moveaxis(rows, 0, -1)).convert("RGB")
        buffer = io.BytesIO()
        image.save(buffer, "WEBP", quality=90, method=6)
        uris.append("data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode())
    return tuple(uris)
