"""`scoreveil serve` and `scoreveil config`: the gateway."""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scoreveil.cli import options
from scoreveil.extras import needs
from scoreveil.mechanisms.guarantee import Guarantee

if TYPE_CHECKING:  # the gateway wing brings granian and starlette; only those who serve need them
    from scoreveil.gateway.config import Server
    from scoreveil.gateway.opened import OpenedConfig, OpenedModel

NO_FIT = (
    "  A veil that was fitted needs no memory: make one with scoreveil fit, and serve with --veil veil.json. "
    "Its confidence is worth more, too."
)
DEMO = {"python": "scoreveil.demo:digits_model", "epsilon": 2.0}

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="A TOML file. docs/serve.md lists its keys.")
]

config_app = typer.Typer(help="Check a gateway's configuration, and make its keys.", no_args_is_help=True)


def serve(
    model: Annotated[Path | None, typer.Argument(metavar="[MODEL]", help="A model to serve: .onnx or .skops.")] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", "-e", metavar="E", help="How much shows through. Smaller hides more.")
    ] = None,
    fitted: Annotated[
        Path | None, typer.Option("--veil", metavar="FILE", help="A fitted veil (.json), instead of --epsilon.")
    ] = None,
    outputs: Annotated[
        str | None, typer.Option("--outputs", metavar="logits", help="What MODEL returns, if not probabilities.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option("--shape", metavar="SHAPE", help="How MODEL returns scores: binary, multi_label or top_k."),
    ] = None,
    config: ConfigOption = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Serve a classifier of handwritten digits, named digits.")
    ] = False,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="The address to listen on (default: 127.0.0.1).")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="The port of the gateway (default: 8080).")] = None,
    grpc_port: Annotated[int | None, typer.Option("--grpc-port", help="Serve gRPC too, on this port.")] = None,
    admin_port: Annotated[
        int | None, typer.Option("--admin-port", help="The port of the page and the metrics (default: 9090).")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="How many processes serve (default: 1).")
    ] = None,
) -> None:
    """Serve veiled scores, from a model file or in front of a model server.

    Speaks the Open Inference Protocol (KServe, Triton, MLServer), and OpenAI's for language models. Send SIGHUP to
    reload the configuration.
    """
    settings = {"server/host": host, "server/port": port, "server/grpc_port": grpc_port}
    settings |= {"server/admin_port": admin_port, "server/workers": workers}
    overrides = _given(settings)
    of_model = _given({"veil": fitted, "outputs": outputs, "shape": shape, "epsilon": epsilon})
    if demo:
        overrides |= _table("digits", DEMO | _given({"epsilon": epsilon}))
    if model is not None:
        overrides |= _table(_model_name(model), _model(model, of_model))
    elif of_model.keys() - ({"epsilon"} if demo else set()):
        option = next(iter(of_model))
        raise ValueError(f"--{option} needs a MODEL to apply to; in a --config file it stands in the model's table.")
    elif config is None and not demo:
        raise ValueError("There is nothing to serve. Name a MODEL or a --config file, or add --demo.")
    with needs("serve"):
        from scoreveil.gateway import config_file, server, startup_checks
        from scoreveil.gateway.opened import open_config

    def read() -> "OpenedConfig":
        return open_config(config_file.load(config, overrides))

    opened = read()
    server.check_ports(opened.config.server)  # before models are loaded, which takes a while
    _say(opened, startup_checks.before_serving(opened), startup_checks.places(opened))
    ready = f"Ready    {_address(opened.config.server)} accepts requests."
    server.run(opened, read, lambda: typer.echo(ready))


def _given(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in settings.items() if value is not None}


def _table(name: str, settings: Mapping[str, object]) -> dict[str, object]:
    return {f"models/{name}/{key}": value for key, value in settings.items()}


