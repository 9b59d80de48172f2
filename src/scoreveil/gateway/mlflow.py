"""MLflow's scoring server: POST /invocations, as `mlflow models serve` speaks it.

A request has one of dataframe_split, dataframe_records, instances and inputs; the answer is {"predictions": [[…], …]}
with a score vector for each row. The configuration allows one way of writing records, so that a record written
another way is not another record.
"""

from typing import Any

import msgspec

from scoreveil.gateway.config import Limits, Model, Upstream
from scoreveil.gateway.rows import RowSource
from scoreveil.inference_protocol.messages import fitted
from scoreveil.inference_protocol.refusals import bad_request, not_allowed

FORMATS = {
    "dataframe": ("dataframe_split", "dataframe_records"),
    "instances": ("instances",),
    "inputs": ("inputs",),
}


class SplitFrame(msgspec.Struct, forbid_unknown_fields=True):
    """A table as its column names and rows. The index names rows, which are told by what they hold: it is dropped."""

    data: list[Any]
    columns: list[str] | None = None
    index: Any = None


class InvocationMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A request in one of MLflow's formats."""

    dataframe_split: SplitFrame | None = None
    dataframe_records: list[Any] | None = None
    instances: list[Any] | None = None
    inputs: list[Any] | dict[str, list[Any]] | None = None


class MlflowUpstream(RowSource):
    """A model behind MLflow's scoring server."""

    def __init__(self, model: Model, upstream: Upstream, limits: Limits) -> None:
        super().__init__(model, upstream, limits, "/invocations")
        self._columns = frozenset(spec.name for spec in model.inputs)
        self._allowed = FORMATS[upstream.mlflow_format]

    def read_rows(self, tree: Any) -> tuple[list[Any], dict[str, Any]]:
        message = fitted(tree, InvocationMessage)
        given = {name: value for name, value in msgspec.structs.asdict(message).items() if value is not None}
        if len(given) != 1 or not given.keys() <= set(self._allowed):
            raise not_allowed(
                f"Send one of {', '.join(self._allowed)} and nothing else; {len(given)} formats were sent."
            )
        ((kind, value),) = given.items()
        if isinstance(value, SplitFrame):
            rows = _split_rows(value)
            value = {"data": value.data} if value.columns is None else {"columns": value.columns, "data": value.data}
        else:
            rows = _column_rows(value) if isinstance(value, dict) else value
        for i, row in enumerate(rows if self._columns else ()):
            if not isinstance(row, dict) or row.keys() != self._columns:
                raise bad_request(f"Row {i} does not have exactly the columns {', '.join(sorted(self._columns))}.")
        return rows, {kind: value}

    async def ready(self) -> bool:
        status, _ = await self._pool.get("/ping")
        return status == 200


def _split_rows(frame: SplitFrame) -> list[Any]:
    if frame.columns is None:
        return frame.data
    if len(set(frame.columns)) != len(frame.columns):
        raise bad_request("Two columns have the same name; give each its own.")
    for i, row in enumerate(frame.data):
        if not isinstance(row, list) or len(row) != len(frame.columns):
            raise bad_request(f"Row {i} is not a list of {len(frame.columns)} values, one for each column.")
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.data]


def _column_rows(columns: dict[str, list[Any]]) -> list[Any]:
    """Columns, each a list with a value for each row, as rows."""
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise bad_request(f"The columns have {min(lengths)} to {max(lengths)} values; give each one for every row.")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
