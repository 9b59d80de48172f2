"""The command line: one file for each command or two, and here what holds for all of them.

    protect.py    protect                  options.py    options that several commands share
    choose.py     tune, guarantee          terminal.py   where output, errors and progress go
    fit.py        fit                      show.py       show, verify
    audit.py      audit scores, model      serve.py      serve, config
    demo.py       demo                     ledger.py     ledger

Commands pass on what the user gave and nothing else, so that defaults are declared where they are used; what they
compute is rendered there. Errors are one line on stderr, and exit code 2.
"""

import io
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, cast

from scoreveil import __version__

try:
    import typer

    from scoreveil.cli.audit import audit
    from scoreveil.cli.choose import guarantee, tune
    from scoreveil.cli.demo import demo
    from scoreveil.cli.fit import fit
    from scoreveil.cli.ledger import ledger
    from scoreveil.cli.protect import protect
    from scoreveil.cli.serve import config_app, serve
    from scoreveil.cli.show import show, verify
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] not in ("typer", "rich"):
        raise
    raise SystemExit("Error: the command line needs typer and rich: pip install 'scoreveil[cli]'.") from None

# typer brings a click of its own or uses the installed one, by version; both have this
UsageError = cast(type[Exception], typer.BadParameter.__base__)

app = typer.Typer(
    help="Put a veil over a classifier's confidence scores. Labels do not change, and what the scores reveal beyond "
    "them is bounded.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"scoreveil {__version__}")
        raise typer.Exit


for command, example in (
    (protect, "scoreveil protect scores.csv -o safe.csv --epsilon 2 --columns 'p*'"),
    (tune, "scoreveil tune scores.csv --distortion 0.2 --columns 'p*'"),
    (guarantee, "scoreveil guarantee --epsilon 0.5 --classes 10 --total 5"),
    (fit, "scoreveil fit --nonmembers out.npy --nonmember-labels y.npy --members in.npy -o veil.json"),
    (show, "scoreveil show veil.json -o veil.svg"),
    (verify, "scoreveil verify veil.json"),
    (serve, "scoreveil serve model.onnx --veil veil.json"),
    (demo, "scoreveil demo"),
):
    app.command(epilog=f"Example: {example}")(command)
app.add_typer(audit, name="audit")
app.add_typer(config_app, name="config")
app.add_typer(ledger, name="ledger")


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise SystemExit(code)


def _message(error: Exception) -> str:
    return str(cast(Any, error).format_message())


def main(arguments: Sequence[str] | None = None, commands: typer.Typer = app) -> None:
    """The entry point; of other commands too, whose errors are to look the same."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε is no reason to fail
    earlier = signal.signal(signal.SIGTERM, _terminated)  # so that what is half done is cleared away
    try:
        code = commands(arguments, standalone_mode=False)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(_message(error))  # which is the help
            raise SystemExit(0) from None
        _fail(_message(error))
    except (ValueError, ModuleNotFoundError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
    except MemoryError:
        _fail("there is not enough memory; a file may be too large, or say that it is.")
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    finally:
        signal.signal(signal.SIGTERM, earlier)
    if code == 130:
        _fail("interrupted.", 130)
    raise SystemExit(code if isinstance(code, int) else 0)
