"""Every way to train by name: the plain one, and defenses in training. Adding one is a class and a line here.

    from scoreveil.audit.recipes import RECIPES, cached

    model = cached(RECIPES["relaxloss"], images, settings, public, cache_dir)      # an ImageClassifier
    RECIPES["dp_sgd"].promise(len(images), settings)                               # its (ε, δ), None for most

    interface.py     what every recipe is: start here      regularised.py        L2, dropout, smoothing, early stopping
    private_gradients.py    DP-SGD
"""

from scoreveil.audit.recipes.interface import Lesson, Promise, Recipe, cached
from scoreveil.audit.recipes.private_gradients import PrivateGradients
from scoreveil.audit.recipes.regularised import Dropout, EarlyStopping, LabelSmoothing, WeightDecay

__all__ = ["RECIPES", "Lesson", "Promise", "Recipe", "cached"]

_ALL = (
    Recipe("plain"),
    WeightDecay("l2"),
    Dropout("dropout"),
    EarlyStopping("early_stopping"),
    LabelSmoothing("label_smoothing"),
    PrivateGradients("dp_sgd"),
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
