"""The figures of a study: the frontier of privacy and utility, log-log ROC, ε sweeps, reconstructions.

Each is a list of panels (or a sheet), to be drawn by `charts` inside the page or as files.
"""

import re
from collections.abc import Sequence
from itertools import cycle

from scoreveil.audit.report.charts.marks import Mark, Picture, Sheet, Text
from scoreveil.audit.report.charts.panel import SHAPES, TONES, Axis, Panel, Series, sheet
from scoreveil.audit.report.verdict import gaps, knowledge, strongest
from scoreveil.audit.report.wording import UNDEFENDED, attack, interval, number, percent, setting, words
from scoreveil.audit.study.results import AttackResult, DefenseResult, InversionResult, Study, Verdict

Setting = tuple[str, float | None]

KNOWN_TONES = {UNDEFENDED: "ink", "isotonic_reference": "c0", "published": "c1"}
LEAST_RATE = 1e-3  # where the axes of a log-log ROC start
MOST_CURVES = 5
KEY = "members found at 1 % false positives"
TILE, GAP, NAMES = 56, 6, 250  # pixels of a reconstruction, between two, and for the name of a row


def settings(study: Study) -> list[Setting]:
    """Every defense and ε that was attacked, in the order of the study, ε ascending within a defense."""
    order = {name: i for i, name in reversed(list(enumerate(r.defense for r in study.results)))}
    found = {(r.defense, r.epsilon) for r in study.results}
    return sorted(found, key=lambda s: (order[s[0]], s[1] is not None, s[1] or 0.0))


def costs(study: Study) -> dict[Setting, DefenseResult]:
    return {(d.defense, d.epsilon): d for d in study.defenses}


def looks(study: Study) -> dict[str, tuple[str, str]]:
    """Tone and marker of each defense: colours for those that take an ε, grey with its own shape for a single point."""
    free = cycle([t for t in TONES if t not in KNOWN_TONES.values()])
    shapes = cycle(SHAPES[1:])
    found = {}
    for name, group in _by_defense(study).items():
        swept = any(epsilon is not None for _, epsilon in group)
        tone = KNOWN_TONES.get(name) or (next(free) if swept else "muted")
        found[name] = tone, ("circle" if swept or name == UNDEFENDED else next(shapes))
    return found


def _by_defense(study: Study) -> dict[str, list[Setting]]:
    groups: dict[str, list[Setting]] = {}
    for one in settings(study):
        groups.setdefault(one[0], []).append(one)
    return groups


def _attacker(knows_label: bool) -> str:
    return "attacker knows the true label" if knows_label else "attacker has the scores alone"


