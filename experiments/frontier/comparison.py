"""The whole field on one frontier: what each defense leaks, against what it leaves, as tables, claims and figures.

    write(rows, Path("results/defenses"), "python -m experiments …")

Rows are those of `training.study_recipe`. A leak is told beside that of the label alone, which no defense that keeps
the label can go below. What the defenses of the scores are compared by is computed here, from the rows alone.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.frontier.training import PLAIN, VEILED, Leak, Row
from experiments.paper.tables import NAMES, Claim, claim_table, grid
from experiments.recipes import RECIPES
from scoreveil import atomic
from scoreveil.audit.defenses import DEFENSES
from scoreveil.audit.report.charts.panel import SHAPES, TONES, Axis, Panel, Series, sheet
from scoreveil.audit.report.charts.svg import svg
from scoreveil.audit.report.wording import NOTHING, number, setting_in_words, words
from scoreveil.audit.study.results import LABEL, TEMPERED, UNDEFENDED, VEIL, Setting

RECIPE_WORDS = {
    "l2": "L2",
    "min_max": "min-max",
    "relaxloss": "RelaxLoss",
    "hamp": "HAMP",
    "selena": "SELENA",
    "convex_concave": "convex-concave",
    "dp_inputs": "DP, inputs",
    "dp_loss": "DP, loss",
    "dp_sgd": "DP-SGD",
    "dp_weights": "DP, weights",
    "pate": "PATE",
}
ROWS = "rows.json"
# all other defenses of the scores are their rivals; the last two: rows of results that were made before regions
JUDGED = (VEIL, "optimal", "optimal_sticky")
BEHIND: tuple[Setting, ...] = (VEILED, ("optimal", 4.0))  # the veil that every recipe is behind
TOLD_ANYWAY = 3  # rows of every recipe: its scores, behind the veil, the label alone
SURE = 1.96  # standard errors


def recipe_in_words(name: str) -> str:
    """`DP-SGD`."""
    return RECIPE_WORDS.get(name) or words(name)


# What compares


def beyond_label(row: Row, rows: Sequence[Row], leak: Callable[[Row], Leak]) -> float:
    """How far the best attack comes above what it gets from the label alone, of the same recipe."""
    return leak(row).auc - max(0.5, leak(_beside(row, rows, LABEL)).auc)


def _beside(row: Row, rows: Iterable[Row], *settings: Setting) -> Row:
    """Another defense of the same model's scores: the one of these that there is."""
    return next(r for r in rows if (r.dataset, r.recipe) == (row.dataset, row.recipe) and r.setting in settings)


def spread(row: Row) -> float:
    """The standard error of the AUROC of confidence (Hanley and McNeil 1982)."""
    area, right = row.auroc_of_confidence, row.test_accuracy * row.records
    wrong = row.records - right
    if min(right, wrong) < 1:
        return 0.5
    both_right, both_wrong = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + (right - 1) * both_right + (wrong - 1) * both_wrong
    return math.sqrt(variance / (right * wrong))


def beats(rival: Row, row: Row, leak: Callable[[Row], Leak]) -> bool:
    """Whether a rival surely leaks less and is surely more useful: each by more than the error of the difference."""
    less = leak(row).auc - leak(rival).auc
    more = rival.auroc_of_confidence - row.auroc_of_confidence
    errors = ((one.auc_high - one.auc_low) / 2 / SURE for one in (leak(rival), leak(row)))
    return less > SURE * math.hypot(*errors) and more > SURE * math.hypot(spread(rival), spread(row))


def afterwards(rows: Iterable[Row], dataset: str) -> list[Row]:
    """The defenses of the scores of the plain classifier: ordered as in `DEFENSES`, the label alone last, ε falling."""
    names = [name for known in DEFENSES for name in (JUDGED if known == VEIL else (known,))]
    places = {name: place for place, name in enumerate(names)} | {TEMPERED[0]: 0, LABEL[0]: len(names)}
    here = (row for row in rows if row.dataset == dataset and row.recipe == PLAIN)
    return sorted(here, key=lambda row: (places[row.defense], -(row.epsilon or math.inf)))


def everyone(row: Row) -> Leak:
    return row.everyone


def scores_alone(row: Row) -> Leak:
    return row.scores_alone


def claims_of(rows: Sequence[Row], dataset: str) -> list[Claim]:
    """What was to be shown on a dataset."""
    here = afterwards(rows, dataset)
    found = []
    veil = next((row.defense for row in here if row.setting in BEHIND), VEIL)
    for leak, knowing in ((everyone, "told the true label"), (scores_alone, "scores alone")) if here else ():
        better = [
            f"{setting_in_words(rival.setting)} (beside {setting_in_words(row.setting)})"
            for row in here
            for rival in here
            if row.defense == veil and rival.defense not in JUDGED and beats(rival, row, leak)
        ]
        ours = f"the {words(veil).removesuffix(' veil')} veil"
        what = f"defenses of the scores that leak less than {ours} and leave more, {knowing}"
        found.append(Claim(what, "none", ", ".join(better) or "none", not better))
    alone, veiled = (
        next((r for r in rows if (r.dataset, r.recipe) == (dataset, "dp_sgd") and r.setting in settings), None)
        for settings in ((UNDEFENDED,), BEHIND)
    )
    if alone is not None and veiled is not None:
        shown = ", ".join(
            f"{name} {number(after, 3)} against {number(before, 3)}"
            for name, after, before in (
                ("leak", veiled.everyone.auc, alone.everyone.auc),
                ("log-loss", veiled.nll, alone.nll),
                ("AUROC", veiled.auroc_of_confidence, alone.auroc_of_confidence),
            )
        )
        found.append(Claim("DP-SGD behind the veil, beside DP-SGD", "", shown, None))
    return found


