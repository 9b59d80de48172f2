"""An audit of many labels in words, and on one page: a row for each label, and one for whole answers.

As many verdicts are given at once as there are rows; their bounds hold for all of them together with 95 % confidence,
since the level is divided by their number (Bonferroni).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scoreveil import atomic
from scoreveil.audit.report.page import STATUS, made, rendered
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.sentences import broken_promises
from scoreveil.audit.report.table import Table, TableCell
from scoreveil.audit.report.wording import NOTHING, attack, interval, number, setting_in_words
from scoreveil.audit.study.multi_label import LabelsStudy
from scoreveil.audit.study.results import LABEL, UNDEFENDED, VEIL, AttackResult, Setting, Study, to_json
from scoreveil.audit.verdict import AuditVerdict, Leak, excess, leaks
from scoreveil.fitting import decision
from scoreveil.fitting.decision import LEAKS, NO_MORE, UNDECIDED, Excess, Outcome

WHOLE = "all labels together"
IN_A_WORD: dict[Outcome, str] = {LEAKS: "leaks", NO_MORE: "no more than yes or no", UNDECIDED: "cannot be told"}


@dataclass(frozen=True)
class Row:
    """What the attacks on one label, or on whole answers, found on one setting."""

    name: str
    excess: Excess
    worst: Leak

    @property
    def best(self) -> AttackResult:
        return self.worst.best

    @property
    def auc(self) -> str:
        return interval(self.best.auc, self.best.auc_low, self.best.auc_high)


def rows(study: LabelsStudy, setting: Setting = UNDEFENDED) -> list[Row]:
    """Whole answers first, then the labels as they come."""
    studies: dict[str, Study] = {WHOLE: study.whole, **study.labels}
    found = {name: leaks(one, setting) for name, one in studies.items()}
    return [
        # half of the error is left for the evidence
        Row(name, excess(kinds, 2 * len(studies)), max(kinds, key=lambda leak: leak.excess))
        for name, kinds in found.items()
    ]


def by_label(study: LabelsStudy) -> list[Row]:
    """Undefended, whole answers first, then the labels, the worst first."""
    whole, *labels = rows(study)
    return [whole, *sorted(labels, key=lambda row: row.excess.value, reverse=True)]


def sentences(study: LabelsStudy, verdict: AuditVerdict) -> tuple[str, ...]:
    """What leaks and what to do, then what that rests on."""
    assert verdict.evidence is not None, "a veil was studied"
    whole, *labels = by_label(study)
    said = [
        *decision.sentences(verdict.evidence),
        _counted(labels),
        _of(labels[0], f"The worst label is {labels[0].name!r}"),
        _of(whole, "All labels of an answer together"),
    ]
    taken = verdict.recommended
    if taken is not None and taken != LABEL:
        said.append(_behind(rows(study, taken), taken))
        if taken[1] is not None:
            total = taken[1] * len(labels)
            said.append(
                f"Promised is ε = {taken[1]:g} for each label, {total:g} for an answer with all {len(labels)} of them."
            )
    said += [_worth(study, taken)] if taken is not None else []
    said += [f"{name}: {broken}" for name, one in study.labels.items() for broken in broken_promises(one)]
    said.append(
        f"{len(labels) + 1} verdicts are given at once; their bounds hold for all of them together with 95 % "
        "confidence."
    )
    return tuple(sentence for sentence in said if sentence)


def _counted(labels: list[Row]) -> str:
    count, outcomes = len(labels), [row.excess.outcome for row in labels]
    leaking, held, unknown = (outcomes.count(outcome) for outcome in (LEAKS, NO_MORE, UNDECIDED))
    said = f"None of {count} labels is shown to leak more than its yes or no."
    if leaking:
        said = (
            f"Of {count} labels {leaking} leak{'s' * (leaking == 1)}: their confidence tells members from others "
            "better than their yes or no."
        )
    said += f" {held} {'is' if held == 1 else 'are'} shown to leak no more than that." if held else ""
    return said + (f" Of {unknown} it cannot be told from this many records." if unknown else "")


def _of(row: Row, who: str) -> str:
    bounds = row.excess
    above = f"between {number(bounds.low, 3)} and {number(bounds.high, 3)}"
    if bounds.outcome == LEAKS:
        above = f"at least {number(bounds.low, 3)}"
    told = ", given the true label," if row.worst.told else ""
    return (
        f"{who}: the best attack ({attack(row.best)}){told} reaches AUC {row.auc}, where yes or no alone gives "
        f"{number(row.worst.floor_auc)}. It lies {above} above that."
    )


def _behind(behind: list[Row], taken: Setting) -> str:
    whole, *labels = behind
    worst, held = max(labels, key=lambda row: row.excess.value), sum(r.excess.outcome == NO_MORE for r in behind)
    shown = f"For {held or 'none'} of the {len(behind)} it is shown that no more leaks than from yes or no"
    shown += "." if held == len(behind) else "; for the others it cannot be told."
    return (
        f"Behind {setting_in_words(taken)} for each label the best attack on a label ({worst.name}) reaches AUC "
        f"{worst.auc}, and on all labels together {whole.auc}. {shown}"
    )


def _worth(study: LabelsStudy, taken: Setting) -> str:
    """What the confidence is worth on average over the labels."""
    ways = {"raw": UNDEFENDED, "veiled": taken, "yes or no alone": LABEL}
    said = []
    for measure, field in (("AUROC", "auroc_of_confidence"), ("log-loss", "nll")):
        means = []
        for way, setting in ways.items():
            costs = [one.costs[setting] for one in study.labels.values() if setting in one.costs]
            values = [value for cost in costs if (value := getattr(cost, field)) is not None]
            if len(values) < len(study.labels):
                return ""
            means.append(f"{number(sum(values) / len(values), 3)} ({way})")
        said.append(f"{measure} {', '.join(means if taken != LABEL else means[::2])}")
    return f"The confidence is worth, on average over the labels: {'; '.join(said)}."


# The page


def write(study: LabelsStudy, verdict: AuditVerdict, folder: Path, printer: Printer | None = None) -> Path:
    """Write report.html and results.json, with a printer report.pdf; returns the path of the report."""
    page = html(study, verdict)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write(folder / "results.json", results(study))
    if printer is not None:
        atomic.write(folder / "report.pdf", printer(page))
    atomic.write(folder / "report.html", page)
    return folder / "report.html"


def results(study: LabelsStudy) -> str:
    """JSON: the study of whole answers, and that of each label, as `results.from_json` reads one."""
    return _object({"whole": to_json(study.whole), "labels": _object({k: to_json(s) for k, s in study.labels.items()})})


def _object(members: Mapping[str, str]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {value}" for name, value in members.items()) + "}\n"


def html(study: LabelsStudy, verdict: AuditVerdict) -> str:
    """The whole page."""
    assert verdict.evidence is not None, "a veil was studied"
    meta, said = study.whole.meta, sentences(study, verdict)
    return rendered(
        "multi_label.html.j2",
        title="What the labels' scores give away",
        date=str(meta.get("date") or ""),
        status=STATUS[verdict.excess.outcome],
        headline=headline(study, verdict),
        advice=said[0],
        sentences=said[1:],
        notes=study.whole.notes,
        labels=table(study, verdict.recommended),
        command=str(meta.get("command") or ""),
        made=made({name: value for name, value in meta.items() if name != "command"}),
    )


def headline(study: LabelsStudy, verdict: AuditVerdict) -> str:
    """The verdict in a few words."""
    whole, *labels = by_label(study)
    leaking = sum(row.excess.outcome == LEAKS for row in labels)
    if leaking:
        return f"{leaking} of {len(labels)} labels leak."
    if whole.excess.outcome == LEAKS:
        return "No label leaks by itself; all together do."
    if verdict.excess.outcome == NO_MORE:
        return "The scores leak no more than the labels' yes or no."
    return "Whether the scores leak cannot be told from this many records."


def table(study: LabelsStudy, taken: Setting | None) -> Table:
    """A row for whole answers, and one for each label."""
    columns = [
        ("label", ""),
        ("verdict", "undefended; all verdicts hold together with 95 % confidence"),
        ("AUC", "of the best attack, with its 95 % interval; .5 is guessing"),
        ("yes or no", "what the labels give away without their confidence"),
        ("above", "how far an attack lies above that, with the bounds that all labels share"),
    ]
    behind = {row.name: row for row in rows(study, taken)} if taken is not None and taken[0] == VEIL else {}
    if behind:
        columns += [("veiled: AUC", "of the best attack behind the recommended veil"), ("above", ""), ("verdict", "")]
    cells = []
    for row in by_label(study):
        floor = TableCell(NOTHING if row.worst.floor is None else number(row.worst.floor_auc), row.worst.floor_auc)
        bare = (TableCell(row.name, row.name), _outcome(row), _auc(row), floor, _above(row))
        veiled = behind.get(row.name)
        cells.append(bare if veiled is None else (*bare, _auc(veiled), _above(veiled), _outcome(veiled)))
    return Table("Label by label", tuple(columns), tuple(cells))


def _outcome(row: Row) -> TableCell:
    return TableCell(*[IN_A_WORD[row.excess.outcome]] * 2)


def _auc(row: Row) -> TableCell:
    told = ", given the true label" if row.worst.told else ""
    return TableCell(
        number(row.best.auc), row.best.auc, f"{number(row.best.auc_low)}–{number(row.best.auc_high)}{told}"
    )


def _above(row: Row) -> TableCell:
    low, high = (number(value) for value in (row.excess.low, row.excess.high))
    return TableCell(number(row.excess.value), row.excess.value, f"{low} to {high}")
