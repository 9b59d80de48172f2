"""NSH (Nasr, Shokri, Houmansadr 2018): a network on all scores beside one on the true label, joined by a third.

The paper's settings: scores k–1024–512–64, label k–512–64, joint 128–256–64–1, ReLU, weights from N(0, .01), Adam with
step 1e-3, binary cross-entropy, batches of 128, 50 epochs. Two choices of ours:

- .01 is read as the variance. As the deviation it starves so deep a network: on the undefended scores of a CIFAR-10
  CNN its AUC was still .500 after 18 epochs, and an attack that does not train makes any defense look good.
- A tenth of the shadow is held out, and training ends, after 50 epochs at most, when it no longer gets better on it;
  the best network is kept. It is found within about ten epochs; beyond, the network learns the shadow by heart.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from scoreveil.audit.attacks.features import at, balancing_weights, log_ratios, logarithms, standardiser, true_labels
from scoreveil.audit.attacks.interface import Features, Scorer
from scoreveil.audit.data.records import Floats, Membership, Records

SCORES, LABEL, JOINT = (1024, 512, 64), (512, 64), (256, 64, 1)
DEVIATION, STEP, EPOCHS, BATCH = 0.1, 1e-3, 50, 128
PATIENCE = 5  # epochs without a better held-out loss
TRACE = 1e-12  # a decay of no effect: without it, Adam's averages of dead units fade to subnormals and cost double
HELD_OUT = 0.1

Tensor = Any
Layers = list[tuple[Tensor, Tensor]]  # weights and biases
Network = tuple[Layers, Layers, Layers]  # on the scores, on the label, on both


def fit(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
    read = _reader(features, shadow.records)
    generator = torch.Generator().manual_seed(int(rng.integers(2**63)))

    def inputs(records: Records) -> tuple[Tensor, Tensor]:
        labels = functional.one_hot(torch.tensor(true_labels(records)), shadow.classes)
        return torch.tensor(read(records), dtype=torch.float32), labels.float()

    scores, labels = inputs(shadow.records)
    truth, weights = torch.tensor(np.stack([shadow.truth, balancing_weights(shadow)]), dtype=torch.float32)
    network = train(scores, labels, truth, weights, generator)

    def score(records: Records) -> Floats:
        with torch.no_grad():
            return np.asarray(torch.sigmoid(_logits(network, *inputs(records)).double()).numpy())

    return score


def _reader(features: Features, shadow: Records) -> Callable[[Records], Floats]:
    def raw(records: Records) -> Floats:
        return records.scores

    def ratios(records: Records) -> Floats:
        """Sorted, so that classes need not be told apart, and that of the true label, which sorting would lose."""
        logs = logarithms(records.scores)
        return np.column_stack([log_ratios(records.scores), at(logs, true_labels(records)) - logs.max(axis=1)])

    if features == "scores":
        return raw
    form = raw if features == "standardised" else ratios
    scale = standardiser(form(shadow))
    return lambda records: scale(form(records))


def train(scores: Tensor, labels: Tensor, truth: Tensor, weights: Tensor, generator: Any) -> Network:
    network = (
        _layers(scores.shape[1], SCORES, generator),
        _layers(labels.shape[1], LABEL, generator),
        _layers(SCORES[-1] + LABEL[-1], JOINT, generator),
    )
    parameters = [parameter for part in network for layer in part for parameter in layer]
    adam = torch.optim.Adam(parameters, STEP, weight_decay=TRACE, fused=True)

    def loss(rows: Tensor) -> Tensor:
        logits = _logits(network, scores[rows], labels[rows])
        return functional.binary_cross_entropy_with_logits(logits, truth[rows], weights[rows])

    shuffled = torch.randperm(len(truth), generator=generator)
    cut = max(1, int(HELD_OUT * len(truth)))
    held_out, rest = shuffled[:cut], shuffled[cut:]
    best, best_parameters, waited = float("inf"), parameters, 0
    for _ in range(EPOCHS):
        for rows in rest[torch.randperm(len(rest), generator=generator)].split(BATCH):
            adam.zero_grad()
            loss(rows).backward()
            adam.step()
        with torch.no_grad():
            now = float(loss(held_out))
        waited += 1
        if now < best:
            best, best_parameters, waited = now, [p.detach().clone() for p in parameters], 0
        if waited == PATIENCE:
            break
    with torch.no_grad():
        for parameter, value in zip(parameters, best_parameters, strict=True):
            parameter.copy_(value)
    return network


def _layers(width: int, widths: tuple[int, ...], generator: Any) -> Layers:
    layers = []
    for before, after in zip((width, *widths), widths, strict=False):
        weights = torch.randn(after, before, generator=generator) * DEVIATION
        layers.append((weights.requires_grad_(), torch.zeros(after, requires_grad=True)))
    return layers


def _logits(network: Network, scores: Tensor, labels: Tensor) -> Tensor:
    on_scores, on_label, on_both = network
    joint = torch.cat([_activations(on_scores, scores), _activations(on_label, labels)], dim=1)
    (weights, biases), *_ = reversed(on_both)
    return functional.linear(_activations(on_both[:-1], joint), weights, biases)[:, 0]


def _activations(layers: Layers, values: Tensor) -> Tensor:
    for weights, biases in layers:
        values = torch.relu(functional.linear(values, weights, biases))
    return values
