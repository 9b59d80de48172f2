"""`scoreveil audit`: attack a model's scores, with and without a veil, and say what still leaks."""

import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from scoreveil.cli.terminal import out, progress_steps

if TYPE_CHECKING:  # the audit wing brings torch and scikit-learn; only those who audit wait for them
    from scoreveil.audit.data.records import Records
    from scoreveil.audit.study.results import AttackResult, Study, Verdict
    from scoreveil.audit.study.run import Plan, Progress
    from scoreveil.audit.study.subjects import Asked, Subject

Given = tuple[Path | None, Path | None]  # scores, and their labels


def _file(flag: str, text: str) -> Any:
    return typer.Option(flag, metavar="FILE", help=text)


def audit(
    members: Annotated[
        Path | None, _file("--members", "Scores of training records (.npy, .npz, .csv, .parquet).")
    ] = None,
    nonmembers: Annotated[Path | None, _file("--nonmembers", "Scores of records not trained on.")] = None,
    member_labels: Annotated[Path | None, _file("--member-labels", "Their true labels (.npy).")] = None,
    nonmember_labels: Annotated[Path | None, _file("--nonmember-labels", "Their true labels (.npy).")] = None,
    shadow_members: Annotated[Path | None, _file("--shadow-members", "The same of a shadow model: members.")] = None,
    shadow_nonmembers: Annotated[Path | None, _file("--shadow-nonmembers", "And its non-members.")] = None,
    shadow_member_labels: Annotated[Path | None, _file("--shadow-member-labels", "Their true labels (.npy).")] = None,
    shadow_nonmember_labels: Annotated[Path | None, _file("--shadow-nonmember-labels", "Likewise.")] = None,
    reference: Annotated[Path | None, _file("--reference", "Public scores; else a part of the non-members.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="Instead of scores: package.module:predict_proba, or an .onnx file."
        ),
    ] = None,
    member_data: Annotated[
        Path | None, _file("--member-data", "With --model: .npz with x and y, an image folder or zip.")
    ] = None,
    nonmember_data: Annotated[Path | None, _file("--nonmember-data", "Likewise, not trained on.")] = None,
    shadow_data: Annotated[Path | None, _file("--shadow-data", "Data to train a shadow model on.")] = None,
    architecture: Annotated[
        str | None,
        typer.Option(
            "--architecture", metavar="FACTORY", help="package.module:factory of a model with fit and predict_proba."
        ),
    ] = None,
    shadows: Annotated[
        int, typer.Option("--shadows", help="With --architecture: train so many for LiRA and RMIA, 16 or more.")
    ] = 0,
    inversion: Annotated[
        bool, typer.Option("--inversion", help="With pictures and --shadow-data: try to redraw pictures, too.")
    ] = False,
    epsilons: Annotated[
        str | None, typer.Option("--epsilons", metavar="E,E,…", help="The ε to try, with commas between.")
    ] = None,
    defenses: Annotated[
        str | None,
        typer.Option("--defenses", metavar="NAMES", help="Defenses to compare, with commas between; by default all."),
    ] = None,
    attacks: Annotated[
        str | None,
        typer.Option("--attacks", metavar="NAMES", help="Attacks to try, with commas between; by default all."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="A folder for report.html, results.json and figures."),
    ] = None,
    fail_over: Annotated[
        str | None,
        typer.Option(
            "--fail-over", metavar="LIMIT", help="auc=0.55, tpr@1%=0.05 or tpr@0.1%=0.01: exit code 3 above it."
        ),
    ] = None,
    setting: Annotated[
        str | None,
        typer.Option(
            "--setting", metavar="DEFENSE[:E]", help="What --fail-over looks at; by default what is recommended."
        ),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", metavar="DIR", help="Keep what is done there, to go on after a stop.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same table.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes at a time.")] = 2,
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="local|ray", help="Where they run: here, or on a Ray cluster (RAY_ADDRESS)."),
    ] = "local",
) -> None:
    """Attack a model's scores, and say what leaks.

    Undefended and behind every veil and rival, by the attacks of the paper and by ones that adapt. Prints a verdict:
    what leaks, what remains, the floor that no defense that keeps the label can pass, and which ε to take.
    """
    try:
        from scoreveil.audit.report import page as report
        from scoreveil.audit.report import verdict
        from scoreveil.audit.study import run as study
        from scoreveil.audit.study.subjects import Asked, load_object
    except ModuleNotFoundError as error:
        message = f"Expected {error.name} for an audit, got none: pip install 'scoreveil[audit]'."
        raise ModuleNotFoundError(message) from None

    if fail_over is not None:
        verdict.parse_limit(fail_over)  # before the work, not after it
    plan = _plan(epsilons, defenses, attacks, seed, jobs)
    if model is None:
        if shadows or inversion:
            raise ValueError("Expected --model with --shadows and --inversion, got scores.")
        subject = _from_scores(
            (members, member_labels), (nonmembers, nonmember_labels), (shadow_members, shadow_member_labels),
            (shadow_nonmembers, shadow_nonmember_labels), reference, seed,
        )  # fmt: skip
    else:
        factory = None if architecture is None else load_object(architecture)
        asked = Asked(factory, shadows, inversion, seed, jobs)
        with _engine(engine, jobs), progress_steps("Asking the model") as progress:
            subject = _from_model(model, member_data, nonmember_data, shadow_data, asked, progress)
    if subject.pictures is not None:
        plan = replace(plan, inverted=plan.settings)
    if subject.many is not None:
        # MemGuard takes milliseconds a vector: minutes for each shadow
        plan = replace(plan, likelihood=tuple(s for s in plan.settings if s[0] != "memguard"))
    with _engine(engine, jobs), progress_steps("Attacking") as progress:
        found = study.run(subject, plan, shlex.join(["scoreveil", *sys.argv[1:]]), cache, progress)
    said = verdict.verdict(found)
    for line in (*(f"Note: {note}" for note in found.notes), *said.sentences):
        typer.echo(line)
    if folder is not None:
        typer.echo(f"Report: {report.write(found, folder)}")
    if fail_over is not None:
        _gate(found, said, fail_over, setting)


