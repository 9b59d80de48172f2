"""What attacks prove of ε: never more than is promised, and a broken promise is found."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from scoreveil import Veil
from scoreveil.audit.study.proved import fair_within, one_run_epsilon, pairs, proved_epsilon

EPSILONS = (0.5, 1.0, 2.0, 4.0)
RUNS = 200
MAX_ALARMS = 18  # of 200 where each errs in 5 %: more in one of 10,000 runs
SURE, UNSURE = np.array([1.0, 0.0, 0.0]), np.array([0.34, 0.33, 0.33])  # the same label


def randomized_response(inside, epsilon, rng):
    """The most that ε allows: each coin told rightly with probability e^ε / (1 + e^ε)."""
    told = rng.random(len(inside)) < 1 / (1 + math.exp(-epsilon))
    return np.where(told, inside, ~inside)


def veiled(count, epsilon, seed, vector):
    return Veil(epsilon, rng=np.random.default_rng(seed))(np.tile(vector, (count, 1)))[:, 0]


def test_the_alarms_that_are_allowed_follow_from_the_error():
    assert binom.sf(MAX_ALARMS, RUNS, 0.05) < 0.01


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_who_keeps_to_epsilon_is_not_accused(epsilon):
    accused = 0
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        said = [randomized_response(np.full(400, side), epsilon, rng).astype(float) for side in (True, False)]
        accused += proved_epsilon(*said, seed=seed) > epsilon
    assert accused <= MAX_ALARMS


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_who_keeps_to_epsilon_is_not_accused_by_coins(epsilon):
    accused, proved = 0, []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        coins = rng.random(400) < 0.5
        guessed = randomized_response(coins, epsilon, rng)
        proved.append(one_run_epsilon(int((guessed == coins).sum()), 400, 400))
        accused += proved[-1] > epsilon
    assert accused <= MAX_ALARMS
    assert np.median(proved) > 0.6 * epsilon - 0.1  # and the bound is not idle


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_an_honest_veil_is_not_accused(epsilon):
    accused = 0
    answers = [veiled(100 * 400, epsilon, i, vector).reshape(100, 400) for i, vector in enumerate((SURE, UNSURE))]
    for seed, said in enumerate(zip(*answers, strict=True)):
        accused += proved_epsilon(*said, seed=seed) > epsilon
    assert accused <= 12
    assert binom.sf(12, 100, 0.05) < 0.01


def test_a_veil_that_breaks_its_promise_is_found():
    """It says ε = 0.5, and draws with ε = 4."""
    said = [veiled(1_000, 4.0, seed, vector) for seed, vector in enumerate((SURE, UNSURE))]
    assert proved_epsilon(*said) > 2 * 0.5
    coins = np.random.default_rng(2).random(1_000) < 0.5
    order = np.argsort(np.where(coins, said[0], said[1]))
    right = int(coins[order[-200:]].sum() + (~coins[order[:200]]).sum())
    assert one_run_epsilon(right, 400, 1_000) > 2 * 0.5


def test_what_the_label_tells_is_not_held_against_the_scores():
    """Members mostly have label 1, others label 0; given the label, the scores say nothing."""
    rng = np.random.default_rng(0)
    cells = [(rng.random(2_000) < share).astype(np.int64) for share in (0.9, 0.2)]
    said = [side + 0.1 * rng.random(2_000) for side in cells]
    assert proved_epsilon(*said) > 1
    assert proved_epsilon(*said, in_cells=cells[0], out_cells=cells[1]) == 0
    kept = fair_within(np.repeat([True, False], 2_000), np.concatenate(cells), rng)
    assert len(np.unique(kept)) == len(kept) > 300
    assert abs(np.mean(kept < 2_000) - 0.5) < 4 * 0.5 / len(kept) ** 0.5
    in_one = np.concatenate(cells)[kept] == 1
    assert abs(np.mean(kept[in_one] < 2_000) - 0.5) < 4 * 0.5 / in_one.sum() ** 0.5


def test_pairs_have_the_same_cell_and_stand_once():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 5, 100), rng.integers(2, 8, 80)
    left, right = pairs(first, second, rng)
    assert np.array_equal(first[left], second[right])
    assert len(np.unique(left)) == len(left) == len(np.unique(right))
    assert len(left) == sum(min((first == c).sum(), (second == c).sum()) for c in range(8))
    nothing = pairs(np.zeros(3, dtype=int), np.ones(3, dtype=int), rng)
    assert len(nothing[0]) == len(nothing[1]) == 0


def test_the_bound_of_coins_is_the_papers():
    """Figures of the paper's own formula, computed term by term."""

    def p_value(right, guesses, canaries, epsilon, delta):
        q = math.exp(epsilon) / (1 + math.exp(epsilon))
        tail = sum(binom.pmf(j, guesses, q) for j in range(right, guesses + 1))
        most = max(sum(binom.pmf(right - j, guesses, q) for j in range(1, i + 1)) / i for i in range(1, right + 1))
        return tail + 2 * canaries * delta * most

    for right, guesses, canaries, delta in ((38, 40, 400, 0.0), (38, 40, 400, 1e-5), (30, 30, 30, 1e-3)):
        proved = one_run_epsilon(right, guesses, canaries, delta)
        assert p_value(right, guesses, canaries, proved, delta) == pytest.approx(0.05, abs=1e-6)
    assert (
        one_run_epsilon(95, 100, 1_000, 1e-2) < one_run_epsilon(95, 100, 1_000, 1e-5) < one_run_epsilon(95, 100, 1_000)
    )
    # Clopper and Pearson's bound for 100 of 100 is .05^(1/100)
    assert one_run_epsilon(100, 100, 100) == pytest.approx(-math.log(0.05**-0.01 - 1))


def test_delta_is_taken_off_and_both_ways_are_looked_at():
    often = np.concatenate([np.ones(500), np.zeros(500)])
    rarely = np.concatenate([np.ones(20), np.zeros(980)])
    bare = proved_epsilon(often, rarely)
    assert 2 < bare < math.log(500 / 20)
    assert proved_epsilon(often, rarely, delta=0.3) < bare - 0.5
    # the mirror image: it is "not a member" that is told
    assert proved_epsilon(-rarely, -often) == pytest.approx(bare, abs=0.6)


def test_nothing_is_proved_by_nothing():
    same = np.zeros(100)
    assert proved_epsilon(same, same) == 0
    assert proved_epsilon([1.0], [0.0]) == 0
    assert proved_epsilon([], []) == 0
    assert one_run_epsilon(0, 0, 10) == one_run_epsilon(50, 100, 100) == 0
    assert proved_epsilon(np.full(100, np.inf), np.full(100, -np.inf)) > 2  # an attack may well be infinitely sure


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: one_run_epsilon(11, 10, 20), "right <= guesses"),
        (lambda: one_run_epsilon(5, 10, 9), "guesses <= canaries"),
        (lambda: one_run_epsilon(5, 10, 10, delta=-1), "delta"),
        (lambda: one_run_epsilon(5, 10, 10, confidence=1.0), "confidence"),
        (lambda: proved_epsilon([np.nan], [0.0]), "members"),
        (lambda: proved_epsilon([[1.0]], [0.0]), "members"),
        (lambda: proved_epsilon([1.0], [0.0], in_cells=[0]), "one side"),
        (lambda: proved_epsilon([1.0], [0.0], in_cells=[0, 1], out_cells=[0]), "a cell for each"),
    ],
)
def test_wrong_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
