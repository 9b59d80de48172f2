"""The paper's mechanism: Algorithm 1, Equation 4, and which of its claims hold."""

import itertools
import math

import numpy as np
import pytest

from privacy_checks import chi_square
from scoreveil import Veil, accounting
from scoreveil.mechanisms import loading, published
from scoreveil.mechanisms.guarantee import Relation
from scoreveil.mechanisms.published import Published
from scoreveil.randomness import secure_uniforms
from scoreveil.tuning import epsilon_star

READINGS = ["bounded", "printed"]
EPSILONS = [0.1, 0.7, 1.4, 2.0]  # the paper's


def sorted_rows(classes, count, seed=0, concentration=0.5):
    return np.sort(np.random.default_rng(seed).dirichlet(np.full(classes, concentration), count), axis=1)


# Algorithm 1


def test_the_papers_example_divides_as_printed():
    lower, upper = published.sub_ranges(np.array([[0.2, 0.8]]))
    assert lower.tolist() == [[0.0, 0.5]]
    assert upper.tolist() == [[0.5, 1.0]]
    points = published.candidates(lower, (upper - lower) / 5, 5)
    assert points[0] == pytest.approx(np.array([[0, 0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8, 0.9]]))


@pytest.mark.parametrize("reading", READINGS)
def test_the_papers_example_0_2_0_8_is_finite(reading):
    # the utility as printed divides by zero here: y_1 = 0.2 is a candidate of its own
    settings = Published(0.7, reading)
    assert np.isfinite(published.selection_log_probabilities(np.array([[0.2, 0.8]]), settings)).all()
    z = Veil(0.7, "published", reading=reading)(np.array([0.2, 0.8]))
    assert np.isfinite(z).all()
    assert z[0] < z[1]
    assert z.sum() == pytest.approx(1)


def naive_probabilities(row, settings):
    """Line by line from the paper, in plain Python."""
    k, m = len(row), settings.m
    borders = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(row)), 1.0]
    table = []
    for i in range(k):
        rho = (borders[i + 1] - borders[i]) / m
        weights = []
        for j in range(m):
            distance = abs(row[i] - (borders[i] + j * rho))
            if settings.reading == "bounded":
                u = 1 / max(distance / rho, 0.5) if rho > 0 else 2.0
            else:
                u = 1 / max(distance, 1e-12)
            weights.append(settings.epsilon * u / (2 * settings.sensitivity))
        top = max(weights)
        weights = [math.exp(w - top) for w in weights]
        table.append([w / sum(weights) for w in weights])
    return np.array(table)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("m", [1, 2, 5, 9])
def test_stated_probabilities_are_those_of_the_paper(reading, m):
    settings = Published(1.4, reading, m)
    for row in sorted_rows(6, 20):
        stated = np.exp(published.selection_log_probabilities(row[None], settings))[0]
        assert stated == pytest.approx(naive_probabilities(row, settings), abs=1e-9)


@pytest.mark.parametrize(("reading", "use_kernel"), [("bounded", False), ("bounded", True), ("printed", False)])
@pytest.mark.slow
def test_selection_follows_the_stated_probabilities(reading, use_kernel):
    settings, draws = Published(2.0, reading), 1_000_000
    row = np.array([0.02, 0.08, 0.3, 0.6])
    lower, upper = published.sub_ranges(row[None])
    rho = (upper - lower) / settings.m
    rows, uniforms = np.repeat(row[None], draws, 0), secure_uniforms(draws, 4)
    if use_kernel:
        z = np.empty_like(rows)
        assert loading.wait()
        kernel = loading.kernel(settings, 4)
        assert kernel is not None
        assert kernel(rows, uniforms, z) == -1
    else:
        z = settings.perturb(rows, uniforms)
    # Phase 2 is invertible: differences of y' are read off z, which is also how an attacker undoes it
    exact = np.exp(published.selection_log_probabilities(row[None], settings))[0]
    points = published.candidates(lower, rho, settings.m)[0]
    for i, j in itertools.combinations(range(4), 2):
        difference = 2 / settings.epsilon * np.log(z[:, j] / z[:, i])
        possible = points[j][None, :] - points[i][:, None]
        kinds = np.unique(np.round(possible, 9))
        where = np.searchsorted(kinds, np.round(difference, 9) - 1e-7)
        assert np.abs(kinds[where] - difference).max() < 1e-6
        probability = np.bincount(
            np.searchsorted(kinds, np.round(possible, 9).ravel()), weights=np.outer(exact[i], exact[j]).ravel()
        )
        assert chi_square(np.bincount(where, minlength=len(kinds)), probability) > 1e-6


