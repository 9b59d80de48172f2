"""The paper's target classifier, trained until it knows its training images by heart.

    model = models.cached_classifier(parts.target_train, TrainSettings(), cache_dir)
    model.scores(parts.target_test)                 # (n, k), float64
    model.labels_of_variants(parts.target_test)     # (n, 5): what the label-only attacker asks

Blocks of [convolution 3×3, batch norm, max-pool 2, ReLU] down to 4×4, then linear to 5k, dropout, linear to k. Training
is the same to the bit for the same seed, machine and number of threads, also where it was killed and went on: what an
epoch draws depends on seed and epoch alone, and the state after each epoch is on disk.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from scoreveil.audit import cache
from scoreveil.audit.data.images import Images, Pixels, variants
from scoreveil.audit.data.records import Floats, Integers

Made = TypeVar("Made")
Progress = Callable[[float], None]  # told the fraction that is done
Shape = tuple[int, int, int]  # channels, height, width

QUICK, STANDARD, PAPER = 16, 32, 128  # widths: 16/32/64, 32/64/128 and 128/256/512 channels
EVALUATED = 1000  # images at a time
BF16_TRIAL = """
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except ImportError:
    pass
import torch
from torch import nn
layers = [nn.ConvTranspose2d(10, 64, 4), nn.ConvTranspose2d(64, 128, 4, 2, 1), nn.Conv2d(128, 32, 3, padding=1)]
network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 50), nn.Linear(50, 10))
with torch.autocast("cpu", torch.bfloat16):
    out = network(torch.ones(128, 10, 1, 1))
