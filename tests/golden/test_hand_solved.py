"""Small rounds solved by hand, and what `exact` says when its time is over."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from flare.scheduling import RoundProblem, Status, solve
from tests.cells import SAME, hand_cell, knapsack_cell, paper_cell
from tests.oracles import brute_force


def test_shares_of_hand_cells_are_what_they_say() -> None:
    problem = hand_cell([1.0, 2.0, 3.0], [0.5, 0.25, 1.0], gamma=1.0)
    np.testing.assert_allclose(problem.needed_hz, [5e5, 2.5e5, 1e6], rtol=1e-13)


@pytest.mark.parametrize(("gamma", "selected"), [(0.0, [0]), (0.9, [0]), (1.1, [1, 2]), (100.0, [1, 2])])
def test_two_small_devices_beat_a_large_one_from_gamma_1_on(gamma: float, selected: list[int]) -> None:
    # tau = 4 on the whole band: (1 + gamma) / 4. Two of tau = 3 on half each: (2 + gamma) / 4 x 2/3 = (2 + gamma) / 6.
    # Equal where 3 + 3 gamma = 4 + 2 gamma: gamma = 1.
    schedule = solve(hand_cell([4.0, 3.0, 3.0], [1.0, 0.5, 0.5], gamma))
    assert schedule.selected.tolist() == selected
    assert schedule.objective == pytest.approx(min((1 + gamma) / 4, (2 + gamma) / 6), rel=1e-15)


@pytest.mark.parametrize(("gamma", "number"), [(0.0, 1), (1.9, 1), (2.1, 2), (5.9, 2), (6.1, 3), (1e3, 3)])
def test_participation_grows_with_gamma(gamma: float, number: int) -> None:
    # tau = 12, 6, 4 with room for all: 1/tau sums to 1/12, 3/12, 6/12. The objectives are
    #   M = 1: (1 + g) / 12,   M = 2: (2 + g) / 4 x 3/12 = (2 + g) / 16,   M = 3: (3 + g) / 9 x 6/12 = (3 + g) / 18.
    # 1 and 2 are equal where 16 + 16 g = 24 + 12 g, g = 2; 2 and 3 where 36 + 18 g = 48 + 16 g, g = 6.
    schedule = solve(hand_cell([4.0, 12.0, 6.0], [0.2, 0.3, 0.1], gamma))
    assert schedule.num_selected == number
    assert schedule.objective == pytest.approx(min((1 + gamma) / 12, (2 + gamma) / 16, (3 + gamma) / 18), rel=1e-15)


def test_a_set_that_fills_the_band_exactly_fits() -> None:
    # Four devices on a quarter each. gamma = 0: any number of equal taus has 1/5; exact takes the largest set.
    schedule = solve(hand_cell([5.0] * 4, [0.25] * 4, gamma=0.0))
    assert schedule.selected.tolist() == [0, 1, 2, 3]
    assert schedule.objective == pytest.approx(0.2, rel=1e-15)
    np.testing.assert_allclose(schedule.bandwidth_hz, 2.5e5, rtol=1e-12)
    assert schedule.latency_s == pytest.approx(1.0, rel=1e-12)


def test_among_equal_taus_a_pair_that_fits_is_taken() -> None:
    # Room for two of the shares 0.5, 0.3, 0.45, 0.8. gamma = 10: M = 2 gives 12/4 x 2/5, M = 1 11/5.
    schedule = solve(hand_cell([5.0] * 4, [0.5, 0.3, 0.45, 0.8], gamma=10.0))
    assert 3 not in schedule.selected
    assert schedule.objective == pytest.approx(6.0 / 5.0, rel=1e-15)


def test_a_knapsack_that_no_price_solves() -> None:
    # 1/tau = 0.2, 0.32, 0.36, 0.5 and shares 0.7, 0.5, 0.48, 0.26. Pairs (share, sum of 1/tau):
    #   {0,1} (1.20, 0.52)  {0,2} (1.18, 0.56)  {1,2} (0.98, 0.68)  {0,3} (0.96, 0.70)  {1,3} (0.76, 0.82)  ...
    # {1,2} is the best pair that fits. It lies above the line from {0,1} to {1,3}, which passes 0.98 at 0.67: no price
    # of bandwidth makes it the cheapest pair. gamma = 1000: one device has at least 1001 x 0.2 = 200.2, this pair
    # 1002/4 x 0.68 = 170.34; three need at least 1.24 of the band.
    problem = hand_cell([5.0, 1 / 0.32, 1 / 0.36, 2.0], [0.7, 0.5, 0.48, 0.26], gamma=1000.0)
    schedule = solve(problem)
    assert schedule.selected.tolist() == [1, 2]
    assert schedule.objective == pytest.approx(170.34, rel=1e-14)


def test_gamma_0_takes_the_largest_tau_that_can_meet_the_deadline() -> None:
    schedule = solve(hand_cell([9.0, 7.0, 5.0], [1.1, 0.9, 0.1], gamma=0.0))
    assert schedule.selected.tolist() == [1]
    assert schedule.objective == pytest.approx(1.0 / 7.0, rel=1e-15)


def test_the_band_of_two_different_devices_by_hand() -> None:
    # Both finish at 1 s: the one that computes 0.5 s has SNR 3 on b = 1 MHz (2 Mbit/s), the other SNR 1 on 1 MHz.
    schedule = solve(RoundProblem([1, 1], [0.5, 0.0], [3e6, 1e6], 1e6, 2e6, 1.0, gamma=10.0))
    np.testing.assert_allclose(schedule.bandwidth_hz, [1e6, 1e6], rtol=1e-12)
    assert schedule.latency_s == pytest.approx(1.0, rel=1e-12)
    assert schedule.objective == pytest.approx((1 / 2 + 10 / 4) * 2, rel=1e-15)


def test_a_deadline_before_the_fastest_device_is_infeasible() -> None:
    schedule = solve(RoundProblem([1, 1], [0.5, 0.0], [3e6, 1e6], 1e6, 2e6, 0.4, gamma=10.0))
    assert schedule.status is Status.INFEASIBLE
    assert schedule.selected.size == 0
    assert schedule.objective == math.inf
    assert schedule.lower_bound == math.inf
    assert math.isnan(schedule.latency_s)
    assert math.isnan(schedule.gap)


# The time limit.


def assert_best_so_far(problem: RoundProblem, time_limit_s: float) -> None:
    schedule = solve(problem, "exact", time_limit_s=time_limit_s)
    assert schedule.status is Status.FEASIBLE
    assert schedule.num_selected > 0
    assert problem.fits(schedule.selected)
    assert 0.0 < schedule.lower_bound <= schedule.objective
    if problem.num_devices <= 10:
        least = brute_force(problem)
        assert schedule.lower_bound <= least * (1.0 + SAME)
        assert schedule.objective >= least * (1.0 - SAME)


def test_exact_out_of_time_at_once_returns_a_schedule_and_a_bound() -> None:
    # Price 0 and infinity alone do not settle these rounds: a nanosecond leaves a gap.
    for seed in (0, 1, 2):
        assert_best_so_far(knapsack_cell(seed, num_devices=10, gamma=100.0), 1e-9)
    assert_best_so_far(paper_cell(0), 1e-9)


def test_exact_out_of_time_in_a_large_core_returns_a_schedule_and_a_bound() -> None:
    # 40 float taus with c_i = a - d / tau_i: at the best price all keys are equal, the core is the whole cell, and a
    # subset-sum problem over C(40, 9) = 2.7e8 sets is left.
    assert_best_so_far(knapsack_cell(1, num_devices=40, gamma=100.0), 0.05)


def test_exact_out_of_time_inside_the_core_returns_a_schedule_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the clock of the core search is late, so that the search over prices comes to its end first.
    monkeypatch.setattr("flare.scheduling.knapsack_walk.time", SimpleNamespace(perf_counter=lambda: math.inf))
    rounds = [knapsack_cell(seed, num_devices=10, gamma=100.0) for seed in range(40)]
    stopped = [one for one in rounds if solve(one).status is Status.FEASIBLE]
    assert len(stopped) >= 3
    for problem in stopped:
        assert_best_so_far(problem, 10.0)
