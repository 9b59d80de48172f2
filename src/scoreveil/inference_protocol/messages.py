"""Requests and answers of the protocol: JSON, and tensors in binary after it.

Requests are read whole and strictly: what the protocol or the server's configuration does not name is refused, never
passed on. Answers are written from named arrays alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec
import orjson
from msgspec import Meta

from scoreveil import typed
from scoreveil.inference_protocol import unread
from scoreveil.inference_protocol.classification import top_classes
from scoreveil.inference_protocol.errors import ApiError, bad_request, not_allowed, too_many_rows
from scoreveil.inference_protocol.tensors import (
    CODES,
    DTYPES,
    FLOATS,
    NAMES,
    Array,
    Datatype,
    TensorSpec,
    check_count,
    from_binary,
    from_json,
    to_binary,
    to_json,
)

T = TypeVar("T")
HEADER_LENGTH = b"inference-header-content-length"
LARGE = 1 << 18  # bytes: what is smaller is parsed in milliseconds, whatever it holds
MAX_LISTS, MAX_TEXTS, MAX_TENSORS = 200_000, 500_000, 1024
CLASSIFICATION = frozenset(["classification"])
NUMPY = orjson.OPT_SERIALIZE_NUMPY

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Size = Annotated[int, Meta(ge=0, lt=2**31)]
Shape = Annotated[tuple[Size, ...], Meta(min_length=1, max_length=8)]
Parameters = dict[str, str | bool | int | float]


class InputTensor(msgspec.Struct, forbid_unknown_fields=True):
    """An input. Its data are what JSON held; once read, an array, or the bytes of a list that stays unread."""

    name: Name
    shape: Shape
    datatype: Datatype
    parameters: Parameters | None = None
    data: Annotated[Any, Meta(extra_json_schema={"type": "array"})] = msgspec.UNSET


class WantedOutput(msgspec.Struct, forbid_unknown_fields=True):
    """An output that a client wants."""

    name: Name
    parameters: Parameters | None = None


class RequestMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A request as it stands in JSON. The kserve client names the model here too; the path says which one is meant."""

    inputs: Annotated[list[InputTensor], Meta(min_length=1, max_length=MAX_TENSORS)]
    id: Annotated[str, Meta(max_length=256)] | None = None
    parameters: Parameters | None = None
    outputs: Annotated[list[WantedOutput], Meta(max_length=MAX_TENSORS)] | None = None
    model_name: Any = None
    model_version: Any = None


@dataclass(slots=True)
class InferenceRequest:
    """What a client asks: inputs with the same number of rows, and the outputs it wants, each in binary or not.

    Without `outputs` it wants all of them, as `binary` says. `parameters` are those that may go to the model;
    `classified` are outputs of which it wants the top classes, and how many; `written` has lists of numbers as they
    came, by input, to go on to the model without being written anew.
    """

    id: str | None
    inputs: list[InputTensor]
    outputs: dict[str, bool] | None
    binary: bool
    parameters: dict[str, Any]
    classified: dict[str, int] = field(default_factory=dict)
    written: dict[str, bytes] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.inputs[0].shape[0]

    def wanted(self, offered: Sequence[str]) -> dict[str, bool]:
        """The outputs to give, by name: whether in binary."""
        if self.outputs is None:
            return dict.fromkeys(offered, self.binary)
        for name in self.outputs:
            if name not in offered:
                raise not_allowed(f"Output {name!r} is not served; ask for {', '.join(offered)}.")
        return self.outputs

    def shaped(self, arrays: Mapping[str, Array], names: Sequence[str] | Array | None = ()) -> Mapping[str, Array]:
        """Outputs as they were asked for: veiled scores, or the top classes by them, which may have names."""
        if not self.classified:
            return arrays
        return {**arrays, **{name: top_classes(arrays[name], n, names) for name, n in self.classified.items()}}


# Reading


def split(body: bytes, header: bytes | None) -> tuple[Any, memoryview]:
    """The JSON part and the binary part of a body."""
    length = len(body)
    if header is not None:
        if not header.isdigit() or len(header) > 12 or int(header) > len(body):
            raise bad_request(f"Inference-Header-Content-Length is not a number of bytes from 0 to {len(body)}.")
        length = int(header)
    return parsed(body, length), memoryview(body)[length:]


