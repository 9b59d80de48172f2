"""`scoreveil ledger`: what has been spent, for whom; whether the log is whole; how to forget, and to make room."""

import asyncio
import csv
import sys
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Annotated, TypeVar

import typer
from rich.table import Table
from rich.text import Text

from scoreveil.cli.terminal import out
from scoreveil.ledger import Books, Head, LedgerUnavailable, Scope, Total, open_books

T = TypeVar("T")

ledger = typer.Typer(
    help="Inspect privacy budgets and who used them.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LedgerOption = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        envvar="SCOREVEIL_LEDGER",
        show_envvar=False,
        help="sqlite:///FILE or postgresql://…; by default the value of SCOREVEIL_LEDGER.",
    ),
]
ClientsOption = Annotated[bool, typer.Option("--clients", help="List clients one by one.")]


@ledger.command(epilog="Example: scoreveil ledger show --ledger sqlite:///ledger.db")
def show(url: LedgerOption = None, clients: ClientsOption = False) -> None:
    """Show what each model has spent, as far as the log goes back.

    Calls that were charged, records that they began, fresh answers, what these cost the records in units, and what the
    calls cost their clients. A gateway counts in billionths of ε, or of ρ under the rule zcdp.
    """
    totals = _with_books(url, lambda books: books.totals(by_client=clients))
    if not totals:
        typer.echo("Nothing has been spent yet.")
        return
    table = Table()
    for name in _columns(clients):
        table.add_column(name, justify="left" if name in ("model", "client") else "right")
    for total in totals:
        values = _values(total, clients)
        table.add_row(*(f"{value:,}" if isinstance(value, int) else Text(value or "(none)") for value in values))
    out.print(table)


@ledger.command(epilog="Example: scoreveil ledger export --clients > spent.csv")
def export(url: LedgerOption = None, clients: ClientsOption = False) -> None:
    """Write what has been spent to the terminal, as CSV."""
    totals = _with_books(url, lambda books: books.totals(by_client=clients))
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerow(_columns(clients))
    for total in totals:
        lines.writerow(map(_plain, _values(total, clients)))


@ledger.command(epilog="Example: scoreveil ledger verify --head 12:9f3c…")
def verify(
    url: LedgerOption = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEAD", help="The head that an earlier verify printed.")
    ] = None,
) -> None:
    """Check that the ledger is intact. Exits with 1 if it is not.

    Reads the whole log. Finds a damaged file (SQLite), a row that was changed, removed or cut off (SQLite) or changed
    (PostgreSQL), and a record whose spending differs from what the log says (PostgreSQL). With --head it also finds
    what was removed or rewritten since then, or an older copy that was put back. Without a head it cannot find changes
    by someone who makes all digests anew.
    """
    earlier = None if head is None else Head.parse(head)
    result = _with_books(url, lambda books: books.verify(earlier))
    typer.echo(f"{_counted(result.calls, 'call')}, {_counted(result.answers, 'fresh answer')}.")
    if result.forgotten:
        times = "once" if result.forgotten == 1 else f"{result.forgotten:,} times"
        typer.echo(f"Forgotten on purpose: {times}. An older head no longer fits.")
    if not result.intact:
        for fault in result.faults:
            typer.echo(f"Not intact: {fault}.", err=True)
        raise typer.Exit(1)
    typer.echo("Intact: every digest fits.")
    typer.echo(f"Head: {result.head}")


@ledger.command(epilog="Example: scoreveil ledger forget --model digits/1 --yes")
def forget(
    url: LedgerOption = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="A model, or NAME/VERSION. Its records start anew.")
    ] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="The name of a client. What it received stays spent.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option("--requests", metavar="DAYS", help="Idempotency keys that are at least so many days old."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm. Without it nothing is deleted.")] = False,
) -> None:
    """Delete a model's records, a client's name, or old idempotency keys.

    The records of a forgotten model start anew, although clients keep the answers that they have. Answers to a
    forgotten client stay spent, and so does what counts towards its limit, under a hash of its name. A request whose
    key was forgotten is charged again if it comes again. A gateway that runs meanwhile reads its log anew before it
    goes on.
    """
    scope = Scope(model, client, requests)
    if not yes:
        raise ValueError("Nothing was deleted. Add --yes to delete for good.")
    forgotten = _with_books(url, lambda books: books.forget(scope))
    keys = _counted(forgotten.requests, "idempotency key")
    if model is not None:
        typer.echo(f"Forgot {_counted(forgotten.calls, 'call')}, {forgotten.requests:,} with an idempotency key.")
        typer.echo("Their records start anew. Earlier answers still count against privacy.")
    elif client is not None:
        typer.echo(f"Forgot the client in {_counted(forgotten.calls, 'call')}, and {keys}.")
        typer.echo("What it received stays spent.")
    else:
        typer.echo(f"Forgot {keys}; a request that comes again is charged again.")


@ledger.command(epilog="Example: scoreveil ledger compact --ledger sqlite:///ledger.db")
def compact(url: LedgerOption = None) -> None:
    """Delete at once what the gateway would delete little by little: calls whose records have all ended.

    A file is written anew without them, which needs as much room again. In PostgreSQL, VACUUM gives the space back.
    """
    calls = _with_books(url, lambda books: books.compact())
    typer.echo(f"Deleted {_counted(calls, 'call')} whose records have ended.")


def _with_books(url: str | None, work: Callable[[Books], Awaitable[T]]) -> T:
    if not url:
        raise ValueError("Missing --ledger or SCOREVEIL_LEDGER.")

    async def run() -> T:
        return await work(await open_books(url))

    try:
        return asyncio.run(run())
    except LedgerUnavailable as error:
        raise ValueError(str(error)) from None


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _columns(clients: bool) -> list[str]:
    return [field.name for field in fields(Total) if clients or field.name != "client"]


def _values(total: Total, clients: bool) -> list[str | int | None]:
    return [getattr(total, name) for name in _columns(clients)]


def _plain(value: str | int | None) -> str | int | None:
    """Names as text, also for spreadsheets, which take a leading = for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
