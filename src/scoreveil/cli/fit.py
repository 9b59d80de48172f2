"""`scoreveil fit`: the most useful veil for a model's scores, or what several ε would leave of them."""

import math
import shlex
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scoreveil.cli import options, smoothed
from scoreveil.cli.show import check_target, read_records, show_regions, warn
from scoreveil.cli.tables import shown
from scoreveil.cli.terminal import err, out, program
from scoreveil.extras import needs
from scoreveil.mechanisms.guarantee import Guarantee

if TYPE_CHECKING:  # scipy takes a while to import; only those who fit wait for it
    from scoreveil.audit.report.pdf import Printer
    from scoreveil.files.records import Scored
    from scoreveil.fitting.cost import Cost
    from scoreveil.fitting.frontier import Trial
    from scoreveil.smoothing import Smoothing

RECORDS, MODEL, PROMISE, OUTPUT = "Records", "From a model", "What is promised", "Output"  # groups of options
COMPARED = ("useful", "nll", "ece", "leak")  # of each ε, in a terminal
OF_LABEL = (("useful", "nll", "ece"), ("raw", "veiled", "label"))  # measures and ways, likewise


File = Path | None
Number = float | None


def _option(panel: str, metavar: str | None, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel)


_records, _model, _promise, _output = (partial(_option, panel) for panel in (RECORDS, MODEL, PROMISE, OUTPUT))


def fit(
    nonmembers: Annotated[File, _records("FILE", "Scores of records that were not trained on.")] = None,
    nonmember_labels: Annotated[
        File, _records("FILE", "Their true classes, numbers or names: calibrates answers.")
    ] = None,
    members: Annotated[File, _records("FILE", "Scores of training records: bounds the advantage.")] = None,
    member_labels: Annotated[
        File, _records("FILE", "Their true classes: also against attackers who know them.")
    ] = None,
    columns: options.ColumnsOption = None,
    shape: options.ShapeOption = None,
    threshold: options.ThresholdOption = None,
    logits: options.LogitsOption = False,
    advantage: Annotated[float, _promise("D", "What an attack may gain over guessing, beyond the label.")] = 0.02,
    epsilon: Annotated[
        Number, _promise("E", "Also bound what an answer tells of a single record.", "--epsilon", "-e")
    ] = None,
    beyond: Annotated[
        str, _promise("label|correctness", "Bound what answers add to the label, or to being right.")
    ] = "label",
    regions: Annotated[int | None, _promise("N", "How many regions there may be, 1 to 8.")] = None,
    certify: Annotated[
        Number, _promise("PART", "Hold this part of the records back, such as 0.3: states a theorem.")
    ] = None,
    model: Annotated[
        str | None, _model("MODEL", "Instead of scores: package.module:predict_proba, or an .onnx file.")
    ] = None,
    member_data: Annotated[File, _model("FILE", "With --model: .npz or .csv with x and y, an image folder.")] = None,
    nonmember_data: Annotated[File, _model("FILE", "Likewise, records that were not trained on.")] = None,
    smoothing: Annotated[
        str, _model("none|auto|SCALE", "With --model: read the confidence around each record.")
    ] = "none",
    target: Annotated[
        File, _output("OUT", "Where to write the veil: a .json file. Without, compare.", "--output", "-o")
    ] = None,
    report: Annotated[File, _output("DIR", "Write a page with figures there, and its numbers.")] = None,
    pdf: Annotated[bool, _output(None, "With --report: the page as report.pdf, too.", "--pdf")] = False,
    force: Annotated[
        bool, _output(None, "Replace OUT if it exists; fit even if files seem to be mixed up.", "--force")
    ] = False,
) -> None:
    """Fit the most useful veil that keeps its promises.

    Prints what holds for new records, the regions, what is promised, and what the confidence is worth beside raw
    scores and beside the label alone, measured on records that the veil was not fitted on. Without -o it compares a
    veil without ε to several with one, and writes nothing. With --shape multi_label, true labels are a column of 0
    and 1 for each.
    """
    served = options.shape(shape, threshold, logits)
    if target is None:
        _check_comparison(report, epsilon, has_labels=nonmember_labels is not None or model is not None)
    else:
        check_target(target, (".json",), "A fitted veil", force)
    printer = _printer(report, pdf)
    settings: dict[str, Any] = {"advantage": advantage, "epsilon": epsilon, "beyond": beyond, "certify": certify}
    settings |= {} if regions is None else {"regions": regions}
    with needs("fit"):
        from scoreveil.fitting import Settings

    Settings(**settings)
    files, used = (nonmembers, nonmember_labels, members, member_labels), None
    if model is not None:
        if any(file is not None for file in files) or not served.is_plain:
            raise ValueError("--model is asked for its scores: give its data, and no files of scores, labels or shape.")
        scores, used = smoothed.scores_of(model, member_data, nonmember_data, smoothing, advantage, beyond, regions)
        others, inside = read_records(scores, None, served, force)
    elif nonmembers is None or member_data is not None or nonmember_data is not None or smoothing != "none":
        raise ValueError("Give --nonmembers with a file of scores; or --model with its data, which can be smoothed.")
    else:
        others, inside = read_records(files, columns, served, force)
    if inside is None:
        bound = "nothing" if epsilon is None else "ε alone"
        warn(f"no members were given, so what answers tell about membership is bounded by {bound}. Give --members.")
    trials = _Trials(others, inside, settings, used)
    if target is None:
        trials.compare()
        return
    trials.write(target)
    if report is not None:
        trials.report(target, report, printer)
    passed_on = {
        "--model": model,
        "--member-data": member_data,
        "--nonmember-data": nonmember_data,
        **dict(zip(("--nonmembers", "--nonmember-labels", "--members", "--member-labels"), files, strict=True)),
        "--columns": columns,
        "--shape": shape,
        "--threshold": threshold,
        "--logits": logits,
    }
    steps = trials.next_steps(target, passed_on)
    out.print(f"Wrote {target}. Next:", *(f"  {program()} {step}" for step in steps), sep="\n", soft_wrap=True)


