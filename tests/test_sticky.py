"""With a secret an answer is a function of the cell and the magnitudes of the scores: asking again gains nothing."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from scoreveil import Veil, blocks, fit
from scoreveil.keyed import KeyedVeil
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.isotonic import Isotonic
from scoreveil.mechanisms.messages import messages as messages_of
from scoreveil.randomness import KeyedDraws
from scoreveil.shapes import MultiLabel

SECRET = b"the secret of the tests, 32 byte"
OTHER_SECRET = b"another secret of the tests 32 b"
LEVELS = 32
MECHANISMS = {
    "published": {"mechanism": "published"},
    "printed": {"mechanism": "published", "reading": "printed"},
    "keep1": {"keep": 1},
    "keep3": {"keep": 3},
    "all": {"keep": "all"},
}
mechanisms = pytest.mark.parametrize("name", MECHANISMS)
isotonic = pytest.mark.parametrize("name", ["keep1", "keep3", "all"])


def sample(n: int, k: int, dtype: str = "float64", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(k, 0.4), size=n).astype(dtype)


def sticky(name: str, epsilon: float = 1.0, **more: Any) -> Veil:
    return Veil(epsilon, **MECHANISMS[name], **({"secret": SECRET} | more))


# --- the same scores, the same bytes


ELSEWHERE = """
import hashlib, sys
import numpy as np
from scoreveil import Veil
from scoreveil.mechanisms import loading
options, path, secret = eval(sys.argv[1]), sys.argv[2], bytes.fromhex(sys.argv[3])
if path == "numpy":
    loading.kernel = lambda mechanism, classes: None
    loading.keyed_kernel = lambda mechanism, classes: None
else:
    assert loading.wait()
scores = np.random.default_rng(0).dirichlet(np.full(6, 0.4), size=300).astype("float32")
for name, settings in options.items():
    released = Veil(1.0, secret=secret, model="m", **settings)(scores)
    print(name, hashlib.sha256(released.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_other_processes_give_the_same_bytes() -> None:
    scores = sample(300, 6, "float32")
    here = {name: hashlib.sha256(sticky(name, model="m")(scores).tobytes()).hexdigest() for name in MECHANISMS}
    for path in ("numpy", "kernel"):
        run = subprocess.run(
            [sys.executable, "-c", ELSEWHERE, repr(MECHANISMS), path, SECRET.hex()],
            capture_output=True,
            text=True,
            check=True,
        )
        assert dict(line.split() for line in run.stdout.splitlines()) == here


@mechanisms
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.slow
def test_position_and_size_of_the_batch_do_not_matter(path: str, name: str, dtype: str) -> None:
    scores = sample(700, 6, dtype)
    veil = sticky(name)
    whole = veil(scores)
    shuffle = np.random.default_rng(1).permutation(len(scores))
    assert veil(scores[shuffle]).tobytes() == whole[shuffle].tobytes()
    for size in (1, 2, 63, 64, 65, 500):
        parts = [veil(scores[start : start + size]) for start in range(0, 130, size)]
        joined = np.concatenate(parts)
        assert joined.tobytes() == whole[: len(joined)].tobytes()
    for i in range(20):
        assert veil(scores[i]).tobytes() == whole[i].tobytes()


@mechanisms
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numpy_and_kernel_give_the_same_bytes(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = sample(2000, 10, dtype)
    assert loading.wait()
    compiled = sticky(name)(scores)
    monkeypatch.setattr(loading, "kernel", lambda mechanism, classes: None)
    monkeypatch.setattr(loading, "keyed_kernel", lambda mechanism, classes: None)
    assert sticky(name)(scores).tobytes() == compiled.tobytes()


@mechanisms
def test_every_veil_and_every_time_give_the_same_bytes(path: str, name: str) -> None:
    scores = sample(200, 6)
    veil = sticky(name)
    first = veil(scores).tobytes()
    sticky(name, epsilon=3.0)(scores)
    assert veil(scores).tobytes() == first
    assert sticky(name)(scores).tobytes() == first


@mechanisms
@pytest.mark.slow
def test_threads_do_not_matter(path: str, name: str) -> None:
    scores = np.tile(sample(50, 6), (400, 1))
    expected = sticky(name)(scores).tobytes()
    assert sticky(name, threads=3)(scores).tobytes() == expected
    veil = sticky(name)
    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(lambda _: veil(scores[:500]).tobytes(), range(16)))
    assert answers == {veil(scores[:500]).tobytes()}


@mechanisms
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_torch_and_numpy_get_the_same_answer(path: str, name: str, dtype: str) -> None:
    scores = sample(130, 6, dtype)
    expected = sticky(name)(scores).tobytes()
    assert sticky(name)(torch.from_numpy(scores)).numpy().tobytes() == expected


@mechanisms
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_strict_arrays_and_numpy_get_the_same_answer(path: str, name: str, dtype: str) -> None:
    scores = sample(130, 6, dtype)
    released = sticky(name)(array_api_strict.asarray(scores))
    assert np.from_dlpack(released).tobytes() == sticky(name)(scores).tobytes()


@mechanisms
def test_minus_zero_is_zero(path: str, name: str) -> None:
    scores = np.array([[0.0, 0.75, 0.25, 0.0], [0.0, 0.0, 0.0, 1.0]])
    signed = np.where(scores == 0, -0.0, scores)
    assert sticky(name)(signed).tobytes() == sticky(name)(scores).tobytes()


# --- tables


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 40).flatmap(lambda k: arrays(np.float64, (7, k), elements=st.floats(0, 1))),
    st.sampled_from(["float16", "float32", "float64"]),
    st.floats(0.1, 20),
)
def test_tables_draw_what_the_mechanism_draws(rows: np.ndarray, dtype: str, epsilon: float) -> None:
    k = rows.shape[1]
    rows = np.concatenate([rows + 1e-9, np.ones((1, k))])  # 1/k may lie on the border of two cells
    scores = (rows / rows.sum(axis=1, keepdims=True)).astype(dtype)
    mechanism = Isotonic(epsilon).keyed()
    cells = mechanism.cells(scores)
    assert loading.wait()
    fused, keyed = loading.keyed_kernel(mechanism, k), KeyedDraws(SECRET, b"context")
    assert fused is not None
    for tags in (None, np.random.default_rng(1).integers(0, 256, size=(len(scores), 32), dtype=np.uint8)):
        expected = mechanism.perturb(scores, keyed.uniforms(messages_of(scores, *cells, tags), 1))
        assert fused(scores, keyed, tags).tobytes() == expected.tobytes()


