"""Scoreveil draws a veil over a classifier's confidence scores, with one parameter, ε.

    from scoreveil import Veil

    veil = Veil(epsilon=2.0)
    z = veil(scores)
    print(veil.guarantee)

The label stays, no model is retrained, and what the scores reveal beyond the label is bounded by ε. With held-out
scores `scoreveil.fit` fits a veil to a model.
"""

from typing import TYPE_CHECKING

from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.reference import Reference
from scoreveil.smoothing import Smoothing, smoothed_scores
from scoreveil.veil import Veil

if TYPE_CHECKING:
    from scoreveil.fitting import fit

__all__ = ["Guarantee", "Reference", "Smoothing", "Veil", "__version__", "fit", "smoothed_scores"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`fit` is imported where it is asked for: it needs a solver, which a veil does not."""
    if name == "fit":
        from scoreveil.fitting import fit

        return fit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
