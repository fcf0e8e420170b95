"""Oort by hand: scores, who is held back, the pacer, and how many new devices are called."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import History, RoundProblem, solve
from flare.scheduling.orders import drawn
from flare.scheduling.systems.oort import Pacer, held_back, scores, utilities
from tests.cells import paper_cell

ALL_FIT_S = 60.0


def equal_cell(num_devices: int, compute_s: object = 0.0) -> RoundProblem:
    """On half of the band of 1 MHz each sends its bits in 1 s: the rate there is 0.5e6 log2(1 + 1) = 0.5e6 bit/s."""
    compute = np.broadcast_to(np.asarray(compute_s, dtype=float), num_devices)
    return RoundProblem(np.ones(num_devices), compute, np.full(num_devices, 0.5e6), 0.5e6, 1e6, ALL_FIT_S)


def seen(squared_loss: list[float], num_samples: object = 1.0) -> History:
    """Devices that have all sent in the round before, but for those of loss nan, which never have."""
    squared = np.array(squared_loss)
    samples = np.broadcast_to(np.asarray(num_samples, dtype=float), squared.shape)
    since = np.where(np.isnan(squared), np.inf, 1.0)
    return replace(History.empty(squared.size, num_samples=samples), mean_squared_loss=squared, rounds_since_sent=since)


def test_a_utility_is_samples_times_the_root_of_the_mean_squared_loss() -> None:
    known = replace(seen([4.0, np.nan, np.nan], [10.0, 20.0, 30.0]), last_loss=np.array([7.0, 3.0, np.nan]))
    np.testing.assert_array_equal(utilities(known), [20.0, 60.0, np.nan])


def test_scores_by_hand() -> None:
    # Round 10: sqrt(0.1 ln 10) = 0.4798526, over sqrt(1), sqrt(4) and sqrt(9); utilities 1, 2, 5 scale to 0, 1/4, 1.
    found = scores(np.array([1.0, 2.0, 5.0]), 10, np.array([1.0, 4.0, 9.0]))
    np.testing.assert_allclose(found, [0.4798526, 0.25 + 0.2399263, 1.0 + 0.1599509], atol=5e-8)


def test_a_utility_beyond_the_98th_percentile_is_clipped() -> None:
    utility = np.append(np.arange(1.0, 100.0), 1000.0)  # of 100 the 99th is 99
    np.testing.assert_allclose(scores(utility, 1, np.ones(100))[[0, 98, 99]], [0.0, 98.0 / 999.0, 98.0 / 999.0])


def test_equal_utilities_have_equal_scores() -> None:
    np.testing.assert_array_equal(scores(np.full(3, 7.0), 1, np.ones(3)), np.zeros(3))


def test_slow_devices_are_held_back_by_the_square_of_how_much_they_are_slower() -> None:
    durations_s = np.array([8.0, 1.0, 4.0, 2.0])  # the percentile 30 of four: the second, 2 s
    np.testing.assert_array_equal(held_back(durations_s, 30.0, 2.0), [1.0 / 16.0, 1.0, 0.25, 1.0])
    np.testing.assert_array_equal(held_back(durations_s, 30.0, 0.0), np.ones(4))
    np.testing.assert_array_equal(held_back(durations_s, 100.0, 2.0), np.ones(4))


def test_the_pacer_rises_where_utility_is_flat_and_falls_where_it_jumps() -> None:
    # Windows of two rounds with utilities 10; 10.5 (flat: 0.5 <= 1); 63 (a jump of 52.5 = 5 x 10.5); 90 (neither).
    pacer, percentiles = Pacer(), []
    for index, utility in enumerate([0.0, 10.0, 5.0, 5.5, 60.0, 3.0, 45.0, 45.0], start=1):
        pacer = Pacer.of({name: np.asarray(value) for name, value in pacer.memory().items()}).after(index, utility, 2)
        percentiles.append(pacer.percentile)
    assert percentiles == [10.0, 10.0, 10.0, 15.0, 15.0, 10.0, 10.0, 10.0]


def test_the_greatest_utilities_are_exploited() -> None:
    # Scores 0, 0, 1, 1: the cut is 0.7, and nobody else is near it.
    for seed in range(10):
        assert solve(
            equal_cell(4), "oort", rng=stream(seed), history=seen([0.0, 0.0, 16.0, 16.0]), num_selected=2
        ).selected.tolist() == [2, 3]


def test_a_slow_device_loses_its_place() -> None:
    # Utilities 3, 0, 4, 4 are scores 3/4, 0, 1, 1. On half the band all send in 1 s; the last also computes for 1 s:
    # twice as slow as T, its score is 1/4. The second place is at 3/4, the cut at 0.525: devices 0 and 2.
    cell, known = equal_cell(4, [0.0, 0.0, 0.0, 1.0]), seen([9.0, 0.0, 16.0, 16.0])
    for seed in range(10):
        answer = solve(cell, "oort", rng=stream(seed), history=known, num_selected=2)
        assert answer.selected.tolist() == [0, 2]
    taken = {
        device
        for seed in range(20)
        for device in solve(
            cell, "oort", rng=stream(seed), history=known, num_selected=2, slow_penalty=0.0
        ).selected.tolist()
    }
    assert 3 in taken


@pytest.mark.parametrize(("rounds_before", "num_new"), [(0, 8), (39, 2)])
def test_so_many_new_devices_are_called(rounds_before: int, num_new: int) -> None:
    # m = 10. Round 1: epsilon = 0.9 x 0.95 = 0.855, floor(8.55) = 8 are new. Round 40: 0.9 x 0.95^40 = 0.116
    # is under the floor of 0.2, and 2 are.
    known = seen([1.0] * 12 + [np.nan] * 12)
    memory = {"round": np.asarray(rounds_before), "device_exploited": np.zeros(24)}
    answer = solve(equal_cell(24), "oort", rng=stream(0), history=known, memory=memory)
    assert answer.num_selected == 10
    assert (answer.selected >= 12).sum() == num_new
    assert int(answer.memory["round"]) == rounds_before + 1
    assert answer.memory["device_exploited"].sum() == 10 - num_new


def test_new_devices_are_those_of_much_data() -> None:
    known = seen([np.nan] * 12, np.arange(1.0, 13.0))
    drawn_devices = {
        int(solve(equal_cell(12), "oort", rng=stream(seed), history=known, num_selected=1).selected[0])
        for seed in range(60)
    }
    assert drawn_devices == {7, 8, 9, 10, 11}  # five times the one place


def test_places_that_no_new_device_takes_are_exploited() -> None:
    known = seen([25.0] * 5 + [0.0] * 6 + [np.nan])
    answer = solve(equal_cell(12), "oort", rng=stream(0), history=known, num_selected=6)
    assert answer.selected.tolist() == [0, 1, 2, 3, 4, 11]


def test_draws_are_in_proportion_to_weights_and_without_replacement() -> None:
    # First place: 3/4 and 1/4. Both places: 0 before 1 with 3/4. Weight 0 is always last. 4 sigma of 4000 draws: 0.027.
    rng, devices = stream(5), np.array([4, 8, 6])
    orders = np.array([drawn(devices, np.array([3.0, 1.0, 0.0]), rng) for _ in range(4000)])
    assert (orders[:, 2] == 6).all()
    assert abs((orders[:, 0] == 4).mean() - 0.75) < 0.028


def test_the_pacer_goes_by_those_that_were_exploited_and_sent() -> None:
    cell, known = paper_cell(3, num_devices=12, deadline_s=20.0), seen([1.0] * 12, 2.0)
    memory = None
    for turn in range(3):
        answer = solve(cell, "oort", rng=stream(turn), history=known, memory=memory, num_selected=4)
        memory = answer.memory
    # Nobody is new: 4 devices of utility 2 are exploited in each round, and their mean counts in the next.
    assert float(memory["this_window"]) == 2 * 2.0
