"""One TOML file, with environment overrides, read into frozen dataclasses that check themselves.

    [models.digits]
    onnx = "digits.onnx"
    epsilon = 2.0

`SCOREVEIL__MODELS__DIGITS__EPSILON=1` overrides the ε above: the path in capitals, two underscores between. Unknown
keys are errors, so that a misspelt limit is not a missing one. Secrets do not belong in this file.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from scoreveil import accounting
from scoreveil.mechanisms.isotonic import Keep
from scoreveil.mechanisms.published import Reading
from scoreveil.veil import Mechanism, Veil

PREFIX = "SCOREVEIL__"
SQLITE = "sqlite:///"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DATATYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
}


class ConfigError(ValueError):
    """A setting that is none; the message names it."""


@dataclass(frozen=True)
class Server:
    """Where to listen, and with how many workers."""

    host: str = "127.0.0.1"
    port: int = 8080
    admin_host: str = "127.0.0.1"
    admin_port: int = 9090
    workers: int = 1
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # clients must show a certificate that it signed
    drain_seconds: int = 30  # how long SIGTERM waits for requests that are under way

    def __post_init__(self) -> None:
        for name in ("port", "admin_port"):
            _expect(0 < getattr(self, name) < 65536, f"server.{name} from 1 to 65535", getattr(self, name))
        _expect(self.port != self.admin_port, "server.admin_port other than server.port", self.port)
        _expect(1 <= self.workers <= 256, "server.workers from 1 to 256", self.workers)
        _expect(self.drain_seconds > 0, "server.drain_seconds > 0", self.drain_seconds)
        _expect((self.tls_cert is None) == (self.tls_key is None), "server.tls_cert and tls_key together", "one")
        _expect(self.tls_client_ca is None or self.tls_cert is not None, "server.tls_cert with tls_client_ca", "none")

    @property
    def local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True)
class Limits:
    """What one request, and one client, may ask for. 0 for a rate: no limit."""

    body_bytes: int = 16 * 2**20
    rows: int = 4096
    seconds: float = 30.0  # for the model's answer
    requests_per_second: float = 0.0  # for each client
    rows_per_second: float = 0.0
    upstream_bytes: int = 64 * 2**20  # of an upstream's answer

    def __post_init__(self) -> None:
        for name in ("body_bytes", "rows", "seconds", "upstream_bytes"):
            _expect(getattr(self, name) > 0, f"limits.{name} > 0", getattr(self, name))
        for name in ("requests_per_second", "rows_per_second"):
            _expect(getattr(self, name) >= 0, f"limits.{name} >= 0", getattr(self, name))


@dataclass(frozen=True)
class Client:
    """Who may ask: a name and the hash of a key, as `scoreveil config key NAME` prints them."""

    name: str
    sha256: str
    requests_per_second: float | None = None
    rows_per_second: float | None = None

    def __post_init__(self) -> None:
        _expect(NAME.fullmatch(self.name), "a client's name of letters, digits, '.', '_', '-'", "another")
        _expect(re.fullmatch(r"[0-9a-f]{64}", self.sha256), f"64 hex digits as sha256 of client {self.name}", "another")


@dataclass(frozen=True)
class Jwt:
    """Tokens that someone else issues. A key file: PEM for RS, ES, PS and EdDSA; raw bytes for HS."""

    key_file: Path
    algorithms: tuple[str, ...]
    audience: str
    issuer: str
    client_claim: str = "sub"
    leeway_seconds: float = 10.0

    def __post_init__(self) -> None:
        allowed = {f"{family}{bits}" for family in ("RS", "ES", "PS", "HS") for bits in (256, 384, 512)} | {"EdDSA"}
        _expect(
            self.algorithms and set(self.algorithms) <= allowed, f"auth.jwt.algorithms of {sorted(allowed)}", "others"
        )
        families = {"HS" if name.startswith("HS") else "public" for name in self.algorithms}
        _expect(len(families) == 1, "auth.jwt.algorithms all symmetric or all public", "both")


@dataclass(frozen=True)
class Auth:
    """mode: keys, jwt, or none, which must be said where others can connect."""

    mode: Literal["keys", "jwt", "none"] | None = None
    clients: tuple[Client, ...] = ()
    jwt: Jwt | None = None

    def __post_init__(self) -> None:
        names = [client.name for client in self.clients]
        _expect(len(set(names)) == len(names), "clients with different names", "a name twice")
        _expect(self.mode != "keys" or self.clients, "at least one of auth.clients with mode 'keys'", "none")
        _expect((self.mode == "jwt") == (self.jwt is not None), "auth.jwt with mode 'jwt', and only then", "otherwise")
        _expect(self.mode in ("keys",) or not self.clients, "auth.mode = 'keys' with auth.clients", repr(self.mode))


@dataclass(frozen=True)
class Secrets:
    """Where the secrets are; made at first start, for the owner alone. SCOREVEIL_SECRET goes before the file."""

    file: Path = Path("scoreveil.secret")


@dataclass(frozen=True)
class LedgerSettings:
    url: str = f"{SQLITE}scoreveil-ledger.db"  # relative to the file, as all paths are

    def __post_init__(self) -> None:
        _expect(
            self.url.startswith(("sqlite:", "postgresql:", "postgres:")),
            "ledger.url of sqlite: or postgresql:",
            "another",
        )


@dataclass(frozen=True)
class Logs:
    """requests: a line for every request, not only for those that failed."""

    requests: bool = False


@dataclass(frozen=True)
class Traces:
    """OpenTelemetry over OTLP/HTTP, where an endpoint is given. Spans carry names and numbers, never payloads."""

    endpoint: str | None = None
    service: str = "scoreveil"


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as the protocol declares it; -1 for any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        _expect(self.datatype in DATATYPES, f"a datatype of {', '.join(DATATYPES)}", self.datatype)
        _expect(all(size >= -1 for size in self.shape), "sizes >= -1 in a shape", self.shape)

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}


@dataclass(frozen=True)
class Upstream:
    """The server behind: nothing of a client's headers goes there, and nothing of its errors comes back."""

    url: str
    protocol: Literal["v2", "mlflow", "tfserving"] = "v2"
    model: str | None = None  # its name there, where it is another
    version: str | None = None
    binary: bool = False  # it speaks the binary tensor extension
    token_file: Path | None = None  # sent as a bearer token
    connections: int = 100
    mlflow_format: Literal["dataframe", "instances", "inputs"] = "dataframe"
    signature: str | None = None  # TF Serving's

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        _expect(parts.scheme in ("http", "https") and parts.hostname, "upstream.url of http:// or https://", "another")
        _expect(not (parts.query or parts.fragment or parts.username), "upstream.url without query or user", "more")
        _expect(self.connections > 0, "upstream.connections > 0", self.connections)


