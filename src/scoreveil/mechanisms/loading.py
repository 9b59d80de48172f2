"""Kernels where they are there, without making anyone wait for them.

Importing numba and compiling take seconds the first time and some tenths later, from numba's cache. They happen in
the background: until they are done, and without numba, plain numpy answers.
"""

import importlib.util
import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.mechanisms.isotonic import Plan
from scoreveil.mechanisms.published import PublishedSettings

# (rows, uniforms, out) -> the first row that is no score vector, or -1
Kernel = Callable[[NDArray[Any], NDArray[np.float64], NDArray[Any]], int]

_ready = threading.Event()


@lru_cache(maxsize=1)
def start() -> threading.Thread | None:
    """Begin to load, once; None without numba."""
    if importlib.util.find_spec("numba") is None:
        return None
    thread = threading.Thread(target=_load, name="scoreveil-kernels", daemon=True)
    thread.start()
    return thread


def wait() -> bool:
    """Load now, and say whether there are kernels: for benchmarks, long jobs and tests."""
    thread = start()
    if thread is not None:
        thread.join()
    return _ready.is_set()


def kernel(mechanism: Plan | PublishedSettings) -> Kernel | None:
    """The fused kernel for a mechanism, or None while plain numpy has to do."""
    return _bound(mechanism) if _ready.is_set() else None


def keyed_kernels() -> Any:
    """The module of the fused keyed answers, or None while plain numpy has to do."""
    if not _ready.is_set():
        return None
    from scoreveil.mechanisms.kernels import keyed

    return keyed


@lru_cache(maxsize=64)
def _bound(mechanism: Plan | PublishedSettings) -> Kernel:
    from scoreveil.mechanisms import kernels

    return kernels.bind(mechanism)


def _load() -> None:
    try:
        from scoreveil.mechanisms import kernels

        kernels.compile_all()
    except Exception as error:  # whatever numba meets here, numpy can answer
        logging.getLogger("scoreveil").warning("Kernels are not available (%s); using numpy.", type(error).__name__)
        return
    _ready.set()
