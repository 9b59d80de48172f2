"""What follows from the study of many labels: a verdict on each label and on the whole answer, and one page.

    found = verdict(study)
    found.recommended                         # ("regions", None), or None
    write(study, Path("audit"))               # audit/report.html and results.json

As many verdicts are given at once as there are labels, and one: their bounds hold for all of them together with 95 %
confidence, since the level is divided by their number (Bonferroni).
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from scoreveil import atomic
from scoreveil.audit.report.page import STATUS, made, rendered
from scoreveil.audit.report.pdf import Printer
from scoreveil.audit.report.tables import Table, TableCell
from scoreveil.audit.report.wording import NOTHING, attack, interval, number, setting_in_words
from scoreveil.audit.study.many_labels import LabelsStudy, Worth
from scoreveil.audit.study.results import LABEL, UNDEFENDED, VEIL, AttackResult, Setting, Study
from scoreveil.audit.verdict import Leak, excess, leaks, recommended, veils_tried
from scoreveil.fitting.decision import (
    LEAKS,
    NO_MORE,
    UNDECIDED,
    Evidence,
    Excess,
    Outcome,
    preferred,
    sentences,
)

WHOLE = "all labels together"
IN_A_WORD: dict[Outcome, str] = {LEAKS: "leaks", NO_MORE: "no more than yes or no", UNDECIDED: "cannot be told"}


@dataclass(frozen=True)
class Found:
    """What the attacks on one label, or on all together, found on one setting."""

    name: str
    excess: Excess
    leaks: tuple[Leak, ...]

    @property
    def worst(self) -> Leak:
        return max(self.leaks, key=lambda leak: leak.excess)

    @property
    def best(self) -> AttackResult:
        return self.worst.best


@dataclass(frozen=True)
class LabelsVerdict:
    """The verdict on all labels together, and on each, the worst first; the setting to take, and all in sentences."""

    whole: Found
    labels: tuple[Found, ...]
    veils: dict[Setting, list[Found]]  # behind each veil that was tried
    evidence: Evidence
    recommended: Setting | None
    sentences: tuple[str, ...] = ()

    @property
    def behind(self) -> dict[str, Found]:
        """Behind the recommended veil, by name."""
        return {each.name: each for each in self.veils.get(self.recommended or UNDEFENDED, ())}

    @property
    def every(self) -> tuple[Found, ...]:
        return self.whole, *self.labels

    @property
    def outcome(self) -> Outcome:
        """That of the worst of them."""
        assert self.evidence.leak is not None, "an audit has members"
        return self.evidence.leak.outcome


def verdict(study: LabelsStudy) -> LabelsVerdict:
    """What follows from a study."""
    undefended = _found(study, UNDEFENDED)
    labels = sorted(undefended[1:], key=lambda each: each.excess.value, reverse=True)
    veils = {one: _found(study, one) for one in veils_tried(study.whole)}
    tried = (one.joined(_worst(undefended), _worst(veils[VEIL, one.epsilon])) for one in study.evidence)
    evidence = preferred(tuple(tried))
    assert evidence is not None, "a veil was studied"
    found = LabelsVerdict(undefended[0], tuple(labels), veils, evidence, recommended(evidence))
    return replace(found, sentences=_sentences(study, found))


def _found(study: LabelsStudy, setting: Setting) -> list[Found]:
    """All labels together, then each of them."""
    studies: list[tuple[str, Study]] = [(WHOLE, study.whole), *zip(study.names, study.labels, strict=True)]
    made = []
    for name, each in studies:
        seen = leaks(each, setting)
        # half of the error is left for the evidence
        made.append(Found(name, excess(seen, 2 * len(studies)), seen))
    return made


def _worst(found: list[Found]) -> Excess:
    return max((each.excess for each in found), key=lambda each: each.low)


def _sentences(study: LabelsStudy, found: LabelsVerdict) -> tuple[str, ...]:
    count, labels = len(found.labels), found.labels
    leaking = sum(each.excess.outcome == LEAKS for each in labels)
    held = sum(each.excess.outcome == NO_MORE for each in labels)
    unknown = count - leaking - held
    parts = [
        f"Of {count} labels {leaking} leak{'s' * (leaking == 1)}: their confidence tells members from others better "
        "than their yes or no."
        if leaking
        else f"None of {count} labels is shown to leak more than its yes or no."
    ]
    if held:
        parts.append(f"{held} {'is' if held == 1 else 'are'} shown to leak no more than that.")
    if unknown:
        parts.append(f"Of {unknown} it cannot be told from this many records.")
    said = [
        *sentences(found.evidence),
        " ".join(parts),
        _of(labels[0], f"The worst label is {labels[0].name!r}"),
        _of(found.whole, "All labels of an answer together"),
    ]
    if found.recommended == LABEL:
        said.append(_reasons(study, found))
    elif found.recommended is not None:
        said += _of_veil(study, found, found.recommended)
    said.append(
        f"{count + 1} verdicts are given at once; their bounds hold for all of them together with 95 % confidence."
    )
    return tuple(said)


def _reasons(study: LabelsStudy, found: LabelsVerdict) -> str:
    """Why none of the veils is recommended."""
    worth = {each.setting: each for each in study.worth}
    said = []
    for setting, every in found.veils.items():
        worst = max(every, key=lambda each: each.excess.value)
        if worst.excess.outcome == LEAKS:
            best = worst.best
            told = f"{worst.name} leaks, AUC {interval(best.auc, best.auc_low, best.auc_high)} by {attack(best)}"
        else:
            told = "nothing is shown to leak"
        if setting in worth:
            told += f", and log-loss is {number(worth[setting].nll, 3)}, alone {number(worth[LABEL].nll, 3)}"
        said.append(f"Behind {setting_in_words(setting)} {told}.")
    return " ".join(said)


def _of(found: Found, who: str) -> str:
    best = found.best
    bound = f"at least {number(found.excess.low, 3)}" if found.excess.outcome == LEAKS else _between(found.excess)
    told = ", given the true label," if found.worst.told else ""
    return (
        f"{who}: the best attack ({attack(best)}){told} reaches AUC {interval(best.auc, best.auc_low, best.auc_high)}, "
        f"where yes or no alone gives {number(found.worst.floor_auc)}. It lies {bound} above that."
    )


def _between(found: Excess) -> str:
    return f"between {number(found.low, 3)} and {number(found.high, 3)}"


def _of_veil(study: LabelsStudy, found: LabelsVerdict, taken: Setting) -> list[str]:
    count, epsilon = len(found.labels), taken[1]
    outcomes = [each.excess.outcome for each in found.behind.values()]
    worst = max((each for name, each in found.behind.items() if name != WHOLE), key=lambda each: each.excess.value)
    together = found.behind[WHOLE].best
    held = outcomes.count(NO_MORE)
    shown = f"For {held or 'none'} of the {len(outcomes)} it is shown that no more leaks than from yes or no"
    shown += "." if held == len(outcomes) else "; for the others it cannot be told."
    said = [
        f"Behind {setting_in_words(taken)} for each label the best attack on a label ({worst.name}) reaches "
        f"AUC {interval(worst.best.auc, worst.best.auc_low, worst.best.auc_high)}, and on all labels together "
        f"{interval(together.auc, together.auc_low, together.auc_high)}. {shown}",
    ]
    if epsilon is not None:
        said.append(
            f"Promised is ε = {epsilon:g} for each label, {count * epsilon:g} for an answer with all {count} of them."
        )
    worth = {each.setting: each for each in study.worth}
    if taken in worth:
        raw, veiled, alone = (worth[one] for one in (UNDEFENDED, taken, LABEL))
        said.append(
            f"The veiled confidence tells right from wrong with AUROC {number(veiled.useful)} (raw "
            f"{number(raw.useful)}, yes or no alone {number(alone.useful)}); its log-loss is {number(veiled.nll, 3)} "
            f"(raw {number(raw.nll, 3)}, alone {number(alone.nll, 3)}), its calibration error {number(veiled.ece, 3)} "
            f"(raw {number(raw.ece, 3)})."
        )
    return said


# The page


def write(study: LabelsStudy, folder: Path, printer: Printer | None = None) -> Path:
    """Write report.html and results.json, with a printer report.pdf; returns the path of the report."""
    found = verdict(study)
    page = html(study, found)
    results = json.dumps({"sentences": found.sentences, **study.to_dict()}, indent=1, ensure_ascii=False)
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write(folder / "results.json", results + "\n")
    if printer is not None:
        atomic.write(folder / "report.pdf", printer(page))
    atomic.write(folder / "report.html", page)
    return folder / "report.html"


def html(study: LabelsStudy, found: LabelsVerdict) -> str:
    """The whole page."""
    return rendered(
        "many_labels.html.j2",
        title="What the labels' scores give away",
        date=str(study.meta.get("date") or ""),
        status=STATUS[found.outcome],
        headline=headline(found),
        advice=advice(found),
        sentences=found.sentences,
        notes=study.notes,
        labels=by_label(found),
        over_epsilon=over_epsilon(study),
        worth=worth(study.worth, found.recommended) if study.worth else None,
        command=str(study.meta.get("command") or ""),
        made=made({name: value for name, value in study.meta.items() if name != "command"}),
    )


def headline(found: LabelsVerdict) -> str:
    """The verdict in a few words."""
    leaking = [each.name for each in found.labels if each.excess.outcome == LEAKS]
    if leaking:
        return f"{len(leaking)} of {len(found.labels)} labels leak."
    if found.whole.excess.outcome == LEAKS:
        return "No label leaks by itself; all together do."
    if found.outcome == NO_MORE:
        return "The scores leak no more than the labels' yes or no."
    return "Whether the scores leak cannot be told from this many records."


def advice(found: LabelsVerdict) -> str:
    """What to do, in one sentence."""
    return sentences(found.evidence)[0]


def by_label(found: LabelsVerdict) -> Table:
    """All labels together, then a row for each label, the worst first."""
    columns = [
        ("label", ""),
        ("verdict", "undefended; all verdicts hold together with 95 % confidence"),
        ("AUC", "of the best attack, with its 95 % interval; .5 is guessing"),
        ("yes or no", "what the labels give away without their confidence"),
        ("above", "how far an attack lies above that, with the bounds that all labels share"),
    ]
    if found.behind:
        columns += [("veiled: AUC", "of the best attack behind the recommended veil"), ("above", ""), ("verdict", "")]
    rows = []
    for each in found.every:
        cells = [TableCell(each.name, each.name), _outcome(each), _auc(each), _floor(each), _above(each)]
        if found.behind:
            veiled = found.behind[each.name]
            cells += [_auc(veiled), _above(veiled), _outcome(veiled)]
        rows.append(tuple(cells))
    return Table("Label by label", tuple(columns), tuple(rows))


def over_epsilon(study: LabelsStudy) -> Table:
    """A row for each setting: the worst label, and all together."""
    columns = (
        ("defense", ""),
        ("worst label", "the one whose confidence tells most beyond its yes or no"),
        ("AUC", ""),
        ("above", ""),
        ("labels that leak", ""),
        ("no more", "labels that are shown to leak no more than their yes or no"),
        ("all together: AUC", ""),
        ("above", ""),
    )
    rows = []
    for setting in (UNDEFENDED, *veils_tried(study.whole)):
        whole, *labels = _found(study, setting)
        worst = max(labels, key=lambda each: each.excess.value)
        counts = [sum(each.excess.outcome == outcome for each in labels) for outcome in (LEAKS, NO_MORE)]
        name = setting_in_words(setting)
        cells = [TableCell(name, name), TableCell(worst.name, worst.name), _auc(worst), _above(worst)]
        cells += [TableCell(str(count), count) for count in counts]
        rows.append((*cells, _auc(whole), _above(whole)))
    return Table("Over ε", columns, tuple(rows))


def worth(measured: tuple[Worth, ...], taken: Setting | None) -> Table:
    """What each way to answer is worth, over all labels."""
    columns = (
        ("defense", ""),
        ("AUROC", "how often a right yes or no is surer than a wrong one"),
        ("log-loss", "lower is better"),
        ("calibration error", "lower is better"),
    )
    rows = []
    for each in measured:
        name = setting_in_words(each.setting)
        cells = [TableCell(number(value, 3), value) for value in (each.useful, each.nll, each.ece)]
        rows.append((TableCell(name, name), *cells))
    there = [each.setting for each in measured]
    return Table("Worth", columns, tuple(rows), there.index(taken) if taken in there else None)


def _outcome(found: Found) -> TableCell:
    return TableCell(*[IN_A_WORD[found.excess.outcome]] * 2)


def _auc(found: Found) -> TableCell:
    best = found.best
    told = ", given the true label" if found.worst.told else ""
    return TableCell(number(best.auc), best.auc, f"{number(best.auc_low)}–{number(best.auc_high)}{told}")


def _floor(found: Found) -> TableCell:
    floor = found.worst.floor
    return TableCell(NOTHING if floor is None else number(floor.auc), found.worst.floor_auc)


def _above(found: Found) -> TableCell:
    low, high = (number(value) for value in (found.excess.low, found.excess.high))
    return TableCell(number(found.excess.value), found.excess.value, f"{low} to {high}")
