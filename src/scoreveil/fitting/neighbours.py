"""Who asks around a record: the neighbour attack, and the least smoothing that stops it.

A model is surer at a record that it memorised than beside it. The attack compares the answer about a record with
answers about noisy copies of it, given the true label: trees learn on half of the records how members look, and are
tested on the other half. Labels alone, asked as often, tell part of that; no veil that keeps the label hides it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreveil.arrays import Floats, Integers
from scoreveil.extras import needs
from scoreveil.fitting import fit
from scoreveil.fitting.metrics import auroc
from scoreveil.smoothing import Smoothing, smoothed_scores
from scoreveil.smoothing.forms import Inputs

Predict = Callable[[Inputs], Any]

QUESTIONS = 32  # beside the one about the record itself
ATTACKER = 0.3  # scale of the attacker's own noise
SCALES = (0.2, 0.3, 0.5)
WITHIN = 0.03  # of what labels alone tell: as far as so few records can be told apart
WORTH = 0.95  # of the AUROC without smoothing that must be left
MAX_RECORDS = 500  # on each side, in all models together


@dataclass(frozen=True)
class Asked:
    """A model, records that it was trained on, as many others, and their true classes as numbers."""

    predict: Predict
    members: Inputs
    member_labels: Integers
    others: Inputs
    other_labels: Integers


@dataclass(frozen=True)
class Trial:
    """What one scale of smoothing leaves, behind a fitted veil: AUC of the attack, AUROC of the confidence."""

    scale: float | None
    attack: float
    labels: float  # AUC of the attack on labels alone
    useful: float

    @property
    def beyond_labels(self) -> float:
        return self.attack - self.labels


def neighbour_attack(answers: Sequence[Floats], truth: Integers, is_member: NDArray[np.bool_]) -> float:
    """AUC of trees that see each record's answer, those about its neighbours, and the true class.

    Args:
        answers: Scores (n, k) of the records, then of a copy of each, and so on.
        truth: Their true classes.
        is_member: Which of them were trained on. Halves learn and are tested in turn.
    """
    with needs("sklearn"):
        from sklearn.ensemble import HistGradientBoostingClassifier
    of_truth = np.stack([np.take_along_axis(scores, truth[:, None], axis=1)[:, 0] for scores in answers])
    around = of_truth[1:] if len(of_truth) > 1 else of_truth
    seen = np.column_stack([
        answers[0], truth, of_truth[0], around.mean(axis=0), of_truth[0] - around.mean(axis=0), around.std(axis=0),
        np.sort(around, axis=0)[:: max(1, len(around) // 4)].T,
    ])  # fmt: skip
    order = np.random.default_rng(0).permutation(len(truth))
    aucs = []
    for learned, tested in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        trees = HistGradientBoostingClassifier(max_iter=80, max_depth=4, random_state=0)
        sure = trees.fit(seen[learned], is_member[learned]).predict_proba(seen[tested])[:, 1]
        aucs.append(auroc(sure[is_member[tested]], sure[~is_member[tested]]))
    return float(np.mean(aucs))


def try_scales(models: Sequence[Asked], smoothing: Smoothing, seed: int = 0, **settings: Any) -> tuple[Trial, ...]:
    """The attack without smoothing and at each scale, behind veils that are fitted with these settings.

    Args:
        models: What was trained: one model, or those of several folds.
        smoothing: Its copies and typical inputs; the scales are those of `SCALES`.
        seed: Of the attacker's noise, and of what is held out.
        settings: For `fit`.
    """
    attacker = smoothing.replaced(copies=QUESTIONS, scale=ATTACKER, seed=seed)
    truth = np.concatenate([np.concatenate([model.member_labels, model.other_labels]) for model in models])
    sizes = [(len(model.member_labels), len(model.other_labels)) for model in models]
    is_member = np.concatenate([np.arange(inside + outside) < inside for inside, outside in sizes])

    def asked(scale: float | None) -> list[Floats]:
        """Scores of all records, and of each of their neighbours."""
        used = None if scale is None else smoothing.replaced(scale=scale)
        parts = []
        for model in models:
            answers = []
            for records in (model.members, model.others):
                for_records = [_scores(model.predict, records, used)]
                copies = _scores(model.predict, attacker.around(records), used)
                answers.append([*for_records, *np.split(copies, QUESTIONS)])
            parts.append([np.concatenate(pair) for pair in zip(*answers, strict=True)])
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    raw = asked(None)
    labels = neighbour_attack([np.eye(scores.shape[1])[scores.argmax(axis=1)] for scores in raw], truth, is_member)
    trials = []
    for scale in (None, *SCALES):
        answers = raw if scale is None else asked(scale)
        attack, useful = _behind_veils(answers, truth, is_member, seed, settings)
        trials.append(Trial(scale, attack, labels, useful))
    return tuple(trials)


def tried(
    predict: Predict,
    members: tuple[Inputs, NDArray[Any]],
    others: tuple[Inputs, NDArray[Any]],
    smoothing: Smoothing,
    records: int = MAX_RECORDS,
    **settings: Any,
) -> tuple[Trial, ...]:
    """`try_scales` on one model and so many of its records: arrays of inputs and of labels on each side."""
    rng, taken = np.random.default_rng(0), []
    known = np.unique(np.concatenate([np.asarray(labels) for _, labels in (members, others)]))
    most = min(records, len(members[1]), len(others[1]))
    for x, labels in (members, others):
        rows = rng.permutation(len(labels))[:most]
        numbers = np.asarray(labels) if known.dtype.kind in "iu" else np.searchsorted(known, np.asarray(labels))
        taken += [x[rows], numbers[rows]]
    return try_scales([Asked(predict, *taken)], smoothing, **settings)


def least(trials: Sequence[Trial]) -> float | None:
    """The least scale at which the attack gains no more than labels alone, and the confidence is worth as much."""
    return next((t.scale for t in trials if t.beyond_labels <= WITHIN and t.useful >= WORTH * trials[0].useful), None)


def words(trials: Sequence[Trial]) -> str:
    """What follows from the trials, in two sentences."""
    scale, plain = least(trials), trials[0]
    sentence = (
        f"Who asks {QUESTIONS} more times around a record finds members with an AUC of {plain.attack:.2f} through the "
        f"fitted veil, and of {plain.labels:.2f} from labels alone."
    )
    if scale is None and plain.beyond_labels <= WITHIN:
        return f"{sentence} Smoothing would gain nothing."
    if scale is None:
        return f"{sentence} No smoothing tried brings that to within {WITHIN:g} of labels at no cost to the confidence."
    taken = next(trial for trial in trials if trial.scale == scale)
    return f"{sentence} Smoothing at scale {scale:g} brings it to {taken.attack:.2f}."


def _scores(predict: Predict, records: Inputs, smoothing: Smoothing | None) -> Floats:
    return np.asarray(predict(records) if smoothing is None else smoothed_scores(predict, records, smoothing))


def _behind_veils(
    answers: list[Floats], truth: Integers, is_member: NDArray[np.bool_], seed: int, settings: dict[str, Any]
) -> tuple[float, float]:
    """The attack on half of the records behind a veil fitted on the other half, and in turn; what is left there."""
    rng = np.random.default_rng(seed)
    halves = rng.permutation(len(truth)) % 2 == 0
    attacks, useful = [], []
    for known in (halves, ~halves):
        sides = [(answers[0][known & side], truth[known & side]) for side in (~is_member, is_member)]
        veil = fit(*sides[0], *sides[1], **settings, force=True, rng=rng)
        shown = [veil(scores[~known]) for scores in answers]
        attacks.append(neighbour_attack(shown, truth[~known], is_member[~known]))
        others = ~is_member[~known]
        sure, right = shown[0].max(axis=1)[others], (shown[0].argmax(axis=1) == truth[~known])[others]
        useful.append(auroc(sure[right], sure[~right]) if 0 < right.sum() < len(right) else 0.5)
    return float(np.mean(attacks)), float(np.mean(useful))
