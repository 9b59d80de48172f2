"""`scoreveil fit`, `show` and `verify`: the most useful veil for a model, its regions, and its promises recomputed."""

import math
import os
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from scoreveil.cli import options, smoothed
from scoreveil.cli.terminal import err, out, program
from scoreveil.extras import needs
from scoreveil.mechanisms.guarantee import Guarantee
from scoreveil.mechanisms.promises import Attacker, Evidence
from scoreveil.shapes import said_beside
from scoreveil.veil import Veil

if TYPE_CHECKING:  # scipy takes a while to import; only those who fit wait for it
    from scoreveil.audit.report.charts.regions import RegionMap
    from scoreveil.fitting.cost import Cost, LabelCost
    from scoreveil.fitting.decision import Evidence as Fitted
    from scoreveil.fitting.frontier import Trial
    from scoreveil.fitting.recount import Recount

Sides = tuple[Path | None, Path | None, Path | None, Path | None]  # of others and members, scores and labels

FEW = 0.01  # false positives at which true ones are told
MOST_ROWS = 24  # of a table with many labels
# what an attack looks at, and what its advantage is beyond
ATTACKS = {
    Attacker.ALONE: "confidence alone",
    Attacker.LABEL: "beyond the label",
    Attacker.CORRECTNESS: "beyond being right",
    Attacker.LABEL_AND_CORRECTNESS: "beyond label and truth",
}

VeilArgument = Annotated[Path, typer.Argument(metavar="VEIL", help="A file that `fit` or `Veil.save` wrote.")]
MembersOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Scores of training records: bounds the advantage.")
]
MemberLabelsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Their true classes: also against attackers who know them.")
]
NonmemberLabelsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Their true classes, numbers or names: calibrates answers.")
]