def _model(path: Path, settings: Mapping[str, object]) -> dict[str, object]:
    kind = path.suffix.removeprefix(".")
    if kind not in ("onnx", "skops"):
        raise ValueError(f"{path.name} cannot be served: its name ends in neither .onnx nor .skops.")
    if not path.is_file():
        raise ValueError(f"There is no model file {path}.")
    if "epsilon" in settings and "veil" in settings:
        raise ValueError("Give --epsilon or --veil, not both: a fitted veil has its ε.")
    if "epsilon" not in settings and "veil" not in settings:
        raise ValueError("Missing --epsilon or --veil.")
    paths = {name: str(value.absolute()) for name, value in settings.items() if isinstance(value, Path)}
    return {kind: str(path.absolute()), **settings, **paths}


def _model_name(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip("._-") or "model"


def _say(opened: "OpenedConfig", findings: Iterable[str], places: Iterable[str] = ()) -> None:
    """What was found where the configuration was opened, what it means, and where secret and ledger are kept."""
    settings = opened.config.server
    lines = list(findings)
    for name, model in opened.models.items():
        if model.veil is None:
            lines.append(f"Model {name}: texts pass, and no logprobs.")
            continue
        lines.append(f"Model {name}: {_promised(model.veil.guarantee)}{_held(model)}; {model.memory_words()}.")
        if model.memory is not None and model.settings.memory is None:
            lines.append(NO_FIT)
    lines += [f"Warning: {warning}" for warning in opened.warnings]
    lines += [*places, f"Gateway  {_address(settings)}/v2"]
    if opened.config.language_models:
        lines.append(f"OpenAI   {_address(settings)}/v1")
    if settings.grpc_port is not None:
        lines.append(f"gRPC     {settings.host}:{settings.grpc_port}")
    lines.append(f"Page     http://{settings.admin_host}:{settings.admin_port}/")
    typer.echo("\n".join(lines))


def _address(settings: "Server") -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'http' if settings.tls_cert is None else 'https'}://{host}:{settings.port}"


def _promised(promise: Guarantee) -> str:
    epsilon = "no ε" if math.isinf(promise.epsilon) else f"ε = {promise.epsilon:g} a release"
    return epsilon if promise.advantage_alone is None else f"{options.advantage_words(promise)}, {epsilon}"


def _held(model: "OpenedModel") -> str:
    """How many releases an answer holds, where that is more than one."""
    held = model.answer_releases
    if held == 1:
        return ""
    return ", one for each label" if held is None else f", {'up to ' * model.shape.has_places}{held} an answer"


@config_app.command("check")
def check(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file.")],
    offline: Annotated[bool, typer.Option("--offline", help="Read the file and its veils alone.")] = False,
) -> None:
    """Check a configuration file.

    Reads it as `serve` does, with the environment. Loads models and veils, and asks upstreams and the ledger. Writes no
    files; it does make the tables of a PostgreSQL ledger.
    """
    from scoreveil.gateway import config_file
    from scoreveil.gateway.opened import open_config

    opened = open_config(config_file.load(config))
    findings = []
    if not offline:
        from scoreveil.gateway import startup_checks

        findings = startup_checks.check(opened)
    _say(opened, findings)
    typer.echo("The configuration is valid.")


@config_app.command("key")
def key(name: Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")]) -> None:
    """Make an API key.

    Prints the key, for the client, and its hash, for the configuration.
    """
    from scoreveil.gateway import auth
    from scoreveil.gateway.config import Client

    made, digest = auth.new_key()
    Client(name, digest)
    typer.echo(f"The key, shown once: {made}")
    typer.echo(f'For the file:\n[[auth.clients]]\nname = "{name}"\nsha256 = "{digest}"')


@config_app.command("rotate")
def rotate(config: Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file.")]) -> None:
    """Add a secret for the draws of answers.

    Send SIGHUP to the gateway to use it. Every record then gets a new answer, once.
    """
    from scoreveil.gateway import config_file, secrets

    lines = secrets.rotate(config_file.load(config).secrets.file)
    typer.echo(f"The secret file has {lines} secrets now: an answer under each promises {lines}·ε in all.")
    typer.echo("Send SIGHUP to the gateway to use it.")
