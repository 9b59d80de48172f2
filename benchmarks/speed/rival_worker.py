"""A process in which rivals run, one at a time and when told to, so that they can be interleaved across processes.

    python rival_worker.py GROUP ROWS FEW

It says what it has on one line of JSON (rows, or the reason why a rival cannot run), then for each name on its input
runs that rival once and prints the seconds. GROUP is "here" (numpy, torch: our own environment) or "apart"
(.venv-rivals). ROWS is the size of the batch, FEW that for rivals which take one vector, or one selection, at a time.
"""

import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.speed.batches import CLASSES, EPSILON, Scores, scores

CANDIDATES = 5  # m of the paper
SENSITIVITY = 2 - 1 / CANDIDATES  # of a utility of 1/distance, in steps, at least half a step
LEVELS = 32  # of the isotonic grid


@dataclass(frozen=True)
class Rival:
    """What runs, for how much of the job, by which package; `make` gets the batch ready and returns the work."""

    name: str
    covers: str
    package: str
    few: bool
    make: Callable[[Scores], Callable[[], object]]


# Plain numpy


def vectorised(batch: Scores) -> Callable[[], object]:
    """The published mechanism as one writes it down in numpy."""
    rng = np.random.default_rng()

    def run() -> Scores:
        order = np.argsort(batch, axis=1)
        y = np.take_along_axis(batch, order, axis=1)
        middle = (y[:, :-1] + y[:, 1:]) / 2
        low = np.pad(middle, ((0, 0), (1, 0)))
        high = np.pad(middle, ((0, 0), (0, 1)), constant_values=1.0)
        rho = np.maximum((high - low) / CANDIDATES, 1e-300)[..., None]
        points = low[..., None] + np.arange(CANDIDATES) * rho
        distance = np.maximum(np.abs(y[..., None] - points) / rho, 0.5)
        weight = np.exp(EPSILON / (2 * SENSITIVITY) / distance)
        probability = weight / weight.sum(axis=-1, keepdims=True)
        below = rng.random((*y.shape, 1)) > np.cumsum(probability, axis=-1)
        choice = np.minimum(below.sum(axis=-1, keepdims=True), CANDIDATES - 1)
        chosen = np.take_along_axis(points, choice, axis=-1)[..., 0]
        z = np.exp(EPSILON * chosen / 2)
        z /= z.sum(axis=1, keepdims=True)
        out = np.empty_like(z)
        np.put_along_axis(out, order, z, axis=1)
        return out

    return run


def loop(batch: Scores) -> Callable[[], object]:
    """Algorithm 1 line by line: a loop over the vectors, and in it one over the sub-ranges."""
    rng = np.random.default_rng()

    def one(scores: Scores) -> Scores:
        order = np.argsort(scores)
        y = scores[order]
        chosen = np.empty(len(y))
        for i in range(len(y)):
            low = 0.0 if i == 0 else (y[i - 1] + y[i]) / 2
            high = 1.0 if i == len(y) - 1 else (y[i] + y[i + 1]) / 2
            rho = max((high - low) / CANDIDATES, 1e-300)
            points = low + np.arange(CANDIDATES) * rho
            weight = np.exp(EPSILON / (2 * SENSITIVITY) / np.maximum(np.abs(y[i] - points) / rho, 0.5))
            chosen[i] = rng.choice(points, p=weight / weight.sum())
        z = np.empty(len(y))
        z[order] = np.exp(EPSILON * chosen / 2)
        z /= z.sum()
        return z

    return lambda: [one(row) for row in batch]


# torch


def autoencoder(batch: Scores) -> Callable[[], object]:
    """Purification's network, 10-7-4-7-10, with any weights: its forward pass costs the same with all."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    widths = (CLASSES, 7, 4, 7)
    layers = []
    for wide, narrow in pairwise(widths):
        layers += [torch.nn.Linear(wide, narrow), torch.nn.BatchNorm1d(narrow), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], CLASSES), torch.nn.Softmax(dim=1)).eval()
    given = torch.from_numpy(batch.astype(np.float32))

    def run() -> object:
        with torch.inference_mode():
            return net(given)

    return run


def softmax(batch: Scores) -> Callable[[], object]:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    given = torch.from_numpy(batch)
    return lambda: torch.softmax(given, dim=1)


# Selections, one call each


def sub_range_utilities(batch: Scores) -> list[list[float]]:
    """The utilities of the candidates of every sub-range: what the published mechanism selects by."""
    y = np.sort(batch, axis=1)
    middle = (y[:, :-1] + y[:, 1:]) / 2
    low = np.pad(middle, ((0, 0), (1, 0)))
    high = np.pad(middle, ((0, 0), (0, 1)), constant_values=1.0)
    position = (y - low) / np.maximum((high - low) / CANDIDATES, 1e-300)
    utility = 1 / np.maximum(np.abs(position[..., None] - np.arange(CANDIDATES)), 0.5)
    selections: list[list[float]] = utility.reshape(-1, CANDIDATES).tolist()
    return selections


def level_utilities(batch: Scores) -> list[list[float]]:
    """The utilities of the grid's levels for the top score: what isotonic keep=1 selects by."""
    selections: list[list[float]] = (-np.abs(batch.max(axis=1)[:, None] - np.linspace(0, 1, LEVELS))).tolist()
    return selections


