"""Metrics: equal to scikit-learn's where it has them, fair to ties, with intervals that cover."""

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import balanced_accuracy_score, brier_score_loss, roc_auc_score, roc_curve

from scoreveil.audit.data.records import Membership, Records
from scoreveil.audit.study import metrics
from scoreveil.audit.study.membership import _worth
from scoreveil.audit.study.results import AttackResult
from scoreveil.fitting import metrics as worth


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def records(rng: np.random.Generator, n: int = 500, k: int = 10) -> Records:
    scores = rng.dirichlet(np.full(k, 0.3), n)
    labels = np.where(rng.random(n) < 0.7, scores.argmax(axis=1), rng.integers(0, k, n))
    return Records(scores, labels)


def attack(rng: np.random.Generator, n: int = 400, shift: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    truth = np.arange(2 * n) < n
    return truth, rng.standard_normal(2 * n) + shift * truth


# What a confidence is worth


def test_accuracy_distortion_and_the_use_of_the_confidence_are_among_the_costs(rng: np.random.Generator) -> None:
    given = records(rng)
    for name, value in _worth(Membership(given, given)).items():
        assert value is not None, name
    assert _worth(Membership(given, given))["test_accuracy"] == given.is_right.mean()
    unlabelled = Records(given.scores)
    assert set(_worth(Membership(unlabelled, unlabelled)).values()) == {None}


@pytest.mark.parametrize("k", [2, 10, 100])
def test_brier_is_scikit_learns(rng: np.random.Generator, k: int) -> None:
    given = records(rng, k=k)
    theirs = brier_score_loss(given.labels, given.scores, labels=np.arange(k), scale_by_half=False)
    assert worth.brier(given.scores, given.true_labels).mean() == pytest.approx(theirs)


def test_risk_coverage_is_the_error_among_the_surest(rng: np.random.Generator) -> None:
    given = records(rng)
    right = given.is_right[np.argsort(-given.scores.max(axis=1))]
    curve = worth.risk_coverage(given.scores.max(axis=1), given.is_right)
    assert curve[0][0] == 40 / 500  # none on a few records
    assert curve[-1] == (1.0, pytest.approx(1 - right.mean()))
    for share, risk in curve:
        assert risk == pytest.approx(1 - right[: round(share * 500)].mean(), abs=1e-6)


def test_ece_is_the_sum_over_bins(rng: np.random.Generator) -> None:
    given = records(rng)
    top, right = given.scores.max(axis=1), given.predicted == given.labels
    naive = 0.0
    for b in range(15):
        inside = (top > b / 15) & (top <= (b + 1) / 15)
        if inside.any():
            naive += inside.mean() * abs(right[inside].mean() - top[inside].mean())
    assert worth.calibration_error(top, right) == pytest.approx(naive)


def test_ece_of_a_calibrated_model_is_small_and_of_a_sure_wrong_one_is_1(rng: np.random.Generator) -> None:
    scores = rng.dirichlet(np.ones(3), 20_000)
    labels = np.minimum((rng.random(20_000)[:, None] > np.cumsum(scores, axis=1)).sum(axis=1), 2)
    assert worth.calibration_error(scores.max(axis=1), scores.argmax(axis=1) == labels) < 0.02
    assert worth.calibration_error(np.ones(2), np.zeros(2, dtype=bool)) == 1


def test_auroc_is_scikit_learns_and_half_where_undefined(rng: np.random.Generator) -> None:
    given = records(rng)
    top, right = given.scores.max(axis=1), given.predicted == given.labels
    assert worth.auroc(top[right], top[~right]) == pytest.approx(roc_auc_score(right, top))
    assert worth.auroc(top, top[:0]) == worth.auroc(top[:0], top) == 0.5


# Membership


def test_membership_is_scikit_learns(rng: np.random.Generator) -> None:
    truth, scores = attack(rng)
    found = metrics.membership_metrics(truth, scores)
    assert found.auc == pytest.approx(roc_auc_score(truth, scores))
    assert found.accuracy == pytest.approx(balanced_accuracy_score(truth, scores > 0.5))
    fpr, tpr, _ = roc_curve(truth, scores)
    assert found.tpr_at_1pct == pytest.approx(tpr[fpr <= 0.01].max())
    assert found.tpr_at_01pct == pytest.approx(tpr[fpr <= 0.001].max())
    points = np.array(found.roc)
    assert np.all(np.diff(points, axis=0) >= 0)
    assert tuple(points[-1]) == (1, 1)
    assert np.allclose(points[:, 1], np.interp(points[:, 0], *roc_curve(truth, scores, drop_intermediate=False)[:2]))


def test_the_fields_are_those_of_an_attack_result(rng: np.random.Generator) -> None:
    told = vars(metrics.membership_metrics(*attack(rng)))
    others = dict.fromkeys(("defense", "epsilon", "attack", "form", "features", "reads", "knows_label", "seconds"))
    assert AttackResult(**others, **told).auc == told["auc"]


def test_constant_scores_are_a_coin() -> None:
    found = metrics.membership_metrics(np.arange(200) < 100, np.full(200, 0.3))
    assert (found.auc, found.accuracy) == (0.5, 0.5)
    assert found.tpr_at_1pct == pytest.approx(0.01)
    assert found.tpr_at_01pct == pytest.approx(0.001)
    assert np.allclose([y - x for x, y in found.roc], 0)


def test_ties_count_half(rng: np.random.Generator) -> None:
    truth, scores = attack(rng)
    coarse = np.round(scores)
    member, other = coarse[truth][:, None], coarse[~truth]
    naive = np.mean((member > other) + (member == other) / 2)
    assert metrics.membership_metrics(truth, coarse).auc == pytest.approx(naive)


def test_an_infinitely_sure_attack_is_ranked(rng: np.random.Generator) -> None:
    truth, scores = attack(rng)
    beyond = np.where(scores > 2, np.inf, np.where(scores < -2, -np.inf, scores))
    found = metrics.membership_metrics(truth, beyond)
    assert found.auc == pytest.approx(roc_auc_score(truth, np.clip(beyond, -9, 9)))


def test_a_perfect_attack_has_an_interval_that_is_not_a_point() -> None:
    found = metrics.membership_metrics(np.arange(200) < 100, np.arange(200) < 100)
    assert (found.auc, found.auc_high, found.accuracy, found.tpr_at_01pct) == (1, 1, 1, 1)
    assert found.auc_low == found.tpr_at_1pct_low == pytest.approx(0.025 ** (1 / 100))


@pytest.mark.parametrize(
    ("found", "members", "low", "high"),
    [(0, 10, 0.0, 0.30850), (1, 10, 0.00253, 0.44502), (5, 10, 0.18709, 0.81291), (10, 10, 0.69150, 1.0)],
)
def test_clopper_pearson_is_the_textbooks(found: int, members: int, low: float, high: float) -> None:
    """`found` members score above every non-member."""
    scores = np.concatenate([np.arange(members) < found, np.full(1000, 0.5)])
    scores[:found] += 1
    # the rest of the members lie below all others, so that no tie adds to what is found
    scores[found:members] = -1
    told = metrics.membership_metrics(np.arange(members + 1000) < members, scores)
    assert told.tpr_at_01pct == pytest.approx(found / members)
    assert (told.tpr_at_01pct_low, told.tpr_at_01pct_high) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.slow
def test_auc_intervals_cover_the_truth(rng: np.random.Generator) -> None:
    expected = norm.cdf(1 / 2**0.5)
    told = [metrics.membership_metrics(*attack(rng, n=100)) for _ in range(300)]
    covered = np.mean([t.auc_low <= expected <= t.auc_high for t in told])
    assert 0.91 <= covered <= 0.98


@pytest.mark.slow
def test_tpr_intervals_cover_the_truth(rng: np.random.Generator) -> None:
    """With enough non-members to fix the threshold, which the interval takes as given."""
    expected = norm.sf(norm.isf(0.01) - 1)
    covered = 0
    for _ in range(100):
        truth = np.arange(20_200) < 200
        told = metrics.membership_metrics(truth, rng.standard_normal(20_200) + truth)
        covered += told.tpr_at_1pct_low <= expected <= told.tpr_at_1pct_high
    assert covered / 100 >= 0.91


# Inversion


@pytest.mark.parametrize("shape", [(32, 32), (1, 32, 32), (3, 32, 32)])
def test_perfect_reconstructions_are_perfect(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    images = rng.random((20, *shape))
    assert metrics.inversion_metrics(images, images) == metrics.InversionMetrics(0.0, pytest.approx(1.0), 1.0)


@pytest.mark.parametrize("shape", [(32, 32), (3, 32, 32)])
def test_one_picture_for_all_is_right_by_chance(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    images = rng.random((40, *shape))
    mean = np.broadcast_to(images.mean(axis=0), images.shape)
    found = metrics.inversion_metrics(images, mean)
    assert found.nearest_original == pytest.approx(1 / 40)
    assert found.mse == pytest.approx(np.mean((images - mean) ** 2))
    assert found.ssim < 0.5


def test_nearest_original_is_the_naive_one_across_chunks(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "CHUNK", 7)
    originals = rng.random((50, 8, 8))
    guesses = originals + rng.normal(0, 0.6, originals.shape)
    distance = ((guesses[:, None] - originals) ** 2).sum(axis=(2, 3))
    naive = np.mean(distance.argmin(axis=1) == np.arange(50))
    assert 0 < naive < 1
    assert metrics.nearest_original(originals, guesses) == pytest.approx(naive)


def test_equal_originals_share_the_point() -> None:
    assert metrics.nearest_original(np.zeros((4, 8, 8)), np.ones((4, 8, 8))) == 0.25


# Refusals


@pytest.mark.parametrize(
    ("truth", "scores", "message"),
    [
        ([], [], "Expected members and non-members, got 0 and 0"),
        ([True, True], [0.1, 0.2], "Expected members and non-members, got 2 and 0"),
        ([True, False], [0.1], "Expected one attack score per record, got shapes"),
        ([True, False], [0.1, np.nan], "Expected attack scores that are numbers, got 1 NaN"),
    ],
)
def test_membership_refuses_what_it_cannot_judge(truth: list[bool], scores: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metrics.membership_metrics(truth, scores)


def test_unequal_batches_are_refused() -> None:
    for a, b in ((np.zeros((0, 8, 8)),) * 2, (np.zeros((2, 8, 8)), np.zeros((3, 8, 8))), (np.zeros((2, 8)),) * 2):
        with pytest.raises(ValueError, match="Expected two equal batches of images"):
            metrics.inversion_metrics(a, b)
