"""The risk of each record as files: records.csv, and records.parquet where pyarrow is installed.

They say who is a member, so they are written for their owner alone. No score is in them.
"""

import csv
import io
from typing import Any

import numpy as np

from scoreveil.arrays import Floats
from scoreveil.audit.report.wording import attack_name, setting_in_words
from scoreveil.audit.study.risk import RecordRisks, Risk

DIGITS = 4
NAMES = ("records.csv", "records.parquet")


def columns(risks: RecordRisks) -> dict[str, list[Any]]:
    """Every column of the files by name; None where nothing is known."""
    sides = risks.given.members, risks.given.nonmembers
    right = [r.is_right.tolist() if r.labels is not None else [None] * len(r) for r in sides]
    return {
        "side": ["member"] * len(sides[0]) + ["nonmember"] * len(sides[1]),
        "row": risks.rows.tolist(),
        "class": risks.given.records.predicted.tolist(),
        "right": right[0] + right[1],
        **_three("risk", risks.undefended),
        **_three("veiled_risk", risks.veiled or _nothing(len(risks.rows))),
        "label_risk": _rounded(risks.label.value),
    }


def _three(name: str, risk: Risk) -> dict[str, list[float | None]]:
    return {f"{name}{end}": _rounded(v) for end, v in (("", risk.value), ("_low", risk.low), ("_high", risk.high))}


def _nothing(count: int) -> Risk:
    return Risk(*[np.full(count, np.nan)] * 5)


def _rounded(values: Floats) -> list[float | None]:
    return [None if np.isnan(v) else round(float(v), DIGITS) for v in values]


def files(risks: RecordRisks) -> dict[str, bytes]:
    """The files by name."""
    written = columns(risks)
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(written)
    lines.writerows(zip(*(map(_in_text, column) for column in written.values()), strict=True))
    by_name = {"records.csv": text.getvalue().encode()}
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        return by_name
    kinds = {"side": pyarrow.string(), "row": pyarrow.int64(), "class": pyarrow.int64(), "right": pyarrow.bool_()}
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.float64())) for name in written], metadata=about(risks))
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(written, schema=schema), buffer)
    return by_name | {"records.parquet": buffer.getvalue()}


def _in_text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def about(risks: RecordRisks) -> dict[str, str]:
    """By which attacks, and behind what."""
    said = {"attack": attack_name(risks.attack)}
    if risks.setting is not None:
        said |= {"veiled by": setting_in_words(risks.setting), "veiled attack": attack_name(risks.veiled_attack)}
    return said
