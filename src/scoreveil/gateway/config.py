"""What a configuration is: the tables of the file as frozen values that check themselves.

    [models.digits]
    onnx = "digits.onnx"
    epsilon = 2.0

Field names are the file's keys. `config_file` reads it.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from scoreveil import accounting
from scoreveil.gateway.labels import check_labels
from scoreveil.gateway.probabilities import Outputs
from scoreveil.inference_protocol.tensors import TensorSpec
from scoreveil.ledger.ledger import Horizon
from scoreveil.ledger.releases import MAX_OUTCOME, Repeat

SQLITE = "sqlite:///"
MAX_RELEASES = MAX_OUTCOME // 2  # of one answer, where the ledger keeps two bytes of each
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NAME_WORDS = "begins with a letter or digit and goes on with letters, digits, '.', '_' or '-', 128 at most"
SYMMETRIC = {"HS256", "HS384", "HS512"}
ALGORITHMS = SYMMETRIC | {f"{family}{bits}" for family in ("RS", "ES", "PS") for bits in (256, 384, 512)} | {"EdDSA"}

Port = Annotated[int, Meta(ge=1, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Rate = Annotated[float, Meta(ge=0)]


class ConfigError(ValueError):
    """The configuration cannot be used; the message names the key, and never quotes a secret."""


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ConfigError(message)


class ConfigTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the file. Unknown keys are errors, so that a misspelt limit is not a missing one."""


class Server(ConfigTable, frozen=True):
    """Where to listen, and with how many workers."""

    host: str = "127.0.0.1"
    port: Port = 8080
    grpc_port: Port | None = None  # where gRPC is spoken too, if anywhere
    admin_host: str = "127.0.0.1"
    admin_port: Port = 9090
    admin_names: tuple[str, ...] = ()  # host names with a dot under which the admin port answers
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # clients must show a certificate that it signed
    drain_seconds: Count = 30  # how long SIGTERM waits for requests that are under way

    def __post_init__(self) -> None:
        _require(self.port != self.admin_port, f"port and admin_port are both {self.port}; give each its own")
        taken = self.grpc_port in (self.port, self.admin_port)
        _require(not taken, f"grpc_port is {self.grpc_port}, which another port is already; give each its own")
        _require((self.tls_cert is None) == (self.tls_key is None), "tls_cert and tls_key need each other; set both")
        _require(self.tls_client_ca is None or self.tls_cert is not None, "tls_client_ca needs tls_cert and tls_key")

    @property
    def known_admin_names(self) -> frozenset[str]:
        return frozenset(name.lower().rstrip(".") for name in (self.admin_host, *self.admin_names))

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class Limits(ConfigTable, frozen=True):
    """What one request, and one client, may ask for. 0 for a rate or for ε: no limit."""

    body_bytes: Count = 16 * 2**20
    rows: Count = 4096
    seconds: Annotated[float, Meta(gt=0)] = 30.0  # for the model's answer
    requests_per_second: Rate = 0.0  # for each client
    rows_per_second: Rate | None = None  # none given: no limit; but where a model has memory and clients no keys, 1,000
    upstream_bytes: Count = 64 * 2**20  # of an upstream's answer
    bytes_in_flight: Count = 256 * 2**20  # of all requests that a worker holds at a time
    epsilon: Rate = 0.0  # what all answers of one model to one client may add up to, where the model has memory

    def __post_init__(self) -> None:
        fits = self.bytes_in_flight >= self.body_bytes
        _require(fits, f"bytes_in_flight is {self.bytes_in_flight}, and one body may have {self.body_bytes} bytes")


