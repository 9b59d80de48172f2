"""Attribute inference: what a model's answers tell about one column of a table.

    results = infer_column(predict, members, nonmembers, public, Column(3, "income"), settings, given, seed=0)

The attacker knows a record but for the sensitive column, and its true class. It puts each possible value into the
column, asks the model about each, and takes the value that fits best. It may also have seen the model's answer about
the true record. Most of what such an attack gets right could be guessed without any model (Jayaraman and Evans 2022),
so beside it stand

    marginal     always the most common value of public records
    imputation   a forest fitted on public records: the column from all others

The attack starts from the imputation, too. With P(v) the imputation's probability of a value, s(v) the answer about the
record with that value, a the answer about the true one and y the class, it takes the largest

    w · (ln P(v), ln s(v)_y, 1{top of s(v) is y},    -ln |a - s(v)|₁, 1{top of s(v) is top of a})

where the last two are for those who have seen a. The weights w make known records' values most likely: one half of the
records is known for the other, members for members and others for others. So they may rely on what a model says only of
records that it was trained on. What the model adds by *that* is how far members gain more over the imputation than
non-members do.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy.optimize import minimize
from scipy.stats import beta

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.records import Bools, Defense
from scoreveil.audit.defenses import DEFENSES, Given
from scoreveil.audit.study.models import Data, Predict, part
from scoreveil.audit.study.results import AttributeResult, Setting, Side
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import checked

MAX_VALUES = 16  # a column with more is cut into BINS
BINS = 5
MIN_PUBLIC = 50
MAX_RECORDS = 1_000  # members, and non-members, that are attacked
ASKED = 5  # times that each value is asked about where answers are drawn anew
NEGLIGIBLE = 1e-6  # a score, or a distance between two answers, that is as good as none
RIDGE = 1e-2
WITHOUT_ANSWER = 3  # of the clues
HALF_WIDTH = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Column:
    """The sensitive column."""

    index: int
    name: str


def infer_column(
    predict: Predict,
    members: Data,
    nonmembers: Data,
    public: Data,
    column: Column,
    settings: Iterable[Setting],
    given: Callable[[float | None], Given],
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[AttributeResult, ...]:
    """How often the column's value is inferred, for members and for non-members, behind each setting.

    The attacker has the public table; `given` says what a defender has, for an ε.

    Raises:
        ValueError: The data is no table, or the column takes one value only.
    """
    rng = np.random.default_rng(seed)
    values, public_bins = _values(public, column)
    imputation = _imputation(public, column, public_bins, seed)
    marginal = int(np.bincount(public_bins, minlength=len(values)).argmax())
    given_sides: dict[Side, Data] = {"members": members, "nonmembers": nonmembers}
    sides: dict[Side, _Asked] = {}
    for side, data in given_sides.items():
        some = part(data, rng.permutation(len(data[1]))[:MAX_RECORDS])
        sides[side] = _ask(predict, some, column, values, imputation)
    results, every = [], list(settings)
    for done, setting in enumerate(every, 1):
        method = DEFENSES[setting[0]]
        defense, times = method.make(given(setting[1])), ASKED if method.draws_at(setting[1]) else 1
        for side, asked in sides.items():
            for sees_answer, right in _attacked(asked, defense, times, rng):
                results.append(_result(setting, column, side, asked, marginal, sees_answer, right))
        progress(f"the column {column.name}", done, len(every))
    return tuple(results)


def _result(
    setting: Setting, column: Column, side: Side, asked: "_Asked", marginal: int, sees_answer: bool, right: Bools
) -> AttributeResult:
    guessed = asked.log_prior.argmax(axis=1) == asked.truth
    success_low, success_high = _clopper_pearson(int(right.sum()), len(right))
    gain_low, gain_high = _difference(right, guessed)
    return AttributeResult(
        defense=setting[0],
        epsilon=setting[1],
        column=column.name,
        values=len(asked.by_value),
        sees_answer=sees_answer,
        side=side,
        records=len(right),
        marginal=float(np.mean(asked.truth == marginal)),
        imputation=float(guessed.mean()),
        success=float(right.mean()),
        success_low=success_low,
        success_high=success_high,
        gain=float(right.mean() - guessed.mean()),
        gain_low=gain_low,
        gain_high=gain_high,
    )


@dataclass(frozen=True, eq=False)
class _Asked:
    """Records of one side, and what the bare model says of them."""

    truth: Integers  # which of the values each has
    labels: Integers
    log_prior: Floats  # (n, values), the imputation's
    scores: Floats  # (n, k), of the true record
    by_value: Floats  # (values, n, k), with each value in the column


def _values(public: Data, column: Column) -> tuple[Floats, Integers]:
    """The values that the attacker tries, and which of them each public record has (or is nearest to)."""
    x = np.asarray(public[0])
    if x.ndim != 2 or not np.issubdtype(x.dtype, np.number):
        raise ValueError(f"Expected a table of numbers to infer a column of, got shape {x.shape} of {x.dtype}.")
    if not 0 <= column.index < x.shape[1]:
        raise ValueError(f"Expected a column from 0 to {x.shape[1] - 1}, got {column.index}.")
    if len(x) < MIN_PUBLIC:
        raise ValueError(f"Expected at least {MIN_PUBLIC} public records to infer a column with, got {len(x)}.")
    there = x[:, column.index].astype(np.float64)
    values = np.unique(there)
    if len(values) > MAX_VALUES:  # the middle of each of equally full bins
        values = np.unique(np.quantile(there, (np.arange(BINS) + 0.5) / BINS))
    if len(values) < 2:
        raise ValueError(f"Expected a sensitive column with at least 2 values, {column.name} has 1 in public records.")
    return values, _nearest(there, values)


def _nearest(there: Floats, values: Floats) -> Integers:
    return np.asarray(np.abs(there[:, None] - values).argmin(axis=1))


def _imputation(public: Data, column: Column, bins: Integers, seed: int) -> Callable[[Data], Floats]:
    """ln P(value) of each record, from its other columns and its class, smoothed: every value is possible."""
    from sklearn.ensemble import RandomForestClassifier

    def others(data: Data) -> Floats:
        return np.column_stack([np.delete(np.asarray(data[0], dtype=np.float64), column.index, axis=1), data[1]])

    forest = RandomForestClassifier(200, min_samples_leaf=3, random_state=seed).fit(others(public), bins)
    count = int(bins.max()) + 1

    def log_prior(data: Data) -> Floats:
        shares = np.full((len(data[1]), count), 0.5 / len(bins))
        shares[:, forest.classes_] += forest.predict_proba(others(data))
        return np.asarray(np.log(shares / shares.sum(axis=1, keepdims=True)))

    return log_prior


def _ask(predict: Predict, data: Data, column: Column, values: Floats, imputation: Callable[[Data], Floats]) -> _Asked:
    x, labels = np.asarray(data[0]), np.asarray(data[1], dtype=np.int64)
    truth = _nearest(x[:, column.index].astype(np.float64), values)
    by_value = []
    for i, value in enumerate(values):
        tried = x.copy()
        # a value that is binned is tried as the attacker would, not as it is
        tried[:, column.index] = value if np.issubdtype(x.dtype, np.floating) else round(float(value))
        by_value.append(checked(f"records with value {i} of {column.name}", predict(tried)).scores)
    return _Asked(truth, labels, imputation(data), checked("records", predict(x)).scores, np.stack(by_value))


def _attacked(asked: _Asked, defense: Defense, times: int, rng: np.random.Generator) -> Iterator[tuple[bool, Bools]]:
    """Whether each record's value is inferred, by one who has not seen the answer about it and by one who has.

    Weights are learnt on the half that a record is not in.
    """
    answer = defense(asked.scores)
    answers = np.stack([sum(defense(rows) for _ in range(times)) / times for rows in asked.by_value])
    every = _clues(asked, answer, answers)
    halves = np.array_split(rng.permutation(len(answer)), 2)
    for sees_answer, clues in ((False, every[:, :, :WITHOUT_ANSWER]), (True, every)):
        right = np.empty(len(answer), dtype=bool)
        for known, attacked in (halves, halves[::-1]):
            weights = _weights(clues[known], asked.truth[known])
            right[attacked] = (clues[attacked] @ weights).argmax(axis=1) == asked.truth[attacked]
        yield sees_answer, right


def _clues(asked: _Asked, answer: Floats, answers: Floats) -> Floats:
    """(n, values, clues): what speaks for each value of each record."""
    every = np.arange(len(answer))
    of_class = np.log(np.maximum(answers[:, every, asked.labels], NEGLIGIBLE))
    tops = answers.argmax(axis=2)
    apart = np.log(np.abs(answers - answer).sum(axis=2) + NEGLIGIBLE)
    return np.stack(
        [asked.log_prior, of_class.T, (tops == asked.labels).T, -apart.T, (tops == answer.argmax(axis=1)).T], axis=2
    )


def _weights(clues: Floats, truth: Integers) -> Floats:
    """Those that make the true values most likely, P(v) ∝ exp(w · clues(v)); drawn towards the imputation alone."""
    spread = np.maximum((clues - clues.mean(axis=1, keepdims=True)).std(axis=(0, 1)), NEGLIGIBLE)
    scaled, every = clues / spread, np.arange(len(truth))
    alone = np.zeros(clues.shape[2])
    alone[0] = spread[0]

    def loss(weights: Floats) -> tuple[float, Floats]:
        worth = scaled @ weights
        worth -= worth.max(axis=1, keepdims=True)
        likely = np.exp(worth)
        likely /= likely.sum(axis=1, keepdims=True)
        miss = -np.log(np.maximum(likely[every, truth], 1e-300)).mean()
        slope = (np.einsum("nv,nvc->nc", likely, scaled) - scaled[every, truth]).mean(axis=0)
        away = weights - alone
        return float(miss + RIDGE * away @ away), slope + 2 * RIDGE * away

    return np.asarray(minimize(loss, alone, jac=True, method="L-BFGS-B").x / spread)


def _clopper_pearson(right: int, total: int) -> tuple[float, float]:
    low = float(beta.ppf(0.025, right, total - right + 1)) if right else 0.0
    return low, float(beta.ppf(0.975, right + 1, total - right)) if right < total else 1.0


def _difference(right: Bools, guessed: Bools) -> tuple[float, float]:
    """Of two shares of the same records: Agresti and Min's interval, with half a record more of each kind."""
    won, lost, count = int((right & ~guessed).sum()), int((guessed & ~right).sum()), len(right) + 2
    middle = (won - lost) / count
    reach = HALF_WIDTH * (won + lost + 1 - (won - lost) ** 2 / count) ** 0.5 / count
    return middle - reach, middle + reach