# --- near-duplicates


def inside_cells(n: int, seed: int = 0) -> np.ndarray:
    """Four scores well inside their cells: the top one on a grid point, the others a third of a step above one."""
    rng = np.random.default_rng(seed)
    levels = np.array([rng.choice(np.arange(1, 7), size=3, replace=False) for _ in range(n)])
    others = (levels + 1 / 3) / (LEVELS - 1)
    return rng.permuted(np.column_stack([1 - others.sum(axis=1), others]), axis=1)


@isotonic
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_near_duplicates_in_a_cell_get_the_same_bytes(path: str, name: str, dtype: str) -> None:
    scores = inside_cells(300)
    wobble = np.random.default_rng(1).uniform(-2e-3, 2e-3, size=scores.shape)
    near = scores + wobble - wobble.mean(axis=1, keepdims=True)
    veil = sticky(name)
    assert veil(near.astype(dtype)).tobytes() == veil(scores.astype(dtype)).tobytes()


@isotonic
def test_another_cell_draws_afresh(path: str, name: str) -> None:
    scores = inside_cells(300)
    moved = scores.copy()
    top = scores.argmax(axis=1)
    rows = np.arange(len(scores))
    moved[rows, top] -= 1 / (LEVELS - 1)
    moved[rows, np.argsort(scores, axis=1)[:, 2]] += 1 / (LEVELS - 1)
    assert np.array_equal(moved.argmax(axis=1), top)
    veil = sticky(name, epsilon=1e-6)
    assert (veil(moved) != veil(scores)).any(axis=1).mean() > 0.8


@mechanisms
def test_rounding_noise_in_the_last_digits_draws_no_fresh_answer(path: str, name: str) -> None:
    scores = inside_cells(300)
    noise = np.random.default_rng(2).uniform(-1e-12, 1e-12, size=scores.shape)
    veil = sticky(name)
    np.testing.assert_allclose(veil(scores + noise), veil(scores), rtol=0, atol=1e-9)


def test_classes_that_are_not_kept_do_not_move_the_answer_within_their_magnitude(path: str) -> None:
    rows = np.array([[0.6, 0.1, 0.12, 0.18], [0.6, 0.12, 0.08, 0.2], [0.6, 0.07, 0.06, 0.27]])
    released = sticky("keep1")(rows)
    assert released[0].tobytes() == released[1].tobytes() == released[2].tobytes()


