"""The paper's figures from a study: its four curves over ε, with the printed values beside ours, and Figures 3–5."""

from collections.abc import Callable, Mapping
from typing import Any

from experiments.paper.printed import PrintedRow
from scoreveil.audit.report.charts.marks import Sheet
from scoreveil.audit.report.charts.panel import Axis, Panel, Series, sheet
from scoreveil.audit.report.figures import compared_by
from scoreveil.audit.report.pictures import Rows, picture_rows
from scoreveil.audit.report.wording import number, percent, setting_in_words, words
from scoreveil.audit.study.results import VEIL, DefenseResult, InversionResult, Setting, Study, best, shared

# the curves that are drawn; "optimal": rows of results that were made before regions
TONES = {"published": "c1", VEIL: "c0", "optimal": "c0", "isotonic_all_reference": "c2"}

Value = Callable[[DefenseResult], float | None]


def epsilon_curves(study: Study, printed: Mapping[Setting, PrintedRow]) -> Sheet:
    """Accuracy, distortion, accuracy of the paper's membership attacker, its inversion error: each over ε."""
    compared = shared(study)

    def attacked(**wanted: Any) -> Value:
        def accuracy(cost: DefenseResult) -> float | None:
            found = best(compared, cost.setting, **wanted)
            return found.accuracy if found else None

        return accuracy

    def error(form: str) -> Value:
        return lambda cost: next(
            (i.mse for i in study.inversions if i.setting == cost.setting and i.form == form), None
        )

    def theirs(value: Callable[[PrintedRow], float]) -> dict[float | None, float]:
        return {one[1]: value(row) for one, row in printed.items() if one[0] == "published"}

    membership = {
        "": attacked(attack="ml_leaks", form="paper"),
        ", adaptive": attacked(form="adaptive", reads="scores"),
    }
    inversion = {"": error("paper"), ", adaptive": error("adaptive")}
    panels = (
        _panel(study, "Classification accuracy", "test accuracy", {"": lambda cost: cost.test_accuracy}, {}),
        _panel(
            study,
            "Confidence score distortion",
            "mean ‖z − y‖₂",
            {"": lambda cost: cost.distortion_l2},
            theirs(lambda row: row.distortion),
        ),
        _panel(
            study,
            "Membership inference accuracy",
            "accuracy on as many members as others",
            membership,
            theirs(lambda row: row.ml_leaks / 100),
        ),
        _panel(study, "Inversion error", "mean squared error", inversion, {}),
    )
    return sheet(panels, [f"Adaptive membership inference: {line}" for line in compared_by(study)])


def _panel(
    study: Study, title: str, label: str, values: Mapping[str, Value], printed: Mapping[float | None, float]
) -> Panel:
    """One measure over ε: a line for each mechanism, dashed where the attacker adapts, dotted as the paper has it."""
    series = []
    for suffix, value in values.items():
        for name, tone in TONES.items():
            rows = [(d.epsilon, value(d)) for d in study.defenses if d.defense == name]
            points = tuple(sorted((e, v) for e, v in rows if e is not None and v is not None))
            if points:
                tips = tuple(f"{setting_in_words((name, e))}{suffix}: {number(v, 3)}" for e, v in points)
                series.append(Series(words(name) + suffix, points, tone, dash="6 3" if suffix else "", tips=tips))
    points = tuple(sorted((e, v) for e, v in printed.items() if e is not None))
    if points:
        series.append(Series("published, as printed", points, "muted", "square", "2 3"))
    xs, ys = ([p[i] for s in series for p in s.points] or [1.0] for i in (0, 1))
    across = Axis("ε, logarithmic", (min(xs) / 1.3, max(xs) * 1.3), log=True)
    return Panel(title, across, Axis.around(label, ys, 0.1), tuple(series))


def reconstructions(study: Study) -> Sheet | None:
    """Figures 3–5: originals, then each setting as the paper's attacker and as the adaptive one draws it."""
    rows: Rows = [("originals", "", study.originals)] if study.originals else []
    for i in study.inversions:
        if i.pictures:
            rows.append((_name(i), f"MSE {number(i.mse, 4)}, nearest right {percent(i.nearest_original)}", i.pictures))
    return picture_rows(rows) if len(rows) > 1 else None


def _name(found: InversionResult) -> str:
    if found.form == "floor":
        return f"{words(found.features)} alone"
    return setting_in_words(found.setting) + (", adaptive" if found.form == "adaptive" else "")