@dataclass(frozen=True)
class Model:
    """One model: where its scores come from, and what may be told of them."""

    epsilon: float
    mechanism: Mechanism | None = None
    keep: Keep | None = None
    reading: Reading | None = None
    reference: Path | None = None  # public scores: .npy of (n, k)
    onnx: Path | None = None
    skops: Path | None = None
    python: str | None = None  # package.module:factory
    upstream: Upstream | None = None
    version: str = "1"
    scores: tuple[str, ...] = ("scores",)  # outputs that are veiled
    passes: tuple[str, ...] = ()  # outputs that are passed as they are: labels, never logits
    parameters: tuple[str, ...] = ()  # request parameters that the upstream may see
    inputs: tuple[TensorSpec, ...] = ()
    repeats: Literal["sticky", "budget"] = "sticky"
    total: float | None = None  # budget: the ε that the releases of one record may add up to
    rule: accounting.Rule = "pure"
    delta: float | None = None
    exhausted: Literal["replay", "refuse"] = "refuse"

    def __post_init__(self) -> None:
        sources = [self.onnx, self.skops, self.python, self.upstream]
        _expect(
            sum(source is not None for source in sources) == 1, "one of onnx, skops, python, upstream", "none or more"
        )
        _expect(NAME.fullmatch(self.version), "a version of letters, digits, '.', '_', '-'", "another")
        _expect(self.scores, "at least one output name in scores", "none")
        _expect(len({*self.scores, *self.passes}) == len(self.scores) + len(self.passes), "an output once", "twice")
        _expect(not self.passes or self.is_v2, "passes for v2 and embedded models only", "others")
        _expect(len(self.scores) == 1 or self.is_v2, "one score output for MLflow and TF Serving", "more")
        try:
            self._settings()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self.repeats == "budget":
            _expect(self.total is not None, "total with repeats = 'budget'", "none")
            _expect(self.inputs or not self._loose, "inputs with repeats = 'budget', so that a record is one", "none")
            _expect(self.allowed_releases >= 1, "a total that allows one release at least", self.total)
        else:
            _expect((self.total, self.delta) == (None, None), "total and delta with repeats = 'budget' only", "sticky")

    @property
    def is_v2(self) -> bool:
        return self.upstream is None or self.upstream.protocol == "v2"

    @property
    def _loose(self) -> bool:
        """Whether an upstream would take the same record written in several ways."""
        if self.upstream is None or self.upstream.protocol == "tfserving":
            return False
        return self.upstream.protocol == "v2" or self.upstream.mlflow_format == "dataframe"

    def _settings(self) -> Veil:
        """A veil with the settings alone, which checks them."""
        mechanism: Mechanism = "isotonic" if self.mechanism is None else self.mechanism
        return Veil(self.epsilon, mechanism, keep=self.keep, reading=self.reading)

    def veil(self, secret: bytes, name: str) -> Veil:
        """The veil of one of its outputs; other models, versions and outputs get independent answers."""
        import numpy as np

        reference = None if self.reference is None else np.load(self.reference, allow_pickle=False)
        return Veil(self._settings().settings, reference=reference, secret=secret, model=name)

    @property
    def guarantee(self) -> accounting.Guarantee:
        """What one release of one output promises."""
        return self._settings().guarantee

    @property
    def allowed_releases(self) -> int:
        """b: how many releases of one record stay within `total`; each veils every score output."""
        if self.total is None:
            raise ConfigError("Expected total with repeats = 'budget', got none.")
        try:
            each = accounting.query_bound(self.guarantee, self.total, self.rule, self.delta)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return each // len(self.scores)