# --- records of one cell


def confident(n: int, spread: float, seed: int) -> np.ndarray:
    """Scores as of a classifier that is the surer, the larger the spread of its logits."""
    logits = np.random.default_rng(seed).normal(scale=spread, size=(n, 10))
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def auc_of_one_who_knows_half(members: np.ndarray, others: np.ndarray) -> float:
    """The membership of the first half of the records is known; how often each answer was a member's is counted."""

    def answers(released: np.ndarray) -> list[tuple[int, float]]:
        return [(int(row.argmax()), round(float(row.max()), 6)) for row in released]

    half = len(members) // 2
    seen = Counter(answers(members[:half])), Counter(answers(others[:half]))
    share = [[(seen[0][a] + 1) / (seen[0][a] + seen[1][a] + 2) for a in answers(r[half:])] for r in (members, others)]
    return float(stats.mannwhitneyu(*share).statistic / half**2)


def test_who_knows_many_records_cannot_learn_what_an_answer_means(monkeypatch: pytest.MonkeyPatch) -> None:
    members, others = confident(8000, 4.5, seed=1), confident(8000, 3.0, seed=2)
    fresh = Veil(2.0, rng=np.random.default_rng(0))
    floor = auc_of_one_who_knows_half(fresh(members), fresh(others))
    veil = Veil(2.0, secret=SECRET)
    assert abs(auc_of_one_who_knows_half(veil(members), veil(others)) - floor) < 0.03
    # the check catches it where all records of a cell share one answer
    monkeypatch.setattr(blocks, "messages", lambda rows, *cell: messages_of(np.ones_like(rows), *cell))
    monkeypatch.setattr(loading, "keyed_kernel", lambda mechanism, classes: None)
    assert auc_of_one_who_knows_half(veil(members), veil(others)) > floor + 0.06


# --- averaging


@mechanisms
def test_averaging_repeats_recovers_one_answer(path: str, name: str) -> None:
    row = sample(1, 6)[0]
    repeats = sticky(name)(np.tile(row, (10_000, 1)))
    assert len(np.unique(repeats, axis=0)) == 1
    assert repeats[0].tobytes() == sticky(name)(row).tobytes()


def test_without_a_secret_averaging_tells_scores_apart(path: str) -> None:
    def mean_top(top: float) -> tuple[float, float]:
        rows = np.tile([top, 1 - top, 0.0], (10_000, 1))
        released = Veil(2.0, rng=np.random.default_rng(5))(rows)[:, 0]
        return float(released.mean()), float(released.std() / 100)

    (low, low_error), (high, high_error) = mean_top(0.55), mean_top(0.95)
    assert high - low > 20 * (low_error + high_error)


# --- what makes draws independent


def tops_in_one_cell(k: int) -> np.ndarray:
    """One row per class on top, all with the same scores: as many messages, and one distribution."""
    rows = np.full((k, k), 0.4 / (k - 1))
    np.fill_diagonal(rows, 0.6)
    return rows


def chosen(veil: Veil, k: int = 600) -> np.ndarray:
    return np.diagonal(veil(tops_in_one_cell(k))).copy()


OTHERS = {
    "secret": {"secret": OTHER_SECRET},
    "model": {"model": "another"},
    "epsilon": {"epsilon": 1.0 + 1e-9},
    "keep": {"keep": 2},
}


@pytest.mark.parametrize("change", OTHERS)
def test_another_secret_model_epsilon_or_keep_draws_independently(change: str) -> None:
    options = {"epsilon": 1.0, "keep": 1, "secret": SECRET, "model": "one"}
    ours, theirs = chosen(Veil(**options)), chosen(Veil(**options | OTHERS[change]))
    assert not np.array_equal(ours, theirs)
    # 600 pairs: an independent correlation beyond 0.25 has probability 1e-9
    assert abs(stats.spearmanr(ours, theirs).statistic) < 0.25
    assert np.array_equal(ours, chosen(Veil(**options)))


def test_another_reference_draws_independently() -> None:
    k = 600
    public = np.full((40, k), 0.3 / (k - 1))
    public[np.arange(40), np.arange(40)] = 0.7
    more = np.vstack([public, public[:1]])
    ours, theirs, none = (
        chosen(Veil(1.0, secret=SECRET, keep=2, reference=reference), k) for reference in (public, more, None)
    )
    for left, right in ((ours, theirs), (ours, none), (theirs, none)):
        assert not np.array_equal(left, right)
        assert abs(stats.spearmanr(left, right).statistic) < 0.25
    assert np.array_equal(ours, chosen(Veil(1.0, secret=SECRET, keep=2, reference=public), k))


