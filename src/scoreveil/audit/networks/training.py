"""Training any network, so that a training that was killed goes on and ends with the same numbers.

Training is the same to the bit for the same seed and machine: what an epoch draws depends on seed and epoch alone, and
the state after each epoch is on disk.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from scoreveil.audit import cache
from scoreveil.files.pictures import Pixels

Progress = Callable[[float], None]  # told the fraction that is done
Loss = Callable[[nn.Module, torch.Tensor, int], torch.Tensor]
"""The mean loss of a network on the examples of this index, in this epoch."""
Shape = tuple[int, int, int]  # channels, height, width

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
    """How to train. `width` is the channels of the narrowest block; each block further in has twice as many."""

    width: int = 32
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
class TrainingRun:
    """A network to make, what to minimise on how many examples, and for how long.

    `identity` is the hash of all that the result depends on: no run goes on from another's checkpoint.
    """

    make: Callable[[], nn.Module]
    loss: Loss
    examples: int
    settings: TrainSettings
    identity: str
    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    weight_decay: float = 0.0

    def cached(self, kind: str, key: str, directory: cache.Directory, progress: Progress) -> nn.Module:
        """The network from the cache, or trained now; a killed training goes on."""
        checkpoint = cache.path(kind, key, directory).with_suffix(".checkpoint")
        trained = cache.load_or_make(
            kind,
            key,
            make=lambda: self.train(checkpoint, progress),
            save=state_of,
            load=lambda arrays: with_state(self.make(), arrays),
            directory=directory,
        )
        checkpoint.unlink(missing_ok=True)
        progress(1.0)
        return trained

    def train(self, checkpoint: Path | None, progress: Progress) -> nn.Module:
        """All epochs that are still to do. Where `checkpoint` holds a part of this run, it goes on from there."""
        if not self.examples:
            raise ValueError("Expected images to train on, got an empty set.")
        with seeded(self.settings.seed), using(1):
            network = self.make().to(device())
            optimizer = self.optimizer(network)
            for epoch in range(self._resume(network, optimizer, checkpoint), self.settings.epochs):
                self._epoch(network, optimizer, epoch)
                if checkpoint is not None:
                    checkpoint.parent.mkdir(parents=True, exist_ok=True)
                    cache.write(checkpoint, self._state(network, optimizer, epoch + 1))
                progress((epoch + 1) / self.settings.epochs)
        return network.eval()

    @property
    def _casts(self) -> bool:
        return self.settings.bf16 and (device() == "cuda" or has_bf16())

    # What a training of another kind overrides

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Adam. Weight decay is a penalty in the loss: half its weight times the sum of squares of all parameters."""
        lr, decay = self.settings.lr, self.weight_decay
        return torch.optim.Adam(network.parameters(), lr, betas=self.betas, weight_decay=decay)

    def batches(self, draws: np.random.Generator) -> Iterable[torch.Tensor]:
        """The examples of an epoch, some at a time: every one once, in random order."""
        yield from torch.from_numpy(draws.permutation(self.examples)).split(self.settings.batch)

    def step(self, network: nn.Module, optimizer: torch.optim.Optimizer, index: torch.Tensor, epoch: int) -> None:
        """Learn from the examples of this index."""
        optimizer.zero_grad()
        with torch.autocast(device(), torch.bfloat16, enabled=self._casts):
            loss = self.loss(network, index, epoch)
        loss.backward()
        optimizer.step()

    def after_epoch(self, network: nn.Module) -> None:
        """What is done once an epoch is."""

    def _epoch(self, network: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
        draws = np.random.default_rng([self.settings.seed, epoch])
        torch.manual_seed(int(draws.integers(2**63)))  # dropout
        batches = self.batches(draws)
        for group in optimizer.param_groups:
            group["lr"] = self.settings.lr * (1 + np.cos(np.pi * epoch / self.settings.epochs)) / 2
        network.train()
        for index in batches:
            self.step(network, optimizer, index, epoch)
        self.after_epoch(network)

    def _resume(self, network: nn.Module, optimizer: torch.optim.Optimizer, checkpoint: Path | None) -> int:
        """Put the network and its optimizer where the checkpoint left off; the number of epochs done."""
        if checkpoint is None:
            return 0
        try:
            arrays = cache.read(checkpoint)
        except (FileNotFoundError, cache.Damaged):
            return 0
        if str(arrays.get("identity")) != self.identity:
            raise ValueError(f"{checkpoint} belongs to a training on other data or settings: delete it, or move it.")
        if bool(arrays["bf16"]) != self._casts:  # begun on another machine: going on would mix two precisions
            return 0
        with_state(network, arrays, "network/")
        parameters = optimizer.param_groups[0]["params"]
        for name, array in arrays.items():
            if name.startswith("optimizer/"):
                _, place, what = name.split("/")
                parameter, value = parameters[int(place)], torch.from_numpy(array)
                # laid out in memory as the parameter is, as it was before
                optimizer.state[parameter][what] = torch.empty_like(parameter).copy_(value) if value.ndim else value
        return int(arrays["epochs"])

    def _state(self, network: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> cache.Arrays:
        """What a checkpoint holds: the network's tensors, and the optimizer's by number of the parameter."""
        about = {"identity": np.array(self.identity), "epochs": np.array(epochs), "bf16": np.array(self._casts)}
        tensors = {f"network/{name}": array for name, array in state_of(network).items()}
        for place, its in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{place}/{what}": value.cpu().numpy() for what, value in its.items()}
        return about | tensors


def state_of(network: nn.Module) -> cache.Arrays:
    """The network's tensors by name, as a cache keeps them."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in network.state_dict().items()}


def with_state(network: nn.Module, arrays: cache.Arrays, prefix: str = "") -> nn.Module:
    """The network, with the tensors that `state_of` gave; ready to be evaluated."""
    network.load_state_dict({name: torch.from_numpy(arrays[prefix + name]) for name in network.state_dict()})
    return network.to(device()).eval()


def evaluate(network: nn.Module, inputs: NDArray[Any]) -> Pixels:
    """The network's outputs, in float32, some inputs at a time."""
    outputs = []
    with torch.inference_mode(), using(1):
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
def using(threads: int) -> Iterator[int]:
    """At most this many threads of torch, and afterwards as many as before, a number that is yielded.

    Small batches are not worth sharing: with two threads on busy cores a step took ten times as long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


def device() -> str:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@lru_cache(maxsize=1)
def has_bf16() -> bool:
    """Whether bfloat16 pays and works here: without AMX or AVX512-BF16 it is no faster than float32.

    Some virtual machines announce AMX and then refuse it, which ends the process (illegal instruction), so another
    process tries first.
    """
    announced = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    if not any(getattr(torch.cpu, name, lambda: False)() for name in announced) or not sys.executable:
        return False
    return subprocess.run([sys.executable, "-c", BF16_TRIAL], capture_output=True, check=False).returncode == 0
