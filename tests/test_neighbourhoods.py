"""Which questions are near-duplicates: small changes share a mark, other records do not, and attacks on that fail."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from scoreveil.same_record.marks import TABLES, Neighbourhoods
from scoreveil.same_record.typical import few_numbers, typical_inputs

SECRET = b"0123456789abcdef"
DIGITS, CANCER = load_digits().data, load_breast_cancer().data
NEAR = Neighbourhoods(SECRET, b"m")
WAYS = [(DIGITS, None), (DIGITS, DIGITS[:300]), (CANCER, None), (CANCER, CANCER[:200])]
NAMES = ["digits", "digits, typical", "breast cancer", "breast cancer, typical"]


def marks_of(*inputs: Any, near: Neighbourhoods = NEAR) -> np.ndarray:
    return near(len(inputs[0]), inputs)


def share(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether rows share a mark."""
    return (one == other).any(axis=1)


# Near-duplicates and strangers


@pytest.mark.parametrize(("x", "typical"), WAYS, ids=NAMES)
def test_tiny_moves_share_a_mark_and_other_records_do_not(x: np.ndarray, typical: np.ndarray | None) -> None:
    near = Neighbourhoods(SECRET, b"m", typical)
    x = x[300:]
    marks = marks_of(x, near=near)
    assert marks.shape == (len(x), TABLES)
    assert marks.dtype == np.int64
    noise = np.random.default_rng(0).normal(size=x.shape) * x.std(axis=0)
    denormal = x.copy()
    denormal[:, 3] += 5e-324
    for moved in (denormal, x * (1 + 1e-6), x * 0.999, x * 1.001, x.astype(np.float32), x + 1e-6 * noise):
        assert share(marks_of(moved, near=near), marks).all()
    assert share(marks_of(x + 1e-3 * noise, near=near), marks).mean() > 0.99
    assert share(marks_of(x + 1e-2 * noise, near=near), marks).mean() > 0.9
    counts = Counter(marks.ravel().tolist())
    strangers = [row for row in marks.tolist() if any(counts[mark] > 1 for mark in row)]
    assert len(strangers) <= 0.02 * len(x)  # both of a pair are counted


def test_people_in_one_column_for_each_category_are_told_apart() -> None:
    """Flags outweigh the numbers beside them: cells of pixels would take people for each other who differ in age."""
    rng = np.random.default_rng(0)
    flags = np.concatenate([np.eye(13)[rng.choice(13, 1000, p=rng.dirichlet(np.ones(13)))] for _ in range(7)], axis=1)
    people = np.hstack([flags, rng.random((1000, 5))])
    counts = Counter(marks_of(people).ravel().tolist())
    assert max(counts.values()) <= 2
    assert sum(count > 1 for count in counts.values()) <= 20


def test_pixels_that_are_blank_may_be_noisy() -> None:
    x = DIGITS[:300] * 16
    noise = np.random.default_rng(0).normal(size=x.shape)
    assert share(marks_of(x + noise), marks_of(x)).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e-20, 1e-12])
def test_next_to_nothing_is_nothing(scale: float) -> None:
    """A blank record has no size of its own that noise could be compared with."""
    noise = np.random.default_rng(0).normal(size=(200, 13)) * scale
    assert share(marks_of(noise), marks_of(np.zeros((1, 13)))).all()


@pytest.mark.parametrize("scale", [1e-4, 1e-6, 1e-8])
def test_small_records_are_told_apart(scale: float) -> None:
    """Wavelengths in metres, or concentrations."""
    small = np.random.default_rng(0).normal(size=(200, 13)) * scale
    assert max(Counter(marks_of(small).ravel().tolist()).values()) == 1


# What is the same, and what is told apart