# Theorem 1


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("classes", [2, 4, 6, 10])
@pytest.mark.slow
def test_theorem_1_holds_per_sub_range_for_an_even_number_of_classes(classes, epsilon):
    settings, rng = Published(epsilon), np.random.default_rng(classes)
    alternating = np.where(np.arange(classes) % 2 == 0, 1.0, -1.0)
    worst = 0.0
    for row in sorted_rows(classes, 100, concentration=3.0):
        for t in rng.uniform(-1, 1, 20) * np.diff(row).min(initial=row[0]) / 2:
            other = row + t * alternating
            if other[0] < 0 or np.any(np.diff(other) < 0):
                continue
            assert np.allclose(row[1:] + row[:-1], other[1:] + other[:-1])  # the theorem's neighbours
            log_p, log_q = (published.selection_log_probabilities(y[None], settings)[0] for y in (row, other))
            worst = max(worst, np.abs(log_p - log_q).max())
            assert settings.loss(row, other) <= classes * epsilon + 1e-9
    assert 0 < worst <= epsilon + 1e-9


@pytest.mark.parametrize("reading", READINGS)
def test_the_exact_loss_equals_that_over_every_outcome_of_phase_1(reading):
    settings = Published(0.7, reading, m=3)
    row, other = np.array([0.05, 0.15, 0.3, 0.5]), np.array([0.06, 0.14, 0.31, 0.49])  # adjacent sums are equal
    chances = [
        [math.prod(outcome) for outcome in itertools.product(*naive_probabilities(scores, settings))]
        for scores in (row, other)
    ]
    for (a, p), (b, q) in itertools.permutations(zip((row, other), chances, strict=True), 2):
        assert settings.loss(a, b) == pytest.approx(max(math.log(x / y) for x, y in zip(p, q, strict=True)), abs=1e-9)
        assert settings.loss(a, b) > 0.1


def test_theorem_1_is_vacuous_for_an_odd_number_of_classes():
    # equal adjacent sums leave (t, -t, t, …), and equal totals then leave t = 0
    for classes in (3, 5, 7):
        sums = np.zeros((classes, classes))
        for i in range(classes - 1):
            sums[i, i : i + 2] = 1
        sums[-1] = 1
        assert np.linalg.matrix_rank(sums) == classes
    for classes in (2, 4, 6):
        sums = np.array([[1.0 if j in (i, i + 1) else 0.0 for j in range(classes)] for i in range(classes - 1)])
        assert np.linalg.matrix_rank(np.vstack([sums, np.ones(classes)])) == classes - 1


def test_the_borders_tell_neighbours_apart():
    settings = Published(0.1)
    assert settings.loss(np.array([0.2, 0.3, 0.5]), np.array([0.2, 0.31, 0.49])) == np.inf
    promise = Veil(0.1, "published").guarantee
    assert promise.epsilon == promise.rho == np.inf
    assert promise.relation is Relation.SAME_RANKING
    assert promise.relation_words == "any two score vectors with the same ranking of all classes"
    assert promise.advantage is None
    with pytest.raises(ValueError, match="promises none"):
        accounting.query_bound(promise, total=10.0)


def test_the_printed_reading_exceeds_epsilon():
    settings = Published(0.1, "printed")
    row, other = np.array([0.2, 0.8]), np.array([0.25, 0.75])
    assert settings.loss(row, other) > 2 * 0.1


# Lemmas and properties


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("classes", [2, 3, 10, 50])
def test_algorithm_1_keeps_the_order(classes, reading):
    rows = sorted_rows(classes, 500)
    modified = published.modify(rows, Published(0.5, reading), secure_uniforms(500, classes))
    assert np.all(np.diff(modified, axis=1)[np.diff(rows, axis=1) > 1e-12] > 0)


@pytest.mark.parametrize("classes", [2, 3, 10, 50])
def test_lemma_5_the_extremes_of_the_modified_scores_enclose_1_over_k(classes):
    rows = np.concatenate([sorted_rows(classes, 500, concentration=c) for c in (0.1, 1.0, 10.0)])
    modified = published.modify(rows, Published(0.7), secure_uniforms(len(rows), classes))
    assert np.all(modified.min(axis=1) < 1 / classes)
    assert np.all(modified.max(axis=1) >= 1 / classes - 1e-12)


