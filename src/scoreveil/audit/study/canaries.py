"""Canaries: the ε that one training run proves, after Steinke, Nasr and Jagielski 2023.

    results = release_canaries(architecture, members, nonmembers, public, settings, count=400, seed=0)

Canaries are records that were not trained on, every other one with a wrong label. A fair coin for each decides whether
it is put into the training set; then one model is trained. An attacker who knows the canaries and their labels sees one
answer about each, and says of the most and of the least likely ones whether they are in, by

    ln z_y - ln max_{c ≠ y} z_c       where z is the answer, and y the canary's label

The more of these guesses are right, the larger the ε that is proved (`proved.one_run_epsilon`). It is tried on the
canaries with wrong labels and on those with right ones, with several numbers of guesses, each with its share of the
error.

*In all* it is the ε of training and answer together, which no veil promises: the predicted label is released as it is,
and may change with the coin. What a veil promises is about two score vectors with the same label. So *beyond the label*
the canaries are thinned, until among those with the same predicted label, and the same label of their own, the coin is
fair again. What is guessed of these comes from the scores alone. For any two score vectors with the same label the
answer's probabilities differ by a factor of at most e^ε, so a guess from one answer is right with probability at most
e^ε / (1 + e^ε), and in at most 5 % of audits the proved ε exceeds the promised one.

The theorem is about a coin and the answer about its own canary. That training on one canary also moves the answers
about others a little is left out, as is usual.

Wrong labels are what a model must learn by heart, but often change what it predicts; right ones seldom do, so that more
is left beyond the label.
"""

from collections.abc import Iterable

import numpy as np

from scoreveil.arrays import Floats, Integers
from scoreveil.audit.data.records import Bools, Membership, Records
from scoreveil.audit.defenses import DEFENSES, Given
from scoreveil.audit.study.models import Data, Factory, part, trained
from scoreveil.audit.study.proved import CONFIDENCE, fair_within, one_run_epsilon
from scoreveil.audit.study.results import CanaryResult, Proved, Setting
from scoreveil.audit.study.shadows import Progress, silent
from scoreveil.audit.study.subjects import checked

MIN_CANARIES = 20
NOTHING_BUT_THE_LABEL = ("label_only", "label_constant")
SHARES = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of the canaries that are guessed, half of them as in, half as out


def release_canaries(
    architecture: Factory,
    members: Data,
    nonmembers: Data,
    public: Data,
    settings: Iterable[Setting],
    count: int,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[CanaryResult, ...]:
    """The ε that so many canaries, taken from the non-members, prove behind each setting.

    One model is trained, on the members and on half of the canaries; defenses are fitted on public records.
    """
    rng = np.random.default_rng(seed)
    canaries, inside, wrong = _planted(members, nonmembers, count, rng)
    training = [np.concatenate(both) for both in zip(members, part(canaries, np.flatnonzero(inside)), strict=True)]
    np.random.seed(seed)  # noqa: NPY002 - what a model of others draws from, if it takes no seed of ours
    model = trained(architecture, training[0], training[1])
    asked, known, reference = (
        checked(name, model.predict_proba(x), y)
        for name, (x, y) in (("canaries", canaries), ("members", members), ("reference", public))
    )
    # the same canaries whatever the defense: those that keep the label differ in their answers alone
    cells = (asked.predicted * asked.scores.shape[1] + asked.true_labels) * 2 + wrong
    kept = fair_within(inside, cells, rng)
    results, every = [], list(settings)
    for done, (defense, epsilon) in enumerate(every, 1):
        method, given = DEFENSES[defense], Given(Membership(known, reference), reference, seed, epsilon)
        said = likeliness(asked.defended(method.make(given)))
        in_all = prove(said, inside, wrong, rng)
        beyond = prove(said[kept], inside[kept], wrong[kept], rng) if method.keeps_label else None
        promise = promised((defense, epsilon))
        results.append(
            CanaryResult(
                defense=defense, epsilon=epsilon, canaries=count, in_all=in_all, beyond_label=beyond, promised=promise
            )
        )
        progress("canaries behind a veil", done, len(every))
    return tuple(results)


def _planted(members: Data, nonmembers: Data, count: int, rng: np.random.Generator) -> tuple[Data, Bools, Bools]:
    """The canaries, which of them are put into the training set, and which have a wrong label."""
    if not MIN_CANARIES <= count <= len(nonmembers[1]):
        there = f"{len(nonmembers[1]):,} non-members to take them from"
        raise ValueError(f"Expected from {MIN_CANARIES} canaries to the {there}, got {count}.")
    x, labels = part(nonmembers, rng.permutation(len(nonmembers[1]))[:count])
    classes = int(max(members[1].max(), labels.max())) + 1
    wrong = np.arange(count) % 2 == 0
    changed = np.where(wrong, (labels + rng.integers(1, classes, count)) % classes, labels)
    return (x, changed), rng.random(count) < 0.5, wrong


def promised(setting: Setting) -> float | None:
    """The ε that a setting promises beyond the label, for answers that are drawn independently.

    None where it promises none, or promises it beyond the whole order.
    """
    if setting[0] in NOTHING_BUT_THE_LABEL:
        return 0.0
    return setting[1] if DEFENSES[setting[0]].bounded_given == "label" else None


def likeliness(answers: Records) -> Floats:
    """How much more of the score is the label's than the highest other's; the more, the likelier it was trained on."""
    logs = np.log(np.maximum(answers.scores, 1e-12))
    every = np.arange(len(answers))
    own = logs[every, answers.true_labels]
    logs[every, answers.true_labels] = -np.inf
    return np.asarray(own - logs.max(axis=1))


def prove(said: Floats, inside: Bools, wrong: Bools, rng: np.random.Generator) -> Proved:
    """The most that guesses of the highest and the lowest prove, of several numbers of guesses on either kind."""
    confidence, tried = 1 - (1 - CONFIDENCE) / (2 * len(SHARES)), []
    for kind in (wrong, ~wrong):
        coins, likely = inside[kind], said[kind]
        order: Integers = np.lexsort((rng.random(len(likely)), likely))  # equal ones in random order
        for share in SHARES:
            half = int(share * len(order) / 2)
            right = int(coins[order[len(order) - half :]].sum() + (~coins[order[:half]]).sum())
            epsilon = one_run_epsilon(right, 2 * half, len(order), confidence=confidence)
            tried.append(Proved(canaries=len(said), guesses=2 * half, right=right, epsilon=epsilon))
    return max(tried, key=lambda one: (one.epsilon, one.guesses))
