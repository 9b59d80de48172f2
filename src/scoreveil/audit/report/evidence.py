"""The evidence below the verdict: the records most at risk, each class, and the ε that attacks prove.

rendered("report.html.j2", **content(study, verdict, risks))     # for templates/evidence.html.j2
files(study, verdict, risks)                                     # records.csv, records.parquet, vulnerability.json
"""

from typing import Any

import numpy as np

from scoreveil.audit.data.records import Bools
from scoreveil.audit.report import records, vulnerability
from scoreveil.audit.report.sentences import broken_promises
from scoreveil.audit.report.table import Table, TableCell, count, epsilon, figure, share, table, word
from scoreveil.audit.report.wording import NOTHING, attack_name, interval, number, setting_in_words, words
from scoreveil.audit.study import metrics
from scoreveil.audit.study.results import DefenseResult, Setting, Study
from scoreveil.audit.study.risk import POOL, RecordRisks, Risk
from scoreveil.audit.verdict import AuditVerdict

PRIVATE = records.NAMES  # for their owner alone
FEWEST = 30  # members and non-members of a class, each, to say something about it


def content(study: Study, verdict: AuditVerdict, risks: RecordRisks | None) -> dict[str, Any]:
    """What templates/evidence.html.j2 shows."""
    return {
        "promises": promises(study, verdict.recommended),
        "broken": broken_promises(study),
        "exposed": None if risks is None else most_exposed(risks),
        "classes": None if risks is None else by_class(risks),
        "about_risk": None if risks is None else about_risk(risks),
    }


def files(study: Study, verdict: AuditVerdict, risks: RecordRisks | None) -> dict[str, bytes]:
    """The files beside the report, by name."""
    summary = {"vulnerability.json": vulnerability.to_json(study, verdict, risks).encode()}
    return summary if risks is None else summary | records.files(risks)


def most_exposed(risks: RecordRisks) -> Table:
    """The members that an attacker would be surest of; those with the same risk stand in one row."""
    right, before = _right(risks), risks.undefended
    alike: dict[TableCell, list[int]] = {}
    for i in map(int, risks.most_exposed()):
        value, low, high = (float(v[i]) for v in (before.value, before.low, before.high))
        alike.setdefault(TableCell(number(value), value, f"{number(low)}–{number(high)}"), []).append(i)
    rows = []
    for risk, members in alike.items():
        known = NOTHING if right is None else f"{int(right[members].sum())} of {len(members)}"
        cells = [word(", ".join(str(risks.rows[i]) for i in members)), word(known)]
        others = [*([risks.veiled] if risks.veiled else []), risks.label]
        rows.append((risk, *cells, *(_range(other, members) for other in others)))
    how = "the probability of membership that a good attacker would state after one answer, with its interval"
    headings = [
        ("risk", f"without a defense: {how}; .5 is a guess"),
        ("rows", "of the members' file, from 0; those that the attack names first come first"),
        ("labels right", "how many of their released labels are right"),
        *([(f"risk {_behind(risks)}", "behind what is recommended, lowest to highest")] if risks.veiled else []),
        ("label alone", "what the label alone gives: no defense that keeps it can go below"),
    ]
    return Table("The members most at risk", tuple(headings), tuple(rows))


def _range(risk: Risk, members: list[int]) -> TableCell:
    """The risk of these members, from the lowest to the highest."""
    low, high = float(risk.value[members].min()), float(risk.value[members].max())
    return TableCell(number(low) if number(low) == number(high) else f"{number(low)}–{number(high)}", high)


def about_risk(risks: RecordRisks) -> str:
    """What a risk is, and by which attack."""
    by = attack_name(risks.attack)
    if risks.setting is not None:
        by += f"; behind {setting_in_words(risks.setting)}, {attack_name(risks.veiled_attack)}"
    surely = int((risks.undefended.low[: len(risks.given.members)] > 0.5).sum())
    return (
        f"{surely:,} of the {len(risks.given.members):,} members have an interval above .5 without a defense. "
        f"Risk is the probability of membership that an attacker would state after one answer (by {by}), if it knew of "
        "all other records whether they are members. It is cross-fitted and calibrated: of records with a risk of .8 "
        f"about 80 % are members. Many records share a risk, since it rests on {POOL} of them or more; those that the "
        "attack names first come first. All records are in records.csv beside this file, which tells who is a member: "
        "keep it as you keep the scores."
    )


def _behind(risks: RecordRisks) -> str:
    return f"behind {setting_in_words(risks.setting)}" if risks.setting else ""


def _right(risks: RecordRisks) -> Bools | None:
    sides = risks.given.members, risks.given.nonmembers
    return None if any(r.labels is None for r in sides) else np.concatenate([r.is_right for r in sides])


def by_class(risks: RecordRisks) -> Table:
    """How well members can be told from others within each class."""
    label, truth, right = risks.given.records.predicted, risks.given.truth, _right(risks)

    def one_side(of_members: bool, c: int) -> Bools:
        return np.asarray((label == c) & (truth == of_members))

    def rate(of_members: bool, c: int) -> TableCell:
        side = one_side(of_members, c)
        return share(None if right is None or not side.any() else float(right[side].mean()))

    def auc(risk: Risk, c: int) -> TableCell:
        there = label == c
        if min((there & truth).sum(), (there & ~truth).sum()) < FEWEST:
            return TableCell("too few")
        value, low, high = metrics.auc(truth[there], risk.after_one[there])
        return TableCell(interval(value, low, high), value)

    meaning = "told apart within the class: AUC, with its 95 % interval; .5 is guessing"
    columns = [
        ("class", "the released label", lambda c: TableCell(f"{c}", float(c))),
        ("members", "", lambda c: count(int(one_side(True, c).sum()))),
        ("non-members", "", lambda c: count(int(one_side(False, c).sum()))),
        ("right, members", "how often the label is right", lambda c: rate(True, c)),
        ("right, non-members", "how often the label is right", lambda c: rate(False, c)),
        ("AUC", f"without a defense, {meaning}; at least {FEWEST} on each side", lambda c: auc(risks.undefended, c)),
    ]
    if risks.veiled is not None:
        veiled = risks.veiled
        columns.append((f"AUC {_behind(risks)}", "the same behind what is recommended", lambda c: auc(veiled, c)))
    return table("Class by class", np.unique(label).tolist(), columns)


def promises(study: Study, recommended: Setting | None) -> Table | None:
    """The ε that attacks prove beside the one that is promised; None where nothing is promised."""
    promising = [d for d in study.defenses if d.promised_epsilon is not None]
    if not promising:
        return None
    settings = [one.setting for one in promising]
    odds = "one answer is at most e^ε times as likely for one record as for another with the same label"
    return table(
        "What is promised, and what attacks prove",
        promising,
        [
            ("defense", "", lambda one: word(words(one.defense))),
            ("promised ε", odds, lambda one: epsilon(one.promised_epsilon)),
            (
                "proved ε",
                "a lower bound at 99.9 %: no smaller ε would allow what attacks found",
                lambda one: figure(one.proved_epsilon, 2),
            ),
            ("promise", "broken where more is proved than promised", _outcome),
        ],
        settings.index(recommended) if recommended in settings else None,
    )


def _outcome(one: DefenseResult) -> TableCell:
    if one.proved_epsilon is None:
        return word("too few to tell")
    return word("BROKEN" if one.breaks_promise else "not contradicted")
