"""Pictures rebuilt from scores: rows of them, for the page and as a drawing."""

import re

from scoreveil.audit.report.charts.marks import Mark, PictureMark, Sheet, Text
from scoreveil.audit.report.wording import number, percent, setting_in_words, words
from scoreveil.audit.study.results import InversionResult, Setting, Study

TILE, GAP, NAMES = 56, 6, 250  # pixels of a reconstruction, between two, and for the name of a row

Rows = list[tuple[str, str, tuple[str, ...]]]  # the name of a row of pictures, what was measured, data URIs


def reconstructions(study: Study) -> Rows:
    """Rows of pictures: originals first, then the best attack per setting."""
    shown = [i for i in study.inversions if i.pictures]
    if not shown or not study.originals:
        return []
    nearest: dict[tuple[Setting, str], InversionResult] = {}
    for i in sorted(shown, key=lambda i: i.mse):
        # the paper's own attacker is shown only where no other was tried; a floor is a row of its own
        if i.form != "paper" or not any(j.setting == i.setting for j in shown if j != i):
            nearest.setdefault((i.setting, i.features if i.form == "floor" else ""), i)
    rows: Rows = [("originals", "", study.originals)]
    for i in sorted(nearest.values(), key=lambda i: (i.form == "floor", shown.index(i))):
        name = f"{words(i.features)} alone (floor)" if i.form == "floor" else setting_in_words(i.setting)
        rows.append((name, f"MSE {number(i.mse, 3)}, nearest original right {percent(i.nearest_original)}", i.pictures))
    for uri in (uri for _, _, pictures in rows for uri in pictures):
        if not re.fullmatch(r"data:image/(png|webp);base64,[A-Za-z0-9+/]+=*", uri):
            raise ValueError(f"Expected pictures as PNG or WebP data URIs, got {uri[:40]!r}.")
    return rows


def picture_rows(rows: Rows) -> Sheet:
    """Rows of pictures, each with its name and what was measured."""
    marks: list[Mark] = []
    for i, (name, measured, pictures) in enumerate(rows):
        top = GAP + i * (TILE + GAP)
        marks.append(Text((12, top + TILE / 2 - (2 if measured else -4)), name, "ink", size=13, bold=True))
        marks += [Text((12, top + TILE / 2 + 15), measured, size=11)] if measured else []
        marks += [PictureMark((NAMES + j * (TILE + GAP), top), TILE, uri) for j, uri in enumerate(pictures)]
    most = max(len(pictures) for _, _, pictures in rows)
    width, height = NAMES + most * (TILE + GAP) + GAP, GAP + len(rows) * (TILE + GAP)
    return Sheet("Pictures rebuilt from scores", width, height, tuple(marks))
