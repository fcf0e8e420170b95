"""Bits chosen with the schedule: by hand, at the edges, and where the input is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from flare.scheduling import RoundProblem, Status, solve
from flare.scheduling.bits_choice import NOBODY, BitsProblem, best_bits, coding_noise, update_growth
from flare.wireless.rate import bandwidth_for
from tests.bits_rounds import paper_bits, whole_hz
from tests.cells import paper_cell


def two_devices(**changes: Any) -> BitsProblem:
    """Two alike: 1 Hz with noise 1 or 3 Hz without, of a band of 4 Hz."""
    given = {"cost": [0.5, 0.5], "noise": [[1.0, 1.0], [0.0, 0.0]], "needed_hz": [[1.0, 1.0], [3.0, 3.0]]}
    given |= {"band_hz": 4.0, "gamma": 4.0} | changes
    return BitsProblem(**given)


def test_two_devices_by_hand() -> None:
    # one without noise: 5 x 0.5 = 2.5; both, one of them with noise: 1.5 x 1 + 1 x 1 = 2.5 at gamma 4, less above
    answer = best_bits(
        two_devices(gamma=6.0)
    )  # 7 x 0.5 = 3.5 against 2 x 1 + 1.5 x 1 = 3.5: a tie again? no: see below
    assert math.isclose(answer.objective, 3.5)
    both = best_bits(two_devices(noise=[[0.9, 0.9], [0.0, 0.0]]))
    assert math.isclose(both.objective, 1.5 + 0.9)
    assert sorted(both.choice.tolist()) == [0, 1]
    alone = best_bits(two_devices(noise=[[1.1, 1.1], [0.0, 0.0]]))
    assert math.isclose(alone.objective, 2.5)
    assert sorted(alone.choice.tolist()) == [NOBODY, 1]
    assert alone.status is both.status is Status.OPTIMAL


def test_where_the_band_is_wide_everybody_sends_without_noise() -> None:
    answer = best_bits(two_devices(band_hz=6.0))
    assert answer.choice.tolist() == [1, 1]


def test_without_gamma_noise_does_not_count() -> None:
    answer = best_bits(two_devices(gamma=0.0, noise=[[1e9, 1e9], [0.0, 0.0]], cost=[0.5, 0.4]))
    assert answer.selected.tolist() == [1]
    assert answer.objective == 0.4


def test_constraints() -> None:
    assert best_bits(two_devices(must=[0], band_hz=3.0, cost=[0.5, 0.1])).choice.tolist()[0] != NOBODY
    assert best_bits(two_devices(never=[0])).choice.tolist() == [NOBODY, 1]
    assert len(best_bits(two_devices(band_hz=6.0, max_devices=1)).selected) == 1
    nobody = best_bits(two_devices(must=[0, 1], band_hz=1.5))
    assert (nobody.status, nobody.lower_bound) == (Status.INFEASIBLE, math.inf)
    assert best_bits(two_devices(needed_hz=np.full((2, 2), np.inf))).status is Status.INFEASIBLE


@pytest.mark.parametrize("gamma", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("deadline_s", [0.4, 1.0])
def test_with_one_choice_and_no_noise_it_is_policy_exact(gamma: float, deadline_s: float) -> None:
    cell = paper_cell(5, deadline_s=deadline_s, gamma=gamma)
    noise = np.zeros((1, cell.num_devices))
    one = BitsProblem(1.0 / cell.tau, noise, cell.needed_hz[None], band_hz=cell.capacity_hz, gamma=gamma)
    assert math.isclose(best_bits(one).objective, solve(cell, "exact").objective, rel_tol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_choosing_is_never_worse_than_the_best_number_of_bits_for_all(spread: float) -> None:
    problem = paper_bits(1, spread=spread)
    chosen, fixed = best_bits(problem), []
    for at in range(len(problem.noise)):
        same = {"noise": problem.noise[at : at + 1], "needed_hz": problem.needed_hz[at : at + 1]}
        fixed.append(best_bits(BitsProblem(problem.cost, **same, band_hz=problem.band_hz, gamma=problem.gamma)))
    assert chosen.status is Status.OPTIMAL
    assert chosen.objective < min(answer.objective for answer in fixed)
    assert len(set(chosen.choice[chosen.selected].tolist())) > 1


def test_whole_blocks_are_bandwidths_that_are_rounded_up() -> None:
    problem, block_hz = paper_bits(2), 180e3
    blocks = np.ceil(problem.needed_hz / block_hz)
    in_blocks = BitsProblem(
        problem.cost, problem.noise, blocks * block_hz, band_hz=55 * block_hz * (1.0 + 1e-12), gamma=problem.gamma
    )
    answer = best_bits(in_blocks)
    assert answer.status is Status.OPTIMAL
    assert blocks[answer.choice[answer.selected], answer.selected].sum() <= 55
    assert answer.objective > best_bits(problem).objective


def test_many_devices_are_proven_with_spans() -> None:
    problem = paper_bits(0, num_devices=300)
    answer = best_bits(problem)
    assert answer.status is Status.OPTIMAL
    better = [
        change
        for device in range(300)
        for change in range(NOBODY, 6)
        if _changed(problem, answer.choice, device, change) < answer.objective * (1.0 - 1e-12)
    ]
    assert better == []  # no change to one device alone is any better


def _changed(problem: BitsProblem, choice: np.ndarray, device: int, change: int) -> float:
    other = choice.copy()
    other[device] = change
    selected = np.flatnonzero(other != NOBODY)
    return problem.objective(selected, other[selected]) if problem.fits(selected, other[selected]) else math.inf


def test_past_its_time_it_is_feasible_with_a_bound() -> None:
    alike = np.ones(400)
    hz = np.array([1.0, 1.5, 2.03, 4.17])[:, None]
    noise = np.array([2.0, 0.3, 0.05, 0.01])[:, None]
    problem = BitsProblem(0.5 * alike, noise * alike, hz * alike, band_hz=404.3, gamma=1000.0)
    answer = best_bits(problem, time_limit_s=0.05)
    assert answer.status is Status.FEASIBLE
    assert 0.99 * answer.objective < answer.lower_bound < answer.objective


def test_a_tie_at_the_edge_of_the_band_fits() -> None:
    problem = whole_hz(3, num_devices=6, num_choices=2, band_hz=30, gamma=10.0)
    least = best_bits(problem)
    used = problem.needed_hz[least.choice[least.selected], least.selected].sum()
    exactly = BitsProblem(problem.cost, problem.noise, problem.needed_hz, band_hz=used, gamma=10.0)
    assert best_bits(exactly).objective == least.objective


def test_coding_noise_by_hand() -> None:
    growth = (1.0 + math.sqrt(2.4) * 0.5) ** 2
    assert math.isclose(update_growth(0.5), growth)
    noise = coding_noise([2.0, 0.1], [1, 4], reach=0.5, gradient_sq=[3.0, 1.0])
    assert np.allclose(noise, growth * np.array([[2.0 * 4.0, 2.0 * 1.25], [0.1 * 4.0, 0.1 * 1.25]]), rtol=1e-15)
    measured = coding_noise([[2.0, 1.0]], [1, 4], reach=0.0)
    assert np.allclose(measured, [[4.0, 1.25]])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cost": [-1.0, 1.0]}, "cost of device 0 is -1; it must be at least 0"),
        ({"cost": [[1.0, 1.0]]}, "cost must hold one number for each of at least one device"),
        ({"noise": [[1.0, math.nan], [0.0, 0.0]]}, r"noise \[0, 1\] is nan"),
        ({"noise": [[1.0, 1.0]]}, "one row for each choice and one column for each device"),
        ({"needed_hz": [[-1.0, 1.0], [1.0, 1.0]]}, r"needed_hz \[0, 0\] is -1"),
        ({"needed_hz": [[1.0, 1.0], [math.nan, 1.0]]}, r"needed_hz \[1, 0\] is nan; it must be a number"),
        ({"noise": [1.0, 1.0]}, r"noise has the shape \(2,\); it must have 2 dimensions"),
        ({"band_hz": math.inf}, "band_hz is inf"),
        ({"gamma": -1.0}, "gamma is -1"),
        ({"gamma": "many"}, "gamma must be a number"),
        ({"must": [2]}, "must names device 2; the devices of the round are 0 to 1"),
        ({"must": [0.5]}, r"must is \[0.5\]; it must be a list of devices"),
        ({"must": [1], "never": [1, 0]}, "device 1 is in must and in never"),
        ({"max_devices": 0}, "max_devices is 0"),
        ({"must": [0, 1], "max_devices": 1}, "2 devices must send, and max_devices is 1"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        two_devices(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"variance": [-1.0]}, r"variance \[0\] is -1"),
        ({"variance": [[1.0, 2.0, 3.0]]}, "variance is of 3 devices, tau of 2"),
        ({"gradient_sq": [1.0]}, "gradient_sq is of 1 devices, tau of 2"),
        ({"tau": [0.5, 1.0]}, "tau of device 0 is 0.5"),
        ({"reach": math.nan}, "reach is nan"),
    ],
)
def test_bad_noise_is_named(changes: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"variance": [1.0], "tau": [1.0, 2.0], "reach": 0.1} | changes
    with pytest.raises(ValueError, match=says):
        coding_noise(**given)


def test_a_round_of_the_paper_with_bits_of_its_own() -> None:
    """What a caller does with a `RoundProblem` and payloads of every choice."""
    cell: RoundProblem = paper_cell(4)
    payloads = np.array([2.0, 4.0, 8.0])[:, None] * 312_414
    needed = bandwidth_for(payloads, cell.deadline_s - cell.compute_s, cell.snr_hz)
    noise = coding_noise([1.73, 0.04, 1e-4], cell.tau, reach=0.2)
    problem = BitsProblem(1.0 / cell.tau, noise, needed, band_hz=cell.capacity_hz, gamma=cell.gamma)
    answer = best_bits(problem)
    assert answer.status is Status.OPTIMAL
    assert needed[answer.choice[answer.selected], answer.selected].sum() <= cell.capacity_hz


def test_of_equals_in_whole_blocks_the_same_sends_however_devices_are_listed() -> None:
    """Channels that need as many blocks are equals to the search, and end the round at other times."""
    snr_hz = np.array([7.7e6, 9.8e5])
    heard = []
    for order in ([0, 1], [1, 0]):
        given = {"block_hz": 1e7, "coding_noise": [0.1, 0.1]}
        problem = RoundProblem([3.0, 3.0], [0.09, 0.09], snr_hz[order], 1e6, 1e7, 1.0, 10.0, **given)
        heard.append(snr_hz[order][solve(problem, "exact").selected].tolist())
    assert heard[0] == heard[1]


def test_of_equals_the_same_gets_a_block_more_however_devices_are_listed() -> None:
    blocks = []
    for order in ([0, 1], [1, 0]):
        tau = np.array([1.0, 2.0])[order]
        problem = RoundProblem(tau, [0.1, 0.1], [1e7, 1e7], 1e6, 3e6, 5.0, 10.0, block_hz=1e6)
        schedule = solve(problem, "cp")
        blocks.append(dict(zip(tau.tolist(), schedule.bandwidth_hz.tolist(), strict=True)))
    assert blocks[0] == blocks[1]
    assert sorted(blocks[0].values()) == [1e6, 2e6]
