from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog

from flare.scheduling import RoundProblem, Status, solve
from flare.scheduling.exact import proven_bounds
from flare.scheduling.exact_search import Search
from flare.scheduling.fixed_size_knapsack import better_set
from tests.cells import SAME, changed, hand_cell, knapsack_cell, paper_cell
from tests.oracles import brute_force, brute_force_by_number


def test_exact_is_the_default_policy() -> None:
    assert solve(paper_cell(0)).policy == "exact"


def test_an_optimal_schedule_carries_its_own_objective_as_bound() -> None:
    schedule = solve(paper_cell(0))
    assert schedule.status is Status.OPTIMAL
    assert schedule.lower_bound == schedule.objective
    assert schedule.gap == 0.0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"must": [3, 7]},
        {"must": range(40)},
        {"deadline_s": 1e-6},
        {"max_devices": 2},
        {"coding_noise": np.ones(40)},
    ],
)
def test_the_proven_bound_is_that_of_the_schedule(changes: dict[str, object]) -> None:
    problems = [changed(paper_cell(seed), **changes) for seed in range(5)]
    assert proven_bounds(problems) == [solve(problem).lower_bound for problem in problems]


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan])
def test_a_time_limit_that_is_not_positive_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match=r"option 'time_limit_s' of policy 'exact' is .*; it must be .*greater than 0"):
        solve(paper_cell(0), "exact", time_limit_s=limit)


@pytest.mark.parametrize("number", [1, 2, 3, 8])
def test_a_set_that_uses_up_the_rounding_tolerance_is_found(number: int) -> None:
    # The band is such that everybody fits by the last bit of the tolerance: B (1 + 1e-12) is the sum of needs.
    cell = RoundProblem([1.0] * number, [0.0] * number, [1e9] * number, 1e7, 1e9, 0.5, gamma=1.0)
    band = math.fsum(cell.needed_hz) / (1.0 + 1e-12)
    candidates = [changed(cell, total_bandwidth_hz=band * (1.0 + ulps * 2.0**-52)) for ulps in range(-2, 3)]
    problem = next(one for one in candidates if one.fits(np.arange(number)))
    schedule = solve(problem, "exact", time_limit_s=0.2)
    assert schedule.status is Status.OPTIMAL
    assert schedule.objective == pytest.approx(brute_force(problem), rel=SAME)


@pytest.mark.parametrize("unit", [1e-9, 1e-3, 1.0, 1e3, 1e9])
def test_the_optimum_does_not_depend_on_the_unit_of_frequency(unit: float) -> None:
    for seed in range(15):
        cell = knapsack_cell(seed, num_devices=9, noise=0.01, gamma=100.0)
        scaled = changed(
            cell,
            snr_hz=cell.snr_hz * unit,
            payload_bits=cell.payload_bits * unit,
            total_bandwidth_hz=cell.total_bandwidth_hz * unit,
        )
        assert solve(scaled).objective == pytest.approx(brute_force(cell), rel=SAME)


def test_the_optimum_does_not_depend_on_the_unit_of_time() -> None:
    cell = paper_cell(6, num_devices=9)
    slow = changed(
        cell,
        compute_s=cell.compute_s * 1e6,
        deadline_s=cell.deadline_s * 1e6,
        payload_bits=cell.payload_bits * 1e6,
    )
    assert solve(slow).objective == pytest.approx(solve(cell).objective, rel=SAME)


@pytest.mark.parametrize("gamma", [0.0, 1e-9, 1e9])
def test_extreme_gammas_are_solved(gamma: float) -> None:
    for seed in range(10):
        problem = paper_cell(seed, num_devices=9, gamma=gamma)
        schedule = solve(problem)
        assert schedule.status is Status.OPTIMAL
        assert schedule.objective == pytest.approx(brute_force(problem), rel=SAME)


@pytest.mark.parametrize("gamma", [0.0, 1e9])
def test_of_equal_taus_as_many_as_fit_are_taken(gamma: float) -> None:
    # (1/M + gamma/M^2) M / tau falls in M; at gamma = 0 it does not depend on M, and more devices are preferred.
    problem = changed(paper_cell(0, gamma=gamma), tau=np.full(40, 3.0))
    assert solve(problem).num_selected == solve(problem, "all").num_selected


# The bounds.


def relaxed_sum(nu: np.ndarray, needed: np.ndarray, number: int, band: float) -> float:
    """The linear relaxation: the least sum of nu over fractions of devices that add up to `number` and fit."""
    answer = linprog(
        nu, A_ub=needed[None, :] / band, b_ub=[1.0], A_eq=np.ones((1, len(nu))), b_eq=[number], bounds=(0.0, 1.0)
    )
    return float(answer.fun)


