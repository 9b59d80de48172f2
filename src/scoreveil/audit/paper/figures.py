"""The paper's figures from a study: its four curves over ε, with the printed values beside ours, and Figures 3–5."""

from collections.abc import Callable, Mapping

from scoreveil.audit.paper.printed import Row
from scoreveil.audit.report import figures
from scoreveil.audit.report.charts.marks import Sheet
from scoreveil.audit.report.charts.panel import Axis, Panel, Series, sheet
from scoreveil.audit.report.wording import number, percent, setting, words
from scoreveil.audit.study.results import DefenseResult, InversionResult, Study, best
from scoreveil.audit.study.subjects import Setting

CURVES = ("published", "isotonic_reference", "isotonic_all_reference")
TONES = {"published": "c1", "isotonic_reference": "c0", "isotonic_all_reference": "c2"}

Value = Callable[[Setting, DefenseResult], float | None]


def epsilon_curves(study: Study, printed: Mapping[Setting, Row]) -> Sheet:
    """Accuracy, distortion, accuracy of the paper's membership attacker, its inversion error: each over ε."""

    def ml_leaks(one: Setting, _: DefenseResult) -> float | None:
        found = best(study.results, *one, attack="ml_leaks", form="paper")
        return found.accuracy if found else None

    def adaptive(one: Setting, _: DefenseResult) -> float | None:
        found = best(study.results, *one, form="adaptive", reads="scores")
        return found.accuracy if found else None

    def error(form: str) -> Value:
        def mse(one: Setting, _: DefenseResult) -> float | None:
            return next((i.mse for i in study.inversions if (i.defense, i.epsilon) == one and i.form == form), None)

        return mse

    return sheet(
        [
            _panel(study, "Classification accuracy", "test accuracy", {"": lambda _, d: d.test_accuracy}),
            _panel(
                study,
                "Confidence score distortion",
                "mean ‖z − y‖₂",
                {"": lambda _, d: d.distortion_l2},
                {one[1]: row.distortion for one, row in printed.items() if one[0] == "published"},
            ),
            _panel(
                study,
                "Membership inference accuracy",
                "accuracy on as many members as others",
                {"": ml_leaks, ", adaptive": adaptive},
                {one[1]: row.ml_leaks / 100 for one, row in printed.items() if one[0] == "published"},
            ),
            _panel(
                study, "Inversion error", "mean squared error", {"": error("paper"), ", adaptive": error("adaptive")}
            ),
        ]
    )


def _panel(
    study: Study,
    title: str,
    label: str,
    values: Mapping[str, Value],
    printed: Mapping[float | None, float] | None = None,
) -> Panel:
    """One measure over ε: a line for each mechanism, dashed where the attacker adapts, dotted as the paper has it."""
    series = []
    for suffix, value in values.items():
        for name in CURVES:
            rows = [(d.epsilon, value((name, d.epsilon), d)) for d in study.defenses if d.defense == name]
            points = tuple(sorted((e, v) for e, v in rows if e is not None and v is not None))
            if points:
                tips = tuple(f"{setting(name, e)}{suffix}: {number(v, 3)}" for e, v in points)
                dash = "6 3" if suffix else ""
                series.append(Series(words(name) + suffix, points, TONES[name], "circle", dash, tips))
    points = tuple(sorted((e, v) for e, v in (printed or {}).items() if e is not None))
    if points:
        series.append(Series("published, as printed", points, "muted", "square", "2 3"))
    every = [p for s in series for p in s.points]
    xs, ys = [x for x, _ in every] or [1.0], [y for _, y in every] or [0.0]
    pad = 0.1 * (max(ys) - min(ys)) or 0.05
    across = Axis("ε, logarithmic", (min(xs) / 1.3, max(xs) * 1.3), log=True)
    return Panel(title, across, Axis(label, (min(ys) - pad, max(ys) + pad)), tuple(series))


def reconstructions(study: Study) -> Sheet | None:
    """Figures 3–5: originals, then each setting as the paper's attacker and as the adaptive one draws it."""
    rows = [("originals", "", study.originals)] if study.originals else []
    for i in study.inversions:
        if i.pictures:
            rows.append((_name(i), f"MSE {number(i.mse, 4)}, nearest right {percent(i.nearest_original)}", i.pictures))
    return figures.picture_rows(rows) if len(rows) > 1 else None


def _name(found: InversionResult) -> str:
    if found.form == "floor":
        return f"{words(found.features)} alone"
    return setting(found.defense, found.epsilon) + (", adaptive" if found.form == "adaptive" else "")
