"""Bad input raises ValueError, saying what was expected and what came, without quoting a score; nothing is returned."""

from __future__ import annotations

import pickle
import re
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

from scoreveil import Veil
from scoreveil.files.records import read
from scoreveil.mechanisms.scores import BadRow
from scoreveil.shapes import Binary, PerPosition

SECRET = b"a secret of sufficient length"
MECHANISMS = (
    {"mechanism": "published"},
    {"mechanism": "published", "reading": "printed"},
    {"mechanism": "isotonic"},
    {"mechanism": "isotonic", "keep": 2},
    {"mechanism": "isotonic", "keep": "all"},
    {"mechanism": "isotonic", "secret": SECRET},
)
NAN, INF = float("nan"), float("inf")
# 0.123456 is the score that no message may show
BAD_ROWS = {
    "nan": [0.123456, NAN, 0.8],
    "infinity": [0.123456, INF, 0.8],
    "minus infinity": [0.123456, -INF, 0.8],
    "negative": [-0.123456, 0.323456, 0.7],
    "barely negative": [0.123456, 0.876544, -1e-30],
    "all negative": [-0.123456, -0.3, -0.576544],
    "sum too large": [0.123456, 0.3, 0.6],
    "sum too small": [0.123456, 0.3, 0.5],
    "sum off by little more than allowed": [0.123456, 0.3, 0.577744],
    "negative but summing to 1": [-0.123456, 0.323456, 0.8],
    "all zero": [0.0, 0.0, 0.0],
    "percentages": [12.3456, 30.0, 57.6544],
    "logits above 0": [0.123456, 3.0, 5.5],
}


# what was found, or what was expected and what came
FAULT = r"(a score is|some of the scores are|the scores sum to|the scores look like)"
FAULTS = rf"^Row \d+(, place [\d, ]+)?(, column \d+)?: {FAULT}|^Expected .*, got "


def refusal(veil: Veil, scores: Any) -> str:
    """The message with which `veil` refuses, after checking that nothing in it or behind it quotes a score."""
    with pytest.raises(ValueError) as caught:
        veil(scores)
    shown: BaseException | None = caught.value
    while shown is not None:
        assert "123456" not in f"{shown} {shown!r}"
        shown = shown.__cause__ or shown.__context__
    message = str(caught.value)
    assert re.search(FAULTS, message), message
    return message


def good_scores(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(k, 0.5), size=n)


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_a_row_that_is_no_score_vector_is_refused(path: str, options: dict[str, Any]) -> None:
    for case in BAD_ROWS:
        for dtype in ("float16", "float32", "float64"):
            veil = Veil(1.0, **options)
            row = np.array(BAD_ROWS[case]).astype(dtype)
            if case == "barely negative":
                row[2] = -np.finfo(dtype).smallest_subnormal
            message = refusal(veil, row)
            assert message == refusal(veil, row[None])
            rows = np.tile(np.array([0.25, 0.25, 0.5], dtype), (3, 1))
            rows[1] = row
            assert re.search(r"\b1\b", refusal(veil, rows).split(":")[0])


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_tensors_and_strict_arrays_are_refused_alike(path: str, options: dict[str, Any]) -> None:
    for case in BAD_ROWS:
        veil = Veil(1.0, **options)
        row = np.array(BAD_ROWS[case])
        message = refusal(veil, row)
        assert refusal(veil, torch.from_numpy(row)) == message
        assert refusal(veil, array_api_strict.asarray(row)) == message
        refusal(veil, torch.from_numpy(row).to(torch.float32))


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_a_bad_bfloat16_row_is_refused(path: str, options: dict[str, Any]) -> None:
    veil = Veil(1.0, **options)
    refusal(veil, torch.tensor([0.123456, 0.3, 0.5], dtype=torch.bfloat16))
    refusal(veil, torch.tensor([0.123456, NAN, 0.5], dtype=torch.bfloat16))


def test_the_sum_in_a_message_never_shows_the_one_score_it_is_made_of(path: str) -> None:
    veil = Veil(1.0)
    for score in (0.1234, 0.5, 0.9876, 7.25):
        message = refusal(veil, np.array([0.0, score, 0.0]))
        assert str(score) not in message


