"""The knapsack over utilities, against all subsets."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flare.scheduling import RoundProblem
from flare.scheduling.utility_knapsack import best_utility
from tests.cells import SAME, changed, extreme_rounds, hand_cell, knapsack_cell, paper_cell, reordered
from tests.oracles import brute_force_utility

LIMITS = (None, 1, 2, 3, 5)


def assert_best(problem: RoundProblem, utility: np.ndarray, max_devices: int | None) -> None:
    problem = changed(problem, max_devices=max_devices)
    best = best_utility(problem, utility)
    assert problem.fits(best.selected)
    assert len(best.selected) <= (problem.num_devices if max_devices is None else max_devices)
    assert (utility[best.selected] > 0.0).all()
    assert best.utility == math.fsum(utility[best.selected])
    assert best.bound == best.utility
    assert math.isclose(best.utility, brute_force_utility(problem, utility), rel_tol=SAME)


def draws(seed: int, problem: RoundProblem) -> list[np.ndarray]:
    """Utilities of many kinds: even, tied, whole, of both signs, over many decades, tied to the need."""
    rng = np.random.default_rng(seed)
    number = problem.num_devices
    share = np.minimum(problem.needed_hz / problem.total_bandwidth_hz, 2.0)
    return [
        rng.random(number),
        rng.normal(size=number),
        rng.integers(-1, 4, number).astype(float),
        np.ones(number),
        10.0 ** rng.uniform(-90.0, 90.0, number),
        10.0 ** rng.uniform(-3.0, 3.0, number) * rng.choice([-1.0, 0.0, 1.0], number),
        share,  # a subset-sum problem
        share + 0.01 * rng.random(number),
    ]


@pytest.mark.parametrize("max_devices", LIMITS)
@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_greatest_over_all_subsets(seed: int, max_devices: int | None) -> None:
    cells = [
        paper_cell(seed, num_devices=9),
        paper_cell(seed, num_devices=8, deadline_s=1.0),
        knapsack_cell(seed, num_devices=9),
        hand_cell([2.0] * 8, [0.3, 0.3, 0.3, 0.2, 0.2, 0.15, 0.5, 1.2], gamma=1.0),
    ]
    for problem in cells:
        for utility in draws(seed, problem):
            assert_best(problem, utility, max_devices)


def test_it_is_the_greatest_over_all_subsets_of_twelve() -> None:
    problem = paper_cell(3, num_devices=12, deadline_s=0.6)
    for utility in draws(3, problem)[:3]:
        assert_best(problem, utility, None)


@pytest.mark.parametrize("max_devices", [None, 1, 2])
def test_it_is_the_greatest_in_extreme_rounds(max_devices: int | None) -> None:
    for turn, problem in enumerate(extreme_rounds(5, 150)):
        for utility in draws(turn, problem):
            assert_best(problem, utility, max_devices)


def test_nobody_is_taken_where_nobody_is_wanted_or_can() -> None:
    problem = paper_cell(0, num_devices=6)
    for utility in (np.zeros(6), -np.ones(6)):
        assert best_utility(problem, utility).selected.size == 0
    nobody_can = best_utility(paper_cell(0, num_devices=6, deadline_s=0.01), np.ones(6))
    assert nobody_can.selected.size == 0
    assert nobody_can.utility == nobody_can.bound == 0.0


def test_a_huge_utility_does_not_hide_the_small_ones() -> None:
    # 0.5 for the huge one; of the small ones 0.3 + 0.2 has 3 + 2, 0.25 + 0.25 has 2 + 2. Beside 1e9 that is 1e-9.
    problem = hand_cell([1.0] * 5, [0.5, 0.3, 0.2, 0.25, 0.25], gamma=1.0)
    best = best_utility(problem, np.array([1e9, 3.0, 2.0, 2.0, 2.0]))
    assert best.selected.tolist() == [0, 1, 2]


def test_the_order_of_the_devices_does_not_matter() -> None:
    for seed in range(10):
        problem = paper_cell(seed, num_devices=20)
        utility = np.round(np.log(problem.snr_hz) + problem.tau)  # many ties
        order = np.random.default_rng(seed).permutation(20)
        one, other = best_utility(problem, utility), best_utility(reordered(problem, order), utility[order])
        assert sorted(order[other.selected]) == one.selected.tolist()


def test_out_of_time_the_best_found_comes_with_an_honest_bound() -> None:
    # Utility = bandwidth: a subset-sum problem over 40 devices, which a nanosecond does not settle.
    problem = knapsack_cell(1, num_devices=40)
    utility = problem.needed_hz / problem.total_bandwidth_hz
    at_once, later = (best_utility(problem, utility, time_limit_s=limit) for limit in (1e-9, 0.2))
    assert problem.fits(at_once.selected)
    assert at_once.utility < at_once.bound
    assert later.utility <= 1.0 + 1e-12  # the whole band
    assert at_once.bound >= later.utility
    assert at_once.utility >= 0.5 * later.utility


@pytest.mark.parametrize("max_devices", [None, 7])
def test_it_agrees_with_a_mixed_integer_program(max_devices: int | None) -> None:
    from scipy.optimize import Bounds, LinearConstraint, milp

    for seed in range(4):
        problem = paper_cell(seed, num_devices=40, deadline_s=0.6)
        utility = np.random.default_rng(seed).random(40) * problem.tau
        able = problem.reachable
        share = problem.needed_hz[able] / problem.total_bandwidth_hz
        limit = len(able) if max_devices is None else max_devices
        answer = milp(
            -utility[able],
            integrality=np.ones(len(able)),
            bounds=Bounds(0.0, 1.0),
            constraints=[LinearConstraint(share, -np.inf, 1.0), LinearConstraint(np.ones(len(able)), 0, limit)],
            options={"mip_rel_gap": 0.0},
        )
        problem = changed(problem, max_devices=max_devices)
        assert best_utility(problem, utility).utility == pytest.approx(-answer.fun, rel=1e-6)
