"""The Open Inference Protocol over gRPC, beside HTTP: each call is the HTTP request that means the same.

So there is one place where a client is known, limited, charged, answered and refused, and one veil. Tensors go there
as the binary tensor extension writes them, which is what gRPC's raw contents are.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import unquote

import grpc
import numpy as np
import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message

from scoreveil import secret_file
from scoreveil.gateway import logs
from scoreveil.gateway.config import Limits, Server
from scoreveil.gateway.handlers import Headers, Receive, Scope
from scoreveil.inference_protocol.errors import ApiError, bad_request
from scoreveil.inference_protocol.messages import HEADER_LENGTH
from scoreveil.inference_protocol.tensors import DTYPES, from_binary, objects, to_binary

App = Callable[[Scope, Receive, Any], Awaitable[None]]
Known = Callable[[Headers], bool]

SERVICE = "inference.GRPCInferenceService"
HEADERS = ("authorization", "x-api-key", "idempotency-key")  # what is read of a call's metadata
MAX_CALLS, MAX_BYTES = 256, 2**30  # at a time, for each worker
IDLE_SECONDS, HANDSHAKE_SECONDS = 60, 10  # after which a connection without calls, or that never began, is closed
OPEN = ("ServerLive", "ServerReady")  # to everyone
# the request that a call is, from its path or what follows a model's; and the field of the message that it fills
READS: dict[str, tuple[str, str] | tuple[str, str, str]] = {
    "ServerLive": ("GET", "/v2/health/live"),
    "ServerReady": ("GET", "/v2/health/ready"),
    "ServerMetadata": ("GET", "/v2"),
    "ModelReady": ("GET", "/ready"),
    "ModelMetadata": ("GET", ""),
    "ModelConfig": ("GET", "/config", "config"),
    "RepositoryIndex": ("POST", "/v2/repository/index", "models"),
}
INTERNAL = grpc.StatusCode.INTERNAL
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ALREADY_EXISTS,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # any other is INTERNAL
# the field of typed contents that has the values of a datatype; FP16 has none
FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def _message_classes() -> dict[str, Any]:
    """The protocol's messages, in a pool of their own: a client library in the same process has its own as well."""
    compiled = files("scoreveil.inference_protocol").joinpath("open_inference.binpb").read_bytes()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled).file
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    types = [pool.FindMessageTypeByName(f"{file.package}.{message.name}") for message in file.message_type]
    return {kind.name: message_factory.GetMessageClass(kind) for kind in types}


MESSAGES = _message_classes()