def claims(rows: Iterable[Row]) -> str:
    every = list(rows)
    return claim_table({name: claims_of(every, name) for name in dict.fromkeys(row.dataset for row in every)})


# As tables

ABOUT = (
    "*Useful* is the AUROC of the confidence for being right, .5 that of no confidence. *Leak* is the AUC of the best "
    "attack, of those that are told the true label too, or go by the label alone; *scores alone*, of those that are "
    "not told; *beyond the label*, how far the leak lies above that of the label alone. *Found* is the share of "
    "members that are found at 1 % false alarms, by the attack that finds most: among all, among the *most exposed* "
    "5 % of the records, whose score rises most when the plain classifier is trained on them, and among *canaries*, "
    "which have a wrong label. Attacks are fitted on answers under the same defense. *Seconds* are those of one "
    "process that trains one model."
)
COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("useful", lambda row: number(row.auroc_of_confidence, 3)),
    ("log-loss", lambda row: number(row.nll, 3)),
    ("ECE", lambda row: number(row.ece, 3)),
    ("scores alone", lambda row: number(row.scores_alone.auc, 3)),
    ("leak", lambda row: number(row.everyone.auc, 3)),
    ("found", lambda row: _share(row.everyone)),
    ("… of the most exposed", lambda row: _share(row.exposed)),
    ("… of canaries", lambda row: _share(row.canaries)),
)


def table_training(rows: Sequence[Row], dataset: str) -> str:
    """A line for each way to train: what its own scores give, and after the arrow what is behind the veil."""
    lines = []
    for alone in rows:
        if (alone.dataset, alone.setting) != (dataset, UNDEFENDED):
            continue
        veiled, label = _beside(alone, rows, *BEHIND), _beside(alone, rows, LABEL)
        promised = alone.promised_epsilon
        lines.append(
            [
                recipe_in_words(alone.recipe),
                NOTHING if promised is None else f"{promised:.3g}",
                f"{100 * alone.test_accuracy:.1f} %",
                *(f"{shown(alone)} → {shown(veiled)}" for _, shown in COLUMNS),
                number(label.everyone.auc, 3),
                f"{alone.training_seconds:,.0f}",
            ]
        )
    named = (name for name, _ in COLUMNS)
    return grid(("training", "its ε", "accuracy", *named, "leak of the label alone", "seconds"), lines)


def table_afterwards(rows: Sequence[Row], dataset: str) -> str:
    """Defenses of the scores, on the plain classifier."""
    lines = []
    for row in afterwards(rows, dataset):
        above = beyond_label(row, rows, everyone)
        accuracy, gain = f"{100 * row.test_accuracy:.1f} %", ("+" if above > 0 else "") + number(above, 3)
        lines.append([setting_in_words(row.setting), accuracy, *(shown(row) for _, shown in COLUMNS), gain])
    return grid(("scores", "accuracy", *(name for name, _ in COLUMNS), "beyond the label"), lines)


def _share(found: Leak) -> str:
    return f"{100 * found.tpr_at_1pct:.1f} %"


def markdown(rows: Iterable[Row], command: str) -> str:
    """All tables of all datasets."""
    every = list(rows)
    parts = [
        "# The whole field on one frontier",
        f"Made by `{command}`. {ABOUT}",
        "## What was to be shown",
        claims(every),
    ]
    for dataset in dict.fromkeys(row.dataset for row in every):
        parts += [
            f"## {NAMES.get(dataset, dataset)}",
            f"![The frontier]({dataset}.svg)",
            "### Defenses in training, alone and behind the veil",
            table_training(every, dataset),
        ]
        if len(afterwards(every, dataset)) > TOLD_ANYWAY:
            parts += ["### Defenses of the scores", table_afterwards(every, dataset)]
    return "\n\n".join(parts) + "\n"


# As a figure


def figure(rows: Sequence[Row], dataset: str) -> str:
    """Leaks against usefulness, as SVG: defenses in training above, of the scores below."""
    here = [row for row in rows if row.dataset == dataset]
    scores, recipes, name = _of_scores(here, dataset), _of_training(here), NAMES.get(dataset, dataset)
    beyond: Place = ("best attack beyond the label, AUC", lambda row: beyond_label(row, here, everyone))
    panels = [
        _panel(f"{name}: ways to train, alone and behind the veil", recipes, LOSS, LEAK),
        _panel(f"{name}: the same, the most exposed records", recipes, ACCURACY, FOUND_OF_EXPOSED),
    ]
    if len(scores) > TOLD_ANYWAY:
        panels += [
            _panel(f"{name}: defenses of the scores", scores, USEFUL, beyond),
            _panel(f"{name}: defenses of the scores", scores, LOSS, FOUND),
        ]
    return svg(sheet(panels, [NOTE]), alone=True)


