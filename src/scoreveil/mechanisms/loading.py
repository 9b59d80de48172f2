"""Compiled kernels where they are there, without making anyone wait for them.

Importing numba and compiling take seconds the first time and some tenths later, from numba's cache. They happen in a
background thread that begins with the first answer that could use them: until it is done, and without numba, plain
numpy answers. A mechanism says where its kernels are (`Mechanism.kernels`): a module with

    bind(mechanism, classes)        -> Kernel, or None
    bind_keyed(mechanism, classes)  -> KeyedKernel, or None
    examples()                      -> mechanisms that between them use every kernel of the module
"""

import importlib
import importlib.util
import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Rows
from scoreveil.mechanisms import mechanism
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.randomness import KeyedDraws

# (rows, uniforms, out) -> the first row that is not a score vector, or -1
Kernel = Callable[[Rows, NDArray[np.float64], Rows], int]
# (rows, draws, hashed tags or None) -> the answers, or None where plain numpy is to answer or to name the fault
KeyedKernel = Callable[[Rows, KeyedDraws, Rows | None], Rows | None]

LOADED = "Kernels are loaded."  # logged when they are

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


def kernel(mechanism: Mechanism, classes: int) -> Kernel | None:
    """The compiled loop of a mechanism, or None while plain numpy has to do."""
    return cast(Kernel | None, _bound(mechanism, classes, "bind"))


def keyed_kernel(mechanism: Mechanism, classes: int) -> KeyedKernel | None:
    """The compiled loop of keyed answers, the same bytes; or None while plain numpy has to do."""
    return cast(KeyedKernel | None, _bound(mechanism, classes, "bind_keyed"))


def _bound(mechanism: Mechanism, classes: int, how: str) -> object:
    module = mechanism.kernels
    if not _ready.is_set() or module is None:
        return None
    return mechanism.remembered(
        (how, classes), lambda: getattr(importlib.import_module(module), how)(mechanism, classes)
    )


def _load() -> None:
    """Compile, or load from numba's cache, every kernel for float32 and float64."""
    try:
        modules = {kind.kernels for kind in map(mechanism.named, mechanism.names()) if kind.kernels}
        for module in map(importlib.import_module, sorted(modules)):
            for example in module.examples():
                for dtype in (np.float32, np.float64):
                    rows = np.full((8, 2), 0.5, dtype=dtype)
                    module.bind(example, 2)(rows, np.full((8, 2), 0.5), np.empty_like(rows))
                    fused = module.bind_keyed(example.keyed(), 2)
                    if fused is not None:
                        fused(rows, KeyedDraws(bytes(16), b""), None)
    except Exception as error:  # whatever numba meets here, numpy can answer
        logging.getLogger("scoreveil").warning("Kernels are not available (%s); using numpy.", type(error).__name__)
        return
    _ready.set()
    logging.getLogger("scoreveil").info(LOADED)