class HttpAnswer(NamedTuple):
    """What the application answered to the request that a call became."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    def tree(self) -> Any:
        return orjson.loads(self.body)


async def start(app: App, known: Known, server: Server, limits: Limits) -> grpc.aio.Server:
    """Listen in this worker; all workers share the port. `known` says whether headers are those of a client."""
    calls = max(1, min(MAX_CALLS, MAX_BYTES // limits.body_bytes))
    options = [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
        ("grpc.max_concurrent_streams", calls),
    ]
    started = grpc.aio.server(options=options, maximum_concurrent_rpcs=calls)
    started.add_generic_rpc_handlers((Service(app, known).handler(),))
    host = f"[{server.host}]" if ":" in server.host else server.host
    address = f"{host}:{server.grpc_port}"
    if server.tls_cert is None or server.tls_key is None:
        started.add_insecure_port(address)
    else:
        started.add_secure_port(address, _credentials(server))
    await started.start()
    return started


def _credentials(server: Server) -> grpc.ServerCredentials:
    assert server.tls_cert is not None  # `start` looked
    assert server.tls_key is not None
    authority = None if server.tls_client_ca is None else server.tls_client_ca.read_bytes()
    pair = (secret_file.read(server.tls_key), server.tls_cert.read_bytes())
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


class Service:
    """Answers calls with an ASGI application."""

    def __init__(self, app: App, known: Known) -> None:
        self._app, self._known = app, known

    def handler(self) -> grpc.GenericRpcHandler:
        calls = {name: self._reads(*read) for name, read in READS.items()} | {"ModelInfer": self._infer}
        # as streams of one message, so that a message is only taken from who is known
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {name: grpc.stream_unary_rpc_method_handler(self._guarded(name, call)) for name, call in calls.items()},
        )

    def _guarded(self, name: str, call: Any) -> Any:
        """A call from bytes to bytes. Whatever goes wrong ends it with a status that says no more than HTTP would."""

        async def guarded(messages: AsyncIterator[bytes], context: Any) -> bytes:
            try:
                if name not in OPEN and not self._known(dict(_headers(context))):
                    raise _refusal(await self._asked("GET", "/v2", {}, _nothing, context))  # which counts and logs it
                try:
                    asked = MESSAGES[f"{name}Request"].FromString(await anext(messages))
                except (DecodeError, StopAsyncIteration):
                    raise bad_request(f"The request is not a {name}Request.") from None
                answer = await call(asked, MESSAGES[f"{name}Response"](), context)
                return bytes(answer.SerializeToString())
            except ApiError as refusal:
                code, words, more = CODES.get(refusal.status, INTERNAL), refusal.message, refusal.headers
            except Exception as error:  # gRPC would tell the client what it says
                request = secrets.token_hex(4)
                logs.failure("error", error, message=f"gRPC {name}", request=request)
                code, words, more = INTERNAL, f"Internal error; see the server log, request id {request}.", {}
            return bytes(await context.abort(code, words, tuple(more.items())))

        return guarded

    def _reads(self, method: str, end: str, field: str | None = None) -> Any:
        """A call that is a request without a body, whose JSON becomes the message, or a field of it."""

        async def call(asked: Any, answer: Message, context: Any) -> Message:
            path = end if end.startswith("/v2") else f"{_path(asked.name, asked.version)}{end}"
            response = await self._asked(method, path, {}, _nothing, context)
            # who is not ready answers so, with 503
            if response.status != 200 and not (response.status == 503 and b'"ready"' in response.body):
                raise _refusal(response)
            tree = response.tree() if field is None else {field: response.tree()}
            return json_format.ParseDict(tree, answer, ignore_unknown_fields=True)

        return call

    async def _infer(self, asked: Any, answer: Any, context: Any) -> Message:
        blobs = asked.raw_input_contents
        sizes = [len(blob) for blob in blobs] if blobs else [_size(tensor) for tensor in asked.inputs]
        head = _head(asked, sizes)
        headers = {HEADER_LENGTH: b"%d" % len(head), b"content-length": b"%d" % (len(head) + sum(sizes))}

        async def receive() -> dict[str, Any]:  # called when the client is known and within its limits
            _check_contents(asked)
            parts = blobs or await asyncio.to_thread(lambda: [_typed_blob(tensor) for tensor in asked.inputs])
            return {"type": "http.request", "body": b"".join([head, *parts]), "more_body": False}

        path = f"{_path(asked.model_name, asked.model_version)}/infer"
        response = await self._asked("POST", path, headers, receive, context)
        if response.status != 200:
            raise _refusal(response)
        _fill(answer, response, bool(blobs))
        return answer

    async def _asked(
        self, method: str, path: str, headers: Mapping[bytes, bytes], receive: Receive, context: Any
    ) -> HttpAnswer:
        scope = {
            "type": "http",
            "http_version": "2",
            "scheme": "grpc",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [*_headers(context), *headers.items()],
            "client": (_address(context.peer()), 0),
            "server": None,
        }
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        return HttpAnswer(
            sent[0]["status"], dict(sent[0]["headers"]), b"".join(part.get("body", b"") for part in sent[1:])
        )


def _address(peer: str) -> str:
    """Who calls, as HTTP has it: whoever speaks both has one rate."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")


async def _nothing() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


def _path(name: str, version: str) -> str:
    return f"/v2/models/{name}/versions/{version}" if version else f"/v2/models/{name}"


def _headers(context: Any) -> list[tuple[bytes, bytes]]:
    """A call's metadata as the headers of a request: those that are read there."""
    given = [(key, value) for key, value in context.invocation_metadata() or () if key in HEADERS]
    return [(key.encode(), value if isinstance(value, bytes) else value.encode()) for key, value in given]


def _refusal(response: HttpAnswer) -> ApiError:
    """What HTTP answered, for a client that knows no paths."""
    status = response.status
    words = "There is no such model, or not this version of it." if status == 404 else response.tree()["error"]
    wait = response.headers.get(b"retry-after")
    return ApiError(status, words, "", {} if wait is None else {"retry-after": wait.decode()})