Place = tuple[str, Callable[[Row], float]]  # an axis
Drawn = tuple[str, str, str, list[Row]]  # a line: its name, tone, shape and rows
USEFUL: Place = ("useful: AUROC of confidence (further right is better)", lambda row: row.auroc_of_confidence)
LOSS: Place = ("log-loss (further left is better)", lambda row: row.nll)
ACCURACY: Place = ("accuracy in % (further right is better)", lambda row: 100 * row.test_accuracy)
LEAK: Place = ("best attack, AUC (lower is better)", lambda row: row.everyone.auc)
FOUND: Place = ("members found at 1 % false alarms, in %", lambda row: 100 * row.everyone.tpr_at_1pct)
FOUND_OF_EXPOSED: Place = ("members found at 1 % false alarms, in %", lambda row: 100 * row.exposed.tpr_at_1pct)
NOTE = "The best of all attacks, each fitted on answers under the same defense. Made by python -m experiments."


def _of_scores(rows: Sequence[Row], dataset: str) -> list[Drawn]:
    """A line for each defense of the scores that takes an ε, a point for the others."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(afterwards(rows, dataset), key=lambda row: row.epsilon or 0.0):
        groups.setdefault(row.defense, []).append(row)
    tones = {"none": "ink", VEIL: "c0", "optimal": "c0", "published": "c1", "isotonic": "c2"}
    return [
        (words(name), tones.get(name, "muted"), "circle" if name in tones else SHAPES[1 + place % 5], group)
        for place, (name, group) in enumerate(groups.items())
        if (name, None) != TEMPERED  # which lies beside no defense
    ]


def _of_training(rows: Sequence[Row]) -> list[Drawn]:
    """A line for each recipe, from its own scores to those behind the veil."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.setting in (UNDEFENDED, *BEHIND):
            groups.setdefault(row.recipe, []).append(row)
    tones = {PLAIN: "ink", "dp_sgd": "c1", "selena": "c2"}
    free = [tone for tone in TONES if tone not in tones.values()]
    return [
        (recipe_in_words(name), tones.get(name, free[place % len(free)]), "circle", group)
        for place, (name, group) in enumerate(groups.items())
    ]


def _panel(title: str, drawn: Iterable[Drawn], across: Place, up: Place) -> Panel:
    series = tuple(
        Series(
            name,
            tuple((across[1](row), up[1](row)) for row in group),
            tone,
            shape,
            tips=tuple(_told(row) for row in group),
            tags=tuple("" if row.epsilon is None else f"ε {row.epsilon:g}" for row in group),
        )
        for name, tone, shape, group in drawn
    )
    xs, ys = zip(*(point for one in series for point in one.points), strict=True)
    return Panel(title, Axis.around(across[0], xs), Axis.around(up[0], ys), series)


def _told(row: Row) -> str:
    """What a point says on hover."""
    return (
        f"{recipe_in_words(row.recipe)}, {setting_in_words(row.setting)}: accuracy {100 * row.test_accuracy:.1f} %, "
        f"useful {number(row.auroc_of_confidence, 3)}, log-loss {number(row.nll, 3)}; "
        f"best attack {number(row.everyone.auc, 3)}, {_share(row.everyone)} found"
    )


# As files


def write(rows: Iterable[Row], folder: Path, command: str) -> Path:
    """rows.json, a figure for each dataset, and tables.md; the path of the latter, which is written last.

    What the folder has of other datasets and recipes stays: the field may be run in parts.
    """
    new = list(rows)
    before = read(folder) if (folder / ROWS).exists() else []
    run = {(row.dataset, row.recipe) for row in new}
    every = sorted([*(row for row in before if (row.dataset, row.recipe) not in run), *new], key=_place)
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(row), allow_nan=False) for row in every)
    atomic.write(folder / ROWS, f"[\n{lines}\n]\n")
    for dataset in dict.fromkeys(row.dataset for row in every):
        atomic.write(folder / f"{dataset}.svg", figure(every, dataset))
    made = folder / "tables.md"
    atomic.write(made, markdown(every, command))
    return made


def _place(row: Row) -> tuple[int, int]:
    """Datasets and recipes in the order that they are named in elsewhere."""
    return list(NAMES).index(row.dataset), list(RECIPES).index(row.recipe)


def read(folder: Path) -> list[Row]:
    """The rows of a folder that `write` made."""
    return [_row(each) for each in json.loads((folder / ROWS).read_text(encoding="utf-8"))]


def _row(kept: dict[str, Any]) -> Row:
    leaks = {name: Leak(**value) for name, value in kept.items() if isinstance(value, dict)}
    return Row(**{**kept, **leaks})