def fit(
    nonmembers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Scores of records that were not trained on.")
    ] = None,
    nonmember_labels: NonmemberLabelsOption = None,
    members: MembersOption = None,
    member_labels: MemberLabelsOption = None,
    columns: options.ColumnsOption = None,
    shape: options.ShapeOption = None,
    threshold: options.ThresholdOption = None,
    logits: options.LogitsOption = False,
    advantage: Annotated[
        float, typer.Option("--advantage", metavar="D", help="What an attack may gain over guessing, beyond the label.")
    ] = 0.02,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", "-e", metavar="E", help="Also bound what an answer tells of a single record."),
    ] = None,
    beyond: Annotated[
        str,
        typer.Option(
            "--beyond", metavar="label|correctness", help="Bound what answers add to the label, or to being right."
        ),
    ] = "label",
    regions: Annotated[
        int | None, typer.Option("--regions", metavar="N", help="How many regions there may be, 1 to 8.")
    ] = None,
    certify: Annotated[
        float | None,
        typer.Option(
            "--certify", metavar="PART", help="Hold this part of the records back, such as 0.3: states a theorem."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Instead of scores: package.module:predict_proba, or an .onnx file."),
    ] = None,
    member_data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --model: .npz or .csv with x and y, an image folder.")
    ] = None,
    nonmember_data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Likewise, records that were not trained on.")
    ] = None,
    smoothing: Annotated[
        str, typer.Option(metavar="none|auto|SCALE", help="With --model: read the confidence around each record.")
    ] = "none",
    target: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="Where to write the veil: a .json file. Without, compare."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Write a page with figures there, and its numbers.")
    ] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="With --report: the page as report.pdf, too.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace OUT if it exists; fit even if files seem to be mixed up.")
    ] = False,
) -> None:
    """Fit the most useful veil that keeps its promises.

    Prints what holds for new records, the regions, what is promised, and what the confidence is worth beside raw
    scores and beside the label alone, measured on records that the veil was not fitted on. Without -o it compares a
    veil without ε to several with one, and writes nothing. With --shape many_labels, true labels are a column of 0
    and 1 for each.
    """
    served = options.shape(shape, threshold, logits)
    if target is not None:
        _check_target(target, (".json",), "A fitted veil", force)
        if report is not None:
            options.check_folder(report)
    elif report is not None:
        raise ValueError("A report is about one veil: say where to write it with -o veil.json.")
    elif epsilon is not None:
        raise ValueError("Where shall the veil be written? Name a .json file with -o; without --epsilon, compare.")
    elif nonmember_labels is None and model is None:
        raise ValueError("Without labels there is nothing to compare by: give --nonmember-labels, or -o veil.json.")
    if pdf and report is None:
        raise ValueError("--pdf prints the page that --report writes: name a folder with --report.")
    with needs("fit"):
        from scoreveil.fitting import check_settings
        from scoreveil.fitting.decision import Advice, decide
        from scoreveil.fitting.frontier import EPSILONS, fit_and_measure, frontier
        from scoreveil.fitting.records import read_both
    if report is not None:
        with needs("audit"):  # whose reports share their parts with this one
            from scoreveil.audit.report import fitted
            from scoreveil.audit.report import pdf as printing
        printer = printing.find() if pdf else None
    settings: dict[str, Any] = {"advantage": advantage, "epsilon": epsilon, "beyond": beyond, "certify": certify}
    settings |= {} if regions is None else {"regions": regions}
    check_settings(**settings)
    files = nonmembers, nonmember_labels, members, member_labels
    used = None
    if model is not None:
        if any(file is not None for file in files) or not served.is_plain:
            raise ValueError("--model is asked for its scores: give its data, and no files of scores, labels or shape.")
        fitted_by = {name: value for name, value in settings.items() if name in ("advantage", "beyond", "regions")}
        found, used = smoothed.scores_of(model, member_data, nonmember_data, smoothing, **fitted_by)
        others, inside, note = read_both(**found, columns=None)
    elif nonmembers is None or member_data is not None or nonmember_data is not None or smoothing != "none":
        raise ValueError("Give --nonmembers with a file of scores; or --model with its data, which can be smoothed.")
    else:
        others, inside, note = read_both(*files, columns, served)
    if note:
        out.print(note, soft_wrap=True)
    _say_doubts(others, inside, force)
    if inside is None:
        bound = "nothing" if epsilon is None else "ε alone"
        _warn(f"no members were given, so what answers tell about membership is bounded by {bound}. Give --members.")
    given: dict[str, Any] = {
        "nonmembers": others,
        "nonmember_labels": others.given[1],
        "members": inside,
        "member_labels": None if inside is None else inside.given[1],
        **{name: value for name, value in settings.items() if name != "epsilon"},
        "shape": served,
        "smoothing": used,
        "force": True,  # doubts were settled above
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what `fit` warns of is said here, in its place
        with err.status("Fitting …"):
            veil, own = fit_and_measure(epsilon, **given)
        _lead(veil, others, settings)
        _say_decision(own.evidence)
        if target is None:
            with err.status("Comparing with several ε …"):
                trials = (own, *frontier((each for each in EPSILONS if each is not None), **given))
            _compare(trials)
            return
        if veil.is_constant:
            err.print(f"Nothing was written: {target} would say no more than labels do.", soft_wrap=True)
            raise typer.Exit(3)
        veil.save(target)
        _show_regions(veil, others.names)
        out.print(f"{veil.guarantee}\n", soft_wrap=True)
        _say_epsilon(veil.guarantee)
        if own.cost is not None:
            _show_cost(own.cost)
        if report is not None:
            with err.status("Comparing with other ε …"):
                trials = (own, *frontier((each for each in EPSILONS if each != epsilon), **given))
            ordered = sorted(trials, key=lambda trial: -(trial.epsilon or math.inf))
            page = fitted.write(veil, ordered, str(target), report, printer, others.names)
            out.print(f"Report: {page}", soft_wrap=True)
    steps = [f"verify {target}", f"show {target} -o {target.with_suffix('.svg')}"]
    if inside is not None:
        data = [("--member-data", member_data), ("--nonmember-data", nonmember_data)]
        sides = zip(("--nonmembers", "--nonmember-labels", "--members", "--member-labels"), files, strict=True)
        said = [*data, *sides, ("--columns", columns), ("--shape", shape), ("--threshold", threshold)]
        words = [word for option, value in said if value is not None for word in (option, str(value))]
        audit = ["audit", "scores"] if model is None else ["audit", "model", model]
        steps.append(shlex.join([*audit, "--veil", str(target), *words, *["--logits"] * logits]))
    if decide(own.evidence) is not Advice.LABELS_ONLY:
        if used is None:
            steps.append(f"protect scores.csv -o safe.csv --veil {target}")
        steps.append(f"serve model.onnx --veil {target}")
    out.print(f"Wrote {target}. Next:", *(f"  {program()} {step}" for step in steps), sep="\n", soft_wrap=True)


def _say_decision(evidence: "Fitted") -> None:
    """What to do, and what that rests on."""
    from scoreveil.fitting.decision import sentences

    out.print(*sentences(evidence), sep="\n", soft_wrap=True)
    out.print()


def _check_target(target: Path, endings: tuple[str, ...], what: str, force: bool) -> None:
    from scoreveil.files.output import refuse_existing

    if target.suffix not in endings:
        raise ValueError(f"{what} is written as {' or '.join(endings)}; {target.name} does not end in it.")
    if not target.parent.is_dir():
        raise ValueError(f"There is no directory {target.parent} to write to.")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"Nothing can be written into {target.parent}.")
    refuse_existing(target, force)


