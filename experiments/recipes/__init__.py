"""Every way to train by name: the plain one, and the defenses in training. Adding one is a class and a line here.

from experiments.recipes import RECIPES, cached

model = cached(RECIPES["relaxloss"], images, settings, public, cache_dir)      # an ImageClassifier
RECIPES["dp_sgd"].promise(len(images), settings)                               # its (ε, δ); None for most
"""

from experiments.recipes.ensembles import Selena, Stacking
from experiments.recipes.interface import Lesson, Promise, Recipe, cached
from experiments.recipes.losses import ConvexConcave, Hamp, RelaxLoss
from experiments.recipes.minmax import MinMax
from experiments.recipes.private_elsewhere import PrivateInputs, PrivateLoss, PrivateVotes, PrivateWeights
from experiments.recipes.private_gradients import PrivateGradients
from experiments.recipes.regularised import Dropout, EarlyStopping, LabelSmoothing, WeightDecay

__all__ = ["RECIPES", "Lesson", "Promise", "Recipe", "cached"]

_ALL = (
    Recipe("plain"),
    WeightDecay("l2"),
    Dropout("dropout"),
    EarlyStopping("early_stopping"),
    LabelSmoothing("label_smoothing"),
    Stacking("stacking"),
    MinMax("min_max"),
    RelaxLoss("relaxloss"),
    Hamp("hamp"),
    Selena("selena"),
    ConvexConcave("convex_concave"),
    PrivateInputs("dp_inputs"),
    PrivateLoss("dp_loss"),
    PrivateGradients("dp_sgd"),
    PrivateWeights("dp_weights"),
    PrivateVotes("pate"),
)
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in _ALL}
