"""`scoreveil audit`: attack a model's scores, with and without a veil, and say what still leaks."""

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from scoreveil.cli import options
from scoreveil.cli.terminal import duration, out, program, progress_bar, progress_steps
from scoreveil.smoothing import smoothed_scores

if TYPE_CHECKING:  # the audit wing brings torch and scikit-learn; only those who audit wait for them
    from scoreveil.audit.api import Audit, LabelsAudit
    from scoreveil.audit.report.pdf import Printer
    from scoreveil.audit.study.attributes import Column
    from scoreveil.audit.study.results import AttackResult, Setting, Study
    from scoreveil.audit.study.run import StudyPlan

File = Path | None
Text = str | None


def _file(text: str) -> Any:
    return typer.Option(metavar="FILE", help=text)


def _text(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text)


def audit(
    members: Annotated[File, _file("Scores of training records (.npy, .npz, .csv, .parquet).")] = None,
    nonmembers: Annotated[File, _file("Scores of records not trained on.")] = None,
    member_labels: Annotated[File, _file("Their true labels, numbers or names (.npy, .csv, .txt, .parquet).")] = None,
    nonmember_labels: Annotated[File, _file("Their true labels; give both, or neither.")] = None,
    shadow_members: Annotated[File, _file("The same of a shadow model: members.")] = None,
    shadow_nonmembers: Annotated[File, _file("And its non-members.")] = None,
    shadow_member_labels: Annotated[File, _file("Their true labels.")] = None,
    shadow_nonmember_labels: Annotated[File, _file("Likewise.")] = None,
    reference: Annotated[File, _file("Public scores; else a part of the non-members.")] = None,
    columns: options.ColumnsOption = None,
    shape: options.ShapeOption = None,
    threshold: options.ThresholdOption = None,
    logits: options.LogitsOption = False,
    model: Annotated[Text, _text("MODEL", "Instead of scores: package.module:predict_proba, or an .onnx file.")] = None,
    member_data: Annotated[File, _file("With --model: .npz or .csv with x and y, an image folder or zip.")] = None,
    nonmember_data: Annotated[File, _file("Likewise, not trained on.")] = None,
    shadow_data: Annotated[File, _file("Data to train a shadow model on.")] = None,
    architecture: Annotated[
        Text, _text("FACTORY", "package.module:factory of a model with fit and predict_proba.")
    ] = None,
    shadows: Annotated[int, typer.Option(help="With --architecture: train so many for LiRA and RMIA, 16 or more.")] = 0,
    inversion: Annotated[
        bool, typer.Option("--inversion", help="With pictures and --shadow-data: try to redraw pictures, too.")
    ] = False,
    boundary: Annotated[
        int,
        typer.Option(
            metavar="N", help="Ask for labels around N members and N others, 2,500 times each: the true floor."
        ),
    ] = 0,
    neighbours: Annotated[
        int | None,
        typer.Option(metavar="N", help="Ask around N members and N others, with smoothing and without; tables: 300."),
    ] = None,
    sensitive: Annotated[Text, _text("COLUMN", "With a table: infer this column, by name or number from 0.")] = None,
    canaries: Annotated[
        int, typer.Option(metavar="N", help="With --architecture: train one model on N coins, and prove an ε by them.")
    ] = 0,
    veil: Annotated[File, _file("A fitted veil, as `fit` writes it: attack this one.")] = None,
    epsilon: Annotated[
        Text,
        typer.Option("--epsilon", "-e", metavar="E", help="The ε of the fitted veil, or several: none,4,1."),
    ] = None,
    defenses: Annotated[
        Text, _text("NAMES", "Defenses to compare, with commas between, or all; by default a few.")
    ] = None,
    attacks: Annotated[Text, _text("NAMES", "Attacks to try, with commas between; by default all.")] = None,
    folder: Annotated[
        File, typer.Option("--output", "-o", metavar="OUT", help="A folder for report.html, results.json and figures.")
    ] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="With -o: the report as report.pdf, too.")] = False,
    fail_over: Annotated[
        Text, _text("LIMIT", "auc=0.55, tpr@1%=0.05 or tpr@0.1%=0.01: exit code 3 if an attack surely passes it.")
    ] = None,
    fail_unless_under: Annotated[
        Text, _text("LIMIT", "Likewise: exit code 3 unless every attack surely stays under it.")
    ] = None,
    setting: Annotated[
        Text, _text("DEFENSE[:E]", "What the limits are for; by default what is recommended, or no defense.")
    ] = None,
    cache: Annotated[File, _text("DIR", "Keep what is done there, to go on after a stop.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same table.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at a time.")] = 2,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Attack even if files seem to be mixed up.")] = False,
    engine: Annotated[str, _text("local|ray", "Where they run: here, or on a Ray cluster (RAY_ADDRESS).")] = "local",
) -> None:
    """Attack a model's scores, and say what leaks.

    Undefended and behind the fitted veil and its rivals, by the attacks of the paper and by ones that adapt. Says what
    to do, as `fit` does; with -o a veil that is recommended is written, too. With --shape many_labels each label is
    attacked, and all together; true labels are a column of 0 and 1 for each.
    """
    try:
        from scoreveil.audit import api
        from scoreveil.audit.api import Audit
        from scoreveil.audit.report import asked, gate
        from scoreveil.audit.report import pdf as printing
        from scoreveil.audit.report.sentences import broken_promises, first_answer, sentences
        from scoreveil.audit.study import asking, subjects
        from scoreveil.audit.study import run as study
        from scoreveil.audit.study.results import Study
        from scoreveil.audit.verdict import verdict
    except ModuleNotFoundError as error:
        message = f"An audit needs {error.name}: pip install 'scoreveil[audit]'."
        raise ModuleNotFoundError(message) from None

    # before the work, not after it
    served = options.shape(shape, threshold, logits)
    if not served.is_plain and model is not None:
        raise ValueError("--shape says how scores in files are served: give files of scores, not --model.")
    limits = [gate.parse_limit(text) for text in (fail_over, fail_unless_under) if text is not None]
    if veil is not None and epsilon is not None:
        raise ValueError("--veil names a veil that has its ε: leave --epsilon out.")
    tried = None if epsilon is None else _epsilons(epsilon)
    given, served, tried = api.given_veil(veil, served, tried)
    many = served.has_labels
    if many:
        api.check_options(defenses, attacks, cache)
    plan = _plan(tried, defenses, attacks, seed, jobs)
    gated = None if setting is None else _setting(setting, plan.settings)
    if gated is not None and not limits:
        raise ValueError("--setting names what a limit is for: give --fail-over or --fail-unless-under too.")
    if folder is not None:
        options.check_folder(folder)
    elif pdf:
        raise ValueError("--pdf prints the report that -o writes: name a folder with -o.")
    printer, extra = printing.find() if pdf else None, dict[str, Any]()
    of_scores = {
        "members": (members, member_labels),
        "nonmembers": (nonmembers, nonmember_labels),
        "shadow members": (shadow_members, shadow_member_labels),
        "shadow nonmembers": (shadow_nonmembers, shadow_nonmember_labels),
        "reference": (reference, None),
    }
    if model is None:
        if boundary or sensitive or canaries or neighbours:
            raise ValueError("--boundary, --neighbours, --sensitive and --canaries ask a model: give --model.")
        if member_data or nonmember_data or shadow_data or architecture:
            raise ValueError("--member-data, --nonmember-data, --shadow-data and --architecture go with --model.")
        if shadows or inversion:
            raise ValueError("--shadows and --inversion ask a model: give --model and its data instead of scores.")
        for name, file in (("members", members), ("nonmembers", nonmembers)):
            if file is None:
                raise ValueError(f"Expected --{name} with a file of scores (or --model with its data).")
        if given is not None:
            given.for_scores()
        subject = api.with_veil(subjects.from_given(of_scores, columns, seed, served), given)
        _ask(subject.doubts, yes)
    else:
        if canaries and architecture is None:
            raise ValueError("--canaries trains a model with them: give --architecture.")
        if columns is not None or any(file is not None for pair in of_scores.values() for file in pair):
            raise ValueError("Files of scores and labels, and --columns, go without --model, which needs data instead.")
        factory = None if architecture is None else subjects.load_object(architecture)
        wanted = subjects.ModelOptions(factory, shadows, inversion, seed, jobs)
        if member_data is None or nonmember_data is None:
            missing = "--member-data" if member_data is None else "--nonmember-data"
            raise ValueError(f"--model needs --member-data and --nonmember-data; {missing} is missing.")
        predict, auxiliary = subjects.load_predict(model), None if shadow_data is None else read_data(shadow_data)
        if given is not None and given.smoothing is not None:
            if neighbours:
                raise ValueError("--neighbours tries several smoothings; this veil has its own. Leave one of them out.")
            predict, neighbours = partial(smoothed_scores, predict, smoothing=given.smoothing), 0
        with _engine(engine, jobs), progress_steps("Asking the model") as progress:
            data = read_data(member_data), read_data(nonmember_data)
            column = None if sensitive is None else _column(sensitive, member_data, data[0][0])
            if neighbours is None:  # pictures are slow to ask about
                neighbours = min(300, len(data[0][1]), len(data[1][1]) // 2) if np.ndim(data[0][0]) == 2 else 0
                neighbours = neighbours if neighbours >= 50 else 0
            questions = asking.Questions(boundary, column, canaries, neighbours)
            subject = api.with_veil(subjects.from_model(predict, *data, auxiliary, wanted, progress), given)
        _ask(subject.doubts, yes)
        if questions:
            with progress_steps("Asking the model more") as progress:
                whom = asking.Asked(predict, *data, auxiliary, factory)
                extra = asking.ask(questions, whom, subject, plan.settings, seed, cache, progress)
    for limit in limits:
        gate.check_enough(limit.measure, min(len(subject.target.members), len(subject.target.nonmembers)))
    if many:
        with _engine(engine, jobs), progress_steps("Attacking") as progress:
            of_labels = api.of_labels(subject, plan, shlex.join(["scoreveil", *sys.argv[1:]]), progress)
        typer.echo(str(of_labels))
        if folder is not None:
            _write_labels(of_labels, folder, printer)
        everything = Study({}, of_labels.study.results, ())
        if limits and not _gate(everything, gated or of_labels.recommended, fail_over, fail_unless_under):
            raise typer.Exit(3)
        return
    if subject.pictures is not None:
        plan = replace(plan, inverted=plan.settings)
    if subject.many is not None:
        # MemGuard takes milliseconds a vector: minutes for each shadow
        plan = replace(plan, likelihood=tuple(s for s in plan.settings if s[0] != "memguard"))
    if subject.reference.labels is None:
        plan = plan.without_labels()
        if gated is not None and gated not in plan.settings:
            raise ValueError(f"Expected true labels, which --setting {setting} is fitted to: give labels too.")
    began = time.monotonic()
    with _engine(engine, jobs), progress_bar("Attacking") as job:

        def first(so_far: "Study") -> None:
            with job.hidden():
                after = duration(time.monotonic() - began)
                typer.echo(f"First answer after {after}, by the quick attacks: {first_answer(verdict(so_far))}\n")

        command = shlex.join(["scoreveil", *sys.argv[1:]])
        found = study.run(subject, plan, command, cache, job.step, first)
    found = replace(found, **extra)
    said = verdict(found)
    for line in (*(f"Note: {note}" for note in found.notes), *sentences(said), *asked.sentences(found)):
        typer.echo(line)
    if folder is not None:
        _write(Audit(found, subject), folder, printer)
    shut = bool(limits) and not _gate(found, gated or said.recommended, fail_over, fail_unless_under)
    broken = broken_promises(found)
    if broken:
        typer.echo(f"Gate shut: {len(broken)} of the settings tried break their promise, see above.")
    if shut or broken:
        raise typer.Exit(3)


def _gate(found: "Study", wanted: "Setting | None", fail_over: Text, fail_unless_under: Text) -> bool:
    """Say what limits make of a setting, or of no defense where it was not attacked; whether a release may go on."""
    from scoreveil.audit.report import gate
    from scoreveil.audit.study.results import UNDEFENDED

    chosen = wanted if wanted in {result.setting for result in found.results} else None
    limits = {"fail_over": fail_over or "", "fail_unless_under": fail_unless_under or ""}
    answers = gate.gate(found, chosen or UNDEFENDED, **limits)
    for answer in answers:
        typer.echo(answer.sentence)
    return all(answer.passes for answer in answers)


def _write(made: "Audit", folder: Path, printer: "Printer | None") -> None:
    """The report and what stands beside it, and where they are."""
    typer.echo(f"Report: {made.write(folder, printer)}")
    if made.risks is not None:
        records = folder / "records.csv"
        typer.echo(f"Records: {records} has the risk of each, and says who is a member: keep it safe.")
    given, veil = made.subject.everyone, folder / "veil.json"
    if made.veil is not None and made.subject.veil is None:
        advantage = made.veil.guarantee.advantage
        own = "" if advantage is None else f" It promises an advantage of at most {advantage:.3f}."
        typer.echo(
            f"Veil: {veil}, fitted on all {len(given.members):,} members and {len(given.nonmembers):,} non-members. "
            f"Those that were attacked were fitted on four fifths of them.{own} Next:\n"
            f"  {program()} verify {veil}\n  {program()} protect scores.csv -o safe.csv --veil {veil}"
        )


def _write_labels(made: "LabelsAudit", folder: Path, printer: "Printer | None") -> None:
    """The same of many labels."""
    typer.echo(f"Report: {made.write(folder, printer)}")
    if made.veil is not None and made.subject.veil is None:
        veil = folder / "veil.json"
        typer.echo(f"Veil: {veil}, fitted on all records given. Its promises: {program()} verify {veil}")


def _engine(engine: str, jobs: int) -> AbstractContextManager[None]:
    """Where joblib runs what the audit hands it."""
    if engine == "local":
        return nullcontext()
    if engine != "ray":
        raise ValueError(f"Expected --engine local or ray, got {engine}.")
    try:
        from scoreveil.integrations.ray import joblib_on_ray
    except ModuleNotFoundError as error:
        message = f"--engine ray needs {error.name}: pip install 'scoreveil[ray]'."
        raise ModuleNotFoundError(message) from None
    return joblib_on_ray(jobs)


def _ask(doubts: "Sequence[str]", yes: bool) -> None:
    """Ask whether files that seem to be mixed up are meant so; without a terminal the answer is no."""
    for doubt in () if yes else doubts:
        typer.echo(doubt, err=True)
        if not sys.stdin.isatty():
            raise ValueError("Nothing was attacked. If these files are meant so, say --yes.")
        typer.confirm("Attack them all the same?", abort=True, err=True)


def _plan(tried: "list[float | None] | None", defenses: Text, attacks: Text, seed: int, jobs: int) -> "StudyPlan":
    from scoreveil.audit.study import run as study

    wanted = study.EVERYTHING if defenses == study.EVERYTHING else _names(defenses)
    return study.planned(wanted, tried, _names(attacks), seed, jobs)


def read_data(path: Path) -> tuple[Any, Any]:
    """Inputs and labels: x and y of an .npz, a .csv table, or pictures with a directory for each class."""
    from scoreveil.audit.data.images import from_pictures
    from scoreveil.audit.data.tables import read_csv

    if path.suffix == ".csv":
        if not path.is_file():
            raise ValueError(f"Expected a table in a .csv file, got no such file: {path}.")
        return read_csv(path)[:2]
    if path.suffix != ".npz":
        if not path.exists():
            raise ValueError(f"Expected a .csv, an .npz, or a folder or .zip of pictures, got no such file: {path}.")
        pictures = from_pictures(path)
        return pictures.pixels, pictures.labels
    arrays = _loaded(path, "arrays x and y in an .npz file")
    try:
        return arrays["x"], arrays["y"]
    except KeyError:
        raise ValueError(f"Expected arrays x and y in {path.name}, got {', '.join(arrays)}.") from None


def _column(text: str, path: Path, x: Any) -> "Column":
    """The sensitive column, by the names that a .csv has, or the array `columns` of an .npz; else by number."""
    from scoreveil.audit.data.tables import column_number, read_csv
    from scoreveil.audit.study.attributes import Column

    if np.ndim(x) != 2:
        raise ValueError(f"--sensitive names a column of a table; {path.name} holds none.")
    names = read_csv(path)[2] if path.suffix == ".csv" else _loaded(path, "a table in an .npz file").get("columns", ())
    return Column(column_number(text, names, x.shape[1]), text)


def _loaded(path: Path, what: str) -> Any:
    """What numpy finds in a file."""
    if not path.is_file():
        raise ValueError(f"Expected {what}, got no such file: {path}.")
    try:
        with path.open("rb") as opened:
            found = np.load(opened, allow_pickle=False)
            return dict(found) if hasattr(found, "files") else found
    except (ValueError, EOFError, OSError):
        raise ValueError(f"Expected {what}, got {path.name}, which numpy cannot read.") from None


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


def _setting(text: str, planned: "tuple[Setting, ...]") -> "Setting":
    """The setting that `regions` or `regions:2` names, which the study must have."""
    name, _, epsilon = text.partition(":")
    found = name, _epsilons(epsilon or "none")[0]
    if found not in planned:
        there = ", ".join(one if e is None else f"{one}:{e:g}" for one, e in planned)
        raise ValueError(f"Expected --setting among what is studied ({there}), got {text!r}.")
    return found


def _epsilons(text: str) -> list[float | None]:
    try:
        return [None if part.strip().lower() == "none" else float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"Expected numbers with commas between, or none, got {text!r}.") from None


def _names(text: Text) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
