"""Where a model's scores come from, in one shape: read a request, ask the model, write the answer.

query = source.read(body, header)              # checked, or a ApiError
outputs = await source.infer(query, seconds)   # raw: for `served.release` alone
source.write(query, veiled)
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from msgspec import structs

from scoreveil.gateway import lists
from scoreveil.gateway.config import Limits
from scoreveil.gateway.opened import OpenedModel
from scoreveil.inference_protocol import messages
from scoreveil.inference_protocol.errors import not_allowed
from scoreveil.inference_protocol.messages import InferenceRequest
from scoreveil.inference_protocol.tensors import Array, Arrays, TensorSpec
from scoreveil.same_record import exact


class Query(Protocol):
    """A request that was read and checked; the model has not been asked yet."""

    @property
    def rows(self) -> int: ...

    def records(self) -> list[bytes]:
        """Each row's inputs, as bytes that are the same for the same values."""

    def inputs(self) -> list[Array]:
        """What the model is asked, a row for each record: near-duplicates are told by it."""


Q = TypeVar("Q", bound=Query)


class Source(ABC, Generic[Q]):
    platform = "scoreveil"

    @abstractmethod
    def read(self, body: bytes, header: bytes | None) -> Q:
        """A client's request; `header` is the length of its JSON part, where the client says it."""

    @abstractmethod
    async def infer(self, query: Q, seconds: float) -> Arrays:
        """The model's answer: an array for each output that was asked for."""

    @abstractmethod
    def write(self, query: Q, outputs: Arrays) -> tuple[bytes, int]:
        """The answer to the client, and the length of its JSON part; 0 where it has no other."""

    async def declared(self) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
        """The inputs and outputs that the model says it has."""
        return (), ()

    async def ready(self) -> bool:
        return True

    def close(self) -> None:
        """Let go of what was opened for it."""


@dataclass(slots=True)
class TensorQuery:
    """A request of the Open Inference Protocol: the outputs that the client wants, and those the model is asked for."""

    request: InferenceRequest
    wanted: dict[str, bool]
    asked: list[str]

    @property
    def rows(self) -> int:
        return self.request.rows

    def records(self) -> list[bytes]:
        return exact.of_tensors((tensor.name, tensor.datatype, tensor.data) for tensor in self.request.inputs)

    def inputs(self) -> list[Array]:
        return [tensor.data for tensor in sorted(self.request.inputs, key=lambda tensor: tensor.name)]

    def arrays(self) -> dict[str, Array]:
        return {tensor.name: tensor.data for tensor in self.request.inputs}

    def of(self, arrays: Arrays) -> "TensorQuery":
        """The same question about other records."""
        tensors = [
            structs.replace(tensor, data=arrays[tensor.name], shape=arrays[tensor.name].shape)
            for tensor in self.request.inputs
        ]
        return replace(self, request=replace(self.request, inputs=tensors, written={}))


class TensorSource(Source[TensorQuery]):
    """A model whose clients speak the Open Inference Protocol."""

    classes: tuple[str, ...] = ()  # their names, where they are known

    def __init__(self, model: OpenedModel, limits: Limits) -> None:
        settings, veil = model.settings, model.veil
        assert veil is not None  # such a model has scores
        self.inputs = model.inputs
        self._about = {"model_name": model.name, "model_version": settings.version}
        self._offered, self._passes = (*model.scores, *settings.passes), settings.passes
        self._scores = frozenset(model.scores)
        self._passed = frozenset(settings.parameters)
        self._max_rows = limits.rows
        self._shape = model.shape
        # of a list all is asked for: what the client does not want to see says how it is ordered
        self._asks_all = model.memory is not None or self._shape.is_list
        # the gateway itself needs the inputs to run a model, to tell or smooth a record, and to write tensors in binary
        asks_about_records = veil.smoothing is not None or (veil.mechanism.is_fitted and model.needs_secret)
        writes_binary = settings.upstream is None or settings.upstream.binary
        self._reads_numbers = model.memory is not None or asks_about_records or writes_binary
        self._keeps_written = not writes_binary

    def read(self, body: bytes, header: bytes | None) -> TensorQuery:
        request = messages.read_request(
            body, header, self._passed, self._max_rows, self._reads_numbers, self.inputs, self._keeps_written
        )
        wanted = request.wanted(self._offered)
        if not request.classified.keys() <= self._scores:
            raise not_allowed(f"Classification is for scores alone: {', '.join(sorted(self._scores))}.")
        if request.classified and self._shape.has_places:
            raise not_allowed("Classification is for one row of scores a record; this model has one for each place.")
        # a release counts for all score outputs, so all are asked for, whatever the client wants to see
        return TensorQuery(request, wanted, list(self._offered if self._asks_all else wanted))

    def write(self, query: TensorQuery, outputs: Arrays) -> tuple[bytes, int]:
        about = self._about if query.request.id is None else {**self._about, "id": query.request.id}
        names = lists.labels({name: outputs[name] for name in self._passes}) if self._shape.is_list else self.classes
        return messages.write_response(about, query.request.shaped(outputs, names), query.wanted)
