"""The plain form of each mechanism runs on any array library and gives the same answers."""

import array_api_strict
import numpy as np
import pytest
import torch

from scoreveil import Veil
from scoreveil.mechanisms.isotonic import Isotonic
from scoreveil.mechanisms.published import Published

array_api_strict.set_array_api_strict_flags(api_version="2024.12")
LIBRARIES = {"torch": torch.asarray, "strict": array_api_strict.asarray}


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.dirichlet(np.full(7, c), 50) for c in (0.05, 1.0)] + [np.eye(7), np.full((1, 7), 1 / 7)])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("reading", ["bounded", "printed"])
def test_published_gives_the_same_everywhere(rows, library, reading):
    to = LIBRARIES[library]
    uniforms = np.random.default_rng(1).random(rows.shape)
    mechanism = Published(0.7, reading)
    there = mechanism.perturb(to(rows), to(uniforms))
    assert type(there) is type(to(rows))
    assert np.asarray(there) == pytest.approx(mechanism.perturb(rows, uniforms), abs=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("keep", "with_reference"), [(1, False), (3, False), (3, True), ("all", False), ("all", True)])
@pytest.mark.parametrize("snapped", [False, True])
def test_isotonic_gives_the_same_everywhere(rows, library, keep, with_reference, snapped):
    to, mechanism = LIBRARIES[library], Isotonic(2.0, keep, reference=rows if with_reference else None)
    if snapped:
        mechanism = mechanism.keyed()
    uniforms = np.random.default_rng(1).random((len(rows), mechanism.draws(7)))
    there = mechanism.perturb(to(rows), to(uniforms))
    assert type(there) is type(to(rows))
    assert np.asarray(there) == pytest.approx(mechanism.perturb(rows, uniforms), abs=1e-12)


@pytest.mark.parametrize("mechanism", ["isotonic", "published"])
def test_a_veil_takes_any_library_and_gives_it_back(rows, mechanism):
    for to in LIBRARIES.values():
        scores = to(rows)
        veiled = Veil(2.0, mechanism, rng=np.random.default_rng(3))(scores)
        assert type(veiled) is type(scores)
        assert veiled.dtype == scores.dtype
        plain = Veil(2.0, mechanism, rng=np.random.default_rng(3))(rows)
        assert np.asarray(veiled) == pytest.approx(plain, abs=1e-12)


@pytest.mark.slow
def test_large_batches_of_other_libraries_go_in_blocks():
    rows = np.random.default_rng(0).dirichlet(np.full(3, 0.5), 800_000)
    veiled = np.asarray(Veil(2.0)(array_api_strict.asarray(rows)))
    assert np.array_equal(veiled.argmax(axis=1), rows.argmax(axis=1))
