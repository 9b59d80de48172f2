"""A convex model: logistic regression on random features, for the promises that hold for convex models alone.

    x → features of norm 1 → softmax(θ · features)

The features are convolutions with random filters, averaged over a coarse grid and standardised on public records. None
of the records to be hidden has a say in them. A table's record is taken as it is, between random products of columns.
The loss of one record has a gradient of norm at most √2 and a second derivative of trace at most 1 - 1/k.
"""

import numpy as np
import torch
from scipy.optimize import minimize
from torch import nn

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.networks.training import evaluate, seeded
from scoreveil.files.pictures import Pixels

FILTERS, KERNEL, GRID = 64, 5, 4
STEEPEST = 2**0.5  # the norm of a record's gradient, at most


class OnFeatures(nn.Module):
    """Logistic regression on random features."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, shape: tuple[int, int, int], classes: int, seed: int) -> None:
        super().__init__()
        channels, *sides = shape
        kernel, grid = min(KERNEL, *sides), min(GRID, *sides)
        filters = FILTERS * GRID**2 // grid**2
        with seeded(seed):
            self.filters = nn.Conv2d(channels, filters, kernel, padding=kernel // 2).requires_grad_(False)
        self.pool = nn.AdaptiveAvgPool2d(grid)
        size = filters * grid**2
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))
        self.linear = nn.Linear(size + 1, classes, bias=False)

    def raw(self, inputs: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.pool(self.filters(inputs).relu()).flatten(1)
        return answer

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of norm 1, with a constant among them."""
        found = (self.raw(inputs) - self.mean) / self.scale
        found = torch.cat([found, torch.full_like(found[:, :1], found.shape[1] ** 0.5 / 4)], dim=1)
        return nn.functional.normalize(found, dim=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.linear(self.features(inputs))
        return answer

    def standardise(self, public: Pixels) -> None:
        """Set mean and scale so that these have features of mean 0 and deviation 1."""
        found = torch.from_numpy(evaluate(_Part(self.raw), public))
        self.mean.copy_(found.mean(dim=0))
        self.scale.copy_(found.std(dim=0).clamp_min(1e-6))

    def fit(self, pixels: Pixels, labels: Integers, ridge: float, tilt: Floats | float = 0.0) -> None:
        """Set θ to what minimises Σ loss + ridge/2 · |θ|² + tilt · θ."""
        features = evaluate(_Part(self.features), pixels).astype(np.float64)
        shape = self.linear.weight.shape
        theta = minimiser(features, labels, ridge, np.broadcast_to(tilt, shape))
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(theta))


class _Part(nn.Module):
    """A step of a network, to be evaluated by itself."""

    def __init__(self, forward: object) -> None:
        super().__init__()
        self.forward = forward


def minimiser(features: Floats, labels: Integers, ridge: float, tilt: Floats) -> Floats:
    """The θ, (k, d), that minimises Σ cross-entropy + ridge/2 · |θ|² + tilt · θ."""
    truth = np.eye(len(tilt))[labels]

    def loss(flat: Floats) -> tuple[float, Floats]:
        theta = flat.reshape(tilt.shape)
        logits = features @ theta.T
        logits -= logits.max(axis=1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        value = -(logs * truth).sum() + ridge / 2 * (theta**2).sum() + (tilt * theta).sum()
        slope = (np.exp(logs) - truth).T @ features + ridge * theta + tilt
        return float(value), slope.ravel()

    found = minimize(loss, np.zeros(tilt.size), jac=True, method="L-BFGS-B", options={"maxiter": 2_000, "gtol": 1e-4})
    return np.asarray(found.x.reshape(tilt.shape))