def parsed(body: bytes, length: int | None = None) -> Any:
    """What a client sent as JSON, in the first `length` bytes."""
    check_parts(body, length)
    try:
        return orjson.loads(memoryview(body)[:length])
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The request is not JSON: {error.msg} at character {error.pos}.") from None


def check_parts(body: bytes, length: int | None = None) -> None:
    """Refuse JSON of very many small parts, which would take seconds to parse; numbers are counted by nobody.

    Texts may hold brackets and quotes too, so texts that hold very many are refused with them.
    """
    if len(body) <= LARGE:
        return
    for what, signs, most in (("lists and objects", (b"[", b"{"), MAX_LISTS), ("texts", (b'"',), 2 * MAX_TEXTS)):
        if sum(body.count(sign, 0, length) for sign in signs) > most:
            message = f"The JSON has too many {what}; send fewer rows at a time, flat lists, or tensors in binary."
            raise ApiError(413, message, "parts")


def fitted(tree: object, kind: type[T]) -> T:
    """What a client sent, as the type that its route takes."""
    try:
        return typed.convert(tree, kind)
    except typed.InvalidField as error:
        raise (not_allowed if error.unknown_field else bad_request)(str(error)) from None


def read_request(
    body: bytes,
    header: bytes | None,
    passed: frozenset[str] = frozenset(),
    max_rows: int | None = None,
    read_numbers: bool = True,
    declared: Sequence[TensorSpec] = (),
    keep_written: bool = False,
) -> InferenceRequest:
    """A request, checked; `passed` are the parameters that may go to the model, `declared` the inputs it takes.

    `header` is the value of Inference-Header-Content-Length. Without `read_numbers`, long lists of them stay as they
    came; with `keep_written` they are read, and kept as they came too.
    """
    lists: list[bytes] = []
    whole = body
    if (keep_written or not read_numbers) and header is None and len(body) > unread.SHORT:
        check_parts(body)
        body, lists = unread.cut(body)
    tree, rest = split(body, header)
    message = fitted(tree, RequestMessage)
    parameters = _parameters(message.parameters, "binary_data_output", passed)
    binary = _flag(parameters, "binary_data_output")
    if declared:
        check_inputs(message.inputs, declared)
    _read_inputs(message.inputs, rest, lists, passed, max_rows)
    written = {}
    if read_numbers and lists:
        written = {tensor.name: tensor.data for tensor in message.inputs if isinstance(tensor.data, bytes)}
        _read_lists(message.inputs, whole)
    for name in _widen(message.inputs, declared):
        written.pop(name, None)
    _check_together(message.inputs)
    outputs, classified = _read_outputs(message.outputs, binary)
    return InferenceRequest(message.id, message.inputs, outputs, binary, parameters, classified, written)


def _read_inputs(
    inputs: list[InputTensor], rest: memoryview, lists: list[bytes], passed: frozenset[str], max_rows: int | None
) -> None:
    """Put their values into the inputs: from JSON, from the binary part, or lists that were cut out."""
    for i, tensor in enumerate(inputs):
        if max_rows is not None and tensor.shape[0] > max_rows:
            raise too_many_rows(tensor.shape[0], max_rows)
        rest = _read_values(tensor, rest, passed, lists[i] if i < len(lists) else None, i)
    if len(lists) > len(inputs):
        raise not_allowed("The request has data outside of its inputs; put all of them into inputs.")
    if len(rest):
        raise bad_request(f"The body is {len(rest)} bytes longer than the inputs' binary_data_size add up to.")


def _read_lists(inputs: Sequence[InputTensor], body: bytes) -> None:
    """Put the values of lists that were cut out of the body into their places."""
    for tensor in inputs:
        if isinstance(tensor.data, bytes):
            try:
                data = orjson.loads(tensor.data)
            except orjson.JSONDecodeError:
                data = parsed(body)  # which says where the body is no JSON
            tensor.data = from_json(data, tensor.datatype, tensor.shape, tensor.name)


def _check_together(inputs: list[InputTensor]) -> None:
    first = inputs[0]
    if not first.shape[0]:
        raise bad_request(f"Input {first.name!r} has no rows; send at least one.")
    for tensor in inputs[1:]:
        if tensor.shape[0] != first.shape[0]:
            raise bad_request(
                f"Input {tensor.name!r} has {tensor.shape[0]} rows and input {first.name!r} has {first.shape[0]}; "
                "every input needs one row for each record."
            )
    if len({tensor.name for tensor in inputs}) != len(inputs):
        raise bad_request("Two inputs have the same name; give each its own.")