def test_a_record_has_its_marks_in_every_batch_and_encoding() -> None:
    for x in (DIGITS, CANCER, np.random.default_rng(0).normal(size=(700, 64))):
        for typical in (None, x[:200]):
            near = Neighbourhoods(SECRET, b"m", typical)
            whole = marks_of(x, near=near)
            order = np.random.default_rng(1).permutation(len(x))
            np.testing.assert_array_equal(marks_of(x[order], near=near), whole[order])
            np.testing.assert_array_equal(marks_of(np.asfortranarray(x), near=near), whole)
            for i in range(0, 80, 4):
                np.testing.assert_array_equal(marks_of(x[i : i + 1], near=near)[0], whole[i])
                np.testing.assert_array_equal(marks_of(x[i : i + 3], near=near), whole[i : i + 3])
    marks = marks_of(DIGITS)
    for dtype in ("float16", "float32", ">f4", "int8", "uint64", "int32"):
        np.testing.assert_array_equal(marks_of(DIGITS.astype(dtype)), marks)
    np.testing.assert_array_equal(marks_of(np.where(DIGITS == 0, -0.0, DIGITS)), marks)
    np.testing.assert_array_equal(marks_of(DIGITS > 8), marks_of((DIGITS > 8).astype(float)))
    assert marks_of(np.empty((0, 4))).shape == (0, TABLES)


def test_marks_are_functions_of_secret_and_context() -> None:
    marks = marks_of(DIGITS)
    np.testing.assert_array_equal(marks_of(DIGITS, near=Neighbourhoods(SECRET, b"m")), marks)
    for other in (Neighbourhoods(SECRET, b"n"), Neighbourhoods(SECRET[::-1], b"m")):
        assert not np.isin(marks_of(DIGITS, near=other), marks).any()


def test_what_is_missing_is_told_apart_from_nothing() -> None:
    payload = np.array([0x7FF8_0000_0000_0123, 0xFFF8_0000_0000_0000], dtype=np.uint64).view(np.float64)
    rows = np.array([[7.0, value, 1.0] for value in (np.nan, *payload)])
    assert len(np.unique(marks_of(rows), axis=0)) == 1
    others = np.array([[7.0, 0.0, 1.0], [7.0, 1.0, np.nan], [np.nan, 7.0, 1.0], [7.0, np.nan, np.nan]])
    assert not np.isin(marks_of(others), marks_of(rows)).any()
    np.testing.assert_array_equal(marks_of(np.vstack([others, rows]))[4:], marks_of(rows))
    huge = marks_of(np.array([[np.inf, 1.0], [1e308, 1.0], [-np.inf, 1.0]]))
    np.testing.assert_array_equal(huge[0], huge[1])
    assert not share(huge[:1], huge[2:]).any()


# Attacks


@pytest.mark.parametrize("factor", [0.01, 0.5, 2.0, 10.0])
@pytest.mark.parametrize(("x", "typical"), WAYS, ids=NAMES)
def test_nobody_claims_a_record_by_another_size_of_it(x: np.ndarray, typical: np.ndarray | None, factor: float) -> None:
    """Who asked about .01·x got what x is answered into the ledger, for 300 of 300 victims."""
    near = Neighbourhoods(SECRET, b"m", typical)
    victims = x[-300:]
    assert not np.isin(marks_of(victims, near=near), marks_of(factor * victims, near=near)).any()


def test_no_padded_or_folded_record_is_a_near_duplicate() -> None:
    """After x with four more zeros, whose answer had more places, x itself was refused."""
    marks = marks_of(DIGITS)
    padded = np.hstack([DIGITS, np.zeros((len(DIGITS), 4))])
    others = [(padded,), (DIGITS.reshape(-1, 8, 8),), (DIGITS.reshape(-1, 1, 64),), (DIGITS[:, :30], DIGITS[:, 30:])]
    for other in others:
        assert not np.isin(marks_of(*other), marks).any()


def test_a_text_is_one_record_however_it_is_typed() -> None:
    """Case and blanks made new records for a classifier of texts, which reads neither."""
    texts = ["Not good!", "not  GOOD", b"(not) good", "n\u034fot\u3164 good\u2800", "\u180bnot + good $`", "not good"]
    first, *others = marks_of(np.array(texts, dtype=object))
    for other in others:
        np.testing.assert_array_equal(other, first)
    apart = ["good", "not good 1", "not good 2", "12", "12.0", "1e1", b"\xff\xd8 picture", b"\xff\xd8 Picture", ""]
    marks = marks_of(np.array([*apart, "not good"], dtype=object))
    assert len(np.unique(marks)) == marks.size