def _warn(message: str) -> None:
    typer.echo(f"Warning: {message}", err=True)


def _say_doubts(others: Any, inside: Any, force: bool) -> None:
    """Refuse files that seem to be mixed up, or with force say so and go on."""
    from scoreveil.fitting.records import check_doubts, doubts

    if not force:
        check_doubts(others, inside)
        return
    for doubt in doubts({"nonmembers": others} | ({} if inside is None else {"members": inside})):
        _warn(doubt)


# What was fitted


def _lead(veil: Veil, others: Any, settings: dict[str, Any]) -> None:
    """The sentence that matters most: what was asked for, and what holds for new records."""
    from scoreveil.fitting import constant_words
    from scoreveil.fitting.recount import leading, outlook, shortage

    if veil.is_constant:
        asked = {name: value for name, value in settings.items() if name == "regions"}
        out.print(constant_words(veil.epsilon, others, **asked), soft_wrap=True)
    evidence = _worst_evidence(veil)
    if evidence is None:
        return
    too_few = shortage(evidence)
    if too_few is not None:
        out.print(too_few, soft_wrap=True)
    attacker = leading(evidence)
    stated = evidence.stated(attacker)
    about = {Attacker.ALONE: " by the confidence alone", Attacker.LABEL: ""}.get(attacker, f" {ATTACKS[attacker]}")
    kind = "theorem" if evidence.certified else "estimate"
    sentence = f"You asked for {_short(evidence.asked)}; "
    sentence += f"for new records it is {_short(round(stated, 3))}{about} (95 %, {kind})"
    more = outlook(evidence, attacker)
    if more is not None:
        sentence += f"; about {more[0]} times the records would state {_short(more[1])}"
    out.print(f"{sentence}.\n", soft_wrap=True)


def _worst_evidence(veil: Veil) -> Evidence | None:
    """The counts of a fitted veil; of many labels, those of the label with the largest advantage."""
    from scoreveil.fitting.recount import leading

    found = [each.evidence for each in veil.mechanism.maps if each.evidence is not None]
    return max(found, key=lambda evidence: evidence.stated(leading(evidence)), default=None)


def _short(value: float) -> str:
    """.02, .111"""
    return f"{round(value, 4):g}".removeprefix("0")


def _say_epsilon(promise: Guarantee) -> None:
    """How many members may be found at few false positives, by ε and by the population promise."""
    if math.isinf(promise.epsilon):
        return
    beside = ""
    if promise.advantage_alone is not None:
        most = min(FEW + promise.advantage_alone, 1.0)
        beside = f"; of records drawn at random it gives away at most {most:.1%}, however often they are asked about"
    out.print(
        f"At {FEW:.0%} false positives, one answer with ε = {promise.epsilon:g} gives away at most "
        f"{most_found(promise.epsilon):.1%} of the members whose scores an attacker already knows{beside}.\n",
        soft_wrap=True,
    )


