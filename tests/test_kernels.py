"""Each mechanism is written twice; given the same uniforms the two agree, draw by draw."""

import subprocess
import sys

import numpy as np
import pytest

from scoreveil.mechanisms import reference
from scoreveil.mechanisms.isotonic import Isotonic
from scoreveil.mechanisms.kernels import common
from scoreveil.mechanisms.kernels import isotonic as isotonic_kernel
from scoreveil.mechanisms.kernels import published as published_kernel
from scoreveil.mechanisms.ordering import rank
from scoreveil.mechanisms.published import Published


def batch(rng, classes, rows):
    """Score vectors of many kinds: spread, peaked, one-hot, tied, with zeros, nearly tied."""
    kinds = [rng.dirichlet(np.full(classes, c), rows // 5 + 1) for c in (0.05, 0.5, 5.0)]
    tied = np.round(rng.dirichlet(np.full(classes, 0.5), rows // 5 + 1), 1)
    tied[tied.sum(axis=1) == 0, 0] = 1
    near = np.repeat(rng.dirichlet(np.full((classes + 1) // 2, 1.0), rows // 5 + 1), 2, axis=1)[:, :classes]
    near *= 1 + rng.integers(-2, 3, near.shape) * 2.0**-52
    out = np.concatenate([*kinds, tied, near, np.eye(classes)[: min(classes, 8)], np.full((1, classes), 1 / classes)])
    return out / out.sum(axis=1, keepdims=True)


def agree(kernel_out, plain_out):
    assert np.array_equal(kernel_out.argmax(axis=1), plain_out.argmax(axis=1))
    tolerance = 1e-12 if plain_out.dtype == np.float64 else float(np.finfo(plain_out.dtype).eps)
    assert np.abs(kernel_out.astype(np.float64) - plain_out.astype(np.float64)).max() <= tolerance


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("classes", [2, 3, 10, 33, 64, 65, 300])
def test_published_kernel_equals_reference_draw_by_draw(classes, dtype):
    rng = np.random.default_rng(classes)
    rows = batch(rng, classes, 400).astype(dtype)
    for settings in (
        Published(0.1),
        Published(2.0, m=2),
        Published(8.0, m=9),
        Published(1000.0),
        Published(0.7, m=1),
    ):
        uniforms, out = rng.random(rows.shape), np.empty_like(rows)
        assert published_kernel.bind(settings, classes)(rows, uniforms, out) == -1
        agree(out, settings.perturb(rows, uniforms))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize(
    ("classes", "keep"), [(2, 1), (2, 2), (3, 2), (10, 1), (10, 4), (10, 10), (80, 1), (80, 80), (300, 70)]
)
def test_isotonic_kernel_equals_reference_draw_by_draw(classes, keep, dtype):
    rng = np.random.default_rng(classes)
    rows = batch(rng, classes, 300).astype(dtype)
    counted = reference.count(batch(rng, classes, 500), keep, 32)
    for epsilon in (0.1, 4.0, 200.0, 1e6):
        for tables in (None, counted) if keep > 1 else (None,):
            mechanism = Isotonic(epsilon, keep, reference=tables)
            uniforms, out = rng.random((len(rows), keep)), np.empty_like(rows)
            assert isotonic_kernel.bind(mechanism, classes)(rows, uniforms, out) == -1
            agree(out, mechanism.perturb(rows, uniforms))


@pytest.mark.parametrize("height", [1, 2, 7, 8, 63, 64, 65, 129])
def test_a_row_does_not_depend_on_its_neighbours(height):
    rng = np.random.default_rng(height)
    rows = batch(rng, 10, 200)[:height]
    for run, draws in (
        (published_kernel.bind(Published(1.0), 10), 10),
        (isotonic_kernel.bind(Isotonic(1.0, 5), 10), 5),
    ):
        uniforms, out, alone = rng.random((len(rows), draws)), np.empty_like(rows), np.empty_like(rows)
        assert run(rows, uniforms, out) == -1
        for i in range(len(rows)):
            assert run(rows[i : i + 1], uniforms[i : i + 1], alone[i : i + 1]) == -1
        assert np.abs(out - alone).max() <= 1e-12


@pytest.mark.parametrize("classes", [3, 80])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.25, 0.9])
def test_kernels_name_the_first_bad_row(classes, bad):
    rows = np.full((200, classes), 1 / classes)
    rows[137, 1] = bad
    for run in (
        published_kernel.bind(Published(1.0), classes),
        isotonic_kernel.bind(Isotonic(1.0), classes),
        isotonic_kernel.bind(Isotonic(1.0, "all"), classes),
    ):
        assert run(rows, np.full((200, classes), 0.5), np.empty_like(rows)) == 137


@pytest.mark.parametrize("classes", range(2, common.NETWORK_CLASSES + 1))
def test_the_network_sorts(classes):
    # a network that sorts every row of zeros and ones sorts everything; many random ones here
    rows = np.random.default_rng(classes).integers(0, 2, (3000, classes))
    for a, b in common.network(classes):
        rows[:, a], rows[:, b] = np.minimum(rows[:, a], rows[:, b]), np.maximum(rows[:, a], rows[:, b])
    assert np.all(np.diff(rows, axis=1) >= 0)


def test_the_inlined_exponential_is_exact_to_1e_13():
    x = np.r_[-np.logspace(-12, 2.84, 20_000), np.linspace(0, 700, 20_001)]
    mine = np.array([common.exp(v) for v in x])
    assert np.abs(mine / np.exp(x) - 1).max() < 1e-13


def test_rank_puts_numpys_argmax_on_top_and_breaks_ties_by_index():
    rows = np.round(np.random.default_rng(0).dirichlet(np.full(6, 0.5), 1000), 1)
    order = rank(rows)
    assert np.array_equal(order[:, -1], rows.argmax(axis=1))
    for row, ranked in zip(rows, order, strict=True):
        assert ranked.tolist() == sorted(range(6), key=lambda i: (row[i], -i))


def test_the_table_of_choices_never_decides_wrongly():
    rng = np.random.default_rng(0)
    for settings in (
        Published(0.1),
        Published(2.0),
        Published(30.0, m=3),
        Published(8.0, m=9),
    ):
        choices = published_kernel._choices(settings)
        scale = settings.epsilon / (2 * settings.sensitivity)
        position, draw = rng.uniform(0, settings.m, 300_000), rng.random(300_000)
        distance = np.maximum(np.abs(position[:, None] - np.arange(settings.m)), 0.5)
        cumulative = np.cumsum(np.exp(scale / distance - 2 * scale), axis=1)
        exact = (cumulative[:, :-1] <= draw[:, None] * cumulative[:, -1:]).sum(axis=1)
        cells, columns = len(choices) - 1, choices.shape[1]
        stated = choices[(position * (cells / settings.m)).astype(int).clip(0, cells - 1), (draw * columns).astype(int)]
        sure = stated != published_kernel.DOUBT
        assert sure.mean() > 0.5
        assert np.array_equal(stated[sure], exact[sure])


def test_a_warm_veil_answers_its_first_question_by_a_kernel():
    code = (
        "from scoreveil import Veil; from scoreveil.mechanisms import loading; veil = Veil(2.0); "
        "assert loading.kernel(veil.mechanism, 2) is None; assert veil.warm() is veil; "
        "assert loading.kernel(veil.mechanism, 2) is not None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