def _read_outputs(given: list[WantedOutput] | None, default: bool) -> tuple[dict[str, bool] | None, dict[str, int]]:
    """The outputs that are wanted, in binary or not, and how many top classes of which."""
    wanted: dict[str, bool] = {}
    classified: dict[str, int] = {}
    for output in given or ():
        if output.name in wanted:
            raise bad_request(f"Output {output.name!r} is asked for twice; once is enough.")
        parameters = _parameters(output.parameters, "binary_data", CLASSIFICATION)
        wanted[output.name] = _flag(parameters, "binary_data") if "binary_data" in parameters else default
        if "classification" in parameters:
            count = parameters["classification"]
            if type(count) is not int or count < 1:
                raise bad_request("Parameter classification is not a number of classes, 1 or more.")
            classified[output.name] = count
    return wanted or None, classified


def _read_values(
    tensor: InputTensor, rest: memoryview, passed: frozenset[str], numbers: bytes | None, place: int
) -> memoryview:
    """Put the values of an input in the place of its data; what is left of the binary part after it."""
    name, datatype, shape, data = tensor.name, tensor.datatype, tensor.shape, tensor.data
    tensor.parameters = _parameters(tensor.parameters, "binary_data_size", passed)
    size: Any = tensor.parameters.pop("binary_data_size", None)
    if size is not None:
        if data is not msgspec.UNSET:
            raise bad_request(f"Input {name!r} has both data and binary_data_size; send one of them.")
        if type(size) is not int or not 0 <= size <= len(rest):
            raise bad_request(f"The binary_data_size of input {name!r} is not a number of bytes from 0 to {len(rest)}.")
        tensor.data = from_binary(rest[:size], datatype, shape, name)
        return rest[size:]
    if data is msgspec.UNSET:
        raise bad_request(f"Input {name!r} has neither data nor binary_data_size.")
    if numbers is None:
        tensor.data = from_json(data, datatype, shape, name)
        return rest
    # the list was cut out, and its place among the lists stands where it was
    if type(data) is not int or data != place or datatype not in CODES:
        raise bad_request(f"The data of input {name!r} are not a list of {datatype} values.")
    check_count(unread.count(numbers), shape, name)
    tensor.data = numbers
    return rest


def _parameters(given: Parameters | None, own: str, passed: frozenset[str]) -> dict[str, Any]:
    """The parameter that the protocol needs, and those that the configuration passes; any other is refused."""
    if not given:
        return {}
    for name in given:
        if name != own and name not in passed:
            shown = name[: typed.MAX_NAME]
            raise not_allowed(
                f"Parameter {shown!r} is not allowed here; {', '.join(sorted({own, *passed}))} may be sent."
            )
    return given


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.pop(name, False)
    if not isinstance(value, bool):
        raise bad_request(f"Parameter {name} is not true or false.")
    return value


def check_inputs(inputs: Sequence[InputTensor], declared: Sequence[TensorSpec]) -> None:
    """Refuse what the model does not declare: another name, datatype or shape, or one missing."""
    specs = {spec.name: spec for spec in declared}
    given = {tensor.name for tensor in inputs}
    if given != set(specs):
        raise bad_request(f"The model takes the inputs {', '.join(specs)}; the request has {', '.join(sorted(given))}.")
    for tensor in inputs:
        spec, shape = specs[tensor.name], tensor.shape
        if tensor.datatype != spec.datatype and not _is_narrower(tensor.datatype, spec.datatype):
            raise bad_request(f"Input {spec.name!r} is {tensor.datatype}; the model takes {spec.datatype}.")
        if len(shape) != len(spec.shape) or any(e not in (-1, s) for e, s in zip(spec.shape, shape, strict=True)):
            raise bad_request(f"Input {spec.name!r} has shape {list(shape)}; the model takes {list(spec.shape)}.")


def _is_narrower(datatype: Datatype, than: Datatype) -> bool:
    """Whether every value of a floating-point datatype is one of another, wider one."""
    return datatype in FLOATS and than in FLOATS and FLOATS.index(datatype) < FLOATS.index(than)


