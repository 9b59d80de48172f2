"""What each answer of a table says about each label: how often it is yes, given the model's own yes or no.

One table T serves all labels, and its answers mean for one label what they do not mean for another: some labels are
rare, some models are surer than they should be. So the released probability is read off three things, which label it
is, its yes or no, and the answer c:

    p(label, side, c) = how often the label is yes among records of this side that are answered with c

on the side of the threshold where the label is, and the farther from it the surer the answer. All three are released
in any case: reading p off them is post-processing, and costs no privacy.

Where records are few, a label's rates are drawn towards those of all labels, moved by as much as the label is right
more or less often.
"""

import numpy as np

from scoreveil.fitting import histograms
from scoreveil.fitting.histograms import Floats, Uniforms
from scoreveil.fitting.records import Scored
from scoreveil.mechanisms.channel import NEAREST, Channel
from scoreveil.mechanisms.promises import WHOLE
from scoreveil.shapes import ManyLabels, OneColumn, ReadOut

APART = 1e-6  # answers that are announced nearer than this are one
EACH = 2.0  # records that are right, and as many that are wrong, for what few records and the noise leave open
OF_ANSWER = 40.0  # records' worth of what is known of all labels
STEPS = 60  # of a bisection


def read_out(
    channel: Channel, others: Scored, shape: OneColumn | ManyLabels, by_label: bool, draw: Uniforms
) -> ReadOut:
    """The read-out of a fitted table, from a private histogram of (label, side, answer, yes or no).

    Args:
        channel: The table.
        others: Records that were not trained on.
        shape: How they are served.
        by_label: Whether by their true labels; else as their scores have it.
        draw: Where the noise comes from.
    """
    order = np.argsort(channel.announced[:, 0])
    apart = np.diff(channel.announced[order, 0], prepend=0) > APART
    announced, answer = channel.announced[order, 0][apart], np.cumsum(apart) - 1
    chances = np.zeros((len(channel.table), len(announced)))
    np.add.at(chances.T, answer, channel.table.T[order] / WHOLE)

    side, labels = others.predicted, others.releases
    truth = others.labels if by_label else None
    yes = others.said[:, 1] if truth is None else truth.astype(np.float64)
    cells = 2 * (np.arange(len(others)) % labels * 2 + side)[:, None] + np.arange(2)
    bins, outcomes = channel.read(others.scores)[1], np.stack([1 - yes, yes], axis=1)
    counts = [histograms.counted(cells, (labels, 2, 2), outcomes * chance[bins, None]) for chance in chances.T]
    found = histograms.release(np.stack(counts, axis=2), draw, histograms.NOISE_OF_TOTALS)  # (labels, 2, answers, 2)
    right = np.stack([found[:, 0, :, 0], found[:, 1, :, 1]], axis=1)
    return ReadOut(announced, _probabilities(right, found.sum(axis=3), announced, shape))


def _probabilities(right: Floats, records: Floats, announced: Floats, shape: OneColumn | ManyLabels) -> Floats:
    """(labels, 2, answers): how often yes, of how often each side is right and of how many records."""
    rate = (right.sum(axis=2) + EACH) / (records.sum(axis=2) + 2 * EACH)
    expected = _moved(announced, records, rate)
    smooth = (right + OF_ANSWER * expected) / (records + OF_ANSWER)
    thresholds = np.broadcast_to(np.array(shape.threshold, dtype=np.float64), len(rate))
    made = np.empty_like(smooth)
    for label, side in np.ndindex(rate.shape):
        rising = histograms.monotone(smooth[label, side], records[label, side] + OF_ANSWER)
        sure = np.clip(rising, NEAREST, 1 - NEAREST)
        at = thresholds[label]
        made[label, side] = np.maximum(sure, at) if side else np.minimum(1 - sure, np.nextafter(at, 0))
    return made


def _moved(announced: Floats, records: Floats, rate: Floats) -> Floats:
    """Announced values, moved by the same number of logits, so that they are `rate` on average over the records."""
    logits = np.log(announced) - np.log1p(-announced)
    weights = records + 1e-9
    weights = weights / weights.sum(axis=2, keepdims=True)
    low, high = np.full(rate.shape, -30.0), np.full(rate.shape, 30.0)
    for _ in range(STEPS):
        middle = (low + high) / 2
        below = (weights / (1 + np.exp(-(logits + middle[..., None])))).sum(axis=2) < rate
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(1 / (1 + np.exp(-(logits + low[..., None]))))