def exact_pairs(classes, count):
    """y' and y = softmax(ε*·y'/2): pairs for which an exact ε* exists."""
    rng = np.random.default_rng(classes)
    modified = np.sort(rng.uniform(0, 1, (count, classes)), axis=1)
    star = rng.uniform(0.5, 8, count)
    return modified, star, published.normalize(modified, star[:, None])


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_properties_1_to_4_hold_where_an_exact_epsilon_star_exists(classes):
    modified, star, y = exact_pairs(classes, 200)
    for form in ("kl", "ratio", "top"):
        assert epsilon_star(y, modified, form) == pytest.approx(star, rel=1e-6)
    last = np.zeros(len(star))
    for factor in (1.1, 1.5, 3.0):
        z = published.normalize(modified, (factor * star)[:, None])
        assert np.all(np.diff(z, axis=1) > 0)  # Property 1
        assert np.all(z[:, 1:] / z[:, :-1] > y[:, 1:] / y[:, :-1])  # Property 2
        assert np.all(z[:, 0] < y[:, 0])  # Property 3
        assert np.all(z[:, -1] > y[:, -1])
        distance = np.abs(z - y).sum(axis=1)  # Property 4
        assert np.all(distance > last)
        last = distance
    last = np.zeros(len(star))
    for factor in (0.9, 0.5, 0.1):
        z = published.normalize(modified, (factor * star)[:, None])
        assert np.all(z[:, 1:] / z[:, :-1] < y[:, 1:] / y[:, :-1])
        assert np.all(z[:, 0] > y[:, 0])
        assert np.all(z[:, -1] < y[:, -1])
        distance = np.abs(z - y).sum(axis=1)
        assert np.all(distance > last)
        last = distance


def test_equation_7_has_no_solution_in_general():
    y, modified = np.array([0.157, 0.268, 0.575]), np.array([0.043, 0.380, 0.421])
    stars = [float(epsilon_star(y, modified, form)[0]) for form in ("kl", "ratio", "top")]
    assert max(stars) > 1.2 * min(stars)
    for star in stars:
        assert np.abs(published.normalize(modified, star) - y).max() > 0.05


def test_property_4_fails_where_no_exact_epsilon_star_exists():
    y, modified = np.array([0.157, 0.268, 0.574]), np.array([0.043, 0.380, 0.421])
    star = float(epsilon_star(y, modified, "kl")[0])

    def distance(epsilon):
        return np.abs(published.normalize(modified, epsilon) - y).sum()

    grid = star * np.linspace(0.05, 5, 2000)
    distances = np.array([distance(e) for e in grid])
    nearest = grid[distances.argmin()]
    assert abs(nearest - star) > 0.05 * star
    between = np.linspace(min(star, nearest), max(star, nearest), 20)
    steps = np.diff([distance(e) for e in between])
    # walking away from ε*, towards the nearest point, the distance falls instead of rising
    assert np.all(steps < 0) if nearest > star else np.all(steps > 0)


def test_theorem_3_exceeds_tight_composition():
    with pytest.warns(UserWarning, match="Theorem 3"):
        printed = accounting.paper_query_bound(0.1, 10, 5.0)
    assert round(printed) == 429
    assert accounting.query_bound(1.0, 5.0) == 5


# Table 2


@pytest.mark.parametrize(
    ("epsilon", "in_the_paper", "least"),
    [(0.1, 0.948, 0.944), (0.7, 0.783, 0.911), (1.4, 0.535, 0.861), (2.0, 0.328, 0.810)],
)
def test_table_2_reports_distortions_that_equation_4_cannot_reach(epsilon, in_the_paper, least):
    one_hot = np.eye(10)[:1]
    # the nearest z that any y' in [0, 1]^10 gives
    nearest = published.normalize(one_hot, epsilon)
    assert np.linalg.norm(nearest - one_hot) == pytest.approx(least, abs=6e-4)
    assert (in_the_paper < least) == (epsilon > 0.1)
    released = Veil(epsilon, "published")(np.repeat(one_hot, 1000, 0))
    assert np.linalg.norm(released - one_hot, axis=1).min() >= least - 6e-4
