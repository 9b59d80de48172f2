"""The figures of a study: at a glance, the frontier of privacy and utility, log-log ROC, ε sweeps, what the confidence
is worth, reconstructions.

Each is a list of panels (or a sheet), to be drawn by `charts` inside the page or as files. Settings are compared by
the attacks that were run on all of them, and `compared_by` says which these are.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

import numpy as np

from scoreveil.audit.report import pictures
from scoreveil.audit.report.charts.bars import Bar, Column, Row, bars
from scoreveil.audit.report.charts.marks import Sheet
from scoreveil.audit.report.charts.panel import SHAPES, TONES, Axis, Panel, Series, sheet
from scoreveil.audit.report.wording import attack, attack_list, interval, number, percent, setting_in_words, words
from scoreveil.audit.study.results import (
    CHANCE,
    LABEL,
    TEMPERED,
    UNDEFENDED,
    VEIL,
    AttackResult,
    Setting,
    Study,
    best,
    floor,
    left_out,
    shared,
)
from scoreveil.audit.verdict import AuditVerdict, Leak, knowledge, leaks, readable, ways_to_answer
from scoreveil.fitting.metrics import Group

# "optimal": rows of results that were made before regions
KNOWN_TONES = {"none": "ink", VEIL: "c0", "optimal": "c0", "published": "c1"}
USEFUL = ("auroc_of_confidence", "usefulness: AUROC of the confidence (further right is better)")
DISTORTED = ("distortion_l2", "distortion: mean ‖z − y‖₂ (further left is better)")  # drawn where no label is known
MIN_RATE = 1e-3  # where the axes of a log-log ROC start at the lowest
MIN_SWEPT = 3  # settings of a defense that make a curve over ε
MAX_CURVES = 5
KEY, PLAIN_KEY = "members found at 1 % false positives", "the best attack at each rate"

ATTACKERS = {False: "Attacker has the scores alone", True: "Attacker knows the true label"}

Measured = Callable[[Setting], "Spot | None"]


class Spot(NamedTuple):
    """Where a setting stands on an axis."""

    value: float
    tip: str = ""
    span: tuple[float, float] | None = None


def settings(study: Study) -> list[Setting]:
    """Every defense and ε that was attacked, in the order of the study, the most revealing first within a defense."""
    order = {name: i for i, name in reversed(list(enumerate(r.defense for r in study.results)))}
    attacked = {r.setting for r in study.results}
    return sorted(attacked, key=lambda s: (order[s[0]], -(s[1] or math.inf)))


def compared_by(study: Study) -> list[str]:
    """By which attacks settings are compared, and which are left out since not every setting was attacked with them."""
    common = shared(study)
    said = [f"The best of the attacks that were run on every setting: {attack_list(common.results)}."]
    others = left_out(study, common)
    return said + ([f"Left out, since run on some settings only: {attack_list(others)}."] if others else [])


def _by_defense(study: Study) -> dict[str, list[Setting]]:
    groups: dict[str, list[Setting]] = {}
    for one in settings(study):
        groups.setdefault(one[0], []).append(one)
    return groups


def looks(study: Study) -> dict[str, tuple[str, str]]:
    """Tone and marker of each defense: colours for those that take an ε, grey with its own shape for a single point."""
    free = cycle([t for t in TONES if t not in KNOWN_TONES.values()])
    shapes = cycle(SHAPES[1:])
    by_name = {}
    for name, group in _by_defense(study).items():
        swept = any(epsilon is not None for _, epsilon in group)
        tone = KNOWN_TONES.get(name) or (next(free) if swept else "muted")
        by_name[name] = tone, ("circle" if swept or name == "none" else next(shapes))
    return by_name


def _leak(study: Study, told: bool) -> Measured:
    """The AUC of the best attack on a setting."""

    def measured(one: Setting) -> Spot | None:
        top = best(study, one, told=told)
        if top is None:
            return None
        span = top.auc_low, top.auc_high
        return Spot(top.auc, f"AUC {interval(top.auc, *span)}, by {attack(top)}", span)

    return measured


def _cost(study: Study, field: str, label: str) -> Measured:
    """A field of what a setting costs."""
    values = {d.setting: getattr(d, field) for d in study.defenses}

    def measured(one: Setting) -> Spot | None:
        value = values.get(one)
        return None if value is None else Spot(value, f"{label.partition(':')[0]} {number(value, 3)}")

    return measured


def _epsilon(one: Setting) -> Spot | None:
    return None if one[1] is None else Spot(one[1])


def _series(study: Study, across: Measured, up: Measured, only: Iterable[str] | None = None) -> tuple[Series, ...]:
    """A line for each defense through its settings, with ε at its ends; of `only` some, with whiskers."""
    lines, style = [], looks(study)
    for name, group in _by_defense(study).items():
        spots = [(one, x, y) for one in group if (x := across(one)) and (y := up(one))]
        if not spots or (only is not None and name not in only):
            continue
        ends = (0, len(spots) - 1) if len(spots) > 1 and only is None else ()
        lines.append(
            Series(
                words(name),
                tuple((x.value, y.value) for _, x, y in spots),
                *style[name],
                tips=tuple(
                    f"{setting_in_words(one)}: {y.tip}" + (f". {x.tip}" if x.tip else "") for one, x, y in spots
                ),
                tags=tuple(f"ε {one[1]:g}" if i in ends and one[1] else "" for i, (one, _, _) in enumerate(spots)),
                whiskers=tuple(y.span for _, _, y in spots if y.span and only is not None),
            )
        )
    return tuple(lines)


def _auc_axis(values: Sequence[float]) -> Axis:
    """From guessing, or from what lies below it."""
    low, high = min(CHANCE, *values), max(*values, CHANCE + 0.05)
    margin = 0.07 * (high - low)
    return Axis("AUC of the best attack (lower is better)", (low - margin * (low < CHANCE), high + margin))


def _floors(study: Study, told: bool) -> tuple[tuple[str, float], ...]:
    """What the label alone gives; and the ranking alone, where that is visibly more."""
    label, ranking = floor(study, told), best(study, UNDEFENDED, told=told, reads="ranking")
    levels = [(f"label alone: {number(label.auc)}", label.auc)] if label else []
    if ranking and (label is None or ranking.auc - label.auc > 0.008):
        levels.append((f"ranking alone: {number(ranking.auc)}", ranking.auc))
    return tuple(levels)


# At a glance


def glance(study: Study, verdict: AuditVerdict) -> tuple[Sheet, Sheet]:
    """What the attacker who learns most finds, and what the confidence is worth: undefended, behind what is
    recommended, and from the label alone. A wide drawing, and one for telephones."""
    worst = _worst(study, verdict)
    rows = [_row(study, "raw scores", "c1", UNDEFENDED, worst.best)]
    taken = verdict.recommended
    if taken is not None and taken != LABEL:
        behind = next(leak for leak in leaks(study, taken, verdict.compared) if leak.told == worst.told)
        rows.append(_row(study, setting_in_words(taken), "c0", taken, behind.best))
    is_useful, lowest = any(row.bars[1] for row in rows), floor(study, worst.told)
    rows.append(
        Row("label alone", "muted", (None if lowest is None else _bar(lowest), Bar(CHANCE) if is_useful else None))
    )
    who = "if the attacker knows the true label" if worst.told else "if the attacker has the scores alone"
    columns = [
        Column("What an attack finds", f"AUC of the best attack {who}", ("guessing", "certainty")),
        Column("What is left", "how often a right answer is surer than a wrong one", ("nothing", "always")),
    ]
    shown = columns if is_useful else columns[:1]
    return bars("At a glance", shown, rows), bars("At a glance", shown, rows, narrow=True)


def _worst(study: Study, verdict: AuditVerdict) -> Leak:
    """What the attacker who learns most gets from the undefended scores."""
    return max(leaks(study, UNDEFENDED, verdict.compared), key=lambda leak: leak.excess)


def _row(study: Study, name: str, tone: str, one: Setting, top: AttackResult) -> Row:
    useful = study.costs[one].auroc_of_confidence if one in study.costs else None
    return Row(name, tone, (_bar(top), None if useful is None else Bar(useful)))


def _bar(result: AttackResult) -> Bar:
    return Bar(result.auc, (result.auc_low, result.auc_high))


# The frontier


def frontier(study: Study) -> list[Panel]:
    """Privacy against utility for each attacker: over the AUROC of the confidence; without labels over distortion."""
    everything, study = study, shared(study)
    is_known = any(cost.auroc_of_confidence is not None for cost in study.defenses)
    field, label = USEFUL if is_known else DISTORTED
    panels = []
    for told in knowledge(study):
        floors = _floors(everything, told)
        series = _series(study, _cost(study, field, label), _leak(study, told))
        if series:
            xs, ys = zip(*(point for s in series for point in s.points), strict=True)
            start = min(CHANCE if is_known else 0.0, *xs)
            end = max(start + 0.05, *xs)  # an axis has a length, even where no confidence tells anything
            across = Axis(label, (start, end + 0.05 * (end - start)))
            up = _auc_axis([*ys, *(y for _, y in floors)])
            panels.append(Panel(ATTACKERS[told], across, up, series, floors))
    return panels


# ROC


def roc(study: Study, verdict: AuditVerdict) -> list[Panel]:
    """True against false positive rates, both logarithmic: on each selected setting, the best attack at each rate."""
    everything, study = study, shared(study)
    style, panels = looks(study), []
    fewest = min((r.nonmembers for r in study.results), default=1)
    least = min(
        max(MIN_RATE, 10.0 ** math.floor(math.log10(1 / max(fewest, 1)))), 0.1
    )  # below one false alarm there is nothing
    for told in knowledge(study):
        series = []
        free = iter([t for t in TONES if t not in {look[0] for look in style.values()}] + list(TONES))
        for one in selected(study, verdict):
            results = [r for r in study.results if r.setting == one and (told or not r.knows_label)]
            if results:
                tone = style[one[0]][0]
                dash = "" if one in (UNDEFENDED, verdict.recommended) else "6 3"
                name = setting_in_words(one)
                series.append(_curve(results, least, name, next(free) if tone == "muted" else tone, dash))
        label = floor(everything, told)
        series += [_curve([label], least, "label alone", "ink", "2 3")] if label else []
        series = [s for s in series if len(s.points) > 1]
        if series:
            rates = Axis("false positive rate", (least, 1.0), log=True)
            hits = Axis("true positive rate", (least, 1.0), log=True)
            key = KEY if any(readable(r, "tpr_at_1pct") for r in study.results) else PLAIN_KEY
            panels.append(Panel(ATTACKERS[told], rates, hits, tuple(series), diagonal=True, key=key))
    return panels


def _curve(results: Sequence[AttackResult], least: float, name: str, tone: str, dash: str) -> Series:
    """The highest of the attacks at each rate, named with the members found at 1 % where that can be told."""
    rates = sorted({x for r in results for x, _ in r.roc})
    curves = [sorted(r.roc) for r in results if r.roc]
    heights = [np.interp(rates, [x for x, _ in curve], [y for _, y in curve]) for curve in curves]
    highest = np.max(heights, axis=0) if heights else ()
    points = tuple((max(x, least), float(y)) for x, y in zip(rates, highest, strict=True) if y >= least)
    # of the points left of the axis only the highest counts: a step starts there
    first = max((p for p in points if p[0] == least), default=None)
    shown = ((first,) if first else ()) + tuple(p for p in points if p[0] > least)
    early = max((r.tpr_at_1pct for r in results if readable(r, "tpr_at_1pct")), default=None)
    return Series(name if early is None else f"{percent(early)}  {name}", shown, tone, shape="", dash=dash)


def selected(study: Study, verdict: AuditVerdict) -> list[Setting]:
    """No defense, the recommended setting, the published one and the rivals, each where it leaks least; a handful."""

    def leak(one: Setting) -> float:
        return max(r.auc for r in study.results if r.setting == one)

    wanted = [UNDEFENDED, *([verdict.recommended] if verdict.recommended else [])]
    keeps = {d.defense for d in study.defenses if d.keeps_label}
    left_out = {"label_only", "label_constant", *(name for name, _ in wanted)}  # the label alone is drawn as the floor
    others = [min(group, key=leak) for name, group in _by_defense(study).items() if name in keeps - left_out]
    others.sort(key=lambda one: (one[0] != "published", one[0].startswith("isotonic"), leak(one)))
    return (wanted + others)[:MAX_CURVES]


# Sweeps


def sweeps(study: Study) -> list[Panel]:
    """AUC of the best attack against ε, for the defenses that were tried at several."""
    everything, study = study, shared(study)
    swept = {name for name, group in _by_defense(study).items() if sum(e is not None for _, e in group) >= MIN_SWEPT}
    if not swept:
        return []
    every = [e for name, e in settings(study) if name in swept and e is not None]
    across = Axis("ε, logarithmic", (min(every) / 1.25, max(every) * 1.25), log=True)
    panels = []
    for told in knowledge(study):
        series, floors = _series(study, _epsilon, _leak(study, told), swept), _floors(everything, told)
        undefended = best(study, UNDEFENDED, told=told)
        if undefended is not None:
            floors = (*floors, (f"undefended: {number(undefended.auc)}", undefended.auc))
        seen = [y for s in series for ends in s.whiskers for y in ends] + [level for _, level in floors]
        panels.append(Panel(ATTACKERS[told], across, _auc_axis(seen), series, floors))
    return panels


def of_worst(study: Study, verdict: AuditVerdict) -> list[Panel]:
    """Frontier, ROC and sweep of the attacker who learns most."""
    place = knowledge(shared(study)).index(_worst(study, verdict).told)
    titles = "What leaks, and what is left", "Members found, over false alarms", "What leaks, over ε"
    every = zip(titles, (frontier(study), roc(study, verdict), sweeps(study)), strict=True)
    return [replace(panels[place], title=title) for title, panels in every if len(panels) > place]


# What the confidence is worth


def worth(study: Study, verdict: AuditVerdict) -> list[Panel]:
    """Whether each way to answer means what it says, and how often it errs on what it is surest of."""
    ways = [cost for cost in ways_to_answer(study, verdict.recommended) if cost.reliability]
    free = iter(TONES)
    shown = [(setting_in_words(c.setting), KNOWN_TONES.get(c.defense) or next(free), c) for c in ways]
    if not shown:
        return []
    # temperature scaling hardly changes which answers are surest
    ranked = [way for way in shown if way[2].setting != TEMPERED]
    lines = tuple(Series(name, cost.risk_coverage, tone, shape="") for name, tone, cost in ranked)
    most = max((y for s in lines for _, y in s.points), default=0.0)
    rates = Axis("error rate among them (lower is better)", (0.0, 1.07 * most or 0.05))
    across = Axis("share of records acted on, the surest first", (0.0, 1.0))
    return [
        reliability([(name, tone, cost.reliability) for name, tone, cost in shown]),
        Panel("Errors while acting on the surest", across, rates, lines),
    ]


def reliability(shown: Sequence[tuple[str, str, Sequence[Group]]]) -> Panel:
    """What was announced against how often it was right: for each way to answer its name, tone and groups."""
    every = [group for _, _, groups in shown for group in groups]
    ends = [v for group in every for v in (group.announced, group.right.low, group.right.high)]
    low = max(0.0, min(ends) - 0.03)
    straight = Series("as announced", ((low, low), (1.0, 1.0)), "muted", shape="", dash="2 4")
    series = (
        Series(
            name,
            tuple((group.announced, group.right.value) for group in groups),
            tone,
            shape,
            tips=tuple(
                f"{name}: announced {number(group.announced, 3)}, right {number(group.right.value, 3)} "
                f"of {group.records:,} records"
                for group in groups
            ),
            whiskers=tuple((group.right.low, group.right.high) for group in groups),
        )
        for (name, tone, groups), shape in zip(shown, cycle(SHAPES), strict=False)
    )
    axis = (low, 1.005)
    return Panel("Reliability", Axis("announced", axis), Axis("how often it is right", axis), (straight, *series))


# All of them


def sheets(study: Study, verdict: AuditVerdict) -> dict[str, Sheet]:
    """Every figure there is, by the name of its file."""
    panels = {"frontier": frontier(study), "roc": roc(study, verdict), "sweeps": sweeps(study)}
    drawings = {name: sheet(group, compared_by(study)) for name, group in panels.items() if group}
    if confidence := worth(study, verdict):
        drawings["worth"] = sheet(confidence)
    if rows := pictures.reconstructions(study):
        drawings["reconstructions"] = pictures.picture_rows(rows)
    return drawings