def opendp(utilities: list[list[float]], sensitivity: float) -> Callable[[], object]:
    """Noisy max with pure ε-DP, the faster of OpenDP's two."""
    dp = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.linf_distance(T=float)
    select = dp.m.make_noisy_max(*space, dp.max_divergence(), scale=2 * sensitivity / EPSILON)
    return lambda: [select(utility) for utility in utilities]


def diffprivlib(utilities: list[list[float]], sensitivity: float) -> Callable[[], object]:
    """The exponential mechanism; its utilities belong to the object, so there is one for each selection."""
    exponential = importlib.import_module("diffprivlib.mechanisms").Exponential
    return lambda: [
        exponential(epsilon=EPSILON, sensitivity=sensitivity, utility=utility).randomise() for utility in utilities
    ]


def art(name: str, batch: Scores, **settings: float) -> Callable[[], object]:
    postprocessor = getattr(importlib.import_module("art.defences.postprocessor"), name)(**settings)
    return lambda: postprocessor(batch)


TOP = 1 - 1 / CLASSES  # how far the top score's utility can move

RIVALS = {
    "here": [
        Rival("straightforward numpy", "the published mechanism, whole", "numpy", False, vectorised),
        Rival("Python loop over the vectors", "the published mechanism, whole", "numpy", True, loop),
        Rival("Purification-sized autoencoder", "its forward pass, float32", "torch", False, autoencoder),
        Rival("softmax", "no defense: for scale", "torch", False, softmax),
    ],
    "apart": [
        Rival(
            "OpenDP noisy max, a call per sub-range",
            "the published mechanism's selections only",
            "opendp",
            True,
            lambda batch: opendp(sub_range_utilities(batch), SENSITIVITY),
        ),
        Rival(
            "OpenDP noisy max, a call per vector",
            "isotonic keep=1's selection only",
            "opendp",
            True,
            lambda batch: opendp(level_utilities(batch), TOP),
        ),
        Rival(
            "diffprivlib Exponential, one per sub-range",
            "the published mechanism's selections only",
            "diffprivlib",
            True,
            lambda batch: diffprivlib(sub_range_utilities(batch), SENSITIVITY),
        ),
        Rival(
            "diffprivlib Exponential, one per vector",
            "isotonic keep=1's selection only",
            "diffprivlib",
            True,
            lambda batch: diffprivlib(level_utilities(batch), TOP),
        ),
        Rival(
            "ART ReverseSigmoid",
            "its whole defense, no guarantee",
            "adversarial-robustness-toolbox",
            False,
            lambda batch: art("ReverseSigmoid", batch),
        ),
        Rival(
            "ART Rounded",
            "its whole defense, no guarantee",
            "adversarial-robustness-toolbox",
            False,
            lambda batch: art("Rounded", batch, decimals=1),
        ),
    ],
}


def main(group: str, rows: int, few: int) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what a rival prints is no answer

    def say(what: object) -> None:
        print(json.dumps(what), file=answers, flush=True)

    batch = scores(rows, CLASSES, "float64")
    work: dict[str, Callable[[], object]] = {}
    offer = []
    for rival in RIVALS[group]:
        size = few if rival.few else rows
        about: dict[str, object] = {"name": rival.name, "covers": rival.covers, "package": rival.package}
        try:
            run = rival.make(batch[:size])
            run()
            work[rival.name] = run
            about |= {"rows": size, "version": importlib.metadata.version(rival.package)}
        except Exception as error:  # whatever keeps a rival from running is said in the table
            about["reason"] = f"{type(error).__name__}: {error}"
        offer.append(about)
    say(offer)
    for line in sys.stdin:
        run = work[line.strip()]
        start = time.perf_counter()
        run()
        say(time.perf_counter() - start)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
