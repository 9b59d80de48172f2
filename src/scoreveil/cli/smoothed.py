"""`scoreveil fit --model`: scores of a model that is asked here, smoothed where that helps."""

from pathlib import Path
from typing import Any

import numpy as np

from scoreveil.cli.tables import shown
from scoreveil.cli.terminal import err, out
from scoreveil.extras import needs
from scoreveil.files.inputs import read_inputs
from scoreveil.smoothing import Smoothing, smoothed_scores


def scores_of(
    model: str,
    member_data: Path | None,
    nonmember_data: Path | None,
    smoothing: str,
    advantage: float,
    beyond: str,
    regions: int | None,
) -> tuple[tuple[Any, Any, Any, Any], Smoothing | None]:
    """Scores and labels of both sides, as `read_both` takes them, and their smoothing.

    Smoothing "auto" attacks the model behind veils that are fitted with these settings, and shows what that found.
    """
    if member_data is None or nonmember_data is None:
        missing = "--member-data" if member_data is None else "--nonmember-data"
        raise ValueError(f"--model needs --member-data and --nonmember-data; {missing} is missing.")
    with needs("audit"):
        from scoreveil.audit.study.models import load_predict
    predict = load_predict(model)
    inside, outside = read_inputs(member_data), read_inputs(nonmember_data)
    settings: dict[str, Any] = {"advantage": advantage, "beyond": beyond}
    settings |= {} if regions is None else {"regions": regions}
    used = _chosen(predict, (inside.x, inside.y), (outside.x, outside.y), smoothing, settings)
    with err.status("Asking the model …"):
        member_scores, other_scores = (
            np.asarray(predict(x)) if used is None else smoothed_scores(predict, x, used) for x in (inside.x, outside.x)
        )
    return (other_scores, outside.y, member_scores, inside.y), used


def _chosen(predict: Any, members: Any, others: Any, smoothing: str, settings: dict[str, Any]) -> Smoothing | None:
    if smoothing == "none":
        return None
    if smoothing != "auto":
        try:
            return Smoothing(scale=float(smoothing), typical=others[0])
        except ValueError:
            raise ValueError(f"Expected --smoothing none, auto or a scale such as 0.3, got {smoothing}.") from None
    from scoreveil.audit.report import cost_tables
    from scoreveil.fitting import neighbours

    plain = Smoothing(typical=others[0])
    with err.status("Attacking the model at several scales …"):
        trials = neighbours.tried(predict, members, others, plain, **settings)
    out.print(shown(cost_tables.smoothing(trials), "Who asks around a record, behind the fitted veil"))
    out.print(f"{neighbours.words(trials)}\n", soft_wrap=True)
    scale = neighbours.least(trials)
    return None if scale is None else plain.replaced(scale=scale)
