"""The regions of a fitted veil as tables: for its page, for an audit's, and for the terminal."""

import math
from functools import partial

from scoreveil.audit.report.charts.regions import RegionMap
from scoreveil.audit.report.table import Column, Table, TableCell, figure, share, table, word
from scoreveil.audit.report.wording import number
from scoreveil.mechanisms.region_words import RegionRow

NUMBER: Column[RegionRow] = ("region", "", lambda row: TableCell(str(row.number), row.number))


def regions(it: RegionMap) -> Table:
    """A row for each region, the least sure first."""
    mechanism = it.mechanism
    layer, often = "without ε", ""
    if mechanism.table is not None:
        layer, often = f"with ε = {mechanism.epsilon:g}", "mostly "

    def announced(side: int, row: RegionRow) -> TableCell:
        return figure(row.announced[side])

    columns: list[Column[RegionRow]] = [
        NUMBER,
        ("top score", "from where to where, over all strips", lambda row: word(row.words.partition(", ")[0])),
        ("strips", "of how the rest is spread, in which it lies", _strips),
        ("members", "the share of them that falls into it", lambda row: share(_known(row.members))),
        ("others", "the share of records that were not trained on", lambda row: share(_known(row.others))),
        ("right", "how often their labels are", lambda row: figure(_known(row.right))),
    ]
    if len(mechanism.cuts) == 1:
        del columns[2]
    for i, side in enumerate(it.sides or ("",)):
        columns.append((f"{often}announced" + (f": {side}" if side else ""), "", partial(announced, i)))
    return table(f"{it.name or 'The map'}: {mechanism.size} regions, {layer}", it.rows, columns)


def answers(it: RegionMap) -> Table:
    """How often each region gives each answer of the ε table."""

    def chance(answer: int, row: RegionRow) -> TableCell:
        return share(row.answers[answer])

    columns = [NUMBER]
    for i, answer in enumerate(it.answers):
        columns.append((" / ".join(number(confidence, 3) for confidence in answer), "", partial(chance, i)))
    return table("How often a region announces each confidence", it.rows, columns)


def _strips(row: RegionRow) -> TableCell:
    return word(row.words.partition(", ")[2].removesuffix(" strips"))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
