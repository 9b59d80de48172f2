"""Draws are uniform, never repeat across calls, threads, forks or veils, and follow no seed but the caller's own."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from scipy import stats

from scoreveil import Veil
from scoreveil.randomness import secure_uniforms

MECHANISMS = (
    {"mechanism": "published"},
    {"mechanism": "isotonic", "keep": 1},
    {"mechanism": "isotonic", "keep": 2},
    {"mechanism": "isotonic", "keep": "all"},
)


def sample(n: int, k: int) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.full(k, 0.4), size=n)


def in_pairs(draws: np.ndarray) -> set[tuple[float, float]]:
    """Two draws have 104 bits: a pair that is seen twice is no accident."""
    return set(map(tuple, draws.reshape(-1, 2).tolist()))


# --- the secure stream


def test_secure_draws_lie_in_the_unit_interval_and_have_the_shape_asked_for() -> None:
    for rows, columns in ((0, 3), (3, 0), (1, 1), (1, 511), (1, 512), (1, 513), (4096, 1), (4097, 3), (100, 5000)):
        draws = secure_uniforms(rows, columns)
        assert draws.shape == (rows, columns)
        assert draws.dtype == np.float64
        assert ((draws >= 0) & (draws < 1)).all()


@pytest.mark.parametrize("size", [1, 7, 500, 513, 5000, 200_000])
def test_secure_draws_are_uniform_whatever_the_size_of_the_calls(size: int) -> None:
    draws = np.concatenate([secure_uniforms(1, size)[0] for _ in range(max(1, 60_000 // size))])
    assert stats.kstest(draws, "uniform").pvalue > 1e-7
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.03
    counts = np.histogram(draws, bins=256, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-7


def test_every_bit_of_a_secure_draw_is_fair() -> None:
    bits = (secure_uniforms(1, 100_000)[0] * 2**52).astype(np.uint64)
    for i in range(52):
        ones = int(((bits >> np.uint64(i)) & np.uint64(1)).sum())
        assert abs(ones - 50_000) < 1_200  # 7.6 standard deviations


def test_a_million_draws_do_not_repeat() -> None:
    draws = np.concatenate([secure_uniforms(500, 1000).ravel()] + [secure_uniforms(1, 100)[0] for _ in range(5000)])
    assert len(in_pairs(draws)) == 500_000
    # by chance alone two of a million draws of 52 bits are equal once in 9,000 runs, and twice in 10^8
    assert len(np.unique(draws)) >= 1_000_000 - 1


def test_a_draw_that_was_handed_out_is_not_touched_again() -> None:
    first = secure_uniforms(1, 10)
    kept = first.copy()
    for _ in range(2000):
        secure_uniforms(1, 10)
    np.testing.assert_array_equal(first, kept)
    first[:] = 0.5
    assert not (secure_uniforms(1, 10) == 0.5).any()


def test_threads_draw_differently() -> None:
    start = Barrier(8)

    def draw(_: int) -> np.ndarray:
        start.wait()
        return np.concatenate([secure_uniforms(1, 50)[0] for _ in range(100)])

    with ThreadPoolExecutor(8) as pool:
        draws = np.concatenate(list(pool.map(draw, range(8))))
    assert len(in_pairs(draws)) == draws.size // 2


FORKED = """
import os, sys
import numpy as np
from scoreveil import Veil
from scoreveil.randomness import secure_uniforms

scores = np.tile([0.2, 0.3, 0.5], (200, 1))
veil = Veil(1.0, "published")
secure_uniforms(1, 10), veil(scores)     # both streams are under way, with draws left in their buffers

def draws():
    return np.concatenate([secure_uniforms(1, 64)[0], secure_uniforms(1, 3000)[0], veil(scores).ravel()]).tobytes()

