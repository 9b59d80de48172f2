"""The fitted map: its answers against a reading by hand, its draws against the integers, its file field by field."""

import copy
import itertools
import json
import math
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

from privacy_checks import ALPHA, chi_square
from scoreveil import Veil, blocks, storage
from scoreveil.keyed import KeyedVeil
from scoreveil.mechanisms import loading, promises
from scoreveil.mechanisms.kernels import regions as kernel
from scoreveil.mechanisms.mechanism import named
from scoreveil.mechanisms.messages import messages
from scoreveil.mechanisms.per_label import PerLabel
from scoreveil.mechanisms.promises import MAX_RECORDS, WHOLE, RegionCounts
from scoreveil.mechanisms.region_data import MAX_CUTS, NEAREST
from scoreveil.mechanisms.regions import Regions
from scoreveil.randomness import KeyedDraws, secure_uniforms
from scoreveil.shapes import Binary, MultiLabel
from test_kernels import batch

array_api_strict.set_array_api_strict_flags(api_version="2024.12")
DTYPES = [np.float64, np.float32, np.float16]
SECRET = b"a secret of more than sixteen bytes"
DRAWS = 100_000
EPSILON = 0.7  # a little more than ln 2, the worst ratio of the table
TABLE = np.array([[8, 4, 4], [4, 8, 4], [4, 4, 8], [6, 6, 4]], dtype=np.int64) << 28
INF = math.inf


def evidence(labels: int, truths: int = 2, certified: bool = False) -> RegionCounts:
    """Counts of four regions that sum to 1,000 others and 800 members."""
    share = np.array([4, 3, 2, 1])
    counts = np.stack([1600 * share, 1280 * share[::-1]])[:, None, None, :]
    counts = np.broadcast_to(counts, (2, labels, truths, 4)) // (labels * truths)
    return RegionCounts(counts.astype(np.int64), (1000, 800), (0.5, 0.25), 0.02, "label", certified, labels == 2)


def two_classes(with_epsilon: bool = False, **changed: Any) -> Regions:
    announced = [[0.55, 0.65, 0.8, 0.95], [0.6, 0.7, 0.75, 0.97]]
    made: dict[str, Any] = {
        "epsilon": INF,
        "number_of_classes": 2,
        "strips": np.empty(0),
        "cuts": np.array([[0.625, 0.75, 0.875]]),
        "regions": np.array([[0, 2, 1, 3]]),
        "announced": np.array(announced)[:, : 3 if with_epsilon else 4],
        "counts": np.array([[3200, 2400, 1600, 800], [3200, 2400, 1600, 800]]),
        "evidence": evidence(2),
        "spent": (0.5, 2.5),
        "atoms": 0.001,
    }
    if with_epsilon:
        made |= {"epsilon": EPSILON, "table": TABLE}
    return Regions(**{**made, **changed})


def four_classes(with_epsilon: bool = False, **changed: Any) -> Regions:
    """Three strips, with unequal numbers of cuts."""
    made: dict[str, Any] = {
        "number_of_classes": 4,
        "strips": np.array([0.5, 0.75]),
        "cuts": np.array([[0.5, 0.75, INF], [0.625, INF, INF], [0.375, 0.5, 0.875]]),
        "regions": np.array([[0, 1, 2, 2], [1, 2, 2, 2], [3, 0, 3, 1]]),
        "announced": np.array([[0.3, 0.6, 0.8] if with_epsilon else [0.3, 0.6, 0.8, 0.95]]),
        "evidence": evidence(4),
    }
    return two_classes(with_epsilon, **{**made, **changed})


def maps(with_epsilon: bool = False) -> tuple[Regions, ...]:
    """Of three labels, each other than the next."""
    first = two_classes(with_epsilon)
    second = two_classes(with_epsilon, cuts=first.cuts + 0.0625, announced=first.announced - 0.03)
    third = two_classes(with_epsilon, regions=first.regions[:, ::-1].copy())
    if with_epsilon:
        third = replace(third, table=first.table[::-1].copy())
    return first, second, third


MADE = {2: two_classes, 4: four_classes}
EVERY = [(classes, with_epsilon) for classes in MADE for with_epsilon in (False, True)]
each = pytest.mark.parametrize(("classes", "with_epsilon"), EVERY)


def by_hand(made: Regions, row: Any) -> tuple[int, int]:
    """The label and the region of one row, one score after the other."""
    scores = [float(score) for score in row]
    total = 0.0
    for score in scores:
        total += score
    label = scores.index(max(scores))
    top, others = scores[label], [score for i, score in enumerate(scores) if i != label]
    strip = sum(max(others) >= border * (total - top) for border in made.strips.tolist())
    at = sum(cut <= top / total for cut in made.cuts[strip].tolist())
    return label, int(made.regions[strip, at])


def answer_by_hand(made: Regions, label: int, answer: int, dtype: type) -> np.ndarray:
    """What an answer is, in a dtype: the announced confidence, what is left shared by the other classes."""
    k, eps = made.classes, float(np.finfo(dtype).eps)
    top = float(made.announced[label if k == 2 else 0, answer])
    top = min(max(top, (1 + 8 * eps) / k), 1 - max(eps, NEAREST))
    row = np.full(k, (1 - top) / (k - 1))
    row[label] = top
    return (row.astype(np.float32) if dtype == np.float16 else row).astype(dtype)


def answer_of(made: Regions, region: int, uniform: float = 0.0) -> int:
    if made.table is None:
        return region
    reached, drawn = 0, math.floor(uniform * 2**32)
    for answer, chance in enumerate(made.table[region].tolist()):
        reached += chance
        if drawn < reached:
            return answer
    raise AssertionError("the row does not sum to 2^32")


# Reading


