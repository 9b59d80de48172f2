"""`scoreveil audit`: attack a model's scores, with and without a veil, and say what still leaks."""

import dataclasses
import functools
import inspect
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperCommand

from scoreveil.cli import options
from scoreveil.cli.terminal import duration, out, program, progress_bar, progress_steps
from scoreveil.extras import needs
from scoreveil.files.inputs import read_inputs

if TYPE_CHECKING:  # the audit brings torch and scikit-learn; only those who audit wait for them
    from scoreveil.audit.api import Audit
    from scoreveil.audit.study.results import AttackResult
    from scoreveil.audit.verdict import AuditVerdict

File = Path | None
Text = str | None

audit = typer.Typer(
    help="Measure how much a model's scores reveal about its training data.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Grouped(TyperCommand):
    """A command whose help has a section for each panel of its options."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels = dict[str, list[tuple[str, str]]]()
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                panels.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records)


def _in(panel: str) -> Callable[..., Any]:
    """An option of a panel: its metavar, what it says, and names other than its own."""
    return lambda metavar, text, *names, **more: typer.Option(
        *names, metavar=metavar, help=text, rich_help_panel=panel, **more
    )


_files, _data, _shadow = _in("Scores"), _in("The model's data"), _in("A shadow model")
_more, _tried = _in("What else the model is asked"), _in("What is tried")
_report, _work = _in("Report and limits"), _in("How it runs")


@dataclass(frozen=True)
class Common:
    """The options of both commands."""

    veil: Annotated[File, _tried("FILE", "A fitted veil, as `fit` writes it: attack this one.")] = None
    epsilon: Annotated[Text, _tried("E", "The ε of the fitted veil, or several: none,4,1.", "--epsilon", "-e")] = None
    defenses: Annotated[
        Text, _tried("NAMES", "Defenses to compare, with commas between, or all; by default a few.")
    ] = None
    attacks: Annotated[Text, _tried("NAMES", "Attacks to try, with commas between; by default all.")] = None
    folder: Annotated[File, _report("OUT", "A folder for report.html, results.json and figures.", "--output", "-o")] = (
        None
    )
    pdf: Annotated[bool, _report(None, "With -o: the report as report.pdf, too.", "--pdf")] = False
    fail_over: Annotated[
        str,
        _report(
            "LIMIT",
            "auc=0.55, tpr@1%=0.05 or tpr@0.1%=0.01: exit code 3 if an attack surely passes it.",
            show_default=False,
        ),
    ] = ""
    fail_unless_under: Annotated[
        str, _report("LIMIT", "Likewise: exit code 3 unless every attack surely stays under it.", show_default=False)
    ] = ""
    setting: Annotated[
        str,
        _report(
            "DEFENSE[:E]",
            "What the limits are for; by default what is recommended, or no defense.",
            show_default=False,
        ),
    ] = ""
    cache: Annotated[File, _work("DIR", "Keep what is done there, to go on after a stop.")] = None
    seed: Annotated[int, _work(None, "The same seed gives the same table.")] = 0
    jobs: Annotated[int, _work(None, "Processes at a time.", min=1)] = 2
    yes: Annotated[bool, _work(None, "Attack even if the two sides seem to be mixed up.", "--yes", "-y")] = False
    engine: Annotated[str, _work("local|ray", "Where they run: here, or on a Ray cluster (RAY_ADDRESS).")] = "local"


def _with_common(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `Common` after its own, which it is given as one value."""
    shared = {option.name: option for option in dataclasses.fields(Common)}

    @functools.wraps(command)
    def run(**given: Any) -> None:
        common = Common(**{name: given.pop(name) for name in shared})
        command(**given, common=common)

    own = [parameter for name, parameter in inspect.signature(command).parameters.items() if name != "common"]
    others = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
        for name, option in shared.items()
    ]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + others
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@audit.command(cls=Grouped, epilog="Example: scoreveil audit scores --members in.npy --nonmembers out.npy -o report")
@_with_common
def scores(
    members: Annotated[Path, _files("FILE", "Scores of training records (.npy, .npz, .csv, .parquet).")],
    nonmembers: Annotated[Path, _files("FILE", "Scores of records not trained on.")],
    member_labels: Annotated[
        File, _files("FILE", "Their true labels, numbers or names (.npy, .csv, .txt, .parquet).")
    ] = None,
    nonmember_labels: Annotated[File, _files("FILE", "Their true labels; give both, or neither.")] = None,
    reference: Annotated[File, _files("FILE", "Public scores; else a part of the non-members.")] = None,
    columns: options.ColumnsOption = None,
    shape: options.ShapeOption = None,
    threshold: options.ThresholdOption = None,
    logits: options.LogitsOption = False,
    shadow_members: Annotated[File, _shadow("FILE", "The same of a shadow model: members.")] = None,
    shadow_nonmembers: Annotated[File, _shadow("FILE", "And its non-members.")] = None,
    shadow_member_labels: Annotated[File, _shadow("FILE", "Their true labels.")] = None,
    shadow_nonmember_labels: Annotated[File, _shadow("FILE", "Likewise.")] = None,
    *,
    common: Common,
) -> None:
    """Attack scores in files, and say what leaks.

    Undefended and behind the fitted veil and its rivals, by the attacks of the paper and by ones that adapt. Says what
    to do, as `fit` does; with -o a veil that is recommended is written, too. With --shape multi_label each label is
    attacked, and whole answers; true labels are a column of 0 and 1 for each.
    """
    shadow = shadow_members, shadow_nonmembers, shadow_member_labels, shadow_nonmember_labels
    _run(
        common, members=members, nonmembers=nonmembers, member_labels=member_labels, nonmember_labels=nonmember_labels,
        reference=reference, columns=columns, shape=options.shape(shape, threshold, logits),
        shadow=shadow if any(shadow) else (),
    )  # fmt: skip


