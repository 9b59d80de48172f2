"""One normal form for texts that differ in case, blanks, signs or invisible characters alone.

    normal_form("Not\\u200b good!") == normal_form("ＮＯＴ   (good)") == "not good"

Texts that differ in a word or a digit stay apart. Signs only separate words, so "C" and "C++" become one text, as "A+"
and "A-" do, or one emoji and another: such records share an answer, which reveals no more about either of them.
"""

import unicodedata

# Default_Ignorable_Code_Point in Unicode's DerivedCoreProperties.txt, and U+2800, the blank of Braille
IGNORABLE = (
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x2800, 0x2800), (0x3164, 0x3164), (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
MAX_LETTERS = 6  # that one character may stand for
MAX_TEXT = 1 << 17  # characters of a text that is looked at: longer ones would keep others waiting
MAX_MARKS = 64  # accents in a row: the time to compose them grows with the square of their number


class _Plain(dict[int, str]):
    """For `str.translate`: Unicode's compatibility form (NFKC) of a character, without case; a blank for what is no
    letter, mark or number, and nothing for what is ignorable."""

    def __missing__(self, code: int) -> str:
        plain = unicodedata.normalize("NFKC", chr(code)).casefold()
        if plain.startswith(" ") or len(plain) > MAX_LETTERS:  # an accent that stands alone; a whole sentence
            plain = " "
        kept = [sign for sign in plain if not any(first <= ord(sign) <= last for first, last in IGNORABLE)]
        self[code] = "".join(sign if unicodedata.category(sign)[0] in "LMN" else " " for sign in kept)
        return self[code]


class _Marks(dict[int, str]):
    """For `str.translate`: whether a character is an accent that belongs to the one before it."""

    def __missing__(self, code: int) -> str:
        self[code] = "1" if unicodedata.combining(chr(code)) else "0"
        return self[code]


class _Bare(dict[int, str]):
    """For `str.translate`: nothing in place of an accent that made no letter with the one before it."""

    def __missing__(self, code: int) -> str:
        is_accent = unicodedata.combining(chr(code)) or unicodedata.category(chr(code)) == "Me"
        self[code] = "" if is_accent else chr(code)
        return self[code]


PLAIN, MARKS, BARE = _Plain(), _Marks(), _Bare()


def normal_form(text: str) -> str:
    """The words of a text: NFKC without case and ignorable characters, with one blank in place of signs and blanks.

    An accent that no letter has, as one on x, does not count. A text without any word, or of more than `MAX_TEXT`
    characters, is taken as it is. Where more than `MAX_MARKS` accents follow each other, none counts.
    """
    if len(text) > MAX_TEXT:
        return text
    plain = text.translate(PLAIN)
    if not plain.isascii():
        if "1" * MAX_MARKS not in plain.translate(MARKS):
            plain = unicodedata.normalize("NFC", plain)
        plain = plain.translate(BARE)
    return " ".join(plain.split()) or text
