"""The table mechanism: its promise by enumeration, its draws against the integers, its answers in every dtype."""

import itertools
import math
import pickle
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import array_api_strict
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from channel_tools import WHOLE, bin_by_definition, check_answers, check_epsilon, make_channel
from scoreveil import Veil
from scoreveil.mechanisms import loading, promises
from scoreveil.mechanisms.channel import Channel
from scoreveil.mechanisms.kernels import channel as kernel
from scoreveil.mechanisms.messages import messages
from scoreveil.randomness import KeyedDraws, secure_uniforms
from test_kernels import batch

array_api_strict.set_array_api_strict_flags(api_version="2024.12")
CASES = [(2, 1), (2, 2), (3, 2), (10, 1), (10, 3), (10, 10), (300, 1), (300, 5), (600, 1)]
DTYPES = [np.float64, np.float32, np.float16]
DRAWS = 1_000_000


def changed(channel: Channel, **arrays: np.ndarray) -> Channel:
    return Channel(**{**{name: getattr(channel, name) for name in FIELDS}, **arrays})


FIELDS = ("epsilon", "keep", "edges", "table", "announced", "table_of_class", "profile", "evidence")


# The promise


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0, 1e6])
def test_verify_agrees_with_enumeration_in_fractions(epsilon):
    for seed in range(5):
        made = make_channel(epsilon=epsilon, seed=seed)
        check_epsilon(made.table, epsilon)
        made.verify()


@given(low=st.integers(1, 2**31), epsilon=st.floats(0.001, 20))
@settings(max_examples=200, deadline=None)
def test_the_largest_ratio_that_passes_is_exactly_e_to_the_epsilon(low, epsilon):
    most = math.floor(Fraction(Decimal(epsilon).exp()) * low)
    if not low < most < WHOLE - 1:
        return
    for high, passes in ((most - 1, True), (most + 1, False)):
        table = np.array([[low, WHOLE - low], [high, WHOLE - high]], dtype=np.int64)
        if promises.worst_ratio(table[:, 1:]) > promises.exponential_below(epsilon):
            return  # the other answer breaks it
        if passes:
            promises.check_table(table, epsilon)
        else:
            with pytest.raises(ValueError, match="breaks ε"):
                promises.check_table(table, epsilon)


def test_e_to_the_epsilon_is_rounded_down():
    for epsilon in (1e-9, 0.3, 1.0, 4.0, 22.0):
        below = promises.exponential_below(epsilon)
        exact = Fraction(Decimal(epsilon).exp())  # 28 digits
        assert below < exact * (1 + Fraction(1, 10**27))
        assert below > exact * (1 - Fraction(1, 10**27))


def test_the_loss_of_two_rows_is_that_of_their_bins():
    made = make_channel(classes=4, bins=5)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.dirichlet(np.ones(4), 30), axis=1)[:, ::-1]
    for a, b in itertools.permutations(rows[:12], 2):
        first, second = (made.table[bin_by_definition(row, made.edges)] for row in (a, b))
        assert made.loss(a, b) == pytest.approx(np.log(first / second).max(), abs=1e-12)
        assert made.loss(a, b) <= made.epsilon
    assert made.loss(rows[0], rows[0][::-1]) == math.inf


def test_worst_loss_and_rho_are_those_of_the_table():
    for seed in range(4):
        made = make_channel(epsilon=4.0, seed=seed)
        promise = made.guarantee()
        logs = np.log(made.table / WHOLE)
        worst = max((a - b).max() for a, b in itertools.permutations(logs, 2))
        assert promise.worst_loss == pytest.approx(worst, abs=1e-12)
        alphas = np.r_[np.geomspace(1.0001, 200, 4000)]
        reached = max(
            (np.log(np.exp(b + alphas[:, None] * (a - b)).sum(axis=1)) / (alphas - 1) / alphas).max()
            for a, b in itertools.permutations(logs, 2)
        )
        assert reached <= promise.rho <= min(reached * 1.003, 8.0)


def test_a_table_of_one_row_promises_everything():
    made = make_channel(bins=1)
    assert made.guarantee().rho == 0
    assert made.guarantee().worst_loss == 0


def test_randomised_response_has_the_rho_that_is_known():
    epsilon = 1.0
    high = int(WHOLE * math.exp(epsilon) / (1 + math.exp(epsilon)))
    table = np.array([[high, WHOLE - high], [WHOLE - high, high]], dtype=np.int64)
    assert promises.zcdp_rho(table, 1.0001) == pytest.approx(epsilon * math.tanh(epsilon / 2), rel=0.01)


