"""The audit in Python: scores or a model in, a verdict out. `scoreveil audit` calls it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any

from scoreveil.audit.report import asked, gate, page, summary
from scoreveil.audit.report import multi_label as labels_report
from scoreveil.audit.report.gate import Gate
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.sentences import broken_promises, sentences
from scoreveil.audit.study import multi_label
from scoreveil.audit.study import run as studies
from scoreveil.audit.study.asking import ask
from scoreveil.audit.study.models import Data, Model, from_model, with_extras
from scoreveil.audit.study.multi_label import LabelsStudy
from scoreveil.audit.study.results import UNDEFENDED, VEIL, Setting, Study
from scoreveil.audit.study.risk import RecordRisks, record_risks
from scoreveil.audit.study.run import StudyPlan
from scoreveil.audit.study.shadows import Progress, part, silent
from scoreveil.audit.study.subjects import SIDES, Subject, from_given
from scoreveil.audit.verdict import AuditVerdict
from scoreveil.audit.verdict import verdict as judge
from scoreveil.files.inputs import read_inputs
from scoreveil.fitting.decision import Advice, Outcome
from scoreveil.fitting.evidence import may_be_fitted_on
from scoreveil.shapes import VECTORS, Shape, said_beside
from scoreveil.smoothing import smoothed_scores
from scoreveil.veil import Veil

AnyPath = str | PathLike[str]


class Doubtful(ValueError):
    """Records seem to be mixed up; with force=True they are attacked all the same."""


@dataclass(frozen=True)
class Limits:
    """What a release must keep, "auc=0.55", "tpr@1%=0.05" or "tpr@0.1%=0.01".

    Attributes:
        fail_over: Kept unless an attack surely passes it.
        fail_unless_under: Kept only where every attack surely stays under it.
        setting: What they are for, "regions" or "regions:2"; by default what is recommended, or no defense.
    """

    fail_over: str = ""
    fail_unless_under: str = ""
    setting: str = ""

    def __post_init__(self) -> None:
        if self.setting and not self.parsed:
            raise ValueError("A setting says what a limit is for: give --fail-over or --fail-unless-under too.")

    @property
    def parsed(self) -> list[gate.Limit]:
        return [gate.parse_limit(text) for text in (self.fail_over, self.fail_unless_under) if text]

    def of(self, settings: tuple[Setting, ...]) -> Setting | None:
        """The setting that they are for, where one is named."""
        if not self.setting:
            return None
        written = {name if e is None else f"{name}:{e:g}": (name, e) for name, e in settings}
        name, _, epsilon = self.setting.removesuffix(":none").partition(":")
        try:
            chosen = written.get(f"{name}:{float(epsilon):g}" if epsilon else name)
        except ValueError:
            chosen = None
        if chosen is None:
            raise ValueError(f"Expected --setting among what is studied ({', '.join(written)}), got {self.setting!r}.")
        return chosen


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found. `print` it for the verdict; in a notebook it shows itself as a table.

    study     every number: `study.results` has a row for each attack, `study.defenses` for what each defense costs
    subject   the records that were attacked
    limits    what a release must keep, where that was asked
    """

    study: Study
    subject: Subject = field(repr=False)
    limits: Limits = Limits()

    @cached_property
    def verdict(self) -> AuditVerdict:
        """The verdict with all that it rests on."""
        return judge(self.study)

    @property
    def outcome(self) -> Outcome:
        """ "leaks", "leaks no more than the label" or "cannot be told from this many records"."""
        return self.verdict.excess.outcome

    @property
    def advice(self) -> Advice | None:
        """What to do, as `scoreveil fit` decides it; None where no fitted veil was studied."""
        return self.verdict.advice

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict in words."""
        return *sentences(self.verdict), *asked.sentences(self.study)

    @property
    def recommended(self) -> Setting | None:
        """The defense to take and its ε, ("regions", None); None where nothing leaks, or nothing can be told."""
        return self.verdict.recommended

    @cached_property
    def veil(self) -> Veil | None:
        """The recommended veil, fitted on all records that the audit was given; None where no veil is recommended."""
        if self.recommended is None or self.recommended[0] != VEIL:
            return None
        veil = self.subject.for_use(self.recommended[1])
        return None if veil.is_constant else veil

    @cached_property
    def risks(self) -> RecordRisks | None:
        """How much at risk each record is, undefended and behind the recommended veil."""
        given, seed = self.subject.given_records, self.study.meta["plan"]["seed"]
        return None if given is None else record_risks(given, self.study, self.recommended, seed)

    @cached_property
    def gates(self) -> tuple[Gate, ...]:
        """Whether a release may go on: for each limit that was given, and where a defense breaks its promise."""
        attacked = tuple(dict.fromkeys(result.setting for result in self._attacks.results))
        wanted = self.limits.of(attacked) or (self.recommended if self.recommended in attacked else UNDEFENDED)
        over, under = self.limits.fail_over, self.limits.fail_unless_under
        answers = gate.gate(self._attacks, wanted or UNDEFENDED, fail_over=over, fail_unless_under=under)
        broken = len(broken_promises(self._attacks))
        said = f"Gate shut: {broken} of the settings tried break their promise, see above."
        return answers + ((Gate(False, said),) if broken else ())

    @property
    def _attacks(self) -> Study:
        """Every attack that a limit is about."""
        return self.study

    def write(self, folder: AnyPath, printer: Printer | None = None) -> Path:
        """Write report.html, results.json, vulnerability.json and the figures, and where they are known records.csv and
        .parquet; with a printer report.pdf; and veil.json where a veil is recommended.

        Returns:
            The path of the report.
        """
        report = self._write_report(Path(folder), printer)
        place = report.with_name("veil.json")
        if self.subject.veil is not None:  # it is where it is
            return report
        if self.veil is None:
            place.unlink(missing_ok=True)  # that of an earlier audit
        else:
            self.veil.save(place)
        return report

    def _write_report(self, folder: Path, printer: Printer | None) -> Path:
        return page.write(self.study, folder, self.risks, printer, self.veil)

    def __str__(self) -> str:
        return "\n".join((*(f"Note: {note}" for note in self.study.notes), *self.sentences))

    def _repr_html_(self) -> str:
        return summary.html(self.study, self.verdict)


@dataclass(frozen=True, eq=False)
class LabelsAudit(Audit):
    """What an audit of many labels found: of whole answers, and of each label by itself.

    studies   every number; `study` is that of whole answers
    """

    studies: LabelsStudy = field(kw_only=True)

    @cached_property
    def labels(self) -> dict[str, Audit]:
        """Each label by its name, audited like one column."""
        return {name: Audit(self.studies.labels[name], one) for name, one in self.subject.by_label().items()}

    @cached_property
    def verdict(self) -> AuditVerdict:
        """The verdict on all of them at once."""
        return judge(self.study, tuple(self.studies.labels.values()))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict in words."""
        return labels_report.sentences(self.studies, self.verdict)

    @property
    def risks(self) -> None:
        """Of whole answers it is not measured; `labels` have that of each."""
        return

    @property
    def _attacks(self) -> Study:
        every = (self.study, *self.studies.labels.values())
        results = tuple(result for study in every for result in study.results)
        return Study({}, results, tuple(cost for study in every for cost in study.defenses))

    def _write_report(self, folder: Path, printer: Printer | None) -> Path:
        return labels_report.write(self.studies, self.verdict, folder, printer)

    def _repr_html_(self) -> str:
        return summary.of_labels(labels_report.by_label(self.studies), self.sentences)


