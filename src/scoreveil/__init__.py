"""Scoreveil draws a veil over a classifier's confidence scores, with one parameter, ε.

    from scoreveil import Veil

    veil = Veil(epsilon=2.0)
    z = veil(scores)
    print(veil.guarantee)

The label stays, no model is retrained, and what the scores reveal beyond the label is bounded by ε.
"""

from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.reference import Reference
from scoreveil.veil import Veil

__all__ = ["Guarantee", "Reference", "Veil", "__version__"]
__version__ = "0.1.0"
