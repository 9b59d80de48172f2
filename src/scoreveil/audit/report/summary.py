"""A study in a few lines of HTML, for a notebook: the outcome, a small table, and what to do."""

from collections.abc import Iterable

from markupsafe import Markup

from scoreveil.audit.report.multi_label import IN_A_WORD, Row
from scoreveil.audit.report.sentences import sentences
from scoreveil.audit.report.wording import NOTHING, interval, number, setting_in_words
from scoreveil.audit.study.results import CHANCE, LABEL, UNDEFENDED, AttackResult, Setting, Study
from scoreveil.audit.verdict import AuditVerdict, Leak, leaks


def html(study: Study, verdict: AuditVerdict) -> str:
    """Names come from users: everything is escaped."""
    outcome, settings = verdict.excess.outcome, [UNDEFENDED]
    if verdict.recommended is not None and verdict.recommended != LABEL:
        settings.append(verdict.recommended)
    undefended = leaks(study, UNDEFENDED, verdict.compared)
    known = [leak.told for leak in undefended]
    heads = ["", *(f"AUC, {'with' if told else 'without'} the true label" for told in known), "AUROC"]
    rows = [_row(study, one, leaks(study, one, verdict.compared)) for one in settings]
    rows.append(["the label alone", *(_auc(leak.floor) for leak in undefended), number(CHANCE)])
    table = _table(heads, rows)
    first, *others = (_in("p", sentence) for sentence in sentences(verdict))
    title = _in("p", _in("b", f"The scores: {outcome}."))
    kept = _in("p", "AUC: of the best attack; .50 is guessing. AUROC: what the confidence is worth.")
    more = Markup("<details><summary>{}</summary>{}</details>").format("In words", first + Markup("").join(others))
    return str(Markup("<div>{}{}{}{}</div>").format(title, table, kept, more))


def of_labels(rows: Iterable[Row], said: Iterable[str]) -> str:
    """The same of many labels: whole answers, and the labels, the worst first."""
    cells = [[row.name, IN_A_WORD[row.excess.outcome], row.auc, number(row.worst.floor_auc)] for row in rows]
    table = _table(["", "verdict", "AUC", "yes or no alone"], cells)
    return str(Markup("<div>{}{}</div>").format(table, Markup("").join(_in("p", sentence) for sentence in said)))


def _row(study: Study, setting: Setting, found: Iterable[Leak]) -> list[str]:
    worth = {cost.setting: cost.auroc_of_confidence for cost in study.defenses}.get(setting)
    return [setting_in_words(setting), *(_auc(leak.best) for leak in found), number(worth)]


def _auc(result: AttackResult | None) -> str:
    return NOTHING if result is None else interval(result.auc, result.auc_low, result.auc_high)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Markup:
    lines = [Markup("").join(_in("th", head) for head in heads)]
    lines += [Markup("").join(_in("td", text) for text in row) for row in rows]
    return _in("table", Markup("").join(_in("tr", line) for line in lines))


def _in(kind: str, content: str) -> Markup:
    """An element; its text is escaped unless it is markup already."""
    return Markup(f"<{kind}>{{}}</{kind}>").format(content)