def _widen(inputs: Sequence[InputTensor], declared: Sequence[TensorSpec]) -> list[str]:
    """Put the numbers of checked inputs into the datatypes that the model takes: so a record has one form.

    Returns:
        The inputs that had others.
    """
    datatypes = {spec.name: spec.datatype for spec in declared}
    others = [tensor for tensor in inputs if tensor.datatype != datatypes.get(tensor.name, tensor.datatype)]
    for tensor in others:
        tensor.datatype = datatypes[tensor.name]
        if not isinstance(tensor.data, bytes):  # a list that stays unread is written by its numbers
            tensor.data = tensor.data.astype(DTYPES[tensor.datatype])
    return [tensor.name for tensor in others]


# Writing


def write_response(
    about: Mapping[str, object], arrays: Mapping[str, Array], wanted: Mapping[str, bool]
) -> tuple[bytes, int]:
    """A body, and the length of its JSON part; 0 where it has no other."""
    blobs: list[bytes] = []
    outputs = []
    for name, binary in wanted.items():
        array = arrays[name]
        shown = {"name": name, "datatype": NAMES[array.dtype], "shape": array.shape}
        outputs.append({**shown, **_values(array, binary, blobs)})
    return _body({**about, "outputs": outputs}, blobs)


def write_request(request: InferenceRequest, outputs: Sequence[str], binary: bool) -> tuple[bytes, int]:
    """A request of our own to an upstream, built from what was checked: nothing else of the client's goes on."""
    blobs: list[bytes] = []
    inputs = []
    for tensor in request.inputs:
        shown: dict[str, object] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape}
        if tensor.parameters:
            shown["parameters"] = tensor.parameters
        numbers = tensor.data if isinstance(tensor.data, bytes) else request.written.get(tensor.name)
        if numbers is not None and not binary:
            inputs.append({**shown, "data": orjson.Fragment(numbers)})
        else:
            if not binary:
                _check_texts(tensor)
            inputs.append({**shown, **_values(tensor.data, binary, blobs, tensor.parameters)})
    asked = [{"name": name, "parameters": {"binary_data": True}} if binary else {"name": name} for name in outputs]
    tree: dict[str, object] = {"inputs": inputs, "outputs": asked}
    if request.parameters:
        tree["parameters"] = request.parameters
    return _body(tree, blobs)


def _check_texts(tensor: InputTensor) -> None:
    """Refuse bytes that JSON cannot carry: written as something else, many records would be one to the model."""
    if tensor.data.dtype == object:
        try:
            for value in tensor.data.ravel():
                value.decode()
        except UnicodeDecodeError:
            raise bad_request(f"Input {tensor.name!r} holds bytes that are not UTF-8; the model takes texts.") from None


def _values(
    array: Array, binary: bool, blobs: list[bytes], parameters: Mapping[str, object] | None = None
) -> dict[str, object]:
    """The values of a tensor: in JSON, or as one more blob."""
    if not binary:
        return {"data": to_json(array)}
    blobs.append(to_binary(array))
    return {"parameters": {**(parameters or {}), "binary_data_size": len(blobs[-1])}}


def _body(tree: Mapping[str, object], blobs: list[bytes]) -> tuple[bytes, int]:
    head = orjson.dumps(tree, option=NUMPY)
    return (b"".join([head, *blobs]), len(head)) if blobs else (head, 0)


# Reading what an upstream answers


class OutputTensor(msgspec.Struct):
    """An output as an upstream writes it; whatever else it says of it is left behind."""

    name: str
    shape: Shape
    datatype: Datatype
    data: Any = None


def read_response(body: bytes, header: bytes | None, outputs: Sequence[str]) -> dict[str, Array]:
    """The named outputs of an upstream's answer; all else in it is left behind."""
    tree, rest = split(body, header)
    arrays: dict[str, Array] = {}
    for output in tree["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        data, rest = (rest[:size], rest[size:]) if size is not None else (None, rest)
        if output["name"] not in outputs:
            continue
        tensor = fitted(output, OutputTensor)
        if data is not None:
            arrays[tensor.name] = from_binary(data, tensor.datatype, tensor.shape, tensor.name)
        else:
            arrays[tensor.name] = from_json(tensor.data, tensor.datatype, tensor.shape, tensor.name)
    if set(arrays) != set(outputs):
        raise bad_request(f"The answer lacks {', '.join(sorted(set(outputs) - set(arrays)))}.")
    return arrays
