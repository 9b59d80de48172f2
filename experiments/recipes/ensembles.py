"""Several models: no part of the answer comes from one that has learnt the record by heart."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from experiments.data.parts import split
from experiments.recipes.interface import Lesson, Recipe, learning, of_records, plain_network
from experiments.recipes.linear import OnFeatures, minimiser
from scoreveil.arrays import Floats
from scoreveil.audit.data.images import Images
from scoreveil.audit.data.records import Bools
from scoreveil.audit.networks.training import TrainingRun, evaluate, tensor


@dataclass(frozen=True)
class Stacking(Recipe):
    """Model stacking (Salem et al. 2019): two models on a third of the records each, and on the last third logistic
    regression from their scores.

    The second model is logistic regression on random features; the authors have a random forest there.
    """

    ridge: float = 1.0

    def network(self, lesson: Lesson) -> nn.Module:
        images = lesson.images
        return Stacked(
            plain_network(lesson), OnFeatures(images.shape, images.classes, lesson.settings.seed), images.classes
        )

    def train(self, lesson: Lesson) -> nn.Module:
        size = len(lesson.images) // 3
        first, second, third = split(lesson.images, (size, size, len(lesson.images) - 2 * size), lesson.settings.seed)
        stacked = self.network(lesson)
        assert isinstance(stacked, Stacked), "made above"
        own = of_records(lesson, first)
        run = learning(partial(plain_network, own), own, tensor(first.labels), self.loss, self)
        stacked.one.load_state_dict(lesson.trained(run).state_dict())
        stacked.other.standardise(second.pixels)
        stacked.other.fit(second.pixels, second.labels, self.ridge)
        stacked.fit(third, self.ridge)
        return stacked


class Stacked(nn.Module):
    """Two models, and a linear one on the scores of both."""

    def __init__(self, one: nn.Module, other: OnFeatures, classes: int) -> None:
        super().__init__()
        self.one, self.other = one, other
        self.last = nn.Linear(2 * classes + 1, classes, bias=False)

    def both(self, inputs: torch.Tensor) -> torch.Tensor:
        """The scores of both, and a constant."""
        scores = [model(inputs).softmax(dim=1) for model in (self.one, self.other)]
        return torch.cat([*scores, torch.ones_like(scores[0][:, :1])], dim=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.last(self.both(inputs))
        return answer

    def fit(self, images: Images, ridge: float) -> None:
        """Set the last model to what fits these images best."""
        one, other = (_scores(model, images) for model in (self.one.eval(), self.other))
        seen = np.column_stack([one, other, np.ones(len(images))])
        theta = minimiser(seen, images.labels, ridge, np.zeros(tuple(self.last.weight.shape)))
        with torch.no_grad():
            self.last.weight.copy_(torch.from_numpy(theta))


@dataclass(frozen=True)
class Selena(Recipe):
    """SELENA (Tang et al. 2022): split-AI, then self-distillation.

    Each record is kept out of L of K models. A last model learns, for each training record, the mean scores of those L
    models. The authors have K = 25 and L = 10; the same share is kept out here, of fewer models.
    """

    models: int = 5
    out_of: int = 2

    def train(self, lesson: Lesson) -> nn.Module:
        outside = kept_out(len(lesson.images), self.models, self.out_of, lesson.settings.seed)
        soft = tensor(self.distilled(lesson, outside).astype(np.float32))
        return lesson.trained(learning(partial(plain_network, lesson), lesson, soft, self.loss, self, "distilled"))

    def distilled(self, lesson: Lesson, outside: Bools) -> Floats:
        """For each record the mean scores of the models that were not trained on it, (n, k)."""
        total = np.zeros((len(lesson.images), lesson.images.classes))
        for number, without in enumerate(outside):
            model = lesson.trained(self.model(lesson, without, number))
            total[without] += _scores(model, lesson.images.take(without))
        return np.asarray(total / self.out_of)

    def model(self, lesson: Lesson, without: Bools, number: int) -> TrainingRun:
        """The training of one model on all records but these."""
        own = of_records(lesson, lesson.images.take(~without), seed=lesson.settings.seed + number)
        return learning(partial(plain_network, own), own, tensor(own.images.labels), self.loss, self, number)


def kept_out(records: int, models: int, out_of: int, seed: int) -> Bools:
    """Which records each model is not trained on, (models, records): every record is out of `out_of` of them."""
    if not 0 < out_of < models:
        raise ValueError(f"Expected records to be kept out of 1 to {models - 1} models, got {out_of}.")
    order = np.random.default_rng(seed).random((models, records)).argsort(axis=0)
    return np.asarray(order < out_of)


def _scores(network: nn.Module, images: Images) -> Floats:
    return np.asarray(torch.from_numpy(evaluate(network, images.pixels)).double().softmax(dim=1).numpy())
