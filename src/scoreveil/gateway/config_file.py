"""How a configuration is read: one TOML file, then the environment, then the command line.

`SCOREVEIL__MODELS__DIGITS__EPSILON=1` overrides epsilon in [models.digits]: the path in capitals, two underscores
between. Secrets do not belong in the file.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import structs

from scoreveil import typed
from scoreveil.gateway.config import NAME, NAME_WORDS, SQLITE, Config, ConfigError, Model, Secrets
from scoreveil.mechanisms.mechanism import named, names
from scoreveil.typed import MAX_NAME

T = TypeVar("T")
PREFIX = "SCOREVEIL__"
VEIL_KEYS = {"veil", "epsilon", "mechanism"}  # and the options of all mechanisms
NOT_OPTIONS = {"secret", "model", "rng", "threads"}  # of `Veil`, but not for a file to say
FILES = (".npy", ".npz", ".json")  # a text with such an ending, among the options of a veil, is a file


def load(
    path: Path | None, overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Config:
    """The configuration, checked whole; `overrides` is what the command line gave: `{"server/port": 8080}`."""
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path.name} is not TOML: {error}.") from None
    for name in sorted(environ):
        if name.startswith(PREFIX):
            _put(tree, [part.lower() for part in name.removeprefix(PREFIX).split("__")], _scalar(environ[name]))
    for name, value in (overrides or {}).items():
        _put(tree, name.split("/"), value)
    return parse(tree, path.parent if path is not None else Path())


def parse(tree: Mapping[str, Any], base: Path = Path()) -> Config:
    """A checked configuration from nested tables; paths in them are relative to `base`."""
    tables = tree.get("models")
    if not isinstance(tables, Mapping):
        raise ConfigError("There are no models: begin a table with [models.NAME].")
    models = {name: _model(name, table, base) for name, table in tables.items()}
    config = _converted({**tree, "models": models}, Config, "", base)
    # defaults are paths beside the file too
    url, secret = config.ledger.url, base.absolute() / config.secrets.file
    if url.startswith(SQLITE):
        url = f"{SQLITE}{base.absolute() / url.removeprefix(SQLITE)}"
    return structs.replace(config, ledger=structs.replace(config.ledger, url=url), secrets=Secrets(secret))


def _model(name: str, table: Any, base: Path) -> Model:
    """A model from its table: the gateway's own keys, and all others for its veil."""
    place = f"models.{name}"
    if not NAME.fullmatch(name):
        raise ConfigError(f"{place}: a model's name {NAME_WORDS}.")
    if not isinstance(table, Mapping):
        raise ConfigError(f"{place} is a {type(table).__name__}; begin a table with [{place}].")
    if given := NOT_OPTIONS & table.keys():
        raise ConfigError(f"{place}: {', '.join(sorted(given))} cannot be set here; the gateway sets it.")
    own = set(Model.__struct_fields__) - {"veil"}
    _check_keys(place, table, own | VEIL_KEYS | {option for name in names() for option in named(name).options()})
    options = {key: value for key, value in table.items() if key not in own}
    files = {key: base / text for key, text in options.items() if isinstance(text, str) and text.endswith(FILES)}
    tree = {key: value for key, value in table.items() if key in own}
    return _converted({**tree, "veil": options | files}, Model, place, base)


def _check_keys(place: str, table: Mapping[str, object], known: set[str]) -> None:
    for key in sorted(table.keys() - known):
        near = difflib.get_close_matches(key, sorted(known), 1)
        words = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(sorted(known))}."
        raise ConfigError(f"{place}: Unknown key {key[:MAX_NAME]!r} of the model; {words}")


def _converted(tree: object, kind: type[T], place: str, base: Path) -> T:
    try:
        return typed.convert(tree, kind, place, partial(_path, base))
    except typed.InvalidField as error:
        raise ConfigError(str(error)) from None


def _path(base: Path, kind: type, given: object) -> Path:
    if not isinstance(given, (str, Path)) or not str(given):
        raise ValueError(f"Expected a path, got {type(given).__name__}")
    return base / given


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{'.'.join(path)} is set from outside, but {part} in the file is not a table.")
    tree[path[-1]] = value


def _scalar(text: str) -> object:
    """An environment variable as TOML would read it; plain text stays text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