# The draw


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("classes", "keep"), CASES)
def test_kernel_libraries_and_numpy_agree_to_the_bit(classes, keep, dtype):
    made, rng = make_channel(classes, keep, answers=7, bins=9), np.random.default_rng(classes)
    rows = batch(rng, classes, 200).astype(dtype)
    uniforms, out = rng.random((len(rows), 1)), np.empty_like(rows)
    plain = made.perturb(rows, uniforms)
    assert kernel.bind(made, classes)(rows, uniforms, out) == -1
    assert out.tobytes() == plain.tobytes()
    assert made.perturb(torch.asarray(rows), torch.asarray(uniforms)).numpy().tobytes() == plain.tobytes()
    if dtype != np.float16:  # which the standard does not have
        strict = made.perturb(array_api_strict.asarray(rows), array_api_strict.asarray(uniforms))
        assert np.asarray(strict).tobytes() == plain.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("classes", "keep"), CASES)
def test_keyed_answers_of_the_kernel_are_the_same_bytes(classes, keep, dtype):
    made, rng = make_channel(classes, keep), np.random.default_rng(classes)
    rows, draws = batch(rng, classes, 100).astype(dtype), KeyedDraws(b"sixteen byte key", b"test")
    tags = rng.integers(0, 256, (len(rows), 32)).astype(np.uint8)
    for tag in (None, tags):
        plain = made.perturb(rows, draws.uniforms(messages(rows, *made.cells(rows), tag), 1))
        assert kernel.bind_keyed(made, classes)(rows, draws, tag).tobytes() == plain.tobytes()


def test_an_edge_belongs_to_the_bin_above_it():
    made = make_channel(classes=2, bins=4)
    for edge in made.edges:
        for top in (np.nextafter(edge, 0), edge, np.nextafter(edge, 1)):
            row = np.array([[top, 1 - top]])
            assert made.read(row)[1][0] == bin_by_definition(row[0], made.edges)


def test_the_draw_is_exact_at_every_border():
    made = make_channel(answers=5)
    row = np.array([[0.6, 0.1, 0.1, 0.1, 0.1]])
    upper = np.cumsum(made.table[bin_by_definition(row[0], made.edges)])
    every = made.perturb(np.repeat(row, 5, 0), ((upper - 1) / WHOLE)[:, None])
    for c, border in enumerate(upper[:-1]):
        below, at = border / WHOLE - 2.0**-52, border / WHOLE
        assert np.array_equal(made.perturb(row, np.array([[below]]))[0], every[c])
        assert np.array_equal(made.perturb(row, np.array([[at]]))[0], every[c + 1])
    assert np.array_equal(made.perturb(row, np.array([[1 - 2.0**-52]]))[0], every[-1])


@pytest.mark.parametrize("path", ["numpy", "kernel", "keyed"])
@pytest.mark.parametrize("keep", [1, 2])
def test_answers_are_drawn_with_the_chances_of_the_table(path, keep):
    made, row = make_channel(4, keep, answers=6), np.array([0.2, 0.5, 0.2, 0.1])
    rows, out = np.repeat(row[None], DRAWS, 0), np.empty((DRAWS, 4))
    if path == "numpy":
        out = made.perturb(rows, secure_uniforms(DRAWS, 1))
    elif path == "kernel":
        assert kernel.bind(made, 4)(rows, secure_uniforms(DRAWS, 1), out) == -1
    else:
        tags = np.zeros((DRAWS, 32), dtype=np.uint8)
        tags[:, :8] = np.arange(DRAWS)[:, None].view(np.uint8)
        out = kernel.bind_keyed(made, 4)(rows, KeyedDraws(b"sixteen byte key", b""), tags)
    check_answers(made, row, out)


# The answers


@given(
    classes=st.integers(2, 60),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from(DTYPES),
    keep=st.integers(1, 5),
    peak=st.sampled_from([0.02, 0.3, 5.0]),
)
@settings(max_examples=150, deadline=None)
def test_labels_never_change_and_nothing_is_0_or_1(classes, seed, dtype, keep, peak):
    keep = min(keep, classes)
    made, rng = make_channel(classes, keep, seed=seed % 50), np.random.default_rng(seed)
    rows = rng.dirichlet(np.full(classes, peak), 40)
    rows = np.concatenate([rows, np.round(rows, 1), np.eye(classes)[:3], np.full((1, classes), 1 / classes)])
    rows = rows[rows.sum(axis=1) > 0]
    rows = (rows / rows.sum(axis=1, keepdims=True)).astype(dtype)
    answers = made.perturb(rows, rng.random((len(rows), 1)))
    check_shape(rows, answers, keep)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [1, 3])
