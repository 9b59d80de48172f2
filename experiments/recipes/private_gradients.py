"""Differential privacy in the gradients: DP-SGD (Abadi et al. 2016), in the form of De et al. 2022, through Opacus.

Every step draws each record with the same probability, clips the gradient of each drawn record to a norm of 1, and
adds Gaussian noise to their sum. The noise follows from ε, δ and the number of steps by Opacus' accountant. What makes
it more useful: group norm instead of batch norm (which would mix records), large batches, the mean gradient of several
moved copies of each record (clipped as one, so they cost no privacy), and an average of the weights over the steps.
"""

import math
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.classifier import classifier_network
from experiments.recipes.interface import DELTA, Lesson, Promise, Recipe
from experiments.recipes.regularised import Kept, kept
from scoreveil.audit.data.images import Images
from scoreveil.audit.networks.training import TrainingRun, TrainSettings, device, tensor

GROUPS = 8
LARGE = 32  # the side of a picture
CLIP = 1.0
MOMENTUM = 0.9
FARTHEST = 2  # pixels that a copy is moved by
AT_A_TIME = 256  # gradients of single records in memory
ACCOUNTANT = "prv"
TOLERANCE = 0.05  # how far below ε the promise may end


@dataclass(frozen=True)
class PrivateGradients(Recipe):
    """DP-SGD.

    epsilon   promised, with δ = 1e-5
    epochs    passes over the records, on average
    batch     records in a step, on average; at most an eighth of all
    lr        of gradient descent with momentum, in the first epoch
    copies    of each record, whose gradients are averaged
    averaged  the share of the average of the weights that each step leaves
    """

    epsilon: float = 8.0
    epochs: int = 20
    batch: int = 1024
    lr: float = 0.5
    copies: int = 2
    averaged: float = 0.95

    def network(self, lesson: Lesson) -> nn.Module:
        """With group norm, and without dropout: the noise regularises enough. Large pictures are halved first, which
        leaves fewer weights to put noise on, and makes copies affordable."""
        channels, height, width = lesson.images.shape
        halved = min(height, width) >= LARGE
        shape = (channels, height // 2, width // 2) if halved else (channels, height, width)
        plain = classifier_network(shape, lesson.images.classes, lesson.settings.width)
        layers = [_apart(layer) for layer in plain.children() if not isinstance(layer, nn.Dropout)]
        return nn.Sequential(*[nn.AvgPool2d(2)] * halved, *layers).to(memory_format=torch.contiguous_format)

    def train(self, lesson: Lesson) -> nn.Module:
        images = lesson.images
        settings = replace(lesson.settings, epochs=self.epochs, lr=self.lr, batch=self._drawn(len(images)))
        own = replace(lesson, settings=settings)
        return kept(lesson.trained(self.run(own, _PrivateRun, Kept, recipe=self, images=images)))

    def promise(self, records: int, settings: TrainSettings) -> Promise:
        from opacus.accountants import create_accountant

        accountant = create_accountant(ACCOUNTANT)
        rate, steps = self.drawing(records)
        accountant.history = [(self.noise(records), rate, steps)]
        with _quiet():
            epsilon = float(accountant.get_epsilon(DELTA))
        return Promise(epsilon, DELTA, "Opacus' accountant of the privacy loss distribution")

    def drawing(self, records: int) -> tuple[float, int]:
        """The probability that a record is drawn in a step, and the number of steps."""
        rate = self._drawn(records) / records
        return rate, self.epochs * math.ceil(1 / rate)

    def noise(self, records: int) -> float:
        """The deviation of the noise, in units of the clipping norm."""
        return _noise(self.epsilon, *self.drawing(records))

    def _drawn(self, records: int) -> int:
        return max(1, min(self.batch, records // 8))


@lru_cache
def _noise(epsilon: float, rate: float, steps: int) -> float:
    from opacus.accountants.utils import get_noise_multiplier

    with _quiet():
        found = get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=DELTA,
            sample_rate=rate,
            steps=steps,
            accountant=ACCOUNTANT,
            epsilon_tolerance=TOLERANCE,
        )
    return float(found)


def _quiet() -> AbstractContextManager[object]:
    """Without warnings: the accountant first looks for a bound in another way, and warns that this one is loose."""
    return warnings.catch_warnings(action="ignore")


def _apart(layer: nn.Module) -> nn.Module:
    """A layer that treats every record by itself."""
    if not isinstance(layer, nn.BatchNorm2d):
        return layer
    return nn.GroupNorm(math.gcd(GROUPS, layer.num_features), layer.num_features)


@dataclass(frozen=True, eq=False)
class _PrivateRun(TrainingRun):
    """Poisson batches, clipped and noisy gradients, and an average of the weights."""

    recipe: PrivateGradients | None = None
    images: Images | None = None

    def optimizer(self, network: nn.Module) -> Any:
        with _quiet():
            from opacus.grad_sample import GradSampleModule
            from opacus.optimizers import DPOptimizer
        assert isinstance(network, Kept), "made by PrivateGradients"
        assert self.recipe is not None, "given by PrivateGradients"
        GradSampleModule(network.trained)  # from now on it notes the gradient of each record
        return DPOptimizer(
            torch.optim.SGD(network.trained.parameters(), self.settings.lr, momentum=MOMENTUM),
            noise_multiplier=self.recipe.noise(self.examples),
            max_grad_norm=CLIP,
            expected_batch_size=self.settings.batch,
        )

    def batches(self, draws: np.random.Generator) -> Iterable[torch.Tensor]:
        assert self.recipe is not None, "given by PrivateGradients"
        rate, steps = self.recipe.drawing(self.examples)
        drawn = draws.random((steps // self.settings.epochs, self.examples)) < rate
        return [torch.from_numpy(np.flatnonzero(row)) for row in drawn]

    def step(self, network: nn.Module, optimizer: Any, index: torch.Tensor, epoch: int) -> None:
        assert isinstance(network, Kept), "made by PrivateGradients"
        assert self.recipe is not None, "given by PrivateGradients"
        optimizer.zero_grad()
        blocks = index.split(AT_A_TIME)
        for number, block in enumerate(blocks, 1):
            self._note_gradients(network.trained, block)
            optimizer.signal_skip_step(do_skip=number < len(blocks))
            optimizer.step()
            optimizer.zero_grad()
        # at first a plain mean, so that the random weights of the start do not linger
        left = min(self.recipe.averaged, 1 - 1 / (2 + epoch))
        with torch.no_grad():
            for average, weight in zip(network.kept.parameters(), network.trained.parameters(), strict=True):
                average.lerp_(weight, 1 - left)

    def _note_gradients(self, network: nn.Module, index: torch.Tensor) -> None:
        """The gradient of each record: the mean over its copies."""
        assert self.images is not None, "given by PrivateGradients"
        assert self.recipe is not None, "given by PrivateGradients"
        pixels, labels = tensor(self.images.pixels)[index], tensor(self.images.labels)[index]
        if not len(index):  # nobody was drawn: the step is noise alone
            for weight in network.parameters():
                weight.grad_sample = torch.zeros((0, *weight.shape), device=weight.device)
            return
        copies = self.recipe.copies
        shown = torch.stack([_moved(pixels) for _ in range(copies)], dim=1).flatten(0, 1)
        logits = network(shown.to(device()))
        loss = nn.functional.cross_entropy(logits, labels.repeat_interleave(copies).to(device()))
        with _quiet():  # torch warns that the first layer's inputs have no gradient
            loss.backward()
        for weight in network.parameters():
            weight.grad_sample = weight.grad_sample.unflatten(0, (len(index), copies)).mean(dim=1)


def _moved(pixels: torch.Tensor) -> torch.Tensor:
    """Pictures, all moved by the same few pixels in some direction."""
    height, width = pixels.shape[2:]
    down, right = (int(torch.randint(2 * FARTHEST + 1, ())) if side > 2 * FARTHEST else 0 for side in (height, width))
    padding = [FARTHEST if side > 2 * FARTHEST else 0 for side in (width, width, height, height)]
    padded = nn.functional.pad(pixels, padding, mode="replicate")
    return padded[:, :, down : down + height, right : right + width]
