"""Adversarial Robustness Toolbox: the veil as one of ART's own postprocessors.

    from art.estimators.classification import BlackBoxClassifier
    from scoreveil.integrations.art import VeilPostprocessor

    classifier = BlackBoxClassifier(predict, (features,), classes, postprocessing_defences=VeilPostprocessor(2.0))

What an ART attack then asks the classifier, it asks the veiled one.
"""

from typing import Any, Unpack

from numpy.typing import NDArray

from scoreveil.extras import needs
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.veil import Veil, VeilOptions

with needs("art"):
    from art.defences.postprocessor import Postprocessor


class VeilPostprocessor(Postprocessor):
    """Veils what a classifier predicts; it is not applied in training.

    Args:
        epsilon: How much shows through; or a mechanism, or a veil, whole.
        options: As in `Veil`.
    """

    def __init__(self, epsilon: float | Mechanism | Veil, **options: Unpack[VeilOptions]) -> None:
        super().__init__(is_fitted=True, apply_fit=False, apply_predict=True)
        self._veil = Veil.from_given(epsilon, **options).for_scores()

    def __call__(self, preds: NDArray[Any]) -> NDArray[Any]:
        """Veiled predictions, (n, k) probabilities like what came."""
        return self._veil(preds)

    @property
    def guarantee(self) -> Guarantee:
        return self._veil.guarantee