def _engine(engine: str, jobs: int) -> AbstractContextManager[None]:
    """Where joblib runs what the audit hands it."""
    if engine == "local":
        return nullcontext()
    if engine != "ray":
        raise ValueError(f"Expected --engine local or ray, got {engine}.")
    try:
        from scoreveil.integrations.ray import joblib_on_ray
    except ModuleNotFoundError as error:
        message = f"Expected {error.name} for --engine ray, got none: pip install 'scoreveil[ray]'."
        raise ModuleNotFoundError(message) from None
    return joblib_on_ray(jobs)


def _plan(epsilons: str | None, defenses: str | None, attacks: str | None, seed: int, jobs: int) -> "Plan":
    from scoreveil.audit.defenses import DEFENSES
    from scoreveil.audit.study import run as study

    tried = study.EPSILONS if epsilons is None else tuple(_numbers(epsilons))
    settings = study.grid(_names(defenses) or tuple(DEFENSES), tried)
    chosen = _names(attacks)
    plan = study.Plan(settings=settings, seed=seed, jobs=jobs)
    return plan if chosen is None else replace(plan, attacks=chosen)


def _from_scores(
    members: Given,
    nonmembers: Given,
    shadow_members: Given,
    shadow_nonmembers: Given,
    reference: Path | None,
    seed: int,
) -> "Subject":
    """Files of scores, each with a file of labels or none."""
    from scoreveil.audit.study.subjects import from_scores

    both = [_records("members", *members), _records("nonmembers", *nonmembers)]
    shadow = None
    if shadow_members[0] is not None or shadow_nonmembers[0] is not None:
        shadow = _records("shadow-members", *shadow_members), _records("shadow-nonmembers", *shadow_nonmembers)
    public = None if reference is None else _records("reference", reference, None)
    return from_scores(both[0], both[1], shadow, public, seed)