@pytest.mark.parametrize("change", ["secret", "model", "epsilon"])
@pytest.mark.parametrize("name", ["published", "printed", "all"])
def test_another_secret_model_or_epsilon_gives_other_answers_where_all_is_kept(name: str, change: str) -> None:
    scores = sample(100, 6)
    options: dict[str, Any] = {"epsilon": 1e-6, "secret": SECRET, "model": "one"} | MECHANISMS[name]
    changed = options | ({"epsilon": 1.1e-6} if change == "epsilon" else OTHERS[change])
    ours, theirs = Veil(**options)(scores), Veil(**changed)(scores)
    assert (ours != theirs).any(axis=1).mean() > 0.9


@pytest.mark.parametrize(("left", "right"), [("published", "printed"), ("published", "all"), ("keep3", "all")])
def test_mechanisms_do_not_share_draws(left: str, right: str) -> None:
    scores = sample(50, 6)
    assert not np.array_equal(sticky(left)(scores), sticky(right)(scores))


def test_the_answers_over_many_cells_follow_the_mechanism() -> None:
    """Keyed draws come from the same distribution as fresh ones: nothing is lost by being sticky."""
    keyed = chosen(sticky("keep1"), 3000)
    on_grid = np.full((3000, 3000), (1 - 19 / 31) / 2999)
    np.fill_diagonal(on_grid, 19 / 31)  # 0.6 on the grid
    fresh = np.diagonal(Veil(1.0, rng=np.random.default_rng(3))(on_grid))
    assert stats.ks_2samp(keyed, fresh).pvalue > 1e-6


# --- the keyed draws themselves


def messages(n: int) -> np.ndarray:
    return np.arange(n, dtype="<u4")[:, None].view(np.uint8)


def message(text: bytes) -> np.ndarray:
    return np.frombuffer(text, dtype=np.uint8)[None]


def test_keyed_draws_are_uniform_and_independent() -> None:
    draws = KeyedDraws(SECRET, b"context").uniforms(messages(50_000), 4)
    assert draws.shape == (50_000, 4)
    assert ((draws >= 0) & (draws < 1)).all()
    for column in draws.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-6
    # between columns of a message, and between neighbouring messages; |r| > 0.03 has probability 1e-11
    correlation = np.corrcoef(np.hstack([draws[:-1], draws[1:]]).T)
    assert np.abs(correlation - np.eye(8)).max() < 0.03
    assert len(np.unique(draws)) >= draws.size - 1


