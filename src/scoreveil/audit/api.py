"""The audit in Python: scores in, a verdict out. What `scoreveil audit` does for files."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from scoreveil.audit.report import many_labels as labels_report
from scoreveil.audit.report import page, summary
from scoreveil.audit.report.many_labels import LabelsVerdict
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.sentences import sentences
from scoreveil.audit.study import many_labels
from scoreveil.audit.study import run as studies
from scoreveil.audit.study.many_labels import LabelsStudy
from scoreveil.audit.study.results import VEIL, Setting, Study
from scoreveil.audit.study.risk import RecordRisks, record_risks
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import Subject, from_given
from scoreveil.audit.verdict import AuditVerdict
from scoreveil.audit.verdict import verdict as judge
from scoreveil.fitting.decision import Advice, Outcome
from scoreveil.fitting.evidence import may_be_fitted_on
from scoreveil.shapes import VECTORS, Shape, said_beside
from scoreveil.veil import Veil


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found. `print` it for the verdict; in a notebook it shows itself as a table.

    study     every number: `study.results` has a row for each attack, `study.defenses` for what each defense costs
    subject   the records that were attacked
    """

    study: Study
    subject: Subject = field(repr=False)

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
        return sentences(self.verdict)

    @property
    def recommended(self) -> Setting | None:
        """The defense to take and its ε, ("regions", None); None where nothing leaks, or nothing can be told."""
        return self.verdict.recommended

    @cached_property
    def veil(self) -> Veil | None:
        """The recommended veil, fitted on all records that the audit was given; None where no veil is recommended."""
        return _fitted(self.subject, self.recommended)

    @cached_property
    def risks(self) -> RecordRisks | None:
        """How much at risk each record is, undefended and behind the recommended veil."""
        given, seed = self.subject.given_records, self.study.meta["plan"]["seed"]
        return None if given is None else record_risks(given, self.study, self.recommended, seed)

    def write(self, folder: str | PathLike[str], printer: Printer | None = None) -> Path:
        """Write report.html, results.json, vulnerability.json and the figures, and where they are known records.csv and
        .parquet; with a printer report.pdf; and veil.json where a veil is recommended.

        Returns:
            The path of the report.
        """
        return _with_veil(page.write(self.study, Path(folder), self.risks, printer, self.veil), self.subject, self.veil)

    def __str__(self) -> str:
        return "\n".join((*(f"Note: {note}" for note in self.study.notes), *self.sentences))

    def _repr_html_(self) -> str:
        return summary.html(self.study, self.verdict)


def _with_veil(report: Path, subject: Subject, veil: Veil | None) -> Path:
    """Put the recommended veil beside a report; one of an earlier audit does not stay there. One that was given is
    where it is."""
    place = report.with_name("veil.json")
    if subject.veil is not None:
        return report
    if veil is None:
        place.unlink(missing_ok=True)
    else:
        veil.save(place)
    return report


def _fitted(subject: Subject, recommended: Setting | None) -> Veil | None:
    """The recommended veil, fitted on all that the audit was given, as it is served; never a constant one."""
    if recommended is None or recommended[0] != VEIL:
        return None
    veil = subject.for_use(recommended[1])
    return None if veil.is_constant else veil


