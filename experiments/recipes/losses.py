"""Other losses: records that were trained on are not to have a lower one than others."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.optimize import brentq
from torch import nn

from experiments.recipes.interface import Lesson, Recipe, plain_network
from scoreveil.audit.networks.training import device, evaluate

RANDOM_INPUTS = 1_000  # that HAMP takes scores from


@dataclass(frozen=True)
class RelaxLoss(Recipe):
    """RelaxLoss (Chen et al. 2022): the mean loss of a batch is held at a target instead of at 0.

    Below it, even epochs ascend. Odd ones ascend too, and draw records that are classified wrongly towards targets in
    which all other classes are equally likely. Equal to the authors' code in value and gradient. Their target is 1 for
    ten classes; for others it is here the same share of ln k, the loss of guessing.
    """

    target: float = 1.0  # of ten classes

    def loss(self, logits: torch.Tensor, targets: torch.Tensor, epoch: int) -> torch.Tensor:
        each = nn.functional.cross_entropy(logits, targets, reduction="none")
        mean, target = each.mean(), self.target * math.log(logits.shape[1], 10)
        if epoch % 2 == 0:
            return (mean - target).abs()
        if mean > target:
            return mean
        logs = logits.log_softmax(dim=1)
        own = logs.exp().gather(1, targets[:, None])
        flat = ((1 - own) / (logits.shape[1] - 1)).expand_as(logits).scatter(1, targets[:, None], own)
        wrong = (logits.argmax(dim=1) != targets).float()
        return (wrong * -(flat * logs).sum(dim=1) - each).mean()


@dataclass(frozen=True)
class ConvexConcave(Recipe):
    """Convex-concave loss (Liu et al. 2024): -α·ln p - (1 - α)·exp p, with p the score of the true class.

    The second term is concave in p, so the losses of training records spread instead of gathering near 0. The authors'
    code then multiplies the loss by a constant, which Adam undoes.
    """

    alpha: float = 0.5

    def loss(self, logits: torch.Tensor, targets: torch.Tensor, epoch: int) -> torch.Tensor:
        each = nn.functional.cross_entropy(logits, targets, reduction="none")
        return (self.alpha * each - (1 - self.alpha) * (-each).exp().exp()).mean()


@dataclass(frozen=True)
class Hamp(Recipe):
    """HAMP (Chen and Pattabiraman 2024): soft labels of high entropy, a reward for uncertain scores, other scores.

    Targets are the surest ones whose entropy is at least a share of the highest, ln k. The loss is their divergence
    from the scores, less `reward` times k times the scores' entropy: the authors' code divides the divergence by k.
    Answers keep the order of the scores and nothing else: the scores are those of a random input. The authors draw one
    for each answer; here answers to the same scores are the same, so that asking again gains nothing.
    """

    entropy: float = 0.95
    reward: float = 0.001

    def network(self, lesson: Lesson) -> nn.Module:
        return Reordered(plain_network(lesson), torch.zeros(RANDOM_INPUTS, lesson.images.classes))

    def train(self, lesson: Lesson) -> nn.Module:
        network = lesson.trained(self.run(lesson))
        assert isinstance(network, Reordered), "made above"
        shape = RANDOM_INPUTS, *lesson.images.shape
        random = np.random.default_rng(lesson.settings.seed).random(shape, dtype=np.float32)
        logits = torch.from_numpy(evaluate(network.trained, random)).to(device())
        network.ascending.copy_(logits.sort(dim=1).values)
        return network

    def loss(self, logits: torch.Tensor, targets: torch.Tensor, epoch: int) -> torch.Tensor:
        classes, logs = logits.shape[1], logits.log_softmax(dim=1)
        top = surest(self.entropy, classes)
        soft = torch.full_like(logs, (1 - top) / (classes - 1)).scatter(1, targets[:, None], top)
        uncertain = -(logs.exp() * logs).sum(dim=1).mean()
        return nn.functional.kl_div(logs, soft, reduction="batchmean") - self.reward * classes * uncertain


@lru_cache
def surest(share: float, classes: int) -> float:
    """The highest p for which (p, (1-p)/(k-1), …) has this share of the highest entropy."""

    def above(p: float) -> float:
        rest = (1 - p) / (classes - 1)
        return float(-p * np.log(p) - (1 - p) * np.log(rest) - share * np.log(classes))

    return float(brentq(above, 1 / classes, 1 - 1e-12))


class Reordered(nn.Module):
    """Answers with the logits of a random input, in the order of the network's own."""

    ascending: torch.Tensor

    def __init__(self, trained: nn.Module, ascending: torch.Tensor) -> None:
        super().__init__()
        self.trained = trained
        self.register_buffer("ascending", ascending)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = self.trained(inputs)
        if self.training:
            return own
        places = own.argsort(dim=1, stable=True).argsort(dim=1)
        bits = own.float().contiguous().view(torch.int32).long()
        row = (bits * torch.arange(1, 2 * own.shape[1], 2, device=own.device)).sum(dim=1) % len(self.ascending)
        return self.ascending[row].gather(1, places)