@audit.command(
    cls=Grouped,
    epilog="Example: scoreveil audit model package.module:predict_proba --member-data in.npz --nonmember-data out.npz",
)
@_with_common
def model(
    model: Annotated[str, typer.Argument(help="package.module:predict_proba, or an .onnx file.", metavar="MODEL")],
    member_data: Annotated[Path, _data("FILE", "Training records: .npz or .csv with x and y, an image folder or zip.")],
    nonmember_data: Annotated[Path, _data("FILE", "Likewise, not trained on.")],
    shadow_data: Annotated[File, _shadow("FILE", "Data to train a shadow model on.")] = None,
    architecture: Annotated[
        Text, _shadow("FACTORY", "package.module:factory of a model with fit and predict_proba.")
    ] = None,
    shadows: Annotated[int, _shadow(None, "With --architecture: train so many for LiRA and RMIA, 16 or more.")] = 0,
    inversion: Annotated[
        bool, _more(None, "With pictures and --shadow-data: try to redraw pictures, too.", "--inversion")
    ] = False,
    boundary: Annotated[
        int, _more("N", "Ask for labels around N members and N others, 2,500 times each: the true floor.")
    ] = 0,
    neighbours: Annotated[
        int | None, _more("N", "Ask around N members and N others, with smoothing and without; tables: 300.")
    ] = None,
    sensitive: Annotated[Text, _more("COLUMN", "With a table: infer this column, by name or number from 0.")] = None,
    canaries: Annotated[
        int, _more("N", "With --architecture: train one model on N coins, and prove an ε by them.")
    ] = 0,
    *,
    common: Common,
) -> None:
    """Ask a model for its scores, attack them, and say what leaks.

    As `scoreveil audit scores`, with shadow models that are trained here, and attacks that ask the model more.
    """
    with needs("audit"):
        from scoreveil.audit.study.models import Model
    own = None if shadow_data is None else read_inputs(shadow_data)
    auxiliary = None if own is None else (own.x, own.y)
    asked = Model(
        model, architecture, auxiliary, shadows, inversion, boundary, sensitive, canaries, neighbours
    )  # fmt: skip
    _run(common, members=member_data, nonmembers=nonmember_data, model=asked)


def _run(common: Common, **given: Any) -> None:
    """Audit, say what was found, and write it; exit with 3 where a limit is not kept."""
    with needs("audit"):
        from scoreveil.audit import api
        from scoreveil.audit.report import pdf
        from scoreveil.audit.report.sentences import first_answer
    if common.folder is not None:
        options.check_folder(common.folder)
    elif common.pdf:
        raise ValueError("--pdf prints the report that -o writes: name a folder with -o.")
    printer, began = pdf.find() if common.pdf else None, time.monotonic()
    given |= _settings(common) | {"limits": api.Limits(common.fail_over, common.fail_unless_under, common.setting)}

    def audited(force: bool) -> "Audit":
        with _engine(common.engine, common.jobs), progress_bar("Attacking") as job:

            def first(verdict: "AuditVerdict") -> None:
                with job.hidden():
                    after = duration(time.monotonic() - began)
                    typer.echo(f"First answer after {after}, by the quick attacks: {first_answer(verdict)}\n")

            return api.run(**given, force=force, progress=job.step, first=first)

    try:
        found = audited(common.yes)
    except api.Doubtful as doubt:
        _confirm(doubt)
        found = audited(True)
    typer.echo(str(found))
    if common.folder is not None:
        _written(found, found.write(common.folder, printer))
    for gate in found.gates:
        typer.echo(gate.sentence)
    if not all(gate.passes for gate in found.gates):
        raise typer.Exit(3)