def _auc_axis(values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    low, high = (0.5 if 0.5 < low < 0.56 else low), max(high, low + 0.05)
    pad = 0.07 * (high - low)
    return Axis("AUC of the best attack (lower is better)", (low - pad, high + pad))


def _floors(study: Study, knows_label: bool) -> tuple[tuple[str, float], ...]:
    """What the label alone gives; and the ranking alone, where that is visibly more."""
    found = [
        (f"{reads} alone: {number(result.auc)}", result.auc)
        for reads in ("label", "ranking")
        if (result := strongest(study, UNDEFENDED, None, knows_label, reads))
    ]
    return tuple(found[:1] + [f for f in found[1:] if f[1] - found[0][1] > 0.008])


# The frontier


def frontier(study: Study) -> list[Panel]:
    """Privacy against utility: for each attacker, over distortion and over the AUROC of confidence."""
    panels = []
    for knows in knowledge(study):
        for field, label in (
            ("distortion_l2", "distortion: mean ‖z − y‖₂ (further left is better)"),
            ("auroc_of_confidence", "usefulness: AUROC of confidence (further right is better)"),
        ):
            panel = _frontier(study, knows, field, label)
            panels += [panel] if panel else []
    return panels


def _frontier(study: Study, knows_label: bool, field: str, label: str) -> Panel | None:
    cost, style, series = costs(study), looks(study), []
    for name, group in _by_defense(study).items():
        rows = []
        for one in group:
            value = getattr(cost[one], field) if one in cost else None
            best = strongest(study, *one, knows_label)
            if value is not None and best is not None:
                rows.append((one[1], value, best))
        if not rows:
            continue
        tone, shape = style[name]
        ends = (0, len(rows) - 1) if len(rows) > 1 else ()
        tags = tuple(f"ε {e:g}" if e is not None and i in ends else "" for i, (e, _, _) in enumerate(rows))
        series.append(
            Series(
                words(name),
                tuple((value, best.auc) for _, value, best in rows),
                tone,
                shape,
                tips=tuple(f"{told(best)}. {label.split(':')[0]} {number(value, 3)}" for _, value, best in rows),
                tags=tags,
            )
        )
    if not series:
        return None
    xs, ys = zip(*(point for s in series for point in s.points), strict=True)
    floors = _floors(study, knows_label)
    pad = 0.05 * (max(xs) - min(xs)) or 0.05
    across = Axis(label, (min(xs) - pad, max(xs) + pad))
    title = "Distortion" if field == "distortion_l2" else "Usefulness of the confidence"
    return Panel(
        f"{title}; {_attacker(knows_label)}",
        across,
        _auc_axis([*ys, *(level for _, level in floors)]),
        tuple(series),
        floors,
    )


def told(best: AttackResult) -> str:
    """What a point says on hover."""
    auc = interval(best.auc, best.auc_low, best.auc_high)
    return f"{setting(best.defense, best.epsilon)}: AUC {auc}, by {attack(best)}"


# ROC


def roc(study: Study, verdict: Verdict) -> list[Panel]:
    """True against false positive rates, both logarithmic, of the best attack on each selected setting."""
    style = looks(study)
    panels = []
    for knows in knowledge(study):
        series = []
        free = iter([t for t in TONES if t not in {look[0] for look in style.values()}] + list(TONES))
        label = strongest(study, UNDEFENDED, None, knows, "label")
        for one in selected(study, verdict):
            best = strongest(study, *one, knows)
            if best is not None and len(best.roc) > 1:
                strong = one in ((UNDEFENDED, None), verdict.recommended)
                tone = style[one[0]][0]
                tone = next(free) if tone == "muted" else tone
                series.append(_curve(best, setting(*one), tone, "" if strong else "6 3"))
        if label is not None and len(label.roc) > 1:
            series.append(_curve(label, "label alone", "ink", "2 3"))
        series = [s for s in series if len(s.points) > 1]
        if series:
            rates = Axis("false positive rate", (LEAST_RATE, 1.0), log=True)
            lowest = max(LEAST_RATE, min(y for s in series for _, y in s.points) * 0.8)
            hits = Axis("true positive rate", (min(lowest, LEAST_RATE), 1.0), log=True)
            title = _attacker(knows)
            panels.append(Panel(title[0].upper() + title[1:], rates, hits, tuple(series), diagonal=True, key=KEY))
    return panels


def _curve(result: AttackResult, name: str, tone: str, dash: str) -> Series:
    points = tuple((max(x, LEAST_RATE), y) for x, y in sorted(result.roc) if y >= LEAST_RATE)
    # of the points left of the axis only the highest counts: a step starts there
    first = max((p for p in points if p[0] == LEAST_RATE), default=None)
    shown = ((first,) if first else ()) + tuple(p for p in points if p[0] > LEAST_RATE)
    return Series(f"{percent(result.tpr_at_1pct)}  {name}", shown, tone, shape="", dash=dash)


def selected(study: Study, verdict: Verdict) -> list[Setting]:
    """No defense, the recommended setting, the published one and the rivals, each where it leaks least; a handful."""

    def leak(one: Setting) -> float:
        return max(gap.best.auc for gap in gaps(study, *one))

    wanted: list[Setting] = [(UNDEFENDED, None)]
    wanted += [verdict.recommended] if verdict.recommended else []
    keeps = {d.defense for d in study.defenses if d.keeps_label}
    left_out = {"label_only", *(name for name, _ in wanted)}  # the label alone is drawn as the floor
    groups = {name: group for name, group in _by_defense(study).items() if name in keeps - left_out}
    others = [min(group, key=leak) for group in groups.values()]
    others.sort(key=lambda one: (one[0] != "published", one[0].startswith("isotonic"), leak(one)))
    return (wanted + others)[:MOST_CURVES]


# ε


def sweeps(study: Study) -> list[Panel]:
    """AUC of the best attack and distortion against ε, for the defenses that were tried at more than one."""
    swept = {name: group for name, group in _by_defense(study).items() if sum(e is not None for _, e in group) > 1}
    if not swept:
        return []
    every = [e for group in swept.values() for _, e in group if e is not None]
    across = Axis("ε, logarithmic", (min(every) / 1.25, max(every) * 1.25), log=True)
    panels = [_leak_sweep(study, swept, across, knows) for knows in knowledge(study)]
    return panels + _cost_sweeps(study, swept, across)


def _leak_sweep(study: Study, swept: dict[str, list[Setting]], across: Axis, knows_label: bool) -> Panel:
    style, series = looks(study), []
    for name, group in swept.items():
        rows = [(e, best) for _, e in group if e is not None and (best := strongest(study, name, e, knows_label))]
        series.append(
            Series(
                words(name),
                tuple((e, best.auc) for e, best in rows),
                *style[name],
                tips=tuple(told(best) for _, best in rows),
                whiskers=tuple((best.auc_low, best.auc_high) for _, best in rows),
            )
        )
    series = [s for s in series if s.points]
    floors = _floors(study, knows_label)
    undefended = strongest(study, UNDEFENDED, None, knows_label)
    if undefended is not None:
        floors = (*floors, (f"undefended: {number(undefended.auc)}", undefended.auc))
    seen = [y for s in series for ends in s.whiskers for y in ends] + [level for _, level in floors]
    return Panel(f"Leak; {_attacker(knows_label)}", across, _auc_axis(seen), tuple(series), floors)


def _cost_sweeps(study: Study, swept: dict[str, list[Setting]], across: Axis) -> list[Panel]:
    cost, style, panels = costs(study), looks(study), []
    for field, title, label in (
        ("distortion_l2", "Distortion", "mean ‖z − y‖₂"),
        ("auroc_of_confidence", "Usefulness of the confidence", "AUROC of confidence"),
    ):
        series = []
        for name, group in swept.items():
            rows = [(e, getattr(cost[name, e], field)) for _, e in group if e is not None and (name, e) in cost]
            points = tuple((e, value) for e, value in rows if value is not None)
            tips = tuple(f"{setting(name, e)}: {number(value, 3)}" for e, value in points)
            series += [Series(words(name), points, *style[name], tips=tips)] if points else []
        if series:
            values = [y for s in series for _, y in s.points]
            pad = 0.07 * (max(values) - min(values)) or 0.05
            panels.append(Panel(title, across, Axis(label, (min(values) - pad, max(values) + pad)), tuple(series)))
    return panels


# Reconstructions


def reconstructions(study: Study) -> list[tuple[str, str, tuple[str, ...]]]:
    """Rows of pictures: name, what is measured, PNG data URIs. Originals first, then the best attack per setting."""
    shown = [i for i in study.inversions if i.pictures]
    if not shown or not study.originals:
        return []
    best: dict[tuple[Setting, str], InversionResult] = {}
    for i in sorted(shown, key=lambda i: i.mse):
        # the paper's own attacker is shown only where no other was tried; a floor is a row of its own
        kind = i.features if i.form == "floor" else ""
        if i.form != "paper" or not any((j.defense, j.epsilon) == (i.defense, i.epsilon) for j in shown if j != i):
            best.setdefault(((i.defense, i.epsilon), kind), i)
    first = sorted(best.values(), key=lambda i: (i.form == "floor", shown.index(i)))
    rows = [("originals", "", study.originals)]
    for i in first:
        name = f"{words(i.features)} alone (floor)" if i.form == "floor" else setting(i.defense, i.epsilon)
        rows.append((name, f"MSE {number(i.mse, 3)}, nearest original right {percent(i.nearest_original)}", i.pictures))
    for uri in (uri for _, _, pictures in rows for uri in pictures):
        if not re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/]+=*", uri):
            raise ValueError(f"Expected pictures as PNG data URIs, got {uri[:40]!r}.")
    return rows


