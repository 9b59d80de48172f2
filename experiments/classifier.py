"""The paper's target classifier, trained until it knows its training images by heart.

    model = classifier.cached_classifier(parts.target_train, TrainSettings(), cache_dir)
    model.scores(parts.target_test)                 # (n, k), float64
    model.labels_of_variants(parts.target_test)     # (n, 5): what the label-only attacker asks

Blocks of [convolution 3×3, batch norm, max-pool 2, ReLU] down to 4×4, then linear to 5k, dropout, linear to k.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from scoreveil.arrays import Floats, Integers
from scoreveil.audit import cache
from scoreveil.audit.data.images import Images, variants
from scoreveil.audit.networks.training import Progress, Shape, TrainingRun, TrainSettings, device, evaluate, tensor

QUICK, STANDARD, PAPER = 16, 32, 128  # widths: 16/32/64, 32/64/128 and 128/256/512 channels


@dataclass(frozen=True, eq=False)
class ImageClassifier:
    """A trained network."""

    network: nn.Module
    shape: Shape

    def scores(self, images: Images) -> Floats:
        """Confidence scores, (n, k): the softmax, in float64, of float32 logits."""
        self._check(images)
        logits = evaluate(self.network, images.pixels).astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def labels_of_variants(self, images: Images) -> Integers:
        """The labels of each image moved by one pixel in four directions, and mirrored: (n, 5)."""
        self._check(images)
        copies = (evaluate(self.network, each).argmax(axis=1) for each in variants(images.pixels))
        return np.stack(list(copies), axis=1)

    def _check(self, images: Images) -> None:
        if images.shape != self.shape:
            raise ValueError(f"Expected images of shape {self.shape}, as trained on, got {images.shape}.")


def cached_classifier(
    images: Images, settings: TrainSettings, cache_dir: cache.Directory = None, progress: Progress = lambda done: None
) -> ImageClassifier:
    """The classifier trained on these images, from the cache or trained now; a killed training goes on."""
    key = cache.key("classifier", images, settings)
    return ImageClassifier(_run(images, settings).cached("classifiers", key, cache_dir, progress), images.shape)


def train(
    images: Images, settings: TrainSettings, checkpoint: Path | None = None, progress: Progress = lambda done: None
) -> ImageClassifier:
    """Train a classifier. Where `checkpoint` holds a part of this very training, it goes on from there."""
    return ImageClassifier(_run(images, settings).train(checkpoint, progress), images.shape)


def _run(images: Images, settings: TrainSettings) -> TrainingRun:
    pixels, labels = tensor(images.pixels), tensor(images.labels)

    def loss(network: nn.Module, index: torch.Tensor, _: int) -> torch.Tensor:
        batch = pixels[index].contiguous(memory_format=torch.channels_last)
        return nn.functional.cross_entropy(network(batch.to(device())).float(), labels[index].to(device()))

    make = partial(classifier_network, images.shape, images.classes, settings.width)
    return TrainingRun(make, loss, len(images), settings, cache.key("training", images, settings))


def classifier_network(shape: Shape, classes: int, width: int) -> nn.Module:
    """Three blocks for 32×32 (Yang et al. 2019, where 64×64 has four), one for the digits of 8×8.

    A table's record, a picture of one pixel, meets two linear layers instead.
    """
    channels, *sides = shape
    if sides == [1, 1]:
        hidden = 16 * width, 8 * width
        layers = [nn.Flatten(), nn.Linear(channels, hidden[0]), nn.ReLU(), nn.Linear(*hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(hidden[1], classes))
    if not min(sides) >= 4:
        raise ValueError(f"Expected images of 4×4 or more, got {sides[0]}×{sides[1]}.")
    layers = []
    for block in range(max(1, round(np.log2(min(sides) / 4)))):
        layers += [nn.Conv2d(channels, width << block, 3, padding=1), nn.BatchNorm2d(width << block)]
        layers += [nn.MaxPool2d(2), nn.ReLU()]
        channels, sides = width << block, [side // 2 for side in sides]
    # no ReLU between the two linear layers: the authors' code has none
    layers += [nn.Flatten(), nn.Linear(channels * sides[0] * sides[1], 5 * classes)]
    layers += [nn.Dropout(0.5), nn.Linear(5 * classes, classes)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)
