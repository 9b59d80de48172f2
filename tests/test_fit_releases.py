"""What a fit learns about its records goes through noisy histograms, is written down, and adds up to what is stated."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from privacy_checks import ALPHA, chi_square
from scoreveil import fit
from scoreveil.fitting import releases
from scoreveil.fitting.releases import BUDGET, UNIT, Release, Releases, clipped, counted
from scoreveil.mechanisms.per_label import PerLabel
from scoreveil.shapes import Binary, MultiLabel, PerPosition

NOWHERE = np.empty(0, dtype=np.int64)
CELLS = 60_000


# The noise


def chances_of_noise(epsilon: float, edges: np.ndarray) -> np.ndarray:
    """Of discrete Laplace noise in units to lie below each of the edges and between: q = e^(-ε/UNIT), P(x) ~ q^|x|."""

    def below(x: int) -> float:  # P(X < x)
        q = math.exp(-epsilon / UNIT)
        return 1 - q ** float(x) / (1 + q) if x > 0 else q ** float(1 - x) / (1 + q)

    reached = np.array([0.0, *(below(int(edge)) for edge in edges), 1.0])
    return np.diff(reached)


def noise_of(made: Releases, epsilon: float, cells: int = CELLS) -> np.ndarray:
    """In units."""
    noisy = made.histogram("noise", "other", NOWHERE, (cells,), epsilon) * UNIT
    assert np.array_equal(noisy, np.rint(noisy))
    return noisy.astype(np.int64)


def fits(noise: np.ndarray, epsilon: float) -> float:
    """The p-value of χ² against discrete Laplace noise of scale 1/ε."""
    far = np.array([0.02, 0.2, 0.5, 1.0, 2.0, 4.0]) * UNIT / epsilon
    edges = np.rint(np.concatenate([-far[::-1], [0], far])).astype(np.int64)
    observed = np.bincount(np.searchsorted(edges, noise, side="right"), minlength=len(edges) + 1)
    return chi_square(observed, chances_of_noise(epsilon, edges))


@pytest.mark.parametrize("epsilon", [0.05, 0.25, 0.5, 1.75, 5.0])
def test_the_noise_is_discrete_laplace_of_scale_1_by_epsilon(epsilon):
    noise = noise_of(Releases.drawn(np.random.default_rng(0)), epsilon)
    assert fits(noise, epsilon) > ALPHA
    for wrong in (2 * epsilon, epsilon / 2, 1.1 * epsilon):
        assert fits(noise, wrong) < ALPHA
    assert fits(noise + UNIT, epsilon) < ALPHA


def test_cryptographic_noise_is_the_same_kind_and_never_the_same():
    first, second = (noise_of(Releases.drawn(None), 0.5) for _ in range(2))
    assert fits(first, 0.5) > ALPHA
    assert not np.array_equal(first, second)


def test_where_a_unit_is_large_every_chance_is_exact(monkeypatch):
    """With 2 units to a record each value can be told apart."""
    monkeypatch.setattr(releases, "UNIT", 2)
    noise = Releases.drawn(np.random.default_rng(1)).histogram("n", "other", NOWHERE, (CELLS,), 1.0) * 2
    ratio, values = math.exp(-0.5), np.arange(-12, 13)
    chances = (1 - ratio) / (1 + ratio) * ratio ** np.abs(values)
    chances[[0, -1]] = ratio**12 / (1 + ratio)  # and beyond
    observed = np.bincount((np.clip(noise, -12, 12) + 12).astype(np.int64), minlength=25)
    assert chi_square(observed, chances) > ALPHA


def test_every_cell_has_noise_of_its_own():
    noise = noise_of(Releases.drawn(np.random.default_rng(2)), 1.0)
    most = 5 / math.sqrt(CELLS)
    for lag in (1, 2, CELLS // 2):
        assert abs(np.corrcoef(noise, np.roll(noise, lag))[0, 1]) < most
    assert abs(noise.mean() / noise.std()) < most
    asked = []
    Releases(lambda count: asked.append(count) or np.zeros(count)).histogram("n", "other", NOWHERE, (3, 5), 1.0)
    assert asked == [30]


def test_the_noise_is_what_the_draws_say():
    ratio = math.exp(-0.5 / UNIT)
    uniforms = np.array([1 - ratio**10.5, 0.0, 0.0, 1 - ratio**3.5])  # of two cells, what is added and what is taken
    noisy = Releases(lambda count: uniforms[:count]).histogram("n", "other", np.array([0, 0, 1]), (2,), 0.5)
    assert (noisy * UNIT).tolist() == [2 * UNIT + 10, UNIT - 3]


def test_counts_are_right_on_average():
    cells = np.random.default_rng(3).integers(0, 40, 5000)
    made, exact = Releases.drawn(np.random.default_rng(4)), np.bincount(cells, minlength=40)
    epsilon, times = 0.5, 400
    mean = np.mean([made.histogram("n", "member", cells, (8, 5), epsilon) for _ in range(times)], axis=0)
    off = (mean.ravel() - exact) / (math.sqrt(2 / times) / epsilon)
    assert np.abs(off).max() < 5
    assert 0.6 < off.std() < 1.5


# The counts


def test_without_noise_a_histogram_is_the_count():
    quiet = Releases(np.zeros)
    cells = np.array([0, 3, 3, 5])
    assert quiet.histogram("n", "other", cells, (2, 3), 0.1).tolist() == [[1, 0, 0], [2, 0, 1]]
    shared = np.array([[0, 1], [1, 2], [5, 5]])
    weights = np.array([[0.25, 0.75], [0.5, 0.5], [0.125, 0.25]])
    assert quiet.histogram("n", "other", shared, (6,), 0.1, weights).tolist() == [0.25, 1.25, 0.5, 0, 0, 0.375]


@pytest.mark.parametrize("shared", [1, 2, 3])
def test_a_record_adds_at_most_1_in_all(shared):
    rng = np.random.default_rng(shared)
    cells = rng.integers(0, 12, (50, shared))
    weights = rng.dirichlet(np.ones(shared), 50) if shared > 1 else None
    every = counted(cells if shared > 1 else cells[:, 0], (3, 4), weights)
    assert every.dtype == np.int64
    assert 50 * (UNIT - shared) <= every.sum() <= 50 * UNIT
    for i in range(50):
        rest = np.delete(cells, i, axis=0)
        without = counted(
            rest if shared > 1 else rest[:, 0], (3, 4), None if weights is None else np.delete(weights, i, axis=0)
        )
        changed = np.abs(every - without)
        assert UNIT - shared <= changed.sum() <= UNIT
        assert np.all((every - without) >= 0)
        assert np.count_nonzero(changed) <= shared


def test_thirds_of_a_record_are_rounded_down():
    third = np.full((1, 3), 1 / 3)
    assert counted(np.array([[0, 1, 2]]), (3,), third).tolist() == [UNIT // 3] * 3


def test_clipped_counts_are_the_nearest_without_negative_ones():
    rng = np.random.default_rng(5)
    noisy = 3 * rng.normal(size=(4, 7)) + 2
    made = clipped(noisy)
    assert made.shape == noisy.shape
    assert np.all(made >= 0)
    for row, nearest in zip(noisy.reshape(-1, 28), made.reshape(-1, 28), strict=True):
        total = max(row.sum(), 1.0)
        assert nearest.sum() == pytest.approx(total)
        # that of a projection: what is above 0 was lowered by one number, and the rest is not above it
        lowered = (row - nearest)[nearest > 0]
        assert np.ptp(lowered) < 1e-9
        assert np.all(row[nearest == 0] <= lowered[0] + 1e-9)
    few = clipped(np.array([-3.0, -1.0, 0.5]))
    assert few.sum() == pytest.approx(1)
    assert few.argmax() == 2


def test_clipping_agrees_with_an_optimizer():
    noisy = np.array([4.0, -2.0, 0.5, 1.0, -0.5])
    found = optimize.minimize(
        lambda x: ((x - noisy) ** 2).sum(), np.full(5, 0.6), bounds=[(0, None)] * 5,
        constraints={"type": "eq", "fun": lambda x: x.sum() - noisy.sum()},
    )  # fmt: skip
    assert clipped(noisy) == pytest.approx(found.x, abs=1e-4)


# The list


def test_what_was_released_is_written_down_and_the_dearest_part_counts():
    made = Releases(np.zeros)
    assert made.spent("member") == made.spent("other") == 0
    made.histogram("bins", "member", NOWHERE, (2,), 0.25)
    made.histogram("regions", "member", NOWHERE, (2,), 0.5)
    made.histogram("bins", "other", NOWHERE, (2,), 1.5, part="chosen")
    made.histogram("more", "other", NOWHERE, (2,), 0.25, part="chosen")
    made.histogram("regions", "other", NOWHERE, (2,), 0.5, part="counted")
    assert made.made[:3] == [
        Release("bins", "member", "", 0.25),
        Release("regions", "member", "", 0.5),
        Release("bins", "other", "chosen", 1.5),
    ]
    assert made.spent("member") == 0.75
    assert made.spent("other") == 1.75
    made.histogram("again", "other", NOWHERE, (2,), 1.5, part="counted")
    assert made.spent("other") == 2.0


def test_the_budget_is_a_half_for_members_and_two_and_a_half_for_others():
    assert math.fsum(BUDGET["member"].values()) == pytest.approx(0.5, abs=1e-12)
    assert math.fsum(BUDGET["other"].values()) == pytest.approx(2.5, abs=1e-12)


# A whole fit


def vectors(rng: np.random.Generator, count: tuple[int, ...], classes: int, known: float) -> tuple[np.ndarray, ...]:
    labels = rng.integers(0, classes, count)
    logits = rng.normal(size=(*count, classes)) + (1 + known) * np.eye(classes)[labels]
    scores = np.exp(logits)
    return scores / scores.sum(axis=-1, keepdims=True), labels


def columns(rng: np.random.Generator, count: tuple[int, ...], known: float) -> tuple[np.ndarray, ...]:
    labels = rng.integers(0, 2, count)
    return 1 / (1 + np.exp((1 - 2 * labels) * (1 + known) + rng.normal(size=count))), labels


@dataclass(frozen=True)
class Case:
    """What is fitted, and whether labels are told apart."""

    by_label: bool
    count: tuple[int, ...]
    classes: int = 3
    left_out: tuple[str, ...] = ()
    given: Any = None

    def records(self, seed: int) -> dict[str, np.ndarray]:
        made: dict[str, np.ndarray] = {}
        rng, shape = np.random.default_rng(seed), (self.given or {}).get("shape")
        for side, known in (("nonmember", 0.0), ("member", 1.0)):
            is_column = isinstance(shape, (Binary, MultiLabel))
            drawn = columns(rng, self.count, known) if is_column else vectors(rng, self.count, self.classes, known)
            made[f"{side}s"], made[f"{side}_labels"] = drawn
        return {name: value for name, value in made.items() if name not in self.left_out}

    @property
    def options(self) -> dict[str, Any]:
        return {"force": True, **(self.given or {})}


CASES = {
    "few": Case(False, (120,)),
    "few of two classes": Case(False, (300,), 2),
    "many": Case(True, (900,)),
    "with pairs": Case(True, (2000,)),
    "not by label, with pairs": Case(False, (2000,), 10),
    "beyond correctness": Case(True, (900,), given={"beyond": "correctness"}),
    "with ε": Case(True, (900,), given={"epsilon": 1.0}),
    "certified": Case(True, (2000,), 2, given={"certify": 0.3}),
    "certified, not by label": Case(False, (1000,), 3, given={"certify": 0.5}),
    "one column": Case(True, (700,), 2, given={"shape": Binary(0.4)}),
    "many labels": Case(True, (700, 3), 2, given={"shape": MultiLabel()}),
    "few of many labels": Case(False, (200, 2), 2, given={"shape": MultiLabel((0.3, 0.6))}),
    "places": Case(False, (150, 4), given={"shape": PerPosition()}),
    "places by label": Case(True, (900, 2), given={"shape": PerPosition()}),
    "no labels of others": Case(True, (900,), left_out=("nonmember_labels", "member_labels")),
    "no labels of members": Case(True, (900,), left_out=("member_labels",)),
    "few members without labels": Case(False, (300,), 2, left_out=("member_labels",)),
    "no members": Case(False, (900,), left_out=("members", "member_labels")),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@dataclass(frozen=True)
class Seen:
    """One histogram that a fit asked for."""

    by: Releases
    release: Release
    exact: np.ndarray  # in units, without noise
    noisy: np.ndarray


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch):
    """Fits, and lists the histograms that it made; where some are given, they take the place of its own."""
    histogram = Releases.histogram

    def fitted(records: dict[str, np.ndarray], options: dict[str, Any], instead: list[Seen] | None = None):
        book: list[Seen] = []

        def watching(self, name, side, cells, shape, epsilon, weights=None, part=""):
            noisy = histogram(self, name, side, cells, shape, epsilon, weights, part)
            release = self.made[-1]
            if instead is not None:
                of = instead[len(book)]
                assert (release, noisy.shape) == (of.release, of.noisy.shape)
                noisy = of.noisy
            book.append(Seen(self, release, counted(cells, shape, weights), noisy))
            return noisy.copy()

        monkeypatch.setattr(Releases, "histogram", watching)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            veil = fit(**records, **options, rng=np.random.default_rng(7))
        return veil, book

    return fitted


def maps_of(veil):
    return veil.mechanism.maps if isinstance(veil.mechanism, PerLabel) else (veil.mechanism,)


@each_case
def test_every_release_is_recorded_and_they_add_up_to_what_is_stated(case, watched):
    records = case.records(0)
    veil, book = watched(records, case.options)
    every = list({id(seen.by): seen.by for seen in book}.values())
    maps = maps_of(veil)
    assert len(every) == len(maps)  # each label has its own
    with_members = "members" in records
    for made, mapped in zip(every, maps, strict=True):
        mine = [seen.release for seen in book if seen.by is made]
        assert made.made == mine
        sums: dict[Any, float] = {}
        for release in mine:
            assert release.epsilon > 0
            sums[release.side, release.part] = sums.get((release.side, release.part), 0) + release.epsilon
        parts = ("chosen", "counted") if "certify" in case.options else ("",)
        sides = {"other": 2.5, "member": 0.5} if with_members else {"other": 2.5}
        expected = {(side, part): total for side, total in sides.items() for part in parts}
        assert sums == pytest.approx(expected, abs=1e-12)
        assert mapped.spent == pytest.approx((0.5 if with_members else 0.0, 2.5), abs=1e-12)
        names = {(release.side, release.name) for release in mine}
        assert len(names) == len(mine)  # none twice
        wanted = {(side, name) for side in sides for name in BUDGET[side] if case.by_label or name != "labels"}
        assert names == wanted
        assert {release.name for release in mine if release.part == "counted"} <= {"regions"}
    per_label = np.array([0.5 if with_members else 0.0, 2.5])
    assert veil.guarantee.fit_epsilon == pytest.approx(per_label * len(maps), abs=1e-12)


@pytest.mark.parametrize("left_out", [(), ("nonmember_labels", "member_labels")])
def test_the_places_of_a_record_sum_to_one_record_exactly(left_out, watched):
    """Seven places do not divide a unit; each rounded down, they would be a record that is less than one."""
    case = Case(False, (30, 7), left_out=left_out, given={"shape": PerPosition()})
    _, book = watched(case.records(0), case.options)
    assert {seen.exact.sum() for seen in book if seen.release.name != "ties"} == {30 * UNIT}


@pytest.mark.parametrize("name", ["few", "many labels"])
def test_a_record_on_both_sides_costs_what_both_cost(name, watched):
    case = CASES[name]
    records = case.records(0)
    apart, _ = watched(records, case.options)
    both, book = watched(records, {**case.options, "overlap": True})
    spent = sum(seen.release.epsilon for seen in book)
    assert both.guarantee.fit_epsilon == pytest.approx((spent, spent))
    assert sum(apart.guarantee.fit_epsilon) == pytest.approx(spent)
    assert any(f"cost each record ε = {spent:g} " in limit for limit in both.guarantee.limits)


@each_case
def test_a_veil_is_a_function_of_the_releases_alone(case, watched):
    """Given the noisy histograms of some records, a fit of quite other ones, as many, makes the same veil."""
    veil, book = watched(case.records(0), case.options)
    other, again = watched(case.records(1), case.options, instead=book)
    assert [mapped.settings() for mapped in maps_of(other)] == [mapped.settings() for mapped in maps_of(veil)]
    assert len(again) == len(book)
    assert any(not np.array_equal(a.exact, b.exact) for a, b in zip(again, book, strict=True))


def with_one_changed(records: dict[str, np.ndarray], side: str) -> dict[str, np.ndarray]:
    """The third record of a side becomes a sure one of the last class, and wrong."""
    changed = dict(records)
    scores = records[f"{side}s"].copy()
    if scores.ndim > 1 and scores.shape[-1] > 1 and np.allclose(scores.sum(axis=-1), 1):
        scores[2] = 0.001
        scores[2, ..., -1] = 1 - 0.001 * (scores.shape[-1] - 1)
    else:
        scores[2] = 0.999
    changed[f"{side}s"] = scores
    if f"{side}_labels" in records:
        labels = records[f"{side}_labels"].copy()
        labels[2] = 0
        changed[f"{side}_labels"] = labels
    return changed


@each_case
@pytest.mark.parametrize("side", ["member", "nonmember"])
def test_one_record_against_another_changes_each_histogram_by_at_most_2(case, side, watched):
    records = case.records(0)
    if f"{side}s" not in records:
        return
    _, book = watched(records, case.options)
    _, again = watched(with_one_changed(records, side), case.options, instead=book)
    changed: dict[Any, float] = {}
    for before, after in zip(book, again, strict=True):
        distance = np.abs(before.exact - after.exact).sum() / UNIT
        assert distance <= 2, before.release
        assert before.release.side == ("member" if side == "member" else "other") or distance == 0
        key = id(before.by), before.release.part
        changed[key] = max(changed.get(key, 0), distance)
    # it is there: in each label, and in one part
    parts = 2 if "certify" in case.options else 1
    assert sum(distance > 1 for distance in changed.values()) == len(changed) // parts


@each_case
def test_the_noise_that_evidence_states_is_at_least_that_of_its_counts(case, watched):
    """A cell of the evidence may be the sum of several that were released, each with noise of its own."""
    records = case.records(0)
    veil, book = watched(records, case.options)
    if "members" not in records:
        assert all(mapped.evidence is None for mapped in maps_of(veil))
        return
    regions = [seen for seen in book if seen.release.name == "regions"]
    pairs = [regions[i : i + 2] for i in range(0, len(regions), 2)]
    for mapped, pair in zip(maps_of(veil), pairs, strict=True):
        by_side = {seen.release.side: seen for seen in pair}
        for i, side in enumerate(("other", "member")):
            seen, counts = by_side[side], mapped.evidence.counts[i]
            if not isinstance(case.options.get("shape"), PerPosition):
                released = 16 * seen.noisy.reshape(-1, mapped.size).sum(axis=0)
                by_region = counts.reshape(-1, mapped.size).sum(axis=0)  # in the order of what they announce
                assert np.sort(by_region) == pytest.approx(np.sort(released), abs=counts.size)
            together = seen.noisy.size // counts.size
            variance = together * 2 / seen.release.epsilon**2
            assert 2 / mapped.evidence.noise[i] ** 2 >= variance * (1 - 1e-9)


def test_held_back_records_are_others_than_those_that_the_map_was_chosen_on(watched):
    case = CASES["certified"]
    _, book = watched(case.records(0), case.options)
    for side in ("member", "other"):
        sizes = {
            seen.release.part: round(seen.exact.sum() / UNIT)
            for seen in book
            if seen.release.side == side and seen.release.name in ("bins", "regions")
        }
        assert sizes == {"chosen": 1400, "counted": 600}


def test_with_no_noise_the_histograms_are_those_of_the_records(watched, monkeypatch):
    monkeypatch.setattr(Releases, "drawn", classmethod(lambda cls, rng: cls(np.zeros)))
    case = CASES["many"]
    records = case.records(0)
    veil, book = watched(records, case.options)
    for seen in book:
        assert np.array_equal(seen.noisy * UNIT, seen.exact)
    label, region = veil.mechanism.read(records["members"])
    right = label == records["member_labels"]
    by_hand = np.zeros((3, 2, veil.mechanism.size))
    np.add.at(by_hand, (label, right.astype(int), region), 16)
    assert np.array_equal(veil.mechanism.evidence.counts[1], by_hand)
    assert veil.mechanism.evidence.sizes == (900, 900)
    label, region = veil.mechanism.read(records["nonmembers"])
    right = label == records["nonmember_labels"]
    counts = np.zeros((2, veil.mechanism.size))
    np.add.at(counts, (right.astype(int), region), 16)
    assert np.array_equal(veil.mechanism.counts, counts)
    assert np.array_equal(veil.mechanism.evidence.counts[0].sum(axis=0), counts)


def test_noise_is_drawn_anew_for_every_fit_without_a_generator():
    records = CASES["few"].records(0)
    first, second = (fit(**records, force=True) for _ in range(2))
    again = [fit(**records, force=True, rng=np.random.default_rng(0)) for _ in range(2)]
    assert first.mechanism.settings() != second.mechanism.settings()
    assert again[0].mechanism.settings() == again[1].mechanism.settings()