found = []
for _ in range(3):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(draws())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found.append(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
found.append(draws())
for a, one in enumerate(found):
    assert len(one) == 8 * (64 + 3000 + 600)
    for other in found[:a]:
        one_draws, other_draws = np.frombuffer(one), np.frombuffer(other)
        assert not np.isin(one_draws[:3064], other_draws[:3064]).any(), "the stream was copied by the fork"
        assert not np.array_equal(one_draws[3064:], other_draws[3064:]), "a veil answers alike after the fork"
print("independent")
"""


@pytest.mark.posix
def test_a_fork_draws_differently_from_its_parent_and_its_siblings() -> None:
    # in an interpreter of its own: this one runs threads, which a fork does not survive
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "independent", run.stderr


def test_no_seed_reaches_the_secure_draws() -> None:
    seen = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        seen.append((secure_uniforms(2, 3), Veil(1.0, "published")(sample(5, 4))))
    assert not np.isin(seen[0][0], seen[1][0]).any()
    assert not np.array_equal(seen[0][1], seen[1][1])


def test_the_global_generators_are_left_alone(path: str) -> None:
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    before = np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    for options in MECHANISMS:
        Veil(1.0, **options)(sample(50, 4))
    assert np.array_equal(np.random.get_state()[1], before[0])  # noqa: NPY002
    assert random.getstate() == before[1]


# --- veils


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_two_veils_and_two_calls_never_share_draws(path: str, options: dict[str, Any]) -> None:
    scores = np.tile([0.2, 0.45, 0.35], (4000, 1))
    one, other = Veil(1.0, **options), Veil(1.0, **options)
    answers = [one(scores), other(scores), one(scores)]
    for a in range(3):
        for b in range(a):
            assert not np.array_equal(answers[a], answers[b])
            # 4,000 pairs: |r| > 0.12 has probability 1e-13
            assert abs(stats.spearmanr(answers[a][:, 1], answers[b][:, 1]).statistic) < 0.12


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_rows_of_a_batch_never_share_draws(path: str, options: dict[str, Any]) -> None:
    released = Veil(1.0, **options)(np.tile([0.2, 0.45, 0.35], (8192, 1)))[:, 1]
    for lag in (1, 2, 3, 4, 8, 16, 32, 64, 128, 512, 4096):
        assert abs(stats.spearmanr(released[:-lag], released[lag:]).statistic) < 0.12


def test_threads_of_one_veil_never_share_draws(path: str) -> None:
    n = 6000 if path == "numpy" else 400_000
    scores = np.tile([0.2, 0.45, 0.35], (n, 1))
    released = Veil(1.0, "published", threads=4)(scores)[:, 1]
    quarters = np.split(released, 4)
    for a in range(4):
        for b in range(a):
            assert abs(stats.spearmanr(quarters[a][:1500], quarters[b][:1500]).statistic) < 0.2


def test_a_veil_used_by_many_threads_at_once_gives_each_its_own_draws(path: str) -> None:
    veil = Veil(1.0, "published")
    scores = np.tile([0.2, 0.45, 0.35], (500, 1))
    start = Barrier(4)

    def ask(_: int) -> bytes:
        start.wait()
        return veil(scores).tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 4


# --- a generator of the caller's own


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_generator_makes_answers_reproducible(path: str, options: dict[str, Any], dtype: str) -> None:
    scores = np.tile(np.array([0.125, 0.25, 0.0, 0.625], dtype), (300, 1))
    first, again, other = (Veil(1.0, **options, rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    ours, theirs = [first(scores), first(scores)], [again(scores), again(scores)]
    assert ours[0].tobytes() == theirs[0].tobytes()
    assert ours[1].tobytes() == theirs[1].tobytes()
    assert ours[0].tobytes() != ours[1].tobytes()
    assert ours[0].tobytes() != other(scores).tobytes()


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_threads_do_not_change_what_a_generator_gives(path: str, options: dict[str, Any]) -> None:
    n = 5000 if path == "numpy" else 300_000
    scores = np.tile(np.random.default_rng(0).dirichlet([0.5] * 4, size=1000).astype(np.float32), (n // 1000, 1))
    one, many = (Veil(1.0, **options, rng=np.random.default_rng(5), threads=threads)(scores) for threads in (1, 3))
    assert one.tobytes() == many.tobytes()


def test_a_large_numpy_batch_is_reproducible_on_any_number_of_threads() -> None:
    scores = np.tile(np.random.default_rng(0).dirichlet([0.5] * 2, size=1000), (280, 1))
    one, many = (Veil(1.0, rng=np.random.default_rng(5), threads=threads)(scores) for threads in (1, 3))
    assert one.tobytes() == many.tobytes()


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_secure_draws_and_a_generator_give_the_same_distribution(path: str, options: dict[str, Any]) -> None:
    scores = np.tile([0.2, 0.45, 0.35], (20_000, 1))
    secure = Veil(1.0, **options)(scores)[:, 1]
    seeded = Veil(1.0, **options, rng=np.random.default_rng(0))(scores)[:, 1]
    assert stats.ks_2samp(secure, seeded).pvalue > 1e-7