def most_found(epsilon: float | None, rate: float = FEW) -> float:
    """The largest true positive rate that ε allows at a false positive rate: min(e^ε·f, 1 - (1 - f)·e^-ε)."""
    if epsilon is None or epsilon > 50:
        return 1.0
    return min(math.exp(epsilon) * rate, 1 - (1 - rate) * math.exp(-epsilon))


def _show_cost(measured: "Cost") -> None:
    from scoreveil.fitting.cost import MEASURES, WAYS

    table = Table(title="On records that the veil was not fitted on, with 95 % intervals", title_justify="left")
    table.add_column("")
    for way in WAYS.values():
        table.add_column(way, justify="right")
    for name, words in MEASURES.items():
        found = getattr(measured, name)
        if found:
            cells = [f"{found[way].value:.3f}\n{found[way].low:.3f}–{found[way].high:.3f}" for way in WAYS]
            table.add_row(words, *cells)
    out.print(table)
    if measured.labels:
        _show_labels(measured.labels)
    out.print()


def _show_labels(measured: "Sequence[LabelCost]") -> None:
    """A line for each label: those first to which the veil adds least."""
    from scoreveil.fitting.cost import MEASURES

    shown = ("useful", "nll", "ece")
    table = Table(title="Label by label: raw, veiled, label alone", title_justify="left")
    for name in ("label", "yes", *(MEASURES[name] for name in shown)):
        table.add_column(name, justify="left" if name == "label" else "right")
    for each in sorted(measured, key=lambda each: each.nll["label"] - each.nll["veiled"]):
        figures = (
            " ".join(f"{getattr(each, name)[way]:.3f}".removeprefix("0") for way in ("raw", "veiled", "label"))
            for name in shown
        )
        table.add_row(each.label, f"{each.share:.0%}", *figures)
    out.print(table)


def _compare(trials: "Sequence[Trial]") -> None:
    """A line for each ε: what it leaves of the confidence, and what it allows."""
    from scoreveil.fitting.cost import MEASURES, WAYS

    names = ("useful", "nll", "ece", "leak")

    def figures(measured: "Cost | None", way: str) -> list[str]:
        found = (getattr(measured, name) for name in names)
        return [f"{each[way].value:.3f}" if each else "" for each in found]

    table = Table(title="What each ε leaves of the confidence", title_justify="left")
    table.add_column("ε", no_wrap=True)
    for name in (f"found at {FEW:.0%} FPR, at most", *(MEASURES[name] for name in names), "beats the label"):
        table.add_column(name, justify="right")
    for trial in trials:
        assert trial.cost is not None, "there are labels"
        beats = "yes" if trial.evidence.is_worth_more else "not shown"
        epsilon = "none" if trial.epsilon is None else f"{trial.epsilon:g}"
        table.add_row(epsilon, f"{most_found(trial.epsilon):.1%}", *figures(trial.cost, "veiled"), beats)
    for way in ("label", "tempered", "raw"):
        table.add_row(WAYS[way], "", *figures(trials[0].cost, way), "")
    out.print(table)
    out.print(
        "The advantage for new records does not depend on ε. The second column is the share of members that one answer "
        "may give away to an attacker who already knows their scores. Nothing was written: to write the veil of the "
        "first row, add -o veil.json; for another row also its ε, such as --epsilon 4.",
        soft_wrap=True,
    )


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
        _check_target(target, (".svg", ".html"), "A picture of a veil", force)
    if not veil.mechanism.maps:
        if target is not None:
            raise ValueError(f"Only a fitted veil has regions to draw; {path.name} is of {veil.mechanism.name}.")
        out.print(str(veil.guarantee), soft_wrap=True)
        return
    _show_regions(veil)
    if target is None:
        return
    from scoreveil import atomic

    atomic.write(target, _drawing(veil) if target.suffix == ".svg" else _page(veil, path))
    out.print(f"Wrote {target}.", soft_wrap=True)


def _load(path: Path) -> Veil:
    if not path.is_file():
        raise ValueError(f"There is no file {path}.")
    return Veil.load(path)  # which verifies it