def run(
    members: Any,
    nonmembers: Any,
    member_labels: Any = None,
    nonmember_labels: Any = None,
    *,
    model: Any = None,
    shadow: tuple[Any, ...] = (),
    reference: Any = None,
    veil: Veil | AnyPath | None = None,
    columns: str | None = None,
    shape: Shape = VECTORS,
    defenses: Iterable[str] | None = None,
    epsilon: float | Iterable[float | None] | None = None,
    attacks: Iterable[str] | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    cache: AnyPath | None = None,
    seed: int = 0,
    jobs: int = 2,
    force: bool = False,
    command: str = "scoreveil.audit.run(…)",
    progress: Progress = silent,
    first: Callable[[AuditVerdict], None] | None = None,
) -> Audit:
    """Attack a model's scores, undefended and defended, and say what leaks.

    Scores and labels are arrays, torch tensors, DataFrames, or paths of files, as for `scoreveil.fit`.

    Args:
        members: Scores (n, k) of records that the model was trained on, 100 or more; with a model their inputs.
        nonmembers: The same of records that it was not trained on.
        member_labels: Their true classes, as numbers or names: then attackers who know them are tried, too.
        nonmember_labels: Likewise; give both, or neither.
        model: A `Model`, or its `predict`: anything with predict_proba, a function, an .onnx file or
            "package.module:name". Then inputs are arrays with labels, or paths: an .npz with x and y, a .csv, pictures.
        shadow: Scores of a model like this one, to fit attacks on: of records that it was trained on, of others, and
            the classes of both. Without, attacks are fitted on one half of the records and tested on the other.
        reference: Public scores; without, a part of the non-members.
        veil: A fitted one, or its file: it is attacked in place of veils that are fitted here. Its figures are called
            in-sample where it may have been fitted on these records.
        columns: Of DataFrames and files: the columns of the scores, as names or patterns with commas between.
        shape: How scores are served, where they are not vectors that sum to 1: `shapes.Binary()`, or `MultiLabel()`
            with true labels as a matrix of 0 and 1.
        defenses: Names of what to compare, or "all"; by default the fitted veil and a few rivals.
        epsilon: The ε of the fitted veil, as for `fit`; several to compare them, None among them for none.
        attacks: Names of attacks; by default all, and of many labels a few quick ones.
        limits: What a release must keep; `gates` of the result says whether it does.
        cache: A folder that keeps what is done, to go on after a stop.
        seed: The same seed gives the same numbers.
        jobs: Processes at a time.
        force: Attack even if the two sides seem to be swapped, to be the same, or to have labels of other records.
        command: What a report says to type for the same results.
        progress: Is told what was done last, how much is done, and of how much.
        first: Is given the verdict on the quick attacks while the others still run.

    Returns:
        The verdict, the veil to take, and every number. Of many labels a `LabelsAudit`.

    Raises:
        ValueError: The records are not scores or labels, or a name is not known; `Doubtful` if they seem mixed up.
    """
    own, shape, epsilon = _given_veil(veil, shape, epsilon)
    plan = studies.planned(defenses, epsilon, attacks, seed, jobs, shape.has_labels)
    limits.of(plan.settings)
    kept = None if cache is None else Path(cache)
    given = {"members": (members, member_labels), "nonmembers": (nonmembers, nonmember_labels)}
    if model is None:
        extra = _shadow(shadow) | {"reference": (reference, None)}
        subject, fields = _of_scores(from_given(given | extra, columns, seed, shape), own, force), dict[str, Any]()
    else:
        if columns is not None or shadow or reference is not None or not shape.is_plain:
            raise ValueError(
                "Columns, a shape, a shadow and a reference are those of scores: leave model out, or them."
            )
        subject, fields = _of_model(model, own, given, plan, kept, force, part(progress, 0.0, 0.5))
        progress = part(progress, 0.5, 1.0)
    plan = _suited(plan, subject, limits)
    if shape.has_labels:
        found = multi_label.run(subject, plan, command, kept, progress)
        return LabelsAudit(found.whole, subject, limits, studies=found)
    study = studies.run(subject, plan, command, kept, progress, first and (lambda so_far: first(judge(so_far))))
    return Audit(replace(study, **fields), subject, limits)


