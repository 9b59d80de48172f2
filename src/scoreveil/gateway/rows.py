"""What MLflow and TF Serving share: rows as JSON in, a score vector for each of them out."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from scoreveil import record_bytes
from scoreveil.gateway.config import Limits, Model, Upstream
from scoreveil.gateway.sources import Arrays, Source
from scoreveil.gateway.upstream import UpstreamPool
from scoreveil.inference_protocol.messages import NUMPY, parsed
from scoreveil.inference_protocol.refusals import bad_request, too_many_rows, upstream_failed
from scoreveil.inference_protocol.tensors import Array

JSON = {"Content-Type": "application/json"}


@dataclass(slots=True)
class RowQuery:
    """The rows of a request, and the request as it goes on."""

    values: list[Any]
    body: bytes

    @property
    def rows(self) -> int:
        return len(self.values)

    def records(self) -> list[bytes]:
        return [record_bytes.of_json(row) for row in self.values]


class RowSource(Source[RowQuery]):
    """A model server that takes rows of JSON at one path."""

    def __init__(self, model: Model, upstream: Upstream, limits: Limits, path: str) -> None:
        (self._score,) = model.scores
        self._most = limits.rows
        self._path = path
        self._pool = UpstreamPool(upstream, limits)

    @abstractmethod
    def read_rows(self, tree: Any) -> tuple[list[Any], dict[str, Any]]:
        """The rows of a request that was parsed, and the request as it goes on."""

    def read(self, body: bytes, header: bytes | None) -> RowQuery:
        rows, asked = self.read_rows(parsed(body))
        if not rows:
            raise bad_request("The request has no rows; send at least one.")
        if len(rows) > self._most:
            raise too_many_rows(len(rows), self._most)
        try:
            return RowQuery(rows, orjson.dumps(asked))
        except orjson.JSONEncodeError:  # what is too deep to be written is too deep for `record_bytes` as well
            raise bad_request("The rows are nested too deep; a row is a list or an object of plain values.") from None

    async def infer(self, query: RowQuery, seconds: float) -> Arrays:
        answer, _ = await self._pool.post(self._path, query.body, JSON, seconds)
        try:
            rows = orjson.loads(answer)["predictions"]
            # of an object of outputs the configured one alone is read
            return {self._score: _matrix([row[self._score] if isinstance(row, dict) else row for row in rows])}
        except (ValueError, LookupError, TypeError):
            raise upstream_failed("malformed") from None

    def write(self, query: RowQuery, outputs: Arrays) -> tuple[bytes, int]:
        return orjson.dumps({"predictions": outputs[self._score]}, option=NUMPY), 0

    async def close(self) -> None:
        await self._pool.close()


def _matrix(rows: list[Any]) -> Array:
    """A list of score vectors as an array, or ValueError."""
    array = np.array(rows)
    if array.dtype.kind not in "fiu" or array.ndim != 2:
        raise ValueError("The predictions are not rows of numbers.")
    return array.astype(np.float64)