def reconstruction_sheet(study: Study) -> Sheet | None:
    rows = reconstructions(study)
    return picture_rows(rows) if rows else None


def picture_rows(rows: Sequence[tuple[str, str, tuple[str, ...]]]) -> Sheet:
    """Rows of pictures, each with its name and what was measured."""
    marks: list[Mark] = []
    for i, (name, measured, pictures) in enumerate(rows):
        top = GAP + i * (TILE + GAP)
        marks.append(Text((12, top + TILE / 2 - (2 if measured else -4)), name, "ink", size=13, bold=True))
        marks += [Text((12, top + TILE / 2 + 15), measured, size=11)] if measured else []
        marks += [Picture((NAMES + j * (TILE + GAP), top), TILE, uri) for j, uri in enumerate(pictures)]
    most = max(len(pictures) for _, _, pictures in rows)
    width, height = NAMES + most * (TILE + GAP) + GAP, GAP + len(rows) * (TILE + GAP)
    return Sheet("Pictures rebuilt from scores", width, height, tuple(marks))


def sheets(study: Study, verdict: Verdict) -> dict[str, Sheet]:
    """Every figure there is, by the name of its file."""
    panels = {"frontier": frontier(study), "roc": roc(study, verdict), "sweeps": sweeps(study)}
    found = {name: sheet(group) for name, group in panels.items() if group}
    pictured = reconstruction_sheet(study)
    return {**found, "reconstructions": pictured} if pictured else found
