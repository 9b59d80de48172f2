"""The audit in Python: scores in, a verdict out. What `scoreveil audit` does for files."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from scoreveil.audit.defenses.ours import fitted_veil
from scoreveil.audit.report import page, summary
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.verdict import VEIL, AuditVerdict, Outcome
from scoreveil.audit.report.verdict import verdict as judge
from scoreveil.audit.study import run as studies
from scoreveil.audit.study.results import Setting, Study
from scoreveil.audit.study.risk import RecordRisks, record_risks
from scoreveil.audit.study.shadows import silent
from scoreveil.audit.study.subjects import Subject, from_given
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
    def sentences(self) -> tuple[str, ...]:
        """The verdict in words."""
        return self.verdict.sentences

    @property
    def recommended(self) -> Setting | None:
        """The defense to take and its ε, ("optimal", 2.0); None where nothing leaks, or nothing can be told."""
        return self.verdict.recommended

    @cached_property
    def veil(self) -> Veil | None:
        """The recommended veil, fitted on all records that the audit was given; None where no veil is recommended."""
        given = self.subject.given_records
        if self.recommended is None or given is None:
            return None
        defense, epsilon = self.recommended
        return fitted_veil(given, epsilon) if defense == VEIL and epsilon is not None else None

    @cached_property
    def risks(self) -> RecordRisks | None:
        """How much at risk each record is, undefended and behind the recommended veil."""
        given, seed = self.subject.given_records, self.study.meta["plan"]["seed"]
        return None if given is None else record_risks(given, self.study, self.recommended, seed)

    def write(self, folder: str | PathLike[str], printer: Printer | None = None) -> Path:
        """Write report.html, results.json, vulnerability.json and the figures, and where they are known records.csv and
        .parquet; with a printer report.pdf; and veil.npz where a veil is recommended.

        Returns:
            The path of the report.
        """
        made = page.write(self.study, Path(folder), self.risks, printer)
        if self.veil is not None:
            self.veil.save(made.parent / "veil.npz")
        return made

    def __str__(self) -> str:
        return "\n".join((*(f"Note: {note}" for note in self.study.notes), *self.sentences))

    def _repr_html_(self) -> str:
        return summary.html(self.study, self.verdict)


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
    columns: str | None = None,
    defenses: Iterable[str] | None = None,
    epsilons: Iterable[float] | None = None,
    attacks: Iterable[str] | None = None,
    cache: str | PathLike[str] | None = None,
    seed: int = 0,
    jobs: int = 2,
    progress: Callable[[str, int, int], None] = silent,
) -> Audit:
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
        columns: Of DataFrames and files: the columns of the scores, as names or patterns with commas between.
        defenses: Names of what to compare, or "all"; by default the optimal veil and a few rivals.
        epsilons: The ε to try.
        attacks: Names of attacks; by default all.
        cache: A folder that keeps what is done, to go on after a stop.
        seed: The same seed gives the same numbers.
        jobs: Processes at a time.
        progress: Is told what was done last, how much is done, and of how much.

    Returns:
        An `Audit`: the verdict, the veil to take, and every number.

    Raises:
        ValueError: The records are not scores or labels, or a name is not known.
    """
    plan = studies.planned(defenses, epsilons, attacks, seed, jobs)
    sides = {
        "members": (members, member_labels),
        "nonmembers": (nonmembers, nonmember_labels),
        "shadow members": (shadow_members, shadow_member_labels),
        "shadow nonmembers": (shadow_nonmembers, shadow_nonmember_labels),
        "reference": (reference, None),
    }
    subject = from_given(sides, columns, seed)
    found = studies.run(subject, plan, "scoreveil.audit.run(…)", None if cache is None else Path(cache), progress)
    return Audit(found, subject)
