"""Training small networks: the same weights for the same seed, and no thread that costs more than it brings."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's own generator set for a while; afterwards it goes on where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def one_thread() -> Iterator[int]:
    """Small batches are not worth sharing: with two threads on busy cores a step took ten times as long.

    Yields the number of threads that torch had, for work that splits better than its operations do.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