def test_texts_are_taken_with_the_numbers_beside_them() -> None:
    x = DIGITS[:20]
    said = np.array([["a", "b"]] * 10 + [["b", "a"]] * 10, dtype=object)
    marks = marks_of(x, said)
    assert not np.isin(marks, marks_of(x)).any()
    assert not np.isin(marks[:10], marks_of(x[:10], said[10:])).any()
    assert share(marks_of(x * 1.0001, said), marks).all()
    pairs = marks_of(np.array([["ab", "c"], ["a", "bc"]], dtype=object))
    assert not share(pairs[:1], pairs[1:]).any(), "texts do not run together"


# Typical inputs


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.ones((200, 3)), "typical inputs are all the same"),
        (np.arange(30.0).reshape(10, 3), "at least 100 rows"),
        (np.zeros(200), "at least 100 rows"),
        (np.zeros((200, 0)), "at least 100 rows"),
        (np.zeros((200, 8, 8)), "at least 100 rows"),
        (np.tile(CANCER[:50], (4, 1)), "occurs twice"),
        (np.where(CANCER > 2000, np.inf, CANCER), "finite"),
        (np.array([["a secret", "b"]] * 200), "no numbers"),
        (np.array([{"a": 1}] * 200), "not an array"),
    ],
)
def test_typical_inputs_that_tell_no_scale_are_refused(tmp_path: Path, wrong: np.ndarray, words: str) -> None:
    path = tmp_path / "typical.npy"
    np.save(path, wrong, allow_pickle=True)
    with pytest.raises(ValueError, match=words) as caught:
        typical_inputs(path)
    assert "secret" not in str(caught.value)
    if wrong.dtype.kind == "f":
        with pytest.raises(ValueError, match=words):
            Neighbourhoods(SECRET, b"m", wrong)


def test_typical_inputs_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "typical.npy"
    np.save(path, CANCER[:200].astype(np.float32))
    np.testing.assert_array_equal(typical_inputs(path), CANCER[:200].astype(np.float32))
    with pytest.raises(ValueError, match="Typical inputs have 30 numbers; a record has 64"):
        marks_of(DIGITS[:5], near=Neighbourhoods(SECRET, b"m", typical_inputs(path)))


@pytest.mark.parametrize("content", [b"", b"root:x:0:0:root:/root:/bin/bash\n", b"\x93NUMPY\x01\x00\x09\x00a secret\n"])
def test_a_file_that_holds_no_array_is_refused_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "passwd"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="passwd is not an array") as caught:
        typical_inputs(path)
    assert "root" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_of_typical_inputs_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "large.npy"
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**5)}
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
    with pytest.raises(ValueError, match="not an array"):  # it says that it holds 745 GiB, and ends
        typical_inputs(path)
    with path.open("r+b") as stream:
        stream.truncate(128 + 2 * 10**9)
    np.lib.format.open_memmap(path, mode="w+", dtype=np.int8, shape=(1000, 10**5))
    with pytest.raises(ValueError, match="100,000,000 numbers; a few hundred rows are enough"):
        typical_inputs(path)
    for wrong in (tmp_path, tmp_path / "missing.npy"):
        with pytest.raises(OSError):
            typical_inputs(wrong)


@pytest.mark.parametrize(
    ("shapes", "few"),
    [([(-1, 1)], True), ([(-1, 2)], True), ([(-1,), (-1,)], True), ([(-1, 3)], False), ([(-1, 1), (-1, 2)], False),
     ([(-1, -1)], False), ([(-1, 28, 28)], False), ([], False)],
)  # fmt: skip
def test_records_of_one_or_two_numbers_need_typical_inputs(shapes: list[tuple[int, ...]], few: bool) -> None:
    assert few_numbers(shapes) is few