def _drawing(veil: Veil) -> str:
    from scoreveil.audit.report.charts.regions import MOST_LABELS, drawn, read, sheet, stacked

    sheets = [sheet(each) for each in read(veil)[:MOST_LABELS]]
    return drawn(stacked(sheets) if len(sheets) > 1 else sheets[0], alone=True)


def _page(veil: Veil, path: Path) -> str:
    with needs("audit"):
        from scoreveil.audit.report import fitted
    return fitted.html(veil, (), str(path))


def _show_regions(veil: Veil, names: Sequence[str] = ()) -> None:
    from scoreveil.audit.report.charts.regions import MOST_LABELS, read

    maps = read(veil, names)
    for each in maps[:MOST_LABELS]:
        out.print(regions_table(each))
        if each.mechanism.table is not None:
            out.print(f"With ε = {each.mechanism.epsilon:g}, how often a region announces each confidence:")
            out.print(_answers_table(each))
    if len(maps) > MOST_LABELS:
        out.print(f"… and {len(maps) - MOST_LABELS} more labels.")
    out.print()


def regions_table(it: "RegionMap") -> Table:
    """A row for each region, the least sure first."""
    mechanism = it.mechanism
    layer = "without ε" if mechanism.table is None else f"with ε = {mechanism.epsilon:g}"
    title = f"{it.name or 'The map'}: {mechanism.size} regions, {layer}"
    table = Table(title=title, title_justify="left")
    has_strips, often = len(mechanism.cuts) > 1, "" if mechanism.table is None else "mostly\n"
    announced = [f"{often}announced\n{side}" for side in it.sides] or [f"{often}announced"]
    for name in ("", "top score", *["strips"] * has_strips, "members", "others", "right", *announced):
        table.add_column(name, justify="right" if name != "top score" else "left", no_wrap=name == "top score")
    for row in it.rows:
        place, _, strips = row.words.partition(", ")
        shares = (_percent(share) for share in (row.members, row.others))
        right = "–" if math.isnan(row.right) else f"{row.right:.3f}"
        where = (place, strips.removesuffix(" strips"))[: 1 + has_strips]
        table.add_row(str(row.number), *where, *shares, right, *(f"{each:.3f}" for each in row.announced))
    return table


def _answers_table(it: "RegionMap") -> Table:
    """How often each region gives each answer."""
    table = Table()
    table.add_column("\n".join(it.sides), justify="right")
    for answer in it.answers:
        table.add_column("\n".join(f"{each:.3f}" for each in answer), justify="right")
    for row in it.rows:
        table.add_row(str(row.number), *map(_percent, row.answers))
    return table


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.1%}"


# The promises


def verify(
    path: VeilArgument,
    members: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Scores of training records: count the regions on them.")
    ] = None,
    member_labels: Annotated[Path | None, typer.Option(metavar="FILE", help="Their true classes.")] = None,
    nonmembers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --members: scores of records that were not trained on.")
    ] = None,
    nonmember_labels: Annotated[Path | None, typer.Option(metavar="FILE", help="Their true classes.")] = None,
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
    sides: Sides = (nonmembers, nonmember_labels, members, member_labels)
    if any(sides) and not (members and nonmembers):
        raise ValueError("What tells members from others is counted on both: give --members and --nonmembers.")
    if members is not None and not veil.mechanism.maps:
        raise ValueError(f"Only a fitted veil has regions to count; {path.name} is of {veil.mechanism.name}.")
    for mechanism in veil.mechanism.maps:
        mechanism.verify()
    counted = None if members is None else _recounted(veil, sides, columns, force)
    out.print(f"{path} keeps its promises.\n", soft_wrap=True)
    if any(mechanism.evidence is not None for mechanism in veil.mechanism.maps):
        out.print(_stated_table(veil.mechanism.maps), "", sep="\n")
    out.print(str(veil.guarantee), soft_wrap=True)
    if counted is not None and not _say_recounted(*counted):
        raise typer.Exit(3)


