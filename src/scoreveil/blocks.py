"""How a batch of scores runs: in blocks, by compiled kernels or in plain array operations, on one thread or several.

Memory beyond input and output does not grow with the batch. Fresh draws use the kernels as soon as they are loaded;
draws from a numpy Generator use plain numpy alone, so that a seeded run gives the same bytes every time; keyed
answers are the same bytes either way.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from scoreveil.arrays import Floats, Rows
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.mechanisms.messages import messages
from scoreveil.mechanisms.scores import Array, check_rows, namespace, to_numpy
from scoreveil.randomness import KeyedDraws, secure_uniforms

BLOCK = 1 << 17  # scores processed at a time


def fresh(mechanism: Mechanism, rows: Rows, rng: np.random.Generator | None = None, threads: int = 1) -> Rows:
    """Answers to a contiguous (n, k) batch, from new draws."""
    draws = mechanism.draws(rows.shape[1])
    if rng is None:
        loading.start()

    def run(block: Rows, first_row: int, uniforms: Floats | None, out: Rows) -> None:
        kernel = loading.kernel(mechanism, rows.shape[1]) if rng is None else None
        if kernel is None:
            check_rows(block, first_row)
        if uniforms is None:
            uniforms = secure_uniforms(len(block), draws)
        if kernel is None:
            out[...] = mechanism.perturb(block, uniforms)
        elif kernel(block, uniforms, out) >= 0:
            check_rows(block, first_row)
            raise ValueError("Some rows are not score vectors.")

    # a generator's draws are taken in order here, so that they do not depend on the threads
    take = None if rng is None else lambda size: rng.random((size, draws))
    return _in_blocks(rows, run, take, threads, mechanism.together)


def keyed(mechanism: Mechanism, rows: Rows, draws: KeyedDraws, tags: Rows | None = None, threads: int = 1) -> Rows:
    """Answers to a contiguous (n, k) batch that depend on nothing but each row's message; `tags` are hashed ones."""
    if not mechanism.draws(rows.shape[1]):  # without randomness there is nothing to key
        return fresh(mechanism, rows, None, threads)
    loading.start()
    kernel = loading.keyed_kernel(mechanism, rows.shape[1])
    if kernel is not None and len(rows) <= block_rows(rows.shape[1]):
        answers = kernel(rows, draws, tags)  # one vector must not wait for what follows
        if answers is not None:
            return answers

    def run(block: Rows, first_row: int, _: Floats | None, out: Rows) -> None:
        hashed = None if tags is None else tags[first_row : first_row + len(block)]
        answers = None if kernel is None else kernel(block, draws, hashed)
        if answers is None:
            check_rows(block, first_row)
            answers = mechanism.perturb(block, keyed_uniforms(mechanism, block, draws, hashed))
        out[...] = answers

    return _in_blocks(rows, run, None, threads, mechanism.together)


def on_device(
    mechanism: Mechanism, rows: Array, draws: KeyedDraws | None = None, rng: np.random.Generator | None = None
) -> Array:
    """Answers to a batch of another array library, which stays on its device."""
    xp, (n, k) = namespace(rows), rows.shape
    together = mechanism.together
    size, count = max(1, BLOCK * 8 // k // together) * together, mechanism.draws(k)
    done = []
    for start in range(0, max(n, 1), size):
        block = rows[start : min(start + size, n), :]
        check_rows(block, start)
        if draws is not None and count:
            uniforms = keyed_uniforms(mechanism, to_numpy(xp.astype(block, xp.float64)), draws)
        elif rng is not None:
            uniforms = rng.random((block.shape[0], count))
        else:
            uniforms = secure_uniforms(block.shape[0], count)
        done.append(mechanism.perturb(block, xp.asarray(uniforms, device=rows.device)))
    return xp.concat(done, axis=0)


def block_rows(classes: int) -> int:
    """How many rows are processed at a time: whole groups of rows, as the kernels take them."""
    return max(16, BLOCK // classes // 64 * 64)


def keyed_uniforms(mechanism: Mechanism, rows: Rows, draws: KeyedDraws, tags: Rows | None = None) -> Floats:
    """The draws of each row of a batch; `tags` are hashed ones."""
    if not mechanism.draws(rows.shape[1]):
        return np.empty((len(rows), 0))
    return draws.uniforms(messages(rows, *mechanism.cells(rows), tags), mechanism.draws(rows.shape[1]))


def in_pieces(answered: Callable[[int, int], Rows], like: Rows, size: int, threads: int = 1) -> Rows:
    """An array like this one, whose rows are `answered(first, last)` for pieces of so many."""
    rows = len(like)
    if rows <= size:
        return answered(0, rows)
    made = np.empty(like.shape, like.dtype)

    def put(first: int) -> None:
        made[first : first + size] = answered(first, min(first + size, rows))

    if threads == 1:
        for first in range(0, rows, size):
            put(first)
        return made
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(put, first) for first in range(0, rows, size)]:
            done.result()
    return made


def _in_blocks(
    rows: Rows,
    run: Callable[[Rows, int, Floats | None, Rows], None],
    take: Callable[[int], Floats] | None,
    threads: int,
    together: int,
) -> Rows:
    """`run` on each block of rows: (block, its first row, its uniforms if `take` gives them, where to write)."""
    n, k = rows.shape
    out = np.empty_like(rows)
    size = max(block_rows(k) // together, 1) * together
    if n <= size:
        run(rows, 0, take(n) if take else None, out)
        return out
    starts = range(0, n, size)

    def job(start: int, uniforms: Floats | None) -> None:
        run(rows[start : start + size], start, uniforms, out[start : start + size])

    if threads == 1:
        for start in starts:
            job(start, take(min(size, n - start)) if take else None)
        return out
    with ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(job, start, take(min(size, n - start)) if take else None) for start in starts]
        for done in jobs:
            done.result()
    return out