@dataclass(frozen=True, eq=False)
class LabelsAudit:
    """What an audit of many labels found: a verdict on each label, and on all labels of an answer together.

    study     every number
    subject   the records that were attacked
    """

    study: LabelsStudy
    subject: Subject = field(repr=False)

    @cached_property
    def verdict(self) -> LabelsVerdict:
        """The verdict with all that it rests on: `verdict.labels` has one for each label, the worst first."""
        return labels_report.verdict(self.study)

    @property
    def outcome(self) -> Outcome:
        """That of the worst label, or of all together: as for `Audit`."""
        return self.verdict.outcome

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict in words."""
        return self.verdict.sentences

    @property
    def recommended(self) -> Setting | None:
        """As for `Audit`; an ε is that of one label."""
        return self.verdict.recommended

    @cached_property
    def veil(self) -> Veil | None:
        """The recommended veil, fitted on all records that the audit was given; None where no veil is recommended."""
        return _fitted(self.subject, self.recommended)

    def write(self, folder: str | PathLike[str], printer: Printer | None = None) -> Path:
        """Write report.html and results.json; with a printer report.pdf; and veil.json where a veil is recommended.

        Returns:
            The path of the report.
        """
        return _with_veil(labels_report.write(self.study, Path(folder), printer), self.subject, self.veil)

    def __str__(self) -> str:
        return "\n".join((*(f"Note: {note}" for note in self.study.notes), *self.sentences))

    def _repr_html_(self) -> str:
        return summary.of_labels(self.verdict)


def run(
    members: Any,
    nonmembers: Any,
    member_labels: Any = None,
    nonmember_labels: Any = None,
    *,
    shadow_members: Any = None,
    shadow_nonmembers: Any = None,
    shadow_member_labels: Any = None,
    shadow_nonmember_labels: Any = None,
    reference: Any = None,
    veil: Veil | str | PathLike[str] | None = None,
    columns: str | None = None,
    shape: Shape = VECTORS,
    defenses: Iterable[str] | None = None,
    epsilon: float | Iterable[float | None] | None = None,
    attacks: Iterable[str] | None = None,
    cache: str | PathLike[str] | None = None,
    seed: int = 0,
    jobs: int = 2,
    force: bool = False,
    progress: Callable[[str, int, int], None] = silent,
) -> Audit | LabelsAudit:
    """Attack a model's scores, undefended and defended, and say what leaks.

    Scores and labels are arrays, torch tensors, DataFrames, or paths of files, as for `scoreveil.fit`.

    Args:
        members: Scores (n, k) of records that the model was trained on, 100 or more.
        nonmembers: Scores of records that it was not trained on.
        member_labels: Their true classes, as numbers or names: then attackers who know them are tried, too.
        nonmember_labels: Likewise; give both, or neither.
        shadow_members: Scores of a model like this one, of records that it was trained on, to fit attacks on. Without,
            they are fitted on one half of the records and tested on the other.
        shadow_nonmembers: And of records that it was not.
        shadow_member_labels: Their true classes.
        shadow_nonmember_labels: Likewise.
        reference: Public scores; without, a part of the non-members.
        veil: A fitted one, or its file: it is attacked in place of veils that are fitted here. Its figures are called
            in-sample where it may have been fitted on these records.
        columns: Of DataFrames and files: the columns of the scores, as names or patterns with commas between.
        shape: How scores are served, where they are not vectors that sum to 1: `shapes.OneColumn()`, or `ManyLabels()`
            with true labels as a matrix of 0 and 1. Of many labels each is attacked, and all together, by a few quick
            attacks, undefended and behind the fitted veil.
        defenses: Names of what to compare, or "all"; by default the fitted veil and a few rivals.
        epsilon: The ε of the fitted veil, as for `fit`; several to compare them, None among them for none.
        attacks: Names of attacks; by default all.
        cache: A folder that keeps what is done, to go on after a stop.
        seed: The same seed gives the same numbers.
        jobs: Processes at a time.
        force: Attack even if the two sides seem to be swapped, to be the same, or to have labels of other records.
        progress: Is told what was done last, how much is done, and of how much.

    Returns:
        An `Audit`: the verdict, the veil to take, and every number. Of many labels a `LabelsAudit`, which has the same.

    Raises:
        ValueError: The records are not scores or labels, seem to be mixed up, or a name is not known.
    """
    given, shape, epsilon = given_veil(veil, shape, epsilon)
    plan = studies.planned(defenses, epsilon, attacks, seed, jobs)
    sides = {
        "members": (members, member_labels),
        "nonmembers": (nonmembers, nonmember_labels),
        "shadow members": (shadow_members, shadow_member_labels),
        "shadow nonmembers": (shadow_nonmembers, shadow_nonmember_labels),
        "reference": (reference, None),
    }
    subject, command = with_veil(from_given(sides, columns, seed, shape), given), "scoreveil.audit.run(…)"
    for doubt in () if force else subject.doubts:
        raise ValueError(f"{doubt} If it is meant so, say force=True.")
    if shape.has_labels:
        check_options(defenses, attacks, cache)
        return of_labels(subject, plan, command, progress)
    found = studies.run(subject, plan, command, None if cache is None else Path(cache), progress)
    return Audit(found, subject)


def given_veil(veil: Veil | str | PathLike[str] | None, shape: Shape, epsilon: Any) -> tuple[Veil | None, Shape, Any]:
    """The veil to attack, and the shape and ε that follow from it; else these as they are given."""
    if veil is None:
        return None, shape, epsilon
    loaded = veil if isinstance(veil, Veil) else Veil.load(veil)
    if not loaded.mechanism.maps:
        raise ValueError(
            f"Only a fitted veil is attacked so, and this is one of {loaded.mechanism.name}: name that as a defense."
        )
    if epsilon is not None:
        raise ValueError("A veil that was fitted has its ε: leave epsilon out.")
    refusal = "A veil that was fitted has its shape: leave shape out."
    loaded = loaded.with_shape(said_beside(loaded.shape, shape, refusal))
    own = None if math.isinf(loaded.epsilon) else float(loaded.epsilon)
    return loaded, loaded.shape, [own]


def with_veil(subject: Subject, veil: Veil | None) -> Subject:
    """The subject behind this veil, with a note about what its figures mean."""
    if veil is None:
        return subject
    sides, classes = subject.everyone, veil.mechanism.classes
    if not subject.shape.has_labels and sides.classes != classes:
        raise ValueError(f"This veil was fitted for {classes} classes; these scores have {sides.classes}.")
    if may_be_fitted_on(veil, len(sides.members), len(sides.nonmembers)):
        note = (
            "The veil was fitted on as many records as these. If they are the same, what attacks find behind it is "
            "in-sample. The advice rests on cross-fitting."
        )
    else:
        note = "The figures of the veil hold for new records only if it was not fitted on these."
    return replace(subject, veil=veil, notes=(*subject.notes, note))


def check_options(defenses: Any, attacks: Any, cache: Any) -> None:
    """Refuse what an audit of many labels does not take."""
    for name, given in (("defenses", defenses), ("attacks", attacks), ("cache", cache)):
        if given is not None:
            raise ValueError(
                f"Many labels are attacked by a few quick attacks, undefended and behind the fitted veil: leave out "
                f"{name}, or audit one label as one column."
            )


def of_labels(subject: Subject, plan: studies.StudyPlan, command: str, progress: Progress = silent) -> LabelsAudit:
    """The audit of many labels, at the ε of a plan."""
    assert subject.served is not None
    others = subject.served[1]
    tried = [epsilon for name, epsilon in plan.settings if name == VEIL]
    found = many_labels.run(subject, others.names, tried, command, plan.seed, plan.jobs, progress)
    return LabelsAudit(found, subject)
