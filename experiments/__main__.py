"""`python -m experiments`: the paper's experiments, run again, with its tables and figures beside ours."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

try:
    import opacus  # noqa: F401 - missed before the work, not after hours of it
    import typer

    from experiments.data import benchmarks
    from experiments.data import download as downloads
    from experiments.frontier import comparison, training
    from experiments.paper import folder as folders
    from experiments.paper.reproduction import PROFILES, Profile, reproduce
    from scoreveil.audit import cache as caches
    from scoreveil.audit.study.results import Study
    from scoreveil.cli import main
    from scoreveil.cli.terminal import err, progress_bar, progress_steps
except ModuleNotFoundError as error:
    raise SystemExit(f"Error: the experiments need {error.name}: pip install -e '.[dev]', in the clone.") from None

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(epilog="Example: python -m experiments --profile quick --data-dir data")
def run(
    profile: Annotated[
        str,
        typer.Option(
            metavar="quick|standard|defenses|paper", help="How much to run: minutes, hours, or days on a GPU."
        ),
    ] = "quick",
    dataset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="mnist, fashion-mnist, cifar10, adult, separated by commas, or all."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="With --profile defenses: ways to train, separated by commas (default: all)."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="A folder for tables and reports (default: reproduction-PROFILE)."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the datasets (default: $SCOREVEIL_DATA).")
    ] = None,
    download: Annotated[bool, typer.Option("--download", help="Download missing datasets without asking.")] = False,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder that keeps finished work, so that a stopped run can continue."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="How many epochs to train, instead of the profile's number.")
    ] = None,
    shadows: Annotated[
        int | None, typer.Option(help="How many shadow models, instead of the profile's number; 0 for none.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="How many processes run at a time.")] = 2,
) -> None:
    """Repeat the paper's experiments.

    Trains the paper's classifier, its shadow and the attackers, and measures every defense. Writes the paper's Table 2
    and figures with the measured numbers beside the printed ones. With --profile defenses it compares defenses in
    training, alone and behind the fitted veil. A stopped run continues from its cache.
    """
    chosen = _profile(profile, epochs, shadows)
    if recipe is not None:
        if not chosen.recipes:
            raise ValueError(f"--recipe goes with --profile defenses, got --profile {profile}.")
        chosen = replace(chosen, recipes=_recipes(recipe, chosen))
    names = _datasets(dataset, chosen)
    for name in names:
        _get(name, benchmarks.place(data_dir), download)
    command = shlex.join(["python", "-m", "experiments", *sys.argv[1:]])
    if chosen.recipes:
        place = folder or Path(f"reproduction-{profile}")
        made = _compare_recipes(chosen, names, place, data_dir, caches.root(cache), command, jobs)
        typer.echo(f"Tables: {made}")
        return
    studies: dict[str, Study] = {}
    for name in names:
        with progress_steps(name) as progress:
            studies[name] = reproduce(chosen, name, data_dir, caches.root(cache), command, jobs, progress)
    made = folders.write(studies, folder or Path(f"reproduction-{profile}"), command)
    typer.echo(f"Tables: {made}")
    for name in studies:
        typer.echo(f"Report: {made.parent / name / 'report.html'}")


def _compare_recipes(
    profile: Profile,
    datasets: tuple[str, ...],
    folder: Path,
    data_dir: Path | None,
    cache_dir: Path,
    command: str,
    jobs: int,
) -> Path:
    """Every way to train on every dataset; the tables are written anew after each, the first one soon."""
    rows = list[training.Row]()
    for dataset in datasets:
        for name in profile.recipes:
            with progress_steps(f"{dataset}, {name}") as progress:
                rows += training.study_recipe(name, profile, dataset, data_dir, cache_dir, jobs, progress)
            made = comparison.write(rows, folder, command)
    return made


def _recipes(given: str, profile: Profile) -> tuple[str, ...]:
    wanted = [name.strip() for name in given.split(",")]
    for name in wanted:
        if name not in profile.recipes:
            raise ValueError(f"Expected ways to train among {', '.join(profile.recipes)}, got {name!r}.")
    return tuple(name for name in profile.recipes if name in wanted)


def _profile(name: str, epochs: int | None, shadows: int | None) -> Profile:
    if name not in PROFILES:
        raise ValueError(f"Expected a profile among {', '.join(PROFILES)}, got {name!r}.")
    profile = PROFILES[name]
    if shadows is not None:
        profile = replace(profile, shadows=dict.fromkeys(profile.shadows, shadows))
    if epochs is None:
        return profile
    inversion = {data: replace(settings, epochs=epochs) for data, settings in profile.inversion.items()}
    return replace(profile, epochs=dict.fromkeys(profile.epochs, epochs), inversion=inversion)


def _datasets(given: str | None, profile: Profile) -> tuple[str, ...]:
    if given is None:
        return profile.datasets
    known = tuple(profile.epochs)
    if given == "all":
        return known
    wanted = [name.strip() for name in given.split(",")]
    for name in wanted:
        if name not in known:
            raise ValueError(f"Expected datasets among {', '.join(known)} or all, got {name!r}.")
    return tuple(name for name in known if name in wanted)


def _get(name: str, place: Path, download: bool) -> None:
    """Make sure that a dataset is there: found, or fetched if the user wants it."""
    try:
        benchmarks.find(name, place)
    except FileNotFoundError as missing:
        size = f"{downloads.size(name):.0f} MB"
        if not download:
            if not (sys.stdin.isatty() and err.is_terminal):
                raise FileNotFoundError(f"{missing} Or let --download fetch them ({size}).") from None
            err.print(str(missing))
            if not typer.confirm(f"Download {name} ({size}) into {place}?", err=True):
                raise typer.Exit(2) from None
        with progress_bar(f"Downloading {name}") as progress:
            downloads.fetch(name, place, progress)


if __name__ == "__main__":
    main(commands=app)