def test_rows_whose_sum_overflows_are_refused(path: str) -> None:
    for options in MECHANISMS:
        refusal(Veil(1.0, **options), np.array([1e308, 1e308, 1.0]))
        refusal(Veil(1.0, **options), np.array([3e38, 3e38, 1.0], np.float32))
        refusal(Veil(1.0, **options), np.array([6e4, 6e4, 1.0], np.float16))


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.slow
def test_a_bad_row_deep_inside_a_batch_is_named(path: str, options: dict[str, Any]) -> None:
    for fault in ([0.123456] * 4, [NAN, 0.2, 0.3, 0.5], [INF, 0.0, 0.0, 0.0], [-0.1, 0.1, 0.5, 0.5]):
        for where in (0, 63, 64, 3217, 4999):
            scores = good_scores(5000, 4)
            scores[where] = fault
            assert re.search(rf"\b{where}\b", refusal(Veil(1.0, **options), scores))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("options", MECHANISMS[:1] + MECHANISMS[2:3], ids=["published", "isotonic"])
def test_the_first_bad_row_of_a_very_large_batch_is_named_and_none_is_released(
    path: str, options: dict[str, Any], threads: int
) -> None:
    scores = np.tile(good_scores(1000, 3).astype(np.float32), (300, 1))
    scores[270_001] = NAN
    scores[150_003] = 0.123456
    before = scores.tobytes()
    assert re.search(r"\b150003\b", refusal(Veil(1.0, **options, threads=threads), scores))
    assert scores.tobytes() == before


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_sums_within_a_thousandth_are_taken(path: str, options: dict[str, Any]) -> None:
    veil = Veil(1.0, **options)
    for total in (0.9991, 1.0009):
        released = veil(np.array([0.2, 0.3, 0.5]) * total)
        assert abs(released.sum() - 1) < 1e-9


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_wrong_shapes_are_refused(path: str, options: dict[str, Any]) -> None:
    for shape in ((), (1,), (3, 1), (0, 1), (0,), (3, 0), (1, 2, 3), (1, 1, 1, 3)):
        veil = Veil(1.0, **options)
        refusal(veil, np.ones(shape))
        refusal(veil, torch.ones(shape))
        refusal(veil, array_api_strict.ones(shape))


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_dtypes_that_are_not_floating_are_refused(path: str, options: dict[str, Any]) -> None:
    for dtype in ("object", "int64", "int32", "uint8", "bool", "complex128", "str", "S8", "M8[s]"):
        scores = np.array([[0, 0, 1], [1, 0, 0]]).astype(dtype)
        refusal(Veil(1.0, **options), scores)


@pytest.mark.parametrize("options", MECHANISMS, ids=lambda o: "-".join(map(str, o.values())))
def test_objects_that_hold_floats_are_refused(path: str, options: dict[str, Any]) -> None:
    veil = Veil(1.0, **options)
    refusal(veil, np.array([0.123456, 0.3, 0.576544], object))
    refusal(veil, torch.tensor([0, 0, 1]))
    refusal(veil, torch.tensor([0.2, 0.8]).to(torch.complex64))
    for nothing in (None, 0.123456, "0.123456", b"0.123456", {"score": 0.123456}, object(), ["0.123456", "0.8"]):
        refusal(veil, nothing)


@pytest.mark.parametrize("mechanism", ["isotonic", "published"])
@pytest.mark.parametrize(
    "epsilon", [0, 0.0, -0.0, -1, -1e-9, NAN, INF, -INF, "2", "", True, None, [1.0], 1 + 2j, np.array([1.0, 2.0])]
)
def test_an_epsilon_that_is_no_positive_finite_number_is_refused(mechanism: Any, epsilon: Any) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*epsilon.*got"):
        Veil(epsilon, mechanism)


@pytest.mark.parametrize("epsilon", [1, 2.0, np.float32(1), np.float64(1), np.int64(2), 1e-9, 1e6])
def test_any_positive_finite_number_will_do_as_epsilon(epsilon: Any) -> None:
    assert Veil(epsilon).epsilon == epsilon
    assert Veil(epsilon, "published").epsilon == epsilon


@pytest.mark.parametrize("keep", [0, -1, 2.5, "some", "ALL", True, [1], NAN])
def test_a_keep_that_is_no_number_of_classes_is_refused(keep: Any) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected keep.*got"):
        Veil(1.0, keep=keep)


