"""Training small networks: no thread that costs more than it brings."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