class Client(ConfigTable, frozen=True):
    """Who may ask: a name and the hash of a key, as `scoreveil config key NAME` prints them."""

    name: str
    sha256: str
    requests_per_second: Rate | None = None
    rows_per_second: Rate | None = None
    epsilon: Rate | None = None

    def __post_init__(self) -> None:
        _require(NAME.fullmatch(self.name), f"a client's name {NAME_WORDS}")
        known = f"the sha256 of client {self.name}"
        makes = f"`scoreveil config key {self.name}` makes a key and its hash"
        _require(re.fullmatch(r"[0-9a-f]{64}", self.sha256), f"{known} is not 64 hex digits; {makes}")
        # a hash has 8 different digits or fewer once in 10^15
        _require(len(set(self.sha256)) > 8, f"{known} is a placeholder and no hash; {makes}")


class Jwt(ConfigTable, frozen=True):
    """Tokens that someone else issues. A key file: PEM for RS, ES, PS and EdDSA; raw bytes for HS."""

    key_file: Path
    algorithms: Annotated[tuple[str, ...], Meta(min_length=1)]
    audience: str
    issuer: str
    client_claim: str = "sub"
    leeway_seconds: float = 10.0

    def __post_init__(self) -> None:
        unknown = sorted(set(self.algorithms) - ALGORITHMS)
        _require(not unknown, f"algorithms has {', '.join(unknown)}; known are {', '.join(sorted(ALGORITHMS))}")
        kinds = {name in SYMMETRIC for name in self.algorithms}
        _require(len(kinds) == 1, "algorithms mixes HS with public-key ones, which need different keys; keep one kind")


class Auth(ConfigTable, frozen=True):
    """mode: keys, jwt, or none, which must be said where others can connect."""

    mode: Literal["keys", "jwt", "none"] | None = None
    clients: tuple[Client, ...] = ()
    jwt: Jwt | None = None

    def __post_init__(self) -> None:
        names = [client.name for client in self.clients]
        _require(len(set(names)) == len(names), "two clients have the same name; give each its own")
        _require(self.mode != "keys" or self.clients, "mode 'keys' needs at least one of auth.clients")
        _require(self.mode != "jwt" or self.jwt is not None, "mode 'jwt' needs the table auth.jwt")
        _require(self.jwt is None or self.mode == "jwt", "auth.jwt is only used with mode = 'jwt'")
        _require(self.mode == "keys" or not self.clients, "auth.clients are only used with mode = 'keys'")


class Secrets(ConfigTable, frozen=True):
    """Where the secrets are; made at first start, for the owner alone. SCOREVEIL_SECRET goes before the file."""

    file: Path = Path("scoreveil.secret")


class LedgerSettings(ConfigTable, frozen=True):
    """Where models with memory keep it, and how long."""

    url: str = f"{SQLITE}scoreveil-ledger.db"  # relative to the file, as all paths are
    records: int = Horizon.records  # of all models; the oldest are forgotten beyond that
    days: int = Horizon.days  # that a record is remembered; 0: however old it is

    @property
    def horizon(self) -> Horizon:
        return Horizon(self.records, self.days)

    def __post_init__(self) -> None:
        try:
            Horizon(self.records, self.days)
        except ValueError as error:
            raise ConfigError(f"ledger.{error}") from None
        known = self.url.startswith(("sqlite:", "postgresql:", "postgres:"))
        _require(known, "ledger.url begins with neither sqlite:/// nor postgresql://")


class Logs(ConfigTable, frozen=True):
    """requests: a line for every request, not only for those that failed."""

    requests: bool = False


class Traces(ConfigTable, frozen=True):
    """OpenTelemetry over OTLP/HTTP, where an endpoint is given. Spans carry names and numbers, never payloads."""

    endpoint: str | None = None
    service: str = "scoreveil"