def test_more_kept_classes_than_there_are_is_refused(path: str) -> None:
    message = refusal(Veil(1.0, keep=4), np.array([0.123456, 0.3, 0.576544]))
    assert "3" in message
    assert "4" in message
    refusal(Veil(1.0, keep=4), torch.tensor([0.2, 0.3, 0.5]))
    refusal(Veil(1.0, keep=4, secret=SECRET), np.array([[0.2, 0.3, 0.5]]))
    with pytest.raises(ValueError, match=r"(?i)expected keep.*got 4"):
        Veil(1.0, keep=4, reference=good_scores(20, 3))


def test_keeping_less_than_all_is_refused_where_the_mechanism_keeps_all() -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*keep.*got 2"):
        Veil(1.0, "published", keep=2)


@pytest.mark.parametrize("mechanism", ["other", "Isotonic", "", None, 3, ["isotonic"]])
def test_an_unknown_mechanism_is_refused(mechanism: Any) -> None:
    with pytest.raises(ValueError, match=r"(?i)there is no mechanism .*; there are .*isotonic.*published"):
        Veil(1.0, mechanism)


@pytest.mark.parametrize("reading", ["other", "Bounded", "", 3])
def test_an_unknown_reading_is_refused(reading: Any) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected reading .*bounded.*printed.*got"):
        Veil(1.0, "published", reading=reading)


def test_settings_of_the_other_mechanism_are_refused() -> None:
    with pytest.raises(ValueError, match=r"isotonic mechanism has no option 'reading'; it has keep, levels, reference"):
        Veil(1.0, reading="bounded")
    with pytest.raises(ValueError, match=r"published mechanism has no option 'reference'; it has reading, m, keep"):
        Veil(1.0, "published", reference=good_scores(20, 3))


def test_a_reference_of_another_number_of_classes_is_refused(path: str) -> None:
    message = refusal(Veil(1.0, keep=2, reference=good_scores(50, 4)), np.array([0.123456, 0.3, 0.576544]))
    assert "3" in message
    assert "4" in message
    refusal(Veil(1.0, keep=2, reference=good_scores(50, 4)), torch.tensor([[0.2, 0.3, 0.5]]))


@pytest.mark.parametrize("keep", [2, "all"])
@pytest.mark.parametrize(("case", "row"), BAD_ROWS.items())
def test_a_reference_with_a_bad_row_is_refused(keep: Any, case: str, row: list[float]) -> None:
    reference = good_scores(40, 3)
    reference[17] = row
    with pytest.raises(ValueError, match=rf"^Row 17(, column \d)?: {FAULT}") as caught:
        Veil(1.0, keep=keep, reference=reference)
    assert "123456" not in str(caught.value)


@pytest.mark.parametrize(
    "reference",
    [np.eye(3, dtype=int), np.eye(3, dtype=object), np.ones((4, 1)), np.ones((2, 2, 2)) / 2, "file"],
    ids=["int", "object", "one class", "three dimensions", "a name"],
)
def test_a_reference_that_is_no_batch_of_scores_is_refused(reference: Any) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*got"):
        Veil(1.0, keep=2, reference=reference)


def test_a_reference_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"reference has no rows; it needs at least one"):
        Veil(1.0, keep=2, reference=np.empty((0, 3)))


def test_a_reference_for_the_label_alone_is_refused_and_points_to_fit() -> None:
    with pytest.raises(ValueError, match=r"Expected keep >= 2 with a reference.*scoreveil\.fit"):
        Veil(1.0, reference=good_scores(20, 3))


@pytest.mark.parametrize(
    "secret", [b"", b"short", b"x" * 15, "x" * 32, "x" * 999, 12345, bytearray(b"x" * 32), [1] * 32]
)
def test_a_secret_that_is_short_or_not_bytes_is_refused_and_not_shown(secret: Any) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected .*secret.*got") as caught:
        Veil(1.0, secret=secret)
    assert "short" not in str(caught.value)
    assert "xxxx" not in str(caught.value)
    assert "12345" not in str(caught.value)


def test_sixteen_bytes_are_a_secret() -> None:
    Veil(1.0, secret=b"x" * 16)


def test_a_secret_and_a_generator_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"secret or an rng, not both"):
        Veil(1.0, secret=SECRET, rng=np.random.default_rng(0))


@pytest.mark.parametrize("threads", [0, -1])
def test_fewer_than_one_thread_is_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=r"(?i)expected threads.*got"):
        Veil(1.0, threads=threads)


