"""NSH (Nasr, Shokri, Houmansadr 2018): a network on all scores beside one on the true label, joined by a third.

The paper's settings: scores k–1024–512–64, label k–512–64, joint 128–256–64–1, ReLU, weights from N(0, .01), Adam with
step 1e-3, binary cross-entropy, batches of 128, 50 epochs. Two choices of ours:

- .01 is read as the variance. As the deviation it starves so deep a network: on the undefended scores of a CIFAR-10
  CNN its AUC was still .500 after 18 epochs, and an attack that does not train makes any defense look good.
- A tenth of the shadow is held out, and training ends, after 50 epochs at most, when it no longer gets better on it;
  the best network is kept. It is found within about ten epochs; beyond, the network learns the shadow by heart.
"""

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from scoreveil.arrays import Floats
from scoreveil.audit.attacks.features import at, balancing_weights, log_ratios, logarithms, reader
from scoreveil.audit.attacks.interface import Features, Scorer
from scoreveil.audit.data.records import Membership, Records

SCORES, LABEL, JOINT = (1024, 512, 64), (512, 64), (256, 64, 1)
DEVIATION, STEP, EPOCHS, BATCH = 0.1, 1e-3, 50, 128
PATIENCE = 5  # epochs without a better held-out loss
TRACE = 1e-12  # a decay of no effect: without it, Adam's averages of dead units fade to subnormals and cost double
HELD_OUT = 0.1

Tensor = Any


def fit(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
    def ratios(records: Records) -> Floats:
        """Sorted, so that classes need not be told apart, and that of the true label, which sorting would lose."""
        logs = logarithms(records.scores)
        return np.column_stack([log_ratios(records.scores), at(logs, records.true_labels) - logs.max(axis=1)])

    read = reader(features, lambda records: records.scores, ratios, shadow.records)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))

    def inputs(records: Records) -> tuple[Tensor, Tensor]:
        labels = functional.one_hot(torch.tensor(records.true_labels), shadow.classes)
        return torch.tensor(read(records), dtype=torch.float32), labels.float()

    scores, labels = inputs(shadow.records)
    truth, weights = torch.tensor(np.stack([shadow.truth, balancing_weights(shadow)]), dtype=torch.float32)
    networks = train(scores, labels, truth, weights, generator)

    def score(records: Records) -> Floats:
        with torch.no_grad():
            return np.asarray(torch.sigmoid(_logits(networks, *inputs(records)).double()).numpy())

    return score


def train(scores: Tensor, labels: Tensor, truth: Tensor, weights: Tensor, generator: Any) -> Any:
    """The three networks: on the scores, on the label, on what comes out of both."""
    widths = (scores.shape[1], *SCORES), (labels.shape[1], *LABEL), (SCORES[-1] + LABEL[-1], *JOINT)
    networks = nn.ModuleList([_layers(each, generator) for each in widths])
    adam = torch.optim.Adam(networks.parameters(), STEP, weight_decay=TRACE, fused=True)

    def loss(rows: Tensor) -> Tensor:
        logits = _logits(networks, scores[rows], labels[rows])
        return functional.binary_cross_entropy_with_logits(logits, truth[rows], weights[rows])

    shuffled = torch.randperm(len(truth), generator=generator)
    cut = max(1, int(HELD_OUT * len(truth)))
    held_out, rest = shuffled[:cut], shuffled[cut:]
    best, best_state, waited = float("inf"), copy.deepcopy(networks.state_dict()), 0
    for _ in range(EPOCHS):
        for rows in rest[torch.randperm(len(rest), generator=generator)].split(BATCH):
            adam.zero_grad()
            loss(rows).backward()
            adam.step()
        with torch.no_grad():
            now = float(loss(held_out))
        waited += 1
        if now < best:
            best, best_state, waited = now, copy.deepcopy(networks.state_dict()), 0
        if waited == PATIENCE:
            break
    networks.load_state_dict(best_state)
    return networks


def _layers(widths: tuple[int, ...], generator: Any) -> Any:
    layers: list[Any] = []
    for before, after in pairwise(widths):
        linear = nn.utils.skip_init(nn.Linear, before, after)
        nn.init.normal_(linear.weight, std=DEVIATION, generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


def _logits(networks: Any, scores: Tensor, labels: Tensor) -> Tensor:
    on_scores, on_label, on_both = networks
    return on_both[:-1](torch.cat([on_scores(scores), on_label(labels)], dim=1))[:, 0]  # no ReLU at the end
