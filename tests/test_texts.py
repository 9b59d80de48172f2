"""Texts that differ in signs alone have one normal form, and texts that differ in a word or digit have two."""

import time
import unicodedata

import pytest

from scoreveil.same_record.texts import MAX_TEXT, normal_form

# what a security review put into prompts to have one text asked about again and again
IGNORABLE = "\u034f\u3164\u115f\u1160\u2800\u180b\u17b4\uffa0\u00ad\u200b\u2060\ufeff\U0001d173\U0001bca0\U000e0041"
SIGNS = "+$`´\u201c\u2026^~|€≈☺👍\x00\x7f\u3000\u2029\t"


@pytest.mark.parametrize(
    "text",
    [
        "NOT GOOD", "  not \n\n good\t", "(not) good!", "not\u00a0good", "not_good", "not-good",
        "ＮＯＴ　ｇｏｏｄ", "ⓃⓄⓉ ⓖⓞⓞⓓ", "𝐧𝐨𝐭 𝑔𝑜𝑜𝑑",
        *(f"not{sign}good" for sign in SIGNS), *(f"n{sign}ot good{sign}" for sign in IGNORABLE),
        "".join(f"{letter}{IGNORABLE}" for letter in "not good"), "not\u0333 g\u033eood\u0489\u0361",
    ],
)  # fmt: skip
def test_case_blanks_signs_and_what_nobody_sees_make_no_other_text(text: str) -> None:
    assert normal_form(text) == "not good"


def test_texts_that_differ_in_a_word_or_a_digit_stay_apart() -> None:
    texts = ["not good", "good", "good not", "notgood", "not good 1", "5-3", "53", "5 4", "", "!", "?", "👍", "👎"]
    texts += ["schön", "schon", "가", "나", "कि", "की", "不好", "很好", "١", "1"]
    assert len({normal_form(text) for text in texts}) == len(texts)


@pytest.mark.parametrize("text", ["Straße", "é", "ガ", "각", "ǰ", "½", "ŉ", "㎏", "İ", "ﬁn"])
def test_one_letter_is_one_however_it_is_composed(text: str) -> None:
    forms = {unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    (form,) = {normal_form(each) for each in forms}
    assert normal_form(form) == form
    assert unicodedata.is_normalized("NFKC", form)


def test_a_text_that_is_too_long_to_be_looked_at_is_itself() -> None:
    text = "A! " * (MAX_TEXT // 3)
    assert normal_form(text) == ("a " * (MAX_TEXT // 3)).strip()
    assert normal_form(text + "A! ") == text + "A! "


def test_no_text_keeps_the_gateway_waiting() -> None:
    for unit in ("a\u0301\u0316", "\u0301\u0316", "\u0301\u200b\u0316", "\ufdfa", "，x", "\u1100\u1161", "A! "):
        text = unit * (MAX_TEXT // len(unit))
        start = time.perf_counter()
        normal_form(text)
        assert time.perf_counter() - start < 2.0  # a fiftieth of it on a quiet machine
