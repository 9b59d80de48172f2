"""How far a record lies from where the model's label changes, found by asking for labels alone.

    found = distances(label_of, x, starts, low, high, rng)

HopSkipJump (Chen, Jordan and Wainwright 2020), for many records at a time: walk along the boundary, always on its far
side. Each round

    1. guesses the boundary's direction at x_t from the labels of points around it,  g = mean of φ_b u_b,  φ_b = ±1
       where u_b are random unit vectors and φ_b says whether x_t + δ u_b has another label,
    2. steps along g, half as far each time until the label is another one,
    3. goes back in a straight line towards the record, by halving, to where the label just changes.

Training pushes the boundary away from members, so the distance tells them from others (Choquette-Choo et al. 2021, Li
and Zhang 2021). Distances are Euclidean, and upper bounds: more questions find nearer points.
"""

from collections.abc import Callable

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.records import Bools

LabelOf = Callable[[Floats], Integers]  # inputs (n, …) to labels

ROUNDS = 10
DIRECTIONS = 100  # random directions of the first round; √t times as many in round t
HALVINGS = 12  # of a line, and of a step
NEAR = 0.1  # directions are tried so far from the boundary, as a share of the distance to the record
AT_A_TIME = 1 << 24  # numbers asked about in one call
QUESTIONS = round(sum(DIRECTIONS * t**0.5 for t in range(1, ROUNDS + 1))) + (2 * ROUNDS + 1) * HALVINGS
"""The most that one record is asked about."""


def distances(
    label_of: LabelOf, x: Floats, starts: Floats, low: Floats | float, high: Floats | float, rng: np.random.Generator
) -> Floats:
    """How far the nearest point with another label is from each record, as far as was found.

    Args:
        label_of: The model, asked for labels.
        x: The records, (n, …).
        starts: For each a point with another label.
        low: The smallest value of each feature, or of all; points stay inside.
        high: The largest.
        rng: Of the directions.
    """
    shape = x.shape[1:]
    records, points = x.reshape(len(x), -1), starts.reshape(len(x), -1)
    lowest, highest = (np.broadcast_to(edge, shape).reshape(-1) for edge in (low, high))
    own = label_of(x)

    def elsewhere(rows: Floats, which: Integers) -> Bools:
        """Whether each row has another label than the record it belongs to."""
        size = max(1, AT_A_TIME // rows.shape[1])
        asked = [label_of(rows[i : i + size].reshape(-1, *shape)) for i in range(0, len(rows), size)]
        return np.asarray(np.concatenate(asked) != own[which])

    every = np.arange(len(x))
    points = _line(records, points, every, elsewhere)
    nearest, found = points, _norm(points - records)
    for t in range(1, ROUNDS + 1):
        away = _norm(points - records)
        directions = _directions(points, away, lowest, highest, round(DIRECTIONS * t**0.5), elsewhere, rng)
        moved = _stepped(points, directions, away / t**0.5, lowest, highest, elsewhere)
        points = _line(records, moved, every, elsewhere)
        reached = _norm(points - records)
        nearest = np.where((reached < found)[:, None], points, nearest)
        found = np.minimum(found, reached)
        points = nearest
    return found


def _stepped(
    points: Floats, directions: Floats, step: Floats, low: Floats, high: Floats, elsewhere: Callable[..., Bools]
) -> Floats:
    """Each point a step along its direction, half as far each time until the label is another one."""
    moving, moved = np.arange(len(points)), points.copy()
    for _ in range(HALVINGS):
        tried = np.clip(points[moving] + step[moving, None] * directions[moving], low, high)
        over = elsewhere(tried, moving)
        moved[moving[over]] = tried[over]
        moving = moving[~over]
        if len(moving) == 0:
            break
        step = step / 2
    return moved


def _line(records: Floats, points: Floats, every: Integers, elsewhere: Callable[..., Bools]) -> Floats:
    """Points on the line from each record to its point where the label just changes."""
    inside, outside = np.zeros(len(records)), np.ones(len(records))
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        over = elsewhere(records + middle[:, None] * (points - records), every)
        inside, outside = np.where(over, inside, middle), np.where(over, middle, outside)
    return np.asarray(records + outside[:, None] * (points - records))


def _directions(
    points: Floats, away: Floats, low: Floats, high: Floats, count: int, elsewhere: Callable[..., Bools],
    rng: np.random.Generator,
) -> Floats:  # fmt: skip
    """A unit vector for each point, into where the label is another one."""
    found = np.empty_like(points)
    group = max(1, AT_A_TIME // (count * points.shape[1]))
    for start in range(0, len(points), group):
        here = np.arange(start, min(start + group, len(points)))
        spread = rng.standard_normal((len(here), count, points.shape[1]))
        spread /= np.maximum(_norm(spread), 1e-12)[..., None]
        reach = (NEAR * away[here])[:, None, None]
        tried = np.clip(points[here, None] + reach * spread, low, high)
        spread = (tried - points[here, None]) / np.maximum(reach, 1e-12)  # as far as the edges let them
        over = elsewhere(tried.reshape(-1, points.shape[1]), np.repeat(here, count)).reshape(len(here), count)
        signs = np.where(over, 1.0, -1.0)
        mean = signs.mean(axis=1, keepdims=True)
        # less the mean, which only blurs, but not where all agree: then every direction is as good
        weights = np.where(np.abs(mean) < 1, signs - mean, signs)
        found[here] = np.einsum("nb,nbd->nd", weights, spread)
    return np.asarray(found / np.maximum(_norm(found), 1e-12)[:, None])


def _norm(vectors: Floats) -> Floats:
    return np.asarray(np.sqrt((vectors**2).sum(axis=-1)))
