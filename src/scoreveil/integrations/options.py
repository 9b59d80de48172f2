"""What every integration passes on to `Veil`, and no default of its own."""

from typing import Any, TypedDict

from scoreveil.mechanisms.isotonic import Keep
from scoreveil.mechanisms.published import Reading
from scoreveil.mechanisms.reference import Reference
from scoreveil.mechanisms.scores import Array
from scoreveil.veil import Mechanism


class VeilOptions(TypedDict, total=False):
    """The keyword arguments of `Veil`, all optional."""

    mechanism: Mechanism
    keep: Keep | None
    reference: Array | Reference | None
    reading: Reading | None
    secret: bytes | None
    model: str
    threads: int


def given(**options: Any) -> VeilOptions:
    """Those that were given, so that `Veil` fills in the rest."""
    return VeilOptions(**{name: value for name, value in options.items() if value is not None})  # type: ignore[typeddict-item]
