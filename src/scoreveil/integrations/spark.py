"""Spark: veiled columns of a DataFrame, through `mapInPandas`.

    from scoreveil.integrations.spark import veil_columns

    veil = veil_columns(epsilon=2.0, columns="scores", records="id", secret="veil.key")
    veiled = frame.mapInPandas(veil, frame.schema)

Sticky across executors: a draw is a function of the secret and what is drawn for. The secret itself is not sent: give
the path of its file, or name that file in SCOREVEIL_SECRET_FILE on every executor.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

import numpy as np

from scoreveil.integrations.columns import ColumnVeil
from scoreveil.mechanisms.mechanism import Mechanism
from scoreveil.veil import Veil, VeilOptions

Frames = Iterator[Any]  # of pandas


def veil_columns(
    epsilon: float | Mechanism | Veil,
    columns: str | Sequence[str],
    records: str | Sequence[str] = (),
    **options: Unpack[VeilOptions],
) -> Callable[[Frames], Frames]:
    """A function for `mapInPandas`, with the schema of the DataFrame itself; arguments as of `ColumnVeil`."""
    veil = ColumnVeil(epsilon, columns, records, **options)
    scored = [columns] if isinstance(columns, str) else list(columns)

    def veiled(frames: Frames) -> Frames:
        for frame in frames:
            needed = [*scored, *([records] if isinstance(records, str) else records)]
            after = veil({name: frame[name].to_numpy() for name in needed if name in frame})
            yield frame.assign(**{name: _column(after[name]) for name in scored})

    return veiled


def _column(values: np.ndarray[Any, Any]) -> Any:
    """A column of numbers, or of vectors, as pandas holds them."""
    return values if values.ndim == 1 else list(values)
