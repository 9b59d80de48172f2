"""Differential privacy in the other four places that the paper lists: inputs, loss, weights and output classes."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from scipy.stats import chi
from torch import nn

from experiments.recipes.interface import DELTA, Lesson, Promise, Recipe, learning, of_records, plain_network
from experiments.recipes.linear import STEEPEST, OnFeatures, minimiser
from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.images import Images
from scoreveil.audit.networks.training import TrainingRun, TrainSettings, evaluate, tensor
from scoreveil.files.pictures import Pixels


def gaussian(epsilon: float, delta: float = DELTA) -> float:
    """The deviation of Gaussian noise on what one record changes by at most 1 (Balle and Wang 2018)."""
    from dp_accounting import get_sigma_gaussian

    return float(get_sigma_gaussian(epsilon, delta))


# Inputs


@dataclass(frozen=True)
class PrivateInputs(Recipe):
    """Noise on each training record before anybody learns from it, and a label that is sometimes another.

    A picture is averaged over a coarse grid, moved so that grey is 0, cut to a norm, and given Gaussian noise; its
    label is kept with probability e^ε' / (e^ε' + k - 1), else any other (randomised response). ε counts both. The model
    is logistic regression on the coarse picture: a network learns the noise. Holds for exchanging the record.
    """

    epsilon: float = 8.0
    of_label: float = 3.0  # the part of ε that the label gets
    grid: int = 4
    ridge: float = 10.0

    def network(self, lesson: Lesson) -> nn.Module:
        return Coarse(lesson.images.shape, lesson.images.classes, self.grid)

    def train(self, lesson: Lesson) -> nn.Module:
        network, images = self.network(lesson), lesson.images
        assert isinstance(network, Coarse), "made above"
        rng = np.random.default_rng(lesson.settings.seed)
        inputs, labels = self.noisy(network.coarse(images.pixels), images.labels, images.classes, rng)
        seen = np.column_stack([inputs, np.ones(len(inputs))])
        theta = minimiser(seen, labels, self.ridge, np.zeros((images.classes, seen.shape[1])))
        with torch.no_grad():
            network.linear.weight.copy_(torch.from_numpy(theta[:, :-1]))
            network.linear.bias.copy_(torch.from_numpy(theta[:, -1]))
        return network

    def noisy(
        self, inputs: Floats, labels: Integers, classes: int, rng: np.random.Generator
    ) -> tuple[Floats, Integers]:
        """Inputs and labels as they are released."""
        longest = math.sqrt(inputs.shape[1]) / 4
        cut = inputs * np.minimum(1, longest / np.maximum(np.linalg.norm(inputs, axis=1, keepdims=True), 1e-12))
        deviation = 2 * longest * gaussian(self.epsilon - self.of_label)
        kept = math.exp(self.of_label) / (math.exp(self.of_label) + classes - 1)
        others = (labels + rng.integers(1, classes, len(labels))) % classes
        told = np.where(rng.random(len(labels)) < kept, labels, others)
        return cut + rng.normal(0, deviation, inputs.shape), told

    def promise(self, records: int, settings: TrainSettings) -> Promise:
        return Promise(self.epsilon, DELTA, "the Gaussian mechanism and randomised response, for exchanging a record")


class Coarse(nn.Module):
    """Logistic regression on coarse pictures."""

    def __init__(self, shape: tuple[int, int, int], classes: int, grid: int) -> None:
        super().__init__()
        channels, *sides = shape
        side = min(grid, *sides)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(side), nn.Flatten())
        self.linear = nn.Linear(channels * side**2, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.linear(self.pool(inputs) - 0.5)
        return answer

    def coarse(self, pixels: Pixels) -> Floats:
        return evaluate(self.pool, pixels).astype(np.float64) - 0.5


# Loss and weights: for a convex model


@dataclass(frozen=True)
class PrivateLoss(Recipe):
    """Objective perturbation (Chaudhuri et al. 2011, Kifer et al. 2012) of logistic regression on random features:

        θ = argmin Σ loss + Λ/2·|θ|² + b·θ,    b ~ N(0, σ²) in each coordinate

    Why ε: the record's gradient v has norm ≤ √2 and lies in a space of k - 1 dimensions that its features fix. A
    dataset with it and one without give the same θ for two b that differ by v, so their densities at θ differ by a
    factor of at most exp(|v|²/2σ² + |v|·|b's part in that space|/σ²) for b, and of exp((1 - 1/k)/Λ) for the change of
    variables, since the loss has a second derivative of trace ≤ 1 - 1/k. That part of b has the length of k - 1
    Gaussians, and δ is the probability that it is longer than ε allows. Holds for the exact minimum.
    """

    needs_public: ClassVar[bool] = True
    epsilon: float = 8.0
    ridge: float = 2.0

    def network(self, lesson: Lesson) -> nn.Module:
        return OnFeatures(lesson.images.shape, lesson.images.classes, lesson.settings.seed)

    def train(self, lesson: Lesson) -> nn.Module:
        network, images = self.network(lesson), lesson.images
        assert isinstance(network, OnFeatures), "made above"
        network.standardise(lesson.shown.pixels)
        rng, shape = np.random.default_rng(lesson.settings.seed), tuple(network.linear.weight.shape)
        network.fit(images.pixels, images.labels, self.ridge, rng.normal(0, self.noise(images.classes), shape))
        return network

    def noise(self, classes: int) -> float:
        """σ: with u = √2/σ, what is left of ε is u²/2 + u·(the length that is exceeded with probability δ)."""
        left = self.epsilon - (1 - 1 / classes) / self.ridge
        if not left > 0:
            raise ValueError(f"Expected a ridge above {(1 - 1 / classes) / self.epsilon:.3g}, got {self.ridge}.")
        length = float(chi.isf(DELTA, classes - 1))
        return STEEPEST / (math.sqrt(length**2 + 2 * left) - length)

    def promise(self, records: int, settings: TrainSettings) -> Promise:
        return Promise(self.epsilon, DELTA, "the tail of the privacy loss, in closed form")


@dataclass(frozen=True)
class PrivateWeights(Recipe):
    """Output perturbation (Chaudhuri et al. 2011) of logistic regression on random features: θ + Gaussian noise.

    One record moves the minimum of Σ loss + Λ/2·|θ|² by at most √2/Λ.
    """

    needs_public: ClassVar[bool] = True
    epsilon: float = 8.0
    ridge: float = 2.0

    def network(self, lesson: Lesson) -> nn.Module:
        return OnFeatures(lesson.images.shape, lesson.images.classes, lesson.settings.seed)

    def train(self, lesson: Lesson) -> nn.Module:
        network, images = self.network(lesson), lesson.images
        assert isinstance(network, OnFeatures), "made above"
        network.standardise(lesson.shown.pixels)
        network.fit(images.pixels, images.labels, self.ridge)
        rng = np.random.default_rng(lesson.settings.seed)
        noise = rng.normal(0, self.noise, tuple(network.linear.weight.shape))
        with torch.no_grad():
            network.linear.weight.add_(torch.from_numpy(noise))
        return network

    @property
    def noise(self) -> float:
        return STEEPEST / self.ridge * gaussian(self.epsilon)

    def promise(self, records: int, settings: TrainSettings) -> Promise:
        return Promise(self.epsilon, DELTA, "the Gaussian mechanism")


# Output classes


@dataclass(frozen=True)
class PrivateVotes(Recipe):
    """PATE (Papernot et al. 2017, 2018): teachers vote on the labels of public records, and a student learns these.

    Each teacher has its own part of the records, so one record changes one vote: the counts by at most √2. The label is
    the class with most votes after Gaussian noise on each count (GNMax). All questions together are one Gaussian
    mechanism on counts that change by √2 · √questions; nothing is made of the teachers agreeing, which would have to be
    hidden too.
    """

    needs_public: ClassVar[bool] = True
    epsilon: float = 8.0
    each: int = 100  # records of a teacher
    questions: int = 200

    def train(self, lesson: Lesson) -> nn.Module:
        asked = lesson.shown.take(slice(self.questions))
        votes = self.votes(lesson, asked)
        labels = self.winners(votes, np.random.default_rng(lesson.settings.seed))
        student = of_records(lesson, Images(asked.pixels, labels, asked.name, asked.classes), batch=SMALL_BATCH)
        return lesson.trained(
            learning(partial(plain_network, student), student, tensor(labels), self.loss, self, "student")
        )

    def votes(self, lesson: Lesson, asked: Images) -> Integers:
        """How many teachers give each class to each question, (questions, k)."""
        order = np.random.default_rng(lesson.settings.seed).permutation(len(lesson.images))
        counts = np.zeros((len(asked), lesson.images.classes), dtype=np.int64)
        for number, part in enumerate(np.array_split(order, max(1, len(order) // self.each))):
            teacher = lesson.trained(self.teacher(lesson, lesson.images.take(part), number))
            counts[np.arange(len(asked)), evaluate(teacher, asked.pixels).argmax(axis=1)] += 1
        return counts

    def teacher(self, lesson: Lesson, images: Images, number: int) -> TrainingRun:
        own = of_records(lesson, images, seed=lesson.settings.seed + number, batch=SMALL_BATCH)
        return learning(partial(plain_network, own), own, tensor(images.labels), self.loss, self, number)

    def winners(self, votes: Integers, rng: np.random.Generator) -> Integers:
        """The class with most votes after noise."""
        return np.asarray((votes + rng.normal(0, self.noise(len(votes)), votes.shape)).argmax(axis=1))

    def noise(self, questions: int) -> float:
        return math.sqrt(2 * questions) * gaussian(self.epsilon)

    def promise(self, records: int, settings: TrainSettings) -> Promise:
        return Promise(self.epsilon, DELTA, "the Gaussian mechanism, for all questions together")


SMALL_BATCH = 32  # of teachers and students, who have few records
