"""MemGuard (Jia et al. 2019): noise that turns a membership classifier's answer into a coin toss.

g(s) = sigmoid(h(s)) is the defender's own attack: a network on sorted scores, trained on known members and others.

    Phase I   from the logits z of s, steps of 0.1 along the normalised gradient of
              c1·|h| + c2·relu(max_{j≠l} z_j - z_l) + c3·‖softmax(z) - s‖₁,
              until g crosses 0.5 with the label l kept; c3 = 0.1, 1, 10, … while that succeeds
    Phase II  use the noise n with probability 0 if |g(s) - 0.5| <= |g(s+n) - 0.5|, else min(budget/‖n‖₁, 1)

Guarantees: the label is kept; the expected ‖n‖₁ of each vector is at most the budget. The choice of Phase II is made
once per record: it is a function of the score vector.

Our choices: the logits are not given, so z = ln s, floored at 1e-12 to keep a saturated vector within reach of 300
steps; weights start as in a public copy of the code (Glorot uniform, biases 0); g sorts whatever it is shown, also
inside Phase I; it is trained on at most 2,500 members and as many others. Fewer are not enough for every model: with
1,000 of each, 400 epochs of plain SGD may leave g so near 0.5 that c3 outweighs it and little noise is found.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from scoreveil.arrays import Floats
from scoreveil.audit.data.records import Defense, Membership
from scoreveil.audit.defenses.interface import Given
from scoreveil.audit.defenses.sticky import sticky_uniforms
from scoreveil.audit.networks.training import seeded, tensor, using

Tensor = Any
Network = Callable[[Tensor], Tensor]  # h: (n, k) scores in any order -> (n,), before the sigmoid

FLOOR = 1e-12
BLOCK = 2048  # vectors searched at a time: the activations stay in the cache


@dataclass(frozen=True)
class MemGuardSettings:
    """The published values."""

    budget: float = 1.0  # expected ‖n‖₁
    hidden: tuple[int, ...] = (256, 128, 64)
    learning_rate: float = 1e-3
    epochs: int = 400
    batch: int = 64
    most_known: int = 2500  # members, and as many others
    step: float = 0.1
    steps: int = 300
    c1: float = 1.0
    c2: float = 10.0
    c3: tuple[float, ...] = (1e-1, 1e0, 1e1, 1e2, 1e3, 1e4, 1e5)

    def __post_init__(self) -> None:
        if not self.budget >= 0:
            raise ValueError(f"Expected budget >= 0, got {self.budget}.")


def memguard(settings: MemGuardSettings) -> Callable[[Given], Defense]:
    return lambda given: protect(train(given.known, given.seed, settings), given.seed, settings)


def protect(h: Network, seed: int, settings: MemGuardSettings) -> Defense:
    """Both phases, against a trained classifier."""

    def defense(scores: Floats) -> Floats:
        noisy = search(h, scores, settings)
        chance = use_probability(h, scores, noisy, settings.budget)
        used = sticky_uniforms(scores, seed, "memguard") < chance
        return np.where(used[:, None], noisy, scores)

    return defense


def train(known: Membership, seed: int, settings: MemGuardSettings) -> Network:
    """g, the defender's own membership classifier, as a function to h."""
    known = known.balanced(np.random.default_rng(seed))
    size = min(len(known.members), settings.most_known)
    if size == 0:
        found = f"{len(known.members)} and {len(known.nonmembers)}"
        raise ValueError(f"Expected known members and non-members to train on, got {found}.")
    scores = np.concatenate([known.members.scores[:size], known.nonmembers.scores[:size]])
    x = tensor(scores).float().sort(dim=1, descending=True).values
    y = torch.cat([torch.ones(size), torch.zeros(size)])
    with seeded(seed), using(1):
        network = _network(known.classes, settings.hidden)
        optimizer = torch.optim.SGD(network.parameters(), lr=settings.learning_rate)
        for _ in range(settings.epochs):
            for batch in torch.randperm(len(x)).split(settings.batch):
                optimizer.zero_grad()
                nn.functional.binary_cross_entropy_with_logits(network(x[batch])[:, 0], y[batch]).backward()
                optimizer.step()
    network.requires_grad_(False)
    return lambda shown: network(shown.sort(dim=1, descending=True).values)[:, 0]