def _check_comparison(report: Path | None, epsilon: float | None, has_labels: bool) -> None:
    """Refuse what needs a veil that is written, or labels to compare by."""
    if report is not None:
        raise ValueError("A report is about one veil: say where to write it with -o veil.json.")
    if epsilon is not None:
        raise ValueError("Where shall the veil be written? Name a .json file with -o; without --epsilon, compare.")
    if not has_labels:
        raise ValueError("Without labels there is nothing to compare by: give --nonmember-labels, or -o veil.json.")


def _printer(report: Path | None, pdf: bool) -> "Printer | None":
    """What prints the report, found before the work."""
    if report is None:
        if pdf:
            raise ValueError("--pdf prints the page that --report writes: name a folder with --report.")
        return None
    options.check_folder(report)
    with needs("audit"):  # whose reports share their parts with this one
        from scoreveil.audit.report import fitted  # noqa: F401
        from scoreveil.audit.report import pdf as printing
    return printing.find() if pdf else None


class _Trials:
    """The veil that is asked for, what it is worth, and the same of other ε where these are asked for too."""

    def __init__(
        self, others: "Scored", members: "Scored | None", settings: dict[str, Any], used: "Smoothing | None"
    ) -> None:
        from scoreveil.fitting import constant_words
        from scoreveil.fitting.decision import sentences
        from scoreveil.fitting.frontier import fit_and_measure
        from scoreveil.fitting.statement import statements

        self.others, self.members, self.smoothing, self.epsilon = others, members, used, settings["epsilon"]
        self.given: dict[str, Any] = {
            "nonmembers": others,
            "members": members,
            **settings,
            "smoothing": used,
            "force": True,  # doubts were settled before
        }
        with err.status("Fitting …"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what `fit` warns of is said here, in its place
            self.veil, self.own = fit_and_measure(**self.given)
        if self.veil.is_constant:
            asked = {name: value for name, value in settings.items() if name == "regions"}
            out.print(constant_words(self.veil.epsilon, others, **asked), soft_wrap=True)
        stated = statements(self.veil)
        out.print(*stated, *[""] * bool(stated), *sentences(self.own.evidence), "", sep="\n", soft_wrap=True)

    def _with_others(self, text: str) -> "tuple[Trial, ...]":
        """The trial of the veil, and those of the other ε."""
        from scoreveil.fitting.frontier import EPSILONS, frontier

        epsilons = (epsilon for epsilon in EPSILONS if epsilon != self.epsilon)
        with err.status(text), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.own, *frontier(epsilons, **{k: v for k, v in self.given.items() if k != "epsilon"})

    def compare(self) -> None:
        """A line for each ε: what it leaves of the confidence, and what it allows."""
        from scoreveil.audit.report.cost_tables import frontier

        out.print(shown(frontier(self._with_others("Comparing with several ε …"), names=COMPARED)))
        out.print(
            "The advantage for new records does not depend on ε. The second column is the share of members that one "
            "answer may give away to an attacker who already knows their scores. Nothing was written: to write the "
            "veil of the first row, add -o veil.json; for another row also its ε, such as --epsilon 4.",
            soft_wrap=True,
        )

    def write(self, target: Path) -> None:
        """The veil, unless it tells no more than a label; and what is in it, what it promises and costs."""
        if self.veil.is_constant:
            err.print(f"Nothing was written: {target} would say no more than labels do.", soft_wrap=True)
            raise typer.Exit(3)
        self.veil.save(target)
        show_regions(self.veil, self.others.names)
        out.print(f"{self.veil.guarantee}\n", soft_wrap=True)
        _say_epsilon(self.veil.guarantee)
        if self.own.cost is not None:
            _show_cost(self.own.cost)

    def report(self, target: Path, folder: Path, printer: "Printer | None") -> None:
        from scoreveil.audit.report import fitted

        trials = sorted(self._with_others("Comparing with other ε …"), key=lambda trial: -(trial.epsilon or math.inf))
        page = fitted.write(self.veil, trials, str(target), folder, printer, self.others.names)
        out.print(f"Report: {page}", soft_wrap=True)

    def next_steps(self, target: Path, given: dict[str, Any]) -> Iterator[str]:
        """What to type next, after the name of the program."""
        from scoreveil.fitting.decision import Advice, decide

        yield f"verify {target}"
        yield f"show {target} -o {target.with_suffix('.svg')}"
        if self.members is not None:
            model = given.get("--model")
            words = ["audit", "scores"] if model is None else ["audit", "model", model]
            words += ["--veil", str(target)]
            for name, value in given.items():
                if name == "--model":
                    continue
                words += [name] if value is True else [name, str(value)] if value else []
            yield shlex.join(words)
        if decide(self.own.evidence) is not Advice.LABELS_ONLY:
            if self.smoothing is None:
                yield f"protect scores.csv -o safe.csv --veil {target}"
            yield f"serve model.onnx --veil {target}"


def _say_epsilon(promise: Guarantee) -> None:
    """How many members may be found at few false positives, by ε and by the population promise."""
    from scoreveil.fitting.frontier import RATE, most_found

    if math.isinf(promise.epsilon):
        return
    beside = ""
    if promise.advantage_alone is not None:
        most = min(RATE + promise.advantage_alone, 1.0)
        beside = f"; of records drawn at random it gives away at most {most:.1%}, however often they are asked about"
    out.print(
        f"At {RATE:.0%} false positives, one answer with ε = {promise.epsilon:g} gives away at most "
        f"{most_found(promise.epsilon):.1%} of the members whose scores an attacker already knows{beside}.\n",
        soft_wrap=True,
    )


def _show_cost(measured: "Cost") -> None:
    from scoreveil.audit.report import cost_tables

    title = "On records that the veil was not fitted on, with 95 % intervals"
    out.print(shown(cost_tables.costs(measured), title, intervals=True))
    if measured.labels:
        out.print(shown(cost_tables.labels(measured.labels, *OF_LABEL)))
    out.print()