class Upstream(ConfigTable, frozen=True):
    """The server behind: nothing of a client's headers goes there, and nothing of its errors comes back."""

    url: str
    protocol: Literal["v2", "mlflow", "tfserving", "openai"] = "v2"
    model: str | None = None  # its name there, where it is another
    version: str | None = None
    binary: bool = False  # it speaks the binary tensor extension
    token_file: Path | None = None  # sent as a bearer token
    connections: Count = 100
    largest_batch: Count | None = None  # rows that it takes at a time; for copies of records that are smoothed
    mlflow_format: Literal["dataframe", "instances", "inputs"] = "dataframe"
    signature: str | None = None  # TF Serving's
    top_logprobs: Annotated[int, Meta(ge=1, le=100)] = 20  # OpenAI's: how many are asked for, where labels are read

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        _require(parts.scheme in ("http", "https") and parts.hostname, "the url is not one of http:// or https://")
        extra = parts.query or parts.fragment or parts.username
        _require(not extra, "the url has a user, a query or a fragment, which are not sent; a token goes to token_file")


class Memory(ConfigTable, frozen=True):
    """How many fresh answers a record and its near-duplicates get together: a number, or what they add up to."""

    answers: Count | None = None
    epsilon: Annotated[float, Meta(gt=0)] | None = None
    repeat: Repeat = "same"  # when none is left: the last answer again, or a refusal
    rule: accounting.ClosedForm = "pure"  # how answers add up to epsilon
    delta: float | None = None
    typical: Path | None = None  # inputs as clients send them, .npy: they tell how near a near-duplicate is

    def __post_init__(self) -> None:
        words = "memory has one of answers, a number of fresh answers for each record, and epsilon, what they add up to"
        _require((self.answers is None) != (self.epsilon is None), words)
        idle = self.answers is not None and (self.rule, self.delta) != ("pure", None)
        _require(not idle, "memory.rule and memory.delta say how answers add up to epsilon; remove them beside answers")