def test_a_veil_that_refused_still_answers_good_rows(path: str) -> None:
    for options in MECHANISMS:
        veil = Veil(1.0, **options)
        refusal(veil, np.array(BAD_ROWS["nan"]))
        assert abs(veil(np.array([0.2, 0.3, 0.5])).sum() - 1) < 1e-9


# What was probably meant


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, array_api_strict.asarray])
def test_percentages_are_refused_and_the_way_out_is_to_divide_by_100(path: str, kind: Any) -> None:
    rows = good_scores(50, 4)
    for given in (rows * 100, np.round(rows * 100, 1), rows[:1] * 100, rows[0] * 100):
        message = refusal(Veil(2.0), kind(given))
        assert message.startswith("Row 0: the scores look like percentages; divide them by 100.")
        assert "softmax" not in message
        assert "shape" not in message
    with pytest.raises(ValueError, match=r"^members: Row 0: the scores look like percentages; divide them by 100"):
        read(kind(rows * 100), None, "members")
    assert "divide percentages by 100" in refusal(Veil(2.0), kind(np.round(rows * 100).astype(np.int64)))
    with pytest.raises(BadRow, match="Row 0, place 0: the scores look like percentages; divide them by 100"):
        Veil(0.5, shape=PerPosition())(rows.reshape(10, 5, 4) * 100)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, list])
@pytest.mark.parametrize("records", [3, 199, 300])
def test_one_column_of_probabilities_is_refused_and_the_way_out_is_its_shape(
    path: str, kind: Any, records: int
) -> None:
    column = np.linspace(0.05, 0.96, records)  # 199 of them sum to about 100, and are no percentages
    for message in (refusal(Veil(2.0), kind(column)), refusal(Veil(2.0, secret=SECRET), kind(column))):
        assert f"not {records} classes of one record but one column" in message
        assert "say shape=Binary()" in message
        assert "percent" not in message
    for given in (column, column.reshape(-1, 1)):
        with pytest.raises(ValueError, match=r"^nonmembers: .*shape=Binary\(\)"):
            read(kind(given), None, "nonmembers")
    assert "needs shape=Binary()" in refusal(Veil(2.0), column.reshape(-1, 1))
    assert Veil(2.0, shape=Binary())(column).shape == (records,)
    assert len(read(column, None, "nonmembers", shape=Binary())) == records


def test_one_vector_that_sums_to_1_is_taken_as_one(path: str) -> None:
    vector = good_scores(1, 300)[0]
    assert Veil(2.0)(vector).shape == (300,)
    assert read(vector, None, "nonmembers").scores.shape == (1, 300)


def test_many_bad_rows_are_one_sentence_on_the_first_and_one_on_the_others(path: str) -> None:
    scores = good_scores(300, 4)
    first = "Row {}: the scores sum to more than 1, by over 0.001."
    labels = "If each column is a yes or no of its own, say shape=MultiLabel()."
    everywhere = scores + 0.05
    assert refusal(Veil(2.0), everywhere) == f"{first.format(0)} The next 299 rows are bad too. {labels}"
    some = np.where(np.arange(300)[:, None] % 3 == 1, everywhere, scores)
    assert refusal(Veil(2.0), some) == f"{first.format(1)} 99 of the next 298 rows are bad too."
    two = np.where(np.arange(300)[:, None] >= 298, everywhere, scores)
    assert refusal(Veil(2.0), two) == f"{first.format(298)} The next row is bad too."
    one = np.where(np.arange(300)[:, None] == 7, everywhere, scores)
    assert refusal(Veil(2.0), one) == first.format(7)


def test_the_way_out_fits_what_the_rows_look_like(path: str) -> None:
    scores = good_scores(60, 5)
    assert refusal(Veil(2.0), np.log(scores) + 60).endswith("If these are logits, apply softmax first.")
    assert refusal(Veil(2.0), np.log(scores)).startswith("Row 0: some of the scores are negative (logits? apply soft")
    assert refusal(Veil(2.0), scores * 0.99).endswith("If they were rounded, divide each row by its sum.")
    with pytest.raises(ValueError, match=r"^members: Row 0.*The next 59 rows.*say shape=MultiLabel\(\)\.$"):
        read(scores * 0.7, None, "members")


def test_a_bad_row_travels_with_its_advice() -> None:
    with pytest.raises(BadRow) as caught:
        Veil(2.0)(good_scores(5, 3) + 0.1)
    assert "The next 4 rows" in caught.value.advice
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