def test_ten_thousand_classes(keep, dtype):
    made, rng = make_channel(10_000, keep), np.random.default_rng(0)
    rows = np.concatenate([rng.dirichlet(np.full(10_000, a), 3) for a in (0.001, 1.0)]).astype(dtype)
    answers = made.perturb(rows, rng.random((6, 1)))
    check_shape(rows, answers, keep)


def check_shape(rows: np.ndarray, answers: np.ndarray, keep: int) -> None:
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :keep]
    values = np.take_along_axis(answers.astype(np.float64), order, axis=1)
    others = answers.astype(np.float64).copy()
    np.put_along_axis(others, order, -1.0, axis=1)
    assert answers.dtype == rows.dtype
    assert np.array_equal(answers.argmax(axis=1), rows.argmax(axis=1))
    assert np.all(values[:, 0] > np.delete(np.sort(answers.astype(np.float64), axis=1), -1, axis=1).max(axis=1))
    assert np.all(np.diff(values, axis=1) <= 0)
    assert np.all(others.max(axis=1) <= values[:, -1])
    if rows.dtype != np.float16:
        assert np.all(np.diff(values, axis=1) < 0)
    assert np.all(answers > 0)
    assert np.all(answers < 1)
    assert np.abs(answers.astype(np.float64).sum(axis=1) - 1).max() <= (1e-3 if rows.dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("keep", [1, 2])
def test_an_answer_is_a_function_of_the_kept_classes_and_the_draw_alone(keep):
    made, rng = make_channel(5, keep, bins=2), np.random.default_rng(0)
    found: dict[tuple[int, ...], set[bytes]] = {}
    for row in rng.dirichlet(np.ones(5), 400):
        kept = tuple(np.argsort(-row)[:keep].tolist())
        answers = made.perturb(np.repeat(row[None], 200, 0), rng.random((200, 1)))
        found.setdefault(kept, set()).update(answer.tobytes() for answer in answers)
    assert all(len(answers) == len(made.announced) for answers in found.values())


def test_the_rest_is_shared_as_the_errors_are():
    made = make_channel(5, tables=1)
    made = changed(made, announced=np.full((4, 1), 0.9))
    answer = made.perturb(np.array([[0.1, 0.6, 0.1, 0.1, 0.1]]), np.array([[0.3]]))[0]
    share = np.delete(made.profile[0], 1)
    assert np.delete(answer, 1) == pytest.approx(0.1 * share / share.sum(), abs=1e-12)


# As a value


def test_a_channel_travels_and_stays_read_only():
    made = make_channel()
    again = pickle.loads(pickle.dumps(made))
    assert again != made
    assert len({made, again, made}) == 2
    rows, uniforms = np.random.default_rng(0).dirichlet(np.ones(5), 20), np.random.default_rng(1).random((20, 1))
    assert again.perturb(rows, uniforms).tobytes() == made.perturb(rows, uniforms).tobytes()
    for each in (made, again):
        for array in each.arrays().values():
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0


def test_two_channels_of_one_epsilon_do_not_share_a_plan():
    first, second = make_channel(seed=0), make_channel(seed=1)
    row, draw = np.full((1, 5), 0.2), np.full((1, 1), 0.5)
    assert first != second
    assert not np.array_equal(first.perturb(row, draw), second.perturb(row, draw))


def test_saved_and_loaded_it_answers_the_same(tmp_path):
    veil = Veil(make_channel(10), secret=b"sixteen byte key")
    veil.save(tmp_path / "veil.npz")
    rows = np.random.default_rng(0).dirichlet(np.ones(10), 50)
    again = Veil.load(tmp_path / "veil.npz", secret=b"sixteen byte key")
    assert again(rows).tobytes() == veil(rows).tobytes()
    assert again.guarantee == veil.guarantee


def test_keyed_and_tagged_answers_repeat(path):
    veil, rows = Veil(make_channel(), secret=b"sixteen byte key"), np.random.default_rng(0).dirichlet(np.ones(5), 200)
    assert veil(rows).tobytes() == veil(rows).tobytes()
    tags = [bytes([i % 256, i // 256]) for i in range(200)]
    assert veil(rows, tags).tobytes() == veil(rows, tags).tobytes()
    others = [b"other" + tag for tag in tags]
    assert veil(rows, tags).tobytes() != veil(rows, others).tobytes()
    assert Veil(make_channel(seed=1), secret=b"sixteen byte key")(rows).tobytes() != veil(rows).tobytes()


def test_both_ways_to_an_answer_refuse_bad_rows(path):
    veil = Veil(make_channel())
    rows = np.full((50, 5), 0.2)
    rows[37, 1] = np.nan
    with pytest.raises(ValueError, match="Row 37"):
        veil(rows)
    with pytest.raises(ValueError, match="fitted for 5 classes; these scores have 4"):
        veil(np.full((3, 4), 0.25))


def test_a_table_cannot_be_made_by_name():
    with pytest.raises(ValueError, match=r"scoreveil\.fit"):
        Veil(2.0, "channel")


def test_kernels_are_there():
    assert loading.wait()
    assert loading.kernel(make_channel(), 5) is not None
    assert loading.keyed_kernel(make_channel(), 5) is not None


# Planted bugs are caught


def test_a_swapped_row_breaks_the_draw_check():
    made, row = make_channel(4, answers=6, seed=3), np.array([0.2, 0.5, 0.2, 0.1])
    at = bin_by_definition(row, made.edges)
    table = made.table.copy()
    table[[at, at - 1]] = table[[at - 1, at]]
    wrong = changed(made, table=table)
    answers = wrong.perturb(np.repeat(row[None], DRAWS, 0), secure_uniforms(DRAWS, 1))
    with pytest.raises(AssertionError):
        check_answers(made, row, answers)


def test_an_edge_shifted_by_one_bin_breaks_the_draw_check():
    made, row = make_channel(4, answers=6, bins=8, seed=3), np.array([0.2, 0.5, 0.2, 0.1])
    shifted = changed(made, edges=np.r_[0.0, made.edges[:-1]])
    assert bin_by_definition(row, shifted.edges) == bin_by_definition(row, made.edges) + 1
    answers = shifted.perturb(np.repeat(row[None], DRAWS, 0), secure_uniforms(DRAWS, 1))
    with pytest.raises(AssertionError):
        check_answers(made, row, answers)


@pytest.mark.parametrize("fault", ["row", "zero", "epsilon", "announced", "certain", "order"])
def test_verify_names_what_is_broken(fault):
    made = make_channel(classes=5, keep=2 if fault == "order" else 1)
    table, announced = made.table.copy(), made.announced.copy()
    if fault == "row":
        table[1, 0] += 1
    elif fault == "zero":
        table[1, 1] += table[1, 0]
        table[1, 0] = 0
    elif fault == "epsilon":
        table[0] = [1, 1, 1, WHOLE - 3]
    elif fault == "announced":
        announced[0] = 0.1
    elif fault == "certain":
        announced[0] = 1.0
    else:
        announced[0] = announced[0][::-1]
    words = {"row": "sum to 2", "zero": "never give", "epsilon": "breaks ε"}.get(fault, "announced")
    with pytest.raises(ValueError, match=words):
        changed(made, table=table, announced=announced).verify()


def test_an_epsilon_11_times_10_too_large_is_caught():
    low = 2**26
    high = math.floor(promises.exponential_below(2.2) * low)
    rest = WHOLE - low - high
    table = np.array([[low, high, rest], [high, low, rest]], dtype=np.int64)
    made = make_channel(answers=3, bins=2, epsilon=2.2)
    changed(made, table=table).verify()
    with pytest.raises(ValueError, match="breaks ε = 2"):
        replace(changed(made, table=table), epsilon=2.0).verify()


def test_a_table_edited_in_the_file_is_refused(tmp_path):
    veil = Veil(make_channel())
    veil.save(tmp_path / "veil.npz")
    with np.load(tmp_path / "veil.npz") as saved:
        arrays = dict(saved)
    arrays["table"][0, 0] += 1
    np.savez(tmp_path / "edited.npz", **arrays)
    with pytest.raises(ValueError, match=r"breaks a promise\. The table has a row that does not sum"):
        Veil.load(tmp_path / "edited.npz")
