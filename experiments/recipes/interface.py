"""What every recipe is: a frozen value that makes a trained network of labelled records, and says what it promises.

A recipe changes the network, the loss, or the whole of the training, and overrides that and nothing else. What it has
finished is on disk, so a recipe that is killed goes on where it stopped and ends with the same numbers.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from experiments.classifier import ImageClassifier, classifier_network
from scoreveil.audit import cache
from scoreveil.audit.data.images import Images
from scoreveil.audit.networks.training import (
    Progress,
    TrainingRun,
    TrainSettings,
    device,
    state_of,
    tensor,
    with_state,
)

LossOfLogits = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]  # of logits and targets, in this epoch
DELTA = 1e-5  # of every promise: less than one in as many records as a study trains on


@dataclass(frozen=True)
class Promise:
    """(ε, δ)-differential privacy of the trained network, for adding or removing one training record."""

    epsilon: float
    delta: float
    by: str  # how it was computed


@dataclass(frozen=True, eq=False)
class Lesson:
    """What a recipe is given.

    images    the training records, which it is to hide
    settings  of the plain training: width, epochs, batch, seed
    public    records like them that need not be hidden, for the recipes that need some
    folder    where finished and unfinished parts are kept until the whole is done; None: nowhere
    """

    images: Images
    settings: TrainSettings
    public: Images | None = None
    folder: Path | None = None
    progress: Progress = lambda done: None

    @property
    def shown(self) -> Images:
        """The public records; a ValueError where there are none."""
        if self.public is None or not len(self.public):
            raise ValueError("Expected public records for a recipe that needs them, got none.")
        return self.public

    def trained(self, run: TrainingRun) -> nn.Module:
        """The network of a run, which may be a part of the recipe: from the folder, or trained now."""
        if self.folder is None:
            return run.train(None, self.progress)
        return run.cached("parts", run.identity, self.folder, self.progress)


@dataclass(frozen=True)
class Recipe:
    """Plain training: the paper's classifier and cross-entropy. Other recipes start from here.

    A recipe's fields are all that its result depends on beside the lesson; a cache knows it by them.
    """

    name: str
    needs_public: ClassVar[bool] = False

    def network(self, lesson: Lesson) -> nn.Module:
        """The network that `train` returns, untrained."""
        return plain_network(lesson)

    def train(self, lesson: Lesson) -> nn.Module:
        """The trained network, from records to logits."""
        return lesson.trained(self.run(lesson))

    def run(
        self,
        lesson: Lesson,
        kind: type[TrainingRun] = TrainingRun,
        around: Callable[[nn.Module], nn.Module] = lambda network: network,
        **more: Any,
    ) -> TrainingRun:
        """The training of the network, or of what is put around it, by `loss`; of another kind, with its fields."""
        targets = tensor(lesson.images.labels)
        return learning(lambda: around(self.network(lesson)), lesson, targets, self.loss, self, kind=kind, **more)

    def loss(self, logits: torch.Tensor, targets: torch.Tensor, epoch: int) -> torch.Tensor:
        """The mean loss of a batch."""
        return nn.functional.cross_entropy(logits, targets)

    def promise(self, records: int, settings: TrainSettings) -> Promise | None:
        """What is promised to each of so many training records; None for most recipes, which promise nothing."""
        return None


def plain_network(lesson: Lesson) -> nn.Module:
    """The paper's classifier, untrained."""
    return classifier_network(lesson.images.shape, lesson.images.classes, lesson.settings.width)


def learning(
    make: Callable[[], nn.Module],
    lesson: Lesson,
    targets: torch.Tensor,
    loss: LossOfLogits,
    *what: object,
    kind: type[TrainingRun] = TrainingRun,
    **more: Any,
) -> TrainingRun:
    """The training of a network on the lesson's images.

    Args:
        make: Makes the network.
        lesson: Images and settings.
        targets: A label for each image, or a probability for each class.
        loss: What is minimised.
        what: What the training depends on beside images, targets and settings: the recipe, and which part of it.
        kind: How steps are taken.
        more: Fields of that kind.
    """
    pixels = tensor(lesson.images.pixels)

    def of_batch(network: nn.Module, index: torch.Tensor, epoch: int) -> torch.Tensor:
        batch = pixels[index].contiguous(memory_format=torch.channels_last)
        return loss(network(batch.to(device())).float(), targets[index].to(device()), epoch)

    identity = cache.key("recipe", lesson.images, targets.numpy(), lesson.settings, *what)
    return kind(make, of_batch, len(lesson.images), lesson.settings, identity, **more)


def of_records(lesson: Lesson, images: Images, **settings: Any) -> Lesson:
    """A lesson on other records, with other settings where they are named."""
    return replace(lesson, images=images, settings=replace(lesson.settings, **settings))


def cached(
    recipe: Recipe,
    images: Images,
    settings: TrainSettings,
    public: Images | None = None,
    cache_dir: cache.Directory = None,
    progress: Progress = lambda done: None,
) -> ImageClassifier:
    """The classifier that a recipe makes of these records, from the cache or trained now; a killed training goes on."""
    shown = public if recipe.needs_public else None
    key = cache.key("recipe", recipe, images, settings, shown)
    parts = cache.path("recipes", key, cache_dir).with_suffix("")
    lesson = Lesson(images, settings, shown, parts, progress)
    network = cache.load_or_make(
        "recipes",
        key,
        make=lambda: recipe.train(lesson),
        save=state_of,
        load=lambda arrays: with_state(recipe.network(lesson), arrays),
        directory=cache_dir,
    )
    shutil.rmtree(parts, ignore_errors=True)
    return ImageClassifier(network, images.shape)
