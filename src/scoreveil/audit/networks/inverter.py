"""Adversarial model inversion (Yang et al. 2019): a network that draws the image that a score vector came from.

    inverter = inverter.fit(auxiliary, model.scores(auxiliary), "log_scores", InversionSettings())
    inverter.reconstruct(veil(model.scores(images)))        # (n, channels, height, width)

The paper's attacker fits on undefended scores and meets defended ones; the adaptive attacker fits on defended scores of
the auxiliary images, in whatever form serves best. What can be drawn from the label alone, no defense that keeps the
label can hide.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import nn

from scoreveil.arrays import Floats
from scoreveil.audit import cache
from scoreveil.audit.data.images import Images
from scoreveil.audit.networks.training import Progress, Shape, TrainingRun, TrainSettings, device, evaluate, tensor
from scoreveil.files.pictures import Pixels
from scoreveil.mechanisms.ordering import rank

ScoreForm = Literal["scores", "log_scores", "log_ratios", "ranks", "all", "label"]

LIGHT, PAPER = 64, 128  # widths: 256/128/64 and 512/256/128 channels
SMALLEST = 1e-40  # a score below it counts as it; softmax of float32 logits rarely goes there


@dataclass(frozen=True)
class InversionSettings(TrainSettings):
    """How to train. `width` is the channels of the last hidden layer; each layer before it has twice as many."""

    width: int = LIGHT
    epochs: int = 8
    lr: float = 2e-4


@dataclass(frozen=True, eq=False)
class Inverter:
    """A trained network, and how scores are put into it."""

    network: nn.Module
    form: ScoreForm
    classes: int
    mean: Floats  # (inputs,): taken off the features, which are then divided by `scale`
    scale: Floats

    def reconstruct(self, scores: Floats) -> Pixels:
        """An image in [0, 1] for each score vector."""
        if scores.ndim != 2 or scores.shape[1] != self.classes:
            raise ValueError(f"Expected scores of shape (n, {self.classes}), got {scores.shape}.")
        inputs = (features(scores, self.form) - self.mean) / self.scale
        return evaluate(self.network, inputs[:, :, None, None])


def cached_inverter(
    images: Images,
    scores: Floats,
    form: ScoreForm,
    settings: InversionSettings,
    cache_dir: cache.Directory = None,
    progress: Progress = lambda done: None,
) -> Inverter:
    """The inverter fitted on these, from the cache or fitted now; one that was killed goes on."""
    key = cache.key("inverter", images, np.asarray(scores), form, settings)
    run, inverter = _run(images, scores, form, settings)
    return inverter(run.cached("inverters", key, cache_dir, progress))


def fit(
    images: Images,
    scores: Floats,
    form: ScoreForm,
    settings: InversionSettings,
    checkpoint: Path | None = None,
    progress: Progress = lambda done: None,
) -> Inverter:
    """Learn to draw the attacker's own images from their scores."""
    run, inverter = _run(images, scores, form, settings)
    return inverter(run.train(checkpoint, progress))


def _run(
    images: Images, scores: Floats, form: ScoreForm, settings: InversionSettings
) -> tuple[TrainingRun, Callable[[nn.Module], Inverter]]:
    """The training, and what makes an inverter of the network that it trains."""
    if scores.ndim != 2 or not len(images) or len(scores) != len(images):
        raise ValueError(f"Expected a score vector for each of {len(images)} images, got {scores.shape}.")
    seen = features(scores, form)
    mean, scale = _standard(seen, form)
    inputs = torch.from_numpy(((seen - mean) / scale).astype(np.float32))[:, :, None, None]
    pixels = tensor(images.pixels)

    def loss(network: nn.Module, index: torch.Tensor, _: int) -> torch.Tensor:
        return nn.functional.mse_loss(network(inputs[index].to(device())).float(), pixels[index].to(device()))

    make = partial(inversion_network, inputs.shape[1], images.shape, settings.width)
    identity = cache.key("inversion", images, np.asarray(scores), form, settings)
    run = TrainingRun(make, loss, len(images), settings, identity, betas=(0.5, 0.999))
    return run, lambda network: Inverter(network, form, scores.shape[1], mean, scale)


def inversion_network(inputs: int, shape: Shape, width: int) -> nn.Module:
    """1×1 to 4×4, then twice the side with each block: four blocks of transposed convolutions for 32×32."""
    channels, height, side = shape
    doublings = side.bit_length() - 3
    if height != side or doublings < 1 or side != 4 << doublings:
        raise ValueError(f"Expected square images of side 8, 16, 32, …, got {height}×{side}.")
    wide = width << (doublings - 1)
    # the paper says "sigmoid after the first three"; the authors' code has tanh there
    layers: list[nn.Module] = [nn.ConvTranspose2d(inputs, wide, 4), nn.BatchNorm2d(wide), nn.Tanh()]
    for _ in range(doublings - 1):
        layers += [nn.ConvTranspose2d(wide, wide // 2, 4, 2, 1), nn.BatchNorm2d(wide // 2), nn.Tanh()]
        wide //= 2
    return nn.Sequential(*layers, nn.ConvTranspose2d(wide, channels, 4, 2, 1), nn.Sigmoid())


# What of the scores the network is given


def features(scores: Floats, form: ScoreForm) -> Floats:
    """The scores in one of the forms, (n, inputs)."""
    if form not in FORMS:
        raise ValueError(f"Expected one of {', '.join(FORMS)}, got {form!r}.")
    return FORMS[form](np.asarray(scores, dtype=np.float64))


def log_scores(scores: Floats) -> Floats:
    """As in the authors' code: logarithms, at least -1000, plus 50, and raised so that none is negative."""
    with np.errstate(divide="ignore"):
        logs = np.maximum(np.log(scores), -1000) + 50
    return np.asarray(logs + np.maximum(-logs.min(axis=1, keepdims=True), 0))


def log_ratios(scores: Floats) -> Floats:
    """ln z_i less the mean of ln z: undoes the paper's Phase 2 but for its scale."""
    logs = np.log(np.maximum(scores, SMALLEST))
    return np.asarray(logs - logs.mean(axis=1, keepdims=True))


def ranks(scores: Floats) -> Floats:
    """Of each class, from 0, the lowest, to 1; ties as numpy's argmax has them."""
    places = np.argsort(np.asarray(rank(scores)), axis=1, kind="stable")
    return np.asarray(places / (scores.shape[1] - 1))


def label(scores: Floats) -> Floats:
    """1 for the predicted class, 0 for the others."""
    return np.asarray(np.eye(scores.shape[1])[scores.argmax(axis=1)])


def everything(scores: Floats) -> Floats:
    return np.concatenate([scores, log_scores(scores), log_ratios(scores), ranks(scores), label(scores)], axis=1)


FORMS: dict[ScoreForm, Callable[[Floats], Floats]] = {
    "scores": lambda scores: scores,
    "log_scores": log_scores,
    "log_ratios": log_ratios,
    "ranks": ranks,
    "all": everything,
    "label": label,
}
AS_THEY_ARE = ("scores", "log_scores", "label")  # the paper's attacker does not standardise


def _standard(seen: Floats, form: ScoreForm) -> tuple[Floats, Floats]:
    """What makes features have mean 0 and deviation 1; constant ones are only centred."""
    if form in AS_THEY_ARE:
        return np.zeros(seen.shape[1]), np.ones(seen.shape[1])
    deviation = seen.std(axis=0)
    return np.asarray(seen.mean(axis=0)), np.where(deviation > 1e-12, deviation, 1.0)