@pytest.mark.parametrize("classes", MADE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_is_read_as_by_hand(classes, dtype):
    made, rows = MADE[classes](), batch(np.random.default_rng(0), classes, 400).astype(dtype)
    label, region = made.read(rows)
    assert list(zip(label.tolist(), region.tolist(), strict=True)) == [by_hand(made, row) for row in rows]
    assert set(region.tolist()) == {0, 1, 2, 3}


def read_everywhere(made: Regions, row: list[float]) -> int:
    """The region of one row, by numpy and by the kernel, which agree."""
    rows = np.array([row, row, row])
    labels, places = np.empty(3, dtype=np.int64), np.empty(3, dtype=np.int64)
    writable = (np.array(array) for array in (made.strips, made.cuts, made.regions))
    assert kernel._read(rows, *writable, labels, places) == -1
    found = made.read(rows)[1]
    assert places.tolist() == found.tolist() == [by_hand(made, row)[1]] * 3
    return int(found[0])


def test_a_score_on_a_cut_belongs_to_the_region_above_it():
    made = two_classes()
    for cut, below, above in zip([0.625, 0.75, 0.875], [0, 2, 1], [2, 1, 3], strict=True):
        assert read_everywhere(made, [cut, 1 - cut]) == above
        assert read_everywhere(made, [1 - cut, cut]) == above
        under = np.nextafter(cut, 0)
        assert read_everywhere(made, [under, 1 - under]) == below


def test_a_rest_on_the_border_of_a_strip_belongs_to_the_strip_above_it():
    made = four_classes()
    assert read_everywhere(made, [0.5, 0.25, 0.125, 0.125]) == 1  # 0.25 is half of the rest: the second strip
    assert read_everywhere(made, [0.5, 0.25 - 2**-40, 0.125 + 2**-40, 0.125]) == 1  # the first strip, from its cut on
    assert read_everywhere(made, [0.5, 0.375, 0.125, 0.0]) == 3  # 0.375 is 3/4 of the rest: the third strip
    assert read_everywhere(made, [0.5, 0.375 - 2**-40, 0.125 + 2**-40, 0.0]) == 1
    # at a lower top score the first two strips differ too
    low = [0.4375, 0.28125, 0.140625, 0.140625]
    assert read_everywhere(made, low) == 1
    assert read_everywhere(made, [0.4375, 0.28125 - 2**-40, 0.140625 + 2**-40, 0.140625]) == 0


def test_where_there_is_no_rest_the_last_strip_has_it():
    made = four_classes()
    for label in range(4):
        assert read_everywhere(made, np.eye(4)[label].tolist()) == 1  # the last region of the third strip
    ending_at_1 = two_classes(cuts=np.array([[0.625, 0.75, 1.0]]))
    assert read_everywhere(ending_at_1, [1.0, 0.0]) == 3
    assert read_everywhere(ending_at_1, [1 - 2**-40, 2**-40]) == 1


def test_tied_classes_share_the_rest_and_the_first_is_the_label():
    made = four_classes()
    assert made.read(np.full((1, 4), 0.25))[0].tolist() == [0]
    assert read_everywhere(made, [0.25, 0.25, 0.25, 0.25]) == 0  # a third of the rest: the first strip
    assert read_everywhere(made, [0.0, 0.5, 0.5, 0.0]) == 3  # all of it: the third


@pytest.mark.parametrize("classes", MADE)
def test_what_a_row_sums_to_does_not_matter(classes):
    made, rows = MADE[classes](), np.random.default_rng(1).dirichlet(np.ones(classes), 500)
    expected = made.read(rows)
    for scale in (1 - 1e-4, 1 + 1e-4, 1 - 9e-4, 1 + 9e-4):
        again = made.read(rows * scale)
        assert all(np.array_equal(a, b) for a, b in zip(again, expected, strict=True))
        assert Veil(made)(rows * scale).tobytes() == Veil(made)(rows).tobytes()
    # next to a cut, where the top score itself would tell another region than its share of the sum
    edge = two_classes()
    assert edge.read(np.array([[0.7501, 0.2501], [0.7499, 0.2499]]))[1].tolist() == [2, 1]


# Answers


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_answers_are_those_of_the_region_and_the_draw(path, classes, with_epsilon, dtype):
    made, rng = MADE[classes](with_epsilon), np.random.default_rng(2)
    rows = batch(rng, classes, 300).astype(dtype)
    drawn = np.random.default_rng(3).random((len(rows), made.draws(classes)))
    answers = Veil(made, rng=np.random.default_rng(3))(rows)
    assert answers.dtype == dtype
    for row, answer, uniforms in zip(rows, answers, drawn, strict=True):
        label, region = by_hand(made, row)
        expected = answer_by_hand(made, label, answer_of(made, region, *uniforms), dtype)
        assert answer.tobytes() == expected.tobytes()


@each
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_labels_stay_and_rows_sum_to_1(classes, with_epsilon, dtype):
    made, rows = MADE[classes](with_epsilon), batch(np.random.default_rng(4), classes, 300)
    is_torch = isinstance(dtype, torch.dtype)
    if dtype == torch.bfloat16:  # rows that it can hold
        rows = np.array([np.random.default_rng(4).multinomial(64, row) for row in rows]) / 64
    given = torch.asarray(rows).to(dtype) if is_torch else rows.astype(dtype)
    answers = Veil(made)(given)
    assert answers.dtype == given.dtype
    wide = [each.double().numpy() if is_torch else each.astype(np.float64) for each in (given, answers)]
    labels = wide[0].argmax(axis=1)
    assert np.array_equal(wide[1].argmax(axis=1), labels)
    top = wide[1][np.arange(len(rows)), labels]
    others = np.delete(np.sort(wide[1], axis=1), -1, axis=1)
    assert np.all(top > others.max(axis=1))
    assert np.all(others > 0)
    assert np.all(top < 1)
    tolerance = {torch.bfloat16: 5e-3, torch.float16: 1e-3, np.float16: 1e-3}.get(dtype, 1e-6)
    assert np.abs(wide[1].sum(axis=1) - 1).max() <= tolerance


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_answers_are_functions_of_label_and_region_alone(classes, with_epsilon, dtype):
    made, rng = MADE[classes](with_epsilon), np.random.default_rng(5)
    rows = batch(rng, classes, 3000).astype(dtype)
    label, region = made.read(rows)
    found: dict[Any, set[bytes]] = {}
    for uniform in (0.1, 0.6, 0.9):
        answers = made.perturb(rows, np.full((len(rows), made.draws(classes)), uniform))
        for *cell, answer in zip(label.tolist(), region.tolist(), answers, strict=True):
            found.setdefault((*cell, uniform), set()).add(answer.tobytes())
    assert len(found) == 3 * 4 * classes
    assert all(len(each) == 1 for each in found.values())
    different = {answer for each in found.values() for answer in each}
    assert len(different) == classes * made.announced.shape[1]


@pytest.mark.parametrize("classes", MADE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_region_announces_its_confidence(path, classes, dtype):
    made, rows = MADE[classes](), batch(np.random.default_rng(6), classes, 400).astype(dtype)
    label, region = made.read(rows)
    top = Veil(made)(rows).max(axis=1)
    told = made.announced[label if classes == 2 else 0, region]
    assert top.tobytes() == told.astype(np.float32 if dtype != np.float64 else dtype).astype(dtype).tobytes()
    assert set(told.tolist()) == set(made.announced.ravel().tolist())


def test_the_least_and_the_most_that_can_be_announced_keep_the_label_in_every_dtype():
    rows = np.full((4, 4), 0.1)
    rows[np.arange(4), np.arange(4)] = 0.7
    for confidence in (0.25 + 1e-12, 1 - NEAREST):
        veil = Veil(four_classes(announced=np.full((1, 4), confidence)))
        for dtype in DTYPES:
            answers = veil(rows.astype(dtype)).astype(np.float64)
            assert np.array_equal(answers.argmax(axis=1), np.arange(4))
            assert np.all((answers > 0) & (answers < 1))
            assert np.all(np.sort(answers, axis=1)[:, 3] > np.sort(answers, axis=1)[:, 2])


def test_without_epsilon_nothing_is_random(path, monkeypatch):
    rows = batch(np.random.default_rng(7), 4, 200)
    expected = Veil(four_classes())(rows).tobytes()
    tags = [bytes([i % 256, i // 256]) for i in range(len(rows))]
    veils = [Veil(four_classes(), **given) for given in ({}, {"secret": SECRET}, {"rng": np.random.default_rng(0)})]
    veils += [Veil(four_classes(), threads=3), Veil(four_classes(), secret=b"another one of 16 bytes", threads=2)]
    for veil in veils:
        assert veil(rows).tobytes() == expected
        one_by_one = np.stack([veil(row) for row in rows])
        assert one_by_one.tobytes() == expected
    assert KeyedVeil(veils[1])(rows, tags).tobytes() == KeyedVeil(veils[1])(rows, tags[::-1]).tobytes() == expected
    monkeypatch.setattr(blocks, "BLOCK", 1)
    assert all(veil(rows).tobytes() == expected for veil in veils)
    order = np.random.default_rng(8).permutation(len(rows))
    assert veils[0](rows[order])[np.argsort(order)].tobytes() == expected


def test_the_answer_to_many_rows_is_that_to_each(path):
    made, size = four_classes(), blocks.block_rows(4)
    rows = np.resize(batch(np.random.default_rng(9), 4, 100), (size + 3, 4))
    answers = Veil(made, threads=2)(rows)
    label, region = made.read(rows)
    expected = {(a, b): answer_by_hand(made, a, b, np.float64) for a in range(4) for b in range(4)}
    pairs = zip(label.tolist(), region.tolist(), strict=True)
    assert answers.tobytes() == np.stack([expected[at] for at in pairs]).tobytes()


# The same bits everywhere


def strange_layouts(rows: np.ndarray) -> dict[str, np.ndarray]:
    read_only = rows.copy()
    read_only.flags.writeable = False
    wide = np.zeros((len(rows), 2 * rows.shape[1]), dtype=rows.dtype)
    wide[:, ::2] = rows
    return {
        "as it is": rows,
        "columns": np.asfortranarray(rows),
        "every other": np.repeat(rows, 2, axis=0)[::2],
        "with gaps": wide[:, ::2],
        "read-only": read_only,
        "backwards": rows[::-1].copy()[::-1],
    }


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_and_libraries_give_the_bits_of_numpy(classes, with_epsilon, dtype):
    made, rng = MADE[classes](with_epsilon), np.random.default_rng(10)
    rows = batch(rng, classes, 301).astype(dtype)
    uniforms = rng.random((len(rows), made.draws(classes)))
    plain = made.perturb(rows, uniforms).tobytes()
    for name, given in strange_layouts(rows).items():
        out = np.empty_like(rows)
        assert kernel.bind(made, classes)(given, uniforms, out) == -1
        assert out.tobytes() == plain, name
        assert made.perturb(given, uniforms).tobytes() == plain, name
    assert made.perturb(torch.asarray(rows), torch.asarray(uniforms)).numpy().tobytes() == plain
    if dtype != np.float16:  # which the standard does not have
        strict = made.perturb(array_api_strict.asarray(rows), array_api_strict.asarray(uniforms))
        assert np.asarray(strict).tobytes() == plain


@pytest.mark.parametrize("classes", MADE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_tagged", [False, True])
def test_keyed_answers_of_the_kernel_are_the_same_bytes(classes, dtype, is_tagged):
    made, rng = MADE[classes](True), np.random.default_rng(11)
    rows, draws = batch(rng, classes, 101).astype(dtype), KeyedDraws(SECRET, b"test")
    tags = rng.integers(0, 256, (len(rows), 32)).astype(np.uint8) if is_tagged else None
    label, region = (np.array(each)[:, None] for each in zip(*(by_hand(made, row) for row in rows), strict=True))
    plain = made.perturb(rows, draws.uniforms(messages(rows, label, region, tags), 1)).tobytes()
    for given in strange_layouts(rows).values():
        assert kernel.bind_keyed(made, classes)(given, draws, tags).tobytes() == plain
    assert blocks.keyed(made, rows, draws, tags).tobytes() == plain


@pytest.mark.parametrize("rows", [1, 2, 3, 64, 65])
def test_a_row_does_not_depend_on_its_neighbours(rows):
    made, given = four_classes(True), batch(np.random.default_rng(12), 4, 80)[:rows]
    uniforms, out, alone = np.random.default_rng(13).random((rows, 1)), np.empty((rows, 4)), np.empty((rows, 4))
    run = kernel.bind(made, 4)
    assert run(given, uniforms, out) == -1
    for i in range(rows):
        assert run(given[i : i + 1], uniforms[i : i + 1], alone[i : i + 1]) == -1
    assert out.tobytes() == alone.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.25, 0.9])
@pytest.mark.parametrize("at", [0, 36, 37, 49])
def test_bad_rows_are_refused_by_number(path, bad, at):
    rows = np.full((50, 4), 0.25)
    rows[at, 1] = bad
    for with_epsilon in (False, True):
        for secret in (None, SECRET):
            with pytest.raises(ValueError, match=rf"Row {at}\b"):
                Veil(four_classes(with_epsilon), secret=secret)(rows)
    with pytest.raises(ValueError, match="fitted for 4 classes; these scores have 3"):
        Veil(four_classes())(np.full((3, 3), 1 / 3))


def test_kernels_are_there():
    assert loading.wait()
    assert loading.kernel(two_classes(), 2) is not None
    assert loading.keyed_kernel(two_classes(True), 2) is not None
    assert loading.kernel(PerLabel.of(maps()), 2) is not None


# The table


ROW = np.array([0.1, 0.55, 0.2, 0.15])  # of the first strip, between its cuts: region 1


@pytest.mark.parametrize("how", ["numpy", "kernel", "keyed"])
def test_answers_come_with_the_chances_of_the_table(how):
    table = np.array([[4, 10, 2], [2, 5, 9], [8, 5, 3], [6, 6, 4]], dtype=np.int64) << 28
    made = four_classes(True, table=table, epsilon=2.0)
    assert made.read(ROW[None])[1].tolist() == [1]
    rows, out = np.repeat(ROW[None], DRAWS, 0), np.empty((DRAWS, 4))
    if how == "numpy":
        out = made.perturb(rows, secure_uniforms(DRAWS, 1))
    elif how == "kernel":
        assert kernel.bind(made, 4)(rows, secure_uniforms(DRAWS, 1), out) == -1
    else:
        tags = np.zeros((DRAWS, 32), dtype=np.uint8)
        tags[:, :8] = np.arange(DRAWS)[:, None].view(np.uint8)
        out = kernel.bind_keyed(made, 4)(rows, KeyedDraws(SECRET, b""), tags)
    counts = np.array([np.all(out == answer_by_hand(made, 1, c, np.float64), axis=1).sum() for c in range(3)])
    assert counts.sum() == DRAWS
    assert chi_square(counts, table[1] / WHOLE) > ALPHA
    for other in (0, 2, 3):
        assert chi_square(counts, table[other] / WHOLE) < ALPHA  # the check would notice another region's row


@pytest.mark.parametrize("region", range(4))
def test_the_draw_is_exact_at_every_border(region):
    made = two_classes(True, table=TABLE + np.array([[1, -1, 0], [0, 1, -1], [2, -3, 1], [0, 0, 0]]))
    row = np.array([[{0: 0.6, 1: 0.8, 2: 0.7, 3: 0.9}[region]]])
    row = np.concatenate([row, 1 - row], axis=1)
    reached = 0
    for answer, chance in enumerate(made.table[region].tolist()):
        first, reached = reached, reached + chance
        for drawn in (first / WHOLE, (reached - 1) / WHOLE, reached / WHOLE - 2.0**-52):
            out, uniforms = np.empty((1, 2)), np.array([[drawn]])
            expected = answer_by_hand(made, 0, answer, np.float64).tobytes()
            assert made.perturb(row, uniforms).tobytes() == expected
            assert kernel.bind(made, 2)(row, uniforms, out) == -1
            assert out.tobytes() == expected
            assert made.outcomes(row, uniforms).tolist() == [[answer]]
    assert reached == WHOLE


@pytest.mark.parametrize("classes", MADE)
def test_the_loss_is_that_of_the_regions_and_at_most_epsilon(classes):
    made, rows = MADE[classes](True), batch(np.random.default_rng(14), classes, 20)
    worst = 0.0
    for a, b in itertools.product(rows, repeat=2):
        (label, first), (other, second) = by_hand(made, a), by_hand(made, b)
        if label != other:
            assert made.loss(a, b) == INF
            continue
        ratios = [Fraction(int(x), int(y)) for x, y in zip(TABLE[first], TABLE[second], strict=True)]
        assert made.loss(a, b) == pytest.approx(math.log(max(ratios)), abs=1e-15)
        assert made.loss(a, b) <= EPSILON
        worst = max(worst, made.loss(a, b))
    assert worst == pytest.approx(math.log(2), abs=1e-15)
    assert made.guarantee().worst_loss == pytest.approx(worst, abs=1e-15)


def test_without_a_table_another_region_is_told_apart_and_the_same_is_not():
    made = two_classes()
    assert made.loss(np.array([0.8, 0.2]), np.array([0.76, 0.24])) == 0
    assert made.loss(np.array([0.8, 0.2]), np.array([0.74, 0.26])) == INF
    assert made.loss(np.array([0.8, 0.2]), np.array([0.2, 0.8])) == INF


@pytest.mark.parametrize("classes", MADE)
def test_keyed_answers_repeat_and_depend_on_the_tag_and_the_secret(path, classes):
    made, rows = MADE[classes](True), batch(np.random.default_rng(15), classes, 200)
    veil, tags = Veil(made, secret=SECRET), [bytes([i % 256, i // 256]) for i in range(len(rows))]
    assert veil(rows).tobytes() == veil(rows).tobytes()
    assert np.stack([veil(row) for row in rows]).tobytes() == veil(rows).tobytes()
    assert KeyedVeil(veil)(rows, tags).tobytes() == KeyedVeil(Veil(made, secret=SECRET))(rows, tags).tobytes()
    assert KeyedVeil(veil)(rows[::-1], tags[::-1])[::-1].tobytes() == KeyedVeil(veil)(rows, tags).tobytes()
    others = (
        KeyedVeil(veil)(rows, [b"other" + tag for tag in tags]),
        KeyedVeil(veil.with_secret(SECRET + b"!"))(rows, tags),
    )
    for other in others:  # three answers of about the same chance: most of them change
        assert 0.4 < np.mean(np.any(other != KeyedVeil(veil)(rows, tags), axis=1)) < 0.9


def test_keyed_answers_depend_on_the_cell_and_not_on_the_scores_in_it(path):
    veil = Veil(two_classes(True), secret=SECRET)
    rows = np.stack([np.linspace(0.626, 0.749, 300), 1 - np.linspace(0.626, 0.749, 300)], axis=1)
    assert len({answer.tobytes() for answer in KeyedVeil(veil)(rows, [b"one tag"] * 300)}) == 1


@each
@pytest.mark.parametrize("dtype", DTYPES)
def test_answers_come_back_from_their_outcomes(path, classes, with_epsilon, dtype):
    made, rows = MADE[classes](with_epsilon), batch(np.random.default_rng(16), classes, 200).astype(dtype)
    veil, tags = Veil(made, secret=SECRET), [bytes([i % 256, i // 256]) for i in range(len(rows))]
    outcomes = KeyedVeil(veil).outcomes(rows, tags)
    assert outcomes.shape == (len(rows), 1)
    assert outcomes.dtype == np.uint16
    assert KeyedVeil(veil).answers(rows, outcomes).tobytes() == KeyedVeil(veil)(rows, tags).tobytes()
    assert made.different_answers == made.announced.shape[1] > outcomes.max()
    uniforms = np.random.default_rng(17).random((len(rows), made.draws(classes)))
    assert made.answers(rows, made.outcomes(rows, uniforms)).tobytes() == made.perturb(rows, uniforms).tobytes()


def test_what_people_read_of_a_map_is_in_it():
    made = four_classes(True)
    shown = made.as_table(ROW)
    assert shown["region"] == 1
    assert shown["chances"] == (TABLE / WHOLE).tolist()
    assert shown["announced"] == [0.3, 0.6, 0.8]
    assert len(shown["regions"]) == 4
    assert two_classes().as_table(np.array([0.3, 0.7]))["announced"] == [0.6, 0.7, 0.75, 0.97]
    assert two_classes().as_table(np.array([0.3, 0.7]))["chances"] == np.eye(4).tolist()
    rows = two_classes(counts=np.array([[800, 300, 200, 50], [900, 900, 1200, 1250]])).rows()
    assert [row.number for row in rows] == [0, 1, 2, 3]
    assert [row.members for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [row.others for row in rows] == pytest.approx([17 / 56, 12 / 56, 14 / 56, 13 / 56])
    assert [row.right for row in rows] == pytest.approx([9 / 17, 9 / 12, 12 / 14, 12.5 / 13])
    assert [row.announced for row in rows] == [(0.55, 0.6), (0.65, 0.7), (0.8, 0.75), (0.95, 0.97)]
    assert [row.answers for row in made.rows()] == [tuple(row) for row in (TABLE / WHOLE).tolist()]
    assert [row.announced for row in made.rows()] == [(0.3,), (0.6,), (0.8,), (0.3,)]
    assert [row.words for row in rows] == ["0.50 to 0.62", "0.75 to 0.88", "0.62 to 0.75", "0.88 to 1"]
    assert "2 of 3 strips" in four_classes().rows()[0].words
    alone = two_classes(evidence=None, counts=np.ones((1, 4), dtype=np.int64)).rows()
    assert all(math.isnan(row.members) and math.isnan(row.right) for row in alone)


# Many labels


@pytest.mark.parametrize("with_epsilon", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_labels_are_each_label_by_itself(path, with_epsilon, dtype):
    every, rng = maps(with_epsilon), np.random.default_rng(18)
    made, rows = PerLabel.of(every), batch(rng, 2, 300).astype(dtype)[:300]
    uniforms = rng.random((300, made.draws(2)))
    expected = np.empty_like(rows)
    for i, label in enumerate(every):
        expected[i::3] = label.perturb(rows[i::3], uniforms[i::3])
    assert made.perturb(rows, uniforms).tobytes() == expected.tobytes()
    there = made.perturb(torch.asarray(rows), torch.asarray(uniforms))
    assert there.numpy().tobytes() == expected.tobytes()
    out = np.empty_like(rows)
    assert kernel.bind(made, 2)(rows, uniforms, out) == -1
    assert out.tobytes() == expected.tobytes()
    assert made.answers(rows, made.outcomes(rows, uniforms)).tobytes() == expected.tobytes()
    kept, cells = made.cells(rows)
    assert kept[:, 0].tolist() == rows.argmax(axis=1).tolist()
    assert cells[:, 0].tolist() == [by_hand(every[i % 3], row)[1] for i, row in enumerate(rows)]


@pytest.mark.parametrize("threads", [1, 2])
def test_many_labels_answer_alike_in_blocks_of_any_size(path, monkeypatch, threads):
    scores = np.random.default_rng(19).random((30, 3))
    alone = [Veil(label, shape=Binary())(scores[:, i]) for i, label in enumerate(maps())]
    veil, keyed = Veil(PerLabel.of(maps()), shape=MultiLabel(), threads=threads), PerLabel.of(maps(True))
    told = [Veil(keyed, shape=MultiLabel(), secret=SECRET)(row) for row in scores]
    with_draws = keyed.perturb(*(veil.vectors(scores).reshape(-1, 2), np.random.default_rng(20).random((90, 1))))
    for block in (1, 64 * 2 * 2):  # of 16 rows at a time, which 3 labels do not divide; and of more than there are
        monkeypatch.setattr(blocks, "BLOCK", block)
        for records in (1, 2, 4, 5, 6, 10, 11, 30):
            answers = veil(scores[:records])
            assert answers.tobytes() == np.stack(alone, axis=1)[:records].tobytes()
            again = Veil(keyed, shape=MultiLabel(), secret=SECRET, threads=threads)(scores[:records])
            assert again.tobytes() == np.stack(told[:records]).tobytes()
        drawn = Veil(keyed, shape=MultiLabel(), rng=np.random.default_rng(20))(scores)
        assert drawn.tobytes() == MultiLabel().restored(with_draws.reshape(30, 3, 2), scores).tobytes()


def test_many_labels_answer_alike_around_the_border_of_a_block(path):
    every, size = maps(), blocks.block_rows(2)
    assert size % 3
    rows = np.resize(batch(np.random.default_rng(21), 2, 500), (size // 3 * 3 + 6, 2))
    answers = blocks.fresh(PerLabel.of(every), rows)
    for i, label in enumerate(every):
        assert answers[i::3].tobytes() == blocks.fresh(label, np.ascontiguousarray(rows[i::3])).tobytes()


def test_keyed_answers_of_many_labels_are_drawn_for_each_label_and_each_record():
    made, rng = PerLabel.of((two_classes(True),) * 3), np.random.default_rng(22)
    veil, scores = Veil(made, shape=MultiLabel(), secret=SECRET), np.full((2000, 3), 0.65)
    tags = [rng.bytes(8) for _ in range(2000)]
    answers = KeyedVeil(veil)(scores, tags)
    assert KeyedVeil(veil)(scores[::-1], tags[::-1])[::-1].tobytes() == answers.tobytes()
    outcomes = KeyedVeil(veil).outcomes(scores, tags)
    assert outcomes.shape == (2000, 3)
    assert KeyedVeil(veil).answers(scores, outcomes).tobytes() == answers.tobytes()
    cells = outcomes @ [1, 3, 9]  # that the three are independent, and as the table has it: region 2
    chances = np.array([math.prod(TABLE[2, list(c)] / WHOLE) for c in itertools.product(range(3), repeat=3)])
    flat = np.bincount(cells, minlength=27).reshape(3, 3, 3).transpose(2, 1, 0).ravel()
    assert chi_square(flat, chances) > ALPHA


def test_many_labels_name_the_bad_row_and_want_as_many_columns(path):
    veil = Veil(PerLabel.of(maps()), shape=MultiLabel())
    for row, column in ((0, 0), (7, 1), (7, 2)):
        scores = np.full((9, 3), 0.3)
        scores[row, column] = np.nan
        with pytest.raises(ValueError, match=rf"Row {row}, column {column}"):
            veil(scores)
    rows = np.full((6, 2), 0.5)
    rows[4] = 0.7
    assert kernel.bind(PerLabel.of(maps()), 2)(rows, np.empty((6, 0)), np.empty_like(rows)) == 4
    for columns in (2, 4):
        with pytest.raises(ValueError, match="3 labels"):
            veil(np.full((6, columns), 0.5))


def test_many_labels_share_one_epsilon_and_have_two_sides():
    with pytest.raises(ValueError, match="same ε"):
        PerLabel.of((two_classes(), two_classes(True)))
    with pytest.raises(ValueError, match="yes and no"):
        PerLabel.of((four_classes(),))
    with pytest.raises(ValueError, match="for each label"):
        PerLabel(1.0)
    made = PerLabel.of(maps(True))
    assert made.epsilon == EPSILON
    assert made.together == 3
    a, b = np.array([0.8, 0.2]), np.array([0.7, 0.3])
    assert made.loss(a, b) == max(label.loss(a, b) for label in made.maps)
    one_far = replace(made.maps[1], table=np.full((4, 3), 2**30, dtype=np.int64) + np.array([2**30, 0, 0]))
    assert PerLabel.of((one_far, made.maps[0])).loss(a, b) == made.maps[0].loss(a, b) > one_far.loss(a, b)


# As a value


def same(first: Regions, second: Regions) -> bool:
    """Whether two maps hold the same, to the last bit."""

    def bits(value: Any) -> Any:
        if isinstance(value, RegionCounts):
            return [bits(getattr(value, field.name)) for field in fields(value)]
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, value.tobytes()
        return type(value), value

    names = [field.name for field in fields(first)]
    return all(bits(getattr(first, name)) == bits(getattr(second, name)) for name in names)


VALUES = {
    "two": two_classes(),
    "two with ε": two_classes(True),
    "four": four_classes(),
    "four with ε": four_classes(True),
    "without members": four_classes(evidence=None),
    "pooled, no labels, certified": four_classes(evidence=evidence(1, 1, certified=True)),
    "one region": four_classes(
        strips=np.empty(0), cuts=np.empty((1, 0)), regions=np.zeros((1, 1), dtype=np.int64),
        announced=np.array([[0.7]]), counts=np.array([[100]]), evidence=None,
    ),
}  # fmt: skip
each_value = pytest.mark.parametrize("made", VALUES.values(), ids=VALUES)


@each_value
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_map_travels_as_it_is_and_stays_read_only(made, protocol):
    again = pickle.loads(pickle.dumps(made, protocol))
    assert same(made, again)
    assert made != again
    assert len({made, again, made}) == 2
    assert again.guarantee() == made.guarantee()
    for held in (made, again, copy.deepcopy(made)):
        arrays = [held.strips, held.cuts, held.regions, held.announced, held.counts]
        arrays += [] if held.table is None else [held.table]
        arrays += [] if held.evidence is None else [held.evidence.counts]
        for array in arrays:
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0


def test_veils_travel_with_their_answers():
    rows = batch(np.random.default_rng(23), 2, 60)[:60]
    for made in (two_classes(), PerLabel.of(maps())):
        veil = Veil(made)
        veil(rows)
        assert pickle.loads(pickle.dumps(veil))(rows).tobytes() == veil(rows).tobytes()
    again = pickle.loads(pickle.dumps(PerLabel.of(maps(True))))
    assert all(same(a, b) for a, b in zip(again.maps, maps(True), strict=True))


def test_what_is_given_can_change_afterwards_without_changing_the_map():
    cuts = np.array([[0.625, 0.75, 0.875]])
    made = two_classes(cuts=cuts)
    cuts[...] = 0.5
    assert made.cuts.tolist() == [[0.625, 0.75, 0.875]]


def test_two_maps_of_one_epsilon_do_not_share_a_plan():
    first, second = two_classes(True), two_classes(True, announced=np.full((2, 3), 0.9))
    row, draw = np.array([[0.7, 0.3]]), np.array([[0.5]])
    assert first != second
    assert first.perturb(row, draw).tobytes() != second.perturb(row, draw).tobytes()
    rows, tags = np.repeat(row, 500, 0), [bytes([i % 250, i // 250]) for i in range(500)]
    keyed = [KeyedVeil(Veil(made, secret=SECRET)).outcomes(rows, tags) for made in (first, second, two_classes(True))]
    assert not np.array_equal(keyed[0], keyed[1])
    assert np.array_equal(keyed[0], keyed[2])


def test_a_map_cannot_be_made_by_name_nor_take_options():
    for name in ("regions", "per_label"):
        with pytest.raises(ValueError, match=r"scoreveil\.fit|fitted map"):
            Veil(2.0, name)
        assert named(name).options() == ()


def test_a_map_says_what_it_is():
    assert repr(Veil(two_classes())) == "<Veil regions: no ε, 4 regions, 2 classes>"
    assert repr(Veil(four_classes(True), secret=SECRET)) == "<Veil regions: epsilon=0.7, 4 regions, 4 classes, keyed>"
    about = Veil(four_classes(True), model="m").stored.summary()
    expected = {"mechanism": "regions", "model": "m", "epsilon": EPSILON, "regions": 4, "classes": 4}
    assert about.items() >= expected.items()
    assert json.loads(json.dumps(about)) == about
    assert Veil(two_classes()).stored.summary()["epsilon"] is None
    many = Veil(PerLabel.of(maps()), shape=MultiLabel())
    assert many.stored.summary()["mechanism"] == "per_label"
    assert many.stored.summary()["regions"] == [4, 4, 4]
    assert "3 labels" in repr(many)
    assert not two_classes().is_constant
    assert two_classes(announced=np.array([[0.7] * 4, [0.8] * 4])).is_constant
    assert not two_classes(announced=np.array([[0.7] * 4, [0.8, 0.8, 0.8, 0.9]])).is_constant
    assert not PerLabel.of((two_classes(), two_classes(announced=np.full((2, 4), 0.7)))).is_constant


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 1.0}, "without a table"),
        ({"table": TABLE, "announced": np.full((2, 3), 0.7)}, "finite epsilon"),
        ({"number_of_classes": True}, "at least 2 classes"),
        ({"number_of_classes": 1}, "at least 2 classes"),
        ({"number_of_classes": 3}, "announced"),
        ({"strips": np.array([0.5])}, "one strip"),
        ({"cuts": [[0.5, 0.6, 0.7]]}, "array of float64"),
        ({"cuts": np.array([[0.5, 0.6, 0.7]], dtype=np.float32)}, "array of float64"),
        ({"cuts": np.array([0.5, 0.6, 0.7])}, "cuts"),
        ({"cuts": np.array([[0.5, 0.7]])}, "regions"),
        ({"cuts": np.array([[0.5, INF, 0.7]])}, "ascend"),
        ({"cuts": np.array([[0.5, 0.7, -INF]])}, "ascend"),
        ({"cuts": np.array([[0.5, 0.7, np.nan]])}, "ascend"),
        ({"cuts": np.array([[0.5, 0.7, 1.5]])}, "up to 1"),
        ({"regions": np.array([[0, 2, 1, 4]])}, "regions 0 to 3"),
        ({"regions": np.array([[0, 2, 1, 3]], dtype=np.int32)}, "array of int64"),
        ({"announced": np.full((1, 4), 0.7)}, "announced"),
        ({"announced": np.full((2, 4), 0.5)}, "confidence"),
        ({"counts": np.zeros((3, 4), dtype=np.int64)}, "counts"),
        ({"counts": np.zeros(4, dtype=np.int64)}, "counts"),
        ({"spent": (0.5,)}, "spent"),
        ({"evidence": evidence(3)}, "2 labels"),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        two_classes(**change)


def test_at_most_eight_regions_and_255_cuts():
    for size, fits in ((8, True), (9, False)):
        given = {
            "cuts": np.linspace(0.55, 0.95, size - 1)[None],
            "regions": np.arange(size)[None],
            "announced": np.full((2, size), 0.7),
            "counts": np.zeros((2, size), dtype=np.int64),
            "evidence": None,
        }
        if fits:
            assert two_classes(**given).size == 8
        else:
            with pytest.raises(ValueError, match="1 to 8"):
                two_classes(**given)
    for count, fits in ((MAX_CUTS, True), (MAX_CUTS + 1, False)):
        given = {"cuts": np.linspace(0.5, 1, count)[None], "regions": (np.arange(count + 1) % 4)[None]}
        if fits:
            assert two_classes(**given).cuts.shape == (1, 255)
        else:
            with pytest.raises(ValueError, match="shape"):
                two_classes(**given)


# As a file


@each_value
def test_saved_and_loaded_it_is_the_same(made, tmp_path):
    rows = batch(np.random.default_rng(24), made.classes, 100)
    veil = Veil(made, secret=SECRET, model="größer")
    veil.save(tmp_path / "veil.json")
    again = Veil.load(tmp_path / "veil.json", secret=SECRET)
    assert same(again.mechanism, made)
    assert again.model == "größer"
    assert again(rows).tobytes() == veil(rows).tobytes()
    assert again.guarantee == veil.guarantee
    assert again.stored.summary() == veil.stored.summary()
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "veil.json").read_bytes()
    with pytest.raises(ValueError, match=r"saved as veil\.json"):
        veil.save(tmp_path / "veil.npz")


def test_many_labels_saved_and_loaded_are_the_same(tmp_path):
    scores = np.random.default_rng(25).random((50, 3))
    for with_epsilon in (False, True):
        veil = Veil(PerLabel.of(maps(with_epsilon)), shape=MultiLabel((0.3, 0.5, 0.6)), secret=SECRET)
        veil.save(tmp_path / "veil.json")
        again = Veil.load(tmp_path / "veil.json", secret=SECRET)
        assert all(same(a, b) for a, b in zip(again.mechanism.maps, veil.mechanism.maps, strict=True))
        assert again.shape == veil.shape
        assert again(scores).tobytes() == veil(scores).tobytes()
        assert again.guarantee == veil.guarantee


def test_the_file_is_json_that_a_person_can_read(tmp_path):
    Veil(four_classes(True)).save(tmp_path / "veil.json")
    text = (tmp_path / "veil.json").read_text(encoding="utf-8")
    held = json.loads(text)
    assert held["map"] == [
        {"cuts": [0.5, 0.75], "regions": [0, 1, 2]},
        {"cuts": [0.625], "regions": [1, 2]},
        {"cuts": [0.375, 0.5, 0.875], "regions": [3, 0, 3, 1]},
    ]
    assert held["strips"] == [0.5, 0.75]
    assert held["announced"] == [[0.3, 0.6, 0.8]]
    assert held["table"] == TABLE.tolist()
    assert held["counts"] == [[3200, 2400, 1600, 800], [3200, 2400, 1600, 800]]
    assert held["spent"] == [0.5, 2.5]
    seen = held["evidence"]
    assert seen["relation"] == "zero_out"
    assert seen["sixteenths_of_records"] == evidence(4).counts.tolist()
    assert (seen["records"], seen["noise"], seen["asked"]) == ([1000, 800], [0.5, 0.25], 0.02)
    assert (seen["beyond"], seen["certified"]) == ("label", False)
    lines = [line.strip() for line in text.splitlines()]
    assert '{"cuts": [0.625], "regions": [1, 2]},' in lines  # a line for each strip
    assert '"strips": [0.5, 0.75],' in lines
    assert '"relation": "zero_out",' in lines
    assert len(lines) < 50
    assert "Infinity" not in text
    Veil(four_classes()).save(tmp_path / "plain.json")
    assert json.loads((tmp_path / "plain.json").read_text(encoding="utf-8"))["epsilon"] is None


# A hostile file: the checksum is right, as whoever means harm would have it


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Veil]:
    """Loads the file of a map after a change of what it holds."""
    monkeypatch.setattr(storage.Stored, "checksum", lambda self: "right")

    def loaded(made: Regions | PerLabel, change: Callable[[Any], Any]) -> Veil:
        Veil(made).save(tmp_path / "veil.json")
        held = json.loads((tmp_path / "veil.json").read_text(encoding="utf-8"))
        held = change(held) or held
        (tmp_path / "veil.json").write_text(json.dumps(held), encoding="utf-8")
        return Veil.load(tmp_path / "veil.json")

    return loaded


def put(*way: Any, value: Any) -> Callable[[Any], None]:
    def change(held: Any) -> None:
        for key in way[:-1]:
            held = held[key]
        held[way[-1]] = value

    return change


def test_the_hostile_file_is_accepted_where_nothing_is_changed(hostile):
    for made in (*VALUES.values(), PerLabel.of(maps())):
        hostile(made, lambda held: None)
    hostile(four_classes(), put("spent", value=[0.25, 1.0]))
    hostile(four_classes(), put("evidence", "asked", value=1.0))
    hostile(four_classes(), put("evidence", "noise", value=[promises.MIN_NOISE, promises.MAX_NOISE]))
    hostile(four_classes(), put("evidence", "sixteenths_of_records", 1, 0, 0, 0, value=-(2**12)))  # noise may be
    hostile(four_classes(), put("announced", 0, 3, value=1 - NEAREST))
    hostile(four_classes(), put("announced", 0, 0, value=float(np.nextafter(0.25, 1))))
    hostile(four_classes(), put("map", 2, "cuts", 2, value=1.0))
    hostile(four_classes(), put("strips", 1, value=1.0))


FIELDS = ("epsilon", "classes", "strips", "map", "announced", "table", "counts", "evidence", "spent", "atoms")
OF_EVIDENCE = ("relation", "sixteenths_of_records", "records", "noise", "asked", "beyond", "certified")
WAYS = [(name,) for name in FIELDS] + [("evidence", name) for name in OF_EVIDENCE]
WAYS += [("map", 1, "cuts"), ("map", 1, "regions"), ("map", 1), ("strips", 0), ("announced", 0), ("announced", 0, 1)]
WAYS += [("table", 1), ("table", 1, 0), ("counts", 1), ("counts", 1, 0), ("spent", 0), ("map", 1, "cuts", 0)]
WAYS += [("map", 1, "regions", 0), ("evidence", "records", 0), ("evidence", "noise", 0)]
WAYS += [("evidence", "sixteenths_of_records", 1), ("evidence", "sixteenths_of_records", 1, 0, 0, 0)]
JUNK: list[Any] = [None, "x", "1", "", [], [[]], {}, {"a": 1}, [None], ["x"], [[1, 2], [3]], [[[[[1]]]]], -1, 1.5]
JUNK += [math.nan, INF, -INF, 10**400, -(10**400), 2**63, -(2**63), 1e308]
# what such a field may hold
SOUND: dict[Any, list[Any]] = {way: [1.5, 2**63, 1e308] for way in [("epsilon",), ("atoms",), ("spent", 0)]}
SOUND |= {("evidence",): [None], ("evidence", "noise", 0): [1.5]}
SOUND |= {("evidence", "sixteenths_of_records", 1, 0, 0, 0): [-1]}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: ".".join(map(str, way)))
def test_a_field_that_is_missing_or_holds_something_else_is_refused(hostile, way):
    def without(held: Any) -> None:
        for key in way[:-1]:
            held = held[key]
        del held[way[-1]]

    if way != ("counts", 1):  # without labels there is one row
        with pytest.raises(ValueError, match=r"damaged|breaks a promise"):
            hostile(four_classes(True), without)
    for value in JUNK:
        if any(value is sound or value == sound for sound in SOUND.get(way, ())):
            hostile(four_classes(True), put(*way, value=value)).guarantee  # noqa: B018
            continue
        with pytest.raises(ValueError, match=r"damaged|breaks a promise"):
            hostile(four_classes(True), put(*way, value=value))


def test_no_room_is_made_for_more_strips_than_there_can_be():
    settings = four_classes().settings()
    settings["map"] = [{"cuts": [0.5] * MAX_CUTS, "regions": [0] * (MAX_CUTS + 1)}] * 60_000
    settings["strips"] = [i / 70_000 for i in range(1, 60_000)]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="more strips"):
            Regions.restored(settings, {})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1e6


def test_a_refused_file_is_told_why_and_no_value_of_it_is_quoted(hostile, tmp_path):
    for change, reason in (
        (put("map", 0, "cuts", value=[0.5]), "A strip has cuts and regions that do not go together."),
        (put("map", 0, "cuts", value=[0.5, 0.5]), "Expected cuts that ascend, above 0."),
        (put("sha256", value="wrong"), "It was changed after it was written."),
        (put("counts", 0, 0, value=0.125), "It has numbers that are not whole, or lists of unequal length."),
        (put("classes", value="a secret"), ""),
        (put("evidence", "records", value=["a secret", 800]), ""),
    ):
        with pytest.raises(ValueError, match="not written by") as refused:
            hostile(four_classes(), change)
        assert str(refused.value) == f"veil.json is damaged, or was not written by Veil.save. {reason}".rstrip()


def test_a_setting_that_stands_twice_is_refused(tmp_path):
    Veil(four_classes(True)).save(tmp_path / "veil.json")
    text = (tmp_path / "veil.json").read_text(encoding="utf-8")
    for name in ("epsilon", "certified"):
        (tmp_path / "veil.json").write_text(text.replace(f'"{name}": ', f'"{name}": 99, "{name}": ', 1))
        with pytest.raises(ValueError, match="a setting twice"):
            Veil.load(tmp_path / "veil.json")


LARGEST = math.floor(promises.exponential_below(1.0) * 2**30)
AT_THE_BORDER = [[2**30, LARGEST, WHOLE - 2**30 - LARGEST], [LARGEST, 2**30, WHOLE - 2**30 - LARGEST]]


def with_table(*rows: list[int]) -> Callable[[Any], None]:
    def change(held: Any) -> None:
        held["epsilon"], held["table"] = 1.0, [rows[i % len(rows)] for i in range(4)]

    return change


def test_a_table_that_breaks_epsilon_by_one_unit_is_refused(hostile):
    hostile(four_classes(True), with_table(*AT_THE_BORDER))
    beyond = [AT_THE_BORDER[0], [LARGEST + 1, 2**30, WHOLE - 2**30 - LARGEST - 1]]
    with pytest.raises(promises.BrokenPromise, match="breaks ε = 1"):
        hostile(four_classes(True), with_table(*beyond))
    with pytest.raises(promises.BrokenPromise, match="does not sum"):
        hostile(four_classes(True), with_table(AT_THE_BORDER[0], [LARGEST, 2**30, WHOLE - 2**30 - LARGEST - 1]))
    with pytest.raises(promises.BrokenPromise, match="never give"):
        hostile(four_classes(True), with_table([2**31, 2**31, 0]))
    with pytest.raises(promises.BrokenPromise, match="never give"):
        hostile(four_classes(True), with_table([2**32 + 1, 2**31, -(2**31) - 1]))


@pytest.mark.parametrize(
    "change",
    [
        put("surplus", value=1),
        put("evidence", "surplus", value=1),
        put("map", 0, "surplus", value=1),
        put("sha256", value="wrong"),
        put("format", value=3),
        put("mechanism", value="channel"),
        put("mechanism", value="isotonic"),
        put("mechanism", value="per_label"),
        put("tables", value=["table"]),
        put("classes", value=3),
        put("classes", value=5),
        put("classes", value="4"),
        put("strips", value=[0.5]),
        put("strips", value=[0.5, 0.5]),
        put("strips", value=[0.75, 0.5]),
        put("strips", value=[0.0, 0.5]),
        put("strips", value=[0.5, 1.001]),
        put("strips", value=[[0.5], [0.75]]),
        put("strips", value=[0.5, 0.75, 0.875]),
        put("map", 0, "cuts", value=[0.5, 0.5]),
        put("map", 0, "cuts", value=[0.75, 0.5]),
        put("map", 0, "cuts", value=[0.0, 0.5]),
        put("map", 0, "cuts", value=[0.5, 1.001]),
        put("map", 0, "cuts", value=[0.5]),
        put("map", 0, "cuts", value=[0.5, INF]),
        put("map", 0, "cuts", value=[-INF, 0.5]),
        put("map", 0, "cuts", value=[0.5, -INF]),
        put("map", 0, "cuts", value=["0.5", 0.75]),
        put("map", 0, "regions", value=[0, 1, 4]),
        put("map", 0, "regions", value=[-1, 1, 2]),
        put("map", 0, "regions", value=[0, 1, 2.0]),
        put("map", 0, "regions", value=[True, False, True]),
        put("map", 2, "regions", value=[2, 0, 2, 1]),  # a region that no score vector lies in
        put("map", 0, "regions", value=[[0, 1, 2]]),
        put("announced", 0, 3, value=1.0),
        put("announced", 0, 3, value=1 - NEAREST / 2),
        put("announced", 0, 0, value=0.25),
        put("announced", 0, 0, value=0.2),
        put("announced", value=[[0.3, 0.6, 0.8]]),
        put("announced", value=[[0.3, 0.6, 0.8, 0.9], [0.3, 0.6, 0.8, 0.9]]),
        put("epsilon", value=1.0),
        put("table", value=TABLE.tolist()),
        put("counts", 0, 0, value=MAX_RECORDS),
        put("counts", 0, 0, value=-MAX_RECORDS),
        put("counts", value=[[1, 1, 1]]),
        put("counts", value=[[1, 1, 1, 1]] * 3),
        put("evidence", "relation", value="substitution"),
        put("evidence", "sixteenths_of_records", value=np.ones((2, 4, 2, 3), dtype=int).tolist()),
        put("evidence", "sixteenths_of_records", value=np.ones((2, 4, 2, 5), dtype=int).tolist()),
        put("evidence", "sixteenths_of_records", value=np.ones((2, 3, 2, 4), dtype=int).tolist()),
        put("evidence", "sixteenths_of_records", value=np.ones((2, 4, 3, 4), dtype=int).tolist()),
        put("evidence", "sixteenths_of_records", value=np.ones((3, 4, 2, 4), dtype=int).tolist()),
        put("evidence", "sixteenths_of_records", value=np.ones((2, 2, 4), dtype=int).tolist()),
        put("evidence", "sixteenths_of_records", 0, 0, 0, 0, value=MAX_RECORDS),
        put("evidence", "sixteenths_of_records", 0, 0, 0, 0, value=-MAX_RECORDS),
        put("evidence", "sixteenths_of_records", 0, 0, 0, 0, value=-(2**63)),
        put("evidence", "records", value=[1000, 0]),
        put("evidence", "records", value=[0, 800]),
        put("evidence", "records", value=[1000, MAX_RECORDS]),
        put("evidence", "records", value=[1000]),
        put("evidence", "records", value=[1000, 800, 1]),
        put("evidence", "records", value=[1000.5, 800]),
        put("counts", 0, 0, value=3200 - 48),  # others by label sum to another number
        put("counts", value=[[3200, 2400, 1600, 800]]),
        put("counts", value=[[0] * 4] * 2),
        put("evidence", "sixteenths_of_records", value=np.zeros((2, 4, 2, 4), dtype=int).tolist()),
        put("evidence", "sixteenths_of_records", value=(1000 * evidence(4).counts).tolist()),
        put("evidence", "sixteenths_of_records", 1, value=(-evidence(4).counts[1]).tolist()),
        put("evidence", "records", value=[4000, 800]),
        put("evidence", "records", value=[1000, 4000]),
        put("evidence", "noise", value=[1e300, 1e300]),
        put("evidence", "noise", value=[1e-300, 0.25]),
        put("evidence", "noise", value=[2.0**-21, 0.25]),
        put("evidence", "noise", value=[0.5, 2.0**20 + 1]),
        put("evidence", "noise", value=[0.5, 0.0]),
        put("evidence", "noise", value=[0.5, -0.25]),
        put("evidence", "noise", value=[0.5, INF]),
        put("evidence", "noise", value=[0.5]),
        put("evidence", "noise", value=[0.5, 0.25, 0.25]),
        put("evidence", "noise", value=[0.5, math.nan]),
        put("evidence", "asked", value=0.0),
        put("evidence", "asked", value=1.001),
        put("evidence", "beyond", value="both"),
        put("evidence", "certified", value="yes"),
        put("spent", value=[0.5]),
        put("spent", value=[0.5, 2.5, 0.0]),
        put("spent", value=[0.5, -2.5]),
        put("spent", value=[0.5, INF]),
        put("atoms", value=-0.001),
        lambda held: [held],
        lambda held: "a text",
        lambda held: 5,
    ],
)
def test_a_field_out_of_range_is_refused(hostile, change):
    with pytest.raises(ValueError, match=r"damaged|breaks a promise"):
        hostile(four_classes(), change)


def test_a_damaged_label_of_many_is_refused(hostile):
    def first(change: Callable[[Any], Any]) -> Callable[[Any], None]:
        return lambda held: change(held["labels"][1])

    for change in (
        put("classes", value=3),
        put("announced", 0, 0, value=0.5),
        put("map", 0, "regions", value=[0, 1, 2, 4]),
        put("surplus", value=1),
    ):
        with pytest.raises(ValueError, match="damaged"):
            hostile(PerLabel.of(maps()), first(change))
    for value in (None, [], {}, [None], "x", [[]]):
        with pytest.raises(ValueError, match="damaged"):
            hostile(PerLabel.of(maps()), put("labels", value=value))
    with pytest.raises(ValueError, match="damaged"):
        hostile(PerLabel.of(maps()), put("surplus", value=1))


def test_a_file_that_asks_for_much_memory_is_refused(hostile):
    wide = {"cuts": [0.5] * 300_000, "regions": [0] * 300_001}

    def change(held: Any) -> None:  # 300,000 numbers in each of 30,000 strips would be 72 GB
        held["map"] = [wide] + [{"cuts": [], "regions": [0]}] * 30_000

    with pytest.raises(ValueError, match="damaged"):
        hostile(four_classes(), change)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"NaN", b"1" * 5000])
def test_a_file_that_is_no_json_is_refused(tmp_path, content):
    (tmp_path / "veil.json").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        Veil.load(tmp_path / "veil.json")


def test_a_changed_file_is_refused_by_its_checksum(tmp_path):
    Veil(four_classes()).save(tmp_path / "veil.json")
    text = (tmp_path / "veil.json").read_text(encoding="utf-8")
    (tmp_path / "veil.json").write_text(text.replace("0.625", "0.626"), encoding="utf-8")
    with pytest.raises(ValueError, match="damaged"):
        Veil.load(tmp_path / "veil.json")