@dataclass(frozen=True)
class Config:
    """The whole file."""

    models: Mapping[str, Model]
    server: Server = field(default_factory=Server)
    limits: Limits = field(default_factory=Limits)
    auth: Auth = field(default_factory=Auth)
    secrets: Secrets = field(default_factory=Secrets)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    logs: Logs = field(default_factory=Logs)
    traces: Traces = field(default_factory=Traces)

    def __post_init__(self) -> None:
        _expect(self.models, "at least one model", "none")
        for name in self.models:
            _expect(NAME.fullmatch(name), "a model's name of letters, digits, '.', '_', '-'", "another")
        mlflow = [m for m in self.models.values() if m.upstream is not None and m.upstream.protocol == "mlflow"]
        _expect(len(mlflow) <= 1, "one MLflow model: /invocations names none", len(mlflow))
        _expect(
            self.auth.mode is not None or self.server.local,
            f"auth.mode where others can connect (server.host is {self.server.host})",
            "none; say 'none' if that is meant",
        )

    @property
    def budgeted(self) -> bool:
        return any(model.repeats == "budget" for model in self.models.values())


def load(
    path: Path | None, overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Config:
    """The file, then the environment, then what the command line gave; paths in the file are relative to it."""
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"Expected TOML in {path.name}, got none: {error}.") from None
    for name in sorted(environ):
        if name.startswith(PREFIX):
            _put(tree, [part.lower() for part in name.removeprefix(PREFIX).split("__")], _scalar(environ[name]))
    for name, value in (overrides or {}).items():
        _put(tree, name.split("/"), value)
    try:
        return parse(tree, path.parent if path is not None else Path())
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(str(error)) from None


