"""Spark: veiled columns of a DataFrame, through `mapInPandas`.

    from scoreveil.integrations.spark import veil_columns

    veiled = frame.mapInPandas(veil_columns(epsilon=2.0, columns="scores", records="id", secret=secret), frame.schema)

Each task makes its veil once. Sticky across executors: a draw is a function of the secret and what is drawn for. A
secret given here travels with the function: use Spark's encryption where others share the network.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from scoreveil.integrations.columns import ColumnVeil
from scoreveil.integrations.options import VeilOptions
from scoreveil.veil import Settings

Frames = Iterator[Any]  # of pandas


def veil_columns(
    epsilon: float | Settings,
    columns: str | Sequence[str],
    records: str | Sequence[str] = (),
    **options: Unpack[VeilOptions],
) -> Callable[[Frames], Frames]:
    """A function for `mapInPandas`, with the schema of the DataFrame itself; arguments as of `ColumnVeil`."""
    ColumnVeil(epsilon, columns, records, **options)  # refuses here what it would refuse on every executor
    scored = [columns] if isinstance(columns, str) else list(columns)

    def veiled(frames: Frames) -> Frames:
        veil = ColumnVeil(epsilon, columns, records, **options)  # made there: a veil with a secret is not sent
        for frame in frames:
            needed = [*scored, *([records] if isinstance(records, str) else records)]
            after = veil({name: frame[name].to_numpy() for name in needed if name in frame})
            yield frame.assign(**{name: _column(after[name]) for name in scored})

    return veiled


def _column(values: np.ndarray[Any, Any]) -> Any:
    """A column of numbers, or of vectors, as pandas holds them."""
    return values if values.ndim == 1 else list(values)