# A request: protobuf to JSON and blobs


def _head(asked: Any, sizes: Sequence[int]) -> bytes:
    """The JSON part of a request, which asks for binary outputs."""
    inputs = []
    for tensor, size in zip(asked.inputs, sizes, strict=False):  # `_check_contents` compares their numbers
        about = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        inputs.append({**about, "parameters": {**_parameters(tensor), "binary_data_size": size}})
    tree: dict[str, object] = {"inputs": inputs, "parameters": {**_parameters(asked), "binary_data_output": True}}
    if asked.id:
        tree["id"] = asked.id
    if asked.outputs:
        binary = {"binary_data": True}
        tree["outputs"] = [
            {"name": output.name, "parameters": _parameters(output) | binary} for output in asked.outputs
        ]
    return orjson.dumps(tree)


def _parameters(holder: Any) -> dict[str, object]:
    return {
        name: None if (kind := given.WhichOneof("parameter_choice")) is None else getattr(given, kind)
        for name, given in holder.parameters.items()
    }


def _check_contents(asked: Any) -> None:
    """Refuse what could be read in two ways, or would not be read."""
    if asked.raw_input_contents:
        if len(asked.raw_input_contents) != len(asked.inputs):
            raise bad_request(
                f"There are {len(asked.inputs)} inputs and {len(asked.raw_input_contents)} raw_input_contents; "
                "send one for each input."
            )
        if any(tensor.HasField("contents") for tensor in asked.inputs):
            raise bad_request("An input has contents beside raw_input_contents; send one of them.")
    for tensor in asked.inputs:
        if not asked.raw_input_contents and tensor.datatype in DTYPES:
            field = FIELDS.get(tensor.datatype)
            if field is None:
                raise bad_request(f"{tensor.datatype} has no typed contents; send raw_input_contents.")
            others = [name.name for name, _ in tensor.contents.ListFields() if name.name != field]
            if others:
                raise bad_request(f"Input {tensor.name!r} is {tensor.datatype}, and has {others[0]}; send {field}.")


def _values(tensor: Any) -> Any:
    field = FIELDS.get(tensor.datatype)
    return () if field is None else getattr(tensor.contents, field)


def _size(tensor: Any) -> int:
    """How many bytes an input's typed contents make."""
    values = _values(tensor)
    if tensor.datatype == "BYTES":
        return sum(4 + len(text) for text in values)
    return len(values) * DTYPES[tensor.datatype].itemsize if tensor.datatype in FIELDS else 0


def _typed_blob(tensor: Any) -> bytes:
    if tensor.datatype not in FIELDS:
        return b""  # the application refuses the datatype
    try:
        values, dtype = list(_values(tensor)), DTYPES[tensor.datatype]
        return to_binary(objects(values, (-1,)) if dtype.kind == "O" else np.array(values, dtype))
    except OverflowError:
        raise bad_request(f"Input {tensor.name!r} holds a number outside the range of {tensor.datatype}.") from None


# An answer: JSON and blobs to protobuf


def _fill(answer: Any, response: HttpAnswer, raw: bool) -> None:
    """Write the outputs as the inputs came: raw, or typed where every output can be."""
    length = int(response.headers.get(HEADER_LENGTH, len(response.body)))
    tree = orjson.loads(response.body[:length])
    answer.model_name, answer.model_version = tree["model_name"], tree["model_version"]
    answer.id = tree.get("id", "")
    rest = memoryview(response.body)[length:]
    raw = raw or any(output["datatype"] not in FIELDS for output in tree["outputs"])
    for output in tree["outputs"]:
        name, datatype, shape = output["name"], output["datatype"], output["shape"]
        tensor = answer.outputs.add(name=name, datatype=datatype, shape=shape)
        size = output["parameters"]["binary_data_size"]
        data, rest = rest[:size], rest[size:]
        if raw:
            answer.raw_output_contents.append(bytes(data))
        else:
            values = from_binary(data, datatype, tuple(shape), name).ravel().tolist()
            getattr(tensor.contents, FIELDS[datatype]).extend(values)