def parse(tree: Mapping[str, Any], base: Path = Path()) -> Config:
    """A checked configuration from nested tables."""
    made: Config = _build(Config, tree, "", base)
    # defaults are paths beside the file too
    url, secret = made.ledger.url, base.absolute() / made.secrets.file
    if url.startswith(SQLITE):
        url = f"{SQLITE}{base.absolute() / url.removeprefix(SQLITE)}"
    return replace(made, ledger=LedgerSettings(url), secrets=Secrets(secret))


def known_keys() -> set[str]:
    """Every key that a file may have, dotted; * for the name of a model."""
    return set(_keys(Config, ""))


def _keys(kind: Any, prefix: str) -> list[str]:
    found: list[str] = []
    for name, hint in _hints(kind).items():
        nested = _nested(hint)
        path = f"{prefix}{name}.*" if _is_mapping(hint) else f"{prefix}{name}"
        found += [path] if nested is None else _keys(nested, f"{path}.")
    return found


def _build(kind: Any, tree: Any, where: str, base: Path) -> Any:
    _expect(isinstance(tree, Mapping), f"a table at {where or 'the top'}", type(tree).__name__)
    hints = _hints(kind)
    unknown = sorted(set(tree) - set(hints))
    _expect(not unknown, f"of {where or 'the top'} only {', '.join(hints)}", ", ".join(unknown))
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in required if name not in tree]
    _expect(not missing, f"{', '.join(missing)} at {where or 'the top'}", "none")
    made = {name: _value(hints[name], tree[name], f"{where}.{name}".strip("."), base) for name in tree}
    try:
        return kind(**made)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None


def _value(hint: Any, given: Any, where: str, base: Path) -> Any:
    """`given` as the type that `hint` asks for, or ConfigError."""
    if get_origin(hint) in (Union, UnionType):
        choices = [choice for choice in get_args(hint) if choice is not type(None)]
        for choice in choices[:-1]:
            try:
                return _value(choice, given, where, base)
            except ConfigError:
                continue
        return _value(choices[-1], given, where, base)
    if _is_mapping(hint):
        _expect(isinstance(given, Mapping), f"tables under {where}", type(given).__name__)
        return {name: _build(get_args(hint)[1], tree, f"{where}.{name}", base) for name, tree in given.items()}
    if get_origin(hint) is tuple:
        _expect(isinstance(given, (list, tuple)), f"a list at {where}", type(given).__name__)
        return tuple(_value(get_args(hint)[0], each, where, base) for each in given)
    if get_origin(hint) is Literal:
        _expect(given in get_args(hint), f"{where} of {', '.join(map(repr, get_args(hint)))}", "another")
        return given
    if hasattr(hint, "__dataclass_fields__"):
        return _build(hint, given, where, base)
    if hint is Path:
        _expect(isinstance(given, (str, Path)) and str(given), f"a path at {where}", type(given).__name__)
        return base / given
    if hint is float and isinstance(given, int) and not isinstance(given, bool):
        return float(given)
    _expect(type(given) is hint, f"{where} to be {hint.__name__}", type(given).__name__)
    return given


def _hints(kind: Any) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(kind).items() if name in kind.__dataclass_fields__}


def _is_mapping(hint: Any) -> bool:
    return get_origin(hint) is not None and getattr(get_origin(hint), "__name__", "") == "Mapping"


def _nested(hint: Any) -> Any:
    """The dataclass inside a hint, if there is one."""
    if hasattr(hint, "__dataclass_fields__"):
        return hint
    return next((found for part in get_args(hint) if (found := _nested(part)) is not None), None)


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        _expect(isinstance(tree, dict), f"a table at {part}", "another")
    tree[path[-1]] = value


def _scalar(text: str) -> Any:
    """An environment variable as TOML would read it; plain text stays text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _expect(condition: object, expected: str, got: object) -> None:
    if not condition:
        raise ConfigError(f"Expected {expected}, got {got}.")
