"""ML-Leaks (Salem et al. 2019, adversary 1): a small network on the three highest scores.

The paper's settings: 64 hidden units, sigmoid output, Adam with step 1e-2, 50 epochs of batches of 10, L2 1e-6. That is
a hundred thousand tiny steps for 20,000 records, each far cheaper than the call of one torch operation, so the step is
written out and compiled. Not given there: the hidden activation (ReLU here) and the start (Glorot's).
"""

from collections.abc import Callable

import numba
import numpy as np
from scipy.special import expit

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.attacks.features import balancing_weights, descending, log_ratios, reader
from scoreveil.audit.attacks.interface import Features, Scorer
from scoreveil.audit.data.records import Membership, Records
from scoreveil.mechanisms.kernels.common import options

HIDDEN, EPOCHS, BATCH, STEP, L2 = 64, 50, 10, 1e-2, 1e-6
TOP = 3
TOP_RATIOS = 32  # the adaptive attacker reads every log-ratio, of many classes the top ones


def fit(shadow: Membership, features: Features, rng: np.random.Generator) -> Scorer:
    def top(records: Records) -> Floats:
        return descending(records.scores)[:, :TOP]

    def ratios(records: Records) -> Floats:
        return log_ratios(records.scores)[:, :TOP_RATIOS]

    read = reader(features, top, ratios, shadow.records)
    score = train(read(shadow.records), shadow.truth.astype(np.float64), balancing_weights(shadow), rng)
    return lambda records: score(read(records))


def train(inputs: Floats, targets: Floats, weights: Floats, rng: np.random.Generator) -> Callable[[Floats], Floats]:
    """The network as a function from inputs to the probability of being a member."""
    n, d = inputs.shape
    bounds = np.sqrt(6 / (d + HIDDEN)), np.sqrt(6 / (HIDDEN + 1))
    first = np.vstack([rng.uniform(-bounds[0], bounds[0], (d, HIDDEN)), np.zeros(HIDDEN)])  # the last row: biases
    second = np.append(rng.uniform(-bounds[1], bounds[1], HIDDEN), 0.0)
    parameters = np.concatenate([first.ravel(), second])
    moments, rows, steps = np.zeros((2, len(parameters))), np.ascontiguousarray(inputs), 0
    for _ in range(EPOCHS):
        steps = _compiled_epoch(rows, targets, weights, rng.permutation(n), parameters, moments, steps)
    first, second = parameters[: -HIDDEN - 1].reshape(d + 1, HIDDEN), parameters[-HIDDEN - 1 :]

    def score(others: Floats) -> Floats:
        hidden = np.maximum(others @ first[:-1] + first[-1], 0.0)
        return np.asarray(expit(hidden @ second[:-1] + second[-1]))

    return score


def _epoch(
    inputs: Floats, targets: Floats, weights: Floats, order: Integers, parameters: Floats, moments: Floats, steps: int
) -> int:
    """One pass of Adam over the records, batch by batch, in place. Returns how many steps were made so far."""
    n, d = inputs.shape
    biases, second, last = d * HIDDEN, (d + 1) * HIDDEN, (d + 2) * HIDDEN
    gradient, hidden = np.empty_like(parameters), np.empty(HIDDEN)
    for start in range(0, n, BATCH):
        batch = order[start : start + BATCH]
        for p in range(len(parameters)):
            gradient[p] = 2 * L2 * parameters[p]
        for row in batch:
            for h in range(HIDDEN):
                hidden[h] = parameters[biases + h]
            for i in range(d):
                for h in range(HIDDEN):
                    hidden[h] += inputs[row, i] * parameters[i * HIDDEN + h]
            logit = parameters[last]
            for h in range(HIDDEN):
                hidden[h] = max(hidden[h], 0.0)
                logit += hidden[h] * parameters[second + h]
            # the derivative of binary cross-entropy by the logit
            slope = weights[row] * (1 / (1 + np.exp(-logit)) - targets[row]) / len(batch)
            gradient[last] += slope
            for h in range(HIDDEN):
                gradient[second + h] += slope * hidden[h]
                hidden[h] = slope * parameters[second + h] if hidden[h] > 0 else 0.0
                gradient[biases + h] += hidden[h]
            for i in range(d):
                for h in range(HIDDEN):
                    gradient[i * HIDDEN + h] += inputs[row, i] * hidden[h]
        steps += 1
        step, correction = STEP / (1 - 0.9**steps), 1 / (1 - 0.999**steps)
        for p in range(len(parameters)):
            moments[0, p] = 0.9 * moments[0, p] + 0.1 * gradient[p]
            moments[1, p] = 0.999 * moments[1, p] + 0.001 * gradient[p] * gradient[p]
            parameters[p] -= step * moments[0, p] / (np.sqrt(moments[1, p] * correction) + 1e-8)
    return steps


_compiled_epoch = numba.njit(fastmath={"reassoc", "contract", "nsz"}, **options)(_epoch)