out.float().sum().backward()
"""


@dataclass(frozen=True)
class TrainSettings:
    """How to train. `width` is the channels of the first block; each further block has twice as many."""

    width: int = STANDARD
    epochs: int = 25
    lr: float = 1e-3  # in the first epoch; from there it falls along a cosine, to almost none in the last
    batch: int = 128
    seed: int = 0
    bf16: bool = True  # autocast to bfloat16 where that is faster; scores are always computed in float32

    def __post_init__(self) -> None:
        for name in ("width", "epochs", "batch"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"Expected {name} >= 1, got {getattr(self, name)}.")
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"Expected lr > 0, got {self.lr}.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"Expected 0 <= seed < 2**32, got {self.seed}.")


@dataclass(frozen=True, eq=False)
class Classifier:
    """A trained network."""

    network: nn.Module
    shape: Shape
    classes: int
    threads: int = 1

    def scores(self, images: Images) -> Floats:
        """Confidence scores, (n, k): the softmax, in float64, of float32 logits."""
        self._check(images)
        logits = evaluate(self.network, images.pixels, self.threads).astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def labels_of_variants(self, images: Images) -> Integers:
        """The labels of each image moved by one pixel in four directions, and mirrored: (n, 5)."""
        self._check(images)
        copies = (evaluate(self.network, each, self.threads).argmax(axis=1) for each in variants(images.pixels))
        return np.stack(list(copies), axis=1)

    def _check(self, images: Images) -> None:
        if images.shape != self.shape:
            raise ValueError(f"Expected images of shape {self.shape}, as trained on, got {images.shape}.")


def cached_classifier(
    images: Images,
    settings: TrainSettings,
    cache_dir: cache.Directory = None,
    progress: Progress = lambda done: None,
    threads: int = 1,
) -> Classifier:
    """The classifier trained on these images, from the cache or trained now; a killed training goes on."""

    def load(arrays: cache.Arrays) -> Classifier:
        network = classifier_network(images.shape, images.classes, settings.width)
        return Classifier(with_state(network, arrays), images.shape, images.classes, threads)

    return kept(
        "classifiers",
        cache.key("classifier", images, settings),
        fit=lambda checkpoint: train(images, settings, checkpoint, progress, threads),
        save=lambda made: state_of(made.network),
        load=load,
        cache_dir=cache_dir,
        progress=progress,
    )


def train(
    images: Images,
    settings: TrainSettings,
    checkpoint: Path | None = None,
    progress: Progress = lambda done: None,
    threads: int = 1,
) -> Classifier:
    """Train a classifier. Where `checkpoint` holds a part of this very training, it goes on from there."""
    if not len(images):
        raise ValueError("Expected images to train on, got none.")
    pixels, labels = tensor(images.pixels), tensor(images.labels)

    def loss(network: nn.Module, index: torch.Tensor) -> torch.Tensor:
        batch = pixels[index].contiguous(memory_format=torch.channels_last)
        return nn.functional.cross_entropy(network(batch.to(device())).float(), labels[index].to(device()))

    with seeded(settings.seed), using(threads):
        network = classifier_network(images.shape, images.classes, settings.width).to(device())
        optimizer = torch.optim.Adam(network.parameters(), settings.lr)
        job = Training(network, optimizer, loss, len(images), settings)
        job.run(cache.key("training", images, settings), checkpoint, progress)
    return Classifier(network, images.shape, images.classes, threads)


def classifier_network(shape: Shape, classes: int, width: int) -> nn.Module:
    """Three blocks for 32×32 (Yang et al. 2019, where 64×64 has four), one for the digits of 8×8."""
    channels, *sides = shape
    if not min(sides) >= 4:
        raise ValueError(f"Expected images of 4×4 or more, got {sides[0]}×{sides[1]}.")
    layers: list[nn.Module] = []
    for block in range(max(1, round(np.log2(min(sides) / 4)))):
        layers += [nn.Conv2d(channels, width << block, 3, padding=1), nn.BatchNorm2d(width << block)]
        layers += [nn.MaxPool2d(2), nn.ReLU()]
        channels, sides = width << block, [side // 2 for side in sides]
    # no ReLU between the two linear layers: the authors' code has none
    layers += [nn.Flatten(), nn.Linear(channels * sides[0] * sides[1], 5 * classes)]
    layers += [nn.Dropout(0.5), nn.Linear(5 * classes, classes)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


# Training any network


def kept(
    kind: str,
    name: str,
    fit: Callable[[Path], Made],
    save: Callable[[Made], cache.Arrays],
    load: Callable[[cache.Arrays], Made],
    cache_dir: cache.Directory,
    progress: Progress,
) -> Made:
    """What was fitted before, or `fit` with the checkpoint to go on from, which is gone when it is done."""
    checkpoint = cache.path(kind, name, cache_dir).with_suffix(".checkpoint")
    made = cache.load_or_make(kind, name, lambda: fit(checkpoint), save, load, cache_dir)
    checkpoint.unlink(missing_ok=True)
    progress(1.0)
    return made


@dataclass(frozen=True, eq=False)
class Training:
    """A network, what to minimise, and for how long: `loss(network, index)` is the mean loss of these of `count`."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]
    count: int
    settings: TrainSettings

    def run(self, identity: str, checkpoint: Path | None, progress: Progress) -> None:
        """All epochs that are still to do."""
        done = self._resume(identity, checkpoint)
        for epoch in range(done, self.settings.epochs):
            self._epoch(epoch)
            if checkpoint is not None:
                checkpoint.parent.mkdir(parents=True, exist_ok=True)
                about = {"identity": np.array(identity), "epochs": np.array(epoch + 1), "bf16": np.array(self._casts)}
                cache.write(checkpoint, {**about, **self._state()})
            progress((epoch + 1) / self.settings.epochs)
        self.network.eval()

    @property
    def _casts(self) -> bool:
        return self.settings.bf16 and (device() == "cuda" or has_bf16())

    def _epoch(self, epoch: int) -> None:
        draws = np.random.default_rng([self.settings.seed, epoch])
        torch.manual_seed(int(draws.integers(2**63)))  # dropout
        order = torch.from_numpy(draws.permutation(self.count))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * (1 + np.cos(np.pi * epoch / self.settings.epochs)) / 2
        self.network.train()
        for index in order.split(self.settings.batch):
            self.optimizer.zero_grad()
            with torch.autocast(device(), torch.bfloat16, enabled=self._casts):
                loss = self.loss(self.network, index)
            loss.backward()
            self.optimizer.step()

    def _resume(self, identity: str, checkpoint: Path | None) -> int:
        """Put the network and its optimizer where the checkpoint left off; the number of epochs done."""
        if checkpoint is None:
            return 0
        try:
            arrays = cache.read(checkpoint)
        except (FileNotFoundError, cache.Damaged):
            return 0
        if str(arrays.get("identity")) != identity:
            raise ValueError(f"Expected a checkpoint of this training in {checkpoint}, got one of another.")
        if bool(arrays["bf16"]) != self._casts:  # begun on another machine: going on would mix two precisions
            return 0
        with_state(self.network, arrays, "network/")
        parameters = self.optimizer.param_groups[0]["params"]
        for name, array in arrays.items():
            if name.startswith("optimizer/"):
                _, place, what = name.split("/")
                parameter, value = parameters[int(place)], torch.from_numpy(array)
                # laid out in memory as the parameter is, as it was before
                self.optimizer.state[parameter][what] = (
                    torch.empty_like(parameter).copy_(value) if value.ndim else value
                )
        return int(arrays["epochs"])

    def _state(self) -> cache.Arrays:
        """The network's tensors, and the optimizer's by number of the parameter."""
        state = self.optimizer.state_dict()["state"]
        moments = {
            f"optimizer/{place}/{what}": v.cpu().numpy() for place, its in state.items() for what, v in its.items()
        }
        return {**{f"network/{name}": array for name, array in state_of(self.network).items()}, **moments}