def _shadow(given: tuple[Any, ...]) -> dict[str, tuple[Any, Any]]:
    """A shadow's scores of members and of others, and the classes of both, by name."""
    scores, classes = (*given, None, None)[:2], (*given[2:], None, None)[:2]
    return {f"shadow {name}": pair for name, *pair in zip(SIDES, scores, classes, strict=True)}  # type: ignore[misc]


def _of_scores(subject: Subject, own: Veil | None, force: bool) -> Subject:
    _refuse(subject, force)
    return _behind(subject, None if own is None else own.for_scores())


def _of_model(
    model: Any, own: Veil | None, given: dict[str, Any], plan: StudyPlan, cache: Path | None, force: bool,
    progress: Progress,
) -> tuple[Subject, dict[str, Any]]:  # fmt: skip
    """The model's scores, and what asking it more found, as fields of the study."""
    asked_model = model if isinstance(model, Model) else Model(model)
    (inside, names), (outside, _) = (_inputs(who, *pair) for who, pair in given.items())
    asked_model = replace(asked_model, columns=asked_model.columns or names)
    if own is not None and own.smoothing is not None:
        if asked_model.neighbours:
            raise ValueError("--neighbours tries several smoothings; this veil has its own. Leave one of them out.")
        smoothed = partial(smoothed_scores, asked_model.ask, smoothing=own.smoothing)
        asked_model = replace(asked_model, predict=smoothed, neighbours=0)
    subject = from_model(asked_model, inside, outside, plan.seed)
    _refuse(subject, force)
    shadows, rest = part(progress, 0.0, 0.5), part(progress, 0.5, 1.0)
    subject = with_extras(subject, asked_model, inside, outside, plan.seed, plan.jobs, shadows)
    subject = _behind(subject, own)
    return subject, ask(asked_model, inside, outside, subject, plan.settings, plan.seed, cache, rest)


