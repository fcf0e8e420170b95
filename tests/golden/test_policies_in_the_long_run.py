"""What policies with a memory or a lottery do over many rounds, with the numbers they must come to."""

from __future__ import annotations

import numpy as np
import pytest

from flare.rng import stream
from flare.scheduling import RoundProblem, solve
from tests.cells import hand_cell, paper_cell


def served(problem: RoundProblem, policy: str, num_rounds: int, **options: object) -> list[list[int]]:
    """Who sends in each round of a run."""
    memory, rounds = None, []
    for turn in range(num_rounds):
        schedule = solve(problem, policy, rng=stream(5, "policy", turn), memory=memory, **options)
        rounds.append(schedule.selected.tolist())
        memory = schedule.memory
    return rounds


def test_round_robin_serves_everybody_before_anybody_twice_when_one_fits_at_a_time() -> None:
    # Everybody needs more than half of the band.
    cell = hand_cell([1.0, 2.0, 2.0, 5.0, 9.0, 3.0, 3.0], [0.51, 0.9, 0.9, 0.6, 0.8, 0.7, 1.0], gamma=10.0)
    rounds = served(cell, "round-robin", 21)
    assert all(len(one) == 1 for one in rounds)
    for lap in range(3):
        assert sorted(device for one in rounds[7 * lap : 7 * lap + 7] for device in one) == list(range(7))


def test_round_robin_keeps_its_turn_from_lap_to_lap() -> None:
    rounds = served(paper_cell(0, num_devices=7, deadline_s=20.0), "round-robin", 21, num_selected=1)
    assert rounds[:7] == rounds[7:14] == rounds[14:]


def test_round_robin_serves_equal_numbers_in_turn() -> None:
    # Nine devices, two at a time: 9 rounds are 18 services, two for each.
    rounds = served(paper_cell(0, num_devices=9, deadline_s=20.0), "round-robin", 9, num_selected=2)
    assert np.bincount(np.concatenate(rounds), minlength=9).tolist() == [2] * 9


def test_round_robin_lets_nobody_wait_behind_one_who_has_waited_less() -> None:
    # Shares of 0.4 and 0.6: who does not fit is passed over, but is first in the next round.
    cell = hand_cell([1.0] * 6, [0.4, 0.6, 0.4, 0.6, 0.4, 0.6], gamma=10.0)
    waited = np.zeros(6)
    longest = 0.0
    for one in served(cell, "round-robin", 60):
        assert waited[one].max() == waited.max()
        waited += 1.0
        waited[one] = 0.0
        longest = max(longest, waited.max())
    assert longest <= 5.0


def test_groups_are_called_with_the_probabilities_of_fig_4() -> None:
    # One device a round, everybody fits: the group of the one drawn has probability 0.05, 0.15, 0.2, 0.6.
    cell = paper_cell(0, deadline_s=50.0)
    first = solve(cell, "grouped", rng=stream(0, "policy", 0), num_selected=1)
    group = first.memory["device_group"]
    assert np.bincount(group.astype(int)).tolist() == [10, 10, 10, 10]
    draws = 4000
    drawn = [
        int(solve(cell, "grouped", rng=stream(0, "policy", turn), memory=first.memory, num_selected=1).selected[0])
        for turn in range(1, draws + 1)
    ]
    often = np.bincount(group[drawn].astype(int), minlength=4) / draws
    expected = np.array([0.05, 0.15, 0.2, 0.6])
    assert (np.abs(often - expected) < 4.0 * np.sqrt(expected * (1.0 - expected) / draws)).all()
    within = np.bincount(drawn, minlength=40)[group == 3]  # alike within a group: 240 each, deviation 15
    assert np.abs(within - 240).max() < 4.5 * 15


def test_groups_stay_as_they_were_drawn() -> None:
    cell = paper_cell(0, num_devices=10)
    first = solve(cell, "grouped", rng=stream(0, "policy", 0))
    second = solve(cell, "grouped", rng=stream(0, "policy", 1), memory=first.memory)
    np.testing.assert_equal(first.memory, second.memory)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 7])
def test_groups_of_a_small_cell_differ_by_one_device_at_most(number: int) -> None:
    memory = solve(paper_cell(0, num_devices=number, deadline_s=9.0), "grouped", rng=stream(0)).memory
    sizes = np.bincount(memory["device_group"].astype(int), minlength=4)
    assert sizes.sum() == number
    assert sizes.max() - sizes.min() <= 1


def test_proportional_fair_serves_all_alike_when_channels_differ_in_strength_only() -> None:
    # Constant channels: every ratio is 1, and lots decide. 600 rounds of 2 among 6: 200 each, deviation 11.5.
    rounds = served(paper_cell(0, num_devices=6, deadline_s=20.0), "proportional-fair", 600, num_selected=2)
    counts = np.bincount(np.concatenate(rounds), minlength=6)
    assert np.abs(counts - 200).max() < 5 * 11.5
