"""Regularisation: a network that cannot learn its records by heart as easily."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from experiments.recipes.interface import Lesson, Recipe, plain_network
from scoreveil.audit.data.images import Images
from scoreveil.audit.networks.training import TrainingRun, evaluate, tensor


@dataclass(frozen=True)
class WeightDecay(Recipe):
    """L2 (Shokri et al. 2017): the loss plus decay/2 · Σ θ²."""

    decay: float = 5e-3

    def train(self, lesson: Lesson) -> nn.Module:
        return lesson.trained(self.run(lesson, weight_decay=self.decay))


@dataclass(frozen=True)
class Dropout(Recipe):
    """Salem et al. 2019: in each step a share of the inputs, and of the inputs of each linear layer, is 0.

    The paper's classifier has a dropout of a half before its last layer already. Batch norm is told the statistics of
    whole inputs at the end: with those of halved ones, pictures were classified no better than by chance.
    """

    dropped: float = 0.5

    def network(self, lesson: Lesson) -> nn.Module:
        layers = list(plain_network(lesson).children())
        flat = next(i for i, layer in enumerate(layers) if isinstance(layer, nn.Flatten)) + 1
        return nn.Sequential(nn.Dropout(self.dropped), *layers[:flat], nn.Dropout(self.dropped), *layers[flat:])

    def train(self, lesson: Lesson) -> nn.Module:
        network = super().train(lesson)
        norms = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
        for norm in norms:  # means over all batches, each of which counts as much
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        evaluate(network, lesson.images.pixels)
        return network.eval()


@dataclass(frozen=True)
class LabelSmoothing(Recipe):
    """Targets (1 − s)·1{true class} + s/k (Szegedy et al. 2016)."""

    smoothing: float = 0.2

    def loss(self, logits: torch.Tensor, targets: torch.Tensor, epoch: int) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, targets, label_smoothing=self.smoothing)


@dataclass(frozen=True)
class EarlyStopping(Recipe):
    """The weights after the epoch with the lowest loss on public records."""

    needs_public: ClassVar[bool] = True

    def train(self, lesson: Lesson) -> nn.Module:
        return kept(lesson.trained(self.run(lesson, _Watched, Kept, shown=lesson.shown)))


class Kept(nn.Module):
    """A network in training, and a copy that answers for it: of its best epoch, or of an average of its weights."""

    lowest: torch.Tensor

    def __init__(self, trained: nn.Module) -> None:
        super().__init__()
        self.trained, self.kept = trained, copy.deepcopy(trained).requires_grad_(False)
        self.register_buffer("lowest", torch.tensor(float("inf")))  # the loss of the best epoch so far

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.trained(inputs) if self.training else self.kept(inputs)
        return answer


def kept(network: nn.Module) -> nn.Module:
    """What answers for a network that was trained within `Kept`."""
    assert isinstance(network, Kept), "the training was of such a network"
    return network.kept


@dataclass(frozen=True, eq=False)
class _Watched(TrainingRun):
    """Keeps the weights of the best epoch."""

    shown: Images | None = None

    def after_epoch(self, network: nn.Module) -> None:
        assert isinstance(network, Kept), "made by EarlyStopping"
        assert self.shown is not None, "given by EarlyStopping"
        network.eval()
        logits = torch.from_numpy(evaluate(network.trained, self.shown.pixels))
        loss = nn.functional.cross_entropy(logits, tensor(self.shown.labels))
        if loss < network.lowest:
            network.lowest.copy_(loss)
            network.kept.load_state_dict(network.trained.state_dict())