def state_of(network: nn.Module) -> cache.Arrays:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in network.state_dict().items()}


def with_state(network: nn.Module, arrays: cache.Arrays, prefix: str = "") -> nn.Module:
    """The network, with the tensors that `state_of` gave; ready to be evaluated."""
    state = {name: torch.from_numpy(arrays[prefix + name]) for name in network.state_dict()}
    network.load_state_dict(state)
    return network.to(device()).eval()


def evaluate(network: nn.Module, inputs: NDArray[Any], threads: int) -> Pixels:
    """The network's outputs, in float32, some inputs at a time."""
    outputs = []
    with torch.inference_mode(), using(threads):
        for start in range(0, len(inputs), EVALUATED):
            block = tensor(np.ascontiguousarray(inputs[start : start + EVALUATED], dtype=np.float32))
            if block.ndim == 4:
                block = block.contiguous(memory_format=torch.channels_last)
            outputs.append(network(block.to(device())).contiguous().cpu().numpy())
        if not outputs:
            return np.asarray(network(torch.zeros((1, *inputs.shape[1:]), device=device())).cpu().numpy()[:0])
    return np.concatenate(outputs)


def tensor(array: NDArray[Any]) -> torch.Tensor:
    """Torch on numpy's memory; on a copy where that must not be written to, as with what joblib hands over."""
    return torch.from_numpy(np.require(array, requirements="W"))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's draws from this seed, and afterwards as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def using(threads: int) -> Iterator[None]:
    """At most this many threads of torch, and afterwards as many as before."""
    if not threads >= 1:
        raise ValueError(f"Expected threads >= 1, got {threads}.")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@lru_cache(maxsize=1)
def has_bf16() -> bool:
    """Whether bfloat16 pays and works here: without AMX it is no faster than float32.

    Some virtual machines announce AMX and then refuse it, which ends the process (illegal instruction), so another
    process tries first.
    """
    if not getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)() or not sys.executable:
        return False
    return subprocess.run([sys.executable, "-c", BF16_TRIAL], capture_output=True, check=False).returncode == 0