def test_keyed_draws_of_pairs_fill_the_square() -> None:
    draws = KeyedDraws(SECRET, b"context").uniforms(messages(40_000), 2)
    counts = np.histogram2d(*draws.T, bins=20, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(counts.ravel()).pvalue > 1e-6


def test_a_keyed_draw_is_a_function_of_its_message_alone() -> None:
    keyed = KeyedDraws(SECRET, b"context")
    all_at_once = keyed.uniforms(messages(1000), 3)
    np.testing.assert_array_equal(keyed.uniforms(messages(1000)[::-1], 3)[::-1], all_at_once)
    np.testing.assert_array_equal(keyed.uniforms(messages(1000)[700:701], 3), all_at_once[700:701])
    np.testing.assert_array_equal(KeyedDraws(SECRET, b"context").uniforms(messages(5), 3), all_at_once[:5])
    repeated = keyed.uniforms(np.concatenate([message(b"a"), message(b"b"), message(b"a")]), 3)
    np.testing.assert_array_equal(repeated[0], repeated[2])
    assert not np.array_equal(repeated[0], repeated[1])


@pytest.mark.parametrize("columns", [1, 2, 3, 64, 513, 5000])
def test_messages_of_any_length_get_draws_of_their_own(columns: int) -> None:
    many = [
        b"",
        b"\0",
        b"\0\0",
        b"x" * 15,
        b"x" * 16,
        b"x" * 17,
        b"x" * 511,
        b"x" * 512,
        b"x" * 513,
        b"x" * 10_000,
        b"x" * 9_999 + b"y",
    ]
    keyed = KeyedDraws(SECRET, b"context")
    draws = np.concatenate([keyed.uniforms(message(text), columns) for text in many])
    assert draws.shape == (len(many), columns)
    assert len(np.unique(draws)) == draws.size
    assert keyed.uniforms(messages(0), columns).shape == (0, columns)


def test_other_secrets_and_contexts_draw_independently() -> None:
    ours = KeyedDraws(SECRET, b"context").uniforms(messages(20_000), 1)[:, 0]
    for other in (KeyedDraws(OTHER_SECRET, b"context"), KeyedDraws(SECRET, b"contexu"), KeyedDraws(SECRET, b"")):
        theirs = other.uniforms(messages(20_000), 1)[:, 0]
        assert not np.isin(theirs, ours).any()
        assert abs(np.corrcoef(ours, theirs)[0, 1]) < 0.05


def test_the_border_between_context_and_message_cannot_be_moved() -> None:
    left = KeyedDraws(SECRET, b"ab").uniforms(message(b"c"), 4)
    right = KeyedDraws(SECRET, b"a").uniforms(message(b"bc"), 4)
    assert not np.array_equal(left, right)


def test_a_veil_never_shows_its_secret() -> None:
    veil = sticky("keep1", model="m")
    for shown in (repr(veil), str(veil), repr(veil.guarantee), str(veil.guarantee)):
        assert "secret of the tests" not in shown
        assert SECRET.hex() not in shown


@isotonic
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_outcomes_stand_for_answers(name: str, dtype: str) -> None:
    """What a ledger keeps of an answer gives it back, and another label with the same confidence."""
    veil, rows = sticky(name), np.random.default_rng(3).dirichlet(np.ones(4), 200).astype(dtype)
    tags = [bytes([i]) for i in range(200)]
    outcomes = KeyedVeil(veil).outcomes(rows, tags)
    assert outcomes.shape == (200, veil.mechanism.draws(4))
    np.testing.assert_array_equal(KeyedVeil(veil).answers(rows, outcomes), KeyedVeil(veil)(rows, tags))
    turned = KeyedVeil(veil).answers(np.ascontiguousarray(rows[:, ::-1]), outcomes)
    np.testing.assert_array_equal(turned.argmax(axis=1), rows[:, ::-1].argmax(axis=1))


def test_published_answers_have_no_outcomes() -> None:
    with pytest.raises(ValueError, match="cannot be kept as whole numbers"):
        KeyedVeil(Veil(1.0, "published", secret=b"0123456789abcdef")).outcomes(np.full((1, 4), 0.25), [b"a"])


def fitted(epsilon: float | None, classes: int, **options: Any) -> Veil:
    """A veil that is not constant; its scores say how often they are right."""
    rng = np.random.default_rng(1)
    scores = sample(2400, classes, seed=1)
    labels = np.array([rng.choice(classes, p=row) for row in scores])
    if options:
        labels = (rng.random(scores.shape) < scores).astype(int)
    veil = fit(scores[:1200], labels[:1200], scores[1200:], labels[1200:], epsilon=epsilon, rng=rng, **options)
    assert not veil.is_constant
    return veil


@pytest.mark.parametrize("options", [{"classes": 2}, {"classes": 5}, {"classes": 3, "shape": MultiLabel()}])
def test_outcomes_of_a_fitted_table_stand_for_answers(options: dict[str, Any]) -> None:
    veil, rows = fitted(2.0, **options).with_secret(SECRET), sample(300, options["classes"], "float32")
    tags = [str(i).encode() for i in range(300)]
    answers = KeyedVeil(veil)(rows, tags)
    np.testing.assert_array_equal(KeyedVeil(veil).answers(rows, KeyedVeil(veil).outcomes(rows, tags)), answers)
    assert (answers != KeyedVeil(veil.with_secret(OTHER_SECRET))(rows, tags)).any()


@pytest.mark.parametrize("options", [{"classes": 2}, {"classes": 5}, {"classes": 3, "shape": MultiLabel()}])
def test_a_fitted_veil_without_epsilon_answers_alike_with_any_secret_or_none(options: dict[str, Any]) -> None:
    veil, rows = fitted(None, **options), sample(300, options["classes"], "float32")
    answers = veil(rows)
    assert veil(rows).tobytes() == answers.tobytes()
    for secret in (SECRET, OTHER_SECRET):
        keyed = veil.with_secret(secret)
        assert keyed(rows).tobytes() == answers.tobytes()
        assert KeyedVeil(keyed)(rows, [str(i).encode() for i in range(300)]).tobytes() == answers.tobytes()