def _inputs(who: str, inputs: Any, classes: Any) -> tuple[Data, tuple[str, ...]]:
    """Inputs and their classes, and the names of a table's columns where they come from a file."""
    names: tuple[str, ...] = ()
    if isinstance(inputs, str | PathLike):
        read = read_inputs(Path(inputs))
        inputs, classes, names = read.x, read.y, read.columns
    if classes is None:
        raise ValueError(f"Expected inputs of {who} with their classes, to ask a model about, got no classes.")
    return (inputs, classes), names


def _refuse(subject: Subject, force: bool) -> None:
    for doubt in () if force else subject.doubts:
        raise Doubtful(f"{doubt} If it is meant so, say force=True.")


def _suited(plan: StudyPlan, subject: Subject, limits: Limits) -> StudyPlan:
    """The plan for what the subject has, which is enough for the limits."""
    for limit in limits.parsed:
        gate.check_enough(limit.measure, min(map(len, subject.target)))
    if subject.pictures is not None:
        plan = replace(plan, inverted=plan.settings)
    if subject.many is not None:
        # MemGuard takes milliseconds a vector: minutes for each shadow
        plan = replace(plan, likelihood=tuple(one for one in plan.settings if one[0] != "memguard"))
    if subject.reference.labels is None:
        chosen, plan = limits.of(plan.settings), plan.without_labels()
        if chosen is not None and chosen not in plan.settings:
            raise ValueError(f"Expected true labels, which --setting {limits.setting} is fitted to: give labels too.")
    return plan


def _given_veil(veil: Veil | AnyPath | None, shape: Shape, epsilon: Any) -> tuple[Veil | None, Shape, Any]:
    """The veil to attack, and the shape and ε that follow from it; else these as they are given."""
    if veil is None:
        return None, shape, epsilon
    own = veil if isinstance(veil, Veil) else Veil.load(veil)
    if not own.mechanism.maps:
        raise ValueError(
            f"Only a fitted veil is attacked so, and this is one of {own.mechanism.name}: name that as a defense."
        )
    if epsilon is not None:
        raise ValueError("A veil that was fitted has its ε: leave epsilon out.")
    own = own.with_shape(said_beside(own.shape, shape, "A veil that was fitted has its shape: leave shape out."))
    return own, own.shape, [None if math.isinf(own.epsilon) else float(own.epsilon)]


def _behind(subject: Subject, veil: Veil | None) -> Subject:
    """The subject behind this veil, with a note about what its figures mean."""
    if veil is None:
        return subject
    sides, classes = subject.everyone, veil.mechanism.classes
    if not subject.shape.has_labels and sides.classes != classes:
        raise ValueError(f"This veil was fitted for {classes} classes; these scores have {sides.classes}.")
    note = "The figures of the veil hold for new records only if it was not fitted on these."
    if may_be_fitted_on(veil, len(sides.members), len(sides.nonmembers)):
        note = (
            "The veil was fitted on as many records as these. If they are the same, what attacks find behind it is "
            "in-sample. The advice rests on cross-fitting."
        )
    return replace(subject, veil=veil, notes=(*subject.notes, note))