def _network(classes: int, hidden: tuple[int, ...]) -> Any:
    widths = (classes, *hidden, 1)
    layers: list[Any] = []
    for i in range(len(widths) - 1):
        linear = nn.Linear(widths[i], widths[i + 1])
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# Phase I


def search(h: Network, scores: Floats, settings: MemGuardSettings) -> Floats:
    """The vectors with noise; where no noise is found, the scores as they are. One block on each core at a time."""
    blocks = [scores[start : start + BLOCK] for start in range(0, len(scores), BLOCK)]
    with using(1) as cores, ThreadPoolExecutor(cores) as pool:
        return np.concatenate([scores[:0], *pool.map(lambda block: _search_block(h, block, settings), blocks)])


def _search_block(h: Network, scores: Floats, settings: MemGuardSettings) -> Floats:
    """Each c3 starts from the scores themselves, with the vectors for which the one before succeeded."""
    noisy, running = scores.copy(), np.arange(len(scores))
    for c3 in settings.c3:
        found, released = descend(h, torch.as_tensor(scores[running]), c3, settings)
        running = running[found]
        noisy[running] = released[found]
        if len(running) == 0:
            break
    return noisy


def descend(h: Network, scores: Tensor, c3: float, settings: MemGuardSettings) -> tuple[np.ndarray, Floats]:
    """Phase I for one c3: which vectors got there, and what they became. Vectors that are done step no more."""
    found, released = np.zeros(len(scores), dtype=bool), scores.numpy().copy()
    index = torch.arange(len(scores))
    label = torch.as_tensor(released.argmax(axis=1))
    z = torch.log(scores.clamp(min=FLOOR))
    before = torch.full_like(z, torch.inf)  # where each vector was a step ago
    side = torch.sign(h(scores.float()))
    for _ in range(settings.steps + 1):
        p = torch.softmax(z, dim=1)
        value, slope = _value_and_slope(h, p)
        others = torch.scatter(p, 1, label[:, None], -1.0)
        rival = others.argmax(dim=1)
        label_kept = _at(p, label) > _at(p, rival)
        done = label_kept & (torch.sign(value) != side) & (side != 0)
        reached = index[done].numpy()
        found[reached], released[reached] = True, p[done].numpy()
        # the gradient in p, then through the softmax; float64, for saturated vectors lose it in float32
        gradient = settings.c1 * torch.sign(value)[:, None] * slope + c3 * torch.sign(p - scores)
        gradient = p * (gradient - (p * gradient).sum(dim=1, keepdim=True))
        behind = settings.c2 * (_at(z, rival) > _at(z, label)).double()[:, None]
        gradient.scatter_add_(1, rival[:, None], behind).scatter_add_(1, label[:, None], -behind)
        norm = gradient.norm(dim=1, keepdim=True)
        after = z - settings.step * gradient / norm.clamp(min=1e-300)
        # back where it was two steps ago: it will swing between two points for ever
        stuck = ((after - before).abs().amax(dim=1) < 1e-7) | (norm[:, 0] == 0)
        left = ~(done | stuck)
        if not bool(left.any()):
            break
        before, z = z[left], after[left]
        scores, label, side, index = scores[left], label[left], side[left], index[left]
    return found, released


def _value_and_slope(h: Network, p: Tensor) -> tuple[Tensor, Tensor]:
    """h and its gradient in the scores, for each row."""
    with torch.enable_grad():
        shown = p.float().requires_grad_()
        value = h(shown)
        (slope,) = torch.autograd.grad(value.sum(), shown)
    return value.detach().double(), slope.double()


def _at(rows: Tensor, column: Tensor) -> Tensor:
    return torch.gather(rows, 1, column[:, None])[:, 0]


# Phase II


def use_probability(h: Network, scores: Floats, noisy: Floats, budget: float) -> Floats:
    """How likely the noise is used: never where it does not help, else as often as the budget allows."""
    size = np.abs(noisy - scores).sum(axis=1)
    helps = np.abs(decision(h, scores) - 0.5) > np.abs(decision(h, noisy) - 0.5)
    return np.where(helps & (size > 0), np.minimum(budget / np.maximum(size, 1e-300), 1.0), 0.0)


def decision(h: Network, scores: Floats) -> Floats:
    """g: how likely the defender's own classifier calls each vector a member's."""
    return np.asarray(torch.sigmoid(h(tensor(scores).float()).double()).numpy())