class Model(ConfigTable, frozen=True):
    """One model: where its scores come from, and what may be told of them.

    The keys of its table that are not named here are `veil`: epsilon, mechanism, and whatever that mechanism takes.
    """

    veil: dict[str, Any]
    onnx: Path | None = None
    skops: Path | None = None
    python: str | None = None  # package.module:factory
    upstream: Upstream | None = None
    version: str = "1"
    scores: Annotated[tuple[str, ...], Meta(min_length=1)] = ("scores",)  # outputs that are veiled
    outputs: Outputs = "scores"  # what these are: probabilities, or logits
    shape: Literal["binary", "multi_label", "top_k"] | None = None  # how they are served, if not as vectors
    threshold: float | tuple[float, ...] | None = None  # of one column or many labels: from where on it is a yes
    classes: int | None = None  # of a list of the largest: how many there are in all
    releases: Annotated[int, Meta(ge=1, le=MAX_RELEASES)] | None = None  # labels of a record; or places, at most
    passes: tuple[str, ...] = ()  # outputs that are passed as they are: labels, never logits
    parameters: tuple[str, ...] = ()  # request parameters that the upstream may see
    inputs: tuple[TensorSpec, ...] = ()
    labels: tuple[str, ...] = ()  # a language model's answers; without them its texts pass, and no logprobs
    memory: Memory | None = None

    def __post_init__(self) -> None:
        sources = sum(source is not None for source in (self.onnx, self.skops, self.python, self.upstream))
        _require(sources == 1, f"a model has one of onnx, skops, python and upstream; this one has {sources}")
        _require(NAME.fullmatch(self.version), f"a version {NAME_WORDS}")
        veiled = not self.is_veiled or self.veil.keys() & {"epsilon", "veil"}
        _require(veiled, 'The model needs epsilon, such as epsilon = 2.0, or veil = "file", a fitted one.')
        alone = "veil" not in self.veil or len(self.veil) == 1
        _require(alone, "a fitted veil has its epsilon and options already; name it alone")
        shaped = self.shape is not None or (self.threshold, self.classes) == (None, None)
        _require(shaped, "threshold and classes belong to a shape; name it, such as shape = 'binary'")
        offered = (*self.scores, *self.passes)
        _require(len(set(offered)) == len(offered), "scores and passes name an output twice; once is enough")
        _require(offered == self.scores or self.is_v2, "passes is for v2 and embedded models; remove it")
        _require(len(self.scores) == 1 or self.is_v2, "MLflow and TF Serving models have one output of scores")
        _require(self.is_language or not self.labels, "labels are for an upstream with protocol = 'openai'")
        if self.is_language:
            self._check_language()
        elif not self.is_v2:
            words = (
                "MLflow and TF Serving models need inputs, the name, datatype and shape of each: a value may be written"
            )
            _require(
                self.inputs, f"{words} in many ways there, and a record is one only in the datatype that is declared"
            )
            rows = all(spec.shape[:1] == (-1,) for spec in self.inputs)
            _require(rows, "the shape of an input of MLflow and TF Serving begins with -1, the number of rows")
        _require(self.outputs == "scores" or self.skops is None, "a .skops model has predict_proba; remove outputs")
        if self.shape == "top_k":
            _require(len(self.scores) == 1, "a list of the largest is one output of scores, with its labels in passes")
            known = self.outputs == "scores" or self.classes is None
            _require(known, "logits of a list do not tell what the rest has; remove classes")
        words = "memory needs inputs here, the name, datatype and shape of each, so that a record is one"
        _require(self.memory is None or self.knows_records, words)

    def _check_language(self) -> None:
        idle: dict[str, object] = {"inputs": self.inputs, "parameters": self.parameters}
        idle |= {"shape": self.shape, "threshold": self.threshold, "classes": self.classes, "releases": self.releases}
        given = [key for key, value in idle.items() if value]
        _require(not given, f"a language model takes prompts alone; remove {', '.join(given)}")
        _require(self.outputs == "scores", "the scores of a language model are made from logprobs; remove outputs")
        if self.labels:
            try:
                check_labels(self.labels)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        else:
            words = "without labels a language model's texts pass, and there is nothing to veil"
            spare = {**self.veil, **({} if self.memory is None else {"memory": self.memory})}
            _require(not spare, f"{words}: name labels, or remove {', '.join(spare)}")

    @property
    def is_v2(self) -> bool:
        return self.upstream is None or self.upstream.protocol == "v2"

    @property
    def is_language(self) -> bool:
        return self.upstream is not None and self.upstream.protocol == "openai"

    @property
    def is_veiled(self) -> bool:
        """Whether it has scores at all: a language model without labels has texts alone."""
        return bool(self.labels) or not self.is_language

    @property
    def knows_records(self) -> bool:
        """Whether a record is one: an upstream might take, and ignore, inputs beside it that are not named here."""
        return bool(self.inputs) or self.upstream is None or self.is_language


class Config(ConfigTable, frozen=True):
    models: Annotated[dict[str, Model], Meta(min_length=1)]
    server: Server = Server()
    limits: Limits = Limits()
    auth: Auth = Auth()
    secrets: Secrets = Secrets()
    ledger: LedgerSettings = LedgerSettings()
    logs: Logs = Logs()
    traces: Traces = Traces()

    def __post_init__(self) -> None:
        mlflow = [name for name, m in self.models.items() if m.upstream and m.upstream.protocol == "mlflow"]
        _require(
            len(mlflow) <= 1,
            f"{' and '.join(mlflow)} are MLflow models, and /invocations names none; serve one of them here",
        )
        _require(
            self.auth.mode is not None or self.server.local,
            f"others can connect to server.host {self.server.host}: set auth.mode, to 'none' if all of them may ask",
        )
        _require(
            not self.limits_clients or self.has_keys,
            "limits.epsilon is the limit of one client, and clients have no keys",
        )

    @property
    def limits_clients(self) -> bool:
        """Whether answers to a client are counted."""
        return bool(self.limits.epsilon) or any(client.epsilon for client in self.auth.clients)

    @property
    def language_models(self) -> list[str]:
        return [name for name, model in self.models.items() if model.is_language]

    @property
    def has_keys(self) -> bool:
        """Whether clients can be told apart."""
        return self.auth.mode in ("keys", "jwt")
