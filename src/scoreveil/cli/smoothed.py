"""`scoreveil fit --model`: scores of a model that is asked here, smoothed where that helps."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from scoreveil.cli.terminal import err, out
from scoreveil.extras import needs
from scoreveil.files.inputs import read_inputs
from scoreveil.smoothing import Smoothing, smoothed_scores

if TYPE_CHECKING:
    from scoreveil.fitting.neighbours import Trial


def scores_of(
    model: str, member_data: Path | None, nonmember_data: Path | None, smoothing: str, **settings: Any
) -> tuple[dict[str, Any], Smoothing | None]:
    """The scores and labels that `fit` takes, and their smoothing; "auto" attacks the model and shows what it found."""
    if member_data is None or nonmember_data is None:
        missing = "--member-data" if member_data is None else "--nonmember-data"
        raise ValueError(f"--model needs --member-data and --nonmember-data; {missing} is missing.")
    with needs("audit"):
        from scoreveil.audit.study.models import load_predict
    predict = load_predict(model)
    inside, outside = read_inputs(member_data), read_inputs(nonmember_data)
    used = _chosen(predict, (inside.x, inside.y), (outside.x, outside.y), smoothing, settings)
    with err.status("Asking the model …"):
        scores = [
            np.asarray(predict(x)) if used is None else smoothed_scores(predict, x, used) for x in (outside.x, inside.x)
        ]
    names = ("nonmembers", "nonmember_labels", "members", "member_labels")
    return dict(zip(names, (scores[0], outside.y, scores[1], inside.y), strict=True)), used


def _chosen(predict: Any, members: Any, others: Any, smoothing: str, settings: dict[str, Any]) -> Smoothing | None:
    if smoothing == "none":
        return None
    if smoothing != "auto":
        try:
            return Smoothing(scale=float(smoothing), typical=others[0])
        except ValueError:
            raise ValueError(f"Expected --smoothing none, auto or a scale such as 0.3, got {smoothing}.") from None
    from scoreveil.fitting import neighbours

    made = Smoothing(typical=others[0])
    with err.status("Attacking the model at several scales …"):
        trials = neighbours.tried(predict, members, others, made, **settings)
    show(trials)
    scale = neighbours.least(trials)
    return None if scale is None else Smoothing.restored({**made.settings(), "scale": scale})


def show(trials: "Sequence[Trial]") -> None:
    """What each scale leaves of the attack and of the confidence, and which is taken."""
    from scoreveil.fitting.neighbours import words

    table = Table(title="Who asks around a record, behind the fitted veil", title_justify="left")
    for name in ("smoothing", "AUC of the attack", "AUC of labels alone", "AUROC of the confidence"):
        table.add_column(name, justify="left" if name == "smoothing" else "right")
    for trial in trials:
        scale = "none" if trial.scale is None else f"{trial.scale:g}"
        table.add_row(scale, *(f"{value:.3f}" for value in (trial.attack, trial.labels, trial.useful)))
    out.print(table)
    out.print(f"{words(trials)}\n", soft_wrap=True)
