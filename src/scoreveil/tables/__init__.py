"""Tables of scores in memory, and what stands in their columns.

frames           DataFrames of pandas and polars, and Arrow tables
raw_columns      which other columns give the scores away
label_columns    what scikit-learn answers about several labels
"""

from collections.abc import Iterable


def listed(names: Iterable[object], most: int = 12) -> str:
    """Names in one line, however many."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
