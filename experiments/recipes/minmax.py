"""Min-max adversarial regularisation (Nasr et al. 2018): trained against an attack that is trained against it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from experiments.recipes.interface import Lesson, Recipe
from scoreveil.audit.data.images import Images
from scoreveil.audit.networks.training import TrainingRun, device, tensor


@dataclass(frozen=True)
class MinMax(Recipe):
    """The classifier f minimises its loss plus λ times the gain of an attack h that sees its scores and the label:

        gain = ½·mean ln h(f(x), y) over training records + ½·mean ln(1 - h(f(x'), y')) over public ones

    In each step h first takes some steps upwards on this gain, then f one step downwards on all of it that training
    records bring. The attack has 256 and 64 hidden units, fewer than the authors'.
    """

    needs_public: ClassVar[bool] = True
    weight: float = 3.0
    attack_steps: int = 2

    def train(self, lesson: Lesson) -> nn.Module:
        classes = lesson.images.classes
        fields = {"recipe": self, "images": lesson.images, "shown": lesson.shown}
        watched = lesson.trained(self.run(lesson, _MinMaxRun, lambda network: Watched(network, classes), **fields))
        assert isinstance(watched, Watched), "made above"
        return watched.classifier


class Watched(nn.Module):
    """A classifier, and the attack on it."""

    def __init__(self, classifier: nn.Module, classes: int) -> None:
        super().__init__()
        self.classifier, self.classes = classifier, classes
        layers = nn.Linear(2 * classes, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        self.attack = nn.Sequential(*layers)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.classifier(inputs)
        return answer

    def suspicion(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The log-odds that the attack gives to membership."""
        told = nn.functional.one_hot(labels, self.classes).float()
        odds: torch.Tensor = self.attack(torch.cat([logits.float().softmax(dim=1), told], dim=1))[:, 0]
        return odds


@dataclass(frozen=True, eq=False)
class _MinMaxRun(TrainingRun):
    """One optimizer for both: it leaves alone what has no gradient."""

    recipe: MinMax | None = None
    images: Images | None = None
    shown: Images | None = None

    def step(self, network: nn.Module, optimizer: torch.optim.Optimizer, index: torch.Tensor, epoch: int) -> None:
        assert isinstance(network, Watched), "made by MinMax"
        assert self.recipe is not None, "given by MinMax"
        assert self.images is not None, "given by MinMax"
        assert self.shown is not None, "given by MinMax"
        log_sigmoid = nn.functional.logsigmoid
        for _ in range(self.recipe.attack_steps):
            network.eval()
            inside, outside = (_some(network, images, len(index)) for images in (self.images, self.shown))
            gain = (log_sigmoid(inside).mean() + log_sigmoid(-outside).mean()) / 2
            optimizer.zero_grad()
            (-gain).backward()
            optimizer.step()
        network.train()
        optimizer.zero_grad()
        pixels, labels = _batch(self.images, index)
        logits = network(pixels)
        gain = log_sigmoid(network.suspicion(logits, labels)).mean() / 2
        (nn.functional.cross_entropy(logits, labels) + self.recipe.weight * gain).backward()
        for weight in network.attack.parameters():
            weight.grad = None
        optimizer.step()


def _some(network: Watched, images: Images, count: int) -> torch.Tensor:
    """What the attack says of some of the images, at random; the classifier learns nothing from it."""
    pixels, labels = _batch(images, torch.randint(len(images), (count,)))
    with torch.no_grad():
        logits = network(pixels)
    return network.suspicion(logits, labels)


def _batch(images: Images, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = tensor(images.pixels)[index].contiguous(memory_format=torch.channels_last)
    return pixels.to(device()), tensor(images.labels)[index].to(device())
