"""Shapes of scores: what always holds for each of them, what ε promises, and what an answer may depend on."""

import itertools
import math
import pickle
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.speed import shapes as benchmark
from scoreveil import Veil
from scoreveil.accounting import epsilon_after
from scoreveil.keyed import KeyedVeil
from scoreveil.mechanisms import loading
from scoreveil.mechanisms.isotonic import Isotonic, IsotonicPlan, log_probability
from scoreveil.mechanisms.scores import BadRow
from scoreveil.shapes import VECTORS, Binary, MultiLabel, PerPosition, Shape, TopK, as_columns, make, veiled_pairs

SECRET = bytes(range(32))
DTYPES = ("float16", "float32", "float64")
THRESHOLDS = (0.5, 0.3, 0.7, 0.01, 0.999)
EPSILONS = (0.01, 1.0, 8.0, 2000.0)

often = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(params=["numpy", "kernel"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways an answer is computed."""
    if request.param == "kernel":
        assert loading.wait()
    else:
        monkeypatch.setattr(loading, "_bound", lambda *_: None)
    return str(request.param)


@lru_cache
def mechanism(epsilon: float, keep: int) -> Isotonic:
    """One for all examples: its tables are made once."""
    return Isotonic(epsilon, keep)


@lru_cache
def veil_for(shape: Shape, epsilon: float, keyed: bool = False, keep: int = 1) -> Veil:
    return Veil(mechanism(epsilon, keep), shape=shape, secret=SECRET if keyed else None)


# Yes or no


def border_of(threshold: float, dtype: str, logits: bool) -> Any:
    return np.dtype(dtype).type(exact_border(threshold, logits))


def exact_border(threshold: float, logits: bool) -> float:
    return math.log(threshold) - math.log1p(-threshold) if logits else threshold


def near_the_border(threshold: float, dtype: str, logits: bool) -> np.ndarray:
    """Scores at the threshold and beside it, at the ends, and in between."""
    kind, border = np.dtype(dtype).type, border_of(threshold, dtype, logits)
    steps = [border, np.nextafter(border, kind(np.inf)), np.nextafter(border, kind(-np.inf))]
    ends = [-700, -30, -1, 0, 2, 30, 700] if logits else [0, 1, 0.25, 0.5, 0.75, np.finfo(dtype).smallest_subnormal]
    return np.array([*steps, *ends]).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
@given(
    threshold=st.sampled_from(THRESHOLDS),
    epsilon=st.sampled_from(EPSILONS),
    seed=st.integers(0, 99),
)
@often
def test_one_column_stays_on_its_side_of_the_threshold(
    path: str, dtype: str, logits: bool, keyed: bool, threshold: float, epsilon: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    some = rng.normal(size=20) * 5 if logits else rng.random(20) ** rng.choice([0.1, 1, 10])
    scores = np.r_[near_the_border(threshold, dtype, logits), some.astype(dtype)]
    scores = scores[:, None] if seed % 2 else scores
    before = scores.copy()
    answer = veil_for(Binary(threshold, logits), epsilon, keyed)(scores)
    np.testing.assert_array_equal(scores, before)
    assert (answer.dtype, answer.shape) == (scores.dtype, scores.shape)
    assert np.isfinite(answer).all()
    border = border_of(threshold, dtype, logits)
    np.testing.assert_array_equal(answer >= border, scores >= border)
    # who reads the answer as wider numbers, from JSON for example, sees the same label
    exact = exact_border(threshold, logits)
    np.testing.assert_array_equal(answer.astype(np.float64) >= exact, scores >= border)
    if not logits:
        assert ((answer >= 0) & (answer <= 1)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    thresholds=st.lists(st.sampled_from(THRESHOLDS), min_size=1, max_size=6),
    epsilon=st.sampled_from(EPSILONS[:2]),
    logits=st.booleans(),
    keyed=st.booleans(),
    seed=st.integers(0, 99),
)
@often
def test_every_label_of_many_stays_on_its_side(
    path: str, dtype: str, thresholds: list[float], epsilon: float, logits: bool, keyed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    columns = [rng.permutation(near_the_border(t, dtype, logits))[:8] for t in thresholds]
    scores = np.stack(columns, axis=1)
    veil = veil_for(MultiLabel(tuple(thresholds), logits), epsilon, keyed)
    answer = veil(scores)
    assert (answer.dtype, answer.shape) == (scores.dtype, scores.shape)
    assert np.isfinite(answer).all()
    for i, t in enumerate(thresholds):
        border = border_of(t, dtype, logits)
        np.testing.assert_array_equal(answer[:, i] >= border, scores[:, i] >= border)
    assert veil(scores[0]).shape == scores[0].shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_scores_at_the_threshold_become_vectors_of_their_label(dtype: str, logits: bool, threshold: float) -> None:
    """Else the answer would be mended afterwards, and its value would tell where the score had been."""
    scores = near_the_border(threshold, dtype, logits)
    vectors = Binary(threshold, logits).vectors(scores)[:, 0]
    np.testing.assert_array_equal(vectors.argmax(axis=1), scores >= border_of(threshold, dtype, logits))
    assert (vectors >= 0).all()
    np.testing.assert_allclose(vectors.sum(axis=1), 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logits", [False, True])
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_an_answer_as_near_to_the_threshold_as_can_be_is_still_on_its_side(
    dtype: str, logits: bool, threshold: float
) -> None:
    """Whatever a mechanism draws: here what is hardest to tell apart, for a yes and for a no."""
    tops = np.array([0.5, np.nextafter(0.5, 1), 0.5 + 1e-12, 0.5 + 1e-6, 1.0])
    vectors = np.concatenate([np.stack([1 - tops, tops], axis=1), np.stack([tops, 1 - tops], axis=1)])[:, None]
    no, yes = (-np.inf, np.inf) if logits else (0, 1)
    like = np.repeat([yes, no], len(tops)).astype(dtype)
    answer = Binary(threshold, logits).restored(vectors, like)
    assert answer.dtype == like.dtype
    assert np.isfinite(answer).all()
    for border in (border_of(threshold, dtype, logits), exact_border(threshold, logits)):
        np.testing.assert_array_equal(answer.astype(np.float64) >= float(border), like > 0)


@pytest.mark.parametrize("shape", [Binary(), Binary(0.3), Binary(0.3, logits=True), MultiLabel((0.2, 0.6))])
def test_a_column_is_a_function_of_its_label_and_its_draw_to_the_byte(path: str, shape: Shape) -> None:
    """There are two labels and at most 32 levels: so many answers, whatever the scores were."""
    rng = np.random.default_rng(1)
    logits = getattr(shape, "logits", False)
    scores = rng.normal(size=(20_000, 2)) * 3 if logits else rng.random((20_000, 2))
    for dtype in DTYPES:
        given_scores = scores.astype(dtype) if isinstance(shape, MultiLabel) else scores[:, 0].astype(dtype)
        answer = veil_for(shape, 4.0)(given_scores)
        columns = answer.reshape(len(answer), -1).T
        assert all(len(set(column.tolist())) <= 2 * 17 for column in columns)


def test_a_column_at_half_is_veiled_as_the_vector_of_both_classes() -> None:
    p = np.random.default_rng(0).random(500)
    rng = [np.random.default_rng(7) for _ in range(2)]
    column = Veil(2.0, shape=Binary(), rng=rng[0])(p)
    vectors = Veil(2.0, rng=rng[1])(np.stack([1 - p, p], axis=1))
    np.testing.assert_allclose(column, vectors[:, 1], rtol=0, atol=1e-12)


# Top-k


def listed_scores(kind: str, k: int, dtype: str, rng: np.random.Generator, classes: int | None) -> np.ndarray:
    """The scores of the k largest of many classes, in any order, of kinds that are known to hurt."""
    if kind == "neighbours":  # that division may make equal
        row = np.full(k, rng.choice([0.3, 0.7, 0.9, 0.95]) / k, dtype)
        row += (rng.integers(-2, 3, size=k) * np.spacing(row)).astype(dtype)
    elif kind == "one":
        row = np.zeros(k, dtype)
        row[rng.integers(k)] = 1
    else:
        wide = np.sort(rng.dirichlet(np.full(3 * k, rng.choice([0.05, 1]))))[::-1][:k]
        row = rng.permutation(wide).astype(dtype)
    if classes is not None:  # what is not listed must have less than what is
        lowest = (1 - row.sum(dtype=np.float64)) / max(classes - k, 1)
        row = np.maximum(row, np.dtype(dtype).type(lowest)) if classes > k else row
        row = (row.astype(np.float64) / max(1, row.sum(dtype=np.float64))).astype(dtype)
    return row


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [1, 2, 3])
@given(
    k=st.integers(3, 12),
    rest=st.booleans(),
    epsilon=st.sampled_from(EPSILONS),
    keyed=st.booleans(),
    seed=st.integers(0, 999),
)
@often
def test_a_list_keeps_its_label_and_the_order_of_what_is_kept(
    path: str, dtype: str, keep: int, k: int, rest: bool, epsilon: float, keyed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    classes = 4 * k if rest else None
    kinds = ("neighbours", "one", "dirichlet")
    scores = np.stack([listed_scores(kinds[i % 3], k, dtype, rng, classes) for i in range(12)])
    answer = veil_for(TopK(classes), epsilon, keyed, keep=keep)(scores)
    assert (answer.dtype, answer.shape) == (scores.dtype, scores.shape)
    assert np.isfinite(answer).all()
    assert (answer >= 0).all()
    sums = answer.sum(axis=1, dtype=np.float64)
    slack = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-9}[dtype]
    assert (sums <= 1 + slack).all()
    if not rest:
        np.testing.assert_allclose(sums, 1, rtol=0, atol=slack)
    np.testing.assert_array_equal(answer.argmax(axis=1), scores.argmax(axis=1))
    order = np.argsort(-scores, axis=1, kind="stable")
    shown = np.take_along_axis(answer, order, axis=1)
    assert (shown[:, : keep - 1] > shown[:, 1:keep]).all(), "kept classes are not in their order"
    assert (shown[:, [keep - 1]] >= shown[:, keep:]).all(), "another class passes a kept one"


@pytest.mark.parametrize("classes", [None, 40])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [1, 2])
def test_a_list_is_a_function_of_the_kept_classes_and_the_draw_to_the_byte(
    path: str, classes: int | None, dtype: str, keep: int
) -> None:
    rng = np.random.default_rng(3)
    lists = np.stack([listed_scores("dirichlet", 4, "float64", rng, classes) for _ in range(4000)]).astype(dtype)
    lists[:, ::-1].sort(axis=1)
    lists[:, keep:] = rng.permuted(lists[:, keep:], axis=1)
    answer = veil_for(TopK(classes), 4.0, keep=keep)(lists)
    # the kept classes tell the levels, and these all the rest
    by_kept: dict[bytes, set[bytes]] = {}
    for row in answer:
        by_kept.setdefault(row[:keep].tobytes(), set()).add(row.tobytes())
    assert len(by_kept) <= 32**keep
    assert all(len(rows) == 1 for rows in by_kept.values())


def test_the_mass_that_is_listed_tells_nothing_more_than_the_answer_may() -> None:
    """Two models that list the same classes, one with nearly all the mass and one with little: the same answers."""
    answers = [set(), set()]
    for seen, mass in zip(answers, (0.99, 0.31), strict=True):
        rows = np.tile(np.array([0.5, 0.3, 0.2]) * mass, (20_000, 1))
        seen.update(row.tobytes() for row in Veil(0.5, shape=TopK(30))(rows))
    assert answers[0] == answers[1]


# More axes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keyed", [False, True])
def test_every_place_is_veiled_as_a_vector(path: str, dtype: str, keyed: bool) -> None:
    scores = np.random.default_rng(0).dirichlet(np.full(5, 0.3), size=(6, 2, 3)).astype(dtype)
    for shape in (VECTORS, PerPosition()):
        answer = Veil(1.0, shape=shape, secret=SECRET if keyed else None)(scores)
        assert (answer.dtype, answer.shape) == (scores.dtype, scores.shape)
        np.testing.assert_array_equal(answer.argmax(axis=-1), scores.argmax(axis=-1))
        np.testing.assert_allclose(answer.sum(axis=-1, dtype=np.float64), 1, rtol=0, atol=4e-3)


# What is promised


def worst_loss_of_answers(plan: IsotonicPlan, vectors: np.ndarray) -> float:
    """The largest log-ratio of the chances of any whole answer, over all pairs of records with the same labels.

    Args:
        plan: The mechanism's tables.
        vectors: What the records stand for: (records, releases, classes). Each is drawn for on its own, so the chance
            of a whole answer is a product, and the largest ratio a sum of largest ones.
    """
    levels = np.arange(plan.levels)[:, None]
    chances = np.array(
        [[log_probability(np.repeat(v[None], len(levels), 0), levels, plan) for v in record] for record in vectors]
    )
    labels, worst = vectors.argmax(axis=2), 0.0
    for label in np.unique(labels, axis=0):
        same = chances[(labels == label).all(axis=1)]
        possible = np.isfinite(same).all(axis=0)  # levels that no top score takes have no chance at all
        highest = np.where(possible, same[:, None] - same[None, :], -np.inf) if len(same) else np.zeros(1)
        worst = max(worst, float(highest.max(axis=3).sum(axis=2).max()))
    return worst


@pytest.mark.parametrize(
    ("shape", "columns"),
    [(Binary(0.3), 1), (MultiLabel(), 2), (MultiLabel((0.3, 0.8, 0.5)), 3)],
    ids=["one column", "two labels", "three labels"],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
def test_an_answer_loses_at_most_epsilon_for_each_label(shape: Shape, columns: int) -> None:
    mechanism = Isotonic(1.5, levels=5)
    rows = np.array(list(itertools.product(np.linspace(0, 1, 5), repeat=columns)))
    worst = worst_loss_of_answers(mechanism.plan(2), shape.vectors(rows))
    most = epsilon_after(mechanism.guarantee(2), shape.releases(rows.shape))
    assert most == 1.5 * columns
    assert 0.8 * most < worst <= most + 1e-9  # nearly reached: another count of releases would be caught


@pytest.mark.parametrize("classes", [None, 9])
@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")
def test_a_list_loses_at_most_epsilon(classes: int | None) -> None:
    shape, mechanism = TopK(classes), Isotonic(1.5, levels=6)
    rows = np.array([row for row in itertools.product(np.linspace(0, 1, 9), repeat=3) if 0 < sum(row) <= 1])
    if classes is not None:  # lists of the largest
        rows = rows[(1 - rows.sum(axis=1)) / (classes - 3) <= rows.min(axis=1)]
    shape.check(rows)
    vectors = shape.vectors(rows)
    worst = worst_loss_of_answers(mechanism.plan(vectors.shape[2]), vectors)
    assert 0.5 * 1.5 < worst <= 1.5 + 1e-9


def test_labels_are_drawn_for_independently(path: str) -> None:
    """The same score in both columns, many times: how often both answers agree is what chance makes of it."""
    scores = np.full((40_000, 2), 0.7)
    for veil in (Veil(1.0, shape=MultiLabel()), Veil(1.0, shape=MultiLabel(), secret=SECRET)):
        tags = [b"%d" % i for i in range(len(scores))]
        left, right = (KeyedVeil(veil)(scores, tags) if veil.is_keyed else veil(scores)).T
        values, counts = np.unique(left, return_counts=True)
        by_chance = float(((counts / len(left)) ** 2).sum())
        assert len(values) > 4
        # five standard errors
        assert abs((left == right).mean() - by_chance) < 5 * math.sqrt(by_chance / len(left))


def test_releases_are_counted_and_add_up() -> None:
    scores = np.full((3, 4), 0.5)
    assert Veil(0.5, shape=MultiLabel()).releases(scores) == 4
    assert Veil(0.5, shape=Binary()).releases(scores[:, 0]) == 1
    assert Veil(0.5, shape=TopK(9)).releases(scores) == 1
    assert Veil(0.5).releases(scores) == Veil(0.5).releases([0.2, 0.8]) == 1
    assert Veil(0.5).releases(torch.zeros((2, 7, 3))) == 7
    assert Veil(0.5).releases(np.zeros((2, 7, 5, 3))) == 35
    veil = Veil(0.5, shape=MultiLabel())
    assert epsilon_after(veil.guarantee, veil.releases(scores)) == 2.0
    assert "m · ε" in str(veil.guarantee)


def test_a_sum_that_promises_nothing_is_said() -> None:
    with pytest.warns(UserWarning, match="30 releases of ε = 1, which add up to 30"):
        Veil(1.0)(np.full((1, 30, 2), 0.5))
    with pytest.warns(UserWarning, match="nothing about a whole answer"):
        Veil(8.0, shape=MultiLabel())(np.full((1, 3), 0.5))
    with pytest.warns(UserWarning, match="nothing about a whole answer"):
        Veil(1.0)(torch.full((1, 30, 2), 0.5))


# Keyed answers


@pytest.mark.parametrize(
    ("shape", "scores"),
    [
        (Binary(0.4), np.random.default_rng(0).random(50)),
        (MultiLabel(), np.random.default_rng(0).random((50, 3))),
        (TopK(), np.random.default_rng(0).random((50, 3)) / 4),
        (PerPosition(), np.random.default_rng(0).dirichlet(np.ones(4), (50, 3))),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_same_question_gets_the_same_answer(path: str, shape: Shape, scores: np.ndarray) -> None:
    veil = Veil(1.0, shape=shape, secret=SECRET)
    answer = veil(scores)
    np.testing.assert_array_equal(veil(scores), answer)
    np.testing.assert_array_equal(np.concatenate([veil(scores[i : i + 1]) for i in range(50)]), answer)
    threaded = Veil(1.0, shape=shape, secret=SECRET, threads=2)
    many = np.concatenate([scores] * 400)
    np.testing.assert_array_equal(threaded(many)[-50:], answer)
    tags = [b"%d" % i for i in range(50)]
    tagged = KeyedVeil(veil)(scores, tags)
    np.testing.assert_array_equal(KeyedVeil(veil)(scores[::-1], tags[::-1])[::-1], tagged)
    assert (tagged != answer).any()
    np.testing.assert_array_equal(KeyedVeil(veil).answers(scores, KeyedVeil(veil).outcomes(scores, tags)), tagged)
    other = Veil(1.0, shape=shape, secret=SECRET, model="another")
    assert (other(scores) != answer).any()


def test_numpy_and_kernel_give_the_same_keyed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    cases: list[tuple[Shape, np.ndarray]] = [
        (Binary(0.4), rng.random(300)),
        (MultiLabel((0.4, 0.5, 0.6), logits=True), rng.normal(size=(300, 3))),
        (TopK(), rng.random((300, 5)) / 5),
        (TopK(50), np.stack([listed_scores("dirichlet", 5, "float32", rng, 50) for _ in range(300)])),
    ]
    assert loading.wait()
    compiled = [Veil(1.0, shape=shape, secret=SECRET)(scores) for shape, scores in cases]
    monkeypatch.setattr(loading, "_bound", lambda *_: None)
    for (shape, scores), answer in zip(cases, compiled, strict=True):
        np.testing.assert_array_equal(Veil(1.0, shape=shape, secret=SECRET)(scores), answer)


# Other arrays, and nothing at all


@pytest.mark.parametrize("name", DTYPES)
def test_tensors_keep_their_dtype_device_and_shape(name: str) -> None:
    rng = np.random.default_rng(0)
    cases = [
        (Binary(), rng.random((9, 1))),
        (MultiLabel(0.3), rng.random((9, 2))),
        (TopK(), rng.random((9, 4)) / 4),
        (VECTORS, rng.dirichlet(np.ones(3), (9, 2))),
    ]
    for shape, scores in cases:
        given_scores = torch.tensor(scores, dtype=getattr(torch, name), requires_grad=True)
        answer = Veil(1.0, shape=shape)(given_scores)
        assert isinstance(answer, torch.Tensor)
        assert (answer.dtype, answer.device, answer.shape) == (
            given_scores.dtype,
            given_scores.device,
            given_scores.shape,
        )


def test_bfloat16_has_places_and_is_refused_where_numpy_would_be_needed() -> None:
    tensor = torch.tensor(np.random.default_rng(0).multinomial(16, np.ones(3) / 3, (9, 2)) / 16).bfloat16()
    answer = Veil(1.0)(tensor)
    assert (answer.dtype, answer.shape) == (tensor.dtype, tensor.shape)
    assert (answer.argmax(-1) == tensor.argmax(-1)).all()
    with pytest.raises(ValueError, match="bfloat16; cast them to float32"):
        Veil(1.0, shape=Binary())(tensor[:, 0, 0])
    with pytest.raises(ValueError, match="bfloat16; cast them to float32"):
        Veil(1.0, secret=SECRET)(tensor)


@pytest.mark.parametrize("keyed", [False, True])
def test_no_records_give_no_answers(keyed: bool) -> None:
    for shape, layout in (
        (Binary(), (0,)),
        (Binary(), (0, 1)),
        (MultiLabel((0.2, 0.3)), (0, 2)),
        (TopK(), (0, 3)),
        (TopK(9), (0, 3)),
        (VECTORS, (0, 4, 3)),
        (VECTORS, (2, 0, 3)),
    ):
        answer = Veil(1.0, shape=shape, secret=SECRET if keyed else None)(np.empty(layout, np.float32))
        assert (answer.shape, answer.dtype) == (layout, np.float32)


def test_any_memory_layout_gives_the_answer_of_a_plain_array() -> None:
    rng = np.random.default_rng(0)
    for shape, scores in ((MultiLabel(), rng.random((30, 3))), (TopK(), rng.random((30, 3)) / 3)):
        veil = Veil(1.0, shape=shape, secret=SECRET)
        frozen = np.asfortranarray(np.repeat(scores, 2, axis=0))[::2]
        frozen.flags.writeable = False
        np.testing.assert_array_equal(veil(frozen), veil(scores))


# Lists of labels and scores


def test_pairs_and_objects_are_veiled_and_come_back_in_the_order_of_the_answer() -> None:
    rows = [[("fox", 0.1), ("cat", 0.6), ("dog", 0.2)], [("dog", 0.5), ("ant", 0.4)], []]
    veil = Veil(1.0, shape=TopK())
    answer = veil.pairs(rows)
    assert [sorted(label for label, _ in row) for row in answer] == [["cat", "dog", "fox"], ["ant", "dog"], []]
    assert [row[0][0] for row in answer[:2]] == ["cat", "dog"]
    assert all(sum(score for _, score in row) == pytest.approx(1) for row in answer[:2])
    objects = [[{"label": label, "score": score} for label, score in row] for row in rows]
    veiled = veil.pairs(objects)
    assert [set(entry) for entry in veiled[0]] == [{"label", "score"}] * 3
    assert veiled[0][0]["label"] == "cat"


def test_the_order_that_pairs_came_in_tells_nothing() -> None:
    row = [("a", 0.7), ("b", 0.1), ("c", 0.05), ("d", 0.1)]
    veil = Veil(1.0, shape=TopK(), secret=SECRET)
    answers = {str(veil.pairs([list(order)])) for order in itertools.permutations(row)}
    assert len(answers) == 1
    # nor does the raw order of the others: they have equal answers, and go by their names
    other = [("a", 0.7), ("b", 0.05), ("c", 0.1), ("d", 0.1)]
    for rows in (row, other):
        assert [label for label, _ in veil.pairs([rows])[0]] == ["a", "b", "c", "d"]


def test_pairs_with_a_secret_and_keep_and_many_labels() -> None:
    rows = [[("a", 0.5), ("b", 0.3), ("c", 0.1)], [("a", 0.2), ("z", 0.6)], [("q", 0.5), ("b", 0.3), ("c", 0.1)]]
    veil = Veil(1.0, shape=TopK(50), keep=2, secret=SECRET)
    answer = veil.pairs(rows)
    assert answer == [veil.pairs([row])[0] for row in rows]
    assert [[label for label, _ in row[:2]] for row in answer] == [["a", "b"], ["z", "a"], ["q", "b"]]
    many = Veil(1.0, shape=MultiLabel(0.4)).pairs(rows)
    assert [{label for label, score in row if score >= 0.4} for row in many] == [{"a"}, {"z"}, {"q"}]
    whole = Veil(1.0).pairs([[("no", 0.3), ("yes", 0.7)]])
    assert whole[0][0][0] == "yes"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[("a", 0.5), ("b", 0.3)], [("a", 0.4), ("a", 0.2)]], "Row 1: a label is listed twice"),
        ([[("a", 0.5), ("b", 0.3)], [("a", 0.4), ("b", 0.2), ("c", math.nan)]], "Row 1: expected scores from 0 to 1"),
        ([[("a", 0.5), ("b", 0.9)]], "Row 0: the scores sum to more than 1"),
        ([[("a", 0.5), ("b", "0.4")]], "Row 0: expected a number for each score, got str"),
        ([[("a", 0.5), ("b", True)]], "Row 0: expected a number for each score, got bool"),
        ([[("a", 0.5), 0.3]], "Row 0: expected pairs"),
        ([("a", 0.5)], "Row 0: expected pairs"),
        ([{"label": "a", "score": 0.5}], "Row 0: expected a list of labels and scores, got dict"),
        ([[{"label": "a", "score": 0.5, "logit": 3.0}]], "Row 0: expected .* and nothing else"),
        ([[("a", 0.5)]], "One class alone leaves nothing to veil"),
    ],
)
def test_lists_that_are_none_are_refused_by_their_row(rows: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Veil(1.0, shape=TopK()).pairs(rows)


def test_pairs_have_one_threshold() -> None:
    with pytest.raises(ValueError, match="one threshold for all"):
        Veil(1.0, shape=MultiLabel((0.5, 0.4))).pairs([[("a", 0.4), ("b", 0.2)]])


def test_columns_and_pairs_are_each_others_way_back() -> None:
    labels, scores = as_columns([[("b", 0.6), ("a", 0.1)], [("c", 0.2), ("a", 0.3)]])
    assert labels == [["a", "b"], ["a", "c"]]
    pairs = [list(zip(*row, strict=True)) for row in zip(labels, scores, strict=True)]
    assert veiled_pairs(lambda rows: rows, pairs) == [[("b", 0.6), ("a", 0.1)], [("a", 0.3), ("c", 0.2)]]


# Bad input


@pytest.mark.parametrize(
    ("shape", "scores", "message"),
    [
        (Binary(), np.array([0.5, math.nan]), "Row 1: the score is NaN"),
        (Binary(), np.array([[0.5], [1.01]]), "Row 1: the score is more than 1; .* logits"),
        (Binary(), np.array([-0.1]), "Row 0: the score is less than 0"),
        (Binary(logits=True), np.array([1.0, math.inf]), "Row 1: the score is infinite"),
        (Binary(), np.full((2, 3), 0.5), r"Expected one column, \(n,\) or \(n, 1\), got shape \(2, 3\)"),
        (Binary(), np.array(0.5), r"Expected one column, .* got shape \(\)"),
        (Binary(), np.array([0, 1]), "Expected floating-point scores, got dtype int64"),
        (MultiLabel(), np.array([[0.5, 0.5], [0.5, 2.0]]), "Row 1, column 1: the score is more than 1"),
        (MultiLabel(), np.full((2, 3, 4), 0.5), r"got shape \(2, 3, 4\)"),
        (MultiLabel((0.5, 0.5)), np.full((2, 3), 0.5), "Expected a threshold for each of 3 labels, got 2"),
        (TopK(), np.array([[0.5, 0.2], [0.9, 0.2]]), "Row 1: the scores sum to more than 1"),
        (TopK(), np.array([[0.5, math.nan]]), "Row 0: expected scores from 0 to 1"),
        (TopK(), np.array([[0.5, -0.2]]), "Row 0: expected scores from 0 to 1"),
        (TopK(), np.zeros((1, 2)), "Row 0: all scores are 0"),
        (TopK(), np.full((1, 1), 0.5), "One class alone leaves nothing to veil"),
        (TopK(2), np.full((1, 3), 0.3), "3 classes are listed, and there are 2 in all"),
        (TopK(2), np.full((1, 2), 0.3), "Row 0: the scores sum to less than 1"),
        (TopK(10), np.array([[0.5, 0.3], [0.2, 0.01]]), "Row 1: the classes that are not listed have more"),
        (PerPosition(), np.full((2, 2), 0.5), r"Expected vectors for the places of each record, \(n, t, k\)"),
        (PerPosition(), np.full((2, 4, 3), 0.5), "Row 0, place 0: the scores sum to more than 1"),
    ],
)
def test_what_is_not_of_the_shape_is_refused_by_its_place(shape: Shape, scores: np.ndarray, message: str) -> None:
    for secret in (None, SECRET):
        with pytest.raises(ValueError, match=message):
            Veil(1.0, shape=shape, secret=secret)(scores)
    with pytest.raises(ValueError, match=message):
        KeyedVeil(Veil(1.0, shape=shape, secret=SECRET)).outcomes(scores, [b""] * scores.reshape(-1).shape[0])


def test_a_bad_place_far_into_a_batch_is_named(path: str) -> None:
    axes = np.full((5, 3, 4, 2), 0.5)
    axes[3, 2, 1, 0] = 0.9
    with pytest.raises(ValueError, match="Row 3, place 2, 1: the scores sum to more than 1"):
        Veil(0.1)(axes)
    with pytest.raises(ValueError, match="Row 3, place 2, 1: the scores sum to more than 1"):
        Veil(0.1)(torch.tensor(axes))
    labels = np.full((40_000, 2), 0.5)
    labels[39_000, 1] = math.nan
    with pytest.raises(ValueError, match="Row 39000, column 1: the score is NaN"):
        Veil(0.1, shape=MultiLabel(), threads=2)(labels)
    lists = np.full((40_000, 2), 0.25)
    lists[39_000, 1] = 0.9
    with pytest.raises(ValueError, match="Row 39000: the scores sum to more than 1"):
        Veil(0.1, shape=TopK())(lists)


def test_a_bad_row_travels_between_processes() -> None:
    sent = pickle.loads(pickle.dumps(BadRow(3, "the score is NaN", "column 1")))
    assert str(sent) == "Row 3, column 1: the score is NaN."


@pytest.mark.parametrize("shape", [Binary(), Binary(0.3), MultiLabel()])
def test_a_sum_of_float32_that_ends_above_1_is_certain(shape):
    """As forests have it, whose probabilities are sums over their trees."""
    above = np.nextafter(np.float32(1), np.float32(2))
    p = np.full((50, 1), above, dtype=np.float32)
    assert np.array_equal(shape.read(p), shape.read(np.ones_like(p)))
    z = Veil(2.0, shape=shape)(p)
    assert ((z >= 0.3) & (z <= 1)).all()
    with pytest.raises(ValueError, match="is more than 1; give probabilities"):
        Veil(2.0, shape=shape)(p + np.float32(0.01))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("one", {}, "There is no shape 'one'; there are binary, multi_label, per_position, .*top_k"),
        ("top_k", {"threshold": 0.5}, "has no threshold; it has classes"),
        ("per_position", {"classes": 3}, "has no classes; it has no options"),
        ("binary", {"threshold": 1.0}, "Expected a threshold between 0 and 1"),
        ("binary", {"threshold": True}, "Expected a threshold between 0 and 1"),
        ("multi_label", {"threshold": [0.5, 0.0]}, "Expected a threshold between 0 and 1"),
        ("multi_label", {"threshold": ["0.5"]}, "Expected a threshold between 0 and 1, got '0.5'"),
        ("multi_label", {"threshold": ()}, "one for each, got none"),
        ("top_k", {"classes": 1}, "whole number >= 2"),
        ("top_k", {"classes": 2.5}, "whole number >= 2"),
    ],
)
def test_shapes_that_cannot_be_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name, **options)


@pytest.mark.parametrize(("shape", "got"), [(Binary, "the class Binary"), ("binary", "str")])
def test_what_is_no_shape_is_refused(shape: Any, got: str) -> None:
    with pytest.raises(ValueError, match=rf"such as Binary\(\), got {got}"):
        Veil(1.0, shape=shape)


def test_a_keep_beyond_the_list_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected keep <= 2"):
        Veil(1.0, shape=TopK(), keep=3)(np.array([[0.5, 0.2]]))
    with pytest.raises(ValueError, match="keep"):
        Veil(1.0, shape=Binary(), keep=3)(np.array([0.5]))


@pytest.mark.parametrize("shape", [Binary(0.2, True), MultiLabel((0.1, 0.2)), TopK(7), PerPosition()])
def test_a_shape_is_saved_with_its_veil(tmp_path: Any, shape: Shape) -> None:
    path = tmp_path / "veil.json"
    Veil(1.0, shape=shape).save(path)
    assert Veil.load(path).shape == shape
    assert pickle.loads(pickle.dumps(Veil(1.0, shape=shape))).shape == shape


def test_a_veil_says_its_shape_and_takes_another() -> None:
    veil = Veil(1.0, shape=Binary(0.2), secret=SECRET, model="m")
    assert "Binary(threshold=0.2" in repr(veil)
    other = veil.with_shape(MultiLabel())
    assert (other.shape, other.model, other.is_keyed) == (MultiLabel(), "m", True)
    p = np.random.default_rng(0).random(99)
    np.testing.assert_array_equal(other.with_shape(Binary(0.2))(p), veil(p))


def test_the_benchmark_compares_as_many_vectors() -> None:
    for case in benchmark.cases(200):
        veil = Veil(benchmark.EPSILON, shape=case.shape)
        assert veil(case.scores).shape == case.scores.shape
        assert len(case.scores) * veil.releases(case.scores) == case.vectors == 200
    assert all(seconds > 0 for seconds in benchmark.measured(benchmark.cases(200)[0], rounds=1))
