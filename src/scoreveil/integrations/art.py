"""Adversarial Robustness Toolbox: the veil as one of ART's own postprocessors.

    from art.estimators.classification import BlackBoxClassifier
    from scoreveil.integrations.art import VeilPostprocessor

    classifier = BlackBoxClassifier(predict, (features,), classes, postprocessing_defences=VeilPostprocessor(2.0))

What an ART attack then asks the classifier, it asks the veiled one.
"""

from typing import Any, Unpack

from art.defences.postprocessor import Postprocessor
from numpy.typing import NDArray

from scoreveil.accounting import Guarantee
from scoreveil.integrations.options import VeilOptions
from scoreveil.veil import Settings, Veil


class VeilPostprocessor(Postprocessor):
    """Veils what a classifier predicts; it is not applied in training.

    epsilon   how much shows through; further options as in `Veil`
    """

    def __init__(self, epsilon: float | Settings, **options: Unpack[VeilOptions]) -> None:
        super().__init__(is_fitted=True, apply_fit=False, apply_predict=True)
        self._veil = Veil(epsilon, **options)

    def __call__(self, preds: NDArray[Any]) -> NDArray[Any]:
        """Veiled predictions, (n, k) probabilities like what came."""
        return self._veil(preds)

    @property
    def guarantee(self) -> Guarantee:
        return self._veil.guarantee