def _records(name: str, scores: Path | None, labels: Path | None) -> "Records":
    from scoreveil import files
    from scoreveil.audit.study.subjects import checked

    if scores is None:
        raise ValueError(f"Expected --{name}, a file of scores, got none (or --model with its data).")
    return checked(name, files.sample(scores)[0], None if labels is None else _labels(labels))


def _labels(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"Expected a file of labels, got no such file: {path}.")
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise ValueError(f"Expected labels in a .npy file, got {path.name}.") from None


def _from_model(
    model: str,
    members: Path | None,
    nonmembers: Path | None,
    auxiliary: Path | None,
    asked: "Asked",
    progress: "Progress",
) -> "Subject":
    from scoreveil.audit.study.subjects import from_model, load_predict

    if members is None or nonmembers is None:
        raise ValueError("Expected --member-data and --nonmember-data with --model, got one of them or none.")
    data = None if auxiliary is None else _data(auxiliary)
    return from_model(load_predict(model), _data(members), _data(nonmembers), data, asked, progress)


def _data(path: Path) -> tuple[Any, Any]:
    """Inputs and labels: x and y of an .npz, or pictures with a directory for each class."""
    from scoreveil.audit.data import images as data

    if path.suffix != ".npz":
        pictures = data.load(path)
        return pictures.pixels, pictures.labels
    if not path.is_file():
        raise ValueError(f"Expected a file of data, got no such file: {path}.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["x"], arrays["y"]
    except (KeyError, ValueError, EOFError, OSError):
        raise ValueError(f"Expected arrays x and y in an .npz file, got {path.name}.") from None


def attack_digits(folder: Path) -> None:
    """The second half of the demo: what attackers make of such scores, as in the paper and adaptively."""
    from scoreveil.audit.report import page as report
    from scoreveil.audit.report import wording
    from scoreveil.audit.study import digits
    from scoreveil.audit.study.results import best

    with progress_steps("Attacking") as progress:
        found = digits.run("scoreveil demo --attack", progress)
    made = report.write(found, folder)
    table = Table(title="Who can tell training records from others", title_justify="left")
    table.add_column("", no_wrap=True)
    for name in ("ML-Leaks,\nas in the paper", "best adaptive", "best adaptive,\ntold the label"):
        table.add_column(name, justify="right")
    for defense in found.defenses:
        setting = defense.defense, defense.epsilon
        paper = best(found.results, *setting, attack="ml_leaks", form="paper")
        fitted = [r for r in found.results if r.form != "paper"]
        adaptive = [best(tuple(fitted), *setting, reads="scores", knows_label=told) for told in (False, True)]
        table.add_row(wording.setting(*setting), *(_told(r) for r in (paper, *adaptive)))
    table.add_section()
    floors = [best(found.results, "none", None, attack=name) for name in ("label_floor", "label_floor_known")]
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


def _gate(found: "Study", said: "Verdict", limit: str, setting: str | None) -> None:
    """Exit code 3 where the chosen setting leaks more than the limit allows."""
    from scoreveil.audit.report import verdict

    chosen = said.recommended if setting is None else _setting(setting)
    if chosen is None:
        typer.echo(f"Gate: no setting holds, so {limit} is not met.")
        raise typer.Exit(3)
    name = chosen[0] if chosen[1] is None else f"{chosen[0]}, ε = {chosen[1]:g}"
    if verdict.exceeds(found, *chosen, limit):
        typer.echo(f"Gate: {name} leaks more than {limit}.")
        raise typer.Exit(3)
    typer.echo(f"Gate: {name} stays within {limit}.")


def _setting(text: str) -> tuple[str, float | None]:
    name, _, epsilon = text.partition(":")
    return name, _numbers(epsilon)[0] if epsilon else None


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"Expected numbers with commas between, got {text!r}.") from None


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