@pytest.mark.parametrize("seed", range(10))
def test_the_best_price_gives_the_bound_of_the_linear_relaxation(seed: int) -> None:
    problem = knapsack_cell(seed, num_devices=9, noise=0.3)
    order = problem.canonical_order
    nu, needed = 1.0 / problem.tau[order], problem.needed_hz[order]
    row = (np.array([len(nu)]), np.array([problem.gamma]), np.array([problem.capacity_hz]))
    with np.errstate(invalid="ignore"):
        search = Search(nu[None], needed[None], *row)
        for at in range(search.bound.shape[1]):
            price, between = search.price_of(0, at)
            while between and math.isnan(search.price[0, at]):
                search.sharpen(np.array([at]), np.array([price]))
                price, between = search.price_of(0, at)
    least = brute_force_by_number(problem)
    for at, bound in enumerate(search.bound[0]):
        relaxed = relaxed_sum(nu, needed, at + 1, problem.capacity_hz)
        assert bound == pytest.approx(problem.participation(at + 1) * relaxed, rel=1e-9)
        assert bound <= problem.participation(at + 1) * least[at + 1] * (1.0 + SAME)


# The core search.


def min_sum(nu: np.ndarray, needed: np.ndarray, number: int, band: float) -> float:
    """The least sum of nu over sets of that size that fit, by going through all of them."""
    sets = [members for members in range(2 ** len(nu)) if members.bit_count() == number]
    inside = np.array([[members >> device & 1 for device in range(len(nu))] for members in sets], dtype=float)
    sums = inside @ nu
    return float(sums[inside @ needed <= band].min(initial=math.inf))


def whatever_fits(_: object) -> bool:
    return True


@pytest.mark.parametrize("price", [0.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("classes", [3, 1000])
def test_core_search_is_complete_at_any_price(price: float, classes: int) -> None:
    rng = np.random.default_rng(classes)
    for _ in range(20):
        nu = np.sort(rng.integers(1, classes + 1, 9) / classes)
        needed = rng.uniform(0.1, 1.0, 9) * (1.3 - nu)
        order = np.lexsort((needed, nu))
        nu, needed = nu[order], needed[order]
        number, band = int(rng.integers(1, 9)), float(rng.uniform(0.5, 2.0))
        least = min_sum(nu, needed, number, band)
        found = better_set(nu, needed, price, number, band, 100.0, whatever_fits, math.inf)
        if math.isinf(least):
            assert found is None
        else:
            assert found is not None
            assert len(found) == number
            assert needed[found].sum() <= band * (1 + 1e-12)
            assert nu[found].sum() == pytest.approx(least, rel=1e-12)
            # A target just above the least sum leaves no room to prune too much, one just below nothing to find.
            assert better_set(nu, needed, price, number, band, least * (1 + 1e-9), whatever_fits, math.inf) is not None
            assert better_set(nu, needed, price, number, band, least * (1 - 1e-9), whatever_fits, math.inf) is None


def test_core_search_in_many_small_portions_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [knapsack_cell(seed, num_devices=14, gamma=100.0) for seed in range(20)]
    whole = [solve(one).objective for one in rounds]
    monkeypatch.setattr("flare.scheduling.knapsack_walk._MAX_STATES", 4)
    assert [solve(one).objective for one in rounds] == pytest.approx(whole, rel=SAME)


def test_core_search_past_its_time_raises() -> None:
    nu, needed = np.array([0.2, 0.32, 0.36, 0.5]), np.array([0.7, 0.5, 0.48, 0.26])
    with pytest.raises(TimeoutError):
        better_set(nu, needed, 0.7, 2, 1.0, 10.0, whatever_fits, stop_at=-math.inf)


def test_two_fractional_devices_do_not_hide_the_optimum() -> None:
    # Shares 0.6, 0.6, 0.35, 0.35 with tau 4, 4, 2, 2: the relaxation of M = 2 mixes both kinds; {4, 2} fits.
    # One device has at least 1001/4 = 250.25, this pair 1002/4 x 3/4 = 187.875; three need at least 1.3 of the band.
    schedule = solve(hand_cell([4.0, 4.0, 2.0, 2.0], [0.6, 0.6, 0.35, 0.35], gamma=1000.0))
    assert schedule.objective == pytest.approx(187.875, rel=1e-14)