def _settings(common: Common) -> dict[str, Any]:
    """What `audit.run` takes of the options of both commands."""
    names = _names(common.defenses)
    return {
        "veil": common.veil,
        "epsilon": None if common.epsilon is None else _epsilons(common.epsilon),
        "defenses": "all" if names == ("all",) else names,
        "attacks": _names(common.attacks),
        "cache": common.cache,
        "seed": common.seed,
        "jobs": common.jobs,
        "command": shlex.join(["scoreveil", *sys.argv[1:]]),
    }


def _confirm(doubt: Exception) -> None:
    """Ask whether files that seem to be mixed up are meant so; without a terminal the answer is no."""
    typer.echo(str(doubt), err=True)
    if not sys.stdin.isatty():
        raise ValueError("Nothing was attacked. If these files are meant so, say --yes.") from None
    typer.confirm("Attack them all the same?", abort=True, err=True)


def _written(found: "Audit", report: Path) -> None:
    """Where the report is, and what stands beside it."""
    typer.echo(f"Report: {report}")
    if found.risks is not None:
        records = report.with_name("records.csv")
        typer.echo(f"Records: {records} has the risk of each, and says who is a member: keep it safe.")
    sides, veil = found.subject.everyone, report.with_name("veil.json")
    if found.veil is not None and found.subject.veil is None:
        advantage = found.veil.guarantee.advantage
        own = "" if advantage is None else f" It promises an advantage of at most {advantage:.3f}."
        typer.echo(
            f"Veil: {veil}, fitted on all {len(sides.members):,} members and {len(sides.nonmembers):,} non-members. "
            f"Those that were attacked were fitted on four fifths of them.{own} Next:\n"
            f"  {program()} verify {veil}\n  {program()} protect scores.csv -o safe.csv --veil {veil}"
        )


def _engine(engine: str, jobs: int) -> AbstractContextManager[None]:
    """Where joblib runs what the audit hands it."""
    if engine == "local":
        return nullcontext()
    if engine != "ray":
        raise ValueError(f"Expected --engine local or ray, got {engine}.")
    with needs("ray"):
        from scoreveil.integrations.ray import joblib_on_ray
    return joblib_on_ray(jobs)


def attack_digits(folder: Path) -> None:
    """The second half of the demo: what attackers make of such scores, as in the paper and adaptively."""
    from scoreveil.audit.report import page, wording
    from scoreveil.audit.study import digits
    from scoreveil.audit.study.results import best, floor

    with progress_steps("Attacking") as progress:
        found = digits.run("scoreveil demo --attack", progress)
    made = page.write(found, folder)
    table = Table(title="Who can tell training records from others", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("ML-Leaks,\nas in the paper", "best adaptive", "best adaptive,\ntold the label"):
        table.add_column(name, justify="right")
    fitted = replace(found, results=tuple(r for r in found.results if r.form != "paper"))
    for setting in (defense.setting for defense in found.defenses):
        paper = best(found, setting, attack="ml_leaks", form="paper")
        adaptive = [best(fitted, setting, reads="scores", knows_label=told) for told in (False, True)]
        table.add_row(wording.setting_in_words(setting), *(_told(r) for r in (paper, *adaptive)))
    table.add_section()
    floors = [floor(found, told) for told in (False, True)]
    table.add_row("the label alone", "", *(_told(r) for r in floors))
    out.print(table)
    out.print(
        "Accuracy on as many members as non-members, and AUC (± half its 95 % interval); 50 % and .50 are guessing. "
        f"The last row is the floor that no defense that keeps the label can pass. Report: {made}"
    )


def _told(result: "AttackResult | None") -> str:
    if result is None:
        return ""
    return f"{result.accuracy:.1%}   {result.auc:.2f} ± {(result.auc_high - result.auc_low) / 2:.2f}"


def _epsilons(text: str) -> list[float | None]:
    try:
        return [None if part.strip().lower() == "none" else float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"Expected numbers with commas between, or none, got {text!r}.") from None


def _names(text: Text) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