def _stated_table(maps: Sequence[Any]) -> Table:
    """What is stated about each attacker; of many labels, by the label where it is most."""
    many = len(maps) > 1
    table = Table(title="By how much an attack may exceed guessing (95 % each)", title_justify="left")
    for name in ("attack", *["label"] * many, "asked", "on the counts", "for new records"):
        table.add_column(name, justify="left" if name == "attack" else "right")
    counted = [(label, each.evidence) for label, each in enumerate(maps) if each.evidence is not None]
    for attacker, words in ATTACKS.items():
        known = [(label, evidence) for label, evidence in counted if attacker in evidence.attackers]
        if known:
            label, evidence = max(known, key=lambda each: each[1].stated(attacker))
            asked = f"{evidence.asked:.3f}" if _is_held_to_it(evidence, attacker) else "–"
            figures = (f"{float(evidence.shown(attacker)):.3f}", f"{evidence.stated(attacker):.3f}")
            table.add_row(words, *[str(label)] * many, asked, *figures)
    return table


def _is_held_to_it(evidence: Evidence, attacker: Attacker) -> bool:
    """Whether the map was chosen so that this attacker gains no more than was asked for."""
    if evidence.beyond == "correctness":
        known = Attacker.LABEL_AND_CORRECTNESS
        return attacker is known or (attacker is Attacker.CORRECTNESS and not evidence.tells_label)
    if evidence.tells_label:
        return attacker is Attacker.LABEL
    return attacker is not Attacker.LABEL_AND_CORRECTNESS


def _recounted(
    veil: Veil, sides: Sides, columns: str | None, force: bool
) -> tuple[tuple[int, int], "Sequence[Recount]"]:
    """How many members and others there are, and what the regions of these records show."""
    with needs("fit"):
        from scoreveil.fitting.records import read_both
        from scoreveil.fitting.recount import recount

    others, inside, note = read_both(*sides, columns=columns, shape=veil.shape)
    assert inside is not None, "it was given"
    if note:
        out.print(note, soft_wrap=True)
    _say_doubts(others, inside, force)
    order = list(ATTACKS)
    found = recount(veil, others, others.given[1], inside, inside.given[1])
    ordered = sorted(found, key=lambda each: (each.label or 0, order.index(each.attacker)))
    return (inside.records, others.records), ordered


def _say_recounted(records: tuple[int, int], found: "Sequence[Recount]") -> bool:
    """Say what follows; False where a promise is surely exceeded."""
    from scoreveil.fitting.recount import Verdict

    out.print(
        f"\nCounted on {records[0]:,} members and {records[1]:,} others, without noise: these figures are about these "
        "records, and they are not private. Records that the veil was not fitted on say most.",
        soft_wrap=True,
    )
    out.print(_recount_table(found))
    verdicts = {each.verdict for each in found}
    if Verdict.EXCEEDED in verdicts:
        out.print("The promise is exceeded on these records: the lower end of an interval is above what is stated.")
    elif Verdict.OPEN in verdicts:
        out.print("It cannot be told whether the promise holds: more was found than is stated, which may be chance.")
    elif Verdict.HELD in verdicts:
        out.print("The promise held on these records.")
    else:
        out.print("The veil was fitted without members, and states nothing that could be held to it.")
    return Verdict.EXCEEDED not in verdicts


def _recount_table(found: "Sequence[Recount]") -> Table:
    """A row for each attacker; of many labels those first that are nearest to what is stated, or beyond."""
    many = any(each.label is not None for each in found)
    table = Table(title="By how much an attack exceeds guessing on these records", title_justify="left")
    for name in ("attack", *["label"] * many, "found", "95 % bootstrap", "stated", "promise"):
        table.add_column(name, justify="left" if name in ("attack", "promise") else "right")
    ordered = sorted(found, key=lambda each: each.found - (each.stated or 0.0), reverse=True) if many else found
    for each in ordered[:MOST_ROWS]:
        stated = "–" if each.stated is None else f"{each.stated:.3f}"
        interval = f"{each.low:.3f}–{each.high:.3f}"
        label = [str(each.label)] * many
        table.add_row(ATTACKS[each.attacker], *label, f"{each.found:.3f}", interval, stated, each.verdict.value)
    if len(ordered) > MOST_ROWS:
        table.caption = f"… and {len(ordered) - MOST_ROWS} more, each further below what is stated."
    return table
