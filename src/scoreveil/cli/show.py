"""`scoreveil show` and `verify`: the regions of a fitted veil, and its promises recomputed."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scoreveil import atomic
from scoreveil.audit.report import region_tables
from scoreveil.audit.report.charts import regions as chart
from scoreveil.audit.report.table import Column, Table, TableCell, table, word
from scoreveil.cli import options
from scoreveil.cli.tables import shown
from scoreveil.cli.terminal import out
from scoreveil.extras import needs
from scoreveil.files.output import refuse_existing
from scoreveil.mechanisms.promises import Attacker, RegionCounts
from scoreveil.shapes import Shape, said_beside
from scoreveil.veil import Veil

if TYPE_CHECKING:  # scipy takes a while to import
    from scoreveil.files.records import Scored, Source
    from scoreveil.fitting.recount import Recount

MAX_ROWS = 24  # of a table with many labels

VeilArgument = Annotated[Path, typer.Argument(metavar="VEIL", help="A file that `fit` or `Veil.save` wrote.")]


def check_target(target: Path, endings: tuple[str, ...], what: str, force: bool) -> None:
    """Refuse a file that cannot be written, before the work."""
    if target.suffix not in endings:
        raise ValueError(f"{what} is written as {' or '.join(endings)}; {target.name} does not end in it.")
    if not target.parent.is_dir():
        raise ValueError(f"There is no directory {target.parent} to write to.")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"Nothing can be written into {target.parent}.")
    refuse_existing(target, force)


def warn(message: str) -> None:
    typer.echo(f"Warning: {message}", err=True)


def read_records(
    given: "tuple[Source, Source, Source, Source]", columns: str | None, shape: Shape, force: bool
) -> "tuple[Scored, Scored | None]":
    """Others and members; where they seem to be mixed up refused, or with force a warning."""
    with needs("fit"):
        from scoreveil.fitting.records import check_doubts, doubts, read_both

    others, inside, note = read_both(*given, columns, shape)
    if note:
        out.print(note, soft_wrap=True)
    if not force:
        check_doubts(others, inside)
    for doubt in doubts({"nonmembers": others, "members": inside}) if force else ():
        warn(doubt)
    return others, inside


# The regions


def show(
    path: VeilArgument,
    target: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="Draw them, too: an .svg picture, or an .html page."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
) -> None:
    """Show the regions of a fitted veil.

    A line for each: which top scores it has, in how many strips of how the rest is spread, the share of members and of
    others that fall into it, how often their labels are right, and what is announced. With ε, also how often a region
    gives each answer. Of a veil that is not fitted, its guarantee.
    """
    veil = _load(path)
    if target is not None:
        check_target(target, (".svg", ".html"), "A picture of a veil", force)
    if not veil.mechanism.maps:
        if target is not None:
            raise ValueError(f"Only a fitted veil has regions to draw; {path.name} is of {veil.mechanism.name}.")
        out.print(str(veil.guarantee), soft_wrap=True)
        return
    show_regions(veil)
    if target is not None:
        atomic.write(target, _drawing(veil) if target.suffix == ".svg" else _page(veil, path))
        out.print(f"Wrote {target}.", soft_wrap=True)


def _load(path: Path) -> Veil:
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    return Veil.load(path)  # which verifies it


def _drawing(veil: Veil) -> str:
    sheets = [chart.sheet(it) for it in chart.read(veil)[: chart.MAX_LABELS]]
    return chart.drawn(chart.stacked(sheets) if len(sheets) > 1 else sheets[0], alone=True)


def _page(veil: Veil, path: Path) -> str:
    with needs("audit"):
        from scoreveil.audit.report import fitted
    return fitted.html(veil, (), str(path))


def show_regions(veil: Veil, names: Sequence[str] = ()) -> None:
    """A table for each label; with ε, another of how often each answer is given."""
    maps = chart.read(veil, names)
    for it in maps[: chart.MAX_LABELS]:
        out.print(shown(region_tables.regions(it)))
        if it.mechanism.table is not None:
            title = f"With ε = {it.mechanism.epsilon:g}, how often a region announces each confidence:"
            out.print(shown(region_tables.answers(it), title))
    if len(maps) > chart.MAX_LABELS:
        out.print(f"… and {len(maps) - chart.MAX_LABELS} more labels.")
    out.print()


# The promises


File = Path | None


def _file(text: str) -> Any:
    return typer.Option(metavar="FILE", help=text)


def verify(
    path: VeilArgument,
    members: Annotated[File, _file("Scores of training records: count the regions on them.")] = None,
    member_labels: Annotated[File, _file("Their true classes.")] = None,
    nonmembers: Annotated[File, _file("With --members: scores of records that were not trained on.")] = None,
    nonmember_labels: Annotated[File, _file("Their true classes.")] = None,
    columns: options.ColumnsOption = None,
    shape: options.ShapeOption = None,
    threshold: options.ThresholdOption = None,
    logits: options.LogitsOption = False,
    force: Annotated[bool, typer.Option("--force", help="Count even if files of records seem to be mixed up.")] = False,
) -> None:
    """Recompute every promise of a saved veil from the counts in its file.

    Exits with 2 where the file breaks one. With records of both sides, also counts the regions on these, and exits with
    3 where they surely exceed what is stated.
    """
    served, veil = options.shape(shape, threshold, logits), _load(path)
    refusal = "The veil has its shape already; leave --shape and its options out."
    veil = veil.with_shape(said_beside(veil.shape, served, refusal))
    files = nonmembers, nonmember_labels, members, member_labels
    if any(files) and not (members and nonmembers):
        raise ValueError("What tells members from others is counted on both: give --members and --nonmembers.")
    if members is not None and not veil.mechanism.maps:
        raise ValueError(f"Only a fitted veil has regions to count; {path.name} is of {veil.mechanism.name}.")
    for mechanism in veil.mechanism.maps:
        mechanism.verify()
    sides = None if members is None else read_records(files, columns, veil.shape, force)
    out.print(f"{path} keeps its promises.\n", soft_wrap=True)
    known = [(label, part.evidence) for label, part in enumerate(veil.mechanism.maps) if part.evidence is not None]
    if known:
        out.print(shown(_stated(known, has_labels=len(veil.mechanism.maps) > 1)), "", sep="\n")
    out.print(str(veil.guarantee), soft_wrap=True)
    if sides is not None and not _holds(veil, *sides):
        raise typer.Exit(3)


def _stated(known: Sequence[tuple[int, RegionCounts]], has_labels: bool) -> Table:
    """What is stated about each attacker; of many labels, by the label where it is most."""
    from scoreveil.fitting.statement import ATTACKS, is_held_to

    rows: list[tuple[Attacker, int, RegionCounts]] = []
    for attacker in ATTACKS:
        about = [(label, evidence) for label, evidence in known if attacker in evidence.attackers]
        if about:
            rows.append((attacker, *max(about, key=lambda one: one[1].stated(attacker))))
    columns: list[Column[tuple[Attacker, int, RegionCounts]]] = [
        ("attack", "", lambda row: word(ATTACKS[row[0]])),
        ("label", "", lambda row: TableCell(str(row[1]))),
        ("asked", "", lambda row: _figure(row[2].asked if is_held_to(row[2], row[0]) else None)),
        ("on the counts", "", lambda row: _figure(float(row[2].shown(row[0])))),
        ("for new records", "", lambda row: _figure(row[2].stated(row[0]))),
    ]
    if not has_labels:
        del columns[1]
    return table("By how much an attack may exceed guessing (95 % each)", rows, columns)


def _figure(value: float | None) -> TableCell:
    return TableCell("–" if value is None else f"{value:.3f}", value)


def _holds(veil: Veil, others: "Scored", members: "Scored | None") -> bool:
    """Count the regions and say what follows; False where a promise is surely exceeded."""
    from scoreveil.fitting.recount import Verdict, recount
    from scoreveil.fitting.statement import ATTACKS

    assert members is not None, "it was given"
    out.print(
        f"\nCounted on {members.records:,} members and {others.records:,} others, without noise: these figures are "
        "about these records, and they are not private. Records that the veil was not fitted on say most.",
        soft_wrap=True,
    )
    order, verdicts = list(ATTACKS), set()
    results = recount(veil, others, members=members)
    _print_recounts(sorted(results, key=lambda one: (one.label or 0, order.index(one.attacker))))
    verdicts = {one.verdict for one in results}
    if Verdict.EXCEEDED in verdicts:
        out.print("The promise is exceeded on these records: the lower end of an interval is above what is stated.")
    elif Verdict.OPEN in verdicts:
        out.print("It cannot be told whether the promise holds: more was found than is stated, which may be chance.")
    elif Verdict.HELD in verdicts:
        out.print("The promise held on these records.")
    else:
        out.print("The veil was fitted without members, and states nothing that could be held to it.")
    return Verdict.EXCEEDED not in verdicts


def _print_recounts(results: "Sequence[Recount]") -> None:
    """A row for each attacker; of many labels those first that are nearest to what is stated, or beyond."""
    from scoreveil.fitting.statement import ATTACKS

    columns: list[Column[Recount]] = [
        ("attack", "", lambda one: word(ATTACKS[one.attacker])),
        ("found", "", lambda one: _figure(one.found)),
        ("95 % bootstrap", "", lambda one: TableCell(f"{one.low:.3f}–{one.high:.3f}")),
        ("stated", "", lambda one: _figure(one.stated)),
        ("promise", "", lambda one: word(one.verdict.value)),
    ]
    if any(one.label is not None for one in results):
        columns.insert(1, ("label", "", lambda one: TableCell(str(one.label))))
        results = sorted(results, key=lambda one: one.found - (one.stated or 0.0), reverse=True)
    title = "By how much an attack exceeds guessing on these records"
    out.print(shown(table(title, results[:MAX_ROWS], columns)))
    if len(results) > MAX_ROWS:
        out.print(f"… and {len(results) - MAX_ROWS} more, each further below what is stated.")
